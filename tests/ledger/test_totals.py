"""A new total prices the past again: whatever is raised or lowered, nothing that was spent is forgotten."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import (
    COST_UNIT,
    AccountConflictError,
    Adjacency,
    ApproximateEvent,
    Budget,
    BudgetExhaustedError,
    ConcentratedEvent,
    DebitRequest,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    LedgerCorruptError,
    PureEvent,
    Registration,
    RestRequest,
    SelectionEvent,
    UnknownDatasetError,
    cost_units,
    verify,
)
from bursar_ledger import _administration as acts

Ask = Callable[..., DebitRequest]
EVENTS: list[tuple[Event, ...]] = [
    (GaussianEvent(1, Fraction(7)),),
    (PureEvent(Fraction(1, 5), count=2), SelectionEvent(1, Fraction(12), count=3)),
    (LaplaceEvent(1, Fraction(6), groups=2), ConcentratedEvent(Fraction(3, 1250))),
    (ApproximateEvent(GaussianEvent(2, Fraction(16)), Fraction(1, 10**9), count=3),),
]


TENTH = Fraction(1, 10)
"""Share of delta for releases that may fail."""


def by_hand(events: tuple[Event, ...], order: Fraction) -> float:
    """Sum of Renyi divergences in floating point.

    Gaussian events by a d2 / (2 s^2) and choices likewise, pure ones as two-point sums, Laplace as geometric sums.
    """
    import math

    def one(event: Event, a: float) -> float:
        if isinstance(event, ApproximateEvent):
            return event.count * one(event.event, a)
        if isinstance(event, GaussianEvent):
            return event.count * a * event.l2_squared / (2 * float(event.scale) ** 2)
        if isinstance(event, ConcentratedEvent):
            return event.count * a * float(event.rho)
        if isinstance(event, PureEvent):
            e = float(event.epsilon)
            p, q = math.exp(e) / (1 + math.exp(e)), 1 / (1 + math.exp(e))
            return event.count * math.log(p**a * q ** (1 - a) + q**a * p ** (1 - a)) / (a - 1)
        if isinstance(event, SelectionEvent):
            return event.count * a * event.sensitivity**2 / (2 * float(event.scale) ** 2)
        b, reach = float(event.scale), 400 * int(event.scale)
        mass = math.tanh(1 / (2 * b))
        total = math.fsum(
            mass * math.exp(-(a * abs(x) + (1 - a) * abs(x - event.l1)) / b) for x in range(-reach, reach)
        )
        return event.count * event.groups * math.log(total) / (a - 1)

    return math.fsum(one(event, float(order)) for event in events)


def set_total(ledger: Ledger, epsilon: float, delta: float = 1e-6, share: Fraction = TENTH) -> Any:
    """Sets a total; the entry's details."""
    return ledger.set_budget("people", Budget(epsilon, delta, share), actor="owner", reason="why").details


def spend(ledger: Ledger, ask: Ask) -> None:
    """A debit of every kind of event, by two analysts in turn."""
    for i, events in enumerate(EVENTS):
        ledger.debit(ask(f"e{i}", events=events, principal=("ann", "bob")[i % 2]))


@pytest.mark.parametrize("epsilon", [2.5, 5.0, 20.0])
def test_every_past_debit_is_priced_at_the_new_order(ledger: Ledger, ask: Ask, epsilon: float) -> None:
    """Sums and analysts' sums are those of the events at the new order, computed here by other formulas."""
    spend(ledger, ask)
    details = set_total(ledger, epsilon)
    new = Budget(epsilon, 1e-6, TENTH)
    state = ledger.dataset("people")
    assert (state.budget, state.order, state.cap_cost_units) == (new, new.order, new.cap_cost_units)
    expected = Counter[str]()
    for i, events in enumerate(EVENTS):
        expected[("ann", "bob")[i % 2]] += round(by_hand(events, new.order) * COST_UNIT)
    for name, (cost, _) in details["analysts"].items():
        assert cost == pytest.approx(expected[name], rel=1e-9)
    assert state.spent_cost_units == sum(cost for cost, _ in details["analysts"].values())
    assert state.spent_cost_units == sum(cost_units(events, new.order) for events in EVENTS)
    assert details["analysts"]["bob"][1] == state.spent_delta_units > 0 == details["analysts"]["ann"][1]
    assert details["previous"] == {"epsilon": 3.0, "delta": 1e-6}


