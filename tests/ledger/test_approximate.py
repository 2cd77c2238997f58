"""Releases that may fail: written, priced, capped and audited beside the exact ones; and the filter, by enumeration."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_ledger import (
    DELTA_UNIT,
    ApproximateEvent,
    Budget,
    BudgetExhaustedError,
    ConcentratedEvent,
    DebitRequest,
    Event,
    ExactEvent,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    PureEvent,
    Remainder,
    SelectionEvent,
    cost_units,
    price,
    rdp,
    verify,
)
from bursar_ledger._bounds_check import failure_units, price_range
from bursar_ledger._debits import _fits
from bursar_ledger._entries import canonical
from bursar_ledger._events import decode_event, decode_events, encode_event

Ask = Callable[..., DebitRequest]
COUNTS = st.integers(1, 50)
SCALES = st.fractions(min_value=Fraction(1, 100), max_value=10**6, max_denominator=10**6)
EXACT: st.SearchStrategy[ExactEvent] = st.one_of(
    st.builds(GaussianEvent, COUNTS, SCALES, COUNTS),
    st.builds(LaplaceEvent, COUNTS, SCALES, COUNTS, COUNTS),
    st.builds(PureEvent, SCALES.map(lambda x: min(x, Fraction(50))), COUNTS),
    st.builds(SelectionEvent, COUNTS, SCALES, COUNTS),
    st.builds(ConcentratedEvent, SCALES, COUNTS),
)
DELTAS = st.fractions(min_value=Fraction(1, 10**30), max_value=Fraction(999, 1000)).filter(lambda d: 0 < d < 1)
APPROXIMATE = st.builds(ApproximateEvent, EXACT, DELTAS, COUNTS)
ORDERS = st.fractions(min_value=Fraction(1001, 1000), max_value=1000, max_denominator=2**20)


@given(APPROXIMATE)
def test_approximate_events_survive_the_round_trip(event: ApproximateEvent) -> None:
    """The event is read as it was written, with the exact event inside it."""
    written = encode_event(event)
    assert set(written) == {"mechanism", "event", "delta", "count"}
    assert written["mechanism"] == "approximate"
    assert decode_event(json.loads(canonical(written))) == event


PURE = {"mechanism": "pure", "epsilon": "1/1", "count": 1}
APPROX = {"mechanism": "approximate", "event": PURE, "delta": "1/1000", "count": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"event": APPROX},
        {"event": "pure"},
        {"event": None},
        {"event": {**PURE, "delta": "1/2"}},
        {"event": {"mechanism": "magic"}},
        {"delta": "1/1"},
        {"delta": "0/1"},
        {"delta": "-1/2"},
        {"delta": "2/4"},
        {"delta": "3/2"},
        {"count": 0},
        {"count": True},
        {"count": "1"},
        {"scale": "1/1"},
    ],
)
def test_malformed_approximate_events_are_refused(changes: dict[str, Any]) -> None:
    """One failure around one exact event; a failure is possible and not certain."""
    assert decode_event(APPROX) == ApproximateEvent(PureEvent(Fraction(1)), Fraction(1, 1000))
    with pytest.raises(ValueError, match=r"must|event|fraction"):
        decode_event({**APPROX, **changes})


@pytest.mark.parametrize("delta", [0, 1, Fraction(5, 4), 0.5, math.nan, Fraction(-1, 2)])
def test_impossible_failures_cannot_be_made(delta: Any) -> None:
    """The probability is exact, above 0 and below 1."""
    with pytest.raises(ValueError, match=r"ApproximateEvent\.delta"):
        ApproximateEvent(PureEvent(Fraction(1)), delta)
    with pytest.raises(ValueError, match=r"ApproximateEvent\.event"):
        ApproximateEvent(decode_event(APPROX), Fraction(1, 2))  # type: ignore[arg-type]


@given(EXACT, DELTAS, COUNTS, ORDERS)
def test_the_price_is_that_of_what_does_not_fail(
    event: ExactEvent, delta: Fraction, count: int, order: Fraction
) -> None:
    """Divergence as if nothing failed, and the failures' sum, both times the count."""
    held = ApproximateEvent(event, delta, count)
    assert rdp(held, order) == count * rdp(event, order)
    made = price((held, event), order)
    assert made.cost_units == cost_units([event] * (count + 1), order)
    assert made.delta_units - 1 < count * delta * DELTA_UNIT <= made.delta_units


