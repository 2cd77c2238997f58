"""Clients that leave, at any instant and in any way: what was paid can be had again, and is paid once."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import Ledger, ReleaseRecord, verify
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

Answers = list[fit_pb2.FitDPEMResponse]
_NUMBERS = itertools.count()


class Leaver:
    """An analyst who asks, leaves, and asks again."""

    def __init__(self, server: Server, channel: grpc.Channel) -> None:
        self.server = server
        self._channel = channel

    def call(self, request_id: str, channel: grpc.Channel | None = None, **fields: Any) -> Any:
        """Start a fit."""
        defaults: dict[str, Any] = {"columns": ["x", "y"], "n_components": 2, "spend": types_pb2.Spend(rho=1e-5)}
        message = fit_pb2.FitDPEMRequest(request_id=request_id, dataset="people", **(defaults | fields))
        stub = fit_pb2_grpc.FitServiceStub(channel or self._channel)
        return stub.FitDPEM(message, metadata=self.server.bearer())

    def debits(self, *request_ids: str) -> list[ReleaseRecord]:
        """The debits of these requests."""
        with Ledger.open(self.server.home.state.ledger) as ledger:
            return [debit for debit in ledger.releases() if debit.request_id in request_ids]

    def check(self, request_id: str, seen: Answers, **fields: Any) -> None:
        """Asking again gives all there is, the same every time; what was seen before leaving was part of it."""
        first, second = (list(self.call(request_id, **fields)) for _ in range(2))
        assert first[-1].HasField("model")
        assert (first[0], first[-1]) == (second[0], second[-1])
        for message in seen:
            assert message.HasField("progress") or message in (first[0], first[-1])
        (debit,) = self.debits(request_id)
        assert debit.released
        assert debit.entry == first[0].receipt.entry


@pytest.fixture
def leaver(shared: Server) -> Iterator[Leaver]:
    """A connection to the shared server, whose ledger verifies at the end."""
    with shared.channel() as channel:
        yield Leaver(shared, channel)
    assert verify(shared.home.state.ledger).problems == ()


def _fresh() -> str:
    return f"leaver-{next(_NUMBERS)}"


def test_a_client_may_cancel_at_any_instant(leaver: Leaver) -> None:
    """It leaves before the call arrives, the debit, the receipt, during the fit, or after the answer."""
    chance = random.Random(7)

    def leave(seconds: float) -> None:
        request_id = _fresh()
        call = leaver.call(request_id)
        time.sleep(seconds)
        call.cancel()
        leaver.check(request_id, [])

    # A receipt takes some 10 ms here and an answer a quarter of a second; the first ones are closest together.
    instants = [0.0, *(chance.uniform(0.0, 0.02) for _ in range(15)), *(chance.uniform(0.0, 0.3) for _ in range(20))]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(leave, instants))


@pytest.mark.slow
def test_a_client_may_cancel_after_any_message(leaver: Leaver) -> None:
    """It leaves after the receipt, in the middle of the steps, just before and after the model."""
    fields: dict[str, Any] = {"n_components": 32, "iterations": 60}
    whole = list(leaver.call(_fresh(), **fields))
    assert len(whole) > 2, "no step was told; the fit is too quick for this test"
    for messages in range(1, len(whole) + 1):
        request_id = _fresh()
        call = leaver.call(request_id, **fields)
        seen = list(itertools.islice(call, messages))
        call.cancel()
        assert seen[0].HasField("receipt")
        leaver.check(request_id, seen, **fields)


def _close(server: Server, begin: Callable[[grpc.Channel], Any]) -> None:
    with server.channel() as channel:
        next(iter(begin(channel)))


def _run_out_of_time(server: Server, begin: Callable[[grpc.Channel], Any]) -> None:
    with server.channel() as channel, pytest.raises(grpc.RpcError):
        # The interceptor of the channel leaves a deadline alone that is there.
        list(begin(channel))


@pytest.mark.parametrize("way", [_close, _run_out_of_time])
def test_a_client_may_leave_in_other_ways(leaver: Leaver, way: Callable[..., None]) -> None:
    """It closes its channel, or its deadline passes before the answer."""
    request_id = _fresh()

    def begin(channel: grpc.Channel) -> Any:
        if way is _close:
            return leaver.call(request_id, channel)
        message = fit_pb2.FitDPEMRequest(
            request_id=request_id,
            dataset="people",
            columns=["x", "y"],
            n_components=2,
            spend=types_pb2.Spend(rho=1e-5),
        )
        stub = fit_pb2_grpc.FitServiceStub(channel)
        return stub.FitDPEM(message, metadata=leaver.server.bearer(), timeout=0.1)

    way(leaver.server, begin)
    leaver.check(request_id, [])


def test_who_asks_again_while_the_fit_he_left_still_runs_joins_it(leaver: Leaver) -> None:
    """Ten times cancelled and asked again at once: one debit, one run, one answer."""
    request_id = _fresh()
    receipts = []
    for _ in range(10):
        call = leaver.call(request_id)
        receipts.append(next(iter(call)))
        call.cancel()
    assert all(receipt == receipts[0] for receipt in receipts)
    leaver.check(request_id, receipts[:1])


def test_a_client_that_is_gone_before_its_request_is_read_pays_nothing(leaver: Leaver) -> None:
    """Cancelled in the same moment: no debit, or one that can be had; never one without an answer."""
    request_ids = [_fresh() for _ in range(30)]
    for request_id in request_ids:
        leaver.call(request_id).cancel()
    paid = leaver.debits(*request_ids)
    for debit in paid:
        leaver.check(debit.request_id, [])
    assert len({debit.request_id for debit in leaver.debits(*request_ids)}) == len(leaver.debits(*request_ids))
