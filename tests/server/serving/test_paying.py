"""Costs of requests, the remainder as a request, and the end of debits without a release."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import (
    EVERYONE,
    Adjacency,
    Budget,
    DatasetState,
    Debit,
    DebitRequest,
    DebitStatus,
    Ledger,
    LedgerUnavailableError,
    Registration,
    RestRequest,
    Role,
    price,
    verify,
)
from bursar_ledger.refusals import FILE, read_refusals
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.config import Config, ConfigError
from bursar_server.fits import Plan, PublicTable, Released
from bursar_server.jobs.job import NO_RESULT
from bursar_server.jobs.runner import InProcess, Job, Progress
from bursar_server.tables.catalogue import Registered
from tests.asking import debit_of

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal, Serve

Make = Callable[..., fit_pb2.FitDPEMRequest]
Refused = Callable[[Callable[[], object]], "Refusal"]
WHO: dict[str, Any] = {"actor": "test", "reason": ""}
SMALL = types_pb2.Spend(rho=0.001)
REST = types_pb2.Spend(remaining=types_pb2.WhatIsLeft())


def _fit(served: Harness, message: fit_pb2.FitDPEMRequest) -> list[fit_pb2.FitDPEMResponse]:
    return list(fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(message, metadata=served.bearer()))


def _bytes(served: Harness, message: fit_pb2.FitDPEMRequest) -> list[bytes]:
    """Receipt and model as they come over the wire."""
    call: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    first, *_, last = call(message.SerializeToString(), metadata=served.bearer())
    return [first, last]


def _preview(served: Harness, message: fit_pb2.FitDPEMRequest) -> fit_pb2.PreviewResponse:
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    return stub.Preview(fit_pb2.PreviewRequest(dpem=message), metadata=served.bearer())


def _shown(served: Harness, dataset: str = "people") -> catalog_pb2.Dataset:
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    return stub.GetDataset(catalog_pb2.GetDatasetRequest(dataset=dataset), metadata=served.bearer()).dataset


def _listed(served: Harness, **fields: Any) -> catalog_pb2.ListReleasesResponse:
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    return stub.ListReleases(catalog_pb2.ListReleasesRequest(**fields), metadata=served.bearer())


# What one request may cost


def test_the_catalogue_shows_every_limit(served: Harness, fit_request: Make) -> None:
    """The dataset's rest, the caller's allowance, the maximum for one request, and the smallest of them."""
    plain = _shown(served)
    assert plain.available == plain.remaining
    assert not plain.HasField("allowance_remaining")
    assert not plain.HasField("call_limit")
    served.ledger.set_allowance("people", "the-analyst", Fraction(1, 2), **WHO)
    served.ledger.set_call_limit("people", Fraction(1, 4), **WHO)
    cap = plain.remaining.cap_cost_units
    shown = _shown(served)
    assert (shown.allowance_remaining.cost_units, shown.call_limit.cost_units) == (cap // 2, cap // 4)
    assert shown.available.cost_units == cap // 4
    assert shown.remaining == plain.remaining
    receipt = _fit(served, fit_request(spend=SMALL))[0].receipt
    assert receipt.allowance_remaining.cost_units == cap // 2 - receipt.price.cost_units
    assert _shown(served).allowance_remaining == receipt.allowance_remaining
    assert receipt.remaining.cost_units == cap - receipt.price.cost_units


def test_a_receipt_without_an_allowance_names_none(served: Harness, fit_request: Make) -> None:
    """An absent amount is absent, not zero."""
    assert not _fit(served, fit_request())[0].receipt.HasField("allowance_remaining")


@pytest.mark.parametrize(
    ("limit", "subject"),
    [("dataset", "dataset budget"), ("allowance", "allowance of the analyst"), ("call", "maximum per request")],
)
def test_a_refusal_names_the_limit_that_refused(
    served: Harness, fit_request: Make, refused: Refused, limit: str, subject: str
) -> None:
    """The metadata, the subject and the words have that limit's amounts; nothing is debited or run."""
    if limit == "allowance":
        served.ledger.set_allowance("people", EVERYONE, Fraction(1, 10**6), **WHO)
    if limit == "call":
        served.ledger.set_call_limit("people", Fraction(1, 10**6), **WHO)
    spend = types_pb2.Spend(rho=1.0 if limit == "dataset" else 0.001)
    refusal = refused(lambda: _fit(served, fit_request(spend=spend)))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED")
    assert (refusal.metadata["limit"], refusal.subjects) == (limit, (subject,))
    cap = _shown(served).remaining.cap_cost_units
    assert int(refusal.metadata["cap_cost_units"]) == (cap if limit == "dataset" else cap // 10**6)
    assert served.entries("debit") == served.fit.runs == 0
    (counted,) = read_refusals(served.state.ledger.with_name(FILE))  # for auditors
    assert (counted.dataset, counted.method, counted.times) == ("people", "FitDPEM", 1)
    assert counted.refused_by == {"dataset": "total", "call": "maximum per call"}.get(limit, limit)


@pytest.mark.parametrize(
    ("allowance", "call", "expected"), [(None, None, 10), (Fraction(1, 2), None, 5), (None, Fraction(1, 100), 0)]
)
def test_a_preview_counts_what_the_caller_may_do(
    served: Harness, fit_request: Make, allowance: Fraction | None, call: Fraction | None, expected: int
) -> None:
    """An allowance makes fewer of them, a maximum that is too small none at all."""
    served.ledger.set_allowance("people", "the-analyst", allowance, **WHO)
    served.ledger.set_call_limit("people", call, **WHO)
    rho = _shown(served).remaining.rho / 10.5
    preview = _preview(served, fit_request(spend=types_pb2.Spend(rho=rho)))
    assert (preview.fits_left, preview.affordable) == (expected, expected > 0)
    assert preview.available == _shown(served).available


# What is left


@pytest.mark.parametrize(
    ("allowance", "call"), [(None, None), (Fraction(1, 3), None), (None, Fraction(1, 7)), (Fraction(1, 9), Fraction(1))]
)
def test_what_is_left_is_spent_to_the_last_unit_that_noise_can_use(
    served: Harness, fit_request: Make, refused: Refused, allowance: Fraction | None, call: Fraction | None
) -> None:
    """The debit fits into the smallest limit, leaves less than noise is rounded by, and is what the preview said."""
    served.ledger.set_allowance("people", "the-analyst", allowance, **WHO)
    served.ledger.set_call_limit("people", call, **WHO)
    available = _shown(served).available
    message = fit_request(spend=REST)
    preview = _preview(served, message)
    receipt = _fit(served, message)[0].receipt
    assert receipt.price == preview.price
    assert 0 <= available.cost_units - receipt.price.cost_units < 10**6
    assert preview.affordable
    record = served.ledger.debit_entry(receipt.entry)
    assert record.request.parameters["spend"] == {"what_is_left": available.rho}
    assert price(record.request.events, record.price.order).cost_units == receipt.price.cost_units
    assert verify(served.state.ledger).ok
    if call is None:  # too little is left now for any noise
        assert refused(lambda: _fit(served, fit_request(request_id="r2"))).reason == "BUDGET_EXHAUSTED"


def test_nothing_left_is_a_refusal_like_any_other(served: Harness, fit_request: Make, refused: Refused) -> None:
    """It names the limit that has nothing left, for a fit and for its preview."""
    served.ledger.set_allowance("people", "the-analyst", Fraction(0), **WHO)
    for ask in (_fit, _preview):
        refusal = refused(lambda ask=ask: ask(served, fit_request(spend=REST)))  # type: ignore[misc]
        assert (refusal.reason, refusal.metadata["limit"]) == ("BUDGET_EXHAUSTED", "allowance")
    assert served.entries("debit") == 0


class _Meddling(Ledger):
    """Somebody else spends between the plan and the debit."""

    def debit(self, request: Any) -> Any:
        if isinstance(request, RestRequest) and debit_of(self, "somebody", "x") is None:
            account = self.dataset("people")
            one = debit_of(self, "the-analyst", "first").request  # type: ignore[union-attr]
            super().debit(replace(one, principal="somebody", request_id="x", dataset=account.name))
        return super().debit(request)


def test_what_is_left_is_decided_with_the_debit(serve: Serve, fit_request: Make) -> None:
    """Others may come between question and answer: the request takes what they leave, and the run fits its debit."""
    served = serve(wrap_ledger=_Meddling.open)
    _fit(served, fit_request(request_id="first"))
    before = _shown(served).available
    receipt = _fit(served, fit_request(spend=REST))[0].receipt
    theirs = debit_of(served.ledger, "somebody", "x")
    assert theirs is not None
    assert theirs.entry == receipt.entry - 1
    left = before.cost_units - theirs.price.cost_units
    assert 0 <= left - receipt.price.cost_units < 10**6
    assert served.fit.runs == 2


def test_many_ask_for_what_is_left_at_once_and_one_gets_it(served: Harness, fit_request: Make) -> None:
    """The others are refused; the sum stays within the cap."""
    answers: list[str] = []

    def ask(name: str) -> None:
        try:
            answers.append(_fit(served, fit_request(request_id=name, spend=REST))[-1].WhichOneof("event") or "")
        except grpc.RpcError as error:
            answers.append(error.code().name)

    threads = [threading.Thread(target=ask, args=(f"r{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count("model") == 1
    state = served.ledger.dataset("people")
    assert state.spent_cost_units <= state.cap_cost_units


def test_what_was_left_can_be_asked_for_again(serve: Serve, fit_request: Make) -> None:
    """The request is the same though the amount is another now: the same bytes, for nothing, after a restart, too."""
    before = serve()
    message = fit_request(spend=REST)
    first = _bytes(before, message)
    assert _bytes(before, message) == first
    after = serve()
    assert _bytes(after, message) == first
    assert (after.fit.runs, after.entries("debit")) == (0, 1)


def test_what_was_left_is_run_again_at_the_amount_of_its_debit(serve: Serve, fit_request: Make) -> None:
    """A debit that a crash left without a release is planned from what the ledger recorded."""
    served = serve()
    paid = _abandoned(served, fit_request(request_id="first", spend=REST))
    assert _shown(served).available.cost_units < 10**6
    *_, last = _fit(served, fit_request(request_id="first", spend=REST))
    assert last.HasField("model")
    assert served.entries("debit") == 1
    assert served.ledger.release(paid) == last.SerializeToString(deterministic=True)


def _abandoned(served: Harness, message: fit_pb2.FitDPEMRequest) -> int:
    """A debit as a crash leaves it: made by a server that could not finish. The number of its entry."""
    taken: list[Any] = []
    served.ledger.debit, real = taken.append, served.ledger.debit  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(grpc.RpcError):
            _fit(served, message)
    finally:
        served.ledger.debit = real  # type: ignore[method-assign]
    assert real(taken[0]).status is DebitStatus.NEW
    record = debit_of(served.ledger, "the-analyst", message.request_id)
    assert record is not None
    return record.entry


# What was paid for


def test_what_is_stored_is_sent_though_the_queue_is_full(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """A caller who has paid is never turned away; others are."""
    served = serve(fit_workers=1, queue_length=0, fits_per_principal=1)
    first = _bytes(served, fit_request(request_id="old"))
    served.fit.hold.clear()
    running = fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(
        fit_request(request_id="new"), metadata=served.bearer()
    )
    next(iter(running))
    assert _bytes(served, fit_request(request_id="old")) == first
    assert refused(lambda: _fit(served, fit_request(request_id="third"))).reason == "QUEUE_FULL"
    served.fit.hold.set()
    list(running)


class _Asked(Ledger):
    """Notes how often it is asked for earlier debits of a key; says once that there is none if it is told so."""

    asked = 0
    forgets = False

    def find_debit(self, principal: str, request_id: str, request_hash: bytes) -> Debit | None:
        self.asked += 1
        if self.forgets:
            self.forgets = False
            return None
        return super().find_debit(principal, request_id, request_hash)


def test_an_earlier_debit_is_looked_up_once(serve: Serve, fit_request: Make) -> None:
    """The look before the decision is the only one, and a fit of now is planned once."""
    served = serve(wrap_ledger=_Asked.open)
    plans, plan = [], served.fit.plan
    served.fit.plan = lambda *facts: plans.append(facts) or plan(*facts)  # type: ignore[method-assign, func-returns-value]
    first = _bytes(served, fit_request())
    assert (served.ledger.asked, len(plans)) == (1, 1)  # type: ignore[attr-defined]
    assert _bytes(served, fit_request()) == first
    assert (served.ledger.asked, len(plans)) == (2, 1)  # type: ignore[attr-defined]


def test_a_release_that_comes_between_look_and_decision_is_sent(serve: Serve, fit_request: Make) -> None:
    """Another process may have paid and released meanwhile: nothing is debited, reserved for good or drawn again."""
    served = serve(wrap_ledger=_Asked.open, fits_per_principal=1, fit_workers=1, queue_length=0)
    first = _bytes(served, fit_request())
    for _ in range(2):
        served.ledger.forgets = True  # type: ignore[attr-defined]
        assert _bytes(served, fit_request()) == first
    assert (served.fit.runs, served.entries("debit")) == (1, 1)
    _fit(served, fit_request(request_id="r2"))


def test_what_is_stored_is_sent_though_nothing_can_be_written(served: Harness, fit_request: Make) -> None:
    """Another process holds the ledger's write lock; a repetition does not wait for it."""
    first = _bytes(served, fit_request())
    with closing(sqlite3.connect(served.state.ledger, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert _bytes(served, fit_request()) == first
        other.execute("ROLLBACK")


def test_a_retired_dataset_takes_no_new_fits_and_gives_its_releases(
    served: Harness, fit_request: Make, refused: Refused
) -> None:
    """The reason is stable; the catalogue says it; a release is had again, even without the rows."""
    first = _bytes(served, fit_request())
    served.ledger.retire_dataset("people", **WHO)
    for folder in served.state.datasets.iterdir():
        folder.rename(served.state.path / "elsewhere")
    for ask in (_fit, _preview):
        refusal = refused(lambda ask=ask: ask(served, fit_request(request_id="r2")))  # type: ignore[misc]
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "DATASET_RETIRED")
    assert _bytes(served, fit_request()) == first
    assert _shown(served).retired
    assert _listed(served).releases[0].released
    assert served.entries("debit") == 1


def test_a_fit_that_was_paid_for_is_run_though_its_dataset_is_retired(serve: Serve, fit_request: Make) -> None:
    """Retirement takes nothing away from those who have paid."""
    served = serve()
    _abandoned(served, fit_request())
    served.ledger.retire_dataset("people", **WHO)
    assert _fit(served, fit_request())[-1].HasField("model")


def test_rows_of_the_same_people_share_one_budget(served: Harness, fit_request: Make) -> None:
    """Spending under one name counts under the other, while starts are looked for under the own name only."""
    state = served.ledger.dataset("people")
    manifest = Registered.of(state.manifest)
    twin = replace(manifest, manifest=manifest.manifest.model_copy(update={"name": "twins"}))
    served.ledger.register_dataset(
        Registration("twins", Adjacency.REPLACE_ONE, None, bytes(32), twin.fields, same_people_as="people"), **WHO
    )
    own = _fit(served, fit_request(spend=SMALL))[0].receipt
    other = _fit(served, fit_request(request_id="r2", dataset="twins", spend=SMALL))[0].receipt
    assert other.remaining.cost_units == own.remaining.cost_units - other.price.cost_units
    assert _shown(served).remaining == _shown(served, "twins").remaining
    start = fit_pb2.StartReleased(entry=own.entry)
    assert _fit(served, fit_request(request_id="r3", released=start, spend=SMALL))[-1].HasField("model")
    with pytest.raises(grpc.RpcError):
        _fit(served, fit_request(request_id="r4", dataset="twins", released=start, spend=SMALL))


def _narrower(served: Harness) -> None:
    """A new snapshot whose only numeric column has another name."""
    state = served.ledger.dataset("people")
    registered = Registered.of(state.manifest)
    columns = [column.model_copy(update={"name": f"new {column.name}"}) for column in registered.manifest.columns]
    newer = replace(registered, manifest=registered.manifest.model_copy(update={"columns": tuple(columns)}))
    served.ledger.new_snapshot("people", b"another tag", newer.fields, **WHO)


def test_a_release_is_given_though_the_schema_has_changed(served: Harness, fit_request: Make) -> None:
    """Nothing is planned for what is stored; the catalogue has the newest schema."""
    first = _bytes(served, fit_request())
    _narrower(served)
    assert _bytes(served, fit_request()) == first
    assert [column.name for column in _shown(served).columns] == ["new height", "new town"]


def test_a_run_that_would_not_be_what_was_paid_for_is_lost(
    serve: Serve, fit_request: Make, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger's entry says what is released, so nothing else is ever released under it."""
    served = serve()
    _abandoned(served, fit_request())
    plan = served.fit.plan

    def other(request: fit_pb2.FitDPEMRequest, table: PublicTable, released: Released) -> Plan:
        request.spend.rho /= 2
        return plan(request, table, released)

    monkeypatch.setattr(served.fit, "plan", other)
    for _ in range(2):
        refusal = refused(lambda: _fit(served, fit_request()))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.DATA_LOSS, "RELEASE_LOST")
    assert served.fit.runs == 0
    monkeypatch.undo()
    assert _fit(served, fit_request())[-1].HasField("model")


def test_a_run_is_planned_with_the_rows_that_were_public_when_it_was_paid_for(
    serve: Serve, fit_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new snapshot has another number of rows, on which plans depend; the paid one is made again as it was."""
    served = serve()
    seen: list[int | None] = []
    plan = served.fit.plan

    def by_rows(request: fit_pb2.FitDPEMRequest, table: PublicTable, released: Released) -> Plan:
        seen.append(table.rows)
        request = fit_pb2.FitDPEMRequest.FromString(request.SerializeToString())
        request.spend.rho *= (table.rows or 0) / 1000
        return plan(request, table, released)

    monkeypatch.setattr(served.fit, "plan", by_rows)
    _abandoned(served, fit_request())
    registered = Registered.of(served.ledger.dataset("people").manifest)
    newer = replace(registered, manifest=registered.manifest.model_copy(update={"public_rows": 41}))
    served.ledger.new_snapshot("people", b"another tag", newer.fields, **WHO)
    assert _fit(served, fit_request())[-1].HasField("model")
    assert _fit(served, fit_request(request_id="new"))[-1].HasField("model")
    assert set(seen[:-1]) == {40}
    assert seen[-1] == 41


def test_a_fit_that_releases_more_than_its_plan_gets_no_model(
    served: Harness, fit_request: Make, refused: Refused
) -> None:
    """The meter of a run holds what was debited and nothing of what is left, however much that is."""
    served.fit.beyond = 1
    for _ in range(2):
        assert refused(lambda: _fit(served, fit_request(spend=SMALL))).code is grpc.StatusCode.INTERNAL
    record = debit_of(served.ledger, "the-analyst", "r1")
    assert record is not None
    assert record.remaining.cost_units > 10 * record.price.cost_units, "this test would not notice a wider meter"
    assert served.ledger.release(record.entry) == NO_RESULT
    assert served.fit.runs == 1


def test_a_run_is_given_what_its_ledger_entry_says(
    serve: Serve, fit_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order, units and events are those of the debit, also after a new total has changed the dataset's order."""
    served = serve()
    jobs: list[Job] = []
    run = InProcess.run

    def noting(self: InProcess, job: Job, progress: Progress) -> bytes:
        jobs.append(job)
        return run(self, job, progress)

    monkeypatch.setattr(InProcess, "run", noting)
    _abandoned(served, fit_request(spend=SMALL))
    before = served.ledger.dataset("people").order
    served.ledger.set_budget("people", Budget(0.5, 1e-7), **WHO)
    assert served.ledger.dataset("people").order != before
    _fit(served, fit_request(spend=SMALL))
    _fit(served, fit_request(request_id="r2", spend=SMALL))
    assert len(jobs) == 2
    for job, name in zip(jobs, ("r1", "r2"), strict=True):
        record = debit_of(served.ledger, "the-analyst", name)
        assert record is not None
        budget = job.rows.budget
        assert (budget.order, budget.cost_units) == (record.price.order, record.price.cost_units)
        assert (job.plan.events, job.plan.of_entry) == (record.request.events, record.entry)
        assert (job.adjacency, job.unit_cap) == (Adjacency.REPLACE_ONE, 1)


def test_a_lost_release_is_never_drawn_again(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """A debit without a release gets one constant error with recovery = "lost"; new fits are made."""
    served = serve(recovery="lost")
    _abandoned(served, fit_request())
    head = served.ledger.head()
    for _ in range(2):
        refusal = refused(lambda: _fit(served, fit_request()))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.DATA_LOSS, "RELEASE_LOST")
        assert refusal.metadata == {}
    assert (served.fit.runs, served.ledger.head()) == (0, head)
    assert _listed(served).releases[0].state == catalog_pb2.RELEASE_STATE_RUNNING_OR_INTERRUPTED
    first = _bytes(served, fit_request(request_id="r2"))
    assert _bytes(served, fit_request(request_id="r2")) == first


def test_a_fit_that_still_runs_is_not_lost(serve: Serve, fit_request: Make) -> None:
    """Joining it is no second draw."""
    served = serve(recovery="lost")
    served.fit.hold.clear()
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    calls = [stub.FitDPEM(fit_request(), metadata=served.bearer()) for _ in range(2)]
    for call in calls:
        next(iter(call))
    served.fit.hold.set()
    models = [list(call)[-1] for call in calls]
    assert models[0] == models[1]
    assert served.fit.runs == 1


class _FullDisk(Ledger):
    """Stores nothing while it is full."""

    full = True

    def store_release(self, entry: int, release: bytes) -> None:
        if self.full:
            raise LedgerUnavailableError("SECRET: disk full at /var/x")
        super().store_release(entry, release)


def test_a_full_disk_is_not_a_failed_fit(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """The caller is told to ask again, and as soon as there is room gets a release under the same debit."""
    served = serve(wrap_ledger=_FullDisk.open)
    for runs in (1, 2):
        refusal = refused(lambda: _fit(served, fit_request()))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "RELEASE_NOT_STORED")
        assert "SECRET" not in refusal.everything
        assert served.fit.runs == runs
    served.ledger.full = False  # type: ignore[attr-defined]
    first = _bytes(served, fit_request())
    assert _bytes(served, fit_request()) == first
    assert served.entries("debit") == 1
    assert verify(served.state.ledger).ok


class _GoneLedger(Ledger):
    """One that cannot be used between debit and rows, from one call on."""

    gone = ""
    debited = False

    def debit(self, request: DebitRequest | RestRequest) -> Debit:
        self.debited = True
        return super().debit(request)

    def check_files(self) -> None:
        self._use("check_files")
        super().check_files()

    def dataset(self, name: str) -> DatasetState:
        self._use("dataset")
        return super().dataset(name)

    def _use(self, name: str) -> None:
        if name == self.gone and self.debited:
            raise LedgerUnavailableError("SECRET")


@pytest.mark.parametrize("name", ["check_files", "dataset"])
def test_a_ledger_that_is_gone_after_the_debit_is_not_a_failed_fit(
    serve: Serve, fit_request: Make, refused: Refused, name: str
) -> None:
    """No row was read: the caller is told to ask again, and gets a release under the same debit."""
    served = serve(wrap_ledger=_GoneLedger.open)
    served.ledger.gone = name  # type: ignore[attr-defined]
    refusal = refused(lambda: _fit(served, fit_request()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "FIT_NOT_BEGUN")
    assert "SECRET" not in refusal.everything
    assert served.fit.runs == 0
    served.ledger.gone = ""  # type: ignore[attr-defined]
    _fit(served, fit_request())
    assert (served.fit.runs, served.entries("debit")) == (1, 1)


def test_a_fit_that_raised_looks_the_same_on_a_full_disk(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """Else a full disk would tell what a fit did; its failure is told once it is stored, and then for ever."""
    served = serve(wrap_ledger=_FullDisk.open)
    served.fit.error = ValueError("SECRET")
    assert refused(lambda: _fit(served, fit_request())).reason == "RELEASE_NOT_STORED"
    served.ledger.full = False  # type: ignore[attr-defined]
    for _ in range(2):
        assert refused(lambda: _fit(served, fit_request())).code == grpc.StatusCode.INTERNAL
    assert served.fit.runs == 2


def test_on_a_full_disk_what_may_be_lost_is_lost(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """One draw at most of every debit."""
    served = serve(wrap_ledger=_FullDisk.open, recovery="lost")
    assert refused(lambda: _fit(served, fit_request())).reason == "RELEASE_LOST"
    served.ledger.full = False  # type: ignore[attr-defined]
    assert refused(lambda: _fit(served, fit_request())).reason == "RELEASE_LOST"
    assert served.fit.runs == 1


# What a caller finds again


def test_a_list_of_releases_tells_what_became_of_each(served: Harness, fit_request: Make, refused: Refused) -> None:
    """Released, failed, or neither yet."""
    _fit(served, fit_request(request_id="good", spend=SMALL))
    served.fit.error = ValueError()
    refused(lambda: _fit(served, fit_request(request_id="bad", spend=SMALL)))
    served.fit.error = None
    served.fit.hold.clear()
    running = fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(
        fit_request(request_id="slow", spend=SMALL), metadata=served.bearer()
    )
    next(iter(running))
    lines = {line.request_id: (line.state, line.released) for line in _listed(served).releases}
    served.fit.hold.set()
    list(running)
    assert lines == {
        "good": (catalog_pb2.RELEASE_STATE_RELEASED, True),
        "bad": (catalog_pb2.RELEASE_STATE_FAILED, False),
        "slow": (catalog_pb2.RELEASE_STATE_RUNNING_OR_INTERRUPTED, False),
    }


def test_releases_come_in_pages(served: Harness, fit_request: Make) -> None:
    """Each page begins after the last entry of the one before; together they are all, and the last says so."""
    for i in range(5):
        _fit(served, fit_request(request_id=f"r{i}", spend=types_pb2.Spend(rho=0.001)))
    names, sizes, token = [], [], 0
    while True:
        page = _listed(served, dataset="people", page_size=2, page_token=token)
        names += [line.request_id for line in page.releases]
        sizes.append(len(page.releases))
        token = page.next_page_token
        if not token:
            break
    assert (names, sizes) == ([f"r{i}" for i in range(5)], [2, 2, 1])
    everything = _listed(served, page_size=5)
    assert [line.request_id for line in everything.releases] == names
    assert everything.next_page_token == 0
    assert not _listed(served, page_token=2**64 - 1).releases


def _history(served: Harness, size: int, role: Role = Role.ANALYST) -> catalog_pb2.GetHistoryResponse:
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    return stub.GetHistory(catalog_pb2.GetHistoryRequest(size=size), metadata=served.bearer(role))


@pytest.mark.parametrize("role", Role)
def test_everybody_may_ask_whether_the_ledger_is_still_the_same(served: Harness, fit_request: Make, role: Role) -> None:
    """Id, size and head are the ledger's; the head of every size that it had is the one it was."""
    receipt = _fit(served, fit_request())[0].receipt
    now = _history(served, receipt.entry, role)
    assert (now.size, now.head) == served.ledger.newest()
    assert now.ledger_id == served.ledger.ledger_id
    assert now.head_at_size == receipt.ledger_head
    for size in (0, now.size + 1, 2**64 - 1):
        assert not _history(served, size, role).HasField("head_at_size")


def test_a_debit_is_in_the_history_under_the_number_of_its_receipt(served: Harness, fit_request: Make) -> None:
    """Every receipt of a busy server agrees, however many debits were made durable together."""
    receipts: list[types_pb2.Receipt] = []
    threads = [
        threading.Thread(
            target=lambda i=i: receipts.append(
                _fit(served, fit_request(request_id=f"r{i}", spend=types_pb2.Spend(rho=0.001)))[0].receipt
            )
        )
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [_history(served, receipt.entry).head_at_size == receipt.ledger_head for receipt in receipts] == [True] * 8


def test_settings_know_two_kinds_of_recovery(tmp_path: Path) -> None:
    """Anything else is refused by name."""
    path = tmp_path / "config.toml"
    path.write_text('recovery = "lost"')
    assert Config.load(path).recovery == "lost"
    path.write_text('recovery = "maybe"')
    with pytest.raises(ConfigError, match="recovery"):
        Config.load(path)
