"""Every status of the wire becomes one of this package's errors, and nothing of gRPC gets out."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

import bursar
from bursar import _convert
from bursar.testing import Server
from bursar_proto.v1 import types_pb2
from tests.client.line import Line

CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: bursar.InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: bursar.InvalidRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: bursar.InvalidRequestError,
    grpc.StatusCode.ALREADY_EXISTS: bursar.InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: bursar.NotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: bursar.OverloadedError,
    grpc.StatusCode.UNAUTHENTICATED: bursar.AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: bursar.PermissionDeniedError,
    grpc.StatusCode.UNIMPLEMENTED: bursar.NotImplementedByServerError,
    grpc.StatusCode.UNAVAILABLE: bursar.UnavailableError,
    grpc.StatusCode.CANCELLED: bursar.UnavailableError,
    grpc.StatusCode.ABORTED: bursar.UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: bursar.DeadlineError,
    grpc.StatusCode.INTERNAL: bursar.ServerError,
    grpc.StatusCode.UNKNOWN: bursar.ServerError,
    grpc.StatusCode.DATA_LOSS: bursar.ServerError,
}
AMOUNTS = {
    "requested_cost_units": "500",
    "requested_delta_units": "2",
    "requested_rho": "0.5",
    "requested_epsilon": "0.75",
    "requested_share": "0.5",
    "remaining_cost_units": "100",
    "remaining_delta_units": "7",
    "cap_cost_units": "1000",
    "cap_delta_units": "8",
    "remaining_rho": "0.1",
    "remaining_pure_epsilon": "0.25",
    "order": "10.0",
    "delta": "1e-06",
    "budget_cost_units": "2000",
}


def info(reason: str, domain: str = "bursar", **metadata: str) -> error_details_pb2.ErrorInfo:
    """The detail that gives a reason."""
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata)


def test_the_table_names_every_status() -> None:
    """No status is left to chance."""
    assert set(CODES) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


@pytest.mark.parametrize(("code", "kind"), CODES.items())
def test_each_status_has_its_error(
    server: Line, client: bursar.Client, code: grpc.StatusCode, kind: type[bursar.Error]
) -> None:
    """The error is of the kind that says what the caller can do, with the server's text and the original."""
    server.fail_next(code, "because of that")
    with pytest.raises(kind, match="because of that") as caught:
        client.datasets()
    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, grpc.RpcError)
    assert caught.value.request_id is None


def test_a_status_without_text_still_says_something(server: Line, client: bursar.Client) -> None:
    """The name of the status stands in for a missing text."""
    server.fail_next(grpc.StatusCode.NOT_FOUND)
    with pytest.raises(bursar.NotFoundError, match="NOT_FOUND"):
        client.datasets()


def test_violations_name_the_fields(server: Line, toy: bursar.Dataset) -> None:
    """A refused argument comes as pairs of field and description, and the text has those that it lacked."""
    violations = [error_details_pb2.BadRequest.FieldViolation(field="columns", description="no such column")]
    server.fail_next(
        grpc.StatusCode.INVALID_ARGUMENT, "refused", [error_details_pb2.BadRequest(field_violations=violations)]
    )
    with pytest.raises(bursar.InvalidRequestError, match="refused; columns: no such column") as caught:
        toy.fit(bursar.DPEM(n_components=2), spend=bursar.rho(0.1), request_id="mine")
    assert caught.value.violations == (("columns", "no such column"),)
    assert caught.value.request_id == "mine"


