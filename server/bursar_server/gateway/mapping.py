"""Methods that the gateway passes on, the mapping between JSON and messages, and HTTP answers for gRPC statuses.

Messages follow protobuf's JSON mapping, errors the Connect protocol: https://connectrpc.com/docs/protocol. The
administration service is not passed on: tokens are issued and revoked over gRPC only.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2

from bursar_proto.v1 import audit_pb2, catalog_pb2, dummy_pb2, fit_pb2

HTTP_STATUS: Mapping[grpc.StatusCode, int] = MappingProxyType(
    {
        grpc.StatusCode.CANCELLED: 499,
        grpc.StatusCode.UNKNOWN: 500,
        grpc.StatusCode.INVALID_ARGUMENT: 400,
        grpc.StatusCode.DEADLINE_EXCEEDED: 504,
        grpc.StatusCode.NOT_FOUND: 404,
        grpc.StatusCode.ALREADY_EXISTS: 409,
        grpc.StatusCode.PERMISSION_DENIED: 403,
        grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
        grpc.StatusCode.FAILED_PRECONDITION: 400,
        grpc.StatusCode.ABORTED: 409,
        grpc.StatusCode.OUT_OF_RANGE: 400,
        grpc.StatusCode.UNIMPLEMENTED: 501,
        grpc.StatusCode.INTERNAL: 500,
        grpc.StatusCode.UNAVAILABLE: 503,
        grpc.StatusCode.DATA_LOSS: 500,
        grpc.StatusCode.UNAUTHENTICATED: 401,
    }
)
"""HTTP status of each gRPC status, from Connect's table."""

_TEXT_CHARACTERS = 600
"""Maximum length of a refusal's text, which may quote a field's name from the body."""

_DETAILS = "grpc-status-details-bin"
_UNREACHABLE = (
    "the gateway cannot reach the server, or lost its connection; ask again with the same request_id: nothing is "
    "charged twice"
)
_FROM_LIBRARY = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED}
)
"""Statuses to which the server always adds details, unless gRPC itself made them; then the text may name machines."""


@dataclass(frozen=True)
class Refusal:
    """Error as it is sent.

    Attributes:
        error: JSON object of the Connect protocol: code, message, details.
    """

    status: int
    error: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


class RefusedError(Exception):
    """Error: the gateway itself refuses the request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error["message"])
        self.refusal = refusal


def refused(code: grpc.StatusCode, text: str, status: int | None = None, **headers: str) -> RefusedError:
    """Return the gateway's own refusal; `status` replaces the one of Connect's table."""
    shown = text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}..."
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return RefusedError(Refusal(status or HTTP_STATUS[code], {"code": _name(code), "message": shown}, names))


def read(body: bytes, kind: type[Message]) -> Message:
    """Return the message of a JSON body.

    Raises:
        RefusedError: the body is no such message. The text names the field.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise refused(grpc.StatusCode.INVALID_ARGUMENT, "nothing was debited: the body is not UTF-8") from None
    try:
        value = _object(text)
        message = json_format.ParseDict(value, kind(), max_recursion_depth=50)
        _check_clear(value, kind.DESCRIPTOR)
        return message
    except json_format.ParseError as error:
        reason = str(error)
    except Exception as error:  # parsers of numbers, times and names have errors of many types
        reason = f"cannot read it ({type(error).__name__})"
    told = f"nothing was debited: the body is not a {kind.DESCRIPTOR.full_name} in JSON: {_printable(reason)}"
    raise refused(grpc.StatusCode.INVALID_ARGUMENT, told)


def _object(text: str) -> dict[str, Any]:
    """Return a JSON object. Raises ParseError: it is none, or has a name twice."""
    try:
        value = json.loads(text, object_pairs_hook=_names_once)
    except ValueError as error:
        raise json_format.ParseError(f"Failed to load JSON: {error}.") from None
    if not isinstance(value, dict):
        raise json_format.ParseError("expected an object, such as {}")
    return value


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise json_format.ParseError(f"Failed to load JSON: duplicate key {max(names, key=names.count)}.")
    return found


