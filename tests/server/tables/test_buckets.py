"""Tables in buckets of S3-compatible storage, read from a local server of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bursar_server.tables import (
    Csv,
    CsvSource,
    ImportReport,
    Manifest,
    ParquetSource,
    Snapshot,
    Stored,
    TableImportError,
)
from bursar_server.tables._buckets import _storage
from tests.buckets import KEY, SECRET, Buckets, buckets

__all__ = ["buckets"]

Build = Callable[..., Manifest]
Load = Callable[..., tuple[ImportReport, Snapshot]]
Slots = Callable[[Snapshot], list[tuple[Any, ...] | None]]
Read = Callable[[Any], Any]

READERS: dict[str, Read] = {
    "parquet": lambda address: ParquetSource(Stored(address)).columns(),
    "csv": lambda address: CsvSource(Stored(address)).columns(),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Each test reads the environment anew."""
    _storage.cache_clear()


def test_a_partitioned_folder_is_the_one_on_a_disk(buckets: Buckets, manifest: Build, load: Load, slots: Slots) -> None:
    """Folders, pages of the list, other files and a name with a blank make no difference."""
    folder = buckets.folder / "people" / "by part"
    for number, part in enumerate(("c=a", "c=b/deep", "c=%61", "c=z")):
        (folder / part).mkdir(parents=True)
        pq.write_table(pa.table({"x": [number / 10, None, -3.0]}), folder / part / f"{number} of 4.parquet")
    (folder / "_SUCCESS").write_text("")
    here = slots(load(manifest(), ParquetSource(folder))[1])
    stored = ParquetSource(Stored("s3://people/by part/"))
    assert stored.columns() == ParquetSource(folder).columns() == [("x", pa.float64()), ("c", pa.string())]
    assert slots(load(manifest(), stored)[1]) == here
    assert here.count(None) == 6
    assert slots(load(manifest(), ParquetSource(Stored("s3://people/by part")))[1]) == here


def test_a_file_is_read_in_parts(buckets: Buckets, manifest: Build, load: Load) -> None:
    """Parquet column by column, CSV as one stream; both in the bytes that are there, whatever the name ends with."""
    values = np.sin(np.arange(300_000))
    pq.write_table(pa.table({"other": values, "x": values}), buckets.folder / "people" / "t.parquet")
    (buckets.folder / "people" / "t.csv.gz").write_text("c;x\n" + "".join(f"a;{value}\n" for value in values))
    columns = [{"name": "x", "kind": "numeric", "lower": -1.0, "upper": 1.0}]
    read = {
        "t.parquet": ParquetSource(Stored("s3://people/t.parquet")),
        "t.csv.gz": CsvSource(Stored("s3://people/t.csv.gz"), Csv(delimiter=";")),
    }
    for name, source in read.items():
        buckets.asked.clear()
        report, snapshot = load(manifest(columns=columns), source)
        assert (report.rows_read, report.null_rows) == (300_000, 0)
        assert np.array_equal(np.concatenate([block.values[0] for block in snapshot.blocks()]), values)
        assert buckets.asked.count(f"GET /people/{name}") > 1


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("address", ["s3://people/nothing", "s3://people/nothing/x.y", "s3://nobody/x"])
def test_a_missing_file_or_bucket_is_told(buckets: Buckets, kind: str, address: str) -> None:
    """The error has its address, as the storage says it."""
    with pytest.raises(TableImportError, match=f"{address} (does not exist|cannot be read: .*does not exist)"):
        READERS[kind](address)


def test_a_folder_without_tables_is_told(buckets: Buckets) -> None:
    """The error is that of a folder on a disk."""
    (buckets.folder / "people" / "empty").mkdir()
    (buckets.folder / "people" / "empty" / "notes.txt").write_text("none")
    with pytest.raises(TableImportError, match=r"expected files that end with \.parquet"):
        ParquetSource(Stored("s3://people/empty")).columns()


@pytest.mark.parametrize("kind", READERS)
def test_a_wrong_key_is_told(buckets: Buckets, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The storage's refusal is shown, and neither key nor secret."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    with pytest.raises(TableImportError, match="cannot be read") as caught:
        READERS[kind]("s3://people/t.parquet")
    assert not any(word in str(caught.value) for word in (KEY, "AKIAOTHER", SECRET))


def test_keys_come_from_a_file(buckets: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file that all programs of such storage read, and a profile of it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    keys = tmp_path / "keys"
    keys.write_text(f"[ada]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_PROFILE", "ada")
    (buckets.folder / "people" / "k.csv").write_text("x\n1\n")
    assert CsvSource(Stored("s3://people/k.csv")).columns() == [("x", None)]


def test_a_refusal_half_way_stops_the_import(buckets: Buckets) -> None:
    """It is told without what the storage says, which is a detail."""
    values = np.sin(np.arange(400_000))
    table = pa.table({"x": values, "c": pa.array(["a"] * len(values))})
    pq.write_table(table, buckets.folder / "people" / "broken.parquet", row_group_size=100_000)
    source = ParquetSource(Stored("s3://people/broken.parquet"))
    batches = source.batches(["x", "c"])
    next(batches)
    buckets.broken.add("broken.parquet")
    with pytest.raises(TableImportError, match=r"broken\.parquet cannot be read \(OSError\)") as caught:
        list(batches)
    assert "ACCESS_DENIED" in caught.value.detail


@pytest.mark.parametrize("address", ["s3://", "s3:///x", "s3://ada:hush@people/x", "s3://people?key=hush"])
def test_an_address_holds_names_alone(address: str) -> None:
    """Others are refused without being quoted."""
    with pytest.raises(TableImportError, match="keys, region and endpoint in the environment") as caught:
        Stored(address)
    assert "hush" not in str(caught.value)
