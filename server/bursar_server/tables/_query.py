"""Queries of an administrator: checked to be one SELECT that reads the files it names and nothing else.

Queries are pasted from other people's scripts. DuckDB can write files from within a SELECT (a COPY in a WITH, logs and
profiles), read others' secrets and load code from the network. So a query runs with locked settings and without
external access, except to the files that it names.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from bursar_server.tables._errors import TableImportError

_Node = Mapping[str, Any]
"""Part of a statement in the format of `json_serialize_sql`."""

_SELECTS = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"})
"""Kinds of nodes that are queries; others (COPY, INSERT, UPDATE, DELETE) may stand in a WITH and are refused."""

_CSV = frozenset({"read_csv", "read_csv_auto"})
_JSON = frozenset({"read_json", "read_json_auto", "read_ndjson", "read_ndjson_auto"})
_EXACT = frozenset(
    {"read_parquet", "parquet_scan", "read_json_objects", "read_json_objects_auto", "read_ndjson_objects"}
)
"""Functions that read rows of files with types that do not depend on values."""

_OF_TEXT = frozenset({"query", "query_table", "json_execute_serialized_sql"})
"""Functions that run SQL given as text, which would escape the check."""

_ONE_SELECT = "expected exactly one SELECT statement, which writes nothing"


@dataclass(frozen=True)
class Query:
    """Files that a query reads.

    Attributes:
        guessed: files whose column types DuckDB infers from the content of all rows.
    """

    files: tuple[str, ...]
    guessed: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Query:
        """Parse a query; neither opens nor runs anything.

        Raises:
            TableImportError: the query is not one SELECT statement.
        """
        with duckdb.connect(config={"enable_external_access": False}) as connection:
            try:
                statements = connection.extract_statements(text)
                if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                    raise TableImportError(f"the query has another form; {_ONE_SELECT}")
                ((tree,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()
            except duckdb.Error as error:
                raise TableImportError(f"the query is no SQL that DuckDB knows; {_ONE_SELECT}. {error}") from None
        try:
            parsed = json.loads(tree)
            nodes = tuple(_nodes(parsed))
        except RecursionError:
            raise TableImportError(
                "the query is nested too deeply to be examined; write it in steps, with WITH"
            ) from None
        if parsed["error"]:
            raise TableImportError(f"the query cannot be examined; {_ONE_SELECT}")
        _check(nodes)
        found = [found for node in nodes for found in _read_by(node)]
        return cls(
            tuple(dict.fromkeys(file for file, _ in found)),
            tuple(dict.fromkeys(file for file, exact in found if not exact)),
        )

    def confine(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Restrict a connection to reading the files of this query, without any other access to machine or network."""
        paths = [str(Path(path).absolute()) for name in self.files for path in (name, *_matches(name))]
        connection.execute("SET allowed_paths = ?", [paths])
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET lock_configuration = true")


def _check(nodes: Sequence[_Node]) -> None:
    for node in nodes:
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in _SELECTS:
            raise TableImportError(f"the query has a {kind.partition('_')[0]} within; {_ONE_SELECT}")
        if kind == "TABLE_FUNCTION" and (name := _function(node)) in _OF_TEXT:
            raise TableImportError(f"the query calls {name}(), which runs another query; write that one out")


def _read_by(node: _Node) -> Iterator[tuple[str, bool]]:
    """Yield the files that a part of FROM names, and whether their column types are known without guessing."""
    if node.get("type") == "BASE_TABLE":
        name = str(node["table_name"])
        if not node["schema_name"] and (Path(name).is_file() or _matches(name)):
            yield name, name.lower().endswith((".parquet", ".parq"))
    elif node.get("type") == "TABLE_FUNCTION" and (function := _function(node)) in _CSV | _JSON | _EXACT:
        arguments = [_argument(argument) for argument in node["function"]["arguments"]]
        options = {name: value for name, value in arguments if name}
        if function in _CSV:
            exact = _is_false(options.get("auto_detect")) and not _is_false(options.get("strict_mode"))
        else:
            exact = function in _EXACT or "columns" in options
        for name, value in arguments:
            if not name:
                yield from ((text, exact) for text in _texts(value))


def _function(node: _Node) -> str:
    return str(node["function"].get("function_name", "")).lower()


def _argument(argument: _Node) -> tuple[str, _Node]:
    """Split an argument of a function into its name, "" if it has none, and its value."""
    value = argument["expression"]
    if argument["name"]:
        return str(argument["name"]).lower(), value
    if value.get("type") == "COMPARE_EQUAL" and value["left"].get("type") == "COLUMN_REF":
        return str(value["left"]["column_names"][-1]).lower(), value["right"]
    return "", value


def _texts(value: _Node) -> Iterator[str]:
    for node in _nodes(value):
        if node.get("type") == "VALUE_CONSTANT" and node["literal"]["kind"] == "STRING":
            yield str(node["literal"]["text"])


def _is_false(value: _Node | None) -> bool:
    return value is not None and value.get("literal") == {"kind": "BOOLEAN", "text": "false"}


def _matches(name: str) -> list[str]:
    # Patterns may be absolute, which `Path.glob` does not support.
    return glob.glob(name, recursive=True) if glob.has_magic(name) else []  # noqa: PTH207


def _nodes(tree: object) -> Iterator[_Node]:
    if isinstance(tree, dict):
        yield tree
        for part in tree.values():
            yield from _nodes(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from _nodes(part)
