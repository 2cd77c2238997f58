"""Estimation of a Markov random field from noisy contingency tables; all of it is post-processing of released values.

Source: Bernstein, McKenna, Sun, Sheldon, Hay, Miklau (2017), sections 3.1 (naive) and 3.2 (collective models).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_models.mrf._canonical import canonical, canonical_chain
from bursar_models.mrf._descent import Solve, minimized
from bursar_models.mrf._graph import Graph, check_exact, is_forest
from bursar_models.mrf._inference import LoopyBeliefs, alone, cached_tree, chain_marginals, exact, spread, sum_to
from bursar_models.mrf._nonlinear import expectation_maximization
from bursar_models.mrf._ordered import UNORDERED, refined
from bursar_models.mrf._posterior import tilted_gaussian
from bursar_models.mrf._problem import (
    FARTHEST,
    LEAST_STD,
    Infer,
    NoisyTable,
    Problem,
    likeliest,
    posterior_of,
    tolerance,
)
from bursar_models.mrf._shrinkage import LARGEST, UNKNOWN, in_cycles, joint_part, nearer, without_own
from bursar_models.mrf._work import chain_work, evaluations, exact_work, few_enough, most_sweeps, routine

Estimator = Literal["cgm", "naive", "nlbp"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
Inference = Literal["auto", "exact", "loopy"]
INFERENCES: tuple[Inference, ...] = get_args(Inference)

_ENTROPY = 0.3
"""Weight of the entropy for each cell of a table: see `estimate`.

Measured on the same noisy tables of "auto" with 0.1, 0.3, 1 and 3, medians of 3 fits: at epsilon 0.1 the errors of all
pairs of seven real tables are within 2 % up to 1, the log-likelihoods within 0.12. There 1 is up to 0.04 nats better
than 0.3 on six of them, and 0.05 worse on the smallest, marketing, where noise rules; 3 is another 0.11 worse.
"""

_LEAN = 0.03
"""Rows by which a count may move towards independent columns for each nat that rows gain, in noise: see `_leant`.

Measured on the same noisy tables of "auto", two or three of each: birds, crashes, marketing, stones, wives and youth at
epsilon 0.1, 1 and 3 (stones up to 1). Log-likelihoods are between 0.012 below those of 0 (stones at 1) and 0.201 above
(wives at 0.1), errors of pairs and triples at most 1.1 % larger. With 0.1 it is 0.032 below and errors up to 3.2 %
larger, on stones at 1; with 0.01 wives gain 0.181.
"""

FEW_BINS = 10
"""Largest number of bins that are estimated as categories, as if they had no order.

Where the server chooses pairs, order gains nothing there and costs up to 0.05 nats a row (Adult, crashes and stones:
docs/fit-mrf.md). 16 bins gain.
"""

_HELD = 0.5
"""Noise of the estimate of an ordered column, in that of its table, so that the model keeps it.

With a quarter, errors in six real tables in 8 and 16 bins at epsilon 0.1 to 3 are up to 5 % smaller at 0.1, and a fifth
larger in one at 3, where the search ends early; with a sixteenth searches do not converge.
"""

_RARE, _FEW, _EVIDENCE = 0.05, 3, 1.0
"""Prior of columns most of whose states have hardly any rows: mean of its narrow half, over the average count; largest
number of states of a column that never has it; and nats by which released counts have to speak for it.

On four fifths of mushroom (4,515 rows, 23 columns), four fits each with noise in floating point, errors of pairs before
and now, that of independent columns in brackets: 0.339 and 0.275 (0.306 and 0.286) at epsilon 0.05, 0.235 and 0.198
(0.225 and 0.196) at 0.1, and at 0.1 0.4 nats more; fewer rounds have a part in it. Of 14 real tables at 0.05 to 1 the
released counts speak for it by 6 and more nats on Adult and, from 0.1 on, mushroom (by 1 and more at 0.05), now and
then on birds; elsewhere by 4 and more against it. Without that rule it would cost marketing 0.14 nats at 0.1.
"""

_FULL = 4.0
"""Rows that independent columns have in a cell, in noise, at which `_less_noisy` does half of what it would do to more.

Measured on the same noisy tables of "auto" with 3 and 6 (4 is between), means of 2 to 8 of each, errors of all pairs
and nats a row: crashes at epsilon 0.1 -6.2 and -3.8 %, 0.058 and 0.036 more; marketing at 0.5 1.2 and 0.6 % more,
0.006 and 0.004 more. With 3: survey at 0.1 -1.8 % and 0.021, Adult 0.7 % and 0, marketing 0.3 % and -0.012, mushroom
0.1 % and -0.015.
"""

_FARTHEST_TILT, _HALVINGS = 20.0, 30
"""Largest tilt, over 1 / noise, of counts that have to add up to the rows, and steps of the search for it.

