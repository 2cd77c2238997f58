"""Noise drawn many numbers at a time has the exact laws, however its coins are decided; OpenDP is the oracle."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from bursar_server.vault import ExactNoise, GaussianNoise, LaplaceNoise, Noise, OpenDPNoise
from bursar_server.vault import _sampling as sampling
from bursar_server.vault._noise import MAX_SCALE, _saturating
from tests.server.vault.goodness import ALPHA, Pmf, bins_of, gaussian_pmf, laplace_pmf, masses_at

N = 200_000
FEWER = 6_000
LAWS = [(GaussianNoise, gaussian_pmf), (LaplaceNoise, laplace_pmf)]
SCALES = [0.6, 0.7, 1.5, 3.0, 4.0, 50.3, 181.2]
"""Below and above powers of two by less and more than the factor at which proposals change."""

Make = type[GaussianNoise] | type[LaplaceNoise]


def draw(noise: Noise, n: int = N) -> NDArray[np.int64]:
    """Draws of pure noise."""
    return ExactNoise().add(np.zeros(n, dtype=np.int64), noise)


def samples(noise: Noise, n: int, bits: sampling.Bytes) -> NDArray[Any]:
    """Draws from bits of one's own."""
    return (sampling.gaussian if isinstance(noise, GaussianNoise) else sampling.laplace)(noise.scale, n, bits)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("make", "pmf"), LAWS)
def test_draws_have_the_exact_law(make: Make, pmf: Pmf, scale: float) -> None:
    """Chi-square against the probabilities of the integers."""
    assert bins_of(pmf, scale).p_value(draw(make(scale))) > ALPHA


@pytest.mark.parametrize("scale", [0.7, 50.3])
@pytest.mark.parametrize(("make", "pmf"), LAWS)
def test_so_they_have_where_no_coin_is_decided_in_floating_point(
    make: Make, pmf: Pmf, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A margin that nothing passes makes every comparison one of integers, and the law is the same."""
    monkeypatch.setattr(sampling, "MARGIN", 2.0**33)
    assert bins_of(pmf, scale).p_value(draw(make(scale), 1_000)) > ALPHA


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**20), st.integers(0, 8), st.floats(0.5, 2.0**56), st.booleans())
def test_floating_point_and_integers_decide_alike(word: int, u: int, v: int, scale: float, normal: bool) -> None:
    """A comparison that floating point decides comes out as the one of integers, whatever bits would follow."""
    law = sampling._Law(1 << max(0, round(math.log2(scale))), 0, scale if normal else None)
    u = min(u, law.t - 1)
    asked = itertools.count()

    def refuse(n: int) -> bytes:
        next(asked)
        return os.urandom(n)

    falls = sampling._coins(law, np.array([u]), np.array([v]), np.array([word], dtype=np.uint32), refuse)
    if next(asked) == 0:
        for ending in (b"\x00", b"\xff"):
            uniform = sampling._Uniform(word, lambda n, ending=ending: ending * n)  # type: ignore[misc]
            assert uniform.below(law.exact_cost(u, v)) == falls[0]


@given(st.floats(2.0**-60, 2.0**56), st.data())
def test_computed_probabilities_are_within_the_margin(sigma: float, data: st.DataObject) -> None:
    """The error of the floating point is a thousandth of what the proof allows for, at all scales and proposals."""
    law = sampling._Law(1 << max(0, round(math.log2(sigma))), 0, sigma)
    u, v = data.draw(st.integers(0, law.t - 1)), data.draw(st.integers(0, 60))
    chance = math.exp(-float(law.cost(np.array([u]), np.array([v]))[0]))
    low, high = sampling.decay(law.exact_cost(u, v), 80)
    assert low / 2.0**80 - sampling.MARGIN / 1000 <= chance <= high / 2.0**80 + sampling.MARGIN / 1000


@pytest.mark.parametrize("scale", [3.0, 2.0**38 + 12_345.6])
@pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise])
def test_opendp_draws_the_same(make: Make, scale: float) -> None:
    """Two samples, one of OpenDP's, in the same thirty bins: chi-square of their homogeneity."""
    ours, opendp = draw(make(scale)), OpenDPNoise().add(np.zeros(FEWER // 2, dtype=np.int64), make(scale))
    edges = np.unique(np.quantile(opendp, np.arange(1, 30) / 30, method="lower"))
    table = [np.bincount(np.searchsorted(edges, x), minlength=len(edges) + 1) for x in (ours, opendp)]
    assert stats.chi2_contingency(table).pvalue > ALPHA


@pytest.mark.parametrize("scale", [2.0**20 + 0.3, 2.0**45 * 1.2, MAX_SCALE])
@pytest.mark.parametrize(("make", "law"), [(GaussianNoise, stats.norm), (LaplaceNoise, stats.laplace)])
def test_large_scales(make: Make, law: stats.rv_continuous, scale: float) -> None:
    """Draws at the scales of the lattice and at the largest allowed follow the continuous law."""
    edges = np.asarray(law.ppf(np.arange(1, 200) / 200) * scale)
    counts = np.bincount(np.searchsorted(edges, draw(make(scale))), minlength=200)
    assert stats.chisquare(counts).pvalue > ALPHA


@pytest.mark.parametrize("scale", [2.0**20, 2.0**45 * 1.2])
@pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise])
def test_the_last_bits_are_fair(make: Make, scale: float) -> None:
    """No pattern in the low bits: every residue modulo 64 is as likely as any other, far above scale 64."""
    counts = np.bincount(draw(make(scale)) % 64, minlength=64)
    assert stats.chisquare(counts).pvalue > ALPHA


@pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise])
def test_draws_are_independent(make: Make) -> None:
    """Neither neighbours nor the same place of two releases are correlated, in value or in size."""
    first, second = draw(make(1000.0)).astype(float), draw(make(1000.0)).astype(float)
    for a, b in ((first[1:], first[:-1]), (first, second), (np.abs(first), np.abs(second))):
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / N**0.5


