"""Messages of the search for separated Gaussians."""

from __future__ import annotations

from typing import Any

from bursar import _convert
from bursar._errors import ServerError
from bursar._fits._kind import Asked, Kind
from bursar_models import GaussianMixture, Separation
from bursar_models.budget import Pure, Receipt
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import SeparatedGMM
from bursar_proto.v1 import catalog_pb2, fit_pb2


class SeparatedGMMKind(Kind[SeparatedGMM]):
    """The search for separated Gaussians."""

    name = "separated_gmm"
    method = "FitSeparatedGMM"

    def message(self, request: SeparatedGMM, asked: Asked) -> fit_pb2.FitSeparatedGMMRequest:
        """Return the request on the wire. Raises InvalidRequestError."""
        if isinstance(asked.spend, Pure):
            text = "must be Gaussian noise, as bursar.rho(...) or bursar.epsilon_delta(...) are, got bursar.pure(...)"
            raise InvalidRequestError.of("spend", text)
        papers = request.variant != "recursive"
        covariance_type = request.covariance_type or ("spherical" if papers else "full")
        estimator = request.estimator or ("clusters" if papers else "em")
        return self.filled(
            fit_pb2.FitSeparatedGMMRequest,
            request,
            asked,
            covariance_type=_convert.COVARIANCE_TYPES[covariance_type],
            estimator=fit_pb2.SEPARATED_ESTIMATOR_EM if estimator == "em" else fit_pb2.SEPARATED_ESTIMATOR_CLUSTERS,
        )

    def result(self, request: SeparatedGMM, answer: Any, receipt: Receipt | None) -> GaussianMixture:
        """Return the released model. Raises ServerError."""
        return separated_gmm_from(answer, receipt, sought=request.n_components)

    def stored(self, message: catalog_pb2.GetReleaseResponse, receipt: Receipt) -> GaussianMixture:
        """Return the released model. Raises ServerError."""
        return separated_gmm_from(message.separated_gmm, receipt, sought=message.n_components)


def separated_gmm_from(message: fit_pb2.SeparatedGMM, receipt: Receipt | None, *, sought: int) -> GaussianMixture:
    """Return a released mixture of the components that were found.

    Raises:
        ServerError: the parameters are not those of a mixture, or of another number of components than it says.
    """
    # The mixed key type keeps mypy from seeing that the names are the literals of CovarianceType.
    covariance_type: Any = _convert.named(_convert.COVARIANCE_TYPES, message.covariance_type)
    try:
        means = _convert.tensor_from(message.means)
        if message.found != len(means):
            raise ValueError(f"found: expected as many as there are means, {len(means)}, got {message.found}")
        return GaussianMixture(
            weights_=_convert.tensor_from(message.weights),
            means_=means,
            covariances_=_convert.tensor_from(message.covariances),
            covariance_type=covariance_type,
            bounds_=_convert.tensor_if(message, "bounds"),
            separation=Separation(
                sought=sought,
                mean_errors=_convert.tensor_from(message.mean_errors),
                weight_errors=_convert.tensor_from(message.weight_errors),
                covariance_errors=_convert.tensor_from(message.covariance_errors),
                radii=_convert.radii_from(message),
            ),
            **_convert.shared_by_models(message, receipt),
        )
    except (TypeError, ValueError) as error:
        raise ServerError(f"the server sent no valid model: {error}") from error
