"""Attacks that want their money back: cancel, crash or fail, keep what was seen, and have it refunded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import Ledger, SpendingLimits
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, types_pb2
from bursar_server.jobs.job import NO_RESULT
from tests.attacks.asking import PATIENCE, Make, call

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Serve


class Refunding(Ledger):
    """Gives back what failed fits cost (PrivateKube's release; BigQuery, for failed and cancelled queries)."""

    refunded = 0

    def store_release(self, entry: int, content: bytes) -> None:
        """A failed fit's price comes off the sum."""
        if content == NO_RESULT:
            self.refunded += self.debit_entry(entry).price.cost_units
        super().store_release(entry, content)

    def limits(self, dataset: str, principal: str) -> SpendingLimits:
        """Return what is left, and what was refunded."""
        left = super().limits(dataset, principal)
        more = dataclasses.replace(left.dataset, cost_units=left.dataset.cost_units + self.refunded)
        return dataclasses.replace(left, dataset=more)


def left(served: Harness) -> int:
    """Return what every analyst is told is left."""
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    message = catalog_pb2.GetDatasetRequest(dataset="people")
    shown: Any = stub.GetDataset(message, metadata=served.bearer(), timeout=PATIENCE)
    return int(shown.dataset.remaining.cost_units)


def bit_of_the_remainder(serve: Serve, fit_request: Make, ledger: type[Ledger]) -> int:
    """A fit that fails if the rows have some property, and one that does not: by how much the remainders differ."""
    remainders = []
    for i, fails in enumerate((False, True)):
        served = serve(wrap_ledger=ledger.open)
        before = left(served)
        served.fit.error = ValueError("someone is in the table") if fails else None
        try:
            list(call(served, fit_request(request_id=f"r{i}")))
        except grpc.RpcError:
            assert fails
        remainders.append(before - left(served))
    return remainders[0] - remainders[1]


def test_the_remainder_does_not_say_whether_a_fit_failed(serve: Serve, fit_request: Make) -> None:
    """Let a fit fail if somebody is in the table and read the answer, exact and free, off what is left.

    Seen in BigQuery's documentation (failed and cancelled queries are refunded) and in PrivateKube's release.
    """
    assert bit_of_the_remainder(serve, fit_request, Ledger) == 0


def test_the_rivals_remainder_says_it(serve: Serve, fit_request: Make) -> None:
    """The same attack on a ledger that refunds: the remainders differ by the whole price."""
    assert bit_of_the_remainder(serve, fit_request, Refunding) > 0


def test_a_caller_who_leaves_pays(serve: Serve, fit_request: Make) -> None:
    """Cancel as soon as the receipt is there, again and again: every one stays debited (BigQuery refunds on cancel)."""
    served = serve()
    before = left(served)
    price = 0
    for i in range(3):
        running = call(served, fit_request(request_id=f"r{i}", spend=types_pb2.Spend(rho=0.001)))
        receipt = next(iter(running)).receipt
        running.cancel()
        price += receipt.price.cost_units
    assert before - left(served) == price > 0


def test_no_method_of_the_ledger_lowers_a_sum(serve: Serve, fit_request: Make) -> None:
    """Try everything public that the ledger has: none of its methods speaks of refunds, credits or resets.

    Peers have `release`, `reset`, `set_budget` of the spent side (PrivateKube, PySyft, Lomas' total_spent in YAML).
    """
    names = {name for name in dir(Ledger) if not name.startswith("_")}
    assert not {name for name in names if any(word in name for word in ("refund", "credit", "reset", "spent"))}


@pytest.mark.parametrize("ending", [ValueError, MemoryError, SystemExit])
def test_nothing_that_ends_a_fit_gives_it_back(serve: Serve, fit_request: Make, ending: type[BaseException]) -> None:
    """Exceptions of every family stay paid, and their request never runs again on fresh noise."""
    served = serve()
    before = left(served)
    served.fit.error = ending()
    for _ in range(2):
        with pytest.raises(grpc.RpcError):
            list(call(served, fit_request()))
    assert before - left(served) > 0
    assert served.fit.runs == served.entries("debit") == 1
