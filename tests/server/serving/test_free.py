"""Free work from earlier releases, which touches neither the ledger nor the rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import Debit, Ledger, verify
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.jobs.errors import INTERNAL_TEXT
from bursar_server.tables.catalogue import Datasets

if TYPE_CHECKING:
    from pathlib import Path

    from bursar_server.vault import RowSource
    from tests.server.serving.conftest import Harness, Refusal, Serve

Make = Callable[..., fit_pb2.FitDPEMRequest]
PATIENCE = 600.0
"""Seconds after which something hangs."""
Refused = Callable[[Callable[[], object]], "Refusal"]


def drain(served: Harness, message: fit_pb2.FitDPEMRequest) -> list[fit_pb2.FitDPEMResponse]:
    """All messages of a fit."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    return list(stub.FitDPEM(message, metadata=served.bearer()))


def again(entry: int, **fields: Any) -> fit_pb2.FitDPEMRequest:
    """A request that the fake fit answers from an earlier release."""
    request = fit_pb2.FitDPEMRequest(dataset="people", n_components=2, **fields)
    request.released.entry = entry
    return request


@pytest.fixture
def served(serve: Serve) -> Harness:
    """A running server."""
    return serve()


@pytest.fixture
def paid(served: Harness, fit_request: Make) -> types_pb2.Receipt:
    """The receipt of a release that was paid for."""
    return drain(served, fit_request())[0].receipt


def test_a_free_answer_says_so_and_names_the_release(served: Harness, paid: types_pb2.Receipt) -> None:
    """The receipt: free, a price of nothing, and entry and head of the debit that paid."""
    receipt, *_, last = drain(served, again(paid.entry, request_id="r2"))
    assert receipt.receipt.free
    assert receipt.receipt.price == types_pb2.Price(epsilon=0.0, share=0.0)
    assert (receipt.receipt.entry, receipt.receipt.ledger_head) == (paid.entry, paid.ledger_head)
    assert receipt.receipt.remaining.cost_units == paid.remaining.cost_units
    assert last.HasField("model")
    assert not paid.free


def test_a_free_answer_leaves_the_ledger_as_it_was(served: Harness, paid: types_pb2.Receipt) -> None:
    """No entry, and no request_id is needed."""
    before = served.ledger.newest()
    for _ in range(3):
        drain(served, again(paid.entry))
    assert served.ledger.newest() == before
    assert verify(served.state.ledger).problems == ()


class Closed(Datasets):
    """Rows that nobody may open a second time."""

    opened = 0

    def rows(self, debit: Debit, columns: tuple[str, ...]) -> RowSource:
        """Open once."""
        Closed.opened += 1
        if Closed.opened > 1:
            raise PermissionError("rows were opened for nothing")
        return super().rows(debit, columns)


def test_no_row_is_opened_for_nothing(serve: Serve, fit_request: Make) -> None:
    """A second opening of the table would fail."""

    def make(ledger: Ledger, directory: Path) -> Datasets:
        return Closed(ledger, directory)

    Closed.opened = 0
    served = serve(make_datasets=make)
    receipt = drain(served, fit_request())[0].receipt
    assert drain(served, again(receipt.entry))[-1].HasField("model")
    assert Closed.opened == 1


def test_a_free_run_can_release_nothing(served: Harness, paid: types_pb2.Receipt, refused: Refused) -> None:
    """A fit that asks its session for a sum without a debit is stopped by the meter."""
    served.fit.peeks = True
    refusal = refused(lambda: drain(served, again(paid.entry)))
    assert refusal.code is grpc.StatusCode.INTERNAL
    assert INTERNAL_TEXT in refusal.text


def test_a_free_run_that_raises_tells_nothing(served: Harness, paid: types_pb2.Receipt, refused: Refused) -> None:
    """The constant text; and the place is free again."""
    served.fit.error = ValueError("secret words")
    refusal = refused(lambda: drain(served, again(paid.entry)))
    assert refusal.code is grpc.StatusCode.INTERNAL
    assert "secret" not in refusal.everything
    served.fit.error = None
    assert drain(served, again(paid.entry))[-1].HasField("model")


