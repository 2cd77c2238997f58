"""FitMRF measured: `python bench/mrf.py [growth] [paths] [peers] [adult] [figure2] [picture]`.

Prints tables and writes bench/results/mrf.json, table by table. Single results, and their noisy tables, are
kept in a folder beside it, so that a run that was cut goes on where it was. `--again cgm` measures a method anew
on the same noisy tables; deleting the folder begins anew.

figure2: KL divergence from the truth, as in figure 2 of Bernstein et al. 2017.
paths: error of a homogeneous chain of people with several paths each, as in their section 4.2.
adult: holdout log-likelihood on a real table; `--adult DIR` names the folder of adult.csv and adult-domain.json.
peers: beside private-pgm, on the same noisy tables if `--pgm PYTHON` names an interpreter that has it.
growth: time of whole fits against rows, states and columns, and of drawing 1e5 rows.
picture: of figure2, from the JSON, to docs/.

Releases are under ADD_REMOVE_ONE, as in the paper; the number of rows is estimated from noisy tables. Times are of one
processor, and estimators get default settings unless a table says otherwise.
"""

from __future__ import annotations

import json
import os
import re
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # so that times are of one processor
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from _common import Json, Wish, options_of, part_of, results_of, run_parts, show, spread_of
from _mrf import (
    DELTA,
    LEAST_POTENTIAL,
    Clique,
    States,
    World,
    array_rows,
    chain,
    chow_liu,
    cliques_request,
    erdos_renyi,
    fit,
    fitted,
    log_partition_of,
    markov_random_field,
    noise_for,
    numeric_columns,
    private_pgm,
    released,
    score,
    spend,
    table_of,
    third_order,
    without_noise,
    world,
)
from numpy.typing import NDArray

from bursar_ledger import Adjacency
from bursar_models.mrf import Estimate, Graph, NoisyTable, estimate, estimate_chain, largest_table
from bursar_models.mrf._estimation import ESTIMATORS, Estimator
from bursar_models.mrf._inference import chain_marginals
from bursar_proto.v1 import fit_pb2
from bursar_server.fits import BoundedColumn, PublicTable, mrf
from bursar_server.vault import ArrayRows, noise_std

NODES, EDGES = 10, 14
POPULATIONS = 5
LARGE = 20
"""States from which figure 2 takes hours for every comparison."""

FIGURE2 = ("third-order chain", "Erdos-Renyi graph")
KINDS = (*FIGURE2, "chain")


@dataclass(frozen=True)
class Extent:
    """Extent of the measurement.

    Attributes:
        trials: of each cell of figure 2; five populations in turns, as in the paper.
        states: of the nodes in figure 2.
        sizes: numbers of rows in figure 2.
        epsilons: of figure 2.
        repetitions: of everything else that is random.
        methods: of figure 2 that are measured now; empty: all. The others keep what is known of them.
    """

    trials: int = 25
    states: tuple[int, ...] = (10, 20)
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    epsilons: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)
    repetitions: int = 3
    methods: tuple[str, ...] = ()


QUICK = Extent(trials=3, states=(5,), sizes=(1_000, 10_000), epsilons=(0.1, 1.0), repetitions=1)


