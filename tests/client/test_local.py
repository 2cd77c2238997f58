"""The local model: a report's price is true for any two rows, and the mean's error is what it says."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, stats

import bursar
from bursar import local
from bursar.local import Agreement, agree
from tests.each import each

Array = NDArray[np.float64]

STEPS = local._STEPS
ALPHA = 1e-8
"""False alarms of each statistical test."""

BITS = [0x0, 0x8000000000000000, 0x1, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x7FF0000000000001]
patterns = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda bits: float(np.uint64(bits).view(np.float64))),
    st.sampled_from([float(np.uint64(bits).view(np.float64)) for bits in BITS]),
    st.sampled_from([1e6, -1e6, 1e308, -1e308, 5e-324]),
    st.floats(-3, 3),
)
scales = st.sampled_from([1e-6, 0.03, 1.0, 7.0, 1e6])


def agreement(d: int = 1, **fields: Any) -> Agreement:
    """Bounds of -1 and 3 in every column, but for what is given."""
    return agree([-1.0] * d, [3.0] * d, **{"rho": 0.5, "n_reports": 10_000, **fields})


def signal(row: Any, agreed: Agreement) -> NDArray[np.int64]:
    """Return what a row says before noise."""
    return local._signal(np.atleast_1d(np.asarray(row, dtype=np.float64)), agreed)


def residuals(agreed: Agreement, row: Any, calls: int) -> Array:
    """Noise of so many reports about one row, in standard deviations as they are claimed; flat."""
    exact = agreed._centre + agreed._half * (agreed._largest * (signal(row, agreed) / STEPS))
    return np.concatenate([(local.perturb(row, agreed) - exact) / agreed.noise_std for _ in range(calls)])


# The signal


@example([math.nan, math.inf, -math.inf, 1e308], 1.0)
@given(st.lists(patterns, min_size=4, max_size=4), scales)
def test_any_bits_give_a_bounded_signal(row: list[float], scale: float) -> None:
    """Whole numbers of at most 2^30 each, without a warning, a function of the row alone, and odd about the middle."""
    agreed = agreement(4, scale=scale)
    found = signal(row, agreed)
    assert found.dtype == np.int64
    assert np.abs(found).max() <= STEPS
    assert (signal(row, agreed) == found).all()
    mirrored = [2.0 - x if abs(x) < 4 else -x for x in row]
    assert np.abs(signal(mirrored, agreed) + found).max() <= 2**4  # but for rounding of 2 - x


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf, 1e300, -1e300])
def test_the_clamp_needs_no_truncation(monkeypatch: pytest.MonkeyPatch, nonsense: float) -> None:
    """The integers are bounded whatever a closed form computes in floating point."""
    monkeypatch.setattr(local, "_truncated", lambda z, scale, beta: np.full(z.shape, nonsense))
    monkeypatch.setattr(Agreement, "_largest", 1.0)
    assert np.abs(signal([0.5, 3.0], agreement(2, scale=1.0))).max() <= STEPS


@pytest.mark.parametrize("scale", [1e-6, 0.5, 3.0, 1e6])
def test_the_bound_is_reached(scale: float) -> None:
    """The two bounds of a column are as far from one another as the noise is for, and so is what lies beyond them."""
    agreed = agreement(3, scale=scale)
    for low, high in ((-1.0, 3.0), (-1e308, 1e308), (-math.inf, math.inf)):
        assert (signal([high] * 3, agreed) - signal([low] * 3, agreed) == 2 * STEPS).all()


def test_what_is_no_number_is_the_middle() -> None:
    """It says nothing in either direction."""
    assert signal([math.nan, 1.0], agreement(2)).tolist() == [0, 0]


@pytest.mark.parametrize("beta", [0.3, 1.7, 9.0, 400.0])
def test_truncation_is_the_smoothed_function(beta: float) -> None:
    """The closed form agrees with an integral over the multiplicative noise."""

    def phi(u: float) -> float:
        u = min(max(u, -math.sqrt(2)), math.sqrt(2))
        return u - u**3 / 6

    def weighted(eta: float, a: float, sd: float) -> float:
        return phi(a * (1 + eta)) * float(stats.norm.pdf(eta, scale=sd))

    for a in (0.01, 0.3, 1.0, 1.4, 4.0, 60.0):
        kinks = [side * math.sqrt(2) / a - 1 for side in (-1, 1)]
        sd = beta**-0.5
        points = sorted(min(max(kink, -12 * sd), 12 * sd) for kink in kinks)
        pieces = zip([-12 * sd, *points], [*points, 12 * sd], strict=True)
        exact = sum(integrate.quad(weighted, *piece, args=(a, sd), epsabs=1e-12)[0] for piece in pieces)
        assert local._truncated(np.array([a, -a]), 1.0, beta) == pytest.approx([exact, -exact], abs=1e-9)


@pytest.mark.parametrize("beta", [1e-3, 0.3, 1.7, 400.0, 1e6])
def test_truncation_has_the_shape_that_the_proof_uses(beta: float) -> None:
    """Increasing and below its limit and below the identity, whose distance from it increases, too."""
    a = np.concatenate([[0.0], np.logspace(-13, 6, 3000)])
    psi = local._truncated(a, 1.0, beta)
    slack = 1e-6  # the closed form loses digits towards 1000
    assert np.all(np.diff(psi) >= -slack)
    assert np.all(np.diff(a - psi) >= -slack)
    assert np.all((psi >= 0) & (psi <= local._limit(beta)))
    assert psi[-1] == pytest.approx(local._limit(beta), abs=1e-5)
    assert psi[0] == 0


# The price


@given(st.integers(1, 40), st.floats(1e-9, 1e6), st.floats(0, 1))
def test_the_noise_pays_for_any_two_rows(d: int, rho: float, at_least: float) -> None:
    """The price in rationals: not above rho, and not below it by more than rounding; as OpenDP's own map has it."""
    scale = local._noise_scale(rho, d)
    price = Fraction(d * (2 * STEPS) ** 2) / (2 * Fraction(scale) ** 2)
    assert price <= Fraction(rho)
    assert price >= Fraction(rho) * (1 - Fraction(1, 10**14))
    if at_least < 0.1:  # slow
        assert local._measurement(scale).map(2.0 * STEPS * math.sqrt(d)) == pytest.approx(rho, rel=1e-8)


