"""FitDPEM's k-means: its schedule, its pseudo-rows, and no floor that more budget does not lower."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bursar_ledger import Adjacency
from bursar_models import public_generator
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits.dpem import DPEMPlan
from bursar_server.fits.dpem import _pseudo_rows as pseudo_rows
from bursar_server.fits.dpem._kmeans import KMeansSettings
from bursar_server.fits.mixtures.splitting import Cell
from bursar_server.fits.mixtures.statistics import Moments
from bursar_server.fits.mixtures.steps import Phase
from bursar_server.vault import Release
from tests.each import each
from tests.server.fits.running import Array, NoNoise, array, expected_numbers, plan, run, table

KMEANS = fit_pb2.MODE_KMEANS
AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE


def kmeans(d: int = 3, rows: int | None = 5000, adjacency: Adjacency = AR, **fields: Any) -> DPEMPlan:
    """The plan of a k-means."""
    return plan(table(d, adjacency=adjacency, rows=rows), mode=KMEANS, **fields)


def rho(value: float) -> dict[str, Any]:
    """A spend."""
    return {"spend": types_pb2.Spend(rho=value)}


def pure(value: float) -> dict[str, Any]:
    """A pure spend."""
    return {"spend": types_pb2.Spend(epsilon=value)}


def squares(X: Array, centres: Array) -> float:
    """Sum of squared distances to the nearest centres."""
    return float(np.min([np.sum((X - centre) ** 2, axis=1) for centre in centres], axis=0).sum())


def lloyd(X: Array, k: int) -> float:
    """The sum of squares of k-means without noise, the best of several starts."""
    everything = pseudo_rows.PseudoRows(X / 100.0, np.ones(len(X)))
    return squares(X, 100.0 * pseudo_rows.cluster(everything, k).centres)


def skewed(n: int, d: int, seed: int = 0) -> Array:
    """Rows without clusters: products of exponentials, as money and durations are, in [0, 10]."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    return np.minimum(generator.exponential(size=(n, d)) * (0.5 + generator.exponential(size=(n, 1))), 10.0)


# --- the schedule ---------------------------------------------------------------------------------------------


def phases(made: DPEMPlan) -> list[tuple[Phase, int]]:
    """Phase and components of each release."""
    return [(step.phase, step.components) for step in made.steps]


def test_the_start_has_twelve_cells_for_each_cluster() -> None:
    """One release for the spread, then 1, 2, 4, ... cells up to twelve for each cluster, then Lloyd steps."""
    cells = [size for phase, size in phases(kmeans(**rho(5.0))) if phase is Phase.SPLIT]
    assert cells == [1, 1, 2, 4, 8, 16, 32, 36]
    assert kmeans(n_components=100, **rho(1000.0)).steps[-18].components == 256


def test_few_columns_have_a_grid_instead() -> None:
    """Counts in bins as fine as the noise allows, within public limits; where it is low, cells follow."""
    for d in (1, 2):
        sizes = [phases(kmeans(d, n_components=5, **rho(r)))[0] for r in (0.02, 0.1, 1.0, 1e6)]
        assert all(phase is Phase.GRID for phase, _ in sizes)
        bins = [size for _, size in sizes]
        assert bins == sorted(bins)
        assert 10 <= bins[0] < bins[-1] <= 2500
        for quiet in (rho(0.05), pure(3.0)):
            assert phases(kmeans(d, n_components=5, **quiet))[1] == (Phase.SPLIT, 15)
        for noisy in (rho(0.0005), pure(0.3)):
            assert phases(kmeans(d, n_components=5, **noisy))[1] == (Phase.LLOYD, 5)
    assert phases(kmeans(2, n_components=100, **rho(1000.0)))[1] == (Phase.SPLIT, 256)
    assert phases(kmeans(3, n_components=16, **rho(0.01)))[0][0] is Phase.SPLIT
    for noisy in (rho(0.0015), pure(0.2)):
        found = phases(kmeans(3, n_components=16, **noisy))[:3]
        assert found == [(Phase.GRID, 4**3), (Phase.GRID, 8**3), (Phase.LLOYD, 16)]
    assert [p for p, _ in phases(kmeans(3, n_components=16, iterations=3, **rho(0.0015)))].count(Phase.GRID) == 1


