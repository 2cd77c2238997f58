"""Upgrade of a ledger file to this version's schema, recorded in its chain."""

from __future__ import annotations

from ._kinds import EntryKind
from ._schema import applied, apply, known
from ._store import Store

_ACTOR = "bursar"


def upgrade(store: Store) -> None:
    """Apply the migrations that a file has not had, and append an entry about them, in one transaction."""
    if applied(store.db) != known():
        store.decide(lambda: _apply(store))


def _apply(store: Store) -> None:
    had = applied(store.db)
    if had == known():  # another process was faster
        return
    apply(store.db)
    store.append(
        EntryKind.UPGRADE, actor=_ACTOR, details={"from": had[-1], "to": known()[-1], "reason": "a newer version"}
    )
