"""Verification of the whole ledger in the background of a server that is already serving.

At the start of a long ledger only the entries that no signed checkpoint covers are verified in full
(`bursar_ledger._witnessed`). The rest follows here, in a process of its own with a low priority. Until it is done the
server is degraded. After a finding nothing is debited any more, and the next start verifies everything before it
serves.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from bursar_ledger import Ledger, verify
from bursar_ledger.checkpoints import Place, PlaceError, VerifierKey, compare
from bursar_server import log
from bursar_server.state import State, write_private

_NICE = 10
"""Niceness of the process: below the server and its fits, which run with 0. Chosen, not tuned."""


class Verifier:
    """Background verification of a ledger that was not verified as a whole when it was opened.

    Every note of the places is compared with the ledger, which refuses all debits after a finding.
    """

    def __init__(
        self, state: State, ledger: Ledger, places: Sequence[Place], key: VerifierKey, *, events: log.Events
    ) -> None:
        self._events = events
        self._state = state
        self._ledger = ledger
        self._places = tuple(place for place in places if place.readable)
        self._key = key
        self._told: Callable[[], object] = bool
        self._process: BaseProcess | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        self.problem: str | None = None
        """Return what is left to verify or could not be verified, for health; None once all is verified."""

    def telling(self, told: Callable[[], object]) -> Self:
        """Call `told` after a finding, so that health changes at once; use the result while the server serves."""
        self._told = told
        return self

    def __enter__(self) -> Self:
        if not self._ledger.whole:
            self.problem = "being verified"
            context = get_context("spawn")
            answer, sent = context.Pipe(duplex=False)
            self._process = context.Process(
                target=_work, args=(self._state.ledger, self._places, self._key, sent), daemon=True
            )
            self._process.start()
            # Else this process would hold the pipe open itself, and never see that the other one has ended.
            sent.close()
            self._thread = threading.Thread(target=self._wait, args=(answer,), name="verification", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if self._process is not None and self._thread is not None:
            self._process.terminate()
            self._thread.join()
            self._process.join()

    def _wait(self, answer: Connection) -> None:
        begun = time.monotonic()
        try:
            with answer:
                entries, problems = answer.recv()
        except EOFError:
            if not self._ended:
                self.problem = "its verification was ended from outside; the next start begins it again"
                self._events.tell(log.LedgerNotVerified(reason="the process that verified it was ended"))
            return
        if problems:
            self._found(problems)
        else:
            self.problem = None
            self._events.tell(log.LedgerVerified(entries=entries, seconds=round(time.monotonic() - begun)))

    def _found(self, problems: tuple[str, ...]) -> None:
        self.problem = "it does not verify"
        self._ledger.distrust(problems[0])
        shown, more = "; ".join(problems[:_SHOWN]), len(problems[_SHOWN:])
        self._events.tell(log.LedgerDoesNotVerify(problems=shown, more=more))
        write_private(self._state.suspect, "\n".join(problems[:_SHOWN]).encode())
        self._told()


_SHOWN = 10
"""Maximum number of findings that are logged and stored."""


def _work(ledger: Path, places: Sequence[Place], key: VerifierKey, sent: Connection) -> None:
    """Verify the ledger; runs in a process of its own that ends with the server."""
    os.nice(_NICE)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    found = verify(ledger)
    sent.send((found.entries, (*found.problems, *_compared(ledger, places, key))))


def _compared(ledger: Path, places: Sequence[Place], key: VerifierKey) -> Iterator[str]:
    for place in places:
        with contextlib.suppress(PlaceError):  # an unmounted disk is no finding about the ledger
            yield from compare(ledger, place.read(), key, place=place.name).problems


def _end_with(parent: int) -> None:
    while os.getppid() == parent:  # a killed server cannot end its children itself
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


_LOOK_SECONDS = 1.0
"""Interval of that check, in seconds: short beside the minutes that a verification takes."""