COLUMNS, CALLS = 50, 300


def normal_p(z: Array) -> float:
    """Return the p-value of standard normal numbers: chi-square over 30 bins. A step is 1e-10 of them."""
    counts = np.bincount(np.searchsorted(stats.norm.ppf(np.arange(1, 30) / 30), z), minlength=30)
    return float(stats.chisquare(counts).pvalue)


@pytest.mark.parametrize("row", [1.0, 3.0, 1e308])
def test_reports_have_the_noise_that_is_claimed(row: float) -> None:
    """The noise is the claimed one for every row."""
    agreed = agreement(COLUMNS)
    assert normal_p(residuals(agreed, [row] * COLUMNS, CALLS)) > ALPHA


def shrunk(factor: float) -> Callable[[float, int], float]:
    """A noise scale that is wrong by a factor."""
    right = local._noise_scale
    return lambda rho, d: factor * right(rho, d)


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_test_sees_noise_of_another_size(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """30 % too small and 30 % too large are both rejected."""
    agreed = agreement(COLUMNS)
    claimed = agreed.noise_std
    monkeypatch.setattr(local, "_noise_scale", shrunk(factor))
    monkeypatch.setattr(Agreement, "noise_std", claimed)
    assert not normal_p(residuals(agreed, [1.0] * COLUMNS, CALLS)) > ALPHA


def test_reports_are_independent() -> None:
    """Neither columns, nor reports about the same row, in value or in size."""
    z = residuals(agreement(COLUMNS), [1.0] * COLUMNS, CALLS)
    for x in (z, np.abs(z)):
        for lag in (1, COLUMNS):
            assert abs(np.corrcoef(x[lag:], x[:-lag])[0, 1]) < 6 / math.sqrt(len(x) - lag)


SIDES = 1000
"""Guesses about each of two rows. With half as many, noise 30 % too small was missed in two runs of a thousand."""


def mistakes(sides: int = SIDES) -> int:
    """Return how often the best test takes one of the two worst rows for the other, both equally frequent."""
    agreed = agreement(2, rho=2.0, scale=1.0)  # mu = sqrt(2 rho) = 2
    low, high = [-1e308, -math.inf], [math.inf, 1e308]
    middle = agreed._centre.sum()
    wrong_low = [local.perturb(low, agreed).sum() > middle for _ in range(sides)]
    wrong_high = [local.perturb(high, agreed).sum() < middle for _ in range(sides)]
    return int(np.count_nonzero(wrong_low + wrong_high))


LEAST, MOST = (int(stats.binom.ppf(p, 2 * SIDES, stats.norm.cdf(-1.0))) for p in (1e-7, 1 - 1e-7))
"""Mistakes in all guesses: fewer refute rho = 2 (any test errs with at least Phi(-mu / 2)), more a tight bound."""


def test_the_worst_two_rows_are_as_hard_to_tell_apart_as_is_claimed() -> None:
    """And not harder: the bound is tight."""
    assert LEAST <= mistakes() <= MOST


@pytest.mark.parametrize("factor", [0.5, 0.7])
def test_too_little_noise_is_seen(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Noise for one side of the change only is half of it."""
    monkeypatch.setattr(local, "_noise_scale", shrunk(factor))
    assert mistakes() < LEAST


def test_the_papers_mechanism_has_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theorem 8 as printed: a deterministic function of the row, which nobody mistakes."""
    monkeypatch.setattr(local, "_noisy", lambda signal, scale: signal.astype(np.float64))
    assert mistakes(50) == 0


def test_a_signal_beyond_its_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the bound, without a clamp."""
    bounded = local._signal
    monkeypatch.setattr(local, "_signal", lambda values, agreed: 2 * bounded(values, agreed))
    assert mistakes() < LEAST


def test_epsilon_is_bun_and_steinkes() -> None:
    """The formula is rho + 2 sqrt(rho log(1 / delta))."""
    assert agreement(rho=0.25).epsilon(math.exp(-4.0)) == pytest.approx(2.25)
    with pytest.raises(bursar.InvalidRequestError, match="delta"):
        agreement().epsilon(1.0)


# The mean


def ideal_reports(rows: Array, agreed: Agreement, seed: int = 0) -> Array:
    """Reports with normal noise from a seed: for statistics of the collector, where thousands are wanted at once."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows and noise of a test
    truncated = local._truncated(
        (np.clip(rows, agreed.lower, agreed.upper) - agreed._centre) / agreed._half, agreed.scale, agreed.beta
    )
    return agreed._centre + agreed._half * truncated + rng.normal(size=rows.shape) * agreed.noise_std


def test_a_mean_comes_with_its_error() -> None:
    """The mean of real reports is within six of its standard errors, which are mostly noise."""
    rng = np.random.default_rng(3)  # noqa: TID251 - rows
    agreed = agreement(2, rho=2.0, n_reports=600)
    rows = rng.uniform([-1.0, 1.0], [1.0, 3.0], size=(600, 2))
    found = local.mean([local.perturb(row, agreed) for row in rows], agreed)
    assert found.n_reports == 600
    assert np.all(np.abs(found.mean - [0.0, 2.0]) <= 6 * found.standard_error + found.bias_bound)
    sampling = (2.0 / math.sqrt(12.0)) / math.sqrt(600)
    assert found.standard_error == pytest.approx(np.hypot(found.noise_error, sampling), rel=0.2)
    assert found.noise_error == pytest.approx(agreed.noise_std / math.sqrt(600))


def test_intervals_cover() -> None:
    """They do in at least 95 of 100 tables, for a skewed law with a real bias."""
    agreed = agreement(1, n_reports=500, second_moment=0.3, rho=8.0)
    rng = np.random.default_rng(5)  # noqa: TID251 - rows
    tables = 400
    hits = 0
    for seed in range(tables):
        rows = -1.0 + 4.0 * rng.beta(1.0, 4.0, size=(500, 1))
        low, high = local.mean(ideal_reports(rows, agreed, seed), agreed).interval(0.95)
        hits += bool(low[0] <= -1.0 + 4.0 / 5.0 <= high[0])
    assert hits >= stats.binom.ppf(1e-7, tables, 0.95)


def test_an_interval_grows_with_confidence() -> None:
    """Student's t and the bias bound, both ways."""
    found = replace(local.mean([0.0, 1.0, 2.0, 3.0], agreement()), bias_bound=np.array([0.5]))
    low, high = found.interval(0.9)
    reach = stats.t.ppf(0.95, 3) * found.standard_error[0] + 0.5
    assert (low[0], high[0]) == pytest.approx((1.5 - reach, 1.5 + reach))
    assert found.interval(0.99)[1] > high
    with pytest.raises(bursar.InvalidRequestError, match="confidence"):
        found.interval(1.0)


@settings(max_examples=200)
@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=8),
    st.floats(0.05, 20.0),
    st.floats(0.1, 30.0),
)
def test_the_bias_is_within_its_bound(points: list[float], scale: float, beta: float) -> None:
    """The bound holds for laws on a few points with the declared second moment, and for any law with 1."""
    z = np.array(points)
    bias = abs(np.mean(local._truncated(z, scale, beta) - z))
    for tau in (max(float(np.mean(z**2)), 1e-12), 1.0):
        assert bias <= local._bias_bound(Agreement((-1.0,), (1.0,), 1.0, scale, beta, tau)) + 1e-9