def tables_of(wish: Wish[Extent], key: str, work: Callable[[], list[NoisyTable]]) -> list[NoisyTable]:
    """The noisy tables that are kept under a key, or else come out of the work."""
    if wish.kept.folder is None:
        return work()
    path = wish.kept.folder / (re.sub(r"[^A-Za-z0-9.]+", "-", key) + ".npz")
    if not path.exists():
        arrays: dict[str, Any] = {}
        for c, table in enumerate(work()):
            noise = np.array([table.std, table.laplace])
            arrays |= {f"y{c}": table.counts, f"v{c}": np.array(table.variables), f"noise{c}": noise}
        np.savez_compressed(path, **arrays)
    found = np.load(path)
    return [
        NoisyTable(tuple(found[f"v{c}"]), found[f"y{c}"], float(found[f"noise{c}"][0]), bool(found[f"noise{c}"][1]))
        for c in range(len(found.files) // 3)
    ]


# --- figure 2 -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Law:
    """Law by which models of figure 2 are drawn.

    Attributes:
        kind: of `KINDS`.
        states: of each node.
        rows: that are drawn from each model.
    """

    kind: str
    states: int
    rows: int

    def cliques(self, generator: np.random.Generator) -> list[Clique]:
        """Edges of a graph."""
        if self.kind == "Erdos-Renyi graph":
            return erdos_renyi(NODES, EDGES, generator)
        return chain(NODES) if self.kind == "chain" else third_order(NODES)

    @property
    def edges(self) -> int:
        """Return how many there are, in any graph of this law."""
        return len(self.cliques(np.random.default_rng(0)))

    def key(self, trial: int, n: int, epsilon: float, *, pure: bool) -> str:
        """Name of a private trial among what is kept."""
        noise = "Laplace" if pure else "Gaussian"
        return f"{self.kind}, S {self.states}, n {n}, epsilon {epsilon:g}, {noise}, trial {trial}"

    def reference_key(self, number: int, n: int) -> str:
        """Name of what a population has without noise."""
        return f"{self.kind}, S {self.states}, n {n}, population {number}, non-private"

    def random_key(self, number: int) -> str:
        """Name of a population's random model."""
        return f"{self.kind}, S {self.states}, population {number}, random"


@lru_cache(maxsize=10)
def population(law: Law, number: int) -> World:
    """A model and its rows: graph, potentials and rows are drawn anew for each population."""
    generator = np.random.default_rng([number, law.states, KINDS.index(law.kind)])
    cliques = law.cliques(generator)
    return world(Graph((law.states,) * NODES, tuple(cliques)), law.rows, generator)


def measured(true: World, fit: Callable[[], Estimate]) -> Json:
    """Divergence, evaluations and seconds of one processor of an estimate."""
    start = time.process_time()
    found = fit()
    seconds = time.process_time() - start
    divergence = true.divergence(found.log_potentials, found.log_partition)
    return {"kl": divergence, "evaluations": found.iterations, "seconds": seconds}


def methods_of(law: Law, trial: int, *, pure: bool) -> dict[str, Callable[..., Estimate]]:
    """Return what is measured in a trial, by name: functions of graph, tables and number of rows.

    The paper's comparison, cgm and naive with Laplace noise, in every trial, and cgm with Gaussian noise; everything
    else in the first trial on each population only, of models that are not `LARGE`.
    """
    everything = trial < POPULATIONS and law.states < LARGE
    names: Sequence[Estimator] = ESTIMATORS if everything else ("cgm", "naive") if pure else ("cgm",)
    return {one: partial(estimate, estimator=one) for one in names}


def draws(law: Law, trial: int, n: int, epsilon: float, *, pure: bool) -> list[NoisyTable]:
    """Noisy tables of a trial."""
    true = population(law, trial % POPULATIONS)
    exact = true.tables(n)
    return released(true.graph, exact, noise_for(len(exact), epsilon, pure=pure), pure=pure)


def private_trial(law: Law, trial: int, tables: Sequence[NoisyTable], method: Callable[..., Estimate]) -> Json:
    """One method; the number of rows is not told to it."""
    true = population(law, trial % POPULATIONS)
    return measured(true, lambda: method(true.graph, tables, None))


def reference_trial(law: Law, number: int, n: int) -> Json:
    """Maximum likelihood on the true tables, with a penalty of one row."""
    true = population(law, number)
    tables = without_noise(true.graph, true.tables(n))
    return measured(true, partial(penalised, true.graph, tables, n, "naive", 1.0))


def random_trial(law: Law, number: int) -> Json:
    """A model with marginals drawn at random: those of another model of the same law, whose MLE it is."""
    true = population(law, number)
    other = world(true.graph, 1, np.random.default_rng([number, 1 << 20]))
    return {"kl": true.divergence(other.theta, other.log_partition)}


def figure2_trial(wish: Wish[Extent], law: Law, trial: int) -> None:
    """One trial of every cell, as far as it is not known."""
    number = trial % POPULATIONS
    for n in wish.extent.sizes:
        for pure, epsilon in product((True, False), wish.extent.epsilons):
            key = law.key(trial, n, epsilon, pure=pure)
            tables = tables_of(wish, key, partial(draws, law, trial, n, epsilon, pure=pure))
            for name, method in methods_of(law, trial, pure=pure).items():
                if not wish.extent.methods or name in wish.extent.methods:
                    wish.kept.result(f"{key}, {name}", partial(private_trial, law, trial, tables, method))
        wish.kept.result(law.reference_key(number, n), partial(reference_trial, law, number, n))
    wish.kept.result(law.random_key(number), partial(random_trial, law, number))


def figure2(wish: Wish[Extent]) -> None:
    """Divergences by structure, states, n, guarantee and epsilon."""
    extent = wish.extent
    for states in extent.states:
        laws = [Law(kind, states, max(extent.sizes)) for kind in FIGURE2]
        for trial, law in product(range(extent.trials), laws):
            if time.monotonic() < wish.until:
                figure2_trial(wish, law, trial)
                wish.save(f"{law.kind}, S = {states}", figure2_rows(wish, law))
        for law in laws:
            show_figure2(law, figure2_rows(wish, law))


def figure2_rows(wish: Wish[Extent], law: Law) -> list[Json]:
    """Medians over the trials that there are."""
    extent, rows = wish.extent, []
    for n, pure, epsilon in product(extent.sizes, (True, False), extent.epsilons):
        keys = [law.key(trial, n, epsilon, pure=pure) for trial in range(extent.trials)]
        names = methods_of(law, 0, pure=pure)
        found = {name: wish.kept.known([f"{key}, {name}" for key in keys]) for name in names}
        numbers = range(min(POPULATIONS, len(found["cgm"])))
        plain = wish.kept.known([law.reference_key(number, n) for number in numbers])
        random = wish.kept.known([law.random_key(number) for number in numbers])
        if not (found["cgm"] and plain and random):
            continue
        row: Json = {"n": n, "epsilon": epsilon, "pure": pure, "trials": len(found["cgm"]), "models": len(numbers)}
        row["noise_std"] = noise_std(noise_for(law.edges, epsilon, pure=pure), 1.0)
        row["non_private"] = statistics.median(one["kl"] for one in plain)
        row["random"] = statistics.median(one["kl"] for one in random)
        row |= {method: summary(found[method]) for method in ESTIMATORS if found.get(method)}
        pairs = [wish.kept.known([f"{key}, cgm", f"{key}, naive"]) for key in keys]
        row["cgm_below_naive"] = sum(pair[0]["kl"] <= pair[1]["kl"] for pair in pairs if len(pair) == 2)
        rows.append(row)
    return rows


def summary(trials: Sequence[Json]) -> Json:
    """Summarise one method in one cell."""
    divergences = [one["kl"] for one in trials]
    return {
        "kl": statistics.median(divergences),
        "kl_range": [min(divergences), max(divergences)],
        "accuracy": spread_of(divergences),
        "trials": len(trials),
        "seconds": statistics.median(one["seconds"] for one in trials),
        "evaluations": statistics.median(one["evaluations"] for one in trials),
    }


def show_figure2(law: Law, rows: list[Json]) -> None:
    """One structure and number of states."""
    told = [
        part_of(row, "n", "epsilon", "pure", "trials", "models", "noise_std")
        | {name: row[name]["kl"] for name in ESTIMATORS if name in row}
        | part_of(row, "non_private", "random", "cgm_below_naive")
        | {"cgm, s": row["cgm"]["seconds"]}
        for row in rows
    ]
    title = f"Figure 2: {law.kind}, {NODES} nodes of {law.states} states, ADD_REMOVE_ONE"
    show(f"{title}: median KL(truth || model) in nats", told)


def penalised(
    graph: Graph, tables: Sequence[NoisyTable], n: float | None, estimator: Estimator, strength: float
) -> Estimate:
    """An estimate with an L2 penalty."""
    return estimate(graph, tables, n, estimator=estimator, regularization=strength)


# --- paths --------------------------------------------------------------------------------------------------

STEPS, PLACES = 24, 10
DAYS = ((1, "rows"), (7, "shares"), (7, "rows"))
"""Most paths of a person, and what weights them; people have any number of them up to it, each as likely."""


def path_tables(n: int, days: int, weights: str, generator: np.random.Generator) -> tuple[list[Any], list[Any]]:
    """Draw a chain and paths of n people. Return log-potentials, and tables of first states and of transitions."""
    first = generator.dirichlet(np.ones(PLACES))
    transition = generator.dirichlet(np.full(PLACES, 0.5), size=PLACES)
    own = generator.integers(1, days + 1, n)
    weight = np.repeat(1 / own if weights == "shares" else np.ones(n), own)
    state = generator.choice(PLACES, len(weight), p=first)
    firsts, pairs = np.bincount(state, weight, PLACES), np.zeros(PLACES * PLACES)
    for _ in range(STEPS - 1):
        following = (np.cumsum(transition, axis=1)[state] < generator.random((len(state), 1))).sum(axis=1)
        following = np.minimum(following, PLACES - 1)
        pairs += np.bincount(state * PLACES + following, weight / (STEPS - 1), PLACES * PLACES)
        state = following
    logs = [np.log(np.maximum(part, LEAST_POTENTIAL)) for part in (first, transition)]
    return logs, [firsts, pairs.reshape(PLACES, PLACES)]


def path_noise(n: int, days: int, weights: str, epsilon: float) -> list[float]:
    """Return the standard deviations of noise that the server plans for both tables."""
    columns = tuple(BoundedColumn(f"x{i}", 0.0, PLACES, tuple(map(float, range(PLACES + 1)))) for i in range(STEPS))
    table = PublicTable("bench", columns, Adjacency.ADD_REMOVE_ONE, days, n * (days + 1) // 2)
    request = fit_pb2.FitMRFRequest(
        spend=spend(epsilon, pure=False),
        chain=fit_pb2.HomogeneousChain(columns=[column.name for column in columns]),
        unit_weights=fit_pb2.UNIT_WEIGHTS_ROWS if weights == "rows" else fit_pb2.UNIT_WEIGHTS_SHARES,
    )
    return [one.std for one in mrf.plan(request, table, lambda entry: None).settings.measurements]


def path_trial(n: int, days: int, weights: str, epsilon: float, seed: int) -> Json:
    """Return, for each estimator, the variation of transitions and the nats a path below the truth."""
    generator = np.random.default_rng([seed, n, days])
    (first, transition), exact = path_tables(n, days, weights, generator)
    (start, pairs), log_partition = chain_marginals(STEPS, first, transition)
    stds = path_noise(n, days, weights, epsilon) if epsilon else [0.0, 0.0]
    noisy = [
        NoisyTable(tuple(range(table.ndim)), table + std * generator.standard_normal(table.shape), std)
        for table, std in zip(exact, stds, strict=True)
    ]
    found: Json = {}
    for name in ESTIMATORS if epsilon else ("naive",):
        model = estimate_chain(STEPS, PLACES, noisy[1], noisy[0], None, estimator=name)
        phi, psi = model.log_potentials
        gained = float(((first - phi) * start).sum() + (STEPS - 1) * ((transition - psi) * pairs).sum())
        own = model.marginals[1] / model.marginals[1].sum(axis=1, keepdims=True)
        moved = np.abs(own - np.exp(transition)).sum(axis=1) @ pairs.sum(axis=1) / 2
        found[name] = {"transitions": float(moved), "nats": gained - log_partition + model.log_partition}
    return found


def paths(wish: Wish[Extent]) -> None:
    """Errors of homogeneous chains against people, budget and the most paths of a person."""
    repetitions = 3 * wish.extent.repetitions
    print(f"\nPaths of {STEPS} steps among {PLACES} states, ADD_REMOVE_ONE, delta {DELTA:g}: medians of {repetitions}")
    for n, (days, weights), epsilon in product((1_000, 10_000, 100_000), DAYS, (0.1, 1.0, 0.0)):
        trials = [path_trial(n, days, weights, epsilon, seed) for seed in range(repetitions)]
        medians = {
            name: {error: statistics.median(one[name][error] for one in trials) for error in trials[0][name]}
            for name in trials[0]
        }
        told = ", ".join(f"{name} {one['transitions']:.4f} / {one['nats']:.4f}" for name, one in medians.items())
        print(f"  n {n:,}, at most {days} as {weights}, epsilon {epsilon:g}: {told}", flush=True)
        wish.save(f"n {n}, {days} {weights}, epsilon {epsilon:g}", medians)


# --- Adult --------------------------------------------------------------------------------------------------

MOST_BINS = 10
HELD_OUT = 9_768
"""Rows of the test sample: a fifth."""

PGM_ITERATIONS = 1_000


@dataclass(frozen=True, eq=False)
class Adult:
    """The table in two parts; columns of more than ten codes are in ten bins of equal width, over their public range.

    Attributes:
        columns: as the schema has them.
        train: codes (n, 14).
        train_states: bins of the same rows.
        test_states: bins of the others.
    """

    columns: tuple[BoundedColumn, ...]
    train: NDArray[np.float64]
    train_states: States
    test_states: States

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bins of each column."""
        return tuple(len(column.bins) - 1 for column in self.columns)


def adult_codes(folder: Path) -> tuple[tuple[BoundedColumn, ...], NDArray[np.float64], States]:
    """Read adult.csv (codes from 0) and adult-domain.json (number of codes of each column): columns, codes and bins."""
    domain: dict[str, int] = json.loads((folder / "adult-domain.json").read_text())
    codes = np.loadtxt(folder / "adult.csv", delimiter=",", skiprows=1)
    columns = []
    for name, size in domain.items():
        bins = min(size, MOST_BINS)
        columns.append(BoundedColumn(name, 0.0, float(size), tuple(edge * size / bins for edge in range(bins + 1))))
    states = np.stack(
        [np.searchsorted(column.bins, codes[:, i], side="right") - 1 for i, column in enumerate(columns)], axis=1
    ).astype(np.uint8)
    return tuple(columns), codes, states


def adult_table(folder: Path) -> Adult:
    """Read the table and divide its rows."""
    columns, codes, states = adult_codes(folder)
    order = np.random.default_rng(0).permutation(len(codes))
    train, test = order[:-HELD_OUT], order[-HELD_OUT:]
    return Adult(columns, codes[train], states[train], states[test])


def adult_requests(table: Adult, epsilon: float, *, pure: bool) -> dict[str, fit_pb2.FitMRFRequest]:
    """A request for each graph, in the order of the table. The last one's tree is of the true rows: not private."""
    names, paid = [column.name for column in table.columns], spend(epsilon, pure=pure)
    T, best = len(names), chow_liu(table.sizes, table.train_states)

    def cliques(pairs: Sequence[Clique]) -> fit_pb2.Cliques:
        return fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=[names[v] for v in pair]) for pair in pairs])

    return {
        "independent": fit_pb2.FitMRFRequest(spend=paid, independent=fit_pb2.Independent()),
        "chain": fit_pb2.FitMRFRequest(spend=paid, cliques=cliques(chain(T))),
        "third-order chain": fit_pb2.FitMRFRequest(spend=paid, cliques=cliques(third_order(T))),
        "tree": fit_pb2.FitMRFRequest(spend=paid, tree=fit_pb2.SelectTree()),
        "tree given": fit_pb2.FitMRFRequest(spend=paid, cliques=cliques(best)),
    }


