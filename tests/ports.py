"""Ports for servers that have to be told one."""

from __future__ import annotations

import contextlib
import secrets
import socket


def free_port() -> int:
    """A port of this host that nobody listens on.

    It lies below those that the kernel gives out by itself, so that no test beside this one gets it before the server
    listens there, or while it is started again.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