_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|NaN|-?Infinity")
"""Number in a text, as protobuf's JSON mapping has it."""


def _check_clear(value: Mapping[str, Any], kind: Any) -> None:
    """Check what `Parse` takes in one of two ways, or as Python has numbers. Raises ParseError naming the field.

    `kind` is the descriptor of the message.
    """
    seen = set()
    for name, found in value.items():
        field = kind.fields_by_name.get(name) or kind.fields_by_camelcase_name[name]
        if field.name in seen:
            raise json_format.ParseError(f"{field.name} is there twice, in two spellings")
        seen.add(field.name)
        for part in found if isinstance(found, list) else [found]:
            if field.message_type is not None:
                if isinstance(part, dict):
                    _check_clear(part, field.message_type)
            elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
                if isinstance(part, float):
                    raise json_format.ParseError(f"{field.name}: expected a name or a whole number, got {part}")
            elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING or not isinstance(part, str):
                continue
            elif not _NUMBER.fullmatch(part):
                raise json_format.ParseError(f"{field.name}: expected a number, got {part!r:.40}")


def written(message: Message) -> bytes:
    """Return a message as one line of JSON, with the contract's field names and with fields that are zero or empty."""
    value = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return line(value)


def line(value: Mapping[str, Any]) -> bytes:
    """Return a JSON object as one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    """Return a server's refusal as it is sent, with the server's sentence and details."""
    code, details = error.code(), _details(error)
    text = (error.details() or "") if details or code not in _FROM_LIBRARY else _UNREACHABLE
    if code in _FROM_LIBRARY and not details:
        code = grpc.StatusCode.CANCELLED if code is grpc.StatusCode.CANCELLED else grpc.StatusCode.UNAVAILABLE
    told: dict[str, Any] = {"code": _name(code), "message": text}
    if details:
        told["details"] = [_detail(one) for one in details]
    scheme = {"www-authenticate": "Bearer"} if code is grpc.StatusCode.UNAUTHENTICATED else {}
    return Refusal(HTTP_STATUS[code], told, scheme | _retry_after(details))


def is_without_token(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the server found no valid token in a call, also where it counts no more such calls."""
    info = error_details_pb2.ErrorInfo()
    reasons = {info.reason for one in _details(error) if one.Unpack(info)}
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or "ADDRESS_LOCKED_OUT" in reasons


def _name(code: grpc.StatusCode) -> str:
    # Connect spells one code as Americans do.
    return "canceled" if code is grpc.StatusCode.CANCELLED else code.name.lower()


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))


def _details(error: grpc.aio.AioRpcError) -> list[AnyMessage]:
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS and isinstance(value, bytes):
            return list(status_pb2.Status.FromString(value).details)
    return []


def _detail(packed: AnyMessage) -> dict[str, Any]:
    kind = packed.type_url.rpartition("/")[2]
    value = base64.b64encode(packed.value).decode().rstrip("=")
    unpacked = json_format.MessageToDict(packed, descriptor_pool=descriptor_pool.Default())
    return {"type": kind, "value": value, "debug": {name: one for name, one in unpacked.items() if name != "@type"}}


def _retry_after(details: list[AnyMessage]) -> dict[str, str]:
    retry = error_details_pb2.RetryInfo()
    for one in details:
        if one.Unpack(retry):
            return {"retry-after": str(retry.retry_delay.seconds)}
    return {}


@dataclass(frozen=True)
class Method:
    """Method of the contract.

    Attributes:
        path: path of the method, of gRPC and HTTP alike.
    """

    path: str
    request: type[Message]
    response: type[Message]
    is_stream: bool


def _method(found: MethodDescriptor) -> Method:
    path = f"/{found.containing_service.full_name}/{found.name}"
    return Method(path, GetMessageClass(found.input_type), GetMessageClass(found.output_type), found.server_streaming)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.path: method
        for module in (catalog_pb2, fit_pb2, dummy_pb2, audit_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in map(_method, service.methods)
    }
)
"""Methods by path."""
