"""One purse for one group of people, whatever their rows are called."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    AccountConflictError,
    Adjacency,
    Budget,
    BudgetExhaustedError,
    DatasetExistsError,
    DatasetInUseError,
    DatasetRetiredError,
    DebitRequest,
    DebitStatus,
    Ledger,
    Registration,
    UnknownDatasetError,
    cost_units,
    verify,
)

Ask = Callable[..., DebitRequest]
TOTAL = Budget(3, 1e-6, Fraction(1, 10))


def register(ledger: Ledger, dataset: str, tag: bytes, budget: Budget | None = None, **changes: Any) -> None:
    """Registers a dataset."""
    fields: dict[str, Any] = {"adjacency": Adjacency.REPLACE_ONE, "manifest": {"columns": [dataset]}, **changes}
    ledger.register_dataset(Registration(dataset, budget=budget, content_tag=tag, **fields), actor="o", reason="r")


@pytest.mark.parametrize("budget", [None, TOTAL, Budget(3.0, 1e-6, Fraction(1, 10))])
def test_a_name_that_joins_inherits_what_was_spent(ledger: Ledger, ask: Ask, path: Path, budget: Budget | None) -> None:
    """Another name of the same people shares the account, its order and its sum, with or without saying its total."""
    first = ledger.debit(ask("a"))
    register(ledger, "again", b"a" * 32, budget, same_people_as="people")
    again, people = ledger.dataset("again"), ledger.dataset("people")
    assert (again.account, people.account) == ("people", "people")
    assert again.spent_cost_units == first.price.cost_units
    assert (again.order, again.cap_cost_units, again.budget) == (people.order, people.cap_cost_units, TOTAL)
    assert (again.manifest, people.manifest) == ({"columns": ["again"]}, {"columns": ["age"]})
    second = ledger.debit(ask("b", dataset="again"))
    assert second.remaining.cost_units == first.remaining.cost_units - second.price.cost_units
    assert ledger.dataset("people").spent_cost_units == 2 * first.price.cost_units
    assert [state.name for state in ledger.datasets()] == ["people", "again"]
    (totals,) = verify(path).accounts
    assert (totals.datasets, totals.debits) == (("people", "again"), 2)
    assert verify(path).ok


def test_an_exhausted_account_is_exhausted_under_every_name(ledger: Ledger, ask: Ask) -> None:
    """A new name opens nothing that an old one closed."""
    for i in range(100):
        try:
            ledger.debit(ask(str(i)))
        except BudgetExhaustedError:
            break
    register(ledger, "again", b"a" * 32, same_people_as="people")
    register(ledger, "new rows", b"n", same_people_as="again")
    for name in ("again", "new rows"):
        with pytest.raises(BudgetExhaustedError):
            ledger.debit(ask("x", dataset=name))


def test_rows_of_the_same_people_join_by_name(ledger: Ledger, ask: Ask) -> None:
    """`same_people_as` joins unknown rows to an account; through a name that itself joined, it is the same account."""
    ledger.debit(ask("a"))
    register(ledger, "survey", b"s", same_people_as="people")
    register(ledger, "second survey", b"s2", same_people_as="survey")
    register(ledger, "survey again", b"s", same_people_as="second survey")
    spent = ledger.dataset("people").spent_cost_units
    assert {state.account for state in ledger.datasets()} == {"people"}
    assert {state.spent_cost_units for state in ledger.datasets()} == {spent}


@pytest.mark.parametrize("tag", [b"t" * 32, b"c", b"unknown"])
def test_tags_decide_nothing(ledger: Ledger, path: Path, tag: bytes) -> None:
    """The same call has the same outcome for a tag of its own account, of another, and a new one."""
    register(ledger, "cars", b"c", Budget(1, 1e-9))
    register(ledger, "founds", tag, TOTAL)
    register(ledger, "joins", tag, same_people_as="cars")
    ledger.new_snapshot("people", tag, {}, actor="o", reason="r")
    found = {state.name: state.account for state in ledger.datasets()}
    assert found == {"people": "people", "cars": "cars", "founds": "founds", "joins": "cars"}
    with pytest.raises(ValueError, match="budget is missing"):
        register(ledger, "neither", tag)
    assert verify(path).ok


def test_a_snapshot_replaces_rows_and_nothing_else(ledger: Ledger, ask: Ask, path: Path) -> None:
    """New rows under the same name: tag and manifest are the new ones, what was spent stays spent."""
    ledger.debit(ask("a"))
    before = ledger.dataset("people")
    entry = ledger.new_snapshot("people", b"new", {"columns": ["age", "sex"]}, actor="o", reason="monthly")
    after = ledger.dataset("people")
    assert after == replace(before, content_tag=b"new", manifest={"columns": ["age", "sex"]})
    assert (entry.kind, entry.details["account"], entry.details["reason"]) == ("snapshot", "people", "monthly")
    ledger.new_snapshot("people", b"t" * 32, {}, actor="o", reason="back again")
    assert ledger.dataset("people").content_tag == b"t" * 32
    assert verify(path).ok


@pytest.mark.parametrize("tag", [b"t" * 32, b"unknown"])
@pytest.mark.parametrize("budget", [Budget(30, 1e-6), Budget(3, 1e-5), Budget(3, 1e-6), Budget(1, 1e-6)])
def test_whoever_joins_brings_no_total_of_his_own(
    ledger: Ledger, path: Path, contents: Any, budget: Budget, tag: bytes
) -> None:
    """Another total with a registration is refused, larger or smaller; the account's can be changed by itself."""
    before = contents(path)
    with pytest.raises(AccountConflictError, match=r"account 'people' with a total of \(3, 1e-06\)"):
        register(ledger, "again", tag, budget, same_people_as="people")
    assert contents(path) == before
    ledger.set_budget("people", budget, actor="o", reason="r")
    register(ledger, "again", tag, budget, same_people_as="people")
    with pytest.raises(AccountConflictError):
        register(ledger, "old total", tag, TOTAL, same_people_as="people")


