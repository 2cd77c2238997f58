"""The sketch's sums against their definition, its bounds against any bits, its noise against the corrected formula."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from bursar_ledger import Adjacency
from bursar_models._frequencies import Frequencies, FrequencyStructure
from bursar_server.fits.sketch import _kernel
from bursar_server.fits.sketch._statistics import (
    LATTICE,
    MAX_COUNT_WEIGHT,
    Signature,
    SketchFrame,
    default_count_weight,
    sketch_bounds,
    sketch_statistic,
)
from bursar_server.vault import CHUNK, ArrayRows, LocalEngine, Statistic, exact_sum, laplace_for, sensitivity
from tests.each import each
from tests.server.fits.running import Array

Ints = NDArray[np.int64]

STRUCTURES: list[FrequencyStructure] = ["dense", "hadamard"]
SIGNATURES: list[Signature] = ["exponential", "one_bit"]
ODD = [0.0, -0.0, 5e-324, -1e-310, 1.0, -1.0, 1e30, -1e308, 1.8e308, math.inf, -math.inf, math.nan]


def unit_frame(d: int, bound: float = 1.0) -> SketchFrame:
    """Rows in a cube, in their own units."""
    return SketchFrame(np.zeros(d), np.ones(d), np.full(d, -bound), np.full(d, bound))


def odd_frame(d: int) -> SketchFrame:
    """Every column has a centre, a unit and bounds of its own."""
    t = np.arange(1.0, d + 1)
    return SketchFrame(t / 10, 0.5 + t / 7, -2.0 + t / 20, 1.5 + t / 9)


def rows_of(n: int, d: int, seed: int = 0) -> Array:
    """Some rows within and outside of the bounds, (d, n)."""
    generator = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    return generator.normal(0.3, 1.5, (d, n))


def asked_of(x: NDArray[np.float32], m: int, per_row: int, seed: int) -> NDArray[np.bool_]:
    """Return which frequencies each row of x (d, n) is asked for, (m, n): the hash in Python's integers."""
    firsts = first_asked((x.T + np.float32(0)).tobytes(), len(x), m, seed)
    return np.asarray((np.arange(m)[:, None] - firsts) % m < per_row)


@lru_cache(maxsize=8)
def first_asked(rows: bytes, d: int, m: int, seed: int) -> NDArray[np.int64]:
    """The first frequency of each row of d float32, (n,)."""
    firsts, most = [], 2**64 - 1
    for row in np.frombuffer(rows, dtype=np.uint32).reshape(-1, d).tolist():
        h = seed
        for bits in row:
            h = ((h ^ bits) + 0x9E3779B97F4A7C15) & most
            h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & most
            h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & most
            h ^= h >> 31
        firsts.append(h % m)
    return np.array(firsts)


def expected(
    X: Array,
    present: NDArray[np.bool_],
    frame: SketchFrame,
    frequencies: Frequencies,
    one_bit: bool,
    r: int,
    weight: int,
) -> Array:
    """The sums from their definition, in float64."""
    (lower, upper), valid = frame.box(), present & np.isfinite(X).all(axis=0)
    x = np.where(valid, (X - frame.centre[:, None]) / frame.unit[:, None], 0.0)
    x = np.clip(x, lower[:, None], upper[:, None])
    phases = frequencies.matrix() @ x
    if one_bit:
        phases += frequencies.dithers()[:, None]
    parts = [np.sign(f(phases)) if one_bit else f(phases) for f in (np.cos, np.sin)]
    counts = asked_of(x.astype(np.float32), frequencies.m, r, frequencies.public_seed) & valid
    sums = [(part * counts).sum(axis=1) for part in parts]
    return np.concatenate([*sums, [weight * valid.sum()] if weight else []])


def one_row(statistic: Statistic, row: Any, slot: int = 0) -> Ints:
    """Return what one row in one slot contributes."""
    columns = np.zeros((len(row), slot + 1))
    columns[:, slot] = row
    present = np.arange(slot + 1) == slot
    return exact_sum(statistic, ArrayRows(columns, present), len(row))


