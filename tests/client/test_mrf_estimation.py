"""Markov random fields learnt from noisy tables: close to the truth, never broken by noise."""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations, pairwise
from typing import Any, Literal

import numpy as np
import pytest
from scipy.integrate import quad

from bursar_models.arrays import FloatArray
from bursar_models.mrf import Estimate, Graph, NoisyTable, _estimation, estimate, estimate_chain, estimated_rows
from bursar_models.mrf._descent import minimized
from bursar_models.mrf._estimation import ESTIMATORS, _alone, _less_noisy, continued, merge, with_sums
from bursar_models.mrf._inference import chain_marginals, exact
from bursar_models.mrf._posterior import Posterior, tilted_gaussian, tilted_laplace
from bursar_models.mrf._problem import _Shared
from bursar_models.mrf._shrinkage import in_cycles, nearer, without_own
from tests.each import each

GRAPHS = {
    "chain": Graph((4, 3, 5, 4), ((0, 1), (1, 2), (2, 3))),
    "cycles": Graph((4, 3, 4, 3, 4), tuple((i, j) for i, j in combinations(range(5), 2) if j - i <= 2)),
    "clique of three": Graph((3, 4, 3, 2), ((0, 1, 2), (2, 3))),
    "independent": Graph((5, 3), ()),
}


BOTH: tuple[Literal["cgm"], Literal["naive"]] = ("cgm", "naive")
HOW: tuple[Literal["exact", "loopy", "auto"], ...] = ("exact", "loopy", "auto")


