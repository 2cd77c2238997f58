"""The paper's own loop: its halves and its limit are what generic optimisers find."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, linprog, minimize

from bursar_models.arrays import FloatArray
from bursar_models.mrf import Estimate, Graph, NoisyTable, _estimation, _nonlinear, _problem, estimate, estimate_chain
from bursar_models.mrf._descent import Objective
from bursar_models.mrf._estimation import starting_points
from bursar_models.mrf._inference import chain_marginals, exact, loopy, spread, sum_to
from bursar_models.mrf._nonlinear import dual, expectation_maximization, log_likelihood, nonlinear_belief_propagation
from bursar_models.mrf._problem import Problem

TREES = {
    "pair": Graph((2, 3), ((0, 1),)),
    "chain": Graph((2, 3, 2), ((0, 1), (1, 2))),
    "star with a single": Graph((2, 2, 2, 3), ((0, 1), (0, 2), (3,))),
    "clique of three": Graph((2, 2, 3), ((0, 1, 2),)),
    "cycle": Graph((2, 2, 3), ((0, 1), (1, 2), (0, 2))),
}
ROWS = 1000.0


def problem_of(
    graph: Graph, laplace: bool, std: float = 60.0, seed: int = 0, how: Literal["exact", "loopy"] = "exact"
) -> Problem:
    """Tables of a random model with noise, as the estimators see them."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - test data
    theta = [rng.normal(size=graph.shape(clique)) for clique in graph.cliques]
    tables = []
    for clique, table in zip(graph.cliques, exact(graph, theta)[0], strict=True):
        noise = rng.laplace(size=table.shape) / math.sqrt(2) if laplace else rng.normal(size=table.shape)
        tables.append(NoisyTable(clique, ROWS * table + std * noise, std, laplace))
    denoised = [np.maximum(table.counts, 1.0) / np.maximum(table.counts, 1.0).sum() for table in tables]
    infer = exact if how == "exact" else loopy
    return Problem(
        tables,
        ROWS,
        lambda parts: infer(graph, parts),
        [1.0] * len(tables),
        starting_points([table.variables for table in tables], denoised),
        [None] * len(tables),
    )


def cells_of(graph: Graph) -> FloatArray:
    """A matrix from the probabilities of all joint states to those of all cells of all cliques."""
    states = math.prod(graph.sizes)
    every = range(len(graph.sizes))
    units = [np.eye(states)[state].reshape(graph.sizes) for state in range(states)]
    return np.stack(
        [np.concatenate([sum_to(unit, every, clique).ravel() for clique in graph.cliques]) for unit in units], axis=1
    )


def scale(problem: Problem, laplace: bool) -> FloatArray:
    """Return the scale of the noise: s if it is normal, b if it is Laplace's."""
    return problem.stds / math.sqrt(2) if laplace else problem.stds


