"""FitGradientEM measured: `python bench/gradient_em.py [PART ...]`.

Prints tables and writes bench/results/gradient_em.json, table by table. Single results are kept beside it, so
that a run that was cut goes on where it was; deleting the folder begins anew. Parts and models may be run side by side.

synthetic: error by model, n, d and epsilon, of every variant with the server's steps; the cells that there are wishes
    for (n = 1e5, d = 10) come first. Where another variant is better on these seeds, the two are compared once more on
    fresh ones, since the best of six on few seeds is partly the luckiest. All of it is about an hour and a half;
    `--models`, `--sizes`, `--dimensions` and `--methods` choose.
paper: as the paper runs it: T = 22 (and 5), the last iterate, the noise level known; beside it the truncated variant
    with the paper's printed noise, which is not private.
heavy: noise with t distribution, and rows in a far corner.
adult: a real table as the paper prepares it, and with those steps done privately; `--adult DIR` has adult.csv and
    adult-domain.json.
time: of a step, against a pass of numpy over the same gradients in turns, and against rows.
picture: of synthetic, from the JSON, to docs/.

GMM, MRM, RMC: the paper's symmetric mixture of Gaussians, symmetric mixture of regressions, and regression with missing
covariates; truths of length 3 and noise of 1 (tables give lengths in it), random starts, (epsilon, 1/n) under
REPLACE_ONE. Scales C of the clipped variant are in the same unit. EM without noise knows the noise level and runs until
it has settled. Times are of one processor.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # so that times are of one processor
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from _common import Json, Kept, options_of, output_of, results_of, saved, spread_of
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
    em_mixture,
    fit,
    spend,
    start,
)
from _kmeans import Box, array_rows
from _kmeans import fit as fit_in_box

from bursar_amounts import rho_of
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import BoundedColumn, dpem, gradient_em

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
        fresh: further seeds of the default and one other variant, where that one was better on the first ones.
        sizes: numbers of rows.
        dimensions: numbers of columns, or features.
        epsilons: of synthetic, paper and adult.
        models: by name.
        methods: by name, that are measured now; empty: all. The others keep what is known of them.
        rounds: of times.
        rows: of times.
        minutes: of a part, after which no further trial begins.
    """

    seeds: int = 20
    fresh: int = 80
    sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    dimensions: tuple[int, ...] = (5, 10, 20, 50)
    epsilons: tuple[float, ...] = (0.2, 0.5, 1.0)
    models: tuple[str, ...] = tuple(MODELS)
    methods: tuple[str, ...] = ()
    rounds: int = 5
    rows: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    minutes: float = float("inf")


QUICK = Extent(seeds=5, fresh=0, sizes=(1_000,), dimensions=(5,), epsilons=(1.0,), rows=(100_000,))


@dataclass(frozen=True)
class Wish:
    """Request for a measurement, and the place of its results.

    Attributes:
        extent: how much.
        save: called with a table's name and its results as soon as it is done.
        kept: results so far.
        adult: folder of the table; None: it is left out.
        until: when no further trial begins, as `time.monotonic` has it.
    """

    extent: Extent
    save: Callable[[str, Any], None]
    kept: Kept
    adult: Path | None
    until: float


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
        steps: T, of which the last one is the result, with the noise level known; 0: all is the server's choice.
        printed: spends what the paper's printed noise spends: not private at epsilon.
    """

    name: str
    variant: fit_pb2.GradientVariant.ValueType | None = None
    scale: float = 0.0
    steps: int = 0
    printed: bool = False

    def fields(self, model: Model, sigma: float) -> Fields:
        """Return the fields of a request; sigma is the noise's true standard deviation."""
        found = model.fields | {"scale": self.scale / model.unit}
        if self.variant is not None:
            found |= {"variant": self.variant}
        if self.steps:
            found |= {"iterations": self.steps, "averaged": 1, "noise_std": sigma}
        return found


THRESHOLDS = (0.1, 1.0, 5.0, 10.0)
DEFAULT = Method("default")
RADIAL = Method("radial", fit_pb2.GRADIENT_VARIANT_RADIAL)
TRUNCATED = Method("truncated", fit_pb2.GRADIENT_VARIANT_TRUNCATED)
DP_EM = Method("dp_em", fit_pb2.GRADIENT_VARIANT_DP_EM)
CLIPPED = tuple(Method(f"clipped {C:g}", fit_pb2.GRADIENT_VARIANT_CLIPPED, C) for C in THRESHOLDS)
METHODS = (DEFAULT, RADIAL, TRUNCATED, *CLIPPED, DP_EM)


