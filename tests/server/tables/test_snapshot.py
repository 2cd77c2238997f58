"""A snapshot is read as it was written, cannot be written again, and is recognised by its content."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_server.fits import UNIT_ROWS
from bursar_server.tables import (
    SHARED,
    ImportReport,
    Keyring,
    Keys,
    KeysError,
    Manifest,
    Snapshot,
    SnapshotError,
    SqlSource,
    content_tag,
)
from bursar_server.tables._snapshot import SnapshotWriter
from bursar_server.vault import CHUNK, ArrayRows

Build = Callable[..., Manifest]
Load = Callable[..., tuple[ImportReport, Snapshot]]
UnitRows = Callable[[Snapshot], list[int | None]]

MIXED = """
SELECT sin(i) AS x, CASE i % 7 WHEN 0 THEN NULL WHEN 1 THEN 'b' ELSE 'a' END AS c FROM range({}) t(i)
"""


@pytest.mark.parametrize("n", [0, 1, CHUNK, CHUNK + 1, 8 * CHUNK, 17 * CHUNK + 5])
def test_blocks_are_those_of_rows_in_memory(manifest: Build, load: Load, read_all: Any, n: int) -> None:
    """For tables around every size of block, `rows` gives what the same rows held in memory give."""
    _, snapshot = load(manifest(), SqlSource(MIXED.format(n)))
    i = np.arange(n)
    present = i % 7 != 0
    x, c = np.where(present, np.sin(i), 0.0), np.where(present, i % 7 == 1, -1.0)
    memory = ArrayRows(np.array([c, x]), present)
    found, there = read_all(snapshot.rows(("c", "x")), 2)
    wanted, wanted_there = read_all(memory, 2)
    assert np.array_equal(there, wanted_there)
    # DuckDB's sine and numpy's may differ in the last place.
    assert np.allclose(found, wanted, rtol=0, atol=1e-14)
    alone, _ = read_all(snapshot.rows(("x",)), 1)
    assert np.array_equal(alone[0], found[1])


def test_any_first_slot_can_be_read(manifest: Build, load: Load, read_all: Any) -> None:
    """A block may start anywhere, cross a batch, or lie past the end."""
    n = 9 * CHUNK
    _, snapshot = load(manifest(), SqlSource(MIXED.format(n)))
    rows = snapshot.rows(("x",))
    (x,), there = read_all(rows, 1)
    for first in (1, 8 * CHUNK - 3, n - 1, n, n + CHUNK):
        block, present = np.full((1, CHUNK), np.nan), np.ones(CHUNK, dtype=np.bool_)
        rows.read(first, block, present)
        filled = max(0, min(CHUNK, n - first))
        assert np.array_equal(block[0, :filled], x[first : first + filled])
        assert np.array_equal(present[:filled], there[first : first + filled])
        assert not block[0, filled:].any()
        assert not present[filled:].any()


def test_the_file_is_plain_arrow(manifest: Build, load: Load) -> None:
    """Any reader of Arrow files can open a snapshot, and columns are not copied when they are read."""
    report, snapshot = load(manifest(), SqlSource(MIXED.format(20_000)))
    with pa.memory_map(str(report.directory / "rows.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    (block,) = snapshot.blocks()
    assert np.array_equal(table.column(0).to_numpy(), block.values[0])
    assert np.array_equal(table.column(2).to_numpy(), block.present)
    assert not block.values[0].flags.owndata


def test_neither_values_of_the_unit_nor_counts_are_stored(manifest: Build, load: Load) -> None:
    """The folder holds clean rows and the public manifest: no names, no cells that were refused, no counts."""
    table = [("0", "a", "Ada Lovelace"), ("0.5", "not a category", "Ada Lovelace"), ("0.5", "b", "Ada Lovelace")]
    declared = manifest(unit={"column": "who", "max_rows": 1})
    report, snapshot = load(declared, table, ("x", "c", "who"))
    files = sorted(report.directory.iterdir())
    assert [file.name for file in files] == ["manifest.json", "rows.arrow"]
    assert all(word not in file.read_bytes() for file in files for word in (b"Ada", b"not a category"))
    assert snapshot.manifest == declared


def test_a_snapshot_cannot_be_written(manifest: Build, load: Load) -> None:
    """Files are readable by their owner only, and by nobody for writing; the folder is closed to others."""
    report, _ = load(manifest(), [("0", "a")])
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (report.directory, *sorted(report.directory.iterdir()))]
    assert modes == [0o700, 0o400, 0o400]
    assert stat.S_IMODE(report.directory.parent.stat().st_mode) == 0o700


def test_ids_are_random(manifest: Build, load: Load) -> None:
    """The same table imported twice gets two ids: an id says nothing about content."""
    one, two = (load(manifest(), [("0", "a")])[0] for _ in range(2))
    assert one.dataset_id != two.dataset_id
    assert one.directory.name == one.dataset_id


def test_unknown_columns_are_refused(manifest: Build, load: Load) -> None:
    """Only what the manifest names can be read."""
    _, snapshot = load(manifest(), [("0", "a")])
    with pytest.raises(SnapshotError, match="got 'who'"):
        snapshot.rows(("x", "who"))


def without_unit_rows(report: ImportReport, folder: Path) -> Snapshot:
    """The snapshot as imports made it before they stored K."""
    (folder / "manifest.json").write_bytes((report.directory / "manifest.json").read_bytes())
    with pa.OSFile(str(report.directory / "rows.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    if "unit rows" in table.column_names:
        table = table.drop_columns(["unit rows"])
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    return Snapshot.open(folder)


def test_an_older_snapshot_is_read_and_gives_no_k(
    manifest: Build, load: Load, keys: Keys, read_all: Any, tmp_path: Path
) -> None:
    """Its columns and its tag are what they were; no K is made up, since 1 would let a unit count up to the cap."""
    table = [("0", "a", "u"), ("0.5", "b", "u"), ("0.5", "b", "v")]
    report, newer = load(manifest(unit={"column": "who", "max_rows": 2}), table, ("x", "c", "who"))
    older = without_unit_rows(report, tmp_path)
    assert (newer.has_unit_rows, older.has_unit_rows) == (True, False)
    for one, two in zip(read_all(older.rows(("c", "x")), 2), read_all(newer.rows(("c", "x")), 2), strict=True):
        assert np.array_equal(one, two)
    assert content_tag(older, keys) == content_tag(newer, keys)
    with pytest.raises(SnapshotError, match="import its rows again with: bursar-admin snapshot"):
        older.rows(("x", UNIT_ROWS))


@pytest.mark.parametrize("unit", [{}, {"column": "who", "max_rows": 1}])
def test_where_every_unit_has_one_row_older_snapshots_are_as_good(
    manifest: Build, load: Load, unit_rows: UnitRows, tmp_path: Path, unit: dict[str, Any]
) -> None:
    """K is 1, which is public; it is not stored, and the file is what it always was."""
    table = [("0", "a", "u"), ("0.5", "b", "v")]
    report, snapshot = load(manifest(unit=unit), table, ("x", "c", "who"))
    older = without_unit_rows(report, tmp_path)
    assert (report.directory / "rows.arrow").read_bytes() == (tmp_path / "rows.arrow").read_bytes()
    assert unit_rows(older) == unit_rows(snapshot) == [1, 1]


def test_k_comes_among_columns_in_any_order(manifest: Build, load: Load, read_all: Any) -> None:
    """It stands where it is asked for; a category comes as its position in the list."""
    table = [("0", "a", "u"), ("0.5", "b", "u"), ("0.25", "b", "v")]
    _, snapshot = load(manifest(unit={"column": "who", "max_rows": 2}), table, ("x", "c", "who"))
    found, _ = read_all(snapshot.rows(("c", UNIT_ROWS, "x")), 3)
    assert found[:, :3].tolist() == [[0, 1, 1], [2, 2, 1], [0, 0.5, 0.25]]


def test_a_block_without_k_is_not_written_where_k_is(manifest: Build, load: Load, tmp_path: Path) -> None:
    """Nothing stands in for a count that is missing."""
    _, snapshot = load(manifest(), [("0", "a")])
    (block,) = snapshot.blocks()
    assert block.unit_rows is None
    with (
        SnapshotWriter(tmp_path / "rows.arrow", manifest(), unit_rows=True) as writer,
        pytest.raises(ValueError, match="argument"),
    ):
        writer.append(block)


@pytest.mark.parametrize("damage", ["missing", "manifest", "rows", "other"])
def test_a_damaged_folder_is_refused(manifest: Build, load: Load, tmp_path: Path, damage: str) -> None:
    """A folder that is not as the import left it is not opened."""
    report, _ = load(manifest(), [("0", "a")])
    for path in report.directory.iterdir():
        if damage != "missing":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    if damage == "manifest":
        (tmp_path / "manifest.json").write_text("{}")
    if damage == "rows":
        (tmp_path / "rows.arrow").write_bytes(b"ARROW1")
    if damage == "other":
        other = manifest(columns=[{"name": "y", "kind": "numeric", "lower": 0, "upper": 1}])
        (tmp_path / "manifest.json").write_text(other.model_dump_json())
    with pytest.raises(SnapshotError, match="import the table again"):
        Snapshot.open(tmp_path)


TABLE = [("0", "a"), ("0", "a"), ("0.5", "b"), ("x", "a")]


@given(st.permutations(TABLE))
def test_the_tag_knows_a_table_in_any_order(manifest: Build, load: Load, keys: Keys, table: list[Any]) -> None:
    """Order, null rows and the order of columns play no part."""
    tag = content_tag(load(manifest(), TABLE)[1], keys)
    assert content_tag(load(manifest(), [*table, ("?", "?")])[1], keys) == tag
    swapped = manifest(columns=manifest().public()["columns"][::-1])
    assert content_tag(load(swapped, table)[1], keys) == tag


@given(st.lists(st.tuples(st.sampled_from(["0", "0.5", "-0.0", "1"]), st.sampled_from("ab")), max_size=6))
def test_the_tag_tells_tables_apart(manifest: Build, load: Load, keys: Keys, table: list[Any]) -> None:
    """Two tables have one tag only if they hold the same rows equally often."""
    same = sorted((float(x), c) for x, c in table) == sorted((float(x), c) for x, c in TABLE[:3])
    tags = [content_tag(load(manifest(), t)[1], keys) for t in (table, TABLE)]
    assert (tags[0] == tags[1]) is same


def test_the_tag_depends_on_the_key(manifest: Build, load: Load, keys: Keys) -> None:
    """Without the secret nobody can try out contents against a tag."""
    _, snapshot = load(manifest(), TABLE)
    tag = content_tag(snapshot, keys)
    assert len(bytes.fromhex(tag)) == 32
    assert content_tag(snapshot, Keys(bytes(32))) != tag


def test_the_tag_spans_batches(manifest: Build, load: Load, keys: Keys) -> None:
    """A large table is recognised, too, when its rows come in reverse."""
    query = MIXED.format(70_000)
    tags = {
        content_tag(load(manifest(), SqlSource(query + order))[1], keys)
        for order in (" ORDER BY x", " ORDER BY x DESC")
    }
    assert len(tags) == 1


def test_keys_are_made_once_and_kept_private(tmp_path: Path) -> None:
    """Secrets are found again, readable by their owner only, and never replaced; every table has another."""
    ring, keys, others = Keyring.create(tmp_path / "keys"), Keys.draw(), Keys.draw()
    names = [ring.save(keys), ring.save(others)]
    assert [ring.load(name) for name in names] == [keys, others]
    assert keys != others
    assert ring.caps() == Keyring(tmp_path / "keys").caps()
    assert ring.caps() != Keyring.create(tmp_path / "others").caps()
    found = [ring.directory, *ring.directory.rglob("*")]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()}
    assert modes == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
    assert (repr(keys), repr(ring.caps())) == ("Keys()", "CapKeys()")
    with pytest.raises(KeysError, match="exists already"):
        Keyring.create(tmp_path / "keys")


def test_rows_are_chosen_as_before_when_the_secret_of_an_older_version_is_gone(tmp_path: Path) -> None:
    """What chooses them is taken out of it once, and says nothing about it."""
    old = Keys.draw()
    (tmp_path / "tables.key").write_bytes(old.secret)
    (tmp_path / "tables.key").chmod(0o600)
    ring = Keyring(tmp_path)
    assert ring.load(SHARED) == old
    assert ring.caps() == old.caps
    ring.destroy(SHARED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["caps.key"]
    assert ring.caps() == old.caps
    assert old.secret not in (tmp_path / "caps.key").read_bytes()


def test_a_destruction_that_was_cut_off_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes the bytes that overwrite a secret for the secret; a second attempt removes what is left."""
    ring = Keyring.create(tmp_path)
    keys = Keys.draw()
    name = ring.save(keys)

    def crash(path: Path, missing_ok: bool = False) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", crash)
        with pytest.raises(KeyboardInterrupt):
            ring.destroy(name)
    assert not ring.has(name)
    assert [keys.secret in path.read_bytes() for path in ring.tables.iterdir()] == [False]
    ring.destroy(name)
    assert list(ring.tables.iterdir()) == []


