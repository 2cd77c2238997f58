"""Pictures of models: what is drawn is what the model says."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.patches import Ellipse

import bursar
from bursar_models import (
    COVARIANCE_TYPES,
    CovarianceType,
    GaussianMixture,
    GradientTrace,
    KMeans,
    LinearRegression,
    MarkovRandomField,
    MixtureOfRegressions,
    SymmetricMixture,
    Variable,
)

mpl.use("Agg")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """No figure is left open."""
    yield
    plt.close("all")


def ellipses(ax: Any) -> list[Ellipse]:
    """The ellipses on some axes."""
    return [patch for patch in ax.patches if isinstance(patch, Ellipse)]


def legend(ax: Any) -> list[str]:
    """The lines of the legend."""
    return [text.get_text() for text in ax.get_legend().get_texts()]


def trace(k: int, p: int) -> GradientTrace:
    """Errors 0.1, 0.2 ..."""
    errors = 0.1 * (1 + np.arange(float(k * p)).reshape(k, p))
    return GradientTrace("recentred", np.zeros((2, k, p)), errors, np.ones(1), 1.0, 1)


@pytest.mark.parametrize("covariance_type", COVARIANCE_TYPES)
def test_ellipses_have_one_and_two_standard_deviations(make_mixture: Any, covariance_type: CovarianceType) -> None:
    """Every point of their edge is that far from the mean, in the covariance of the columns that are drawn."""
    model = replace(make_mixture(3, covariance_type, k=3, d=3), columns=("a", "b", "c"))
    ax = model.plot(columns=["c", "a"])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("c", "a")
    assert ax.get_title(loc="left").startswith("GaussianMixture: 3 components")
    full = model.covariances_
    if covariance_type in ("diag", "spherical"):
        full = np.broadcast_to(np.reshape(full, (3, -1)), (3, 3))[:, :, None] * np.eye(3)
    full = np.broadcast_to(full, (3, 3, 3))
    drawn = ellipses(ax)
    assert len(drawn) == 6
    shown = full[:, [2, 0]][:, :, [2, 0]]
    # The largest is below the others.
    for number, z in enumerate(np.argsort(-np.linalg.det(shown), kind="stable")):
        covariance = shown[z]
        for radius, ellipse in zip((1, 2), drawn[2 * number : 2 * number + 2], strict=True):
            points = ellipse.get_patch_transform().transform(np.array([[1, 0], [0, 1], [-0.6, 0.8]]))
            away = points - model.means_[z, [2, 0]]
            distances = np.einsum("ni,ij,nj->n", away, np.linalg.inv(covariance), away)
            np.testing.assert_allclose(np.sqrt(distances), radius)
    assert legend(ax) == [f"{z}: {weight:.1%}" for z, weight in enumerate(model.weights_)]


def test_a_mixture_on_one_column_is_a_density(make_mixture: Any) -> None:
    """The density integrates to 1, and is that of the model."""
    model = make_mixture(1, "full", k=2, d=2)
    ax = model.plot(columns="x1")
    x, y = ax.lines[0].get_data()
    one = GaussianMixture(model.weights_, model.means_[:, 1:], model.covariances_[:, 1:, 1:])
    np.testing.assert_allclose(y, np.exp(one.score_samples(np.reshape(x, (-1, 1)))))
    assert np.trapezoid(y, x) == pytest.approx(1, abs=1e-3)
    alone = one.plot()
    assert (alone.get_xlabel(), alone.get_ylabel()) == ("x0", "density")


def test_errors_of_means_are_bars() -> None:
    """Two standard errors on both sides, and the legend says so."""
    model = GaussianMixture(np.ones(2) / 2, np.eye(2), np.ones((2, 2)), "diag", trace=trace(2, 2))
    ax = model.plot()
    reach = [path.vertices for bar in ax.containers for path in [c.get_paths()[0] for c in bar.lines[2]]]
    assert [np.ptp(ends, axis=0).max() for ends in reach] == pytest.approx([0.4, 0.8, 1.2, 1.6])
    assert "bars: 2 standard errors" in ax.get_legend().get_title().get_text()


def test_a_symmetric_mixture_has_its_centre() -> None:
    """The centre lies between its components; on one column, too."""
    model = SymmetricMixture(np.array([2.0, -1.0]), np.array([10.0, 5.0]), np.array([0.5, 1.5]))
    ax = model.plot()
    assert [line.get_xydata().tolist() for line in ax.lines][-1] == [[10.0, 5.0]]
    assert len(ellipses(ax)) == 4
    assert model.plot(columns=["x1"]).lines[-1].get_xydata().tolist() == [[5.0, 0.0]]


def test_centres_have_circles_of_their_clusters() -> None:
    """Circles are as wide in every column as the root of the mean square distance."""
    model = KMeans(np.arange(6.0).reshape(2, 3), np.array([0.25, 0.75]), np.array([4.0, 9.0]), columns=("a", "b", "c"))
    ax = model.plot()
    assert [(e.get_width(), e.get_height(), tuple(e.center)) for e in ellipses(ax)] == [
        (6.0, 6.0, (3.0, 4.0)),
        (4.0, 4.0, (0.0, 1.0)),
    ]
    assert legend(ax) == ["0: 25.0%", "1: 75.0%"]
    line = model.plot(columns="c")
    assert (line.get_xlabel(), line.get_ylabel()) == ("c", "share of the rows")
    assert [bar.lines[0].get_xydata().tolist() for bar in line.containers] == [[[2.0, 0.25]], [[5.0, 0.75]]]


def test_a_long_legend_is_cut() -> None:
    """Fifteen clusters are drawn, and twelve are named."""
    model = KMeans(np.arange(30.0).reshape(15, 2), np.full(15, 1 / 15), np.ones(15))
    ax = model.plot()
    assert len(ellipses(ax)) == 15
    assert legend(ax)[-1] == "and 3 more"
    assert len(legend(ax)) == 13
    within = model.plot(plt.figure().gca())
    assert within.get_legend() is None


@pytest.mark.parametrize("columns", ["z", ["a", "b", "c"], ["a", "a"], []])
def test_other_columns_are_refused(columns: Any) -> None:
    """One or two of the model's own."""
    model = KMeans(np.ones((1, 3)), np.ones(1), np.ones(1), columns=("a", "b", "c"))
    with pytest.raises(ValueError, match="columns: "):
        model.plot(columns=columns)


