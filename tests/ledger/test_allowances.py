"""Parts of a total for analysts, and a maximum for one request: all are checked in one decision."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import (
    EVERYONE,
    Adjacency,
    ApproximateEvent,
    Budget,
    BudgetExhaustedError,
    Debit,
    DebitRequest,
    Event,
    GaussianEvent,
    Ledger,
    PureEvent,
    Registration,
    UnknownDatasetError,
    cost_units,
    price,
    verify,
)

Ask = Callable[..., DebitRequest]
FAILING = ApproximateEvent(GaussianEvent(1, Fraction(60)), Fraction(1, 10**8))


def allow(ledger: Ledger, analyst: str, share: Fraction | None) -> None:
    """Sets an allowance."""
    ledger.set_allowance("people", analyst, share, actor="owner", reason="why")


def refused(ledger: Ledger, request: DebitRequest) -> BudgetExhaustedError:
    """The refusal of a request; nothing changes."""
    before = ledger.newest(), ledger.limits(request.dataset, request.principal)
    with pytest.raises(BudgetExhaustedError) as caught:
        ledger.debit(request)
    assert (ledger.newest(), ledger.limits(request.dataset, request.principal)) == before
    return caught.value


def test_limits_and_spenders_are_those_of_the_entries(ledger: Ledger, ask: Ask) -> None:
    """Shares in force, ended ones left out; debits of each analyst, at the order of the newest total."""
    assert ledger.shares("people") == {}
    assert ledger.spenders("people") == {}
    other = Registration("other", Adjacency.REPLACE_ONE, Budget(1, 1e-6), b"o" * 32)
    ledger.register_dataset(other, actor="owner", reason="why")
    ledger.set_allowance("other", "ann", Fraction(1, 7), actor="owner", reason="why")
    for analyst, share in (("ann", Fraction(1, 2)), ("bob", Fraction(1)), (EVERYONE, Fraction(1, 3)), ("bob", None)):
        allow(ledger, analyst, share)
    allow(ledger, "ann", Fraction(1, 4))
    assert ledger.shares("people") == {"ann": Fraction(1, 4), EVERYONE: Fraction(1, 3)}
    ledger.set_call_limit("people", Fraction(1, 5), actor="owner", reason="why")
    assert ledger.shares("people")[None] == Fraction(1, 5)
    ledger.set_call_limit("people", None, actor="owner", reason="why")
    assert None not in ledger.shares("people")
    allow(ledger, "ann", None)
    allow(ledger, EVERYONE, None)
    made = [ask("a", scale=20), ask("b", scale=30), ask("c", scale=40, principal="bob")]
    for request in made:
        ledger.debit(request)

    def spent(*requests: DebitRequest) -> tuple[int, int]:
        order = ledger.dataset("people").order
        return len(requests), sum(cost_units(request.events, order) for request in requests)

    assert ledger.spenders("people") == {"ann": spent(*made[:2]), "bob": spent(made[2])}
    ledger.set_budget("people", Budget(4, 1e-6), actor="owner", reason="why")
    assert ledger.spenders("people") == {"ann": spent(*made[:2]), "bob": spent(made[2])}
    made.append(ask("d", scale=25))
    ledger.debit(made[-1])
    assert ledger.spenders("people") == {"ann": spent(*made[:2], made[3]), "bob": spent(made[2])}
    assert ledger.spenders("other") == {}


def test_without_limits_only_the_total_binds(ledger: Ledger, ask: Ask) -> None:
    """No allowance and no maximum: None, and all that is left is available."""
    limits = ledger.limits("people", "ann")
    assert (limits.allowance, limits.call) == (None, None)
    assert limits.available == limits.dataset == ledger.dataset("people").remaining
    assert ledger.debit(ask("a")).allowance is None


def test_an_allowance_binds_its_analyst_only(ledger: Ledger, ask: Ask, path: Path) -> None:
    """It is a part of the total, rounded down; what others spend does not count, what he spent before does."""
    first = ledger.debit(ask("a"))
    allow(ledger, "ann", Fraction(1, 3))
    cap = ledger.dataset("people").cap_cost_units // 3
    limits = ledger.limits("people", "ann")
    assert limits.allowance is not None
    assert limits.allowance.cost_units == cap - first.price.cost_units
    assert limits.available.cost_units == limits.allowance.cost_units < limits.dataset.cost_units
    refusal = refused(ledger, ask("b"))
    assert (refusal.limit, refusal.remaining) == ("allowance", limits.allowance)
    assert refusal.requested == price(ask("b").events, refusal.requested.order)
    assert "your allowance" in str(refusal)
    ledger.debit(ask("b", principal="bob"))
    ledger.debit(ask("c", principal="bob"))
    assert ledger.limits("people", "ann").allowance == limits.allowance
    small = ledger.debit(ask("d", scale=8))
    assert small.allowance is not None
    assert small.allowance.cost_units == limits.allowance.cost_units - small.price.cost_units
    assert ledger.debit(ask("d", scale=8)).allowance == small.allowance == ledger.debit_entry(small.entry).allowance
    assert verify(path).ok


def test_a_write_off_leaves_the_limit_of_a_call_as_it_was(ledger: Ledger, ask: Ask, path: Path) -> None:
    """It is lifted for what was spent already, which may be more, and holds for the next request."""
    ledger.set_call_limit("people", Fraction(1, 100), actor="owner", reason="why")
    call = ledger.limits("people", "ann").call
    assert refused(ledger, ask("a")).limit == "call"
    ledger.write_off(ask("a"), actor="owner", reason="why")
    assert ledger.limits("people", "ann").call == call
    assert refused(ledger, ask("b")).limit == "call"
    assert verify(path).ok


def test_everyone_is_who_has_no_allowance_of_his_own(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Each has the part for himself; an own allowance, smaller or larger, takes its place and falls back when ended."""
    allow(ledger, EVERYONE, Fraction(1, 6))
    allow(ledger, "ann", Fraction(1, 2))
    allow(ledger, "eve", Fraction(0))
    cap = ledger.dataset("people").cap_cost_units

    def part(analyst: str) -> int | None:
        allowance = ledger.limits("people", analyst).allowance
        return None if allowance is None else allowance.cap_cost_units

    assert [part(name) for name in ("ann", "bob", "eve")] == [cap // 2, cap // 6, 0]
    ledger.debit(ask("a"))
    ledger.debit(ask("b", principal="bob", scale=5))
    assert refused(ledger, ask("c", principal="bob", scale=5)).limit == "allowance"
    assert refused(ledger, ask("c", principal="eve", scale=10**6)).limit == "allowance"
    ledger.debit(ask("c", principal="carl", scale=5))
    allow(ledger, "ann", None)
    assert part("ann") == cap // 6
    refused(ledger, ask("d"))
    allow(ledger, EVERYONE, None)
    assert [part(name) for name in ("ann", "bob", "eve")] == [None, None, 0]
    ledger.debit(ask("d"))
    assert verify(path).ok


def test_the_newest_allowance_counts(ledger: Ledger, ask: Ask) -> None:
    """Setting again replaces; below what he spent it admits nothing, and the account goes on for others."""
    ledger.debit(ask("a"))
    allow(ledger, "ann", Fraction(1))
    allow(ledger, "ann", Fraction(1, 100))
    limits = ledger.limits("people", "ann")
    assert limits.allowance is not None
    assert limits.allowance.cost_units == limits.available.cost_units == 0
    assert refused(ledger, ask("b", scale=10**6)).limit == "allowance"
    ledger.debit(ask("b", principal="bob"))


@pytest.mark.parametrize("whose", ["allowance", "call"])
def test_shares_of_nothing_and_of_all(ledger: Ledger, ask: Ask, whose: str) -> None:
    """0 admits nothing, not one unit; 1 is the whole total."""

    def share(value: int) -> None:
        if whose == "allowance":
            allow(ledger, "ann", Fraction(value))
        else:
            ledger.set_call_limit("people", Fraction(value), actor="o", reason="r")

    share(0)
    assert refused(ledger, ask("a", scale=10**9)).limit == whose
    share(1)
    left = ledger.limits("people", "ann").available.cost_units
    assert left == ledger.dataset("people").cap_cost_units
    assert ledger.debit(ask("a")).price.cost_units < left


def test_a_call_limit_binds_every_single_request(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Exactly the maximum is admitted, again and again; one unit more is not, whoever asks."""
    ledger.set_call_limit("people", Fraction(1, 5), actor="owner", reason="why")
    call = ledger.limits("people", "ann").call
    assert call is not None
    assert call.cost_units == ledger.dataset("people").cap_cost_units // 5
    refusal = refused(ledger, ask("a", scale=3))
    assert (refusal.limit, refusal.remaining) == ("call", call)
    assert "the most that one request may cost" in str(refusal)
    for i in range(4):
        ledger.debit(ask(f"a{i}", scale=5, principal="ab"[i % 2]))
    assert ledger.limits("people", "a").call == call
    ledger.set_call_limit("people", None, actor="owner", reason="why")
    assert ledger.limits("people", "a").call is None
    assert verify(path).ok


def test_the_first_limit_that_refuses_is_named(ledger: Ledger, ask: Ask) -> None:
    """Total before allowance before maximum, with what is left of that one."""
    allow(ledger, "ann", Fraction(1, 10))
    ledger.set_call_limit("people", Fraction(1, 20), actor="o", reason="r")
    limits = ledger.limits("people", "ann")
    assert limits.allowance is not None
    assert limits.call is not None
    for scale, name, limit in (
        (1, "dataset", limits.dataset),
        (4, "allowance", limits.allowance),
        (6, "call", limits.call),
    ):
        refusal = refused(ledger, ask("a", scale=scale))
        assert (refusal.limit, refusal.remaining) == (name, limit)
    ledger.debit(ask("a", scale=12))


def test_limits_hold_for_the_probability_of_failure_as_well(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Delta has its part of every limit; a refusal for delta alone names the limit, too."""
    units = price((FAILING,), Fraction(2)).delta_units
    cap = ledger.dataset("people").cap_delta_units
    allow(ledger, "ann", Fraction(3, 20))
    ledger.debit(ask("a", events=(FAILING,)))
    limits = ledger.limits("people", "ann")
    assert limits.allowance is not None
    assert limits.allowance.delta_units == math.floor(cap * Fraction(3, 20)) - units == limits.available.delta_units
    refusal = refused(ledger, ask("b", events=(FAILING,)))
    assert refusal.limit == "allowance"
    assert refusal.requested.cost_units < refusal.remaining.cost_units
    ledger.set_call_limit("people", Fraction(1, 20), actor="o", reason="r")
    assert refused(ledger, ask("b", events=(FAILING,), principal="bob")).limit == "call"
    ledger.set_call_limit("people", Fraction(1, 9), actor="o", reason="r")
    ledger.debit(ask("b", events=(FAILING,), principal="bob"))
    allow(ledger, "ann", Fraction(1, 20))
    # More failures than the new part allows: nothing is left to him, as of an account.
    assert refused(ledger, ask("c", scale=60)).limit == "allowance"
    assert verify(path).ok


def test_shares_follow_the_total(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Every part is one of the new total, and what was spent is counted at the new order."""
    allow(ledger, "ann", Fraction(1, 3))
    ledger.set_call_limit("people", Fraction(1, 4), actor="o", reason="r")
    ledger.debit(ask("a"))
    new = Budget(6, 1e-6, Fraction(1, 10))
    ledger.set_budget("people", new, actor="o", reason="r")
    limits = ledger.limits("people", "ann")
    assert limits.allowance is not None
    assert limits.call is not None
    assert limits.call.cost_units == new.cap_cost_units // 4
    assert limits.allowance.cost_units == new.cap_cost_units // 3 - cost_units(ask("a").events, new.order)
    ledger.debit(ask("b"))
    ledger.set_budget("people", Budget(1.5, 1e-6), actor="o", reason="r")
    assert refused(ledger, ask("c", principal="bob")).limit == "dataset"
    assert verify(path).ok


def test_an_allowance_is_of_the_whole_account(ledger: Ledger, ask: Ask, path: Path) -> None:
    """An analyst spends from one part under every name of the account."""
    ledger.register_dataset(
        Registration("again", Adjacency.REPLACE_ONE, None, b"t" * 32, same_people_as="people"), actor="o", reason="r"
    )
    ledger.set_allowance("again", "ann", Fraction(1, 4), actor="o", reason="r")
    ledger.debit(ask("a", dataset="people"))
    assert ledger.limits("people", "ann") == ledger.limits("again", "ann")
    assert refused(ledger, ask("b", dataset="again")).limit == "allowance"
    assert verify(path).ok


@pytest.mark.parametrize("share", [Fraction(-1, 2), Fraction(3, 2), 2, 0.5, "1/2", math.nan])
def test_a_share_is_an_exact_number_from_0_to_1(ledger: Ledger, path: Path, contents: Any, share: Any) -> None:
    """Anything else is refused and leaves no entry."""
    before = contents(path)
    with pytest.raises(ValueError, match="share"):
        allow(ledger, "ann", share)
    with pytest.raises(ValueError, match="share"):
        ledger.set_call_limit("people", share, actor="o", reason="r")
    assert contents(path) == before


def test_other_refusals_of_limits(ledger: Ledger, path: Path, contents: Any) -> None:
    """A dataset that there is not, and an analyst without a name."""
    before = contents(path)
    with pytest.raises(UnknownDatasetError):
        ledger.set_allowance("nobody", "ann", Fraction(1), actor="o", reason="r")
    with pytest.raises(UnknownDatasetError):
        ledger.set_call_limit("nobody", Fraction(1), actor="o", reason="r")
    with pytest.raises(UnknownDatasetError):
        ledger.limits("nobody", "ann")
    with pytest.raises(ValueError, match="analyst"):
        allow(ledger, "", Fraction(1))
    assert contents(path) == before


def test_threads_of_one_analyst_share_his_allowance(ledger: Ledger, ask: Ask, path: Path) -> None:
    """Requests are admitted while they fit into the allowance, at once or one after the other."""
    allow(ledger, "ann", Fraction(1, 3))

    def run(i: int) -> Debit | BudgetExhaustedError:
        try:
            return ledger.debit(ask(f"r{i}", scale=12))
        except BudgetExhaustedError as refusal:
            return refusal

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run, range(40)))
    one = cost_units(ask("x", scale=12).events, ledger.dataset("people").order)
    debits = [answer for answer in answers if isinstance(answer, Debit)]
    assert len(debits) == ledger.dataset("people").cap_cost_units // 3 // one < 40
    assert {answer.limit for answer in answers if isinstance(answer, BudgetExhaustedError)} == {"allowance"}
    left = sorted(debit.allowance.cost_units for debit in debits if debit.allowance is not None)
    assert len(set(left)) == len(left) == len(debits)
    assert verify(path).ok


NAMES = st.sampled_from(["ann", "bob"])
SHARES = st.none() | st.sampled_from([Fraction(0), Fraction(1, 7), Fraction(1, 2), Fraction(1)])
EVENTS: st.SearchStrategy[Event] = st.sampled_from(
    [GaussianEvent(1, Fraction(5)), PureEvent(Fraction(1, 4)), GaussianEvent(1, Fraction(30)), FAILING]
)
ACTS = st.one_of(
    st.tuples(st.just("allowance"), NAMES | st.just(EVERYONE), SHARES),
    st.tuples(st.just("call"), st.just(""), SHARES),
    st.tuples(st.just("total"), st.just(""), st.sampled_from([Fraction(1), Fraction(2), Fraction(4)])),
    *[st.tuples(st.just("debit"), NAMES, EVENTS) for _ in range(4)],
)


@settings(max_examples=40)
@given(acts=st.lists(ACTS, max_size=20))
def test_no_debit_is_ever_above_a_limit_in_force(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str, Any]]
) -> None:
    """A reference that keeps the events agrees: a debit that fits into every limit is admitted, no other."""
    path = tmp_path_factory.mktemp("limits") / "ledger.db"
    total, call = Budget(2, 1e-6, Fraction(1, 10)), None
    shares: dict[str, Fraction | None] = {}
    admitted: list[tuple[str, Event]] = []

    def sums(analyst: str | None = None) -> list[int]:
        mine = [event for name, event in admitted if analyst in (None, name)]
        return [sum(units) for units in zip((0, 0), *(_units(event, total.order) for event in mine), strict=True)]

    with Ledger.create(path, actor="o") as ledger:
        ledger.register_dataset(Registration("d", Adjacency.REPLACE_ONE, total, b"t"), actor="o", reason="r")
        for i, (act, name, value) in enumerate(acts):
            if act == "allowance":
                ledger.set_allowance("d", name, value, actor="o", reason="r")
                shares[name] = value
            elif act == "call":
                ledger.set_call_limit("d", value, actor="o", reason="r")
                call = value
            elif act == "total" and float(value) != total.epsilon:
                total = Budget(float(value), 1e-6, Fraction(1, 10))
                ledger.set_budget("d", total, actor="o", reason="r")
            elif act == "debit":
                caps = total.cap_cost_units, total.cap_delta_units
                new = _units(value, total.order)
                own = shares.get(name)
                share = own if own is not None else shares.get(EVERYONE)
                fits = {
                    "dataset": _within(sums(), new, caps, Fraction(1)),
                    "allowance": share is None or _within(sums(name), new, caps, share),
                    "call": call is None or _within([0, 0], new, caps, call),
                }
                request = DebitRequest("d", name, str(i), hashlib.sha256(b"").digest(), "F", (value,))
                if all(fits.values()):
                    ledger.debit(request)
                    admitted.append((name, value))
                else:
                    assert refused(ledger, request).limit == next(limit for limit, does in fits.items() if not does)
        state = ledger.dataset("d")
        assert [state.spent_cost_units, state.spent_delta_units] == sums()
    assert verify(path).problems == ()


def _units(event: Event, order: Fraction) -> tuple[int, int]:
    made = price((event,), order)
    return made.cost_units, made.delta_units


def _within(spent: list[int], new: tuple[int, int], caps: tuple[int, int], share: Fraction) -> bool:
    return all(s + n <= math.floor(share * cap) for s, n, cap in zip(spent, new, caps, strict=True))
