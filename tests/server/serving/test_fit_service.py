"""View of a fit's caller: what they see and pay, against a running server."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import (
    BudgetExhaustedError,
    Debit,
    DebitRequest,
    DebitStatus,
    GaussianEvent,
    Ledger,
    LedgerUnavailableError,
    RestRequest,
    Role,
    verify,
)
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server import log
from bursar_server.access.auth import hash_token, new_token
from bursar_server.jobs import job
from bursar_server.jobs.errors import INTERNAL_TEXT
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import RowSource, Sensitivity, event_of, gaussian_for

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal, Serve

Make = Callable[..., fit_pb2.FitDPEMRequest]
Refused = Callable[[Callable[[], object]], "Refusal"]


def _call(served: Harness, message: fit_pb2.FitDPEMRequest) -> Any:
    return fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(message, metadata=served.bearer())


def _drain(served: Harness, message: fit_pb2.FitDPEMRequest) -> list[fit_pb2.FitDPEMResponse]:
    return list(_call(served, message))


def _raw(served: Harness, message: fit_pb2.FitDPEMRequest) -> list[bytes]:
    """The messages of a fit as they come over the wire."""
    call: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    return list(call(message.SerializeToString(), metadata=served.bearer()))


def _replayed(call: Any) -> bool:
    return ("bursar-replayed", "true") in [tuple(pair) for pair in call.trailing_metadata()]


def test_a_fit_streams_receipt_steps_and_model_in_this_order(served: Harness, fit_request: Make) -> None:
    """The receipt comes first and the model last, with steps that never go back between them."""
    call = _call(served, fit_request())
    kinds = [event.WhichOneof("event") for event in call]
    assert kinds[0] == "receipt"
    assert kinds[-1] == "model"
    assert set(kinds[1:-1]) <= {"progress"}
    assert not _replayed(call)


def test_the_receipt_says_what_the_ledger_holds(served: Harness, fit_request: Make) -> None:
    """Entry, price, remainder and head of the receipt are those of the debit's entry."""
    receipt = next(iter(_call(served, fit_request()))).receipt
    record = served.ledger.debit_entry(receipt.entry)
    assert receipt.price.cost_units == record.price.cost_units
    assert receipt.remaining.cost_units == record.remaining.cost_units
    assert receipt.ledger_head == record.head
    assert receipt.adjacency == types_pb2.ADJACENCY_REPLACE_ONE
    assert (receipt.dataset, receipt.request_id) == ("people", "r1")


def test_a_preview_costs_nothing_and_names_the_price_that_a_fit_pays(served: Harness, fit_request: Make) -> None:
    """The preview's price equals the receipt's, accuracies have names and units, and no entry is written for it."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    before = served.entries()
    preview = stub.Preview(fit_pb2.PreviewRequest(dpem=fit_request(request_id="")), metadata=served.bearer())
    assert served.entries() == before
    assert preview.affordable
    assert list(preview.expected) == [
        fit_pb2.Expected(name="mean_error", values=[0.5], columns=["height"], unit="cm"),
        fit_pb2.Expected(name="snr", values=[2.0]),
    ]
    assert preview.fits_left == preview.remaining.cost_units // preview.price.cost_units
    assert _drain(served, fit_request())[0].receipt.price == preview.price
    assert served.fit.runs == 1


def test_a_preview_says_whether_a_search_will_find_what_it_looks_for(served: Harness, fit_request: Make) -> None:
    """The plan's word is repeated, and nothing where the plan says nothing."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    expected = fit_pb2.Preflight(rules=[fit_pb2.PreflightRule(name="search", margin=0.5)], predicted_found=1)
    for preflight in (None, expected):
        served.fit.preflight = preflight
        preview = stub.Preview(fit_pb2.PreviewRequest(dpem=fit_request(request_id="")), metadata=served.bearer())
        assert preview.HasField("preflight") == (preflight is not None)
    assert preview.preflight == expected


