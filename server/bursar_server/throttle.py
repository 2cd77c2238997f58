"""How often somebody may call, and how often somebody may fail. Only public things are counted: names and addresses."""

from __future__ import annotations

import functools
import ipaddress
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_MOST_KEPT = 10_000
"""Names and addresses that are remembered; beyond it the one that was quiet longest is forgotten."""


class TooOftenError(Exception):
    """Too many calls, or too many that failed; nothing was debited.

    Attributes:
        seconds: after which a call is heard again.
    """

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(f"{text}; try again in {max(1, math.ceil(seconds))} s")
        self.seconds = seconds


@dataclass
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """A token bucket for each name: `most` at once, and as many again in `seconds`.

    Args:
        most: tokens of a full bucket.
        seconds: in which an empty one fills.
        now: seconds on a clock that never goes back.
    """

    def __init__(self, most: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._rate = most / seconds
        self._now = now
        self._lock = threading.Lock()
        self._buckets: dict[str, _Bucket] = {}

    def take(self, name: str) -> float:
        """Take a token of a name; 0 if there was one, else the seconds until there is one again."""
        with self._lock:
            bucket = self._bucket(name)
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0.0
            return (1 - bucket.tokens) / self._rate

    def _bucket(self, name: str) -> _Bucket:
        now = self._now()
        bucket = self._buckets.pop(name, None) or _Bucket(self._most, now)
        bucket.tokens = min(float(self._most), bucket.tokens + (now - bucket.at) * self._rate)
        bucket.at = now
        self._buckets[name] = bucket  # last, so that the first is the one that was quiet longest
        if len(self._buckets) > _MOST_KEPT:
            del self._buckets[next(iter(self._buckets))]
        return bucket


@dataclass
class _Failures:
    count: int
    since: float
    until: float = -math.inf


class Lockout:
    """Counts what failed, and hears nobody who failed too often.

    Args:
        most: failures within `seconds`; the next call is not heard for as long.
        seconds: of counting and of silence.
        now: seconds on a clock that never goes back.
    """

    def __init__(self, most: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._now = now
        self._lock = threading.Lock()
        self._failures: dict[str, _Failures] = {}

    def left(self, name: str) -> float:
        """Seconds for which a name is not heard; 0 for one that is."""
        with self._lock:
            known = self._failures.get(name)
            return 0.0 if known is None else max(0.0, known.until - self._now())

    def failed(self, name: str) -> bool:
        """Count a failure; whether it was the one too many."""
        now = self._now()
        with self._lock:
            known = self._failures.pop(name, None)
            if known is None or now - known.since > self._seconds:
                known = _Failures(0, now)
            known.count += 1
            locked = known.count >= self._most and known.until <= now
            if locked:
                known.until = now + self._seconds
                known.count, known.since = 0, known.until
            self._failures[name] = known
            if len(self._failures) > _MOST_KEPT:
                del self._failures[next(iter(self._failures))]
            return locked


class Throttle:
    """Both, as the gate asks them.

    Args:
        calls_per_minute: of one principal.
        failures: that an address or a principal may have.
        lockout_seconds: within which, and for which.
        now: seconds on a clock that never goes back.
    """

    def __init__(
        self, calls_per_minute: int, failures: int, lockout_seconds: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = Buckets(calls_per_minute, 60.0, now)
        self._failures = Lockout(failures, lockout_seconds, now)

    def check_failures(self, name: str) -> None:
        """Raises TooOftenError for an address or a principal who failed too often."""
        if seconds := self._failures.left(name):
            raise TooOftenError("too many calls of yours were refused", seconds)

    def failed(self, name: str) -> bool:
        """Count a refusal of an address or a principal; whether it was one too many."""
        return self._failures.failed(name)

    def check_rate(self, principal: str) -> None:
        """One more call of a principal. Raises TooOftenError if he calls more often than he may."""
        if seconds := self._calls.take(principal):
            raise TooOftenError(
                "you call more often than this server allows; nothing was debited by this call", seconds
            )


@functools.lru_cache(maxsize=1024)
def address_of(peer: str) -> str:
    """The address in what gRPC calls a peer, such as ipv4:192.0.2.1:5000; of IPv6 the network, which one host has."""
    kind, _, rest = peer.partition(":")
    host = re.sub(r"%(25)?.*$", "", rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")[0].strip("[]"))
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return kind
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)