@pytest.mark.slow
@each("weight", [0, 3])
@each("r", [1, 11, 36, 37])
@each("signature", SIGNATURES)
@each("structure", STRUCTURES)
def test_sums_are_those_of_the_definition(
    structure: FrequencyStructure, signature: Signature, r: int, weight: int
) -> None:
    """Every combination agrees with plain numpy; rows that are null or not finite count for nothing."""
    one_bit = signature == "one_bit"
    for d in (1, 7, 20):
        n = CHUNK + 700
        X, present = rows_of(n, d), np.arange(n) % 9 > 0
        X[0, 40:43] = np.nan, np.inf, -np.inf
        frequencies = Frequencies(37, d, 11, 0.3, structure=structure)
        statistic = sketch_statistic(odd_frame(d), frequencies, signature, r, weight)
        sums = exact_sum(statistic, ArrayRows(X, present), d) * statistic.lattice
        # float32 phases may turn a sign where a cosine or sine is 0: a few in a million
        tolerance = 8.5 if one_bit else 3e-5 * n
        assert sums == pytest.approx(
            expected(X, present, odd_frame(d), frequencies, one_bit, r, weight), abs=tolerance, rel=0
        )


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_sums_depend_on_nothing_but_rows(structure: FrequencyStructure, signature: Signature) -> None:
    """Threads, order of rows, their slots and neighbours change no bit."""
    d, n = 6, 3 * CHUNK
    X = rows_of(n, d, 1)
    shuffle = np.random.default_rng(2).permutation(n)  # noqa: TID251 - a test's
    for r in (9, 30):
        statistic = sketch_statistic(odd_frame(d), Frequencies(30, d, 3, 0.2, structure=structure), signature, r, 2)
        sums = exact_sum(statistic, ArrayRows(X), d)
        assert np.array_equal(sums, exact_sum(statistic, ArrayRows(X), d, engine=LocalEngine(3)))
        assert np.array_equal(sums, exact_sum(statistic, ArrayRows(X[:, shuffle]), d))
        alone = sum(one_row(statistic, X[:, slot], 41 * slot) for slot in range(40))
        assert np.array_equal(alone, exact_sum(statistic, ArrayRows(X[:, :40]), d))


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.lists(st.one_of(st.sampled_from(ODD), st.floats(width=64)), min_size=3, max_size=3), min_size=2, max_size=2
    ),
    slot=st.sampled_from([0, 5, 1029, CHUNK - 1]),
    structure=st.sampled_from(STRUCTURES),
    signature=st.sampled_from(SIGNATURES),
    r=st.sampled_from([1, 4, 12]),
    weight=st.sampled_from([0, 1, 7]),
    sigma=st.sampled_from([1e-4, 0.1, 100.0]),
    bound=st.sampled_from([1e-300, 1.0, 1e12, 1e300]),
)
def test_no_bits_pass_a_bound(
    rows: list[list[float]],
    slot: int,
    structure: FrequencyStructure,
    signature: Signature,
    r: int,
    weight: int,
    sigma: float,
    bound: float,
) -> None:
    """Norms of rows and distances of rows in one slot, in exact integers, whatever the rows hold."""
    frequencies = Frequencies(12, 3, 1, sigma, structure=structure)
    statistic = sketch_statistic(unit_frame(3, bound), frequencies, signature, r, weight)
    bounds = statistic.bounds
    first, second = (one_row(statistic, row, slot) for row in rows)
    for v in (first, second):
        assert np.abs(v).sum() <= bounds.l1
        assert v @ v <= bounds.l2_squared
    assert np.abs(first - second).sum() <= bounds.l1_distance
    assert (first - second) @ (first - second) <= bounds.l2_squared_distance
    for row, v in zip(rows, (first, second), strict=True):
        if not np.isfinite(row).all():
            assert not v.any()


