"""Attacks by numbers: amounts that compare, add, convert or round in the attacker's favour."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING

import dp_accounting
import pytest
from dp_accounting import rdp as dp_rdp
from hypothesis import given
from hypothesis import strategies as st

from bursar_amounts import divergence_cap
from bursar_ledger import (
    COST_UNIT,
    Adjacency,
    Budget,
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
    cost_units,
)
from bursar_proto.v1 import types_pb2
from bursar_server.vault import Bounds, sensitivity
from tests.attacks.conftest import BUDGET
from tests.attacks.purses import AnythingLeft, Ask, Bursar, FloatSum, NegatedComparison, Purse, Rival

if TYPE_CHECKING:
    from tests.attacks.conftest import Pair
    from tests.server.serving.conftest import Refusal

Refused = Callable[[Callable[[], object]], "Refusal"]

NAN, INF = math.nan, math.inf


def twice_most_of_it(purse: Purse) -> Fraction:
    """Sixty hundredths, twice."""
    for _ in range(2):
        purse.ask(Fraction(6, 10))
    return purse.loss


def test_enough_must_be_left_not_something(purse: Bursar) -> None:
    """Leave a little, then ask for more than that (Jeddak-DPSQL asks whether anything is left)."""
    assert twice_most_of_it(purse) == Fraction(6, 10)


def test_the_rival_asks_whether_something_is_left() -> None:
    """The same attack overspends by a fifth."""
    assert twice_most_of_it(AnythingLeft()) > 1


def slivers(purse: Purse) -> Fraction:
    """Return what the purse did not count: half of it, then a hundred answers of 2^-60 each."""
    purse.ask(Fraction(1, 2))
    for _ in range(100):
        purse.ask(Fraction(1, 2**60))
    return purse.loss - purse.spent


def test_small_prices_are_not_swallowed_by_large_sums(purse: Bursar) -> None:
    """Ask for so little that adding it changes no float; here the smallest price is one whole unit.

    Most libraries add floats; OpenDP rounds them up, Tumult has rationals.
    """
    assert slivers(purse) < 0


def test_the_rival_swallows_slivers() -> None:
    """The same attack gets a hundred answers for nothing."""
    assert slivers(FloatSum()) == Fraction(100, 2**60)


def test_the_exact_remainder_can_be_spent_and_not_a_unit_more(purse: Bursar) -> None:
    """Ask for what the server says is left, to the last unit (OpenDP #2789: floats refuse it)."""
    for share in (Fraction(1, 10), Fraction(2, 10), Fraction(1, 3)):
        purse.ask(share)
    left = purse.left
    assert purse.ask(left + Fraction(1, purse.ledger.dataset("people").cap_cost_units)) is None
    assert purse.ask(left) is not None
    assert purse.spent == 1
    assert purse.ask(Fraction(1, 2**200)) is None


def test_the_rival_refuses_its_own_remainder() -> None:
    """Two, four and three tenths leave one tenth, but not in floats."""
    rival = Rival()
    assert [rival.ask(share) is not None for share in (0.2, 0.4, 0.3, 0.1)] == [True, True, True, False]


SPENDS: dict[str, Callable[[float], types_pb2.Spend]] = {
    "rho": lambda x: types_pb2.Spend(rho=x),
    "epsilon": lambda x: types_pb2.Spend(epsilon=x),
    "epsilon_delta": lambda x: types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=x, delta=1e-6)),
    "delta": lambda x: types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=0.1, delta=x)),
}
SENSELESS = [NAN, INF, -INF, -1.0, -0.0, 0.0, -5e-324, 1e308]


@pytest.mark.parametrize("unit", SPENDS)
@pytest.mark.parametrize("amount", SENSELESS)
def test_amounts_without_sense_buy_nothing(pair: Pair, refused: Refused, unit: str, amount: float) -> None:
    """Send NaN, infinities, zeros of both signs, negatives and the largest double in every unit of spending.

    Seen in Lomas (a typing slip, `gte=0`, lets -5 and NaN through) and in openmed #2457.
    """
    head = pair.ledger.head()
    refused(lambda: pair.fit("here", spend=SPENDS[unit](amount)))
    assert pair.ledger.head() == head


