"""The SDK of bursar: connect to a server, ask within a privacy budget, get released models.

    client = bursar.connect("localhost:8443", token="...", ca="ca.pem")
    people = client.dataset("people")
    model = people.fit_dpem(n_components=3, spend=bursar.rho(0.05))

Rows never leave the server; a model is differentially private and may be used in any way. Everything public is in this
namespace, in `bursar.models` and in `bursar.testing`.

Examples in docstrings need no server: `client` is `bursar.testing.fake_server()`'s, and `data` its dataset "toy".
"""

from bursar._admin import Admin, TokenSummary
from bursar._audit import Audit, LedgerEntry, Verification
from bursar._client import Client, connect
from bursar._dataset import Dataset
from bursar._dpem import GaussianPrior, GivenStart, RandomStart
from bursar._dummy import Dummy
from bursar._errors import (
    AuthenticationError,
    BudgetExhaustedError,
    DatasetRetiredError,
    DeadlineError,
    Error,
    HistoryError,
    InvalidRequestError,
    MissingDependencyError,
    NotFoundError,
    NotImplementedByServerError,
    OverloadedError,
    PermissionDeniedError,
    RefusedError,
    ReleaseLostError,
    RequestIdReusedError,
    ServerError,
    TransportError,
    UnavailableError,
)
from bursar._gradient_em import GivenCoefficients
from bursar._history import HistoryHead
from bursar._mrf import Chain
from bursar._preview import Preflight, Preview
from bursar._privacy import (
    Adjacency,
    EpsilonDelta,
    Limits,
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
from bursar._releases import Releases, ReleaseState, ReleaseSummary, Sketches, SketchSummary
from bursar._schema import CategoricalColumn, Column, NumericColumn
from bursar._sketch_file import load_sketch, save_sketch
from bursar._sketch_kmeans import Pilot
from bursar._suggest import Suggestion, Target
from bursar.models import (
    GaussianMixture,
    GradientTrace,
    KMeans,
    LinearRegression,
    MarkovRandomField,
    MixtureOfRegressions,
    Separation,
    Sketch,
    SymmetricMixture,
)

__all__ = [
    "Adjacency",
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
    "Dummy",
    "EpsilonDelta",
    "Error",
    "GaussianMixture",
    "GaussianPrior",
    "GivenCoefficients",
    "GivenStart",
    "GradientTrace",
    "HistoryError",
    "HistoryHead",
    "InvalidRequestError",
    "KMeans",
    "LedgerEntry",
    "Limits",
    "LinearRegression",
    "MarkovRandomField",
    "MissingDependencyError",
    "MixtureOfRegressions",
    "NotFoundError",
    "NotImplementedByServerError",
    "NumericColumn",
    "OverloadedError",
    "PermissionDeniedError",
    "Pilot",
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
    "RequestIdReusedError",
    "Rho",
    "Separation",
    "ServerError",
    "Sketch",
    "SketchSummary",
    "Sketches",
    "Spend",
    "Suggestion",
    "SymmetricMixture",
    "Target",
    "TokenSummary",
    "TransportError",
    "UnavailableError",
    "Verification",
    "WhatIsLeft",
    "connect",
    "epsilon_delta",
    "load_sketch",
    "pure",
    "rho",
    "save_sketch",
    "what_is_left",
]
