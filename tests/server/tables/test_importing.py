"""An import is total, keeps every slot within the schema, and turns neighbours into neighbours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bursar_ledger import Adjacency
from bursar_server.fits import UNIT_ROWS
from bursar_server.tables import (
    CapKeys,
    ColumnReport,
    CsvSource,
    ImportReport,
    Manifest,
    ParquetSource,
    Snapshot,
    SqlSource,
    TableImportError,
    store_table,
)

Build = Callable[..., Manifest]
Load = Callable[..., tuple[ImportReport, Snapshot]]
Slots = Callable[[Snapshot], list[tuple[Any, ...] | None]]
UnitRows = Callable[[Snapshot], list[int | None]]

numbers = st.floats(-1, 1)
good_rows = st.tuples(numbers.map(repr), st.sampled_from("ab"))
cells = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.floats().map(repr),
    st.sampled_from(
        ["", " ", "nan", "inf", "-inf", "1e999", "1e-400", "-0.0", '"', "\n", "\r\n", ",", "0x1", "1_0", "٣"]
    ),
    st.sampled_from(["a", "b", "A", "0.5"]),
)
rows = st.one_of(good_rows, st.tuples(cells, cells))


def expected(row: tuple[str, str]) -> tuple[float, int] | None:
    """Return what a slot must hold, from its own two cells alone."""
    try:
        x = float(row[0].encode())
    except ValueError:
        return None
    if not math.isfinite(x) or row[1] not in ("a", "b"):
        return None
    return min(max(x, -1.0), 1.0), "ab".index(row[1])


@example([(-0.0, "a")])
@given(st.lists(st.tuples(numbers, st.sampled_from("ab")), max_size=30))
def test_values_within_bounds_come_back_bit_by_bit(manifest: Build, load: Load, slots: Slots, table: list[Any]) -> None:
    """A good table is stored exactly, in its order (-0.0 as 0.0)."""
    report, snapshot = load(manifest(), [(repr(x), c) for x, c in table])
    found = slots(snapshot)
    assert found == [(x, "ab".index(c)) for x, c in table]
    assert [row[0].hex() for row in found if row] == [(x + 0.0).hex() for x, _ in table]
    assert (report.rows_read, report.null_rows, report.rows_over_cap) == (len(table), 0, 0)
    assert report.columns == (ColumnReport("x"), ColumnReport("c"))


@given(st.lists(rows, max_size=12))
def test_a_slot_depends_on_its_own_cells_only(manifest: Build, load: Load, slots: Slots, table: list[Any]) -> None:
    """No import raises for any table, and each slot is a function of its row within the bounds."""
    report, snapshot = load(manifest(), table)
    assert slots(snapshot) == [expected(row) for row in table]
    assert report.rows_read == snapshot.slots == len(table)
    assert report.null_rows == slots(snapshot).count(None)


def test_the_administrator_gets_counts(manifest: Build, load: Load) -> None:
    """The report counts rows, null rows, clipped values and rows over the cap."""
    table = [("0", "a", "u"), ("9", "b", "u"), ("?", "a", "u"), ("0", "z", "v"), ("0", "a", ""), ("-9", "a", "u")]
    report, snapshot = load(manifest(unit={"column": "who", "max_rows": 2}), table, ("x", "c", "who"))
    assert (report.rows_read, report.null_rows, report.rows_without_unit, report.rows_over_cap) == (6, 3, 1, 1)
    x = ColumnReport("x", bad=1, clipped_low=1, clipped_high=1, examples=("?",))
    assert report.columns == (x, ColumnReport("c", bad=1, examples=("z",)))
    assert "'z'" not in repr(report)
    assert snapshot.slots == 6


def test_null_rows_hold_no_values(manifest: Build, load: Load) -> None:
    """Values of a row that does not count are not kept either, whichever reason made it null."""
    table = [("0.5", "z", "u"), ("0.5", "a", ""), ("0.5", "b", "v"), ("0.5", "b", "v")]
    _, snapshot = load(manifest(unit={"column": "who", "max_rows": 1}), table, ("x", "c", "who"))
    (block,) = snapshot.blocks()
    assert block.rows == 1
    assert not np.any(block.values[0][~block.present])
    assert np.all(block.values[1][~block.present] == -1)
    _, snapshot = load(manifest(unit={"column": "who", "max_rows": 2}), table, ("x", "c", "who"))
    (block,) = snapshot.blocks()
    assert block.unit_rows is not None
    assert block.unit_rows.tolist() == [0, 0, 2, 2]


def test_lines_with_too_few_or_too_many_cells_keep_a_slot(manifest: Build, load: Load, tmp_path: Path) -> None:
    """Every record has a slot: null ones for those that do not fit the header."""
    path = tmp_path / "table.csv"
    path.write_text("x,c\n0,a\n1\n1,a,a\n\n1,b\n")
    _, snapshot = load(manifest(), CsvSource(path))
    assert snapshot.slots == 5
    assert sum(block.rows for block in snapshot.blocks()) == 2


def test_line_breaks_within_quotes_do_not_end_a_row(
    manifest: Build, load: Load, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record is a row wherever the reader's blocks end."""
    monkeypatch.setattr("bursar_server.tables._sources._CSV_BLOCK", 64)
    table = [("0", "a", "\n,\n" * (i % 12)) for i in range(60)]
    assert slots(load(manifest(), table, ("x", "c", "note"))[1]) == [(0.0, 0)] * 60


