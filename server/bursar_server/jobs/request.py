"""Requests of all fits: the one inside a preview, and checks that come before a fit's own."""

from __future__ import annotations

from typing import cast

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bursar_proto.v1 import fit_pb2
from bursar_server.fits import InvalidFieldsError
from bursar_server.fits.contract import BY_FIELD, FitRequest, Method


def previewed(request: fit_pb2.PreviewRequest) -> tuple[Method, FitRequest]:
    """Return the method and the request of a preview. Raises InvalidFieldsError if there is none."""
    field = request.WhichOneof("fit")
    if field is None:
        raise InvalidFieldsError(("fit", "is missing; expected the request of a fit that is to be previewed"))
    found: FitRequest = getattr(request, field)
    return BY_FIELD[field], found


def check_known(request: Message | FitRequest) -> None:
    """Check that a request has no unknown fields, as a newer client may send; their meaning is not guessed.

    Raises:
        InvalidFieldsError: there are unknown fields; names their numbers.
    """
    if unknown := _unknown_fields(cast(Message, request)):
        raise InvalidFieldsError(("request", f"has fields that this version does not know: {', '.join(unknown)}"))


def check_real(request: FitRequest) -> None:
    """Check that no synthetic result enters a charged or stored request. Raises InvalidFieldsError."""
    if isinstance(request, fit_pb2.FitSketchKMeansRequest):
        text = "is of made-up rows, by a dummy run; expected a sketch that was released"
        wrong = [(f"foreign[{place}]", text) for place, sketch in enumerate(request.foreign) if sketch.dummy]
        if wrong:
            raise InvalidFieldsError(*wrong)


def _unknown_fields(message: Message, path: str = "") -> list[str]:
    unknown = UnknownFieldSet(message)
    found = [f"{path}{unknown[i].field_number}" for i in range(len(unknown))]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                found += _unknown_fields(part, f"{path}{field.name}.")
    return found
