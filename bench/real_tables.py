"""Fits on real tables at default settings: `python bench/real_tables.py [kmeans] [mixtures] [categories]`.

    python bench/real_tables.py kmeans --seeds 3 --tables magic letter --epsilons 1 5
    python bench/real_tables.py kmeans --methods FitDPEM --tuning
    python bench/real_tables.py --page                 docs/real-tables.md from the results, nothing is measured

A user gives columns, the number of clusters and a spend; the request of the client becomes a plan, and the plan runs
in a session as on the server. Guarantee: (epsilon, 1e-6), adding or removing a row; methods that are named pure have
(epsilon, 0). Tables and their public bounds are in `_real.py`; every method gets the same rows, scaled by the bounds.
A table whose package is not installed, and a peer that is not, is named with how to install it, and left out.

kmeans: sum of squares over that of the best of ten starts of Lloyd's algorithm. "one centre" is the mean of all rows.
mixtures: mean log-likelihood below that of scikit-learn's mixture of full covariances, in nats a row, where every
    column's bounds are -1 and 1; below 0 is better. "one Gaussian" has the mean and covariance of all rows.
categories: total variation between a model's and the table's distribution of two columns, mean over all pairs of
    columns; and the mean log-likelihood below that of the best tree (Chow and Liu 1968), which is not private.

`--tuning` leaves out the tables that no default may be chosen on. What is not private is computed once for each table
and kept in bench/results/.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from _common import RESULTS, Json, Kept, options_of, output_of, results_of, saved, spread_of, tree
from _kmeans import DELTA, ORDER, array_rows, sum_of_squares
from _mrf import chow_liu
from _real import CATEGORIES, NUMBERS, Array, CategoryTable, MissingTableError, NumberTable
from _real_page import page_of
from numpy.typing import NDArray

import bursar
from bursar._fits import KINDS
from bursar._fits._kind import Asked
from bursar_ledger import Adjacency, cost_units
from bursar_models.requests import Request
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable
from bursar_server.fits.registry import FITS
from bursar_server.vault import ArrayRows, ExactNoise, LocalEngine, Meter, Session, SyntheticBudget

EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0)
SEEDS = 10
THREADS = 1
PAGE = RESULTS.parents[1] / "docs" / "real-tables.md"
LLOYD_STARTS = 10

Errors = dict[str, float]
"""Errors of one fit by their names, all of them better when they are smaller."""

TableT = TypeVar("TableT", NumberTable, CategoryTable)
MethodT = TypeVar("MethodT")

Fit = Callable[[Array, int, float, int], Any]
"""Function (rows, number of clusters or components, epsilon, seed) -> model. The server's noise takes no seed."""

QUICK_SEEDS = 5
QUICK_EPSILONS = (0.5, 5.0)
QUICK_TABLES = ("stops", "magic", "letter", "weather", "crashes", "lectures")

PEERS = ("diffprivlib, pure", "Google LSH", "PE-means")
"""Methods of others: shown, but no part of what a record compares."""


class MissingPeerError(Exception):
    """Error: a peer is not installed. The text says how to install it."""


@dataclass(frozen=True)
class Wish:
    """Measurements to make.

    Attributes:
        seeds: fits of each method, table and epsilon.
        epsilons: budgets.
        tables: names of tables; None for all, or some with `quick`.
        methods: names of methods; None for all, or the server's with `quick`.
        quick: True for a few minutes.
        tuning: True to leave out the tables that are held out.
        kept: earlier results of what is not private.
        output: file of the results, or None.
    """

    seeds: int
    epsilons: tuple[float, ...]
    tables: Sequence[str] | None
    methods: Sequence[str] | None
    quick: bool
    tuning: bool
    kept: Kept
    output: Path | None

    def has(self, table: NumberTable | CategoryTable) -> bool:
        """Return whether a table is to be measured."""
        names = self.tables or (QUICK_TABLES if self.quick else None)
        return (names is None or table.name in names) and not (self.tuning and table.held_out)

    def of(self, methods: Mapping[str, MethodT]) -> dict[str, MethodT]:
        """Return the methods to measure."""
        names = self.methods or [name for name in methods if not (self.quick and name in PEERS)]
        return {name: method for name, method in methods.items() if name in names}

    def save(self, part: str, rows: list[Json]) -> None:
        """Write the rows of a part into the results."""
        commit, changed = tree()
        saved(self.output, part, "commit", f"{commit}+" if changed else commit)
        saved(self.output, part, "rows", rows)


