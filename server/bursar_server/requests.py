"""Requests of all fits: which there are, and what is wrong with one before its fit has looked at it."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bursar_proto.v1 import fit_pb2
from bursar_server.fits import InvalidRequestError

FitRequest = (
    fit_pb2.FitDPEMRequest
    | fit_pb2.FitSeparatedGMMRequest
    | fit_pb2.FitGradientEMRequest
    | fit_pb2.FitSketchKMeansRequest
    | fit_pb2.FitMRFRequest
)
"""The requests of all fits; they have request_id, dataset, columns and spend in common."""

METHODS: Mapping[str, str] = {
    "dpem": "FitDPEM",
    "sketch_kmeans": "FitSketchKMeans",
    "mrf": "FitMRF",
    "gradient_em": "FitGradientEM",
    "separated_gmm": "FitSeparatedGMM",
}
"""Methods by the field of `PreviewRequest` that has their request."""


def previewed(request: fit_pb2.PreviewRequest) -> tuple[str, FitRequest]:
    """The field that is filled in, and the request in it. Raises InvalidRequestError if there is none."""
    field = request.WhichOneof("fit")
    if field is None:
        raise InvalidRequestError(("fit", "is missing; expected the request of a fit that is to be previewed"))
    found: FitRequest = getattr(request, field)
    return field, found


def check_known(request: Message) -> None:
    """That a newer client meant nothing that is not known here, where nothing is guessed.

    Raises InvalidRequestError naming the numbers of unknown fields.
    """
    if unknown := _unknown_fields(request):
        raise InvalidRequestError(("request", f"has fields that this version does not know: {', '.join(unknown)}"))


def check_real(request: FitRequest) -> None:
    """That nothing made up goes into what is paid for or kept. Raises InvalidRequestError."""
    if isinstance(request, fit_pb2.FitSketchKMeansRequest):
        text = "is of made-up rows, by a dummy run; expected a sketch that was released"
        wrong = [(f"foreign[{place}]", text) for place, sketch in enumerate(request.foreign) if sketch.dummy]
        if wrong:
            raise InvalidRequestError(*wrong)


def _unknown_fields(message: Message, path: str = "") -> list[str]:
    unknown = UnknownFieldSet(message)
    found = [f"{path}{unknown[i].field_number}" for i in range(len(unknown))]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                found += _unknown_fields(part, f"{path}{field.name}.")
    return found
