"""A sketch means what the paper means by it: moments, their noise, merging, and models in the data's own units."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from scipy import special

import bursar
from bursar_models import (
    LEAST_FREQUENCIES,
    Decoded,
    Frequencies,
    FrequencyLaw,
    Sketch,
    Stream,
    _sketch,
    predicted_relative_sse,
    predicted_snr,
    public_uniforms,
    trustworthy_clusters,
)
from bursar_models._decoding import decode_mixture
from bursar_models._frequencies import FREQUENCY_LAWS
from bursar_models._sketch import SIGNATURES, TYPICAL_ENERGY, Signature
from bursar_models.arrays import FloatArray
from tests.client.sketches import CENTRE, FREQUENCIES, UNIT, masked, signature_of, sketch_of
from tests.each import each


def some_rows(seed: int, n: int, d: int = 2) -> FloatArray:
    """Rows of a uniform table in frame coordinates."""
    return 2 * public_uniforms(seed, Stream.SCALES, n, d) - 1


ROWS = some_rows(3, 500)
SKETCH = sketch_of(ROWS, noise_std=7.0, n_rows_std=3.0)


def noise(seed: int, *shape: int) -> FloatArray:
    """Standard normal numbers."""
    return np.asarray(special.ndtri(public_uniforms(seed, Stream.SCALES, *shape)))


def test_moments_are_the_empirical_characteristic_function() -> None:
    """They are the mean of exp(i w x') over the rows, exactly, without noise and masks."""
    expected = np.exp(1j * ROWS @ FREQUENCIES.matrix().T).mean(axis=0)
    np.testing.assert_allclose(SKETCH.moments(), expected, atol=1e-12)


def test_one_bit_moments_are_those_of_a_smooth_density_up_to_harmonics() -> None:
    """Harmonics from the third on bound the error for a normal density; where they are nothing, so is the error."""
    frequencies = Frequencies(m=40, d=1, public_seed=5, sigma=0.3)
    n = 40_000
    rows = 0.3 * special.ndtri((np.arange(n) + 0.5) / n)[:, None]
    moments = sketch_of(rows, frequencies, signature="one_bit").moments()

    def normal(w: FloatArray) -> FloatArray:
        return np.exp(-np.square(0.3 * w) / 2)

    w = frequencies.matrix()[:, 0]
    harmonics = np.sum([normal(order * w) / order for order in range(3, 60, 2)], axis=0)
    errors = np.abs(moments - normal(w))
    assert (errors <= harmonics + 1e-3).all()
    assert np.count_nonzero(harmonics < 1e-3) > 10
    assert errors.max() > 0.05  # some frequency is low enough that the bound is about something


@pytest.mark.parametrize("signature", SIGNATURES)
def test_masks_are_scaled_away(signature: Signature) -> None:
    """Moments from r of m frequencies a row agree with those from all, within six deviations of the sampling."""
    rows = some_rows(6, 4000)
    full, part = sketch_of(rows, signature=signature), masked(rows, FREQUENCIES, 15, signature)
    scale = 1.0 if signature == "exponential" else math.pi / 4
    # Given the rows, a masked mean has at most the variance (1 / alpha - 1) / n of each real number of size 1.
    assert np.abs(part.moments() - full.moments()).max() < 6 * math.sqrt(2) * scale * math.sqrt(3 / 4000)
    assert part.alpha_r == 0.25


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize("r", [500, 2000])
def test_predicted_variance_is_that_of_sketches(signature: Signature, r: int) -> None:
    """Moments whose true value is 0 have the mean square that the predicted ratio implies: rows, masks and noise."""
    frequencies = Frequencies(m=2000, d=3, public_seed=7, sigma=1e-3)  # so high that uniform rows have random phases
    clean = masked(some_rows(8, 400, d=3), frequencies, r, signature)
    noisy = replace(clean, sums=clean.sums + 15.0 * noise(9, 2, 2000), noise_std=15.0)
    ratio = predicted_snr(n_rows=400, m=2000, frequencies_per_row=r, noise_std=15.0, signature=signature, energy=1e-6)
    # 2000 squares of complex normals: their mean has a relative deviation of 1 / sqrt(2000).
    assert np.square(np.abs(noisy.moments())).mean() == pytest.approx(1e-6 / ratio, rel=0.15)
    assert noisy.moment_std() == pytest.approx((noisy.moments() - clean.moments()).real.std(), rel=0.15)


def test_snr_is_equation_six() -> None:
    """It is alpha n delta / (1 - alpha delta + sigma_xi^2), with the paper's sigma_xi^2 = 2 s^2 / (alpha n)."""
    n, m, r, s = 1000.0, 200, 50, 30.0
    alpha, delta = r / m, TYPICAL_ENERGY
    sigma2 = 2 * s**2 / (alpha * n)
    ratio = predicted_snr(n_rows=n, m=m, frequencies_per_row=r, noise_std=s)
    assert ratio == pytest.approx(alpha * n * delta / (1 - alpha * delta + sigma2), rel=1e-12)


def test_snr_of_a_sketch_is_what_was_predicted_for_it() -> None:
    """The preview and the sketch say the same; fewer than one row count as one."""
    expected = predicted_snr(n_rows=500, m=60, frequencies_per_row=60, noise_std=7.0)
    assert SKETCH.snr() == expected
    assert 0 < replace(SKETCH, n_rows=-20.0).snr() == replace(SKETCH, n_rows=1.0).snr() < expected


def test_a_table_of_one_row_has_a_finite_ratio() -> None:
    """All energy, no noise and every frequency would leave a variance of 0."""
    ratio = predicted_snr(n_rows=10, m=5, frequencies_per_row=5, noise_std=0.0, energy=1.0)
    assert 1e15 < ratio < math.inf


def test_a_sketch_of_noise_alone_shows_itself() -> None:
    """The signal is none, whatever a file says its noise is."""
    for noise_std in (1e160, 1e308):
        loud = replace(SKETCH, noise_std=noise_std)
        assert (loud.snr(), loud.energy()) == (0.0, 0.0)
        assert "SNR" in repr(loud)


def test_energy_is_measured_without_the_noise() -> None:
    """The mean square of the moments less that of the noise; never below 0 or above 1."""
    rows = some_rows(10, 1000)
    frequencies = replace(FREQUENCIES, m=2000, sigma=0.8)
    clean = sketch_of(rows, frequencies)
    noisy = replace(clean, sums=clean.sums + 150 * noise(11, 2, 2000), noise_std=150.0)
    assert clean.energy() == pytest.approx(np.square(np.abs(clean.moments())).mean(), rel=1e-9)
    assert noisy.energy() == pytest.approx(clean.energy(), abs=0.02)
    assert np.square(np.abs(noisy.moments())).mean() > clean.energy() + 0.03
    assert replace(SKETCH, sums=np.zeros((2, 60))).energy() == 0
    assert replace(SKETCH, sums=np.full((2, 60), 1e6)).energy() == 1


@pytest.mark.parametrize("signature", SIGNATURES)
def test_few_rows_count_as_one(signature: Signature) -> None:
    """A noisy count of no rows or fewer neither divides by 0 nor turns the moments round."""
    lost = sketch_of(ROWS, signature=signature, n_rows=-3.0)
    np.testing.assert_array_equal(lost.moments(), replace(lost, n_rows=1.0).moments())


@pytest.mark.parametrize("signature", SIGNATURES)
def test_sketches_of_parts_make_the_sketch_of_the_whole(signature: Signature) -> None:
    """Three sites with the same r, merged, are one site with all rows; noise adds in its variance."""
    parts = [sketch_of(rows, signature=signature, noise_std=3.0, n_rows_std=2.0) for rows in np.split(ROWS, [100, 250])]
    merged, whole = parts[0].merge(*parts[1:]), sketch_of(ROWS, signature=signature)
    np.testing.assert_allclose(merged.sums, whole.sums, atol=1e-10)
    np.testing.assert_allclose(merged.moments(), whole.moments(), atol=1e-12)
    assert (merged.n_rows, merged.sites, merged.frequencies_per_row) == (500.0, 3, 60)
    assert merged.noise_std == pytest.approx(3.0 * math.sqrt(3))
    assert merged.n_rows_std == pytest.approx(2.0 * math.sqrt(3))
    again = parts[0].merge(parts[1]).merge(parts[2])
    np.testing.assert_allclose(again.sums, merged.sums, atol=1e-10)
    assert again.sites == 3
    assert again.noise_std == pytest.approx(merged.noise_std)


def test_merging_with_nobody_changes_nothing_but_the_receipt() -> None:
    """The sketch of one site is that site's."""
    alone = replace(SKETCH, pilot_sigma=0.3).merge()
    np.testing.assert_array_equal(alone.sums, SKETCH.sums)
    assert (alone.noise_std, alone.n_rows, alone.sites, alone.pilot_sigma) == (7.0, 500.0, 1, 0.3)


def test_sites_with_different_masks_and_noise_weigh_by_their_rows() -> None:
    """Moments average by rows, their noise as the averages of independent numbers, the sampling as one site's would."""
    rows = some_rows(12, 3000)
    one = replace(masked(rows[:1000], FREQUENCIES, 15), noise_std=10.0)
    two = replace(masked(rows[1000:], FREQUENCIES, 40), noise_std=4.0)
    merged = one.merge(two)
    np.testing.assert_allclose(merged.moments(), (one.moments() + 2 * two.moments()) / 3, atol=1e-12)
    assert merged.moment_std() == pytest.approx(math.hypot(one.moment_std(), 2 * two.moment_std()) / 3)
    # r / m with 3000 / alpha = 1000 / alpha_1 + 2000 / alpha_2: 60 * 3000 / (4000 + 3000) = 25.7
    assert merged.frequencies_per_row == 26
    assert 15 < merged.frequencies_per_row < 40


def test_merging_forgets_what_is_not_true_of_all() -> None:
    """A merged sketch has no receipt, and a pilot's scale only if all sites had that one."""
    assert SKETCH.merge(SKETCH, replace(SKETCH, pilot_sigma=0.1)).pilot_sigma is None
    assert SKETCH.merge(SKETCH).receipt is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": ("c1", "c0")}, "columns: expected"),
        ({"centre": CENTRE + 1}, "centre: sketches to merge"),
        ({"unit": UNIT * 2}, "unit: sketches to merge"),
        ({"lower": CENTRE - 2 * UNIT}, "lower: sketches to merge"),
        ({"upper": CENTRE + 2 * UNIT}, "upper: sketches to merge"),
        ({"frequencies": replace(FREQUENCIES, public_seed=2)}, "frequencies: .* public_seed is 2 instead of"),
        ({"frequencies": replace(FREQUENCIES, sigma=0.3)}, "frequencies: .* sigma is 0.3 instead of"),
        ({"signature": "one_bit"}, "signature: expected 'exponential'"),
    ],
)
def test_what_was_measured_otherwise_does_not_merge(change: dict[str, Any], message: str) -> None:
    """The error names the field that differs."""
    with pytest.raises(ValueError, match=message):
        SKETCH.merge(SKETCH, replace(SKETCH, **change))


