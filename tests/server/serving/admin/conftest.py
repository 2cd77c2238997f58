"""A state directory with a small table, and an administrator who types on its machine."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import click.testing
import pytest

from bursar_ledger import DebitRequest, Entry, GaussianEvent, Ledger, Verification, verify
from bursar_server.admin.cli import main
from bursar_server.state import State

MANIFEST = """
name = "{name}"
adjacency = "replace_one"
[[columns]]
name = "height"
kind = "numeric"
lower = 0.0
upper = 3.0
"""
ROWS = "height\n1.5\n1.7\nnan\n9\n2\n"


@dataclass(frozen=True)
class Admin:
    """Types commands on one state directory.

    Attributes:
        state: the directory.
        files: a folder for manifests and rows.
    """

    state: State
    files: Path

    def run(self, *arguments: object, answer: str | None = None) -> click.testing.Result:
        """One command, with what is typed when it asks."""
        words = [*map(str, arguments), "--state", str(self.state.path)]
        return click.testing.CliRunner().invoke(main, words, input=answer)

    def ok(self, *arguments: object, answer: str | None = None) -> str:
        """Return what a command that succeeds prints, errors included."""
        result = self.run(*arguments, answer=answer)
        assert result.exit_code == 0, result.output
        return result.output

    def refused(self, *arguments: object, answer: str | None = None) -> str:
        """Return what a command that fails prints; it fails with a message, never with a traceback."""
        result = self.run(*arguments, answer=answer)
        assert result.exit_code != 0, result.output
        assert isinstance(result.exception, SystemExit)
        return result.output

    def table(self, name: str, rows: str = ROWS, **changes: str) -> list[object]:
        """Options that import rows under a schema, which `changes` replaces parts of."""
        manifest = MANIFEST.format(name=name)
        for old, new in changes.items():
            manifest = manifest.replace(old, new)
        (self.files / f"{name}.toml").write_text(manifest)
        (self.files / f"{name}.csv").write_text(rows)
        return ["--manifest", self.files / f"{name}.toml", "--csv", self.files / f"{name}.csv"]

    def add(self, name: str = "heights", rows: str = ROWS, epsilon: float = 1, delta: float = 1e-6) -> None:
        """Import a table with a total of its own."""
        self.ok("import", *self.table(name, rows), "--epsilon", epsilon, "--delta", delta, "--yes")

    def spend(self, request_id: str, dataset: str = "heights", analyst: str = "alice", scale: int = 10) -> None:
        """A debit of rho = 1 / (2 scale^2), without a release."""
        event = GaussianEvent(1, Fraction(scale))
        with Ledger.open(self.state.ledger) as ledger:
            ledger.debit(DebitRequest(dataset, analyst, request_id, bytes(32), "FitDPEM", (event,)))

    def entries(self) -> list[Entry]:
        """All entries."""
        with Ledger.open(self.state.ledger) as ledger:
            return list(ledger.entries())

    @property
    def verified(self) -> Verification:
        """The ledger, after everything was priced again."""
        found = verify(self.state.ledger)
        assert found.ok, found.problems
        return found

    @property
    def snapshots(self) -> set[str]:
        """Names in the folder of the snapshots."""
        return {path.name for path in self.state.datasets.iterdir()}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory made by `init`, to be copied."""
    path = tmp_path_factory.mktemp("made") / "state"
    result = click.testing.CliRunner().invoke(main, ["init", "--state", str(path)])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture
def admin(made: Path, tmp_path: Path) -> Admin:
    """An administrator of a fresh state directory."""
    shutil.copytree(made, tmp_path / "state")
    state = State.open(tmp_path / "state")
    Ledger.open(state.ledger).close()  # its first opening says that it is a copy
    return Admin(state, tmp_path)


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody is there to be asked."""
    monkeypatch.setattr("bursar_server.admin._acting.at_terminal", lambda: True)
