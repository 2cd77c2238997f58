"""The SDK for asyncio: the same requests and results, awaited. Each call runs on a thread of the event loop's executor.

    async with bursar.aio.connect() as client:
        people = await client.dataset("people")
        model = await people.fit(bursar.DPEM(n_components=3), spend=bursar.rho(0.01))

A task that is cancelled leaves a fit that was sent; the server finishes it, stores it and keeps the debit. The
`CancelledError` has a note that says whether the fit was paid, and `Client.recover` lists it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import bursar
from bursar._fit import STOP, Stop
from bursar_models import Model, Sketch
from bursar_models.budget import Limits, Receipt, Remaining, Spend
from bursar_models.expected_rows import Like
from bursar_models.requests import Fits, Request

__all__ = ["Client", "Dataset", "connect"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

_SECONDS = 5.0
"""Longest wait for the thread of a cancelled fit, which has to say whether it was paid."""


@dataclass(frozen=True)
class Dataset:
    """A dataset whose questions are awaited; arguments, results and errors are those of `bursar.Dataset`.

    Attributes:
        public: what is public about it: name, columns, privacy unit, budget.
    """

    public: bursar.Dataset

    async def remaining(self) -> Remaining:
        """See `bursar.Dataset.remaining`."""
        return await asyncio.to_thread(self.public.remaining)

    async def limits(self) -> Limits:
        """See `bursar.Dataset.limits`."""
        return await asyncio.to_thread(self.public.limits)

    async def releases(self) -> bursar.Releases:
        """See `bursar.Dataset.releases`."""
        return await asyncio.to_thread(self.public.releases)

    async def recover(self) -> bursar.Releases:
        """See `bursar.Dataset.recover`."""
        return await asyncio.to_thread(self.public.recover)

    async def model(self, entry: bursar.ReleaseSummary | Receipt | int) -> Model | Sketch:
        """See `bursar.Dataset.model`."""
        return await asyncio.to_thread(self.public.model, entry)

    async def preview(
        self,
        request: Request,
        *,
        spend: Spend | None = None,
        like: Like | None = None,
        progress: bool | None = None,
    ) -> bursar.Preview:
        """See `bursar.Dataset.preview`."""
        return await asyncio.to_thread(self.public.preview, request, spend=spend, like=like, progress=progress)

    async def suggest_spend(
        self,
        request: Request,
        *,
        target: bursar.Target,
        spend: Spend | None = None,
        like: Like | None = None,
        progress: bool | None = None,
    ) -> bursar.Suggestion:
        """See `bursar.Dataset.suggest_spend`."""
        given = {"target": target, "spend": spend, "like": like, "progress": progress}
        asked: Callable[[], bursar.Suggestion] = partial(self.public.suggest_spend, request, **given)  # type: ignore[arg-type]
        return await asyncio.to_thread(asked)

    async def plan(
        self,
        requests: Sequence[Request],
        *,
        spend: Spend | Sequence[Spend | None] | None = None,
        total: Spend | None = None,
        shares: Sequence[float] | None = None,
        like: Like | None = None,
    ) -> bursar.Plan:
        """See `bursar.Dataset.plan`."""
        return await asyncio.to_thread(self.public.plan, requests, spend=spend, total=total, shares=shares, like=like)

    async def load_plan(self, path: str | Path, *, like: Like | None = None) -> bursar.Plan:
        """See `bursar.Dataset.load_plan`."""
        return await asyncio.to_thread(self.public.load_plan, path, like=like)

    async def run(
        self,
        plan: bursar.Plan,
        *,
        only: Sequence[int] | None = None,
        anyway: bool = False,
        progress: bool | None = None,
    ) -> list[Any]:
        """See `bursar.Dataset.run`. Cancelling leaves the fit that was sent, which stays paid, and runs no other."""
        return await _stoppable(partial(self.public.run, plan, only=only, anyway=anyway, progress=progress))

    async def dry_run(
        self,
        request: Fits[ResultT],
        *,
        spend: Spend | None = None,
        rows: int | None = None,
        seed: int = 0,
        like: Like | None = None,
        progress: bool | None = None,
    ) -> ResultT:
        """See `bursar.Dataset.dry_run`."""
        asked = partial(self.public.dry_run, request, spend=spend, rows=rows, seed=seed, like=like, progress=progress)
        return await asyncio.to_thread(asked)

    async def fit(
        self,
        request: Fits[ResultT],
        *,
        spend: Spend | None = None,
        request_id: str | None = None,
        anyway: bool = False,
        like: Like | None = None,
        progress: bool | None = None,
    ) -> ResultT:
        """See `bursar.Dataset.fit`. Cancelling leaves the fit that was sent, which stays paid."""
        given = {"spend": spend, "request_id": request_id, "anyway": anyway, "like": like, "progress": progress}
        asked: Callable[[], ResultT] = partial(self.public.fit, request, **given)  # type: ignore[arg-type]
        return await _stoppable(asked)


class Client:
    """A connection whose questions are awaited; arguments, results and errors are those of `bursar.Client`.

    Args:
        client: whose connection is used. It is closed with this one.
    """

    def __init__(self, client: bursar.Client) -> None:
        self._client = client

    async def datasets(self) -> list[Dataset]:
        """See `bursar.Client.datasets`."""
        return [Dataset(found) for found in await asyncio.to_thread(self._client.datasets)]

    async def dataset(self, name: str) -> Dataset:
        """See `bursar.Client.dataset`."""
        return Dataset(await asyncio.to_thread(self._client.dataset, name))

    async def releases(self) -> bursar.Releases:
        """See `bursar.Client.releases`."""
        return await asyncio.to_thread(self._client.releases)

    async def recover(self) -> bursar.Releases:
        """See `bursar.Client.recover`."""
        return await asyncio.to_thread(self._client.recover)

    async def model(self, entry: bursar.ReleaseSummary | Receipt | int) -> Model | Sketch:
        """See `bursar.Client.model`."""
        return await asyncio.to_thread(self._client.model, entry)

    def close(self) -> None:
        """Close the channel; further calls raise `bursar.TransportError`."""
        self._client.close()

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


async def _stoppable(fit: Callable[[], ResultT]) -> ResultT:
    """Return the result of a fit on a thread; a cancelled task leaves it, and its error says what was paid."""
    stop = Stop()
    context = copy_context()
    context.run(STOP.set, stop)
    running = asyncio.get_running_loop().run_in_executor(None, partial(context.run, fit))
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
