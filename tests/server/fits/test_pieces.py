"""Parts between releases: exact where there is no noise, total where there is nothing but noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture

from bursar_server.fits.dpem._mixture import rules_for
from bursar_server.fits.mixtures import decoding, em, points, splitting
from bursar_server.fits.mixtures.decoding import Released
from bursar_server.fits.mixtures.em import Mixture, Prior
from bursar_server.fits.mixtures.statistics import Moments, Weights
from tests.server.fits.running import Array, clusters

KINDS = [Moments.SPHERICAL, Moments.DIAG, Moments.FULL, Moments.TIED]
SHAPES = {Moments.SPHERICAL: "spherical", Moments.DIAG: "diag", Moments.FULL: "full", Moments.TIED: "tied"}
X = clusters(3000, 5, np.array([[0.3, 0.1], [-0.4, 0.2], [0.0, -0.5]]), 0.08)


def exact(step: Mixture, whiteners: Array, centres: Array, moments: Moments) -> Released:
    """Moments without noise or truncation, from the formulas."""
    densities = [
        w * multivariate_normal(m, c).pdf(X) for w, m, c in zip(step.weights, step.means, step.covariances, strict=True)
    ]
    gamma = np.array(densities).T / np.sum(densities, axis=0)[:, None]
    u = np.einsum("kij,nkj->nki", whiteners, X[:, None] - centres)
    u /= np.maximum(np.linalg.norm(u, axis=2), 1.0)[:, :, None]
    seconds = np.einsum("nk,nki,nkj->kij", gamma, u, u)
    if moments is Moments.DIAG:
        seconds = seconds * np.eye(2)
    if moments is Moments.SPHERICAL:
        seconds = np.trace(seconds, axis1=1, axis2=2)[:, None, None] / 2 * np.eye(2)
    if moments is Moments.TIED:
        seconds = seconds.sum(axis=0)[None]
    return Released(gamma.sum(axis=0), np.einsum("nk,nki->ki", gamma, u), seconds, 0.0, 0.0, 0.0)


def in_full(covariances: Array, moments: Moments) -> Array:
    """Covariances of scikit-learn's shape as (3, 2, 2)."""
    if moments is Moments.SPHERICAL:
        return covariances[:, None, None] * np.eye(2)
    if moments is Moments.DIAG:
        return covariances[:, :, None] * np.eye(2)
    return np.broadcast_to(covariances, (3, 2, 2))


def near_truth(moments: Moments) -> Mixture:
    """Parameters from which EM still has to move a little."""
    means = np.array([[0.32, 0.1], [-0.4, 0.22], [0.02, -0.5]])
    return Mixture(np.full(3, 1000.0), means, em.shaped(np.tile(0.007 * np.eye(2), (3, 1, 1)), np.ones(3), moments))


@pytest.mark.parametrize("moments", KINDS)
def test_fixed_origin_step_is_the_textbooks(moments: Moments) -> None:
    """The paper's step without noise equals one EM step of scikit-learn."""
    start = near_truth(moments)
    step = em.fixed_origin_step(start, moments)
    mine = em.fixed_origin_update(exact(start, step.whiteners, step.centres, moments), moments)
    theirs = GaussianMixture(
        3, covariance_type=SHAPES[moments], max_iter=1, reg_covar=0, weights_init=start.weights, means_init=start.means
    )
    theirs.precisions_init = {
        Moments.SPHERICAL: 1 / start.covariances[:, 0, 0],
        Moments.DIAG: 1 / np.diagonal(start.covariances, axis1=1, axis2=2),
        Moments.FULL: np.linalg.inv(start.covariances),
        Moments.TIED: np.linalg.inv(start.covariances[0]),
    }[moments]
    with pytest.warns(match="did not converge"):
        theirs.fit(X)
    assert mine.weights == pytest.approx(theirs.weights_, abs=1e-9)
    assert mine.means == pytest.approx(theirs.means_, abs=1e-9)
    assert mine.covariances == pytest.approx(in_full(theirs.covariances_, moments), abs=1e-9)


@pytest.mark.parametrize("moments", KINDS)
def test_recentred_steps_end_where_em_ends(moments: Moments) -> None:
    """Whitened and clipped moments without noise lead to scikit-learn's maximum of the likelihood."""
    mixture = near_truth(moments)
    for _ in range(40):
        step, radii = em.recentred_step(mixture, moments, 1e-9)
        mixture = em.recentred_update(mixture, radii, exact(mixture, step.whiteners, step.centres, moments), moments)
    theirs = GaussianMixture(3, covariance_type=SHAPES[moments], means_init=mixture.means, tol=1e-9, max_iter=500).fit(
        X
    )
    assert mixture.weights == pytest.approx(theirs.weights_, abs=2e-3)
    assert mixture.means == pytest.approx(theirs.means_, abs=1e-3)
    theirs_full = in_full(theirs.covariances_, moments)
    assert np.linalg.det(mixture.covariances) == pytest.approx(np.linalg.det(theirs_full), rel=0.05)


