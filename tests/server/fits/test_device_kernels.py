"""Kernels in terms of the array API give the integers of the compiled ones, to the last, with every library at hand."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_models.mrf import Variable
from bursar_proto.v1 import fit_pb2
from bursar_server.fits.gradient_em._statistics import Look, Transform
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.fits.mrf import _array_kernel as _array_tables
from bursar_server.fits.mrf._statistics import (
    Layout,
    firsts_statistic,
    table_statistic,
    tables_statistic,
    transitions_statistic,
)
from bursar_server.vault import (
    CHUNK,
    ArrayRows,
    Bounds,
    EngineError,
    Factor,
    LocalEngine,
    Statistic,
    _statistic,
    exact_sum,
)
from bursar_server.vault._device import DeviceKernel, on_device
from tests.server.fits import fielding, gradient, running, separated
from tests.server.fits.fielding import variables
from tests.server.fits.running import NoNoise, clusters
from tests.server.vault.doubles import Best

NAMESPACES = ["numpy", "array_api_strict", "torch", "torch:cuda", "cupy"]
"""The last three where they are installed, and have a device."""

KINDS = [Moments.SPHERICAL, Moments.DIAG, Moments.FULL, Moments.TIED]


@pytest.fixture(params=NAMESPACES)
def device(request: pytest.FixtureRequest) -> str:
    """A device that is there, or that DEVICES names; others are skipped with the reason."""
    library, _, where = request.param.partition(":")
    if request.param in os.environ.get("DEVICES", "").split(","):
        return str(request.param)
    module = pytest.importorskip(library)
    if where == "cuda" and not module.cuda.is_available():
        pytest.skip("no CUDA device")
    if library == "cupy":
        try:
            module.cuda.runtime.getDeviceCount()
        except Exception as error:
            pytest.skip(f"no CUDA device: {error}")
    return str(request.param)


def steps(K: int, d: int, *, hard: bool, own: bool, diagonal: bool) -> EStep:
    """Parameters of a step; with moments about centres of their own, or about the means. Soft: with a background."""
    generator = np.random.default_rng([K, d])  # noqa: TID251 - parameters of a test
    means = generator.uniform(-0.4, 0.4, (K, d))
    lower = np.tril(generator.standard_normal((K, d, d)), -1) * (not diagonal) + 4.0 * np.eye(d)
    whiteners = np.broadcast_to(1.3 * np.eye(d), (K, d, d)).copy() if own else lower / 3.1
    centres = np.zeros_like(means) if own else means
    return EStep(hard, np.log(np.arange(1.0, K + 1 + (not hard))), means, lower, diagonal, centres, whiteners)


def rows(n: int, d: int) -> ArrayRows:
    """Clusters, outliers, numbers that are not finite, huge and tiny ones, null rows."""
    generator = np.random.default_rng(d)  # noqa: TID251 - rows of a test
    X = generator.standard_normal((d, n))
    X[:, : n // 3] *= 20.0
    for place, value in enumerate((np.nan, np.inf, -np.inf, 1e308, -1e99, 5e-324, -0.0)):
        X[place % d, place * 7] = value
    return ArrayRows(X, generator.random(n) < 0.9)


def check(device: str, statistic: Statistic, table: ArrayRows, columns: int) -> None:
    """The device's sums are those of the compiled kernel, which are not all zero; and the device was asked."""
    assert isinstance(statistic.kernel, DeviceKernel)
    compiled = exact_sum(statistic, table, columns)
    np.testing.assert_array_equal(exact_sum(statistic, table, columns, engine=LocalEngine(1, device)), compiled)
    assert np.abs(compiled).max() > 0