def test_quieter_fits_make_more_lloyd_steps() -> None:
    """4 to 16 under zCDP, 2 to 16 under pure epsilon; none where a step would be noise; given starts, too.

    One release after them reports the clusters; five before them split given cells where noise is low.
    """
    for spends in ([rho(10.0**x) for x in range(-6, 4)], [pure(10.0**x) for x in range(-2, 4)]):
        steps = [sum(p is Phase.LLOYD for p, _ in phases(kmeans(**spend))) for spend in spends]
        assert steps == sorted(steps)
        assert (steps[0], steps[-1]) == (0, 16)
    means = types_pb2.Tensor(shape=(3, 3), values=[0.0] * 3 + [1.0] * 3 + [2.0] * 3)
    given = [kmeans(given=fit_pb2.StartGiven(means=means), **rho(r)).iterations for r in (1e-5, 100.0)]
    assert given == [5, 22]


@each("iterations", range(1, 30))
@each("d", [1, 3])
def test_a_number_of_steps_that_is_asked_for_is_kept(iterations: int, d: int) -> None:
    """Every start keeps it, with at least one Lloyd step from three on; a report as soon as two are left beside it."""
    made = kmeans(d, iterations=iterations, **rho(0.5))
    assert len(made.steps) == made.iterations == iterations
    steps = [phase for phase, _ in phases(made)]
    assert (Phase.LLOYD in steps) == (iterations >= (2 if d == 1 else 3))
    assert (steps[-1] is Phase.REPORT) == (steps.count(Phase.LLOYD) + steps.count(Phase.REPORT) >= 3)
    assert steps.count(Phase.REPORT) <= 1


def test_pure_epsilon_takes_diagonal_moments() -> None:
    """All second moments would cost in proportion to the number of columns; except where noise is tiny."""
    forms = [{step.moments for step in kmeans(8, **spend).steps[1:-2]} for spend in (pure(3.0), rho(0.5))]
    assert Moments.DIAG in forms[0]
    assert Moments.FULL not in forms[0]
    assert Moments.FULL in forms[1]
    assert Moments.FULL in {step.moments for step in kmeans(8, **pure(1000.0)).steps}


def test_counts_are_as_precise_as_they_are_cheap() -> None:
    """A precise count is free under REPLACE_ONE, and is not under ADD_REMOVE_ONE."""
    counts = {adjacency: kmeans(adjacency=adjacency, **rho(1.0)).steps[-1].weights.a for adjacency in Adjacency}
    assert counts == {AR: 0.35, RO: 0.95}
    # The same total price buys more precise sums than counts at full weight would.
    cheap, _ = (kmeans(adjacency=adjacency, iterations=6, **rho(1.0)).noise[-1].sum_std for adjacency in Adjacency)
    full = replace(kmeans(iterations=6, **rho(1.0)).steps[-1].weights, a=1.0)
    assert cheap > 0
    assert full.a**2 + full.b**2 + full.c**2 > 1.7 * (0.35**2 + full.b**2 + full.c**2)


def test_hopeless_spends_buy_one_centre_and_say_so() -> None:
    """One release, one warning; a rough fit has a warning with a number; a quiet one has none."""
    single = kmeans(10, **rho(1e-6))
    assert phases(single) == [(Phase.SPLIT, 1)]
    assert "one centre" in single.warnings[0]
    rough = kmeans(10, n_components=10, **rho(0.004))
    assert "of the cluster's radius" in rough.warnings[0]
    assert kmeans(10, **rho(10.0)).warnings == ()
    assert kmeans(10, rows=None, **rho(1e-6)).warnings == ()
    assert len(kmeans(10, rows=None, **rho(1e-6)).steps) > 1


