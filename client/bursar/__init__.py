"""The SDK of bursar: connect to a server, ask within a privacy budget, get released models.

    client = bursar.connect("localhost:8443", token="...", ca="ca.pem")
    people = client.dataset("people")
    model = people.fit(bursar.DPEM(n_components=3), spend=bursar.rho(0.05))

Rows never leave the server; a model is differentially private and may be used in any way. Everything public is in this
namespace, in `bursar_models` and in `bursar.testing`.

Examples in docstrings ask a server of `bursar.testing.serve`: `client` is its analyst, and `data` its dataset "toy".
"""

from bursar._admin import Admin, TokenSummary
from bursar._audit import Audit, LedgerEntry, Verification
from bursar._client import Client, connect
from bursar._dataset import Dataset
from bursar._errors import (
    AuthenticationError,
    BudgetExhaustedError,
    DatasetRetiredError,
    DeadlineError,
    HistoryError,
    NotFoundError,
    NotImplementedByServerError,
    OverloadedError,
    PermissionDeniedError,
    ReleaseLostError,
    RepeatedFitWarning,
    RequestIdReusedError,
    ServerError,
    TransportError,
    UnavailableError,
)
from bursar._history import HistoryHead
from bursar._plan import Plan, PlannedFit
from bursar._preview import Preflight, Preview
from bursar._releases import Releases, ReleaseState, ReleaseSummary, Sketches, SketchSummary
from bursar._sketch_file import load_sketch, save_sketch
from bursar._suggest import Suggestion, Target
from bursar_models import (
    GaussianMixture,
    GradientTrace,
    Interval,
    Intervals,
    KMeans,
    LinearRegression,
    MarkovRandomField,
    MixtureOfRegressions,
    Model,
    Separation,
    Sketch,
    SymmetricMixture,
    TableError,
    load,
)
from bursar_models.budget import (
    EpsilonDelta,
    Limits,
    NeighbouringRelation,
    Price,
    PrivacyUnit,
    Pure,
    Receipt,
    ReleaseNoise,
    Remaining,
    Rho,
    Spend,
    WhatIsLeft,
    epsilon_delta,
    pure,
    rho,
    what_is_left,
)
from bursar_models.errors import Error, InvalidRequestError, MissingDependencyError, RefusedError
from bursar_models.requests import (
    DPEM,
    MRF,
    Chain,
    GaussianPrior,
    GivenCoefficients,
    GivenStart,
    GradientEM,
    Pilot,
    RandomStart,
    Request,
    SeparatedGMM,
    SketchKMeans,
)
from bursar_models.schema import CategoricalColumn, Column, NumericColumn

__all__ = [
    "DPEM",
    "MRF",
    "Admin",
    "Audit",
    "AuthenticationError",
    "BudgetExhaustedError",
    "CategoricalColumn",
    "Chain",
    "Client",
    "Column",
    "Dataset",
    "DatasetRetiredError",
    "DeadlineError",
    "EpsilonDelta",
    "Error",
    "GaussianMixture",
    "GaussianPrior",
    "GivenCoefficients",
    "GivenStart",
    "GradientEM",
    "GradientTrace",
    "HistoryError",
    "HistoryHead",
    "Interval",
    "Intervals",
    "InvalidRequestError",
    "KMeans",
    "LedgerEntry",
    "Limits",
    "LinearRegression",
    "MarkovRandomField",
    "MissingDependencyError",
    "MixtureOfRegressions",
    "Model",
    "NeighbouringRelation",
    "NotFoundError",
    "NotImplementedByServerError",
    "NumericColumn",
    "OverloadedError",
    "PermissionDeniedError",
    "Pilot",
    "Plan",
    "PlannedFit",
    "Preflight",
    "Preview",
    "Price",
    "PrivacyUnit",
    "Pure",
    "RandomStart",
    "Receipt",
    "RefusedError",
    "ReleaseLostError",
    "ReleaseNoise",
    "ReleaseState",
    "ReleaseSummary",
    "Releases",
    "Remaining",
    "RepeatedFitWarning",
    "Request",
    "RequestIdReusedError",
    "Rho",
    "SeparatedGMM",
    "Separation",
    "ServerError",
    "Sketch",
    "SketchKMeans",
    "SketchSummary",
    "Sketches",
    "Spend",
    "Suggestion",
    "SymmetricMixture",
    "TableError",
    "Target",
    "TokenSummary",
    "TransportError",
    "UnavailableError",
    "Verification",
    "WhatIsLeft",
    "connect",
    "epsilon_delta",
    "load",
    "load_sketch",
    "pure",
    "rho",
    "save_sketch",
    "what_is_left",
]