@pytest.mark.parametrize("moments", KINDS)
def test_clean_rows_need_no_background(moments: Moments) -> None:
    """The rules for any rows lead to the same maximum without noise, and radii reach beyond every row."""
    rules, mixture = rules_for(2, moments, None), near_truth(moments)
    for _ in range(40):
        step, radii = em.recentred_step(mixture, moments, 1e-9, rules)
        released = exact(mixture, step.whiteners, step.centres, moments)
        mixture = em.recentred_update(mixture, radii, released, moments, rules=rules)
    assert radii.min() > 15.0
    theirs = GaussianMixture(3, covariance_type=SHAPES[moments], means_init=mixture.means, tol=1e-9, max_iter=500).fit(
        X
    )
    assert mixture.weights == pytest.approx(theirs.weights_, abs=1e-4)
    assert mixture.means == pytest.approx(theirs.means_, abs=1e-5)
    assert mixture.covariances == pytest.approx(in_full(theirs.covariances_, moments), rel=1e-3, abs=1e-5)


def widths_after_a_step(shape: Array, noise: float, seed: int) -> Array:
    """Return variances in units of those before a step, whose release shows a diagonal shape under noise."""
    d, rows, radius = len(shape), 1000.0, 20.0  # so far out that no tail is put back
    drawn = np.random.default_rng(seed).normal(size=(d, d))  # noqa: TID251 - noise of a test
    symmetric = noise * np.where(np.eye(d) > 0, drawn, (np.tril(drawn, -1) + np.tril(drawn, -1).T) * np.sqrt(0.5))
    seconds = rows / radius**2 * (np.diag(shape) + symmetric)[None]
    released = Released(np.array([rows]), np.zeros((1, d)), seconds, 1.0, 1e-6, noise * rows / radius**2)
    before = Mixture(np.array([rows]), np.zeros((1, d)), 0.01 * np.eye(d)[None], age=20)
    rules = rules_for(d, Moments.FULL, None)
    after = em.recentred_update(before, np.array([radius]), released, Moments.FULL, rules=rules)
    return np.asarray(np.diagonal(after.covariances[0]) / 0.01)


