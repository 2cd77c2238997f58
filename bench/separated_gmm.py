"""FitSeparatedGMM measured: `python bench/separated_gmm.py [PART ...]`, tables and bench/results/separated_gmm.json.

Single results are kept in a folder beside the JSON, so that a run that was cut goes on where it was; `--again
separated` measures a method anew, deleting the folder begins anew. Parts may be run side by side. All rows say how many
trials they have.

grid: n, d, k and rho.
separation: 3 to 6 deviations, k = 2, 4, 8.
radius: R up to 1e6, with pairs of components about as far apart.
worlds: unequal weights, shapes of components, outliers, both adjacencies; a component that others surround.
false: more components are looked for than there are: how often more are found.
against: FitDPEM, FitSketchKMeans, the variants, diffprivlib and scikit-learn on the same rows, at the same rho.
real: images of digits, flights, positions of towns, insurance; those of packages that are not installed are left out.
growth: time against rows.
picture: of separation, from the JSON, to docs/.

Rows are Gaussians of deviation 1, means in random directions, the nearest two 10 deviations apart, if nothing else is
said; where deviations differ, distances count in the largest. Public are R = 1000, bounds of deviations, 0.2 and 2
times the true ones, and a least weight, 0.6 times the true one; ADD_REMOVE_ONE, full covariances. A trial is ok if as
many components are found as there are, and every mean within a deviation of its component; errors are medians over
trials that are ok, of their worst component: of means in deviations, of covariances in relative Frobenius norm. Seconds
are of one processor.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # so that times are of one processor
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from _common import Json, Wish, options_of, part_of, results_of, run_parts, show, spread_of
from _kmeans import Box, cube
from _real import MissingTableError
from _separated import (
    ADJACENCY,
    DEGREES,
    MARGIN,
    OUTLIERS,
    RADIUS,
    REAL,
    Fields,
    Model,
    Real,
    Truth,
    World,
    by_diffprivlib,
    by_dpem,
    by_labels,
    by_sketch,
    by_sklearn,
    drawn,
    log_densities,
    measured,
    separated,
)
from sklearn.metrics import adjusted_rand_score

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, InvalidFieldsError, PublicTable, dpem, separated_gmm, sketch

SETTINGS: Json = {
    "seeds": "0, 1, ...: rows from numpy's default_rng of seed and world, directions from public seeds",
    "radius": RADIUS,
    "bounds": f"radius + {MARGIN:g}",
    "sigma_min": "0.2 times the least deviation",
    "sigma_max": "twice the largest deviation",
    "min_weight": "0.6 times the least weight",
    "outliers": OUTLIERS,
    "degrees_of_freedom": DEGREES,
    "threads": 1,
}
"""Settings of everything that is drawn."""

PICTURE = Path(__file__).parents[1] / "docs" / "fit-separated-gmm.png"


@dataclass(frozen=True)
class Extent:
    """Extent of the measurement.

    Attributes:
        seeds: of every cell but those of false.
        false: seeds of a cell of false.
        most: rows of a cell that is measured now; larger ones keep what is known of them.
        methods: of against that are measured now; empty: all.
        rows: of growth.
        rhos: of real tables.
    """

    seeds: int = 10
    false: int = 25
    most: int = 10_000_000
    methods: tuple[str, ...] = ()
    rows: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    rhos: tuple[float, ...] = (0.005, 0.0244, 0.1, 1.0, 10.0)


QUICK = Extent(seeds=3, false=1, most=20_000, rows=(10_000,), rhos=(0.0244,))


# --- trials -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Law of the rows, and the spend of a fit.

    Attributes:
        world: of the rows.
        rho: of the fit.
        adjacency: of the table.
        sought: components that are looked for; 0: as many as there are.
    """

    world: World
    rho: float
    adjacency: Adjacency = ADJACENCY
    sought: int = 0

    def key(self, seed: int, method: str) -> str:
        """Name of a trial among what is kept."""
        sought = self.sought or self.world.k
        return f"{self.world.key}, rho {self.rho:g}, {self.adjacency.name}, sought {sought}, seed {seed}, {method}"

    def known(self) -> Fields:
        """Return the known fields of requests."""
        fields = self.world.known()
        return fields | ({"n_components": self.sought, "min_weight": 0.6 / self.sought} if self.sought else {})

    @property
    def facts(self) -> Json:
        """Return facts for JSON."""
        w = self.world
        found = {"n": w.n, "d": w.d, "k": w.k, "rho": self.rho, "separation": w.separation, "weights": w.weights}
        found |= {"small": w.small} if w.small else {}
        return found | {"shape": w.shape, "far": w.far, "radius": w.radius, "adjacency": self.adjacency.name}