def truth(graph: Graph, seed: int) -> tuple[list[FloatArray], list[FloatArray], float]:
    """Log-potentials from a Dirichlet(1), their marginals and log-partition."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - test data
    theta = [np.log(rng.dirichlet(np.ones(graph.cells(c))) + 1e-9).reshape(graph.shape(c)) for c in graph.cliques]
    return theta, *exact(graph, theta)


def divergence(graph: Graph, seed: int, found: Estimate) -> float:
    """Kullback-Leibler divergence of an estimate from the truth, in nats."""
    theta, marginals, log_partition = truth(graph, seed)
    own = exact(graph, found.log_potentials)[1]
    gain = sum(float(((a - b) * m).sum()) for a, b, m in zip(theta, found.log_potentials, marginals, strict=True))
    return gain - log_partition + own


def unit_noise(rng: np.random.Generator, shape: tuple[int, ...], laplace: bool) -> FloatArray:  # noqa: TID251 - a test's
    """Noise of standard deviation 1."""
    return rng.laplace(size=shape) / math.sqrt(2) if laplace else rng.normal(size=shape)


def released(graph: Graph, seed: int, rows: float, std: float, laplace: bool) -> list[NoisyTable]:
    """Expected tables of the truth with noise on every cell."""
    rng = np.random.default_rng(seed + 1)  # noqa: TID251 - test noise
    _, marginals, _ = truth(graph, seed)
    return [
        NoisyTable(clique, rows * table + std * unit_noise(rng, table.shape, laplace), std, laplace)
        for clique, table in zip(graph.cliques, marginals, strict=True)
    ]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("estimator", ["cgm", "naive"])
def test_low_noise_gives_the_maximum_likelihood(name: str, laplace: bool, estimator: Any) -> None:
    """Tables without error have the model that they came from, with or without the number of rows."""
    tables = released(GRAPHS[name], 0, 1e6, 1e-3, laplace)
    for n_rows in (1e6, None):
        found = estimate(GRAPHS[name], tables, n_rows, estimator=estimator, regularization=1e-3)
        assert divergence(GRAPHS[name], 0, found) < 2e-5
        assert found.n_rows == pytest.approx(1e6)
        for table, got in zip(tables, found.marginals, strict=True):
            np.testing.assert_allclose(got, table.counts / 1e6, atol=2e-3)


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("name", ["chain", "clique of three", "independent"])
def test_naive_is_the_product_of_conditionals_where_tables_form_a_forest(name: str, laplace: bool) -> None:
    """One evaluation gives the tables themselves, as they agree; a penalty, and cycles, need a search."""
    graph, tables = GRAPHS[name], released(GRAPHS[name], 0, 1e6, 1e-3, laplace)
    found = estimate(graph, tables, None, estimator="naive")
    assert found.iterations == 1
    assert divergence(graph, 0, found) < 1e-6
    for table, got in zip(tables, found.marginals, strict=True):
        np.testing.assert_allclose(got, table.counts / 1e6, atol=1e-8)
    assert estimate(graph, tables, None, estimator="naive", regularization=1.0).iterations > 1
    cycles = released(GRAPHS["cycles"], 0, 1e6, 1e-3, laplace)
    assert estimate(GRAPHS["cycles"], cycles, None, estimator="naive").iterations > 1


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("laplace", [False, True])
def test_cgm_is_not_worse_than_naive_which_holds_at_any_noise(name: str, laplace: bool) -> None:
    """Noise up to ten times an average cell, over seeds; nearly level on independent columns."""
    for ratio in (0.1, 1.0, 10.0):
        totals = np.zeros(2)
        for seed in range(4):
            tables = released(GRAPHS[name], seed, 2000, ratio * 100, laplace)
            for place in range(2):
                found = estimate(GRAPHS[name], tables, 2000, estimator=BOTH[place])
                totals[place] += divergence(GRAPHS[name], seed, found)
        assert totals[0] <= 1.1 * totals[1]
        assert totals[1] <= 3 * totals[0]


def test_noise_alone_says_that_all_states_are_alike() -> None:
    """The model is near the uniform one, not at the edge, where noise is far above the rows."""
    found = estimate(GRAPHS["chain"], released(GRAPHS["chain"], 0, 100, 1e5, False), 100)
    for table in found.marginals:
        assert table.min() > 0.2 / table.size


@pytest.mark.parametrize("estimator", ["cgm", "naive"])
def test_rare_states_keep_a_probability(estimator: Any) -> None:
    """A projection would drive cells with negative counts to 0; posterior means do not."""
    tables = [NoisyTable((0,), np.array([500.0, 480.0, -30.0, 20.0]), 30.0)]
    found = estimate(Graph((4,), ()), tables, 1000, estimator=estimator).marginals[0]
    assert 0.001 < found[2] < found[3] < 0.05


def keeping(stay: float, std: float) -> tuple[list[FloatArray], list[NoisyTable], Graph]:
    """Four columns of 12 states, from frequent to rare, which keep their state with probability `stay`."""
    states = 12
    graph = Graph((states,) * 4, ((0, 1), (1, 2), (2, 3)))
    share = np.arange(1.0, states + 1) ** -2.0
    share /= share.sum()
    pair = share[:, None] * (stay * np.eye(states) + (1 - stay) * share)
    rng = np.random.default_rng(7)  # noqa: TID251 - test noise
    noise = [unit_noise(rng, pair.shape, True) for _ in graph.cliques]
    tables = [NoisyTable(c, 2e4 * pair + std * part, std, True) for c, part in zip(graph.cliques, noise, strict=True)]
    return [pair] * 3, tables, graph


def pair_divergence(truth: list[FloatArray], found: Estimate) -> float:
    """Return the divergence of all tables of pairs, in nats."""
    return sum(
        float((t * np.log(np.maximum(t, 1e-300) / m)).sum()) for t, m in zip(truth, found.marginals, strict=True)
    )


@pytest.mark.parametrize("stay", [0.0, 0.8])
def test_rare_combinations_are_expected_to_be_rare_and_found_where_they_are_not(
    stay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns with rare states, independent or not: far nearer to the truth than without a prior on combinations."""
    truth, tables, graph = keeping(stay, 20.0)
    found = pair_divergence(truth, estimate(graph, tables, 2e4))
    monkeypatch.setattr("bursar_models.mrf._estimation._independent", lambda _table, _alone, _rows: None)
    assert found < 0.75 * pair_divergence(truth, estimate(graph, tables, 2e4))


def test_states_that_noise_alone_tells_apart_are_taken_for_alike() -> None:
    """The prior's probabilities of one column: averages where noise is large, the counts where it is small."""
    counts = np.array([400.0, 250.0, 250.0, 100.0])
    large, small = (_alone([NoisyTable((0,), counts, std)], 1000)[0][0] for std in (1e4, 1.0))
    assert np.ptp(large) < 0.02
    np.testing.assert_allclose(small, counts / 1000, atol=2e-3)


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("counts", [np.full(5, -1e300), np.full(5, 1e300), np.array([1e300, -1e300, 0.0, 5.0, 1.0])])
def test_columns_have_probabilities_whatever_was_released(counts: FloatArray, laplace: bool) -> None:
    """Extreme counts, and noise so small that nothing can make them add up to the rows."""
    for std in (0.0, 1.0, 1e9):
        table = NoisyTable((0,), counts, std, laplace)
        found = _alone([table], 1000)[0][0]
        assert (found > 0).all()
        assert found.sum() == pytest.approx(1)
        assert np.isfinite(np.concatenate(estimate(Graph((5,), ((0,),)), [table], None).marginals)).all()


