"""Check of names that differ in case only, which auditors would take for one: the second one is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from ._store import Store
from ._types import EVERYONE
from .errors import NameConflictError

# One look-up in an index for each name, however many entries there are.
_CREDENTIALS = "SELECT credential FROM entries WHERE credential > ? ORDER BY credential LIMIT 1"
_DEBITED = "SELECT actor FROM entries WHERE kind = 'debit' AND account = ? AND actor > ? ORDER BY actor LIMIT 1"
_ALLOWED = (
    "SELECT analyst FROM entries WHERE kind = 'allowance' AND account = ? AND analyst > ? ORDER BY analyst LIMIT 1"
)
_HAS_DEBITED = "SELECT 1 FROM entries WHERE kind = 'debit' AND account = ? AND actor = ? LIMIT 1"


def check_credential(store: Store, name: str) -> None:
    """Check a name that is to hold a credential. Raises NameConflictError."""
    _check(name, _distinct(store, _CREDENTIALS))


def check_allowance(store: Store, account: str, analyst: str) -> None:
    """Check a name that is to have an allowance of an account. Raises NameConflictError."""
    _check(analyst, chain(_distinct(store, _CREDENTIALS), _on_account(store, account)))


def check_debit(store: Store, account: str, principal: str) -> None:
    """Check the principal of a first debit of an account: an identity provider may spell one name in several ways.

    Raises NameConflictError if there are debits or an allowance in another spelling.
    """
    if store.one(_HAS_DEBITED, account, principal) is None:
        _check(principal, _on_account(store, account))


def _on_account(store: Store, account: str) -> Iterator[str]:
    return chain(_distinct(store, _DEBITED, account), _distinct(store, _ALLOWED, account))


def _distinct(store: Store, sql: str, *given: str) -> Iterator[str]:
    name = ""
    while (row := store.one(sql, *given, name)) is not None:
        (name,) = row
        yield name


def _check(name: str, known: Iterable[str]) -> None:
    folded = name.casefold()
    for other in known:
        if other not in (name, EVERYONE) and other.casefold() == folded:
            raise NameConflictError(f"{name!r} differs from {other!r} in case only; use one spelling for both")