@pytest.mark.parametrize("r", [1, 3])
@pytest.mark.parametrize("weight", [0, 2])
@pytest.mark.parametrize("signature", SIGNATURES)
def test_bounds_are_reached(signature: Signature, weight: int, r: int) -> None:
    """Some rows attain 0.95 of each declared norm, and some pairs 0.95 of each distance."""
    statistic = sketch_statistic(unit_frame(3), Frequencies(3, 3, 4, 0.1), signature, r, weight)
    bounds = statistic.bounds
    generator = np.random.default_rng(6)  # noqa: TID251 - a search
    # Rows at which all phases are an odd multiple of pi/4, as dithers and the cube allow.
    matrix, dithers = Frequencies(3, 3, 4, 0.1).matrix(), Frequencies(3, 3, 4, 0.1).dithers()
    wanted = np.pi * (0.25 + generator.integers(-8, 8, (3, 20000)))
    rows = np.linalg.solve(matrix, wanted - (dithers[:, None] if signature == "one_bit" else 0.0))
    rows = rows[:, (np.abs(rows) < 1).all(axis=0)][:, :120].T
    v = np.array([one_row(statistic, row) for row in [*rows, np.full(3, np.nan)]])
    differences = v[:, None] - v
    for found, declared in (
        (np.abs(v).sum(axis=1).max(), bounds.l1),
        ((v**2).sum(axis=1).max(), bounds.l2_squared),
        (np.abs(differences).sum(axis=2).max(), bounds.l1_distance),
        ((differences**2).sum(axis=2).max(), bounds.l2_squared_distance),
    ):
        assert 0.95 * declared <= found <= declared


def test_a_row_that_does_not_count_is_far_from_one_that_does() -> None:
    """The distance to a row that is not finite is a norm with a heavy count; the bounds have it."""
    bounds = sketch_bounds(4, 1, "exponential", 100)
    statistic = sketch_statistic(unit_frame(2), Frequencies(4, 2, 1, 0.1), "exponential", 1, 100)
    difference = one_row(statistic, [0.2, 0.1]) - one_row(statistic, [0.2, np.nan])
    assert 0.95 * bounds.l1_distance <= np.abs(difference).sum() <= bounds.l1_distance
    assert 0.95 * bounds.l2_squared_distance <= difference @ difference <= bounds.l2_squared_distance


@njit
def _each_alone(phases: Any, cosines: Any, sines: Any) -> None:
    for i in range(phases.shape[0]):
        cosines[i], sines[i] = _kernel._exponential(phases[i : i + 1], 1)


@pytest.mark.slow
def test_cosines_and_sines_are_accurate_and_within_the_circle() -> None:
    """A dense grid of half turns and its exceptional points are tried; none is on the circle or outside."""
    special = np.array([0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 7.5], dtype=np.float32)
    near = [np.nextafter(special, np.float32(s * np.inf)) for s in (-1, 1)]
    phases = np.concatenate([np.linspace(-3, 3, 2_000_001).astype(np.float32), special, *near, -special])
    cosines, sines = np.empty((2, len(phases)), dtype=np.int64)
    _each_alone(phases, cosines, sines)
    exact = np.pi * phases.astype(np.float64)
    amplitude = _kernel._AMPLITUDE
    for found, true in ((cosines, np.cos(exact)), (sines, np.sin(exact))):
        # towards 0 by less than a lattice unit, and 1e-6 of the amplitude for the polynomials
        assert np.abs(np.abs(found) + 0.5 - amplitude * np.abs(true)).max() <= 0.5 + 1e-6 * amplitude
        assert not (found * true < 0)[np.abs(true) > 1e-5].any()
    assert (cosines**2 + sines**2).max() < _kernel.UNIT**2
    assert (cosines**2 + sines**2).min() > _kernel.UNIT**2 * (1 - 2e-4)  # no regular row is lost to the check


