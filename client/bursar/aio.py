"""The SDK for asyncio: the same requests and results, awaited. Each call runs on a thread of the event loop's executor.

    async with bursar.aio.connect() as client:
        people = await client.dataset("people")
        model = await people.fit(bursar.DPEM(n_components=3), spend=bursar.rho(0.01))

A task that is cancelled leaves a fit that was sent; the server finishes it, stores it and keeps the debit. The
`CancelledError` has a note that says whether the fit was paid, and `Client.recover` lists it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import bursar
from bursar._fit import STOP, Stop

__all__ = ["Client", "Dataset", "connect"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_SECONDS = 5.0
"""Longest wait for the thread of a cancelled fit, which has to say whether it was paid."""


async def _stoppable(fit: Callable[..., ResultT], *args: Any, **kwargs: Any) -> ResultT:
    """Return the result of a fit on a thread; a cancelled task leaves it, and its error says what was paid."""
    stop = Stop()
    context = copy_context()
    context.run(STOP.set, stop)
    running = asyncio.get_running_loop().run_in_executor(None, partial(context.run, fit, *args, **kwargs))
    try:
        # Shielded: a thread cannot be cancelled, and its end says what was paid.
        return await asyncio.shield(running)
    except asyncio.CancelledError as cancelled:
        stop.stop()
        await asyncio.wait([running], timeout=_SECONDS)
        error: Any = running.exception() if running.done() else None
        for note in getattr(error, "__notes__", ["bursar: client.recover() lists the fit if it was paid"]):
            cancelled.add_note(note)
        raise


def _awaited(
    method: Callable[Concatenate[Any, P], ResultT], run: Callable[..., Any] = asyncio.to_thread
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, ResultT]]:
    """Return a method of the SDK for a value whose `public` has it."""

    @wraps(method, assigned=("__name__",))
    async def awaited(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        found: ResultT = await run(method, self.public, *args, **kwargs)
        return found

    awaited.__doc__ = f"See `bursar.{method.__qualname__}`."
    return awaited


@dataclass(frozen=True)
class Dataset:
    """A dataset whose questions are awaited; arguments, results and errors are those of `bursar.Dataset`.

    Attributes:
        public: what is public about it: name, columns, privacy unit, budget.
    """

    public: bursar.Dataset

    remaining = _awaited(bursar.Dataset.remaining)
    limits = _awaited(bursar.Dataset.limits)
    releases = _awaited(bursar.Dataset.releases)
    recover = _awaited(bursar.Dataset.recover)
    model = _awaited(bursar.Dataset.model)
    preview = _awaited(bursar.Dataset.preview)
    suggest_spend = _awaited(bursar.Dataset.suggest_spend)
    plan = _awaited(bursar.Dataset.plan)
    load_plan = _awaited(bursar.Dataset.load_plan)
    dry_run = _awaited(bursar.Dataset.dry_run)
    run = _awaited(bursar.Dataset.run, _stoppable)
    fit = _awaited(bursar.Dataset.fit, _stoppable)


class Client:
    """A connection whose questions are awaited; arguments, results and errors are those of `bursar.Client`.

    Args:
        client: whose connection is used. It is closed with this one.
    """

    def __init__(self, client: bursar.Client) -> None:
        self.public = client

    releases = _awaited(bursar.Client.releases)
    recover = _awaited(bursar.Client.recover)
    model = _awaited(bursar.Client.model)

    async def datasets(self) -> list[Dataset]:
        """See `bursar.Client.datasets`."""
        return [Dataset(found) for found in await asyncio.to_thread(self.public.datasets)]

    async def dataset(self, name: str) -> Dataset:
        """See `bursar.Client.dataset`."""
        return Dataset(await asyncio.to_thread(self.public.dataset, name))

    def close(self) -> None:
        """Close the channel; further calls raise `bursar.TransportError`."""
        self.public.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _connect(make: Callable[P, bursar.Client]) -> Callable[P, Client]:
    """Return the same function for a client that is awaited."""

    def connect(*args: P.args, **kwargs: P.kwargs) -> Client:
        """Return a client over TLS; arguments and errors are those of `bursar.connect`."""
        return Client(make(*args, **kwargs))

    return connect


connect = _connect(bursar.connect)
"""Return a client over TLS; arguments and errors are those of `bursar.connect`."""
