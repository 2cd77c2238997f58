"""Shared parts of the benchmarks of the server: a state directory with a made-up table, and real servers on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from pyarrow import parquet

import bursar
from bursar._process import PATIENCE, command, running
from bursar_server.admin.cli import main as admin

COLUMNS = tuple("abcdef")
"""Numeric, with the bounds -10 and 10; the last is a combination of the others plus noise."""
TABLE = "people"
_CATEGORIES = {"sex": ("f", "m"), "town": ("north", "south", "east"), "smoker": ("yes", "no")}


@dataclass(frozen=True)
class Home:
    """A state directory with one table, "people", and one analyst's token a client.

    Attributes:
        folder: that has the state directory and everything beside it.
        tokens: of the analysts.
    """

    folder: Path
    tokens: tuple[str, ...]

    @classmethod
    def make(cls, folder: Path, *, rows: int, analysts: int, epsilon: float, settings: str) -> Home:
        """A new one.

        Args:
            folder: empty.
            rows: of the table: three Gaussians that lie apart, and categories that depend on which of them it is.
            analysts: tokens to issue.
            epsilon: of the total, beside a delta of 1e-6.
            settings: of the server, TOML.
        """
        state = ("--state", str(folder / "state"))
        owner("init", *state)
        (folder / "people.toml").write_text(_manifest())
        parquet.write_table(_rows(rows), folder / "people.parquet")
        files = ("--manifest", str(folder / "people.toml"), "--parquet", str(folder / "people.parquet"))
        owner("import", *state, *files, "--epsilon", repr(epsilon), "--delta", "1e-6", "--i-know")
        tokens = []
        for i in range(analysts):
            path = folder / f"analyst-{i}"
            owner("token", "issue", *state, "--name", path.name, "--role", "analyst", "--out", str(path))
            tokens.append(path.read_text().strip())
        (folder / "state" / "config.toml").write_text(settings)
        return cls(folder, tuple(tokens))

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.folder / "state"

    @property
    def ledger(self) -> Path:
        """Its ledger."""
        return self.state / "ledger.sqlite"

    @property
    def authority(self) -> bytes:
        """The certificate that clients check the server's against."""
        return (self.state / "tls" / "ca.pem").read_bytes()

    @contextlib.contextmanager
    def served(self, *variant: str) -> Iterator[Served]:
        """Run a server in another process, from when it serves until it has finished what was paid for.

        Args:
            variant: command of another server than the real one, which prints its address last.
        """
        with running(variant or command(self.state), self.folder / "server.log") as server:
            yield Served(self, server.process.pid, server.address)


@dataclass(frozen=True)
class Served:
    """A running server.

    Attributes:
        home: that it serves.
        pid: of its process.
        address: host:port.
    """

    home: Home
    pid: int
    address: str

    def client(self, analyst: int = 0, patience: float = 0.0) -> bursar.Client:
        """A client with a connection of its own."""
        return bursar.connect(
            self.address,
            token=self.home.tokens[analyst],
            ca=self.home.authority,
            timeout=PATIENCE,
            patience=patience,
            history=False,
        )


def _manifest() -> str:
    head = f'name = "{TABLE}"\ndescription = "made up"\nadjacency = "replace_one"\n'
    numeric = (
        '[[columns]]\nname = "{}"\nkind = "numeric"\nlower = -10.0\nupper = 10.0\nbins = [-10.0, -3.0, 3.0, 10.0]\n'
    )
    named = '[[columns]]\nname = "{}"\nkind = "categorical"\ncategories = {}\n'
    lists = {name: "[" + ", ".join(f'"{one}"' for one in words) + "]" for name, words in _CATEGORIES.items()}
    return head + "".join(map(numeric.format, COLUMNS)) + "".join(named.format(*pair) for pair in lists.items())


def _rows(n: int) -> pa.Table:
    rng = np.random.default_rng(7)
    group = rng.integers(3, size=n)
    centres = 6.0 * np.array([[-1, -1, 0, 1, 0], [1, -1, 1, -1, 0], [0, 1, -1, -1, 1]])
    features = centres[group] + 0.5 * rng.normal(size=(n, len(COLUMNS) - 1))
    target = features @ np.array([0.3, -0.2, 0.1, 0.2, -0.1]) + 0.5 * rng.normal(size=n)
    numbers = dict(zip(COLUMNS, [*features.T, target], strict=True))
    words = {name: np.array(known)[(group + (rng.random(n) < 0.2)) % len(known)] for name, known in _CATEGORIES.items()}
    return pa.table(numbers | words)


def owner(*arguments: str) -> None:
    """Run a command of the owner's: `bursar-admin` with these arguments."""
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        try:
            admin(arguments, standalone_mode=False)
        except click.ClickException as error:
            raise SystemExit(f"bursar-admin {arguments[0]}: {error.format_message()}") from None