def test_the_expected_error_falls_with_the_spend() -> None:
    """Never beyond the box, whatever the noise, and never larger for more."""
    for d, k in ((2, 5), (8, 3), (3, 1)):
        errors = [expected_numbers(kmeans(d, n_components=k, **rho(10.0**x)), "mean_error")[0] for x in range(-7, 4)]
        assert errors == sorted(errors, reverse=True)
        assert errors[0] <= 10.0 + 1e-9
        assert errors[-1] < 0.1


def test_one_cluster_needs_no_start() -> None:
    """One cluster is Lloyd steps about the middle of the ball; clipped tails draw its mean a little."""
    assert {phase for phase, _ in phases(kmeans(n_components=1, **rho(1.0)))} == {Phase.LLOYD, Phase.REPORT}
    X = skewed(4000, 3)
    model = run(kmeans(n_components=1, **rho(1.0)), X, adjacency=AR)
    assert array(model.means)[0] == pytest.approx(X.mean(axis=0), abs=0.25)


# --- releases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"d": 4, **rho(1.0)}, {"d": 3, "n_components": 16, **rho(0.0015)}], ids=str)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_size_of_every_release_is_the_plans_for_any_rows(adjacency: Adjacency, fields: dict[str, Any]) -> None:
    """A table that is worth no split releases as many numbers as one that is; cells that are not there hold no rows."""
    made, d = kmeans(adjacency=adjacency, **fields), fields["d"]
    tables = (skewed(5000, d), np.zeros((5000, d)), np.full((5000, d), np.nan), skewed(3, d))
    sizes = []
    for X in tables:
        taps: list[Release] = []
        run(made, X, adjacency=adjacency, taps=taps, source=NoNoise())
        sizes.append([int(np.prod(tap.statistic.shape)) for tap in taps])
        for tap, step in zip(taps, made.steps, strict=True):
            kernel: Any = tap.statistic.kernel
            absent = kernel.step.means[:, 0] > 1.0
            assert len(absent) == step.components
            counts = np.asarray(tap.noisy).ravel()[: step.components]
            assert np.all(counts[absent] == 0)
    assert all(size == sizes[0] for size in sizes)


def test_a_constant_table_is_never_split() -> None:
    """Cells without spread stay one cell: what is beyond the first is padding, in every release."""
    taps: list[Release] = []
    run(kmeans(4, **rho(1.0)), np.zeros((5000, 4)), adjacency=AR, taps=taps, source=NoNoise())
    kernel: Any = taps[5].statistic.kernel
    assert np.count_nonzero(kernel.step.means[:, 0] <= 1.0) == 1


@pytest.mark.parametrize(("d", "k"), [(1, 4), (2, 6), (5, 4)])
def test_without_noise_nothing_is_left_of_the_floor(d: int, k: int) -> None:
    """Skewed rows without clusters are used, where k-means from one start is several per cent off."""
    X = skewed(8000, d)
    made = kmeans(d, rows=len(X), n_components=k, **rho(5.0))
    model = run(made, X, adjacency=AR, source=NoNoise())
    assert squares(X, array(model.means)) < 1.01 * lloyd(X, k)
    assert array(model.weights).sum() == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("spend", [rho(0.02), pure(1.0)], ids=["rho", "epsilon"])
def test_noise_costs_little_on_skewed_rows(spend: dict[str, Any]) -> None:
    """Sums are within a few per cent of Lloyd's at epsilon about 1, 20,000 rows, in the median of three."""
    X = skewed(20_000, 4)
    made = kmeans(4, rows=len(X), n_components=4, **spend)
    found = [squares(X, array(run(made, X, adjacency=AR).means)) for _ in range(3)]
    assert np.median(found) < 1.08 * lloyd(X, 4)