def loaded(tables: Iterable[TableT], wish: Wish) -> Iterator[tuple[TableT, Array]]:
    """Load the tables to measure; say which ones are not here."""
    for table in tables:
        if wish.has(table):
            try:
                X = table.rows()
            except MissingTableError as error:
                print(f"{table.name}: not here: {error}")
                continue
            yield table, X


def digest(X: Array) -> str:
    """Return a name for the rows, so that what is kept of others is not taken for theirs."""
    return hashlib.sha256(np.ascontiguousarray(X).tobytes()).hexdigest()[:12]


def facts_of(table: NumberTable | CategoryTable, X: Array, **more: float) -> Json:
    """Return the facts of a table that all its rows of results have, and print them."""
    facts: Json = {"table": table.name, "held_out": table.held_out, "n": len(X), "d": X.shape[1]} | more
    numbers = {name: value for name, value in facts.items() if name not in ("table", "held_out")}
    told = ", ".join(
        f"{name} = {value:,}" if value == int(value) else f"{name} = {value:.4g}" for name, value in numbers.items()
    )
    print(f"{table.name}{' (held out)' if table.held_out else ''}: {told}", flush=True)
    return facts


def measured(facts: Json, method: str, errors: Callable[[float, int], Errors], wish: Wish) -> list[Json]:
    """Measure a method at each epsilon and print it: medians, and in brackets the worst seeds.

    Args:
        facts: facts of the table.
        method: name of the method.
        errors: from epsilon and seed to the errors of a fit, by their names.
        wish: says how often.
    """
    rows: list[Json] = []
    for epsilon in wish.epsilons:
        begun = time.perf_counter()
        try:
            found = [errors(epsilon, seed) for seed in range(wish.seeds)]
        except MissingPeerError as missing:
            print(f"  {method}: not here: {missing}", flush=True)
            return []
        seconds = (time.perf_counter() - begun) / wish.seeds
        row = facts | {"method": method, "epsilon": epsilon, "seeds": wish.seeds, "seconds": seconds}
        for name in found[0]:
            values = [one[name] for one in found]
            row[name] = {"median": statistics.median(values), "worst": max(values)}
            # A peer's accuracy is not this product's, so that no record compares it.
            row[name] |= {} if method in PEERS else {"accuracy": spread_of(values)}
        rows.append(row)
    for name in found[0]:
        told = [f"{row['epsilon']:g}: {row[name]['median']:.4g} [{row[name]['worst']:.4g}]" for row in rows]
        print(f"  {f'{method}, {name}':<32} {'  '.join(told)}", flush=True)
    return rows


def spend_of(epsilon: float, *, pure: bool = False) -> Any:
    """Return the spend of a guarantee."""
    return bursar.Pure(epsilon) if pure else bursar.EpsilonDelta(epsilon, DELTA)


def fitted(request: Request, spend: Any, table: PublicTable, rows: ArrayRows) -> Any:
    """Fit as client and server do: message, plan, exact sums and noise under a meter, model.

    Args:
        request: what a user writes, with all columns in the order of the table's.
        spend: what to spend.
        table: public facts.
        rows: rows of all columns.
    """
    kind = KINDS[type(request)]
    message = kind.message(request, Asked(dataset=table.name, spend=spend))
    method = FITS[kind.method]
    plan = method.plan(message, table, lambda entry: None)
    session = Session(
        rows=rows,
        columns=len(table.numeric) + len(table.categorical),
        adjacency=table.adjacency,
        unit_cap=table.unit_cap,
        meter=Meter(SyntheticBudget(ORDER, cost_units(plan.events, ORDER))),
        source=ExactNoise(),
        engine=LocalEngine(THREADS),
    )
    return kind.result(request, method.run(plan, session), None)


def names_of(d: int) -> list[str]:
    """Return the names of d columns."""
    return [f"x{i}" for i in range(d)]


def number_table(n: int, d: int) -> PublicTable:
    """Return the public facts of n declared rows of d numbers from -1 to 1."""
    columns = tuple(BoundedColumn(name, -1.0, 1.0) for name in names_of(d))
    return PublicTable("bench", columns, Adjacency.ADD_REMOVE_ONE, 1, n)


# --- k-means ------------------------------------------------------------------------------------------------


def lloyd(X: Array, k: int) -> Json:
    """Return the sums of squares of Lloyd's algorithm, best of ten starts, and of one centre."""
    from sklearn.cluster import KMeans

    best = KMeans(k, n_init=LLOYD_STARTS, random_state=0).fit(X)
    return {"best": float(best.inertia_), "one": float(np.square(X - X.mean(axis=0)).sum())}


