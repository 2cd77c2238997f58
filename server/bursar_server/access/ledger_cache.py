"""Cache of ledger reads, invalidated when the head hash changes.

Every answer of the ledger is a function of its entries, and the hash of the newest entry identifies them all. So an
answer is cached with that hash and returned only while the file has the same hash. Any new entry, of this process or of
an administrator's, invalidates the cache. There is no expiry by time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from bursar_ledger import Ledger

T = TypeVar("T")

_MOST = 4096
"""Maximum number of cached answers. Chosen, not tuned: some MB, and more than a server has live tokens."""


class Current:
    """Answers of a ledger, each valid until the next entry."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._newest: tuple[int, bytes] | None = None
        self._kept: dict[Hashable, Any] = {}

    def get(self, key: Hashable, ask: Callable[[], T]) -> T:
        """Return the ledger's answer to a question as of now.

        Args:
            key: unique name of the question.
            ask: function that asks the ledger. The answer must be a function of the ledger's entries alone, and callers
                must not change it.
        """
        newest = self._ledger.newest()
        with self._lock:
            if newest != self._newest:
                self._newest, self._kept = newest, {}
            elif key in self._kept:
                found: T = self._kept[key]
                return found
        answer = ask()
        # An entry may have been written while the answer was read: then it is not cached.
        if self._ledger.newest() == newest:
            with self._lock:
                # None is not cached: strangers invent tokens, which must not displace known ones.
                if answer is not None and self._newest == newest and len(self._kept) < _MOST:
                    self._kept[key] = answer
        return answer