def test_others_releases_are_not_found(serve: Serve, paid: types_pb2.Receipt, refused: Refused) -> None:
    """An entry that is no release of the caller's is an error of its field."""
    refusal = refused(lambda: drain(serve(), again(paid.entry + 1)))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == ("start.released.entry",)


def test_without_a_spend_a_new_release_is_refused(served: Harness, fit_request: Make, refused: Refused) -> None:
    """Leaving the spend out makes nothing free that is not."""
    message = fit_request()
    message.ClearField("spend")
    refusal = refused(lambda: drain(served, message))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields == ("spend",)


def test_free_work_has_places_of_its_own(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """One analyst may have two; what is paid for does not wait for them."""
    served = serve(fit_workers=1, queue_length=4, fits_per_principal=1)
    entry = drain(served, fit_request())[0].receipt.entry
    served.fit.hold_free.clear()
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    waiting = [stub.FitDPEM(again(entry), metadata=served.bearer()) for _ in range(2)]
    try:
        for call in waiting:
            assert next(iter(call)).receipt.free
        refusal = refused(lambda: drain(served, again(entry)))
        assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "free requests" in refusal.text
        assert drain(served, fit_request(request_id="r9"))[-1].HasField("model")
    finally:
        served.fit.hold_free.set()
    for call in waiting:
        assert list(call)[-1].HasField("model")
    assert drain(served, again(entry))[-1].HasField("model")


def test_a_free_request_whose_caller_left_takes_no_place(serve: Serve, fit_request: Make) -> None:
    """It waits no more, and its caller may have another one at once."""
    served = serve()
    entry = drain(served, fit_request())[0].receipt.entry
    served.fit.hold_free.clear()
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    running = stub.FitDPEM(again(entry), metadata=served.bearer())
    assert next(iter(running)).receipt.free
    try:
        for _ in range(5):
            waiting = stub.FitDPEM(again(entry), metadata=served.bearer())
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    assert next(iter(waiting)).receipt.free
                    break
                except grpc.RpcError as error:  # the server has not seen yet that the last one was left
                    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017
                    assert time.monotonic() < until, "a request that was left holds its place"
                    time.sleep(0.01)
                    waiting = stub.FitDPEM(again(entry), metadata=served.bearer())
            waiting.cancel()
    finally:
        served.fit.hold_free.set()
    assert list(running)[-1].HasField("model")


def test_a_free_request_is_previewed_at_nothing(served: Harness, paid: types_pb2.Receipt) -> None:
    """Price zero, affordable, and as many as one likes."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    preview = stub.Preview(fit_pb2.PreviewRequest(dpem=again(paid.entry)), metadata=served.bearer())
    assert preview.price == types_pb2.Price(epsilon=0.0, share=0.0)
    assert preview.affordable
    assert preview.fits_left > 10**6


def test_what_is_free_is_affordable_when_all_is_spent(
    served: Harness, paid: types_pb2.Receipt, fit_request: Make
) -> None:
    """Nothing is left of the budget, and nothing is needed."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    rest = types_pb2.Spend(remaining=types_pb2.WhatIsLeft())
    drain(served, fit_request(request_id="rest", spend=rest))
    left = stub.Preview(fit_pb2.PreviewRequest(dpem=fit_request(request_id="more")), metadata=served.bearer())
    assert not left.affordable
    assert stub.Preview(fit_pb2.PreviewRequest(dpem=again(paid.entry)), metadata=served.bearer()).affordable


def test_a_retired_dataset_still_answers_for_nothing(served: Harness, paid: types_pb2.Receipt) -> None:
    """Released models stay released."""
    served.ledger.retire_dataset("people", actor="test", reason="")
    assert drain(served, again(paid.entry))[-1].HasField("model")


def test_a_list_of_sketches_leaves_other_releases_out(served: Harness, paid: types_pb2.Receipt) -> None:
    """Pages count debits, whatever they are."""
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    listed = stub.ListSketches(catalog_pb2.ListSketchesRequest(page_size=1), metadata=served.bearer())
    assert not listed.sketches
    assert listed.next_page_token == 0
