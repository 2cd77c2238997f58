"""Files and lines that somebody gives to bursar: manifests, tables, settings, tokens, notes, ledgers, models.

Whoever makes them is no attacker in most cases, but an owner, an auditor or an analyst whose file is damaged, from
elsewhere, or from a newer version. They get the documented error and no traceback, and nothing is half done.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import re
import shutil
import sqlite3
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from google.protobuf import json_format
from hypothesis import strategies as st

import bursar
from bursar._history import Shelf
from bursar_ledger import DebitRequest, GaussianEvent, Ledger, LedgerError, adopt_copy, mark_of
from bursar_ledger.audit.cli import main as audit
from bursar_models import load
from bursar_server.__main__ import main as server
from bursar_server.access.auth import (
    KeysUnavailableError,
    LedgerTokens,
    Principal,
    UnauthenticatedError,
    authenticate,
)
from bursar_server.admin.cli import main as admin
from bursar_server.config import PREFIX, Config, ConfigError
from bursar_server.config import settings as all_settings
from bursar_server.state import State
from bursar_server.tables.catalogue import Registered
from tests.client.made_up_models import MODELS
from tests.fuzz.exploring import WrongError, explore
from tests.fuzz.valid import FOREIGN
from tests.server.serving import identity

INNARDS = re.compile(r"Traceback|File \"|site-packages|object at 0x|<class|<function")
"""Texts that no command prints."""

_MOST_IMPORTS = 40
"""Tables of a state directory, after which another is taken: every import compares its rows with all that there are."""

MANIFEST: Mapping[str, Any] = {
    "name": "people",
    "description": "made up",
    "adjacency": "replace_one",
    "columns": [
        {"name": "x", "kind": "numeric", "lower": -1.0, "upper": 1.0, "bins": 4, "nullable": False},
        {"name": "y", "kind": "numeric", "lower": 0.0, "upper": 10.0, "bins": [0.0, 1.0, 10.0]},
        {"name": "a", "kind": "categorical", "categories": ["p", "q"], "description": "letters"},
    ],
}
_PERSONS = {**MANIFEST, "adjacency": "add_remove_one", "unit": {"column": "who", "max_rows": 2}, "public_rows": 5}
_HEADER = "who,x,y,a\n"
_ROWS = "".join(f"w{i // 2},{0.1 * i:.1f},{i},{'pq'[i % 2]}\n" for i in range(5)) + "w3,0.5,5.250000,q\n"


@dataclass
class Desk:
    """A state directory with a table and a few debits, for those who work at the server's machine; and a folder.

    Attributes:
        folder: for files.
        template: of the state directory.
        outcomes: of what was tried, by target and whether it was taken or refused.
    """

    folder: Path
    template: Path
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    _states: Iterator[int] = field(default_factory=itertools.count)
    _state: State | None = None
    _imports: int = 0

    @property
    def state(self) -> State:
        """The directory that imports go into."""
        if self._state is None or self._imports >= _MOST_IMPORTS:
            if self._state is not None:
                shutil.rmtree(self._state.path)
            place = self.folder / f"state-{next(self._states)}"
            shutil.copytree(self.template, place)
            self._state, self._imports = State.open(place), 0
        return self._state

    def file(self, name: str, content: bytes | str) -> Path:
        """A file of the folder."""
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogatepass"))
        return path

    def imported(self) -> None:
        """One more table is there."""
        self._imports += 1


def prepare(folder: Path) -> Desk:
    """A desk in an empty folder."""
    desk = Desk(folder, folder / "template")
    manifest, rows = desk.file("people.toml", _toml_of(MANIFEST)), desk.file("people.csv", _HEADER + _ROWS)
    _made("init")(admin, "init", "--state", desk.template)
    budget = ("--epsilon", "3", "--delta", "1e-6")
    _made("import")(admin, "import", "--state", desk.template, "--manifest", manifest, "--csv", rows, *budget)
    with Ledger.open(State(desk.template).ledger) as ledger:
        for i in range(3):
            events = (GaussianEvent(1, Fraction(20 + i)),)
            asked = DebitRequest("people", "ann", f"r{i}", bytes([i]) * 32, "FitDPEM", events, {"n_components": i + 1})
            ledger.store_release(ledger.debit(asked).entry, b"model")
    _made("checkpoint")(admin, "checkpoint", "write", "--state", desk.template)
    return desk


def _made(what: str) -> Callable[..., None]:
    def run(main: click.Command, *arguments: Any) -> None:
        if (result := CliRunner().invoke(main, [str(one) for one in arguments])).exit_code:
            raise RuntimeError(f"{what}: {result.output}")

    return run


# What is exchanged in trees of values.

_NUMBERS = st.sampled_from(
    (0, 1, -1, 2, 2**31, 2**63 - 1, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, 5e-324, math.nan, math.inf, -math.inf)
)
_TEXTS = st.sampled_from(("", "x", "y", "people", "a" * 300, "\0", "\n", "../../x", "\u202e", "\ud800", "nan", "1e999"))
_LEAVES = st.one_of(_NUMBERS, _TEXTS, st.booleans(), st.none(), st.integers(), st.floats(), st.text(max_size=8))
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def _deep(times: int) -> Any:
    tree: Any = 1
    for _ in range(times):
        tree = [tree]
    return tree


@st.composite
def exchanged(draw: st.DrawFn, whole: Any) -> Any:
    """A tree of lists and dictionaries, with none to four things in it exchanged."""
    tree = json.loads(json.dumps(whole)) if not isinstance(whole, str) else whole
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2, 3, 4)))):
        place = tree
        while isinstance(place, list | dict) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            inner = place[key]
            if not (isinstance(inner, list | dict) and inner) or draw(st.sampled_from((True, False, False))):
                _exchange(draw, place, key)
                break
            place = inner
    return tree


def _exchange(draw: st.DrawFn, place: Any, key: Any) -> None:
    how = draw(st.sampled_from(("leaf", "leaf", "leaf", "tree", "drop", "more", "rename", "deep")))
    if how == "drop":
        del place[key]
    elif how == "rename" and isinstance(place, dict):
        place[draw(st.text(max_size=6))] = place.pop(key)
    elif how == "more" and isinstance(place, list):
        place.extend([place[key]] * draw(st.sampled_from((1, 2, 1000))))
    elif how == "deep":
        place[key] = _deep(draw(st.sampled_from((2, 50, 500, 3000))))
    else:
        place[key] = draw(_TREES if how == "tree" else _LEAVES)


@st.composite
def spoilt(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file's bytes with some of them flipped, cut, put in, moved or doubled."""
    content = bytearray(whole)
    for _ in range(draw(st.sampled_from((1, 1, 2, 4, 20)))):
        at = draw(st.integers(0, len(content))) if content else 0
        how = draw(st.sampled_from(("flip", "flip", "cut", "put", "double", "drop")))
        if how == "flip" and at < len(content):
            content[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del content[at:]
        elif how == "put":
            content[at:at] = draw(
                st.binary(max_size=8) | st.sampled_from((b"\0" * 4096, b"\xff\xfe", b"\n", b'"', b","))
            )
        elif how == "double":
            content[at:at] = content[at : at + 200]
        else:
            del content[at : at + draw(st.sampled_from((1, 7, 512)))]
    return bytes(content)


def _toml_of(tree: Mapping[str, Any]) -> str:
    return "".join(f"{_key(name)} = {_toml(value)}\n" for name, value in tree.items() if value is not None)


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{_key(name)} = {_toml(inner)}' for name, inner in value.items() if inner is not None)}}}"
        )
    if isinstance(value, list):
        return f"[{', '.join(_toml(inner) for inner in value if inner is not None)}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _written(tree: Any, write: Callable[[Any], str]) -> str:
    """A tree as text; nothing where it is too deep to be written."""
    try:
        return write(tree)
    except (RecursionError, ValueError):
        return ""


