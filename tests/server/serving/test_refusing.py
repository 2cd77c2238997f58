"""Refusals are told to the log and counted beside the ledger; a refusal that is not counted is told all the same."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from bursar_ledger import Budget, BudgetExhaustedError, Cost, DatasetRetiredError, Remainder
from bursar_ledger.refusals import FILE, read_refusals
from bursar_server import log
from bursar_server.wire.fit_service import refusals_counted, refusals_told

EVENTS = log.Events()


def _refused(error: Exception) -> None:
    with pytest.raises(type(error)), refusals_told(EVENTS, dataset="people", principal="ann", method="FitMRF"):
        raise error


def _exhausted(limit: str) -> BudgetExhaustedError:
    order = Fraction(9)
    left = Remainder(2**40, 0, 2**44, 0, order)
    return BudgetExhaustedError(Cost(2**43, 0, order), left, Budget(3.0, 1e-6), limit)


def test_each_reason_is_counted(tmp_path: Path) -> None:
    """Amounts are counted where there was a price; other errors are not counted."""
    with refusals_counted(tmp_path / "ledger.sqlite", EVENTS):
        for limit in ("dataset", "allowance", "call"):
            _refused(_exhausted(limit))
        _refused(DatasetRetiredError("retired"))
        _refused(ValueError("another matter"))
        EVENTS.tell(log.Call(method="FitMRF", principal="ann", status="OK"))
    _refused(_exhausted("dataset"))  # nobody counts any more
    found = {refusal.refused_by: refusal for refusal in read_refusals(tmp_path / FILE)}
    assert set(found) == {"total", "allowance", "maximum per call", "retired"}
    assert {refusal.times for refusal in found.values()} == {1}
    total, retired = found["total"], found["retired"]
    assert (total.analyst, total.dataset, total.method) == ("ann", "people", "FitMRF")
    assert total.rho_asked == pytest.approx(8 / 9)
    assert total.rho_left == pytest.approx(1 / 9)
    assert (retired.rho_asked, retired.rho_left) == (None, None)


def test_a_server_that_cannot_count_serves_all_the_same(tmp_path: Path) -> None:
    """Neither a file that is something else nor one that vanished under it changes what a client is told."""
    (tmp_path / FILE).write_text(json.dumps(["no database"]) * 1000)
    with refusals_counted(tmp_path / "ledger.sqlite", EVENTS):
        _refused(_exhausted("dataset"))
    assert "no database" in (tmp_path / FILE).read_text()
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with refusals_counted(tmp_path / "ledger.sqlite", EVENTS):
        _refused(_exhausted("dataset"))