def test_failures_add_up_and_are_rounded_up_once() -> None:
    """Thirds of a unit: three are one unit, four are two; the smallest failure costs one unit."""
    third = ApproximateEvent(PureEvent(Fraction(1)), Fraction(1, 3 * DELTA_UNIT))
    assert [price([third] * n, Fraction(2)).delta_units for n in (1, 3, 4)] == [1, 1, 2]
    assert price([ApproximateEvent(third.event, third.delta, count=3)], Fraction(2)).delta_units == 1
    assert price([ApproximateEvent(third.event, Fraction(1, 10**400))], Fraction(2)).delta_units == 1
    assert price([third.event], Fraction(2)).delta_units == 0


@given(st.lists(st.one_of(APPROXIMATE, EXACT), min_size=1, max_size=4), ORDERS)
def test_the_auditor_prices_failures_as_the_server(events: list[Event], order: Fraction) -> None:
    """Two derivations of both amounts agree."""
    made = price(events, order)
    low, high = price_range(*decode_events(map(encode_event, events)), order)
    assert low <= made.cost_units <= high <= low + 1
    assert failure_units(events) == made.delta_units


def failing(delta: Fraction, scale: int = 60) -> tuple[Event, ...]:
    """A cheap release that may fail."""
    return (ApproximateEvent(GaussianEvent(1, Fraction(scale)), delta),)


def test_failures_have_a_cap_of_their_own(ledger: Ledger, ask: Ask, path: Path, contents: Any) -> None:
    """The share of delta is admitted exactly; one unit more is refused although the divergence would fit."""
    cap = ledger.dataset("people").cap_delta_units
    before = contents(path)
    with pytest.raises(BudgetExhaustedError) as caught:
        ledger.debit(ask("a", events=failing(Fraction(cap + 1, DELTA_UNIT))))
    refusal = caught.value
    assert (refusal.requested.delta_units, refusal.remaining.delta_units, refusal.limit) == (cap + 1, cap, "dataset")
    assert refusal.requested.cost_units < refusal.remaining.cost_units
    assert f"{cap + 1} units of delta" in str(refusal)
    assert contents(path) == before
    debit = ledger.debit(ask("a", events=failing(Fraction(cap, DELTA_UNIT))))
    assert (debit.price.delta_units, debit.remaining.delta_units) == (cap, 0)
    with pytest.raises(BudgetExhaustedError):
        ledger.debit(ask("b", events=failing(Fraction(1, 10**300))))
    ledger.debit(ask("b"))  # exact releases go on
    assert ledger.debit_entry(debit.entry).request.events == failing(Fraction(cap, DELTA_UNIT))
    (totals,) = verify(path).accounts
    assert (totals.spent_delta_units, totals.analysts["ann"][1]) == (cap, cap)
    assert verify(path).ok


def test_a_total_without_a_share_for_failures_admits_none(ledger: Ledger, ask: Ask) -> None:
    """Every release that may fail is refused with the share 0."""
    ledger.set_budget("people", Budget(3, 1e-6, Fraction(0)), actor="o", reason="r")
    with pytest.raises(BudgetExhaustedError):
        ledger.debit(ask("a", events=failing(Fraction(1, 10**300))))
    ledger.debit(ask("a"))


