"""Opening a long ledger that a signed checkpoint vouches for: what is found at once, and what is left for later."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    EVERYONE,
    Budget,
    DebitRequest,
    Ledger,
    LedgerCorruptError,
    LedgerUnavailableError,
    Witness,
    verify,
)
from bursar_ledger import _witnessed as witnessed

Ask = Callable[..., DebitRequest]
SIGNED, NEWEST = 13, 18
"""The newest entry that is signed here, and the newest of all."""


@pytest.fixture
def long(ledger: Ledger, ask: Ask, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed ledger that counts as long: limits, a new total, debits and releases on both sides of `SIGNED`."""
    monkeypatch.setattr(witnessed, "SHORT", 10)
    who: Any = {"actor": "owner", "reason": "test"}
    ledger.set_allowance("people", "ann", Fraction(1, 2), **who)  # 3
    ledger.set_allowance("people", EVERYONE, Fraction(1, 3), **who)
    ledger.debit(ask("a0", scale=40))  # 5
    ledger.debit(ask("b0", scale=41, principal="bob"))
    ledger.set_budget("people", Budget(4, 1e-6, Fraction(1, 10)), **who)  # 7
    ledger.set_call_limit("people", Fraction(1, 4), **who)
    ledger.debit(ask("a1", scale=42))  # 9
    ledger.store_release(9, b"model")
    ledger.debit(ask("b1", scale=43, principal="bob"))  # 11
    ledger.store_release(5, b"other model")
    ledger.debit(ask("a2", scale=44))  # 13
    ledger.store_release(11, b"third model")  # 14
    ledger.debit(ask("a3", scale=45))
    ledger.debit(ask("c0", scale=46, principal="cyd"))
    ledger.store_release(15, b"fourth model")  # 17
    ledger.debit(ask("b2", scale=47, principal="bob"))
    assert ledger.newest()[0] == NEWEST
    ledger.close()
    return path


def witness(path: Path, size: int = SIGNED) -> Witness:
    """Return the checkpoint of an entry, as the file has it now."""
    with closing(sqlite3.connect(path)) as db:
        (head,) = db.execute("SELECT hash FROM entries WHERE number = ?", [size]).fetchone()
    return Witness(size, head)


def opened(path: Path, believed: Witness, **options: Any) -> bool:
    """Open a ledger by a witness; whether every entry was verified."""
    with Ledger.open(path, witness=believed, reprice=True, **options) as ledger:
        return ledger.whole


@pytest.mark.parametrize("size", range(8, NEWEST + 1))
def test_a_ledger_that_was_signed_is_opened_from_any_checkpoint(long: Path, size: int) -> None:
    """Sums, limits, requests and releases behind it are counted on from the state at it."""
    assert not opened(long, witness(long, size))


def test_so_it_is_with_a_second_process(long: Path) -> None:
    """SQLite compares indexes there."""
    assert not opened(long, witness(long), processes=2)


@pytest.mark.parametrize("size", range(1, 8))
def test_acts_behind_the_checkpoint_need_every_entry(long: Path, size: int) -> None:
    """A new total prices all debits again, and limits and tokens are few: then nothing is put off."""
    assert opened(long, witness(long, size))