def generic_optimum(graph: Graph, problem: Problem, theta: FloatArray, laplace: bool, entropy: float) -> float:
    """Largest theta . n + entropy H(n) + log p(y | n) over all distributions of all states, by scipy.

    H(n) is the largest entropy of a distribution with these tables, so that the maximum over distributions is that over
    tables. Laplace's absolute values are linear with one more variable a cell, which is at least their size.
    """
    cells, scales, rows = cells_of(graph), scale(problem, laplace), problem.rows
    states, width = cells.shape[1], len(problem.counts)
    extra = width if laplace else 0

    def objective(x: FloatArray) -> tuple[float, FloatArray]:
        q, away = x[:states], rows * cells @ x[:states] - problem.counts
        logs = np.log(np.maximum(q, 1e-300))
        value = entropy * rows * float(q @ logs) - rows * float(theta @ (cells @ q))
        slope = entropy * rows * (logs + 1) - rows * cells.T @ theta
        if laplace:
            return value + float(x[states:].sum()), np.concatenate([slope, np.ones(extra)])
        return value + 0.5 * float(np.square(away / scales).sum()), slope + rows * cells.T @ (away / scales**2)

    total = np.concatenate([np.ones(states), np.zeros(extra)])
    constraints = [LinearConstraint(total, 1.0, 1.0)]
    first = np.full(states, 1 / states)
    if laplace:
        scaled = rows * cells / scales[:, None]
        target = problem.counts / scales
        constraints.append(LinearConstraint(np.hstack([-scaled, np.eye(width)]), -target, np.inf))
        constraints.append(LinearConstraint(np.hstack([scaled, np.eye(width)]), target, np.inf))
        first = np.concatenate([first, np.abs(scaled @ first - target)])
    bounds = [(1e-12, 1.0)] * states + [(0.0, None)] * extra
    found = minimize(
        objective,
        first,
        jac=True,
        method="SLSQP",
        bounds=bounds,
        constraints=constraints,
        options={"maxiter": 2000, "ftol": 1e-10},
    )
    return -float(found.fun)


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("name", TREES)
def test_the_expectation_is_the_maximum_of_its_objective(name: str, laplace: bool) -> None:
    """Non-linear belief propagation finds what a generic optimiser finds over all distributions, and says how near."""
    graph, problem = TREES[name], problem_of(TREES[name], laplace)
    theta = 0.7 * problem.starts[-1]
    found = nonlinear_belief_propagation(problem, theta, np.zeros_like(theta), 1e-6, 5000)
    assert 0 <= found.gap + 1e-9 <= 2e-6
    # At n = N marginals(theta') the entropy is N A(theta') - theta' . n.
    inner = theta + found.evidence
    entropy = ROWS * problem.marginals(inner)[1] - float(inner @ found.counts)
    reached = float(theta @ found.counts) + entropy + log_likelihood(problem, found.counts)
    assert reached == pytest.approx(generic_optimum(graph, problem, theta, laplace, 1.0), rel=1e-6, abs=1e-3)


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("name", TREES)
def test_the_limit_is_the_likeliest_table_of_all(name: str, laplace: bool) -> None:
    """EM goes to the largest likelihood of the tables: a linear or a quadratic programme over all distributions."""
    graph, problem = TREES[name], problem_of(TREES[name], laplace)
    theta, _ = expectation_maximization(problem, np.zeros(len(problem.counts)), 20_000, 1e-7)
    reached = log_likelihood(problem, ROWS * problem.marginals(theta)[0])
    cells = cells_of(graph)
    if laplace:
        scaled, target, width = ROWS * cells / scale(problem, True)[:, None], problem.counts / scale(problem, True), 0
        width = len(target)
        best = -linprog(
            np.concatenate([np.zeros(cells.shape[1]), np.ones(width)]),
            A_ub=np.block([[scaled, -np.eye(width)], [-scaled, -np.eye(width)]]),
            b_ub=np.concatenate([target, -target]),
            A_eq=np.concatenate([np.ones(cells.shape[1]), np.zeros(width)])[None],
            b_eq=[1.0],
        ).fun
    else:
        best = generic_optimum(graph, problem, np.zeros(len(problem.counts)), False, 0.0)
    assert best - 0.02 <= reached <= best + 1e-3