def test_coefficients_have_their_errors() -> None:
    """A point beside every feature, two standard errors on both sides; intercept and noise in the title."""
    model = LinearRegression(np.array([2.0, -3.0]), 1.5, 0.5, columns=("a", "b"), target="cost", trace=trace(1, 3))
    ax = model.plot()
    (bars,) = ax.containers
    assert bars.lines[0].get_xydata().tolist() == [[2.0, 0.0], [-3.0, 1.0]]
    ends = [np.ptp(path[:, 0]) for path in bars.lines[2][0].get_segments()]
    assert ends == pytest.approx([0.4, 0.8])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_xlabel().startswith("cost per unit of the feature\nbars: 2 standard errors")
    title = ax.get_title(loc="left").replace("\n", " ")
    assert title == "LinearRegression of 'cost': noise 0.5; intercept 1.5 ± 0.3"
    assert "bars" not in replace(model, trace=None).plot().get_xlabel()


def test_regressions_of_a_mixture_are_beside_each_other() -> None:
    """No two points of a feature at one height."""
    model = MixtureOfRegressions(np.ones((3, 2)), np.zeros(3), np.array([0.5, 0.3, 0.2]), np.ones(3))
    ax = model.plot()
    heights = np.concatenate([bars.lines[0].get_ydata() for bars in ax.containers])
    assert len(set(heights.tolist())) == 6
    assert {round(height) for height in heights} == {0, 1}
    assert legend(ax) == ["0: 50.0%, intercept 0", "1: 30.0%, intercept 0", "2: 20.0%, intercept 0"]


def test_a_chain_is_a_matrix_of_transitions(toy: bursar.Dataset) -> None:
    """Rows sum to 1, the first one has the first states; the state that stands for "not observed" is marked."""
    chain = bursar.Chain(["spring", "summer", "autumn"], null="unknown")
    model = toy.fit(bursar.MRF(cliques=chain), spend=bursar.rho(0.1))
    ax = model.plot()
    cells = np.asarray(ax.images[0].get_array())
    np.testing.assert_allclose(cells[0], model.marginals_[0])
    np.testing.assert_allclose(cells[2:].sum(axis=1), 1)
    np.testing.assert_allclose(cells[2:] * model.marginals_[1].sum(axis=1, keepdims=True), model.marginals_[1])
    states = ["well", "ill", "unknown\n(not observed)"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["first state", *states]
    assert [label.get_text() for label in ax.get_xticklabels()] == states
    assert len(ax.texts) == 12


def test_a_long_chain_has_no_numbers_in_its_cells() -> None:
    """Nor names, of very many states; a state that never comes before another has an empty row."""
    states = tuple(map(str, range(50)))
    pairs = np.full((50, 50), 1 / 2500)
    pairs[3] = 0
    model = MarkovRandomField(
        variables_=(Variable("t0", states), Variable("t1", states)),
        cliques_=(("t0",), ("t0", "t1")),
        log_potentials_=(np.zeros(50), np.zeros((50, 50))),
        marginals_=(np.full(50, 0.02), pairs),
        log_partition_=math.log(2500),
        homogeneous_chain=True,
    )
    ax = model.plot()
    assert not ax.texts
    assert {label.get_text() for label in ax.get_xticklabels()} == {""}
    assert np.isnan(np.asarray(ax.images[0].get_array())[5]).all()


def test_a_sketch_shows_its_moments_and_the_noise(toy: bursar.Dataset) -> None:
    """One point a frequency, and a line at the root mean square of what noise and sampling leave."""
    sketch = replace(toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1)), noise_std=30.0)
    ax = sketch.plot()
    points, line = ax.lines
    np.testing.assert_allclose(points.get_ydata(), np.abs(sketch.moments()))
    np.testing.assert_allclose(points.get_xdata(), sketch.frequencies.radii(), rtol=1e-6)
    assert line.get_ydata()[0] == pytest.approx(math.sqrt(2) * sketch.moment_error())
    assert ax.get_title(loc="left").startswith(f"Sketch: {sketch.m} frequencies of 2 columns")


