"""Partitions hold a snapshot's slots, in its order, and nothing is read of a file that was changed."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from bursar_server.fits import UNIT_ROWS
from bursar_server.tables import (
    CapKeys,
    Manifest,
    Partitions,
    Snapshot,
    SnapshotError,
    remove_partitions,
    store_table,
)
from bursar_server.tables._partitions import RECORD_FILE
from bursar_server.tables._snapshot import BATCH
from bursar_server.vault import CHUNK, Rows, SpreadRows

N = 2 * BATCH + CHUNK + 5


@dataclass(frozen=True)
class MadeUp:
    """A source of n rows: x, some of which are no numbers, c, and whose they are."""

    n: int

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Source`."""
        i = np.arange(self.n)
        made = {
            "x": pa.array(np.where(i % 11 == 3, np.nan, np.sin(i))),
            "c": pa.array(np.array(["a", "b"])[i % 2]),
            "who": pa.array(i // 3),
        }
        yield from pa.table({name: made[name] for name in columns}).to_batches(max_chunksize=BATCH)


def imported(folder: Path, n: int = N, cap: int = 1) -> Snapshot:
    """A snapshot of made-up rows, and a folder beside it that stands for a shared storage."""
    unit = {"column": "who", "max_rows": cap} if cap > 1 else {}
    columns = [
        {"name": "x", "kind": "numeric", "lower": -1.0, "upper": 1.0},
        {"name": "c", "kind": "categorical", "categories": ["a", "b"]},
    ]
    made = {"name": "people", "adjacency": "add_remove_one", "columns": columns, "unit": unit}
    (folder / "storage").mkdir(exist_ok=True)
    report = store_table(Manifest.from_public(made), MadeUp(n), folder, CapKeys.draw())
    return Snapshot.open(report.directory)


def contents(rows: Rows, columns: int, slots: int) -> tuple[list[list[float]], list[bool]]:
    """All slots, by blocks; absent ones as zeros."""
    values, there = [], []
    for first in range(0, slots, CHUNK):
        block, present = np.full((columns, CHUNK), 0.5), np.ones(CHUNK, dtype=np.bool_)
        rows.read(first, block, present)
        values.append(np.where(present, block, 0.0))
        there.append(present)
    return np.hstack(values).tolist(), np.concatenate(there).tolist()


@pytest.mark.parametrize("cap", [1, 2])
def test_partitions_hold_the_slots_of_the_snapshot(tmp_path: Path, cap: int) -> None:
    """Each part has its slots, in order, numbers, codes, K and null rows alike; the handle holds no row."""
    snapshot = imported(tmp_path, cap=cap)
    partitions = Partitions.write(snapshot, tmp_path / "storage", slots=BATCH)
    assert [file.slots for file in partitions.files] == [BATCH, BATCH, CHUNK + 5]
    names = ("c", UNIT_ROWS, "x")
    rows = Partitions.of(snapshot.directory)
    assert rows == partitions
    found = partitions.rows(snapshot, names)
    assert isinstance(found, SpreadRows)
    assert len(pickle.dumps(found)) < 2000
    wanted = snapshot.rows(names)
    assert contents(found, 3, N + CHUNK) == contents(wanted, 3, N + CHUNK)
    first = 0
    for part in found.parts:
        with part.open() as opened:
            values, there = contents(opened, 3, part.slots)
        all_values, all_there = contents(wanted, 3, N)
        assert [column[: part.slots] for column in values] == [c[first : first + part.slots] for c in all_values]
        assert there[: part.slots] == all_there[first : first + part.slots]
        assert not any(there[part.slots :])
        first += part.slots


def test_blocks_come_in_any_order(tmp_path: Path) -> None:
    """Each order has its own slots: one after the other, back, repeated, and into another row group."""
    snapshot = imported(tmp_path)
    partitions = Partitions.write(snapshot, tmp_path / "storage")
    wanted = snapshot.rows(("x", "c"))
    with partitions.rows(snapshot, ("x", "c")).parts[0].open() as rows:
        for number in (3, 4, 3, 3, 0, 9, 8, 17, 16, 1):
            found, there = np.full((2, CHUNK), 0.5), np.ones(CHUNK, dtype=np.bool_)
            block, present = found.copy(), there.copy()
            rows.read(number * CHUNK, found, there)
            wanted.read(number * CHUNK, block, present)
            np.testing.assert_array_equal(there, present)
            np.testing.assert_array_equal(found[:, there], block[:, present])


def test_a_file_with_fewer_slots_than_were_said_is_not_read(tmp_path: Path) -> None:
    """Neither a block that is cut short, nor one that is not there; the error does not say how many there are."""
    snapshot = imported(tmp_path)
    partitions = Partitions.write(snapshot, tmp_path / "storage")
    part = partitions.rows(snapshot, ("x",)).parts[0]
    longer = dataclasses.replace(part, partition=dataclasses.replace(part.partition, slots=part.slots + 2 * CHUNK))
    with longer.open() as rows:
        block, present = np.zeros((1, CHUNK)), np.zeros(CHUNK, dtype=np.bool_)
        rows.read(0, block, present)
        for first in (2 * BATCH + CHUNK, 2 * BATCH + 2 * CHUNK):
            with pytest.raises(SnapshotError, match="other slots than its record says") as raised:
                rows.read(first, block, present)
            assert not any(letter.isdigit() for letter in str(raised.value))


def test_a_table_without_rows_has_no_partitions(tmp_path: Path) -> None:
    """An empty snapshot is an empty handle."""
    snapshot = imported(tmp_path, n=0)
    partitions = Partitions.write(snapshot, tmp_path / "storage")
    rows = partitions.rows(snapshot, ("x",))
    assert partitions.are_there()  # whether anybody is in a table is not for those who ask
    assert (rows.slots, rows.parts) == (0, ())
    assert contents(rows, 1, CHUNK)[1] == [False] * CHUNK


def test_files_are_the_owners_alone_and_say_nothing_beside_the_rows(tmp_path: Path) -> None:
    """Only the owner may read them; there are no minima or maxima in their footers."""
    snapshot = imported(tmp_path)
    partitions = Partitions.write(snapshot, tmp_path / "storage", slots=BATCH)
    assert Path(partitions.folder).stat().st_mode & 0o777 == 0o700
    for file in partitions.files:
        assert Path(file.path).stat().st_mode & 0o777 == 0o400
        group = pa.parquet.ParquetFile(file.path).metadata.row_group(0)
        assert all(group.column(j).statistics is None for j in range(group.num_columns))
    assert (snapshot.directory / RECORD_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["a bit", "another file", "gone"])
def test_a_file_that_was_changed_is_not_read(tmp_path: Path, change: str) -> None:
    """One flipped bit, a partition in another's place, or none: it is refused, and said which."""
    snapshot = imported(tmp_path)
    partitions = Partitions.write(snapshot, tmp_path / "storage", slots=BATCH)
    rows = partitions.rows(snapshot, ("x",))
    with rows.parts[1].open():
        pass
    path = Path(partitions.files[1].path)
    path.chmod(0o600)
    if change == "a bit":
        content = bytearray(path.read_bytes())
        content[1000] ^= 1
        path.write_bytes(content)
    elif change == "another file":
        shutil.copyfile(partitions.files[0].path, path)
    else:
        path.unlink()
    with pytest.raises(SnapshotError, match=path.name), rows.parts[1].open():
        pass
    with rows.parts[0].open():
        pass


def test_partitions_go_with_the_rows(tmp_path: Path) -> None:
    """Writing again, and removal, leave nothing of what was there; nor does a write that was cut off."""
    snapshot, storage = imported(tmp_path), tmp_path / "storage"
    first = Partitions.write(snapshot, storage)
    second = Partitions.write(snapshot, storage)
    assert [path.name for path in storage.iterdir()] == [Path(second.folder).name] != [Path(first.folder).name]
    remove_partitions(snapshot.directory)
    assert not any(storage.iterdir())
    assert Partitions.of(snapshot.directory) is None
    remove_partitions(snapshot.directory)

    class CutOffError(Exception):
        """The process is no more."""

    class CutOff(Snapshot):
        def batches(self) -> Iterator[pa.RecordBatch]:
            yield next(super().batches())
            raise CutOffError

    fields = {f.name: getattr(snapshot, f.name) for f in dataclasses.fields(snapshot)}
    with pytest.raises(CutOffError):
        Partitions.write(CutOff(**fields), storage)
    assert any(storage.iterdir())
    begun = Partitions.of(snapshot.directory)
    assert begun is not None
    with pytest.raises(SnapshotError, match="not complete"):
        begun.rows(snapshot, ("x",))
    remove_partitions(snapshot.directory)
    assert not any(storage.iterdir())


def test_rows_on_a_storage_that_is_away_are_not_forgotten(tmp_path: Path) -> None:
    """The removal says that the storage is not mounted, and keeps the record of what is there."""
    snapshot = imported(tmp_path)
    Partitions.write(snapshot, tmp_path / "storage")
    (tmp_path / "storage").rename(tmp_path / "away")
    with pytest.raises(SnapshotError, match="mount"):
        remove_partitions(snapshot.directory)
    assert Partitions.of(snapshot.directory) is not None
    with pytest.raises(SnapshotError, match="storage"):
        Partitions.write(snapshot, tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "[]", '{"folder": "x"}', '{"folder": "x", "files": [{"path": 1}]}'])
def test_a_damaged_record_is_said(tmp_path: Path, text: str) -> None:
    """It names the file, and takes nothing for granted."""
    (tmp_path / RECORD_FILE).write_text(text)
    with pytest.raises(SnapshotError, match="damaged"):
        Partitions.of(tmp_path)


@pytest.mark.parametrize("slots", [0, CHUNK, BATCH + 1])
def test_partitions_are_of_whole_batches(tmp_path: Path, slots: int) -> None:
    """Else a block would lie in two of them."""
    with pytest.raises(ValueError, match="multiple"):
        Partitions.write(imported(tmp_path, n=10), tmp_path / "storage", slots=slots)
