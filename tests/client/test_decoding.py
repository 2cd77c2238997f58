"""The decoder finds clusters in moments, and gives a valid model for whatever it is given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from bursar_models._decoding import Decoded, decode_kmeans, decode_mixture
from bursar_models._frequencies import Frequencies
from bursar_models._lloyd import lloyd

SPREAD = 0.05
CORNERS = np.array([[0.6, 0.6], [-0.6, 0.5], [-0.5, -0.6], [0.5, -0.4]])
SHARES = np.array([0.4, 0.3, 0.2, 0.1])
DECODERS = [decode_kmeans, decode_mixture]
Decoder = Callable[..., Decoded]


def frequencies(m: int, d: int, sigma: float = SPREAD) -> Any:
    """A public frequency matrix, shape (m, d)."""
    return Frequencies(m, d, public_seed=3, sigma=sigma).matrix()


def moments(W: Any, weights: Any, centres: Any, variances: Any, noise: float = 0.0, seed: int = 0) -> Any:
    """The mixture's characteristic function at the frequencies, with normal noise on both parts."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - a test's own noise
    variances = np.broadcast_to(variances, centres.shape)
    atoms = np.exp(1j * (W @ centres.T) - 0.5 * (W * W) @ variances.T)
    return atoms @ weights + noise * (rng.standard_normal(len(W)) + 1j * rng.standard_normal(len(W)))


def decode(decoder: Decoder, W: Any, z: Any, k: int, noise_std: float = 1e-3, **change: Any) -> Decoded:
    """A decoding in the box [-1, 1]^d."""
    d = W.shape[1]
    options: dict[str, Any] = {"lower": -np.ones(d), "upper": np.ones(d), "n_init": 4, "public_seed": 1, **change}
    return decoder(W, z, noise_std, k, **options)


def matched(model: Decoded, centres: Any) -> list[int]:
    """The model's centres in the order of the true ones: the nearest of all orders."""
    orders = [list(order) for order in permutations(range(len(centres)))]
    return min(orders, key=lambda order: float(np.square(model.centres[order] - centres).sum()))


def assert_valid(model: Decoded, k: int, d: int, shape: tuple[int, ...], box: float = 1.0) -> None:
    """Everything that a decoding promises whatever it is given."""
    assert model.weights.shape == (k,)
    assert (model.weights >= 0).all()
    assert model.weights.sum() == pytest.approx(1)
    assert model.centres.shape == (k, d)
    assert (np.abs(model.centres) <= box).all()
    assert model.variances.shape == shape
    assert (model.variances > 0).all()
    assert np.isfinite(model.variances).all()
    assert np.isfinite([model.residual, model.mass]).all()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_separated_clusters_come_back(decoder: Decoder, noise: float) -> None:
    """Centres, weights and variances of separated clusters, as precisely as the noise lets."""
    W = frequencies(200, 2)
    model = decode(decoder, W, moments(W, SHARES, CORNERS, SPREAD**2, noise), 4, max(noise, 1e-6))
    order = matched(model, CORNERS)
    # A coordinate's standard error is about 0.003 for the smallest cluster at this noise, and Lloyd's rows add 0.001.
    np.testing.assert_allclose(model.centres[order], CORNERS, atol=0.02)
    np.testing.assert_allclose(model.weights[order], SHARES, atol=0.02)
    np.testing.assert_allclose(model.variances[order], np.full_like(model.variances, SPREAD**2), rtol=0.5)
    assert model.mass == pytest.approx(1, abs=0.05)


def test_centres_have_no_error_of_the_rows_that_are_drawn_to_find_them() -> None:
    """Centres of clusters that lie apart are exact without noise: independent rows would leave 0.01 deviations."""
    W = frequencies(200, 2)
    model = decode(decode_kmeans, W, moments(W, SHARES, CORNERS, SPREAD**2), 4, noise_std=1e-9)
    assert model.centres[matched(model, CORNERS)] == pytest.approx(CORNERS, abs=1e-3 * SPREAD)


def test_a_mixture_has_a_variance_for_every_component_and_column() -> None:
    """Clusters of different shapes, from clean moments: all three kinds of parameters are exact."""
    W = frequencies(300, 2)
    variances = np.array([[0.001, 0.004], [0.004, 0.001], [0.002, 0.002], [0.006, 0.003]])
    model = decode(decode_mixture, W, moments(W, SHARES, CORNERS, variances), 4, 1e-9)
    order = matched(model, CORNERS)
    np.testing.assert_allclose(model.centres[order], CORNERS, atol=1e-3)
    np.testing.assert_allclose(model.weights[order], SHARES, atol=1e-3)
    np.testing.assert_allclose(model.variances[order], variances, rtol=0.02)