def test_noise_on_tables_of_several_columns_is_lessened() -> None:
    """A table of independent columns gets nearer to them; one of dependent ones stays, as do small and single ones."""
    rng = np.random.default_rng(6)  # noqa: TID251 - noise of the test
    p = {0: np.array([0.1, 0.2, 0.3, 0.4]), 1: np.array([0.3, 0.3, 0.4])}
    rows, std = 50_000.0, 100.0
    base = rows * np.outer(p[0], p[1])
    waves = np.outer([1, -1, 1, -1], [2, -1, -1]) * 1500.0
    errors = dict[str, list[float]]()
    for name, truth in (("independent", base), ("dependent", base + waves)):
        for _ in range(200):
            noisy = NoisyTable((0, 1), truth + rng.normal(0, std, truth.shape), std)
            found = _less_noisy(noisy, p, rows)
            errors.setdefault(name, []).append(
                float(np.square(found.counts - truth).sum() / np.square(noisy.counts - truth).sum())
            )
    # Six of the twelve squares are of the joint part, of which most goes.
    assert np.mean(errors["independent"]) < 0.7
    assert np.mean(errors["dependent"]) == pytest.approx(1.0, abs=0.01)
    few = NoisyTable((0, 1), base / 100 + rng.normal(0, std, base.shape), std)
    assert _less_noisy(few, p, rows / 100) is few
    alone = NoisyTable((0,), base[:, 0], std)
    assert _less_noisy(alone, p, rows) is alone


def ring(direct: FloatArray) -> tuple[Graph, list[FloatArray]]:
    """Three columns: two depend on the third, and on each other as said."""
    graph = Graph((5, 5, 5), ((0, 1), (0, 2), (1, 2)))
    strong = 1.5 * np.eye(5)
    return graph, [strong, direct, strong]


def test_a_table_is_compared_with_what_others_say_of_it() -> None:
    """A pair without its own potential depends by the third column, and has its own columns still."""
    rng = np.random.default_rng(4)  # noqa: TID251 - test data
    for direct in (0.0, 1.0):
        graph, theta = ring(direct * rng.normal(size=(5, 5)))
        marginals, _ = exact(graph, theta)
        own = marginals[1]
        base = without_own(graph, in_cycles(graph), theta, marginals)[0, 2]
        independent = np.outer(own.sum(axis=1), own.sum(axis=0))
        assert np.abs(base.sum(axis=1) - own.sum(axis=1)).max() < 1e-4
        assert np.abs(base.sum(axis=0) - own.sum(axis=0)).max() < 1e-4
        assert np.abs(base - independent).sum() > 0.1
        assert (np.abs(base - own).sum() < 1e-9) == (direct == 0)


def test_tables_move_to_bases_by_what_noise_explains() -> None:
    """A table that is its base but for noise gets near it; another stays, as do small tables and Laplace noise."""
    rng = np.random.default_rng(7)  # noqa: TID251 - noise of the test
    base, rows, std = np.outer([0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.4]), 50_000.0, 100.0
    waves = np.outer([1, -1, 1, -1], [2, -1, -1]) * 1500.0
    for truth, least, most in ((rows * base, 0.0, 0.7), (rows * base + waves, 0.95, 1.05)):
        noisy = [NoisyTable((0, 1), truth + rng.normal(0, std, truth.shape), std) for _ in range(200)]
        moved = [np.square(nearer(one, base, rows).counts - truth).sum() for one in noisy]
        assert least < np.mean(moved) / np.mean([np.square(one.counts - truth).sum() for one in noisy]) < most
    few = NoisyTable((0, 1), rows / 100 * base, std)
    assert nearer(few, base, rows / 100) is few
    laplace = NoisyTable((0, 1), rows * base, std, True)
    assert nearer(laplace, base, rows) is laplace
    assert in_cycles(GRAPHS["chain"]) == in_cycles(GRAPHS["clique of three"]) == in_cycles(GRAPHS["independent"]) == ()
    assert in_cycles(Graph((2,) * 5, ((0, 1), (0, 2), (1, 2), (2, 3), (4,)))) == (0, 1, 2)


def test_wild_tables_in_a_cycle_have_a_model() -> None:
    """Released counts may be anything that 64-bit integers hold."""
    wild = np.where(np.arange(25).reshape(5, 5) % 3, 9e18, -9e18)
    for std in (0.0, 1.0, 1e9):
        graph = ring(np.zeros((5, 5)))[0]
        for counts in (wild, wild.T, -wild, np.zeros((5, 5))):
            tables = [NoisyTable(clique, counts, std) for clique in graph.cliques]
            found = estimate(graph, tables, None)
            assert np.isfinite(np.concatenate([one.ravel() for one in found.marginals])).all()


