"""Messages of the noisy mean."""

from __future__ import annotations

from typing import Any

from bursar._fits._kind import Asked, Kind
from bursar_models.requests import Mean
from bursar_proto.v1 import fit_pb2


class MeanKind(Kind[Mean]):
    """The noisy mean of one column."""

    name, method = "mean", "FitMean"

    def message(self, request: Mean, asked: Asked) -> Any:
        """Return the request on the wire."""
        return self.filled(fit_pb2.FitMeanRequest, request, asked)

    def result(self, request: Mean, answer: Any, receipt: object) -> float:
        """Return the mean."""
        return float(answer.mean)

    def stored(self, message: Any, receipt: object) -> float:
        """Return the mean of a stored release."""
        return float(message.mean.mean)
