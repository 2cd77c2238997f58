"""`bursar-admin plan`: the total that an analyst's plan needs."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from bursar_amounts import rho_of
from bursar_ledger import Budget, ConcentratedEvent, PureEvent, cost_units
from bursar_models.budget import Amount, EpsilonDelta, Pure, Rho, implied_rho
from bursar_models.requests import DPEM, Study
from bursar_server.admin._plans import needed
from bursar_server.admin.cli import main


@pytest.mark.parametrize("rho", [0.005, 0.1, 3.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_the_total_pays_for_the_plan(rho: float, delta: float) -> None:
    """A new table with it has room for as many fits, and hardly for more."""
    budget = Budget(needed(Fraction(rho), delta), delta)
    parts = [ConcentratedEvent(Fraction(rho) / 3)] * 3
    assert sum(cost_units([part], budget.order) for part in parts) <= budget.cap_cost_units
    assert cost_units([ConcentratedEvent(Fraction(rho) * Fraction(11, 10))], budget.order) > budget.cap_cost_units


def test_a_tiny_plan_needs_a_total_all_the_same() -> None:
    """No epsilon is implied at a large delta, and no table can be registered with none."""
    assert needed(Fraction(1, 10**6), 1e-3) == 0.001


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_a_pure_epsilon_is_no_dearer_than_it_is_told(epsilon: float) -> None:
    """The charge is at most that of the rho that it implies."""
    for order in (Fraction(2), Fraction(9), Fraction(200)):
        told = cost_units([ConcentratedEvent(implied_rho(Pure(epsilon)))], order)
        assert cost_units([PureEvent(Fraction(epsilon))], order) <= told


def test_an_owner_reads_a_plan(tmp_path: Path) -> None:
    """Output is a table or JSON, without a state directory; what is no plan is refused."""
    spends: tuple[Amount | None, ...] = (Rho(0.01), EpsilonDelta(1.0, 1e-6), Pure(0.1), None)
    study = Study("a", "people", tuple(DPEM(n_components=k) for k in (1, 2, 3, 4)), spends)
    study.save(tmp_path / "study.json")
    result = CliRunner().invoke(main, ["plan", str(tmp_path / "study.json"), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["rho"] == pytest.approx(0.01 + rho_of(1.0, 1e-6) + 0.005)
    assert [fit["rho"] for fit in told["fits"]][3] == 0
    assert told["epsilon"] == pytest.approx(needed(Fraction(told["rho"]), 1e-6))
    assert sum(fit["share"] for fit in told["fits"]) == pytest.approx(1.0, abs=2e-3)
    budget = Budget(told["epsilon"], 1e-6)
    assert [fit["epsilon"] for fit in told["fits"]] == [budget.part_of_rho(fit["rho"]).epsilon for fit in told["fits"]]
    shown = CliRunner().invoke(main, ["plan", str(tmp_path / "study.json")]).stdout
    assert f"4 fits of 'people' need a total of ({told['epsilon']:g}, 1e-06): rho 0.03" in shown
    assert [line.split()[1] for line in shown.splitlines()[1:5]] == ["epsilon", "epsilon", "epsilon", "free"]
    assert f"DPEM  {budget.part_of_rho(0.01)}" in shown
    Study("b", "people", (DPEM(n_components=1),), (None,)).save(tmp_path / "free.json")
    assert "1 fit of 'people' is free" in CliRunner().invoke(main, ["plan", str(tmp_path / "free.json")]).stdout
    (tmp_path / "other.json").write_text("{}")
    wrong = CliRunner().invoke(main, ["plan", str(tmp_path / "other.json")])
    assert wrong.exit_code == 1
    assert "holds no plan" in wrong.output
    assert CliRunner().invoke(main, ["plan", str(tmp_path / "study.json"), "--delta", "2"]).exit_code == 1