At the largest one a count moves by twenty times its noise; the steps find the tilt to 4e-8 of that.
"""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Fitted model p(x) = exp(sum over cliques of theta_C(x_C) - A(theta)).

    Attributes:
        log_potentials: theta_C, one array for each clique of the graph; finite. Of all that give the same model, those
            of mean 0 and the least sum of squares: see `canonical`.
        marginals: probabilities of each clique under the model; approximate under loopy inference.
        log_partition: A(theta), or its Bethe approximation.
        n_rows: number of rows that was used, at least 1.
        iterations: number of evaluations of the model's marginals.
        inference: method by which marginals were computed.
    """

    log_potentials: list[FloatArray]
    marginals: list[FloatArray]
    log_partition: float
    n_rows: float
    iterations: int
    inference: Literal["exact", "loopy"]


def estimate(
    graph: Graph,
    tables: Sequence[NoisyTable],
    n_rows: float | None,
    *,
    estimator: Estimator = "cgm",
    regularization: float | None = None,
    inference: Inference = "auto",
    ordered: Mapping[int, int] = UNORDERED,
) -> Estimate:
    """Fit the potentials of a graph's cliques to noisy tables.

    "cgm" models the true tables n as unknown non-negative sums of the same rows, and the released tables y as n plus
    noise of a known law (paper, section 3.2). The paper's EM alternates between the likeliest tables and the potentials
    that fit them. As its M-step takes the tables' own potentials, the two are one concave problem over
    the marginal polytope, whose dual in the potentials theta is solved here: minimize

        A(theta) + sum over cells of 1 / w log integral over n of p(n) p(y | n) exp(-w (theta - theta0) n / N) dn

    which makes the model's marginals agree with the posterior mean of every count, under a prior that the potentials
    tilt. Four deviations from the paper, as its optimum is the projection of the noise onto the polytope, on its edge,
    where true states have probability 0:

    - Posterior means of the counts, not modes. They are above 0, and near y where that is large against the noise.
    - The entropy's weight is w = `_ENTROPY` times the table's cells, not N, and it is relative to independent columns,
      theta0. This is a prior on log-potentials of standard deviation of about 1 / sqrt(_ENTROPY), without effect
      where there is little noise; the results hardly depend on it.
    - A cell of several columns has a prior p(n), of which half is exponential with the mean that independent columns
      have there: a potential from a Dirichlet(1) makes such counts, and combinations of two rare states are rare. As
      some are not, the other half is exponential with a mean of several average counts.
    - Tables of several variables are first moved nearer to independent ones, by what of their distance noise explains;
      where there are cycles all is then learnt once more, from tables that are nearer to what the model says of them
      without their own potential.

    Beside the cells, counts of single variables are at least 0, too: a flat prior on S cells alone would say that their
    sum is large, as its S - 1 power, and blur columns with rare states. So sums enter as tables (see `with_sums`),
    with a flat prior, or one of two exponentials where the tables say that most states have hardly any rows.
    No constant is tuned to data. As noise vanishes this becomes maximum likelihood.

    "nlbp" is the paper's own loop: see `expectation_maximization`.

    "naive" takes each table by itself for the truth, less its noise: means of counts of at least 0, normalised.
    The paper projects the tables to the simplex, which gives probability 0 to true states. Where tables form a forest,
    the model is the product of their conditionals in closed form (`starting_points`); elsewhere, and with a penalty, it
    is maximum likelihood.

    Args:
        graph: graph whose cliques get a potential.
        tables: noisy tables, each over variables of one clique; several over the same variables are averaged by their
            precision.
        n_rows: number of rows; None estimates it from the tables' totals (see `estimated_rows`).
        estimator: "cgm"; "nlbp"; or "naive".
        regularization: L2 penalty on the log-potentials, in rows: (regularization / 2) |theta|^2 is subtracted from the
            log-likelihood of all rows. None: no penalty for "cgm", "nlbp" and closed forms, 1 for other "naive" fits,
            whose maximum may not exist without it.
        inference: "exact" on a junction tree, "loopy", or "auto": exact where `check_exact` allows it. A graph without
            cycles always has exact inference, which is then no more work than one loopy sweep.
        ordered: number of ordered bins, the first states, of each variable that has any, for "cgm": neighbours of
            more than `FEW_BINS` borrow from each other. A state more is that of null.

    Returns:
        A model with finite potentials for any counts, found in bounded time (see `evaluations`).

    Raises:
        ValueError: no table; a table that is over no clique of the graph or has another shape; an argument outside its
            range; exact inference above its limits.
    """
    learn = partial(
        continued,
        graph,
        tables,
        n_rows,
        estimator=estimator,
        regularization=regularization,
        inference=inference,
        ordered=ordered,
    )
    around = in_cycles(graph) if estimator == "cgm" and routine(graph, inference) == "exact" else ()
    if not (around and few_enough(graph)):
        return learn().estimate
    first = learn(searches=2)
    bases = without_own(graph, around, first.estimate.log_potentials, first.estimate.marginals)
    second = learn(searches=2, start=first.parameters, bases=bases).estimate
    return replace(second, iterations=first.estimate.iterations + second.iterations)