@pytest.mark.parametrize(("delta", "units"), [("1/50000000", None), ("1/100000000", -1), ("1/100000000", 1)])
def test_a_failure_that_its_events_do_not_have_is_named(
    ledger: Ledger, ask: Ask, path: Path, forge: Any, delta: str, units: int | None
) -> None:
    """Another probability in the event, or other units with all sums to match: pricing again finds it."""
    ledger.debit(ask("a", events=failing(Fraction(1, 10**8))))
    ledger.close()

    def edit(fields: dict[str, Any]) -> None:
        fields["details"]["events"][0]["delta"] = delta
        for name in ("delta_units", "spent_delta_units", "analyst_spent_delta_units"):
            fields["details"][name] += units or 0

    forge(path, 3, edit)
    problems = verify(path).problems
    assert len(problems) == 1
    assert problems[0].startswith("entry 3: the debit is")
    assert "units of delta" in problems[0]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=6).filter(
        lambda pairs: all(sum(pair[i] for pair in pairs) for i in (0, 1))
    ),
    st.sampled_from([Fraction(11, 10), Fraction(2), Fraction(5)]),
)
def test_a_black_box_is_an_approximate_release(pairs: list[tuple[int, int]], ratio: Fraction) -> None:
    """Any P and Q that are (ln ratio, delta)-close split into parts within the ratio and failures of one probability.

    Off each law what is above `ratio` times the other is taken, then off the heavier rest as much as makes both equal,
    down to 1 / ratio of the other rest at most. Nothing more than delta goes.
    """
    mass = [sum(pair[i] for pair in pairs) for i in (0, 1)]
    p, q = ([Fraction(pair[i], mass[i]) for pair in pairs] for i in (0, 1))
    delta = max(_hockey_stick(p, q, ratio), _hockey_stick(q, p, ratio))
    rests = [
        [min(x, ratio * y) for x, y in zip(p, q, strict=True)],
        [min(y, ratio * x) for x, y in zip(p, q, strict=True)],
    ]
    heavy, light = sorted(rests, key=sum, reverse=True)
    floor: list[Fraction] = [y / ratio for y in light]
    if sum(heavy) > sum(light):
        part = Fraction(sum(heavy) - sum(light), sum(heavy) - sum(floor))
        assert 0 <= part <= 1
        heavy[:] = [x - part * (x - y) for x, y in zip(heavy, floor, strict=True)]
    assert sum(heavy) == sum(light) == 1 - delta
    for x, y in zip(*rests, strict=True):
        assert x <= ratio * y
        assert y <= ratio * x
    for whole, rest in zip((p, q), rests, strict=True):
        assert all(0 <= x <= y for x, y in zip(rest, whole, strict=True))


def _hockey_stick(p: list[Fraction], q: list[Fraction], ratio: Fraction) -> Fraction:
    return sum((max(x - ratio * y, Fraction(0)) for x, y in zip(p, q, strict=True)), Fraction(0))


# The filter by enumeration: a tree of adaptively chosen releases, each failing openly in the worst way.

Law = list[tuple[str, float, float]]
"""Outcomes that matter to the next choice, with their masses under P and Q."""
Choice = tuple[bool, float, float]
"""Choice of a release: Gaussian or two-point; the part of the rest of the divergence, and of delta, that it takes."""


def law(event: ExactEvent) -> Law:
    """All outcomes of an event at neighbours that it separates best."""
    if isinstance(event, PureEvent):
        p = 1 / (1 + math.exp(-float(event.epsilon)))
        return [("up", p, 1 - p), ("down", 1 - p, p)]
    assert isinstance(event, GaussianEvent)
    s = float(event.scale)
    reach = range(-int(9 * s) - 9, int(9 * s) + 11)
    weights = {x: math.exp(-x * x / (2 * s * s)) for x in range(reach.start - 1, reach.stop + 1)}
    total = math.fsum(weights.values())
    return [("up" if x > 0 else "down", weights[x - 1] / total, weights[x] / total) for x in reach]


