"""The five requests as values: every argument of a fit, its check and its description, written once.

Imports nothing of gRPC or of the contract: the client turns requests into messages.
"""

from bursar_models.requests._dpem import DPEM, Start
from bursar_models.requests._gradient_em import GradientEM, GradientEMModel, GradientStart, LatentModel
from bursar_models.requests._mrf import MRF, Chain, MRFGraph, PaidTables, Workload
from bursar_models.requests._request import REQUIRED, Argument, Fits, Request, arguments, described
from bursar_models.requests._separated_gmm import ColumnUnits, SeparatedGMM
from bursar_models.requests._sketch_kmeans import Computer, Decoding, PaidSketch, Pilot, Scale, SketchKMeans
from bursar_models.requests._starts import GaussianPrior, GivenCoefficients, GivenStart, RandomStart
from bursar_models.requests._study import Study

__all__ = [
    "DPEM",
    "MRF",
    "REQUIRED",
    "Argument",
    "Chain",
    "ColumnUnits",
    "Computer",
    "Decoding",
    "Fits",
    "GaussianPrior",
    "GivenCoefficients",
    "GivenStart",
    "GradientEM",
    "GradientEMModel",
    "GradientStart",
    "LatentModel",
    "MRFGraph",
    "PaidSketch",
    "PaidTables",
    "Pilot",
    "RandomStart",
    "Request",
    "Scale",
    "SeparatedGMM",
    "SketchKMeans",
    "Start",
    "Study",
    "Workload",
    "arguments",
    "described",
]
