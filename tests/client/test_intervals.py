"""Intervals of released numbers: what they contain, what they say, and that they come from released numbers only."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bursar
from bursar.testing import Server
from bursar_models import (
    Frequencies,
    GaussianMixture,
    GradientTrace,
    KMeans,
    LinearRegression,
    MixtureOfRegressions,
    Separation,
    Signature,
    Sketch,
    SymmetricMixture,
)
from tests.client.conftest import TOY
from tests.each import each

Z = 1.959963984540054
"""Quantile of the normal law for 95 %."""


def trace(k: int, p: int) -> GradientTrace:
    """Errors 0.1, 0.2 ..., the last one 0: that number is public."""
    errors = 0.1 * (1 + np.arange(float(k * p)).reshape(k, p))
    errors[-1, -1] = 0
    return GradientTrace("recentred", np.zeros((2, k, p)), errors, np.ones(1), 1.0, 1)


def separated(covariance_type: Any = "spherical") -> GaussianMixture:
    """A mixture with errors of its own, one of whose weights is near 1."""
    errors = Separation(2, np.array([[0.1], [0.2]]), np.array([0.05, 0.05]), np.array([0.1, 0.3]))
    covariances = np.array([1.0, 4.0]) if covariance_type == "spherical" else np.array([[1.0], [4.0]])
    return GaussianMixture(
        np.array([0.98, 0.02]), np.array([[0.0], [9.0]]), covariances, covariance_type, ("age",), separation=errors
    )


def models() -> dict[str, bursar.Model]:
    """One of each kind, with the errors that its fit releases."""
    two: dict[str, Any] = {"columns": ("a", "b")}
    line: dict[str, Any] = {"columns": ("a", "b"), "target": "c"}
    return {
        "gradient mixture": GaussianMixture(
            np.ones(2) / 2, np.zeros((2, 2)), np.ones((2, 2)), "diag", **two, trace=trace(2, 2)
        ),
        "separated": separated(),
        "symmetric": SymmetricMixture(np.array([1.0, 2.0]), np.zeros(2), np.ones(2), **two, trace=trace(2, 2)),
        "line": LinearRegression(np.array([1.0, 2.0]), 3.0, 1.0, **line, trace=trace(1, 3)),
        "lines": MixtureOfRegressions(
            np.array([[1.0, 2.0], [3.0, 4.0]]), np.ones(2), np.ones(2) / 2, np.ones(2), **line, trace=trace(2, 3)
        ),
        "dpem": GaussianMixture(np.ones(1), np.zeros((1, 2)), np.ones((1, 2)), "diag", **two),
        "kmeans": KMeans(np.zeros((1, 2)), np.ones(1), np.ones(1), **two),
    }


def ends(model: bursar.Model) -> dict[str, tuple[float, float]]:
    """The intervals at 95 %, by name."""
    return {row.name: (row.low, row.high) for row in model.intervals()}


def test_standard_errors_become_intervals() -> None:
    """The normal law gives both ends; a number with an error of 0 is public and has none."""
    found = {name: ends(model) for name, model in models().items()}
    assert list(found["gradient mixture"]) == ["means_[0].a", "means_[0].b", "means_[1].a"]
    assert found["gradient mixture"]["means_[0].b"] == pytest.approx((-0.2 * Z, 0.2 * Z))
    assert found["symmetric"]["beta_.b"] == pytest.approx((2 - 0.2 * Z, 2 + 0.2 * Z))
    assert found["line"] == {
        "coef_.a": pytest.approx((1 - 0.1 * Z, 1 + 0.1 * Z)),
        "coef_.b": pytest.approx((2 - 0.2 * Z, 2 + 0.2 * Z)),
    }
    assert list(found["lines"]) == ["coef_[0].a", "coef_[0].b", "coef_[1].a", "coef_[1].b", "intercept_[0]"]
    assert found["lines"]["intercept_[0]"] == pytest.approx((1 - 0.3 * Z, 1 + 0.3 * Z))


def test_ends_stay_in_the_range_of_their_number() -> None:
    """Weights from 0 to 1, variances above 0 and even on the logarithm."""
    found = ends(separated())
    assert found["weights_[0]"] == pytest.approx((0.98 - 0.05 * Z, 1))
    assert found["weights_[1]"] == pytest.approx((0, 0.02 + 0.05 * Z))
    assert found["means_[1].age"] == pytest.approx((9 - 0.2 * Z, 9 + 0.2 * Z))
    assert found["covariances_[1]"] == pytest.approx((4 * np.exp(-0.3 * Z), 4 * np.exp(0.3 * Z)))


def test_numbers_without_an_interval_are_named() -> None:
    """Each with its reason; an error of a covariance as a whole is none of its entries."""
    found = {name: " ".join(model.intervals().left_out) for name, model in models().items()}
    assert "weights_" in found["gradient mixture"]
    assert "covariances_" in found["gradient mixture"]
    assert "noise_std_" in found["lines"]
    assert "FitDPEM" in found["dpem"]
    assert found["dpem"] == found["kmeans"]
    assert not len(models()["dpem"].intervals())
    assert separated().intervals().left_out == ()
    assert separated("diag").intervals().left_out == ()


@each("level", [0.0, 1.0, -1.0, 95.0, float("nan")])
@each("name", list(models()))
def test_a_level_is_between_0_and_1(name: str, level: float) -> None:
    """Percent and NaN are refused by every model."""
    with pytest.raises(ValueError, match=r"level: expected a number above 0 and below 1"):
        models()[name].intervals(level)


def test_lines_that_are_close_are_not_to_be_trusted() -> None:
    """Two lines whose difference is below twice the noise level, as their errors tell it, say so; others do not."""
    errors = np.array([[0.01, 0.02, 0.0], [0.02, 0.01, 0.0]])
    trace = GradientTrace("recentred", np.zeros((2, 2, 3)), errors, np.ones(1), 1.0, 1)
    for slope, close in ((0.5, False), (0.39, True)):
        lines = MixtureOfRegressions(
            np.array([[slope, 0.0], [0.0, 0.0]]),
            np.zeros(2),
            np.array([0.5, 0.5]),
            np.ones(2),
            n_rows=200.0,
            trace=trace,
        )
        assert lines._least_apart() == pytest.approx(slope / 0.02 / 10)
        assert any("not to be trusted" in note for note in lines.intervals().warnings) == close
    assert replace(lines, n_rows=None)._least_apart() == math.inf


def test_a_lower_level_has_shorter_intervals() -> None:
    """The normal law gives the ratio."""
    wide, narrow = (models()["line"].intervals(level)["coef_.a"] for level in (0.95, 0.5))
    assert (narrow.high - narrow.low) / (wide.high - wide.low) == pytest.approx(0.6744897501960817 / Z)


@pytest.mark.parametrize("output", ["pandas", "polars", "arrow", "dict"])
def test_intervals_are_a_table(output: Any) -> None:
    """Columns and cells are the same in every library, and there are none without intervals."""
    table = separated().intervals().to_table(output)
    names = ["name", "estimate", "low", "high", "about"]
    assert list(table if output == "dict" else getattr(table, "column_names", table.columns)) == names
    assert str(table["name"][0]) == "weights_[0]"
    assert [float(value) for value in table["estimate"]] == [0.98, 0.02, 0, 9, 1, 4]
    assert len(models()["dpem"].intervals().to_table("dict")["name"]) == 0


def test_intervals_say_level_target_and_reasons() -> None:
    """They do in text, and in a notebook with everything escaped."""
    found = models()["gradient mixture"].intervals(level=0.9)
    assert repr(found).splitlines()[0].startswith("Intervals at 0.9 of the population")
    assert "means_[1].a" in repr(found)
    assert "without an interval: weights_" in repr(found)
    evil = GaussianMixture(
        np.ones(1),
        np.zeros((1, 1)),
        np.ones((1, 1)),
        "diag",
        ("<script>",),
        trace=GradientTrace("recentred", np.zeros((2, 1, 1)), np.ones((1, 1)), np.ones(1), 1.0, 1),
    )
    assert "<script>" not in evil.intervals()._repr_html_()
    with pytest.raises(KeyError):
        found["nothing"]


# --- decoded from a sketch -----------------------------------------------------------------------------------

MEANS = np.array([[-0.5, -0.4], [0.4, -0.3], [0.0, 0.5]])
SHARES = np.array([0.5, 0.3, 0.2])
WIDTH = 0.12


def sketch(seed: int, noise: float, *, rows: int = 4000, signature: Signature = "exponential", r: int = 60) -> Sketch:
    """A sketch of rows of three Gaussians in [-1, 1]^2, with 60 frequencies and noise."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - synthetic rows
    X = np.clip(MEANS[rng.choice(3, rows, p=SHARES)] + WIDTH * rng.standard_normal((rows, 2)), -1, 1)
    frequencies = Frequencies(60, 2, 1, 0.15)
    phases = X @ frequencies.matrix().T
    if signature == "one_bit":
        phases = phases + frequencies.dithers()
        terms = np.sign(np.cos(phases)) + 1j * np.sign(np.sin(phases))
    else:
        terms = np.exp(1j * phases)
    sums = (terms * (rng.random((rows, 60)) < r / 60)).sum(axis=0)
    parts = np.stack([sums.real, sums.imag]) + noise * rng.standard_normal((2, 60))
    box: dict[str, Any] = {"centre": np.zeros(2), "unit": np.ones(2), "lower": -np.ones(2), "upper": np.ones(2)}
    return Sketch(
        ("a", "b"),
        **box,
        frequencies=frequencies,
        signature=signature,
        frequencies_per_row=r,
        sums=parts,
        noise_std=noise,
        n_rows=float(rows),
        n_rows_std=0.0,
    )