def test_overlapping_clusters_have_the_centres_of_k_means() -> None:
    """Two clusters two spreads apart: k-means puts its centres further out than the means, by a known amount."""
    W = frequencies(200, 1, sigma=0.2)
    means = np.array([[-0.2], [0.2]])
    model = decode(decode_kmeans, W, moments(W, np.array([0.5, 0.5]), means, 0.04), 2, 1e-6)
    # E |x| for x ~ N(0.2, 0.2^2): sd sqrt(2 / pi) exp(-1/2) + 0.2 (1 - 2 Phi(-1)).
    expected = 0.2 * np.sqrt(2 / np.pi) * np.exp(-0.5) + 0.2 * 0.6826895
    np.testing.assert_allclose(np.sort(model.centres[:, 0]), [-expected, expected], atol=0.01)


def test_fewer_centres_than_clusters() -> None:
    """Four clusters in two far pairs, two centres: k-means' answer is the middle of each pair."""
    W = frequencies(200, 2)
    pairs = np.array([[-0.7, 0.2], [-0.7, -0.2], [0.6, 0.2], [0.6, -0.2]])
    model = decode(decode_kmeans, W, moments(W, np.full(4, 0.25), pairs, SPREAD**2), 2, 1e-6)
    np.testing.assert_allclose(model.centres[matched(model, pairs[::2] * [1, 0])], [[-0.7, 0], [0.6, 0]], atol=0.02)
    np.testing.assert_allclose(model.weights, [0.5, 0.5], atol=0.02)


def test_centres_hardly_depend_on_the_frequencies() -> None:
    """Four centres of fourteen Gaussians cost what Lloyd's cost on rows of them, whichever frequencies were drawn."""
    rng = np.random.default_rng(1)  # noqa: TID251 - a test's own rows
    means, weights, spread = rng.uniform(-0.7, 0.7, (14, 3)), rng.dirichlet(np.full(14, 2.0)), 0.1
    rows = means[rng.choice(14, 20_000, p=weights)] + spread * rng.standard_normal((20_000, 3))
    best = min(lloyd(rows, rows[rng.choice(20_000, 4)]).inertia for _ in range(10))
    for seed in range(4):
        W = Frequencies(144, 3, public_seed=seed, sigma=0.15).matrix()
        centres = decode(decode_kmeans, W, moments(W, weights, means, spread**2, 0.002), 4, 0.002).centres
        # 1.0001 over 6 seeds; with a density of at most three atoms a centre, and fewer starts, 1.001 to 1.06.
        assert np.square(rows[:, None] - centres).sum(axis=2).min(axis=1).sum() < 1.005 * best


