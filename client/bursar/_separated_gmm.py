"""What may be asked of the search for separated Gaussians, and what comes back (Kamath et al. 2019, made practical)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bursar import _convert
from bursar._arguments import names, whole
from bursar._errors import InvalidRequestError, ServerError
from bursar._privacy import Pure, Receipt, Spend, positive
from bursar._sketch_kmeans import ColumnUnits
from bursar.models import GaussianMixture, Separation
from bursar_proto.v1 import fit_pb2

_SEEDS = 2**64 - 1

# Each component has a covariance of its own.
_COVARIANCES = {name: wire for name, wire in _convert.COVARIANCE_TYPES.items() if name != "tied"}

SeparatedCovariance: TypeAlias = Literal["full", "diag", "spherical"]
"""Shape of a component's covariance."""

SeparatedVariant: TypeAlias = Literal["recursive", "easy", "sample_and_aggregate"]
"""How components are looked for."""

SeparatedSearch: TypeAlias = Literal["slabs", "balls"]
"""The shapes that a split is looked for among."""

SeparatedEstimator: TypeAlias = Literal["em", "clusters"]
"""How the parameters of what was found are estimated."""


@dataclass(frozen=True, kw_only=True)
class SeparatedGMMSettings:
    """The arguments of `Dataset.fit_separated_gmm` that say what is computed; documented there."""

    n_components: int
    sigma_min: float
    sigma_max: float
    spend: Spend
    columns: Sequence[str] | None = None
    radius: float | None = None
    min_weight: float | None = None
    covariance_type: SeparatedCovariance | None = None
    separation: float | None = None
    variant: SeparatedVariant = "recursive"
    search: SeparatedSearch = "slabs"
    estimator: SeparatedEstimator | None = None
    units: ColumnUnits = "common"
    public_seed: int = 0

    def message(self, dataset: str, request_id: str, numeric: Sequence[str]) -> fit_pb2.FitSeparatedGMMRequest:
        """The request on the wire.

        Args:
            dataset: its name.
            request_id: the idempotency key.
            numeric: the dataset's numeric columns, which the model has if no columns are named.

        Raises:
            InvalidRequestError: an argument that no server would accept.
        """
        if isinstance(self.spend, Pure):
            text = "must be Gaussian noise, as bursar.rho(...) or bursar.epsilon_delta(...) are, got bursar.pure(...)"
            raise InvalidRequestError.of("spend", text)
        papers = self.variant != "recursive"
        covariance_type = self.covariance_type or ("spherical" if papers else "full")
        estimator = self.estimator or ("clusters" if papers else "em")
        request = fit_pb2.FitSeparatedGMMRequest(
            request_id=request_id,
            dataset=dataset,
            columns=numeric if self.columns is None else names(self.columns),
            spend=_convert.spend_to(self.spend),
            n_components=whole("n_components", self.n_components, 1, 2**32 - 1),
            sigma_min=positive("sigma_min", self.sigma_min),
            sigma_max=positive("sigma_max", self.sigma_max),
            covariance_type=_convert.choice("covariance_type", covariance_type, _COVARIANCES),
            variant=_convert.choice("variant", self.variant, _convert.SEPARATED_VARIANTS),
            search=_convert.choice("search", self.search, _convert.SEPARATED_SEARCHES),
            estimator=_convert.choice("estimator", estimator, _convert.SEPARATED_ESTIMATORS),
            units=_convert.choice("units", self.units, _convert.COLUMN_UNITS),
            public_seed=whole("public_seed", self.public_seed, 0, _SEEDS),
        )
        # What the wire has as zero if the caller leaves it to the server.
        for name in ("radius", "min_weight", "separation"):
            value = getattr(self, name)
            if value is not None:
                setattr(request, name, positive(name, value))
        _check_numbers(request)
        return request


def _check_numbers(request: fit_pb2.FitSeparatedGMMRequest) -> None:
    """Raises InvalidRequestError for numbers that are none together."""
    if not request.sigma_min < request.sigma_max:
        text = f"must be above sigma_min, {request.sigma_min!r}, got {request.sigma_max!r}"
        raise InvalidRequestError.of("sigma_max", text)
    sampled = request.variant == fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE
    if sampled and request.covariance_type != fit_pb2.COVARIANCE_TYPE_SPHERICAL:
        raise InvalidRequestError.of("covariance_type", 'must be "spherical" for variant="sample_and_aggregate"')
    if not request.min_weight * request.n_components <= 1:
        text = f"must be 1 / n_components or less, since all weights together are 1, got {request.min_weight!r}"
        raise InvalidRequestError.of("min_weight", text)


def separated_gmm_from(message: fit_pb2.SeparatedGMM, receipt: Receipt | None, *, sought: int) -> GaussianMixture:
    """A released mixture of the components that were found.

    Args:
        message: of the wire.
        receipt: of its debit.
        sought: how many were asked for.

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
            separation=Separation(
                sought=sought,
                mean_errors=_convert.tensor_from(message.mean_errors),
                weight_errors=_convert.tensor_from(message.weight_errors),
                covariance_errors=_convert.tensor_from(message.covariance_errors),
            ),
        )
    except (TypeError, ValueError) as error:
        raise ServerError(f"the server sent no valid model: {error}") from error
