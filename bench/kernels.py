"""Every statistic of the fits against plain numpy, and an EM step against scikit-learn's: `python bench/kernels.py`.

    python bench/kernels.py                  medians of seven rounds in turns, and bench/results/kernels.json
    python bench/kernels.py steps noise      some parts
    python bench/kernels.py --quick          few rows, five rounds, no JSON: minutes

statistics: nanoseconds of a row, on one processor, with truncation to integers and exact sums; beside them the same
arithmetic without privacy in plain numpy, as fast as we could write it, in slices that stay in a cache.
steps: an EM step of FitDPEM and of scikit-learn's GaussianMixture, on one processor and on all.
noise: what part of a whole fit's time the noise takes at d = 50, k = 10 and 20 steps, and would with OpenDP's sampler.
times: only where it is asked for, and in no JSON: every kernel's time on chosen rows over that on ordinary ones.

One-processor times are those of the processor, not of the clock, so that what else runs on the machine matters less.
"""

from __future__ import annotations

import os
import statistics as st
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))  # scikit-learn's, where it may have all

import _em
import _mrf
import _separated_kernels
import _times
import gradient_em as gradient_bench
import numpy as np
from _common import Json, options_of, output_of, part_of, ratio_of, saved, show, spread_of
from _kmeans import cube
from _kmeans import fit as fit_method
from numpy.typing import NDArray
from sketch import numpy_part, statistic_of
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from bursar_ledger import Adjacency, cost_units
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import PublicTable, dpem, gradient_em, mrf
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.vault import (
    ArrayRows,
    ExactNoise,
    LocalEngine,
    Meter,
    Noise,
    OpenDPNoise,
    Release,
    Session,
    Statistic,
    SyntheticBudget,
    exact_sum,
)

Array = NDArray[np.float64]

KINDS = {"full": Moments.FULL, "diag": Moments.DIAG, "spherical": Moments.SPHERICAL}

BAR = 1.2
"""Bar of a statistic's time over numpy's."""

STEP_BARS = {10: 0.2, 50: 1 / 3}
"""Bars of an EM step's time over scikit-learn's, by the number of columns."""

NOISE_BAR = 0.1
"""Bar of the noise's share of a fit's time."""

SLICE = 1000
"""Rows that plain numpy takes at a time: the fastest of 250, 500, 1,000, 4,000 and all where this was written."""


@dataclass(frozen=True)
class Extent:
    """Extent of the measurement."""

    rounds: int
    rows: int
    step_rounds: int
    step_rows: int
    noise_rows: tuple[int, ...]


FULL = Extent(rounds=7, rows=400_000, step_rounds=5, step_rows=1_000_000, noise_rows=(100_000, 1_000_000))
QUICK = Extent(rounds=5, rows=50_000, step_rounds=5, step_rows=200_000, noise_rows=(100_000,))