def decoded(variances: FloatArray) -> Decoded:
    """Return what a decoder might say, in frame coordinates."""
    return Decoded(np.array([0.25, 0.75]), np.array([[0.5, -1.0], [0.0, 1.0]]), variances, residual=1.0, mass=1.0)


def test_kmeans_is_in_the_units_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder gets the frame's box and this sketch's moments; centres and radii come back in data units."""
    asked: list[tuple[Any, ...]] = []

    def decode(*args: Any, **options: Any) -> Decoded:
        asked.append((*args, options))
        return decoded(np.array([0.01, 0.04]))

    monkeypatch.setattr(_sketch, "decode_kmeans", decode)
    model = SKETCH.kmeans(2, n_init=5, public_seed=8)
    ((matrix, moments, noise_std, k, lower, upper, options),) = asked
    np.testing.assert_array_equal(matrix, FREQUENCIES.matrix())
    np.testing.assert_array_equal(moments, SKETCH.moments())
    assert (noise_std, k, options) == (SKETCH.moment_error(), 2, {"n_init": 5, "public_seed": 8, "harmonics": False})
    np.testing.assert_array_equal([lower, upper], [[-1, -1], [1, 1]])

    assert isinstance(model, bursar.KMeans)
    np.testing.assert_array_equal(model.cluster_centers_, [[12.0, -3.0], [10.0, 1.0]])
    np.testing.assert_allclose(model.variances_, [0.01 * (16 + 4) / 2, 0.04 * (16 + 4) / 2])
    np.testing.assert_array_equal(model.weights_, [0.25, 0.75])
    assert (model.columns, model.n_rows, model.sketch) == (("c0", "c1"), 500.0, SKETCH)


def test_mixture_is_in_the_units_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variances are scaled by the square of each column's unit."""
    monkeypatch.setattr(_sketch, "decode_mixture", lambda *_, **__: decoded(np.array([[0.01, 0.02], [0.03, 0.04]])))
    model = SKETCH.gaussian_mixture(2)
    assert isinstance(model, bursar.GaussianMixture)
    np.testing.assert_array_equal(model.means_, [[12.0, -3.0], [10.0, 1.0]])
    np.testing.assert_allclose(model.covariances_, [[0.16, 0.08], [0.48, 0.16]])
    assert (model.covariance_type, model.columns, model.sketch) == ("diag", ("c0", "c1"), SKETCH)


