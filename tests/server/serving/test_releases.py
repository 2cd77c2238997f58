"""Releases, which can be fetched again: by their owner, free, as stored, and by nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import Debit, DebitRequest, Ledger, LedgerUnavailableError, Role, verify
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.access.auth import hash_token, new_token
from bursar_server.fits.contract import METHODS
from bursar_server.jobs.errors import INTERNAL_TEXT
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import event_of, gaussian_for
from tests.server.serving.conftest import SENSITIVITY

if TYPE_CHECKING:
    from pathlib import Path

    from bursar_server.vault import RowSource
    from tests.server.serving.conftest import Harness, Refusal, Serve

Make = Callable[..., fit_pb2.FitDPEMRequest]
Refused = Callable[[Callable[[], object]], "Refusal"]
Bearer = tuple[tuple[str, str], ...]

NUMBERS = types_pb2.Tensor(shape=[2], values=[0.1, -2.5e300])
MODELS: dict[str, Any] = {
    "FitDPEM": fit_pb2.GaussianMixtureModel(columns=["height"], weights=NUMBERS, iterations=3),
    "FitSeparatedGMM": fit_pb2.SeparatedGMM(columns=["height"], found=2, weights=NUMBERS),
    "FitGradientEM": fit_pb2.GradientEMModel(columns=["height"], coefficients=NUMBERS),
    "FitSketchKMeans": fit_pb2.SketchModel(sketch=fit_pb2.Sketch(columns=["height"], sums=NUMBERS), residual=1.0),
    "FitMRF": fit_pb2.MRFModel(log_partition=0.5, tables=[fit_pb2.NoisyTable(columns=["town"], counts=NUMBERS)]),
}


def fetch(served: Harness, entry: int, bearer: Bearer | None = None) -> catalog_pb2.GetReleaseResponse:
    """Return what an entry released, for the analyst unless told otherwise."""
    stub = catalog_pb2_grpc.CatalogServiceStub(served.channel)
    message = catalog_pb2.GetReleaseRequest(entry=entry)
    return stub.GetRelease(message, metadata=bearer or served.bearer())


def fit(served: Harness, message: fit_pb2.FitDPEMRequest) -> list[fit_pb2.FitDPEMResponse]:
    """All messages of a fit."""
    return list(fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(message, metadata=served.bearer()))


def debit(ledger: Ledger, method: str, request_id: str = "r1", principal: str = "the-analyst") -> int:
    """The entry of a debit without a release."""
    asked = DebitRequest(
        dataset="people",
        principal=principal,
        request_id=request_id,
        request_hash=bytes(32),
        method=method,
        events=(event_of(SENSITIVITY, gaussian_for(SENSITIVITY, Fraction(1, 100))),),
        parameters={"n_components": 3},
    )
    return ledger.debit(asked).entry


def another_analyst(served: Harness) -> Bearer:
    """Bob, who has a token, too."""
    token = new_token(Role.ANALYST)
    served.ledger.issue_credential("bob", Role.ANALYST, hash_token(token), actor="test", reason="")
    return (("authorization", f"Bearer {token}"),)


@pytest.mark.parametrize("method", MODELS)
def test_the_release_of_every_fit_is_had_again(served: Harness, method: str) -> None:
    """Bit by bit, in the field of its fit, with the debit's receipt and the number of components that were sought."""
    entry = debit(served.ledger, method)
    response = METHODS[method].response(model=MODELS[method])
    served.ledger.store_release(entry, response.SerializeToString(deterministic=True))
    before = served.ledger.newest()
    answer = fetch(served, entry)
    assert getattr(answer, answer.WhichOneof("model") or "") == MODELS[method]
    assert answer.n_components == 3
    assert (answer.receipt.entry, answer.receipt.dataset, answer.receipt.request_id) == (entry, "people", "r1")
    assert answer.receipt.ledger_head == served.ledger.debit_entry(entry).head
    assert not answer.receipt.free
    assert served.ledger.newest() == before


def test_it_is_what_the_fit_itself_answered(serve: Serve, fit_request: Make) -> None:
    """Receipt and model; no run is started, no row opened a second time, and nothing debited."""
    opened: list[str] = []

    class Counted(Datasets):
        def rows(self, debit: Debit, columns: tuple[str, ...]) -> RowSource:
            opened.append(debit.request.dataset)
            return super().rows(debit, columns)

    def make(ledger: Ledger, directory: Path) -> Datasets:
        return Counted(ledger, directory)

    served = serve(make_datasets=make)
    first, *_, last = fit(served, fit_request())
    before = served.ledger.newest()
    answer = fetch(served, first.receipt.entry)
    assert (answer.receipt, answer.dpem) == (first.receipt, last.model)
    assert (served.ledger.newest(), served.fit.runs, opened) == (before, 1, ["people"])