def toml(tree: Any) -> bytes:
    """Write a tree as TOML; nothing where it is too deep to be written."""
    return _written(tree, _toml_of).encode(errors="surrogatepass")


# What must be true.


def command(main: click.Command, *arguments: Any, codes: tuple[int, ...] = (0, 1, 2)) -> int:
    """Run a command; its exit status. Raises WrongError unless it ends as commands do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(main, [str(one) for one in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise WrongError(f"{main.name} {arguments[0]} ended with {result.exception!r}") from result.exception
    if result.exit_code not in codes:
        raise WrongError(f"{main.name} {arguments[0]} ended with {result.exit_code}: {result.output}")
    if found := INNARDS.search(result.output):
        raise WrongError(f"{main.name} {arguments[0]} shows {found.group()!r}: {result.output}")
    if result.exit_code and not result.output.strip():
        raise WrongError(f"{main.name} {arguments[0]} ended with {result.exit_code} without a word")
    return result.exit_code


_IMPORTS = itertools.count()


def _import(desk: Desk, manifest: bytes, *source: Any) -> str:
    """Import a table. Raises WrongError if a refusal leaves something, or a registration nothing."""
    state = desk.state
    path = desk.file("given.toml", _named(manifest))
    before, folders = _registered(state), _folders(state)
    budget = ("--epsilon", "3", "--delta", "1e-6", "--accept-bad-rows", "1")
    code = command(admin, "import", "--state", state.path, "--manifest", path, *source, *budget)
    after, found = _registered(state), _folders(state)
    if code:
        if (before, folders) != (after, found):
            raise WrongError(f"a refused import left something: {after - before}, {found - folders}")
        return "refused"
    if len(after - before) != 1 or not {one for _, one in after} <= found:
        raise WrongError(f"an import registered {after - before} and left {found - folders}")
    desk.imported()
    return "taken"


def _registered(state: State) -> frozenset[tuple[str, str]]:
    """Names of datasets and of the folders of their rows."""
    with Ledger.open(state.ledger) as ledger:
        return frozenset((one.name, Registered.of(one.manifest).snapshot) for one in ledger.datasets())


def _folders(state: State) -> frozenset[str]:
    return frozenset(found.name for found in state.datasets.iterdir())


def _named(manifest: bytes) -> bytes:
    """A manifest under a name that no table has, unless the name is what was exchanged."""
    return manifest.replace(b'"name" = "people"', f'"name" = "table-{next(_IMPORTS)}"'.encode(), 1)


def _of_others(rows: bytes) -> bytes:
    """Rows that nobody imported before: those of known people would have to join their account."""
    return rows.replace(b"5.250000", f"{5.25 + 1e-6 * next(_IMPORTS):.6f}".encode())


def _plain(which: int) -> bytes:
    return _toml_of(MANIFEST if which % 2 else _PERSONS).encode()


@st.composite
def manifests(draw: st.DrawFn) -> bytes:
    """Manifests as TOML."""
    tree = draw(exchanged(draw(st.sampled_from((MANIFEST, _PERSONS)))))
    text = toml(tree)
    return draw(spoilt(text)) if draw(st.sampled_from((False, False, True))) else text


def check_manifest(desk: Desk, manifest: bytes) -> str:
    """A manifest for a table that is good."""
    return _import(desk, manifest, "--csv", desk.file("good.csv", _of_others((_HEADER + _ROWS).encode())))


_CELLS = st.sampled_from(
    (
        "0.5",
        "1e999",
        "nan",
        "",
        '"',
        '"a"',
        "p",
        "q",
        "w1",
        "-0",
        "0x10",
        "1,5",
        "\r",
        "\0",
        "\u00e9",
        "=1+1",
        " ",
        "x" * 5000,
    )
) | st.text(max_size=6)


@st.composite
def csvs(draw: st.DrawFn) -> bytes:
    """Tables as comma-separated values, of all encodings."""
    lines = [_HEADER.strip(), *_ROWS.splitlines()]
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines)))
        lines[at:at] = [",".join(draw(st.lists(_CELLS, max_size=6)))]
    whole = (
        draw(st.sampled_from(("\n", "\r\n")))
        .join(lines)
        .encode(draw(st.sampled_from(("utf-8", "utf-8-sig", "utf-16"))), "surrogatepass")
    )
    return draw(spoilt(whole)) if draw(st.booleans()) else whole


def check_csv(desk: Desk, table: bytes) -> str:
    """A table for a manifest that is good."""
    return _import(desk, _plain(len(table)), "--csv", desk.file("given.csv", _of_others(table)))


_TYPES: tuple[Any, ...] = (
    *(
        pa.float64(),
        pa.float16(),
        pa.int8(),
        pa.uint64(),
        pa.decimal128(38, 9),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("ns"),
    ),
    *(
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.list_(pa.int8()),
        pa.null(),
        pa.dictionary(pa.int8(), pa.string()),
    ),
)


@st.composite
def parquets(draw: st.DrawFn) -> bytes:
    """Tables as Parquet, of all types; half of them damaged."""
    arrays, names = [], []
    for name in draw(st.permutations(("who", "x", "y", "a", "more"))):
        kind = draw(st.sampled_from((pa.float64(), pa.string(), *_TYPES)))
        values = ["p", None, "q"] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else [1, None, 0]
        try:
            arrays.append(
                pa.array(values).cast(kind)
                if not pa.types.is_dictionary(kind)
                else pa.array(["p", None, "q"]).cast(kind)
            )
        except pa.ArrowException:
            arrays.append(pa.nulls(3, kind))
        names.append(name)
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(arrays, names), buffer)
    whole = buffer.getvalue()
    return draw(spoilt(whole)) if draw(st.booleans()) else whole


def check_parquet(desk: Desk, table: bytes) -> str:
    """The same as Parquet."""
    return _import(desk, _plain(len(table)), "--parquet", desk.file("given.parquet", table))


_QUERIES = (
    "SELECT who, x, y, a FROM read_csv('{folder}/good.csv', auto_detect = false, header = true, columns = "
    "{{'who': 'VARCHAR', 'x': 'DOUBLE', 'y': 'DOUBLE', 'a': 'VARCHAR'}})",
    "SELECT 'w' AS who, 0.5 AS x, {cell} AS y, 'p' AS a FROM range(3)",
    "SELECT 'w' AS who, x, y, a FROM (VALUES (1.0, 2, 'p'), (NULL, {cell}, NULL)) t(x, y, a)",
    "SELECT 'w' AS who, error('{cell}') AS x, 1 AS y, 'p' AS a",
    "SELECT 'w' AS who, i / (i - 2) AS x, 1 AS y, 'p' AS a FROM range(5) t(i)",
    "SELECT 1 AS x, 2 AS x, 3 AS y, 'p' AS a",
    "SELECT x FROM nothing",
    "SELECT * FROM read_parquet('{folder}/none.parquet')",
    "SELECT * FROM read_csv('{folder}/people.toml')",
    "CREATE TABLE t (x INT)",
    "SELECT 1; SELECT 2",
    "SET memory_limit = '1KB'",
    "PRAGMA database_list",
    "ATTACH '{folder}/other.duckdb'",
    "COPY (SELECT 1) TO '{folder}/out.csv'",
    "WITH a AS (COPY (SELECT 1) TO '{folder}/out.csv') SELECT 'w' AS who, 1 AS x, 1 AS y, 'p' AS a",
    "SELECT content AS who, size AS x, size AS y, 'p' AS a FROM read_text('{folder}/good.csv')",
    "SELECT 'w' AS who, {{'a': 1}} AS x, [1] AS y, INTERVAL 1 DAY AS a",
    "{cell}",
    "",
)


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, bytes | None]:
    """Queries of DuckDB, and a file that is to be its database."""
    query = draw(st.sampled_from(_QUERIES))
    cell = draw(st.sampled_from(("1", "NULL", "1e999", "'nan'::DOUBLE", "DATE '2020-01-01'", "'x'", "--", "1 AS y, 2")))
    text = draw(spoilt(query.encode())).decode(errors="replace") if draw(st.sampled_from((False, True))) else query
    with contextlib.suppress(KeyError, ValueError, IndexError):
        text = text.replace("{cell}", cell)
    return text.replace("\0", ""), draw(st.none() | st.none() | st.binary(max_size=60))


def check_query(desk: Desk, given: tuple[str, bytes | None]) -> str:
    """A query whose rows are imported."""
    text, database = given
    desk.file("good.csv", _HEADER + _ROWS)
    text = text.replace("{folder}", str(desk.folder)).replace("{{", "{").replace("}}", "}")
    more = () if database is None else ("--database", desk.file("given.duckdb", database))
    return _import(desk, _plain(1), "--sql", text, *more)


def _defaults() -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in all_settings():
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = list(value) if isinstance(value, tuple) else value
    return tree


_SETTINGS = _defaults()
_VARIABLES = tuple(PREFIX + "__".join(path).upper() for path, _ in all_settings())


@st.composite
def configurations(draw: st.DrawFn) -> tuple[bytes, Mapping[str, str]]:
    """Settings as TOML, and some of them in the environment."""
    text = toml(draw(exchanged(_SETTINGS)))
    text = draw(spoilt(text)) if draw(st.sampled_from((False, False, True))) else text
    names = st.sampled_from((*_VARIABLES, PREFIX + "LIMITS", PREFIX + "OIDC", PREFIX + "NOTHING", PREFIX))
    values = st.sampled_from(
        ("", "1", "-1", "nan", "{", '{"columns": 3}', "[1]", "x:1", "\u00e9", "1e999", "127.0.0.1:1")
    )
    return text, draw(st.dictionaries(names, values, max_size=2))


def check_configuration(desk: Desk, given: tuple[bytes, Mapping[str, str]]) -> str:
    """Check settings that a server is to be started with, or checked."""
    text, environment = given
    state = desk.state
    outcome = load_configuration(desk.folder / "given-config.toml", text, environment)
    if len(text) % 4 == 0:
        old = state.config.read_bytes()
        state.config.write_bytes(text)
        with _environment(environment):
            try:
                command(server, "check", "--state", state.path)
            finally:
                state.config.write_bytes(old)
    return outcome


def load_configuration(path: Path, text: bytes, environment: Mapping[str, str]) -> str:
    """Load settings from a file and the environment: taken, or refused in plain words."""
    path.write_bytes(text)
    with _environment(environment):
        try:
            Config.load(path)
        except ConfigError as error:
            if INNARDS.search(str(error)):
                raise WrongError(f"a bad setting shows innards: {error}") from error
            return "refused"
    return "taken"


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


_TOKENS = tuple(
    identity.signed(key, kind, kid).encode()
    for key, kind, kid in (
        (identity.EC, "ES256", "ec"),
        (identity.RSA, "RS256", "rsa"),
        (identity.ED, "EdDSA", "ed"),
    )
)


@st.composite
def tokens(draw: st.DrawFn) -> tuple[list[tuple[str, str | bytes]], bytes]:
    """Metadata of a call, and an identity provider's list of keys."""
    line = draw(st.sampled_from(_TOKENS))
    line = draw(spoilt(line)) if draw(st.booleans()) else line
    own = st.sampled_from(("bursar_analyst_" + "A" * 43, "bursar_admin_", "", "a.b.c", "\0", "." * 300))
    value: Any = f"Bearer {line.decode(errors='replace')}" if draw(st.booleans()) else f"Bearer {draw(own)}"
    keys = json.loads(identity.KEYS)
    text = _written(draw(exchanged(keys)), json.dumps).encode() if draw(st.booleans()) else identity.KEYS
    metadata = [
        ("authorization", value),
        *draw(st.sampled_from(((), (("authorization", "Bearer x"),), (("a", b"\xff"),)))),
    ]
    return metadata, text


