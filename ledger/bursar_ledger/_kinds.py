"""Kinds of ledger entries: the one list, and tables by kind that have to be complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TypeVar

_T = TypeVar("_T")


class EntryKind(StrEnum):
    """Kind of an entry. Each module that treats kinds differently has a table of `by_kind`."""

    GENESIS = "genesis"
    REGISTRATION = "registration"
    SNAPSHOT = "snapshot"
    RETIREMENT = "retirement"
    DESTRUCTION = "destruction"
    BUDGET = "budget"
    ALLOWANCE = "allowance"
    CALL_LIMIT = "call_limit"
    DEBIT = "debit"
    RELEASE = "release"
    CREDENTIAL_ISSUED = "credential_issued"
    CREDENTIAL_REVOKED = "credential_revoked"
    CHECKPOINT_KEY = "checkpoint_key"
    UPGRADE = "upgrade"


REQUESTS = frozenset({EntryKind.DEBIT, EntryKind.RELEASE})
"""Kinds of entries that analysts' requests make; all others are admin events."""

ACCOUNT_STATES = frozenset({EntryKind.REGISTRATION, EntryKind.BUDGET, EntryKind.DEBIT})
"""Kinds of entries that may hold caps and sums of an account."""


def by_kind(handlers: Mapping[EntryKind, _T], *, without: Collection[EntryKind] = ()) -> dict[str, _T]:
    """Return a table with a handler for each kind, which is looked up by the text that an entry holds.

    Kinds that are left out on purpose are `without`.

    Raises:
        ValueError: a kind is in neither, so it was forgotten, or in both.
    """
    wrong = [kind for kind in EntryKind if (kind in handlers) == (kind in without)]
    if wrong:
        raise ValueError(f"expected each kind of entry in handlers or in without, not so for {', '.join(wrong)}")
    return {kind.value: handler for kind, handler in handlers.items()}