def test_a_record_that_is_too_long_stops_the_import(
    manifest: Build, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the administrator's own machine: one record must fit into the reader's block."""
    monkeypatch.setattr("bursar_server.tables._sources._CSV_BLOCK", 64)
    with pytest.raises(TableImportError, match="cannot be read"):
        load(manifest(), [("0", "a" * 1000)] * 3)


def test_text_in_another_encoding_keeps_units_apart(manifest: Build, load: Load, slots: Slots, tmp_path: Path) -> None:
    """Names that are no UTF-8 still belong to as many units as they were."""
    path = tmp_path / "table.csv"
    path.write_bytes("x,c,who\n0,a,Möller\n0.5,b,Müller\n".encode("latin-1"))
    declared = manifest(unit={"column": "who", "max_rows": 1})
    assert slots(load(declared, CsvSource(path))[1]) == [(0.0, 0), (0.5, 1)]


def test_an_empty_cell_of_a_single_column_keeps_its_slot(manifest: Build, load: Load, tmp_path: Path) -> None:
    """An empty line is a row, so that emptying a cell does not change the number of slots."""
    path = tmp_path / "table.csv"
    path.write_text("x\n0.5\n\n0.25\n")
    columns = [{"name": "x", "kind": "numeric", "lower": 0, "upper": 1}]
    _, snapshot = load(manifest(columns=columns), CsvSource(path))
    (block,) = snapshot.blocks()
    assert block.present.tolist() == [True, False, True]


# Rows of other people, and of the one unit in which two tables differ; with what is wrong in tables of any origin.
others = st.lists(st.tuples(rows, st.sampled_from(["u", "v", "", "w"])), max_size=8)
own = st.lists(rows, max_size=6)


def interleaved(base: list[Any], mine: list[Any], places: list[int]) -> list[Any]:
    """`mine` put between the rows of `base`."""
    table = list(base)
    for row, place in zip(mine, places, strict=False):
        table.insert(place % (len(table) + 1), row)
    return table


def substitutions(one: list[Any], two: list[Any]) -> int:
    """Return how many slots must change, after the slots have been matched as well as possible."""
    a, b = Counter(one), Counter(two)
    return max((a - b).total(), (b - a).total())


@pytest.mark.slow
@settings(max_examples=75)
@given(others, own, own, st.lists(st.integers(0, 99), min_size=12, max_size=12), st.integers(1, 3), st.booleans())
def test_one_unit_changes_at_most_the_cap(
    manifest: Build,
    load: Load,
    slots: Slots,
    base: list[Any],
    mine: list[Any],
    instead: list[Any],
    places: list[int],
    cap: int,
    renamed: bool,
) -> None:
    """Tables that differ in one unit's rows, however many and wherever, differ in at most `cap` slots afterwards."""
    base = [(*row, who) for row, who in base]
    one = interleaved(base, [(*row, "me") for row in mine], places)
    two = interleaved(base, [(*row, "I" if renamed else "me") for row in instead], places[6:])
    declared = manifest(adjacency="replace_one", public_rows=20, unit={"column": "who", "max_rows": cap})
    snapshots = [load(declared, table, ("x", "c", "who"))[1] for table in (one, two)]
    assert [snapshot.slots for snapshot in snapshots] == [20, 20]
    assert substitutions(*map(slots, snapshots)) <= cap


@settings(max_examples=60)
@given(others, own, st.lists(st.integers(0, 99), min_size=6, max_size=6), st.integers(1, 3))
def test_without_a_unit_its_slots_are_null_and_others_as_before(
    manifest: Build, load: Load, slots: Slots, base: list[Any], mine: list[Any], places: list[int], cap: int
) -> None:
    """A unit may vanish under add_remove_one: at most `cap` slots lose their content, none gains any."""
    base = [(*row, who) for row, who in base]
    declared = manifest(unit={"column": "who", "max_rows": cap})
    without, whole = (
        Counter(slots(load(declared, table, ("x", "c", "who"))[1]))
        for table in (base, interleaved(base, [(*row, "me") for row in mine], places))
    )
    del without[None], whole[None]
    assert without <= whole
    assert (whole - without).total() <= cap


@pytest.mark.slow
@given(st.lists(rows, min_size=1, max_size=8), rows, st.integers(0, 99))
def test_one_row_changes_its_own_slot(
    manifest: Build, load: Load, slots: Slots, table: list[Any], row: Any, place: int
) -> None:
    """Its replacement by any other changes no other slot, nor their number, where a row is the unit."""
    declared = manifest(adjacency="replace_one")
    changed = list(table)
    changed[place % len(table)] = row
    one, two = (slots(load(declared, t)[1]) for t in (table, changed))
    assert len(one) == len(two)
    assert all(a == b for i, (a, b) in enumerate(zip(one, two, strict=True)) if i != place % len(table))


def of_others(table: list[Any], snapshot: Snapshot, slots: Slots, unit_rows: UnitRows) -> list[Any]:
    """Slot and K of every record that is not of the unit in which two tables differ, in the order of the table."""
    found = zip(table, slots(snapshot), unit_rows(snapshot), strict=False)  # padding follows
    return [(who, row and (row[0].hex(), row[1]), k) for (_, _, who), row, k in found if who not in ("me", "I")]


def shares(snapshot: Snapshot, slots: Slots, unit_rows: UnitRows) -> Counter[Any]:
    """A table of counts in which each row has the weight 2^20 / K, rounded down, in one of four cells."""
    table: Counter[Any] = Counter()
    for row, k in zip(slots(snapshot), unit_rows(snapshot), strict=True):
        if row and k:
            table[row[0] >= 0, row[1]] += 2**20 // k
    return table


@pytest.mark.slow
@settings(max_examples=75)
@given(others, own, own, st.lists(st.integers(0, 99), min_size=12, max_size=12), st.integers(1, 3), st.booleans())
def test_k_is_a_matter_of_the_own_unit(
    manifest: Build,
    load: Load,
    slots: Slots,
    unit_rows: UnitRows,
    base: list[Any],
    mine: list[Any],
    instead: list[Any],
    places: list[int],
    cap: int,
    padded: bool,
) -> None:
    """One unit is replaced, added or removed: rows and K of all others are the same bits.

    And a table of rows weighted by 1/K changes by one unit's weight, whatever the cap.
    """
    base = [(*row, who) for row, who in base]
    declared = manifest(
        unit={"column": "who", "max_rows": cap}, **({"adjacency": "replace_one", "public_rows": 20} if padded else {})
    )
    tables = [
        base,
        interleaved(base, [(*row, "me") for row in mine], places),
        interleaved(base, [(*row, "I") for row in instead], places[6:]),
    ]
    snapshots = [load(declared, table, ("x", "c", "who"))[1] for table in tables]
    without, one, two = (
        of_others(table, snapshot, slots, unit_rows) for table, snapshot in zip(tables, snapshots, strict=True)
    )
    assert without == one == two
    absent, here, there = (shares(snapshot, slots, unit_rows) for snapshot in snapshots)
    assert absent <= here
    assert (here - absent).total() <= 2**20
    assert (here - there).total() <= 2**20
    assert (there - here).total() <= 2**20


@pytest.mark.slow
@given(others, st.integers(1, 4))
def test_k_is_how_many_rows_of_the_unit_are_there(
    manifest: Build, load: Load, slots: Slots, unit_rows: UnitRows, table: list[Any], cap: int
) -> None:
    """The number of its good rows or the cap, whichever is less, on every row that stays; so that 1/K adds up to 1."""
    declared = manifest(unit={"column": "who", "max_rows": cap})
    _, snapshot = load(declared, [(*row, who) for row, who in table], ("x", "c", "who"))
    good = Counter(who for row, who in table if who and expected(row))
    found: dict[str, list[int]] = {}
    for (_, who), row, k in zip(table, slots(snapshot), unit_rows(snapshot), strict=True):
        assert (k is None) is (row is None)
        if k is not None:
            found.setdefault(who, []).append(k)
    assert found == {who: [min(n, cap)] * min(n, cap) for who, n in good.items()}
    assert all(sum(Fraction(1, k) for k in ks) == 1 for ks in found.values())
    assert all(sum(2**20 // k for k in ks) <= 2**20 for ks in found.values())


def test_k_spans_batches(manifest: Build, load: Load, read_all: Any) -> None:
    """The rows of a unit are counted wherever they are in a large table."""
    n, units, cap = 150_000, 40_001, 3
    query = f"SELECT 0 AS x, CASE i % 5 WHEN 0 THEN 'a' ELSE 'b' END AS c, i % {units} AS who FROM range({n}) t(i)"  # noqa: S608
    _, snapshot = load(manifest(unit={"column": "who", "max_rows": cap}), SqlSource(query))
    (k,), present = (whole[..., :n] for whole in read_all(snapshot.rows((UNIT_ROWS,)), 1))
    who = np.arange(n) % units
    assert np.array_equal(k[present], np.minimum(np.bincount(who), cap)[who[present]])
    assert np.array_equal(np.bincount(who[present]), np.minimum(np.bincount(who), cap))


def test_k_is_one_where_a_row_is_the_unit(manifest: Build, load: Load, unit_rows: UnitRows) -> None:
    """There is no unit column, or one row of each unit is kept."""
    table = [("0", "a", "u"), ("0", "?", "v"), ("0", "b", "v"), ("0", "b", "w")]
    assert unit_rows(load(manifest(), table, ("x", "c", "who"))[1]) == [1, None, 1, 1]
    capped = manifest(unit={"column": "who", "max_rows": 1})
    assert unit_rows(load(capped, table, ("x", "c", "who"))[1]) == [1, None, 1, 1]
    assert unit_rows(load(capped, [], ("x", "c", "who"))[1]) == []


@pytest.mark.slow
@given(st.lists(st.tuples(good_rows, st.sampled_from("uvw")), max_size=15), st.integers(1, 4))
def test_the_cap_is_reached_and_never_passed(
    manifest: Build, load: Load, slots: Slots, table: list[Any], cap: int
) -> None:
    """Exactly min(number, cap) of each unit's present rows stay, each in its slot."""
    declared = manifest(unit={"column": "who", "max_rows": cap})
    report, snapshot = load(declared, [(*row, who) for row, who in table], ("x", "c", "who"))
    found = slots(snapshot)
    kept = Counter(who for (_, who), row in zip(table, found, strict=True) if row)
    assert kept == {who: min(n, cap) for who, n in Counter(who for _, who in table).items()}
    assert all(row is None or row == expected(original) for (original, _), row in zip(table, found, strict=True))
    assert report.rows_over_cap == len(table) - kept.total()


@pytest.mark.slow
@pytest.mark.parametrize("spill", [1, 1000, 70_000])
def test_a_cap_of_many_rows_is_that_of_few(
    manifest: Build, load: Load, unit_rows: UnitRows, monkeypatch: pytest.MonkeyPatch, spill: int
) -> None:
    """Rows that were noted on the disk, by heaps of units, are kept or not as if all had been in memory."""
    query = (
        "SELECT i % 7 / 10 AS x, 'a' AS c, CASE WHEN i % 5 > 0 THEN i * 7919 % 20011 END AS who FROM range(150000) t(i)"
    )
    declared = manifest(unit={"column": "who", "max_rows": 3})
    _, wanted = load(declared, SqlSource(query))
    monkeypatch.setattr("bursar_server.tables._cap._SPILL", spill)
    report, found = load(declared, SqlSource(query))
    assert unit_rows(found) == unit_rows(wanted)
    assert report.rows_over_cap > 50_000
    assert {path.name for path in report.directory.iterdir()} == {"rows.arrow", "manifest.json"}


@pytest.mark.slow
@given(st.permutations(range(12)))
def test_the_order_of_the_source_does_not_choose(manifest: Build, load: Load, slots: Slots, order: list[int]) -> None:
    """The kept rows of each unit are the same multiset for every order of rows."""
    table = [(str((i % 4) / 8), "ab"[i % 2], "uv"[i % 3 == 0]) for i in range(12)]
    declared = manifest(unit={"column": "who", "max_rows": 2})
    kept = [Counter(slots(load(declared, t, ("x", "c", "who"))[1])) for t in (table, [table[i] for i in order])]
    assert kept[0] == kept[1]


@pytest.mark.slow
def test_the_key_chooses_without_favour(manifest: Build, write_csv: Callable[..., Path], tmp_path: Path) -> None:
    """Rows of a unit, equal ones included, are kept equally often over many keys: the choice is a fair draw."""
    source = CsvSource(write_csv([(x, "a", "u") for x in ("0", "0", "0.5", "1")], ("x", "c", "who")))
    declared, trials = manifest(unit={"column": "who", "max_rows": 2}), 400
    kept: Counter[float] = Counter()
    both = 0
    for i in range(trials):
        report = store_table(declared, source, tmp_path, CapKeys(*[i.to_bytes(32, "big")] * 2))
        (block,) = Snapshot.open(report.directory).blocks()
        chosen = block.values[0][block.present].tolist()
        kept.update(chosen)
        both += chosen == [0.0, 0.0]
    # Each row with probability 1/2; 5.5 standard deviations of the binomial, 4e-8 for each side.
    slack = 5.5 * math.sqrt(trials / 4)
    assert abs(kept[0.5] - trials / 2) < slack
    assert abs(kept[1.0] - trials / 2) < slack
    assert abs(kept[0.0] - trials) < 2 * slack
    # One pair in six; if equal rows were kept together it would be one in three, ten standard deviations away.
    assert abs(both - trials / 6) < 5.5 * math.sqrt(trials * 5 / 36)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(-2, 2)), st.sampled_from(["a", "b", "z", None])), max_size=10))
