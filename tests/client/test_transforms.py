"""A model of log1p answers in its columns' own units: rows in and out, densities, means, intervals, pictures, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import lognorm

import bursar
from bursar_models.transforms import Transform, checked_transforms, into_model, into_units

LOGS: tuple[Transform, ...] = ("none", "log1p")
BOUNDS = np.array([[0.0, 0.0], [80.0, 5000.0]])


def mixture(**changes: object) -> bursar.GaussianMixture:
    """Two components of age and log1p of income."""
    fields: dict[str, object] = {
        "weights_": [0.3, 0.7],
        "means_": [[30.0, 3.0], [50.0, 6.0]],
        "covariances_": [[[25.0, 1.0], [1.0, 0.5]], [[30.0, -1.0], [-1.0, 1.5]]],
        "columns": ("age", "income"),
        "bounds_": BOUNDS,
        "transforms": LOGS,
    }
    return bursar.GaussianMixture(**(fields | changes))  # type: ignore[arg-type] # checked by the class


def marginal(**changes: object) -> bursar.GaussianMixture:
    """One column alone."""
    fields = {"weights_": [0.4, 0.6], "means_": [[2.0], [4.0]], "covariances_": [[[0.3]], [[0.2]]], "columns": ("x",)}
    return bursar.GaussianMixture(**{**fields, "transforms": ("log1p",), **changes})  # type: ignore[arg-type]


def centres(places: list[list[float]], **changes: object) -> bursar.KMeans:
    """Two clusters."""
    halves, ones = np.array([0.5, 0.5]), np.array([1.0, 1.0])
    return bursar.KMeans(np.array(places), halves, ones, **changes)  # type: ignore[arg-type] # checked by the class


def test_the_density_is_one_of_own_units() -> None:
    """It integrates to one, background included, and is a log-normal's of 1 + x; rows without a logarithm have none."""
    for model in (marginal(), marginal(bounds_=[[0.0], [300.0]], background_weight=0.2)):
        total = sum(
            quad(lambda x: np.exp(model.score_samples([[x]])[0]), low, high, limit=200)[0]  # noqa: B023 - called here
            for low, high in ((-1.0, 0.0), (0.0, 5.0), (5.0, 300.0), (300.0, 1e5))
        )
        assert total == pytest.approx(1.0, abs=1e-6)
    alone = marginal(weights_=[1.0], means_=[[2.0]], covariances_=[[[0.3]]])
    x = np.array([0.5, 4.0, 90.0])
    np.testing.assert_allclose(alone.score_samples(x[:, None]), lognorm(0.3**0.5, loc=-1, scale=np.exp(2.0)).logpdf(x))
    assert np.isneginf(alone.score_samples([[-1.0], [-7.0]])).all()
    assert np.isfinite(alone.predict_proba([[-1.0], [-7.0]])).all()


def test_a_preview_says_which_numbers_are_of_logarithms(toy: bursar.Dataset) -> None:
    """An error of 0.3 in logarithms is no third of a centimetre."""
    found = toy.preview(bursar.DPEM(n_components=2, transform={"height": "log1p"}), spend=bursar.rho(0.1))
    lines = [line for line in repr(found).splitlines() if "on sums of" in line or "a component's mean" in line]
    assert len(lines) >= 2
    assert all(" log1p(height) " in line and " weight " in line for line in lines)
    assert set(found.expected["mean_error"]) == {"height", "weight"}  # type: ignore[arg-type] # by column
    plain = toy.preview(bursar.DPEM(n_components=2), spend=bursar.rho(0.1))
    assert "log1p" not in repr(plain)


def test_densities_of_transforms_differ_by_the_slope() -> None:
    """A model of the transformed rows says the same but for the volume."""
    X = np.random.default_rng(0).uniform(BOUNDS[0], BOUNDS[1], (50, 2))  # noqa: TID251 - rows of a test
    box = into_model(BOUNDS, LOGS)
    plain = mixture(transforms=(), bounds_=box, background_weight=0.1)
    model = mixture(background_weight=0.1)
    logs = into_model(X, LOGS)
    np.testing.assert_allclose(model.score_samples(X), plain.score_samples(logs) - np.log1p(X[:, 1]))
    np.testing.assert_array_equal(model.predict(X), plain.predict(logs))
    assert np.allclose(into_units(logs, LOGS), X)


def test_sampled_rows_are_within_the_public_bounds() -> None:
    """Exactly, the background's too, with much mass beyond them; their law is the model's."""
    wide = mixture(covariances_=[[[900.0, 0.0], [0.0, 9.0]]] * 2, background_weight=0.2)
    rows, labels = wide.sample(20_000, random_state=1)
    assert (rows >= BOUNDS[0]).all()
    assert (rows <= BOUNDS[1]).all()
    assert set(labels.tolist()) == {-1, 0, 1}
    assert (wide.sample(5_000, random_state=1, bounded=False)[0][:, 1] > -1.0).all()
    x = marginal().sample(200_000, random_state=2)[0][:, 0]
    # Six standard errors; the fourth moments of a log-normal of variance .3 are moderate.
    expected = float(marginal().weights_ @ marginal().own_means_[:, 0])
    assert abs(x.mean() - expected) < 6 * x.std() / len(x) ** 0.5


