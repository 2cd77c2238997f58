"""A real server on a state directory that exists, as a child process: the one harness of tests, benchmarks and demo.

`bursar.testing.serve` makes a state directory of its own; this starts, kills and starts again on one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 600.0
"""Seconds after which a start or an end hangs: the first start on a machine compiles kernels for a minute."""


@dataclass(frozen=True)
class ServerProcess:
    """A running server.

    Attributes:
        process: the child process.
        address: host:port.
        log: file with what it writes for its operator.
    """

    process: subprocess.Popen[str]
    address: str
    log: Path

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait for the end, and return the exit status; a server that does not end is killed."""
        self.process.send_signal(number)
        return _ended(self.process)


def command(state: Path, address: str = "127.0.0.1:0") -> list[str]:
    """Return the command that serves a state directory, on a free port unless told otherwise."""
    return [sys.executable, "-m", "bursar_server", "run", "--state", str(state), "--address", address]


def start(command: Sequence[str], log: Path) -> ServerProcess:
    """Start a server, and wait until it serves.

    Args:
        command: as of `command`, or another one that prints its address last on its first line.
        log: file for its standard error.

    Raises:
        RuntimeError: it ended before it served; with its log.
    """
    # To a file: a pipe that nobody reads would fill up and stop the server.
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
    # Its end closes the pipe, and so ends the wait for its first line.
    guard = threading.Timer(PATIENCE, process.kill)
    guard.start()
    try:
        line = process.stdout.readline() if process.stdout else ""
    except BaseException:
        process.kill()
        raise
    finally:
        guard.cancel()
        guard.join()
    if not line:
        _ended(process)
        raise RuntimeError(f"the server did not start: {log.read_text()}")
    return ServerProcess(process, line.split()[-1], log)


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[ServerProcess]:
    """Run a server while the context is open; then SIGTERM, and wait until it has finished what was paid for."""
    server = start(command, log)
    try:
        yield server
    finally:
        server.end()


def _ended(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(PATIENCE)
    finally:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
