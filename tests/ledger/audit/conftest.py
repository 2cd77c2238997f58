"""A ledger with something of everything, and `bursar-audit` run on it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bursar_ledger import (
    Adjacency,
    ApproximateEvent,
    Budget,
    ConcentratedEvent,
    DebitRequest,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    PureEvent,
    Registration,
    Role,
    SelectionEvent,
)
from bursar_ledger.audit.cli import main

Run = Callable[..., Result]
Ask = Callable[..., DebitRequest]

MIXED = (
    LaplaceEvent(3, Fraction(40), 2, groups=2),
    PureEvent(Fraction(1, 50)),
    SelectionEvent(3, Fraction(200), 2),
    ConcentratedEvent(Fraction(1, 5000)),
    ApproximateEvent(GaussianEvent(1, Fraction(30)), Fraction(1, 10**9), 2),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder of the test's own, where visits are remembered."""
    folder = tmp_path / "home"
    monkeypatch.setattr(click, "get_app_dir", lambda name: str(folder / name))
    return folder


@pytest.fixture
def study(ledger: Ledger, ask: Ask, path: Path) -> Path:
    """Two accounts, two analysts, every kind of event, a raised total; the file of an open ledger.

    Entries: 1 genesis, 2 people, 3 homes, 4 people-2 (joins people), 5 allowance, 6 credential, 7 debit a, 8 its
    release, 9 debit b, 10 budget, 11 debit c, 12 its release, 13 call limit, 14 retirement of people-2.
    """
    owner: Any = {"actor": "owner", "reason": "test"}
    homes = Registration("homes", Adjacency.ADD_REMOVE_ONE, Budget(1, 1e-6), b"h" * 32, {})
    joined = Registration("people-2", Adjacency.REPLACE_ONE, None, b"2" * 32, {}, same_people_as="people")
    ledger.register_dataset(homes, **owner)
    ledger.register_dataset(joined, **owner)
    ledger.set_allowance("people", "bob", Fraction(1, 2), **owner)
    ledger.issue_credential("ann", Role.ANALYST, bytes(32), **owner)
    ledger.store_release(ledger.debit(ask("a", scale=8)).entry, b"model")
    ledger.debit(ask("b", principal="bob", dataset="people-2", method="FitMRF", events=MIXED))
    ledger.set_budget("people", Budget(4, 1e-6, Fraction(1, 10)), actor="owner", reason="second year")
    ledger.store_release(ledger.debit(ask("c", scale=8)).entry, b"another model")
    ledger.set_call_limit("people", Fraction(1, 3), **owner)
    ledger.retire_dataset("people-2", **owner)
    return path


@pytest.fixture
def run() -> Run:
    """Runs a command of bursar-audit; nothing but a status may come out of it."""

    def invoke(*arguments: Any) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke
