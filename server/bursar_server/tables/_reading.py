"""Common parts of all sources: the search for columns, and errors that quote no cell."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa

from bursar_server.tables._errors import TableImportError

BATCH = 65_536
"""Rows of a batch. Chosen, not tuned."""

_SHOWN = 40
"""Number of the source's columns that an error names."""


def identifier(name: str) -> str:
    """Return a name as SQL writes identifiers."""
    return '"' + name.replace('"', '""') + '"'


def quoted(table: str) -> str:
    """Return the name of a table, or schema and name with a dot between them, as SQL writes them."""
    return ".".join(map(identifier, table.split(".", 1)))


def find(wanted: Sequence[str], found: Sequence[str], delimiter: str = "") -> None:
    """Raise TableImportError unless every wanted column exists exactly once."""
    count = Counter(found)
    problems = [
        f"{name!r} is {'missing' if not count[name] else 'there more than once'}" for name in wanted if count[name] != 1
    ]
    if problems:
        raise TableImportError(
            f"columns of the source: {'; '.join(problems)}; correct the manifest, or name the source's columns so. "
            f"{_there(wanted, found, delimiter)}"
        )


def _there(wanted: Sequence[str], found: Sequence[str], delimiter: str) -> str:
    """Return the columns that there are, unless they may be a row's cells: a file without a header begins with one."""
    sought = {name.casefold() for name in wanted}

    def are_names(cells: Sequence[str]) -> bool:
        return not sought.isdisjoint(cell.strip(' "').casefold() for cell in cells)

    if are_names(found):
        more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        # A CSV file's bytes that are no text in its encoding are kept as escapes.
        unread = any(re.search(r"\\x[0-9a-f]{2}", name) for name in found) and delimiter
        hint = '; not all of it is text in this encoding: set [csv] encoding, for example to "cp1252"' if unread else ""
        return f"Names are compared letter by letter: the source has {', '.join(map(repr, found[:_SHOWN]))}{more}{hint}"
    for other in ",;\t":
        if delimiter and are_names(delimiter.join(found).split(other)):
            return (
                f"Its header is separated by {other!r}: if its rows are, too, set [csv] delimiter = {json.dumps(other)}"
            )
    return "It has none of the wanted names: is there a header?"


@contextlib.contextmanager
def reading(what: object) -> Iterator[None]:
    """Convert the libraries' errors to one that quotes nothing; its `detail` is their text, which may quote a cell."""
    try:
        yield
    except duckdb.PermissionException:
        raise TableImportError(
            "the query reaches for something else than the files that it names in FROM; name each there, by its path"
        ) from None
    except (OSError, ValueError, csv.Error, sqlite3.Error, pa.ArrowException, duckdb.Error) as error:
        raise TableImportError(
            f"{what} cannot be read ({type(error).__name__}); expected a readable table of the kind that was named",
            detail=str(error),
        ) from None