def adult_non_private(table: Adult) -> dict[str, float]:
    """Holdout log-likelihoods of maximum likelihood, with a penalty of one row."""
    T = len(table.sizes)
    graphs: dict[str, list[Clique]] = {
        "independent": [(v,) for v in range(T)],
        "chain": chain(T),
        "third-order chain": third_order(T),
        "tree": chow_liu(table.sizes, table.train_states),
    }
    found = {}
    for name, cliques in graphs.items():
        graph = Graph(table.sizes, tuple(cliques))
        exact = [table_of(graph, clique, table.train_states) for clique in graph.cliques]
        model = penalised(graph, without_noise(graph, exact), len(table.train), "naive", 1.0)
        found[name] = score(graph, model.log_potentials, model.log_partition, table.test_states)
    return found


def adult_fit(table: Adult, request: fit_pb2.FitMRFRequest, times: Json) -> list[NoisyTable]:
    """The tables that a fit by the server releases; its times go to `times`."""
    begun, cpu = time.perf_counter(), time.process_time()
    model = fitted(fit(request, ArrayRows(np.ascontiguousarray(table.train.T)), table.columns))
    times |= {"wall": time.perf_counter() - begun, "cpu": time.process_time() - cpu}
    return model.tables


def adult_estimate(table: Adult, tables: Sequence[NoisyTable], estimator: Estimator) -> Json:
    """Holdout log-likelihood of the model that an estimator learns from released tables; for cgm the server's."""
    graph = Graph(table.sizes, tuple(one.variables for one in tables if len(one.variables) > 1))
    model = estimate(graph, tables, None, estimator=estimator)
    return {"score": score(graph, model.log_potentials, model.log_partition, table.test_states)}