def test_an_exhausted_budget_says_what_is_left(server: Line, toy: bursar.Dataset) -> None:
    """Price and remainder come as values, whatever other details come with them."""
    details = [error_details_pb2.QuotaFailure(), info("BUDGET_EXHAUSTED", **AMOUNTS)]
    server.fail_next(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much", details)
    with pytest.raises(bursar.BudgetExhaustedError) as caught:
        toy.fit(bursar.DPEM(n_components=2), spend=bursar.rho(0.5))
    assert str(caught.value) == "too much [BUDGET_EXHAUSTED]"
    assert caught.value.requested == bursar.Price(500, 2, 0.5, 0.75, 0.5)
    assert caught.value.remaining == bursar.Remaining(100, 7, 1000, 8, 0.1, 0.25, 10.0, 1e-6, 2000)
    assert caught.value.limit is None
    assert len(server.requests) == 0


@pytest.mark.parametrize(
    ("told", "limit"),
    [("dataset", "dataset"), ("allowance", "allowance"), ("call", "call"), ("", None), ("weather", None)],
)
def test_a_refusal_says_which_limit_it_was(server: Line, client: bursar.Client, told: str, limit: str | None) -> None:
    """The dataset's budget, the caller's allowance or the maximum for one request; what is not known is None."""
    details = [info("BUDGET_EXHAUSTED", **AMOUNTS, limit=told)]
    server.fail_next(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much", details)
    with pytest.raises(bursar.BudgetExhaustedError) as caught:
        client.datasets()
    assert caught.value.limit == limit
    assert caught.value.remaining is not None


@pytest.mark.parametrize("change", [{"order": "ten"}, {"remaining_cost_units": ""}])
def test_a_refusal_with_strange_amounts_is_still_a_refusal(
    server: Line, client: bursar.Client, change: dict[str, str]
) -> None:
    """Amounts that cannot be read are left out."""
    server.fail_next(grpc.StatusCode.RESOURCE_EXHAUSTED, "", [info("BUDGET_EXHAUSTED", **{**AMOUNTS, **change})])
    with pytest.raises(bursar.BudgetExhaustedError) as caught:
        client.datasets()
    assert caught.value.remaining is None


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", bursar.OverloadedError),
        (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED", bursar.RequestIdReusedError),
        (grpc.StatusCode.ALREADY_EXISTS, "CREDENTIAL_EXISTS", bursar.InvalidRequestError),
        (grpc.StatusCode.FAILED_PRECONDITION, "DATASET_RETIRED", bursar.DatasetRetiredError),
        (grpc.StatusCode.DATA_LOSS, "RELEASE_LOST", bursar.ReleaseLostError),
        (grpc.StatusCode.UNAVAILABLE, "RELEASE_NOT_STORED", bursar.UnavailableError),
        (grpc.StatusCode.UNAVAILABLE, "FIT_NOT_BEGUN", bursar.UnavailableError),
        (grpc.StatusCode.UNAVAILABLE, "NO_ROOM", bursar.OverloadedError),
    ],
)
def test_reasons_say_more_than_codes(
    server: Line, client: bursar.Client, code: grpc.StatusCode, reason: str, kind: type[bursar.Error]
) -> None:
    """A reason of this server picks the error; its own text needs no hint of ours."""
    server.fail_next(code, "text", [info(reason)])
    with pytest.raises(kind) as caught:
        client.datasets()
    assert str(caught.value) == f"text [{reason}]"
    assert caught.value.code == reason


def test_reasons_of_others_count_for_nothing(server: Line, client: bursar.Client) -> None:
    """A proxy's ErrorInfo cannot pass for a refusal by the ledger."""
    server.fail_next(grpc.StatusCode.RESOURCE_EXHAUSTED, "", [info("BUDGET_EXHAUSTED", domain="proxy", **AMOUNTS)])
    with pytest.raises(bursar.OverloadedError):
        client.datasets()


def test_an_incident_can_be_told_to_the_administrator(server: Line, client: bursar.Client) -> None:
    """The failure's id is an attribute and in the text."""
    server.fail_next(grpc.StatusCode.INTERNAL, "the server failed", [info("INTERNAL", incident="i-17")])
    with pytest.raises(bursar.ServerError, match="i-17") as caught:
        client.datasets()
    assert caught.value.incident == "i-17"


def test_gRPCs_own_statuses_get_a_hint(server: Line, client: bursar.Client) -> None:
    """An unauthenticated caller is told where a token goes."""
    server.fail_next(grpc.StatusCode.UNAUTHENTICATED, "no token")
    with pytest.raises(bursar.AuthenticationError, match="BURSAR_TOKEN"):
        client.datasets()


def test_a_closed_client_says_so(toys: Server) -> None:
    """GRPC's ValueError does not get out, from a question or from a fit, and a fit does not repeat it."""
    client = toys.client()
    toy = client.dataset("toy")
    client.close()
    for ask in (client.datasets, lambda: toy.fit(bursar.DPEM(n_components=1), spend=bursar.rho(0.1))):
        with pytest.raises(bursar.TransportError, match="closed: connect again") as caught:
            ask()
        assert type(caught.value) is bursar.TransportError


def test_an_interceptors_exception_does_not_get_out() -> None:
    """An RpcError without a status becomes a transport error."""

    class Broken(grpc.UnaryUnaryClientInterceptor):
        def intercept_unary_unary(self, *_: Any) -> Any:
            raise grpc.RpcError

    channel = grpc.intercept_channel(grpc.insecure_channel("127.0.0.1:1"), Broken())
    with bursar.Client(channel) as client, pytest.raises(bursar.TransportError, match="inside the channel"):
        client.datasets()


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0]])
def test_an_array_of_another_size_than_its_shape_is_the_servers_error(values: list[float]) -> None:
    """Neither cut nor filled up, and no error of numpy's."""
    with pytest.raises(bursar.ServerError, match="values for an array of shape"):
        _convert.tensor_from(types_pb2.Tensor(shape=[2], values=values))