def test_phases_beyond_every_range_stay_within_the_circle() -> None:
    """Huge, infinite and missing phases contribute something inside the circle or nothing."""
    powers = np.float32(2.0) ** np.arange(-149, 128)
    phases = np.concatenate([powers, -powers, 1.37 * powers, [np.inf, -np.inf, np.nan]]).astype(np.float32)
    cosines, sines = np.empty((2, len(phases)), dtype=np.int64)
    _each_alone(phases, cosines, sines)
    assert (cosines**2 + sines**2).max() < _kernel.UNIT**2
    assert not cosines[-3:].any()
    assert not sines[-3:].any()


def test_the_comparison_in_float32_is_safe() -> None:
    """No integers on the circle or outside of it pass: all pairs next to the circle, and far outside."""
    c = np.arange(0, 2**15 + 2, dtype=np.int64)
    edge = np.array([math.isqrt(max(0, 2**30 - int(x) ** 2)) for x in c])
    for s in (edge - 1, edge, edge + 1, edge + 2, 10 * edge + 40000):
        square = (s.astype(np.float32) * s.astype(np.float32)).astype(np.float64)
        computed = (c.astype(np.float64) ** 2 + square).astype(np.float32)  # exact in float64, then rounded once
        passed = computed <= _kernel._LARGEST_NORM
        assert (c**2 + s**2)[passed].max(initial=0) < _kernel.UNIT**2


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("m", "r"), [(12, 1), (12, 5), (12, 11), (12, 12), (100, 10)])
def test_every_row_is_asked_for_exactly_r_frequencies(m: int, r: int, structure: FrequencyStructure) -> None:
    """Neighbours in the ring of all; which, the row and the seed decide, and not the slot. Signs are never 0."""
    frame, rows = unit_frame(3), rows_of(20, 3).clip(-1.0, 1.0)
    for seed in (0, 2**64 - 1):
        statistic = sketch_statistic(frame, Frequencies(m, 3, seed, 0.1, structure=structure), "one_bit", r, 0)
        asked = asked_of(rows.astype(np.float32), m, r, seed)
        assert (asked.sum(axis=0) == r).all()
        for k, slot in enumerate((0, 1, 513, 1024, CHUNK - 1, CHUNK + 3)):
            parts = one_row(statistic, rows[:, k], slot).reshape(2, m)
            assert np.array_equal((parts != 0).any(axis=0), asked[:, k])


def test_frequencies_are_asked_of_equally_many_rows() -> None:
    """Rows begin at every frequency equally often, rows of few different values, too; another seed, another ring."""
    m = 50
    grid = np.array(np.meshgrid(*3 * [np.arange(30) / 29 - 0.5])).reshape(3, -1)
    for rows in (rows_of(27_000, 3), grid):
        starts = [np.empty(rows.shape[1], dtype=np.int64) for _ in range(2)]
        for seed, firsts in enumerate(starts):
            _kernel.first_frequencies(rows.astype(np.float32), m, np.uint64(seed), firsts)
            counts = np.bincount(firsts, minlength=m)
            # chi-squared of 49 degrees of freedom: above 130 with probability 1e-8
            assert ((counts - counts.mean()) ** 2).sum() / counts.mean() < 130
        assert (starts[0] == starts[1]).mean() < 0.05


def test_equal_numbers_have_equal_frequencies() -> None:
    """Minus zero is zero."""
    firsts = np.empty(2, dtype=np.int64)
    _kernel.first_frequencies(np.array([[0.0, -0.0], [0.5, 0.5]], dtype=np.float32), 1000, np.uint64(3), firsts)
    assert firsts[0] == firsts[1]


def test_one_bit_sums_are_whole_numbers() -> None:
    """Every row adds +1 or -1 to each number in real units."""
    statistic = sketch_statistic(unit_frame(2), Frequencies(16, 2, 0, 0.2), "one_bit", 16, 1)
    v = one_row(statistic, [0.4, -0.9]) * statistic.lattice
    assert np.array_equal(np.abs(v), np.ones(33))
    assert statistic.lattice == LATTICE


