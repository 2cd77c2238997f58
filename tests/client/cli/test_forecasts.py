"""`bursar preview ... --like` and `--guess`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bursar
from tests.client.cli.conftest import Run

DPEM = ("preview", "dpem", "toy", "--n-components", "2", "--rho", "0.1")
GUESS = ("--guess", "2,1", "--guess-spread", "height=8,weight=10")


def test_a_guess_is_foretold(run: Run) -> None:
    """Output is in words and as JSON."""
    found = run(*DPEM, *GUESS)
    assert found.exit_code == 0
    assert "12 dry runs on rows like those of a guess" in found.stdout
    told = json.loads(run(*DPEM, *GUESS, "--json").stdout)
    assert told["forecast"]["guessed"]
    assert set(told["forecast"]["low"]["mean_error"]) == {"height", "weight"}


def test_a_saved_model_is_foretold_from(run: Run, tmp_path: Path) -> None:
    """Every kind of model that has the columns will do."""
    path = tmp_path / "people.json"
    centres, shares = np.array([[140, 60], [180, 100]]), np.array([0.5, 0.5])
    bursar.KMeans(centres, shares, 64 * np.ones(2), columns=("height", "weight")).save(path)
    assert "a KMeans without a receipt" in run(*DPEM, "--like", str(path)).stdout


@pytest.mark.parametrize("words", [("--guess", "1"), ("--guess-spread", "2"), ("--like", "nowhere.json")])
def test_half_a_guess_is_none(run: Run, words: tuple[str, ...]) -> None:
    """Both options, or a file that is there."""
    assert run(*DPEM, *words).exit_code == 2


@pytest.mark.parametrize("name", ["mean_error", "quantile_error"])
def test_a_spend_is_suggested_with_its_range(run: Run, name: str) -> None:
    """The ends of the range are spends, and the middle is what the preview has."""
    wanted = (f"--{name.replace('_', '-')}", "2")
    words = ("suggest", "dpem", "toy", "--n-components", "2", *wanted, *GUESS, "--json")
    told = json.loads(run(*words).stdout)
    assert 0 < told["low"]["value"] < told["high"]["value"]
    assert told["preview"]["forecast"]["expected"][name]["height"] <= 2
