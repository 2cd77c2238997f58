"""Forecasts: `preview(..., like=...)` tells errors that fits then have, from synthetic rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy

import bursar
from bursar.testing import Server
from bursar_models import Goodness
from bursar_models.expected_rows import rows_like
from bursar_models.forecasts import REPLICATES, factors_of, foretold, joined, scaled, spreads, with_cells
from bursar_models.schema import CategoricalColumn, NumericColumn
from tests.client.conftest import TOY
from tests.client.line import Line
from tests.client.trajectories import released

SPEND = bursar.rho(0.1)
HEIGHT = NumericColumn("height", "", 100.0, 220.0)
WEIGHT = NumericColumn("weight", "", 30.0, 150.0)
ARM = CategoricalColumn("group", "", ("control", "treated"))
COLUMNS = HEIGHT, WEIGHT
ONE, ONE2 = np.ones((1, 1)), np.ones(2)
PEOPLE = bursar.GaussianMixture(
    weights_=np.array([0.6, 0.4]),
    means_=np.array([[140, 60], [180, 100]]),
    covariances_=np.array([[64, 64], [100, 100]]),
    covariance_type="diag",
    columns=("height", "weight"),
)


def generator(seed: int) -> np.random.Generator:  # noqa: TID251 - made-up releases
    """A generator of made-up releases."""
    return np.random.default_rng(seed)  # noqa: TID251 - made-up releases


@pytest.mark.parametrize(
    ("request_", "like", "name"),
    [
        (bursar.DPEM(n_components=2), PEOPLE, "mean_error"),
        (bursar.DPEM(n_components=2, mode="kmeans"), PEOPLE, "mean_error"),
        (bursar.DPEM(n_components=2), bursar.Guess(weights=[1, 1], spread=8), "mean_error"),
        (bursar.SketchKMeans(n_clusters=2), PEOPLE, "relative_sse"),
        (bursar.SketchKMeans(n_clusters=2), PEOPLE, "mean_error"),
        (bursar.GradientEM(model="gaussian_mixture", n_components=2), PEOPLE, "mean_error"),
        (bursar.DPEM(n_components=2), PEOPLE, "quantile_error"),
        (bursar.GradientEM(model="mixture_of_regressions", target="weight", features=["height"]), PEOPLE, "coef_error"),
        (bursar.SeparatedGMM(n_components=2, sigma_min=5, sigma_max=15), PEOPLE, "mean_error"),
        (bursar.MRF(cliques=[("group", "spring")]), bursar.Guess(weights=[1], spread=9), "table_error"),
    ],
)
def test_every_fit_is_foretold(toy: bursar.Dataset, request_: Any, like: Any, name: str) -> None:
    """Rows come from a model or a guess; the range has the middle, and nothing is debited."""
    before = toy.remaining()
    found = toy.preview(request_, spend=SPEND, like=like)
    assert toy.remaining() == before
    assert found.forecast is not None
    assert found.forecast.replicates == (16 if name == "coef_error" else REPLICATES)
    assert found.forecast.rows == toy.public_rows
    assert found.forecast.guessed
    low, middle, high = found.forecast.low[name], found.expected[name], found.forecast.high[name]
    if isinstance(middle, float):
        assert 0 < low <= middle <= high  # type: ignore[operator]
    else:
        assert all(0 < low[c] <= middle[c] <= high[c] for c in middle)  # type: ignore[index]
    assert "dry runs on rows like those of" in repr(found)
    mixture = isinstance(request_, bursar.DPEM | bursar.GradientEM | bursar.SeparatedGMM) and name in (
        "mean_error",
        "quantile_error",
    )
    several = mixture or name == "coef_error"
    assert found.forecast.wide == (several and getattr(request_, "mode", "mixture") == "mixture")
    assert ("the range is wide" in repr(found)) == found.forecast.wide
    assert ("nine of ten fits" in repr(found)) == found.forecast.wide


def test_mixtures_and_regressions_from_regressions_have_a_wide_range() -> None:
    """A mixture as prior knows the features of a regression, and shows one of several answers of a mixture."""
    line = bursar.LinearRegression(np.ones(2), 0.0, 1.0)
    lines = bursar.MixtureOfRegressions(np.ones((2, 2)), np.arange(2.0), np.ones(2) / 2, np.ones(2))
    assert factors_of(PEOPLE, PEOPLE, COLUMNS) == {
        "mean_error": (1 / 3, 1.0, 16.0),
        "quantile_error": (1 / 3, 1.0, 3.0),
    }
    assert factors_of(line, PEOPLE, COLUMNS) == {}
    assert factors_of(line, line, COLUMNS) == {"coef_error": (1 / 4, 1.0, 4.0)}
    assert factors_of(lines, line, COLUMNS) == {"coef_error": (1 / 5, 1.0, 8.0)}
    assert factors_of(lines, PEOPLE, COLUMNS) == {"coef_error": (1 / 3, 1.0, 3.0)}


@pytest.mark.parametrize(("chance", "factor"), [(0.009, 1.5), (0.011, 1.0)])
def test_a_line_that_its_own_counts_contradict_foretells_more_error(
    chance: float, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends move with the middle."""
    goodness = Goodness("counts", 1.0, 0.1, 0.5, chance, False, "")
    monkeypatch.setattr(bursar.LinearRegression, "goodness", goodness)
    line = bursar.LinearRegression(np.ones(2), 0.0, 1.0)
    assert factors_of(line, line, COLUMNS)["coef_error"] == (factor / 4, factor, factor * 4)


