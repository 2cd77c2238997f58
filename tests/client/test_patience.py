"""A busy server is asked again when it says, never earlier, never for ever, and always with the same request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

import bursar
from bursar import _connection
from bursar._connection import Patience
from bursar.testing import Server
from tests import asking
from tests.client.line import Line

ASK: dict[str, Any] = {"n_components": 2, "spend": bursar.rho(0.1)}
BUSY, GONE = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE


class Clock:
    """A clock that only waiting moves, and that remembers each wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def monotonic(self) -> float:
        """Now; a little beyond the true time by what was waited."""
        return time.monotonic() + sum(self.waits)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self.waits.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of waits."""
    clock = Clock()
    monkeypatch.setattr(_connection, "time", clock)
    return clock


def turn_away(server: Line, seconds: float | None, reason: str = "QUEUE_FULL", code: Any = BUSY) -> None:
    """Refuse the next call, with advice when to come back or without."""
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=reason, domain="bursar")] if reason else []
    if seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(round(seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    server.fail_next(code, "busy", details)


CALLS: dict[str, Callable[[bursar.Dataset], object]] = {
    "a fit": lambda toy: asking.fit(toy, bursar.DPEM, **ASK, request_id="mine"),
    "a preview": lambda toy: asking.preview(toy, bursar.DPEM, **ASK),
    "a question": lambda toy: toy.remaining(),
    "a dummy run": lambda toy: asking.fit(toy, bursar.DPEM, **ASK, dummy=True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("reason", "code"), [("QUEUE_FULL", BUSY), ("TOO_OFTEN", BUSY), ("STOPPING", GONE), ("", BUSY)]
)
def test_every_call_comes_back_when_it_is_told_to(
    server: Line, clock: Clock, call: str, reason: str, code: Any
) -> None:
    """Not earlier, not much later, as often as it is told."""
    toy = server.client(patience=30.0).dataset("toy")
    for _ in range(3):
        turn_away(server, 5.0, reason, code)
    assert CALLS[call](toy) is not None
    assert len(clock.waits) == 3
    assert all(5.0 <= wait <= 7.5 for wait in clock.waits)


def test_a_token_that_is_not_valid_is_not_sent_again(server: Line, clock: Clock) -> None:
    """Also where the server counts no more such calls of this address, and says how long: waiting mends no token."""
    toy = server.client(patience=30.0).dataset("toy")
    turn_away(server, 5.0, "ADDRESS_LOCKED_OUT")
    with pytest.raises(bursar.AuthenticationError, match="ADDRESS_LOCKED_OUT"):
        toy.remaining()
    assert clock.waits == []


def test_a_fit_that_was_turned_away_is_paid_for_once(server: Line, clock: Clock) -> None:
    """The request that gets through is the one that was turned away, with its request_id."""
    toy = server.client(patience=30.0).dataset("toy")
    turn_away(server, 1.0)
    model = asking.fit(toy, bursar.DPEM, **ASK)
    assert model.receipt is not None
    assert not model.receipt.replayed
    assert [one.request_id for one in server.requests] == [model.receipt.request_id]


def test_waits_differ() -> None:
    """Those who were turned away together do not come back together."""
    found = set()
    for _ in range(20):
        patience = Patience(1000.0)
        before = patience._left
        error = bursar.OverloadedError("busy")
        error.retry_after = 0.0
        _sleepless(patience, error)
        found.add(before - patience._left)
    assert len(found) > 10
    assert min(found) >= 0.25


def _sleepless(patience: Patience, error: bursar.OverloadedError) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_connection, "time", Clock())
        patience.pause(error, None)


@pytest.mark.parametrize(
    ("advised", "patience", "waits"), [(5.0, 14.9, 2), (1.0, 0.0, 0), (60.0, 30.0, 0), (30.0, 30.0, 1)]
)
def test_patience_ends(server: Line, clock: Clock, advised: float, patience: float, waits: int) -> None:
    """The waits add up to no more than was allowed; then the error says when another try would make sense."""
    client = server.client(patience=patience)
    for _ in range(10):
        turn_away(server, advised)
    with pytest.raises(bursar.OverloadedError, match=f"ask again in {advised:g} s") as caught:
        client.datasets()
    assert caught.value.retry_after == advised
    assert len(clock.waits) == waits
    assert sum(clock.waits) <= patience


def test_a_server_that_says_now_is_not_asked_without_end(server: Line, clock: Clock) -> None:
    """Advice of 0 s is a quarter of a second at least, so that tries are bounded, too."""
    client = server.client(patience=2.0)
    for _ in range(100):
        turn_away(server, 0.0)
    with pytest.raises(bursar.OverloadedError):
        client.datasets()
    assert 4 <= len(clock.waits) <= 8


def test_what_comes_without_advice_is_not_asked_again(server: Line, clock: Clock) -> None:
    """It would be refused again."""
    turn_away(server, None)
    with pytest.raises(bursar.OverloadedError) as caught:
        server.client(patience=30.0).datasets()
    assert caught.value.retry_after is None
    assert not clock.waits


def test_waiting_is_part_of_the_time_that_a_call_may_take(server: Line, clock: Clock) -> None:
    """Nobody waits beyond the timeout; the refusal comes at once instead."""
    with server.client(timeout=60.0, patience=300.0) as client:
        client.datasets()
        for call in (client.datasets, lambda: asking.fit(client.dataset("toy"), bursar.DPEM, **ASK)):
            turn_away(server, 90.0)
            with pytest.raises(bursar.OverloadedError):
                call()
    assert not clock.waits


def test_a_ledger_that_is_busy_is_given_the_time_it_asks_for(server: Line, clock: Clock) -> None:
    """Advice wins over the delays after a stream that broke, which have none."""
    toy = server.client(patience=30.0, retry_delays=()).dataset("toy")
    turn_away(server, 5.0, "LEDGER_UNAVAILABLE", GONE)
    assert asking.fit(toy, bursar.DPEM, **ASK).receipt is not None
    assert len(clock.waits) == 1
    turn_away(server, None, "LEDGER_UNAVAILABLE", GONE)
    with pytest.raises(bursar.UnavailableError):
        asking.fit(toy, bursar.DPEM, **ASK)


def test_what_may_have_been_carried_out_is_asked_again_only_if_it_costs_nothing(server: Line, clock: Clock) -> None:
    """A fit has its request_id; anything else might be done twice, and is left to the caller."""
    turn_away(server, 5.0, "LEDGER_UNAVAILABLE", GONE)
    with pytest.raises(bursar.UnavailableError, match="ask again in 5 s") as caught:
        server.client(patience=30.0).datasets()
    assert caught.value.retry_after == 5.0
    assert not clock.waits


@pytest.mark.parametrize("patience", [-1.0, math.nan, math.inf])
def test_patience_is_a_number_of_seconds(patience: float) -> None:
    """Finite and not negative."""
    with pytest.raises(bursar.InvalidRequestError, match="patience"):
        bursar.Client(grpc.insecure_channel("127.0.0.1:1"), patience=patience)


TOO_LARGE: dict[str, tuple[str, type[bursar.Error]]] = {
    "request": ("SERVER: Received message larger than max (5000 vs. 1000)", bursar.InvalidRequestError),
    "answer": ("SERVER: Sent message larger than max (5000 vs. 1000)", bursar.ServerError),
    "answer here": ("Stream removed (CLIENT: Received message larger than max (5 vs. 1))", bursar.ServerError),
}


@pytest.mark.parametrize("which", TOO_LARGE)
def test_a_message_that_is_too_large_stays_too_large(server: Line, clock: Clock, which: str) -> None:
    """Not an overload, though gRPC has one status for both; an answer may have been paid for, a request was not."""
    text, kind = TOO_LARGE[which]
    server.fail_next(BUSY, text)
    with pytest.raises(kind, match="larger than max") as caught:
        server.client(patience=30.0).datasets()
    assert type(caught.value) is kind
    assert not clock.waits


def test_gRPC_says_so_in_these_words(toys: Server) -> None:
    """The message is the one for an answer that the channel does not take."""
    credentials = grpc.ssl_channel_credentials(toys.ca.read_bytes())
    channel = grpc.secure_channel(toys.address, credentials, options=[("grpc.max_receive_message_length", 10)])
    token = toys.tokens["analyst"]
    with bursar.Client(channel, token=token) as client, pytest.raises(bursar.ServerError, match="larger than"):
        client.datasets()
