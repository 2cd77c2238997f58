"""Ratios of each kernel's time on chosen rows to its time on ordinary rows, for kernels.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import _separated_kernels
import numpy as np
from numpy.typing import NDArray
from sketch import statistic_of

from bursar_models.mrf import Variable
from bursar_server.fits.gradient_em import _kernel
from bursar_server.fits.gradient_em._statistics import GradientFrame as Box
from bursar_server.fits.gradient_em._statistics import (
    GradientKernel,
    Look,
    Shape,
    Transform,
    gradient_statistic,
    look_statistic,
)
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.fits.mrf._statistics import (
    Layout,
    firsts_statistic,
    table_statistic,
    tables_statistic,
    transitions_statistic,
)
from bursar_server.vault import CHUNK, Statistic

Array = NDArray[np.float64]

BAR = 1.1
"""Largest ratio allowed: slowest rows to ordinary ones, and ordinary ones to the fastest."""

WORK = 2e-3
"""Seconds of one measurement at least; shorter ones say more of the clock."""

CHOSEN = {
    "zeros": 0.0,
    "low corner": -1e3,
    "high corner": 1e3,
    "1e-310": 1e-310,
    "1e-160": 1e-160,
    "1e-30": 1e-30,
    "NaN": np.nan,
    "1e300": 1e300,
    "infinite": np.inf,
}
"""Numbers that all columns have."""

KINDS = (*CHOSEN, "absent")

Case = tuple[str, Statistic, Array]
"""Name, statistic, and ordinary rows (columns, CHUNK)."""


def cases() -> Iterator[Case]:
    """Every kernel of every fit."""
    yield from _moments()
    yield from _gradients()
    yield from _sketches()
    yield from _tables()
    X = _generator().standard_normal((10 * CHUNK, _separated_kernels.D))
    for name, statistic, _, _ in _separated_kernels.cases(X):
        yield f"FitSeparatedGMM, {name}", statistic, np.ascontiguousarray(X[:CHUNK].T)
    for threshold in (2**63, 2**60):
        name = f"FitSeparatedGMM, search of a {2**64 // threshold}th"
        yield name, _separated_kernels.sampled(threshold), np.ascontiguousarray(X[:CHUNK].T)
    yield "FitSeparatedGMM, a block's k-means", _separated_kernels.block_statistic(4), np.ascontiguousarray(X[:CHUNK].T)


def measured(case: Case, rounds: int) -> tuple[float, dict[str, float]]:
    """Nanoseconds of an ordinary row, and the ratio of each kind of rows: least times of rounds in turns."""
    _, statistic, ordinary = case
    all_present, none_present = np.ones(CHUNK, dtype=np.bool_), np.zeros(CHUNK, dtype=np.bool_)
    kinds = {name: (np.full_like(ordinary, value), all_present) for name, value in CHOSEN.items()}
    kinds |= {"ordinary": (ordinary, all_present), "absent": (ordinary, none_present)}
    out = np.zeros(statistic.size, dtype=np.int64)
    statistic.kernel(ordinary, all_present, out)
    once = _seconds(statistic, ordinary, all_present, out, 1)
    times = max(1, round(WORK / once))
    least = dict.fromkeys(kinds, np.inf)
    for _ in range(rounds):
        for name, (block, present) in kinds.items():
            least[name] = min(least[name], _seconds(statistic, block, present, out, times))
    usual = least.pop("ordinary")
    return 1e9 * usual / CHUNK, {name: seconds / usual for name, seconds in least.items()}


def _seconds(statistic: Statistic, block: Array, present: NDArray[np.bool_], out: Any, times: int) -> float:
    """Seconds of one pass, of this thread's processor."""
    begun = time.thread_time()
    for _ in range(times):
        statistic.kernel(block, present, out)
    return (time.thread_time() - begun) / times


def _generator() -> np.random.Generator:
    return np.random.default_rng(5)