def adult_private_pgm(interpreter: Path, table: Adult, tables: Sequence[NoisyTable]) -> Json:
    """The same of private-pgm."""
    graph, theta, seconds, version = private_pgm(interpreter, Graph(table.sizes, ()), tables, PGM_ITERATIONS)
    found = score(graph, theta, log_partition_of(graph, theta), table.test_states)
    return {"score": found, "seconds": seconds, "version": version}


def adult_row(wish: Wish[Extent], table: Adult, key: str, request: fit_pb2.FitMRFRequest) -> Json:
    """All methods on the same released tables; private-pgm on those of the first fit with Laplace noise."""
    scores: dict[str, list[Json]] = {}
    seconds, edges = [], []
    for repetition in range(wish.extent.repetitions):
        name = f"{key}, fit {repetition}"
        times: Json = {}
        tables = tables_of(wish, name, partial(adult_fit, table, request, times))
        seconds.append(wish.kept.result(f"{name}, seconds", times.copy))
        for estimator in ESTIMATORS:
            work = partial(adult_estimate, table, tables, estimator)
            scores.setdefault(estimator, []).append(wish.kept.result(f"{name}, {estimator}", work))
        if wish.options.pgm and repetition == 0 and tables[0].laplace:
            work = partial(adult_private_pgm, wish.options.pgm, table, tables)
            scores["private_pgm"] = [wish.kept.result(f"{name}, private-pgm", work)]
        best = chow_liu(table.sizes, table.train_states)
        edges.append(len(set(best) & {one.variables for one in tables}))
    row: Json = {name: statistics.median(one["score"] for one in found) for name, found in scores.items()}
    row["cgm_range"] = [min(one["score"] for one in scores["cgm"]), max(one["score"] for one in scores["cgm"])]
    row["seconds"] = {one: statistics.median(times[one] for times in seconds) for one in ("wall", "cpu")}
    return row | {"fits": len(seconds), "edges_of_chow_liu": edges}