def test_a_clear_step_to_thin_directions_is_taken_and_noise_is_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A covariance too wide in two of 16 directions narrows at once; if noise is drawn out of it twice it does not."""
    shape, noise = np.array([0.05, 0.05, *np.ones(14)]), 0.1
    assert np.median([widths_after_a_step(shape, noise, seed)[:2].mean() for seed in range(20)]) < 0.5
    moved = [np.abs(widths_after_a_step(np.ones(16), noise, seed) - 1.0).max() for seed in range(20)]
    assert np.median(moved) < 0.1 * noise
    # The planted bug: the gain of steps that still have their noise.
    monkeypatch.setattr(em, "_gain_of_shrunk", lambda far, s, d, kind, least: em._gain(far, kind.size(d) * s**2, least))
    assert np.median([widths_after_a_step(shape, noise, seed)[:2].mean() for seed in range(20)]) > 0.7


def test_merging_keeps_what_all_rows_have_and_joins_the_nearest() -> None:
    """Count, mean and covariance of the whole stay; of three Gaussians the two that overlap become one."""
    means = np.array([[0.5, 0.0], [-0.5, 0.1], [0.52, 0.0]])
    start = Mixture(np.array([100.0, 300.0, 200.0]), means, np.tile(0.01 * np.eye(2), (3, 1, 1)), age=5)
    made = em.merged(start, 2)

    def whole(mixture: Mixture) -> tuple[Array, Array]:
        mean = mixture.weights @ mixture.means
        apart = mixture.means - mean
        outer = mixture.covariances + apart[:, :, None] * apart[:, None, :]
        return mean, np.tensordot(mixture.weights, outer, axes=1)

    assert sorted(made.counts) == [300.0, 300.0]
    assert whole(made)[0] == pytest.approx(whole(start)[0])
    assert whole(made)[1] == pytest.approx(whole(start)[1])
    assert made.means[np.argmax(made.means[:, 0]), 0] == pytest.approx((0.5 + 2 * 0.52) / 3)
    assert em.merged(start, 3) is start


def test_balanced_means_have_the_mean_of_all_rows_as_far_as_noise_lets_them() -> None:
    """Wide and tightly clipped components get most of what is missing, thin directions nothing; noise moves nothing."""
    variances = np.array([[0.01, 1e-8], [0.01, 1e-8], [0.04, 1e-8]])
    before = Mixture(np.array([2.0, 1.0, 1.0]), np.zeros((3, 2)), variances[:, :, None] * np.eye(2))
    radii, mean = np.array([6.0, 3.0, 3.0]), np.array([0.01, 0.0])
    after = em.balanced(before, radii, mean, 1e-9)
    assert after.weights @ after.means == pytest.approx(mean, abs=1e-6)
    # Deviations over squared radii: 1/360, 1/90, 2/90.
    assert after.means[:, 0] / after.means[0, 0] == pytest.approx([1.0, 4.0, 8.0])
    thin = em.balanced(before, radii, np.array([0.0, 0.01]), 1e-3)
    assert np.abs(thin.means).max() < 1e-3 * 0.01
    assert em.balanced(before, radii, mean, 1.0).means == pytest.approx(before.means, abs=1e-5)


def test_maximum_a_posteriori_is_the_papers() -> None:
    """Park et al. 2016, section 4.1: the three MAP formulas, number by number."""
    start, prior, N, K, d = near_truth(Moments.FULL), Prior(2.0, 1.0, 4.0, 0.1), 1000.0, 3, 2
    made = em.maximum_a_posteriori(start, prior, Moments.FULL)
    assert made.weights == pytest.approx((N + 1) / (K * N + K * 2.0 - K) * np.ones(K))
    assert made.means == pytest.approx(N / (N + 1) * start.means)
    for k in range(K):
        mu = start.means[k]
        covariance = (0.1 * np.eye(d) + N * start.covariances[k] + N / (1 + N) * np.outer(mu, mu)) / (4 + N + d + 2)
        assert made.covariances[k] == pytest.approx(covariance)


@pytest.mark.parametrize("d", [1, 2, 5, 20, 64])
def test_unclip_inverts_clipping(d: int) -> None:
    """A Gaussian's variance is found again from its clipped mean square, for clip radii of 0.5 to 3 deviations."""
    generator = np.random.default_rng(d)  # noqa: TID251 - draws of a test
    squares = np.sum(generator.standard_normal((200_000, d)) ** 2, axis=1) / d
    for reach in (0.5, 1.0, 2.0, 3.0):
        mean_square = np.minimum(squares / reach**2, 1.0).mean()
        assert decoding.unclip(np.array([mean_square]), d)[0] * d == pytest.approx(1 / reach**2, rel=0.05)


@pytest.mark.parametrize("moments", KINDS)
def test_decoding_undoes_the_layout(moments: Moments) -> None:
    """Counts, sums and svec second moments come back as numbers, vectors and symmetric matrices."""
    K, d, w = 3, 4, Weights(0.5, 0.25, 0.8)
    u = np.linspace(-0.4, 0.5, K * d).reshape(K, d)
    outer = u[:, :, None] * u[:, None, :]
    rows, columns = np.tril_indices(d)
    packed = {
        Moments.SPHERICAL: np.trace(outer, axis1=1, axis2=2)[:, None],
        Moments.DIAG: u**2,
        Moments.FULL: outer[:, rows, columns] * np.where(rows == columns, 1, np.sqrt(2)),
        Moments.TIED: outer.sum(axis=0)[rows, columns][None] * np.where(rows == columns, 1, np.sqrt(2)),
    }.get(moments, np.zeros((K, 0)))
    flat = np.concatenate([0.5 * np.arange(K), 0.25 * u.ravel(), 0.8 * packed.ravel()])
    released = decoding.decode(flat, K, d, moments, w, 1.0)
    assert released.counts == pytest.approx(np.arange(K))
    assert released.sums == pytest.approx(u)
    if moments in (Moments.FULL, Moments.TIED):
        assert released.seconds == pytest.approx(outer if moments is Moments.FULL else outer.sum(axis=0)[None])
    else:
        assert np.trace(released.seconds, axis1=1, axis2=2) == pytest.approx(np.sum(u**2, axis=1))


def cell(count: float, mean: tuple[float, float], spread: tuple[float, float] = (0.01, 0.01)) -> splitting.Cell:
    """A cell without noise."""
    return splitting.Cell(count, np.array(mean), np.diag(spread), 0.0, 0.3, 1)


