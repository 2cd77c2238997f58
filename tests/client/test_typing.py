"""What a type checker says about programs that use the package."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import assert_type

import pytest

import bursar
from bursar.testing import FakeServer

WRONG = """
import bursar

def program(dataset: bursar.Dataset) -> None:
    dataset.fit_dpem(n_components=2, spend=0.1)
    dataset.fit_dpem(n_components=2, spend=bursar.rho(1), mode="median")
    dataset.fit_dpem(n_components=2, spend=bursar.rho(1), colums=["a"])
    dataset.fit_dpem(n_components=2, spend=bursar.rho(1), mode="kmeans").means_
    dataset.fit_sketch_kmeans(n_clusters=2, spend=bursar.rho(1), law="cauchy")
    dataset.fit_sketch_kmeans(n_clusters=2, sketch=2, decoding="mixture").cluster_centers_
    dataset.sketch(spend=bursar.rho(1), entry=2)
    dataset.sketch(entry=2, columns=["a"])
    dataset.fit_mrf(cliques="forest", spend=bursar.rho(1))
    dataset.fit_mrf(cliques="tree", spend=bursar.rho(1), estimator="em")
    dataset.fit_mrf(cliques=["a", "b"], spend=bursar.rho(1))
    dataset.fit_mrf(cliques=[("a", "b")], reuse=2)
    dataset.fit_gradient_em(model="regression", spend=bursar.rho(1))
    dataset.fit_gradient_em(model="missing_covariates", spend=bursar.rho(1))
    dataset.fit_gradient_em(model="gaussian_mixture", spend=bursar.rho(1), target="a")
    dataset.fit_gradient_em(model="symmetric_mixture", spend=bursar.rho(1), n_components=2)
    dataset.fit_gradient_em(model="gaussian_mixture", spend=bursar.rho(1), variant="catoni")
    dataset.fit_gradient_em(model="mixture_of_regressions", target="a", spend=bursar.rho(1)).means_
    dataset.fit_separated_gmm(n_components=2, sigma_min=1, spend=bursar.rho(1))
    dataset.fit_separated_gmm(n_components=2, sigma_min=1, sigma_max=2, spend=bursar.rho(1), covariance_type="tied")
    dataset.fit_separated_gmm(n_components=2, sigma_min=1, sigma_max=2, spend=bursar.rho(1)).cluster_centers_
"""


def test_modes_have_their_types(server: FakeServer) -> None:
    """The type of a result follows from the mode that was written down."""
    with server.client() as client:
        toy = client.dataset("toy")
        assert_type(toy.fit_dpem(n_components=1, spend=bursar.rho(1)), bursar.GaussianMixture)
        assert_type(toy.fit_dpem(n_components=1, spend=bursar.rho(1), mode="kmeans", columns=["weight"]), bursar.KMeans)
        sketch = toy.sketch(spend=bursar.rho(1), n_clusters=1)
        assert_type(sketch, bursar.Sketch)
        assert_type(toy.fit_sketch_kmeans(n_clusters=1, sketch=sketch), bursar.KMeans)
        assert_type(toy.fit_sketch_kmeans(n_clusters=1, sketch=4, decoding="mixture"), bursar.GaussianMixture)
        field = toy.fit_mrf(cliques=[("group", "weight"), ["spring"]], spend=bursar.rho(1))
        assert_type(field, bursar.MarkovRandomField)
        chain = bursar.Chain(["spring", "summer"], null="unknown")
        assert_type(toy.preview_mrf(cliques=chain, spend=bursar.rho(1)), bursar.Preview)
        assert_type(toy.fit_mrf(cliques=[("weight",)], reuse=[field, 5]), bursar.MarkovRandomField)
        mirrored = toy.fit_gradient_em(model="symmetric_mixture", spend=bursar.rho(1), centre=[160, 90])
        assert_type(mirrored, bursar.SymmetricMixture)
        start = toy.fit_dpem(n_components=2, spend=bursar.rho(1))
        mixture = toy.fit_gradient_em(model="gaussian_mixture", spend=bursar.rho(1), n_components=2, start=start)
        assert_type(mixture, bursar.GaussianMixture)
        lines = toy.fit_gradient_em(
            model="mixture_of_regressions", target="weight", symmetric=True, spend=bursar.rho(1)
        )
        assert_type(lines, bursar.MixtureOfRegressions)
        line = toy.fit_gradient_em(
            model="missing_covariates", target="weight", features=["height"], spend=bursar.rho(1)
        )
        assert_type(line, bursar.LinearRegression)
        found = toy.fit_separated_gmm(n_components=2, sigma_min=1, sigma_max=9.5, spend=bursar.rho(1))
        assert_type(found, bursar.GaussianMixture)
        expected, std = line.predict([[170.0]], return_std=True)
        assert expected.shape == std.shape == (1,)


@pytest.mark.slow
def test_mistakes_are_found_before_they_run(tmp_path: Path) -> None:
    """Each of the wrong lines is an error of its own, at its line."""
    importlib.metadata.version("mypy")
    (tmp_path / "wrong.py").write_text(WRONG)
    source = Path(bursar.__file__).parents[1]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, (source, source.parent / "proto")))}
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "wrong.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lines = [*range(5, 5 + WRONG.count("    dataset."))]
    assert [line for line in lines if f"wrong.py:{line}: error" in run.stdout] == lines
