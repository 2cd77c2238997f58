"""A fixed history with every kind of entry, whose chain is the same bytes whenever and wherever it is played."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, tzinfo
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import pytest

from bursar_ledger import (
    EVERYONE,
    Adjacency,
    ApproximateEvent,
    Budget,
    ConcentratedEvent,
    DebitRequest,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    PureEvent,
    Registration,
    Role,
    SelectionEvent,
)

HEAD = "ec18ba210a0630fb389c28fceccdfa1be0d518eb1603eea870e3cd0e2d5fb253"
"""Hash of the last entry. It changes with the format of entries only, which then needs a new number of the format."""
KINDS = [
    "genesis",
    "credential_issued",
    "checkpoint_key",
    "registration",
    "registration",
    "registration",
    "allowance",
    "allowance",
    "call_limit",
    "debit",
    "release",
    "debit",
    "debit",
    "release",
    "snapshot",
    "budget",
    "debit",
    "call_limit",
    "debit",
    "call_limit",
    "release",
    "retirement",
    "destruction",
    "destruction",
    "credential_revoked",
]


class _Clock(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """The same second always."""
        return cls(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def play(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a ledger at `path` with the history, and closes it."""
    with monkeypatch.context() as patch:
        patch.setattr("bursar_ledger._store.datetime", _Clock)
        patch.setattr("bursar_ledger._ledger.secrets.token_hex", lambda size: "ab" * size)
        with Ledger.create(path, actor="owner", reason="history") as ledger:
            _set_up(ledger)
            _spend(ledger)
            _end(ledger)


def _set_up(ledger: Ledger) -> None:
    why: dict[str, Any] = {"actor": "owner", "reason": "why: “é”"}
    token = hashlib.sha256(b"token").digest()
    ledger.issue_credential("ann", Role.ANALYST, token, expires="2027-01-01T00:00:00Z", datasets=("people",), **why)
    ledger.set_checkpoint_key("ledger+00000000+AAAA", **why)
    total = Budget(3, 1e-6, Fraction(1, 10))
    people = Registration("people", Adjacency.REPLACE_ONE, total, b"t" * 32, {"columns": ["age"]})
    again = Registration("again", Adjacency.REPLACE_ONE, None, b"u" * 32, {"columns": []}, same_people_as="people")
    cars = Registration("cars", Adjacency.ADD_REMOVE_ONE, Budget(1, 1e-9), b"v" * 32, {"columns": ["speed"]})
    for registration in (people, again, cars):
        ledger.register_dataset(registration, **why)
    ledger.set_allowance("people", "ann", Fraction(2, 3), **why)
    ledger.set_allowance("again", EVERYONE, Fraction(1, 2), **why)
    ledger.set_call_limit("people", Fraction(1, 3), **why)


def request(number: int, dataset: str, analyst: str, *events: Event) -> DebitRequest:
    """The request of a number, on a dataset, with these events."""
    digest = hashlib.sha256(str(number).encode()).digest()
    return DebitRequest(dataset, analyst, f"r{number}", digest, "FitDPEM", events, {"n_components": number})


def _spend(ledger: Ledger) -> None:
    first = ledger.debit(request(1, "people", "ann", GaussianEvent(1, Fraction(9)), LaplaceEvent(1, Fraction(40))))
    ledger.store_release(first.entry, b"model")
    ledger.debit(request(2, "cars", "bob", GaussianEvent(2, Fraction(60), 3)))
    may_fail = ApproximateEvent(GaussianEvent(1, Fraction(30)), Fraction(1, 10**9))
    others = PureEvent(Fraction(1, 40)), SelectionEvent(1, Fraction(50)), ConcentratedEvent(Fraction(1, 900)), may_fail
    second = ledger.debit(request(3, "again", "bob", *others))
    ledger.lose_release(second.entry)


def _end(ledger: Ledger) -> None:
    ledger.new_snapshot("people", b"w" * 32, {"columns": ["age"]}, actor="owner", reason="new rows")
    ledger.set_budget("people", Budget(4, 1e-6, Fraction(1, 5)), actor="owner", reason="ethics board")
    ledger.debit(request(4, "people", "ann", GaussianEvent(1, Fraction(11))))
    ledger.write_off(request(5, "people", "ann", GaussianEvent(1, Fraction(8))), actor="owner", reason="restored")
    ledger.retire_dataset("cars", actor="owner", reason="end")
    ledger.record_destruction("cars", "rows", actor="owner", reason="end")
    ledger.record_destruction("cars", "key", actor="owner", reason="end")
    ledger.revoke_credential("ann", actor="owner", reason="left")