def test_a_preview_of_nothing_names_the_missing_field(served: Harness, refused: Refused) -> None:
    """A preview has to say which fit it is about."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    assert refused(lambda: stub.Preview(fit_pb2.PreviewRequest(), metadata=served.bearer())).fields == ("fit",)


def test_a_repeated_request_gets_the_same_bytes_for_nothing(served: Harness, fit_request: Make) -> None:
    """Receipt and model are byte-identical, nothing is debited or run, and the trailer says so."""
    first, head = _raw(served, fit_request()), served.ledger.head()
    again = _call(served, fit_request())
    assert [event.SerializeToString(deterministic=True) for event in again] == [first[0], first[-1]]
    assert _replayed(again)
    assert _raw(served, fit_request()) == [first[0], first[-1]]
    assert served.ledger.head() == head
    assert served.fit.runs == 1


def test_a_release_outlives_the_server(serve: Serve, fit_request: Make) -> None:
    """A server that is started anew sends the stored bytes."""
    before, after = serve(), serve()
    first = _raw(before, fit_request())
    assert _raw(after, fit_request()) == [first[0], first[-1]]
    assert after.fit.runs == 0


def test_another_body_under_a_used_request_id_is_refused(served: Harness, fit_request: Make, refused: Refused) -> None:
    """ALREADY_EXISTS with a stable reason, and no entry."""
    list(_call(served, fit_request()))
    head = served.ledger.head()
    refusal = refused(lambda: list(_call(served, fit_request(n_components=3))))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    assert served.ledger.head() == head


def test_another_body_under_the_id_of_a_running_fit_is_refused(
    served: Harness, fit_request: Make, refused: Refused
) -> None:
    """A run is joined only by the request that it belongs to."""
    served.fit.hold.clear()
    running = iter(_call(served, fit_request()))
    next(running)
    refusal = refused(lambda: list(_call(served, fit_request(n_components=3))))
    served.fit.hold.set()
    assert refusal.reason == "REQUEST_ID_REUSED"
    assert list(running)[-1].HasField("model")


def test_two_concurrent_calls_with_one_id_share_one_run(served: Harness, fit_request: Make) -> None:
    """The second call joins the first: one debit, one noise draw, the same model for both."""
    served.fit.hold.clear()
    calls = [_call(served, fit_request()) for _ in range(4)]
    receipts = [next(iter(call)) for call in calls]
    served.fit.hold.set()
    models = [list(call)[-1] for call in calls]
    assert all(model == models[0] for model in models)
    assert all(receipt == receipts[0] for receipt in receipts)
    assert served.fit.runs == 1
    assert served.entries("debit") == 1
    assert sum(not _replayed(call) for call in calls) == 1


def test_a_fit_whose_caller_left_is_finished_and_kept(served: Harness, fit_request: Make) -> None:
    """The run goes on after a cancellation, and a repetition gets its release under the same debit."""
    served.fit.hold.clear()
    call = _call(served, fit_request())
    receipt = next(iter(call)).receipt
    call.cancel()
    served.fit.hold.set()
    events = list(_call(served, fit_request()))
    assert events[0].receipt == receipt
    assert events[-1].HasField("model")
    assert served.fit.runs == 1
    assert served.entries("debit") == 1


def test_a_full_queue_refuses_before_the_debit(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """One worker and no queue refuse a second fit without an entry, and admit it when the first is done."""
    served = serve(fit_workers=1, queue_length=0)
    served.fit.hold.clear()
    running = _call(served, fit_request())
    next(iter(running))
    head = served.ledger.head()
    refusal = refused(lambda: list(_call(served, fit_request(request_id="r2"))))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert served.ledger.head() == head
    served.fit.hold.set()
    list(running)
    _until_admitted(served, fit_request(request_id="r2"))
    assert served.entries("debit") == 2


def _until_admitted(served: Harness, message: fit_pb2.FitDPEMRequest, *, first_only: bool = False) -> None:
    # The place is free just after the caller was told, so the first try may come too early.
    while True:
        with contextlib.suppress(grpc.RpcError):
            call = _call(served, message)
            next(iter(call)) if first_only else list(call)
            return


def test_one_analyst_cannot_hold_every_place(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """An analyst beyond their share is refused before the debit, though places are free; joining a fit is free."""
    served = serve(fit_workers=1, queue_length=5, fits_per_principal=1)
    served.fit.hold.clear()
    running = _call(served, fit_request())
    next(iter(running))
    head = served.ledger.head()
    refusal = refused(lambda: list(_call(served, fit_request(request_id="r2"))))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert served.ledger.head() == head
    joined = _call(served, fit_request())
    next(iter(joined))
    served.fit.hold.set()
    assert list(running)[-1] == list(joined)[-1]
    _until_admitted(served, fit_request(request_id="r2"))


class _SlowLedger(Ledger):
    """Holds every debit until it may go on."""

    debiting, goes_on = threading.Event(), threading.Event()

    def debit(self, request: DebitRequest | RestRequest) -> Debit:
        self.debiting.set()
        self.goes_on.wait(600)
        return super().debit(request)


def test_a_fit_that_waits_for_its_debit_counts_as_the_analysts(
    serve: Serve, fit_request: Make, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else many requests at one moment would take more places than one analyst may have."""
    for name in ("debiting", "goes_on"):
        monkeypatch.setattr(_SlowLedger, name, threading.Event())
    served = serve(wrap_ledger=_SlowLedger.open, fit_workers=1, queue_length=5, fits_per_principal=1)
    first = _call(served, fit_request())
    try:
        assert _SlowLedger.debiting.wait(600)
        refusal = refused(lambda: list(_call(served, fit_request(request_id="r2"))))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    finally:
        _SlowLedger.goes_on.set()
    assert list(first)[-1].HasField("model")