def scores(estimates: Any, rows: Any) -> list[float]:
    """Distances of estimates from the truth, in standard errors of their intervals."""
    ranges = [(row.high - row.low) / (2 * Z) for row in rows]
    return [abs(row.estimate - truth) / std for row, truth, std in zip(rows, estimates, ranges, strict=True)]


@pytest.mark.parametrize(("signature", "r"), [("exponential", 60), ("exponential", 20), ("one_bit", 60)])
def test_intervals_of_decoded_centres_are_near_the_truth(signature: Signature, r: int) -> None:
    """They are within six standard errors, and shorter than a tenth of the distance of two means."""
    found = sketch(1, 40.0, signature=signature, r=r).kmeans(3, n_init=5)
    rows = [row for row in found.intervals(replicates=12) if row.name.startswith("cluster_centers_")]
    order = [int(np.square(MEANS - centre).sum(axis=1).argmin()) for centre in found.cluster_centers_]
    assert sorted(order) == [0, 1, 2]
    assert max(scores(MEANS[order].ravel(), rows)) < 6
    assert max(row.high - row.low for row in rows) < 0.1


def test_intervals_of_a_decoded_mixture_have_all_numbers() -> None:
    """Weights, means and variances, each within its range, and near the truth."""
    found = sketch(2, 40.0).gaussian_mixture(3, n_init=5)
    rows = found.intervals(replicates=12)
    assert [row.name.split("[")[0] for row in rows] == ["weights_"] * 3 + ["means_"] * 6 + ["covariances_"] * 6
    assert all(0 < row.low < row.estimate < row.high for row in rows if not row.name.startswith("means_"))
    assert max(scores([WIDTH**2] * 6, [row for row in rows if row.name.startswith("covariances_")])) < 6


