"""The one door out: the only code of the server that sums rows and the only code that draws noise.

A `Session` gives a fit noisy sums and private choices. Kernels turn rows into bounded integers, sums of integers are
exact, noise is exact, and a meter stops every release that the debit does not cover. A fit is a plain function of a
`Session`. Imports neither gRPC, SQLite nor PyArrow, and no other room of the server.
"""

from bursar_server.vault._blocks import MAX_BLOCK_NUMBERS, BlockEstimator
from bursar_server.vault._dask import DaskEngine
from bursar_server.vault._engine import (
    Engine,
    EngineError,
    EngineSettings,
    LocalEngine,
    RowsPart,
    SpreadRows,
    Task,
)
from bursar_server.vault._errors import OverspendError
from bursar_server.vault._meter import FitBudget, Meter, PaidBudget, RowSource, SyntheticBudget
from bursar_server.vault._noise import (
    ExactNoise,
    GaussianNoise,
    LaplaceNoise,
    Noise,
    NoiseSource,
    OpenDPNoise,
    SelectionNoise,
    noise_std,
)
from bursar_server.vault._parts import Forest, Node, PartRelease, PartSearch, PathMeter, Rule
from bursar_server.vault._rows import CHUNK, MAX_ROWS, MAX_UNIT_ROWS, ArrayRows, Rows
from bursar_server.vault._search import Counts, ExactSearch, Family, Scores, SearchSource
from bursar_server.vault._selection import MAX_SCORE, Candidates
from bursar_server.vault._sensitivity import (
    Bounds,
    ScoreBounds,
    Sensitivity,
    estimates_cap,
    event_of,
    gaussian_for,
    laplace_for,
    part_cost,
    part_sensitivity,
    pure_selection_for,
    search_noise_for,
    selection_for,
    sensitivity,
)
from bursar_server.vault._session import Choice, Release, Session
from bursar_server.vault._statistic import Factor, Kernel, Statistic, exact_sum
from bursar_server.vault._transforms import Log1p, TransformedRows, transformed

__all__ = [
    "CHUNK",
    "MAX_BLOCK_NUMBERS",
    "MAX_ROWS",
    "MAX_SCORE",
    "MAX_UNIT_ROWS",
    "ArrayRows",
    "BlockEstimator",
    "Bounds",
    "Candidates",
    "Choice",
    "Counts",
    "DaskEngine",
    "Engine",
    "EngineError",
    "EngineSettings",
    "ExactNoise",
    "ExactSearch",
    "Factor",
    "Family",
    "FitBudget",
    "Forest",
    "GaussianNoise",
    "Kernel",
    "LaplaceNoise",
    "LocalEngine",
    "Log1p",
    "Meter",
    "Node",
    "Noise",
    "NoiseSource",
    "OpenDPNoise",
    "OverspendError",
    "PaidBudget",
    "PartRelease",
    "PartSearch",
    "PathMeter",
    "Release",
    "RowSource",
    "Rows",
    "RowsPart",
    "Rule",
    "ScoreBounds",
    "Scores",
    "SearchSource",
    "SelectionNoise",
    "Sensitivity",
    "Session",
    "SpreadRows",
    "Statistic",
    "SyntheticBudget",
    "Task",
    "TransformedRows",
    "estimates_cap",
    "event_of",
    "exact_sum",
    "gaussian_for",
    "laplace_for",
    "noise_std",
    "part_cost",
    "part_sensitivity",
    "pure_selection_for",
    "search_noise_for",
    "selection_for",
    "sensitivity",
    "transformed",
]
