"""A snapshot is read as it was written and cannot be written again."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bursar_server.fits import UNIT_ROWS
from bursar_server.tables import (
    CapKeys,
    ImportReport,
    Keyring,
    Keys,
    KeysError,
    Manifest,
    Snapshot,
    SnapshotError,
    SqlSource,
    content_tag,
    rows_tag,
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
    """The same rows held in memory give what `rows` gives, for tables around every size of block."""
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
    """A copy of a snapshot whose rows have no K."""
    (folder / "manifest.json").write_bytes((report.directory / "manifest.json").read_bytes())
    with pa.OSFile(str(report.directory / "rows.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    if "unit rows" in table.column_names:
        table = table.drop_columns(["unit rows"])
    with pa.ipc.new_file(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    return Snapshot.open(folder)


def test_a_capped_snapshot_without_k_is_refused(manifest: Build, load: Load, tmp_path: Path) -> None:
    """No K is made up, since 1 would let a unit count up to the cap."""
    table = [("0", "a", "u"), ("0.5", "b", "u"), ("0.5", "b", "v")]
    report, _ = load(manifest(unit={"column": "who", "max_rows": 2}), table, ("x", "c", "who"))
    with pytest.raises(SnapshotError, match="does not fit its manifest"):
        without_unit_rows(report, tmp_path)


@pytest.mark.parametrize("unit", [{}, {"column": "who", "max_rows": 1}])
def test_k_is_not_stored_where_every_unit_has_one_row(
    manifest: Build, load: Load, unit_rows: UnitRows, tmp_path: Path, unit: dict[str, Any]
) -> None:
    """K is 1, which is public."""
    table = [("0", "a", "u"), ("0.5", "b", "v")]
    report, snapshot = load(manifest(unit=unit), table, ("x", "c", "who"))
    without_unit_rows(report, tmp_path)
    assert (report.directory / "rows.arrow").read_bytes() == (tmp_path / "rows.arrow").read_bytes()
    assert unit_rows(snapshot) == [1, 1]


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


def test_a_snapshot_of_more_rows_than_sums_have_room_for_is_refused(
    manifest: Build, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import that allowed one row more left it; a lower number stands in for MAX_ROWS here."""
    report, _ = load(manifest(), [("0", "a")] * 4)
    monkeypatch.setattr("bursar_server.tables._snapshot.MAX_ROWS", 4)
    assert Snapshot.open(report.directory).slots == 4
    monkeypatch.setattr("bursar_server.tables._snapshot.MAX_ROWS", 3)
    with pytest.raises(SnapshotError, match="more rows than a table may have, 3; import a part"):
        Snapshot.open(report.directory)


def test_the_tag_depends_on_the_key(manifest: Build, load: Load) -> None:
    """One table under two secrets has two tags, and a guess at it cannot be tried without them."""
    (one, snapshot), (two, _) = (load(manifest(), [("0", "a")] * 3) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint.hex() not in repr(one)
    first, second = Keys.draw(), Keys.draw()
    assert content_tag(first, one.fingerprint) == content_tag(first, two.fingerprint)
    tags = {content_tag(first, one.fingerprint), content_tag(second, one.fingerprint)}
    tags |= {rows_tag(first, snapshot), rows_tag(second, snapshot)}
    assert len(tags) == 4
    assert {len(bytes.fromhex(tag)) for tag in tags} == {32}


NAME, OTHER = "a" * 32, "b" * 32


def test_keys_are_made_once_and_kept_private(tmp_path: Path) -> None:
    """Secrets are found again, readable by their owner only, and never replaced; every snapshot has another."""
    ring, keys, others = Keyring(tmp_path / "keys"), Keys.draw(), Keys.draw()
    ring.save(NAME, keys)
    ring.save(OTHER, others)
    assert [ring.load(name) for name in (NAME, OTHER)] == [keys, others]
    assert keys != others
    assert CapKeys.draw() != CapKeys.draw()
    found = [ring.directory, *ring.directory.rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {0o600}
    assert stat.S_IMODE(ring.tables.stat().st_mode) == 0o700
    assert (repr(keys), repr(CapKeys.draw())) == ("Keys()", "CapKeys()")
    with pytest.raises(KeysError, match="exists already"):
        ring.save(NAME, others)
    assert ring.load(NAME) == keys


def test_a_destruction_that_was_cut_off_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes the bytes that overwrite a secret for the secret; a second attempt removes what is left."""
    ring, keys, name = Keyring(tmp_path), Keys.draw(), NAME
    ring.save(name, keys)

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


def test_bad_keys_are_refused(tmp_path: Path) -> None:
    """Missing, readable by others, or of the wrong size: each has its message."""
    ring = Keyring(tmp_path)
    with pytest.raises(KeysError, match="missing"):
        ring.load(NAME)
    with pytest.raises(KeysError, match="no name of a key"):
        ring.load("../caps")
    ring.save(NAME, Keys.draw())
    ring.path(NAME).chmod(0o640)
    with pytest.raises(KeysError, match="others than its owner"):
        ring.load(NAME)
    ring.path(NAME).chmod(0o600)
    ring.path(NAME).write_bytes(b"short")
    with pytest.raises(KeysError, match="5 bytes, expected 32"):
        ring.load(NAME)


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
    """Fits and the server's own look at all rows keep a window or two, and read the same."""
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
