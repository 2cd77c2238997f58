"""What is chosen and foretold from public numbers: how many frequencies, at which scale, and what to expect of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bursar.models import TRUSTWORTHY_QUALITY, Frequencies, predicted_relative_sse

FEWEST, FEWEST_PURE, MOST = 64, 24, 4096
"""Frequencies that are chosen when a request leaves them open."""

_PER_PARAMETER, _PER_PARAMETER_PURE = 10, 4
"""Frequencies per parameter, m / (k d). Under zCDP SNR m hardly depends on m, so there are many. Under pure epsilon it
falls as 1 / m; measured (k = d = 5, SNR m / (k d) = 30 at ten per parameter): sum of squares 1.13 times Lloyd's with
ten, 1.05 with four, 1.04 with two, which leave a decoder little to work with. Where noise is small there are ten."""

_AMPLE = 10 * TRUSTWORTHY_QUALITY
_UNKNOWN_CLUSTERS = 10


def default_frequencies(k: int, d: int, *, pure: bool, snr: Callable[[int], float | None]) -> int:
    """The number of frequencies where the request leaves it open.

    Args:
        k: clusters; 0 if that is not known.
        d: columns.
        pure: Laplace noise.
        snr: the predicted signal-to-noise ratio of m frequencies; None if the number of rows is not known.
    """
    parameters = (k or _UNKNOWN_CLUSTERS) * d
    many = int(np.clip(_PER_PARAMETER * parameters, FEWEST, MOST))
    few = int(np.clip(_PER_PARAMETER_PURE * parameters, FEWEST_PURE, MOST))
    if not pure:
        return many
    expected = snr(many)
    return many if expected is not None and expected * many >= _AMPLE * parameters else few


def spacing(k: int, d: int) -> float:
    """Distance of k points that share a box evenly, over the box's width: k^(-1/d); for an unknown k that of ten."""
    return float((k or _UNKNOWN_CLUSTERS) ** (-1.0 / d))


def sigma_between(k: int, d: int, between: float) -> float:
    """Least scale of frequencies, in frame coordinates, at which a decoder finds k clusters however tight they are.

    0.45 times the spacing of k centres of standard deviation `between`. At the scale of clusters that are small and far
    apart there is nothing to see in most of the box. Measured with 5 clusters of 0.03 of the bounds all over the box,
    SNR m / (k d) = 100. In 10 columns the sum of squares is hundreds of times Lloyd's at 0.2 times the spacing and
    below, 1.13, 1.17 and 1.24 times at 0.36, 0.48 and 0.6; in 2 columns 17 times at the scale of a cluster, 1.06 to
    1.09 from 0.2 to 0.5.
    """
    return 0.45 * spacing(k, d) * between


def schema_sigma(k: int, d: int) -> float:
    """Scale of frequencies, in frame coordinates, when only the box is known: centres may be anywhere in [-1, 1]^d.

    Measured at 0.5 instead of 0.45 of their spacing (2 and 10 columns, 5 clusters, noise of a moment 0.03): sum of
    squares 1.00 to 1.02 times Lloyd's for clusters of 0.02 to 0.1 of the bounds, over all of the box or a sixth of it.
    """
    return sigma_between(k, d, 1 / float(np.sqrt(3.0)))


@dataclass(frozen=True)
class Outlook:
    """What to expect of a decoding, before or without looking at the rows.

    Attributes:
        snr: predicted signal-to-noise ratio; None if the number of rows is not known.
        relative_sse: predicted sum of squares over that of Lloyd's algorithm; None for no clusters, too.
        warnings: what an analyst should know before paying.
    """

    snr: float | None
    relative_sse: float | None
    warnings: tuple[str, ...]


def outlook(snr: float | None, k: int, frequencies: Frequencies, *, per_row: int, pure: bool) -> Outlook:
    """What k clusters decoded from a sketch of this signal-to-noise ratio will be like.

    Args:
        snr: of one moment; None if it cannot be known.
        k: clusters; 0 if nothing is decoded yet, then there is no prediction of the sum of squares.
        frequencies: of the sketch.
        per_row: how many of them each row is asked for.
        pure: whether the noise is Laplace's.
    """
    m, d = frequencies.m, frequencies.d
    warnings = []
    if k and m < k * d:
        warnings.append(f"{m} frequencies are fewer than the {k * d} coordinates of {k} centres; ask for {10 * k * d}")
    if snr is None:
        return Outlook(None, None, tuple(warnings))
    quality = snr * m / (max(k, 1) * d)
    if not quality >= TRUSTWORTHY_QUALITY:
        remedies = ["a larger spend", "more rows"]
        remedies += ["fewer clusters"] if k > 1 else []
        remedies += ["all frequencies for every row"] if per_row < m else []
        remedies += ["fewer frequencies"] if pure and m > _PER_PARAMETER_PURE * max(k, 1) * d else []
        about = f"{k} clusters" if k else "even one cluster"
        warnings.append(
            f"the sketch is too noisy for {about}: SNR m / (k d) is {quality:.3g}, expected at least "
            f"{TRUSTWORTHY_QUALITY:g}. What would help: {', '.join(remedies)}. A predicted sum of squares above 1.2 is "
            "no prediction: centres are then about as good as one centre"
        )
    return Outlook(snr, predicted_relative_sse(k, d, m, snr) if k else None, tuple(warnings))