def test_a_debit_after_a_new_total_adds_to_the_new_sum(ledger: Ledger, ask: Ask, path: Path) -> None:
    """The order is the new one; verification tells the whole story."""
    spend(ledger, ask)
    set_total(ledger, 6)
    before = ledger.dataset("people")
    debit = ledger.debit(ask("later"))
    assert debit.price.order == Budget(6, 1e-6, TENTH).order
    assert debit.price.cost_units == cost_units(ask("later").events, before.order)
    assert ledger.dataset("people").spent_cost_units == before.spent_cost_units + debit.price.cost_units
    found = verify(path)
    assert found.ok
    (totals,) = found.accounts
    assert totals.budgets == ((2, 3.0, 1e-6), (7, 6.0, 1e-6))
    assert (totals.epsilon, totals.order, totals.debits, totals.closed) == (6.0, before.order, 5, False)
    assert totals.spent_cost_units == ledger.dataset("people").spent_cost_units
    assert sum(cost for cost, _ in totals.analysts.values()) == totals.spent_cost_units


def test_lowering_below_what_was_spent_closes_and_raising_opens_again(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Closed: nothing is left, the smallest request is refused, stored answers are given; the file verifies."""
    first = ledger.debit(ask("a"))
    ledger.store_release(first.entry, b"model")
    set_total(ledger, 0.1)
    state = ledger.dataset("people")
    assert state.spent_cost_units > state.cap_cost_units
    assert (state.remaining.cost_units, state.remaining.rho, state.remaining.pure_epsilon) == (0, 0.0, 0.0)
    with pytest.raises(BudgetExhaustedError) as caught:
        ledger.debit(ask("b", scale=10**6))
    assert (caught.value.limit, caught.value.remaining) == ("dataset", state.remaining)
    rest = RestRequest("people", "ann", "rest", bytes(32), "F", lambda _: pytest.fail("planned for nothing"))
    with pytest.raises(BudgetExhaustedError):
        ledger.debit(rest)
    assert ledger.debit(ask("a")).release == b"model"
    assert verify(path).accounts[0].closed
    assert verify(path).ok
    ledger.close()
    with Ledger.open(path) as opened:
        set_total(opened, 3)
        assert opened.dataset("people").spent_cost_units == first.price.cost_units
        opened.debit(ask("b"))
    assert verify(path).ok


def test_an_account_that_failed_too_often_for_its_new_total_is_closed(ledger: Ledger, ask: Ask, path: Path) -> None:
    """A new cap may lie below the delta that was spent: then exact releases are refused, too, as exhausted."""
    ledger.debit(ask("a", events=(ApproximateEvent(GaussianEvent(1, Fraction(40)), Fraction(5, 10**8)),)))
    set_total(ledger, 3, share=Fraction(0))
    with pytest.raises(BudgetExhaustedError):
        ledger.debit(ask("b", scale=100))
    assert ledger.dataset("people").remaining.cost_units == 0
    assert verify(path).accounts[0].closed
    set_total(ledger, 3)
    ledger.debit(ask("b", scale=100))
    assert verify(path).ok


@pytest.mark.parametrize("epsilon", [1e-5, 2.0**20])
def test_extreme_totals_keep_the_sum(ledger: Ledger, ask: Ask, path: Path, epsilon: float) -> None:
    """Costs at the orders of very small and very large totals are counted as ever."""
    spend(ledger, ask)
    set_total(ledger, epsilon)
    assert ledger.dataset("people").spent_cost_units == sum(
        cost_units(events, Budget(epsilon, 1e-6, TENTH).order) for events in EVENTS
    )
    set_total(ledger, 3)
    assert ledger.dataset("people").spent_cost_units == sum(
        cost_units(events, Budget(3, 1e-6, TENTH).order) for events in EVENTS
    )
    assert verify(path).ok


@pytest.mark.parametrize("budget", [Budget(3, 1e-6, TENTH), Budget(3.0, 1e-6, TENTH)])
def test_the_total_that_there_is_is_refused(ledger: Ledger, path: Path, contents: Any, budget: Budget) -> None:
    """An entry that changes nothing would look like a change to whoever reads the history."""
    before = contents(path)
    with pytest.raises(AccountConflictError, match="already"):
        ledger.set_budget("people", budget, actor="o", reason="r")
    with pytest.raises(UnknownDatasetError):
        ledger.set_budget("nobody", budget, actor="o", reason="r")
    assert contents(path) == before


def test_a_total_replaces_the_one_that_was_seen(ledger: Ledger, path: Path, contents: Any) -> None:
    """The second of two administrators who saw one total does not undo what the first set, in a dry run either."""
    seen = ledger.dataset("people").budget
    set_total(ledger, seen.epsilon, 1e-9)
    before = contents(path)
    for dry_run in (False, True):
        with pytest.raises(AccountConflictError, match="was changed meanwhile"):
            ledger.set_budget("people", Budget(5, 1e-6, TENTH), actor="o", reason="", replaces=seen, dry_run=dry_run)
    assert contents(path) == before
    now = ledger.dataset("people").budget
    ledger.set_budget("people", Budget(5, 1e-9, TENTH), actor="o", reason="", replaces=now)
    assert ledger.dataset("people").budget == Budget(5, 1e-9, TENTH)


@pytest.mark.parametrize("budget", [Budget(3, 2e-6, TENTH), Budget(3, 1e-6, Fraction(1, 5)), Budget(2, 1e-6, TENTH)])
def test_every_part_of_a_total_can_change(ledger: Ledger, ask: Ask, path: Path, budget: Budget) -> None:
    """Delta and its share are parts of the promise; each change is listed among the promises."""
    spend(ledger, ask)
    ledger.set_budget("people", budget, actor="o", reason="r")
    assert ledger.dataset("people").budget == budget
    assert len(verify(path).accounts[0].budgets) == 2
    assert verify(path).ok


def test_a_new_total_is_for_the_whole_account(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Set through a joined name, it prices the debits of every name; another account is left alone."""
    other = Registration("cars", Adjacency.REPLACE_ONE, Budget(1, 1e-9), b"u")
    again = Registration("again", Adjacency.REPLACE_ONE, None, b"t" * 32, same_people_as="people")
    for registration in (other, again):
        ledger.register_dataset(registration, actor="o", reason="r")
    for i, name in enumerate(("people", "again", "cars")):
        ledger.debit(ask(str(i), dataset=name, scale=40))
    cars = ledger.dataset("cars")
    ledger.set_budget("again", Budget(9, 1e-6, TENTH), actor="o", reason="r")
    expected = 2 * cost_units(ask("x", scale=40).events, Budget(9, 1e-6, TENTH).order)
    assert ledger.dataset("people").spent_cost_units == ledger.dataset("again").spent_cost_units == expected
    assert ledger.dataset("cars") == cars
    assert verify(path).ok


def test_debits_that_come_while_the_past_is_priced_are_counted(
    ledger: Ledger, ask: Ask, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long history is priced outside of the decision: what others debit meanwhile is part of the new sum."""
    read, meanwhile = acts._debits, iter(range(100))

    def slow(store: Any, account: str, after: int) -> Any:
        for i, entry in enumerate(read(store, account, after)):
            # The decision itself holds the lock: then nobody can come between.
            if i == 1 and store._leader is None:
                ledger.debit(ask(f"meanwhile{next(meanwhile)}", scale=30, principal="bob"))
            yield entry
            if i == 3 and store._leader is None:
                ledger.debit(ask(f"meanwhile{next(meanwhile)}", scale=31, principal="eve"))

    for i in range(5):
        ledger.debit(ask(f"a{i}", scale=30))
    monkeypatch.setattr(acts, "PAGE", 2)
    monkeypatch.setattr(acts, "_debits", slow)
    details = set_total(ledger, 7)
    monkeypatch.undo()
    order = Budget(7, 1e-6, TENTH).order
    costs = [cost_units(record.events, order) for record in _requests(ledger)]
    assert len(costs) == 7
    assert details["spent_cost_units"] == sum(costs)
    assert set(details["analysts"]) == {"ann", "bob", "eve"}
    assert verify(path).ok


def test_another_total_that_came_meanwhile_is_the_previous_one(
    ledger: Ledger, ask: Ask, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two totals at once: the later one names the earlier one."""
    read = acts._debits

    def other_first(store: Any, account: str, after: int) -> Any:
        monkeypatch.undo()
        set_total(ledger, 5)
        return read(store, account, after)

    ledger.debit(ask("a"))
    monkeypatch.setattr(acts, "_debits", other_first)
    assert set_total(ledger, 7)["previous"] == {"epsilon": 5.0, "delta": 1e-6}
    assert [epsilon for _, epsilon, _ in verify(path).accounts[0].budgets] == [3.0, 5.0, 7.0]
    assert verify(path).ok


def _requests(ledger: Ledger) -> list[DebitRequest]:
    return [ledger.debit_entry(record.entry).request for record in ledger.releases()]


@pytest.mark.parametrize("name", ['Ünal "x"', "a\\b", "\U0001f600", "$[0]", "it's", "null"])
def test_analysts_of_any_name_keep_their_sums(ledger: Ledger, ask: Ask, path: Path, name: str) -> None:
    """Quotes, escapes and characters of any plane: the file's own rules find the analyst's sum under a new total."""
    ledger.debit(ask("a", principal=name))
    set_total(ledger, 6)
    ledger.set_allowance("people", name, Fraction(1, 2), actor="o", reason="r")
    ledger.debit(ask("b", principal=name))
    assert ledger.debit(ask("c", principal=name)).allowance is not None
    assert verify(path).ok


@pytest.mark.parametrize("consistent", [True, False])
def test_a_new_total_that_forgets_is_found(ledger: Ledger, ask: Ask, path: Path, forge: Any, consistent: bool) -> None:
    """Sums under a new total that are not those of the events: verification prices again; opening sees the rest."""
    ledger.debit(ask("a"))
    set_total(ledger, 6)
    ledger.close()

    def cheaper(fields: dict[str, Any]) -> None:
        fields["details"]["analysts"]["ann"][0] -= 1
        fields["details"]["spent_cost_units"] -= consistent

    forge(path, 4, cheaper)
    problems = verify(path).problems
    assert problems[-1].startswith("entry 4: 'ann' spent")
    if consistent:
        assert len(problems) == 1
        Ledger.open(path).close()
    else:
        with pytest.raises(LedgerCorruptError, match="entry 4: spent_cost_units"):
            Ledger.open(path)


TOTALS = st.sampled_from(
    [Budget(e, d, s) for e in (0.5, 2, 9) for d in (1e-6, 1e-4) for s in (Fraction(0), Fraction(1, 3))]
)
STEPS = st.one_of(TOTALS, st.tuples(st.sampled_from(["ann", "bob"]), st.sampled_from(EVENTS)))


@pytest.mark.slow
@settings(max_examples=40)
@given(steps=st.lists(STEPS, max_size=12))
def test_any_order_of_totals_and_debits_verifies(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """Reference: the list of admitted events, all priced at the order in force."""
    path = tmp_path_factory.mktemp("totals") / "ledger.db"
    total, admitted = Budget(1, 1e-6), list[tuple[Event, ...]]()
    with Ledger.create(path, actor="o") as ledger:
        ledger.register_dataset(Registration("d", Adjacency.REPLACE_ONE, total, b"t"), actor="o", reason="r")
        for i, step in enumerate(steps):
            if isinstance(step, Budget):
                if step != total:
                    ledger.set_budget("d", step, actor="o", reason="r")
                total = step
            else:
                request = DebitRequest("d", step[0], str(i), hashlib.sha256(b"").digest(), "F", step[1])
                cost = sum(cost_units(events, total.order) for events in [*admitted, step[1]])
                failure = sum(_failure(events) for events in [*admitted, step[1]])
                try:
                    ledger.debit(request)
                except BudgetExhaustedError:
                    assert cost > total.cap_cost_units or failure > total.cap_delta_units
                else:
                    admitted.append(step[1])
                    assert cost <= total.cap_cost_units
                    assert failure <= total.cap_delta_units
            state = ledger.dataset("d")
            assert state.spent_cost_units == sum(cost_units(events, total.order) for events in admitted)
            assert state.spent_delta_units == sum(map(_failure, admitted))
    assert verify(path).problems == ()


def _failure(events: tuple[Event, ...]) -> int:
    total = sum((e.count * e.delta for e in events if isinstance(e, ApproximateEvent)), Fraction(0))
    return -(-total.numerator * 2**60 // total.denominator)


@given(st.floats(1e-3, 50), st.floats(1.001, 100), st.floats(1e-12, 0.1))
def test_a_raise_at_the_same_delta_has_a_smaller_order_and_a_larger_cap(
    epsilon: float, factor: float, delta: float
) -> None:
    """So what fitted before fits after it, on every path: prices fall with the order."""
    try:
        before = Budget(epsilon, delta)
    except ValueError:
        return  # too small to hold anything
    after = Budget(epsilon * factor, delta)
    assert after.order <= before.order
    assert after.cap_cost_units >= before.cap_cost_units


def test_a_total_at_whose_order_nothing_can_be_counted_is_refused(ledger: Ledger, ask: Ask) -> None:
    """SQLite's integers end at 2^63; the entry that would pass them is not written."""
    ledger.set_budget("people", Budget(30, 1e-6), actor="owner", reason="")
    ledger.debit(ask("a", events=(GaussianEvent(12, Fraction(1)),)))
    before = ledger.head()
    with pytest.raises(AccountConflictError, match="beyond all counting"):
        ledger.set_budget("people", Budget(1e-6, 1e-12), actor="owner", reason="")
    assert ledger.head() == before


@pytest.mark.parametrize("epsilon", [Fraction(1, 3), "3", None])
def test_totals_are_floats(epsilon: Any) -> None:
    """An entry would hold another number than was meant."""
    with pytest.raises(ValueError, match="floats"):
        Budget(epsilon, 1e-6)
