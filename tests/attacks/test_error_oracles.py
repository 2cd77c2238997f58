"""Attacks by being told: error texts, statuses, times and progress that depend on rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from bursar_proto.v1 import types_pb2
from bursar_server.fits import InvalidFieldsError
from bursar_server.jobs import job
from bursar_server.jobs.paid import Admission, Ask, PaidRun, RequestKey, Reserve, Runs
from bursar_server.wire import server
from tests.attacks.asking import Make, told

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Serve

CHEAP = types_pb2.Spend(rho=0.0005)
SECRET = "row 17 holds 1.83"
ENDINGS: list[BaseException] = [
    ValueError(SECRET),
    ZeroDivisionError(),
    MemoryError(SECRET),
    InvalidFieldsError(("columns", SECRET)),
    KeyError(1.83),
]


class InTheCall(Runs):
    """Runs the fit in the call, so that what it raises is what the caller is told (Lomas' ExternalLibraryException)."""

    def admit(self, key: RequestKey, ask: Ask, reserve: Reserve) -> Admission:
        """No worker and no stored failure between the fit and its caller."""
        run = PaidRun.of(self._ledger.debit(ask()))
        with reserve() as work:
            run.settle(work(run))
        return Admission(run, paid_now=True)


def stories(serve: Serve, fit_request: Make, *more: BaseException) -> set[str]:
    """Return what a caller is told about fits that end in different ways, in different words."""
    served = serve()
    heard = set()
    for i, ending in enumerate([*ENDINGS, *more]):
        served.fit.error = ending
        heard.add(told(served, fit_request(request_id=f"r{i}", spend=CHEAP)).rpartition("<StatusCode")[2])
    return heard


def test_all_failures_have_one_face(serve: Serve, fit_request: Make) -> None:
    """Make a fit fail differently for different rows and read the error (Lomas, smartnoise-sdk #572, AWS Clean Rooms).

    grpc itself would send the text of an exception; here every ending is one code, one text, one set of details.
    """
    heard = stories(serve, fit_request, SystemExit(SECRET), BaseException(SECRET))
    assert len(heard) == 1
    assert SECRET not in heard.pop()


def test_the_rivals_errors_quote_rows(serve: Serve, fit_request: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same attack where the fit's exception reaches the caller's status."""
    monkeypatch.setattr(server, "Runs", InTheCall)
    heard = stories(serve, fit_request)
    assert len(heard) > 1
    assert any(SECRET in story for story in heard)


def seconds(served: Harness, message: Any, error: BaseException | None) -> float:
    """Return how long a caller waits for the end of a fit."""
    served.fit.error = error
    start = time.monotonic()
    told(served, message)
    return time.monotonic() - start


QUANTUM = 0.4


@pytest.mark.parametrize("error", [None, ValueError()])
def test_no_answer_leaves_before_the_next_tick(serve: Serve, fit_request: Make, error: BaseException | None) -> None:
    """Take the time: models and failures leave at multiples of a public quantum after the debit, never before one.

    Lomas adds jitter, which averages out, and to answers only, not to errors; AWS Clean Rooms disclaims.
    """
    served = serve(response_quantum_seconds=QUANTUM)
    assert seconds(served, fit_request(), error) >= QUANTUM


@pytest.mark.parametrize("error", [None, ValueError()])
def test_the_rival_answers_at_once(
    serve: Serve, fit_request: Make, error: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same clock on a server that does not wait: minutes before the tick."""
    monkeypatch.setattr(job.Run, "to_next_tick", lambda run, quantum: 0.001)
    served = serve(response_quantum_seconds=600.0)
    assert seconds(served, fit_request(), error) < 600.0


def test_what_a_log_holds_is_not_what_a_row_holds(
    serve: Serve, fit_request: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """Read the operator's log: neither exceptions' texts nor numbers of rows are in it."""
    stories(serve, fit_request)
    written = "".join(capfd.readouterr())
    assert SECRET not in written
    assert "1.83" not in written