@pytest.mark.parametrize(("count_std", "hidden"), [(1.0, 0.0), (24.0, 0.0), (26.0, 0.5), (990.0, 1.0)])
def test_directions_that_noise_hides_foretell_less_error(count_std: float, hidden: float) -> None:
    """Variances are 1e-2 and 1e-1 in squared half-widths of the bounds; a tenth of the noise is 4e-4 of it."""
    one = bursar.MixtureOfRegressions(
        np.ones((1, 2)),
        np.zeros(1),
        np.ones(1),
        np.ones(1),
        feature_means_=np.array([160.0, 90.0]),
        feature_covariance_=np.diag([36.0, 360.0]),
        columns=("height", "weight"),
        target="age",
        noise=(bursar.ReleaseNoise("look", 10, count_std, 1.0, 0.0, 1),),
        n_rows=1000.0,
    )
    assert factors_of(one, one, COLUMNS)["coef_error"][1] == pytest.approx((1 / 10) ** hidden)
    two = dataclasses.replace(one, coef_=np.ones((2, 2)), intercept_=np.zeros(2), weights_=ONE2 / 2, noise_std_=ONE2)
    assert factors_of(two, one, COLUMNS)["coef_error"][1] == 1.0


def test_errors_of_coefficients_are_put_together_over_columns() -> None:
    """A column whose errors are by chance all 0 has those of the others, in proportion to what the models say."""

    def line(move: float) -> bursar.LinearRegression:
        trace = bursar.GradientTrace("recentred", np.zeros((2, 1, 3)), np.array([[1.0, 3.0, 1.0]]), ONE[0], 1.0, 1)
        coef, columns = np.array([5.0 + move, 1.0]), ("a", "b")
        return bursar.LinearRegression(coef, 0.0, 1.0, columns=columns, target="y", trace=trace)

    low, middle, high = foretold([line(move) for move in (-2.0, -1.0, 0.0, 1.0, 2.0)], {})["coef_error"]
    for one in (low, middle, high):
        assert one["b"] == pytest.approx(3 * one["a"])  # type: ignore[index]
    assert high["a"] > 0.5  # type: ignore[index]


