"""CSV files: whatever stands in a cell, one record stays one record, or the file is refused."""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar_server.tables import CsvSource, ImportReport, Manifest, Snapshot, TableImportError

Build = Callable[..., Manifest]
Load = Callable[..., tuple[ImportReport, Snapshot]]
Slots = Callable[[Snapshot], list[tuple[Any, ...] | None]]

RETURN = "a carriage return without a line feed after it, outside quotes"
STRAY, AFTER, OPEN = "a quote in a cell that does not begin with one", "text after a closing quote", "never closed"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (b"x,c\n0,a\n0.5\r1.0,a\n", 3, RETURN),
        (b"x,c\r\n0,a\r\n0.5\r\r\n", 3, RETURN),
        (b"x,c\n0,a\r", 2, RETURN),
        (b'x,c\n0,"a"\r', 2, RETURN),
        (b'x,c\n0,"a"\r1,b\n', 2, RETURN),
        (b"x,c\r0,a\r1,b\r", 1, RETURN),
        (b"x,c\r\r\n0,a\r\r\n", 1, RETURN),
        (b'x,c\n"0",a\n1,b\rc\n', 3, RETURN),
        (b'x,c\n0,a"b\n', 2, STRAY),
        (b'x,c\n0, "a"\n', 2, STRAY),
        (b'x"y,c\n0,a\n', 1, STRAY),
        (b'x,c\n"0\n\n",a"\n', 4, STRAY),
        (b'x,c\n0,"a"b\n', 2, AFTER),
        (b'x,c\n0,"a" "b"\n', 2, AFTER),
        (b'x,c\n0,"a\\"b\nc"\n', 2, AFTER),
        (b'x,c\n0,"a"\x00\n', 2, AFTER),
        (b'x,c\n0,a\n0,"a\n0,b\n0,a\n', 3, OPEN),
        (b'x,c\n0,"a""\n0,b\n0,a\n', 2, OPEN),
        (b'x,c\n0,a\n"', 3, OPEN),
        (b'x,c\n0,a\n"\r', 3, OPEN),
    ],
)
@pytest.mark.parametrize("batch", [1, 7, 2**16])
def test_a_file_whose_records_are_not_clear_is_refused_with_the_line(
    manifest: Build,
    load: Load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: bytes,
    line: int,
    problem: str,
    batch: int,
) -> None:
    """Carriage returns alone and quotes out of place, in header and rows, wherever the reader's buffers end."""
    monkeypatch.setattr("bursar_server.tables._sources.BATCH", batch)
    path = tmp_path / "table.csv"
    path.write_bytes(text)
    with pytest.raises(TableImportError, match=rf"table\.csv, line {line}: .*{problem}\. It is not clear"):
        load(manifest(), CsvSource(path))


@pytest.mark.parametrize(
    "text",
    [
        b"x,c,n\n0,a,1\n0.5,b,2\n",
        b"x,c,n\r\n0,a,1\r\n0.5,b,2",
        b"\xef\xbb\xbfx,c,n\n0,a,1\r\n0.5,b,2\n",
        b'\xef\xbb\xbf"x","c","n"\n"0","a",""\n"0.5","b",""""\r\n',
        b'x,c,n\n0,a,"\r"\n0.5,b,"\r\r\n,\n"\n',
        b"x,c,n\n0,a,\x00\n0.5,b,\x1a\xff\xfe\n",
        "x,c,n\n0,a,\u2028\u2029\x85\v\f\x1c\x1d\x1e\n0.5,b,\ufeff\n".encode(),
        b"x,c,n\n0,a,'\n0.5,b,\\\n",
    ],
)
@pytest.mark.parametrize("batch", [1, 7, 2**16])
def test_a_record_ends_with_a_line_feed_outside_quotes_and_nowhere_else(
    manifest: Build,
    load: Load,
    slots: Slots,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: bytes,
    batch: int,
) -> None:
    """A carriage return may come before it; other separators of lines and encodings are content of cells."""
    monkeypatch.setattr("bursar_server.tables._sources.BATCH", batch)
    path = tmp_path / "table.csv"
    path.write_bytes(text)
    assert slots(load(manifest(), CsvSource(path))[1]) == [(0.0, 0), (0.5, 1)]


@example(b"", b'"')
@example(b"\r", b"")
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_any_bytes_may_follow_the_header(
    manifest: Build, load: Load, tmp_path_factory: Any, one: bytes, two: bytes
) -> None:
    """Bytes that are no UTF-8 and lines of any width are rows; loose quotes and carriage returns are refused."""
    path = tmp_path_factory.mktemp("bytes") / "table.csv"
    path.write_bytes(b"x,c\n" + one + b"\n" + two + b"\n")
    try:
        _, snapshot = load(manifest(), CsvSource(path))
    except TableImportError as error:
        assert "It is not clear where records end" in str(error)  # noqa: PT017
        assert b'"' in one + two or b"\r" in one + two
        return
    for block in snapshot.blocks():
        assert np.all(np.abs(block.values[0]) <= 1)
        assert np.all((block.values[1] >= -1) & (block.values[1] < 2))