def test_more_centres_than_one_search_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that has to add many atoms adds as many, so that there are k at the end."""
    monkeypatch.setattr("bursar_models._atom_search.ROUNDS", 1)
    W = frequencies(60, 2)
    model = decode(decode_mixture, W, moments(W, SHARES, CORNERS, SPREAD**2), 16, n_init=1)
    assert_valid(model, 16, 2, (16, 2))


def test_narrow_groups_at_all_scales() -> None:
    """Forty narrow groups with long-tailed shares, as towns have: atoms of one common width alone miss some of them."""
    rng = np.random.default_rng(3)  # noqa: TID251 - rows of a test
    places, shares = rng.uniform(-0.9, 0.9, (40, 2)), rng.pareto(1.2, 40) + 0.05
    widths = np.exp(rng.uniform(np.log(0.003), np.log(0.08), (40, 2)))
    group = rng.choice(40, 5000, p=shares / shares.sum())
    rows = np.clip(places[group] + widths[group] * rng.standard_normal((5000, 2)), -1, 1)
    W = frequencies(300, 2)
    model = decode(decode_kmeans, W, np.exp(1j * rows @ W.T).mean(axis=0), 5, n_init=1)
    best = min(lloyd(rows, rows[rng.choice(5000, 5)]).inertia for _ in range(20))
    # Without atoms of their own variances it was 1.17 times the best.
    assert np.square(rows[:, None] - model.centres).sum(axis=2).min(axis=1).sum() < 1.05 * best


def test_the_residual_says_whether_the_model_is_right() -> None:
    """The residual is about 1 if the model explains all but the noise, far above if a cluster lacks a centre."""
    W = frequencies(400, 2)
    z = moments(W, SHARES, CORNERS, SPREAD**2, 0.01)
    # 800 numbers less about 13 parameters: standard deviation of the root mean square 0.025.
    assert decode(decode_kmeans, W, z, 4, 0.01).residual == pytest.approx(1, abs=0.15)
    assert decode(decode_kmeans, W, z, 3, 0.01).residual > 3


def test_ten_clusters_in_ten_dimensions() -> None:
    """The setting of Chatalic et al.: every centre is found at the noise of a million rows and epsilon 1."""
    rng = np.random.default_rng(5)  # noqa: TID251 - a test's own clusters
    centres = rng.standard_normal((10, 10)) * 0.19
    W = frequencies(1000, 10, sigma=0.1)
    z = moments(W, np.full(10, 0.1), centres, 0.01, 1e-3)
    model = decode(decode_kmeans, W, z, 10, 1e-3, n_init=1)
    nearest = np.square(model.centres[:, None] - centres).sum(axis=2).argmin(axis=0)
    assert sorted(nearest) == list(range(10))
    np.testing.assert_allclose(model.centres[nearest], centres, atol=0.02)


def test_low_frequencies_do_not_hide_the_clusters() -> None:
    """Frequencies of all scales: one wide atom would explain the lowest ones, and must not end the search."""
    W = Frequencies(400, 2, public_seed=3, sigma=SPREAD, law="multiscale").matrix()
    model = decode(decode_kmeans, W, moments(W, SHARES, CORNERS, SPREAD**2, 1e-4), 4, 1e-4)
    np.testing.assert_allclose(model.centres[matched(model, CORNERS)], CORNERS, atol=0.01)


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_problem_too_large_for_a_jacobian_is_solved_without(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two ways to refine end in the same place."""
    W = frequencies(200, 2)
    z = moments(W, SHARES, CORNERS, SPREAD**2, 0.003)
    dense = decode(decoder, W, z, 4, 0.003)
    monkeypatch.setattr("bursar_models._moment_fit.DENSE_WORK", 0)
    light = decode(decoder, W, z, 4, 0.003)
    np.testing.assert_allclose(
        light.centres[matched(light, CORNERS)], dense.centres[matched(dense, CORNERS)], atol=0.005
    )
    np.testing.assert_allclose(light.residual, dense.residual, rtol=0.01)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_same_input_gives_the_same_answer(decoder: Decoder) -> None:
    """Decoding is a function: both sides of the wire get the same model; another seed may get another."""
    W = frequencies(60, 2)
    z = moments(W, SHARES, CORNERS, SPREAD**2, 0.2)
    first, second = (decode(decoder, W, z, 5, 0.2) for _ in range(2))
    np.testing.assert_array_equal(first.centres, second.centres)
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_array_equal(first.variances, second.variances)


def nonsense(m: int) -> list[Any]:
    """Moments that no rows have."""
    rng = np.random.default_rng(1)  # noqa: TID251 - a test's own noise
    alternating = np.where(np.arange(m) % 2 == 0, 1e308, -1e308)
    return [
        np.full(m, complex(np.nan, 0.0)),
        np.full(m, complex(np.inf, -np.inf)),
        np.zeros(m, dtype=complex),
        alternating.astype(complex),
        -np.ones(m, dtype=complex),
        1e5 * rng.standard_normal(m) + 1e5j * rng.standard_normal(m),
        np.full(m, 1e-200 + 0j),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("k", "d", "m"), [(1, 1, 1), (3, 1, 2), (3, 8, 24)])
