"""Choices and predictions from public numbers: number and scale of frequencies, and expected accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bursar_models import LEAST_FREQUENCIES, TRUSTWORTHY_QUALITY, Frequencies, predicted_relative_sse
from bursar_server.fits._seam import Expected

FEWEST, FEWEST_PURE, MOST = 64, 24, 4096
"""Bounds of the number of frequencies if a request leaves it open. Chosen, not tuned."""

_PER_PARAMETER, _PER_PARAMETER_PURE = 10, 4
"""Frequencies per parameter, m / (k d).

Under zCDP SNR m hardly depends on m, so there are many. Under pure epsilon it falls as 1 / m. Measured (k = d = 5, SNR
m / (k d) = 30 at ten per parameter): sum of squares 1.13 times Lloyd's with ten, 1.05 with four, 1.04 with two, which
leave a decoder little information. With little noise there are ten, and with less as many as under zCDP.
"""

_LAVISH, _LAVISH_MOST = 30, 1500
"""Frequencies per parameter of small sketches, and their number beyond which `_PER_PARAMETER` counts again.

Real rows are no round clusters, and more frequencies see more of their shapes. The excess over Lloyd's sum of squares
with 30 per parameter is 0.35 to 0.98 times (median 0.66) that with 10 at epsilon 1 on seven real tables, and 0.32 to
0.90 times (0.74) on six at 0.1; medians of 6 seeds. With 60 it is 0.32 to 1.13 and 0.45 to 0.85 times. The limit keeps
decoding quick.
"""

_AMPLE = 10 * TRUSTWORTHY_QUALITY
"""SNR m / (k d) from which noise is little: ten times that of a reliable decoding. Chosen, not tuned."""

_UNKNOWN_CLUSTERS = 10
"""Number of clusters that is assumed if a request leaves it open. Chosen, not tuned."""


def default_frequencies(k: int, d: int, *, pure: bool, snr: Callable[[int], float | None]) -> int:
    """Return the number of frequencies if the request leaves it open.

    Args:
        k: number of clusters; 0 if unknown.
        d: number of columns.
        pure: True for Laplace noise.
        snr: predicted signal-to-noise ratio of m frequencies; None if the number of rows is unknown.
    """
    parameters = (k or _UNKNOWN_CLUSTERS) * d
    many = int(np.clip(_PER_PARAMETER * parameters, FEWEST, MOST))
    most = max(many, min(_LAVISH * parameters, _LAVISH_MOST))
    few = int(np.clip(_PER_PARAMETER_PURE * parameters, FEWEST_PURE, MOST))

    def ample(m: int) -> bool:
        expected = snr(m)
        return expected is not None and expected * m >= _AMPLE * parameters

    return next((m for m in (most, many) if not pure or ample(m)), few)


def spacing(k: int, d: int) -> float:
    """Return the distance of k points that share a box evenly, over the box's width: k^(-1/d); k = 10 if unknown."""
    return float((k or _UNKNOWN_CLUSTERS) ** (-1.0 / d))


def sigma_between(k: int, d: int, between: float) -> float:
    """Return the least scale of frequencies at which a decoder finds k arbitrarily tight clusters.

    In frame coordinates; 0.45 times the spacing of k centres of standard deviation `between`. At the scale of clusters
    that are small and far apart, moments show nothing in most of the box. Measured with 5 clusters of 0.03 of the
    bounds all over the box, SNR m / (k d) = 100: in 10 columns the sum of squares is hundreds of times Lloyd's at 0.2
    times the spacing and below, 1.13, 1.17 and 1.24 times at 0.36, 0.48 and 0.6; in 2 columns 17 times at the scale of
    a cluster, 1.06 to 1.09 from 0.2 to 0.5.
    """
    return 0.45 * spacing(k, d) * between


def schema_sigma(k: int, d: int) -> float:
    """Return the scale of frequencies, in frame coordinates, if only the box is known.

    Centres may then be anywhere in [-1, 1]^d. Measured at 0.5 instead of 0.45 of their spacing (2 and 10 columns, 5
    clusters, noise of a moment 0.03): sum of squares 1.00 to 1.02 times Lloyd's for clusters of 0.02 to 0.1 of the
    bounds, over all of the box or a sixth of it.
    """
    return sigma_between(k, d, 1 / float(np.sqrt(3.0)))


@dataclass(frozen=True)
class Outlook:
    """Expected accuracy of a decoding, without looking at the rows.

    Attributes:
        accuracy: `snr`, the signal-to-noise ratio, and for clusters `relative_sse`, the sum of squares over that of
            Lloyd's algorithm, if there are frequencies enough; empty if the number of rows is unknown.
        warnings: warnings for the analyst before the debit.
    """

    accuracy: Mapping[str, Expected]
    warnings: tuple[str, ...]


def outlook(snr: float | None, k: int, frequencies: Frequencies, *, per_row: int, pure: bool) -> Outlook:
    """Predict the accuracy of k clusters decoded from a sketch of this signal-to-noise ratio.

    Args:
        snr: signal-to-noise ratio of one moment; None if unknown.
        k: number of clusters; 0 if nothing is decoded yet, so that the sum of squares is not predicted.
        frequencies: frequencies of the sketch.
        per_row: number of frequencies at which each row contributes.
        pure: True for Laplace noise.
    """
    m, d = frequencies.m, frequencies.d
    warnings = []
    if k and m < LEAST_FREQUENCIES[frequencies.law] * k * d:
        text = f"{m} frequencies are too few for the {k * d} coordinates of {k} centres, which are often far off then"
        warnings.append(f"{text}; ask for {10 * k * d}")
    # The number of rows is neither public nor declared: nothing that depends on it can be foretold.
    if snr is None:
        return Outlook({}, tuple(warnings))
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
    accuracy = {"snr": Expected(snr)}
    if k and (sse := predicted_relative_sse(k, d, m, snr, frequencies.law)) < np.inf:
        accuracy["relative_sse"] = Expected(sse)
    return Outlook(accuracy, tuple(warnings))
