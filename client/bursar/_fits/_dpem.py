"""Messages of differentially private EM."""

from __future__ import annotations

from typing import Any

from bursar import _convert
from bursar._fits._kind import Asked, Kind, check_start_space, entry_of
from bursar_models import GaussianMixture, KMeans, reshaped_covariances
from bursar_models.budget import Receipt
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import DPEM, GivenStart, RandomStart
from bursar_proto.filling import message_of
from bursar_proto.v1 import catalog_pb2, fit_pb2


class DPEMKind(Kind[DPEM[Any]]):
    """Differentially private EM."""

    name = "dpem"
    method = "FitDPEM"

    def message(self, request: DPEM[Any], asked: Asked) -> fit_pb2.FitDPEMRequest:
        """Return the request on the wire. Raises InvalidRequestError."""
        asked_for = request.n_components
        least, most = asked_for if isinstance(asked_for, tuple) else (0, asked_for)
        message = self.filled(fit_pb2.FitDPEMRequest, request, asked, n_components=most, least_components=least)
        check_start_space("start", request.start, message.columns, asked.transforms(message.columns, request.transform))
        _set_start(message, request.start, by_numbers=asked.dry)
        return message

    def result(self, request: DPEM[Any], answer: Any, receipt: Receipt | None) -> GaussianMixture | KMeans:
        """Return the released model. Raises ServerError."""
        del request
        return _convert.mixture_from(answer, receipt)

    def stored(self, message: catalog_pb2.GetReleaseResponse, receipt: Receipt) -> GaussianMixture | KMeans:
        """Return the released model. Raises ServerError."""
        return _convert.mixture_from(message.dpem, receipt)


def _set_start(message: fit_pb2.FitDPEMRequest, start: object, *, by_numbers: bool) -> None:
    match start:
        case "splitting":
            message.splitting.SetInParent()
        case RandomStart():
            message.random.public_seed = start.public_seed
        case GivenStart():
            message.given.CopyFrom(message_of(fit_pb2.StartGiven, start))
        case int():
            message.released.entry = start
        case GaussianMixture() if by_numbers or not _is_of_dpem(start):
            message.given.CopyFrom(message_of(fit_pb2.StartGiven, _parameters(start, message)))
        case KMeans() if by_numbers:
            given = GivenStart(start.cluster_centers_, start.weights_)
            message.given.CopyFrom(message_of(fit_pb2.StartGiven, given))
        case GaussianMixture() | KMeans() | Receipt():
            message.released.entry = entry_of("start", start, "give its parameters in a GivenStart")


def _is_of_dpem(model: GaussianMixture) -> bool:
    """Return whether the server may know this model under its entry as an earlier release of the same method."""
    return model.sketch is None and model.trace is None and model.separation is None


def _parameters(model: GaussianMixture, message: fit_pb2.FitDPEMRequest) -> GivenStart:
    """Return a start at another fit's model. Raises InvalidRequestError if it has other columns, or another size."""
    if model.columns and list(model.columns) != list(message.columns):
        text = f"is a model of columns {list(model.columns)}, and this one is of {list(message.columns)}, in this order"
        raise InvalidRequestError.of("start", text)
    if model.n_components != message.n_components:
        found = "found" if model.separation is not None else "has"
        text = f"{found} {model.n_components} components; ask for n_components={model.n_components}"
        raise InvalidRequestError.of("start", f"{text}, got {message.n_components}")
    # The mixed key type keeps mypy from seeing that the names are the literals of CovarianceType.
    wanted: Any = _convert.named(_convert.COVARIANCE_TYPES, message.covariance_type or fit_pb2.COVARIANCE_TYPE_FULL)
    covariances = reshaped_covariances(
        model.covariances_,
        model.weights_,
        model.n_features,
        given=model.covariance_type,
        # One radius a cluster is all that k-means starts from.
        wanted="spherical" if message.mode == fit_pb2.MODE_KMEANS else wanted,
    )
    return GivenStart(model.means_, model.weights_, covariances)