def test_sources_agree(
    manifest: Build, load: Load, slots: Slots, tmp_path_factory: pytest.TempPathFactory, table: list[Any]
) -> None:
    """CSV, Parquet (plain and dictionary-encoded), a DuckDB query and a DuckDB file give the same snapshot."""
    folder = tmp_path_factory.mktemp("sources")
    units = pa.array(range(len(table)), pa.int64()).cast(pa.int32())
    x, c = pa.array([x for x, _ in table], pa.float64()), pa.array([c for _, c in table], pa.string())
    plain = pa.table({"who": [i // 2 for i in units.to_pylist()], "c": c, "x": x})
    pa.parquet.write_table(plain, folder / "plain.parquet")
    pa.parquet.write_table(plain.set_column(1, "c", c.dictionary_encode()), folder / "encoded.parquet")
    with duckdb.connect(folder / "people.db") as database:
        database.execute("CREATE TABLE people AS SELECT * FROM read_parquet(?)", [str(folder / "plain.parquet")])
    cells = [
        (who, "" if c is None else c, "" if x is None else repr(x))
        for who, c, x in zip(*plain.to_pydict().values(), strict=True)
    ]
    declared = manifest(unit={"column": "who", "max_rows": 1})
    one = slots(load(declared, cells, ("who", "c", "x"))[1])
    for source in (
        ParquetSource(folder / "plain.parquet"),
        ParquetSource(folder / "encoded.parquet"),
        SqlSource(f"SELECT x, who, c FROM '{folder / 'plain.parquet'}'"),  # noqa: S608
        SqlSource("FROM people", folder / "people.db"),
    ):
        assert slots(load(declared, source)[1]) == one


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.bool_(), pa.decimal128(9, 2), pa.large_string()]
)
def test_numbers_of_any_type_are_numbers(
    manifest: Build, load: Load, slots: Slots, tmp_path: Path, kind: pa.DataType
) -> None:
    """Sources store numbers in many types, and they come as float64."""
    column = pa.array([True, False], pa.bool_()) if kind == pa.bool_() else pa.array([1, 0], pa.int8()).cast(kind)
    pa.parquet.write_table(pa.table({"x": column, "c": ["a", "b"]}), tmp_path / "t.parquet")
    assert slots(load(manifest(), ParquetSource(tmp_path / "t.parquet"))[1]) == [(1.0, 0), (0.0, 1)]


def test_columns_that_hold_no_numbers_are_refused_by_name(manifest: Build, load: Load, tmp_path: Path) -> None:
    """A type that can never be read is an error, whatever the rows hold."""
    pa.parquet.write_table(pa.table({"x": [[1.0]], "c": [[1]]}), tmp_path / "t.parquet")
    with pytest.raises(TableImportError, match=r"'x' is list.*, expected numbers.*; 'c' is list"):
        load(manifest(), ParquetSource(tmp_path / "t.parquet"))


@pytest.mark.parametrize("kind", ["csv", "parquet", "sql"])
def test_missing_columns_are_refused_by_name(manifest: Build, load: Load, tmp_path: Path, kind: str) -> None:
    """Each source says which columns it lacks, the unit's among them."""
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    pa.parquet.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "t.parquet")
    source = {
        "csv": CsvSource(tmp_path / "t.csv"),
        "parquet": ParquetSource(tmp_path / "t.parquet"),
        "sql": SqlSource("SELECT 1 AS x, 2 AS y"),
    }[kind]
    with pytest.raises(TableImportError, match="'c' is missing; 'who' is missing"):
        load(manifest(unit={"column": "who", "max_rows": 1}), source)