def test_more_noise_has_wider_intervals() -> None:
    """Forty times the noise of the sketch, at the same number of rows."""
    narrow, wide = (
        sketch(3, noise).kmeans(3, n_init=5).intervals(replicates=8)["cluster_centers_[0].a"] for noise in (10.0, 400.0)
    )
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_padded_rows_make_no_interval_shorter() -> None:
    """A public number of four times the rows: estimates and intervals are those of the rows that are there."""
    for kind in ("kmeans", "gaussian_mixture"):
        widths = []
        for declared in (4000.0, 16_000.0):
            found = getattr(replace(sketch(7, 10.0), n_rows=declared), kind)(3, n_init=5).intervals(replicates=20)
            widths.append(np.array([row.high - row.low for row in found if row.name.startswith("weights_")]))
        assert 0.7 < float(np.mean(widths[1] / widths[0])) < 1.4, kind


def test_a_bootstrap_can_be_repeated() -> None:
    """The same public seed gives the same intervals, another one others."""
    model = sketch(4, 40.0).kmeans(2, n_init=2)
    first, again, other = (model.intervals(replicates=3, public_seed=seed).rows for seed in (5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize("wrong", [{"replicates": 1}, {"replicates": 0}, {"public_seed": -1}, {"level": 1.5}])
def test_a_bootstrap_checks_its_arguments(wrong: dict[str, Any]) -> None:
    """The check comes before the first decoding."""
    model = sketch(4, 40.0)
    for found in (model.kmeans(2, n_init=1), model.gaussian_mixture(2, n_init=1)):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
            found.intervals(**wrong)


def test_rows_without_number_or_weight_give_intervals_too() -> None:
    """A noisy number of rows below 1 and a sketch of nothing: any released numbers are answered."""
    empty = sketch(5, 1000.0, rows=10)
    for found in (empty.kmeans(2, n_init=1), empty.gaussian_mixture(2, n_init=1)):
        for row in found.intervals(replicates=2):
            assert np.isfinite([row.estimate, row.low, row.high]).all()
            assert row.low <= row.estimate <= row.high


def test_a_sketch_that_no_fit_released_is_named() -> None:
    """A hand-written file gets an error that says what is wrong, and none of a library."""
    model = sketch(6, 40.0).gaussian_mixture(2, n_init=1)
    wrong = (
        replace(model, means_=np.full((2, 2), 1e300)),
        GaussianMixture(np.full(2, 0.5), np.zeros((2, 3)), np.ones((2, 3)), "diag", sketch=model.sketch),
        KMeans(np.zeros((2, 3)), np.full(2, 0.5), np.ones(2), sketch=model.sketch),
    )
    for one in wrong:
        with pytest.raises(ValueError, match=r"^sketch: "):
            one.intervals(replicates=2)


# --- all of them ---------------------------------------------------------------------------------------------


def test_intervals_read_no_row_and_cost_nothing(toys: Server, client: bursar.Client) -> None:
    """All five fits give them where the table cannot be read any more; what is left stays as it is."""
    before = set((toys.state / "datasets").iterdir())
    data = client.dataset(toys.add_table(TOY.replace('"toy"', '"intervals"')))
    (folder,) = set((toys.state / "datasets").iterdir()) - before
    mixture = bursar.GradientEM(model="gaussian_mixture", columns=["height", "weight"])
    asked: list[Any] = [
        bursar.DPEM(n_components=2),
        bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=20),
        mixture,
        bursar.SketchKMeans(n_clusters=2, n_frequencies=40, n_init=1),
        bursar.MRF(cliques=[("group", "spring")]),
    ]
    entries = [data.fit(request, spend=bursar.rho(0.01)).receipt.entry for request in asked]
    left = data.remaining()
    (folder / "rows.arrow").unlink()
    with pytest.raises(bursar.ServerError):
        data.fit(mixture, spend=bursar.rho(0.02), request_id="no-rows")
    for entry in entries:
        released = client.model(entry)
        if isinstance(released, bursar.Sketch):
            found = released.kmeans(2, n_init=1).intervals(replicates=2)
        else:
            found = released.intervals()
        assert bool(len(found)) or found.left_out
    assert data.remaining() == left


def test_pairs_of_levels_are_nested() -> None:
    """An interval at a higher level contains that at a lower one, for every number of every model."""
    for model in models().values():
        for low, high in itertools.pairwise([0.5, 0.8, 0.95, 0.999]):
            for inner, outer in zip(model.intervals(low), model.intervals(high), strict=True):
                assert outer.low <= inner.low <= inner.high <= outer.high
