"""The SDK for asyncio has the same results, and a cancelled fit says what was paid."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

import bursar
from bursar import aio
from tests.client.line import Line, when_released

REQUEST = bursar.DPEM(n_components=2, columns=["height"])
SPEND = bursar.rho(0.1)


def test_every_question_can_be_awaited(server: Line) -> None:
    """Results are those of the plain client, from the same debits; several fits run at once."""

    async def ask() -> None:
        async with aio.Client(server.client()) as client:
            (toy,) = [data for data in await client.datasets() if data.public.name == "toy"]
            assert (await client.dataset("toy")).public == toy.public
            preview = await toy.preview(REQUEST, spend=SPEND)
            one, two = await asyncio.gather(
                toy.fit(REQUEST, spend=SPEND, progress=False), toy.fit(REQUEST, spend=bursar.rho(0.2), progress=False)
            )
            assert one.receipt is not None
            assert two.receipt is not None
            assert one.receipt.price == preview.price
            assert {one.receipt.entry, two.receipt.entry} == {found.entry for found in await toy.releases()}
            again = await client.model(one.receipt)
            assert again.receipt == one.receipt
            assert (await toy.model(two.receipt.entry)).receipt == two.receipt
            assert (await toy.dry_run(REQUEST, spend=SPEND, rows=50, progress=False)).dummy_
            assert len((await toy.plan([REQUEST], spend=SPEND)).fits) == 1
            assert (await toy.suggest_spend(REQUEST, target=bursar.Target(mean_error=1.0))).preview.affordable
            assert (await toy.remaining()) == (await toy.limits()).dataset
            assert (await toy.recover()) == (await client.recover()) == []
            assert len(await client.releases()) == 2

    asyncio.run(ask())


def test_a_cancelled_fit_says_what_was_paid(server: Line) -> None:
    """It leaves the stream and asks no more; the note names the entry, and the model can be fetched."""
    begun, left = threading.Event(), threading.Event()

    def hold(answer: Any) -> None:
        if answer.HasField("receipt"):
            server.streams[-1].call.add_done_callback(lambda _: left.set())
            begun.set()
            left.wait(60)

    async def leave() -> None:
        async with aio.Client(server.client()) as client:
            toy = await client.dataset("toy")
            task = asyncio.create_task(toy.fit(REQUEST, spend=SPEND, progress=False))
            await asyncio.to_thread(begun.wait)
            server.changes.clear()
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            (release,) = await client.recover()
            assert f"Entry {release.entry} of the ledger paid" in caught.value.__notes__[0]
            assert len(server.requests) == 1
            await asyncio.to_thread(when_released, lambda: client.public.model(release))

    server.changes["FitService/FitDPEM"] = hold
    asyncio.run(leave())


def test_errors_are_those_of_the_plain_client(server: Line) -> None:
    """A refusal comes as it is."""

    async def ask() -> None:
        async with aio.Client(server.client()) as client:
            toy = await client.dataset("toy")
            with pytest.raises(bursar.BudgetExhaustedError):
                await toy.fit(REQUEST, spend=bursar.rho(1e6), progress=False)

    asyncio.run(ask())


def test_arguments_are_those_of_the_plain_client() -> None:
    """So that a new argument there cannot be forgotten here."""
    for ours, plain in ((aio.Dataset, bursar.Dataset), (aio.Client, bursar.Client)):
        for name, method in vars(ours).items():
            if inspect.iscoroutinefunction(method) and not name.startswith("_"):
                expected = inspect.signature(getattr(plain, name)).parameters
                assert list(inspect.signature(method).parameters) == list(expected), name
    assert aio.connect("localhost:1", history=False).close() is None  # type: ignore[func-returns-value]