Method = Callable[[Case, Truth, int], Model]


def ours(case: Case, truth: Truth, seed: int, **fields: Any) -> Model:
    """FitSeparatedGMM."""
    known = case.known() | {"public_seed": seed} | fields
    return separated(truth.rows, case.world.box, case.rho, known, case.adjacency)


SEPARATED, LABELS = "separated", "labels known"

OURS: Mapping[str, Method] = {SEPARATED: ours, LABELS: lambda case, truth, seed: by_labels(truth)}

VARIANTS: Mapping[str, Fields] = {
    "easy": {"variant": fit_pb2.SEPARATED_VARIANT_EASY},
    "clusters": {"estimator": fit_pb2.SEPARATED_ESTIMATOR_CLUSTERS},
    "balls": {"search": fit_pb2.SEPARATED_SEARCH_BALLS},
    "sample and aggregate": {"variant": fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE},
}

OTHERS: Mapping[str, Method] = {
    "FitDPEM": lambda case, truth, seed: by_dpem(truth.rows, case.world.box, case.rho, case.world.k),
    "FitSketchKMeans": lambda case, truth, seed: by_sketch(truth.rows, case.world.box, case.rho, case.world.k, seed),
    "diffprivlib": lambda case, truth, seed: by_diffprivlib(truth.rows, case.world.box, case.rho, case.world.k, seed),
    "scikit-learn": lambda case, truth, seed: by_sklearn(truth.rows, case.world.k, seed),
}


@lru_cache
def variants() -> dict[str, Method]:
    """Those that this server has."""
    found: dict[str, Method] = {}
    for name, fields in VARIANTS.items():
        request = fit_pb2.FitSeparatedGMMRequest(
            spend=types_pb2.Spend(rho=1.0), n_components=2, sigma_min=1.0, sigma_max=2.0, **fields
        )
        try:
            separated_gmm.plan(request, public_table(cube(2, 100.0), 1000, ADJACENCY), lambda entry: None)
        except InvalidFieldsError as error:
            print(f"  {name}: left out; the server says: {error}")
        else:
            found[name] = partial(ours, **fields)
    return found


def public_table(box: Box, n: int, adjacency: Adjacency, **facts: Any) -> PublicTable:
    """Return a table of numeric columns x0, x1, ..."""
    bounds = zip(box.lower.tolist(), box.upper.tolist(), strict=True)
    columns = tuple(BoundedColumn(f"x{i}", lower, upper, **facts) for i, (lower, upper) in enumerate(bounds))
    return PublicTable("bench", columns, adjacency, 1, n)


def measure(wish: Wish[Extent], cases: Sequence[Case], methods: Mapping[str, Method], seeds: int) -> None:
    """Every trial that is not known, until time is up; cases of the same rows side by side, all cases seed by seed."""
    order = list(dict.fromkeys(case.world for case in cases if case.world.n <= wish.extent.most))
    for seed, world in product(range(seeds), order):
        for case in (case for case in cases if case.world == world):
            for name, method in methods.items():
                if time.monotonic() > wish.until:
                    return
                wish.kept.result(case.key(seed, name), partial(trial, case, seed, method))


def trial(case: Case, seed: int, method: Method) -> Json:
    """One fit of one table."""
    truth = drawn(case.world, seed)
    return measured(truth, lambda: method(case, truth, seed))


