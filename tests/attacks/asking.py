"""How the attackers here talk to a server, and what they can tell from its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from bursar_ledger import Role
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc
from bursar_server.auth import hash_token, new_token

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness

Make = Callable[..., fit_pb2.FitDPEMRequest]
Metadata = tuple[tuple[str, str], ...]
FIT = "/bursar.v1.FitService/FitDPEM"
PATIENCE = 120.0
"""Seconds after which a call is given up, so that a defect cannot hang a run of the tests."""


def call(served: Harness, message: fit_pb2.FitDPEMRequest, bearer: Metadata | None = None) -> Any:
    """Start a fit."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    return stub.FitDPEM(message, metadata=bearer or served.bearer(), timeout=PATIENCE)


def raw(served: Harness, message: fit_pb2.FitDPEMRequest, bearer: Metadata | None = None) -> list[bytes]:
    """The messages of a fit as they come over the wire."""
    method: Any = served.channel.unary_stream(FIT)
    return list(method(message.SerializeToString(), metadata=bearer or served.bearer(), timeout=PATIENCE))


def told(served: Harness, message: fit_pb2.FitDPEMRequest, bearer: Metadata | None = None) -> str:
    """All that a caller can tell of a call: its messages, and code, text and details of its refusal.

    Incident ids are left out: they count debits or are random.
    """
    method: Any = served.channel.unary_stream(FIT)
    running = method(message.SerializeToString(), metadata=bearer or served.bearer(), timeout=PATIENCE)
    heard: list[object] = []
    try:
        heard += running
    except grpc.RpcError:
        heard += [running.code(), running.details(), *_details(running)]
    return repr(heard)


def _details(refused: Any) -> Iterator[object]:
    status = rpc_status.from_call(refused)
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            info.metadata.pop("incident", None)
            yield info
        else:
            yield detail


def analyst(served: Harness, name: str) -> Metadata:
    """Metadata of one more analyst."""
    token = new_token(Role.ANALYST)
    served.ledger.issue_credential(name, Role.ANALYST, hash_token(token), actor="test", reason="")
    return (("authorization", f"Bearer {token}"),)
