"""FitGradientEM measured: `python bench/gradient_em.py [PART ...]`.

Prints tables and writes bench/results/gradient_em.json, table by table. Single results are kept beside it, so
that a run that was cut goes on where it was; deleting the folder begins anew. Parts and models may be run side by side.

synthetic: error by model, n, d and epsilon, of every variant with the server's steps; the cells that there are wishes
    for (n = 1e5, d = 10) come first. All of it is about an hour and a half; `--models`, `--sizes`, `--dimensions` and
    `--methods` choose.
heavy: noise with t distribution, and rows in a far corner.
time: of a step, against a pass of numpy over the same gradients in turns, and against rows.
picture: of synthetic, from the JSON, to docs/.

GMM, MRM, RMC: the paper's symmetric mixture of Gaussians, symmetric mixture of regressions, and regression with missing
covariates; truths of length 3 and noise of 1 (tables give lengths in it), random starts, (epsilon, 1/n) under
REPLACE_ONE. Scales C of the clipped variant are in the same unit. EM without noise knows the noise level and runs until
it has settled. Times are of one processor.
"""

from __future__ import annotations

import json
import os
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
from _em import (
    CONTAMINATED,
    DEGREES,
    FEATURES,
    MISSING,
    MODELS,
    NOISES,
    POINTS,
    SIGNAL,
    TARGETS,
    Array,
    Clock,
    Fields,
    Model,
    array,
    fit,
    spend,
    start,
)

from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import gradient_em

SETTINGS: Json = {
    "seeds": "0, 1, ...: rows from numpy's default_rng([seed, n, d, model, noise]), starts from public seeds",
    "adjacency": "REPLACE_ONE",
    "delta": "1/n",
    "signal": SIGNAL,
    "bounds": {"points": POINTS, "features": FEATURES, "targets": TARGETS},
    "missing": MISSING,
    "degrees_of_freedom": DEGREES,
    "contaminated": CONTAMINATED,
    "threads": 1,
}
"""Settings of everything synthetic."""


BAR_ROWS, BAR_DIMENSION = 100_000, 10
"""Rows and columns of the cells that there are bars for."""


@dataclass(frozen=True)
class Extent:
    """Extent of the measurement.

    Attributes:
        seeds: of rows and starts, in each cell.
        sizes: numbers of rows.
        dimensions: numbers of columns, or features.
        epsilons: of synthetic and heavy.
        models: by name.
        methods: by name, that are measured now; empty: all. The others keep what is known of them.
        rounds: of times.
        rows: of times.
    """

    seeds: int = 20
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    dimensions: tuple[int, ...] = (5, 10, 20, 50)
    epsilons: tuple[float, ...] = (0.2, 0.5, 1.0)
    models: tuple[str, ...] = tuple(MODELS)
    methods: tuple[str, ...] = ()
    rounds: int = 5
    rows: tuple[int, ...] = (10_000, 100_000, 1_000_000)


QUICK = Extent(seeds=5, sizes=(1_000,), dimensions=(5,), epsilons=(1.0,), rows=(100_000,))


