"""Remainder as a request of its own: how much that is, is decided together with the debit."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    COST_UNIT,
    Adjacency,
    ApproximateEvent,
    Budget,
    BudgetExhaustedError,
    Debit,
    DebitRequest,
    DebitStatus,
    Event,
    GaussianEvent,
    Ledger,
    PureEvent,
    Registration,
    Remainder,
    RequestIdReusedError,
    RestRequest,
    UnknownDatasetError,
    verify,
)

Ask = Callable[..., DebitRequest]


def gaussian(left: Remainder) -> tuple[Event, ...]:
    """A release that costs every unit that is left, exactly."""
    rho = Fraction(left.cost_units) / (COST_UNIT * left.order)
    return (GaussianEvent(2 * rho.numerator * rho.denominator, Fraction(rho.denominator)),)


def rest(request: DebitRequest, events: Callable[[Remainder], tuple[Event, ...]] = gaussian) -> RestRequest:
    """A request for what is left, spent on `events`."""
    return RestRequest(
        request.dataset,
        request.principal,
        request.request_id,
        request.request_hash,
        request.method,
        lambda left: replace(request, events=events(left)),
    )


def test_exactly_what_is_left_is_debited(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Not one unit stays; the entry is a debit like any other."""
    ledger.debit(ask("a"))
    left = ledger.dataset("people").remaining
    debit = ledger.debit(rest(ask("b")))
    assert (debit.status, debit.price.cost_units) == (DebitStatus.NEW, left.cost_units)
    assert (debit.remaining.cost_units, ledger.dataset("people").remaining.cost_units) == (0, 0)
    assert ledger.debit_entry(debit.entry).request.events == gaussian(left)
    assert verify(path).ok
    with pytest.raises(BudgetExhaustedError) as caught:
        ledger.debit(rest(ask("c"), lambda _: pytest.fail("planned for nothing")))
    assert (caught.value.limit, caught.value.requested.cost_units) == ("dataset", 1)


def test_the_figure_for_people_can_be_spent_as_the_rest(ledger: Ledger, ask: Ask) -> None:
    """The pure epsilon that is left is what a plan may ask for."""
    ledger.debit(ask("a"))
    assert ledger.debit(rest(ask("b"), lambda left: (PureEvent(Fraction(left.pure_epsilon)),))).price.cost_units > 0


def test_a_repetition_does_not_plan_again(ledger: Ledger, ask: Ask) -> None:
    """The first answer is the answer; another body under the same id is refused as ever."""
    first = ledger.debit(rest(ask("b")))
    never = rest(ask("b"), lambda _: pytest.fail("planned twice"))
    again = ledger.debit(never)
    assert again.status is DebitStatus.INTERRUPTED
    assert (again.entry, again.price, again.remaining, again.head) == (
        first.entry,
        first.price,
        first.remaining,
        first.head,
    )
    ledger.store_release(first.entry, b"model")
    assert ledger.debit(never).release == b"model"
    with pytest.raises(RequestIdReusedError):
        ledger.debit(rest(ask("b", scale=7)))


@pytest.mark.parametrize("limit", ["allowance", "call"])
def test_the_smallest_limit_is_what_is_left(ledger: Ledger, ask: Ask, path: Path, limit: str) -> None:
    """The least of total, allowance and maximum counts; a used-up allowance refuses its rest."""
    share = Fraction(2, 7)
    if limit == "allowance":
        ledger.set_allowance("people", "ann", share, actor="o", reason="r")
    else:
        ledger.set_call_limit("people", share, actor="o", reason="r")
    part = ledger.dataset("people").cap_cost_units * 2 // 7
    assert ledger.debit(rest(ask("a"))).price.cost_units == part
    if limit == "allowance":
        with pytest.raises(BudgetExhaustedError) as caught:
            ledger.debit(rest(ask("b")))
        assert caught.value.limit == "allowance"
        # Whoever has no allowance gets all that the total still holds.
        others = ledger.debit(rest(ask("b", principal="bob")))
        assert others.price.cost_units == ledger.dataset("people").cap_cost_units - part
    else:
        spent = [ledger.debit(rest(ask(f"b{i}"))).price.cost_units for i in range(3)]
        assert spent == [part, part, ledger.dataset("people").cap_cost_units - 3 * part]
    assert verify(path).ok