def total(cells: splitting.Cells) -> tuple[float, Array, Array]:
    """Count, mean and covariance of all cells together."""
    count = sum(c.count for c in cells)
    mean = np.sum([c.count / count * c.mean for c in cells], axis=0)
    return (
        count,
        mean,
        np.sum([c.count / count * (c.covariance + np.outer(c.mean - mean, c.mean - mean)) for c in cells], axis=0),
    )


def test_splitting_and_merging_keep_the_moments() -> None:
    """Count, mean and covariance of the whole are those before."""
    cells = (cell(100.0, (0.1, 0.2), (0.04, 0.01)), cell(50.0, (-0.3, 0.0)))
    for changed in (splitting.split(cells, 0), splitting.merge(cells, 1, 0)):
        for before, after in zip(total(cells), total(changed), strict=True):
            assert after == pytest.approx(before)


def test_repair_moves_a_centre_to_where_two_clusters_share_one() -> None:
    """Two centres in one cluster and one centre for two become one each."""
    cells = (cell(50.0, (0.5, 0.02)), cell(50.0, (0.5, -0.02)), cell(200.0, (-0.4, 0.0), (0.01, 0.16)))
    means = np.array(sorted(c.mean.tolist() for c in splitting.repair(cells)))
    assert means[2] == pytest.approx([0.5, 0.0])
    assert means[:2, 0] == pytest.approx([-0.4, -0.4])
    assert abs(means[0, 1] - means[1, 1]) > 0.5


def test_repair_leaves_a_good_solution_alone() -> None:
    """One centre for each of three clusters stays."""
    cells = (cell(100.0, (0.5, 0.0)), cell(100.0, (-0.5, 0.0)), cell(100.0, (0.0, 0.5)))
    assert splitting.repair(cells) == cells


NUMBERS = st.floats(-1e12, 1e12)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.floats(1e-3, 1e9), st.floats(1e-3, 1e9))
def test_updates_are_total(seed: int, moments: Moments, size: float, noise: float) -> None:
    """Parameters are valid for every release: finite, weights positive, covariances positive definite."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - releases of a test
    K, d = 3, 3
    flat = size * generator.standard_normal(K + K * d + (1 if moments is Moments.TIED else K) * moments.size(d) + 1)
    released = decoding.decode(flat[:-1], K, d, moments, Weights(1.0, 1.0, 1.0), noise)
    mixture = Mixture(np.full(K, 10.0), generator.uniform(-0.5, 0.5, (K, d)), np.tile(0.01 * np.eye(d), (K, 1, 1)))
    _, radii = em.recentred_step(mixture, moments, noise)
    made = [em.fixed_origin_update(released, moments), em.recentred_update(mixture, radii, released, moments)]
    for uniform in (None, -3.0):
        rules, counted = rules_for(d, moments, uniform), flat if uniform is not None else flat[:-1]
        step, wide = em.recentred_step(mixture, moments, noise, rules, background=uniform is not None)
        assert step.background is (uniform is not None)
        again = decoding.decode(counted, K, d, moments, Weights(1.0, 1.0, 1.0), noise)
        made.append(em.recentred_update(mixture, wide, again, moments, rules=rules))
        assert made[-1].background_count > 0.0
        made.append(em.balanced(made[-1], wide, flat[:d], noise))
        made.append(em.merged(made[-2], 2))
        made.append(points.reduced(made[-3], 2, moments, noise))
    if moments is not Moments.TIED:
        cells = tuple(
            splitting.Cell(10.0, m, c, 0.0, 0.5) for m, c in zip(mixture.means, mixture.covariances, strict=True)
        )
        seen = splitting.repair(splitting.resize(splitting.observe(cells, released, moments, averaging=True), 5))
        assert len(seen) == 5
        made.append(em.from_cells(seen, moments))
        made.append(em.from_cells(seen, moments, rules_for(d, moments, -3.0)))
    for each in made:
        assert np.all(np.isfinite(each.means))
        assert np.all(each.weights > 0)
        assert each.weights.sum() == pytest.approx(1)
        assert np.linalg.eigvalsh(each.covariances).min() >= 0.99 * em.VARIANCE_FLOOR / d
        em.recentred_step(each, moments, noise)


def test_a_step_without_length_has_the_least_gain() -> None:
    """Noise may drive a number to its limit twice; nothing overflows then."""
    assert em._gain(np.zeros(3), np.array([1.0, 1e10, 1e290]), 0.2).tolist() == [0.2, 0.2, 0.2]
    assert em._gain(np.array([1.0]), np.zeros(1), 0.2).tolist() == [1.0]
