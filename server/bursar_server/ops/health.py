"""Health of the server, checked in the background, so that no request for it waits for a disk.

Degraded: the server works, and an operator should look soon. Not ready: it would refuse calls, so send it none.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bursar_server import log

Check = Callable[[], str | None]
"""Function that returns the problem in a few public words; None if there is none."""


class Condition(enum.Enum):
    """Condition of the server, which is public."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"
    STOPPING = "stopping"


def ask(address: str, credentials: grpc.ChannelCredentials, seconds: float) -> str:
    """Return what the server at an address says of its health: SERVING, SERVING DEGRADED or NOT_SERVING.

    Raises:
        grpc.RpcError: no answer came in time.
    """
    with grpc.secure_channel(address, credentials) as channel:
        check: Any = health_pb2_grpc.HealthStub(channel).Check
        answer, call = check.with_call(health_pb2.HealthCheckRequest(), timeout=seconds)
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    degraded = ("bursar-condition", Condition.DEGRADED.value) in (call.trailing_metadata() or ())
    return f"{name} DEGRADED" if degraded else name


class Watch:
    """Periodic run of all health checks.

    Without the `needed` checks nothing can be served; failures of the `wanted` ones only degrade the server. The
    interval, in seconds, is chosen, not tuned.
    """

    def __init__(
        self,
        needed: Mapping[str, Check],
        wanted: Mapping[str, Check],
        changed: Callable[[Condition], object] = lambda _: None,
        seconds: float = 5.0,
        *,
        events: log.Events,
    ) -> None:
        self._events = events
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
        """Condition at the last run."""
        return self._condition

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems at the last run, as "name: problem", for the operator."""
        return self._problems

    def look(self) -> Condition:
        """Run all checks now and return the condition."""
        missing = _failing(self._needed)
        worn = _failing(self._wanted)
        found = Condition.UNAVAILABLE if missing else Condition.DEGRADED if worn else Condition.READY
        self._set(found, (*missing, *worn))
        return self._condition

    def stop(self) -> None:
        """Set the final condition: the server takes no more calls.

        Earlier problems, which may be the reason, are kept.
        """
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
            # Called within the lock, so that listeners receive changes in their order.
            self._changed(condition)
        self._events.tell(log.HealthChanged(condition=condition.value, problems="; ".join(problems) or None))


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
