"""Attacks on the order of debit and data: free looks at rows before anything is paid."""

from __future__ import annotations

import contextlib
import shutil
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import (
    DatasetState,
    Debit,
    DebitRecord,
    DebitRequest,
    DebitStatus,
    Ledger,
    PureEvent,
    RestRequest,
    price,
    verify,
)
from bursar_ledger._types import LEDGER_KEY
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.jobs import runner
from bursar_server.jobs.job import NO_RESULT
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import FitBudget, Meter, RowSource, SyntheticBudget
from tests.attacks.asking import PATIENCE, Make, call, told

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Serve


def _forged(request: DebitRequest, state: DatasetState, number: int) -> Debit:
    """A debit that no ledger made, with the key stolen from the ledger's module: else no rival could open rows."""
    return Debit(
        key=LEDGER_KEY,
        request=request,
        entry=number,
        price=price(request.events, state.order),
        remaining=state.remaining,
        allowance=None,
        head=b"",
        status=DebitStatus.NEW,
    )


class PaysAfterwards(Ledger):
    """Lets everything run, and debits when there is an answer to be paid for.

    The order of Lomas, smartnoise-sdk, diffprivlib, OpenDP's odometers and Jeddak-DPSQL.
    """

    def __init__(self, *made: Any, **how: Any) -> None:
        super().__init__(*made, **how)
        self._unpaid: dict[int, DebitRecord] = {}

    def debit(self, request: DebitRequest | RestRequest) -> Debit:
        """A debit that is not written."""
        if isinstance(request, RestRequest):
            raise NotImplementedError
        state, number = self.dataset(request.dataset), 10**6 + len(self._unpaid)
        made = _forged(request, state, number)
        self._unpaid[number] = DebitRecord(number, request, made.price, made.remaining, None, made.head, "")
        return made

    def debit_entry(self, entry: int) -> DebitRecord:
        """Return what was not written."""
        return self._unpaid[entry]

    def store_release(self, entry: int, content: bytes) -> None:
        """Now the debit is written, if the fit did not fail."""
        if content != NO_RESULT:
            paid = super().debit(self._unpaid[entry].request)
            super().store_release(paid.entry, content)


def _try(served: Harness, message: fit_pb2.FitDPEMRequest) -> None:
    with pytest.raises(grpc.RpcError):
        list(call(served, message))


def looks_without_paying(served: Harness, fit_request: Make) -> int:
    """Return how many of three fits that break half-way had looked at rows for nothing."""
    served.fit.error = ValueError("broken by its caller")
    for i in range(3):
        _try(served, fit_request(request_id=f"r{i}"))
    return served.fit.runs - served.entries("debit")


def test_a_fit_that_is_made_to_fail_is_paid(serve: Serve, fit_request: Make) -> None:
    """Make the fit crash after it has read the rows, and see whether it was free.

    Seen in Lomas, smartnoise-sdk, diffprivlib, OpenDP's odometers and Jeddak-DPSQL, which debit after the run.
    """
    assert looks_without_paying(serve(), fit_request) == 0


def test_the_rival_looks_for_nothing(serve: Serve, fit_request: Make) -> None:
    """The same attack on a ledger that is paid afterwards: three free looks."""
    assert looks_without_paying(serve(wrap_ledger=PaysAfterwards.open), fit_request) == 3


def looks_of_the_refused(served: Harness, fit_request: Make) -> int:
    """Return how many requests over the budget had looked at rows before they were refused."""
    for i in range(3):
        _try(served, fit_request(request_id=f"r{i}", spend=types_pb2.Spend(rho=1.0)))
    return served.fit.runs


def test_a_request_over_the_budget_is_refused_before_it_runs(serve: Serve, fit_request: Make) -> None:
    """Ask for more than is left: the work is not queued, not run, and costs no time that rows could colour.

    Seen in Lomas, whose jobs are queued and run before they are refused, and in OpenDP's filters.
    """
    assert looks_of_the_refused(serve(), fit_request) == 0


def test_the_rival_runs_what_it_refuses(serve: Serve, fit_request: Make) -> None:
    """The same attack on a ledger that is paid afterwards: every refusal came after a look."""
    assert looks_of_the_refused(serve(wrap_ledger=PaysAfterwards.open), fit_request) == 3


class _Crash(Datasets):
    """Copies the ledger's files at the moment when rows are opened: what `kill -9` would leave behind."""

    images: list[Path]

    def rows(self, debit: Debit, columns: tuple[str, ...]) -> RowSource:
        folder = self._directory.parent / f"image-{len(self.images)}"
        folder.mkdir()
        for file in self._directory.parent.glob("ledger.sqlite*"):
            shutil.copy(file, folder)
        self.images.append(folder / "ledger.sqlite")
        return super().rows(debit, columns)


