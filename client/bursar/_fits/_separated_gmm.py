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
        return fit_pb2.FitSeparatedGMMRequest(
            request_id=asked.request_id,
            dataset=asked.dataset,
            columns=asked.numeric() if request.columns is None else request.columns,
            spend=_convert.spend_to(asked.spend),
            n_components=request.n_components,
            radius=request.radius or 0.0,
            sigma_min=request.sigma_min,
            sigma_max=request.sigma_max,
            min_weight=request.min_weight or 0.0,
            covariance_type=_convert.COVARIANCE_TYPES[covariance_type],
            separation=request.separation or 0.0,
            variant=_convert.SEPARATED_VARIANTS[request.variant],
            search=_convert.SEPARATED_SEARCHES[request.search],
            estimator=_convert.SEPARATED_ESTIMATORS[estimator],
            units=_convert.COLUMN_UNITS[request.units],
            public_seed=request.public_seed,
            transforms=_convert.transforms_to(request.transform),
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
            columns=tuple(message.columns),
            receipt=receipt,
            noise=tuple(map(_convert.noise_from, message.noise)),
            iterations=message.iterations,
            n_rows=message.n_rows,
            transforms=_convert.transforms_from(message.transforms),
            bounds_=_convert.tensor_from(message.bounds) if message.HasField("bounds") else None,
            separation=Separation(
                sought=sought,
                mean_errors=_convert.tensor_from(message.mean_errors),
                weight_errors=_convert.tensor_from(message.weight_errors),
                covariance_errors=_convert.tensor_from(message.covariance_errors),
                radii=_convert.radii_from(message.radii) if message.HasField("radii") else None,
            ),
        )
    except (TypeError, ValueError) as error:
        raise ServerError(f"the server sent no valid model: {error}") from error