def test_means_and_medians_in_own_units() -> None:
    """The formula of the log-normal distribution gives them; columns without a transform have the means."""
    model = mixture()
    np.testing.assert_allclose(model.own_means_[:, 0], [30.0, 50.0])
    np.testing.assert_allclose(
        model.own_means_[:, 1], [lognorm(v**0.5, -1, np.exp(m)).mean() for m, v in ((3, 0.5), (6, 1.5))]
    )
    np.testing.assert_allclose(model.own_medians_[:, 1], np.expm1([3.0, 6.0]))
    plain = mixture(transforms=("none", "none"))
    assert plain.transforms == ()
    np.testing.assert_array_equal(plain.own_means_, plain.means_)
    assert "log1p" not in repr(plain)


def test_prints_and_tables_say_the_space() -> None:
    """The title names the transform, the table has means in own units."""
    model = mixture()
    assert "with log1p(income)" in repr(model)
    assert f"{model.own_means_[1, 1]:.4g}" in repr(model)
    table = model.to_table(output="dict")
    np.testing.assert_array_equal(table["own_medians_.income"], model.own_medians_[:, 1])
    assert "own_means_.age" not in mixture(transforms=()).to_table(output="dict")
    assert "mean_errors_" not in str(sorted(table))


def test_intervals_have_those_of_medians() -> None:
    """Ends go through the exponential, which is monotone; columns without a transform have none."""
    errors = bursar.Separation(
        sought=2,
        mean_errors=np.array([[1.0, 0.2], [1.0, 0.1]]),
        weight_errors=np.array([0.01, 0.01]),
        covariance_errors=np.array([0.1, 0.1]),
    )
    model = mixture(separation=errors)
    found = model.intervals()
    low, high = found["means_[0].income"].low, found["means_[0].income"].high
    median = found["own_medians_[0].income"]
    assert (median.low, median.estimate, median.high) == pytest.approx(tuple(np.expm1([low, 3.0, high])))
    with pytest.raises(KeyError):
        found["own_medians_[0].age"]
    assert "±" in repr(model)


def test_files_keep_it_and_scikit_learn_is_told(tmp_path: Path) -> None:
    """A saved model is the same one; scikit-learn's has the names of the model's space."""
    model = mixture()
    model.save(tmp_path / "model.json")
    again = bursar.load(tmp_path / "model.json")
    assert isinstance(again, bursar.GaussianMixture)
    assert again.transforms == LOGS
    assert again.to_sklearn().feature_names_in_.tolist() == ["age", "log1p(income)"]


def test_cluster_centres_go_back() -> None:
    """k-means measures distances in the model's space, and shows centres in own units."""
    model = centres([[2.0], [6.0]], columns=("x",), transforms=("log1p",))
    np.testing.assert_allclose(model.own_centers_[:, 0], np.expm1([2.0, 6.0]))
    assert model.predict({"x": [np.expm1(3.9), np.expm1(4.1)]}).tolist() == [0, 1]
    np.testing.assert_allclose(model.transform([[np.expm1(3.0)]]), [[1.0, 3.0]])
    assert "with log1p(x)" in repr(model)
    assert f"{np.expm1(6.0):.4g}" in repr(model)
    assert model.to_sklearn().feature_names_in_.tolist() == ["log1p(x)"]


def test_pictures_are_in_own_units() -> None:
    """Outlines are the images of ellipses, so they stay above -1; a density's axis is the column's own."""
    pytest.importorskip("matplotlib")
    ax = mixture().plot()
    points = np.concatenate([patch.get_path().vertices for patch in ax.patches])
    assert (points[:, 1] > -1.0).all()
    assert points[:, 1].max() > 1000.0
    low, high = marginal().plot().get_xlim()
    assert low > -1.0
    assert high == pytest.approx(np.expm1(4.0 + 4 * 0.2**0.5))
    clusters = centres([[2.0, 1.0], [6.0, 2.0]], transforms=("log1p", "none"))
    assert max(patch.get_path().vertices[:, 0].max() for patch in clusters.plot().patches) > np.expm1(6.5)
    clusters.plot(columns="x0")


@pytest.mark.parametrize(
    ("transforms", "bounds"), [(("log1p",), None), (("log1p", "sqrt"), None), (("log1p", "none"), [[-1.0, 0], [1, 1]])]
)
def test_wrong_transforms_are_refused(transforms: tuple[str, ...], bounds: object) -> None:
    """Another number of them, an unknown one, or bounds without a logarithm."""
    with pytest.raises(ValueError, match=r"transforms|bounds_"):
        checked_transforms(transforms, 2, None if bounds is None else np.array(bounds))  # type: ignore[arg-type]


def test_the_request_has_it_as_a_value() -> None:
    """The order says nothing, JSON keeps it, a default changes no digest, and mistakes are named."""
    one = bursar.DPEM(n_components=2, transform={"b": "log1p", "a": "none"})
    other = bursar.DPEM(n_components=2, transform={"a": "none", "b": "log1p"})
    assert one == other
    assert bursar.Request.from_dict(one.to_dict()) == one
    assert one.digest() != bursar.DPEM(n_components=2).digest()
    for wrong in ({"a": "sqrt"}, ["a"], {1: "log1p"}):
        with pytest.raises(bursar.InvalidRequestError, match="transform"):
            bursar.DPEM(n_components=2, transform=wrong)  # type: ignore[arg-type]
