"""Gate: who gets in, to what, and what everybody else is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import code_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from bursar_ledger import Role, UnknownCredentialError
from bursar_proto.v1 import admin_pb2, audit_pb2, catalog_pb2, catalog_pb2_grpc, dummy_pb2, fit_pb2
from bursar_server.access import auth
from bursar_server.fits import InvalidFieldsError
from bursar_server.jobs import errors
from bursar_server.jobs.order import Orders
from bursar_server.wire import statuses

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal, Serve

Refused = Callable[[Callable[[], object]], "Refusal"]

ALL, NOBODY = set(Role), set[Role]()
ROLES: dict[str, set[Role]] = {
    "FitService/FitDPEM": {Role.ANALYST},
    "FitService/FitSeparatedGMM": {Role.ANALYST},
    "FitService/FitGradientEM": {Role.ANALYST},
    "FitService/FitSketchKMeans": {Role.ANALYST},
    "FitService/FitMRF": {Role.ANALYST},
    "FitService/Preview": {Role.ANALYST},
    "DummyService/RunDummy": {Role.ANALYST},
    "CatalogService/ListDatasets": ALL,
    "CatalogService/GetDataset": ALL,
    "CatalogService/ListReleases": {Role.ANALYST},
    "CatalogService/GetRelease": {Role.ANALYST},
    "CatalogService/ListSketches": {Role.ANALYST},
    "CatalogService/GetHistory": ALL,
    "AdminService/IssueToken": {Role.ADMIN},
    "AdminService/RevokeToken": {Role.ADMIN},
    "AdminService/ListTokens": {Role.ADMIN},
    "AuditService/ListEntries": {Role.ADMIN, Role.AUDITOR},
    "AuditService/Verify": {Role.ADMIN, Role.AUDITOR},
}
CONTRACT = [
    method
    for module in (fit_pb2, dummy_pb2, catalog_pb2, admin_pb2, audit_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def _code(served: Harness, path: str, metadata: Any, body: bytes = b"", streams: bool = False) -> grpc.StatusCode:
    """Status of a call without any stub."""
    call: Any = (served.channel.unary_stream if streams else served.channel.unary_unary)(path)
    try:
        answer = call(body, metadata=metadata)
        if streams:
            list(answer)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def _drain(call: Any, body: bytes, metadata: Any) -> list[object]:
    return list(call(body, metadata=metadata))


def test_every_method_of_the_contract_has_roles_here() -> None:
    """A method that is added to the contract has to be added to this matrix."""
    assert {f"{method.containing_service.name}/{method.name}" for method in CONTRACT} == set(ROLES)
    assert all(auth.METHOD_ROLES[f"/bursar.v1.{name}"] == roles for name, roles in ROLES.items())


def test_every_role_calls_its_methods_and_no_others(served: Harness) -> None:
    """Each method refuses each role that is not in its row with PERMISSION_DENIED, and never otherwise."""
    for method in CONTRACT:
        name = f"{method.containing_service.name}/{method.name}"
        for role in Role:
            code = _code(served, f"/bursar.v1.{name}", served.bearer(role), streams=method.server_streaming)
            assert (code is not grpc.StatusCode.PERMISSION_DENIED) == (role in ROLES[name]), (name, role, code)
            assert code is not grpc.StatusCode.UNAUTHENTICATED


BAD_TOKENS: list[tuple[tuple[str, str], ...]] = [
    (),
    (("authorization", ""),),
    (("authorization", "Bearer"),),
    (("authorization", "Bearer bursar_admin_" + "x" * 43),),
    (("authorization", "Bearer bursar_admin_" + "x" * 42),),
    (("authorization", "Basic bursar_admin_" + "x" * 43),),
    (("authorization", "Bearer " + "x" * 5000),),
    (("token", "bursar_admin_" + "x" * 43),),
]


@pytest.mark.parametrize("metadata", BAD_TOKENS)
def test_nothing_is_served_without_a_good_token(served: Harness, metadata: tuple[tuple[str, str], ...]) -> None:
    """Every method of the contract, reflection and methods that do not exist answer UNAUTHENTICATED."""
    paths = [f"/bursar.v1.{name}" for name in ROLES]
    reflected = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    for path in [*paths, reflected, "/bursar.v1.FitService/Nothing", "/nothing"]:
        assert _code(served, path, metadata) is grpc.StatusCode.UNAUTHENTICATED, path


def test_two_tokens_are_no_token(served: Harness) -> None:
    """A call that carries two authorizations is refused, even if both are good."""
    code = _code(served, "/bursar.v1.CatalogService/ListDatasets", served.bearer() + served.bearer())
    assert code is grpc.StatusCode.UNAUTHENTICATED


def test_a_revoked_token_opens_nothing(served: Harness) -> None:
    """A token is unknown from the revocation on."""
    path = "/bursar.v1.CatalogService/ListDatasets"
    assert _code(served, path, served.bearer()) is grpc.StatusCode.OK
    served.ledger.revoke_credential("the-analyst", actor="test", reason="")
    assert _code(served, path, served.bearer()) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("path", ["/bursar.v1.FitService/Nothing", "/nothing", "/grpc.health.v1.Health/Watch"])
def test_methods_that_are_not_listed_are_refused(served: Harness, path: str) -> None:
    """A good token does not open what the table does not list, handler or not."""
    assert _code(served, path, served.bearer(Role.ADMIN)) is grpc.StatusCode.UNIMPLEMENTED


def test_strangers_who_send_nothing_hold_no_threads(serve: Serve) -> None:
    """A call without a token ends before its message comes, and one without a message never keeps others out."""
    served = serve(rpc_threads=2)
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    for path in ["/bursar.v1.FitService/FitDPEM", "/nothing", "/grpc.health.v1.Health/Check"] * 3:
        method: Any = served.channel.stream_unary(path)
        call = method.future(nothing())
        expected = grpc.StatusCode.OK if path.endswith("Check") else grpc.StatusCode.UNAUTHENTICATED
        assert call.code() is expected
    assert _code(served, "/bursar.v1.CatalogService/ListDatasets", served.bearer()) is grpc.StatusCode.OK
    never.set()


def test_a_call_without_its_message_is_an_invalid_request(served: Harness, refused: Refused) -> None:
    """An analyst who sends no message at all is told so."""
    call: Any = served.channel.stream_stream("/bursar.v1.FitService/FitDPEM")
    refusal = refused(lambda: list(call(iter(()), metadata=served.bearer())))
    assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("request",))


def test_bytes_that_are_no_message_are_an_invalid_request(served: Harness, refused: Refused) -> None:
    """A body that does not decode is the client's fault, and is said to be."""
    for path in ("/bursar.v1.CatalogService/GetDataset", "/bursar.v1.FitService/FitDPEM"):
        call: Any = served.channel.unary_stream(path)
        refusal = refused(partial(_drain, call, b"\xff\xff\xff", served.bearer()))
        assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("request",))


