"""Attacks by looking for rows where they were not meant to stay: temporary folders, working folders, half an import."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import duckdb
import pytest

from bursar_proto.v1 import fit_pb2_grpc
from bursar_server.tables import CapKeys, CsvSource, Manifest, SqlSource, TableImportError, store_table
from bursar_server.tables import _cap as cap
from tests.attacks.asking import PATIENCE
from tests.fuzz.server import in_its_own_process
from tests.fuzz.valid import VALID

SECRET = 0.123456789012345
"""The value that is looked for, as text and as the bytes of a double."""

MANIFEST = """
name = "people"
adjacency = "add_remove_one"
unit = {column = "who", max_rows = 2}
[[columns]]
name = "x"
kind = "numeric"
lower = -1.0
upper = 1.0
"""


def holds_the_secret(content: bytes) -> bool:
    """Return whether bytes have the value in any form that a row is kept in."""
    return repr(SECRET).encode() in content or struct.pack("<d", SECRET) in content


def found_in(*folders: Path) -> list[Path]:
    """Files below folders that have the value."""
    paths = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if holds_the_secret(path.read_bytes())]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where programs put files that they were not told a place for.

    The working folder and that for temporary files.
    """
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("TMPDIR", "TMP", "TEMP"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def reading(source: Path) -> str:
    """The part of a query that reads the table's file."""
    return f"read_csv('{source}', auto_detect = false, header = true, columns = {{'who': 'VARCHAR', 'x': 'DOUBLE'}})"


@pytest.fixture
def table(tmp_path: Path) -> tuple[Manifest, Path]:
    """A manifest, and rows of persons with too many of them."""
    (tmp_path / "table.toml").write_text(MANIFEST)
    rows = "".join(f"w{i // 5},{SECRET if i // 5 == 1 else 1e-3 * i!r}\n" for i in range(100))
    source = tmp_path / "source.csv"
    source.write_text("who,x\n" + rows)
    return Manifest.load(tmp_path / "table.toml"), source


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Files that an import has half way, by path within the state directory and mode of their folder; all spilt."""
    found: list[tuple[str, int]] = []
    original = cap.UnitCap.unit_rows

    def looking(self: cap.UnitCap) -> object:
        state = tmp_path / "state"
        found.extend(
            (path.relative_to(state).as_posix(), path.parent.stat().st_mode & 0o777)
            for path in state.rglob("*")
            if path.is_file() and "partial" in str(path)
        )
        return original(self)

    monkeypatch.setattr(cap, "_SPILL", 10)
    monkeypatch.setattr(cap.UnitCap, "unit_rows", looking)
    return found


def test_an_import_writes_rows_into_one_private_folder_and_clears_it(
    tmp_path: Path, table: tuple[Manifest, Path], elsewhere: Path, seen: list[tuple[str, int]]
) -> None:
    """Spare files of the cap lie in the half import, 0700; afterwards there are the table and its manifest, 0400."""
    manifest, source = table
    for rows in (CsvSource(source), SqlSource(f"SELECT * FROM {reading(source)}")):  # noqa: S608
        report = store_table(manifest, rows, tmp_path / "state", CapKeys.draw())
        assert len(seen) > 2
        assert all(path.startswith("datasets/.") and mode == 0o700 for path, mode in seen)
        left = {path.name: path.stat().st_mode & 0o777 for path in report.directory.iterdir()}
        assert left == {"rows.arrow": 0o400, "manifest.json": 0o400}
        assert not any("partial" in path.name for path in (tmp_path / "state" / "datasets").iterdir())
        assert list(elsewhere.iterdir()) == []
        seen.clear()
    assert found_in(tmp_path / "state")  # so that the search finds what is there


def test_an_import_that_fails_leaves_no_row(
    tmp_path: Path, table: tuple[Manifest, Path], elsewhere: Path, seen: list[tuple[str, int]]
) -> None:
    """Rows that were read, and spilt, before an error go with it."""
    manifest, source = table
    query = f"SELECT who, CASE WHEN x >= 0.099 THEN error('no') ELSE x END AS x FROM {reading(source)}"  # noqa: S608
    with pytest.raises(TableImportError):
        store_table(manifest, SqlSource(query), tmp_path / "state", CapKeys.draw())
    assert found_in(tmp_path / "state", elsewhere) == []
    assert list((tmp_path / "state" / "datasets").iterdir()) == []


def test_the_rival_spills_beside_whoever_runs_it(elsewhere: Path) -> None:
    """DuckDB as it comes has a folder for what is larger than memory: beside its file, or in the working folder."""
    with duckdb.connect(elsewhere / "rival.duckdb") as rival:
        (place,) = rival.execute("SELECT current_setting('temp_directory')").fetchall()[0]
    assert Path(place).is_absolute() or place.startswith((".", "rival"))
    assert place


@pytest.mark.slow
def test_a_server_writes_no_row_anywhere(tmp_path: Path, elsewhere: Path) -> None:
    """Every fit once, in a process of its own: nothing in folders for temporary files, nothing beside the snapshots."""
    folder = tmp_path / "server"
    folder.mkdir()
    value = struct.pack("<d", 0.502)  # of the third row of "people"; see tests/fuzz/server.py
    with in_its_own_process(folder) as running:
        stub = fit_pb2_grpc.FitServiceStub(running.channel)
        state = running.prepared.state.path
        for path, requests in VALID.items():
            method = path.rpartition("/")[2]
            if method.startswith("Fit"):
                request: Any = type(requests[0])()
                request.CopyFrom(requests[0])
                request.request_id = method
                asked = getattr(stub, method)(request, metadata=running.prepared.bearer("analyst"), timeout=PATIENCE)
                assert [one.WhichOneof("event") for one in asked][-1] == "model"
        with_it = [path for path in state.rglob("*") if path.is_file() and value in path.read_bytes()]
    assert {path.parent.parent.name for path in with_it} == {"datasets"}
    assert [path for path in elsewhere.rglob("*") if path.is_file() and value in path.read_bytes()] == []