def test_one_sketch_gives_models_of_any_size() -> None:
    """k-means finds the clusters of a table, and so do a mixture and one cluster fewer, from the same noisy sums."""
    truth = np.array([[-0.6, -0.5], [0.5, -0.4], [0.1, 0.7]])
    rows = np.repeat(truth, 1000, axis=0) + 0.05 * noise(13, 3000, 2)
    frequencies = Frequencies(m=120, d=2, public_seed=1, sigma=0.2)
    clean = sketch_of(rows, frequencies)
    sketch = replace(clean, sums=clean.sums + 20 * noise(14, 2, 120), noise_std=20.0)
    model = sketch.kmeans(3, n_init=3)
    found = (model.cluster_centers_ - CENTRE) / UNIT
    for centre in truth:
        assert np.abs(found - centre).max(axis=1).min() < 0.05
    assert sketch.kmeans(2, n_init=1).n_clusters == 2
    mixture = sketch.gaussian_mixture(3, n_init=1)
    assert np.sqrt(mixture.covariances_ / np.square(UNIT)) == pytest.approx(0.05, rel=0.5)


@pytest.mark.parametrize("s", [0.0, 20.0, 200.0])
@pytest.mark.parametrize("r", [120, 30])
def test_residual_of_the_right_model_is_about_one(s: float, r: int) -> None:
    """The rest of three clusters is the expected error, whether noise or sampling of rows or frequencies rules."""
    truth = np.array([[-0.6, -0.5], [0.5, -0.4], [0.1, 0.7]])
    rows = truth[(3 * public_uniforms(16, Stream.SCALES, 3000)).astype(int)] + 0.05 * noise(13, 3000, 2)
    frequencies = Frequencies(m=120, d=2, public_seed=1, sigma=0.06)
    asked = public_uniforms(15, Stream.SCALES, 3000, 120) < r / 120
    sums = (signature_of(rows, frequencies, "exponential") * asked).sum(axis=1) + s * noise(14, 2, 120)
    sketch = sketch_of(rows, frequencies, frequencies_per_row=r, sums=sums, noise_std=s)
    box = np.ones(2)
    found = decode_mixture(
        sketch.frequencies.matrix(), sketch.moments(), sketch.moment_error(), 3, -box, box, n_init=3, public_seed=0
    )
    assert 0.25 < found.residual < 1.3  # sampling errors are smooth, and the parameters take up a part of them
    assert sketch.moment_error() >= sketch.moment_std()