def test_cycles_are_learnt_better_from_what_other_tables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two columns depend by a third only, and their own table is noise but for that."""
    rng = np.random.default_rng(5)  # noqa: TID251 - noise of the test
    graph, theta = ring(np.zeros((5, 5)))
    truth, _ = exact(graph, theta)
    noisy = [
        [NoisyTable(c, 5_000 * p + rng.normal(0, 60, p.shape), 60.0) for c, p in zip(graph.cliques, truth, strict=True)]
        for _ in range(20)
    ]

    def error() -> float:
        return float(np.mean([np.abs(estimate(graph, one, 5_000).marginals[1] - truth[1]).sum() for one in noisy]))

    found = error()
    monkeypatch.setattr("bursar_models.mrf._estimation.without_own", lambda *_: {})
    assert found < 0.9 * error()


def test_states_without_rows_are_found_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of ten states have rows, and noise is a tenth of these: the others keep less than under a flat prior."""
    rng = np.random.default_rng(3)  # noqa: TID251 - test data
    counts = np.array([600.0, 400.0, *[0.0] * 8]) + 50 * rng.normal(size=(60, 10))
    graph = Graph((10,) * 60, ())

    def left() -> float:
        found = estimate(graph, [NoisyTable((i,), one, 50.0) for i, one in enumerate(counts)], 1000)
        return float(np.mean([one[2:].sum() for one in found.marginals]))

    kept = left()
    monkeypatch.setattr("bursar_models.mrf._estimation._EVIDENCE", math.inf)
    assert kept < 0.85 * left()


def test_loopy_inference_learns_where_dependence_is_moderate() -> None:
    """A ring comes near exact inference; "auto" takes exact inference where it can."""
    graph = Graph((4, 3, 5, 4), ((0, 1), (1, 2), (2, 3), (0, 3)))
    rng = np.random.default_rng(4)  # noqa: TID251 - test data
    marginals, _ = exact(graph, [0.5 * rng.normal(size=graph.shape(clique)) for clique in graph.cliques])
    tables = [
        NoisyTable(clique, 1e4 * table + 20 * rng.normal(size=table.shape), 20.0)
        for clique, table in zip(graph.cliques, marginals, strict=True)
    ]
    found = {how: estimate(graph, tables, 1e4, inference=how) for how in HOW}
    assert [found[how].inference for how in found] == ["exact", "loopy", "exact"]
    for a, b in zip(found["exact"].marginals, found["loopy"].marginals, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)


def test_graphs_too_dense_for_exact_inference_are_learnt_by_loopy() -> None:
    """Independent columns in a complete graph: probabilities are found all the same."""
    size, n = 8, 9
    graph = Graph((size,) * n, tuple(combinations(range(n), 2)))
    share = np.arange(1.0, size + 1) / (size * (size + 1) / 2)
    tables = [NoisyTable(clique, 1e5 * np.multiply.outer(share, share), 10.0) for clique in graph.cliques]
    found = estimate(graph, tables, 1e5)
    assert found.inference == "loopy"
    for table in found.marginals:
        np.testing.assert_allclose(table.sum(axis=0), share, atol=0.01)
    with pytest.raises(ValueError, match="after triangulation"):
        estimate(graph, tables, 1e5, inference="exact")


@pytest.mark.slow
@each("estimator", ESTIMATORS)
@each("laplace", [False, True])
@each("fill", [0.0, 1.0, -1.0, 1e300, -1e300, 1e12])
@each("std", [0.0, 1.0, 1e9])
def test_any_finite_counts_give_a_model(estimator: Any, laplace: bool, fill: float, std: float) -> None:
    """Zeros, huge numbers of either sign, one cell unlike the others, with a number of rows or without, in turns."""
    n_rows = None if (laplace + (fill > 0) + (std > 1)) % 2 else -5.0
    graph = Graph((2, 3, 2), ((0, 1), (1, 2), (0, 2)))
    tables = [NoisyTable(clique, np.full(graph.shape(clique), fill), std, laplace) for clique in graph.cliques]
    odd = tables[0].counts.copy()
    odd[0, 0] = -fill
    found = estimate(graph, [NoisyTable((0, 1), odd, std, laplace), *tables[1:]], n_rows, estimator=estimator)
    assert found.n_rows >= 1
    assert math.isfinite(found.log_partition)
    assert all(np.isfinite(table).all() for table in found.log_potentials)
    for table in found.marginals:
        assert (table >= 0).all()
        assert table.sum() == pytest.approx(1)


