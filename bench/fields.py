"""FitMRF beside AIM and MST on real tables: `python bench/fields.py [--tables adult marketing] [--epsilons 1]`.

    python bench/fields.py --adult DIR --smartnoise PYTHON --pgm PYTHON --mechanisms FOLDER

Each method learns from 80 % of a table's rows at (epsilon, 1e-6), adding or removing a row. Its error is the total
variation between model and these rows, mean over all pairs of columns and over 40 fixed sets of three; the mean
log-likelihood of the other rows; and, where the table has a target, the area under the ROC curve on the other rows
for classifiers that are trained on as many synthetic rows.

"AIM's loop" is the mechanism of McKenna, Mullins, Sheldon and Miklau 2022 with this product's estimator in place of
theirs, noise in floating point: a reference, not a part of the product. Columns of numbers are declared in bins,
which it knows as FitMRF does. Others run by their own code in an environment of their own: `--smartnoise` names the
interpreter of one with smartnoise-synth, `--pgm` of one with mbi and `--mechanisms` the folder of that name in
github.com/ryan112358/private-pgm. Their errors are those of synthetic rows. A method that is not here is named and
left out. `--limit` ends a fit of others after so many seconds.

Each cell runs in a separate process and is kept in bench/results/fields: an interrupted run resumes. The last lines are
a Markdown table of all that was asked for.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # so that times are of one processor
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from _common import RESULTS, Json, Kept, tree
from _kmeans import DELTA
from _mrf import Clique, markov_random_field
from _mrf import Fitted as Field
from _real import CATEGORIES, MissingTableError
from mrf import adult_codes
from numpy.typing import NDArray
from real_tables import Codes, by_field, digest, names_of
from real_tables import codes_of as codes_of_numbers

from bursar_amounts import rho_of
from bursar_models.mrf import Graph, NoisyTable, estimate
from bursar_models.mrf._candidates import candidate_marginals, joined_cells
from bursar_models.mrf._estimation import continued
from bursar_server.fits.mrf._rounds import EVALUATIONS, MOST_CELLS

Rows = NDArray[np.int64]
TRIPLES = 40
ADULT_NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
MEASURES = {"pairs": 4, "triples": 4, "heldout": 2}
"""Measures of the printed summary, and their digits."""
TARGETS = {"adult": (13, 1), "marketing": (13, 5), "mushroom": (22, 1)}
"""Column to classify, and the least state that counts as positive: income above 50,000; household income of at least
30,000 dollars; poisonous."""


@dataclass(frozen=True, eq=False)
class Task:
    """One fit to measure.

    Attributes:
        table: name of the table.
        sizes: numbers of states.
        train: rows to learn from.
        test: other rows.
        method: name of the method.
        epsilon: budget.
        seed: seed of what is drawn in floating point, and of synthetic rows; the server's noise takes none.
        python: interpreter of another's environment, or None.
        folder: folder of private-pgm's mechanisms, or None.
        limit: seconds after which another's fit is ended.
        size: most megabytes of another's AIM model.
        binned: columns of numbers in bins, whose order is known to this product's methods.
    """

    table: str
    sizes: tuple[int, ...]
    train: Rows
    test: Rows
    method: str
    epsilon: float
    seed: int
    python: Path | None = None
    folder: Path | None = None
    limit: float = 1e9
    size: float = 80.0
    binned: tuple[int, ...] = ()


def codes_of(rows: Rows, sizes: tuple[int, ...]) -> Codes:
    """Return the rows with all distributions of two columns."""
    return codes_of_numbers(rows.astype(np.float64), sizes)


# --- models -------------------------------------------------------------------------------------------------


def aim_loop(task: Task) -> Any:
    """Return the model of AIM's loop with this product's estimator."""
    generator, sizes, rho = np.random.default_rng(task.seed), task.sizes, float(rho_of(task.epsilon, DELTA))
    d, ordered = len(sizes), {column: sizes[column] for column in task.binned}
    singles: list[Clique] = [(v,) for v in range(d)]
    pairs: list[Clique] = list(combinations(range(d), 2))
    codes = codes_of(task.train, sizes)
    exact = {clique: codes.table(clique) * len(task.train) for clique in (*singles, *pairs)}
    # The weight of a candidate is the sum of its overlaps with the workload, which is all pairs.
    weights = {clique: (d - 1.0) * len(clique) for clique in exact}
    rounds = 16 * d
    sigma, choice = math.sqrt(rounds / (1.8 * rho)), math.sqrt(0.8 * rho / rounds)
    measured: dict[Clique, tuple[float, Any]] = {}

    def measure(clique: Clique) -> None:
        noisy = exact[clique] + generator.normal(0, sigma, exact[clique].shape)
        precision, total = measured.get(clique, (0.0, 0.0))
        measured[clique] = precision + sigma**-2, total + noisy / sigma**2

    def tables() -> list[NoisyTable]:
        return [NoisyTable(c, total / precision, precision**-0.5) for c, (precision, total) in measured.items()]

    def marginals() -> dict[Clique, Any]:
        found: dict[Clique, Any] = dict(candidate_marginals(graph, fitted.estimate.log_potentials, pairs))
        for v in range(d):
            i, j = (v, v + 1) if v + 1 < d else (v - 1, v)
            found[v,] = found[i, j].sum(axis=1 if v == i else 0)
        return {clique: fitted.estimate.n_rows * p for clique, p in found.items()}

    for clique in singles:
        measure(clique)
    used, graph, last = d / (2 * sigma**2), Graph(sizes, tuple(singles)), False
    fitted = continued(graph, tables(), None, most=EVALUATIONS, ordered=ordered)
    while not last:
        if rho - used < 2 * (1 / (2 * sigma**2) + choice**2 / 8):
            rest, last = rho - used, True
            sigma, choice = math.sqrt(1 / (1.8 * rest)), math.sqrt(0.8 * rest)
        used += 1 / (2 * sigma**2) + choice**2 / 8
        model, cells = marginals(), joined_cells(graph, pairs)
        offered = [c for c in exact if len(c) == 1 or c in measured or cells[c] <= MOST_CELLS * used / rho]
        scores = np.array(
            [
                weights[c]
                * (np.abs(exact[c] - model[c]).sum() - math.sqrt(2 / math.pi) * sigma * math.prod(exact[c].shape))
                for c in offered
            ]
        )
        logits = choice / 2 * (scores - scores.max()) / max(weights[c] for c in offered)
        chosen = offered[generator.choice(len(offered), p=np.exp(logits) / np.exp(logits).sum())]
        measure(chosen)
        graph = Graph(sizes, tuple(measured))
        fitted = continued(graph, tables(), None, start=fitted.parameters, most=EVALUATIONS, ordered=ordered)
        moved = np.abs(marginals()[chosen] - model[chosen]).sum()
        if moved <= sigma * math.sqrt(2 / math.pi) * exact[chosen].size:
            sigma, choice = sigma / 2, choice * 2
    found = estimate(graph, tables(), None, ordered=ordered)
    field = Field(graph, list(found.log_potentials), found.log_partition, list(found.marginals), tables(), 0)
    return markov_random_field(field)


def by_others(task: Task) -> tuple[Rows, Json]:
    """Return another's synthetic rows, with seconds, megabytes and version. Raises subprocess.TimeoutExpired."""
    program = Path(__file__).with_name("_field_peers.py")
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder, "given.npz"), Path(folder, "answer.npz")
        facts = {"method": task.method, "epsilon": task.epsilon, "delta": DELTA, "size": task.size}
        np.savez(given, rows=task.train, sizes=np.array(task.sizes), folder=str(task.folder), **facts)  # type: ignore[arg-type]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        command = [str(task.python), "-W", "ignore", str(program), str(given), str(answer)]
        subprocess.run(command, check=True, timeout=task.limit, env=environment, capture_output=True)
        found = np.load(answer)
        facts = {"seconds": float(found["seconds"]), "megabytes": float(found["megabytes"])}
        return found["rows"].astype(np.int64), facts | {"version": str(found["version"])}