def check_token(desk: Desk, given: tuple[list[tuple[str, str | bytes]], bytes]) -> str:
    """A line where a token is expected: nobody gets in whose token is not exactly one that was signed."""
    metadata, keys = given
    with Ledger.open(desk.state.ledger) as ledger:
        try:
            found = authenticate(metadata, LedgerTokens(ledger), identity.tokens(keys=keys))
        except (UnauthenticatedError, KeysUnavailableError) as error:
            if INNARDS.search(str(error)):
                raise WrongError(f"a bad token shows innards: {error}") from error
            return "refused"
    whole = str(metadata[0][1]).removeprefix("Bearer ").encode(errors="replace")
    if not isinstance(found, Principal) or whole not in _TOKENS:
        raise WrongError(f"a token that nobody signed let {found.name} in")
    return "taken"


def _whole(desk: Desk) -> tuple[bytes, bytes]:
    """Ledger and checkpoints of the desk, as files."""
    state = State(desk.template)
    copy = desk.folder / "whole.sqlite"
    if not copy.exists():
        with Ledger.open(state.ledger) as ledger:
            ledger.backup(copy)
    return copy.read_bytes(), (state.path / "checkpoints").read_bytes()


_AUDITS = (
    ("verify", "--no-second-opinion"),
    ("spend",),
    ("entries",),
    ("entries", "--json"),
    ("show",),
    ("report",),
)