def test_a_column_that_is_there_twice_is_refused(manifest: Build, load: Load, tmp_path: Path) -> None:
    """The importer does not guess which of the two was meant."""
    (tmp_path / "t.csv").write_text("x,c,x\n1,a,2\n")
    with pytest.raises(TableImportError, match="'x' is there more than once"):
        load(manifest(), CsvSource(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    "source",
    [
        CsvSource(Path("missing.csv")),
        ParquetSource(Path("missing.parquet")),
        SqlSource("FROM nowhere"),
        SqlSource("SELECT error('secret')"),
        SqlSource("SELECT 1", Path("missing.db")),
        SqlSource("CREATE TABLE t (x INTEGER)"),
    ],
)
def test_what_cannot_be_read_is_refused_without_quoting_it(manifest: Build, load: Load, source: Any) -> None:
    """Libraries quote rows in their messages; ours do not."""
    with pytest.raises(TableImportError) as caught:
        load(manifest(), source)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("text", ["", "\n", "\n1,2\n"])
def test_a_file_without_a_header_is_refused(manifest: Build, load: Load, tmp_path: Path, text: str) -> None:
    """An empty file has no columns."""
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TableImportError, match="'x' is missing"):
        load(manifest(), CsvSource(tmp_path / "t.csv"))


def test_declared_rows_are_held_to(manifest: Build, load: Load) -> None:
    """The slots are counted under replace_one: exactly where a row is the unit, at most with a unit column."""
    two, unit = [("0", "a"), ("0", "b")], {"column": "who", "max_rows": 1}
    load(manifest(adjacency="replace_one", public_rows=2), two)
    with pytest.raises(TableImportError, match="2 rows, expected 3"):
        load(manifest(adjacency="replace_one", public_rows=3), two)
    with pytest.raises(TableImportError, match="more rows than public_rows, 1"):
        load(manifest(adjacency="replace_one", public_rows=1), two)
    with pytest.raises(TableImportError, match="more rows than public_rows, 1"):
        load(manifest(adjacency="replace_one", public_rows=1, unit=unit), [(*r, "u") for r in two], ("x", "c", "who"))
    with pytest.raises(TableImportError, match="no rows"):
        load(manifest(adjacency="replace_one"), [])
    assert load(manifest(public_rows=1), two)[1].slots == 2  # only nominal under add_remove_one


def test_padding_spans_batches(manifest: Build, load: Load) -> None:
    """A table is filled up to its public number of slots, however many are missing."""
    declared = manifest(adjacency="replace_one", public_rows=150_000, unit={"column": "who", "max_rows": 2})
    _, snapshot = load(declared, [("0", "a", "u")], ("x", "c", "who"))
    assert snapshot.slots == 150_000
    assert sum(block.rows for block in snapshot.blocks()) == 1
    assert snapshot.manifest.adjacency is Adjacency.REPLACE_ONE


def test_tables_beyond_the_range_of_exact_sums_are_refused(
    manifest: Build, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are exact up to MAX_ROWS slots only; a lower one stands in for it here."""
    monkeypatch.setattr("bursar_server.tables._importing.MAX_ROWS", 3)
    load(manifest(), [("0", "a")] * 3)
    with pytest.raises(TableImportError, match="more rows than a table may have, 3"):
        load(manifest(), [("0", "a")] * 4)


def test_a_failed_import_leaves_nothing(manifest: Build, caps: CapKeys, tmp_path: Path) -> None:
    """Rows that were read before an error do not stay on the disk."""
    source = SqlSource("SELECT 0 AS x, CASE WHEN i < 200000 THEN 'a' ELSE error('no') END AS c FROM range(300000) t(i)")
    with pytest.raises(TableImportError):
        store_table(manifest(), source, tmp_path, caps)
    assert list((tmp_path / "datasets").iterdir()) == []


def test_memory_does_not_grow_with_rows(manifest: Build, load: Load) -> None:
    """A table of 64 MB passes through: what the process keeps for itself grows by a fraction of it."""
    columns = [{"name": f"x{j}", "kind": "numeric", "lower": 0, "upper": 1} for j in range(8)]
    query = "SELECT " + ", ".join(f"random() AS x{j}" for j in range(8)) + " FROM range({})"  # noqa: S608
    load(manifest(columns=columns), SqlSource(query.format(200_000)))
    pool = pa.default_memory_pool()
    before, process = pool.bytes_allocated(), psutil.Process()
    own = process.memory_full_info().uss
    _, snapshot = load(manifest(columns=columns), SqlSource(query.format(1_000_000)))
    assert snapshot.slots == 1_000_000
    assert pool.bytes_allocated() - before < 2**20
    assert process.memory_full_info().uss - own < 40e6


def test_a_query_has_nowhere_to_spill_rows_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger than memory, it fails; no folder of rows is made beside whoever runs it."""
    monkeypatch.chdir(tmp_path)
    asked = SqlSource("SELECT current_setting('temp_directory') AS setting")
    assert [batch.column(0).to_pylist() for batch in asked.batches(["setting"])] == [[""]]
    large = SqlSource("SELECT x FROM (SELECT random() AS x FROM range(30_000_000)) ORDER BY x")
    monkeypatch.setattr(SqlSource, "_connect", _with_little_memory(SqlSource._connect))
    with pytest.raises(TableImportError):
        list(large.batches(["x"]))
    assert list(tmp_path.iterdir()) == []


def _with_little_memory(connect: Callable[[SqlSource], duckdb.DuckDBPyConnection]) -> object:
    def connected(source: SqlSource) -> duckdb.DuckDBPyConnection:
        connection = connect(source)
        connection.execute("SET memory_limit = '50MB'")
        return connection

    return connected
