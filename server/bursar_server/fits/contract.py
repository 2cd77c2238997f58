"""Fitting methods of the contract, read from its descriptors: their names, messages and fields.

Imports no fit, so that commands without a fit compile no kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from bursar_proto.v1 import catalog_pb2, dummy_pb2, fit_pb2, types_pb2

SERVICE: ServiceDescriptor = fit_pb2.DESCRIPTOR.services_by_name["FitService"]
"""Service of the fits. Each of its methods is a fit, except `PREVIEW`."""

PREVIEW = "Preview"

_ONEOFS = (
    (dummy_pb2.DummyModel.DESCRIPTOR, "model"),
    (catalog_pb2.GetReleaseResponse.DESCRIPTOR, "model"),
)
"""Messages that hold the model of any fit, each with its oneof."""


class ContractError(Exception):
    """Error: a message that has a field for every fit lacks one."""


class FitRequest(Protocol):
    """Fields that the requests of all fits share."""

    @property
    def request_id(self) -> str:
        """Idempotency key."""

    @property
    def dataset(self) -> str:
        """Name of the dataset."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns."""

    @property
    def spend(self) -> types_pb2.Spend:
        """Budget requested."""

    @property
    def refuse_useless(self) -> bool:
        """True to refuse before the debit what the public rule calls useless."""

    def HasField(self, field_name: Literal["spend"]) -> bool:  # noqa: N802  the generated code's name
        """Return whether the spend is given."""

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:  # noqa: N802  likewise
        """Return the request's bytes."""


@dataclass(frozen=True)
class Method:
    """Method of the contract that fits a model.

    Attributes:
        name: name of the RPC, which the ledger records.
        field: name of the field of `PreviewRequest` with its request, and of `DummyModel` and `GetReleaseResponse` with
            its model.
        request: message that it receives.
        response: message that it streams: a receipt, progress or a model.
    """

    name: str
    field: str
    request: type[Any]
    response: type[Any]


def methods_of(service: ServiceDescriptor, previews: Descriptor) -> dict[str, Method]:
    """Return the fits of a service by the name of their RPC.

    Args:
        service: service with one method a fit, and `PREVIEW`.
        previews: message whose oneof `fit` has a field for the request of each.

    Raises ContractError naming the message that lacks a field.
    """
    return {method.name: _method(method, previews) for method in service.methods if method.name != PREVIEW}


def _method(method: MethodDescriptor, previews: Descriptor) -> Method:
    asked, answer = method.input_type, method.output_type
    field = _field(previews, "fit", asked)
    model: Any = answer.fields_by_name["model"].message_type
    for message, oneof in _ONEOFS:
        if _field(message, oneof, model) != field:
            raise ContractError(f"{message.name}.{oneof}: expected the model of {method.name} in a field {field!r}")
    return Method(method.name, field, GetMessageClass(asked), GetMessageClass(answer))


def _field(message: Descriptor, oneof: str, kind: Descriptor) -> str:
    """Return the name of the oneof's only field that holds a message of this kind."""
    fields: Sequence[Any] = message.oneofs_by_name[oneof].fields
    found: list[str] = [field.name for field in fields if field.message_type.full_name == kind.full_name]
    if len(found) != 1:
        raise ContractError(f"{message.name}.{oneof}: expected one field of type {kind.name}, found {len(found)}")
    return found[0]


METHODS: Mapping[str, Method] = methods_of(SERVICE, fit_pb2.PreviewRequest.DESCRIPTOR)
"""Fits by the name of their RPC."""

BY_FIELD: Mapping[str, Method] = {method.field: method for method in METHODS.values()}
"""Fits by the name of their field."""