@st.composite
def damages(draw: st.DrawFn) -> tuple[int, Callable[[bytes], bytes], str]:
    """Return how a file is damaged, and what is done with it."""
    # The file is not known yet, so places are parts of its length.
    where = draw(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8))
    cut = draw(st.sampled_from((None, None, None, 0.0, 0.3, 0.99)))
    head = draw(st.sampled_from((False, False, True)))

    def damage(whole: bytes) -> bytes:
        content = bytearray(whole)
        for part, byte in where:
            at = int(part * (min(100, len(content)) if head else len(content)))
            if at < len(content):
                content[at] = byte
        return bytes(content[: None if cut is None else int(cut * len(content))])

    return draw(st.sampled_from(range(len(_AUDITS)))), damage, draw(st.sampled_from(("file", "sql")))


def check_ledger(desk: Desk, given: tuple[int, Callable[[bytes], bytes], str]) -> str:
    """A ledger that an auditor is sent: bytes exchanged, or cells exchanged by SQL that knows no trigger."""
    which, damage, how = given
    whole, _ = _whole(desk)
    path = desk.folder / "given.sqlite"
    for left in desk.folder.glob("given.sqlite*"):
        left.unlink()
    path.write_bytes(damage(whole) if how == "file" else whole)
    if how == "sql":
        _damage_cells(path, damage)
    name, *options = _AUDITS[which]
    arguments = {"show": [path, "3"], "report": [path, "--out", desk.folder / "report.html"]}.get(name, [path])
    code = command(audit, name, *options, *arguments, codes=(0, 1, 2, 3))
    mark_of(path).unlink(missing_ok=True)
    try:
        adopt_copy(path)
        Ledger.open(path).close()
    except LedgerError:
        return "refused"
    return "refused" if code else "taken"


