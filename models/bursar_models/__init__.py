"""Released models, budget amounts and the public schema: plain values that client and server share.

The models compute densities, assignments and samples from released numbers, so a model means the same on both sides.
This package imports numpy and scipy; it must not import the server, the ledger, the contract or gRPC, and it never
reads rows of a protected table.

Stability: the fields of the result types have the names and shapes of scikit-learn's fitted estimators and keep them.
"""

from bursar_models._cluster_choice import ClusterChoice
from bursar_models._cluster_report import ClusterReport
from bursar_models._component_choice import ComponentChoice
from bursar_models._decoding import DEFAULT_RESTARTS, Decoded, decode_kmeans, decode_mixture, most_restarts
from bursar_models._density import (
    COVARIANCE_TYPES,
    CovarianceType,
    cholesky_factors,
    log_gaussian_density,
    log_mixture_density,
    n_parameters,
    reshaped_covariances,
)
from bursar_models._frequencies import (
    MAX_FREQUENCIES,
    MAX_SIGMA,
    MIN_SIGMA,
    Frequencies,
    FrequencyLaw,
    FrequencyStructure,
    HadamardFactors,
    Stream,
    hadamard_transform,
    public_uniforms,
)
from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._goodness import Goodness
from bursar_models._gradient_trace import GRADIENT_VARIANTS, GradientTrace, GradientVariant, RadiusCounts
from bursar_models._intervals import Interval, Intervals
from bursar_models._kmeans import KMeans, squared_distances
from bursar_models._made_up import made_up_codes, made_up_numbers, made_up_unit_rows
from bursar_models._portable import Model, load
from bursar_models._regressions import LinearRegression, MixtureOfRegressions
from bursar_models._separation import Separation
from bursar_models._sketch import (
    LEAST_FREQUENCIES,
    TRUSTWORTHY_QUALITY,
    Signature,
    Sketch,
    predicted_relative_sse,
    predicted_snr,
    trustworthy_clusters,
)
from bursar_models._start_cells import StartCells
from bursar_models._starts import public_generator, uniform_in_ball
from bursar_models._symmetric_mixture import SymmetricMixture
from bursar_models._trajectory import Trajectory, TrajectoryStep
from bursar_models.mrf import (
    Estimate,
    Graph,
    MarkovRandomField,
    NoisyTable,
    ReleasedTable,
    TableError,
    Variable,
    check_cliques,
    check_exact,
    estimate,
    estimate_chain,
    estimated_rows,
    largest_table,
)

__all__ = [
    "COVARIANCE_TYPES",
    "DEFAULT_RESTARTS",
    "GRADIENT_VARIANTS",
    "LEAST_FREQUENCIES",
    "MAX_FREQUENCIES",
    "MAX_SIGMA",
    "MIN_SIGMA",
    "TRUSTWORTHY_QUALITY",
    "ClusterChoice",
    "ClusterReport",
    "ComponentChoice",
    "CovarianceType",
    "Decoded",
    "Estimate",
    "Frequencies",
    "FrequencyLaw",
    "FrequencyStructure",
    "GaussianMixture",
    "Goodness",
    "GradientTrace",
    "GradientVariant",
    "Graph",
    "HadamardFactors",
    "Interval",
    "Intervals",
    "KMeans",
    "LinearRegression",
    "MarkovRandomField",
    "MixtureOfRegressions",
    "Model",
    "NoisyTable",
    "RadiusCounts",
    "ReleasedTable",
    "Separation",
    "Signature",
    "Sketch",
    "StartCells",
    "Stream",
    "SymmetricMixture",
    "TableError",
    "Trajectory",
    "TrajectoryStep",
    "Variable",
    "check_cliques",
    "check_exact",
    "cholesky_factors",
    "decode_kmeans",
    "decode_mixture",
    "estimate",
    "estimate_chain",
    "estimated_rows",
    "hadamard_transform",
    "largest_table",
    "load",
    "log_gaussian_density",
    "log_mixture_density",
    "made_up_codes",
    "made_up_numbers",
    "made_up_unit_rows",
    "most_restarts",
    "n_parameters",
    "predicted_relative_sse",
    "predicted_snr",
    "public_generator",
    "public_uniforms",
    "reshaped_covariances",
    "squared_distances",
    "trustworthy_clusters",
    "uniform_in_ball",
]
