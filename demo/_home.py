"""The owner's side of the demo: a folder of its own, the commands of an administrator, the server process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from bursar._process import command as server_command
from bursar._process import running

MANIFEST = Path(__file__).with_name("rand-hie.toml")
QUERY = """
SELECT round(exp(lncoins) - 1) AS coinsurance, mdvis AS visits, disea AS diseases,
       CASE WHEN hlthp = 1 THEN 'poor' WHEN hlthf = 1 THEN 'fair'
            WHEN hlthg = 1 THEN 'good' ELSE 'excellent' END AS health
FROM read_csv('{table}', auto_detect = false, header = true, columns = {{
       mdvis: 'DOUBLE', lncoins: 'DOUBLE', idp: 'DOUBLE', lpi: 'DOUBLE', fmde: 'DOUBLE', physlm: 'DOUBLE',
       disea: 'DOUBLE', hlthg: 'DOUBLE', hlthf: 'DOUBLE', hlthp: 'DOUBLE'}})
"""
"""Every row of the result comes from one row of the file, so the privacy unit stays what it was. Types are declared:
DuckDB would otherwise infer them from all rows."""


@dataclass(frozen=True)
class Content:
    """A command's argument that is typed as "$(cat path)".

    Attributes:
        path: of the file.
    """

    path: Path


_MODULES = {"bursar-admin": "bursar_server.admin", "bursar-audit": "bursar_ledger.audit"}
_MARK = ".made-by-the-demo"


@dataclass(frozen=True)
class Home:
    """Places where one run of the demo keeps everything.

    Attributes:
        path: of its folder.
    """

    path: Path

    @classmethod
    def fresh(cls, path: Path) -> Home:
        """An empty folder, in the place of an earlier run's. Raises click.ClickException if it is anything else."""
        if path.exists() and any(path.iterdir()):
            # A state directory that is not ours holds a budget that must never be lost.
            if not (path / _MARK).exists():
                raise click.ClickException(f"{path} was not made by the demo; choose a folder that does not exist")
            shutil.rmtree(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / _MARK).touch()
        return cls(path)

    @property
    def state(self) -> Path:
        """The server's state directory."""
        return self.path / "state"

    @property
    def ca(self) -> Path:
        """The certificate that clients check the server's against."""
        return self.state / "tls" / "ca.pem"

    @property
    def checkpoints(self) -> Path:
        """Signed checkpoints of the ledger. In earnest they would lie on another disk."""
        return self.state / "checkpoints"

    @property
    def report(self) -> Path:
        """The auditor's page."""
        return self.path / "report.html"

    @property
    def ledger(self) -> Path:
        """The SQLite file that holds every debit."""
        return self.state / "ledger.sqlite"

    @property
    def picture(self) -> Path:
        """Return where the picture of the released models goes."""
        return self.path / "mixture.png"

    @property
    def graph(self) -> Path:
        """Return where the picture of the released graph goes."""
        return self.path / "field.png"

    def query(self) -> Content:
        """The SQL that reads the table that ships inside statsmodels, copied here so that paths stay short."""
        spec = importlib.util.find_spec("statsmodels")
        if spec is None or spec.origin is None:
            raise click.ClickException("statsmodels is not installed: pip install './bursar[demo]'")
        source = Path(spec.origin).parent / "datasets" / "randhie" / "randhie.csv"
        table = Path(shutil.copy(source, self.path / "randhie.csv"))
        query = self.path / "rand-hie.sql"
        query.write_text(QUERY.format(table=os.path.relpath(table)).lstrip())
        return Content(query)

    def token(self, name: str) -> str:
        """The token that `bursar-admin token issue --out` wrote for `name`."""
        return self.token_file(name).read_text().strip()

    def token_file(self, name: str) -> Path:
        """Return where the token of `name` is."""
        return self.path / f"{name}.token"

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """The server as a process of its own on a free loopback port; gives its address, ends it whatever happens."""
        try:
            with running(server_command(self.state), self.path / "server.log") as server:
                yield server.address
        except RuntimeError as error:
            raise click.ClickException(str(error)) from None


def command(program: str, *words: str | Path | Content, show_until: str = "\0") -> None:
    """Run one of our commands as a person would type it here, and print both.

    Args:
        program: "bursar-admin" or "bursar-audit".
        words: its arguments.
        show_until: leave out what it prints from this word on.

    Raises:
        click.ClickException: it failed; with what it said.
    """
    click.echo(f"  $ {' '.join([program, *map(_typed, words)])}")
    arguments = [sys.executable, "-m", _MODULES[program], *map(_meant, words)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise click.ClickException(f"{program} failed: {said}")
    for line in said.split(show_until)[0].splitlines():
        click.echo(f"  {line}".rstrip())


def _typed(word: str | Path | Content) -> str:
    return f'"$(cat {_meant(word.path)})"' if isinstance(word, Content) else shlex.quote(_meant(word))


def _meant(word: str | Path | Content) -> str:
    if isinstance(word, Content):
        return word.path.read_text()
    return os.path.relpath(word) if isinstance(word, Path) else word