def test_a_dollar_in_a_name_begins_no_formula(make_mixture: Any, toy: bursar.Dataset) -> None:
    """Columns of money are called so; what stands between two dollars is no formula, and need not even be one."""
    names = ("cost $^$", "tax $_$, in $")
    model = replace(make_mixture(3, "diag", k=2, d=2), columns=names)
    spend = bursar.rho(0.1)
    field = toy.fit(bursar.MRF(cliques=[("group", "spring")]), spend=spend)
    assert isinstance(field, bursar.MarkovRandomField)
    line = toy.fit(bursar.GradientEM(model="missing_covariates", target="weight"), spend=spend)
    assert isinstance(line, bursar.LinearRegression)
    renamed = [replace(one, name=name) for one, name in zip(field.variables_, names, strict=True)]
    others = (
        replace(field, variables_=tuple(renamed), cliques_=(names,), tables_=()),
        replace(line, columns=names[:1], target=names[1]),
    )
    ax = model.plot()
    ax.figure.draw_without_rendering()
    assert (ax.get_xlabel(), ax.get_ylabel()) == (r"cost \$^\$", r"tax \$_\$, in \$")
    for one in others:
        one.plot().figure.draw_without_rendering()
    with pytest.raises(ValueError, match="Parse"):
        ax.set_title(names[0]).figure.draw_without_rendering()


def test_pictures_go_onto_the_axes_that_are_given(make_mixture: Any) -> None:
    """And come back; a figure without a layout has a small legend within them."""
    ax = plt.figure().gca()
    assert make_mixture(0, "full").plot(ax) is ax
    assert ax.get_legend().get_title().get_text() == ""
    assert LinearRegression(np.ones(1), 0.0, 1.0).plot(ax) is ax


def test_without_matplotlib_the_command_is_told(make_mixture: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""

    def missing(name: str) -> None:
        raise ImportError(name)

    model = make_mixture(0, "full")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(bursar.MissingDependencyError, match=r"pip install './bursar\[plot\]'"):
        model.plot()


def test_a_schema_labels_the_axes_and_marks_the_bounds(make_mixture: Any) -> None:
    """Descriptions and public bounds of the columns that are drawn; other columns and categories change nothing."""
    schema: list[bursar.NumericColumn | bursar.CategoricalColumn] = [
        bursar.NumericColumn("b", "visits to a doctor that year", 0.0, 50.0),
        bursar.NumericColumn("a", "", -9.0, 9.0),
        bursar.CategoricalColumn("c", "group", ("x", "y")),
    ]
    model = replace(make_mixture(1, "full", k=2, d=3), columns=("a", "b", "c"))
    centres = KMeans([[0.0, 1.0, 2.0]], [1.0], [1.0], ("a", "b", "c"))  # type: ignore[arg-type]
    mirror = SymmetricMixture([1.0] * 3, [0.0] * 3, [1.0] * 3, ("a", "b", "c"))  # type: ignore[arg-type]
    for one in (model, centres, mirror):
        ax = one.plot(columns=("a", "b"), schema=schema)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "b: visits to a doctor that year")
        lines = [line for line in ax.lines if line.get_linestyle() == ":"]
        assert [[float(x) for x in line.get_xdata()] for line in lines[:2]] == [[-9, -9], [9, 9]]
        assert [[float(y) for y in line.get_ydata()] for line in lines[2:]] == [[0, 0], [50, 50]]
        plain = one.plot(columns=("a", "b"))
        assert plain.get_ylabel() == "b"
        assert not [line for line in plain.lines if line.get_linestyle() == ":"]
    ax = model.plot(columns="c", schema=schema)
    assert ax.get_xlabel() == "c"
