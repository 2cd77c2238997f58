"""A file of an older version gets this version's schema; its chain says so."""

from __future__ import annotations

from ._acts import restate
from ._schema import MIGRATIONS, applied, known
from ._store import Store

_ACTOR = "bursar"


def upgrade(store: Store) -> None:
    """Applies the migrations that a file has not had, records them and an entry, all in one transaction."""
    if applied(store.db) != known():
        store.decide(lambda: _apply(store))


def _apply(store: Store) -> None:
    had = applied(store.db)
    if had == known():  # another process was faster
        return
    MIGRATIONS.apply(store.db)
    store.append("upgrade", actor=_ACTOR, details={"from": had[-1], "to": known()[-1], "reason": "a newer version"})
    if "0002_accounts" not in had:
        # Debits of the first version do not say what their analyst spent; restating every account does.
        for row in store.rows("SELECT DISTINCT dataset FROM entries WHERE kind = 'debit'"):
            restate(store, row["dataset"], actor=_ACTOR, reason="what each analyst spent so far")
