"""`bursar-audit spend`: what was promised, spent and left, by account and by analyst."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bursar_ledger import COST_UNIT, Budget, Ledger, verify

Run = Callable[..., Result]
Ask = Callable[..., Any]


def _spend(run: Run, path: Path, *options: str) -> list[dict[str, Any]]:
    result = run("spend", path, "--format", "json", *options)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_accounts_have_the_figures_that_verification_computes(run: Run, study: Path) -> None:
    """Promise, order, sums, and what is left; every dataset of an account is named."""
    lines, totals = _spend(run, study), verify(study).accounts
    assert [line["account"] for line in lines] == ["people", "homes"]
    for line, account in zip(lines, totals, strict=True):
        assert line["datasets"] == ", ".join(account.datasets)
        assert (line["epsilon"], line["delta"]) == (account.epsilon, account.delta)
        assert line["cost_units"] == account.spent_cost_units
        assert line["left_cost_units"] == account.cap_cost_units - account.spent_cost_units
        assert line["rho"] == pytest.approx(account.spent_cost_units / COST_UNIT / float(account.order))
        assert line["fits"] == account.debits
        budget = Budget(account.epsilon, account.delta, account.delta_fail_share)
        spent, left = budget.part(line["cost_units"]), budget.part(line["left_cost_units"], is_left=True)
        assert [line[f"{name}_epsilon"] for name in ("spent", "left")] == [spent.epsilon, left.epsilon]
        assert [line[f"{name}_percent"] for name in ("spent", "left")] == [100 * spent.share, 100 * left.share]
        assert f"  {spent}" in run("spend", study).stdout
        assert f"  {left}" in run("verify", study).stdout
        assert line["analyst"] is None
    assert [line["unreleased"] for line in lines] == [1, 0]
    assert 0 < lines[0]["nominal_epsilon"] < 4
    assert lines[1]["nominal_epsilon"] == 0


def test_analysts_add_up_to_their_account(run: Run, study: Path) -> None:
    """Those who spent most first, with what is left of their allowance."""
    lines, totals = _spend(run, study, "--by", "analyst"), verify(study).accounts[0]
    assert {line["analyst"]: (line["cost_units"], line["delta_units"]) for line in lines} == totals.analysts
    assert [line["cost_units"] for line in lines] == sorted((line["cost_units"] for line in lines), reverse=True)
    assert sum(line["cost_units"] for line in lines) == totals.spent_cost_units
    bob = next(line for line in lines if line["analyst"] == "bob")
    assert bob["allowance"] == 0.5
    assert bob["left_cost_units"] == totals.cap_cost_units // 2 - bob["cost_units"]
    assert {line["analyst"]: line["fits"] for line in lines} == {"ann": 2, "bob": 1}


def test_nominal_figures_are_labelled(run: Run, study: Path) -> None:
    """Nobody shall take them for the guarantee."""
    plain, with_pld = run("spend", study).stdout, run("spend", study, "--pld").stdout
    assert "only the cap is a guarantee" in plain
    assert "information, not the guarantee" in with_pld
    assert "PLD epsilon" in with_pld
    assert "PLD epsilon" not in plain


def test_the_loss_distribution_is_never_above_the_nominal_epsilon(run: Run, study: Path) -> None:
    """Both are upper bounds; the smaller is shown."""
    for line in (*_spend(run, study, "--pld"), *_spend(run, study, "--pld", "--by", "analyst")):
        assert 0 <= line["pld_epsilon"] <= line["nominal_epsilon"]
    assert _spend(run, study)[0]["pld_epsilon"] is None


def test_pld_without_dp_accounting_says_what_to_do(run: Run, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other figures do not need it."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    result = run("spend", study, "--pld")
    assert result.exit_code == 2
    assert "pip install dp-accounting" in result.stderr
    assert run("spend", study).exit_code == 0


def test_a_dataset_selects_its_account(run: Run, study: Path) -> None:
    """Also by the name that joined later."""
    for name in ("people", "people-2"):
        assert [line["account"] for line in _spend(run, study, "--dataset", name)] == ["people"]
    assert [line["account"] for line in _spend(run, study, "--dataset", "homes")] == ["homes"]


def test_csv_says_the_same(run: Run, study: Path, tmp_path: Path) -> None:
    """Read back, it holds what JSON holds."""
    run("spend", study, "--by", "analyst", "--format", "csv", "--out", tmp_path / "spend.csv")
    read = list(csv.DictReader(io.StringIO((tmp_path / "spend.csv").read_text())))
    lines = _spend(run, study, "--by", "analyst")
    assert read == [{k: "" if v is None else str(v) for k, v in line.items()} for line in lines]


def test_a_lowered_total_closes_the_account(run: Run, ledger: Ledger, ask: Ask, path: Path) -> None:
    """More than all is spent, nothing is left, and the line says why."""
    ledger.debit(ask("a"))
    ledger.set_budget("people", Budget(0.5, 1e-6), actor="owner", reason="less")
    (line,) = _spend(run, path)
    assert line["closed"] is True
    assert line["left_cost_units"] == line["left_rho"] == 0
    assert line["share"] > 1
    assert "people (closed)" in run("spend", path).stdout
    assert "(closed)" in run("verify", path).stdout


def test_everyones_allowance_is_theirs_who_have_none(run: Run, ledger: Ledger, ask: Ask, path: Path) -> None:
    """Bob has one of his own, ann has everyone's; an ended one is gone."""
    for analyst, share in (("*", Fraction(1, 2)), ("bob", Fraction(1, 4)), ("bob", None), ("bob", Fraction(1, 3))):
        ledger.set_allowance("people", analyst, share, actor="owner", reason="test")
    ledger.debit(ask("a", scale=8))
    ledger.debit(ask("b", scale=8, principal="bob"))
    allowances = {line["analyst"]: line["allowance"] for line in _spend(run, path, "--by", "analyst")}
    assert allowances == {"ann": 0.5, "bob": pytest.approx(1 / 3)}


def test_figures_of_a_ledger_that_is_not_right_come_with_status_1(
    run: Run, study: Path, ledger: Ledger, tamper: Any
) -> None:
    """They are printed, and standard error says why not to believe them."""
    ledger.close()
    tamper(study, ("UPDATE entries SET body = replace(body, 'second year', 'second Year') WHERE number = 10", ()))
    result = run("spend", study)
    assert result.exit_code == 1
    assert "people" in result.stdout
    assert "entry 10: " in result.stderr