def _damage_cells(path: Path, damage: Callable[[bytes], bytes]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f'DROP TRIGGER "{trigger}"')
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        pattern = damage(bytes(64))
        table = sorted(tables)[sum(pattern) % len(tables)]
        columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
        column = columns[len(pattern.strip(b"\0")) % len(columns)]
        rows = [row for (row,) in db.execute(f'SELECT rowid FROM "{table}"')]  # noqa: S608
        values: tuple[Any, ...] = (None, -1, 2**62, 0.5, "x", b"\xff\xfe", "{}", '{"kind": 1}', "")
        if rows:
            with contextlib.suppress(sqlite3.Error):
                change = f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?'  # noqa: S608
                db.execute(change, (values[sum(pattern) % len(values)], rows[sum(pattern) % len(rows)]))
        db.commit()


def check_notes(desk: Desk, given: tuple[int, Callable[[bytes], bytes], str]) -> str:
    """Checkpoints that an auditor kept."""
    which, damage, _ = given
    whole, notes = _whole(desk)
    path, ledger = desk.file("given.notes", damage(notes)), desk.file("good.sqlite", whole)
    if which % 2:
        code = command(audit, "checkpoint", ledger, path, codes=(0, 1, 2, 3))
    else:
        code = command(audit, "verify", ledger, "--checkpoints", f"file:{path}", codes=(0, 1, 2, 3))
    return "refused" if code else "taken"