@pytest.mark.parametrize(
    "spend", [rho(1e-9), pytest.param(rho(1e-4), marks=pytest.mark.slow), pure(1e-4), pure(0.1)], ids=str
)
def test_it_is_never_worse_than_one_centre(spend: dict[str, Any]) -> None:
    """Few rows in many columns: noise is drawn to the middle of the box, which is where it is without a table."""
    X = 2.0 + skewed(2000, 20)
    made = kmeans(20, rows=len(X), n_components=6, **spend)
    middle = squares(X, np.zeros((1, 20)))
    # About one run in thirty is farther out: six of eleven are less often than once in a million.
    found = [squares(X, array(run(made, X, adjacency=AR).means)) for _ in range(11)]
    assert np.median(found) < 1.1 * middle


def test_given_starts_clip_at_the_nearest_other_centre() -> None:
    """Not at the spacing of a grid, which in many columns is beyond the ball; never at 0 for centres that agree."""
    d = 20
    means = public_generator(1).uniform(-2.0, 2.0, (4, d))
    means[3] = means[2]
    tensor = types_pb2.Tensor(shape=means.shape, values=means.ravel())
    made = kmeans(d, n_components=4, given=fit_pb2.StartGiven(means=tensor), **rho(1.0))
    taps: list[Release] = []
    run(made, skewed(500, d), adjacency=AR, taps=taps)
    kernel: Any = taps[0].statistic.kernel
    radii = 1.0 / kernel.step.whiteners[:, 0, 0]
    ball = 10.0 * np.sqrt(d)
    apart = np.linalg.norm(means[:, None] - means, axis=2) + np.diag([np.inf] * 4)
    assert radii[:2] == pytest.approx(apart.min(axis=1)[:2] / ball)
    assert radii[2:] == pytest.approx(np.median(apart.min(axis=1)) / 4 / ball)


@pytest.mark.parametrize("d", [2, 4])
def test_poor_given_centres_end_as_well_as_a_private_start(d: int) -> None:
    """Given cells are split further where noise is low, and the best k-means of what they hold goes on."""
    k, X = 4, skewed(8000, d)
    poor = np.tile(np.linspace(1.0, 9.0, k)[:, None], (1, d))
    given = fit_pb2.StartGiven(means=types_pb2.Tensor(shape=poor.shape, values=poor.ravel()))
    made = kmeans(d, rows=len(X), n_components=k, given=given, **rho(5.0))
    cells = [size for phase, size in phases(made) if phase is Phase.SPLIT]
    assert cells == ([4, 8, 16, 32, 48] if d > 2 else [])
    model = run(made, X, adjacency=AR, source=NoNoise())
    assert squares(X, array(model.means)) < 1.01 * lloyd(X, k)
    noisy = kmeans(d, rows=len(X), n_components=k, given=given, **rho(1e-6))
    assert {phase for phase, _ in phases(noisy)} == {Phase.LLOYD, Phase.REPORT}


def test_a_fit_is_a_function_of_its_releases() -> None:
    """Pseudo-rows and their starts come from a public seed: equal releases give equal models."""
    X, made = skewed(3000, 3), kmeans(**rho(1.0))
    first, second = (run(made, X, adjacency=AR, source=NoNoise()) for _ in range(2))
    assert first == second


def test_quiet_fits_are_corrected_and_noisy_ones_averaged() -> None:
    """The public noise decides; a fixed origin is never corrected."""
    fixed = {"moments": fit_pb2.MOMENTS_FIXED_ORIGIN}
    for fields, corrected in ((rho(1.0), True), (rho(1e-4), False), ({**rho(1.0), **fixed}, False)):
        settings = kmeans(**fields).settings
        assert isinstance(settings, KMeansSettings)
        assert settings.corrected is corrected


# --- the report -----------------------------------------------------------------------------------------------


