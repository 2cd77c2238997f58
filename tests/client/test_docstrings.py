"""Examples in docstrings do what they say: `client` is an analyst of its own, `data` the toy of a real server."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import bursar
import bursar.testing
import bursar_models
from tests.each import each

# A program's own namespace, and the command line, which has pages instead.
_LEFT_OUT = {"_cli", "local"}


def _examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    packages = (bursar, bursar_models)
    names = [one.name for each in packages for one in pkgutil.walk_packages(each.__path__, f"{each.__name__}.")]
    for name in ("bursar", "bursar_models", *(name for name in names if name.split(".")[1] not in _LEFT_OUT)):
        yield from (found for found in finder.find(importlib.import_module(name)) if found.examples)


EXAMPLES = {example.name: example for example in _examples()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_it_says(
    name: str, client: bursar.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed output is the promised one."""
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    example = EXAMPLES[name]
    example.globs = {"bursar": bursar, "np": np, "client": client, "data": client.dataset("toy")}
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(example, out=told.append)
    plt.close("all")
    assert not told, "".join(told)


@each(
    "name",
    [
        *(f"Dataset.{name}" for name in ("fit", "preview", "dry_run", "suggest_spend", "plan", "model")),
        *("DPEM", "SeparatedGMM", "GradientEM", "SketchKMeans", "MRF"),
        *("GaussianMixture", "KMeans", "SymmetricMixture", "LinearRegression", "MixtureOfRegressions"),
        *("MarkovRandomField", "Sketch", "load", "serve", "recorded", "Client.releases", "Chain"),
    ],
)
def test_what_a_beginner_looks_up_has_an_example(name: str) -> None:
    """Every fit, every model, and what keeps them."""
    assert any(example.endswith(f".{name}") for example in EXAMPLES)
