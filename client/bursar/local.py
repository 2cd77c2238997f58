"""The local model: everybody perturbs a row of their own before it leaves their device; a collector gets the mean.

    agreement = bursar.local.agree(0.0, 80.0, rho=0.5, n_reports=10_000)
    report = bursar.local.perturb(hours, agreement)      # on each device, ONCE
    bursar.local.mean(reports, agreement)                # at the collector, who is trusted with nothing

This is not the server's: a person perturbs their own row, on their own device. So there is no ledger, and nothing
counts a second report; and each report has the noise that a server adds to a whole sum, which costs accuracy. The
truncation is that of Wang et al. 2020, theorem 8; the noise that its equation 38 lacks is back. Proof: `local.md`.
Needs OpenDP: `pip install './bursar[local]'`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from bursar_models.arrays import FloatArray
from bursar_models.errors import InvalidRequestError, MissingDependencyError

__all__ = ["Agreement", "MeanEstimate", "agree", "mean", "perturb"]

_STEPS = 2**30
"""A report's signal is a whole number from -2^30 to 2^30, in units of the largest signal over 2^30."""

_CATONI = 2.0 * math.sqrt(2.0) / 3.0
"""Largest value of Catoni's function u - u^3 / 6, at sqrt 2."""

_LARGEST_REPORT = 1e150
"""Their squares are doubles; what `perturb` gives stays below 1e110."""

_FLAT = 1e3
"""Limit of a and a / sqrt(beta): above it the smoothed function is flat to 1e-5, and its closed form loses digits."""


@dataclass(frozen=True)
class Agreement:
    """Public settings that all devices and the collector share. `agree` makes them.

    Attributes:
        lower: least value of each column, in its own unit. Lower values are moved to it.
        upper: greatest value of each column, above `lower`. Greater values are moved to it.
        rho: what one report costs its sender, in zero-concentrated differential privacy for any change of the row.
        scale: s, in half-widths of the bounds: values far above s from the middle count less than they are. A large one
            leaves values as they are; the noise never exceeds that for the bounds.
        beta: the smoothing, inverse variance of the multiplicative noise that is integrated out.
        second_moment: tau, a guess at the mean squared distance from the middle, in squared half-widths; for
            `MeanEstimate.bias_bound`, which is right if tau is. 1 is always right.

    Raises:
        InvalidRequestError: a number out of its range, or bounds of different lengths.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    rho: float
    scale: float
    beta: float
    second_moment: float = 1.0

    def __post_init__(self) -> None:
        if not len(self.lower) == len(self.upper) >= 1:
            raise InvalidRequestError.of(
                "lower", f"expected as many as upper, at least one, got {len(self.lower)} and {len(self.upper)}"
            )
        for low, high in zip(self.lower, self.upper, strict=True):
            if not -1e100 <= low < high <= 1e100 or not high - low >= 1e-100:
                raise InvalidRequestError.of("lower", f"expected lower < upper within 1e100, got {low} and {high}")
        # Less would need noise beyond 2^56 steps: OpenDP's integers saturate at 2^63, 128 standard deviations off.
        least = self.n_columns * 2.0**-50
        for name, value, low, high in (
            ("rho", self.rho, least, 1e6),
            ("scale", self.scale, 1e-6, 1e6),
            ("beta", self.beta, 1e-3, 1e6),
            ("second_moment", self.second_moment, 1e-12, 1.0),
        ):
            if not low <= value <= high:
                raise InvalidRequestError.of(name, f"expected a number from {low:g} to {high:g}, got {value}")

    @property
    def n_columns(self) -> int:
        """Return the number of numbers in a report, d."""
        return len(self.lower)

    @property
    def noise_std(self) -> FloatArray:
        """Standard deviation of the noise in each number of a report, (d,), in the columns' own units."""
        return self._half * self._largest * (_noise_scale(self.rho, self.n_columns) / _STEPS)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon for which a report is (epsilon, delta)-private (Bun and Steinke 2016, proposition 1.3).

        Raises:
            InvalidRequestError: delta is not between 0 and 1.
        """
        if not 0 < delta < 1:
            raise InvalidRequestError.of("delta", f"expected a number between 0 and 1, got {delta}")
        return self.rho + 2.0 * math.sqrt(self.rho * math.log(1.0 / delta))

    @property
    def _centre(self) -> FloatArray:
        return np.array(self.lower) / 2 + np.array(self.upper) / 2

    @property
    def _half(self) -> FloatArray:
        return np.array(self.upper) / 2 - np.array(self.lower) / 2

    @property
    def _largest(self) -> float:
        """Largest signal, in half-widths: the truncated value of a bound."""
        return float(_truncated(np.ones(1), self.scale, self.beta)[0])


@dataclass(frozen=True)
class MeanEstimate:
    """A mean of reports, in the columns' own units. Everything is computed from reports and public numbers.

    Attributes:
        mean: (d,).
        standard_error: (d,) of the mean, from the spread of the reports: noise and sampling together. It knows
            nothing of the truncation's bias.
        noise_error: (d,) the part of it that is the noise's.
        bias_bound: (d,) how far truncation can move the mean, if `second_moment` is right. Values beyond the bounds are
            not in it.
        n_reports: how many.
    """

    mean: FloatArray
    standard_error: FloatArray
    noise_error: FloatArray
    bias_bound: FloatArray
    n_reports: int

    def interval(self, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends, (d,) each, of an interval for each mean: bias bound and Student's t.

        Raises:
            InvalidRequestError: confidence is not between 0 and 1.
        """
        if not 0 < confidence < 1:
            raise InvalidRequestError.of("confidence", f"expected a number between 0 and 1, got {confidence}")
        reach = scipy.special.stdtrit(self.n_reports - 1, 0.5 + confidence / 2) * self.standard_error + self.bias_bound
        return self.mean - reach, self.mean + reach