def test_a_line_break_in_a_cell_is_the_same_wherever_blocks_end(
    manifest: Build, load: Load, slots: Slots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unit has two records and a line break in its name; records before them only move the blocks."""
    monkeypatch.setattr("bursar_server.tables._sources._CSV_BLOCK", 64)
    declared = manifest(unit={"column": "who", "max_rows": 1})
    path = tmp_path / "table.csv"
    for shift in range(64):
        before = b"0,b," + b"o" * shift + b"\n"
        path.write_bytes(b"x,c,who\n" + before + b'0.5,a,"u\r\nv"\n' * 2)
        assert Counter(slots(load(declared, CsvSource(path))[1])) == Counter(
            {(0.0, 1): int(shift > 0), (0.5, 0): 1, None: 1 + int(shift == 0)}
        )


# --- Writers ---------------------------------------------------------------------------------------------------------

Table = list[tuple[str, str, str]]
NAMES = ("x", "c", "who")


def by_csv(**options: Any) -> Callable[[Table, Path], None]:
    """Write as Python's module does."""

    def write(table: Table, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, **options).writerows([NAMES, *table])

    return write


def by_pandas(**options: Any) -> Callable[[Table, Path], None]:
    """Write as pandas does."""
    return lambda table, path: pd.DataFrame(table, columns=list(NAMES)).to_csv(path, index=False, **options)


def by_polars(**options: Any) -> Callable[[Table, Path], None]:
    """Write as polars does."""
    return lambda table, path: pl.DataFrame(table, schema=list(NAMES), orient="row").write_csv(path, **options)


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """Return a database in memory, for all tables: to begin one takes longer than all that is done in it."""
    return duckdb.connect(config={"threads": 1})


def by_duckdb(table: Table, path: Path) -> None:
    """Write as DuckDB does."""
    connection = _duckdb()
    connection.execute("CREATE OR REPLACE TABLE t (x VARCHAR, c VARCHAR, who VARCHAR)")
    if table:
        columns = [list(column) for column in zip(*table, strict=True)]
        connection.execute("INSERT INTO t SELECT unnest(?), unnest(?), unnest(?)", columns)
    connection.execute(f"COPY t TO '{path}' (HEADER)")


def by_hand(table: Table, path: Path) -> None:
    """Write as R's write.csv does: every text in quotes, and quotes within it doubled."""

    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '""') + '"'

    lines = [",".join(map(quoted, row)) for row in [NAMES, *table]]
    path.write_bytes(("\n".join(lines) + "\n").encode())


def with_backslashes(table: Table, path: Path) -> None:
    r"""Write as Spark and R's write.table do: quotes within quotes as \", and a backslash as it is."""

    def quoted(cell: str) -> str:
        return '"' + cell.replace('"', '\\"') + '"' if set(cell) & set(',"\r\n') else cell

    lines = [",".join(map(quoted, row)) for row in [NAMES, *table]]
    path.write_bytes(("\n".join(lines) + "\n").encode())