def always(law: Any, u: Any, v: Any, words: Any, bits: Any) -> NDArray[np.bool_]:
    """Every proposal is kept."""
    return np.ones(len(u), dtype=np.bool_)


def halves(words: NDArray[np.uint32], bits: Any) -> NDArray[np.int64]:
    """A geometric law of ratio 1/2 in the place of 1/e."""
    return np.asarray(np.floor(-np.log2((words + 1.0) / 2.0**32)), dtype=np.int64)


@pytest.mark.parametrize(("name", "bug"), [("_coins", always), ("_geometric", halves)])
@pytest.mark.parametrize(("make", "pmf"), LAWS)
def test_planted_bugs_are_seen(
    make: Make, pmf: Pmf, name: str, bug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coin that always falls, and proposals of another law, are rejected."""
    monkeypatch.setattr(sampling, name, bug)
    assert not bins_of(pmf, 3.0).p_value(draw(make(3.0), FEWER)) > ALPHA


@pytest.mark.parametrize("factor", [0.95, 1.05])
@pytest.mark.parametrize(("make", "pmf"), LAWS)
def test_a_scale_five_percent_off_is_seen(make: Make, pmf: Pmf, factor: float) -> None:
    """The power of the test of the law at its number of draws, computed and shown."""
    bins = bins_of(pmf, 50.3)
    assert bins.power(masses_at(pmf, factor * 50.3, bins), N) > 1 - 1e-9
    assert not bins.p_value(draw(make(factor * 50.3))) > ALPHA


class Scripted:
    """Bits that begin with proposals of one's own: each (u, sign, word of the geometric law, word of the coin)."""

    def __init__(self, proposals: list[tuple[int, int, int, int]]) -> None:
        self._proposals = proposals
        self._parts = itertools.count()

    def __call__(self, n: int) -> bytes:
        """The parts that `_kept` asks for, then zeros, then bits that end comparisons."""
        part, missing = next(self._parts), n // 8 - len(self._proposals)
        if part == 0:
            words = [sign << 63 | u for u, sign, _, _ in self._proposals]
            return np.array(words + [0] * missing, dtype=np.uint64).tobytes()
        if part == 1:
            ends = [[one[i] for one in self._proposals] + [2**31] * missing for i in (2, 3)]
            return np.array(ends, dtype=np.uint32).tobytes()
        return (b"\x00" if part < 4 else b"\x01") * n


def test_a_proposal_comes_out_as_it_went_in() -> None:
    """The number u + t v with its sign, or nothing; zero with a minus is not zero a second time."""
    kept, least = 0, 2**31  # a coin that falls always; a uniform number of 1/2, which is above exp(-1)
    proposals = [(5, 0, least, kept), (5, 1, least, kept), (0, 1, least, kept), (3, 0, least, 2**32 - 2)]
    assert samples(LaplaceNoise(8.0), 3, Scripted(proposals)).tolist() == [5, -5, 0]


def test_draws_beyond_64_bits_are_not_cut() -> None:
    """A uniform number of 64 zeros and more is far in the tail: Python's integers, and the sum saturates."""
    found = samples(LaplaceNoise(MAX_SCALE), 2, Scripted([(7, 1, 0, 0), (1, 0, 2**31, 0)])).tolist()
    assert found[1] == 1
    assert (found[0] - -7) % 2**56 == 0
    assert found[0] < -(2**62)


def test_sums_and_noise_saturate_and_do_not_wrap() -> None:
    """The nearest integer of 64 bits is released beyond 2^63, a function of the noisy sum alone."""
    sums = np.array([2**63 - 1, -(2**63), 2**62, -5], dtype=np.int64)
    assert _saturating(sums, np.array([1, -1, 5, 2], dtype=np.int64)).tolist() == [2**63 - 1, -(2**63), 2**62 + 5, -3]
    assert _saturating(sums, np.array([2**70, -(2**70), 5, 2], dtype=object)).tolist() == [
        2**63 - 1,
        -(2**63),
        2**62 + 5,
        -3,
    ]


def test_the_largest_sum_keeps_its_place_under_the_largest_noise() -> None:
    """The mean of the difference stays within its error."""
    top = np.full(N, 2**62, dtype=np.int64)
    difference = (ExactNoise().add(top, GaussianNoise(MAX_SCALE)) - top) / MAX_SCALE
    assert abs(difference.mean()) < 6 / N**0.5


@pytest.mark.parametrize("make", [GaussianNoise, LaplaceNoise])
@pytest.mark.parametrize("scale", [5e-324, 1e-200, 1e-3])
def test_noise_of_almost_no_scale_leaves_integers_alone(make: Make, scale: float) -> None:
    """The smallest scales a float has are no special case; shapes are kept and the sums are not changed."""
    sums = np.array([[2**60, -(2**60)], [3, -1]], dtype=np.int64)
    before = sums.copy()
    noisy = ExactNoise().add(sums, make(scale))
    assert (noisy == before).all()
    assert (sums == before).all()
    assert ExactNoise().add(np.zeros((0, 3), dtype=np.int64), make(scale)).shape == (0, 3)


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(700, 3), Fraction(10**9)])
def test_bits_are_drawn_until_they_decide(exponent: Fraction) -> None:
    """A number that agrees with exp(-x) in its first bits is compared in later ones, at zero and in the far tail."""
    low, high = sampling.decay(exponent, 32)
    assert low == 0 or sampling._Uniform(low, lambda n: b"\x00" * n).below(exponent)
    assert not sampling._Uniform(high, lambda n: b"\x00" * n).below(exponent)
    assert not sampling._Uniform(0, lambda n: b"\x01" * n).below(exponent + 10**9)