def adult(wish: Wish[Extent]) -> None:
    """Holdout log-likelihoods by graph, guarantee and epsilon."""
    if wish.options.adult is None:
        print("\nAdult: left out; --adult DIR names the folder of adult.csv and adult-domain.json")
        return
    table = adult_table(wish.options.adult)
    plain = adult_non_private(table)
    rows = []
    for epsilon, pure in product((1.0, 0.5, 0.1), (True, False)):
        for name, request in adult_requests(table, epsilon, pure=pure).items():
            key = f"Adult, {name}, epsilon {epsilon:g}, {'Laplace' if pure else 'Gaussian'}"
            row: Json = {"graph": name, "epsilon": epsilon, "pure": pure} | adult_row(wish, table, key, request)
            row["non_private"] = plain[name.removesuffix(" given")]
            rows.append(row)
            wish.save("adult", rows)
    told = [
        {name: value for name, value in row.items() if name not in ("seconds", "edges_of_chow_liu")} for row in rows
    ]
    show(f"Adult: log-likelihood of {len(table.test_states):,} other rows, per row in nats, ADD_REMOVE_ONE", told)


# --- private-pgm --------------------------------------------------------------------------------------------

PEERS_EARLIER = {(10, 0.5): 0.041, (10, 0.1): 0.418, (20, 1.0): 0.160, (20, 0.5): 0.391, (20, 0.1): 1.996}
"""KL of private-pgm, the better of its optimisers, by states and epsilon: measured earlier on other such graphs."""


