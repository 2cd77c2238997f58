"""The manifest accepts what it can stand for and names every field that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_ledger import Adjacency
from bursar_server.fits import BoundedColumn, CodedColumn
from bursar_server.tables import Manifest, ManifestError

GOOD = """
name = "rand-hie"
description = "Person-years"
adjacency = "replace_one"
public_rows = 100

[unit]
column = "person"
max_rows = 5

[[columns]]
name = "income"
kind = "numeric"
lower = 0
upper = 1e6

[[columns]]
name = "plan"
description = "Insurance plan"
kind = "categorical"
categories = ["free", "paid"]
"""


def load(tmp_path: Path, text: str) -> Manifest:
    """Reads a manifest from a file with this text."""
    path = tmp_path / "manifest.toml"
    path.write_text(text, encoding="utf-8")
    return Manifest.load(path)


def test_a_manifest_is_read_from_toml(tmp_path: Path) -> None:
    """Every declared fact is found again in the public table."""
    manifest = load(tmp_path, GOOD)
    table = manifest.table(100)
    assert (table.name, table.adjacency, table.unit_cap, table.rows) == ("rand-hie", Adjacency.REPLACE_ONE, 5, 100)
    assert table.numeric == (BoundedColumn("income", 0.0, 1e6),)
    assert table.categorical == (CodedColumn("plan", ("free", "paid")),)
    assert manifest.columns[1].description == "Insurance plan"


def test_a_transform_is_declared_and_a_default(tmp_path: Path) -> None:
    """The public table has it; an older manifest, which says nothing, has none."""
    declared = load(tmp_path, GOOD.replace("upper = 1e6", 'upper = 1e6\ntransform = "log1p"'))
    assert declared.table(1).numeric[0].transform == "log1p"
    assert Manifest.from_public(declared.public()) == declared
    older = declared.public()
    del older["columns"][0]["transform"]
    assert Manifest.from_public(older).table(1).numeric[0].transform == "none"


def test_a_row_is_the_unit_unless_a_column_is_named(manifest: Callable[..., Manifest]) -> None:
    """The cap is one row without a unit section."""
    assert manifest().unit.column is None
    assert manifest().table(7).unit_cap == 1


def test_the_number_of_slots_is_public_under_replace_one_only(manifest: Callable[..., Manifest]) -> None:
    """Plans under add_remove_one see what the owner declared, or nothing."""
    assert manifest(adjacency="replace_one").table(7).rows == 7
    assert manifest().table(7).rows is None
    assert manifest(public_rows=10).table(7).rows == 10
    assert manifest().with_slots(7).public_rows is None
    assert manifest(adjacency="replace_one").with_slots(7).public_rows == 7


BAD = [
    ('adjacency = "replace_one"', "", "adjacency: missing"),
    ('adjacency = "replace_one"', 'adjacency = "swap"', "adjacency: expected 'replace_one'"),
    ('name = "rand-hie"', "", "name: missing"),
    ("lower = 0\n", 'lower = -1\ntransform = "log1p"\n', "transform: log1p needs bounds of at least 0"),
    ("lower = 0\n", 'lower = 0\ntransform = "sqrt"\n', "transform: expected 'none' or 'log1p'"),
    ('name = "rand-hie"', 'name = "RAND HIE"', "name: "),
    ('name = "rand-hie"', f'name = "{"a" * 64}"', "name: "),
    ('name = "rand-hie"', "name = 7", "name: expected a valid string, got 7"),
    ('description = "Person-years"', 'describtion = "Person-years"', "describtion: unknown field"),
    ("public_rows = 100", "public_rows = 0", "public_rows: expected"),
    ("public_rows = 100", "public_rows = 200000000", "public_rows: expected"),
    ("public_rows = 100", "public_rows = 1.5", "public_rows: expected"),
    ("public_rows = 100", "", "public_rows: missing"),
    ("max_rows = 5", "max_rows = 0", "unit.max_rows: expected"),
    ("max_rows = 5", "max_rows = true", "unit.max_rows: expected"),
    ("max_rows = 5", "max_row = 5", "unit.max_row: unknown field"),
    ('column = "person"', "", "unit: max_rows must be 1"),
    ('column = "person"', 'column = ""', "unit.column: "),
    ('column = "person"', 'column = "plan"', "unit.column: 'plan'"),
    ("lower = 0", "", "columns[0].lower: missing"),
    ("lower = 0", "lower = nan", "columns[0].lower: expected a finite number, got nan"),
    ("upper = 1e6", "upper = inf", "columns[0].upper: expected a finite number, got inf"),
    ("upper = 1e6", "upper = 1e101", "columns[0].upper: expected"),
    ("upper = 1e6", "upper = 0", "columns[0]: lower must be below upper"),
    ("upper = 1e6", "upper = 1e-200", "columns[0]: lower must be below upper"),
    ("upper = 1e6", 'upper = "1e6"', "columns[0].upper: expected a valid number, got '1e6'"),
    ("upper = 1e6", "upper = 1e6\nunit = 3", "columns[0].unit: unknown field"),
    ("upper = 1e6", "upper = 1e6\nbins = 0", "columns[0].bins: expected"),
    ("upper = 1e6", "upper = 1e6\nnullable = 1", "columns[0].nullable: expected a valid boolean, got 1"),
    ('kind = "categorical"', 'kind = "categorical"\nnullable = true', "columns[1].nullable: unknown field"),
    ("upper = 1e6", "upper = 1e6\nbins = 1001", "columns[0].bins: expected"),
    ("upper = 1e6", "upper = 1e6\nbins = true", "columns[0].bins: expected a valid integer, got True"),
    ("upper = 1e6", "upper = 1e6\nbins = 2.5", "columns[0].bins: expected a valid integer, got 2.5"),
    ("upper = 1e6", 'upper = 1e6\nbins = "4"', "columns[0].bins: expected a valid integer, got '4'"),
    ("upper = 1e6", "upper = 1e6\nbins = []", "columns[0].bins: expected at least 2 items, got []"),
    (
        "upper = 1e6",
        f"upper = 1e6\nbins = {list(range(1002))}",
        "columns[0].bins: expected at most 1001 items, got 1002",
    ),
    ("upper = 1e6", "upper = 1e6\nbins = [0, nan, 1e6]", "columns[0].bins[1]: expected a finite number, got nan"),
    ("upper = 1e6", "upper = 1e6\nbins = [0, 5, 5, 1e6]", "columns[0]: bins must ascend"),
    ("upper = 1e6", "upper = 1e6\nbins = [0, 7, 5, 1e6]", "columns[0]: bins must ascend"),
    ("upper = 1e6", "upper = 1e6\nbins = [1, 1e6]", "columns[0]: bins must begin with lower = 0.0 and end with"),
    ("upper = 1e6", "upper = 1e6\nbins = [0, 5]", "and end with upper = 1000000.0, got 0.0 and 5.0"),
    ("lower = 0", "lower = 999999.9999999999\nbins = 9", "columns[0]: bins: 9 of equal width are too narrow"),
    ('kind = "numeric"', 'kind = "number"', '.kind: expected "numeric", "categorical" or "boolean", got \'number\''),
    ('kind = "numeric"', "", 'columns[0].kind: expected "numeric", "categorical" or "boolean", got nothing'),
    ('categories = ["free", "paid"]', "categories = []", "columns[1].categories: "),
    ('categories = ["free", "paid"]', 'categories = ["free", "free"]', "columns[1].categories: expected distinct"),
    ('categories = ["free", "paid"]', "categories = [1.5]", "columns[1].categories[0]: expected a valid string"),
    ('categories = ["free", "paid"]', 'categories = [""]', "columns[1].categories[0]: "),
    ('name = "plan"', 'name = "income"', "columns: expected distinct names, got 'income'"),
    ('name = "plan"', 'name = ""', "columns[1].name: "),
    ("[unit]", "[unit", "expected TOML"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD)
def test_a_bad_manifest_is_refused_by_the_name_of_its_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Each mistake gives a line that starts with the TOML field and says what was expected."""
    assert old in GOOD
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, GOOD.replace(old, new, 1))
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    ("bins", "edges"),
    [
        ("1", (0.0, 1e6)),
        ("4", (0.0, 2.5e5, 5e5, 7.5e5, 1e6)),
        ("[0, 1e6]", (0.0, 1e6)),
        ("[0, 10_000, 50_000.5, 1e6]", (0.0, 10_000.0, 50_000.5, 1e6)),
    ],
)
def test_bins_are_a_number_or_edges(tmp_path: Path, bins: str, edges: tuple[float, ...]) -> None:
    """Both become edges from the lower to the upper bound, in the public table and after the ledger."""
    manifest = load(tmp_path, GOOD.replace("upper = 1e6", f"upper = 1e6\nbins = {bins}"))
    assert manifest.table(100).numeric == (BoundedColumn("income", 0.0, 1e6, edges),)
    assert Manifest.from_public(manifest.public()) == manifest
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 1000))
def test_bins_of_equal_width_cover_the_bounds(
    manifest: Callable[..., Manifest], lower: float, width: float, bins: int
) -> None:
    """There are as many as declared, ascending from bound to bound, equal but for rounding."""
    column = {"name": "x", "kind": "numeric", "lower": lower, "upper": lower + width, "bins": bins}
    (found,) = manifest(columns=[column]).table(1).numeric
    assert (found.bins[0], found.bins[-1], len(found.bins)) == (lower, lower + width, bins + 1)
    rounding = 8 * np.finfo(np.float64).eps * (abs(lower) + width)
    assert np.allclose(np.diff(found.bins), width / bins, rtol=0, atol=rounding)
    assert np.all(np.diff(found.bins) > 0)