def test_tables_may_be_over_parts_of_cliques_and_have_their_axes_in_any_order() -> None:
    """A table of a pair inside a clique of three is used; its transpose says the same."""
    graph = Graph((3, 4, 2), ((0, 1, 2),))
    pair = NoisyTable((0, 1), np.arange(1.0, 13).reshape(3, 4) * 100, 1.0)
    turned = NoisyTable((1, 0), pair.counts.T, 1.0)
    alone = NoisyTable((2,), np.array([1800.0, 6000.0]), 1.0)
    for tables in ([pair, alone], [turned, alone]):
        (joint,) = estimate(graph, tables, 7800).marginals
        np.testing.assert_allclose(joint.sum(axis=2), pair.counts / 7800, atol=1e-3)
        np.testing.assert_allclose(joint.sum(axis=(0, 1)), alone.counts / 7800, atol=1e-3)


def test_repeated_tables_count_by_their_precision() -> None:
    """A table that was released before with little noise rules over one with much."""
    good, bad = NoisyTable((0,), np.array([100.0, 900.0]), 1.0, True), NoisyTable((0,), np.array([900.0, 100.0]), 10.0)
    (mean,) = merge([good, bad])
    np.testing.assert_allclose(mean.counts, (100 * good.counts + bad.counts) / 101)
    assert mean.std == pytest.approx((1 + 0.01) ** -0.5)
    assert not mean.laplace
    assert merge([good])[0].laplace


def test_sums_of_one_variable_use_every_table() -> None:
    """Inverse-variance mean of the tables' sums, with its own standard deviation; a lone table stays as it is."""
    pair = NoisyTable((0, 1), np.ones((2, 3)), 2.0)
    alone = NoisyTable((0,), np.array([1.0, 5.0]), 1.0, True)
    other = NoisyTable((2,), np.array([1.0, 2.0]), 1.0, True)
    tables = {table.variables: table for table in with_sums([pair, alone, other])}
    assert set(tables) == {(0, 1), (0,), (1,), (2,)}
    np.testing.assert_allclose(tables[(0,)].counts, (np.full(2, 3.0) / 12 + alone.counts) / (1 / 12 + 1))
    assert tables[(0,)].std == pytest.approx((1 / 12 + 1) ** -0.5)
    assert tables[(1,)].std == pytest.approx(2 * math.sqrt(2))
    assert tables[(2,)] is other


def test_rows_are_the_inverse_variance_mean_of_the_totals() -> None:
    """A total has the variance cells std^2; never below 1."""
    a, b = NoisyTable((0,), np.array([60.0, 40.0]), 1.0), NoisyTable((0, 1), np.full((2, 2), 30.0), 2.0)
    assert estimated_rows([a, b]) == pytest.approx((100 / 2 + 120 / 16) / (1 / 2 + 1 / 16))
    assert estimated_rows([NoisyTable((0,), np.array([-10.0, 2.0]), 1.0)]) == 1


@each("tilt", [-1.0, -0.1, -0.026, 0.0, 0.02, 0.034])
@each("count", [-200.0, -40.0, 0.0, 5.0, 400.0])
@each("laplace", [False, True])
def test_posterior_means_are_those_of_quadrature(laplace: bool, count: float, tilt: float) -> None:
    """Both likelihoods against numerical integration over counts of at least 0, and the derivative of the integral."""
    std = 40.0
    function = tilted_laplace if laplace else tilted_gaussian

    def log_density(n: float) -> float:
        noise = -abs(count - n) * math.sqrt(2) / std if laplace else -0.5 * ((count - n) / std) ** 2
        return noise + tilt * n

    top = max(log_density(n) for n in np.linspace(0, 3000, 3001))
    ends = [0.0, *([count] if count > 0 else []), 500.0, 5000.0, 1e5]
    mass, moment = (
        sum(quad(lambda n, k=k: n**k * math.exp(log_density(n) - top), a, b, limit=200)[0] for a, b in pairwise(ends))
        for k in (0, 1)
    )  # fmt: skip
    y, s, t = np.array([count]), np.array([std]), np.array([tilt])
    assert function(y, s, t)[1][0] == pytest.approx(moment / mass, rel=1e-5)
    step = 1e-6
    ends_of_step = [function(y, s, t + sign * step)[0][0] for sign in (1, -1)]
    assert (ends_of_step[0] - ends_of_step[1]) / (2 * step) == pytest.approx(moment / mass, rel=1e-4, abs=1e-4)