@pytest.mark.parametrize("sigma", [0.05, 0.1])
@pytest.mark.parametrize("m", [50, 120])
@pytest.mark.parametrize("s", [0.0, 20.0])
def test_narrow_clusters_are_told_apart(sigma: float, m: int, s: float) -> None:
    """Few frequencies at the scale of clusters that are small and far apart: no centre between two of them."""
    truth = np.array([[-0.6, -0.5], [0.5, -0.4], [0.1, 0.7]])
    rows = np.repeat(truth, 1000, axis=0) + 0.05 * noise(13, 3000, 2)
    clean = sketch_of(rows, Frequencies(m=m, d=2, public_seed=1, sigma=sigma))
    model = replace(clean, sums=clean.sums + s * noise(14, 2, m), noise_std=s).kmeans(3)
    found = (model.cluster_centers_ - CENTRE) / UNIT
    assert np.abs(found[:, None] - truth).max(axis=2).min(axis=0) == pytest.approx(0, abs=0.03)
    assert model.weights_ == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.parametrize("options", [{"n_init": 0}, {"n_clusters": 0}])
def test_decoding_refuses_nothing_to_do(options: dict[str, int]) -> None:
    """No clusters, or no restarts."""
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected at least 1, got 0"):
        SKETCH.kmeans(**{"n_clusters": 2, **options})
    with pytest.raises(ValueError, match="n_components: expected at least 1"):
        SKETCH.gaussian_mixture(0)


