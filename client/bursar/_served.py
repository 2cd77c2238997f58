"""A real server on synthetic rows, for tests of programs; runs as a child process and needs `bursar[server]`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from bursar._client import Client, connect
from bursar_models import made_up_codes, made_up_numbers
from bursar_models.budget import EpsilonDelta, epsilon_delta
from bursar_models.errors import MissingDependencyError

__all__ = ["Rows", "Server", "serve"]

Rows: TypeAlias = str | Path | Mapping[str, Sequence[Any]] | int | None
"""Rows of a table: a CSV file, columns by name, a number of synthetic rows, or None for as many as are declared."""

Role: TypeAlias = Literal["analyst", "auditor", "admin"]

_ROWS = 1000
"""Synthetic rows of a table that declares no number: enough for a fit, and made at once."""
_BUDGET = epsilon_delta(3.0, 1e-6)
_SETTINGS: Mapping[str, Any] = {"address": "127.0.0.1:0", "response_quantum_seconds": 0.01}
"""A free port, and no longer waits than a server allows: the rows have no secret that times could tell."""


@dataclass(frozen=True)
class Server:
    """A real server with a temporary state directory, and what it takes to use it.

    Attributes:
        state: the state directory.
        tokens: one for each role.
        address: host:port.
    """

    state: Path
    tokens: dict[str, str] = field(repr=False)
    address: str
    _process: subprocess.Popen[str] = field(repr=False)

    @property
    def ca(self) -> Path:
        """File with the certificate of the server's authority."""
        return self.state / "tls" / "ca.pem"

    @property
    def log(self) -> Path:
        """File with the server's log."""
        return self.state.parent / "server.log"

    def client(self, role: Role = "analyst", **options: Any) -> Client:
        """Return a new client in a role, which keeps what it sees of the ledger in memory; options as of `connect`."""
        return connect(self.address, **{"token": self.tokens[role], "ca": self.ca, "history": False, **options})

    def token(self, name: str, role: Role = "analyst") -> str:
        """Issue a token to a new name, and return it."""
        return self.admin("token", "issue", "--name", name, "--role", role).strip()

    def admin(self, *words: object) -> str:
        """Run a command of `bursar-admin` on the state directory, and return what it printed.

        Raises:
            RuntimeError: the command refused; with its message.
        """
        return _ask(self._process, self.log, [*map(str, words), "--state", str(self.state)])["output"]

    def add_table(
        self, schema: str | Path, rows: Rows = None, *, budget: EpsilonDelta = _BUDGET, public_seed: int = 0
    ) -> str:
        """Import and register one more table; arguments as of `serve`. Returns the name of the dataset."""
        text = schema if isinstance(schema, str) and "\n" in schema else Path(schema).read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory(dir=self.state.parent) as folder:
            manifest = Path(folder, "table.toml")
            manifest.write_text(text, encoding="utf-8")
            source = Path(rows) if isinstance(rows, str | Path) else Path(folder, "rows.csv")
            fields = tomllib.loads(text)
            if not isinstance(rows, str | Path):
                _write(source, rows if isinstance(rows, Mapping) else synthetic_rows(fields, rows, public_seed))
            total = ("--epsilon", budget.epsilon, "--delta", budget.delta)
            # Rows are made up: they may be bad, or equal to those of another table from one seed.
            as_given = ("--other-people", "--i-know", "--accept-bad-rows", "100%")
            self.admin("import", "--manifest", manifest, "--csv", source, *total, *as_given)
        return str(fields["name"])