@each("near", [0.01, 3.0, 200.0])
@each("count", [-100.0, 0.0, 30.0, 400.0])
@each("laplace", [False, True])
def test_posteriors_of_two_exponentials_are_those_of_quadrature(laplace: bool, count: float, near: float) -> None:
    """Mean under the mixture as prior, and the derivative of its logarithm of the integral, tilted either way."""
    std, far, tilt = 40.0, 300.0, -0.003
    one = [np.array([value]) for value in (count, std, near, far)]
    posterior = Posterior(one[0], one[1], np.array([laplace]), one[2], one[3])

    def density(n: float) -> float:
        noise = -abs(count - n) * math.sqrt(2) / std if laplace else -0.5 * ((count - n) / std) ** 2
        return math.exp(noise + tilt * n) * (math.exp(-n / near) / near + math.exp(-n / far) / far)

    ends = sorted({0.0, near, 10 * near, 50 * near, *([count] if count > 0 else []), 600.0, 5000.0})
    mass, moment = (
        sum(quad(lambda n, k=k: n**k * density(n), a, b, limit=200)[0] for a, b in pairwise(ends)) for k in (0, 1)
    )  # fmt: skip
    means = posterior.tilted(np.array([tilt]))[1]
    assert means[0] == pytest.approx(moment / mass, rel=1e-5)
    sides = [posterior.tilted(np.array([tilt + sign * 1e-6]))[0][0] for sign in (1, -1)]
    assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(means[0], rel=1e-4, abs=1e-4)


def test_posteriors_say_which_tilts_they_bear() -> None:
    """Just below the largest tilt the mean is huge and finite; normal noise bears all."""
    ones = np.ones(2)
    posterior = Posterior(5 * ones, 2 * ones, np.array([True, False]), 0.1 * ones, 30 * ones)
    highest = posterior.highest()
    assert highest[0] == pytest.approx(1 / math.sqrt(2) + 1 / 30)
    assert highest[1] == math.inf
    means = posterior.tilted(np.array([highest[0] * (1 - 1e-6), 0.0]))[1]
    assert 1e5 < means[0] < math.inf
    flat = Posterior(5 * ones, 2 * ones, np.array([True, False]), np.inf * ones, np.inf * ones)
    assert flat.highest()[0] == pytest.approx(1 / math.sqrt(2))
    np.testing.assert_allclose(
        flat.tilted(np.zeros(2))[1],
        [function(5 * ones, 2 * ones, 0 * ones)[1][0] for function in (tilted_laplace, tilted_gaussian)],
    )


def test_posterior_means_hold_far_from_the_counts() -> None:
    """Hundreds of standard deviations below 0 the mean is std^2 / distance; continuous where the formula changes."""
    std = np.full(3, 2.0)
    _, means = tilted_gaussian(np.array([-2e3, -100.0 - 1e-7, -100.0 + 1e-7]), std, np.zeros(3))
    assert means[0] == pytest.approx(4 / 2e3, rel=1e-5)
    assert means[1] == pytest.approx(means[2], rel=1e-8)


def chain(steps: int, states: int) -> tuple[FloatArray, FloatArray]:
    """Log-potentials of a chain."""
    rng = np.random.default_rng(4)  # noqa: TID251 - test data
    return np.log(rng.dirichlet(np.ones(states))), np.log(rng.dirichlet(np.ones(states), size=states) + 1e-6)


def test_forward_backward_is_the_junction_tree_of_the_unrolled_chain() -> None:
    """First state, transitions averaged over time, and the log-partition function; peaked potentials, too."""
    for strength in (1.0, 300.0):
        first, transition = (strength * table for table in chain(5, 3))
        graph = Graph((3,) * 5, ((0,), *((t, t + 1) for t in range(4))))
        marginals, log_partition = exact(graph, [first, *([transition] * 4)])
        (start, pairs), found = chain_marginals(5, first, transition)
        np.testing.assert_allclose(start, marginals[0], atol=1e-10)
        np.testing.assert_allclose(pairs, sum(marginals[1:]) / 4, atol=1e-10)
        assert found == pytest.approx(log_partition)


