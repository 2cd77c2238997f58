"""Web server of `bursar-audit serve`: where it listens, and where it prints the link."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvicorn

from ._site import link, site
from ._text import visible
from ._watch import watching

if TYPE_CHECKING:
    from ..checkpoints import Place, VerifierKey


@contextlib.contextmanager
def listening(host: str, port: int, *, beyond_this_machine: bool) -> Iterator[socket.socket]:
    """Return a socket that listens.

    Args:
        host: address or name.
        port: 0 takes a free one.
        beyond_this_machine: whether others may reach it.

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


def run(
    ledger: Path,
    key: VerifierKey | None,
    places: Sequence[Place],
    listener: socket.socket,
    names: Sequence[str],
    *,
    ask: bool,
    show: bool,
) -> None:
    """Serve until it is interrupted, after printing the link.

    Args:
        ledger: the file.
        key: that checkpoints are by.
        places: places of checkpoints.
        listener: where to listen.
        names: hosts that browsers may ask for, beside the address that they reach.
        ask: whether dp-accounting gives a second opinion.
        show: whether to open a browser at the link.
    """
    host, port = listener.getsockname()[:2]
    with watching(ledger, key, places, ask=ask) as watch, site(watch, names) as made:
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}{link(made)}"
        click.echo(f"{visible(ledger)}: open this link, which works once; Ctrl-C ends\n{url}")
        if show:
            webbrowser.open(url)  # the socket listens already, so the browser waits
        # No log of accesses: it would hold the link.
        config = uvicorn.Config(made.app(), log_level="error", access_log=False, server_header=False, lifespan="off")
        with contextlib.suppress(KeyboardInterrupt):  # which is how it is ended
            uvicorn.Server(config).run(sockets=[listener])


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
