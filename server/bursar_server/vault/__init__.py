"""The one door out: statistics over rows, exact integer sums, OpenDP noise, and the meter between them.

Nothing else in the server reads rows, and nothing else draws noise. A fit is a plain function of a `Session`.
"""

from bursar_server.vault._noise import (
    GaussianNoise,
    LaplaceNoise,
    Noise,
    NoiseSource,
    OpenDPNoise,
    SelectionNoise,
    noise_std,
)
from bursar_server.vault._rows import CHUNK, MAX_ROWS, ArrayRows, Rows
from bursar_server.vault._selection import MAX_SCORE, Candidates
from bursar_server.vault._sensitivity import (
    Bounds,
    Sensitivity,
    event_of,
    gaussian_for,
    laplace_for,
    pure_selection_for,
    selection_for,
    sensitivity,
)
from bursar_server.vault._session import Choice, Meter, OverspendError, Release, Session
from bursar_server.vault._statistic import Factor, Kernel, Statistic, exact_sum

__all__ = [
    "CHUNK",
    "MAX_ROWS",
    "MAX_SCORE",
    "ArrayRows",
    "Bounds",
    "Candidates",
    "Choice",
    "Factor",
    "GaussianNoise",
    "Kernel",
    "LaplaceNoise",
    "Meter",
    "Noise",
    "NoiseSource",
    "OpenDPNoise",
    "OverspendError",
    "Release",
    "Rows",
    "SelectionNoise",
    "Sensitivity",
    "Session",
    "Statistic",
    "event_of",
    "exact_sum",
    "gaussian_for",
    "laplace_for",
    "noise_std",
    "pure_selection_for",
    "selection_for",
    "sensitivity",
]
