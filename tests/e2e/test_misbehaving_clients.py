"""Answers of the real server to clients that misbehave. `pytest -s` on this file prints what each gets.

Raw gRPC stubs, because our SDK refuses most of this before it is sent.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from bursar_ledger import Ledger, verify
from bursar_proto.v1 import admin_pb2, admin_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2

if TYPE_CHECKING:
    from tests.e2e.conftest import Server

Metadata = tuple[tuple[str, str], ...]
FIT = "/bursar.v1.FitService/FitDPEM"
NAN, INF = math.nan, math.inf


def _request(**fields: Any) -> fit_pb2.FitDPEMRequest:
    defaults: dict[str, Any] = {
        "request_id": "good",
        "dataset": "people",
        "columns": ["x", "y"],
        "spend": types_pb2.Spend(rho=0.001),
        "n_components": 2,
    }
    return fit_pb2.FitDPEMRequest(**(defaults | fields))


@dataclass(frozen=True)
class Client:
    """A raw connection of an analyst."""

    server: Server
    channel: grpc.Channel

    def call(self, message: fit_pb2.FitDPEMRequest) -> Any:
        """Start a fit."""
        return fit_pb2_grpc.FitServiceStub(self.channel).FitDPEM(message, metadata=self.server.bearer())

    def fit(self, message: fit_pb2.FitDPEMRequest) -> list[fit_pb2.FitDPEMResponse]:
        """Everything that a fit answers."""
        return list(self.call(message))

    def preview(self, message: fit_pb2.FitDPEMRequest) -> fit_pb2.PreviewResponse:
        """Price of a fit."""
        stub = fit_pb2_grpc.FitServiceStub(self.channel)
        return stub.Preview(fit_pb2.PreviewRequest(dpem=message), metadata=self.server.bearer())

    def bytes_to(self, path: str, body: bytes, metadata: Metadata) -> None:
        """Call a method without a stub."""
        call: Any = self.channel.unary_stream(path)
        list(call(body, metadata=metadata))

    @property
    def spent(self) -> int:
        """Return what all datasets have spent, in units."""
        with Ledger.open(self.server.home.state.ledger) as ledger:
            return sum(state.spent_cost_units for state in ledger.datasets())


@pytest.fixture
def client(shared: Server) -> Iterator[Client]:
    """Connected to the shared server."""
    with shared.channel() as channel:
        yield Client(shared, channel)


def _refusal(act: Callable[[], object]) -> tuple[str, tuple[str, ...]]:
    """Status of a call that must be refused, and the fields or reasons in its details."""
    with pytest.raises(grpc.RpcError) as caught:
        act()
    error: Any = caught.value
    status = rpc_status.from_call(error)
    named: list[str] = []
    for detail in status.details if status else ():
        bad, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        if detail.Unpack(bad):
            named += [violation.field for violation in bad.field_violations]
        elif detail.Unpack(info):
            named.append(info.reason)
    return error.code().name, tuple(named)


def _tell(client: str, answer: str, debited: str) -> None:
    sys.stdout.write(f"\n| {client} | {answer} | {debited} |")


def _tensor(*values: float, shape: tuple[int, ...]) -> types_pb2.Tensor:
    return types_pb2.Tensor(shape=shape, values=values)


_MEANS = _tensor(0.1, 1.0, 0.2, 2.0, shape=(2, 2))

REFUSED: dict[str, tuple[fit_pb2.FitDPEMRequest, str, str]] = {
    "sends NaN as its spend": (_request(spend=types_pb2.Spend(rho=NAN)), "INVALID_ARGUMENT", "spend"),
    "sends an infinite epsilon": (_request(spend=types_pb2.Spend(epsilon=INF)), "INVALID_ARGUMENT", "spend"),
    "sends NaN as its delta": (
        _request(spend=types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=0.1, delta=NAN))),
        "INVALID_ARGUMENT",
        "spend",
    ),
    "sends a negative spend": (_request(spend=types_pb2.Spend(rho=-1.0)), "INVALID_ARGUMENT", "spend"),
    "sends no spend": (_request(spend=types_pb2.Spend()), "INVALID_ARGUMENT", "spend"),
    "sends NaN as its clip radius": (_request(clip_radius=NAN), "INVALID_ARGUMENT", "clip_radius"),
    "sends NaN in a given start": (
        _request(given=fit_pb2.StartGiven(means=_tensor(NAN, 0.0, 0.0, 0.0, shape=(2, 2)))),
        "INVALID_ARGUMENT",
        "given",
    ),
    "sends NaN in a prior": (
        _request(estimator=2, prior=fit_pb2.GaussianPrior(scale=NAN)),
        "INVALID_ARGUMENT",
        "prior",
    ),
    "asks for a billion components": (_request(n_components=10**9), "INVALID_ARGUMENT", "n_components"),
    "asks for a billion steps": (_request(iterations=10**9), "INVALID_ARGUMENT", "iterations"),
    "asks for a column that is not there": (_request(columns=["x", "salary"]), "INVALID_ARGUMENT", "columns"),
    "asks for a column 10,000 times": (_request(columns=["x"] * 10_000), "INVALID_ARGUMENT", "columns"),
    "asks for a table that does not exist": (_request(dataset="payroll"), "NOT_FOUND", "UNKNOWN_DATASET"),
    "sends a request_id with a line break": (_request(request_id="a\nb"), "INVALID_ARGUMENT", "request_id"),
    "starts from a release of someone else": (
        _request(released=fit_pb2.StartReleased(entry=1)),
        "INVALID_ARGUMENT",
        "released",
    ),
    "asks for more than there is": (_request(spend=types_pb2.Spend(rho=5.0)), "RESOURCE_EXHAUSTED", "BUDGET_EXHAUSTED"),
}


@pytest.mark.parametrize("does", REFUSED)
def test_a_bad_request_is_refused_and_costs_nothing(client: Client, does: str) -> None:
    """The status says whose fault it is, the details name the field or reason, and nothing is debited."""
    message, code, named = REFUSED[does]
    before = client.spent
    found, names = _refusal(lambda: client.fit(message))
    assert found == code
    assert any(named in name for name in names), names
    assert client.spent == before
    _tell(does, f"`{found}` {', '.join(dict.fromkeys(names))}", "nothing")


DOUBLES: tuple[Callable[[float], fit_pb2.FitDPEMRequest], ...] = (
    lambda x: _request(spend=types_pb2.Spend(rho=x)),
    lambda x: _request(spend=types_pb2.Spend(epsilon=x)),
    lambda x: _request(spend=types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=x, delta=1e-6))),
    lambda x: _request(spend=types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=0.1, delta=x))),
    lambda x: _request(clip_radius=x),
    lambda x: _request(estimator=2, prior=fit_pb2.GaussianPrior(concentration=x)),
    lambda x: _request(estimator=2, prior=fit_pb2.GaussianPrior(kappa=x)),
    lambda x: _request(estimator=2, prior=fit_pb2.GaussianPrior(nu=x)),
    lambda x: _request(estimator=2, prior=fit_pb2.GaussianPrior(scale=x)),
    lambda x: _request(given=fit_pb2.StartGiven(means=_tensor(0.1, x, 0.0, 0.0, shape=(2, 2)))),
    lambda x: _request(given=fit_pb2.StartGiven(means=_MEANS, weights=_tensor(x, 0.5, shape=(2,)))),
    lambda x: _request(given=fit_pb2.StartGiven(means=_MEANS, covariances=_tensor(*[x] * 8, shape=(2, 2, 2)))),
)


@pytest.mark.parametrize("where", range(len(DOUBLES)))
@pytest.mark.parametrize("value", [NAN, INF, -INF, -1e308])
def test_no_number_of_a_request_may_be_without_sense(client: Client, where: int, value: float) -> None:
    """Every double of the contract is checked before the debit; nothing is debited and nothing breaks."""
    before = client.spent
    found, names = _refusal(lambda: client.fit(DOUBLES[where](value)))
    assert (found, bool(names)) == ("INVALID_ARGUMENT", True)
    assert client.spent == before


WITHOUT_ACCESS: dict[str, tuple[Metadata, str]] = {
    "has no token": ((), "UNAUTHENTICATED"),
    "makes a token up": ((("authorization", "Bearer bursar_analyst_" + "A" * 43),), "UNAUTHENTICATED"),
    "sends a token of 100 kB": ((("authorization", "Bearer " + "A" * 100_000),), "RESOURCE_EXHAUSTED"),
}


@pytest.mark.parametrize("does", WITHOUT_ACCESS)
def test_a_caller_without_a_token_gets_nothing(client: Client, does: str) -> None:
    """No method but health answers a caller whom the ledger does not know."""
    metadata, code = WITHOUT_ACCESS[does]
    before = client.spent
    found, _ = _refusal(lambda: client.bytes_to(FIT, _request().SerializeToString(), metadata))
    assert found == code
    assert client.spent == before
    _tell(does, f"`{found}`", "nothing")


def test_bytes_that_are_no_request_are_refused(client: Client) -> None:
    """They do not decode, are too large, or are not in the contract."""
    bearer = client.server.bearer()
    for does, path, body, code in (
        ("sends bytes that are no message", FIT, b"\xff" * 100, "INVALID_ARGUMENT"),
        ("sends 2 MiB", FIT, b"\x00" * 2**21, "RESOURCE_EXHAUSTED"),
        ("calls a method that is not there", "/bursar.v1.FitService/ReadRows", b"", "UNIMPLEMENTED"),
    ):
        found, names = _refusal(lambda path=path, body=body: client.bytes_to(path, body, bearer))  # type: ignore[misc]
        assert found == code
        _tell(does, f"`{found}` {', '.join(names)}".strip(), "nothing")


def test_an_analyst_cannot_make_himself_an_administrator(client: Client) -> None:
    """Roles come from the ledger; the prefix of a token opens nothing."""
    stub = admin_pb2_grpc.AdminServiceStub(client.channel)
    message = admin_pb2.IssueTokenRequest(name="mallory", role=admin_pb2.ROLE_ADMIN)
    found, _ = _refusal(lambda: stub.IssueToken(message, metadata=client.server.bearer()))
    assert found == "PERMISSION_DENIED"
    _tell("issues themselves an administrator's token", f"`{found}`", "nothing")


def test_a_client_that_disconnects_half_way_finds_its_release_later(client: Client) -> None:
    """The fit goes on; asking again with the request_id gets it under the debit that was made."""
    before = client.spent
    call = client.call(_request(request_id="left"))
    receipt = next(iter(call)).receipt
    call.cancel()
    again = client.fit(_request(request_id="left"))
    assert again[0].receipt == receipt
    assert again[-1].HasField("model")
    assert client.spent == before + receipt.price.cost_units
    _tell("disconnects half-way", "the fit is finished and stored; asking again gets receipt and model", "once")


def test_a_reused_id_gets_the_same_bytes_or_a_refusal(client: Client) -> None:
    """The same body is answered from the store; another body is refused."""
    first = client.fit(_request(request_id="twice"))
    before = client.spent
    again = client.fit(_request(request_id="twice"))
    assert (again[0], again[-1]) == (first[0], first[-1])
    _tell("asks the same again", "the stored bytes", "nothing")
    found, names = _refusal(lambda: client.fit(_request(request_id="twice", n_components=3)))
    assert (found, names) == ("ALREADY_EXISTS", ("REQUEST_ID_REUSED",))
    assert client.spent == before
    _tell("reuses an id for another request", f"`{found}` {names[0]}", "nothing")


def test_ten_calls_at_once_with_one_id_are_one_fit(client: Client) -> None:
    """One debit, one noise draw, ten times the same model."""
    before = client.spent
    answers: list[list[fit_pb2.FitDPEMResponse]] = []

    def ask() -> None:
        answers.append(client.fit(_request(request_id="crowd")))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 10
    assert all(answer[-1] == answers[0][-1] and answer[0] == answers[0][0] for answer in answers)
    assert client.spent == before + answers[0][0].receipt.price.cost_units
    _tell("asks ten times at once", "one run, the same bytes for all", "once")


def test_exactly_the_remainder_is_admitted_and_the_next_request_is_not(client: Client) -> None:
    """The rho that the server says is left is granted; afterwards the smallest request is refused."""
    asks = _request(request_id="all", dataset="remainder")
    left = client.preview(asks).remaining
    asks.spend.rho = left.rho
    assert client.preview(asks).affordable
    receipt = client.fit(asks)[0].receipt
    assert receipt.price.cost_units <= left.cost_units
    # Fractions of a millionth of the budget are left over: noise scales are rounded up to the next float.
    assert receipt.remaining.cost_units <= left.cost_units // 10**6
    _tell("asks for exactly the remainder", "receipt and model", "all of it")
    more = _request(request_id="more", dataset="remainder")
    found, names = _refusal(lambda: client.fit(more))
    assert (found, names[-1]) == ("RESOURCE_EXHAUSTED", "BUDGET_EXHAUSTED")
    _tell("asks for anything after that", f"`{found}` {names[-1]}", "nothing")


def test_after_all_this_the_ledger_verifies(client: Client) -> None:
    """Every debit is priced again, the chain holds, and the server still answers."""
    assert verify(client.server.home.state.ledger).ok
    assert client.preview(_request()).affordable