@given(st.integers(1, 20), st.floats(1e-3, 10), st.integers(10, 10**7), st.floats(1e-3, 1))
def test_the_scale_is_the_best_for_bound_and_noise(d: int, rho: float, n: int, tau: float) -> None:
    """No other makes their sum smaller."""
    agreed = agreement(d, rho=rho, n_reports=n, second_moment=tau)

    def total(s: float) -> float:
        bias = tau * (1 + 1 / agreed.beta) / (8 * math.sqrt(2) / 3 * s)
        return bias + 2 * local._limit(agreed.beta) * s * math.sqrt(d / (2 * rho * n))

    assert all(total(agreed.scale) <= total(agreed.scale * factor) for factor in (0.5, 0.9, 1.1, 2.0))


def test_the_noise_is_never_more_than_the_bounds_need() -> None:
    """A large scale costs nothing; a small one saves."""
    plain = 2.0 * 2.0 * math.sqrt(1 / (2 * 0.5))
    stds = [agreement(scale=s).noise_std[0] for s in (1e6, 10.0, 1.0, 0.1)]
    assert stds[0] == pytest.approx(plain)
    assert stds == sorted(stds, reverse=True)
    assert stds[-1] < 0.1 * plain


def test_heavy_tails_in_wide_bounds_gain_by_truncation() -> None:
    """Student's t with 2.5 degrees of freedom within 60 of its units: a hint at the second moment halves the error."""
    rng = np.random.default_rng(11)  # noqa: TID251 - rows
    rows = rng.standard_t(2.5, size=(60, 2000, 1))
    errors = {}
    for name, fields in {"hint": {"second_moment": 5.0 / 60**2}, "plain": {"scale": 1e6}}.items():
        agreed = agree(-60.0, 60.0, rho=0.5, n_reports=2000, **fields)
        found = [local.mean(ideal_reports(table, agreed, seed), agreed).mean[0] for seed, table in enumerate(rows)]
        errors[name] = float(np.median(np.abs(found)))
    assert errors["hint"] < 0.5 * errors["plain"]