OURS: dict[str, Callable[[Task], Any]] = {
    "FitMRF": lambda task: by_field("auto", codes_of(task.train, task.sizes), task.epsilon, task.binned),
    "FitMRF, tree": lambda task: by_field("tree", codes_of(task.train, task.sizes), task.epsilon, task.binned),
    "FitMRF, independent": lambda task: by_field(
        "independent", codes_of(task.train, task.sizes), task.epsilon, task.binned
    ),
    "AIM's loop": aim_loop,
}
OTHERS = ("smartnoise mst", "smartnoise aim", "pgm mst", "pgm aim")


# --- errors -------------------------------------------------------------------------------------------------


def triples_of(d: int) -> list[Clique]:
    """Return 40 fixed sets of three columns, or all if there are fewer."""
    every: list[Clique] = list(combinations(range(d), 3))
    chosen = np.random.default_rng(0).permutation(len(every))[:TRIPLES]
    return [every[place] for place in sorted(chosen)]


def variation(codes: Codes, cliques: Sequence[Clique], marginal: Callable[[Clique], Any]) -> float:
    """Return the mean total variation between the rows' and a model's distributions of sets of columns."""
    return statistics.fmean(float(np.abs(codes.table(c) - marginal(c)).sum()) / 2 for c in cliques)


