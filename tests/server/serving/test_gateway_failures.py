"""Calls without a valid token through the JSON gateway: counted by the caller's address, not by the gateway's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import pytest

from bursar_server import log
from bursar_server.config import Rates
from bursar_server.gateway.calls import Application, Limits, connect

if TYPE_CHECKING:
    from tests.server.serving.conftest import Serve

BAD, OTHERS = ("192.0.2.1", 1), ("192.0.2.2", 1)
"""Addresses of two callers of one gateway."""
WRONG = "Bearer bursar_analyst_" + "x" * 43
LIMITS = Limits(failures=3, lockout_seconds=1000.0)

Post = Callable[..., Awaitable["Answer"]]
Answer = tuple[int, dict[str, str], dict[str, Any]]


def _through_a_gateway(served: Any, calls: Callable[[Post, Any], Awaitable[None]]) -> list[log.Event]:
    """Run calls through a gateway with `LIMITS` in front of a server; return the gateway's events."""
    events, told = log.Events(), list[log.Event]()

    async def run() -> None:
        async with connect(served.address, (served.state.tls / "ca.pem").read_bytes()) as channel:
            application = Application(channel, LIMITS, events)

            async def post(client: tuple[str, int], token: str | None, *more: tuple[bytes, bytes]) -> Answer:
                sent: list[MutableMapping[str, Any]] = []
                parts = [{"type": "http.request", "body": b"{}"}]

                async def receive() -> MutableMapping[str, Any]:
                    if parts:
                        return parts.pop()
                    await asyncio.Event().wait()
                    raise AssertionError

                async def send(message: MutableMapping[str, Any]) -> None:
                    sent.append(message)

                headers = [(b"content-type", b"application/json"), *more]
                headers += [] if token is None else [(b"authorization", token.encode())]
                path = "/bursar.v1.CatalogService/ListDatasets"
                scope = {"path": path, "method": "POST", "query_string": b"", "headers": headers, "client": client}
                await application(scope, receive, send)
                body = b"".join(message.get("body", b"") for message in sent)
                named = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
                return sent[0]["status"], named, json.loads(body)

            await calls(post, dict(served.bearer())["authorization"])

    with events.heard_by(told.append):
        asyncio.run(run())
    return told


def test_limits_are_the_servers_own() -> None:
    """The gateway knows no settings, so the server's defaults stand in it once more."""
    assert (Limits().failures, Limits().lockout_seconds) == (Rates().failures, Rates().lockout_seconds)


@pytest.mark.parametrize("server_failures", [1, 2, 100])
def test_one_callers_failures_are_not_those_of_another(serve: Serve, server_failures: int) -> None:
    """Each caller's own failures count, also after the server has locked the gateway's address out."""

    async def calls(post: Post, good: str) -> None:
        for _ in range(LIMITS.failures):
            status, headers, body = await post(BAD, WRONG)
            assert (status, body["code"], headers["www-authenticate"]) == (401, "unauthenticated", "Bearer")
        for token in (WRONG, None):
            status, headers, body = await post(BAD, token)
            assert (status, body["code"]) == (429, "resource_exhausted")
            assert "your address" in body["message"]
            assert 900 <= int(headers["retry-after"]) <= 1000
        # Another caller who makes a mistake hears of it; good tokens are served, also to the first one's neighbours.
        assert (await post(OTHERS, None))[0] == 401
        assert [(await post(client, good))[0] for client in (BAD, OTHERS)] == [200, 200]

    served = serve(rates={"failures": server_failures, "lockout_seconds": 1000.0})
    assert _through_a_gateway(served, calls) == [log.LockedOut(address="192.0.2.1")]


def test_no_header_makes_another_address(serve: Serve) -> None:
    """Callers write headers: what names another address changes nothing, neither to escape nor to harm others."""

    async def calls(post: Post, good: str) -> None:
        for number in range(LIMITS.failures):
            forged = (f"198.51.100.{number}").encode()
            more = ((b"x-forwarded-for", forged), (b"forwarded", b"for=" + forged), (b"x-real-ip", OTHERS[0].encode()))
            assert (await post(BAD, WRONG, *more))[0] == 401
        assert (await post(BAD, WRONG, (b"x-forwarded-for", b"198.51.100.99")))[0] == 429
        assert (await post(OTHERS, WRONG))[0] == 401

    _through_a_gateway(serve(), calls)


def test_other_refusals_are_not_counted(serve: Serve) -> None:
    """A caller who calls too often with a good token is no guesser of tokens."""

    async def calls(post: Post, good: str) -> None:
        assert (await post(BAD, good))[0] == 200
        for _ in range(LIMITS.failures + 1):
            status, _, body = await post(BAD, good)
            assert (status, body["details"][0]["debug"]["reason"]) == (429, "TOO_OFTEN")
        assert (await post(BAD, WRONG))[0] == 401

    _through_a_gateway(serve(rates={"calls_per_minute": 1}), calls)