def test_a_plan_may_use_less(ledger: Ledger, ask: Ask) -> None:
    """Half of what is left leaves the other half."""
    before = ledger.dataset("people").remaining.cost_units
    debit = ledger.debit(rest(ask("a"), lambda left: gaussian(replace(left, cost_units=left.cost_units // 2))))
    assert debit.remaining.cost_units == before - before // 2


@pytest.mark.parametrize("over", ["cost", "delta"])
def test_a_plan_that_asks_for_more_is_refused(ledger: Ledger, ask: Ask, path: Path, contents: Any, over: str) -> None:
    """The plan is not believed: what it makes is priced and checked like any request."""

    def more(left: Remainder) -> tuple[Event, ...]:
        if over == "cost":
            return gaussian(replace(left, cost_units=left.cost_units + 1))
        return (ApproximateEvent(GaussianEvent(1, Fraction(50)), Fraction(left.delta_units + 1, 2**60)),)

    before = contents(path)
    with pytest.raises(BudgetExhaustedError):
        ledger.debit(rest(ask("a"), more))
    assert contents(path) == before


class TooSmallError(Exception):
    """Exception that a plan may raise."""


def test_a_plan_that_refuses_changes_nothing(ledger: Ledger, ask: Ask, path: Path, contents: Any) -> None:
    """The exception comes out as it is, and the request_id stays free."""

    def refuse(left: Remainder) -> tuple[Event, ...]:
        raise TooSmallError(left.cost_units)

    before = contents(path)
    with pytest.raises(TooSmallError):
        ledger.debit(rest(ask("a"), refuse))
    assert contents(path) == before
    assert ledger.debit(ask("a")).status is DebitStatus.NEW


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request_id", "other"),
        ("request_hash", b"x" * 32),
        ("dataset", "cars"),
        ("principal", "bob"),
        ("method", "Other"),
    ],
)
def test_a_plan_chooses_events_and_parameters_only(
    ledger: Ledger, ask: Ask, path: Path, contents: Any, field: str, value: Any
) -> None:
    """A plan for another request could be paid by somebody else, or twice."""
    cars = Registration("cars", Adjacency.REPLACE_ONE, Budget(1, 1e-6), b"c")
    ledger.register_dataset(cars, actor="o", reason="r")
    request = ask("a")
    other = replace(rest(request), plan=lambda left: replace(request, **{field: value}, events=gaussian(left)))
    before = contents(path)
    with pytest.raises(ValueError, match=f"plan changed {field}"):
        ledger.debit(other)
    assert contents(path) == before


def test_a_plan_cannot_debit_by_itself(ledger: Ledger, ask: Ask, path: Path, contents: Any) -> None:
    """A decision within the decision is refused, and nothing hangs; reading is allowed."""
    before = contents(path)

    def debits(left: Remainder) -> tuple[Event, ...]:
        ledger.debit(ask("b"))
        return gaussian(left)

    with pytest.raises(RuntimeError, match="within another"):
        ledger.debit(rest(ask("a"), debits))
    assert contents(path) == before
    ledger.debit(rest(ask("a"), lambda left: gaussian(ledger.limits("people", "ann").available)))


def test_malformed_and_unknown_requests_are_refused(ledger: Ledger, ask: Ask) -> None:
    """The message names the field, as for any request."""
    with pytest.raises(ValueError, match="request_id"):
        replace(rest(ask("a")), request_id="a b")
    with pytest.raises(ValueError, match="request_hash"):
        replace(rest(ask("a")), request_hash=b"short")
    with pytest.raises(ValueError, match="principal"):
        replace(rest(ask("a")), principal="")
    with pytest.raises(UnknownDatasetError):
        ledger.debit(rest(ask("a", dataset="nobody")))


def test_eight_ask_for_the_rest_at_once(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Each takes half of what is left when his turn comes: halves of halves, and the sum never passes the cap."""
    start = threading.Barrier(8)

    def run(i: int) -> Debit:
        start.wait(600)
        return ledger.debit(rest(ask(f"r{i}"), lambda left: gaussian(replace(left, cost_units=left.cost_units // 2))))

    left = cap = ledger.dataset("people").cap_cost_units
    with ThreadPoolExecutor(8) as pool:
        debits = sorted(pool.map(run, range(8)), key=lambda debit: debit.entry)
    for debit in debits:
        assert debit.price.cost_units == left // 2
        left -= left // 2
    assert ledger.dataset("people").spent_cost_units == cap - left
    assert verify(path).ok


def test_of_those_who_ask_for_all_of_the_rest_one_gets_it(ledger: Ledger, ask: Ask, path: Path) -> None:
    """There is never more than one, with plain debits in between, through two open ledgers on the file."""
    start = threading.Barrier(8)

    def run(i: int) -> int:
        start.wait(600)
        opened = (ledger, second)[i % 2]
        request = ask(f"r{i}", scale=12, principal=f"p{i}")
        try:
            return opened.debit(request if i < 4 else rest(request)).price.cost_units
        except BudgetExhaustedError:
            return 0

    with Ledger.open(path) as second, ThreadPoolExecutor(8) as pool:
        spent = list(pool.map(run, range(8)))
    assert sum(spent) == ledger.dataset("people").cap_cost_units == ledger.dataset("people").spent_cost_units
    assert sum(cost > 0 for cost in spent[4:]) == 1
    assert verify(path).ok


def test_what_is_left_after_the_total_was_lowered_is_nothing(ledger: Ledger, ask: Ask) -> None:
    """A closed account plans nothing."""
    ledger.debit(ask("a", request_hash=hashlib.sha256(b"a").digest()))
    ledger.set_budget("people", Budget(0.1, 1e-6), actor="o", reason="r")
    with pytest.raises(BudgetExhaustedError) as caught:
        ledger.debit(rest(ask("b"), lambda _: pytest.fail("planned for nothing")))
    assert caught.value.remaining.cost_units == 0