def by_a_spreadsheet(table: Table, path: Path) -> None:
    """Write CRLF between records, LF within quoted cells, a byte order mark at the beginning."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([NAMES, *table])
    path.write_bytes(text.getvalue().encode("utf-8-sig"))


WRITERS: dict[str, Callable[[Table, Path], None]] = {
    "csv": by_csv(),
    "csv, LF": by_csv(lineterminator="\n"),
    "csv, CR": by_csv(lineterminator="\r"),
    "csv, LF, all quoted": by_csv(lineterminator="\n", quoting=csv.QUOTE_ALL),
    "csv, LF, escaped": by_csv(lineterminator="\n", doublequote=False, escapechar="\\"),
    "pandas": by_pandas(),
    "pandas, CRLF": by_pandas(lineterminator="\r\n"),
    "pandas, CR": by_pandas(lineterminator="\r"),
    "pandas, all quoted": by_pandas(quoting=csv.QUOTE_ALL),
    "pandas, escaped": by_pandas(doublequote=False, escapechar="\\"),
    "polars": by_polars(),
    "polars, CRLF": by_polars(line_terminator="\r\n"),
    "DuckDB": by_duckdb,
    "R, write.csv": by_hand,
    "Spark": with_backslashes,
    "spreadsheet": by_a_spreadsheet,
}
FOREIGN = {"csv, CR", "csv, LF, escaped", "pandas, CR", "pandas, escaped", "Spark"}
"""Their files are no CSV by RFC 4180, and most are refused."""

PIECES = (
    *("\r", "\n", "\r\n", '"', '""', ",", "\\", '\\"', "0.5", "a", "b", " ", "'", "\0", "\x1a", "\ufeff"),
    *("\u2028", "\x85", "\v", "\f", "\x1c", "\r0.5,a,w", "\n0.5,a,w", "\r\n0.5,a,w\r\n", '"\n0.5,a,w\n"', '",', ',"'),
    '"\n0.5,a,w\n\n',
)


def hostile(rng: random.Random) -> str:
    """Draw a cell that tries to be more than one."""
    return "".join(rng.choices(PIECES, k=rng.randint(0, 8)))


def honest(rng: random.Random) -> tuple[str, str, str]:
    """Draw a record as a table has it."""
    texts = ("", "O'Neill", "Smith, J.", 'the "one"', "two\nlines", "u1", "u2")
    return f"{rng.uniform(-1, 1):.3f}", rng.choice("ab"), rng.choice(texts)


def attack(rng: random.Random) -> tuple[str, str, str]:
    """Draw a record of which any cell may be hostile."""
    record = [hostile(rng) if rng.random() < 0.6 else cell for cell in honest(rng)]
    return record[0], record[1], record[2]


def records(table: Table, path: Path, write: Callable[[Table, Path], None]) -> list[tuple[Any, ...]] | None:
    """Return the records that an import sees of a table after it was written to a file, None if that is refused."""
    write(table, path)
    try:
        return [
            row
            for batch in CsvSource(path).batches(NAMES)
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
    except TableImportError:
        return None


def changed(one: Sequence[Any], two: Sequence[Any]) -> int:
    """Count the slots that differ, after the slots have been matched as well as possible."""
    first, second = Counter(one), Counter(two)
    return max((first - second).total(), (second - first).total())


@pytest.mark.parametrize("name", WRITERS)
def test_one_record_changes_one_slot_whoever_wrote_the_file(tmp_path: Path, name: str) -> None:
    """Neighbours of 12 records, one or two of them hostile: as many records, one of them different, or a refusal."""
    found = fuzz(tmp_path, name, pairs=40, seed=20)
    assert found["violations"] == 0
    assert found["both accepted"] >= (0 if name in FOREIGN else 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_many_pairs_of_files(tmp_path: Path, name: str) -> None:
    """The same with many more."""
    assert fuzz(tmp_path, name, pairs=1000, seed=21)["violations"] == 0


def fuzz(folder: Path, name: str, *, pairs: int, seed: int) -> Counter[str]:
    """Read neighbours, and count how often both were accepted, and how often more than one record changed."""
    rng, found = random.Random(f"{seed} {name}"), Counter[str]()
    for _ in range(pairs):
        table = [honest(rng) for _ in range(10)]
        table.insert(rng.randrange(11), attack(rng) if rng.random() < 0.5 else honest(rng))
        place = rng.randrange(12)
        before, after = (
            records([*table[:place], record, *table[place:]], folder / "table.csv", WRITERS[name])
            for record in (honest(rng), attack(rng))
        )
        if before is not None and after is not None:
            found["both accepted"] += 1
            found["violations"] += len(before) != len(after) or changed(before, after) > 1
    return found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"x,c\n0,a\n"), "is compressed by gzip: unpack it"),
        (b"PK\x03\x04 x,c\n0,a\n", "is a zip archive or a workbook"),
        (b"PAR1\x15\x04\x15", "is a Parquet file: name it with --parquet"),
        ("x,c\n0,a\n".encode("utf-16"), "is text in UTF-16: save it in UTF-8"),
        (b"", "the first line is empty"),
        (b"\nx,c\n0,a\n", "the first line is empty"),
        (b"x,,c\n0,1,a\n", "cell 2 is empty"),
        (b"x,c,y,c \n0,a,1,b\n", "cells 2 and 4 are equal"),
        (b"secret,7\n0,a\n", "not every cell begins with a letter"),
    ],
)
def test_a_file_without_a_header_is_refused_by_what_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    """The message says what to do, and quotes no word of the first line, which may be a row."""
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(TableImportError) as refused:
        CsvSource(path).columns()
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_name_may_begin_as_another_files_first_bytes_do(tmp_path: Path) -> None:
    """A header of letters is a header."""
    path = tmp_path / "table.csv"
    for name in ("PAR1", "BZh9", "SQLite format 3", "PK"):
        path.write_text(f"{name},c\n0,a\n")
        assert [column for column, _ in CsvSource(path).columns()] == [name, "c"]