def chosen(choice: Choice, left: Remainder) -> ApproximateEvent | None:
    """A release of the wanted part of what is left, if it is one."""
    gaussian, cost, failure = choice
    delta = Fraction(failure) * Fraction(left.delta_units, DELTA_UNIT)
    if not 0 < delta < 1:
        return None
    if not gaussian:
        epsilon = cost * left.pure_epsilon
        return ApproximateEvent(PureEvent(Fraction(epsilon)), delta) if epsilon > 0 else None
    rho = cost * left.rho
    if rho < 2e-3:  # a scale whose outcomes are few enough
        return None
    return ApproximateEvent(GaussianEvent(1, Fraction(math.nextafter(math.sqrt(1 / (2 * rho)), math.inf))), delta)


def transcripts(left: Remainder, plan: list[dict[str, Choice]], seen: str, ignore: bool) -> list[tuple[float, float]]:
    """Masses under P and Q of every transcript; `ignore` admits whatever the failures are."""
    event = chosen(plan[0].get(seen, (False, 1.0, 1.0)), left) if plan else None
    if event is None:
        return [(1.0, 1.0)]
    new = price((event,), left.order)
    if not _fits(new, left):
        return [(1.0, 1.0)]
    rest = Remainder(
        left.cost_units - new.cost_units,
        left.delta_units - (0 if ignore else new.delta_units),
        left.cap_cost_units,
        left.cap_delta_units,
        left.order,
    )
    d = float(event.delta)
    after = {outcome: transcripts(rest, plan[1:], outcome, ignore) for outcome in ("up", "down")}
    found = [(d, 0.0), (0.0, d)]  # a failure says which of the two worlds it is
    for outcome, p, q in law(event.event):
        found.extend(((1 - d) * p * x, (1 - d) * q * y) for x, y in after[outcome])
    return found


def spent_delta(budget: Budget, plan: list[dict[str, Choice]], *, ignore: bool = False) -> float:
    """The exact delta at the promised epsilon, the larger of both directions."""
    caps = budget.cap_cost_units, budget.cap_delta_units
    found = transcripts(Remainder(*caps, *caps, budget.order), plan, "", ignore)
    ratio = math.exp(budget.epsilon)
    return max(
        math.fsum(max(p - ratio * q, 0.0) for p, q in found), math.fsum(max(q - ratio * p, 0.0) for p, q in found)
    )


PARTS = st.one_of(st.just(1.0), st.floats(0.05, 1.0))
CHOICES = st.tuples(st.booleans(), PARTS, PARTS)
PLANS = st.tuples(st.fixed_dictionaries({"": CHOICES}), st.fixed_dictionaries({"up": CHOICES, "down": CHOICES})).map(
    list
)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    plan=PLANS,
    epsilon=st.sampled_from([0.5, 1.0, 2.0]),
    delta=st.sampled_from([1e-3, 1e-2, 0.1]),
    share=st.sampled_from([Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)]),
)
def test_the_filter_keeps_its_promise_with_failures(
    plan: list[dict[str, Choice]], epsilon: float, delta: float, share: Fraction
) -> None:
    """Every adaptive pair of releases that the filter admits is (epsilon, delta)-DP, by enumeration of all outcomes."""
    assert spent_delta(Budget(epsilon, delta, share), plan) <= delta * (1 + 1e-12)


def test_the_enumeration_finds_a_filter_that_does_not_count_failures() -> None:
    """Eight releases, each with the whole share: counted, the promise holds; not counted, it is broken."""
    budget = Budget(1.0, 0.01, Fraction(9, 10))
    every = {"up": (False, 0.1, 1.0), "down": (False, 0.1, 1.0)}
    plan: list[dict[str, Choice]] = [{"": (False, 0.1, 1.0)}, *[every] * 7]
    assert 0.9 * budget.delta * (1 - 1e-9) <= spent_delta(budget, plan) <= budget.delta
    assert spent_delta(budget, plan, ignore=True) > 2 * budget.delta
