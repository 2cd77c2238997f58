"""Plans: prices of several fits, and which of them the budget allows in this order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import bursar
from bursar._plan import plan
from bursar_models.budget import Limits, Price, Remaining

UNIT = 2**40


def left(rho: float, delta_units: int = 10, cap: float = 10.0) -> Remaining:
    """A budget, at Renyi order 10."""
    return Remaining(int(10 * rho * UNIT), delta_units, int(10 * cap * UNIT), 20, rho, 0.0, 10.0)


def priced(rho: float, *, delta_units: int = 0, affordable: bool = True) -> bursar.Preview:
    """A preview of a fit with this price."""
    price = Price(int(10 * rho * UNIT), delta_units, rho)
    known: dict[str, Any] = {"remaining": left(1), "available": left(1), "fits_left": 1, "noise": (), "iterations": 1}
    return bursar.Preview(price=price, affordable=affordable, **known)


def planned(limits: Limits, *previews: bursar.Preview) -> bursar.Plan:
    """A plan of fits with these previews."""
    waiting = list(previews)
    requests = [bursar.DPEM(n_components=k) for k in range(1, len(previews) + 1)]
    return plan(requests, bursar.rho(1), lambda request, amount: waiting.pop(0), limits)


def verdicts(found: bursar.Plan) -> list[bool]:
    """Which fits are affordable."""
    return [one.affordable for one in found.fits]


def test_prices_add_up_in_order() -> None:
    """What fits is taken, what does not is passed over, and later ones are compared with what is left without it."""
    found = planned(Limits(left(1.0), None, None, left(1.0)), priced(0.5), priced(0.75), priced(0.5), priced(0.25))
    assert verdicts(found) == [True, False, True, False]
    assert [one.rho_left for one in found.fits] == [0.5, 0.5, 0.0, 0.0]
    assert found.total == Price(20 * UNIT, 0, 2.0)
    assert not found.affordable
    assert repr(found).splitlines()[0] == (
        "Plan: 4 fits for rho=2 of rho=1 left, 20.0% of the budget; 2 of them affordable in this order"
    )


@pytest.mark.parametrize("place", ["dataset", "allowance"])
def test_delta_and_allowances_add_up_too(place: str) -> None:
    """Each of the budgets has to have room for all."""
    wide = Limits(left(9.0), left(9.0), None, left(9.0))
    three = [priced(0.5, delta_units=4)] * 3
    assert verdicts(planned(wide, *three)) == [True, True, False]
    narrow = replace(wide, **{place: left(1.0, delta_units=99)})
    assert verdicts(planned(replace(narrow, dataset=narrow.dataset), *[priced(0.5)] * 3)) == [True, True, False]


def test_the_most_for_one_request_does_not_add_up() -> None:
    """A server that refuses a single fit says so in its preview."""
    limits = Limits(left(1.0), None, left(0.5), left(0.5))
    found = planned(limits, priced(0.5), priced(0.5), priced(0.1, affordable=False))
    assert verdicts(found) == [True, True, False]
    assert found.fits[0].rho_left == 0.5


def test_a_plan_asks_for_previews_only(toy: bursar.Dataset) -> None:
    """With a spend for all or one for each; what uses earlier releases alone costs nothing."""
    before = toy.remaining()
    requests = [bursar.DPEM(n_components=2), bursar.MRF(cliques="tree")]
    found = toy.plan(requests, spend=bursar.rho(0.1))
    assert found.affordable
    assert [one.request for one in found.fits] == requests
    each = toy.plan(requests, spend=[bursar.rho(0.1), bursar.pure(0.2)])
    assert [one.spend for one in each.fits] == [bursar.rho(0.1), bursar.pure(0.2)]
    assert toy.remaining() == before
    assert len(toy.releases()) == 0
    assert "<table>" in found._repr_html_()
    assert toy.plan([]).affordable


@pytest.mark.parametrize(
    "spend", [[bursar.rho(0.1)], [], bursar.what_is_left(), [bursar.rho(0.1), bursar.what_is_left()]]
)
def test_spends_that_cannot_be_planned_are_refused(toy: bursar.Dataset, spend: Any) -> None:
    """Too few, and those that depend on the fits before them."""
    with pytest.raises(bursar.InvalidRequestError, match="spend: must be"):
        toy.plan([bursar.DPEM(n_components=2), bursar.MRF(cliques="tree")], spend=spend)