# --- trials -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Law of the rows, and the spend of a fit.

    Attributes:
        model: of `MODELS`.
        n: rows.
        d: columns, or features.
        epsilon: beside delta = 1/n.
        noise: of `NOISES`.
    """

    model: str
    n: int
    d: int
    epsilon: float
    noise: str = "normal"

    @property
    def rows_key(self) -> str:
        """Name of what the rows are drawn from."""
        return f"{self.model}, n {self.n}, d {self.d}, {self.noise}"

    def key(self, seed: int, method: str) -> str:
        """Name of a trial among what is kept."""
        return f"{self.rows_key}, epsilon {self.epsilon:g}, seed {seed}, {method}"

    def reference_key(self, seed: int) -> str:
        """Return the key of EM without noise in the same way."""
        return f"{self.rows_key}, seed {seed}, non-private"


@dataclass(frozen=True)
class Method:
    """A way to fit.

    Attributes:
        name: of it.
        variant: None: the server's choice.
        scale: s or C, in standard deviations of the noise; 0: the server's choice.
    """

    name: str
    variant: fit_pb2.GradientVariant.ValueType | None = None
    scale: float = 0.0

    def fields(self, model: Model) -> Fields:
        """Return the fields of a request."""
        found = model.fields | {"scale": self.scale / model.unit}
        if self.variant is not None:
            found |= {"variant": self.variant}
        return found


THRESHOLDS = (0.1, 1.0, 5.0, 10.0)
DEFAULT = Method("default")
RADIAL = Method("radial", fit_pb2.GRADIENT_VARIANT_RADIAL)
TRUNCATED = Method("truncated", fit_pb2.GRADIENT_VARIANT_TRUNCATED)
DP_EM = Method("dp_em", fit_pb2.GRADIENT_VARIANT_DP_EM)
CLIPPED = tuple(Method(f"clipped {C:g}", fit_pb2.GRADIENT_VARIANT_CLIPPED, C) for C in THRESHOLDS)
METHODS = (DEFAULT, RADIAL, TRUNCATED, *CLIPPED, DP_EM)


def methods_of(model: str) -> tuple[Method, ...]:
    """All variants that a model has."""
    return tuple(one for one in METHODS if one is not DP_EM or model == "GMM")


@lru_cache(maxsize=1)
def drawn(model: str, n: int, d: int, noise: str, seed: int) -> tuple[Array, Array]:
    """Rows and truth."""
    generator = np.random.default_rng([seed, n, d, list(MODELS).index(model), NOISES.index(noise)])
    return MODELS[model].draw(n, d, noise, generator)


def private_trial(cell: Cell, seed: int, method: Method) -> Json:
    """One fit from a random start: its error, what it believes its error to be, seconds of one processor.

    And which part of its coefficients is within two of its standard errors of the truth.
    """
    model = MODELS[cell.model]
    rows, b = drawn(cell.model, cell.n, cell.d, cell.noise, seed)
    request = fit_pb2.FitGradientEMRequest(
        spend=spend(cell.epsilon, cell.n), random=fit_pb2.StartAtRandom(public_seed=seed), **method.fields(model)
    )
    begun = time.process_time()
    found = fit(request, rows, model.columns(cell.d))
    seconds = time.process_time() - begun
    found_b, errors = array(found.coefficients)[0], array(found.coefficient_errors)[0]
    apart = found_b - b
    if model.mirrored and np.linalg.norm(found_b + b) < np.linalg.norm(apart):
        apart = found_b + b
    return {
        "error": model.error(found_b, b),
        "claimed": float(np.linalg.norm(errors)),
        "covered": float(np.mean(np.abs(apart) <= 2.0 * errors)),
        "steps": found.iterations,
        "seconds": seconds,
    }


def reference_trial(cell: Cell, seed: int) -> Json:
    """EM without noise from a random start."""
    model = MODELS[cell.model]
    rows, b = drawn(cell.model, cell.n, cell.d, cell.noise, seed)
    begun = time.process_time()
    error = model.error(model.em(rows, start(cell.d, seed), 1.0), b)
    return {"error": error, "seconds": time.process_time() - begun}


def measure(wish: Wish[Extent], cells: Sequence[Cell], methods: Callable[[Cell], Sequence[Method]]) -> None:
    """Every trial that is not known, until time is up; cells of the same rows side by side."""
    laws = list(dict.fromkeys((cell.model, cell.n, cell.d, cell.noise) for cell in cells))
    for law, seed in product(laws, range(wish.extent.seeds)):
        some = [cell for cell in cells if (cell.model, cell.n, cell.d, cell.noise) == law]
        for cell in some:
            if time.monotonic() > wish.until:
                return
            wish.kept.result(cell.reference_key(seed), partial(reference_trial, cell, seed))
            for method in methods(cell):
                if not wish.extent.methods or method.name in wish.extent.methods:
                    wish.kept.result(cell.key(seed, method.name), partial(private_trial, cell, seed, method))


def summary(trials: Sequence[Json]) -> Json:
    """Summarise one method in one cell."""
    errors = [one["error"] for one in trials]
    found = {
        "error": statistics.median(errors),
        "range": [min(errors), max(errors)],
        "trials": len(trials),
        "seconds": statistics.median(one["seconds"] for one in trials),
    }
    if "claimed" in trials[0]:
        found |= {"claimed": statistics.median(one["claimed"] for one in trials), "steps": trials[0]["steps"]}
        found |= {"covered": statistics.mean(one["covered"] for one in trials)}
    return found


def row_of(wish: Wish[Extent], cell: Cell, methods: Sequence[Method]) -> Json | None:
    """Medians of the trials that there are; None if there are none of the default."""
    seeds = range(wish.extent.seeds)
    found = {one.name: wish.kept.known([cell.key(seed, one.name) for seed in seeds]) for one in methods}
    # Sample noise is common to all methods, so that without noise is of the default's seeds.
    ours = [seed for seed in seeds if wish.kept.known([cell.key(seed, DEFAULT.name)])]
    plain = wish.kept.known([cell.reference_key(seed) for seed in ours])
    if not plain:
        return None
    row: Json = {"model": cell.model, "n": cell.n, "d": cell.d, "epsilon": cell.epsilon, "noise": cell.noise}
    row["non-private"] = summary(plain)
    row |= {name: summary(trials) for name, trials in found.items() if trials}
    row[DEFAULT.name]["accuracy"] = spread_of([one["error"] for one in found[DEFAULT.name]])
    return row


def rows_of(wish: Wish[Extent], cells: Sequence[Cell], methods: Callable[[Cell], Sequence[Method]]) -> list[Json]:
    """Return rows of the cells that have any."""
    return [row for cell in cells if (row := row_of(wish, cell, methods(cell)))]


def show_rows(title: str, rows: Sequence[Json], methods: Sequence[Method]) -> None:
    """Show medians of errors, and how the default's are beside EM without noise and beside what it claims."""
    told = []
    for row in rows:
        own, names = row[DEFAULT.name], [one.name for one in methods if one.name in row]
        told.append(part_of(row, "model", "n", "d", "epsilon", "noise") | {name: row[name]["error"] for name in names})
        told[-1] |= {"EM": row["non-private"]["error"], "over EM": own["error"] / row["non-private"]["error"]}
        bar = BARS.get((row["model"], row["epsilon"])) if (row["n"], row["d"]) == (BAR_ROWS, BAR_DIMENSION) else None
        told[-1] |= {"wanted": bar, "claimed over actual": own["claimed"] / own["error"], "covered": own["covered"]}
        told[-1] |= {"seeds": own["trials"]}
    show(f"{title}: median error in standard deviations of the noise; truths have {SIGNAL:g}", told)


