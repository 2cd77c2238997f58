"""What the ledger says now, without asking again for what cannot have changed.

Everything that the ledger tells is a function of its entries, and the hash of the newest entry stands for all of them.
So an answer is kept together with that hash, and given again only to who has just seen the same hash in the file; an
entry of any kind, of this process or of an administrator's, ends everything that was kept. Nothing here has a clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from bursar_ledger import Ledger

T = TypeVar("T")

_MOST = 4096
"""Answers that are kept at most."""


class Current:
    """Answers of a ledger, each for as long as no entry comes after it.

    Args:
        ledger: open.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._newest: tuple[int, bytes] | None = None
        self._kept: dict[Hashable, Any] = {}

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        """What the ledger answers now.

        Args:
            key: of the question, in a form that no other question has.
            ask: asks it. The answer must be a function of the ledger's entries alone, and nobody who gets it may change
                it.
        """
        newest = self._ledger.newest()
        with self._lock:
            if newest != self._newest:
                self._newest, self._kept = newest, {}
            elif key in self._kept:
                found: T = self._kept[key]
                return found
        answer = ask()
        # It may have been read in several steps, with an entry between them: then it is this call's only.
        if self._ledger.newest() == newest:
            with self._lock:
                if self._newest == newest and len(self._kept) < _MOST:
                    self._kept[key] = answer
        return answer
