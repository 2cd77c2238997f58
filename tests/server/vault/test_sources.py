"""Noise has one source, and nothing else in the server is random."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bursar_server

SERVER = Path(next(iter(bursar_server.__path__)))
FORBIDDEN = {"random", "numpy.random", "opendp", "os.urandom", "os.getrandom"}
"""Modules that draw; and `rvs`, by which any law of scipy's draws."""


def names_used(tree: ast.AST) -> Iterator[str]:
    """Every imported name and every dotted attribute, `np` spelt out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node).replace("np.", "numpy.", 1)


def forbidden_in(source: str) -> set[str]:
    """The forbidden modules that a source uses."""
    used = set(names_used(ast.parse(source)))
    drawn = {"rvs" for name in used if name.endswith(".rvs")}
    return drawn | {module for module in FORBIDDEN if any(f"{name}.".startswith(f"{module}.") for name in used)}


def test_only_the_noise_module_imports_opendp_and_nothing_draws_otherwise() -> None:
    """No generator can be reached from the server but OpenDP's and the operating system's, each from one module."""
    found = {
        (str(path.relative_to(SERVER)), module)
        for path in SERVER.rglob("*.py")
        for module in forbidden_in(path.read_text(encoding="utf-8"))
    }
    assert found == {("vault/_noise.py", "opendp"), ("vault/_sampling.py", "os.urandom")}


def test_public_randomness_is_drawn_where_it_is_known_to_be_public() -> None:
    """Directions, grids to integrate over, rows drawn from what is released: nothing that has to stay secret."""
    users = {
        str(path.relative_to(SERVER))
        for path in SERVER.rglob("*.py")
        if "public_generator" in path.read_text(encoding="utf-8")
    }
    assert users == {
        "fits/dpem/_pseudo_rows.py",
        "fits/gradient_em/_information.py",
        "fits/gradient_em/_missing_covariates.py",
        "fits/mixtures/points.py",
        "fits/separated_gmm/_correct.py",
        "fits/separated_gmm/_easy.py",
        "fits/separated_gmm/_tree.py",
    }


@pytest.mark.parametrize(
    "planted",
    [
        "import random",
        "from random import gauss",
        "import numpy as np\nnp.random.default_rng(0)",
        "from numpy import random as r",
        "from numpy.random import default_rng",
        "import opendp.prelude as dp",
        "import os\nos.urandom(8)",
        "from os import urandom",
        "from scipy import stats\nstats.norm.rvs()",
    ],
)
def test_the_search_finds_planted_sources(planted: str) -> None:
    """Each way of reaching another generator would be found."""
    assert forbidden_in(planted)