def agree(
    lower: float | Sequence[float],
    upper: float | Sequence[float],
    *,
    rho: float,
    n_reports: int | None = None,
    scale: float | None = None,
    second_moment: float = 1.0,
    zeta: float = 0.05,
) -> Agreement:
    """Make the settings that devices and collector share. Nothing of them may be computed from anyone's rows.

    Args:
        lower: least value, in the column's own unit; one for each column, or a number for a single column.
        upper: greatest value, likewise.
        rho: what one report costs its sender; `Agreement.epsilon` says what that means.
        n_reports: about how many devices will report; for the default `scale`, so a wrong guess costs accuracy only.
        scale: s, in half-widths of the bounds; None: what makes the sum of bias bound and noise least, of the order
            n^(1/4) as in Wang et al. 2020, theorem 8.
        second_moment: tau; see `Agreement`. Say less than 1 where values crowd about the middle and few lie far out:
            then they are truncated harder, and the noise is smaller.
        zeta: chance of failure; sets the smoothing, beta = sqrt(log(1 / zeta)).

    Raises:
        InvalidRequestError: an argument is out of its range, or neither `n_reports` nor `scale` is given.
    """
    if not 0 < zeta < 1:
        raise InvalidRequestError.of("zeta", f"expected a number between 0 and 1, got {zeta}")
    bounds = tuple(float(x) for x in np.atleast_1d(lower)), tuple(float(x) for x in np.atleast_1d(upper))
    beta = max(math.sqrt(math.log(1.0 / zeta)), 1e-3)
    agreed = Agreement(*bounds, float(rho), 1.0 if scale is None else float(scale), beta, float(second_moment))
    if scale is not None:
        return agreed
    if n_reports is None or not n_reports >= 1:
        raise InvalidRequestError.of("n_reports", f"expected at least 1, or a scale, got {n_reports}")
    bias = second_moment * (1.0 + 1.0 / beta) / (4.0 * _CATONI)
    noise = 2.0 * _limit(beta) * math.sqrt(agreed.n_columns / (2.0 * rho * n_reports))
    best = min(max(math.sqrt(bias / noise), 1e-6), 1e6)
    return Agreement(*bounds, float(rho), best, beta, float(second_moment))


def perturb(row: npt.ArrayLike, agreement: Agreement) -> FloatArray:
    """Return one's own row as it may leave the device: truncated, with exact discrete Gaussian noise.

    NOTHING HERE REMEMBERS: a second report about the same row, or about another row of the same person, costs `rho`
    again. Send one, and send it again if it got lost.

    Args:
        row: (d,), or a number for a single column, in the columns' own units. What is no number counts as the middle of
            the bounds, infinities as a bound.
        agreement: what this device and the collector have agreed on.

    Returns:
        (d,) the report, in the columns' own units. `agreement.rho` holds for any two rows, so also for a row and none.

    Raises:
        InvalidRequestError: the row has not d numbers.
        bursar.MissingDependencyError: OpenDP is not installed.
    """
    values = np.atleast_1d(_numbers("row", row, f"({agreement.n_columns},)"))
    if values.shape != (agreement.n_columns,):
        raise InvalidRequestError.of("row", f"expected shape ({agreement.n_columns},), got {values.shape}")
    noisy = _noisy(_signal(values, agreement), _noise_scale(agreement.rho, agreement.n_columns))
    return agreement._centre + agreement._half * (agreement._largest * (noisy / _STEPS))