def test_corrected_noise_of_masked_sketches() -> None:
    """Schellekens et al. 2019, proposition 1, prints alpha_r for its root: at 0.01 it realises ten times epsilon.

    Their noise on the real and imaginary part of the scaled sketch, a sum over sqrt(m) alpha_r n0, is Laplace of scale
    sigma_xi / (2 sqrt(alpha_r m n0)); sigma_xi is given by the proposition.
    """
    m, n0, epsilon = 1000, 10_000, 1.0
    r = 10
    alpha = r / m
    rescaling = math.sqrt(m) * alpha * n0

    def scale_on_the_sum(sigma_xi: float) -> float:
        return rescaling * sigma_xi / (2 * math.sqrt(alpha * m * n0))

    printed = scale_on_the_sum(4 * math.sqrt(2) * alpha * m / (math.sqrt(n0) * epsilon))
    corrected = scale_on_the_sum(4 * math.sqrt(2) * math.sqrt(alpha) * m / (math.sqrt(n0) * epsilon))
    bounds = sketch_bounds(m, r, "exponential", 0)
    changed = sensitivity(bounds, Adjacency.REPLACE_ONE, 1)
    ours = laplace_for(changed, Fraction(epsilon)).scale * LATTICE
    assert corrected == pytest.approx(2 * math.sqrt(2) * r / epsilon)
    assert ours == pytest.approx(corrected, rel=1e-4)
    assert ours * epsilon == pytest.approx(changed.l1 * LATTICE)
    realised = changed.l1 * LATTICE / printed
    assert realised == pytest.approx(epsilon / math.sqrt(alpha), rel=1e-4)
    assert realised == pytest.approx(10 * epsilon, rel=1e-4)


@pytest.mark.parametrize(("signature", "square"), [("exponential", 1), ("one_bit", 2)])
def test_bounds_in_real_units(signature: Signature, square: int) -> None:
    """Squared L2: r and 4 r; twice that for one bit; the count adds its square to norms and nothing to distances."""
    r, w = 50, 3
    bounds = sketch_bounds(100, r, signature, w)
    assert bounds.l2_squared * LATTICE**2 == square * r + w**2
    assert bounds.l2_squared_distance * LATTICE**2 == 4 * square * r
    assert bounds.l1 * LATTICE == pytest.approx(math.sqrt(2 * square) * r + w, rel=1e-4)
    assert bounds.l1_distance * LATTICE == pytest.approx(2 * math.sqrt(2 * square) * r, rel=1e-4)


def test_default_weight_of_the_count() -> None:
    """The weight is about a quarter of the root of r, and never 0."""
    assert [default_count_weight(r) for r in (1, 10, 500, 1000, 2**14)] == [1, 1, 6, 8, 32]
    assert default_count_weight(2**14) < MAX_COUNT_WEIGHT


@pytest.mark.parametrize(
    ("per_row", "weight", "signature", "name"),
    [
        (0, 0, "exponential", "per_row"),
        (9, 0, "exponential", "per_row"),
        (8, -1, "exponential", "count_weight"),
        (8, MAX_COUNT_WEIGHT + 1, "exponential", "count_weight"),
        (8, 0, "two_bit", "signature"),
    ],
)
def test_numbers_outside_their_range_are_refused(per_row: int, weight: int, signature: Any, name: str) -> None:
    """The message names what was wrong."""
    with pytest.raises(ValueError, match=name):
        sketch_bounds(8, per_row, signature, weight)


def test_other_misfits_are_refused() -> None:
    """A frame of another width."""
    with pytest.raises(ValueError, match="frame: expected 2 columns"):
        sketch_statistic(unit_frame(3), Frequencies(8, 2, 0, 1.0), "exponential", 8, 0)