@pytest.mark.parametrize("how", ["exact", "loopy"])
@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("name", TREES)
def test_no_step_lowers_the_likelihood(
    name: str, laplace: bool, how: Literal["exact", "loopy"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models between steps are compared, from large noise to small, within the public limit of passes."""
    seen: list[float] = []
    limit = 100 if how == "exact" else 30

    def record(problem: Problem, theta: FloatArray, *rest: Any) -> Any:
        seen.append(log_likelihood(problem, ROWS * problem.marginals(theta)[0]))
        return nonlinear_belief_propagation(problem, theta, *rest)

    monkeypatch.setattr(_nonlinear, "nonlinear_belief_propagation", record)
    for std in (0.5, 20.0, 500.0):
        problem = problem_of(TREES[name], laplace, std, 1, how)
        seen.clear()
        theta, used = expectation_maximization(problem, np.zeros(len(problem.counts)), limit, 1e-4)
        assert np.isfinite(theta).all()
        assert used <= limit
        # Around a cycle loopy marginals are no gradient of a concave function.
        first = log_likelihood(problem, ROWS * problem.marginals(problem.starts[-1])[0])
        slack = (0.05 if name == "cycle" and how == "loopy" else 1e-6) * abs(first)
        assert all(after >= before - slack for before, after in pairwise(seen))


@pytest.mark.parametrize("laplace", [False, True])
def test_the_evidence_is_the_derivative_of_the_likelihood(laplace: bool) -> None:
    """Finite differences of log p(y | n) at the likeliest tables: equal, or for Laplace noise between the two sides."""
    problem = problem_of(TREES["chain"], laplace)
    theta = problem.starts[1]
    found = nonlinear_belief_propagation(problem, theta, np.zeros_like(theta), 1e-9, 20_000)
    step = 1e-3
    for cell, evidence in enumerate(found.evidence):
        unit = np.zeros_like(found.counts)
        unit[cell] = step
        middle = log_likelihood(problem, found.counts)
        right = (log_likelihood(problem, found.counts + unit) - middle) / step
        left = (middle - log_likelihood(problem, found.counts - unit)) / step
        assert min(left, right) - 1e-5 <= evidence <= max(left, right) + 1e-5


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("name", TREES)
def test_the_dual_function_has_the_gradient_that_it_says(name: str, laplace: bool) -> None:
    """Finite differences in every cell."""
    problem = problem_of(TREES[name], laplace)
    theta = problem.starts[-1]
    point = np.linspace(-0.3, 0.3, len(theta)) / problem.stds
    _, gradient, _ = dual(problem, theta, point)
    for cell, expected in enumerate(gradient):
        unit = np.zeros_like(theta)
        unit[cell] = 1e-6
        ends = [dual(problem, theta, point + sign * unit)[0] for sign in (1, -1)]
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(expected, rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("estimator", ["cgm", "naive", "nlbp"])
@pytest.mark.parametrize("graph", ["chain", "cycle", "clique of three", "homogeneous"])
def test_objectives_have_the_gradients_that_they_say(
    graph: str, estimator: Any, laplace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite differences of what every estimator minimizes, with a penalty, at a point that is no optimum."""
    checked = []

    def check(objective: Objective, starts: list[FloatArray], *rest: Any) -> tuple[FloatArray, int]:
        point = 0.8 * starts[-1] - 0.01
        _, gradient, _ = objective(point)
        for cell, expected in enumerate(gradient):
            unit = np.zeros_like(point)
            unit[cell] = 1e-5
            ends = [objective(point + sign * unit)[0] for sign in (1, -1)]
            assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(expected, rel=1e-4, abs=1e-7)
        checked.append(len(gradient))
        return point, 1

    # The prior's own numbers are no part of the check: they do not move with the parameters.
    monkeypatch.setattr(_estimation, "minimized", check)
    monkeypatch.setattr(_problem, "minimized", check)
    run(graph, estimator, laplace, regularization=20.0)
    assert checked


def run(graph: str, estimator: Any, laplace: bool, **settings: Any) -> Estimate:
    """A fit to tables with noise."""
    rng = np.random.default_rng(2)  # noqa: TID251 - test data
    if graph != "homogeneous":
        problem = problem_of(TREES[graph], laplace)
        tables = [
            NoisyTable(clique, counts, 60.0, laplace)
            for clique, counts in zip(TREES[graph].cliques, problem.split(problem.counts), strict=True)
        ]
        return estimate(TREES[graph], tables, ROWS, estimator=estimator, **settings)
    firsts = NoisyTable((0,), ROWS * rng.dirichlet(np.ones(3)), 20.0, laplace)
    transitions = NoisyTable((0, 1), ROWS * rng.dirichlet(np.ones(9)).reshape(3, 3), 20.0, laplace)
    return estimate_chain(4, 3, transitions, firsts, ROWS, estimator=estimator, **settings)


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("graph", ["chain", "cycle", "homogeneous"])
def test_a_penalty_pulls_potentials_together(graph: str, laplace: bool) -> None:
    """The M-step with a penalty: the larger, the smaller the potentials; without one they are largest."""
    sizes = []
    for regularization in (None, 10.0, 1000.0):
        found = run(graph, "nlbp", laplace, regularization=regularization)
        tables = [table - table.mean() for table in found.log_potentials]
        sizes.append(sum(float(np.square(table).sum()) for table in tables))
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("how", ["exact", "loopy"])
def test_low_noise_gives_the_model_that_the_tables_are_of(how: Literal["exact", "loopy"], laplace: bool) -> None:
    """Marginals of the truth, by exact inference and by belief propagation on a chain."""
    graph = Graph((4, 3, 5), ((0, 1), (1, 2)))
    rng = np.random.default_rng(3)  # noqa: TID251 - test data
    truth, _ = exact(graph, [rng.normal(size=graph.shape(clique)) for clique in graph.cliques])
    tables = [NoisyTable(c, 1e5 * table, 1.0, laplace) for c, table in zip(graph.cliques, truth, strict=True)]
    found = estimate(graph, tables, None, estimator="nlbp", inference=how)
    for got, want in zip(found.marginals, truth, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("laplace", [False, True])
def test_chains_are_learnt_by_the_papers_loop(laplace: bool) -> None:
    """A homogeneous chain: the truth with little noise; with much, not far from the closed form."""
    steps, states, rows = 6, 8, 5000.0
    rng = np.random.default_rng(4)  # noqa: TID251 - test data
    first, transition = np.log(rng.dirichlet(np.ones(states))), np.log(rng.dirichlet(np.ones(states), size=states))
    (start, pairs), log_partition = chain_marginals(steps, first, transition)

    def loss(std: float, estimator: Any) -> float:
        noise = [
            rng.laplace(size=t.shape) / math.sqrt(2) if laplace else rng.normal(size=t.shape) for t in (pairs, start)
        ]
        observed = [rows * table + std * part for table, part in zip((pairs, start), noise, strict=True)]
        found = estimate_chain(
            steps,
            states,
            NoisyTable((0, 1), observed[0], std, laplace),
            NoisyTable((0,), observed[1], std, laplace),
            None,
            estimator=estimator,
        )
        phi, psi = found.log_potentials
        gain = ((first - phi) * start).sum() + (steps - 1) * ((transition - psi) * pairs).sum()
        return float(gain) - log_partition + found.log_partition

    assert loss(0.1, "nlbp") < 1e-3
    assert sum(loss(30.0, "nlbp") for _ in range(9)) < 1.1 * sum(loss(30.0, "naive") for _ in range(9))


def test_noise_is_not_fitted_to_the_end() -> None:
    """Cells that are rare and covered by noise keep a probability, as EM ends early."""
    graph = Graph((10,), ())
    truth = np.full(10, 0.004)
    truth[0] = 1 - truth[1:].sum()
    rng = np.random.default_rng(5)  # noqa: TID251 - test noise
    table = NoisyTable((0,), 1000 * truth + 30 * rng.normal(size=10), 30.0)
    assert (table.counts < 0).any()
    assert estimate(graph, [table], 1000, estimator="nlbp").marginals[0].min() > 1e-4


def test_spread_and_cells_are_the_same_sums() -> None:
    """The matrix of the tests is the library's marginalization."""
    graph = TREES["chain"]
    theta = [np.arange(6.0).reshape(2, 3) / 5, np.arange(6.0).reshape(3, 2) / 7]
    everything = range(3)
    logs = sum((spread(t, c, everything) for c, t in zip(graph.cliques, theta, strict=True)), np.zeros(graph.sizes))
    q = np.exp(logs).ravel() / np.exp(logs).sum()
    np.testing.assert_allclose(cells_of(graph) @ q, np.concatenate([m.ravel() for m in exact(graph, theta)[0]]))