@pytest.mark.parametrize(("chance", "factor"), [(0.009, 2.0), (0.011, 1.0)])
def test_a_prior_that_its_own_sums_contradict_foretells_more_error(
    chance: float, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The middle of a mixture by FitDPEM alone: neither a range nor a mixture by another fit changes."""
    goodness = Goodness("sums", 1.0, 0.1, 0.5, chance, False, "")
    monkeypatch.setattr(bursar.GaussianMixture, "goodness", goodness)
    like = released("full", 1, steps=1)
    assert factors_of(like, like, COLUMNS) == {
        "mean_error": (1 / 3, factor, 16.0),
        "quantile_error": (1 / 3, factor, 3.0),
    }
    assert factors_of(PEOPLE, like, COLUMNS) == factors_of(like, PEOPLE, COLUMNS) == factors_of(PEOPLE, PEOPLE, COLUMNS)


def test_factors_are_of_every_column() -> None:
    """Numbers by column and one number alike; what has no factors stays as it is."""
    by_column, alone = ({"x": 3.0}, {"x": 4.0}, {"x": 5.0}), (3.0, 4.0, 5.0)
    factors = (1 / 3, 2.0, 16.0)
    found = scaled({"mean_error": by_column, "a": alone, "b": alone}, {"mean_error": factors, "a": factors})
    assert found["mean_error"] == ({"x": 1.0}, {"x": 8.0}, {"x": 80.0})
    assert (found["a"], found["b"]) == ((1.0, 8.0, 80.0), alone)


def test_errors_on_several_sets_of_rows_are_joined() -> None:
    """The middle is the geometric mean, and the range has both ranges; one set stays as it is."""
    first: Any = {"mean_error": ({"x": 1.0}, {"x": 2.0}, {"x": 5.0}), "relative_sse": (0.0, 1.0, 2.0)}
    second: Any = {"mean_error": ({"x": 3.0}, {"x": 8.0}, {"x": 9.0}), "relative_sse": (1.0, 4.0, 1.5)}
    assert joined([first]) == first
    found = joined([first, second])
    assert found["relative_sse"] == pytest.approx((0.0, 2.0, 2.0))
    assert [part["x"] for part in found["mean_error"]] == pytest.approx([1.0, 4.0, 9.0])  # type: ignore[index]
    both = with_cells({"e": (1.0, 2.0, 5.0)}, 2 * [{"e": (2.0, 4.0, 6.0)}], {"e": (1 / 3, 2.0, 16.0)})
    assert both["e"] == pytest.approx((0.5, 4.0, 12.0))


def test_a_prior_with_cells_has_more_sets_of_rows(toy: bursar.Dataset, server: Line) -> None:
    """Most dry runs of a mixture have the structure of the cells, three sets of rows; those of other fits have not."""
    means, shapes = np.array([[130, 60], [150, 60], [180, 100]]), np.stack(3 * [50 * np.eye(2)])
    cells = bursar.StartCells(np.ones(3) / 3, means, shapes)
    like = dataclasses.replace(PEOPLE, cells=cells)
    mixture, kmeans = bursar.DPEM(n_components=2), bursar.DPEM(n_components=2, mode="kmeans")
    for request, sets in ((mixture, [4, 4, 4, 6]), (kmeans, [REPLICATES])):
        before = len(server.dummy_requests)
        told = toy.preview(request, spend=SPEND, like=like).forecast
        assert told is not None
        assert told.replicates == sum(sets)
        made = [tuple(one.columns[0].values) for one in server.dummy_requests[before:]]
        assert sorted(made.count(rows) for rows in set(made)) == sets


def test_what_is_foretold_comes_true(toy: bursar.Dataset) -> None:
    """Fits to other rows of the same mixture, with the same spend, differ as much as was foretold.

    The error of a fit is that of the forecast's own measure. With 12 fits on either side the ratio of medians is beyond
    a factor of 3 less than once in a million times: they have a relative error of about 0.2 each.
    """
    request = bursar.DPEM(n_components=2)
    told = toy.preview(request, spend=SPEND, like=PEOPLE).expected["mean_error"]
    fits = [toy.dry_run(request, spend=SPEND, like=PEOPLE, seed=1) for _ in range(REPLICATES)]
    seen = np.median(spreads([fit.means_ for fit in fits]), axis=0)
    ratios = seen / np.array([told[name] for name in ("height", "weight")])  # type: ignore[index]
    assert (ratios > 1 / 3).all()
    assert (ratios < 3).all()


def test_a_dry_run_has_rows_like_the_models(toy: bursar.Dataset, server: Line) -> None:
    """The model comes back if there is hardly any noise."""
    made = toy.dry_run(bursar.DPEM(n_components=2), spend=bursar.rho(1e4), like=PEOPLE)
    assert made.dummy_
    np.testing.assert_allclose(made.means_[made.means_[:, 0].argsort()], PEOPLE.means_, atol=4)
    assert len(server.dummy_requests[-1].columns[0].values) == toy.public_rows


def test_spreads_are_the_deviations_of_the_noise() -> None:
    """The order of components plays no part; a spread that is 30 % off would be seen.

    The root mean square of two normal deviations has a median of 0.8326; over 120 releases it is known within 8 %.
    """
    rng, middle, std = generator(3), np.array([[0.0, 0.0], [50.0, 80.0]]), np.array([1.0, 3.0])
    found = spreads([(middle + std * rng.normal(size=(2, 2)))[rng.permutation(2)] for _ in range(120)])
    assert (np.abs(np.median(found, axis=0) / std / 0.8326 - 1) < 0.2).all()


def test_a_release_of_fewer_components_is_as_far_as_its_nearest() -> None:
    """A lost component counts."""
    whole, less = np.array([[0.0], [10.0]]), np.array([[0.0]])
    found = spreads([whole, whole, whole, less])
    assert found.shape == (4, 1)
    assert found[3, 0] > 5
    assert (found[:3] == 0).all()


def test_a_table_is_compared_with_the_rows(toy: bursar.Dataset) -> None:
    """The distance at the worst table is that of the model's marginal from the rows' own."""
    field = toy.dry_run(bursar.MRF(cliques=[("group", "spring")]), spend=SPEND)
    rows = {"group": np.zeros(10), "spring": np.zeros(10)}
    found = foretold([field, field, field], rows)["table_error"]
    assert found[1] == pytest.approx(1 - field.marginal(["group", "spring"])[0, 0])


def test_rows_of_every_model(toy: bursar.Dataset) -> None:
    """Rows are within the bounds, have positions for categories, and the moments of the model."""
    rows = rows_like(PEOPLE, [HEIGHT, WEIGHT], 4000, 0)
    assert rows["height"].mean() == pytest.approx(156, abs=3)
    clusters = bursar.KMeans(
        np.array([[120, 50], [200, 130]]), np.array([0.5, 0.5]), np.array([25, 0]), columns=("height", "weight")
    )
    rows = rows_like(clusters, [WEIGHT, HEIGHT], 4000, 0)
    assert list(rows) == ["weight", "height"]
    assert np.unique(rows["height"][rows["height"] > 160].round(3)).tolist() == [200]
    line = bursar.LinearRegression(np.array([0.5]), 10.0, 2.0, columns=("height",), target="weight")
    rows = rows_like(line, [HEIGHT, WEIGHT], 4000, 0)
    assert np.std(rows["weight"] - 0.5 * rows["height"] - 10) == pytest.approx(2, abs=0.3)
    ends = NumericColumn("arm", "", 0.0, 0.1)
    lines = bursar.MixtureOfRegressions(
        coef_=np.array([[0.5, 100.0]]),
        intercept_=np.array([10.0]),
        weights_=np.ones(1),
        noise_std_=np.array([2.0]),
        feature_means_=np.array([160.0, 0.05]),
        feature_covariance_=np.array([[25.0, 0.04], [0.04, 1e-4]]),
        columns=("height", "arm"),
        target="weight",
    )
    rows = rows_like(lines, [HEIGHT, ends, WEIGHT], 4000, 0)
    assert np.cov(rows["height"], rows["arm"]) == pytest.approx(lines.feature_covariance_, rel=0.15)
    assert rows["height"].mean() == pytest.approx(160, abs=0.6)
    assert np.std(rows["weight"] - 0.5 * rows["height"] - 100 * rows["arm"] - 10) == pytest.approx(2, abs=0.3)
    field = toy.dry_run(bursar.MRF(cliques=[("group", "weight")]), spend=SPEND)
    rows = rows_like(field, [ARM, WEIGHT], 500, 0)
    assert set(rows["group"]) == {0.0, 1.0}
    assert (rows["weight"] >= 30).all()
    assert (rows["weight"] <= 150).all()
    guess = bursar.Guess(weights=[3, 1], spread={"height": 1}, means=[[0], [150]])
    rows = rows_like(guess, [HEIGHT, ARM], 400, 0)
    assert set(rows["group"]) == {0.0, 1.0}
    assert (rows["height"] == 100).mean() == pytest.approx(0.75, abs=0.15)


def test_residuals_are_as_far_from_a_line_as_released_rows() -> None:
    """Half of the rows near the line and half beyond two deviations, on both sides; noise below zero is no row."""
    radii = bursar.RadiusCounts(np.array([0.5, 0.95]), np.array([5000.0, -20.0, 5000.0]), 30.0, 1)
    trace = bursar.GradientTrace("recentred", np.zeros((2, 1, 2)), np.zeros((1, 2)), np.ones(1), 1.0, 1, radii)
    line = bursar.LinearRegression(np.array([0.5]), 10.0, 2.0, columns=("height",), target="weight", trace=trace)
    rows = rows_like(line, [HEIGHT, WEIGHT], 4000, 0)
    away = (rows["weight"] - 0.5 * rows["height"] - 10) / 2
    ends = scipy.stats.norm.ppf([0.75, 0.975])
    assert (np.abs(away) < ends[0]).mean() == pytest.approx(0.5, abs=0.05)
    assert ((np.abs(away) > ends[0]) & (np.abs(away) < ends[1])).sum() == 0
    assert (away > 0).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (bursar.Guess(weights=[1], spread={"height": 1}), "like.spread: has no 'weight'"),
        (bursar.Guess(weights=[1], spread=1, means=[[1]]), "like.means: must be finite and of shape"),
        (bursar.GaussianMixture(ONE[0], ONE, ONE, "diag", columns=("height",)), "like: is a model without 'weight'"),
        (bursar.GaussianMixture(ONE[0], np.ones((1, 2)), np.ones((1, 2)), "diag"), "like: is a model without names"),
        (7, "like: must be a bursar.Guess or a model"),
    ],
)
def test_what_does_not_go_together_is_said(toy: bursar.Dataset, like: Any, message: str) -> None:
    """The columns at fault are named before any dry run."""
    with pytest.raises(bursar.InvalidRequestError, match=message):
        toy.preview(bursar.DPEM(n_components=2), spend=SPEND, like=like)


def test_a_fit_that_has_no_error_is_not_foretold(toy: bursar.Dataset) -> None:
    """A sketch by itself has none, and what is free is not foretold."""
    with pytest.raises(bursar.InvalidRequestError, match="foretells nothing of a Sketch"):
        toy.preview(bursar.SketchKMeans(decoding="none", n_clusters=2), spend=SPEND, like=PEOPLE)


@pytest.mark.parametrize("wrong", [{"weights": []}, {"weights": [0.0]}, {"spread": -1.0}, {"spread": {"x": np.nan}}])
def test_a_guess_is_checked(wrong: dict[str, Any]) -> None:
    """The check comes when the guess is made."""
    with pytest.raises(bursar.InvalidRequestError, match="like"):
        bursar.Guess(**({"weights": [1.0], "spread": 1.0} | wrong))  # type: ignore[arg-type]


def test_plans_are_foretold(toy: bursar.Dataset) -> None:
    """Each of their fits."""
    plan = toy.plan([bursar.DPEM(n_components=2)], spend=SPEND, like=PEOPLE)
    assert plan.fits[0].preview.forecast is not None


def test_no_row_is_read(toys: Server, client: bursar.Client) -> None:
    """Everything works as before with the table's rows gone from the disk."""
    earlier = set(toys.state.rglob("rows.arrow"))
    name = toys.add_table(TOY.replace('"toy"', '"without-rows"'))
    (rows,) = set(toys.state.rglob("rows.arrow")) - earlier
    rows.rename(rows.with_suffix(".away"))
    lone = client.dataset(name)
    before = lone.remaining()
    assert lone.preview(bursar.DPEM(n_components=2), spend=SPEND, like=PEOPLE).forecast is not None
    assert lone.dry_run(bursar.DPEM(n_components=2), spend=SPEND, like=PEOPLE).dummy_
    assert lone.remaining() == before
    with pytest.raises(bursar.Error):
        lone.fit(bursar.DPEM(n_components=2), spend=SPEND)