def test_purposes_have_keys_of_their_own(keys: Keys) -> None:
    """What one key signs says nothing about another."""
    assert len({keys.secret, keys.caps.unit, keys.caps.rank}) == 3


def test_bad_keys_are_refused(tmp_path: Path) -> None:
    """Missing, readable by others, or of the wrong size: each has its message."""
    ring = Keyring(tmp_path)
    with pytest.raises(KeysError, match="missing"):
        ring.caps()
    with pytest.raises(KeysError, match="missing"):
        ring.load("a" * 32)
    with pytest.raises(KeysError, match="no name of a key"):
        ring.load("../caps")
    name = ring.save(Keys.draw())
    ring.path(name).chmod(0o640)
    with pytest.raises(KeysError, match="others than its owner"):
        ring.load(name)
    ring.path(name).chmod(0o600)
    ring.path(name).write_bytes(b"short")
    with pytest.raises(KeysError, match="5 bytes, expected 32"):
        ring.load(name)


def _resident(path: Path) -> int:
    """Bytes of a file's pages that are in this process's memory now."""
    found, of_it = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            of_it = words[-1] == str(path)
        elif of_it and words[0] == "Rss:":
            found += int(words[1]) * 1024
    return found


@pytest.mark.parametrize("small", [True, False])
def test_a_large_file_is_dropped_from_memory_as_it_is_read(
    manifest: Build, load: Load, read_all: Any, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """By fits and by the server's own look at all rows: a window or two stay, and what is read is the same."""
    report, snapshot = load(manifest(), SqlSource(MIXED.format(100 * CHUNK)))
    wanted, wanted_there = read_all(snapshot.rows(("x", "c")), 2)
    del snapshot
    file = report.directory / "rows.arrow"
    assert _resident(file) == 0
    if not small:
        monkeypatch.setattr("bursar_server.tables._snapshot.SMALL", 0)
    monkeypatch.setattr("bursar_server.tables._snapshot.WINDOW", 2**20)
    opened = Snapshot.open(report.directory)
    found, there = read_all(opened.rows(("x", "c")), 2)
    assert np.array_equal(found, wanted)
    assert np.array_equal(there, wanted_there)
    stayed = _resident(file)
    assert sum(block.rows for block in opened.blocks()) == int(there.sum())
    if small:
        assert stayed > file.stat().st_size // 2
    else:
        assert max(stayed, _resident(file)) < file.stat().st_size // 3
