"""No kernel meets numbers so small that the processor takes longer for them: its own flags say so, and no clock."""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_server.fits.gradient_em import _kernel as gradient_kernel
from bursar_server.fits.mixtures import kernel as dpem_kernel
from bursar_server.fits.mixtures.statistics import BallFrame
from bursar_server.fits.separated_gmm import _kernel as separated_kernel
from bursar_server.fits.separated_gmm._lloyd import Spheres
from bursar_server.fits.sketch import _kernel as sketch_kernel
from bursar_server.vault import Statistic
from tests.each import each
from tests.server.fits.catalogue import CATALOGUE, WIDTH, Entry

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are x86's")

DENORMAL, UNDERFLOW, ALL = 0x02, 0x10, 0x3F
"""A number below 2.2e-308 was worked with; a result was one, or less. Sticky until they are cleared."""

_C = ctypes.CDLL(ctypes.util.find_library("m"))

Kernel = Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]], None]


def flags_of(work: Callable[[], object]) -> int:
    """Return which flags some work raises in this thread."""
    work()  # compiled before
    _C.feclearexcept(ALL)
    work()
    return int(_C.fetestexcept(DENORMAL | UNDERFLOW))


def flags_on(statistic: Statistic, row: NDArray[np.float64]) -> int:
    """Return which flags the kernel raises on a block of equal rows."""
    block, present = np.tile(row[:, None], (1, WIDTH)), np.ones(WIDTH, dtype=np.bool_)
    out = np.zeros(statistic.size, dtype=np.int64)
    return flags_of(lambda: statistic.kernel(block, present, out))


def small_rows(columns: int) -> list[NDArray[np.float64]]:
    """Rows of numbers from 1e-5 down to the least above zero, in all columns and in one."""
    values = [*(10.0**-e for e in range(5, 324, 9)), 5e-324, -1e-160, -1e-30]
    rows = [np.full(columns, value) for value in values]
    return rows + [np.where(np.arange(columns) == 0, value, 0.3) for value in values]


@each("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_small_numbers_become_zero_before_they_are_squared(entry: Entry) -> None:
    """Nothing underflows in any statistic; nothing subnormal is worked with unless a row has it."""
    statistic = entry.made(np.random.default_rng(2))  # noqa: TID251 - parameters of a test
    for row in small_rows(entry.columns):
        raised = flags_on(statistic, row)
        assert not raised & UNDERFLOW, row
        if np.all((row == 0) | (np.abs(row) > 1e-300)):
            assert not raised, row


def test_small_numbers_become_zero_in_a_block_that_is_estimated() -> None:
    """Sample and aggregate's k-means squares distances of rows from each other, whose signs and sizes differ."""
    signs = np.array([1.0, -1.0, 0.0, 1.0, -3.0])[np.arange(40) % 5]
    estimator = Spheres(BallFrame(np.zeros(2), np.ones(2)), 3, 1e-4, 1.0, 1, 40)
    present, zeros = np.ones(40, dtype=np.bool_), np.zeros((2, 40))
    for row in small_rows(2):
        rows = row[:, None] * signs
        if np.all((row == 0) | (np.abs(row) > 1e-300)):
            assert not flags_of(lambda rows=rows: estimator(rows, present)), row  # type: ignore[misc]
        if np.all(np.abs(row) < 1e-31):
            for made, expected in zip(estimator(rows, present), estimator(zeros, present), strict=True):
                assert np.array_equal(made, expected)


def test_the_flags_are_seen() -> None:
    """The planted bug: squares of a small number raise them, and those of a large one do not."""
    assert flags_of(lambda: gradient_kernel._into_ball(np.full((2, gradient_kernel.SLICE), 1e-160), False)) & UNDERFLOW
    assert not flags_of(lambda: gradient_kernel._into_ball(np.full((2, gradient_kernel.SLICE), 1e-60), False))


@pytest.mark.parametrize("value", [1e-31, 1e-160, 1e-310, -5e-324])
def test_positions_of_small_numbers_are_zero(value: float) -> None:
    """They are in every fit's first function of a row, in narrow and wide bounds; larger ones are not."""
    for unit in (1e-3, 1.0, 1e6):
        for number, expected in ((value * unit, 0.0), (1e-3 * unit, 1e-3)):
            assert {loaded(number, unit), placed(number, unit), framed(number, unit)} <= {
                expected,
                np.float32(expected),
            }


def loaded(number: float, unit: float) -> float:
    """The position that FitGradientEM has of a number."""
    n = gradient_kernel.SLICE
    z, missing, valid = np.empty((1, n)), np.empty((1, n)), np.empty(n)
    block, present = np.full((1, n), number), np.ones(n, dtype=np.bool_)
    frame = np.zeros(1), np.full(1, unit), np.ones(1), np.zeros(1, dtype=np.bool_)
    gradient_kernel._load(block, 0, present, *frame, z, missing, valid)
    return float(z[0, 0])


def placed(number: float, unit: float) -> float:
    """The position that FitDPEM and FitSeparatedGMM have of a number, to three digits: theirs are integers."""
    n = separated_kernel.SLICE
    block, present = np.full((1, n), number), np.ones(n, dtype=np.bool_)
    p, z, norm, valid = np.empty((1, n)), np.empty((1, n)), np.empty(n), np.empty(n)
    separated_kernel._points(block, 0, present, (np.zeros(1), np.full(1, 1.0 / unit)), p, valid)
    dpem_kernel._normalise(block, 0, present, np.zeros(1), np.full(1, 1.0 / unit), z, norm, valid)
    found = round(float(p[0, 0]) / separated_kernel.POINT, 4)
    assert found == round(float(z[0, 0]) / dpem_kernel.POSITION, 4)
    return found


def framed(number: float, unit: float) -> float:
    """The frame coordinate that FitSketchKMeans has of a number."""
    block, present = np.full((1, 32), number), np.ones(32, dtype=np.bool_)
    x, one = np.empty((1, 32), np.float32), np.ones(1)
    sketch_kernel._normalise(block, present, 0, 0 * one, unit * one, -one, one, x)
    return float(x[0, 0])
