"""The fits that this client knows: one `Kind` for each class of requests."""

from __future__ import annotations

from typing import Any

from bursar._fits._dpem import DPEMKind
from bursar._fits._gradient_em import GradientEMKind
from bursar._fits._kind import Asked, Kind, refuse_dry_runs
from bursar._fits._mrf import MRFKind
from bursar._fits._separated_gmm import SeparatedGMMKind
from bursar._fits._sketch_kmeans import SketchKMeansKind
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import DPEM, MRF, GradientEM, Request, SeparatedGMM, SketchKMeans

__all__ = ["BY_NAME", "KINDS", "Asked", "Kind", "kind_of", "refuse_dry_runs"]

KINDS: dict[type[Request], Kind[Any]] = {
    DPEM: DPEMKind(),
    SeparatedGMM: SeparatedGMMKind(),
    GradientEM: GradientEMKind(),
    SketchKMeans: SketchKMeansKind(),
    MRF: MRFKind(),
}
"""Kinds by their requests."""

BY_NAME = {kind.name: kind for kind in KINDS.values()}
"""Kinds by their names in the contract."""


def kind_of(request: object) -> Kind[Any]:
    """Return the kind of a request. Raises InvalidRequestError if it is no request."""
    kind = KINDS.get(type(request))  # type: ignore[arg-type]  # whatever is no request is in no key
    if kind is None:
        names = ", ".join(f"bursar.{kind.__name__}" for kind in KINDS)
        raise InvalidRequestError.of("request", f"must be one of {names}, got {type(request).__name__}")
    return kind