def test_a_message_beyond_the_limit_is_refused(serve: Serve) -> None:
    """The server does not take more bytes than it is set to."""
    served = serve(max_request_bytes=2048)
    path = "/bursar.v1.CatalogService/GetDataset"
    body = catalog_pb2.GetDatasetRequest(dataset="x" * 4096).SerializeToString()
    assert _code(served, path, served.bearer(), body) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_health_needs_no_token_and_reflection_needs_one(served: Harness) -> None:
    """Anybody may ask whether the server is up; holders of any token, which services it has."""
    answer = health_pb2_grpc.HealthStub(served.channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    answers = list(stub.ServerReflectionInfo(iter([question]), metadata=served.bearer(Role.AUDITOR)))
    assert "bursar.v1.FitService" in {service.name for service in answers[0].list_services_response.service}


def test_reflection_can_be_switched_off(serve: Serve) -> None:
    """Its method is not there then."""
    served = serve(reflection=False)
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    assert _code(served, path, served.bearer(), streams=True) is grpc.StatusCode.UNIMPLEMENTED


def test_without_tls_nobody_is_understood(served: Harness) -> None:
    """A client that speaks in the clear gets no answer."""
    with grpc.insecure_channel(served.address) as channel:
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListDatasets(catalog_pb2.ListDatasetsRequest(), timeout=5)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_an_unexpected_exception_is_told_in_one_constant_text(
    served: Harness, refused: Refused, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither wire nor log have the text of an exception that is not in the table; an incident id joins the two."""

    def burst(*_: object) -> None:
        raise RuntimeError("SECRET-23")

    monkeypatch.setattr(Orders, "order", burst)
    refusal = refused(
        partial(_drain, served.channel.unary_stream("/bursar.v1.FitService/FitDPEM"), b"", served.bearer())
    )
    assert (refusal.code, refusal.text, refusal.reason) == (
        grpc.StatusCode.INTERNAL,
        errors.INTERNAL_TEXT,
        "INTERNAL",
    )
    assert "SECRET" not in refusal.everything + "".join(capfd.readouterr())
    assert refusal.metadata["incident"]


def test_a_status_packs_its_details() -> None:
    """The code on the wire is the table's, and texts of the ledger are replaced by our own."""
    status = statuses.rpc_status(statuses.status_of(UnknownCredentialError("SECRET name")))
    assert status.code == code_pb2.NOT_FOUND
    assert "SECRET" not in status.message
    assert len(status.details) == 1


def test_a_refusal_stays_small_enough_for_the_wire(
    served: Harness, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many long complaints are cut to what fits into gRPC's trailers, so that the client can read the first of them."""

    def complain(*_: object) -> None:
        raise InvalidFieldsError(*((f"columns[{i}]", "\U0001f512" * 2000) for i in range(1000)))

    monkeypatch.setattr(Orders, "order", complain)
    call: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    refusal = refused(partial(_drain, call, b"", served.bearer()))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.fields[0] == "columns[0]"
    assert "more" in refusal.text


def test_one_analyst_cannot_hold_every_thread(serve: Serve, refused: Refused) -> None:
    """Calls that one principal leaves open are limited, others are served, and a call that ends makes room again."""
    served = serve(rpc_threads=4, calls_per_principal=2)
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    call: Any = served.channel.stream_stream("/bursar.v1.FitService/FitDPEM")
    path = "/bursar.v1.CatalogService/ListDatasets"
    held: list[object] = []  # a call that nobody holds is cancelled
    while _code(served, path, served.bearer()) is grpc.StatusCode.OK:
        held.append(call(nothing(), metadata=served.bearer()))
    listing: Any = served.channel.unary_unary(path)
    refusal = refused(partial(listing, b"", metadata=served.bearer()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert _code(served, path, served.bearer(Role.AUDITOR)) is grpc.StatusCode.OK
    never.set()
    while _code(served, path, served.bearer()) is not grpc.StatusCode.OK:
        pass


def test_tokens_are_long_random_and_named_after_their_role() -> None:
    """256 bits, no two alike, and a prefix that people and scanners recognise."""
    tokens = {auth.new_token(Role.ANALYST) for _ in range(100)}
    assert len(tokens) == 100
    assert all(token.startswith("bursar_analyst_") and len(token) == 15 + 43 for token in tokens)


def test_nobody_is_the_caller_outside_of_a_call() -> None:
    """A service that asks who calls where nobody was authenticated gets an error, never somebody's name."""
    auth.set_caller(auth.Principal("alice", Role.ANALYST))
    assert auth.caller().name == "alice"
    auth.set_caller(None)
    with pytest.raises(auth.UnauthenticatedError):
        auth.caller()