def _moments() -> Iterator[Case]:
    for d, K in ((2, 1), (10, 5)):
        X = _generator().standard_normal((d, CHUNK))
        for moments in Moments:
            diagonal = moments in (Moments.DIAG, Moments.SPHERICAL)
            generator = np.random.default_rng([d, K])
            means = generator.uniform(-0.3, 0.3, (K, d)) / np.sqrt(d)
            lower = np.tril(0.1 * generator.standard_normal((K, d, d)), -1) * (not diagonal) + 4.0 * np.eye(d)
            for hard in (False, True):
                step = EStep(hard, np.zeros(K), means, lower, diagonal, means, lower / np.sqrt(2.0 * d))
                frame = BallFrame(np.zeros(d), np.full(d, 10.0 * np.sqrt(d)))
                name = f"FitDPEM {moments.name.lower()} {'hard' if hard else 'soft'}, d = {d}, k = {K}"
                yield name, moment_statistic(frame, step, moments, Weights(1.0, 0.7, 1.0)), X


def _gradients() -> Iterator[Case]:
    d = 10
    X = _generator().uniform(-0.9, 0.9, (d, CHUNK))
    nullable = np.arange(d) < d - 1
    box, open_box = (Box(np.zeros(d), np.ones(d), np.ones(d), may) for may in (nullable & False, nullable))
    for look in Look:
        missing = look is Look.MISSING
        yield f"FitGradientEM look {look.value}", look_statistic(look, open_box if missing else box), X
    for K in (1, 3):
        means, every = np.random.default_rng(K).uniform(-0.5, 0.5, (K, d)), np.ones(K)
        maps = (np.eye(d - 1), np.zeros(d), True)
        for transform in Transform:
            name = f"{transform.name.lower()}, k = {K}"
            shape = Shape(K, d, transform, 1.3)
            common = (0.7 * every, 0.5 * every, np.empty(0))
            # About the middle of the bounds, where starts are: rows of zeros are at the point itself.
            arguments: tuple[Any, ...] = (0 * every, 2.0 * every, 0 * means, 0 * means, *common)
            mixture = GradientKernel(_kernel.location_sums, box, arguments, shape)
            yield f"FitGradientEM mixture {name}", gradient_statistic(mixture), X
            arguments = (0 * every, 2.0 * every, means, maps, *common)
            lines = GradientKernel(_kernel.regression_sums, box, arguments, shape)
            yield f"FitGradientEM regressions {name}", gradient_statistic(lines), X
    for transform in Transform:
        for clip in (1.5, 1e6):
            arguments = (means[0], (np.ones(d - 1), np.zeros(d)), 0.5, clip, 0.8, 0.6, 1.0)
            with_missing = GradientKernel(_kernel.missing_sums, open_box, arguments, Shape(1, d, transform, 1.3))
            name = f"FitGradientEM missing {transform.name.lower()}, clip {clip:g}"
            yield name, gradient_statistic(with_missing), X


def _sketches() -> Iterator[Case]:
    d, m = 10, 256
    X = np.clip(_generator().standard_normal((d, CHUNK)) / 4.0, -1.0, 1.0)
    for structure in ("dense", "hadamard"):
        for signature in ("exponential", "one_bit"):
            for r in (m, m // 8):
                made: Any = statistic_of(m, d, structure=structure, signature=signature, r=r)
                yield f"FitSketchKMeans {structure} {signature}, {r} of {m}", made, X


def _tables() -> Iterator[Case]:
    edges = tuple(np.linspace(0.0, 10.0, 9).tolist())
    categories = tuple(Variable(f"c{i}", tuple(map(str, range(8)))) for i in range(3))
    bins = tuple(Variable(f"b{i}", tuple(map(str, range(8))), edges) for i in range(3))
    generator = _generator()
    for kind, variables in (("categories", categories), ("bins", bins)):
        for shares in (False, True):
            X = generator.uniform(0.0, 8.0 if kind == "categories" else 10.0, (3, CHUNK))
            X = np.trunc(X) if kind == "categories" else X
            X = np.concatenate([X, generator.integers(1, 4, (1, CHUNK))]) if shares else X
            layout, about = Layout(variables, shares), f"{kind}{', shares' if shares else ''}"
            yield f"FitMRF table of {about}", table_statistic(layout, (0, 1)), X
            yield f"FitMRF pairs of {about}", tables_statistic(layout, [(0, 1), (0, 2), (1, 2)]), X
            yield f"FitMRF firsts of {about}", firsts_statistic(layout, 0), X
            yield f"FitMRF transitions of {about}", transitions_statistic(layout, 0), X