def peers(wish: Wish[Extent], n: int = 100_000) -> None:
    """Erdos-Renyi graphs beside private-pgm, Laplace noise; that one on the same noisy tables of the first model."""
    rows = []
    for states, epsilon in PEERS_EARLIER:
        trials = [peers_trial(wish, states, epsilon, number, n) for number in range(wish.extent.repetitions)]
        row: Json = {"states": states, "epsilon": epsilon, "n": n, "models": len(trials)}
        row |= {name: statistics.median(trial[name] for trial in trials) for name in trials[-1]}
        row["first"] = {name: trials[0][name] for name in trials[0] if name == "cgm" or name not in trials[-1]}
        row["private_pgm_earlier"] = PEERS_EARLIER[states, epsilon]
        rows.append(row)
        wish.save("Erdos-Renyi", rows)
    title = f"Erdos-Renyi graphs of {NODES} nodes and {EDGES} edges, n = {n:,}, Laplace, ADD_REMOVE_ONE"
    told = [{name: value for name, value in row.items() if name != "first"} for row in rows]
    show(f"{title}: median KL(truth || model) in nats", told)
    show("The first model of each", [part_of(row, "states", "epsilon") | row["first"] for row in rows])


def peers_trial(wish: Wish[Extent], states: int, epsilon: float, number: int, n: int) -> Json:
    """All on the same tables; processor seconds of ours, wall seconds of theirs with their compilation."""
    law = Law("Erdos-Renyi graph", states, n)
    true, key = population(law, number), f"peers, {law.key(number, n, epsilon, pure=True)}"
    tables = tables_of(wish, key, partial(draws, law, number, n, epsilon, pure=True))
    found: Json = {"truth": -true.entropy()}
    for estimator in ESTIMATORS:
        method = partial(estimate, estimator=estimator)
        one = wish.kept.result(f"{key}, {estimator}", partial(private_trial, law, number, tables, method))
        found |= {estimator: one["kl"], f"{estimator}_seconds": one["seconds"]}
    if wish.options.pgm and number == 0:
        one = wish.kept.result(f"{key}, private-pgm", partial(peers_private_pgm, wish.options.pgm, true, tables))
        found |= {"private_pgm": one["kl"], "private_pgm_seconds": one["seconds"]}
    return found


