"""The recipe of CONTRIBUTING.md, followed to the letter: a fit that exists nowhere else works from end to end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.refresh_proofs import stale

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("proto", "models", "ledger", "server", "client")
COMPILE = "from bursar_server.fits.registry import FITS; [fit.warm_up() for fit in FITS.values()]"
MOST_LINES = 60
"""Maximum number of lines that a new fit may add outside of its own folder and message."""
SEEN = [
    "previewed",
    "charged",
    "fitted",
    "run in a child process",
    "replayed",
    "stored",
    "refused",
    "checked",
    "listed",
    "tried on synthetic rows",
    "fitted by the client",
    "suggested a spend",
    "shown by the command line",
]


class Line(NamedTuple):
    """A line that the recipe adds to a file."""

    file: str
    after: str
    add: str


class Copy(NamedTuple):
    """A file or folder of the example, and its place."""

    source: str
    place: str


def recipe() -> tuple[list[Copy], list[Line]]:
    """Return the two tables of the recipe."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## How a new fit plugs in\n")[2]
    rows = re.findall(r"^ *\| (`.*`) \|$", section.partition("\n## ")[0], re.MULTILINE)
    cells = [re.findall(r"`([^`]+)`", row) for row in rows]
    return [Copy(*row) for row in cells if len(row) == 2], [Line(*row) for row in cells if len(row) == 3]


def apply(tree: Path) -> None:
    """Follow the recipe in a copy of the sources."""
    copies, lines = recipe()
    for copy in copies:
        source, place = ROOT / copy.source, tree / copy.place
        if source.is_dir():
            shutil.copytree(source, place)
        elif place.exists():
            place.write_text(place.read_text(encoding="utf-8") + source.read_text(encoding="utf-8"), encoding="utf-8")
        else:
            shutil.copy(source, place)
    for line in lines:
        path = tree / line.file
        before, found, rest = path.read_text(encoding="utf-8").partition(f"{line.after}\n")
        if not found or line.after in rest.splitlines():
            raise LookupError(f"{line.file}: expected one line {line.after!r}")
        path.write_text(f"{before}{found}{line.add}\n{rest}", encoding="utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources with one more fit, its messages generated."""
    # Compiled kernels are kept beside the sources and copied with them: compiling them once is enough.
    subprocess.run([sys.executable, "-c", COMPILE], cwd=ROOT, check=True)
    made = tmp_path_factory.mktemp("recipe")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, made / package)
    shutil.copytree(ROOT / "tests" / "conformance", made / "tests" / "conformance")
    shutil.copy(ROOT / "pyproject.toml", made)
    apply(made)
    subprocess.run([sys.executable, made / "proto" / "generate.py"], check=True)
    return made


def python(tree: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of the copy first on its path."""
    path = os.pathsep.join(str(tree / package) for package in PACKAGES)
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True)


def test_a_new_fit_works_from_end_to_end(tree: Path) -> None:
    """Everything that a server, a ledger and a client do with a fit, with no other change than the recipe's."""
    found = python(tree, Path(__file__).with_name("driver.py"))
    assert found.stdout.splitlines() == SEEN, found.stderr


def test_it_conforms(tree: Path) -> None:
    """The catalogue has it, and asks of it what it asks of every fit."""
    catalogue = tree / "tests" / "conformance" / "test_catalogue.py"
    found = python(tree, "-m", "pytest", "-v", "-p", "no:cacheprovider", catalogue, "-k", "mean or has_every_fit")
    assert found.returncode == 0, found.stdout
    assert found.stdout.count("[mean; ") == 2


def test_it_takes_few_lines_elsewhere() -> None:
    """A line each in the contract's oneofs, the registry and the client's lists; all lines of the request value."""
    copies, lines = recipe()
    own = sum(
        sum(map(bool, (ROOT / copy.source).read_text(encoding="utf-8").splitlines()))
        for copy in copies
        if not copy.place.startswith(("server/bursar_server/fits/", "proto/"))
    )
    assert len(lines) >= 6
    assert 0 < own + len(lines) <= MOST_LINES


def test_its_proof_is_current() -> None:
    """The example is one to be copied, so its proof is as current as that of every fit."""
    assert stale(ROOT / "tests" / "recipe" / "mean" / "_statistics.md") == []


def test_a_step_less_and_it_does_not_start(tree: Path) -> None:
    """A server whose contract has a fit that the table lacks says so, and names it."""
    registry = tree / "server" / "bursar_server" / "fits" / "registry.py"
    whole = registry.read_text(encoding="utf-8")
    try:
        registry.write_text(whole.replace('"FitMean": mean,\n', ""), encoding="utf-8")
        found = python(tree, "-c", "from bursar_server.fits import registry; registry.check(registry.FITS)")
    finally:
        registry.write_text(whole, encoding="utf-8")
    assert "FitMean is neither registered in FITS nor listed in UNIMPLEMENTED" in found.stderr