def test_between_debit_and_release_nothing_is_logged(served: Harness, fit_request: Make) -> None:
    """An event at the moment at which a fit ends would put its time, which may depend on rows, into log and metrics."""
    events: list[log.Event] = []
    with served.events.heard_by(events.append):
        list(_call(served, fit_request()))
    assert [type(event) for event in events[:2]] == [log.Debited, log.Released]
    assert {type(event) for event in events[2:]} <= {log.Call}


def test_servers_of_one_process_do_not_hear_each_other(serve: Serve, fit_request: Make) -> None:
    """Metrics, traces and counts of refusals are each server's own."""
    servers, heard = (serve(), serve()), ([], [])  # type: tuple[Harness, ...], tuple[list[log.Event], ...]
    with servers[0].events.heard_by(heard[0].append), servers[1].events.heard_by(heard[1].append):
        list(_call(servers[0], fit_request()))
        assert not heard[1]
        list(_call(servers[1], fit_request(request_id="r2")))
    assert [event.entry for event in heard[0] if isinstance(event, log.Debited)] != []
    debited = [{event.entry for event in one if isinstance(event, log.Debited)} for one in heard]
    assert len(debited[0]) == len(debited[1]) == 1
    assert debited[0] != debited[1]


def test_a_caller_who_leaves_a_running_fit_makes_room_for_his_next_call(serve: Serve, fit_request: Make) -> None:
    """Calls under way count: the fit of a cancelled call goes on without one."""
    served = serve(calls_per_principal=1)
    served.fit.hold.clear()
    left = _call(served, fit_request())
    next(iter(left))
    left.cancel()
    _until_admitted(served, fit_request(), first_only=True)
    served.fit.hold.set()