def reported(X: Array, model: fit_pb2.GaussianMixtureModel) -> tuple[Array, Array, Array]:
    """Return what a report says of the rows without noise: counts (k,), sums (k, d) and squares (k, d)."""
    centres, radii = array(model.means), array(model.report.radii)
    nearest = np.argmin([np.sum((X - centre) ** 2, axis=1) for centre in centres], axis=0)
    u = X - centres[nearest]
    u *= np.minimum(1.0, radii[nearest] / np.maximum(np.linalg.norm(u, axis=1), 1e-300))[:, None]
    cells = [u[nearest == j] for j in range(len(centres))]
    counts, sums, squares_ = ([f(cell) for cell in cells] for f in (len, lambda c: c.sum(0), lambda c: (c**2).sum(0)))
    return np.array(counts, dtype=np.float64), np.array(sums), np.array(squares_)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("spend", [rho(1.0), pure(3.0)], ids=["rho", "epsilon"])
def test_the_report_is_of_the_rows_nearest_to_the_returned_centres(adjacency: Adjacency, spend: dict[str, Any]) -> None:
    """The number and sums of clipped distances and squares are exact without noise, in the data's own units."""
    X = skewed(4000, 3)
    model = run(kmeans(3, len(X), adjacency, **spend), X, adjacency=adjacency, source=NoNoise())
    counts, sums, second = reported(X, model)
    assert array(model.report.counts) == pytest.approx(counts, rel=1e-4)
    assert array(model.report.sums) == pytest.approx(sums, abs=1e-3 * float(np.abs(second).max()))
    assert array(model.report.squares) == pytest.approx(second, rel=1e-3)
    # Few rows are farther away than the clip radius.
    distances = np.sqrt(np.min([np.sum((X - centre) ** 2, axis=1) for centre in array(model.means)], axis=0))
    assert np.mean(distances > array(model.report.radii).max()) < 0.02


def chi_square(X: Array, model: fit_pb2.GaussianMixtureModel) -> tuple[float, int]:
    """The squared errors of a report's numbers over the noise that it states, and how many there are."""
    report, (counts, sums, second) = model.report, reported(X, model)
    radii = array(report.radii)[:, None]
    errors = (
        (array(report.counts) - counts) / report.count_std,
        (array(report.sums) - sums) / (report.sum_std * radii),
        (array(report.squares) - second) / (report.square_std * radii**2),
    )
    return float(sum(np.sum(error**2) for error in errors)), sum(error.size for error in errors)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_report_has_the_noise_that_it_states(adjacency: Adjacency) -> None:
    """Noise that is 30 % smaller or larger would be seen: the stated one is within five deviations of a chi-square."""
    X = skewed(400, 3)
    start = fit_pb2.StartGiven(means=types_pb2.Tensor(shape=(3, 3), values=[0.5] * 3 + [1.5] * 3 + [4.0] * 3))
    made = kmeans(3, 400, adjacency, iterations=3, given=start, **rho(0.5))
    found = [chi_square(X, run(made, X, adjacency=adjacency)) for _ in range(60)]
    total, numbers = (sum(part) for part in zip(*found, strict=True))
    deviation = (2.0 / numbers) ** 0.5
    assert abs(total / numbers - 1.0) < 5.0 * deviation
    for factor in (0.7, 1.3):  # power: six deviations beyond the limit
        assert abs(factor**2 - 1.0) > 11.0 * deviation


def test_a_report_is_charged() -> None:
    """One event for each release, the report's with diagonal second moments, at half the price of a Lloyd step."""
    made = kmeans(4, **rho(1.0))
    step, last = made.steps[-1], made.steps[-2]
    assert (step.phase, step.moments, last.phase) == (Phase.REPORT, Moments.DIAG, Phase.LLOYD)
    assert len(made.events) == len(made.steps)
    assert step.std == pytest.approx(2**0.5 * last.std, rel=0.05)


def test_what_has_no_room_for_a_report_has_none() -> None:
    """A single centre, starts without a Lloyd step, moments about a fixed origin, few iterations."""
    fixed = {"moments": fit_pb2.MOMENTS_FIXED_ORIGIN}
    for fields in ({**rho(1.0), **fixed}, {"iterations": 2, **rho(1.0)}, rho(1e-9)):
        made = kmeans(**fields)
        assert Phase.REPORT not in {phase for phase, _ in phases(made)}
        assert not run(made, skewed(500, 3), adjacency=AR).HasField("report")