def test_nonsense_gives_a_valid_model(
    decoder: Decoder, k: int, d: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No moments and no noise level, finite or not, stop the decoder; the box holds."""
    monkeypatch.setattr("bursar_models._decoding.LLOYD_ROWS", 500)
    W = frequencies(m, d, sigma=0.1)
    for index, z in enumerate(nonsense(m)):
        for noise_std in ((0.0, np.nan), (0.1, np.inf))[index % 2]:
            model = decode(decoder, W, z, k, noise_std, n_init=1)
            assert_valid(model, k, d, (k, d) if decoder is decode_mixture else (k,))


@pytest.mark.parametrize("sigma", [1e-4, 1e4])
def test_frequencies_of_a_wrong_scale_give_a_valid_model(sigma: float) -> None:
    """Frequencies that see nothing, or only noise."""
    W = frequencies(50, 2, sigma=sigma)
    model = decode(decode_kmeans, W, moments(W, SHARES, CORNERS, SPREAD**2, 0.01), 4, 0.01)
    assert_valid(model, 4, 2, (4,))


def test_one_cluster_is_the_mean() -> None:
    """The one centre is the mean, and its variance that of the rows."""
    W = frequencies(100, 3, sigma=0.3)
    model = decode(decode_kmeans, W, moments(W, np.ones(1), np.array([[0.3, -0.2, 0.1]]), 0.04), 1, 1e-6)
    np.testing.assert_allclose(model.centres, [[0.3, -0.2, 0.1]], atol=0.01)
    np.testing.assert_allclose(model.variances, [0.04], rtol=0.05)
    np.testing.assert_array_equal(model.weights, [1.0])


@pytest.mark.parametrize("decoder", DECODERS)
def test_centres_stay_in_the_box(decoder: Decoder) -> None:
    """Clusters outside of the box are given centres on its faces."""
    W = frequencies(200, 2)
    z = moments(W, SHARES, CORNERS, SPREAD**2)
    model = decode(decoder, W, z, 4, 1e-6, lower=-0.3 * np.ones(2), upper=0.3 * np.ones(2))
    assert_valid(model, 4, 2, (4, 2) if decoder is decode_mixture else (4,), box=0.3)


def test_noise_alone_gives_no_empty_model() -> None:
    """The prior keeps some mass on every centre when there is nothing but noise."""
    W = frequencies(200, 2)
    model = decode(decode_mixture, W, moments(W, SHARES, CORNERS, SPREAD**2, 1.0), 4, 1.0)
    assert model.weights.max() < 0.7
    assert model.weights.min() > 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("d", "noise"), [(2, 1.0), (2, 10.0), (5, 1.0), (5, 5.0), (5, 100.0)])
def test_where_noise_rules_centres_are_no_worse_than_one(d: int, noise: float) -> None:
    """They stay about the mean of the rows, and do not chase the noise to the walls of the box."""
    rng = np.random.default_rng(9)  # noqa: TID251 - a test's own clusters
    means = 0.2 * rng.standard_normal((5, d))
    W = frequencies(100, d, sigma=0.12)
    rows = np.repeat(means, 400, axis=0) + 0.1 * rng.standard_normal((2000, d))
    one = float(np.square(rows - rows.mean(axis=0)).sum())
    ratios = []
    for seed in range(3):
        z = moments(W, np.full(5, 0.2), means, 0.01, noise, seed)
        model = decode(decode_kmeans, W, z, 5, noise, n_init=1)
        ratios.append(float(np.square(rows[:, None] - model.centres).sum(axis=2).min(axis=1).sum()) / one)
        mixture = decode(decode_mixture, W, z, 5, noise, n_init=1)
        assert np.square(mixture.centres).mean() < 0.3**2
        assert mixture.weights.max() < 0.6
    assert np.median(ratios) < 1.3


@pytest.mark.parametrize(("apart", "seed"), [(4.0, 24), (1.5, 24)])
def test_many_components_of_different_shapes(apart: float, seed: int) -> None:
    """Ten unequal components, apart or overlapping: the best fit with one spread for all is not near the truth."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - a test's own clusters
    widths, means = 0.5 + rng.random((10, 2)), apart * np.sqrt(10) * rng.standard_normal((10, 2))
    reach = np.abs(means).max() + 4
    W = frequencies(200, 2, sigma=1.1 / reach)
    z = moments(W, rng.dirichlet(np.full(10, 8.0)), means / reach, np.square(widths / reach), 0.003)
    model = decode(decode_mixture, W, z, 10, 0.003, n_init=6)
    assert model.residual < 1.3


def test_more_restarts_never_fit_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicate with the smallest loss is kept, and the first replicates are those of fewer restarts."""
    monkeypatch.setattr("bursar_models._atom_search.AGREEING", 100)
    rng = np.random.default_rng(8)  # noqa: TID251 - a test's own clusters
    W = frequencies(80, 2)
    z = moments(W, np.full(8, 1 / 8), rng.uniform(-0.9, 0.9, (8, 2)), SPREAD**2)
    residuals = [decode(decode_kmeans, W, z, 8, 0.0, n_init=n).residual for n in (1, 4)]
    assert residuals[1] <= residuals[0] * (1 + 1e-9)
