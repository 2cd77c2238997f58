"""Time of whole fits against rows, columns and clusters, beside others: `python bench/growth.py [PART ...]`.

    python bench/growth.py            1e4 to 1e6 rows, and bench/results/growth.json
    python bench/growth.py --quick    fewer rows, no JSON

Seconds of one processor, from plan to model, of all five fits by default settings, and of scikit-learn's
GaussianMixture (ten iterations, not private) and diffprivlib's k-means on the same rows, in turns, medians. One of the
three is varied, the others stay at `BASE`. Rows are Gaussians of deviation 1, ten deviations apart. What FitMRF fits is
a chain over the columns; its clusters are states of every column.

FitDPEM's step on up to 1e8 rows is measured by scale.py, steps of all statistics against numpy's by kernels.py.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # so that times are of one processor
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import _mrf
import numpy as np
from _common import Json, Wish, options_of, run_parts
from _kmeans import Array, array_rows
from _kmeans import fit as fit_in_box
from _separated import World, drawn
from sklearn.mixture import GaussianMixture

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import dpem, gradient_em, mrf, separated_gmm, sketch

RHO = 0.5


@dataclass(frozen=True)
class Shape:
    """Shape of a table and of a question to it.

    Attributes:
        n: rows.
        d: columns.
        k: clusters, or states.
    """

    n: int
    d: int
    k: int


BASE = Shape(n=50_000, d=10, k=5)


@dataclass(frozen=True)
class Extent:
    """Extent of the measurement.

    Attributes:
        rows: numbers of them.
        columns: likewise.
        clusters: likewise.
        rounds: in turns.
    """

    rows: tuple[int, ...] = (10_000, 30_000, 100_000, 300_000, 1_000_000)
    columns: tuple[int, ...] = (2, 5, 10, 20, 50)
    clusters: tuple[int, ...] = (2, 5, 10, 20)
    rounds: int = 5


QUICK = Extent(rows=(10_000, 100_000, 1_000_000))

Work = Callable[[], Any]


def works(shape: Shape, seed: int) -> dict[str, Work]:
    """Return what is timed, by name; rows are made here."""
    n, d, k = shape.n, shape.d, shape.k
    world = World(n, d, k, radius=100.0)
    X, box = drawn(world, 0).rows, world.box
    spend = types_pb2.Spend(rho=RHO)
    rows = array_rows(X)
    requests: dict[str, tuple[Any, Any]] = {
        "FitDPEM": (dpem, fit_pb2.FitDPEMRequest(spend=spend, n_components=k)),
        "FitGradientEM": (
            gradient_em,
            fit_pb2.FitGradientEMRequest(spend=spend, model=fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE, n_components=k),
        ),
        "FitSketchKMeans": (
            sketch,
            fit_pb2.FitSketchKMeansRequest(spend=spend, n_clusters=k, new_sketch=fit_pb2.NewSketch(), public_seed=seed),
        ),
        "FitSeparatedGMM": (
            separated_gmm,
            fit_pb2.FitSeparatedGMMRequest(spend=spend, public_seed=seed, **world.known()),
        ),
    }
    found: dict[str, Work] = {
        name: partial(fit_in_box, module, request, rows, box, Adjacency.ADD_REMOVE_ONE, threads=1)
        for name, (module, request) in requests.items()
    }
    states = np.random.default_rng(seed).integers(0, k, (n, d)).astype(np.uint8)
    chain = [(i, i + 1) for i in range(d - 1)]
    request = _mrf.cliques_request(chain, 1.0, pure=False)
    found["FitMRF"] = partial(_mrf.fit, request, _mrf.array_rows(states), _mrf.numeric_columns((k,) * d))
    return found | {
        "scikit-learn GaussianMixture": partial(by_sklearn, X, k),
        "diffprivlib KMeans": partial(by_diffprivlib, X, shape, seed),
    }


def by_sklearn(X: Array, k: int) -> None:
    """Ten iterations from its own start, full covariances."""
    GaussianMixture(k, max_iter=10, tol=0.0, random_state=0, init_params="k-means++").fit(X)


def by_diffprivlib(X: Array, shape: Shape, seed: int) -> None:
    """Run diffprivlib for the pure epsilon that rho is worth."""
    from diffprivlib.models import KMeans

    bound = 100.0
    KMeans(shape.k, epsilon=(2 * RHO) ** 0.5, bounds=(-bound, bound), random_state=seed).fit(X)


def seconds_of(work: Work) -> float:
    """Return the seconds of one processor."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def timed(shape: Shape, rounds: int) -> Json:
    """Medians, all in turns."""
    times: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, work in works(shape, number).items():
            times.setdefault(name, []).append(seconds_of(work))
    medians = {name: statistics.median(some) for name, some in times.items()}
    told = ", ".join(f"{name} {seconds:.3f}" for name, seconds in medians.items())
    print(f"  n {shape.n:>9,}, d {shape.d:>3}, k {shape.k:>3}: {told}", flush=True)
    return {"n": shape.n, "d": shape.d, "k": shape.k, "rounds": rounds, "seconds": medians}


def shapes(part: str, extent: Extent) -> list[Shape]:
    """Return the shapes of a part."""
    if part == "rows":
        return [replace(BASE, n=n) for n in extent.rows]
    if part == "columns":
        return [replace(BASE, d=d) for d in extent.columns]
    return [replace(BASE, k=k) for k in extent.clusters]


def slopes(rows: list[Json], axis: str) -> Json:
    """Return slopes of the logarithm of each fit's time against that of what is varied: 1 is in proportion."""
    logs = np.log([row[axis] for row in rows])
    return {
        name: float(np.polyfit(logs, np.log([max(row["seconds"][name], 1e-6) for row in rows]), 1)[0])
        for name in rows[0]["seconds"]
    }


PARTS = {"rows": "n", "columns": "d", "clusters": "k"}


def measured(part: str, wish: Wish[Extent]) -> None:
    """Measure a part: seconds of one processor."""
    found = [timed(shape, wish.extent.rounds) for shape in shapes(part, wish.extent)]
    wish.save("rows", found)
    wish.save("slopes", slopes(found, PARTS[part]) if len(found) > 1 else {})


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    warnings.filterwarnings("ignore")  # of others, about iterations that were asked for
    parser = options_of(__doc__, PARTS, Extent())
    for fit in (dpem, gradient_em, mrf, separated_gmm, sketch):
        fit.warm_up()
    for work in works(Shape(2_000, 4, 3), 0).values():
        work()  # compiles and imports what is left
    parts = {part: partial(measured, part) for part in PARTS}
    run_parts(parser, parts, __file__, full=Extent(), quick=QUICK)


if __name__ == "__main__":
    main()
