"""HTTPS server of the gateway: uvicorn with TLS 1.3 only, and with time limits for slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bursar_server import log
from bursar_server.gateway.calls import Application, Limits, connect


class GatewayError(Exception):
    """Error: the gateway cannot start; the message has reason and remedy."""


def serve(listen: str, server: str, tls: Path, *, ready: Callable[[str], object], limits: Limits | None = None) -> None:
    """Pass calls on until SIGTERM or SIGINT; SIGHUP reads the certificate again.

    Args:
        listen: host:port to listen on; port 0 takes a free one.
        server: host:port of the server.
        tls: folder of ca.pem, server.pem and server-key.pem.
        ready: called with host:port once the gateway answers.
        limits: limits of requests.

    Raises:
        GatewayError: a file cannot be read, or the port is taken.
    """
    log.set_up()
    events = log.Events()
    with log.without_libraries(events):
        asyncio.run(_serve(listen, server, tls, ready, limits or Limits(), events))


async def _serve(
    listen: str, server: str, tls: Path, ready: Callable[[str], object], limits: Limits, events: log.Events
) -> None:
    host, port = _split(listen)
    try:
        authority = (tls / "ca.pem").read_bytes()
        context = _context(tls)
    except (OSError, ssl.SSLError) as error:
        raise GatewayError(f"cannot use the certificates in {tls}: {error.strerror or error}") from None
    async with connect(server, authority) as channel:
        await _Server(Application(channel, limits, events), host, port, context, tls, limits, ready).serve()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise GatewayError(f"{address!r} is no HOST:PORT; such as 127.0.0.1:8444")
    return host.strip("[]"), int(port)


def _context(tls: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load(context, tls)
    return context


def _load(context: ssl.SSLContext, tls: Path) -> None:
    # A key with a passphrase fails here; otherwise OpenSSL would ask for one on the terminal.
    context.load_cert_chain(tls / "server.pem", tls / "server-key.pem", password=bytes)


class _Server(uvicorn.Server):
    """Server on one port, with a time limit of handshakes and with signals of its own."""

    def __init__(
        self,
        application: Application,
        host: str,
        port: int,
        context: ssl.SSLContext,
        tls: Path,
        limits: Limits,
        ready: Callable[[str], object],
    ) -> None:
        self._context = context
        self._tls = tls
        self._limits = limits
        self._ready = ready
        config = uvicorn.Config(
            application,
            host=host,
            port=port,
            http=_protocol(limits),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=limits.header_bytes,
            timeout_keep_alive=limits.idle_seconds,
            timeout_graceful_shutdown=limits.stop_seconds,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn's own has no time limit for handshakes, and does not report the port that it took."""
        config = self.config

        def protocol() -> asyncio.Protocol:
            made: Any = config.http_protocol_class
            return made(config=config, server_state=self.server_state, app_state={})  # type: ignore[no-any-return]

        try:
            listener = await asyncio.get_running_loop().create_server(
                protocol,
                config.host,
                config.port,
                ssl=self._context,
                ssl_handshake_timeout=self._limits.request_seconds,
                ssl_shutdown_timeout=self._limits.request_seconds,
            )
        except OSError as error:
            reason = error.strerror or error
            raise GatewayError(f"cannot listen on {config.host}:{config.port}: {reason}; choose another port") from None
        self.servers = [listener]
        self.started = True
        host = f"[{config.host}]" if ":" in config.host else config.host
        self._ready(f"{host}:{listener.sockets[0].getsockname()[1]}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGTERM and SIGINT, read the certificate again at SIGHUP, until the block ends."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.should_exit = True

    def _reload(self) -> None:
        try:
            _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._tls)  # a pair that does not fit changes nothing
            _load(self._context, self._tls)
        except (OSError, ssl.SSLError) as error:
            log.failure(error)


def _protocol(limits: Limits) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with limits on connections and on clients that send or read slowly."""

    class Limited(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._headers, self._reader = _Clock(transport), _Clock(transport)
            if len(self.connections) > limits.connections:
                transport.abort()
            else:
                self._headers.start(limits.request_seconds)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait_for_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._headers.stop()
            self._reader.stop()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reader.start(limits.write_seconds)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._reader.stop()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.trailing_data[0]:  # a part of the next request came early
                self._wait_for_headers()

        def _wait_for_headers(self) -> None:
            if self.conn.their_state is h11.IDLE:
                self._headers.start(limits.request_seconds)
            else:
                self._headers.stop()

    return Limited


class _Clock:
    """Time limit that closes a connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Start, unless it runs: bytes that trickle in do not set it back."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def stop(self) -> None:
        """Stop, if it runs."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
