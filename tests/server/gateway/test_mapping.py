"""The gateway's mapping: JSON to messages and back, statuses to HTTP answers, and what a request's head must have."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from bursar_ledger import UnknownDatasetError
from bursar_proto.v1 import admin_pb2, audit_pb2, catalog_pb2, dummy_pb2, fit_pb2, types_pb2
from bursar_server.gateway.calls import Limits, checked
from bursar_server.gateway.mapping import HTTP_STATUS, METHODS, RefusedError, line, read, refusal_of, written
from bursar_server.jobs.job import QueueFullError
from bursar_server.wire.statuses import rpc_status, status_of
from tests.conformance.requests import VARIANTS
from tests.each import each

LIST = "/bursar.v1.CatalogService/ListDatasets"


def _scope(path: str = LIST, method: str = "POST", query: bytes = b"", **headers: str) -> dict[str, Any]:
    given = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    return {"path": path, "method": method, "query_string": query, "headers": pairs}


def _refused(scope: dict[str, Any]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        checked(scope, Limits())
    return caught.value


def _rpc_error(error: Exception) -> grpc.aio.AioRpcError:
    code, text, _ = status = status_of(error)
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", rpc_status(status).SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, text)


def test_every_method_but_those_of_administrators_is_there() -> None:
    """A method that is added to the contract is passed on without another line."""
    services = [
        service
        for module in (catalog_pb2, fit_pb2, dummy_pb2, audit_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    ]
    assert {f"/{one.full_name}/{method.name}" for one in services for method in one.methods} == set(METHODS)
    (admin,) = admin_pb2.DESCRIPTOR.services_by_name.values()
    assert not any(path.startswith(f"/{admin.full_name}/") for path in METHODS)
    assert METHODS["/bursar.v1.FitService/FitDPEM"].is_stream
    assert not METHODS[LIST].is_stream


@each("name", sorted(VARIANTS))
def test_a_request_comes_back_from_json(name: str) -> None:
    """Every variant of every fit, with names as in the contract and in camel case."""
    message: Message = VARIANTS[name]
    text = written(message)
    assert text.endswith(b"\n")
    assert text.count(b"\n") == 1
    assert read(text, type(message)) == message


def test_numbers_are_those_of_protobufs_json() -> None:
    """64-bit integers are strings, and read as numbers, too; NaN and infinities are words; zeros are written."""
    body = json.loads(written(types_pb2.Remaining(cost_units=2**62 + 1, rho=float("inf"), order=float("nan"))))
    assert (body["cost_units"], body["rho"], body["order"]) == (str(2**62 + 1), "Infinity", "NaN")
    assert body["delta_units"] == "0"
    assert read(b'{"costUnits": 7, "rho": "-Infinity"}', types_pb2.Remaining) == types_pb2.Remaining(
        cost_units=7, rho=float("-inf")
    )


@each(
    ("body", "said"),
    [
        (b'{"datset": "a"}', 'no field named "datset"'),
        (b'{"dataset": "a", "dataset": "b"}', "dataset"),
        (b'{"dataset": 3}', "dataset"),
        (b'{"dataset": "\\ud800"}', "cannot read|surrogate|dataset"),
        (b"[]", "JSON"),
        (b"", "JSON"),
        (b"null", "JSON"),
        (b"\xff", "UTF-8"),
        (b"[" * 100_000, "cannot read|JSON"),
        (b'{"dataset": ' + b"9" * 5000 + b"}", "JSON"),
        (b'{"' + b"x" * 5000 + b'": 1}', r"\.\.\.$"),
        (b'{"a\\u0000\\n\\u001bb": 1}', r"a\?"),
    ],
)
def test_a_body_that_is_no_such_message_is_refused_with_the_reason(body: bytes, said: str) -> None:
    """Status 400, in one printable line, and nothing else."""
    with pytest.raises(RefusedError) as caught:
        read(body, catalog_pb2.GetDatasetRequest)
    refusal = caught.value.refusal
    assert (refusal.status, refusal.error["code"]) == (400, "invalid_argument")
    text = refusal.error["message"]
    assert len(text) <= 700
    assert text.isprintable()
    assert re.search(said, text), text


@each("body", [b'{"spend": {"rho": NaN}}', b'{"spend": {"rho": 1e999}}', b'{"n_components": 99999999999}'])
def test_numbers_that_do_not_fit_are_refused(body: bytes) -> None:
    """None becomes another number."""
    with pytest.raises(RefusedError):
        read(body, fit_pb2.FitDPEMRequest)


@each(
    "body",
    [
        b'{"nComponents": 2, "n_components": 3}',
        b'{"spend": {"epsilonDelta": {"epsilon": 0.1, "delta": 1e-6}, "epsilon_delta": {"epsilon": 9}}}',
        b'{"columns": ["x"], "Columns": ["y"]}',
        b'{"spend": {"rho": "1_0"}}',
        b'{"spend": {"rho": " 1"}}',
        '{"spend": {"rho": "\u0661"}}'.encode(),
        b'{"n_components": "1_0"}',
        b'{"mode": 1.5}',
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(body: bytes) -> None:
    """The last of a field in two spellings would be paid; and a number is not what Python alone takes for one."""
    with pytest.raises(RefusedError, match="nothing was debited"):
        read(body, fit_pb2.FitDPEMRequest)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = st.dictionaries(st.sampled_from([field.name for field in fit_pb2.FitMRFRequest.DESCRIPTOR.fields]), _JSON)


@given(
    st.binary(max_size=64)
    | _JSON.map(lambda one: json.dumps(one).encode())
    | _FIELDS.map(lambda one: json.dumps(one).encode())
)
def test_no_body_raises_another_error(body: bytes) -> None:
    """Any bytes, any JSON, and the fields of a fit with values of any type."""
    refusal = None
    try:
        read(body, fit_pb2.FitMRFRequest)
    except RefusedError as error:
        refusal = error.refusal
    assert refusal is None or (refusal.status == 400 and line(refusal.error))


def test_every_status_has_one_of_http() -> None:
    """The exception is OK, which is no error."""
    assert set(HTTP_STATUS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


def test_a_refusal_has_the_servers_sentence_and_details() -> None:
    """Details are as Connect sends them: base64 without padding for programs, and readable."""
    refusal = refusal_of(_rpc_error(UnknownDatasetError("x")))
    assert (refusal.status, refusal.error["code"]) == (404, "not_found")
    assert refusal.error["message"] == "there is no dataset of this name that you may use"
    (detail,) = refusal.error["details"]
    assert detail["type"] == "google.rpc.ErrorInfo"
    assert detail["debug"] == {"reason": "UNKNOWN_DATASET", "domain": "bursar"}
    assert "=" not in detail["value"]
    info = error_details_pb2.ErrorInfo.FromString(base64.b64decode(detail["value"] + "=="))
    assert info.reason == "UNKNOWN_DATASET"


def test_when_to_come_back_is_a_header() -> None:
    """The seconds of RetryInfo, which HTTP clients know as Retry-After."""
    refusal = refusal_of(_rpc_error(QueueFullError("full", 3.2)))
    assert (refusal.status, refusal.headers["retry-after"]) == (429, "4")


@each("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_an_error_of_the_connection_names_no_machine(code: grpc.StatusCode) -> None:
    """The text that gRPC makes has addresses; such an error may be tried again."""
    text = "failed to connect to ipv4:10.1.2.3:8443"
    refusal = refusal_of(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text))
    assert (refusal.status, refusal.error["code"]) == (503, "unavailable")
    assert "10.1.2.3" not in json.dumps(refusal.error)


@each(
    ("scope", "status"),
    [
        (_scope("/"), 404),
        (_scope("/bursar.v1.AdminService/ListTokens"), 404),
        (_scope("/grpc.health.v1.Health/Check"), 404),
        (_scope(LIST + "/"), 404),
        (_scope(method="GET"), 405),
        (_scope(method="OPTIONS"), 405),
        (_scope(query=b"token=x"), 400),
        (_scope(content_type="text/plain"), 415),
        (_scope(content_type="application/connect+json"), 415),
        (_scope(content_type="application/json; charset=latin-1"), 415),
        (_scope(content_type=""), 415),
        (_scope(content_encoding="gzip"), 415),
        (_scope(connect_protocol_version="2"), 400),
        (_scope(content_length=str(2**20 + 1)), 413),
        (_scope(content_length="9" * 20), 413),
        (_scope(connect_timeout_ms="0"), 400),
        (_scope(connect_timeout_ms="-1"), 400),
        (_scope(connect_timeout_ms="1" * 11), 400),
        (_scope(connect_timeout_ms="\xb2"), 400),
        (_scope(authorization="Bearer \xe9"), 401),
        (_scope(authorization="Bearer a\tb"), 401),
    ],
)
def test_a_head_that_is_wrong_is_refused(scope: dict[str, Any], status: int) -> None:
    """Each check, with its status."""
    assert _refused(scope).refusal.status == status


@each("name", ["authorization", "content-type", "connect-timeout-ms"])
def test_a_header_that_is_sent_twice_is_refused(name: str) -> None:
    """So that no two programs on the way read different ones."""
    scope = _scope(authorization="Bearer a", connect_timeout_ms="1")
    scope["headers"].append((name.encode(), b"application/json"))
    assert name in str(_refused(scope))


def test_a_head_that_is_right_is_passed_on() -> None:
    """Token and time limit, and no other header."""
    head = checked(
        _scope(
            content_type="Application/JSON; charset=UTF-8",
            authorization="Bearer abc",
            connect_protocol_version="1",
            connect_timeout_ms="1500",
            content_length=str(2**20),
            cookie="a=b",
            x_forwarded_for="1.2.3.4",
        ),
        Limits(),
    )
    assert (head.method.path, head.metadata, head.timeout) == (LIST, (("authorization", "Bearer abc"),), 1.5)


def test_a_request_without_a_token_is_the_servers_to_refuse() -> None:
    """The server counts it."""
    head = checked(_scope(), Limits())
    assert (head.metadata, head.timeout) == ((), None)