def debits_in_the_wreck(serve: Serve, fit_request: Make, ledger: type[Ledger]) -> int:
    """Return how many debits a ledger holds that died when rows were opened."""
    made: list[_Crash] = []

    def make(ledger: Ledger, directory: Path) -> Datasets:
        made.append(_Crash(ledger, directory))
        made[0].images = []
        return made[0]

    list(call(serve(wrap_ledger=ledger.open, make_datasets=make), fit_request()))
    (image,) = made[0].images
    with Ledger.open(image) as wreck:
        debits = len(wreck.releases())
    assert verify(image).ok
    return debits


def test_killed_when_rows_are_opened_the_debit_is_there(serve: Serve, fit_request: Make) -> None:
    """Kill the server while a fit reads, and find the budget as it was before (the same peers)."""
    assert debits_in_the_wreck(serve, fit_request, Ledger) == 1


def test_killed_the_rival_has_forgotten(serve: Serve, fit_request: Make) -> None:
    """The same attack on a ledger that is paid afterwards: the wreck knows of no debit."""
    assert debits_in_the_wreck(serve, fit_request, PaysAfterwards) == 0


class _Counting(Datasets):
    """Counts how often rows are opened."""

    opened = 0

    def rows(self, debit: Debit, columns: tuple[str, ...]) -> RowSource:
        self.opened += 1
        return super().rows(debit, columns)


class _Peeking(_Counting):
    """Plans and previews look at the rows (Lomas' price of a diffprivlib model is found by fitting it)."""

    def table(self, state: DatasetState) -> Any:
        public = super().table(state)
        asked = DebitRequest(state.name, "nobody", "none", bytes(32), "none", (PureEvent(Fraction(1)),))
        self.rows(_forged(asked, state, 1), tuple(column.name for column in public.numeric))
        return public


def looks_of_previews(serve: Serve, fit_request: Make, kind: type[_Counting]) -> int:
    """Return how often previews opened rows."""
    made: list[_Counting] = []

    def make(ledger: Ledger, directory: Path) -> Datasets:
        made.append(kind(ledger, directory))
        return made[0]

    served = serve(make_datasets=make)
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    for rho in (0.001, 1.0):
        message = fit_pb2.PreviewRequest(dpem=fit_request(spend=types_pb2.Spend(rho=rho)))
        stub.Preview(message, metadata=served.bearer(), timeout=PATIENCE)
    assert served.entries("debit") == 0
    return made[0].opened


class WideMeter(Meter):
    """A meter that lets a fit spend what others could still spend."""

    def __init__(self, budget: FitBudget) -> None:
        super().__init__(SyntheticBudget(budget.order, budget.cost_units + 2**60))


def releases_beyond_its_debit(served: Harness, fit_request: Make) -> bool:
    """Return whether a fit that makes ten releases under a debit of one comes to a model."""
    served.fit.beyond = 9
    with contextlib.suppress(grpc.RpcError):
        *_, last = call(served, fit_request(spend=types_pb2.Spend(rho=0.001)))
        return bool(last.HasField("model"))
    return False


def test_a_fit_cannot_release_more_than_was_debited(served: Harness, fit_request: Make) -> None:
    """Debit a small fit and release a large one, of a budget that has much left."""
    assert not releases_beyond_its_debit(served, fit_request)


def test_the_rivals_fit_can(served: Harness, fit_request: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same attack on a meter that was opened with what is left."""
    monkeypatch.setattr(runner, "Meter", WideMeter)
    assert releases_beyond_its_debit(served, fit_request)


def test_previews_open_no_rows(serve: Serve, fit_request: Make) -> None:
    """Ask what things would cost, and learn about rows for nothing (Lomas: the price of diffprivlib's models)."""
    assert looks_of_previews(serve, fit_request, _Counting) == 0


def test_the_rivals_previews_open_rows(serve: Serve, fit_request: Make) -> None:
    """The same attack on plans that look."""
    assert looks_of_previews(serve, fit_request, _Peeking) == 2


def test_a_bad_request_is_answered_without_the_ledger(serve: Serve, fit_request: Make) -> None:
    """A request that makes no sense gets one answer, whether or not the budget is spent."""
    served = serve()
    fresh = told(served, fit_request(n_components=1000))
    list(call(served, fit_request(request_id="r2", spend=types_pb2.Spend(rho=0.02))))
    assert told(served, fit_request(n_components=1000)) == fresh