def with_steps(method: Method, T: int) -> Method:
    """Return the request as the paper runs it."""
    return replace(method, name=f"{method.name}, T {T}", steps=T)


def printed(method: Method) -> Method:
    """Return the request with the noise that the paper prints."""
    return replace(method, name=f"{method.name}, printed noise", printed=True)


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
    # The proof needs root rho = sqrt(epsilon + log 1/delta) - sqrt(log 1/delta); printed is root rho = epsilon.
    paid = types_pb2.Spend(rho=cell.epsilon**2) if method.printed else spend(cell.epsilon, cell.n)
    request = fit_pb2.FitGradientEMRequest(
        spend=paid, random=fit_pb2.StartAtRandom(public_seed=seed), **method.fields(model, 1.0)
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


def measure(wish: Wish, cells: Sequence[Cell], methods: Callable[[Cell], Sequence[Method]]) -> None:
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


def row_of(wish: Wish, cell: Cell, methods: Sequence[Method]) -> Json | None:
    """Medians of the trials that there are; None if there are none of the default."""
    seeds, names = range(wish.extent.seeds), [one.name for one in methods]
    found = {name: wish.kept.known([cell.key(seed, name) for seed in seeds]) for name in names}
    # Sample noise is common to all methods, so that without noise is of the default's seeds, and variants are compared
    # on those that all have.
    ours = [seed for seed in seeds if wish.kept.known([cell.key(seed, DEFAULT.name)])]
    plain = wish.kept.known([cell.reference_key(seed) for seed in ours])
    names = [name for name in names if found[name]]
    common = [seed for seed in seeds if len(wish.kept.known([cell.key(seed, name) for name in names])) == len(names)]
    if not (plain and found.get(DEFAULT.name)):
        return None
    row: Json = {"model": cell.model, "n": cell.n, "d": cell.d, "epsilon": cell.epsilon, "noise": cell.noise}
    row["non-private"] = summary(plain)
    row |= {name: summary(trials) for name, trials in found.items() if trials}
    row[DEFAULT.name]["accuracy"] = spread_of([one["error"] for one in found[DEFAULT.name]])
    if common and len(names) > 1:
        same = {name: summary(wish.kept.known([cell.key(seed, name) for seed in common]))["error"] for name in names}
        row["compared"] = {"trials": len(common), "error": same}
    return row


def rows_of(wish: Wish, cells: Sequence[Cell], methods: Callable[[Cell], Sequence[Method]]) -> list[Json]:
    """Return rows of the cells that have any."""
    return [row for cell in cells if (row := row_of(wish, cell, methods(cell)))]


def print_rows(title: str, rows: Sequence[Json], names: Sequence[str]) -> None:
    """Medians of errors; a star where there are fewer trials than of the default."""
    if not rows:
        return
    names = [name for name in names if any(name in row for row in rows)]
    trials = sorted({row["default"]["trials"] for row in rows})
    print(
        f"\n{title}: median error in standard deviations of the noise, {' or '.join(map(str, trials))} seeds; "
        f"truths have {SIGNAL:g}"
    )
    widths = {name: max(len(name), 8) for name in names}
    heads = " ".join(f"{name:>{width}}" for name, width in widths.items())
    print(f"{'model':>5} {'n':>7} {'d':>3} {'epsilon':>7} {'noise':>12} {heads}")
    for row in rows:
        values = " ".join(f"{cell_text(row, name):>{width}}" for name, width in widths.items())
        print(
            f"{row['model']:>5} {row['n']:>7,} {row['d']:>3} {row['epsilon']:>7g} {row['noise']:>12} {values}",
            flush=True,
        )


def cell_text(row: Json, name: str) -> str:
    """A median."""
    if name not in row:
        return "-"
    return f"{row[name]['error']:.4f}" + ("*" if row[name]["trials"] < row["default"]["trials"] else " ")


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


def synthetic(wish: Wish) -> None:
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
        for row in rows:
            if found := settled(wish, row):
                row["settled"] = found
        wish.save(model, rows)
        print_rows(model, rows, ["non-private", *(one.name for one in METHODS)])
        print_verdicts(rows)
        ratios = over_others(wish, [cell for cell in cells if cell.model == model])
        wish.save(f"{model}, default over others", ratios)
        print("  the default's error over another's, geometric mean over seeds and dimensions +- standard error:")
        for one in ratios:
            over = ", ".join(f"{name} {mean:.3f} +- {error:.3f}" for name, (mean, error) in one["over"].items())
            print(f"    n {one['n']:,}, epsilon {one['epsilon']:g}: {over}")


def over_others(wish: Wish, cells: Sequence[Cell]) -> list[Json]:
    """The default's error over that of every other variant, by n and epsilon: geometric means, and their errors."""
    found = []
    for n, epsilon in sorted({(cell.n, cell.epsilon) for cell in cells}):
        over = {}
        for other in METHODS:
            logs = [
                math.log(pair[0]["error"] / pair[1]["error"])
                for cell, seed in product(cells, range(wish.extent.seeds))
                if (cell.n, cell.epsilon) == (n, epsilon) and other != DEFAULT
                if len(pair := wish.kept.known([cell.key(seed, one.name) for one in (DEFAULT, other)])) == 2
            ]
            if len(logs) > 1:
                over[other.name] = (math.exp(statistics.mean(logs)), statistics.stdev(logs) / len(logs) ** 0.5)
        if over:
            found.append({"n": n, "epsilon": epsilon, "over": over})
    return found


def settled(wish: Wish, row: Json) -> Json | None:
    """The default against the variant that was better on the first seeds, on fresh ones; None if none was.

    The best of several variants on a few seeds is partly the luckiest: on seeds that did not choose it, it has none.
    """
    if "compared" not in row or row["compared"]["trials"] < wish.extent.seeds:
        return None
    ratio, name, _ = against_others(row)
    if not ratio > 1.0:
        return None
    cell = Cell(row["model"], row["n"], row["d"], row["epsilon"], row["noise"])
    pair = [one for one in methods_of(cell.model) if one.name in (DEFAULT.name, name)]
    fresh = range(wish.extent.seeds, wish.extent.seeds + wish.extent.fresh)
    for seed, method in product(fresh, pair):
        if time.monotonic() > wish.until:
            break
        wish.kept.result(cell.key(seed, method.name), partial(private_trial, cell, seed, method))
    keys = [[cell.key(seed, one.name) for one in pair] for seed in fresh]
    both = [
        dict(zip([one.name for one in pair], known, strict=True))
        for key in keys
        if len(known := wish.kept.known(key)) == 2
    ]
    if not both:
        return None
    errors = {one.name: statistics.median(trial[one.name]["error"] for trial in both) for one in pair}
    wins = sum(trial[DEFAULT.name]["error"] <= trial[name]["error"] for trial in both)
    return {"against": name, "first": ratio, "trials": len(both), "error": errors, "wins": wins}


def print_verdicts(rows: Sequence[Json]) -> None:
    """Print what is wanted of these cells."""
    for row in rows:
        over = row["default"]["error"] / row["non-private"]["error"]
        bar = BARS.get((row["model"], row["epsilon"]))
        if (row["n"], row["d"]) == (BAR_ROWS, BAR_DIMENSION) and bar:
            verdict = "met" if over <= bar else "missed"
            print(
                f"  {row['model']}, epsilon {row['epsilon']:g}: {over:.3f} times EM without noise; "
                f"wanted {bar:g}: {verdict}"
            )
    full = [against_others(row) for row in rows if "compared" in row]
    if not full:
        return
    at, near = (sum(ratio <= limit for ratio, _, _ in full) for limit in (1.0, 1.05))
    print(
        f"  default at or below the best of the paper's variants, on the same seeds: {at} of {len(full)} cells, "
        f"within 5 %: {near}"
    )
    for ratio, name, row in full:
        if ratio > 1.0:
            print(
                f"    n {row['n']:,}, d {row['d']}, epsilon {row['epsilon']:g}: {name} has {1 / ratio:.3f} of the "
                f"default's error ({row['compared']['trials']} seeds){on_fresh_seeds(row)}"
            )
    for row in rows:
        own = row["default"]
        if not own.get("covered", 1.0) >= 0.85:
            print(
                f"    n {row['n']:,}, d {row['d']}, epsilon {row['epsilon']:g}: errors cover "
                f"{own['covered']:.0%} at two of them, claimed over actual {own['claimed'] / own['error']:.2f}"
            )
    claims = sorted(row["default"]["claimed"] / row["default"]["error"] for row in rows)
    covered = statistics.median(row["default"]["covered"] for row in rows)
    print(
        f"  the default's claimed error over its error: {claims[0]:.2f} to {claims[-1]:.2f}, median "
        f"{statistics.median(claims):.2f}; two standard errors cover {covered:.1%} of coefficients (median)"
    )


def on_fresh_seeds(row: Json) -> str:
    """Return what became of a variant that was better on the first seeds."""
    if "settled" not in row:
        return ""
    found = row["settled"]
    ratio = found["error"][found["against"]] / found["error"][DEFAULT.name]
    return f"; {ratio:.3f} on {found['trials']} fresh ones, of which the default has {found['wins']}"


def against_others(row: Json) -> tuple[float, str, Json]:
    """The default's error over that of the best of the paper's variants, that variant's name, and the row.

    On the same seeds. The radial variant bounds the same vectors nearly alike, and is compared over all cells.
    """
    errors = dict(row["compared"]["error"])
    mine = errors.pop(DEFAULT.name)
    errors.pop(RADIAL.name, None)
    best = min(errors, key=lambda name: errors[name])
    return mine / errors[best], best, row


# --- the paper's claims -------------------------------------------------------------------------------------

BASE = (10_000, 10, 1.0)
"""n, d and epsilon about which one of them is varied."""

LONG, SHORT = 22, 5
GRADIENT, EM, PRINTED = (with_steps(TRUNCATED, LONG), with_steps(DP_EM, SHORT), printed(with_steps(TRUNCATED, LONG)))
SHORT_GRADIENT = with_steps(TRUNCATED, SHORT)
LONG_CLIPPED = tuple(with_steps(one, LONG) for one in CLIPPED)
CLAIMED_BEST = LONG_CLIPPED[THRESHOLDS.index(1.0)]


def lines(extent: Extent) -> dict[str, list[tuple[int, int, float]]]:
    """(n, d, epsilon) along which one of them is varied."""
    n, d, epsilon = BASE
    return {
        "n": [(one, d, epsilon) for one in extent.sizes],
        "d": [(n, one, epsilon) for one in extent.dimensions],
        "epsilon": [(n, d, one) for one in extent.epsilons],
    }


def paper_methods(cell: Cell) -> tuple[Method, ...]:
    """Those of figures 1 to 10; the short ones are the mixture's."""
    short = (SHORT_GRADIENT, EM) if cell.model == "GMM" else ()
    return (DEFAULT, GRADIENT, PRINTED, *LONG_CLIPPED, *short)


def paper(wish: Wish) -> None:
    """Errors along the paper's lines, and what becomes of its claims."""
    extent = wish.extent
    for model in extent.models:
        along = {name: [Cell(model, *point) for point in points] for name, points in lines(extent).items()}
        cells = list(dict.fromkeys(cell for some in along.values() for cell in some))
        measure(wish, cells, paper_methods)
        rows = rows_of(wish, cells, paper_methods)
        wish.save(model, rows)
        print_rows(
            f"{model} as the paper runs it", rows, ["non-private", *(one.name for one in paper_methods(cells[0]))]
        )
        print_claims(rows)
        for name, some in along.items():
            print_monotone(name, rows_of(wish, some, paper_methods))


def compared(rows: Sequence[Json], one: Method, other: Method) -> str:
    """Count the cells in which one is at or below the other."""
    pairs = [
        (row[one.name]["error"], row[other.name]["error"]) for row in rows if one.name in row and other.name in row
    ]
    return f"{sum(a <= b for a, b in pairs)} of {len(pairs)}"


def over_reference(rows: Sequence[Json], method: Method) -> str:
    """Range of errors over those of EM without noise."""
    ratios = [row[method.name]["error"] / row["non-private"]["error"] for row in rows if method.name in row]
    return f"{min(ratios):.1f} to {max(ratios):.1f}" if ratios else "-"


def print_claims(rows: Sequence[Json]) -> None:
    """Section 6 and appendix J, one by one."""
    base = [row for row in rows if (row["n"], row["d"], row["epsilon"]) == BASE]
    for row in base:
        errors = {one.name: row[one.name]["error"] for one in LONG_CLIPPED if one.name in row}
        if errors:
            best = min(errors, key=lambda name: errors[name])
            print(f"  claim: C = 1 is the best threshold (figure 1). Best here: {best}")
    for method in (GRADIENT, PRINTED):
        wins = compared(rows, method, CLAIMED_BEST)
        print(f"  claim: truncated is below clipped with C = 1. {method.name}: {wins} cells")
        print(f"  claim: nearly that of EM without noise. {method.name}: {over_reference(rows, method)} times")
    if any(EM.name in row for row in rows):
        print(f"  claim: gradient EM is below EM at T = 5. {compared(rows, SHORT_GRADIENT, EM)} cells")
    print(
        f"  the default is at or below truncated in {compared(rows, DEFAULT, GRADIENT)} cells, "
        f"at {over_reference(rows, DEFAULT)} times EM without noise"
    )


def print_monotone(name: str, rows: Sequence[Json]) -> None:
    """Errors fall with n and epsilon and grow with d."""
    if any(GRADIENT.name not in row for row in rows) or len(rows) < 2:
        return
    errors = [row[GRADIENT.name]["error"] for row in sorted(rows, key=lambda row: float(row[name]))]
    falls = errors[::-1] if name == "d" else errors
    holds = all(later <= earlier for earlier, later in pairwise(falls))
    verb, verdict = "grows" if name == "d" else "falls", "yes" if holds else "no"
    values = ", ".join(f"{one:.3f}" for one in errors)
    print(f"  claim: error {verb} with {name}. {GRADIENT.name}: {verdict}: {values}")


# --- heavy tails --------------------------------------------------------------------------------------------

HEAVY_ROWS, HEAVY_DIMENSION = 20_000, 10


def heavy(wish: Wish) -> None:
    """Errors where rows lie far out, and which variant wins."""
    extent = wish.extent
    n = min(HEAVY_ROWS, max(extent.sizes))
    epsilons = sorted({min(extent.epsilons), max(extent.epsilons)})
    for model in extent.models:
        cells = [Cell(model, n, HEAVY_DIMENSION, epsilon, noise) for noise, epsilon in product(NOISES, epsilons)]
        measure(wish, cells, lambda cell: methods_of(cell.model))
        rows = rows_of(wish, cells, lambda cell: methods_of(cell.model))
        wish.save(model, rows)
        print_rows(f"{model}, heavy tails", rows, ["non-private", *(one.name for one in METHODS)])
        for row in rows:
            if "compared" in row:
                errors = row["compared"]["error"]
                best = min(errors, key=lambda name: errors[name])
                over = {name: errors[name] / errors[best] for name in errors}
                print(
                    f"  {row['noise']}, epsilon {row['epsilon']:g}: {best} wins; over its error "
                    + ", ".join(f"{name} {ratio:.3f}" for name, ratio in over.items())
                )


# --- Adult --------------------------------------------------------------------------------------------------

ADULT_COLUMNS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
CENTRE_SHARE = 0.1
"""Share of rho for a private centre."""


@dataclass(frozen=True, eq=False)
class Adult:
    """The table as the paper prepares it (appendix J), in half-widths of public bounds; the rows are codes from 0.

    Attributes:
        rows: as many of each class, (n, columns).
        centre: midpoint of the classes' means: of the rows, not private.
        b: half of the difference of these means: what an estimate is compared with.
        sigma: root of the largest eigenvalue of the classes' covariances: of the rows, not private.
    """

    rows: Array
    centre: Array
    b: Array
    sigma: float

    @property
    def columns(self) -> tuple[BoundedColumn, ...]:
        """Return columns with bounds -1 and 1."""
        return tuple(BoundedColumn(name, -1.0, 1.0) for name in ADULT_COLUMNS)


def adult_table(folder: Path) -> Adult:
    """Reads adult.csv (codes from 0) and adult-domain.json (number of codes of each column)."""
    domain: dict[str, int] = json.loads((folder / "adult-domain.json").read_text())
    codes = np.loadtxt(folder / "adult.csv", delimiter=",", skiprows=1)
    names = list(domain)
    width = np.array([domain[name] - 1 for name in ADULT_COLUMNS])
    X = 2.0 * codes[:, [names.index(name) for name in ADULT_COLUMNS]] / width - 1.0
    rich = codes[:, names.index("income>50K")] == 1
    generator = np.random.default_rng(0)
    count = min(int(rich.sum()), int((~rich).sum()))
    classes = [generator.permutation(X[label])[:count] for label in (rich, ~rich)]
    upper, lower = (one.mean(axis=0) for one in classes)
    largest = max(float(np.linalg.eigvalsh(np.cov(one.T))[-1]) for one in classes)
    return Adult(np.concatenate(classes), (upper + lower) / 2, (upper - lower) / 2, largest**0.5)


def private_centre(table: Adult, rho: float) -> Array:
    """Mean of the rows: one Gaussian by FitDPEM."""
    d = len(ADULT_COLUMNS)
    request = fit_pb2.FitDPEMRequest(spend=types_pb2.Spend(rho=rho), n_components=1)
    found = fit_in_box(dpem, request, array_rows(table.rows), Box(-np.ones(d), np.ones(d)))[1]
    return np.asarray(array(found.means)[0])


PREPARATIONS = ("from the rows", "private centre", "middle of the bounds", "no centre")
"""Preparations. From the rows.

Centre and noise level as the paper has them, free: not private. Private centre: a tenth of rho for it, the noise level
estimated by the fit. Middle of the bounds: public. No centre: two Gaussians of any means.
"""


def adult_trial(table: Adult, preparation: str, method: Method, epsilon: float, seed: int) -> Json:
    """One fit: its distance from half of the difference of the classes' means, and from EM without noise."""
    d, n = table.rows.shape[1], len(table.rows)
    rho = rho_of(epsilon, 1.0 / n)
    fields: Fields = {"model": fit_pb2.LATENT_MODEL_SYMMETRIC_MIXTURE}
    if preparation == "from the rows":
        fields |= {"centre": tensor(table.centre), "noise_std": table.sigma}
    elif preparation == "private centre":
        centre = np.clip(private_centre(table, CENTRE_SHARE * rho), -1.0, 1.0)
        fields |= {"centre": tensor(centre)}
        rho *= 1.0 - CENTRE_SHARE
    elif preparation == "no centre":
        fields = {"model": fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE}
    fields |= {"scale": method.scale * table.sigma}
    if method.variant is not None:
        fields |= {"variant": method.variant}
    request = fit_pb2.FitGradientEMRequest(
        spend=types_pb2.Spend(rho=rho), random=fit_pb2.StartAtRandom(public_seed=seed), **fields
    )
    found = array(fit(request, table.rows, table.columns).coefficients)
    b = (found[0] - found[1]) / 2
    plain = em_mixture(table.rows - table.centre, start(d, seed) * table.sigma, table.sigma)
    return {"error": apart(b, table.b), "from_em": apart(b, plain), "em_error": apart(plain, table.b)}


def apart(one: Array, other: Array) -> float:
    """Distance up to the sign."""
    return min(float(np.linalg.norm(one - other)), float(np.linalg.norm(one + other)))


def tensor(values: Array) -> types_pb2.Tensor:
    """Return a tensor of one dimension."""
    return types_pb2.Tensor(shape=[len(values)], values=values.tolist())


def adult(wish: Wish) -> None:
    """Errors by preparation, epsilon and variant."""
    if wish.adult is None:
        print("\nAdult: left out; --adult names its folder")
        return
    table, rows = adult_table(wish.adult), []
    facts = {"n": len(table.rows), "b": float(np.linalg.norm(table.b)), "sigma": table.sigma, "columns": ADULT_COLUMNS}
    methods = (DEFAULT, RADIAL, TRUNCATED, *CLIPPED, DP_EM)
    for preparation, epsilon in product(PREPARATIONS, wish.extent.epsilons):
        row: Json = {"preparation": preparation, "epsilon": epsilon}
        for method in methods:
            found = []
            for seed in range(wish.extent.seeds):
                key = f"adult, {preparation}, epsilon {epsilon:g}, seed {seed}, {method.name}"
                if time.monotonic() > wish.until and not wish.kept.known([key]):
                    break
                found.append(wish.kept.result(key, partial(adult_trial, table, preparation, method, epsilon, seed)))
            if found:
                row[method.name] = {name: statistics.median(one[name] for one in found) for name in found[0]}
                row[method.name]["trials"] = len(found)
        rows.append(row)
    wish.save("facts", facts)
    wish.save("fits", rows)
    print(
        f"\nAdult, {facts['n']:,} rows, |b| = {facts['b']:.3f}, sigma = {facts['sigma']:.3f} half-widths: "
        "median distance from b, and in brackets from EM without noise with the paper's centre and noise level"
    )
    print(f"{'preparation':>20} {'epsilon':>7} {'EM':>7} " + " ".join(f"{one.name:>15}" for one in methods))
    for row in rows:
        texts = [
            f"{row[one.name]['error']:.3f} ({row[one.name]['from_em']:.3f})" if one.name in row else "-"
            for one in methods
        ]
        em = f"{row['default']['em_error']:.3f}" if "default" in row else "-"
        print(f"{row['preparation']:>20} {row['epsilon']:>7g} {em:>7} " + " ".join(f"{text:>15}" for text in texts))


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
                spend=types_pb2.Spend(rho=1.0), iterations=TIMED_STEPS, **method.fields(model, 1.0)
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


def times(wish: Wish) -> None:
    """Measure the times of a step, by model and rows."""
    variants, found = (DEFAULT, TRUNCATED), []
    print(
        f"\nSeconds of a step (sums, noise, new parameters), d = {TIMED_DIMENSION}, one thread, medians of "
        f"{wish.extent.rounds} rounds in turns"
    )
    print(
        f"{'model':>5} {'n':>9} {'numpy':>8} {'default':>8} {'over numpy':>10} {'truncated':>9} "
        f"{'default, ns a row':>17}"
    )
    for name, n in product(wish.extent.models, wish.extent.rows):
        row = timed(MODELS[name], n, wish.extent.rounds, variants)
        found.append(row)
        seconds, over = row["seconds"], statistics.median(row["over_numpy"])
        print(
            f"{name:>5} {n:>9,} {seconds['numpy']:>8.4f} {seconds['default']:>8.4f} {over:>10.2f} "
            f"{seconds['truncated']:>9.4f} {seconds['default'] / n * 1e9:>17.0f}",
            flush=True,
        )
        wish.save("steps", found)


# --- picture ------------------------------------------------------------------------------------------------

PICTURE = Path(__file__).parent.parent / "docs" / "fit-gradient-em.png"

NAMES = {"GMM": "symmetric mixture", "MRM": "mixture of regressions", "RMC": "missing features"}


def picture(wish: Wish) -> None:
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


PARTS: dict[str, Callable[[Wish], None]] = {
    "time": times,
    "synthetic": synthetic,
    "adult": adult,
    "paper": paper,
    "heavy": heavy,
    "picture": picture,
}


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    parser = options_of(__doc__, PARTS)
    parser.add_argument("--adult", type=Path, help="folder of adult.csv and adult-domain.json")
    parser.add_argument("--seeds", type=int, help="in each cell; left out: 20")
    parser.add_argument("--fresh", type=int, help="further ones where another variant was better; left out: 80")
    parser.add_argument("--sizes", type=int, nargs="*", help="numbers of rows; left out: 1000 10000 100000")
    parser.add_argument("--dimensions", type=int, nargs="*", help="left out: 5 10 20 50")
    parser.add_argument("--epsilons", type=float, nargs="*", help="left out: 0.2 0.5 1")
    parser.add_argument("--models", nargs="*", choices=[*MODELS], help="left out: all")
    parser.add_argument("--methods", nargs="*", help="that are measured now; left out: all")
    parser.add_argument("--rounds", type=int, help="of times; left out: 5")
    parser.add_argument("--rows", type=int, nargs="*", help="of times; left out: 10000 100000 1000000")
    options = parser.parse_args()
    output = output_of(options, __file__)
    given = {
        name: getattr(options, name)
        for name in ("seeds", "fresh", "rounds", "minutes")
        if getattr(options, name) is not None
    }
    for name in ("sizes", "dimensions", "epsilons", "models", "methods", "rows"):
        if getattr(options, name):
            given[name] = tuple(getattr(options, name))
    extent = replace(QUICK if options.quick else Extent(), **given)
    kept = Kept(output and output.with_suffix(".kept"))
    gradient_em.warm_up()
    for part in options.parts or PARTS:
        begun = time.monotonic()
        PARTS[part](
            Wish(
                extent,
                partial(saved, output, part, settings=SETTINGS),
                kept,
                options.adult,
                begun + 60 * extent.minutes,
            )
        )
        print(f"  ({part}: {time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
