"""Verification of a ledger in a thread of its own, which keeps its findings until the next one."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from markupsafe import Markup

from .._verify import nothing_verified
from ..errors import LedgerError
from ._changes import Visit, changes
from ._checks import Findings, examine_file
from ._history import History
from ._memory import WORTH, Memory, checked_in, memory_of, recall, remember
from ._open import UnreadableError, noted_refusals, opened, rows
from ._report import body, changed, opening, verification
from ._tables import fill, refresh, scratch
from ._verdict import verdict

if TYPE_CHECKING:
    from ..checkpoints import Place, VerifierKey
    from ..refusals import Refusal

_REST = 10
"""An unrequested look is made once this many times the duration of the last one have passed since it."""


_SHORT = 20_000
"""Entries that are verified soon enough to wait for."""


@dataclass(frozen=True)
class Look:
    """Findings of one look at a ledger.

    Attributes:
        found: findings of the verification; None if it has not ended, or if nothing could be read.
        entries: number of the newest entry that the figures count.
        refusals: as the server noted them; None if it left no note.
        parts: the page about it: opening, verification, and the rest; HTML.
        remembered: True if it is the last visit's.
    """

    found: Findings | None
    entries: int
    told: History
    refusals: tuple[Refusal, ...] | None
    parts: tuple[Markup, Markup, Markup]
    made: datetime
    seconds: float = 0.0
    error: str | None = None
    remembered: bool = False


class Watch:
    """Verifier of a ledger, on request, one look at a time.

    The file is opened for reading only, and only while it is looked at; tables are made in `folder`. With `afresh`,
    every entry is verified, whatever an earlier visit verified.
    """

    def __init__(
        self,
        path: Path,
        key: VerifierKey | None,
        places: Sequence[Place],
        *,
        ask: bool,
        visit: Visit | None,
        folder: Path,
        afresh: bool = False,
    ) -> None:
        self.path = path
        self.tables = folder / "ledger.db"
        self._examined = (key, tuple(places), ask, visit)
        self._afresh = afresh
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = time.monotonic()
        self.look: Look | None = None
        with scratch(self.tables):
            pass  # so that there is a file to open

    @property
    def busy(self) -> bool:
        """True while a look is under way."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Look again, unless a look is under way."""
        with self._lock:
            if not self.busy:
                self._thread = threading.Thread(target=self._run, name="bursar-audit look", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until no look is under way."""
        if (thread := self._thread) is not None:
            thread.join()

    def newer(self) -> int:
        """Return how many entries came after the last look; start another one if the last ended long enough ago."""
        look = self.look
        if look is None or look.error is not None:
            return 0
        try:
            count = self._newest() - look.entries
        except UnreadableError:
            return 0  # the next look says what is wrong
        if count and time.monotonic() - self._ended > _REST * look.seconds:
            self.start()
        return max(count, 0)

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            for look in self._looks():
                self.look = dataclasses.replace(look, seconds=time.monotonic() - begun)
        except (UnreadableError, sqlite3.Error, LedgerError, OSError) as error:
            text = error.message if isinstance(error, UnreadableError) else str(error)
            self.look = Look(
                None,
                0,
                History(),
                None,
                (Markup(), Markup(), Markup()),
                datetime.now(UTC),
                time.monotonic() - begun,
                text,
            )
        finally:
            self._ended = time.monotonic()

    def _looks(self) -> Iterator[Look]:
        memory = None if self._afresh else recall(self.path, self.tables)
        if self.look is None and memory is not None:
            yield self._remembered(memory)
        elif self.look is None and self._newest() > _SHORT:
            # Verification takes minutes then, and until it ends there would be nothing to see.
            yield self._made(None, self._newest())
        key, places, ask, visit = self._examined
        if memory is None:
            known, heard = nothing_verified(), None
        else:
            known, heard = checked_in(memory)
            visit = visit or Visit(known.replay.number, known.replay.head)
        found = examine_file(self.path, key, places, ask=ask, visit=visit, known=known, heard=heard)
        # Without new entries, what they say and their tables are those of the last visit.
        told = memory.told if memory is not None and found.verification.known == found.verification.entries else None
        look = self._made(found, found.verification.entries, None if found.problems else told)
        yield look
        self._keep(found, look)

    def _remembered(self, memory: Memory) -> Look:
        refusals = noted_refusals(self.path)
        shown = opening(self.path.name, None, memory.told, memory.made), Markup(), Markup(memory.body)  # noqa: S704
        return Look(None, memory.entries, memory.told, refusals, shown, memory.made, remembered=True)

    def _keep(self, found: Findings, look: Look) -> None:
        verified = found.verification.verified
        if verified is None or found.problems or found.verification.entries < WORTH:
            return
        opinion = found.opinion if found.opinion.version is not None else None
        try:
            remember(self.path, self.tables, memory_of(verified, opinion, look.told, look.made, str(look.parts[2])))
        except OSError as error:
            click.echo(f"This visit cannot be remembered, and the next one verifies all again: {error}", err=True)

    def _newest(self) -> int:
        with opened(self.path) as db:
            newest = db.execute("SELECT max(number) FROM entries").fetchone()[0]
        return newest if isinstance(newest, int) else 0

    def _made(self, found: Findings | None, entries: int, told: History | None = None) -> Look:
        """Make the page and, unless what the entries say is known, the tables."""
        now, refusals = datetime.now(UTC), noted_refusals(self.path)
        with opened(self.path) as db, scratch(self.tables) as tables:
            if found is None or told is None:
                told = fill(tables, rows(db, last=entries), found, refusals or (), now)
            else:
                refresh(tables, found, refusals or (), told, now)
        checked = Markup()
        if found is not None:
            new = None if found.since is None else changes(self.path, found.since, verdict(found).certain)
            checked = verification(found, now) + changed(new, found, told)
        parts = (opening(self.path.name, found, told, now), checked, body(told, refusals))
        return Look(found, entries, told, refusals, parts, now)


@contextlib.contextmanager
def watching(
    path: Path,
    key: VerifierKey | None,
    places: Sequence[Place],
    *,
    ask: bool = True,
    visit: Visit | None = None,
    afresh: bool = False,
) -> Iterator[Watch]:
    """Make a watch over a ledger, whose first look is under way; its tables vanish with the block."""
    # A look that is under way writes there until the process ends.
    with tempfile.TemporaryDirectory(prefix="bursar-audit-", ignore_cleanup_errors=True) as folder:
        watch = Watch(path, key, places, ask=ask, visit=visit, folder=Path(folder), afresh=afresh)
        watch.start()
        yield watch
