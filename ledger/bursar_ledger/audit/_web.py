"""Web server of pages for one person: headers of every answer, whom a request is meant for, and where it listens.

No script runs on any page, and nothing is loaded from elsewhere: the policy in every answer forbids both, should a text
of a forged ledger ever get through the escaping.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import webbrowser
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import click
import uvicorn
from datasette.utils.asgi import Request, Response

from ._text import visible

App = Callable[[Any, Any, Any], Awaitable[None]]

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_FOREIGN = (
    "This host name is not one of these pages: ask for the address that the link has. bursar-audit serve takes further "
    "names with --name.\n"
)
_PORT = re.compile(r":\d*$")


def guarded(
    app: App, names: frozenset[str], admitted: Callable[[Request], bool], refused: Callable[[], Awaitable[Response]]
) -> App:
    """Return an application that answers requests for this host, of those who are admitted, with all headers.

    `names` are hosts that browsers may ask for, beside `localhost` and the address that the connection came to;
    `refused` makes the answer to those who are not admitted.
    """

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                kept = [pair for pair in message.get("headers", []) if pair[0].decode().lower() not in _HEADERS]
                message = {**message, "headers": [*kept, *own]}
            await send(message)

        if not _is_meant(scope, names):
            # A page elsewhere whose name was made to lead here: the browser would send it what we answer.
            await Response.text(_FOREIGN, status=421).asgi_send(with_headers)
        elif admitted(Request(scope, receive)):
            await app(scope, receive, with_headers)
        else:
            await (await refused()).asgi_send(with_headers)

    return wrapped


def _is_meant(scope: Any, names: frozenset[str]) -> bool:
    """Check that a request is for this host: `localhost`, the address that its connection came to, or a given name."""
    asked = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
    if len(asked) != 1:
        return False
    host = _PORT.sub("", asked[0]).strip("[]")
    return host in names | {"localhost", (scope.get("server") or ("localhost",))[0]}


@contextlib.contextmanager
def listening(host: str, port: int, *, beyond_this_machine: bool = False) -> Iterator[socket.socket]:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        click.BadParameter: others would reach it and may not, or nothing can listen there.
    """
    if not (beyond_this_machine or _loopback(host)):
        raise click.BadParameter(
            f"{visible(host)} can be reached from other machines, and the page is plain HTTP: whoever listens on the "
            "way could read the ledger and take the link. Use 127.0.0.1 through ssh -L, or a proxy with TLS before it, "
            "or say --beyond-this-machine",
            param_hint="'--host'",
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise click.BadParameter(
            f"nothing can listen at {visible(host)}, port {port}: {error}; another --port may be free, and 0 takes one "
            "that is",
            param_hint="'--port'",
        ) from error
    with made:
        yield made


def serve(app: App, listener: socket.socket, subject: object, link: str, *, show: bool) -> None:
    """Serve until it is interrupted, after printing the link; `subject` is what the pages are about."""
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{link}"
    click.echo(f"{visible(subject)}: open this link, which works once; Ctrl-C ends\n{url}")
    if show:
        webbrowser.open(url)  # the socket listens already, so the browser waits
    # No log of accesses: it would hold the link.
    config = uvicorn.Config(app, log_level="error", access_log=False, server_header=False, lifespan="off")
    with contextlib.suppress(KeyboardInterrupt):  # which is how it is ended
        uvicorn.Server(config).run(sockets=[listener])


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
