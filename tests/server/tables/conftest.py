"""Tables of any content, imported into fresh snapshots."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bursar_server.fits import UNIT_ROWS
from bursar_server.tables import CapKeys, CsvSource, ImportReport, Manifest, Snapshot, store_table
from bursar_server.vault import CHUNK


@pytest.fixture(scope="session")
def caps() -> CapKeys:
    """Keys that choose rows, the same for all tables of a session."""
    return CapKeys(bytes(range(32)), bytes(range(32, 64)))


@pytest.fixture(scope="session")
def manifest() -> Callable[..., Manifest]:
    """A manifest with a numeric column x in [-1, 1] and a categorical column c in {a, b}; fields may be replaced."""

    def build(**fields: Any) -> Manifest:
        columns = [
            {"name": "x", "kind": "numeric", "lower": -1.0, "upper": 1.0},
            {"name": "c", "kind": "categorical", "categories": ["a", "b"]},
        ]
        return Manifest.from_public({"name": "people", "adjacency": "add_remove_one", "columns": columns, **fields})

    return build


@pytest.fixture(scope="session")
def write_csv(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes rows of text under a header, as a CSV writer does."""
    path = tmp_path_factory.mktemp("csv") / "table.csv"

    def write(rows: Sequence[Sequence[Any]], header: Sequence[str] = ("x", "c")) -> Path:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])
        return path

    return write


@pytest.fixture(scope="session")
def load(
    tmp_path_factory: pytest.TempPathFactory, caps: CapKeys, write_csv: Callable[..., Path]
) -> Callable[..., tuple[ImportReport, Snapshot]]:
    """Imports rows by way of a CSV file, or of a given source."""
    state = tmp_path_factory.mktemp("state")

    def run(manifest: Manifest, table: Any, header: Sequence[str] = ("x", "c")) -> tuple[ImportReport, Snapshot]:
        source = CsvSource(write_csv(table, header)) if isinstance(table, list) else table
        report = store_table(manifest, source, state, caps)
        return report, Snapshot.open(report.directory)

    return run


@pytest.fixture(scope="session")
def slots() -> Callable[[Snapshot], list[tuple[Any, ...] | None]]:
    """The content of every slot of a small snapshot: its values, or None for the null row."""

    def read(snapshot: Snapshot) -> list[tuple[Any, ...] | None]:
        found: list[tuple[Any, ...] | None] = []
        for block in snapshot.blocks():
            rows = zip(*(column.tolist() for column in block.values), strict=True)
            found += [row if there else None for row, there in zip(rows, block.present.tolist(), strict=True)]
        return found

    return read


@pytest.fixture(scope="session")
def read_all() -> Callable[[Any, int], tuple[Any, Any]]:
    """All slots of a `Rows`, read by blocks as statistics do: columns and presence."""

    def read(rows: Any, columns: int) -> tuple[Any, Any]:
        blocks, presents = [np.zeros((columns, 0))], [np.zeros(0, dtype=np.bool_)]
        for first in range(0, rows.slots, CHUNK):
            block, present = np.full((columns, CHUNK), np.nan), np.ones(CHUNK, dtype=np.bool_)
            rows.read(first, block, present)
            blocks.append(block)
            presents.append(present)
        return np.hstack(blocks), np.concatenate(presents)

    return read


@pytest.fixture(scope="session")
def unit_rows(read_all: Callable[[Any, int], tuple[Any, Any]]) -> Callable[[Snapshot], list[int | None]]:
    """K of every slot as a fit reads it, None for the null row."""

    def read(snapshot: Snapshot) -> list[int | None]:
        (found,), present = read_all(snapshot.rows((UNIT_ROWS,)), 1)
        slots = zip(found[: snapshot.slots].tolist(), present[: snapshot.slots].tolist(), strict=True)
        return [int(k) if there else None for k, there in slots]

    return read