def test_amounts_of_sense_are_answered(pair: Pair) -> None:
    """The same calls with sensible amounts get models, so that the refusals above mean something."""
    for unit, amount in (("rho", 1e-4), ("epsilon", 0.01), ("epsilon_delta", 0.1), ("delta", 1e-6)):
        assert pair.fit("here", spend=SPENDS[unit](amount))[-1].HasField("model")


def test_rivals_sell_what_is_no_number() -> None:
    """A purse that refuses when the sum is above the cap sells NaN and everything after it, and pays for negatives."""
    purse = NegatedComparison()
    assert purse._answer(Ask(NAN)) is not None
    assert purse.ask(100.0) is not None
    purse = NegatedComparison()
    purse.ask(-5.0)
    assert purse.ask(6.0) is not None


@pytest.mark.parametrize("value", [NAN, INF, -1.0, 0.5, 0, -1, True, Fraction(-1, 2), Fraction(0)])
def test_events_without_sense_cannot_be_made(value: float) -> None:
    """No event, even inside the server, has a scale, epsilon or sensitivity that is not a positive rational."""
    for make in (
        lambda: GaussianEvent(1, value),  # type: ignore[arg-type]
        lambda: LaplaceEvent(1, value),  # type: ignore[arg-type]
        lambda: PureEvent(value),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="must be a positive"):
            make()


# Finite laws as pairs (P, Q). A filter that goes on while the sum fits at *some* order of a grid seems better, and is
# none: the example spends 1.95 delta with two orders. All numbers are computed here, none is taken on trust.
Law = tuple[tuple[float, ...], tuple[float, ...]]
EPSILON, DELTA = 3.0, 1e-5
ORDERS = (Fraction("5.758"), Fraction("14.348"))


def law(probability: float, loss: float) -> Law:
    """One outcome of a probability under P and a privacy loss, and the rest."""
    other = probability * math.exp(-loss)
    return (probability, 1 - probability), (other, 1 - other)


FIRST, AFTER_RARE, AFTER_COMMON = law(2.58e-4, 0.9346), law(0.5686, 2.1344), law(6.26e-5, 3.1676)


def renyi(of: Law, order: float) -> float:
    """Renyi divergence, the larger of both directions."""
    p, q = of
    sums = (math.fsum(x**order * y ** (1 - order) for x, y in zip(a, b, strict=True)) for a, b in ((p, q), (q, p)))
    return max(map(math.log, sums)) / (order - 1)


def fits(extension: Law, orders: Iterable[Fraction]) -> bool:
    """Return whether FIRST and then `extension` are below the cap at one of the orders."""
    return any(
        renyi(FIRST, float(order)) + renyi(extension, float(order))
        <= divergence_cap(Fraction(EPSILON), Fraction(DELTA), order)
        for order in orders
    )


def delta_of_the_tree() -> float:
    """Return what FIRST and then the extension that its outcome allows really spend: the sum of (P - e^epsilon Q)_+."""
    (p, q), spent = FIRST, 0.0
    for i, (after_p, after_q) in enumerate((AFTER_RARE, AFTER_COMMON)):
        for x, y in zip(after_p, after_q, strict=True):
            spent += max(p[i] * x - math.exp(EPSILON) * q[i] * y, 0.0)
    return spent


def test_the_order_is_not_chosen_afterwards() -> None:
    """Let what was released decide at which order the rest is counted: at one fixed order no branch is let through.

    PrivateKube's code goes on while some order has room. Such filters are not free (Regehr et al. 2026); one fixed
    order is (Feldman and Zrnic 2021, Lecuyer 2021).
    """
    order = Budget(EPSILON, DELTA, Fraction(0)).order
    assert not fits(AFTER_RARE, [order])
    assert not fits(AFTER_COMMON, [order])


def test_the_rival_that_chooses_the_order_afterwards_overspends() -> None:
    """Both branches have room at some order of the two, and together they spend nearly twice the delta."""
    assert fits(AFTER_RARE, ORDERS)
    assert fits(AFTER_COMMON, ORDERS)
    assert delta_of_the_tree() > 1.9 * DELTA


def test_every_debit_of_a_dataset_has_its_one_order(purse: Bursar) -> None:
    """The price is at the order that was fixed with the promise, whatever was asked before."""
    for share in (Fraction(1, 2), Fraction(1, 3), Fraction(1, 100)):
        purse.ask(share)
    orders = {record.price.order for record in purse.ledger.releases()}
    assert orders == {BUDGET.order}


EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(GaussianEvent, st.integers(1, 1000), st.fractions(1, 10**6, max_denominator=1000), st.integers(1, 3)),
    st.builds(LaplaceEvent, st.integers(1, 1000), st.fractions(1, 10**6, max_denominator=1000), st.integers(1, 3)),
    st.builds(PureEvent, st.fractions(Fraction(1, 1000), 10, max_denominator=1000), st.integers(1, 3)),
    st.builds(SelectionEvent, st.integers(1, 1000), st.fractions(1, 10**6, max_denominator=1000), st.integers(1, 3)),
    st.builds(ConcentratedEvent, st.fractions(Fraction(1, 1000), 10, max_denominator=1000), st.integers(1, 3)),
)


@given(st.lists(EVENTS, min_size=1, max_size=4))
def test_no_order_of_asking_is_cheaper(events: list[Event]) -> None:
    """Ask for the same things in another order or in pieces: together it is one price, in pieces never less.

    Under-reporting accountants were found in smartnoise-sdk's odometer, PySyft (#6914, #6916, #6917) and Qrlew.
    """
    together = cost_units(events, BUDGET.order)
    assert cost_units(events[::-1], BUDGET.order) == together
    assert sum(cost_units([event], BUDGET.order) for event in events) >= together


@given(EVENTS, st.integers(2, 100))
def test_more_noise_never_costs_more_and_repetition_never_less(event: Event, factor: int) -> None:
    """Prices fall with noise and rise with every repetition (the same accountants)."""
    price = cost_units([event], BUDGET.order)
    quieter: Event
    if isinstance(event, PureEvent):
        quieter = dataclasses.replace(event, epsilon=event.epsilon / factor)
    elif isinstance(event, ConcentratedEvent):
        quieter = dataclasses.replace(event, rho=event.rho / factor)
    elif isinstance(event, GaussianEvent | LaplaceEvent | SelectionEvent):
        quieter = dataclasses.replace(event, scale=event.scale * factor)
    else:
        raise TypeError(event)
    assert cost_units([quieter], BUDGET.order) <= price
    assert cost_units([event] * factor, BUDGET.order) >= factor * (price - 1)
    assert cost_units([dataclasses.replace(event, count=event.count * factor)], BUDGET.order) > price or factor == 1


def under_reports(price: Callable[[float, int], float]) -> bool:
    """Return whether a price of k Gaussian releases is ever below an independent accountant's."""
    order = float(BUDGET.order)
    for scale, count in ((3.0, 1), (50.0, 7), (1e4, 1000)):
        oracle = dp_rdp.RdpAccountant([order])
        oracle.compose(dp_accounting.GaussianDpEvent(scale), count)
        if price(scale, count) < float(oracle._rdp[0]) * (1 - 1e-12):
            return True
    return False


def test_prices_are_never_below_an_independent_accountant() -> None:
    """Look for requests that cost more than they are charged (smartnoise-sdk's odometer, PySyft's and Qrlew's sums)."""

    def ours(scale: float, count: int) -> float:
        return cost_units([GaussianEvent(1, Fraction(scale), count)], BUDGET.order) / COST_UNIT

    assert not under_reports(ours)


def test_the_rival_under_reports() -> None:
    """A ledger that counts distinct queries instead of all of them is found out."""
    assert under_reports(lambda scale, count: float(BUDGET.order) / (2 * scale**2))


def test_a_replaced_row_counts_twice_a_removed_one() -> None:
    """Take an accountant whose adjacency is only a label, and get half the noise that replacing a row needs.

    dp_accounting prices REPLACE_ONE as ADD_OR_REMOVE_ONE for Gaussian events (google/differential-privacy #378). Here
    the event itself holds the sensitivity, which is computed from the adjacency.
    """
    bounds = Bounds(l1=1, l2_squared=1, l1_distance=2, l2_squared_distance=4)
    removed = sensitivity(bounds, Adjacency.ADD_REMOVE_ONE, 1)
    replaced = sensitivity(bounds, Adjacency.REPLACE_ONE, 1)
    assert replaced.l2_squared == 4 * removed.l2_squared
    theirs = [
        dp_rdp.RdpAccountant([8.0], relation).compose(dp_accounting.GaussianDpEvent(5.0))._rdp[0]
        for relation in (
            dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
            dp_accounting.NeighboringRelation.REPLACE_ONE,
        )
    ]
    assert theirs[0] == theirs[1]