def summary(trials: Sequence[Json]) -> Json:
    """Summarise one method in one case."""
    good = [one for one in trials if one["ok"]]
    row: Json = {"trials": len(trials), "ok": len(good)}
    row["found"] = sorted(one["found"] for one in trials)
    if all("hits" in one for one in trials):
        row["hits"] = statistics.median(one["hits"] for one in trials)
    row |= {
        name: statistics.median(one[name] for one in good)
        for name in ("mean", "covariance", "weight", "covered")
        if good and name in good[0]
    }
    row |= {"foretold": trials[0]["foretold"]} if "foretold" in trials[0] else {}
    return row | {"seconds": statistics.median(one["seconds"] for one in trials)}


def accuracies(trials: Sequence[Json]) -> Json:
    """Return what a record compares: how many trials were not ok, and errors of the means of those that were."""
    missed = {"accuracy": spread_of([float(not one["ok"]) for one in trials])}
    good = [one["mean"] for one in trials if one["ok"] and "mean" in one]
    return {"missed": missed} | ({"means": {"accuracy": spread_of(good)}} if good else {})


def row_of(wish: Wish[Extent], case: Case, methods: Sequence[str], seeds: int) -> Json | None:
    """Medians of the trials that there are; None if there are none."""
    trials = {name: wish.kept.known([case.key(seed, name) for seed in range(seeds)]) for name in methods}
    found = {name: summary(some) for name, some in trials.items() if some}
    if SEPARATED in found:  # no other method's accuracy is this product's
        found[SEPARATED] |= accuracies(trials[SEPARATED])
    return case.facts | {"sought": case.sought or case.world.k} | found if found else None


def table(wish: Wish[Extent], title: str, cases: Sequence[Case], methods: Mapping[str, Method]) -> list[Json]:
    """Measure cases, and save and print what is known of them."""
    seeds = wish.extent.seeds
    measure(wish, cases, methods, seeds)
    rows = [row for case in cases if (row := row_of(wish, case, [*methods], seeds))]
    wish.save(title, rows)
    return rows


def show_ours(title: str, rows: Sequence[Json], varied: Sequence[str]) -> None:
    """Show what is varied, and how it went; beside it errors where every row's component is known."""
    told = [
        part_of(row, *varied)
        | {name: value for name, value in row[SEPARATED].items() if name not in ("missed", "means")}
        | {f"{name}, labels known": row.get(LABELS, {}).get(name) for name in ("mean", "covariance")}
        for row in rows
        if SEPARATED in row
    ]
    show(title, told)


# --- the grid -----------------------------------------------------------------------------------------------

GRID = (
    *((20_000, 10, 4, 0.01), (20_000, 10, 8, 0.01), (20_000, 10, 8, 0.05), (20_000, 50, 8, 0.01)),
    *((20_000, 50, 8, 0.05), (20_000, 100, 4, 0.01), (20_000, 100, 4, 0.5), (100_000, 10, 4, 0.0244)),
    *((100_000, 10, 8, 0.05), (100_000, 100, 8, 0.01), (1_000_000, 10, 4, 0.01), (1_000_000, 10, 4, 0.05)),
)
"""Values of n, d, k and rho."""


def grid(wish: Wish[Extent]) -> None:
    """Measure the cases of `GRID`."""
    rows = table(wish, "cells", [Case(World(n, d, k), rho) for n, d, k, rho in GRID], OURS)
    show_ours("Ten deviations apart", rows, ("n", "d", "k", "rho"))


# --- what is varied -----------------------------------------------------------------------------------------

ROWS, DIMENSION, RHO = 100_000, 10, 0.05
"""Values from which others are varied."""

GAPS, COMPONENTS = (3.0, 4.0, 5.0, 6.0), (2, 4, 8)


def size(wish: Wish[Extent]) -> int:
    """Rows of what is varied: fewer in quick runs."""
    return min(ROWS, wish.extent.most)


def separation(wish: Wish[Extent]) -> None:
    """Measure the separation that components need."""
    n = size(wish)
    cases = [Case(World(n, DIMENSION, k, gap), RHO) for k, gap in product(COMPONENTS, GAPS)]
    rows = table(wish, f"n = {n}", cases, OURS)
    title = f"Separation, n = {n:,}, d = {DIMENSION}, rho = {RHO:g}"
    show_ours(title, rows, ("k", "separation"))