# --- pseudo-rows ----------------------------------------------------------------------------------------------


def test_pseudo_rows_have_the_moments_of_their_cells() -> None:
    """Counts, means and covariances, in the box; variances that noise hides share their mean, none if that is noise."""
    covariance = np.diag([0.02, 0.0009, -0.0005])
    cells = (
        Cell(3000.0, np.array([0.3, 0.0, 0.0]), covariance, 0.001, 0.5),
        Cell(1000.0, np.array([-0.3, 0.0, 0.0]), np.diag([0.0, -0.0009, 0.0005]), 0.001, 0.5),
        Cell(1.0, np.array([0.9, 0.0, 0.0]), covariance, 0.001, 0.5),
    )
    pseudo = pseudo_rows.from_cells(cells, 10.0, np.full(3, 0.6))
    assert pseudo.weights.sum() == pytest.approx(4000.0)
    assert np.abs(pseudo.rows).max() <= 0.6
    left, right = pseudo.rows[pseudo.rows[:, 0] == -0.3], pseudo.rows[pseudo.rows[:, 0] != -0.3]
    assert right.mean(axis=0) == pytest.approx([0.3, 0.0, 0.0], abs=0.02)
    assert right.std(axis=0) == pytest.approx([0.02**0.5, 0.0002**0.5, 0.0002**0.5], rel=0.1)
    assert len(left) > 1000
    assert np.all(left[:, 1:] == 0.0)


def test_pseudo_rows_of_nothing_but_noise_are_rows() -> None:
    """All cells are kept where every count is below its noise."""
    cells = (Cell(1.0, np.zeros(3), -np.eye(3), 0.1, 0.5),)
    assert pseudo_rows.from_cells(cells, 100.0, np.ones(3)).rows.shape[1] == 3
    empty = pseudo_rows.from_grid(-np.ones(25), 1.0, 5, np.ones(2))
    assert len(empty.rows) > 0
    assert np.all(empty.weights > 0)


def test_bins_of_noise_are_dropped() -> None:
    """Few of 900 empty bins are kept, and the full one has nearly all the weight."""
    generator = np.random.default_rng(3)  # noqa: TID251 - noise of a test
    counts = 10.0 * generator.standard_normal(900)
    counts[31] += 5000.0
    pseudo = pseudo_rows.from_grid(counts, 10.0, 30, np.array([1.0, 0.5]))
    place = pseudo_rows.grid(30, np.array([1.0, 0.5]))[31]
    near = np.all(np.abs(pseudo.rows - place) <= np.array([1.0, 0.5]) / 30 + 1e-12, axis=1)
    assert pseudo.weights[near].sum() > 0.8 * pseudo.weights.sum()


def test_halves_of_bins_share_what_both_releases_say() -> None:
    """One full half has all rows of its bin; a bin whose halves are all unclear keeps its rows; noise has none."""
    half = np.array([0.25, 0.25])
    middles = np.array([[0.25, 0.25], [-0.25, 0.25], [0.25, -0.25]])
    halves = pseudo_rows.halves(middles, half)
    assert halves.shape == (12, 2)
    assert halves[:4].mean(axis=0) == pytest.approx(middles[0])
    assert {tuple(p) for p in np.abs(halves[:4] - middles[0])} == {(0.125, 0.125)}
    finer = np.array([400.0, -20.0, 5.0, 10.0, *4 * [30.0], 20.0, -25.0, 10.0, 0.0])
    pseudo = pseudo_rows.from_halves(np.array([395.0, 120.0, 10.0]), 20.0, finer, 25.0, halves, half / 2.0)
    # Noise of four halves is 50, of their bin 20: totals are 395, 120 and 9.
    held = [pseudo.weights[np.all(np.abs(pseudo.rows - p) <= 0.125, axis=1)].sum() for p in halves]
    assert held == pytest.approx([395.0, 0.0, 0.0, 0.0, *4 * [30.0], *4 * [0.0]], abs=3.0)
    nothing = pseudo_rows.from_halves(-np.ones(3), 20.0, -np.ones(12), 25.0, halves, half / 2.0)
    assert len(nothing.rows) > 0
    assert np.all(nothing.weights > 0)


