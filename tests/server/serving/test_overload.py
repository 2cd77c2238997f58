"""Refusals of a busy server: the caller is told when to come back, and has paid nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from bursar_ledger import BudgetExhaustedError, LedgerUnavailableError, Role
from bursar_proto.v1 import catalog_pb2
from bursar_server.access.auth import KeysUnavailableError, Principal
from bursar_server.access.throttle import AddressLockedOutError, TooOftenError
from bursar_server.fits import InvalidFieldsError
from bursar_server.jobs import errors
from bursar_server.jobs.job import NoRoomError, QueueFullError, StoppingError
from bursar_server.vault import EngineError
from bursar_server.wire import statuses
from bursar_server.wire.gate import Turnstile

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal, Serve

Make = Callable[..., Any]
Refused = Callable[[Callable[[], object]], "Refusal"]
LIST = "/bursar.v1.CatalogService/ListDatasets"
FIT = "/bursar.v1.FitService/FitDPEM"
PATIENCE = 600.0
"""Seconds after which a server hangs."""

OVERLOADS: dict[type[Exception], Exception] = {
    QueueFullError: QueueFullError("busy", 0.1),
    AddressLockedOutError: AddressLockedOutError(7.2),
    TooOftenError: TooOftenError("you", 7.2),
    StoppingError: StoppingError(),
    KeysUnavailableError: KeysUnavailableError(),
    LedgerUnavailableError: LedgerUnavailableError(),
    NoRoomError: NoRoomError(),
    errors.FitNotBegunError: errors.FitNotBegunError(),
    errors.ReleaseNotStoredError: errors.ReleaseNotStoredError(),
    EngineError: EngineError(),
}


def _advice(error: Any) -> int | None:
    """Seconds after which a refused caller was told to come back."""
    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return int(retry.retry_delay.seconds)
    return None


def test_every_overload_of_the_table_says_when_to_come_back() -> None:
    """Every RESOURCE_EXHAUSTED or UNAVAILABLE has advice of whole seconds, but for a used-up budget."""
    busy = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
    others = set(statuses._TABLE) - set(OVERLOADS) - {BudgetExhaustedError, InvalidFieldsError}
    assert all(statuses.status_of(kind.__new__(kind))[0] not in busy for kind in others)
    for error in OVERLOADS.values():
        code, _, details = statuses.status_of(error)
        assert code in busy
        advice = [one for one in details if isinstance(one, error_details_pb2.RetryInfo)]
        assert [one.retry_delay.seconds >= 1 for one in advice] == [True]


def _hold(served: Harness, message: Any, calls: int) -> list[Any]:
    """Calls of the analyst that are under way until `served.fit.hold` is set, all for one fit."""
    served.fit.hold.clear()
    stream: Any = served.channel.unary_stream(FIT)
    held = [stream(message.SerializeToString(), metadata=served.bearer()) for _ in range(calls)]
    for call in held:
        assert next(iter(call))  # the receipt
    return held


def _all_refused(calls: list[Any]) -> None:
    for call in calls:
        assert (call.code(), _advice(call)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1), call.details()


def test_one_call_more_than_are_served_is_told_when_to_come_back(
    serve: Serve, fit_request: Make, refused: Refused
) -> None:
    """The call at the edge is served, the one beyond it is refused with advice, probes are answered all the time."""
    served = serve(rpc_threads=3, calls_per_principal=3)
    listing: Any = served.channel.unary_unary(LIST)
    held = _hold(served, fit_request(), 2)
    before = served.entries()
    assert listing(b"", metadata=served.bearer(Role.AUDITOR))
    held += _hold(served, fit_request(), 1)
    ask = partial(listing, b"", metadata=served.bearer(Role.AUDITOR))
    refusal = refused(ask)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert "as many calls as it serves" in refusal.text
    health = health_pb2_grpc.HealthStub(served.channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    assert served.entries() == before
    served.fit.hold.set()
    assert all(list(call) for call in held)
    assert ask()


def test_grpc_never_refuses_by_itself(serve: Serve, fit_request: Make) -> None:
    """Each of as many calls as one connection may hold has the advice; gRPC's own refusal of streams has none."""
    served = serve(rpc_threads=1)
    held = _hold(served, fit_request(), 1)
    listing: Any = served.channel.unary_unary(LIST)
    _all_refused([listing.future(b"", metadata=served.bearer(Role.AUDITOR)) for _ in range(250)])
    served.fit.hold.set()
    assert all(list(call) for call in held)


def test_a_server_that_stops_says_so(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """Paid work is finished; others are refused with advice, and probes see it."""
    served = serve()
    served.fit.hold.clear()
    stream: Any = served.channel.unary_stream(FIT)
    paid = stream(fit_request().SerializeToString(), metadata=served.bearer())
    next(iter(paid))
    before = served.entries()
    stopping = threading.Thread(target=served.stop)
    stopping.start()
    health, asked = health_pb2_grpc.HealthStub(served.channel), health_pb2.HealthCheckRequest()
    while health.Check(asked).status == health_pb2.HealthCheckResponse.SERVING:
        pass
    listing: Any = served.channel.unary_unary(LIST)
    more = fit_request(request_id="r2").SerializeToString()
    for call in (partial(listing, b"", metadata=served.bearer()), lambda: list(stream(more, metadata=served.bearer()))):
        refusal = _until_stopping(call, refused)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "STOPPING")
        assert "nothing was debited" in refusal.text
    assert served.entries("debit") == 1
    served.fit.hold.set()
    assert len(list(paid)) >= 1
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert served.entries() == before + 1  # the release


def _until_stopping(call: Callable[[], object], refused: Refused) -> Refusal:
    # Probes see it just before calls do.
    while True:
        try:
            call()
        except grpc.RpcError:
            return refused(call)


def test_a_message_that_is_too_large_has_no_advice(serve: Serve) -> None:
    """It would be too large again; the SDK knows it by gRPC's words."""
    served = serve(max_request_bytes=2048)
    call: Any = served.channel.unary_unary("/bursar.v1.CatalogService/GetDataset")
    body = catalog_pb2.GetDatasetRequest(dataset="x" * 4096).SerializeToString()
    with pytest.raises(grpc.RpcError, match="SERVER: Received message larger than max") as caught:
        call(body, metadata=served.bearer())
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _advice(error) is None


def test_the_turnstile_counts_to_both_edges_and_forgets_who_left() -> None:
    """So many of one, so many of all; a call that ends makes room for both; a closed one lets nobody in."""
    turnstile = Turnstile(3, 2)
    ann, bob = (Principal(name, Role.ANALYST) for name in ("ann", "bob"))
    with turnstile.passed(ann), turnstile.passed(ann):
        with pytest.raises(QueueFullError, match="of yours"), turnstile.passed(ann):
            pass
        with turnstile.passed(bob):
            with pytest.raises(QueueFullError, match="serves"), turnstile.passed(bob):
                pass
            with turnstile.passed(None):
                assert not turnstile.empty(0.0)
    assert turnstile.empty(0.0)
    assert not turnstile._under_way
    turnstile.close()
    with pytest.raises(StoppingError), turnstile.passed(ann):
        pass
    with turnstile.passed(None):
        pass