@pytest.mark.parametrize("law", FREQUENCY_LAWS)
@pytest.mark.parametrize("ratio", [2, 3, 6, 20])
@pytest.mark.parametrize("k", [5, 10])
def test_predicted_sum_of_squares_follows_from_the_information_in_a_sketch(
    law: FrequencyLaw, ratio: int, k: int
) -> None:
    """Least squares at the truth, by all derivatives, agrees within a factor 2 for clusters as in the paper."""
    d, m, s, snr = k, ratio * k * k, 0.05, 200.0
    if ratio < LEAST_FREQUENCIES[law]:
        assert predicted_relative_sse(k, d, m, snr, law) == math.inf
        return
    frequencies = Frequencies(m=m, d=d, public_seed=1, sigma=1.2 * s, law=law)
    W, centres = frequencies.matrix(), 1.5 * k ** (1 / d) * s * noise(15, k, d)
    squares = np.square(W).sum(axis=1)
    atoms = np.exp(1j * W @ centres.T - s**2 * squares[:, None] / 2)
    of_centres = [1j * W * atoms[:, [j]] / k for j in range(k)]
    of_variance = (-squares / 2 * s**2 * atoms.mean(axis=1))[:, None]
    derivatives = np.concatenate([*of_centres, atoms, of_variance], axis=1)
    real = np.concatenate([derivatives.real, derivatives.imag])
    covariance = TYPICAL_ENERGY / snr / 2 * np.linalg.inv(real.T @ real)
    excess = np.trace(covariance[: k * d, : k * d]) / k / (d * s**2)
    assert excess / 2 < predicted_relative_sse(k, d, m, snr, law) - 1 < 2 * excess


def test_predictions_are_ordered() -> None:
    """More noise is worse; without any signal nothing is promised; the limit is Lloyd's own."""
    values = [predicted_relative_sse(10, 10, 1000, snr) for snr in (0.0, 1.0, 10.0, 1e12)]
    assert values == sorted(values, reverse=True)
    assert values[0] == math.inf
    assert values[-1] == pytest.approx(1.0)
    assert predicted_relative_sse(10, 10, 199, 1e12) == math.inf


def test_trust_has_the_two_conditions_of_the_paper() -> None:
    """SNR m / (k d) of at least 100, and m at least 10 k d."""
    assert trustworthy_clusters(d=10, m=1000, snr=5.0) == 5
    assert trustworthy_clusters(d=10, m=1000, snr=1e6) == 10
    assert trustworthy_clusters(d=10, m=1000, snr=0.0) == 0