@st.composite
def models(draw: st.DrawFn) -> bytes:
    """Saved models as JSON."""
    model = draw(MODELS[draw(st.sampled_from(sorted(MODELS, key=str)))])
    tree = draw(exchanged(model.to_dict()))
    text = _written(tree, json.dumps).encode()
    return draw(spoilt(text)) if draw(st.sampled_from((False, False, True))) else text


def check_model(desk: Desk, content: bytes) -> str:
    """A model that a program loads, prints, and draws rows of."""
    path = desk.file("given.json", content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = load(path)
        except ValueError as error:
            if INNARDS.search(str(error)):
                raise WrongError(f"a bad model shows innards: {error}") from error
            return "refused"
        repr(model)
    return "taken"


@st.composite
def sketches(draw: st.DrawFn) -> bytes:
    """Sketches of other sites as JSON."""
    text = _written(
        draw(exchanged(json_format.MessageToDict(FOREIGN, preserving_proto_field_name=True))), json.dumps
    ).encode()
    return draw(spoilt(text)) if draw(st.sampled_from((False, False, True))) else text


def check_sketch(desk: Desk, content: bytes) -> str:
    """A sketch that a program loads, and that an owner merges with itself."""
    path = desk.file("given-sketch.json", content)
    command(admin, "sketch", "merge", path, path, "--out", desk.folder / "merged.json")
    try:
        bursar.load_sketch(path)
    except bursar.InvalidRequestError as error:
        if INNARDS.search(str(error)):
            raise WrongError(f"a bad sketch shows innards: {error}") from error
        return "refused"
    return "taken"


_HISTORY: Mapping[str, Any] = {
    "format": 1,
    "servers": {
        "s": {"address": "localhost:1", "ledger_id": "ab" * 16, "size": 3, "head": "cd" * 32, "seen": "2026-01-01"}
    },
}


@st.composite
def histories(draw: st.DrawFn) -> bytes:
    """Return what the SDK remembers of servers, as JSON."""
    text = _written(draw(exchanged(_HISTORY)), json.dumps).encode()
    return draw(spoilt(text)) if draw(st.sampled_from((False, False, True))) else text


def check_history(desk: Desk, content: bytes) -> str:
    """A file that a program begins with."""
    try:
        found = Shelf(desk.file("given-history.json", content), "s").load()
    except bursar.InvalidRequestError as error:
        if INNARDS.search(str(error)):
            raise WrongError(f"a bad history shows innards: {error}") from error
        return "refused"
    return "taken" if found else "nothing in it"


TARGETS: Mapping[str, tuple[st.SearchStrategy[Any], Callable[[Desk, Any], str]]] = {
    "manifest": (manifests(), check_manifest),
    "csv": (csvs(), check_csv),
    "parquet": (parquets(), check_parquet),
    "query": (queries(), check_query),
    "settings": (configurations(), check_configuration),
    "token": (tokens(), check_token),
    "ledger": (damages(), check_ledger),
    "checkpoints": (damages(), check_notes),
    "model": (models(), check_model),
    "sketch": (sketches(), check_sketch),
    "history": (histories(), check_history),
}
"""Targets by name: what is tried, and what must be true of it."""


def run(desk: Desk, target: str, examples: int, seed: int) -> None:
    """Check so many files of a kind. Raises WrongError."""
    cases, check = TARGETS[target]

    def look(case: Any) -> None:
        desk.outcomes[target, check(desk, case)] += 1

    explore(cases, look, examples, seed)
