"""FitMRF on numbers in finer bins, with their order and without: `python bench/bins.py [--tables magic] [--bins 16]`.

Tables are those of `_real.py`, each column in 8, 16, 32 and 64 equal bins of its public range; FitMRF learns from 80 %
of the rows at (epsilon, 1e-6), adding or removing a row. "no order" is the same fit of the same states as categories.

Errors, means over columns: of the mean and of five quantiles (0.05, 0.25, 0.5, 0.75, 0.95), as shares of the range; of
a histogram of the bins, total variation; of the distribution function, the largest distance. "pairs" is the total
variation of all pairs of columns in 8 bins, "heldout" the mean log-density of the other rows, in nats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import combinations
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from _common import Json, options_of, output_of, saved
from _kmeans import array_rows
from _real import NUMBERS, Array, installed
from real_tables import fitted, names_of, spend_of

import bursar
from bursar_ledger import Adjacency
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable

TABLES = ("magic", "storms", "careers", "weather", "movies", "earnings", "diamonds")
BASE = 8
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def public(n: int, d: int, bins: int, *, order: bool) -> PublicTable:
    """Return the public facts of columns of positions from 0 to `bins`."""
    names, edges = names_of(d), tuple(map(float, range(bins + 1)))
    if order:
        numeric = tuple(BoundedColumn(name, 0.0, float(bins), bins=edges) for name in names)
        return PublicTable("bench", numeric, Adjacency.ADD_REMOVE_ONE, 1, n)
    coded = tuple(CodedColumn(name, tuple(map(str, range(bins)))) for name in names)
    return PublicTable("bench", (), Adjacency.ADD_REMOVE_ONE, 1, n, coded)


def errors(model: Any, train: Array, test: Array, bins: int) -> dict[str, float]:
    """Return the errors of a model of positions from 0 to `bins`."""
    d, names, found = train.shape[1], names_of(train.shape[1]), list[list[float]]()
    edges, fine = np.arange(bins + 1.0), np.linspace(0, bins, 641)
    for column, name in enumerate(names):
        x, p = train[:, column], np.asarray(model.marginal(name))
        below = np.concatenate([[0.0], np.cumsum(p)])
        true = np.bincount(x.astype(int), minlength=bins) / len(x)
        quantiles = np.interp(LEVELS, below + 1e-12 * edges, edges)
        away = np.interp(fine, edges, below) - np.searchsorted(np.sort(x), fine, side="right") / len(x)
        found.append(
            [
                abs(float(p @ (edges[:-1] + 0.5)) - x.mean()) / bins,
                float(np.abs(quantiles - np.quantile(x, LEVELS)).mean()) / bins,
                float(np.abs(p - true).sum()) / 2,
                float(np.abs(away).max()),
            ]
        )
    told = dict(zip(("mean", "quantiles", "histogram", "distribution"), np.mean(found, axis=0).tolist(), strict=True))
    wide, coarse = bins // BASE, (train // (bins // BASE)).astype(int)
    pairs = []
    for i, j in combinations(range(d), 2):
        p = np.asarray(model.marginal([names[i], names[j]])).reshape(BASE, wide, BASE, wide).sum(axis=(1, 3))
        true = np.bincount(coarse[:, i] * BASE + coarse[:, j], minlength=BASE**2) / len(train)
        pairs.append(float(np.abs(p.ravel() - true).sum()) / 2)
    states = {v.name: np.array(v.states)[test[:, names.index(v.name)].astype(int)] for v in model.variables_}
    return told | {"pairs": float(np.mean(pairs)), "heldout": model.score(states) + d * float(np.log(wide))}


def measured(options: Any) -> Iterator[Json]:
    """Measure every table, number of bins and budget; medians over fits."""
    for table, X in installed(one for one in NUMBERS if one.name in (options.tables or TABLES)):
        order = np.random.default_rng(0).permutation(len(X))
        for bins in options.bins:
            positions = np.minimum((X[order] + 1) / 2 * bins, np.nextafter(bins, 0))
            train, test = np.split(positions, [len(X) * 4 // 5])
            for graph in options.graphs:
                for epsilon in options.epsilons:
                    for ordered in (False, True):
                        facts = public(len(train), X.shape[1], bins, order=ordered)
                        rows, request = array_rows(np.floor(train)), bursar.MRF(cliques=graph)
                        models = [fitted(request, spend_of(epsilon), facts, rows) for _ in range(options.seeds)]
                        each = [errors(model, train, test, bins) for model in models]
                        told = {name: float(np.median([one[name] for one in each])) for name in each[0]}
                        row: Json = {"table": table.name, "bins": bins, "graph": graph, "epsilon": epsilon}
                        yield row | {"order": ordered, "seeds": options.seeds} | told


def main() -> None:
    """Measure what was asked for."""
    parser = options_of(__doc__, ())
    parser.add_argument("--tables", nargs="*", help=f"left out: {', '.join(TABLES)}")
    parser.add_argument("--bins", type=int, nargs="*", default=(16, 32, 64))
    parser.add_argument("--graphs", nargs="*", default=("tree",))
    parser.add_argument("--epsilons", type=float, nargs="*", default=(0.1, 1.0, 3.0))
    parser.add_argument("--seeds", type=int, default=3)
    options, rows = parser.parse_args(), []
    for row in measured(options):
        rows.append(row)
        numbers = " ".join(f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values())
        print(numbers, flush=True)
    saved(output_of(options, __file__), "bins", "rows", rows)


if __name__ == "__main__":
    main()
