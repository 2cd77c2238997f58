"""Throttle: callers with too many calls or failures wait; others do not, and nothing is debited."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from bursar_ledger import Role
from bursar_server.access import throttle
from bursar_server.access.throttle import AddressLockedOutError, Buckets, Lockout, Throttle, TooOftenError, address_of

if TYPE_CHECKING:
    from tests.server.serving.conftest import Refusal, Serve

Refused = Callable[[Callable[[], object]], "Refusal"]
LIST = "/bursar.v1.CatalogService/ListDatasets"


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def test_a_bucket_gives_so_many_at_once_and_as_many_again_in_its_time() -> None:
    """The next one says how long to wait; after that there is one, and not two."""
    clock = Clock()
    buckets = Buckets(3, 60.0, clock)
    assert [buckets.take("ann") for _ in range(4)] == [0.0, 0.0, 0.0, pytest.approx(20.0)]
    assert buckets.take("bob") == 0.0
    clock.now += 20.001
    assert buckets.take("ann") == 0.0
    assert buckets.take("ann") > 0
    clock.now += 1000
    assert [buckets.take("ann") > 0 for _ in range(4)] == [False, False, False, True]


def test_who_fails_too_often_is_not_heard_for_a_while() -> None:
    """Exactly from the last failure that may be on; then everything begins anew."""
    clock = Clock()
    lockout = Lockout(3, 60.0, clock)
    assert [lockout.failed("a") for _ in range(2)] == [False, False]
    assert lockout.left("a") == 0
    assert lockout.failed("a")
    assert lockout.left("a") == pytest.approx(60.0)
    assert lockout.left("b") == 0
    clock.now += 60.0
    assert lockout.left("a") == 0
    assert not lockout.failed("a")


def test_failures_that_are_long_past_do_not_count() -> None:
    """Only those within the time."""
    clock = Clock()
    lockout = Lockout(2, 60.0, clock)
    for _ in range(10):
        assert not lockout.failed("a")
        clock.now += 61.0


def test_made_up_names_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was quiet longest is forgotten."""
    monkeypatch.setattr(throttle, "_MOST_KEPT", 5)
    buckets, lockout = Buckets(1, 60.0, Clock()), Lockout(1, 60.0, Clock())
    for i in range(100):
        buckets.take(str(i))
        lockout.failed(str(i))
    assert len(buckets._buckets) == len(lockout._failures) == 5
    assert lockout.left("99") > 0


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2::9%5D:5000", "2001:db8:1:2::/64"),
        ("ipv6:[fe80::1%25eth0]:5000", "fe80::/64"),
        ("ipv6:[::ffff:192.0.2.1]:5000", "192.0.2.1"),
        ("unix:/run/bursar.sock", "unix"),
        ("", ""),
    ],
)
def test_an_address_is_a_host(peer: str, address: str) -> None:
    """The port, which changes, does not count; of IPv6 it is the network, which one host has."""
    assert address_of(peer) == address


def test_both_are_told_with_the_time_to_wait() -> None:
    """The error says the time."""
    clock = Clock()
    both = Throttle(1, 1, 60.0, clock)
    both.check_rate("ann")
    with pytest.raises(TooOftenError) as caught:
        both.check_rate("ann")
    assert 0 < caught.value.seconds <= 60
    assert both.address_failed("a")
    with pytest.raises(AddressLockedOutError):
        both.check_address("a")
    both.check_principal("a")  # an address is no principal


def _retry_seconds(call: Callable[[], object]) -> int:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    for detail in rpc_status.from_call(error).details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return int(retry.retry_delay.seconds)
    raise AssertionError("no advice when to try again")


def test_who_calls_too_often_is_told_when_to_come_back(serve: Serve, refused: Refused) -> None:
    """RESOURCE_EXHAUSTED with retry advice; others are served, and the ledger has no new entry."""
    served = serve(rates={"calls_per_minute": 1})
    before = served.entries()
    call: Any = served.channel.unary_unary(LIST)
    ask = partial(call, b"", metadata=served.bearer())
    ask()
    refusal = refused(ask)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_OFTEN")
    assert 1 <= _retry_seconds(ask) <= 60
    assert call(b"", metadata=served.bearer(Role.AUDITOR))
    assert served.entries() == before


def test_who_tries_tokens_out_is_shut_out(serve: Serve, refused: Refused, caplog: pytest.LogCaptureFixture) -> None:
    """Calls without a good token wait after too many failures and are not logged; good tokens are served."""
    caplog.set_level("INFO", "bursar.server")
    served = serve(rates={"failures": 3, "lockout_seconds": 5e4})
    call: Any = served.channel.unary_unary(LIST)
    wrong = partial(call, b"", metadata=(("authorization", "Bearer bursar_analyst_" + "x" * 43),))
    for _ in range(3):
        assert refused(wrong).code is grpc.StatusCode.UNAUTHENTICATED
    lines = len(caplog.records)
    for bad in (wrong, partial(call, b"")):
        refusal = refused(bad)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "ADDRESS_LOCKED_OUT")
    assert 4e4 <= _retry_seconds(wrong) <= 5e4
    assert len(caplog.records) == lines
    assert call(b"", metadata=served.bearer())


def test_a_token_that_keeps_asking_for_what_it_may_not_do_is_shut_out(serve: Serve, refused: Refused) -> None:
    """Its name waits; the others at the same address go on."""
    served = serve(rates={"failures": 2, "lockout_seconds": 1000.0})
    forbidden: Any = served.channel.unary_unary("/bursar.v1.AdminService/ListTokens")
    allowed: Any = served.channel.unary_unary(LIST)
    for _ in range(2):
        assert refused(partial(forbidden, b"", metadata=served.bearer())).code is grpc.StatusCode.PERMISSION_DENIED
    assert refused(partial(allowed, b"", metadata=served.bearer())).reason == "TOO_OFTEN"
    assert allowed(b"", metadata=served.bearer(Role.AUDITOR))


def test_a_request_that_is_wrong_is_no_failure_of_its_caller(serve: Serve, refused: Refused) -> None:
    """Refusals of what was asked are not counted with those of who asks: whoever makes mistakes is not shut out."""
    served = serve(rates={"failures": 2, "lockout_seconds": 1000.0})
    call: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    for body in (b"\xff", b"", b"\x12\x04none") * 2:
        ask = partial(lambda body: list(call(body, metadata=served.bearer())), body)
        assert refused(ask).reason in (None, "UNKNOWN_DATASET")
    listed: Any = served.channel.unary_unary(LIST)
    assert listed(b"", metadata=served.bearer())


def test_a_full_queue_is_told_with_retry_advice(serve: Serve, fit_request: Callable[..., Any]) -> None:
    """And nothing is debited."""
    served = serve(calls_per_principal=1)
    served.fit.hold.clear()
    stream: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    first = stream(fit_request().SerializeToString(), metadata=served.bearer())
    next(iter(first))
    debits = served.entries("debit")
    again = partial(stream, fit_request(request_id="r2").SerializeToString(), metadata=served.bearer())
    assert _retry_seconds(lambda: list(again())) >= 1
    assert served.entries("debit") == debits
    served.fit.hold.set()
    list(first)