def by_dpem(X: Array, k: int, epsilon: float, seed: int, *, pure: bool = False) -> Array:
    """Return the centres of FitDPEM, (k, d)."""
    del seed
    request = bursar.DPEM(n_components=k, columns=names_of(X.shape[1]), mode="kmeans")
    model = fitted(request, spend_of(epsilon, pure=pure), number_table(*X.shape), array_rows(X))
    return np.asarray(model.cluster_centers_)


def by_centre(X: Array, k: int, epsilon: float, seed: int, *, pure: bool = False) -> Array:
    """Return one centre by FitDPEM, (1, d), which no k-means of the same spend is to be worse than."""
    del k
    return by_dpem(X, 1, epsilon, seed, pure=pure)


def by_sketch(X: Array, k: int, epsilon: float, seed: int) -> Array:
    """Return the centres of FitSketchKMeans, (k, d); the seed is that of its public frequencies."""
    request = bursar.SketchKMeans(n_clusters=k, columns=names_of(X.shape[1]), public_seed=seed, decoder_seed=seed)
    return np.asarray(fitted(request, spend_of(epsilon), number_table(*X.shape), array_rows(X)).cluster_centers_)


def by_diffprivlib(X: Array, k: int, epsilon: float, seed: int) -> Array:
    """Return the centres of diffprivlib's k-means, (k, d), by pure epsilon."""
    try:
        from diffprivlib.models import KMeans
    except ModuleNotFoundError:
        raise MissingPeerError("pip install -c constraints.txt diffprivlib") from None
    d = X.shape[1]
    return np.asarray(
        KMeans(k, epsilon=epsilon, bounds=(-np.ones(d), np.ones(d)), random_state=seed).fit(X).cluster_centers_
    )


def by_google(X: Array, k: int, epsilon: float, seed: int) -> Array:
    """Return the centres of Google's LSH clustering at its default parameters, (k, d)."""
    algorithm, params = of_a_repository(
        ("clustering.clustering_algorithm", "clustering.clustering_params"),
        "put the folder learning of the repository google/differential-privacy on PYTHONPATH",
    )
    np.random.seed(seed)  # it draws from numpy's global generator
    data = params.Data(X, radius=math.sqrt(X.shape[1]))
    guarantee = params.DifferentialPrivacyParam(epsilon, DELTA)
    return np.asarray(algorithm.private_lsh_clustering(k, data, guarantee).centers)