def radius(wish: Wish[Extent]) -> None:
    """Pairs of components, farther and farther apart."""
    n = size(wish)
    cases = [Case(World(n, DIMENSION, 4, far=far, radius=far), RHO) for far in (1e3, 1e4, 1e5, 1e6)]
    rows = table(wish, f"n = {n}", cases, OURS)
    title = f"Two pairs, about R apart, n = {n:,}, d = {DIMENSION}, k = 4, rho = {RHO:g}"
    show_ours(title, rows, ("radius",))


def worlds(wish: Wish[Extent]) -> None:
    """Weights, shapes, adjacencies."""
    n = size(wish)
    plain = World(n, DIMENSION, 4)
    shapes = ("stretched", "ratio 4", "ratio 16", "t", "outliers")
    dimensions = (DIMENSION, 50) if n == ROWS else (DIMENSION,)
    named = {
        "weights": [replace(plain, weights="geometric"), replace(plain, k=6, weights="geometric")],
        "shapes": [replace(plain, shape=shape, d=d) for d in dimensions for shape in shapes],
    }
    for name, some in named.items():
        rows = table(wish, name, [Case(world, RHO) for world in some], OURS)
        show_ours(f"{name.capitalize()}, n = {n:,}, rho = {RHO:g}", rows, ("d", "k", "weights", "shape"))
    both = [Case(replace(plain, k=k), RHO, adjacency) for k, adjacency in product((4, 8), Adjacency)]
    show_ours("Adjacencies", table(wish, "adjacencies", both, OURS), ("n", "d", "k", "adjacency"))
    searches = {name: method for name, method in variants().items() if name == "balls"}
    surrounded = [Case(World(n, d, k, shape="shell"), RHO) for d, k in ((2, 6), (3, 8))]
    rows = table(wish, "surrounded", surrounded, {**OURS, **searches})
    show_ours("A component that others surround, slabs", rows, ("d", "k"))
    if searches:
        balls = [row | {SEPARATED: row["balls"]} for row in rows if "balls" in row]
        show_ours("A component that others surround, balls", balls, ("d", "k"))


def false(wish: Wish[Extent]) -> None:
    """More components are looked for than there are."""
    n, seeds = min(20_000, wish.extent.most), wish.extent.false
    pairs = ((1, 4, "round"), (2, 4, "stretched"), (3, 6, "t"), (4, 8, "round"))
    cases = [Case(World(n, DIMENSION, k, shape=shape), RHO, sought=sought) for k, sought, shape in pairs]
    only = {SEPARATED: ours}
    measure(wish, cases, only, seeds)
    rows = [row for case in cases if (row := row_of(wish, case, [*only], seeds))]
    for row in rows:
        row["false"] = sum(found > row["k"] for found in row[SEPARATED]["found"])
    wish.save("cells", rows)
    told = [part_of(row, "k", "sought", "shape", "false") | part_of(row[SEPARATED], "trials", "ok") for row in rows]
    show("More are looked for than there are; wanted 0 false ones", told)


DEFAULT = "default min_weight"


def small(wish: Wish[Extent]) -> None:
    """Components of 2 to 5 % beside larger ones, with the true least weight, and with the default, which is false."""
    laws: Sequence[tuple[int, int, int, float, float, tuple[float, ...]]] = (
        (30_000, 10, 10, 8.0, 0.05, (0.02, 0.02)),
        (30_000, 10, 10, 8.0, 0.1, (0.02, 0.02)),
        (30_000, 5, 6, 6.0, 0.0244, (0.02,)),
        (100_000, 20, 12, 8.0, 0.05, (0.02,)),
        (30_000, 50, 10, 10.0, 0.1, (0.02,)),
        (30_000, 20, 6, 10.0, 0.05, (0.04,)),
        (30_000, 10, 5, 8.0, 0.05, (0.05,)),
        (50_000, 10, 8, 8.0, 0.0244, (0.03, 0.03)),
        (20_000, 5, 5, 8.0, 0.05, (0.05, 0.05)),
        (50_000, 2, 8, 8.0, 0.05, (0.03, 0.03)),
        (100_000, 10, 10, 6.0, 0.05, (0.03, 0.03, 0.03)),
        (30_000, 3, 8, 6.0, 0.05, (0.02, 0.03)),
    )
    cases = [Case(World(n, d, k, gap, shape="stretched", small=few), rho) for n, d, k, gap, rho, few in laws]
    methods: Mapping[str, Method] = {SEPARATED: ours, DEFAULT: partial(ours, min_weight=0.0)}
    rows = table(wish, "small components", cases, methods)
    names = ("n", "d", "k", "separation", "rho", "small")
    told = [part_of(row, *names) | {name: row[name]["hits"] for name in methods if name in row} for row in rows]
    show("Small components: means with a released one within a deviation, medians", told)