@pytest.mark.parametrize("laplace", [False, True])
def test_chains_are_learnt_without_a_search_and_nearer_to_the_truth(laplace: bool) -> None:
    """Low noise gives the truth; with noise the conditionals of posterior means beat a search for their potentials."""
    steps, states, rows = 6, 8, 5000.0
    first, transition = chain(steps, states)
    (start, pairs), log_partition = chain_marginals(steps, first, transition)

    def loss(std: float, seed: int = 0, **settings: Any) -> float:
        rng = np.random.default_rng(seed)  # noqa: TID251 - test noise
        found = estimate_chain(
            steps,
            states,
            NoisyTable((0, 1), rows * pairs + std * unit_noise(rng, pairs.shape, laplace), std, laplace),
            NoisyTable((0,), rows * start + std * unit_noise(rng, start.shape, laplace), std, laplace),
            None,
            **settings,
        )
        phi, psi = found.log_potentials
        own = chain_marginals(steps, phi, psi)[1]
        assert own == pytest.approx(found.log_partition)
        gain = ((first - phi) * start).sum() + (steps - 1) * ((transition - psi) * pairs).sum()
        return float(gain) - log_partition + own

    for estimator in ESTIMATORS:
        assert loss(1e-3, estimator=estimator) < 1e-5
    searched, closed = ([loss(20.0, seed, regularization=penalty) for seed in range(8)] for penalty in (1e-9, None))
    assert sum(closed) < 0.9 * sum(searched)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": []}, "tables: expected at least one"),
        ({"tables": [NoisyTable((0, 2), np.zeros((4, 5)), 1.0)]}, "within no clique"),
        ({"tables": [NoisyTable((0, 1), np.zeros((3, 3)), 1.0)]}, "has shape"),
        ({"n_rows": math.nan}, "n_rows"),
        ({"estimator": "em"}, "estimator"),
        ({"regularization": -1.0}, "regularization"),
        ({"regularization": math.nan}, "regularization"),
        ({"inference": "gibbs"}, "inference"),
    ],
)
def test_what_cannot_be_estimated_is_refused(change: dict[str, Any], message: str) -> None:
    """Every rule has an error that names the argument."""
    good = {"tables": [NoisyTable((0, 1), np.zeros((4, 3)), 1.0)], "n_rows": None}
    with pytest.raises(ValueError, match=message):
        estimate(GRAPHS["chain"], **{**good, **change})


@pytest.mark.parametrize(("steps", "states"), [(1, 2), (2, 0), (2, 3)])
def test_chains_that_cannot_be_are_refused(steps: int, states: int) -> None:
    """Two steps at least, and tables of the chain's states."""
    with pytest.raises(ValueError, match="expected"):
        estimate_chain(steps, states, NoisyTable((0, 1), np.zeros((2, 2)), 1.0), NoisyTable((0,), np.zeros(2), 1.0), 5)


@pytest.mark.parametrize(
    ("variables", "counts", "std", "message"),
    [
        ((0,), np.zeros((2, 2)), 1.0, "variables"),
        ((0, 0), np.zeros((2, 2)), 1.0, "variables"),
        ((0,), np.array([np.nan]), 1.0, "finite"),
        ((0,), np.zeros(2), -1.0, "std"),
        ((0,), np.zeros(2), math.nan, "std"),
    ],
)
def test_what_is_no_table_is_refused(variables: tuple[int, ...], counts: FloatArray, std: float, message: str) -> None:
    """Every rule on the fields has an error that names the field."""
    with pytest.raises(ValueError, match=message):
        NoisyTable(variables, counts, std)


def test_descent_is_total() -> None:
    """It ends at a finite point where the objective is nonsense elsewhere, and within the limit."""

    def objective(x: FloatArray) -> tuple[float, FloatArray, Any]:
        inside = bool(np.abs(x).max() < 1)
        value = float(x @ x) - float(x.sum()) if inside else math.nan
        return value, 2 * x - 1 if inside else np.full_like(x, np.nan), lambda v: 100 * v

    point, used = minimized(objective, [np.zeros(3), np.full(3, 5.0)], np.full(3, -np.inf), 1e-12, 50)
    np.testing.assert_allclose(point, 0.5, atol=1e-4)
    assert used <= 50


def test_descent_remembers_enough_and_ends_where_the_gradient_is_small() -> None:
    """A hundred curvatures from 1 to 1e4 take 286 evaluations, and 722 if 20 steps are remembered.

    After 100 of them the gradient is 7.8, at the last point 24, and 28 with 20 steps.
    """
    curvatures, sizes = np.geomspace(1, 1e4, 100), list[float]()

    def objective(x: FloatArray) -> tuple[float, FloatArray, Any]:
        gradient = curvatures * x - 1
        sizes.append(float(np.abs(gradient).sum()))
        return float(0.5 * curvatures * x @ x - x.sum()), gradient, lambda v: v

    start, lowest = [np.zeros(100)], np.full(100, -np.inf)
    assert minimized(objective, start, lowest, 1e-13, 1000)[1] < 400
    point, used = minimized(objective, start, lowest, 1e-13, 100)
    assert used == 100
    assert float(np.abs(curvatures * point - 1).sum()) < min(12, 0.5 * sizes[-1])