def test_a_second_grid_finds_clusters_narrower_than_bins() -> None:
    """Rows without noise, bins as wide as at epsilon 1/4: one grid is a quarter above it in the easier table."""
    generator = np.random.default_rng(7)  # noqa: TID251 - rows of a test
    means = np.array(np.meshgrid(*3 * [[1.5, 5.0, 8.5]])).reshape(3, -1).T[::2]
    k = len(means)
    X = np.clip(means[generator.integers(k, size=5000)] + 0.3 * generator.standard_normal((5000, 3)), 0.0, 10.0)
    made = kmeans(3, n_components=k, **rho(0.00112))
    assert [phase for phase, _ in phases(made)].count(Phase.GRID) == 2
    assert squares(X, array(run(made, X, adjacency=AR, source=NoNoise()).means)) < 1.05 * lloyd(X, k)


def test_cells_after_a_grid_find_clusters_narrower_than_bins() -> None:
    """Two clusters in each of four bins, and rows without noise: the bins alone share them out by luck."""
    generator = np.random.default_rng(8)  # noqa: TID251 - rows of a test
    middles = np.array([[2.1, 2.1], [2.1, 8.1], [8.1, 2.1], [8.1, 8.1]])
    means = np.concatenate([middles - 0.06, middles + 0.06])
    X = means[generator.integers(8, size=20_000)] + 0.01 * generator.standard_normal((20_000, 2))
    made = kmeans(2, n_components=8, **rho(0.02))
    assert phases(made)[1] == (Phase.SPLIT, 24)
    assert squares(X, array(run(made, X, adjacency=AR, source=NoNoise()).means)) < 1.05 * lloyd(X, 8)


def test_a_long_tail_is_not_clipped_where_noise_is_low() -> None:
    """Rows without noise in one column: radii that fit a Gaussian end a fifth above it."""
    generator = np.random.default_rng(0)  # noqa: TID251 - rows of a test
    X = np.minimum(np.exp(1.2 * generator.standard_normal((10_000, 1))), 40.0) / 4.0
    made = kmeans(1, rows=len(X), n_components=3, **rho(0.35))
    assert squares(X, array(run(made, X, adjacency=AR, source=NoNoise()).means)) < 1.05 * lloyd(X, 3)


def test_pseudo_rows_are_clipped_as_the_rows_are() -> None:
    """Long tails in two columns, without noise: centres that follow clipped means alone end a fifteenth above it."""
    generator = np.random.default_rng(0)  # noqa: TID251 - rows of a test
    X = np.minimum(np.exp(generator.standard_normal((20_000, 2))), 40.0) / 4.0
    made = kmeans(2, rows=len(X), n_components=3, **rho(0.05))
    assert squares(X, array(run(made, X, adjacency=AR, source=NoNoise()).means)) < 1.03 * lloyd(X, 3)


def test_k_means_of_weighted_rows_finds_what_is_there() -> None:
    """The best of several starts, weights as repetitions, fewer distinct rows than clusters allowed."""
    generator = np.random.default_rng(4)  # noqa: TID251 - rows of a test
    true = np.array([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.5]])
    rows = np.repeat(true, 200, axis=0) + 0.02 * generator.standard_normal((600, 2))
    found = pseudo_rows.cluster(pseudo_rows.PseudoRows(rows, np.repeat([1.0, 2.0, 3.0], 200)), 3)
    order = np.argsort(found.counts)
    assert found.centres[order] == pytest.approx(true, abs=0.01)
    assert found.counts[order] == pytest.approx([200, 400, 600])
    few = pseudo_rows.cluster(pseudo_rows.PseudoRows(np.zeros((5, 2)), np.ones(5)), 3)
    assert np.all(np.isfinite(few.centres))
    assert few.counts.sum() == pytest.approx(5.0)