def areas(task: Task, rows: Rows) -> Json:
    """Return areas under the ROC curve on the test rows of classifiers that learnt from some rows."""
    if task.table not in TARGETS:
        return {}
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    column, least = TARGETS[task.table]
    y, truth = rows[:, column] >= least, task.test[:, column] >= least
    X, other = (np.delete(some, column, axis=1) for some in (rows, task.test))
    if y.all() or not y.any():
        return {"boosting": 0.5, "logistic": 0.5}
    models = {
        "boosting": HistGradientBoostingClassifier(categorical_features=list(range(X.shape[1])), random_state=0),
        "logistic": make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression(max_iter=1000)),
    }
    return {name: float(roc_auc_score(truth, one.fit(X, y).predict_proba(other)[:, 1])) for name, one in models.items()}


def errors_of(task: Task) -> Json:
    """Fit and return errors, seconds of processor and peak memory; only "seconds" where the time was not enough."""
    codes, d = codes_of(task.train, task.sizes), len(task.sizes)
    pairs: list[Clique] = list(combinations(range(d), 2))
    if task.method == "real rows":
        return areas(task, task.train)
    if task.method in OURS:
        start = time.process_time()
        model = OURS[task.method](task)
        found: Json = {"seconds": time.process_time() - start}
        found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        names = names_of(d)
        columns = {v.name: list(map(str, v.states)) for v in model.variables_}
        heldout = {name: np.array(columns[name])[task.test[:, i]] for i, name in enumerate(names)}
        found["heldout"] = float(model.score(heldout))
        drawn = model.sample(len(task.train), task.seed, output="dict")
        synthetic = np.stack([np.asarray(drawn[name]).astype(np.int64) for name in names], axis=1)
        marginal: Callable[[Clique], Any] = lambda c: np.asarray(model.marginal([names[v] for v in c]))  # noqa: E731
    else:
        try:
            synthetic, found = by_others(task)
        except subprocess.TimeoutExpired:
            return {"unfinished": task.limit}
        marginal = codes_of(synthetic, task.sizes).table
    found["pairs"] = variation(codes, pairs, marginal)
    found["triples"] = variation(codes, triples_of(d), marginal)
    return found | areas(task, synthetic)


# --- running ------------------------------------------------------------------------------------------------


def loaded(options: argparse.Namespace) -> Iterator[tuple[str, Rows, tuple[int, ...], tuple[int, ...]]]:
    """Load the tables to measure; say which ones are not here."""
    if options.adult and (options.tables is None or "adult" in options.tables):
        columns, _, states = adult_codes(options.adult)
        binned = tuple(place for place, column in enumerate(columns) if column.name in ADULT_NUMBERS)
        yield "adult", states.astype(np.int64), tuple(len(column.bins) - 1 for column in columns), binned
    for table in CATEGORIES:
        if options.tables is None or table.name in options.tables:
            try:
                yield table.name, table.rows().astype(np.int64), table.sizes, table.binned
            except MissingTableError as missing:
                print(f"{table.name}: not here: {missing}")


