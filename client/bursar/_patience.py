"""Waiting for a busy server: a call is repeated when the server says, not earlier, and not without end.

A server that turns a call away before it did anything says after how many seconds another try makes sense
(`google.rpc.RetryInfo`). The same message is sent again then, with its request_id, so nothing is paid twice. A random
part is added to the wait, since all that were turned away at one moment would come back at one moment (M. Brooker,
*Exponential backoff and jitter*, 2015). What comes without that advice is not sent again: a message that is too large
stays too large.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TypeVar

from bursar._errors import OverloadedError
from bursar_models.errors import Error

Result = TypeVar("Result")

_SHORTEST = 0.25
"""Seconds of the shortest wait, whatever the server said: so tries are bounded, too."""

_JITTER = 0.5
"""Largest random part of a wait, as a share of what was advised."""


class Patience:
    """Seconds that one call may still wait for a busy server: its own waits, not the server's time."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def pause(self, error: Error, deadline: float | None) -> None:
        """Wait as long as the server advised, and a little longer.

        The deadline is on the clock `time.monotonic`.

        Raises:
            Error: the same, at once, if the server gave no advice or no such time is left.
        """
        if error.retry_after is None:
            raise error
        seconds = max(error.retry_after, _SHORTEST)
        extra = _JITTER * seconds * secrets.randbelow(1001) / 1000
        seconds += min(extra, max(0.0, self._left - seconds))
        if not seconds <= self._left or (deadline is not None and not time.monotonic() + seconds < deadline):
            raise error
        self._left -= seconds
        time.sleep(seconds)


def patiently(attempt: Callable[[float | None], Result], *, seconds: float, timeout: float | None) -> Result:
    """Return the result of an attempt, repeated as often as the server asks for and patience allows.

    The attempt gets the seconds that are left of `timeout`, which all of it may take; `seconds` may be waited in all.

    Raises:
        OverloadedError: the last try's.
    """
    patience, deadline = Patience(seconds), deadline_of(timeout)
    while True:
        try:
            return attempt(left(deadline))
        except OverloadedError as error:
            patience.pause(error, deadline)


def deadline_of(timeout: float | None) -> float | None:
    """Return the end of so many seconds from now, on the clock `time.monotonic`."""
    return None if timeout is None else time.monotonic() + timeout


def left(deadline: float | None) -> float | None:
    """Return the seconds until a deadline, as a timeout of gRPC."""
    return None if deadline is None else max(0.001, deadline - time.monotonic())