# --- side by side -------------------------------------------------------------------------------------------


TIGHT = 30.0
"""R, if much is known about where means are: kinder to those whose noise goes with the bounds."""


def against(wish: Wish[Extent]) -> None:
    """All methods on the same rows."""
    cases = [
        Case(World(20_000, 10, 4), 0.01),
        Case(World(20_000, 10, 8), 0.05),
        Case(World(20_000, 10, 4), 0.5),
        Case(World(100_000, 10, 4), 0.0244),
        Case(World(100_000, 10, 8), 0.05),
        Case(World(100_000, 10, 4, far=RADIUS), 0.05),
        Case(World(100_000, 10, 4), 0.5),
        Case(World(20_000, 10, 4, radius=TIGHT), 0.05),
        Case(World(100_000, 10, 4, radius=TIGHT), 0.5),
    ]
    methods = {SEPARATED: ours, **variants(), **OTHERS, LABELS: OURS[LABELS]}
    methods = {name: one for name, one in methods.items() if not wish.extent.methods or name in wish.extent.methods}
    measure(wish, cases, methods, wish.extent.seeds)
    names = [SEPARATED, *VARIANTS, *OTHERS, LABELS]
    rows = [row for case in cases if (row := row_of(wish, case, names, wish.extent.seeds))]
    wish.save("cells", rows)
    for row in rows:
        facts = ", ".join(f"{name} {row[name]:,g}" for name in ("n", "d", "k", "radius", "rho"))
        measures = ("ok", "trials", "mean", "covariance", "weight", "seconds")
        told = [{"method": name} | {one: row[name].get(one) for one in measures} for name in names if name in row]
        show(f"Side by side: {facts}, farthest pair {row['far']:g}", told)


# --- real tables --------------------------------------------------------------------------------------------


def real(wish: Wish[Extent]) -> None:
    """Measure fits of tables whose truth nobody knows."""
    for name, load in REAL.items():
        try:
            subject = load()
        except MissingTableError as missing:
            print(f"\n{name}: left out; {missing}")
            continue
        show(f"{subject.title}, k = {subject.k}; medians", real_rows(wish, name, subject))


def real_rows(wish: Wish[Extent], name: str, subject: Real) -> list[Json]:
    """Return rows by method and rho."""
    private: dict[str, Callable[[float, int], Model]] = {
        SEPARATED: lambda rho, seed: separated(subject.rows, subject.box, rho, subject.fields | {"public_seed": seed}),
        "FitDPEM": lambda rho, seed: by_dpem(subject.rows, subject.box, rho, subject.k),
    }
    plain = wish.kept.result(
        f"{name}, k {subject.k}, scikit-learn",
        lambda: real_trial(subject, lambda: by_sklearn(subject.rows, subject.k, 0)),
    )
    rows = [{"method": "scikit-learn", "rho": None, "trials": 1, "found": [subject.k]} | plain]
    for rho, (method, work) in product(wish.extent.rhos, private.items()):
        found = []
        for seed in range(wish.extent.seeds):
            key = f"{name}, k {subject.k}, rho {rho:g}, seed {seed}, {method}"
            if time.monotonic() > wish.until:
                found += wish.kept.known([key])
                continue
            job = partial(real_trial, subject, partial(work, rho, seed))
            found.append(wish.kept.result(key, job))
        if found:
            row: Json = {"method": method, "rho": rho, "trials": len(found)}
            row["found"] = sorted(one["components"] for one in found)
            row |= {measure: statistics.median(one[measure] for one in found) for measure in found[0]}
            rows.append(row)
    facts = {"n": len(subject.rows), "d": subject.rows.shape[1], "k": subject.k, "title": subject.title}
    wish.save(name, facts | {"rows": rows})
    return rows


