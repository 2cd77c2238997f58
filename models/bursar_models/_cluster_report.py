"""Report of a k-means: noisy sums of the rows nearest to each returned centre, and intervals from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bursar_models._intervals import Interval, plain
from bursar_models.arrays import FloatArray, frozen

_CLEAR = 5.0
"""Minimum count of a cluster with intervals, in deviations of its noise: a ratio is about normal from there on."""


@dataclass(frozen=True, eq=False, repr=False)
class ClusterReport:
    """Noisy sums over the rows nearest to each of k centres in d columns. Everything in it is released or public.

    A row x of cluster j counts with u = x - centre, shortened to length `radii[j]`. The arrays are read-only copies.

    Attributes:
        counts: noisy numbers of rows, shape (k,).
        sums: noisy sums of u, shape (k, d), in the data's own units.
        squares: noisy sums of the squares of u, shape (k, d).
        radii: clip radii, shape (k,), positive.
        count_std: standard deviation of the noise on each count, positive.
        sum_std: that on each sum, in clip radii.
        square_std: that on each sum of squares, in squared clip radii.

    Raises:
        ValueError: a field with a wrong shape or out of its range.
    """

    counts: FloatArray
    sums: FloatArray
    squares: FloatArray
    radii: FloatArray
    count_std: float
    sum_std: float
    square_std: float

    def __post_init__(self) -> None:
        sums = frozen("sums", self.sums)
        if sums.ndim != 2 or 0 in sums.shape:
            raise ValueError(f"sums: expected shape (k, d), got {sums.shape}")
        k = len(sums)
        radii = frozen("radii", self.radii, (k,))
        if not (radii > 0).all():
            raise ValueError("radii: every entry must be above 0")
        for name in ("count_std", "sum_std", "square_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(self, name)}")
        cleaned = {
            "counts": frozen("counts", self.counts, (k,)),
            "sums": sums,
            "squares": frozen("squares", self.squares, sums.shape),
            "radii": radii,
        }
        for name, array in cleaned.items():  # a frozen dataclass can store its cleaned fields in no other way
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        return f"ClusterReport: counts and sums of the rows nearest to {len(self.counts)} centres"


def checked_report(report: ClusterReport | None, shape: tuple[int, int]) -> None:
    """Check that a report belongs to centres (k, d). Raises ValueError if it has another shape."""
    if report is not None and report.sums.shape != shape:
        raise ValueError(f"report: expected sums of shape {shape}, got {report.sums.shape}")


def report_shares(report: ClusterReport, z: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return shares (k,) of the rows nearest to each centre, and the ends of their intervals of `z` errors.

    A share is N_j over the sum of all counts, whose noise N_j has a part in. The ends are all p at which the share is
    within z errors of noise and sampling at p itself (Wilson 1927, "Probable inference, the law of succession, and
    statistical inference"), so that a small share among much noise does not widen them.
    """
    k, counts = len(report.counts), np.maximum(report.counts, report.count_std)
    rows = float(counts.sum())
    shares = counts / rows
    # Variance at p: noise (1 - 2 p + k p^2), and sampling p (1 - p) / rows.
    noise, sampling = (z * report.count_std / rows) ** 2, z**2 / rows
    square = 1.0 + sampling - k * noise
    if not square > 0:
        return shares, np.zeros(k), np.ones(k)
    middle = shares + sampling / 2.0 - noise
    reach = np.sqrt(np.maximum(middle**2 - square * (shares**2 - noise), 0.0))
    low, high = (middle - reach) / square, (middle + reach) / square
    # Where noise is as large as all counts the ends could leave out the share itself.
    return shares, np.clip(np.minimum(low, shares), 0.0, 1.0), np.clip(np.maximum(high, shares), 0.0, 1.0)


def report_means(report: ClusterReport, centres: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return means (k, d) of the rows nearest to each centre, and their standard errors, infinite where noise hides N.

    Noise is independent on counts N and sums S. A mean is centre + S / N, so that its error is that of S less the mean
    times that of N, over N; sampling adds the variance of the cluster's rows over N.
    """
    clear = report.counts >= _CLEAR * report.count_std
    counts = np.where(clear, report.counts, 1.0)[:, None]
    shift = np.where(clear[:, None], report.sums / counts, 0.0)
    noise = (report.sum_std * report.radii[:, None]) ** 2 + (shift * report.count_std) ** 2
    variances = np.maximum(report.squares / counts - shift**2, 0.0)
    errors = np.sqrt(noise / counts**2 + variances / counts)
    return centres + shift, np.where(clear[:, None], errors, np.inf)


def report_variances(report: ClusterReport) -> tuple[FloatArray, FloatArray]:
    """Return mean squared distances per column (k,) of the rows nearest to each centre, and their standard errors.

    The errors are infinite where noise hides the number of rows. How much squares vary from row to row was not
    released: they are taken to vary as those of normal rows on a line, by twice the squared mean, which is the most
    that normal rows of any correlation do.
    """
    d = report.sums.shape[1]
    clear = report.counts >= _CLEAR * report.count_std
    counts = np.where(clear, report.counts, 1.0)
    means = np.maximum(report.squares.sum(axis=1) / counts, 0.0)
    noise = d * (report.square_std * report.radii**2) ** 2 + (means * report.count_std) ** 2
    errors = np.sqrt(noise / counts**2 + 2.0 * means**2 / counts)
    return means / d, np.where(clear, errors / d, np.inf)


def report_intervals(
    report: ClusterReport, centres: FloatArray, names: Sequence[str], z: float, features: Sequence[str] = ()
) -> tuple[list[Interval], list[str]]:
    """Return intervals of shares, means and variances of the rows nearest to each centre (k, d), and what has none.

    Args:
        report: noisy sums.
        centres: centres in the model's space, (k, d).
        names: names of the d columns.
        z: standard errors on both sides.
        features: what the numbers of a column are, such as "log1p(income)"; () for the columns themselves.
    """
    found: list[Interval] = []
    for j, (p, low, high) in enumerate(zip(*report_shares(report, z), strict=True)):
        words = f"share of the rows nearest to centre {j}"
        found.append(Interval(f"weights_[{j}]", float(p), float(low), float(high), words))
    hidden = []
    for j, (means, errors) in enumerate(zip(*report_means(report, centres), strict=True)):
        if not np.isfinite(errors).all():
            hidden.append(f"cluster_centers_[{j}]")
            continue
        about = f"over the rows nearest to centre {j}"
        found += [
            plain(f"cluster_centers_[{j}].{name}", mean, error, z, f"mean of {feature!r} {about}")
            for name, feature, mean, error in zip(names, features or names, means, errors, strict=True)
        ]
    for j, (variance, error) in enumerate(zip(*report_variances(report), strict=True)):
        if np.isfinite(error):
            words, low = f"mean squared distance per column over the rows nearest to centre {j}", variance - z * error
            ends = max(float(low), 0.0), float(variance + z * error)
            found.append(Interval(f"variances_[{j}]", float(variance), *ends, words))
    return found, [f"{', '.join(hidden)}: noise hides whether any row is nearest"] if hidden else []
