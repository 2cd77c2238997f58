"""Answers to clients that read slowly, or not at all: the connection ends, and with it the memory of the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from bursar_server.gateway.calls import Limits
from bursar_server.gateway.serving import _protocol

PIECE, PIECES = b"x" * 2**20, 64
"""A long answer, far above what sockets take: 64 MiB."""
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


class _Answer:
    """An application with a long answer, which notes how much of it was taken and whether its connection ended."""

    def __init__(self) -> None:
        self.pieces = 0
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(PIECES):
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            self.pieces += 1
        await send({"type": "http.response.body", "body": b""})
        self.ended.set()


@contextlib.asynccontextmanager
async def _asked(write_seconds: float) -> AsyncIterator[tuple[_Answer, asyncio.StreamReader]]:
    """Ask for the long answer; the client of the block decides what it reads."""
    answer = _Answer()
    kind = _protocol(Limits(write_seconds=write_seconds))
    config = uvicorn.Config(answer, http=kind, ws="none", lifespan="off", interface="asgi3", log_config=None)
    config.load()
    state = ServerState()

    def protocol() -> asyncio.Protocol:
        made: Any = kind
        return made(config=config, server_state=state, app_state={})  # type: ignore[no-any-return]

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        writer.write(REQUEST)
        yield answer, reader
    finally:
        writer.transport.abort()
        server.close()
        await asyncio.sleep(0)


def test_a_client_that_does_not_read_is_disconnected() -> None:
    """No more of the answer is made than sockets hold, and the rest goes nowhere once the time is over."""

    async def ask() -> None:
        async with _asked(0.3) as (answer, _):
            await asyncio.wait_for(answer.ended.wait(), 30)
            assert answer.pieces == PIECES  # after the end of a connection, what is sent is dropped at once

    asyncio.run(ask())


def test_without_the_limit_the_answer_would_wait_for_ever() -> None:
    """The planted bug: the same client keeps the answer waiting."""

    async def ask() -> None:
        async with _asked(1e6) as (answer, _):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(answer.ended.wait(), 2)
            assert answer.pieces < PIECES

    asyncio.run(ask())


def test_a_slow_reader_gets_the_whole_answer() -> None:
    """One that pauses for less than the limit, again and again."""

    async def ask() -> None:
        async with _asked(2.0) as (answer, reader):
            read = 0
            while piece := await reader.read(4 * 2**20):
                read += len(piece)
                await asyncio.sleep(0.001)
            assert read > len(PIECE) * PIECES
            assert answer.ended.is_set()

    asyncio.run(ask())
