"""Entries of the chain: their kinds, one text for one value, so that its hash is the value's, and the link between two.

Stability: the canonical form, the layout of a body and the hash are read by auditors' tools and never change for
entries written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

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


NO_ENTRY = bytes(32)
"""Hash that the first entry names as its predecessor."""


@dataclass(frozen=True)
class Entry:
    """One link of the chain.

    Attributes:
        number: 1, 2, ... without gaps.
        kind: what happened, an `EntryKind`; text, since the entry of another version may have another.
        dataset: the dataset concerned, or "" if none is.
        actor: name of the person or program that did it.
        time: RFC 3339, informational; the order of entries is their number.
        body: canonical JSON of all of the above, `previous` and the details. This is what is hashed.
        previous: hash of the entry before it, 32 zero bytes for the first.
        hash: SHA-256 of `body`.
    """

    number: int
    kind: str
    dataset: str
    actor: str
    time: str
    body: bytes
    previous: bytes
    hash: bytes

    @property
    def details(self) -> dict[str, Any]:
        """Part of the body that depends on the kind, decoded."""
        details: dict[str, Any] = json.loads(self.body)["details"]
        return details


def canonical(value: object) -> bytes:
    """Return JSON with sorted keys, no white space, ASCII only, floats in their shortest exact form.

    Raises:
        ValueError: the value holds a NaN, an infinity, a key that is not a string or anything that JSON has no form
            for.
    """
    text = encoded(value)
    # json.dumps turns keys such as 1, True and None into strings; then two different values could share one text.
    if not _string_keys(value):
        raise ValueError("expected mappings whose keys are strings")
    return text


def encoded(value: object) -> bytes:
    """Return the canonical form of a value whose keys are strings, as decoded JSON has. Raises ValueError."""
    try:
        return _ENCODER.encode(value).encode("ascii")
    except (TypeError, RecursionError) as error:
        raise ValueError(f"expected values that JSON can hold: {error}") from error


# Without a list of what it is inside of: what contains itself ends as a RecursionError instead.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


def chain(number: int, previous: bytes, head: Mapping[str, str], details: Mapping[str, object]) -> Entry:
    """Return the entry after the one whose hash is `previous`; `head` has kind, dataset, actor and time.

    Keys must be strings, all the way down: what comes from outside was checked when its value was made.
    """
    body = encoded({**head, "number": number, "previous": previous.hex(), "details": details})
    return Entry(number=number, body=body, previous=previous, hash=body_hash(body), **head)


def read_entry(number: int, body: str, stored_hash: bytes) -> Entry:
    """Return an entry as a row of the file holds it, unverified."""
    fields = json.loads(body)
    head = {key: fields[key] for key in ("kind", "dataset", "actor", "time")}
    return Entry(
        number=number, body=body.encode(), previous=bytes.fromhex(fields["previous"]), hash=stored_hash, **head
    )


def body_hash(body: bytes) -> bytes:
    """Return the SHA-256 of an entry's body."""
    return hashlib.sha256(body).digest()


def _string_keys(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _string_keys(item) for key, item in value.items())
    return all(map(_string_keys, value)) if isinstance(value, (list, tuple)) else True