@each(
    ("change", "message"),
    [
        ({"columns": ("a",)}, "columns: expected 2 names"),
        ({"centre": [0.0]}, r"centre: expected shape \(2,\)"),
        ({"unit": [1.0, 0.0]}, "unit: every unit must be above 0"),
        ({"unit": [1.0, np.nan]}, "unit: every entry must be finite"),
        ({"unit": UNIT / 5}, r"unit: the bounds must be in \[-1, 1\]"),
        ({"unit": [1e-300, 1.0], "upper": [1e300, 1.0]}, "unit: the bounds must be in"),
        ({"lower": [0.0, np.inf]}, "lower: every entry must be finite"),
        ({"upper": CENTRE - UNIT}, "upper: every upper bound must be above"),
        ({"sums": np.zeros((2, 59))}, r"sums: expected shape \(2, 60\)"),
        ({"sums": np.full((2, 60), np.nan)}, "sums: every entry must be finite"),
        ({"signature": "two_bit"}, "signature: expected one of"),
        ({"frequencies_per_row": 0}, "frequencies_per_row: expected 1 to m = 60, got 0"),
        ({"frequencies_per_row": 61}, "frequencies_per_row: expected 1 to m = 60, got 61"),
        ({"noise_std": -1.0}, "noise_std: expected a finite number of at least 0"),
        ({"noise_std": math.nan}, "noise_std: expected"),
        ({"n_rows_std": math.inf}, "n_rows_std: expected"),
        ({"n_rows": math.nan}, "n_rows: expected a finite number"),
        ({"sites": 0}, "sites: expected at least 1"),
        ({"pilot_sigma": 0.0}, "pilot_sigma: expected a positive"),
    ],
)
def test_what_is_no_sketch_is_refused(change: dict[str, Any], message: str) -> None:
    """Every rule on the fields has an error that names the field."""
    with pytest.raises(ValueError, match=message):
        replace(SKETCH, **change)


def test_arrays_are_read_only_copies() -> None:
    """Neither the caller's array nor the field can change what was released."""
    sums = np.ones((2, 60))
    sketch = replace(SKETCH, sums=sums)
    sums[:] = 5.0
    assert (sketch.sums == 1).all()
    for name in (field.name for field in fields(Sketch) if isinstance(getattr(sketch, field.name), np.ndarray)):
        with pytest.raises(ValueError, match="read-only"):
            getattr(sketch, name)[0] = 1.0


def test_sketch_shows_itself() -> None:
    """The text says what an analyst needs: columns, m, r, rows, sites, noise, SNR, and which entry paid."""
    text = repr(replace(SKETCH, frequencies_per_row=20, sites=3, pilot_sigma=0.2))
    for part in ("60 frequencies of 2 columns", "c0, c1", "20 frequencies a row", "500, noise 3", "3 sites", "SNR"):
        assert part in text
    assert "from a pilot sketch" in text
    assert "all frequencies a row" in repr(SKETCH)
    assert "without names" in repr(replace(SKETCH, columns=()))
    assert "&lt;b&gt;" in replace(SKETCH, columns=("<b>", "c"))._repr_html_()


@pytest.mark.parametrize("law", ["normal", "t", "exponential"])
def test_a_sketch_says_whether_its_mixture_explains_it(law: str) -> None:
    """Residuals of replicates are the law; heavy tails and skewness leave several times as much."""
    rng = np.random.default_rng(4)  # noqa: TID251 - rows and noise of a test
    shape = 20_000, 2
    if law == "normal":
        residuals = rng.standard_normal(shape)
    else:
        residuals = rng.standard_t(3, shape) / math.sqrt(3) if law == "t" else rng.exponential(1, shape) - 1
    centres = np.array([[-0.5, -0.4], [0.4, 0.5]])[np.arange(len(residuals)) % 2]
    exact = sketch_of(np.clip(centres + 0.12 * residuals, -1, 1), Frequencies(60, 2, 1, 0.15), noise_std=20.0)
    model = replace(exact, sums=exact.sums + 20.0 * rng.standard_normal(exact.sums.shape)).gaussian_mixture(2)
    notes = model.intervals(replicates=12).warnings
    assert any("does not explain the sketch" in note for note in notes) == (law != "normal")