@pytest.mark.parametrize("nullable", [True, False])
def test_a_numeric_column_may_be_nullable(tmp_path: Path, nullable: bool) -> None:
    """Plans know it, and the ledger keeps it."""
    manifest = load(tmp_path, GOOD.replace("upper = 1e6", f"upper = 1e6\nnullable = {str(nullable).lower()}"))
    assert manifest.table(100).numeric == (BoundedColumn("income", 0.0, 1e6, nullable=nullable),)
    assert Manifest.from_public(manifest.public()) == manifest
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_a_manifest_of_an_older_version_has_no_bins_and_no_nulls(manifest: Callable[..., Manifest]) -> None:
    """A ledger's entries are read for ever."""
    older = manifest().public()
    for column in older["columns"]:
        column.pop("bins", None)
        column.pop("nullable", None)
    assert Manifest.from_public(older) == manifest()
    assert manifest().table(1).numeric[0] == BoundedColumn("x", -1.0, 1.0)


def test_every_problem_gets_a_line(tmp_path: Path) -> None:
    """An administrator sees all mistakes at once."""
    text = GOOD.replace('adjacency = "replace_one"', "").replace("lower = 0", "lower = nan").replace("max_rows = 5", "")
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, text.replace('name = "plan"', "name = 3"))
    assert len(caught.value.problems) == 3
    assert str(caught.value).count("\n") == 2