def test_a_refused_request_gives_its_place_back(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """Requests beyond the budget do not fill the queue."""
    served = serve(fit_workers=1, queue_length=0)
    for i in range(3):
        message = fit_request(request_id=f"r{i}", spend=types_pb2.Spend(rho=9.0))
        refusal = refused(partial(_drain, served, message))
        assert refusal.reason == "BUDGET_EXHAUSTED"
    assert list(_call(served, fit_request(request_id="fits")))[-1].HasField("model")


def test_too_much_is_refused_with_what_is_left(served: Harness, fit_request: Make, refused: Refused) -> None:
    """QuotaFailure and ErrorInfo carry what was asked and what is left in units; nothing changes."""
    list(_call(served, fit_request()))
    head, left = served.ledger.head(), served.ledger.dataset("people").remaining
    refusal = refused(lambda: list(_call(served, fit_request(request_id="r2", spend=types_pb2.Spend(rho=1.0)))))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED")
    assert int(refusal.metadata["remaining_cost_units"]) == left.cost_units
    assert int(refusal.metadata["cap_cost_units"]) == left.cap_cost_units
    assert int(refusal.metadata["requested_cost_units"]) > left.cost_units
    assert float(refusal.metadata["remaining_rho"]) == left.rho
    assert refusal.subjects == ("dataset budget",)
    assert served.ledger.head() == head


def test_a_preview_of_too_much_says_that_it_is_not_affordable(served: Harness, fit_request: Make) -> None:
    """A preview answers where a fit would be refused, even for a price beyond what the wire can hold."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    for rho in (9.0, 1e12):
        message = fit_pb2.PreviewRequest(dpem=fit_request(spend=types_pb2.Spend(rho=rho)))
        preview = stub.Preview(message, metadata=served.bearer())
        assert not preview.affordable
        assert preview.fits_left == 0


@pytest.mark.parametrize("request_id", ["", "a b", "x" * 65, "ä", "a\n"])
def test_a_malformed_request_id_is_refused_before_the_debit(
    served: Harness, fit_request: Make, refused: Refused, request_id: str
) -> None:
    """INVALID_ARGUMENT names the field."""
    head = served.ledger.head()
    refusal = refused(lambda: list(_call(served, fit_request(request_id=request_id))))
    assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("request_id",))
    assert served.ledger.head() == head


def test_the_fields_that_a_plan_refuses_are_named(served: Harness, fit_request: Make, refused: Refused) -> None:
    """INVALID_ARGUMENT with a violation per field, and nothing debited."""
    refusal = refused(lambda: list(_call(served, fit_request(n_components=10**9))))
    assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("n_components",))
    assert served.entries("debit") == 0


@pytest.mark.parametrize("name", ["nobody", "", "x" * 10_000, "a\x00b", "'; DROP TABLE entries"])
def test_an_unknown_dataset_is_not_found_and_not_quoted(
    served: Harness, fit_request: Make, refused: Refused, name: str
) -> None:
    """NOT_FOUND with a text that holds nothing of what was sent."""
    refusal = refused(lambda: list(_call(served, fit_request(dataset=name))))
    assert refusal.code == grpc.StatusCode.NOT_FOUND
    assert not name or name not in refusal.text


@pytest.mark.parametrize("method", ["FitSeparatedGMM", "FitGradientEM", "FitSketchKMeans", "FitMRF"])
def test_the_fits_to_come_say_so(served: Harness, refused: Refused, method: str) -> None:
    """UNIMPLEMENTED, in words."""
    message = getattr(fit_pb2, f"{method}Request")(dataset="people", request_id="r")
    stub = getattr(fit_pb2_grpc.FitServiceStub(served.channel), method)
    refusal = refused(lambda: list(stub(message, metadata=served.bearer())))
    assert refusal.code == grpc.StatusCode.UNIMPLEMENTED
    assert "not available in this version" in refusal.text


@pytest.mark.parametrize("error", [ValueError("SECRET-17"), MemoryError("SECRET-17"), BaseException("SECRET-17")])
def test_a_fit_that_raises_tells_nothing_and_is_never_drawn_again(
    serve: Serve, fit_request: Make, refused: Refused, capfd: pytest.CaptureFixture[str], error: BaseException
) -> None:
    """One constant text whatever was raised, its text neither on the wire nor in the log, and no second noise draw."""
    served = serve()
    served.fit.error = error
    refusals = [refused(lambda: list(_call(served, fit_request()))) for _ in range(2)]
    for refusal in refusals:
        assert (refusal.code, refusal.text) == (grpc.StatusCode.INTERNAL, INTERNAL_TEXT)
        assert "SECRET" not in refusal.everything
        assert refusal.metadata["incident"].startswith("entry-")
    assert "SECRET" not in "".join(capfd.readouterr())
    assert served.fit.runs == 1
    assert served.entries("debit") == 1
    assert verify(served.state.ledger).ok


def test_fields_of_a_newer_client_are_refused(served: Harness, fit_request: Make, refused: Refused) -> None:
    """Fields that this version does not know are named by number, at any depth, and nothing is debited."""
    request = fit_request()
    request.MergeFromString(b"\xf8\x07\x01")  # field 127
    request.spend.MergeFromString(b"\xf8\x07\x01")
    refusal = refused(lambda: list(_call(served, request)))
    assert refusal.code == grpc.StatusCode.INVALID_ARGUMENT
    assert "127, spend.127" in refusal.everything
    assert served.entries("debit") == 0


class _OrderedDatasets(Datasets):
    """Notes what the ledger's file holds when rows are opened."""

    seen: list[int]

    def rows(self, debit: Debit, columns: tuple[str, ...]) -> RowSource:
        with sqlite3.connect(f"file:{self._directory.parent / 'ledger.sqlite'}?mode=ro", uri=True) as file:
            debits = "SELECT count(*) FROM entries WHERE json_extract(body, '$.kind') = 'debit'"
            self.seen.append(file.execute(debits).fetchone()[0])
        file.close()
        return super().rows(debit, columns)


def test_the_debit_is_durable_before_rows_are_opened(serve: Serve, fit_request: Make) -> None:
    """Another connection sees the debit in the file at the moment when the fit opens the rows."""
    made: list[_OrderedDatasets] = []

    def make(ledger: Ledger, directory: Path) -> Datasets:
        made.append(_OrderedDatasets(ledger, directory))
        made[0].seen = []
        return made[0]

    list(_call(serve(make_datasets=make), fit_request()))
    assert made[0].seen == [1]


class _FailingLedger(Ledger):
    """Cannot debit."""

    def debit(self, request: DebitRequest | RestRequest) -> Debit:
        raise LedgerUnavailableError("SECRET: disk full at /var/x")


def test_without_a_debit_rows_are_never_opened(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """The caller is told to try again if the ledger fails, and no fit has run."""
    served = serve(wrap_ledger=_FailingLedger.open)
    refusal = refused(lambda: list(_call(served, fit_request())))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "LEDGER_UNAVAILABLE")
    assert "SECRET" not in refusal.everything
    assert served.fit.runs == 0


class _ForgetfulLedger(Ledger):
    """Fails to store the first release."""

    failures = 1

    def store_release(self, entry: int, release: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise LedgerUnavailableError("disk full")
        super().store_release(entry, release)


def test_a_release_that_cannot_be_stored_is_not_sent_and_runs_again_under_its_debit(
    serve: Serve, fit_request: Make, refused: Refused
) -> None:
    """Nothing left the server, so the same request_id may run again; one debit covers both."""
    served = serve(wrap_ledger=_ForgetfulLedger.open)
    refusal = refused(lambda: list(_call(served, fit_request())))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "RELEASE_NOT_STORED")
    again = _call(served, fit_request())
    assert list(again)[-1].HasField("model")
    assert _replayed(again)
    assert served.fit.runs == 2
    assert served.entries("debit") == 1


def test_an_interrupted_fit_runs_again_under_its_debit(serve: Serve, fit_request: Make) -> None:
    """A debit without a release, as a crash leaves it, is not debited again."""
    served = serve()
    list(_call(served, fit_request(request_id="first")))
    paid = served.ledger.debit_entry(next(e.number for e in served.ledger.entries() if e.kind == "debit")).request
    twin = DebitRequest(**{**vars(paid), "request_id": "second"})
    assert served.ledger.debit(twin).status is DebitStatus.NEW
    events = list(_call(served, fit_request(request_id="second")))
    assert events[-1].HasField("model")
    assert served.entries("debit") == 2


def test_a_missing_snapshot_costs_nothing(served: Harness, fit_request: Make, refused: Refused) -> None:
    """The request fails before its debit if the table is not in its place."""
    for folder in served.state.datasets.iterdir():
        folder.rename(served.state.path / "elsewhere")
    assert refused(lambda: list(_call(served, fit_request()))).reason == "ROWS_UNAVAILABLE"
    assert served.entries("debit") == 0


def test_a_call_lasts_no_longer_than_the_server_allows(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """The caller is sent away, the fit goes on, and asking again gets it."""
    served = serve(call_seconds=0.05)
    served.fit.hold.clear()
    refusal = refused(lambda: list(_call(served, fit_request())))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "CALL_TOO_LONG")
    served.fit.hold.set()
    assert _eventually_model(served, fit_request())
    assert served.fit.runs == 1


def _eventually_model(served: Harness, message: fit_pb2.FitDPEMRequest) -> bool:
    while True:
        with contextlib.suppress(grpc.RpcError):
            return bool(list(_call(served, message))[-1].HasField("model"))


def test_exactly_the_remainder_is_admitted_and_then_nothing(
    served: Harness, fit_request: Make, refused: Refused
) -> None:
    """A request that takes the last unit passes; the next one, however small, does not."""
    left = served.ledger.dataset("people").remaining
    paid = served.ledger.debit(_debit_for(left.rho))
    assert paid.remaining.cost_units < 10**6  # rounding of the noise scale leaves a few units of 2^40
    refusal = refused(lambda: list(_call(served, fit_request(request_id="r2"))))
    assert refusal.reason == "BUDGET_EXHAUSTED"
    with pytest.raises(BudgetExhaustedError):
        served.ledger.debit(_debit_for(left.rho, "other"))


def _debit_for(rho: float, request_id: str = "all") -> DebitRequest:
    sensitivity = Sensitivity(1, 1)
    event = event_of(sensitivity, gaussian_for(sensitivity, Fraction(rho)))
    assert isinstance(event, GaussianEvent)
    return DebitRequest("people", "the-analyst", request_id, bytes(32), "FitDPEM", (event,))


def test_an_earlier_release_is_a_start_for_its_owner_only(served: Harness, fit_request: Make, refused: Refused) -> None:
    """A start needs a release of the caller's own: others', unknown entries and entries without one are refused."""
    own = next(iter(_call(served, fit_request()))).receipt.entry
    list(_call(served, fit_request()))
    start = fit_pb2.StartReleased(entry=own)
    assert list(_call(served, fit_request(request_id="r2", released=start)))[-1].HasField("model")
    others = DebitRequest("people", "somebody", "x", bytes(32), "FitDPEM", _debit_for(0.001).events)
    entry = served.ledger.debit(others).entry
    served.ledger.store_release(
        entry, fit_pb2.FitDPEMResponse(model=fit_pb2.GaussianMixtureModel()).SerializeToString()
    )
    for wrong in (entry, 1, 10**6, 2**64 - 1):
        message = fit_request(request_id=f"r-{wrong}", released=fit_pb2.StartReleased(entry=wrong))
        assert refused(partial(_drain, served, message)).fields == ("start.released.entry",)


def test_a_request_id_belongs_to_its_analyst(served: Harness, fit_request: Make) -> None:
    """Another analyst who happens to choose the same id pays for a draw of his own and never sees the first's."""
    first = _drain(served, fit_request())
    token = new_token(Role.ANALYST)
    served.ledger.issue_credential("bob", Role.ANALYST, hash_token(token), actor="test", reason="")
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    other = list(stub.FitDPEM(fit_request(), metadata=(("authorization", f"Bearer {token}"),)))
    assert other[0].receipt.entry != first[0].receipt.entry
    assert served.entries("debit") == served.fit.runs == 2


def test_callers_share_the_budget_of_a_dataset(served: Harness, fit_request: Make) -> None:
    """The remainder is what all debits together leave, whoever asks."""
    requests = [fit_request(request_id=f"r{i}", spend=types_pb2.Spend(rho=0.001 * (1 + i))) for i in range(6)]
    threads = [threading.Thread(target=lambda message=message: list(_call(served, message))) for message in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = served.ledger.dataset("people")
    costs = [record.price.cost_units for record in served.ledger.releases(dataset="people")]
    assert len(costs) == 6
    assert sum(costs) == state.spent_cost_units
    assert verify(served.state.ledger).ok


def test_a_release_is_not_stored_before_the_tick(
    served: Harness, fit_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However quick the fit: its worker and its call both wait for the next multiple of the quantum."""
    at_the_tick, ticks = threading.Barrier(3, timeout=600), threading.Event()

    def to_next_tick(run: job.Run, quantum: float) -> float:
        if not ticks.is_set():
            at_the_tick.wait()
            ticks.wait(600)
        return 0.001

    monkeypatch.setattr(job.Run, "to_next_tick", to_next_tick)
    call: Iterator[Any] = iter(_call(served, fit_request()))
    receipt = next(call).receipt
    at_the_tick.wait()
    assert served.ledger.release(receipt.entry) is None
    ticks.set()
    assert list(call)[-1].HasField("model")
    assert served.ledger.release(receipt.entry)
