"""The wall clock may say what it likes: order is the entries' numbers, and nothing depends on their times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import pytest

from bursar_ledger import (
    Budget,
    BudgetExhaustedError,
    DebitRequest,
    DebitStatus,
    Ledger,
    Registration,
    Role,
    _store,
    verify,
)

YEARS = (2026, 1970, 2600, 1, 9999, 2026, 1904)


class JumpingClock(datetime):
    """Years between two looks at it, back and forth."""

    looks = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> JumpingClock:
        """The next year of the list, the list again and again."""
        year = YEARS[cls.looks % len(YEARS)]
        cls.looks += 1
        return cls(year, 1 + cls.looks % 12, 3, tzinfo=tz)


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> type[JumpingClock]:
    """The ledger's clock jumps."""
    monkeypatch.setattr(JumpingClock, "looks", 0)
    monkeypatch.setattr(_store, "datetime", JumpingClock)
    return JumpingClock


def test_a_clock_that_jumps_changes_nothing_but_the_times(
    path: Path, registration: Registration, ask: Callable[..., DebitRequest], jumping: type[JumpingClock]
) -> None:
    """Debits, releases, repetitions, tokens and new totals, with years back and forth between any two of them."""
    with Ledger.create(path, actor="owner") as ledger:
        ledger.register_dataset(registration, actor="owner", reason="")
        ledger.issue_credential("ann", Role.ANALYST, b"h" * 32, actor="owner", reason="")
        paid = [ledger.debit(ask(f"r{i}", scale=9)) for i in range(8)]
        for debit in paid:
            ledger.store_release(debit.entry, b"model %d" % debit.entry)
        ledger.set_budget("people", Budget(4, 1e-6), actor="owner", reason="")
        later = ledger.debit(ask("later", scale=9))
        assert [debit.entry for debit in (*paid, later)] == sorted(debit.entry for debit in (*paid, later))
        lefts = [debit.remaining.cost_units for debit in paid]
        assert lefts == sorted(lefts, reverse=True)
        assert ledger.credential(b"h" * 32) is not None, "a token has expired"
        for debit, i in zip(paid, range(8), strict=True):
            again = ledger.debit(ask(f"r{i}", scale=9))
            assert (again.status, again.entry, again.head) == (DebitStatus.RELEASED, debit.entry, debit.head)
            assert again.release == b"model %d" % debit.entry
        # What is spent stays spent, though its debit seems to be centuries old, or not to have happened yet.
        with pytest.raises(BudgetExhaustedError):
            ledger.debit(ask("too-much", scale=1))
        head, spent = ledger.head(), ledger.dataset("people").spent_cost_units
        entries = list(ledger.entries())
    assert jumping.looks >= len(entries)
    times = [entry.time for entry in entries]
    assert times != sorted(times)
    assert {int(time[:4]) for time in times} == set(YEARS)
    found = verify(path)
    assert (found.problems, found.head) == ((), head)
    assert found.accounts[0].spent_cost_units == spent
    with Ledger.open(path) as ledger:
        assert (ledger.head(), ledger.dataset("people").spent_cost_units) == (head, spent)


def test_the_times_in_a_ledger_are_those_of_the_clock(ledger: Ledger, ask: Callable[..., DebitRequest]) -> None:
    """RFC 3339 in UTC, to the second: information for people."""
    before = datetime.now(UTC).replace(microsecond=0)
    entry = ledger.debit_entry(ledger.debit(ask("r")).entry)
    assert before <= datetime.fromisoformat(entry.time) <= datetime.now(UTC)