@pytest.mark.parametrize("short", [NEWEST, 4])
def test_a_short_ledger_is_verified_whole(long: Path, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one with too much behind the checkpoint."""
    monkeypatch.setattr(witnessed, "SHORT", short)
    assert opened(long, witness(long))
    monkeypatch.setattr(witnessed, "SHORT", 5)
    assert not opened(long, witness(long))


def test_so_is_one_that_does_not_reach_its_checkpoint(long: Path) -> None:
    """The comparison with the checkpoints says that it lacks entries."""
    assert opened(long, Witness(NEWEST + 1, bytes(32)))


def test_a_checkpoint_of_another_history_is_refused(long: Path, forge: Any) -> None:
    """The whole chain is made anew from entry 5 on, consistently: it is not what was signed."""
    believed = witness(long)
    forge(long, 5, lambda fields: fields.update(time="2001-01-01T00:00:00+00:00"))
    assert verify(long).ok
    with pytest.raises(LedgerCorruptError, match=f"entry {SIGNED}: it is not the entry that was signed"):
        opened(long, believed)


COVERED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "a bit of a body": ("UPDATE entries SET body = replace(body, '\"bob\"', '\"bab\"') WHERE number = ?", (11,)),
    "a sum": (
        "UPDATE entries SET body = replace(body, 'spent_cost_units\":', 'spent_cost_units\":1') WHERE number = ?",
        (9,),
    ),
    "a hash": ("UPDATE entries SET hash = zeroblob(32) WHERE number = ?", (9,)),
    "a row that is gone": ("DELETE FROM entries WHERE number = ?", (10,)),
    "a row that is elsewhere": ("UPDATE entries SET number = 0 WHERE number = ?", (1,)),
}


@pytest.mark.parametrize("name", COVERED)
def test_a_change_of_what_was_signed_is_found_at_once(long: Path, tamper: Any, name: str) -> None:
    """Bit rot, or somebody who writes into the file: every body is hashed before anything is debited."""
    believed = witness(long)
    tamper(long, COVERED[name])
    with pytest.raises(LedgerCorruptError):
        opened(long, believed)


@pytest.mark.parametrize(
    ("index", "other"),
    [
        ("newest_state_of_an_account", "newest_budget_of_an_account"),
        ("newest_debit_of_an_analyst", "newest_allowance"),
        ("one_debit_a_request", "one_retirement_a_name"),
    ],
)
def test_an_index_that_leads_elsewhere_is_found_at_once(long: Path, index: str, other: str) -> None:
    """Sums, analysts' sums and earlier requests are looked up in indexes: an old page of one would give budget back."""
    believed = witness(long)
    with closing(sqlite3.connect(long, isolation_level=None)) as db:
        pages = dict(db.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'index'").fetchall())
        db.execute("PRAGMA writable_schema = ON")
        for name, page in ((index, pages[other]), (other, pages[index])):
            db.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (page, name))
    with pytest.raises(LedgerCorruptError, match=f"file: .*{index}"):
        opened(long, believed)


def test_a_rule_that_is_gone_is_found_at_once(long: Path) -> None:
    """A decision without a trigger could add what does not follow."""
    believed = witness(long)
    with closing(sqlite3.connect(long, isolation_level=None)) as db:
        db.execute("DROP TRIGGER debits_stay_within_the_cap")
    with pytest.raises(LedgerCorruptError, match="debits_stay_within_the_cap is missing"):
        opened(long, believed)


def _all_sums(by: int) -> Callable[[dict[str, Any]], None]:
    def edit(fields: dict[str, Any]) -> None:
        for name in ("cost_units", "spent_cost_units", "analyst_spent_cost_units"):
            fields["details"][name] += by

    return edit


UNIQUE = "UNIQUE"
BEHIND: dict[str, tuple[int, Callable[[dict[str, Any]], None], str]] = {
    "a price": (18, _all_sums(-1), "but its events cost"),
    "a sum": (18, lambda f: f["details"].update(spent_cost_units=1), "spent_cost_units is 1, but the history gives"),
    "a sum of an analyst": (
        15,
        lambda f: f["details"].update(analyst_spent_cost_units=1),
        "analyst_spent_cost_units is 1",
    ),
    "an analyst without a past": (16, lambda f: f["details"].update(analyst_spent_cost_units=1), "the history gives"),
    "an order": (15, lambda f: f["details"].update(order="9/1"), "priced at another order"),
    "a cap": (15, lambda f: f["details"].update(cap_cost_units=2**60), "cap_cost_units is"),
    "an allowance": (16, lambda f: f["details"].update(allowance_cost_units=2**60), "allowance_cost_units is"),
    "a limit of a call": (15, lambda f: f["details"].update(call_cost_units=None), "call_cost_units is None"),
    "a request of before": (
        15,
        lambda f: f["details"].update(request_id="a1"),
        UNIQUE,
    ),
    "a dataset that there is not": (16, lambda f: f.update(dataset="nobody"), "not registered before"),
    "a digest": (17, lambda f: f["details"].update(sha256="00" * 32), "are not those whose digest was recorded"),
    "a release of another": (
        14,
        lambda f: f["details"].update(debit=9),
        UNIQUE,
    ),
    "a kind": (18, lambda f: f.update(kind="bonus"), "unknown to this version"),
}


@pytest.mark.parametrize("name", BEHIND)
def test_everything_behind_the_checkpoint_is_verified_in_full(long: Path, forge: Any, name: str) -> None:
    """A forger hashes the chain anew from there on: the findings are those of a whole verification."""
    believed = witness(long)
    number, edit, text = BEHIND[name]
    if text == UNIQUE:  # an index of the file does not let it in
        with pytest.raises(sqlite3.IntegrityError, match=UNIQUE):
            forge(long, number, edit)
        return
    forge(long, number, edit)
    with pytest.raises(LedgerCorruptError, match=text) as caught:
        opened(long, believed)
    assert set(caught.value.problems) <= set(verify(long).problems)


def test_bytes_that_were_released_behind_the_checkpoint_are_compared(long: Path, tamper: Any) -> None:
    """Changed, missing, or without an entry."""
    believed = witness(long)
    tamper(long, ("UPDATE releases SET content = ? WHERE debit = 15", (b"another",)))
    with pytest.raises(LedgerCorruptError, match="are not those whose digest"):
        opened(long, believed)
    tamper(long, ("DELETE FROM releases WHERE debit = 15", ()))
    with pytest.raises(LedgerCorruptError, match="are missing"):
        opened(long, believed)
    tamper(
        long,
        ("INSERT INTO releases VALUES (15, ?)", (b"fourth model",)),
        ("INSERT INTO releases VALUES (16, ?)", (b"nobody's",)),
    )
    with pytest.raises(LedgerCorruptError, match="no release entry names them"):
        opened(long, believed)


def _one_less(fields: dict[str, Any]) -> None:
    """Change the sums of a debit behind one whose price is a unit less: the account's, and ann's."""
    fields["details"]["spent_cost_units"] -= 1
    fields["details"]["analyst_spent_cost_units"] -= fields["actor"] == "ann"


def test_what_is_left_for_later_is_what_the_signer_vouches_for(long: Path, forge: Any, tamper: Any) -> None:
    """Released bytes before the checkpoint, and a price that was signed as it is: a whole verification finds both."""
    forge(long, 13, _all_sums(-1))
    for number in (15, 16, 18):
        forge(long, number, _one_less)
    tamper(long, ("UPDATE releases SET content = ? WHERE debit = 9", (b"another",)))
    assert not opened(long, witness(long))
    found = verify(long).problems
    assert any("the bytes released under debit 9" in problem for problem in found)
    assert any(problem.startswith("entry 13: the debit is") for problem in found)
    assert len(found) == 2


def test_the_sums_that_a_witness_opens_go_on(long: Path, ask: Ask) -> None:
    """The next debit adds to them; afterwards the whole verifies."""
    with Ledger.open(long, witness=witness(long)) as ledger:
        before = ledger.dataset("people").spent_cost_units
        debit = ledger.debit(ask("new", scale=50, principal="bob"))
        assert ledger.dataset("people").spent_cost_units == before + debit.price.cost_units
        assert ledger.debit(ask("a1", scale=42)).entry == 9
    assert verify(long).ok


def test_a_ledger_that_is_distrusted_decides_nothing(long: Path, ask: Ask, contents: Any) -> None:
    """Released bytes can still be read."""
    before = contents(long)
    with Ledger.open(long) as ledger:
        ledger.distrust("entry 9: the debit is 1 unit")
        for act in (
            lambda: ledger.debit(ask("new", scale=50)),
            lambda: ledger.store_release(18, b"late"),
            lambda: ledger.set_call_limit("people", None, actor="o", reason="r"),
            ledger.check_files,
        ):
            with pytest.raises(LedgerUnavailableError, match="does not verify: entry 9"):
                act()
        assert ledger.release(9) == b"model"
    assert contents(long) == before