@dataclass(frozen=True, eq=False)
class Fitted:
    """An estimate, and where its search ended.

    Attributes:
        estimate: fitted model.
        parameters: parameters of each table that was fitted, by its variables.
    """

    estimate: Estimate
    parameters: Mapping[tuple[int, ...], FloatArray]


def continued(
    graph: Graph,
    tables: Sequence[NoisyTable],
    n_rows: float | None,
    *,
    estimator: Estimator = "cgm",
    regularization: float | None = None,
    inference: Inference = "auto",
    start: Mapping[tuple[int, ...], FloatArray] | None = None,
    most: int | None = None,
    ordered: Mapping[int, int] = UNORDERED,
    bases: Mapping[tuple[int, ...], FloatArray] = UNKNOWN,
    searches: int = 1,
) -> Fitted:
    """Fit as `estimate` does, from the end of an earlier search.

    Args:
        graph: as in `estimate`, like the following ones.
        tables: tables of the earlier search, and more.
        n_rows: number of rows, or None.
        estimator: "cgm" if there is a start.
        regularization: penalty.
        inference: method.
        start: parameters of the earlier search; tables that it lacks begin with 0. None begins anew.
        most: maximum number of evaluations of a model on the way to others, which is not leant (`_leant`); None for
            that of `evaluations`.
        ordered: as in `estimate`.
        bases: probabilities of tables in models without them, to which "cgm" moves them, as noise allows; elsewhere
            those of independent columns.
        searches: number of searches that share the most work of one.
    """
    _check(n_rows, estimator, regularization)
    if inference not in INFERENCES:
        raise ValueError(f"inference: expected one of {INFERENCES}, got {inference!r}")
    if not tables:
        raise ValueError("tables: expected at least one")
    how = routine(graph, inference)
    infer, work = _inference(graph, how)
    # Only "cgm" has a prior on counts that sums have to correct; to the others they would count the same noise twice.
    merged = with_sums(merge(tables)) if estimator == "cgm" else merge(tables)
    homes = [_home(graph, table) for table in merged]
    rows = estimated_rows(tables) if n_rows is None else max(float(n_rows), 1.0)
    scopes, guesses = [table.variables for table in merged], _denoised(merged, rows)
    expected: list[FloatArray | None] = [None] * len(merged)
    if estimator == "cgm":
        alone, few = _alone(merged, rows)
        for place, one in enumerate(merged):
            several = len(one.variables) > 1
            expected[place] = _independent(one, alone, rows) if several else few[one.variables[0]]
            guesses[place] = guesses[place] if several else alone[one.variables[0]]
        merged = [
            _less_noisy(table, alone, rows)
            if (base := bases.get(table.variables)) is None
            else nearer(table, base, rows)
            for table in merged
        ]
        merged, guesses, expected = _with_order(merged, guesses, expected, alone, rows, ordered)
    # Closed forms: where the tables are pairs of a tree the second is nearly the answer, and the search is short.
    starts = starting_points(scopes, guesses)
    limit = evaluations(searches * work, searches * sum(table.counts.size for table in merged))
    leans = estimator == "cgm" and how == "exact" and most is None
    # What is left of the evaluations is for `_leant`.
    own_limit = max(1, limit * 4 // 5) if leans else min(limit, most or limit)
    problem = Problem(
        merged,
        rows,
        _of_tables(graph, merged, homes, infer),
        [1.0] * len(merged),
        starts,
        expected,
        scopes,
        own_limit,
    )
    # The start of independent columns stays beside it: the search takes the better one.
    if start is not None:
        earlier = [start.get(table.variables, np.zeros(table.counts.shape)) for table in merged]
        problem.starts = [problem.starts[0], np.concatenate([part.ravel() for part in earlier])]
    if estimator == "naive" and not regularization and is_forest(Graph(graph.sizes, tuple(scopes))):
        found, iterations = starts[-1], 1
    else:
        found, iterations = _fitted(problem, guesses, estimator, regularization)
    ended = {table.variables: part for table, part in zip(merged, found, strict=True)}
    if leans:
        found, more = _leant(problem, graph, merged, homes, found, limit - iterations)
        iterations += more
    potentials = _added(graph, merged, homes, found)
    marginals, log_partition = infer(potentials)
    potentials, less = canonical(graph, potentials)
    log_partition -= less
    if how == "exact":  # loopy inference would continue from messages that belong to the old potentials
        marginals, log_partition = infer(potentials)
    return Fitted(Estimate(potentials, marginals, log_partition, rows, iterations, how), ended)


def estimate_chain(
    steps: int,
    states: int,
    transitions: NoisyTable,
    firsts: NoisyTable,
    n_rows: float | None,
    *,
    estimator: Estimator = "cgm",
    regularization: float | None = None,
) -> Estimate:
    """Fit p(x) proportional to phi(x_1) prod psi(x_t, x_t+1), a time-homogeneous chain (paper, section 4.2).

    Args:
        steps: number of steps T, at least 2.
        states: number of states S of every step.
        transitions: noisy numbers of transitions from axis 0 to axis 1, shape (S, S), each person's counted 1 / (their
            number of transitions), so that the total is the number of rows.
        firsts: noisy numbers of first states, shape (S,).
        n_rows: number of rows, or of persons; None estimates it from the two totals.
        estimator: method, as in `estimate`. Without a penalty "cgm" and "naive" are closed forms here, conditionals of
            posterior means with the prior of `estimate` or a flat one. A search explains noise in the difference
            between the two ends of transitions, which the model magnifies T - 1 times.
        regularization: L2 penalty as in `estimate`, on the two log-potentials.

    Returns:
        Log-potentials log phi (S,) and log psi (S, S); probabilities of the first state, and of a transition averaged
        over time.

    Raises:
        ValueError: an argument outside its range, or a table of another shape.
    """
    _check(n_rows, estimator, regularization)
    if not (steps >= 2 and states >= 1):
        raise ValueError(f"steps, states: expected at least 2 and 1, got {steps!r} and {states!r}")
    if (transitions.counts.shape, firsts.counts.shape) != ((states, states), (states,)):
        raise ValueError(
            f"transitions, firsts: expected shapes {(states, states)} and {(states,)}, got {transitions.counts.shape} "
            f"and {firsts.counts.shape}"
        )
    # Variable 0 is the first state, 1 and 2 are the ends of a transition. Unlike elsewhere, sums over one end are not
    # tables of their own: the two ends' distributions differ by (p(x_T) - p(x_1)) / (T - 1) only.
    tables = [
        NoisyTable((0,), firsts.counts, firsts.std, firsts.laplace),
        NoisyTable((1, 2), transitions.counts, transitions.std, transitions.laplace),
    ]
    rows = estimated_rows(tables) if n_rows is None else max(float(n_rows), 1.0)

    def infer(scaled: Sequence[FloatArray]) -> tuple[list[FloatArray], float]:
        return chain_marginals(steps, scaled[0], scaled[1] / (steps - 1))

    # The gradient in (T - 1) log psi is the average over time that the table observes.
    guesses = _denoised(tables, rows)
    ends = [NoisyTable((v,), _sums(tables[1], v), transitions.std * math.sqrt(states)) for v in (1, 2)]
    problem = Problem(
        tables,
        rows,
        infer,
        [1.0, float(steps - 1)],
        [_conditionals(steps, guesses)],
        [None, _independent(tables[1], _alone(ends, rows)[0], rows)] if estimator == "cgm" else [None, None],
        limit=evaluations(chain_work(steps, states), states * (states + 1)),
    )
    if estimator == "nlbp" or regularization:
        (first, scaled), iterations = _fitted(problem, guesses, estimator, regularization)
    else:
        means = problem.split(problem.posterior.tilted(np.zeros_like(problem.stds))[1])
        (first, scaled), iterations = _conditionals(steps, means), 1
    first, transition, _ = canonical_chain(steps, first, scaled / (steps - 1))
    marginals, log_partition = chain_marginals(steps, first, transition)
    return Estimate([first, transition], marginals, log_partition, rows, iterations, "exact")


def _conditionals(steps: int, counts: Sequence[FloatArray]) -> list[FloatArray]:
    """Return the parameters of the Markov chain of first states and transitions: positive counts of both."""
    first, pairs = counts
    return [np.log(first / first.sum()), (steps - 1) * np.log(pairs / pairs.sum(axis=1, keepdims=True))]


def estimated_rows(tables: Sequence[NoisyTable]) -> float:
    """Estimate the number of rows from the totals of noisy tables: their inverse-variance mean, at least 1.

    A total has the variance cells std^2. Noise of different tables is independent.
    """
    # Clipped, because released cells may be anything that 64-bit integers hold.
    totals = np.array([np.clip(table.counts, -LARGEST, LARGEST).sum() for table in tables])
    precisions = np.array([1 / (table.counts.size * max(table.std, LEAST_STD) ** 2) for table in tables])
    return max(float(totals @ (precisions / precisions.sum())), 1.0)


def merge(tables: Sequence[NoisyTable]) -> list[NoisyTable]:
    """Merge tables over the same variables to their mean by precision, axes ascending. A mean counts as Gaussian."""
    groups: dict[tuple[int, ...], list[NoisyTable]] = {}
    for table in tables:
        groups.setdefault(tuple(sorted(table.variables)), []).append(table)
    return [_mean(variables, group) for variables, group in groups.items()]


def with_sums(tables: Sequence[NoisyTable]) -> list[NoisyTable]:
    """Return the tables and, for each variable of a larger one, a table of its own counts.

    Counts of one variable are the inverse-variance mean of the tables' sums. They repeat what the tables contain, but a
    flat prior on counts of at least 0 is right for them and wrong for sums of many cells: see `estimate`.
    """
    joint = [table for table in tables if len(table.variables) > 1]
    # A table of one variable that a larger one contains is not lost: its counts are part of the mean below.
    found = [table for table in tables if len(table.variables) > 1 or not _held(joint, table.variables[0])]
    for variable in sorted({variable for table in joint for variable in table.variables}):
        holders = [table for table in tables if variable in table.variables]
        sums = [
            NoisyTable((variable,), _sums(t, variable), t.std * math.sqrt(t.counts.size / len(_sums(t, variable))))
            for t in holders
        ]
        found.append(_mean((variable,), sums))
    return found


def _held(tables: Sequence[NoisyTable], variable: int) -> bool:
    return any(variable in table.variables for table in tables)


def _sums(table: NoisyTable, variable: int) -> FloatArray:
    return sum_to(table.counts, table.variables, (variable,))


def _fitted(
    problem: Problem,
    guesses: Sequence[FloatArray],
    estimator: Estimator,
    regularization: float | None,
) -> tuple[list[FloatArray], int]:
    """Return the parameters of each table, and the number of evaluations, of a search.

    Args:
        problem: tables and parameters.
        guesses: probabilities of each table's cells by itself.
        estimator: method.
        regularization: penalty, or None.
    """
    strength = (1.0 if estimator == "naive" else 0.0) if regularization is None else regularization
    # The penalty is on log-potentials, of which the parameters are multiples.
    penalty = strength / problem.rows / np.square(problem.multiples)
    # Extreme counts may overflow in a trial step; the line search then rejects it.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if estimator == "naive":
            observed = np.concatenate([guess.ravel() for guess in guesses])
            theta, iterations = likeliest(problem, observed, penalty, problem.starts, problem.limit)
        else:
            fit = _cgm if estimator == "cgm" else expectation_maximization
            theta, iterations = fit(problem, penalty)
    return problem.split(theta), iterations


def _alone(tables: Sequence[NoisyTable], rows: float) -> tuple[dict[int, FloatArray], dict[int, FloatArray | None]]:
    """Return the probabilities of the states of variables that have a table of their own, and what their prior expects.

    They are posterior means of their counts, which a tilt for each table makes add up to the rows. The prior is flat,
    or for wide columns that of rare states where it explains their tables better.
    """
    # Noise as if normal: the tails of a tilted Laplace distribution have no mean.
    single = [replace(table, laplace=False) for table in tables if len(table.variables) == 1]
    if not single:
        return {}, {}
    wide = [table for table in single if table.counts.size > _FEW]
    average = [np.full(table.counts.shape, rows / table.counts.size) for table in wide]
    halves = [_RARE * one for one in average], [(2 - _RARE) * one for one in average]
    rare = bool(wide) and _evidence(wide, rows, *halves) - _evidence(wide, rows, average, average) > _EVIDENCE
    expected = dict.fromkeys(table.variables[0] for table in single) | (
        {table.variables[0]: one for table, one in zip(wide, halves[0], strict=True)} if rare else {}
    )
    posterior = posterior_of(single, rows, list(expected.values()))
    lengths = [table.counts.size for table in single]
    firsts = np.cumsum([0, *lengths[:-1]])
    high = _FARTHEST_TILT / posterior.stds[firsts]
    low = -high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = np.add.reduceat(posterior.tilted(np.repeat(middle, lengths))[1], firsts) > rows
        low, high = np.where(more, low, middle), np.where(more, middle, high)
    parts = np.split(posterior.tilted(np.repeat(low, lengths))[1], firsts[1:])
    return {variable: part / part.sum() for variable, part in zip(expected, parts, strict=True)}, expected


def _evidence(
    tables: Sequence[NoisyTable], rows: float, near: Sequence[FloatArray], far: Sequence[FloatArray]
) -> float:
    """Return the log-likelihood of noisy counts, up to a constant, where half have each of two exponential priors."""
    prior = replace(posterior_of(tables, rows, near), far=np.concatenate(far))
    return float(prior.tilted(np.zeros_like(prior.stds))[0].sum())


def _independent(table: NoisyTable, alone: Mapping[int, FloatArray], rows: float) -> FloatArray:
    """Return the counts of a table if its variables were independent, with these probabilities."""
    counts = np.full((1,) * table.counts.ndim, rows)
    for variable in table.variables:
        counts = counts * spread(alone[variable], (variable,), table.variables)
    return counts


def _less_noisy(table: NoisyTable, alone: Mapping[int, FloatArray], rows: float) -> NoisyTable:
    """Return a table nearer to independent variables, the more of its distance from them is noise.

    What a table has beyond its variables' own counts is taken for normal, with the variance that its squares leave to
    it (Efron and Morris 1973). Cells that have few rows are left to the priors of `estimate`, which know that counts
    are at least 0, and so are tables with fewer rows than noise.
    """
    std, cells = max(table.std, LEAST_STD), table.counts.size
    freedom = cells - 1 - sum(size - 1 for size in table.counts.shape)
    if freedom < 1 or table.laplace or rows < std * cells:
        return table
    base = _independent(table, alone, rows)
    full = np.square(base) / (np.square(base) + (_FULL * std) ** 2)
    joint = joint_part(table.counts - base)
    # Noise has `freedom` squares in the joint part, spread over all cells.
    variance = max(0.0, float((full * (np.square(joint) * cells / freedom - std**2)).sum() / full.sum()))
    return replace(table, counts=table.counts - joint * full / (1 + variance / std**2))


def _with_order(
    tables: Sequence[NoisyTable],
    guesses: Sequence[FloatArray],
    expected: Sequence[FloatArray | None],
    alone: Mapping[int, FloatArray],
    rows: float,
    ordered: Mapping[int, int],
) -> tuple[list[NoisyTable], list[FloatArray], list[FloatArray | None]]:
    """Return tables, guesses and expected counts in which neighbours of ordered bins borrow from each other.

    Tables of a single ordered column are replaced by their estimates, which hold the model's column at its own. A table
    of several keeps its noisy counts, and expects what is between its estimate and independent columns; with fewer rows
    than noise in an average cell it is replaced, too.
    """
    found, alone = list(zip(tables, guesses, expected, strict=True)), dict(alone)
    for place, table in enumerate(tables):
        # Single columns first: the tables of several are compared with what their columns alone would give.
        if len(table.variables) == 1 and _ordered_axes(table, ordered):
            (variable,) = table.variables
            flat = np.full(table.counts.shape, rows / table.counts.size)
            counts, _ = refined(table.counts, max(table.std, LEAST_STD), flat, {0: ordered[variable]})
            alone[variable] = counts / rows
            found[place] = NoisyTable((variable,), counts, _HELD * table.std), alone[variable], None
    for place, table in enumerate(tables):
        axes = _ordered_axes(table, ordered)
        if len(table.variables) > 1 and axes:
            base = _independent(table, alone, rows)
            counts, error = refined(table.counts, max(table.std, LEAST_STD), base, axes)
            replaced = rows < table.std * table.counts.size
            kept = NoisyTable(table.variables, counts, error) if replaced else table
            # Half of each: what the table says twice, as count and as expectation, rules out rows where many overlap.
            found[place] = kept, counts / counts.sum(), (counts + base) / 2
    return [one[0] for one in found], [one[1] for one in found], [one[2] for one in found]


def _ordered_axes(table: NoisyTable, ordered: Mapping[int, int]) -> dict[int, int]:
    """Return the number of ordered bins by axis, of those that gain by their order."""
    return {axis: ordered[v] for axis, v in enumerate(table.variables) if ordered.get(v, 0) > FEW_BINS}


def _denoised(tables: Sequence[NoisyTable], rows: float) -> list[FloatArray]:
    """Return the probabilities of each table's cells by itself: normalised posterior means of non-negative counts."""
    means = []
    for table in tables:
        std = max(table.std, LEAST_STD)
        counts = np.clip(table.counts, -FARTHEST * std, rows + FARTHEST * std)
        means.append(tilted_gaussian(counts, np.full(counts.shape, std), np.zeros(counts.shape))[1])
    return [mean / mean.sum() for mean in means]


def starting_points(scopes: Sequence[tuple[int, ...]], probabilities: Sequence[FloatArray]) -> list[list[FloatArray]]:
    """Return parameters of tables in closed form, from estimates of their probabilities.

    The first are those of independent variables, by their own tables where they have one. The second, log p_C - sum
    over v in C of (1 - 1 / d_v) log p_v with d_v the number of tables that contain v, are the maximum likelihood where
    tables are pairs of a tree, and pseudo-moment matching elsewhere (Wainwright and Jordan 2008, section 6.2; Bethe).

    Args:
        scopes: variables of each table.
        probabilities: probabilities of each table's cells, positive.
    """
    sums: dict[int, list[FloatArray]] = {}
    for scope, table in zip(scopes, probabilities, strict=True):
        for variable in scope:
            sums.setdefault(variable, []).append(sum_to(table, scope, (variable,)))
    logs = {variable: np.log(np.mean(parts, axis=0)) for variable, parts in sums.items()}
    # Sums of denoised tables of several variables lean to uniform ones.
    single = {scope[0]: np.log(table) for scope, table in zip(scopes, probabilities, strict=True) if len(scope) == 1}
    alone = {variable: single.get(variable, mean) / len(sums[variable]) for variable, mean in logs.items()}
    rest = {variable: mean / len(sums[variable]) - mean for variable, mean in logs.items()}
    independent = [_spread_sum(alone, scope, table) for scope, table in zip(scopes, probabilities, strict=True)]
    bethe = [
        np.log(table) + _spread_sum(rest, scope, table) for scope, table in zip(scopes, probabilities, strict=True)
    ]
    return [independent, bethe]


def _spread_sum(parts: Mapping[int, FloatArray], scope: tuple[int, ...], like: FloatArray) -> FloatArray:
    """Return the sum of arrays of single variables, spread over the cells of a table of several."""
    return sum((spread(parts[variable], (variable,), scope) for variable in scope), np.zeros(like.shape))


def _of_tables(graph: Graph, tables: Sequence[NoisyTable], homes: Sequence[int], infer: Infer) -> Infer:
    """Return inference from parameters of tables to marginals of tables, through the cliques that contain them."""
    if [table.variables for table in tables] == list(graph.cliques):
        return infer

    def inferred(parts: Sequence[FloatArray]) -> tuple[list[FloatArray], float]:
        marginals, log_partition = infer(_added(graph, tables, homes, parts))
        own = [
            sum_to(marginals[home], graph.cliques[home], table.variables)
            for table, home in zip(tables, homes, strict=True)
        ]
        return own, log_partition

    return inferred


def _added(
    graph: Graph, tables: Sequence[NoisyTable], homes: Sequence[int], parts: Sequence[FloatArray]
) -> list[FloatArray]:
    """Return log-potentials of the graph's cliques: sums of the parameters of the tables inside them."""
    potentials = [np.zeros(graph.shape(clique)) for clique in graph.cliques]
    for table, home, part in zip(tables, homes, parts, strict=True):
        potentials[home] += spread(part, table.variables, graph.cliques[home])
    return potentials


def _cgm(problem: Problem, penalty: FloatArray) -> tuple[FloatArray, int]:
    """Fit "cgm": return log-potentials of the tables, and the number of evaluations."""
    rows = problem.rows
    entropy = _ENTROPY * problem.cells / np.sqrt(problem.multiples)

    def objective(theta: FloatArray) -> tuple[float, FloatArray, Solve]:
        marginals, log_partition = problem.marginals(theta)
        log_masses, means = problem.posterior.tilted(entropy / rows * (problem.neutral - theta))
        value = log_partition + float((log_masses / entropy).sum()) + 0.5 * float(penalty * theta @ theta)
        # The variance of a posterior is about that of the noise far above 0, and its squared mean near 0.
        own = entropy * np.square(np.minimum(means, problem.stds) / rows) + penalty
        return value, marginals - means / rows + penalty * theta, problem.solver(marginals, own)

    lowest = problem.neutral - problem.posterior.highest() * rows / entropy
    return minimized(objective, problem.starts, lowest, tolerance(problem), problem.limit)


def _leant(
    problem: Problem,
    graph: Graph,
    tables: Sequence[NoisyTable],
    homes: Sequence[int],
    found: Sequence[FloatArray],
    limit: int,
) -> tuple[list[FloatArray], int]:
    """Return parameters whose marginals are nearly those of `found`, and the number of evaluations, at most `limit`.

    Noisy tables that no rows have together lie outside of the marginal polytope, and the model next to them on its
    edge, where some rows are all but impossible, though noise says no such thing. So each parameter is as if it were
    normal around independent columns, with the model's marginals as those of the rows.
    """
    places = {table.variables: place for place, table in enumerate(tables)}
    if limit < 1 or not all(clique in places for clique in graph.cliques):
        return list(found), 0
    # Of the parameters of the same model, those nearest to independent columns: a search that is cut then stays near.
    away = [part - other for part, other in zip(found, problem.split(problem.neutral), strict=True)]
    shortest, _ = canonical(graph, _added(graph, tables, homes, away))
    start = problem.split(problem.neutral)
    for clique, part in zip(graph.cliques, shortest, strict=True):
        start[places[clique]] = start[places[clique]] + part
    penalty = _LEAN * problem.stds / problem.rows
    observed, _ = problem.marginals(np.concatenate([part.ravel() for part in found]))
    starts = [np.concatenate([part.ravel() for part in start]), problem.neutral]
    # As in `_fitted`.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        leant, iterations = likeliest(problem, observed, penalty, starts, limit, towards=problem.neutral)
    return problem.split(leant), iterations


def _inference(graph: Graph, how: Literal["exact", "loopy"]) -> tuple[Infer, int]:
    """Return the function of marginals and log-partition, and the work of one evaluation besides its sweeps."""
    if how == "loopy":
        return LoopyBeliefs(graph, most=most_sweeps(graph)), 0
    if all(len(clique) == 1 for clique in graph.cliques):
        return alone, exact_work(graph)
    check_exact(graph)
    tree = cached_tree(graph)
    return lambda theta: exact(graph, theta, tree), exact_work(graph)


def _mean(variables: tuple[int, ...], tables: list[NoisyTable]) -> NoisyTable:
    precisions = np.array([max(table.std, LEAST_STD) ** -2 for table in tables])
    shares = precisions / precisions.sum()
    counts = sum(
        (share * sum_to(table.counts, table.variables, variables) for share, table in zip(shares, tables, strict=True)),
        np.zeros(()),
    )
    # A mean of several noises is nearer to normal than to any of them, and has no density in closed form.
    laplace = len(tables) == 1 and tables[0].laplace
    return NoisyTable(variables, np.asarray(counts), float(precisions.sum() ** -0.5), laplace)


def _home(graph: Graph, table: NoisyTable) -> int:
    holders = [index for index, clique in enumerate(graph.cliques) if set(table.variables) <= set(clique)]
    if not holders:
        raise ValueError(f"tables: {table.variables} is within no clique of the graph")
    if table.counts.shape != graph.shape(table.variables):
        raise ValueError(
            f"tables: {table.variables} has shape {table.counts.shape}, not {graph.shape(table.variables)}"
        )
    # In the smallest clique: sums back to the table then add the fewest cells.
    return min(holders, key=lambda index: (graph.cells(graph.cliques[index]), index))


def _check(n_rows: float | None, estimator: str, regularization: float | None) -> None:
    if n_rows is not None and not math.isfinite(n_rows):
        raise ValueError(f"n_rows: expected a finite number, got {n_rows!r}")
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator: expected one of {ESTIMATORS}, got {estimator!r}")
    if regularization is not None and not 0 <= regularization < math.inf:
        raise ValueError(f"regularization: expected a finite number of at least 0, got {regularization!r}")