@contextmanager
def serve(
    schema: str | Path,
    rows: Rows = None,
    *,
    budget: EpsilonDelta = _BUDGET,
    public_seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Server]:
    """Run a real server while the context is open: its ledger, its refusals, its noise. Needs `bursar[server]`.

    It starts within a few seconds (the first time on a machine within a minute, since kernels are compiled then), so
    tests share one for a session, and give each test a name of its own with `Server.token`.

    Args:
        schema: public schema of the table, a manifest as a TOML file or as text; `Server.add_table` adds more tables.
        rows: CSV file, columns by name, or number of synthetic rows; None for the public number of rows, or 1,000.
            Synthetic rows are those of a dry run: drawn from the schema and `public_seed`, columns independent.
        budget: lifetime privacy budget of the table.
        public_seed: of synthetic rows.
        settings: of the server, by name, as in its `config.toml`; a table of settings is a mapping.

    Raises:
        MissingDependencyError: the server is not installed here.
        RuntimeError: the server refuses schema, rows or settings; with its message.

    Example:
        >>> import bursar.testing
        >>> schema = '''
        ... name = "people"
        ... adjacency = "replace_one"
        ... [[columns]]
        ... name = "height"
        ... kind = "numeric"
        ... lower = 100.0
        ... upper = 220.0
        ... '''
        >>> with bursar.testing.serve(schema) as server, server.client() as client:
        ...     client.dataset("people").remaining().share
        1.0
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bursar-")))
        log, state = folder / "server.log", folder / "state"
        process = stack.enter_context(_started(log))
        server = Server(state, {}, "", process)
        server.admin("init")
        server.tokens["admin"] = (state / "admin.token").read_text(encoding="utf-8").strip()
        for role in ("analyst", "auditor"):
            server.tokens[role] = server.token(f"the-{role}", role)
        server.add_table(schema, rows, budget=budget, public_seed=public_seed)
        words = ["serve", str(state), {**_SETTINGS, **(settings or {})}]
        yield Server(state, server.tokens, _ask(process, log, words)["address"], process)


def synthetic_rows(fields: Mapping[str, Any], n: int | None, public_seed: int) -> dict[str, Sequence[Any]]:
    """Return columns by name, drawn from a public schema.

    Args:
        fields: the manifest.
        n: number of rows; None for the public number, or 1,000.
        public_seed: of the rows.
    """
    n = n or fields.get("public_rows") or _ROWS
    columns = {column["name"]: _synthetic(column, n, public_seed) for column in fields["columns"]}
    if unit := fields.get("unit", {}).get("column"):
        columns[unit] = range(n)
    return columns


def _synthetic(column: Mapping[str, Any], n: int, public_seed: int) -> Sequence[Any]:
    name = column["name"]
    if column["kind"] == "categorical":
        categories = column["categories"]
        return [categories[int(code)] for code in made_up_codes(name, n, public_seed, categories=len(categories))]
    lower, upper, bins = column["lower"], column["upper"], column.get("bins", ())
    edges = np.linspace(lower, upper, bins + 1).tolist() if isinstance(bins, int) else bins
    nullable = column.get("nullable", False)
    numbers = made_up_numbers(name, n, public_seed, lower=lower, upper=upper, edges=edges, nullable=nullable)
    return ["" if np.isnan(number) else number for number in numbers.tolist()]


def _write(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


@contextmanager
def _started(log: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bursar_server.admin.testing"]
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        # `Popen` closes standard input at the end of the block, which ends the process, and waits for it.
        yield process


def _ask(process: subprocess.Popen[str], log: Path, words: list[Any]) -> dict[str, str]:
    """Send one line, and return its answer. Raises RuntimeError and MissingDependencyError."""
    if process.stdin is None or process.stdout is None:
        raise ValueError("expected a process with pipes")
    try:
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    answer: dict[str, str] = json.loads(line) if line else {"error": _last_words(process, log)}
    if "error" in answer:
        raise RuntimeError(f"{' '.join(map(str, words[:2]))}: {answer['error']}")
    return answer


def _last_words(process: subprocess.Popen[str], log: Path) -> str:
    process.wait()
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    last = text.rpartition("\n")[2]
    if last.startswith("ModuleNotFoundError"):
        raise MissingDependencyError(f"bursar.testing.serve runs a server: pip install './bursar[server]' ({last})")
    return f"the server ended with status {process.returncode}: {text[-2000:]}"