@pytest.mark.parametrize("tag", [b"t" * 32, b"unknown"])
def test_an_account_has_one_adjacency(ledger: Ledger, path: Path, contents: Any, tag: bytes) -> None:
    """A sum of different neighbourhoods means nothing: one person's change is the same under all names."""
    before = contents(path)
    with pytest.raises(AccountConflictError, match="adjacency must be replace_one"):
        register(ledger, "again", tag, same_people_as="people", adjacency=Adjacency.ADD_REMOVE_ONE)
    assert contents(path) == before


def test_other_refusals_of_a_registration_change_nothing(ledger: Ledger, path: Path, contents: Any) -> None:
    """A name that there is, people that there are not, and new people without a total."""
    before = contents(path)
    with pytest.raises(DatasetExistsError, match="'people'"):
        register(ledger, "people", b"t" * 32)
    with pytest.raises(UnknownDatasetError, match="'nobody'"):
        register(ledger, "again", b"new", same_people_as="nobody")
    with pytest.raises(ValueError, match="budget is missing"):
        register(ledger, "again", b"new")
    assert contents(path) == before


def test_a_mistaken_registration_is_withdrawn_until_something_is_debited(ledger: Ledger, ask: Ask, path: Path) -> None:
    """The account keeps its total for its other names, and verification knows what a withdrawal says."""
    register(ledger, "again", b"a" * 32, same_people_as="people")
    ledger.retire_dataset("again", actor="o", reason="wrong bounds", withdrawn=True)
    with pytest.raises(DatasetRetiredError):
        ledger.debit(ask("a", dataset="again"))
    ledger.debit(ask("a"))
    with pytest.raises(DatasetInUseError, match="something was debited"):
        ledger.retire_dataset("people", actor="o", reason="too late", withdrawn=True)
    assert verify(path).ok


def test_retirement_ends_a_name_and_not_its_account(ledger: Ledger, ask: Ask, path: Path) -> None:
    """No new debits and no new rows under the name; repetitions, releases, other names and the total stay."""
    done, open_ = ledger.debit(ask("a")), ledger.debit(ask("b"))
    ledger.store_release(done.entry, b"model")
    register(ledger, "again", b"a" * 32, same_people_as="people")
    ledger.retire_dataset("people", actor="o", reason="the study is over")
    assert (ledger.dataset("people").retired, ledger.dataset("again").retired) == (True, False)
    for act in (
        lambda: ledger.debit(ask("c")),
        lambda: ledger.retire_dataset("people", actor="o", reason="twice"),
        lambda: ledger.new_snapshot("people", b"new", {}, actor="o", reason="r"),
    ):
        with pytest.raises(DatasetRetiredError, match="'people' is retired"):
            act()
    assert ledger.debit(ask("a")).release == b"model"
    assert ledger.debit(ask("b")).status is DebitStatus.INTERRUPTED
    ledger.store_release(open_.entry, b"late")
    with pytest.raises(DatasetExistsError):
        register(ledger, "people", b"other", TOTAL)
    register(ledger, "third", b"x", same_people_as="people")
    for name in ("again", "third"):
        ledger.debit(ask(name, dataset=name, scale=20))
    ledger.set_budget("people", Budget(4, 1e-6), actor="o", reason="r")
    assert ledger.dataset("again").budget == Budget(4, 1e-6)
    assert verify(path).ok


def test_two_names_race_for_one_purse(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Threads on two names, and two open ledgers on the file: together they get what fits once."""
    register(ledger, "again", b"a" * 32, same_people_as="people")
    state = ledger.dataset("people")
    one = cost_units(ask("x", scale=9).events, state.order)
    with Ledger.open(path) as second, ThreadPoolExecutor(8) as pool:

        def run(i: int) -> int:
            try:
                (ledger, second)[i % 2].debit(ask(f"r{i}", scale=9, dataset=("people", "again")[i // 2 % 2]))
            except BudgetExhaustedError:
                return 0
            return 1

        admitted = sum(pool.map(run, range(60)))
    assert admitted == state.cap_cost_units // one < 60
    assert {s.spent_cost_units for s in ledger.datasets()} == {admitted * one}
    assert verify(path).ok