def test_a_search_goes_on_where_another_one_ended() -> None:
    """Nothing is left to do from its end; with one more table the same model takes fewer evaluations."""
    graph = GRAPHS["cycles"]
    tables = released(graph, 3, 10_000.0, 5.0, laplace=False)
    fewer = Graph(graph.sizes, graph.cliques[:-1])
    search = partial(continued, n_rows=10_000.0, most=500)
    before = search(fewer, tables[:-1])
    assert search(fewer, tables[:-1], start=before.parameters).estimate.iterations < 12
    new, on = search(graph, tables).estimate, search(graph, tables, start=before.parameters)
    for one, other in zip(new.marginals, on.estimate.marginals, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    assert on.estimate.iterations < new.iterations


def test_a_search_is_cut_at_the_number_of_evaluations_that_is_asked_for() -> None:
    """And is a valid model then, too, from any start."""
    graph = GRAPHS["cycles"]
    tables = released(graph, 3, 10_000.0, 5.0, laplace=False)
    wild = {clique: np.full(graph.shape(clique), 1e300) for clique in graph.cliques}
    for start in ({}, wild):
        found = continued(graph, tables, None, start=start, most=5)
        assert found.estimate.iterations <= 5
        assert all(np.isfinite(theta).all() for theta in found.estimate.log_potentials)


def test_many_overlapping_tables_take_few_evaluations() -> None:
    """Each search begins near the last step's length; from the full one, this fit took 187."""
    rng = np.random.default_rng(1)  # noqa: TID251 - a table, not noise
    states, columns, rows = 5, 6, 40_000
    kinds = rng.choice(8, rows, p=rng.dirichlet(np.ones(8)))
    laws = rng.dirichlet(np.full(states, 0.1), size=(8, columns)).cumsum(axis=2)
    table = np.minimum((rng.random((rows, columns))[:, :, None] > laws[kinds]).sum(axis=2), states - 1)
    pairs = tuple(combinations(range(columns), 2))
    tables = [
        NoisyTable((a, b), counts.reshape(states, states) + rng.normal(0, 3, (states, states)), 3.0)
        for a, b in pairs
        for counts in [np.bincount(table[:, a] * states + table[:, b], minlength=states**2)]
    ]
    found = continued(Graph((states,) * columns, pairs), tables, None, most=500)
    assert found.estimate.iterations < 150


def test_rows_that_noise_does_not_rule_out_are_not_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three pairs of columns agree in too few rows to be true together: some rows should not exist, and keep a chance.

    Each of three columns of two states agrees with each other one in 32 % of the rows; at least a third is possible.
    """
    std, table = 30.0, 1e4 * np.array([[0.16, 0.34], [0.34, 0.16]])
    graph = Graph((2, 2, 2), ((0, 1), (0, 2), (1, 2)))
    tables = [NoisyTable(clique, table, std) for clique in graph.cliques]

    def least() -> tuple[float, float]:
        found = estimate(graph, tables, 1e4)
        alike = sum(float(theta[0, 0]) for theta in found.log_potentials) - found.log_partition
        return alike, max(float(np.abs(1e4 * part - table).max()) for part in found.marginals)

    alike, away = least()
    monkeypatch.setattr(_estimation, "_LEAN", 0.0)
    before, nearest = least()
    assert before < -30 < -12 < alike
    assert away < nearest + std / 2


def test_sums_of_shared_columns_are_those_of_the_tables() -> None:
    """Sums over a column, and over a pair within three columns, by class; spread back, each cell gets its sum."""
    scopes, shapes = [(0,), (0, 1), (2, 1), (0, 1, 2)], [(2,), (2, 3), (4, 3), (2, 3, 4)]
    generator = np.random.default_rng(0)  # noqa: TID251 - test data
    parts = [generator.random(shape) for shape in shapes]
    vector, shared = np.concatenate([part.ravel() for part in parts]), _Shared.of(scopes, shapes)
    # Column 0 is in three tables, 1 in three, 2 in two; each pair is in itself and in the three columns.
    wanted = [parts[0], parts[1].sum(axis=1), parts[3].sum(axis=(1, 2))]
    wanted += [parts[1].sum(axis=0), parts[2].sum(axis=0), parts[3].sum(axis=(0, 2))]
    wanted += [parts[2].sum(axis=1), parts[3].sum(axis=(0, 1))]
    wanted += [parts[1], parts[3].sum(axis=2), parts[2], parts[3].sum(axis=0).T]
    assert shared.sums(vector) == pytest.approx(np.concatenate([part.ravel() for part in wanted]))
    assert shared.less_mean(shared.sums(vector))[:2] == pytest.approx(wanted[0] - np.mean(wanted[:3], axis=0))
    cells = shared.spread(np.ones(len(shared.classes)), len(vector))
    assert [set(cells[part]) for part in (slice(2), slice(2, 8), slice(-24, None))] == [{1.0}, {3.0}, {5.0}]
