"""The server of the chaos run: the real one, started again and again, that can kill itself at a named instant.

Imports everything once and forks, so that a restart takes a fraction of a second. Reads one JSON object a line:
`{"start": {...}}` forks a server and answers with its process id; `{"wait": pid}` answers with its exit status once it
has ended. A start names folder and address, how long the ledger waits for a lock, and the point at whose n-th passage
the server kills itself (null for none).

The points are set here, around the functions of the server, so that the server itself knows no switch of the kind.
Some are in the processes that fits run in: whoever passes them kills the server, and itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bursar_ledger import Ledger, _store
from bursar_server import process
from bursar_server.fits import dpem
from bursar_server.fits.registry import FITS
from bursar_server.vault import ExactNoise

RUNS = "runs"
"""File beside the state directory that grows by a byte with every fit that runs."""


class _Fuse:
    """Kills the server at the n-th passage of its point, with the signal that leaves no time for anything.

    Passages in the processes of fits count, too; made in the server, before it forks.
    """

    def __init__(self, point: str | None, passage: int) -> None:
        self._point = point
        self._server = os.getpid()
        self._left = multiprocessing.Value("i", passage)

    def passed(self, point: str) -> None:
        if point == self._point:
            with self._left.get_lock():
                self._left.value -= 1
                burnt = self._left.value == 0
            if burnt:
                os.kill(self._server, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)  # at once, not when the kernel has seen to it


def _around(owner: Any, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        before(*arguments, **named)
        result = original(*arguments, **named)
        after(*arguments, **named)
        return result

    setattr(owner, name, wrapped)


def _set_points(fuse: _Fuse) -> None:
    def at(point: str) -> Callable[..., None]:
        return lambda *arguments, **named: fuse.passed(point)

    def in_transaction(store: object, kind: str, **fields: object) -> None:
        if kind in ("debit", "release"):
            fuse.passed(f"inside the {kind}'s transaction")

    def nothing(*arguments: object, **named: object) -> None:
        return None

    _around(Ledger, "debit", at("before the debit"), at("after the debit"))
    _around(_store.Store, "append", nothing, in_transaction)
    _around(ExactNoise, "add", at("before noise is drawn"), at("after noise is drawn"))
    _around(Ledger, "store_release", at("before the release is stored"), at("after the release is stored"))


def _count_runs(folder: Path) -> None:
    def count(*arguments: object) -> None:
        # Opened each time: fits run in processes that have no file open. Appended by the kernel in one piece, and there
        # even if the process is killed at the next instruction.
        with contextlib.suppress(OSError):  # the disk is full on purpose
            runs = os.open(folder / RUNS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(runs, b"x")
            finally:
                os.close(runs)

    _around(dpem, "run", lambda *arguments: None, count)


def _serve(order: dict[str, Any]) -> None:
    folder = Path(order["folder"])
    log = os.open(folder / "server.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, sys.stderr.fileno())
    opened = functools.partial(Ledger.open, busy_seconds=order["busy_seconds"])
    setattr(Ledger, "open", opened)  # noqa: B010  mypy knows that it is a method
    _set_points(_Fuse(order["point"], order["passage"]))
    _count_runs(folder)
    process.serve(folder / "state", ready=(folder / "ready").write_text, address=order["address"])


def _forked(order: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _serve(order)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Fork and wait as the lines say, until there are no more."""
    for fit in FITS.values():
        getattr(fit, "warm_up", lambda: None)()
    print("imported", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = (
            _forked(order["start"]) if "start" in order else os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        )
        print(answer, flush=True)


if __name__ == "__main__":
    main()