# --- the paper's models, the server's steps -----------------------------------------------------------------

BARS = {
    ("GMM", 0.2): 1.8,
    ("GMM", 1.0): 1.1,
    ("MRM", 0.2): 1.5,
    ("MRM", 1.0): 1.5,
    ("RMC", 0.2): 1.5,
    ("RMC", 1.0): 1.5,
}
"""Wanted: the default's error over that of EM without noise, at n = 1e5, d = 10."""


def synthetic(wish: Wish[Extent]) -> None:
    """Errors of all variants."""
    extent = wish.extent
    cells = [Cell(*one) for one in product(extent.models, extent.sizes, extent.dimensions, extent.epsilons)]
    named = [
        cell for cell in cells if (cell.n, cell.d) == (BAR_ROWS, BAR_DIMENSION) and (cell.model, cell.epsilon) in BARS
    ]
    rest = sorted((cell for cell in cells if cell not in named), key=lambda cell: cell.n * cell.d)
    for some, methods in product((named, rest), (lambda cell: (DEFAULT,), lambda cell: methods_of(cell.model))):
        measure(wish, some, methods)
    for model in extent.models:
        rows = rows_of(wish, [cell for cell in cells if cell.model == model], lambda cell: methods_of(cell.model))
        wish.save(model, rows)
        show_rows(model, rows, METHODS)


