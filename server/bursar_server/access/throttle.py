"""Limits on the rate of calls and of failures, counted by public names and addresses."""

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
"""Maximum number of remembered names and addresses, a few MB; beyond it the longest inactive one is forgotten."""


class TooOftenError(Exception):
    """Error: too many calls, or too many that failed; nothing was debited. In `seconds` a call is accepted again."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(f"{text}; try again in {whole_seconds(seconds)} s")
        self.seconds = seconds


class AddressLockedOutError(TooOftenError):
    """Error: a call without a valid token, from an address with too many of them."""

    def __init__(self, seconds: float) -> None:
        super().__init__("too many calls from your address had no valid token, and this one has none either", seconds)


@dataclass
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """Token buckets by name: `most` tokens at once, refilled within `seconds`."""

    def __init__(self, most: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._rate = most / seconds
        self._now = now
        self._lock = threading.Lock()
        self._buckets: dict[str, _Bucket] = {}

    def take(self, name: str) -> float:
        """Take a token of a name. Return 0 if there was one, else the seconds until the next one."""
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
        self._buckets[name] = bucket  # re-inserted last: the dict's first key is the longest inactive
        if len(self._buckets) > _MOST_KEPT:
            del self._buckets[next(iter(self._buckets))]
        return bucket


@dataclass
class _Failures:
    count: int
    since: float
    until: float = -math.inf


class Lockout:
    """Counter of failures by name: `most` of them within `seconds` lock a name out for as long."""

    def __init__(self, most: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._now = now
        self._lock = threading.Lock()
        self._failures: dict[str, _Failures] = {}

    def left(self, name: str) -> float:
        """Return the remaining seconds of a name's lockout; 0 if there is none."""
        with self._lock:
            known = self._failures.get(name)
            return 0.0 if known is None else max(0.0, known.until - self._now())

    def failed(self, name: str) -> bool:
        """Count a failure. Return whether it begins a lockout."""
        now = self._now()
        with self._lock:
            known = self._failures.pop(name, None)
            if known is None or now - known.since > self._seconds:
                known = _Failures(0, now)
            known.count += 1
            locked = known.count >= self._most and known.until <= now
            if locked:
                known.until = now + self._seconds
                # Counting restarts after the lockout, or its end would begin the next one.
                known.count, known.since = 0, known.until
            self._failures[name] = known
            if len(self._failures) > _MOST_KEPT:
                del self._failures[next(iter(self._failures))]
            return locked


class Throttle:
    """Rate limit and lockout, as the gate uses them.

    An address or a principal is locked out after `failures` within `lockout_seconds`, for as long.
    """

    def __init__(
        self, calls_per_minute: int, failures: int, lockout_seconds: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._calls = Buckets(calls_per_minute, 60.0, now)
        self._failures = Lockout(failures, lockout_seconds, now)

    def check_address(self, address: str) -> None:
        """Raise AddressLockedOutError for an address that is locked out."""
        if seconds := self._failures.left(f"address {address}"):
            raise AddressLockedOutError(seconds)

    def check_principal(self, principal: str) -> None:
        """Raise TooOftenError for a principal that is locked out."""
        if seconds := self._failures.left(f"principal {principal}"):
            raise TooOftenError("too many calls of yours were refused", seconds)

    def address_failed(self, address: str) -> bool:
        """Count a call without a valid token. Return whether it begins a lockout."""
        return self._failures.failed(f"address {address}")

    def principal_failed(self, principal: str) -> bool:
        """Count a call that the principal's role forbids. Return whether it begins a lockout."""
        return self._failures.failed(f"principal {principal}")

    def check_rate(self, principal: str) -> None:
        """Count a call of a principal. Raises TooOftenError if the principal exceeds the rate."""
        if seconds := self._calls.take(principal):
            raise TooOftenError(
                "you call more often than this server allows; nothing was debited by this call", seconds
            )


def whole_seconds(seconds: float) -> int:
    """Return a waiting time in whole seconds, rounded up, so that no retry comes too early."""
    return max(1, math.ceil(seconds))


@functools.lru_cache(maxsize=1024)
def address_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer, such as ipv4:192.0.2.1:5000, as `network_of` has it."""
    kind, _, rest = peer.partition(":")
    return network_of(rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")[0].strip("[]")) or kind


def network_of(host: str) -> str:
    """Return a client's address; for IPv6 its /64 network; "" if it is no address.

    One host usually has a whole /64, so single addresses would not limit it.
    """
    try:
        address = ipaddress.ip_address(re.sub(r"%(25)?.*$", "", host))
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    # A socket for both versions shows IPv4 clients as ::ffff:192.0.2.1, all in one /64.
    mapped = address.ipv4_mapped
    return str(mapped or ipaddress.ip_network((address, 64), strict=False))
