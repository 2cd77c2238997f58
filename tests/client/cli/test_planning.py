"""`bursar plan`: several fits from files of requests, kept in a file, and paid once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bursar
from bursar._cli import _planning

if TYPE_CHECKING:
    from tests.client.cli.conftest import Run, Shop


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two requests."""
    paths = tmp_path / "two.json", tmp_path / "tree.json"
    bursar.DPEM(n_components=2).save(paths[0])
    bursar.MRF(cliques="tree").save(paths[1])
    return paths


def test_a_plan_is_shown_kept_and_paid_once(run: Run, shop: Shop, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing is paid before --run; then each fit once, however often the plan is run, and the models are in files."""
    before = len(shop.requests)
    shown = run("plan", "toy", *files, "--rho", "0.3", "--shares", "2,1", "--save", "study.json")
    assert shown.exit_code == 0, shown.stderr
    assert "Plan: 2 fits for epsilon " in shown.stdout
    assert "all affordable" in shown.stdout
    assert len(shop.requests) == before
    told = json.loads(run("plan", "toy", "study.json", "--json").stdout)
    assert [fit["preview"]["price"]["rho"] for fit in told["fits"]] == pytest.approx([0.2, 0.1])
    assert told["largest"] > 1
    (tmp_path / "models").mkdir()
    first = json.loads(run("plan", "toy", "study.json", "--run", "--yes", "--only", "2", "--json").stdout)
    words = ("plan", "toy", "study.json", "--run", "--yes", "--models", "models", "--json")
    receipts = json.loads(run(*words).stdout)["receipts"]
    again = json.loads(run(*words).stdout)["receipts"]
    assert [one["entry"] for one in receipts] == [one["entry"] for one in again]
    assert first["receipts"][0]["entry"] == receipts[1]["entry"]
    assert [bursar.load(tmp_path / "models" / f"{one['request_id']}.json").receipt is not None for one in receipts]
    assert "2 paid" in run("plan", "toy", "study.json").stdout


def test_a_spend_in_percent_is_of_the_whole_budget(run: Run) -> None:
    """Percents serve previews and plans alike; only as percent, and alone."""
    told = json.loads(run("preview", "dpem", "toy", "--n-components", "2", "--spend", "10%", "--json").stdout)
    assert told["price"]["cost_units"] <= told["remaining"]["cap_cost_units"] / 10
    assert told["price"]["cost_units"] == pytest.approx(told["remaining"]["cap_cost_units"] / 10)
    for wrong in (("--spend", "10"), ("--spend", "0%"), ("--spend", "10%", "--rho", "1"), ("--spend", "x%")):
        assert run("preview", "dpem", "toy", "--n-components", "2", *wrong).exit_code != 0
    assert run("preview", "dpem", "toy", "--n-components", "2", "--spend", "10%", "--what-is-left").exit_code == 2


def test_a_question_is_asked_before_a_plan_is_paid(
    run: Run, shop: Shop, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A no pays nothing; without a terminal there has to be --yes."""
    words = ("plan", "toy", *files, "--rho", "0.2", "--run")
    before = len(shop.requests)
    assert "give --yes" in run(*words).stderr
    monkeypatch.setattr(_planning, "at_terminal", lambda: True)
    said = run(*words, answer="n\n")
    assert said.exit_code == 1
    assert "for good?" in said.stderr + said.stdout
    assert len(shop.requests) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing.json",), "nothing.json"),
        (("two.json", "--only", "1"), "--only and --models go with --run"),
        (("two.json", "--rho", "0.1", "--run", "--models", "nowhere"), "nowhere is no folder"),
        (("two.json", "--rho", "0.1", "--shares", "1,2"), "shares: must be"),
        (("two.json", "--rho", "0.1", "--save", "two.json"), "is there already"),
        (("two.json",), "spend"),
    ],
)
def test_what_cannot_be_planned(run: Run, files: tuple[Path, Path], words: tuple[str, ...], said: str) -> None:
    """The refusal is in words, without a traceback."""
    result = run("plan", "toy", *words)
    assert result.exit_code in (1, 2)
    assert said in result.stderr


def test_a_saved_plan_has_its_spends(run: Run, files: tuple[Path, Path]) -> None:
    """Another one beside them is refused."""
    assert run("plan", "toy", *files, "--rho", "0.2", "--save", "study.json").exit_code == 0
    assert "give its file alone" in run("plan", "toy", "study.json", "--rho", "0.1").stderr
    assert "give its file alone" in run("plan", "toy", "study.json", files[0]).stderr