# --- heavy tails --------------------------------------------------------------------------------------------

HEAVY_ROWS, HEAVY_DIMENSION = 20_000, 10


def heavy(wish: Wish[Extent]) -> None:
    """Errors where rows lie far out, and which variant wins."""
    extent = wish.extent
    n = min(HEAVY_ROWS, max(extent.sizes))
    epsilons = sorted({min(extent.epsilons), max(extent.epsilons)})
    for model in extent.models:
        cells = [Cell(model, n, HEAVY_DIMENSION, epsilon, noise) for noise, epsilon in product(NOISES, epsilons)]
        measure(wish, cells, lambda cell: methods_of(cell.model))
        rows = rows_of(wish, cells, lambda cell: methods_of(cell.model))
        wish.save(model, rows)
        show_rows(f"{model}, heavy tails", rows, METHODS)


# --- time ---------------------------------------------------------------------------------------------------

TIMED_DIMENSION, TIMED_STEPS = 20, 4


def numpy_mixture(Y: Array, b: Array) -> None:
    """Responsibilities, residuals about b and -b, clipped in norm, and their sums, by numpy."""
    share = 1.0 / (1.0 + np.exp(-2.0 * (Y @ b)))
    for sign, weight in ((1.0, share), (-1.0, 1.0 - share)):
        left = Y - sign * b
        squares = np.einsum("ij,ij->i", left, left)
        factor = weight * np.minimum(1.0, len(b) ** 0.5 / np.sqrt(squares))
        _ = factor @ left, weight @ np.minimum(squares, 1.25**2 * len(b))


def numpy_regressions(rows: Array, b: Array) -> None:
    """Sum residuals times whitened features in the same way."""
    X, y = rows[:, :-1] @ np.eye(len(b)), rows[:, -1]
    line, norms = X @ b, np.sqrt(np.einsum("ij,ij->i", X, X))
    share = 1.0 / (1.0 + np.exp(-2.0 * y * line))
    for sign, weight in ((1.0, share), (-1.0, 1.0 - share)):
        left = y - sign * line
        factor = weight * left * np.minimum(1.0, len(b) ** 0.5 / np.maximum(np.abs(left) * norms, 1e-300))
        _ = factor @ X, weight @ np.minimum(left**2, 1.25**2)


def numpy_missing(rows: Array, b: Array) -> None:
    """Sum the score of the present features in the same way."""
    absent = np.isnan(rows[:, :-1])
    X, hidden = np.where(absent, 0.0, rows[:, :-1]), absent.astype(np.float64)
    variance = 1.0 + hidden @ b**2
    left = (rows[:, -1] - X @ b) / np.sqrt(variance)
    t = np.clip(left, -1.0, 1.0)
    vectors = (t / np.sqrt(variance))[:, None] * X + ((t**2 - 0.516) / variance)[:, None] * (hidden * b)
    squares = np.einsum("ij,ij->i", vectors, vectors)
    _ = np.minimum(1.0, 1.0 / np.sqrt(np.maximum(squares, 1e-300))) @ vectors, np.minimum(left**2, 1.25**2).sum()


NUMPY = {"GMM": numpy_mixture, "MRM": numpy_regressions, "RMC": numpy_missing}