def by_pe_means(X: Array, k: int, epsilon: float, seed: int) -> Array:
    """Return the centres of PE-means (Humphries et al. 2026, arXiv 2606.00342), (k, d), by its authors' code.

    Its parameters are those of the authors' `experiments/run_ours.py`. Rows are in the ball around the public box.
    """
    algorithm, defaults, params = of_a_repository(
        ("src.pe_means_main", "src.helpers", "clustering.clustering_params"),
        "put the repository t3humphries/PE-means beside Google's on PYTHONPATH, and pip install faiss-cpu",
    )
    n, d = X.shape
    rounds = max(int(max(epsilon, 1) * int(4 * math.sqrt(d))), 1)
    options = defaults.PE_PARAMS | {"num_gen": rounds, "L": max(n // (5 * k), 4), "run_id": seed}
    data = params.Data(X, radius=math.sqrt(d))
    guarantee = params.DifferentialPrivacyParam(epsilon, DELTA)
    return np.asarray(algorithm.pe_means(k, data, options, guarantee, visualize=False)[1])


def of_a_repository(modules: Sequence[str], how: str) -> list[Any]:
    """Import modules of a peer that no package index has.

    Args:
        modules: their names.
        how: how to put them on the path.

    Raises:
        MissingPeerError: if one is not there.
    """
    try:
        return [importlib.import_module(module) for module in modules]
    except ModuleNotFoundError:
        raise MissingPeerError(f"it is on no index: {how}") from None


KMEANS: dict[str, Fit] = {
    "FitDPEM": by_dpem,
    "FitDPEM, pure": partial(by_dpem, pure=True),
    "FitDPEM, one centre": by_centre,
    "FitDPEM, one centre, pure": partial(by_centre, pure=True),
    "FitSketchKMeans": by_sketch,
    "diffprivlib, pure": by_diffprivlib,
    "Google LSH": by_google,
    "PE-means": by_pe_means,
}
"""Private methods of the part kmeans, from rows, k, epsilon and seed to centres."""


def excess(X: Array, k: int, best: float, fit: Fit, epsilon: float, seed: int) -> Errors:
    """Return the sum of squares of a method's centres over the best one."""
    return {"sse": sum_of_squares(X, fit(X, k, epsilon, seed)) / best}


def kmeans(wish: Wish) -> list[Json]:
    """Measure k-means on every table of numbers; one row for each table, method and epsilon."""
    rows: list[Json] = []
    for table, X in loaded(NUMBERS, wish):
        k = table.clusters
        reference = wish.kept.result(f"kmeans, {k}, {digest(X)}", partial(lloyd, X, k))
        facts = facts_of(table, X, k=k, one_centre=reference["one"] / reference["best"])
        for name, fit in wish.of(KMEANS).items():
            rows += measured(facts, name, partial(excess, X, k, reference["best"], fit), wish)
        wish.save("kmeans", rows)
    return rows


# --- mixtures -----------------------------------------------------------------------------------------------


def scikit_learn(X: Array, k: int) -> Json:
    """Return mean log-likelihoods of scikit-learn's mixture, of one start, and of one Gaussian."""
    from sklearn.mixture import GaussianMixture

    many, one = (GaussianMixture(components, random_state=0).fit(X).score(X) for components in (k, 1))
    return {"best": float(many), "one": float(one)}


def by_mixture(X: Array, k: int, epsilon: float, seed: int) -> float:
    """Return the mean log-likelihood of FitDPEM's mixture."""
    del seed
    request = bursar.DPEM(n_components=k, columns=names_of(X.shape[1]))
    return float(fitted(request, spend_of(epsilon), number_table(*X.shape), array_rows(X)).score(X))


def by_gaussian(X: Array, k: int, epsilon: float, seed: int) -> float:
    """Return the mean log-likelihood of one Gaussian by FitDPEM, which no mixture of the same spend is to be below."""
    del k
    return by_mixture(X, 1, epsilon, seed)


MIXTURES: dict[str, Fit] = {"FitDPEM": by_mixture, "FitDPEM, one Gaussian": by_gaussian}
"""Private methods of the part mixtures, from rows, number of components, epsilon and seed to a log-likelihood."""


def shortfall(X: Array, k: int, best: float, fit: Fit, epsilon: float, seed: int) -> Errors:
    """Return the nats a row that a method's mixture is below the best one."""
    return {"nats": best - fit(X, k, epsilon, seed)}


def mixtures(wish: Wish) -> list[Json]:
    """Measure mixtures on the tables of numbers that have a number of components."""
    rows: list[Json] = []
    for table, X in loaded((table for table in NUMBERS if table.components), wish):
        k = table.components or 1
        reference = wish.kept.result(f"mixtures, {k}, {digest(X)}", partial(scikit_learn, X, k))
        facts = facts_of(table, X, k=k, one_gaussian=reference["best"] - reference["one"])
        for name, fit in wish.of(MIXTURES).items():
            rows += measured(facts, name, partial(shortfall, X, k, reference["best"], fit), wish)
        wish.save("mixtures", rows)
    return rows


# --- tables of categories -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Codes:
    """Rows of a table of categories, and what is compared with them.

    Attributes:
        rows: indices of states, (n, d).
        sizes: numbers of states of the columns.
        pairs: distributions of all pairs of columns.
    """

    rows: NDArray[np.int64]
    sizes: tuple[int, ...]
    pairs: dict[tuple[int, int], Array]

    def table(self, clique: Sequence[int]) -> Array:
        """Return the distribution of some columns, one axis each."""
        shape = [self.sizes[column] for column in clique]
        cells = np.ravel_multi_index(tuple(self.rows[:, column] for column in clique), shape)
        return np.bincount(cells, minlength=math.prod(shape)).reshape(shape) / len(self.rows)

    def variation(self, marginal: Callable[[int, int], Array]) -> float:
        """Return the total variation of a model's distributions of two columns, mean over all pairs."""
        return statistics.fmean(float(np.abs(marginal(*pair) - p).sum()) / 2 for pair, p in self.pairs.items())


def codes_of(X: Array, sizes: tuple[int, ...]) -> Codes:
    """Return the rows with all distributions of two columns."""
    codes = Codes(X.astype(np.int64), sizes, {})
    codes.pairs.update({pair: codes.table(pair) for pair in combinations(range(len(sizes)), 2)})
    return codes


def plain_models(codes: Codes) -> Json:
    """Return the mean log-likelihood of the best tree, and of the independent model with its total variation."""
    alone = [codes.table([column]) for column in range(len(codes.sizes))]
    independent = math.fsum(float(p[p > 0] @ np.log(p[p > 0])) for p in alone)
    gains = {
        (i, j): float((p[p > 0] * np.log(p[p > 0] / np.outer(alone[i], alone[j])[p > 0])).sum())
        for (i, j), p in codes.pairs.items()
    }
    edges = chow_liu(codes.sizes, codes.rows.astype(np.uint8))
    tree = independent + math.fsum(gains[i, j] for i, j in edges)
    variation = codes.variation(lambda i, j: np.outer(alone[i], alone[j]))
    return {"tree": tree, "independent": independent, "variation": variation}


def by_field(graph: Any, codes: Codes, epsilon: float, binned: Sequence[int] = ()) -> Any:
    """Return FitMRF's model of all columns, those of `binned` with the order of their states."""
    names = names_of(len(codes.sizes))
    numbers = tuple(
        BoundedColumn(names[i], 0.0, codes.sizes[i], tuple(map(float, range(codes.sizes[i] + 1)))) for i in binned
    )
    others = tuple(
        CodedColumn(name, tuple(map(str, range(size))))
        for i, (name, size) in enumerate(zip(names, codes.sizes, strict=True))
        if i not in binned
    )
    table = PublicTable("bench", numbers, Adjacency.ADD_REMOVE_ONE, 1, len(codes.rows), others, tuple(names))
    rows = array_rows(codes.rows.astype(np.float64))
    return fitted(bursar.MRF(cliques=graph), spend_of(epsilon), table, rows)


def misfit(codes: Codes, best: float, graph: Any, epsilon: float, seed: int) -> Errors:
    """Return the total variation of a model, and the nats a row that it is below the best tree."""
    del seed
    model = by_field(graph, codes, epsilon)
    names = names_of(len(codes.sizes))
    likelihood = -model.log_partition_ + math.fsum(
        float(np.vdot(codes.table([names.index(name) for name in clique]), potential))
        for clique, potential in zip(model.cliques_, model.log_potentials_, strict=True)
    )
    variation = codes.variation(lambda i, j: np.asarray(model.marginal((names[i], names[j]))))
    return {"variation": variation, "nats": best - likelihood}


FIELDS: dict[str, Any] = {"FitMRF": "auto", "FitMRF, tree": "tree", "FitMRF, independent": "independent"}
"""Graphs of the part categories."""


def categories(wish: Wish) -> list[Json]:
    """Measure random fields on every table of categories."""
    rows: list[Json] = []
    for table, X in loaded(CATEGORIES, wish):
        codes = codes_of(X, table.sizes)
        plain = plain_models(codes)
        facts = facts_of(
            table,
            X,
            independent_variation=plain["variation"],
            independent_nats=plain["tree"] - plain["independent"],
        )
        for name, graph in wish.of(FIELDS).items():
            rows += measured(facts, name, partial(misfit, codes, plain["tree"], graph), wish)
        wish.save("categories", rows)
    return rows


# --- running ------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Wish], list[Json]]] = {"kmeans": kmeans, "mixtures": mixtures, "categories": categories}


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    warnings.filterwarnings("ignore")  # of peers, about their own dependencies
    parser = options_of(__doc__, PARTS)
    parser.add_argument("--seeds", type=int, help=f"left out: {SEEDS}, or {QUICK_SEEDS} with --quick")
    parser.add_argument("--epsilons", type=float, nargs="*", help="left out: .1 .5 1 2 5, or .5 5 with --quick")
    parser.add_argument("--tables", nargs="*", help="left out: all, or the smaller ones with --quick")
    parser.add_argument("--methods", nargs="*", help="left out: all, or the server's with --quick")
    parser.add_argument("--page", action="store_true", help="only write the page, from the results that there are")
    parser.add_argument("--tuning", action="store_true", help="leave out the tables that no default may be chosen on")
    options = parser.parse_args()
    if options.page:
        results = json.loads((options.json or results_of(__file__)).read_text())
        earlier = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        PAGE.write_text(page_of(results, earlier), encoding="utf-8")
        return
    wish = Wish(
        seeds=options.seeds or (QUICK_SEEDS if options.quick else SEEDS),
        epsilons=tuple(options.epsilons or (QUICK_EPSILONS if options.quick else EPSILONS)),
        tables=options.tables,
        methods=options.methods,
        quick=options.quick,
        tuning=options.tuning,
        kept=Kept(RESULTS / "real_tables"),
        output=output_of(options, __file__),
    )
    for name in options.parts or PARTS:
        print(f"\n{name}")
        PARTS[name](wish)


if __name__ == "__main__":
    main()
