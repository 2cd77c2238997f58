"""Questions of the attackers to a server, and what they can tell from its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from bursar_ledger import Role
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2, fit_pb2_grpc
from bursar_server.access.auth import hash_token, new_token
from bursar_server.fits import AnyFit, PublicTable, Released
from bursar_server.vault import Session
from tests.server.serving.conftest import refusal_of

if TYPE_CHECKING:
    from tests.attacks.conftest import Pair
    from tests.server.serving.conftest import Harness

Make = Callable[..., fit_pb2.FitDPEMRequest]
Metadata = tuple[tuple[str, str], ...]
FIT = "/bursar.v1.FitService/FitDPEM"
PATIENCE = 600.0
"""Seconds after which a call is given up, so that a defect cannot hang a run of the tests."""


def call(served: Harness, message: fit_pb2.FitDPEMRequest, bearer: Metadata | None = None) -> Any:
    """Start a fit."""
    stub = fit_pb2_grpc.FitServiceStub(served.channel)
    return stub.FitDPEM(message, metadata=bearer or served.bearer(), timeout=PATIENCE)


def heard(pair: Pair, message: Message, bearer: Metadata | None = None) -> list[Any]:
    """All messages of the answer to any fit's request."""
    method = getattr(fit_pb2_grpc.FitServiceStub(pair.channel), type(message).__name__.removesuffix("Request"))
    return list(method(message, metadata=bearer or pair.bearer, timeout=PATIENCE))


def refused(pair: Pair, message: Message, bearer: Metadata | None = None) -> tuple[Any, ...]:
    """Code, fields and text of a refusal that must come, and that must leave the ledger as it was."""
    before = pair.ledger.newest()
    refusal = refusal_of(lambda: heard(pair, message, bearer))
    assert pair.ledger.newest() == before
    return refusal.code.name, refusal.fields, refusal.text


def told_alike(pair: Pair, ask: Callable[[str], Message], field: str) -> None:
    """Check that both tables have the same refusal of a wrong request, which names a field and costs nothing."""
    here, there = (refused(pair, ask(table)) for table in ("here", "there"))
    assert here[0] == "INVALID_ARGUMENT"
    assert any(one.startswith(field) for one in here[1]), here[1]
    assert here[:2] == there[:2]
    assert here[2].replace("'here'", "'there'") == there[2]


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


@dataclass
class Careless:
    """A fit that keeps its newest release beside the ledger and gives it to whoever names a number.

    Attributes:
        fit: that it is otherwise.
        newest: what it keeps.
    """

    fit: AnyFit
    newest: Message | None = None

    def plan(self, request: Any, table: PublicTable, released: Released) -> Any:
        """See `Fit`."""
        return self.fit.plan(request, table, lambda entry: released(entry) or self.newest)

    def run(self, plan: Any, session: Session) -> Message:
        """See `Fit`."""
        model: Message = self.fit.run(plan, session)
        self.newest = model if plan.events else self.newest
        return model


def differs(
    pair: Pair,
    method: str,
    preview: str,
    ask: Callable[[str], Message],
    forget: Callable[[Any], None] = lambda model: None,
) -> bool:
    """Return whether anything but the noisy sums tells "here" from "there": in answer, preview, catalogue or list.

    Args:
        pair: the two tables.
        method: of the service.
        preview: where a preview's request has the method's.
        ask: makes the request for a table.
        forget: clears what a model says of the ledger, such as its entry.
    """
    fits, catalog = fit_pb2_grpc.FitServiceStub(pair.channel), catalog_pb2_grpc.CatalogServiceStub(pair.channel)
    seen: list[list[object]] = []
    for name in ("here", "there"):
        message: Any = ask(name)
        answer = list(getattr(fits, method)(message, metadata=pair.bearer, timeout=PATIENCE))
        shown = fits.Preview(fit_pb2.PreviewRequest(**{preview: message}), metadata=pair.bearer, timeout=PATIENCE)
        listed = catalog.ListReleases(catalog_pb2.ListReleasesRequest(dataset=name), metadata=pair.bearer).releases[-1]
        # Steps follow each other too fast for all to be reported; how many there are is what may not differ.
        steps = {one.progress.steps for one in answer if one.HasField("progress")}
        model = answer[-1].model
        forget(model)
        seen.append([steps, shown, listed.price, model])
    return seen[0] != seen[1]