def real_trial(subject: Real, work: Callable[[], Model]) -> Json:
    """Log-likelihood of a row, agreement with classes if there are any, components, seconds."""
    begun = time.process_time()
    model = work()
    seconds = time.process_time() - begun
    densities, labels = log_densities(subject, model)
    # The mean of the middle 98 %, beside the mean: few rows that a model excludes would decide alone.
    middle = np.sort(densities)[len(densities) // 100 : len(densities) - len(densities) // 100]
    found = {"components": len(model.means), "log_likelihood": float(densities.mean()), "middle": float(middle.mean())}
    if subject.labels is not None:
        found["rand"] = float(adjusted_rand_score(subject.labels, labels))
    return found | {"seconds": seconds}


# --- time ---------------------------------------------------------------------------------------------------


def growth(wish: Wish[Extent]) -> None:
    """Seconds of whole fits against rows."""
    cases = [Case(World(n, DIMENSION, 4), RHO) for n in wish.extent.rows if n <= wish.extent.most]
    rows = table(wish, "rows", cases, {SEPARATED: ours})
    show_ours(f"Seconds of a whole fit, d = {DIMENSION}, k = 4, rho = {RHO:g}, one thread", rows, ("n",))


# --- picture ------------------------------------------------------------------------------------------------


def picture(wish: Wish[Extent]) -> None:
    """Trials that are ok against separation, from the results of separation."""
    output = results_of(__file__)
    found: Json = json.loads(output.read_text()).get("separation", {}) if output.exists() else {}
    rows = [row for row in found.get(f"n = {ROWS}", []) if SEPARATED in row]
    if not rows:
        print("\npicture: left out; measure separation first")
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for k in sorted({row["k"] for row in rows}):
        some = [row for row in rows if row["k"] == k]
        gaps = [row["separation"] for row in some]
        left.plot(gaps, [row[SEPARATED]["ok"] / row[SEPARATED]["trials"] for row in some], marker="o", label=f"k = {k}")
        means = [row[SEPARATED].get("mean", np.nan) for row in some]
        (line,) = right.plot(gaps, means, marker="o", label=f"k = {k}")
        known = [row[LABELS]["mean"] for row in some if LABELS in row]
        if len(known) == len(gaps):
            right.plot(gaps, known, ":", color=line.get_color())
    left.set(ylabel="all found, within 1 deviation", ylim=(-0.03, 1.03))
    right.set(ylabel="worst mean's error, deviations", yscale="log")
    for panel in (left, right):
        panel.set(xlabel="least distance of two means, deviations")
        panel.grid(alpha=0.3)
    left.legend()
    right.plot([], [], ":", color="gray", label="labels known, no privacy")
    right.legend(fontsize=8)
    figure.suptitle(f"n = {ROWS:,}, d = {DIMENSION}, rho = {RHO:g}", fontsize=10)
    figure.savefig(PICTURE, dpi=110)
    print(f"\n{PICTURE.name}: drawn")


PARTS: dict[str, Callable[[Wish[Extent]], None]] = {
    "grid": grid,
    "separation": separation,
    "radius": radius,
    "worlds": worlds,
    "small": small,
    "false": false,
    "against": against,
    "real": real,
    "growth": growth,
    "picture": picture,
}


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    parser = options_of(__doc__, PARTS, Extent())
    parser.add_argument("--again", nargs="*", default=[], help="methods to measure anew, such as separated")
    for fit in (separated_gmm, dpem, sketch):
        fit.warm_up()
    run_parts(parser, PARTS, __file__, full=Extent(), quick=QUICK, again=("again",), settings=SETTINGS)


if __name__ == "__main__":
    main()