def peers_private_pgm(interpreter: Path, true: World, tables: Sequence[NoisyTable]) -> Json:
    """Divergence of private-pgm's model."""
    graph, theta, seconds, version = private_pgm(interpreter, true.graph, tables, PGM_ITERATIONS)
    ordered = [theta[graph.cliques.index(clique)] for clique in true.graph.cliques]
    kl = true.divergence(ordered, log_partition_of(true.graph, ordered))
    return {"kl": kl, "seconds": seconds, "version": version}


# --- time ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A fit to be timed.

    Attributes:
        title: for people and JSON.
        sizes: states of the columns.
        cliques: of the graph.
        n: rows.
    """

    title: str
    sizes: tuple[int, ...]
    cliques: tuple[Clique, ...]
    n: int = 100_000


def timed(task: Task, rounds: int, epsilon: float = 1.0, draws: int = 100_000) -> Json:
    """Seconds of whole fits (plan, sums over rows, noise, estimate, wire) and of drawing rows from the model.

    Rows are those of a model with these cliques and potentials from a flat Dirichlet distribution.
    """
    graph = Graph(task.sizes, task.cliques)
    true = world(graph, task.n, np.random.default_rng(0))
    rows, columns = array_rows(true.rows), numeric_columns(task.sizes)
    walls, cpus, samples = [], [], []
    for _ in range(rounds):
        begun, cpu = time.perf_counter(), time.process_time()
        wire = fit(cliques_request(task.cliques, epsilon, pure=False), rows, columns)
        walls.append(time.perf_counter() - begun)
        cpus.append(time.process_time() - cpu)
        model = markov_random_field(fitted(wire))
        begun = time.process_time()
        model.sample(draws, 0, output="dict")
        samples.append(time.process_time() - begun)
    return {
        "title": task.title,
        "n": task.n,
        "columns": len(task.sizes),
        "states": max(task.sizes),
        "cliques": len(task.cliques),
        "largest_clique": max(graph.cells(clique) for clique in graph.cliques),
        "largest_table": largest_table(graph)[0],
        "wall_seconds": statistics.median(walls),
        "cpu_seconds": statistics.median(cpus),
        "evaluations": model.iterations or wire.iterations,
        "sample_seconds": statistics.median(samples),
        "rounds": rounds,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def tasks(quick: bool) -> dict[str, list[Task]]:
    """Return what is timed, by table."""
    random_graph = erdos_renyi(NODES, EDGES, np.random.default_rng(0))
    ten = {"chain": chain(NODES), "Erdos-Renyi": random_graph, "third-order": third_order(NODES)}
    rows = [
        Task(f"{name}, 10 columns", (10,) * NODES, tuple(cliques), n)
        for name, cliques in ten.items()
        for n in ((10_000,) if quick else (10_000, 100_000, 1_000_000))
    ]
    states = [
        Task(f"{name}, 10 columns", (S,) * NODES, tuple(cliques))
        for name, cliques in ten.items()
        for S in ((5, 10) if quick else (5, 10, 20, 40))
        if S < 40 or name != "third-order"
    ]
    fifteen = [
        Task("third-order, 15 columns", (S,) * 15, tuple(third_order(15))) for S in ((5,) if quick else (5, 10, 20))
    ]
    triples = tuple((i, i + 1, i + 2) for i in range(13))
    large = [
        Task("chain, 15 columns", (100,) * 15, tuple(chain(15))),
        Task("triples in a row, 15 columns", (21,) * 15, triples),
    ]
    return {"rows": rows, "states": states, "columns": fifteen + ([] if quick else large)}


def growth(wish: Wish[Extent]) -> None:
    """Seconds of whole fits and of 1e5 samples, against rows, states, columns."""
    quick = wish.extent.repetitions == QUICK.repetitions
    for name, some in tasks(quick).items():
        found: list[Json] = []
        for task in some:
            found.append(timed(task, wish.extent.repetitions))
            wish.save(name, found)
        show(f"Time against {name}: (epsilon, delta) = (1, {DELTA:g}), Gaussian, cgm; one thread, medians", found)


# --- picture ------------------------------------------------------------------------------------------------

PICTURE = Path(__file__).parents[1] / "docs" / "fit-mrf.png"
LINES = {
    ("naive", True): ("naive, Laplace", "tab:orange", "-"),
    ("nlbp", True): ("nlbp, Laplace", "tab:green", "-"),
    ("cgm", True): ("cgm, Laplace", "tab:blue", "-"),
    ("cgm", False): ("cgm, Gaussian, delta 1e-6", "tab:blue", "--"),
}


def picture(wish: Wish[Extent]) -> None:
    """Divergence against epsilon, a panel for each structure and number of rows, from the results of figure2."""
    output = results_of(__file__)
    found: Json = json.loads(output.read_text()).get("figure2", {}) if output.exists() else {}
    if not all(f"{kind}, S = 10" in found for kind in FIGURE2):
        print("\npicture: left out; measure figure2 first")
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = Extent().sizes
    figure, axes = plt.subplots(2, len(sizes), figsize=(12, 5.5), sharex=True, sharey="row", layout="constrained")
    for row, kind in zip(axes, FIGURE2, strict=True):
        cells = found[f"{kind}, S = 10"]
        for panel, n in zip(row, sizes, strict=True):
            for (method, pure), (label, colour, style) in LINES.items():
                some = [cell for cell in cells if (cell["n"], cell["pure"]) == (n, pure) and method in cell]
                values = [cell[method]["kl"] for cell in some]
                panel.plot([cell["epsilon"] for cell in some], values, style, marker=".", color=colour, label=label)
            plain = next(cell["non_private"] for cell in cells if cell["n"] == n)
            panel.axhline(plain, color="gray", linestyle=":", label="non-private")
            panel.set(xscale="log", yscale="log", title=f"n = {n:,}")
            panel.grid(alpha=0.3)
        row[0].set_ylabel(f"{kind}\nKL(truth || model), nats")
    for panel in axes[-1]:
        panel.set_xlabel("epsilon")
    axes[0, -1].legend(fontsize=8, handlelength=3)
    figure.savefig(PICTURE, dpi=110)
    print(f"\n{PICTURE.name}: drawn")


PARTS: dict[str, Callable[[Wish[Extent]], None]] = {
    "growth": growth,
    "paths": paths,
    "peers": peers,
    "adult": adult,
    "figure2": figure2,
    "picture": picture,
}


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    parser = options_of(__doc__, PARTS, Extent())
    parser.add_argument("--adult", type=Path, help="folder of adult.csv and adult-domain.json")
    parser.add_argument("--pgm", type=Path, help="Python interpreter of an environment with private-pgm (mbi)")
    parser.add_argument("--again", nargs="*", default=[], help="methods to measure anew, such as cgm")
    mrf.warm_up()
    run_parts(parser, PARTS, __file__, full=Extent(), quick=QUICK, again=("again",))


if __name__ == "__main__":
    main()