@pytest.mark.parametrize("own", [False, True], ids=["recentred", "fixed"])
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("moments", KINDS, ids=lambda one: one.name)
def test_the_same_integers(device: str, moments: Moments, hard: bool, own: bool) -> None:
    """Every number of the sums, for every form of moments, whatever the rows hold."""
    for K, d in ((1, 1), (3, 7), (2, 26)):
        step = steps(K, d, hard=hard, own=own, diagonal=moments in (Moments.SPHERICAL, Moments.DIAG))
        frame, weights = BallFrame(np.full(d, 0.1), np.full(d, 5.0)), Weights(0.3, 0.7, 0.9)
        check(device, moment_statistic(frame, step, moments, weights), rows(CHUNK // 4, d), d)


MEANS = np.array([[0.1, -0.3, 0.4, 0.2], [-0.5, 0.0, 0.3, -0.2], [0.3, 0.3, -0.4, 0.6]])
SIGNS = np.array([1.0, -1.0])


def steps_of_gradients(transform: Transform) -> list[Statistic]:
    """Return steps of every model: one component, some, and two that fold into one; residuals clipped, and not.

    Also of parameters with which numbers overflow on the way.
    """
    models = [gradient.located, gradient.regressed]
    return [
        *(make(MEANS[:k], 0.7, transform) for make in models for k in (1, 3)),
        *(make(MEANS[:2], 0.7, transform, signs=SIGNS, precision=p) for make in models for p in (4.0, 500.0)),
        *(make(s * MEANS, 1.0 / s, transform, precision=s) for make in models for s in (1e-100, 1e100)),
        *(gradient.regressed_with_missing(MEANS[0], 0.5, 0.6, transform, clip=c, square=0.8) for c in (1.4, 1e6)),
    ]


def plain_rows(columns: int) -> ArrayRows:
    """Rows of which some are far away, on the bounds, or without a number in some column; null rows."""
    generator = np.random.default_rng(columns)  # noqa: TID251 - rows of a test
    X = generator.uniform(-1.3, 1.3, (columns, 2000))
    odd = [np.nan, np.inf, -np.inf, 1e308, 1e99, 5e-324, -0.0, 1.0, -1.0, np.nextafter(1.0, 2.0)]
    X = np.where(generator.random(X.shape) < 0.1, generator.choice(odd, X.shape), X)
    return ArrayRows(X, generator.random(2000) < 0.9)


@pytest.mark.parametrize("transform", list(Transform), ids=lambda one: one.name)
def test_the_same_gradients(device: str, transform: Transform) -> None:
    """Every number of every model's sums, by each of the transforms, and of its counts by radius."""
    made = steps_of_gradients(transform)
    # Distances that overflow, in the middle, are in no cell.
    counts = [gradient.by_radius(one) for one in (*made[:8], *made[-2:])] if transform is Transform.NORM else []
    for statistic in (*made, *counts):
        kernel: Any = statistic.kernel
        columns = len(getattr(kernel, "gradient", kernel).frame.centre)
        check(device, statistic, plain_rows(columns), columns)


@pytest.mark.parametrize("look", list(Look), ids=lambda one: one.name)
def test_the_same_looks(device: str, look: Look) -> None:
    """Every number of the first release."""
    for columns in (2, 7):
        check(device, gradient.looked(look, columns), plain_rows(columns), columns)


@pytest.fixture
def divisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Divisions of arrays by plain numbers, powers of two aside, and of these by arrays: torch rounds them twice."""
    strict: Any = importlib.import_module("array_api_strict")
    array, seen = type(strict.ones(1)), list[str]()
    by_array, of_number = array.__truediv__, array.__rtruediv__

    def noted(one: Any, other: Any) -> Any:
        if isinstance(other, (int, float)) and abs(math.frexp(other)[0]) != 0.5:
            seen.append(f"an array by {other}")
        return by_array(one, other)

    def noted_too(one: Any, other: Any) -> Any:
        seen.append(f"{other} by an array")
        return of_number(one, other)

    monkeypatch.setattr(array, "__truediv__", noted)
    monkeypatch.setattr(array, "__rtruediv__", noted_too)
    return seen


def test_plain_numbers_are_not_divided(divisions: list[str]) -> None:
    """No kernel may: rows on which another rounding shows in the integers are too rare to be met by chance."""
    for moments in KINDS:
        test_the_same_integers("array_api_strict", moments, False, True)
    for transform in Transform:
        test_the_same_gradients("array_api_strict", transform)
    for look in Look:
        test_the_same_looks("array_api_strict", look)
    assert divisions == []


MIXED = (
    Variable("a", ("p", "q", "r")),
    Variable("x", ("low", "mid", "high", "top"), (-1.0, 0.0, 0.5, 2.0, 4.0)),
    Variable("one", ("only",), (0.0, 1.0)),
    Variable("b", ("p", "q")),
)
SETS = [(0, 1), (1, 2, 3), (0, 3), (3, 1), (2, 1, 0, 3)]


def states(n: int, columns: int) -> ArrayRows:
    """States, edges of bins and what is next to them, divisors, and numbers that are none of these; null rows."""
    generator = np.random.default_rng(columns)  # noqa: TID251 - rows of a test
    odd = [0.0, -0.0, 5e-324, 0.5, np.nextafter(0.5, 0.0), 1.0, 2.0, 3.0, 2.0**63, -1e308, np.inf, -np.inf, np.nan]
    X = np.where(generator.random((columns, n)) < 0.7, generator.integers(0, 4, (columns, n)), 2.7)
    return ArrayRows(np.where(generator.random((columns, n)) < 0.4, generator.choice(odd, (columns, n)), X), X[0] > 0.0)


@pytest.mark.parametrize("shares", [False, True], ids=["rows", "shares"])
def test_the_same_tables(device: str, shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are of cliques, of pairs in two groups, and of chains with and without a null state."""
    monkeypatch.setattr(_array_tables, "_TABLES", 3)
    layout, paths = Layout(MIXED, shares), Layout(variables(3, 3, 3, 3, 3), shares)
    tables = [table_statistic(layout, clique) for clique in ((0,), (1,), (2,), (3, 1), (2, 1, 0, 3))]
    chains = [make(paths, null) for make in (firsts_statistic, transitions_statistic) for null in (None, 0, 2)]
    for of, statistics in ((layout, [*tables, tables_statistic(layout, SETS)]), (paths, chains)):
        columns = len(of.columns)
        for statistic in statistics:
            check(device, statistic, states(CHUNK + 100, columns), columns)


def in_plain_integers(statistic: Statistic, column: NDArray[np.float64]) -> list[int]:
    """Moments of one component in one dimension, whose mean is 0 and whose clip radius 1, in Python's integers."""
    unit = 2**18
    positions = [min(max(int(x * 2**24), -(2**24)), 2**24) for x in column.tolist()]
    nearly = unit * (1.0 - 2.0**-30)
    share = int(nearly)
    w = [int(z / 2**24 * (nearly / max(abs(z) / 2**24, 1.0))) for z in positions]
    a, b, c = (float(x) for x in statistic.kernel.weights)  # type: ignore[attr-defined]
    s = [int(x * float(np.sqrt(c * (share / unit)))) for x in w]
    return [int(a * unit) * share * len(w), int(b * share) * sum(w), sum(x * x for x in s)]


def test_one_dimension_by_hand() -> None:
    """The definition once more, in integers of Python: what compiled kernel and array API have in common is right."""
    column = np.linspace(-1.5, 1.5, 200)
    eye = np.ones((1, 1, 1))
    step = EStep(False, np.zeros(1), np.zeros((1, 1)), eye, False, np.zeros((1, 1)), eye)
    statistic = moment_statistic(BallFrame(np.zeros(1), np.ones(1)), step, Moments.FULL, Weights(0.3, 0.7, 0.9))
    assert exact_sum(statistic, ArrayRows(column[None]), 1).tolist() == in_plain_integers(statistic, column)


ROWS = clusters(600, 0, np.array([[-5.0, -5.0], [5.0, 5.0]]))
STATES = fielding.rows_of(600)
FITS: list[tuple[str, Callable[..., Any]]] = [
    ("FitDPEM", partial(running.run, running.plan(n_components=2), ROWS)),
    ("FitSeparatedGMM", partial(separated.run, separated.plan(n_components=2), 10.0 * ROWS)),
    ("FitGradientEM", partial(gradient.run, gradient.plan(model=gradient.MIXTURE, n_components=2), ROWS)),
    ("FitMRF", partial(fielding.run, fielding.plan(tree=fit_pb2.SelectTree(), columns="abcd"), STATES)),
]


@pytest.mark.parametrize(("name", "run"), FITS, ids=[name for name, _ in FITS])
def test_fits_ask_the_device(name: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole fit gives the same bytes with a device, which was asked; the parts of a forest are summed there, too."""
    blocks = [0]
    here = run(source=NoNoise(), search_source=Best())

    def counted(kernel: Any, device: str) -> Any:
        run_there = on_device(kernel, device)

        def there(*arguments: Any) -> None:
            blocks[0] += 1
            run_there(*arguments)

        return there

    monkeypatch.setattr(_statistic, "on_device", counted)
    assert run(source=NoNoise(), search_source=Best(), device="numpy") == here
    assert blocks[0] > 0


def test_a_statistic_without_such_a_kernel_is_summed_by_the_processor() -> None:
    """A device is a wish: what cannot be done there is done here, with the same integers as ever."""

    def ones(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        out[0] += int(present.sum())

    bounds = Bounds(l1=1, l2_squared=1, l1_distance=2, l2_squared_distance=2, non_negative=True)
    statistic = Statistic(name="rows", kernel=ones, factors=(Factor("one", 0),), shape=(1,), bounds=bounds, largest=1)
    table = ArrayRows(np.zeros((1, 12)))
    assert exact_sum(statistic, table, 1, engine=LocalEngine(1, "numpy")).tolist() == [12]


@pytest.mark.parametrize("device", ["", "no_such_library", "os", "numpy:cuda", "torch:nowhere"])
def test_a_device_that_is_not_there_is_refused_when_an_engine_is_asked_for(device: str) -> None:
    """The message says what was expected, before anything is read."""
    with pytest.raises(EngineError, match="device: expected"):
        LocalEngine(1, device).check()
    with pytest.raises(EngineError, match="device: expected"):
        LocalEngine(1, device).open()


def test_what_is_skipped_here_is_known() -> None:
    """Two of the libraries of `NAMESPACES` are always there: the test of equality is never skipped altogether."""
    assert importlib.import_module("array_api_strict")
    module: Any = importlib.import_module("numpy")
    assert module