def mean(reports: npt.ArrayLike, agreement: Agreement) -> MeanEstimate:
    """Return the mean of the rows behind reports, with a standard error of everything but the truncation's bias.

    Args:
        reports: (n, d), what `perturb` gave on n >= 2 devices; (n,) for a single column. A device can report anything,
            so one that lies can move the mean far; reports many times `Agreement.noise_std` beyond the bounds are lies.
        agreement: what the devices had agreed on.

    Raises:
        InvalidRequestError: another shape, fewer than two reports, or a number that is not finite.
    """
    d = agreement.n_columns
    values = _numbers("reports", reports, f"(n, {d})")
    if values.ndim == 1 and d == 1:
        values = values[:, np.newaxis]
    if values.ndim != 2 or values.shape[1] != d or not len(values) >= 2:
        raise InvalidRequestError.of("reports", f"expected shape (n, {d}) with n of at least 2, got {values.shape}")
    if not np.all(np.abs(values) <= _LARGEST_REPORT):  # NaN fails
        raise InvalidRequestError.of("reports", f"expected finite numbers up to {_LARGEST_REPORT:g}; drop the others")
    n = len(values)
    return MeanEstimate(
        mean=values.mean(axis=0),
        standard_error=values.std(axis=0, ddof=1) / math.sqrt(n),
        noise_error=agreement.noise_std / math.sqrt(n),
        bias_bound=agreement._half * _bias_bound(agreement),
        n_reports=n,
    )


def _numbers(name: str, values: npt.ArrayLike, shape: str) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):  # which quote what they got
        raise InvalidRequestError.of(name, f"expected numbers of shape {shape}") from None


def _signal(values: FloatArray, agreement: Agreement) -> npt.NDArray[np.int64]:
    """Return a row's contribution, as whole numbers from -2^30 to 2^30: a total function of any d doubles."""
    centre, half = agreement._centre, agreement._half
    numbers = np.where(np.isnan(values), centre, values)
    z = np.clip((np.clip(numbers, agreement.lower, agreement.upper) - centre) / half, -1.0, 1.0)
    share = _truncated(z, agreement.scale, agreement.beta) / agreement._largest
    clamped = np.clip(np.nan_to_num(share, nan=0.0), -1.0, 1.0)
    return np.asarray(np.rint(clamped * _STEPS), dtype=np.int64)


def _truncated(z: FloatArray, scale: float, beta: float) -> FloatArray:
    """Truncated values, s psi(z / s), with psi(a) = E phi(a (1 + eta)).

    eta is normal with variance 1 / beta, phi(u) = u - u^3 / 6 up to sqrt 2 and constant beyond. The closed form (Wang
    et al. 2020, equations 9-12) by the moments of a truncated normal variable.
    """
    # Odd, so by absolute value; 0 is restored by the sign.
    a = np.clip(np.abs(z) / scale, 1e-12, _FLAT * min(1.0, math.sqrt(beta)))
    b = a / math.sqrt(beta)
    low, high = (-math.sqrt(2.0) - a) / b, (math.sqrt(2.0) - a) / b
    density_low, density_high = _density(low), _density(high)
    below, above = scipy.special.ndtr(low), scipy.special.ndtr(-high)
    m0 = 1.0 - below - above
    m1 = density_low - density_high
    m2 = m0 + low * density_low - high * density_high
    m3 = 2.0 * m1 + low**2 * density_low - high**2 * density_high
    first = a * m0 + b * m1
    third = a**3 * m0 + 3.0 * a**2 * b * m1 + 3.0 * a * b**2 * m2 + b**3 * m3
    psi = first - third / 6.0 + _CATONI * (above - below)
    return np.asarray(np.sign(z) * scale * np.clip(psi, 0.0, _limit(beta)))


def _density(x: FloatArray) -> FloatArray:
    return np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)


def _limit(beta: float) -> float:
    """Return the bound of psi: c_phi (2 Phi(sqrt beta) - 1)."""
    return _CATONI * math.erf(math.sqrt(beta / 2.0))


def _bias_bound(agreement: Agreement) -> float:
    """Return a bound on the bias of a mean of truncated values, in half-widths."""
    by_moment = agreement.second_moment * (1.0 + 1.0 / agreement.beta) / (4.0 * _CATONI * agreement.scale)
    return min(max(1.0 - agreement._largest, 0.0), by_moment)


def _noise_scale(rho: float, d: int) -> float:
    """Standard deviation of the noise, in units of a signal: the least double that pays for any change of d numbers."""
    squared_distance = d * (2 * _STEPS) ** 2
    scale = math.sqrt(squared_distance / (2.0 * rho))
    while not squared_distance <= 2 * Fraction(rho) * Fraction(scale) ** 2:
        scale = math.nextafter(scale, math.inf)
    return scale


def _noisy(signal: npt.NDArray[np.int64], scale: float) -> FloatArray:
    """Signals plus independent discrete Gaussian noise, from the operating system's randomness."""
    return np.array(_measurement(scale)(signal.tolist()), dtype=np.float64)


def _measurement(scale: float) -> Any:
    """OpenDP's discrete Gaussian on 64-bit integers (Canonne, Kamath and Steinke 2020)."""
    try:
        from opendp import domains, measurements, metrics, mod
    except ImportError as error:
        raise MissingDependencyError("OpenDP is not installed: pip install './bursar[local]'") from error
    mod.enable_features("contrib")
    # "i64" in words: OpenDP takes Python's int for i32, which would saturate.
    domain = domains.vector_domain(domains.atom_domain(T="i64"))
    return measurements.make_gaussian(domain, metrics.l2_distance(T=float), scale=scale)
