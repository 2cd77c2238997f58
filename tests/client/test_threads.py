"""One client, many threads: every call gets its own answer, and nothing that is remembered gets mixed up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import bursar
from bursar._history import in_file
from tests import asking
from tests.client.line import Line

THREADS, EACH = 6, 3


def test_threads_share_a_client(server: Line, tmp_path: Path) -> None:
    """Fits, previews, dummies and lists side by side, with breaking streams; every answer is to its own question."""
    history = in_file(tmp_path / "history.json", "server")
    with server.client(retry_delays=(0.0,) * 5, patience=600.0, history=history) as client:
        data = client.dataset("toy")
        server.break_next(5)

        def cost(k: int) -> object:
            return pytest.approx(0.001 * k)

        def work(thread: int) -> list[int]:
            entries = []
            for turn in range(EACH):
                k = 2 + (thread + turn) % 5
                key = f"{thread}-{turn}"
                request = bursar.DPEM(n_components=k)
                model = data.fit(request, spend=bursar.rho(1.0), request_id=key)  # enough for all k components
                assert model.receipt is not None
                assert (model.n_components, model.receipt.request_id) == (k, key)
                assert asking.preview(data, bursar.DPEM, n_components=k, spend=bursar.rho(0.001 * k)).price.rho == cost(
                    k
                )
                assert (
                    asking.fit(data, bursar.DPEM, n_components=k, spend=bursar.rho(1.0), dummy=True).n_components == k
                )
                assert client.model(model.receipt).receipt == model.receipt
                entries.append(model.receipt.entry)
            return entries

        with ThreadPoolExecutor(THREADS) as pool:
            entries = [entry for found in pool.map(work, range(THREADS)) for entry in found]
        assert len(set(entries)) == THREADS * EACH
        assert len(data.releases()) == THREADS * EACH
    # What the threads saw together is what the next program starts from.
    with server.client(history=in_file(tmp_path / "history.json", "server")) as one:
        one.dataset("toy").remaining()


def test_asyncio_waits_for_several_at_once(toy: bursar.Dataset) -> None:
    """The guide's recipe: calls run beside the event loop, which goes on."""
    turns = 0

    async def ticking() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def fits() -> list[int]:
        clock = asyncio.create_task(ticking())
        asked = [
            asyncio.to_thread(partial(asking.fit, toy, bursar.DPEM), n_components=k, spend=bursar.rho(1))
            for k in (2, 3, 4)
        ]
        models = await asyncio.gather(*asked)
        clock.cancel()
        return [model.n_components for model in models]

    assert asyncio.run(fits()) == [2, 3, 4]
    assert turns > 1
