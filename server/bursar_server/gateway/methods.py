"""Table of the methods that the gateway passes on, read from the contract.

The administration service is not among them: tokens are issued and revoked over gRPC only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bursar_proto.v1 import audit_pb2, catalog_pb2, dummy_pb2, fit_pb2


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