def timed(model: Model, n: int, rounds: int, variants: Sequence[Method]) -> Json:
    """Seconds of a step of each variant, with its noise, and of the pass of numpy, in turns."""
    rows, b = model.draw(n, TIMED_DIMENSION, "normal", np.random.default_rng(0))
    columns = model.columns(TIMED_DIMENSION)
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        begun = time.process_time()
        NUMPY[model.name](rows, b)
        seconds.setdefault("numpy", []).append(time.process_time() - begun)
        for method in variants:
            request = fit_pb2.FitGradientEMRequest(
                spend=types_pb2.Spend(rho=1.0), iterations=TIMED_STEPS, **method.fields(model)
            )
            clock = Clock()
            fit(request, rows, columns, clock)
            seconds.setdefault(method.name, []).append(statistics.median(np.diff(clock.ends).tolist()))
    medians = {name: statistics.median(some) for name, some in seconds.items()}
    ratios = [ours / theirs for ours, theirs in zip(seconds["default"], seconds["numpy"], strict=True)]
    return {
        "model": model.name,
        "n": n,
        "d": TIMED_DIMENSION,
        "rounds": rounds,
        "seconds": medians,
        "over_numpy": ratios,
    }


def times(wish: Wish[Extent]) -> None:
    """Measure the times of a step, by model and rows."""
    found = []
    for name, n in product(wish.extent.models, wish.extent.rows):
        found.append(timed(MODELS[name], n, wish.extent.rounds, (DEFAULT, TRUNCATED)))
        wish.save("steps", found)
    over = [{"over numpy": statistics.median(row["over_numpy"])} for row in found]
    told = [part_of(row, "model", "n") | row["seconds"] | one for row, one in zip(found, over, strict=True)]
    show(f"Seconds of a step (sums, noise, new parameters), d = {TIMED_DIMENSION}, one thread, in turns", told)


# --- picture ------------------------------------------------------------------------------------------------

PICTURE = Path(__file__).parent.parent / "docs" / "fit-gradient-em.png"

NAMES = {"GMM": "symmetric mixture", "MRM": "mixture of regressions", "RMC": "missing features"}


def picture(wish: Wish[Extent]) -> None:
    """Errors against n, from the results of synthetic."""
    output = results_of(__file__)
    found: Json = json.loads(output.read_text()).get("synthetic", {}) if output.exists() else {}
    if not all(model in found for model in NAMES):
        print("\npicture: left out; measure synthetic first")
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(10, 3.8), layout="constrained", sharey=True)
    for panel, (model, title) in zip(panels, NAMES.items(), strict=True):
        for epsilon, color in zip(Extent().epsilons, ("tab:red", "tab:orange", "tab:blue"), strict=True):
            rows = [row for row in found[model] if (row["d"], row["epsilon"]) == (BAR_DIMENSION, epsilon)]
            named = model == "GMM"  # one legend for all panels
            plot = partial(against_rows, panel, rows)
            plot(DEFAULT.name, "-o", color=color, label=f"default, epsilon {epsilon:g}" if named else None)
            plot(TRUNCATED.name, ":", color=color, label=f"truncated, epsilon {epsilon:g}" if named else None)
        plot("non-private", "--", color="black", label="EM without noise" if named else None)
        panel.set(title=title, xlabel="rows", xscale="log", yscale="log")
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="error, deviations of the noise")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(PICTURE, dpi=110)
    print(f"\n{PICTURE.name}: drawn")


def against_rows(panel: Any, rows: Sequence[Json], method: str, style: str, **options: Any) -> None:
    """A line of one method's errors against n."""
    some = [row for row in rows if method in row]
    panel.plot([row["n"] for row in some], [row[method]["error"] for row in some], style, **options)


PARTS: dict[str, Callable[[Wish[Extent]], None]] = {
    "time": times,
    "synthetic": synthetic,
    "heavy": heavy,
    "picture": picture,
}


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    gradient_em.warm_up()
    parser = options_of(__doc__, PARTS, Extent())
    run_parts(parser, PARTS, __file__, full=Extent(), quick=QUICK, settings=SETTINGS)


if __name__ == "__main__":
    main()
