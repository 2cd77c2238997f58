"""Reports of a type checker about programs that use the package."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import assert_type

import pytest

import bursar
from tests.client.line import Line

WRONG = """
import bursar
RHO = bursar.rho(1)

def program(dataset: bursar.Dataset) -> None:
    dataset.fit(bursar.DPEM(n_components=2), spend=0.1)
    dataset.fit(bursar.DPEM(n_components=2, mode="median"), spend=bursar.rho(1))
    dataset.fit(bursar.DPEM(n_components=2, colums=["a"]), spend=bursar.rho(1))
    dataset.fit(bursar.DPEM(n_components=2, mode="kmeans"), spend=bursar.rho(1)).means_
    dataset.fit(bursar.DPEM(n_components=2), spend=bursar.rho(1), columns=["a"])
    dataset.fit("dpem", spend=bursar.rho(1))
    dataset.fit(bursar.SketchKMeans(n_clusters=2, law="cauchy"), spend=bursar.rho(1))
    dataset.fit(bursar.SketchKMeans(n_clusters=2, sketch=2, decoding="mixture")).cluster_centers_
    dataset.fit(bursar.SketchKMeans(decoding="none")).cluster_centers_
    dataset.fit(bursar.MRF(cliques="forest"), spend=bursar.rho(1))
    dataset.fit(bursar.MRF(cliques="tree", estimator="em"), spend=bursar.rho(1))
    dataset.fit(bursar.MRF(cliques=["a", "b"]), spend=bursar.rho(1))
    dataset.fit(bursar.MRF(cliques=[("a", "b")], reuse=2))
    dataset.fit(bursar.GradientEM(model="regression"), spend=bursar.rho(1))
    dataset.fit(bursar.GradientEM(model="gaussian_mixture", variant="catoni"), spend=bursar.rho(1))
    dataset.fit(bursar.GradientEM(model="mixture_of_regressions", target="a"), spend=bursar.rho(1)).means_
    dataset.fit(bursar.SeparatedGMM(n_components=2, sigma_min=1), spend=bursar.rho(1))
    dataset.fit(bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=2, covariance_type="tied"), spend=RHO)
    dataset.fit(bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=2), spend=bursar.rho(1)).cluster_centers_
    dataset.dry_run(bursar.DPEM(n_components=2, mode="kmeans"), spend=bursar.rho(1)).means_
    dataset.plan([bursar.DPEM(n_components=2), 3], spend=bursar.rho(1))
"""


def entry(released: bursar.Sketch | bursar.MarkovRandomField) -> int:
    """The entry of the ledger that paid for it."""
    assert released.receipt is not None
    return released.receipt.entry


def test_modes_have_their_types(server: Line) -> None:
    """The type of a result follows from the mode that was written down."""
    with server.client() as client:
        toy = client.dataset("toy")
        assert_type(toy.fit(bursar.DPEM(n_components=1), spend=bursar.rho(1)), bursar.GaussianMixture)
        assert_type(
            toy.fit(bursar.DPEM(n_components=1, mode="kmeans", columns=["weight"]), spend=bursar.rho(1)), bursar.KMeans
        )
        sketch = toy.fit(bursar.SketchKMeans(decoding="none", n_clusters=1), spend=bursar.rho(1))
        assert_type(sketch, bursar.Sketch)
        assert_type(toy.fit(bursar.SketchKMeans(n_clusters=1, sketch=sketch)), bursar.KMeans)
        assert_type(
            toy.fit(bursar.SketchKMeans(n_clusters=1, sketch=entry(sketch), decoding="mixture")), bursar.GaussianMixture
        )
        field = toy.fit(bursar.MRF(cliques=[("group", "weight"), ["spring"]]), spend=bursar.rho(1))
        assert_type(field, bursar.MarkovRandomField)
        assert_type(toy.dry_run(bursar.MRF(cliques="independent"), spend=bursar.rho(1)), bursar.MarkovRandomField)
        mixed = [bursar.DPEM(n_components=1), bursar.MRF(cliques="tree")]
        assert_type(toy.plan(mixed, spend=bursar.rho(1)), bursar.Plan)
        chain = bursar.Chain(["spring", "summer"], null="unknown")
        assert_type(toy.preview(bursar.MRF(cliques=chain), spend=bursar.rho(1)), bursar.Preview)
        assert_type(toy.fit(bursar.MRF(cliques=[("weight",)], reuse=[field, entry(field)])), bursar.MarkovRandomField)
        mirrored = toy.fit(bursar.GradientEM(model="symmetric_mixture", centre=[160, 90]), spend=bursar.rho(1))
        assert_type(mirrored, bursar.SymmetricMixture)
        start = toy.fit(bursar.DPEM(n_components=2), spend=bursar.rho(1))
        mixture = toy.fit(bursar.GradientEM(model="gaussian_mixture", n_components=2, start=start), spend=bursar.rho(1))
        assert_type(mixture, bursar.GaussianMixture)
        lines = toy.fit(
            bursar.GradientEM(model="mixture_of_regressions", target="weight", symmetric=True), spend=bursar.rho(1)
        )
        assert_type(lines, bursar.MixtureOfRegressions)
        line = toy.fit(
            bursar.GradientEM(model="missing_covariates", target="weight", features=["height"]), spend=bursar.rho(1)
        )
        assert_type(line, bursar.LinearRegression)
        found = toy.fit(bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=9.5), spend=bursar.rho(1))
        assert_type(found, bursar.GaussianMixture)
        expected, std = line.predict([[170.0]], return_std=True)
        assert expected.shape == std.shape == (1,)


@pytest.mark.slow
def test_mistakes_are_found_before_they_run(tmp_path: Path) -> None:
    """Each of the wrong lines is an error of its own, at its line."""
    importlib.metadata.version("mypy")
    (tmp_path / "wrong.py").write_text(WRONG)
    source = Path(bursar.__file__).parents[1]
    environment = {
        **os.environ,
        "MYPYPATH": os.pathsep.join(map(str, (source, source.parent / "proto", source.parent / "models"))),
    }
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "wrong.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lines = [*range(6, 6 + WRONG.count("    dataset."))]
    assert [line for line in lines if f"wrong.py:{line}: error" in run.stdout] == lines
