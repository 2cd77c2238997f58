"""How the server is: alive, ready, degraded. Looked at in the background; nobody who asks waits for a disk.

Degraded: it serves, and somebody should look soon. Not ready: it would refuse, so do not send it calls.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from bursar_server import logs

Check = Callable[[], str | None]
"""What is wrong, in a word or two that are public; None if nothing is."""


class Condition(enum.Enum):
    """What is told to everybody."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"
    STOPPING = "stopping"


class Watch:
    """Looks at everything again and again.

    Args:
        needed: checks without which nothing can be served, by name.
        wanted: checks whose failure only degrades, by name.
        changed: told of every new condition.
        seconds: between two looks.
    """

    def __init__(
        self,
        needed: Mapping[str, Check],
        wanted: Mapping[str, Check],
        changed: Callable[[Condition], object] = lambda _: None,
        seconds: float = 5.0,
    ) -> None:
        self._needed = needed
        self._wanted = wanted
        self._changed = changed
        self._seconds = seconds
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self._condition = Condition.STARTING
        self._problems: tuple[str, ...] = ()

    @property
    def condition(self) -> Condition:
        """As of the last look."""
        return self._condition

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, "name: what", for the operator."""
        return self._problems

    def look(self) -> Condition:
        """Look at everything now."""
        missing = _failing(self._needed)
        worn = _failing(self._wanted)
        found = Condition.UNAVAILABLE if missing else Condition.DEGRADED if worn else Condition.READY
        self._set(found, (*missing, *worn))
        return self._condition

    def stop(self) -> None:
        """The server takes no more calls, and nothing changes that. What was wrong before may be why, and is kept."""
        self._set(Condition.STOPPING, self._problems)
        self._ended.set()

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self.look()

    def _set(self, condition: Condition, problems: tuple[str, ...]) -> None:
        with self._lock:
            if self._condition is Condition.STOPPING or (condition, problems) == (self._condition, self._problems):
                return
            self._condition, self._problems = condition, problems
            # Within the lock: two changes are told in the order in which they came.
            self._changed(condition)
        logs.event("health", condition=condition.value, problems="; ".join(problems) or None)


def _failing(checks: Mapping[str, Check]) -> tuple[str, ...]:
    found = []
    for name, check in checks.items():
        try:
            problem = check()
        except Exception as error:  # a check that cannot be made has failed
            problem = type(error).__name__
        if problem is not None:
            found.append(f"{name}: {problem}")
    return tuple(found)