def test_a_table_without_columns_is_refused(manifest: Callable[..., Manifest]) -> None:
    """There must be something to fit."""
    with pytest.raises(ManifestError, match="columns: "):
        manifest(columns=[])


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    path = tmp_path / "manifest.toml"
    with pytest.raises(ManifestError, match=r"manifest\.toml: expected a readable text file"):
        Manifest.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match=r"manifest\.toml: expected a readable text file"):
        Manifest.load(path)


def test_a_long_value_is_shortened_in_its_message(manifest: Callable[..., Manifest]) -> None:
    """A line stays readable, whatever was written."""
    with pytest.raises(ManifestError) as caught:
        manifest(name=["x" * 1000])
    assert len(str(caught.value)) < 200


def test_a_manifest_cannot_be_changed(manifest: Callable[..., Manifest]) -> None:
    """A public declaration stays what it was."""
    with pytest.raises(ValueError, match="frozen"):
        manifest().name = "other"


@given(
    st.floats(-1e99, 1e99),
    st.floats(1e-3, 1e99),
    st.lists(st.text(min_size=1), min_size=1, max_size=5, unique=True),
    st.text(min_size=1, max_size=20).filter(lambda name: name not in ("x", "who")),
    st.booleans(),
)
def test_public_facts_survive_the_ledger(
    manifest: Callable[..., Manifest], lower: float, width: float, categories: list[str], name: str, unit: bool
) -> None:
    """The function `from_public` is the inverse of `public`, for any manifest."""
    columns = [
        {"name": "x", "kind": "numeric", "lower": lower, "upper": lower + max(width, abs(lower))},
        {"name": name, "kind": "categorical", "categories": categories},
    ]
    original = manifest(columns=columns, unit={"column": "who", "max_rows": 3} if unit else {})
    assert Manifest.from_public(original.public()) == original
