"""A dry run does everything but keep it: every act's refusals and entry are those of the act itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    AccountConflictError,
    Adjacency,
    Budget,
    CredentialExistsError,
    DatasetExistsError,
    DatasetInUseError,
    DatasetRetiredError,
    DebitRequest,
    Ledger,
    LedgerError,
    Registration,
    Role,
    UnknownCredentialError,
    UnknownDatasetError,
    verify,
)
from bursar_ledger._entries import Entry

Ask = Callable[..., DebitRequest]
Act = Callable[..., Entry]
WHO: dict[str, Any] = {"actor": "owner", "reason": "trying"}
NEW = Registration("cars", Adjacency.ADD_REMOVE_ONE, Budget(1, 1e-9), b"c")
JOINING = Registration("again", Adjacency.REPLACE_ONE, None, b"x", same_people_as="people")


def acts(ledger: Ledger) -> dict[str, Act]:
    """Every act that an administrator has, on a ledger with the dataset "people" and the credential "ann"."""
    return {
        "registration": lambda **k: ledger.register_dataset(NEW, **WHO, **k),
        "joining": lambda **k: ledger.register_dataset(JOINING, **WHO, **k),
        "snapshot": lambda **k: ledger.new_snapshot("people", b"new", {"columns": []}, **WHO, **k),
        "retirement": lambda **k: ledger.retire_dataset("people", **WHO, **k),
        "budget": lambda **k: ledger.set_budget("people", Budget(5, 1e-6), **WHO, **k),
        "allowance": lambda **k: ledger.set_allowance("people", "ann", Fraction(1, 3), **WHO, **k),
        "destruction": lambda **k: ledger.record_destruction("gone", "rows", **WHO, **k),
        "call_limit": lambda **k: ledger.set_call_limit("people", Fraction(1, 3), **WHO, **k),
        "checkpoint_key": lambda **k: ledger.set_checkpoint_key("name+01234567+AAAA", **WHO, **k),
        "credential_issued": lambda **k: ledger.issue_credential("bob", Role.ADMIN, b"b" * 32, **WHO, **k),
        "credential_revoked": lambda **k: ledger.revoke_credential("ann", **WHO, **k),
    }


REFUSED: dict[str, tuple[type[LedgerError], Callable[[Ledger], Act]]] = {
    "registration": (
        DatasetExistsError,
        lambda ledger: (
            lambda **k: ledger.register_dataset(Registration("people", Adjacency.REPLACE_ONE, None, b"y"), **WHO, **k)
        ),
    ),
    "snapshot": (
        UnknownDatasetError,
        lambda ledger: lambda **k: ledger.new_snapshot("nobody", b"new", {}, **WHO, **k),
    ),
    "retirement": (
        DatasetRetiredError,
        lambda ledger: (
            lambda **k: [ledger.retire_dataset("people", **WHO), ledger.retire_dataset("people", **WHO, **k)][0]
        ),
    ),
    "destruction": (
        DatasetInUseError,
        lambda ledger: lambda **k: ledger.record_destruction("people", "rows", **WHO, **k),
    ),
    "budget": (
        AccountConflictError,
        lambda ledger: lambda **k: ledger.set_budget("people", Budget(3, 1e-6, Fraction(1, 10)), **WHO, **k),
    ),
    "allowance": (
        UnknownDatasetError,
        lambda ledger: lambda **k: ledger.set_allowance("nobody", "ann", None, **WHO, **k),
    ),
    "call_limit": (
        UnknownDatasetError,
        lambda ledger: lambda **k: ledger.set_call_limit("nobody", None, **WHO, **k),
    ),
    "credential_issued": (
        CredentialExistsError,
        lambda ledger: lambda **k: ledger.issue_credential("ann", Role.ADMIN, b"b" * 32, **WHO, **k),
    ),
    "credential_revoked": (
        UnknownCredentialError,
        lambda ledger: lambda **k: ledger.revoke_credential("bob", **WHO, **k),
    ),
}


@pytest.fixture
def used(ledger: Ledger, ask: Ask) -> Ledger:
    """A ledger with two debits, a credential, and a dataset that is retired."""
    ledger.register_dataset(Registration("gone", Adjacency.REPLACE_ONE, Budget(1, 1e-9), b"g"), **WHO)
    ledger.retire_dataset("gone", **WHO)
    ledger.debit(ask("a"))
    ledger.debit(ask("b", principal="bob"))
    ledger.issue_credential("ann", Role.ANALYST, bytes(32), actor="owner", reason="")
    return ledger


def timeless(entry: Entry) -> dict[str, Any]:
    """The body of an entry but for the time."""
    fields: dict[str, Any] = json.loads(entry.body)
    return {key: value for key, value in fields.items() if key != "time"}


def test_every_act_is_here(used: Ledger) -> None:
    """Every function that takes `dry_run` is tested below."""
    import inspect

    methods = {
        name
        for name, method in inspect.getmembers(Ledger, inspect.isfunction)
        if "dry_run" in inspect.signature(method).parameters
    }
    called: set[str] = set()

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: called.add(name)

    for act in acts(Recorder()).values():  # type: ignore[arg-type]
        act(dry_run=True)
    assert called == methods


@pytest.mark.parametrize("name", acts(None))  # type: ignore[arg-type]
def test_a_dry_run_shows_the_entry_and_writes_nothing(used: Ledger, path: Path, contents: Any, name: str) -> None:
    """The entry it returns is the one that the act then writes; state and file are as before."""
    act = acts(used)[name]
    before = contents(path), used.datasets(), used.credentials(), used.limits("people", "ann"), used.newest()
    shown = act(dry_run=True)
    assert (contents(path), used.datasets(), used.credentials(), used.limits("people", "ann"), used.newest()) == before
    assert list(used.entries(shown.number)) == []
    assert verify(path).entries == shown.number - 1
    again = act(dry_run=True)
    assert timeless(again) == timeless(shown)
    written = act()
    assert timeless(written) == timeless(shown)
    assert (written.kind, written.actor, written.details["reason"]) == (
        {"joining": "registration"}.get(name, name),
        "owner",
        "trying",
    )
    assert list(used.entries(shown.number)) == [written]
    assert verify(path).ok


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_a_dry_run_is_refused_as_the_act_is(used: Ledger, name: str, dry_run: bool) -> None:
    """The error is the same."""
    expected, make = REFUSED[name]
    act = make(used)
    with pytest.raises(expected):
        act(dry_run=dry_run)


def test_a_dry_run_checks_what_the_file_would_refuse(used: Ledger, path: Path, contents: Any) -> None:
    """The file's own rules and the names of actors are part of it."""
    before = contents(path)
    with pytest.raises(ValueError, match="actor"):
        used.set_checkpoint_key("key", actor="", reason="r", dry_run=True)
    with pytest.raises(ValueError, match="share"):
        used.set_call_limit("people", Fraction(2), actor="o", reason="r", dry_run=True)
    assert contents(path) == before