def test_what_was_released_outlives_the_dataset_and_the_process(serve: Serve, fit_request: Make) -> None:
    """A dataset that is retired still gives it, and so does a server that is started later."""
    first, *_, last = fit(serve(), fit_request())
    served = serve()
    served.ledger.retire_dataset("people", actor="test", reason="over")
    assert fetch(served, first.receipt.entry).dpem == last.model


def test_others_entries_are_as_those_that_are_not_there(served: Harness, fit_request: Make, refused: Refused) -> None:
    """A stranger's debit, released or not, is told in the same words as what is no debit or no entry at all."""
    entry = fit(served, fit_request())[0].receipt.entry
    bob = another_analyst(served)
    waiting = debit(served.ledger, "FitDPEM", "r2")
    told = {
        refused(lambda number=number: fetch(served, number, bob)).everything  # type: ignore[misc]  # lambda's default
        for number in (entry, waiting, 0, 1, 10**6, 2**64 - 1)
    }
    assert len(told) == 1
    refusal = refused(lambda: fetch(served, entry, bob))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "UNKNOWN_RELEASE")
    assert fetch(served, entry).HasField("dpem")


def test_a_fit_that_runs_has_no_release_yet(served: Harness, fit_request: Make, refused: Refused) -> None:
    """The caller is told so, and is not kept waiting; then it is there."""
    served.fit.hold.clear()
    answers: list[fit_pb2.FitDPEMResponse] = []
    thread = threading.Thread(target=lambda: answers.extend(fit(served, fit_request())))
    thread.start()
    try:
        served.fit.started.wait()
        (record,) = served.ledger.releases()
        refusal = refused(lambda: fetch(served, record.entry))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "NO_RELEASE_YET")
    finally:
        served.fit.hold.set()
        thread.join()
    assert fetch(served, record.entry).dpem == answers[-1].model


@pytest.mark.parametrize(
    ("recovery", "code", "reason"),
    [
        ("rerun", grpc.StatusCode.NOT_FOUND, "NO_RELEASE_YET"),
        ("lost", grpc.StatusCode.DATA_LOSS, "RELEASE_LOST"),
    ],
)
def test_a_debit_that_was_cut_off(
    serve: Serve, refused: Refused, recovery: str, code: grpc.StatusCode, reason: str
) -> None:
    """It may still get a release, or it never will, as the settings say; asking for it runs nothing."""
    served = serve(recovery=recovery)
    entry = debit(served.ledger, "FitDPEM")
    refusal = refused(lambda: fetch(served, entry))
    assert (refusal.code, refusal.reason) == (code, reason)
    assert served.fit.runs == 0


def test_a_fit_that_runs_is_not_lost(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """Also where debits that are cut off are."""
    served = serve(recovery="lost")
    served.fit.hold.clear()
    thread = threading.Thread(target=lambda: fit(served, fit_request()))
    thread.start()
    try:
        served.fit.started.wait()
        (record,) = served.ledger.releases()
        assert refused(lambda: fetch(served, record.entry)).reason == "NO_RELEASE_YET"
    finally:
        served.fit.hold.set()
        thread.join()
    assert fetch(served, record.entry).HasField("dpem")


def test_a_fit_that_failed_is_told_as_the_fit_told_it(served: Harness, fit_request: Make, refused: Refused) -> None:
    """The constant text, and the incident under which the operator's log has it."""
    served.fit.error = ValueError("secret words")
    first = refused(lambda: fit(served, fit_request()))
    (record,) = served.ledger.releases()
    second = refused(lambda: fetch(served, record.entry))
    assert second.code is grpc.StatusCode.INTERNAL
    assert INTERNAL_TEXT in second.text
    assert (second.reason, second.metadata) == (first.reason, first.metadata)
    assert second.metadata == {"incident": f"entry-{record.entry}"}


def test_a_fit_that_a_restoration_settled_is_told_as_lost(
    served: Harness, fit_request: Make, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as a failure whose incident no log has; nothing is drawn for it again."""

    def full(*_: object) -> None:
        raise LedgerUnavailableError

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "store_release", full)
        assert refused(lambda: fit(served, fit_request())).reason == "RELEASE_NOT_STORED"
    (record,) = served.ledger.releases()
    served.ledger.lose_release(record.entry)
    for ask in (lambda: fit(served, fit_request()), lambda: fetch(served, record.entry)):
        refusal = refused(ask)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.DATA_LOSS, "RELEASE_LOST")
    assert served.fit.runs == 1
    assert verify(served.state.ledger).problems == ()


def test_a_method_that_this_version_does_not_have(served: Harness, refused: Refused) -> None:
    """A newer one's debit: UNIMPLEMENTED, not a guess."""
    entry = debit(served.ledger, "FitTomorrow")
    served.ledger.store_release(entry, b"\x1a\x00")
    assert refused(lambda: fetch(served, entry)).code is grpc.StatusCode.UNIMPLEMENTED
