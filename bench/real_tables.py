"""Fits on real tables, at default settings: `python bench/real_tables.py [kmeans]`; prints tables and writes a JSON.

    python bench/real_tables.py kmeans --seeds 3 --tables magic letter --epsilons 1 5
    python bench/real_tables.py kmeans --methods FitDPEM --tuning

A user gives columns, the number of clusters and a spend; the request of the client becomes a plan, and the plan runs
in a session as on the server. Guarantee: (epsilon, 1e-6), adding or removing a row; methods that are named pure have
(epsilon, 0). Tables and their public bounds are in `_real.py`; every method gets the same rows, scaled by the bounds.
A table whose package is not installed, and a peer that is not, is named with how to install it, and left out.

kmeans: sum of squares over that of the best of ten starts of Lloyd's algorithm. "one centre" is the mean of all rows.

`--tuning` leaves out the tables that no default may be chosen on. What is not private is computed once for each table
and kept in bench/results/.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from _common import RESULTS, Json, Kept, options_of, output_of, saved, spread_of
from _kmeans import DELTA, ORDER, array_rows, sum_of_squares
from _real import NUMBERS, Array, MissingTableError, NumberTable

import bursar
from bursar._fits import KINDS
from bursar._fits._kind import Asked
from bursar_ledger import Adjacency, cost_units
from bursar_models.requests import Request
from bursar_server.fits import BoundedColumn, PublicTable
from bursar_server.fits.registry import FITS
from bursar_server.vault import ArrayRows, ExactNoise, LocalEngine, Meter, Session, SyntheticBudget

EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0)
SEEDS = 10
THREADS = 1
LLOYD_STARTS = 10

Fit = Callable[[Array, int, float, int], Any]
"""From rows, number of clusters or components, epsilon and seed to a model; the server's noise takes no seed."""

QUICK_SEEDS = 5
QUICK_EPSILONS = (0.5, 5.0)
QUICK_TABLES = ("stops", "magic", "letter", "weather")

PEERS = ("diffprivlib, pure", "Google LSH")
"""Methods of others: shown, but no part of what a record compares."""


class MissingPeerError(Exception):
    """Error: a peer is not installed. The text says how to install it."""


@dataclass(frozen=True)
class Wish:
    """What to measure.

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

    def has(self, table: NumberTable) -> bool:
        """Return whether a table is to be measured."""
        names = self.tables or (QUICK_TABLES if self.quick else None)
        return (names is None or table.name in names) and not (self.tuning and table.held_out)

    def of(self, methods: Mapping[str, Fit]) -> dict[str, Fit]:
        """Return the methods to measure."""
        names = self.methods or [name for name in methods if not (self.quick and name in PEERS)]
        return {name: method for name, method in methods.items() if name in names}

    def save(self, part: str, rows: list[Json]) -> None:
        """Write the rows of a part into the results."""
        saved(self.output, part, "rows", rows)


def loaded(tables: Iterable[NumberTable], wish: Wish) -> Iterator[tuple[NumberTable, Array]]:
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


def title_of(facts: Json) -> str:
    """Return a table's line."""
    held_out = ", held out" if facts["held_out"] else ""
    return f"{facts['table']}{held_out}: n = {facts['n']:,}, d = {facts['d']}, k = {facts['k']}"


def measured(facts: Json, name: str, error: Callable[[float, int], float], wish: Wish) -> list[Json]:
    """Measure a method at each epsilon and print it: medians, and in brackets the worst seeds."""
    rows: list[Json] = []
    told = []
    for epsilon in wish.epsilons:
        begun = time.perf_counter()
        try:
            errors = [error(epsilon, seed) for seed in range(wish.seeds)]
        except MissingPeerError as missing:
            print(f"  {name}: not here: {missing}", flush=True)
            return []
        seconds = (time.perf_counter() - begun) / wish.seeds
        row = facts | {"method": name, "epsilon": epsilon, "median": statistics.median(errors), "worst": max(errors)}
        # Peers' own accuracy is no accuracy of this product, so that no record compares it.
        rows.append(row | {"seconds": seconds} | ({} if name in PEERS else {"error": spread_of(errors)}))
        told.append(f"{epsilon:g}: {row['median']:.4g} [{row['worst']:.4g}]")
    print(f"  {name:<18} {'  '.join(told)}", flush=True)
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
    try:
        algorithm = importlib.import_module("clustering.clustering_algorithm")
        params = importlib.import_module("clustering.clustering_params")
    except ModuleNotFoundError:
        text = "it is on no index: put the folder learning of the repository google/differential-privacy on PYTHONPATH"
        raise MissingPeerError(text) from None
    np.random.seed(seed)  # it draws from numpy's global generator
    data = params.Data(X, radius=math.sqrt(X.shape[1]))
    guarantee = params.DifferentialPrivacyParam(epsilon, DELTA)
    return np.asarray(algorithm.private_lsh_clustering(k, data, guarantee).centers)


KMEANS: dict[str, Fit] = {
    "FitDPEM": by_dpem,
    "FitDPEM, pure": partial(by_dpem, pure=True),
    "FitSketchKMeans": by_sketch,
    "diffprivlib, pure": by_diffprivlib,
    "Google LSH": by_google,
}
"""Private methods of the part kmeans, from rows, k, epsilon and seed to centres."""


def excess(X: Array, k: int, best: float, fit: Fit, epsilon: float, seed: int) -> float:
    """Return the sum of squares of a method's centres over the best one."""
    return sum_of_squares(X, fit(X, k, epsilon, seed)) / best


def kmeans(wish: Wish) -> list[Json]:
    """Measure k-means on every table; one row for each table, method and epsilon."""
    rows: list[Json] = []
    for table, X in loaded(NUMBERS, wish):
        k = table.clusters
        reference = wish.kept.result(f"kmeans, {k}, {digest(X)}", partial(lloyd, X, k))
        facts: Json = {"table": table.name, "held_out": table.held_out, "n": len(X), "d": X.shape[1], "k": k}
        facts["one"] = reference["one"] / reference["best"]
        print(f"{title_of(facts)}; one centre {facts['one']:.3g}", flush=True)
        for name, fit in wish.of(KMEANS).items():
            rows += measured(facts, name, partial(excess, X, k, reference["best"], fit), wish)
        wish.save("kmeans", rows)
    return rows


# --- running ------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Wish], list[Json]]] = {"kmeans": kmeans}


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    warnings.filterwarnings("ignore")  # of peers, about their own dependencies
    parser = options_of(__doc__, PARTS)
    parser.add_argument("--seeds", type=int, help=f"left out: {SEEDS}, or {QUICK_SEEDS} with --quick")
    parser.add_argument("--epsilons", type=float, nargs="*", help="left out: .1 .5 1 2 5, or .5 5 with --quick")
    parser.add_argument("--tables", nargs="*", help="left out: all, or the smaller ones with --quick")
    parser.add_argument("--methods", nargs="*", help="left out: all, or the server's with --quick")
    parser.add_argument("--tuning", action="store_true", help="leave out the tables that no default may be chosen on")
    options = parser.parse_args()
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
