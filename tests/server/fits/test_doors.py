"""A fit gets at rows through the public names of the vault and of its session, and through nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar_server import fits
from bursar_server.fits import registry

FITS = Path(next(iter(fits.__path__)))
REFLECTION = {"vars", "dir", "globals", "locals", "eval", "exec", "__import__"}
"""Calls by which a name that is not written out can be reached."""
MODULES = ("inspect", "gc", "sys", "ctypes", "importlib", "operator", "builtins")
"""Modules that reach into frames and objects."""


def ways_round(source: str) -> Iterator[str]:
    """Every access of a source to what another object or the vault keeps to itself."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if not name.startswith("__"):
                pass
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
                pass
            case ast.Attribute(attr=name) if name.startswith("_"):
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id=name)) if name in REFLECTION:
                yield name
            case ast.Constant(value=str(text)) if text.startswith("_") and text.isidentifier():
                yield repr(text)
            case ast.ClassDef(bases=bases) if {"Session", "Forest"} & {ast.unparse(b).split(".")[-1] for b in bases}:
                yield f"class {node.name}"
            case ast.ImportFrom(module=str(module)) if module.startswith("bursar_server.vault."):
                yield module
            case ast.Import(names=names) | ast.ImportFrom(module=None, names=names):
                yield from (name.name for name in names if name.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in MODULES:
                yield module


def test_no_fit_looks_into_its_session() -> None:
    """No module of a fit names a private attribute of another object, a private module of the vault, or reflection."""
    found = {
        (str(path.relative_to(FITS)), way)
        for path in FITS.rglob("*.py")
        for way in ways_round(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    "planted",
    [
        "rows = session._rows.slots",
        "exact = parts.forest._exact_sums([])",
        "rows = getattr(session, '_rows')",
        "rows = vars(session)['rows']",
        "rows = session.__dict__",
        "class Wide(Session):\n    def rows(self): return self._rows",
        "class Wide(vault.Forest): ...",
        "from bursar_server.vault._statistic import exact_sum",
        "from operator import attrgetter",
        "import gc",
        "import sys\nsys._getframe()",
    ],
)
def test_the_search_finds_planted_ways(planted: str) -> None:
    """Each way to the rows, or to their number, would be found."""
    assert list(ways_round(planted))


@pytest.mark.parametrize("plain", ["self._settings", "cls._kinds", "super().__init__('x')", "session.progress(1, 2)"])
def test_what_a_fit_may_do_is_not_found(plain: str) -> None:
    """A class reads its own attributes, and a fit what its session offers."""
    assert list(ways_round(plain)) == []


OWN = {getattr(fit, "__name__", "") for fit in registry.FITS.values()}
"""Packages of the registered fits."""


def foreign_imports(source: str, package: str) -> Iterator[str]:
    """Every module of another fit that a module of a package under `fits` imports."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found = [f"{module}.{one.name}" for one in names]
            case ast.Import(names=names):
                found = [one.name for one in names]
            case _:
                continue
        yield from (name for name in found for other in OWN - {package} if f"{name}.".startswith(f"{other}."))


def test_no_fit_imports_another() -> None:
    """Fits share modules of their own, such as `fits.mixtures`, and these import no fit."""
    found = {
        (str(path.relative_to(FITS)), name)
        for path in FITS.glob("*/*.py")
        for name in foreign_imports(path.read_text(encoding="utf-8"), f"bursar_server.fits.{path.parent.name}")
    }
    assert found == set()


@pytest.mark.parametrize(
    "planted",
    [
        "from bursar_server.fits.dpem._plan import plan",
        "from bursar_server.fits.dpem import _start",
        "from bursar_server.fits import dpem",
        "import bursar_server.fits.dpem",
    ],
)
def test_an_import_of_another_fit_is_found(planted: str) -> None:
    """Imports of its package, of a module, and of a name are found."""
    assert list(foreign_imports(planted, "bursar_server.fits.mrf"))
    assert not list(foreign_imports(planted, "bursar_server.fits.dpem"))