# What is refused


WRONG: list[tuple[str, dict[str, Any]]] = [
    *(("rho", {"rho": x}) for x in (0.0, -1.0, math.nan, math.inf, 1e-20)),
    *(("scale", {"scale": x}) for x in (0.0, -1.0, math.nan, math.inf)),
    *(("second_moment", {"second_moment": x}) for x in (0.0, 1.5, math.nan)),
    *(("zeta", {"zeta": x}) for x in (0.0, 1.0, math.nan)),
    ("n_reports", {"n_reports": None}),
    ("n_reports", {"n_reports": 0}),
    ("lower", {"lower": [0.0, 1.0]}),
    ("lower", {"lower": 3.0}),
    ("lower", {"lower": math.nan}),
    ("lower", {"upper": math.inf}),
    ("lower", {"lower": [], "upper": []}),
]


@each(("name", "fields"), WRONG, ids=str)
def test_a_wrong_argument_is_named(name: str, fields: dict[str, Any]) -> None:
    """The message comes before anything is drawn."""
    with pytest.raises(bursar.InvalidRequestError, match=f"^{name}: ") as caught:
        agree(**{"lower": 0.0, "upper": 1.0, "rho": 0.5, "n_reports": 100, **fields})
    assert [field for field, _ in caught.value.violations] == [name]


def test_beta_is_checked() -> None:
    """Agreements may come from elsewhere."""
    with pytest.raises(bursar.InvalidRequestError, match="beta"):
        Agreement((0.0,), (1.0,), 1.0, 1.0, math.nan)


@pytest.mark.parametrize("row", [[1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]], ["secret", 1.0], None])
def test_a_row_of_another_shape_is_refused(row: Any) -> None:
    """The message has no value of it."""
    with pytest.raises(bursar.InvalidRequestError, match=r"^row: expected") as caught:
        local.perturb(row, agreement(2))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "reports", [[], [1.0], [[1.0, 2.0]] * 3, [1.0, math.nan], [1.0, math.inf], [1.0, 1e200], ["x"]]
)
def test_reports_that_make_no_mean_are_refused(reports: Any) -> None:
    """Reports must be at least two, finite, with one number for each column."""
    with pytest.raises(bursar.InvalidRequestError, match=r"^reports: expected"):
        local.mean(reports, agreement())


def test_opendp_is_asked_for_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector needs none; a device is told what to install."""
    monkeypatch.setitem(sys.modules, "opendp", None)
    assert local.mean([0.0, 1.0], agreement()).mean[0] == 0.5
    with pytest.raises(bursar.MissingDependencyError, match=r"pip install './bursar\[local\]'"):
        local.perturb(1.0, agreement())