def tasks(options: argparse.Namespace) -> Iterator[Task]:
    """List the fits of a run."""
    pythons = {"smartnoise": options.smartnoise, "pgm": options.pgm if options.mechanisms else None}
    for name, rows, sizes, binned in loaded(options):
        order = np.random.default_rng(0).permutation(len(rows))
        train, test = rows[order[: len(rows) * 4 // 5]], rows[order[len(rows) * 4 // 5 :]]
        if name in TARGETS:
            yield Task(name, sizes, train, test, "real rows", 0.0, 0)
        for method in options.methods or [*OURS, *OTHERS]:
            python = pythons.get(method.split(" ")[0])
            if method in OTHERS and python is None:
                print(f"{name}, {method}: left out: see --smartnoise, --pgm and --mechanisms")
                continue
            for epsilon in options.epsilons:
                for seed in range(options.seeds):
                    yield Task(
                        name, sizes, train, test, method, epsilon, seed,
                        python, options.mechanisms, options.limit, options.size, binned,
                    )  # fmt: skip


def cell(task: Task) -> Json:
    """Measure a fit in a process whose peak memory is its own: forked, as importing takes as long as a fit."""
    commit, changed = tree()
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        found = pool.submit(errors_of, task).result()
    facts: Json = {"table": task.table, "method": task.method, "epsilon": task.epsilon, "seed": task.seed}
    facts |= {"n": len(task.train), "d": len(task.sizes), "size": task.size}
    return facts | {"commit": f"{commit}{'+' * bool(changed)}"} | found


def summary(found: Sequence[Json]) -> Iterator[str]:
    """Yield the lines of a Markdown table of medians, each cell with those of all methods."""
    methods, epsilons, tables = (
        list(dict.fromkeys(one[key] for one in found)) for key in ("method", "epsilon", "table")
    )
    fits = Counter((one["table"], one["method"], one["epsilon"]) for one in found)
    yield f"{' / '.join(methods)}: medians of {min(fits.values())} to {max(fits.values())} fits"
    yield f"| table: rows, columns | | {' | '.join(f'{epsilon:g}' for epsilon in epsilons)} |"
    yield "|---" * (2 + len(epsilons)) + "|"
    for table, (measure, digits) in product(tables, MEASURES.items()):
        of_table = [one for one in found if one["table"] == table]
        values: dict[tuple[str, float], list[float]] = {}
        for one in of_table:
            values.setdefault((one["method"], one["epsilon"]), []).append(one[measure])
        middle = {key: f"{statistics.median(some):.{digits}f}" for key, some in values.items()}
        cells = [" / ".join(middle.get((method, epsilon), "-") for method in methods) for epsilon in epsilons]
        yield f"| {table}: {of_table[0]['n']:,}, {of_table[0]['d']} | {measure} | {' | '.join(cells)} |"


def main() -> None:
    """Measure what is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", help="left out: all")
    parser.add_argument("--methods", nargs="*", help="left out: all")
    parser.add_argument("--epsilons", type=float, nargs="*", default=(0.1, 0.5, 1.0, 3.0, 10.0))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--adult", type=Path, help="folder of adult.csv and adult-domain.json")
    parser.add_argument("--smartnoise", type=Path, help="interpreter with smartnoise-synth")
    parser.add_argument("--pgm", type=Path, help="interpreter with mbi")
    parser.add_argument("--mechanisms", type=Path, help="folder of private-pgm's mechanisms")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that a fit of others may take")
    parser.add_argument("--size", type=float, default=80, help="megabytes that the model of others' AIM may have")
    options = parser.parse_args()
    kept, every = Kept(RESULTS / "fields"), list[Json]()
    for task in tasks(options):
        key = f"{task.table}, {digest(task.train.astype(float))}, {task.epsilon:g}, {task.seed}, {task.method}"
        found = kept.result(key, partial(cell, task))
        told = ", ".join(f"{name} {found[name]:.4g}" for name in found if isinstance(found[name], float))
        print(f"{task.table}, {task.method}, seed {task.seed}: {told}", flush=True)
        every.append(found)
    print(*summary([one for one in every if MEASURES.keys() <= one.keys()]), sep="\n")


if __name__ == "__main__":
    main()