def in_turns(rounds: int, tasks: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Return what tasks return, round by round; a first round is not counted."""
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for i in range(rounds + 1):
        for name, task in tasks.items():
            value = task()
            if i > 0:
                found[name].append(value)
    return found


def processor_seconds(work: Callable[[], Any]) -> float:
    """Return the time of one run on one processor: this thread's. Others may still turn after what ran before."""
    with threadpool_limits(1):
        begun = time.thread_time()
        work()
        return time.thread_time() - begun


def seconds(work: Callable[[], Any]) -> float:
    """Return the time of one run, by the clock."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# --- statistics ---------------------------------------------------------------------------------------------


def moments_step(d: int, k: int, moments: Moments, *, hard: bool = False) -> tuple[BallFrame, EStep]:
    """A step about k means, recentred, in the unit ball."""
    generator = np.random.default_rng([d, k])
    diagonal = moments in (Moments.DIAG, Moments.SPHERICAL)
    means = generator.uniform(-0.3, 0.3, (k, d)) / np.sqrt(d)
    lower = np.tril(0.1 * generator.standard_normal((k, d, d)), -1) * (not diagonal) + 4.0 * np.eye(d)
    step = EStep(hard, np.zeros(k), means, lower, diagonal, means, lower / np.sqrt(2.0 * d))
    return BallFrame(np.zeros(d), np.full(d, 10.0 * np.sqrt(d))), step


def numpy_moments(X: Array, frame: BallFrame, step: EStep, moments: Moments) -> None:
    """Clipped positions, responsibilities, clipped residuals and their moments in double numbers."""
    K, d = step.means.shape
    scaled = [whitener.T.copy() for whitener in step.factors]
    for first in range(0, len(X), SLICE):
        z = (X[first : first + SLICE] - frame.centre) / frame.scale
        z /= np.maximum(np.sqrt(np.einsum("ij,ij->i", z, z)), 1.0)[:, None]
        if step.diagonal:
            y = [(z - step.means[k]) * np.diag(step.factors[k]) for k in range(K)]
        else:
            y = [(z - step.means[k]) @ scaled[k] for k in range(K)]
        squares = np.array([np.einsum("ij,ij->i", one, one) for one in y])
        gamma = np.exp(-0.5 * (squares - squares.min(axis=0)))
        gamma /= gamma.sum(axis=0)
        for k in range(K):
            u = y[k] * (1.0 / np.maximum(np.sqrt(squares[k]), np.sqrt(2.0 * d)))[:, None]
            weighted = u * gamma[k][:, None]
            _ = gamma[k].sum(), weighted.sum(axis=0)
            _ = weighted.T @ u if moments in (Moments.FULL, Moments.TIED) else np.einsum("ij,ij->j", weighted, u)


def gradient_statistic(model: _em.Model, d: int) -> Statistic:
    """Return the statistic of the model's first step, as a fit asks for it."""
    rows, _ = model.draw(2_000, d, "normal", np.random.default_rng(0))
    request = fit_pb2.FitGradientEMRequest(
        spend=types_pb2.Spend(rho=1.0), iterations=2, **gradient_bench.DEFAULT.fields(model)
    )
    table = PublicTable("bench", model.columns(d), Adjacency.REPLACE_ONE, 1, len(rows))
    plan = gradient_em.plan(request, table, lambda entry: None)
    seen: list[Release] = []
    session = Session(
        rows=ArrayRows(np.ascontiguousarray(rows.T)),
        columns=rows.shape[1],
        adjacency=Adjacency.REPLACE_ONE,
        unit_cap=1,
        meter=Meter(SyntheticBudget(_em.ORDER, cost_units(plan.events, _em.ORDER))),
        source=ExactNoise(),
        tap=seen.append,
    )
    gradient_em.run(plan, session)
    return seen[-1].statistic


def table_statistic(sizes: tuple[int, ...]) -> Statistic:
    """Return the statistic of one clique of all columns, as a fit asks for it."""
    columns = _mrf.numeric_columns(sizes)
    request = _mrf.cliques_request([tuple(range(len(sizes)))], 1.0, pure=False)
    request.columns[:] = [column.name for column in columns]
    plan = mrf.plan(request, PublicTable("bench", columns, Adjacency.ADD_REMOVE_ONE, 1, 1000), lambda entry: None)
    seen: list[Release] = []
    session = Session(
        rows=ArrayRows(np.zeros((len(sizes), 1000))),
        columns=len(sizes),
        adjacency=Adjacency.ADD_REMOVE_ONE,
        unit_cap=1,
        meter=Meter(SyntheticBudget(_mrf.ORDER, cost_units(plan.events, _mrf.ORDER))),
        source=ExactNoise(),
        tap=seen.append,
    )
    mrf.run(plan, session)
    return seen[-1].statistic


def numpy_table(X: Array, sizes: tuple[int, ...]) -> None:
    """Bins of numbers by their inner edges, cells, and how many rows are in each."""
    edges = [np.arange(1.0, size) for size in sizes]
    for first in range(0, len(X), 8192):
        cells = np.zeros(min(8192, len(X) - first), dtype=np.int64)
        for i, size in enumerate(sizes):
            cells = cells * size + np.searchsorted(edges[i], X[first : first + 8192, i], side="right")
        np.bincount(cells, minlength=int(np.prod(sizes)))


@dataclass(frozen=True)
class Case:
    """Case to measure, and the same in plain numpy.

    Attributes:
        name: of the statistic.
        ours: one pass over all rows.
        theirs: likewise.
        rows: how many there are.
        numbers: that a release has.
    """

    name: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    rows: int
    numbers: int


def case_of(name: str, statistic: Statistic, X: Array, theirs: Callable[[], Any]) -> Case:
    """Return the case of a statistic of rows (n, d)."""
    rows = ArrayRows(np.ascontiguousarray(X.T))
    return Case(name, partial(summed, statistic, rows), theirs, len(X), statistic.size)


def in_slices(work: Callable[[Array], Any], X: Array) -> None:
    """Some work on slices of rows."""
    for first in range(0, len(X), SLICE):
        work(X[first : first + SLICE])


def cases(n: int) -> Iterator[Case]:
    """Statistics of the five fits; one at a time, as rows take memory."""
    generator = np.random.default_rng(0)
    for d, k in ((10, 5), (50, 5)):
        X = generator.standard_normal((n, d))
        for moments in KINDS.values():
            yield moments_case(f"FitDPEM {moments.name.lower()}, d = {d}, k = {k}", X, k, moments)
    for name, model in _em.MODELS.items():
        rows, b = model.draw(n, 20, "normal", np.random.default_rng(1))
        work = partial(in_slices, partial(gradient_bench.NUMPY[name], b=b), rows)
        yield case_of(f"FitGradientEM {name}, d = 20", gradient_statistic(model, 20), rows, work)
    X, W = np.clip(generator.standard_normal((n // 10, 10)) / 4.0, -1, 1), generator.standard_normal((10, 1000))
    for kind in ("float64", "float32"):
        some: Any = X.astype(kind), W.astype(kind)
        numpys = partial(numpy_part, *some, complex_exponential=False)
        yield case_of(f"FitSketchKMeans, d = 10, m = 1000 ({kind})", statistic_of(1000, 10), X, numpys)
    X, W = np.random.default_rng(2).uniform(-1, 1, (n // 20, 128)), np.random.default_rng(3).normal(size=(128, 4096))
    numpys = partial(numpy_part, X.astype("float32"), W.astype("float32"), complex_exponential=False)
    yield case_of("FitSketchKMeans, hadamard, m = 4096", statistic_of(4096, 128, structure="hadamard"), X, numpys)
    for sizes in ((10, 10), (5, 5, 5)):
        X = generator.uniform(0, sizes[0], (n, len(sizes)))
        name = f"FitMRF, table of {' x '.join(map(str, sizes))}"
        yield case_of(name, table_statistic(sizes), X, partial(numpy_table, X, sizes))
    yield from separated_cases(n)


def moments_case(name: str, X: Array, k: int, moments: Moments) -> Case:
    """An EM step."""
    frame, step = moments_step(X.shape[1], k, moments)
    work = partial(numpy_moments, X, frame, step, moments)
    return case_of(name, moment_statistic(frame, step, moments, Weights(0.5, 0.7, 1.0)), X, work)


def separated_cases(n: int) -> Iterator[Case]:
    """Everything that FitSeparatedGMM asks of rows: searches, counts, parts, moments, the polish, and blocks."""
    X = np.random.default_rng(2).standard_normal((n, _separated_kernels.D))
    for name, statistic, rows, work in _separated_kernels.cases(X):
        yield case_of(f"FitSeparatedGMM, {name}, d = {_separated_kernels.D}", statistic, rows, work)
    yield moments_case(
        f"FitSeparatedGMM, polish, d = {_separated_kernels.D}, k = 5 and a background", X, 6, Moments.FULL
    )
    few, k = X[: n // 20].copy(), 5
    ours, theirs = (
        partial(one, few, k) for one in (_separated_kernels.block_spheres, _separated_kernels.numpy_spheres)
    )
    yield Case(f"FitSeparatedGMM, k-means of blocks, d = {_separated_kernels.D}, k = {k}", ours, theirs, len(few), 0)


def summed(statistic: Statistic, rows: ArrayRows, threads: int = 1) -> None:
    """Sum once, exactly."""
    exact_sum(statistic, rows, len(rows.columns), engine=LocalEngine(threads))


def nanoseconds(work: Callable[[], Any], n: int) -> float:
    """Return the nanoseconds of one of n rows, on one processor."""
    return 1e9 * processor_seconds(work) / n


def measure_statistics(extent: Extent) -> list[Json]:
    """Measure each case, in turns with numpy."""
    found: list[Json] = []
    for case in cases(extent.rows):
        tasks = {
            "ours": partial(nanoseconds, case.ours, case.rows),
            "theirs": partial(nanoseconds, case.theirs, case.rows),
        }
        times = in_turns(extent.rounds, tasks)
        found.append(
            {"case": case.name, "numbers": case.numbers, **ratio_of(times["ours"], times["theirs"]), "bar": BAR}
        )
    names = ("case", "ours", "theirs", "ratio", "bar")
    show("Nanoseconds of a row, one processor", [part_of(row, *names) for row in found])
    return found


# --- EM steps -----------------------------------------------------------------------------------------------


def sklearn_step(X: Array, means: Array, name: str, clock: Callable[[Callable[[], Any]], float]) -> float:
    """Seconds of an iteration: half of the difference between three and one."""
    k, d = means.shape
    precisions = {"full": np.array([np.eye(d)] * k), "diag": np.ones((k, d)), "spherical": np.ones(k)}[name]
    weights = np.full(k, 1 / k)
    given: Json = {"weights_init": weights, "means_init": means, "precisions_init": precisions}
    one, three = (GaussianMixture(k, covariance_type=name, max_iter=T, tol=0.0, **given) for T in (1, 3))
    return (clock(lambda: three.fit(X)) - clock(lambda: one.fit(X))) / 2


def measure_steps(extent: Extent) -> list[Json]:
    """Measure steps against scikit-learn."""
    n, k, processors = extent.step_rows, 5, os.cpu_count() or 1
    found = []
    for d, bar in STEP_BARS.items():
        generator = np.random.default_rng(d)
        means = generator.uniform(-6, 6, (k, d))
        X = means[generator.integers(k, size=n)] + generator.standard_normal((n, d))
        rows = ArrayRows(np.ascontiguousarray(X.T))
        for name, moments in KINDS.items():
            frame, step = moments_step(d, k, moments)
            statistic = moment_statistic(frame, step, moments, Weights(0.5, 0.7, 1.0))
            theirs = partial(sklearn_step, X, means, name)
            tasks: dict[str, Callable[[], float]] = {
                "ours": partial(processor_seconds, partial(summed, statistic, rows)),
                "theirs": partial(theirs, processor_seconds),
                "all ours": partial(seconds, partial(summed, statistic, rows, processors)),
                "all theirs": partial(theirs, seconds),
            }
            times = in_turns(extent.step_rounds, tasks)
            row: Json = {"covariances": name, "n": n, "d": d, "k": k, "bar": bar}
            row |= ratio_of(times["ours"], times["theirs"])
            row["all"] = ratio_of(times["all ours"], times["all theirs"]) | {"processors": processors}
            found.append(row)
    told = [part_of(row, "covariances", "d", "ours", "theirs", "ratio", "bar") for row in found]
    told = [row | {"all processors": one["all"]["ratio"]} for row, one in zip(told, found, strict=True)]
    show(f"An EM step, n = {n:,}, k = {k}: seconds, and their ratio to scikit-learn's", told)
    return found


# --- noise --------------------------------------------------------------------------------------------------

NOISE_STEPS = 20


class TimedNoise(ExactNoise):
    """Sums up the seconds that it takes, and keeps the sizes of what it is given.

    Attributes:
        seconds: of one processor.
        asked: the noise and the number of integers of every release.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.asked: list[tuple[Noise, int]] = []

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """See `ExactNoise`."""
        begun = time.process_time()
        noisy = super().add(sums, noise)
        self.seconds += time.process_time() - begun
        self.asked.append((noise, sums.size))
        return noisy


def timed_fit(rows: ArrayRows, name: str, k: int) -> tuple[float, TimedNoise]:
    """Seconds of a whole fit, and the source that drew its noise."""
    kinds = {
        "full": fit_pb2.COVARIANCE_TYPE_FULL,
        "diag": fit_pb2.COVARIANCE_TYPE_DIAG,
        "spherical": fit_pb2.COVARIANCE_TYPE_SPHERICAL,
    }
    request = fit_pb2.FitDPEMRequest(
        spend=types_pb2.Spend(rho=1.0), n_components=k, covariance_type=kinds[name], iterations=NOISE_STEPS
    )
    source = TimedNoise()
    box = cube(len(rows.columns), 6.0)
    whole = processor_seconds(lambda: fit_method(dpem, request, rows, box, threads=1, source=source))
    return whole, source


def measure_noise(extent: Extent) -> list[Json]:
    """Measure the noise of whole fits, and of OpenDP's sampler for the same releases, drawn once more."""
    d, k = 50, 10
    found = []
    for n in extent.noise_rows:
        rows = ArrayRows(np.clip(np.random.default_rng(n).standard_normal((d, n)), -6.0, 6.0))
        for name in KINDS:
            fits = [timed_fit(rows, name, k) for _ in range(3)]
            asked = fits[-1][1].asked
            opendp = processor_seconds(partial(_drawn_by_opendp, asked))
            whole, noise = st.median(one for one, _ in fits), st.median(source.seconds for _, source in fits)
            row: Json = {
                "n": n,
                "d": d,
                "k": k,
                "covariances": name,
                "steps": NOISE_STEPS,
                "numbers": sum(size for _, size in asked),
                "fit": whole,
                "noise": noise,
                "share": st.median(source.seconds / one for one, source in fits),
                "share_spread": spread_of([source.seconds / one for one, source in fits]),
                "share_opendp": opendp / (whole - noise + opendp),
                "bar": NOISE_BAR,
            }
            found.append(row)
    told = [{name: value for name, value in row.items() if name != "share_spread"} for row in found]
    show("Noise of a whole fit: seconds of one processor", told)
    return found


def _drawn_by_opendp(asked: list[tuple[Noise, int]]) -> None:
    for noise, size in asked:
        OpenDPNoise().add(np.zeros(size, dtype=np.int64), noise)


# --- chosen rows ---------------------------------------------------------------------------------------------


def print_times(rounds: int) -> None:
    """Print the ratios of every kernel on every kind of chosen rows, and which of them leave the bar."""
    told = []
    for case in _times.cases():
        usual, ratios = _times.measured(case, rounds)
        told.append({"case": case[0], "ns": usual} | ratios)
    show(f"Time over that of ordinary rows, expected within a factor of {_times.BAR:g}", told)


PARTS: dict[str, Callable[[Extent], list[Json]]] = {
    "statistics": measure_statistics,
    "steps": measure_steps,
    "noise": measure_noise,
}


def main() -> None:
    """Runs the parts that were asked for."""
    warnings.filterwarnings("ignore")  # scikit-learn's, about iterations that were asked for
    options = options_of(__doc__, [*PARTS, "times"]).parse_args()
    output = output_of(options, __file__)
    for name, part in PARTS.items():
        if name in (options.parts or PARTS):
            saved(output, name, "rows", part(QUICK if options.quick else FULL))
    if "times" in options.parts:
        print_times(15 if options.quick else 60)


if __name__ == "__main__":
    main()
