"""Plans: prices of several fits, and which of them the budget allows in this order."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar._plan import plan
from bursar_models.budget import Limits, Price, Remaining
from bursar_models.requests import Study
from tests.client.line import Line

UNIT = 2**40


def left(rho: float, delta_units: int = 10, cap: float = 10.0) -> Remaining:
    """A budget, at Renyi order 10."""
    return Remaining(int(10 * rho * UNIT), delta_units, int(10 * cap * UNIT), 20, rho, 0.0, 10.0, 1e-6)


def priced(rho: float, *, delta_units: int = 0, affordable: bool = True) -> bursar.Preview:
    """A preview of a fit with this price."""
    price = Price(int(10 * rho * UNIT), delta_units, rho)
    known: dict[str, Any] = {"remaining": left(1), "available": left(1), "fits_left": 1, "noise": (), "iterations": 1}
    return bursar.Preview(price=price, affordable=affordable, **known)


def planned(limits: Limits, *previews: bursar.Preview) -> bursar.Plan:
    """A plan of fits with these previews."""
    waiting = list(previews)
    requests = tuple(bursar.DPEM(n_components=k) for k in range(1, len(previews) + 1))
    study = Study("study", "toy", requests, (bursar.rho(1),) * len(requests))
    return plan(study, lambda request, amount: waiting.pop(0), limits)


def verdicts(found: bursar.Plan) -> list[bool]:
    """Return which fits are affordable."""
    return [one.affordable for one in found.fits]


def test_prices_add_up_in_order() -> None:
    """An affordable fit is taken, another is passed over, and later ones are compared with what is left without it."""
    found = planned(Limits(left(1.0), None, None, left(1.0)), priced(0.5), priced(0.75), priced(0.5), priced(0.25))
    assert verdicts(found) == [True, False, True, False]
    assert [one.left.rho for one in found.fits] == [0.5, 0.5, 0.0, 0.0]
    assert (found.total.cost_units, found.total.delta_units, found.total.rho) == (20 * UNIT, 0, 2.0)
    assert not found.affordable
    assert str(found.total) == "epsilon 21.2 (20%)"
    assert repr(found).splitlines()[0] == (
        f"Plan: 4 fits for {found.total} of {found.limits.dataset} left; they do not fit together: 2 of them "
        "affordable in this order, though each alone would be; 50% of every spend would fit"
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
    assert found.fits[0].left.rho == 0.5


def test_a_plan_asks_for_previews_only(toy: bursar.Dataset) -> None:
    """Spends are one for all or one for each; a fit from earlier releases alone costs nothing."""
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


FITS = [bursar.DPEM(n_components=2), bursar.MRF(cliques="tree"), bursar.DPEM(n_components=3)]


def test_a_total_is_divided_and_never_exceeded(lone: bursar.Dataset) -> None:
    """Parts are as the shares, in units of the ledger, and use all but a few units of the total."""
    cap, order = lone.remaining().cap_cost_units, Fraction(lone.remaining().order)
    wholes: list[tuple[bursar.Spend, Fraction | int]] = [
        (bursar.percent(10), Fraction(cap, 10)),
        (bursar.percent(33.3), cap * Fraction(33.3) / 100),
        (bursar.what_is_left(), lone.remaining().cost_units),
        (bursar.rho(0.1), 2**40 * order * Fraction(0.1)),
        (
            bursar.epsilon_delta(1.0, 1e-6),
            lone.preview(FITS[0], spend=bursar.epsilon_delta(1.0, 1e-6)).price.cost_units,
        ),
    ]
    for total, whole in wholes:
        for shares in (None, [1, 2, 4], [0.3, 0.3, 0.3]):
            found = lone.plan(FITS, total=total, shares=shares)
            spent = [one.preview.price.cost_units for one in found.fits]
            assert found.total.cost_units == sum(spent)
            assert whole - 1000 <= sum(spent) <= whole
            weights = shares or [1, 1, 1]
            assert spent == pytest.approx([float(whole) * one / sum(weights) for one in weights], rel=1e-6)


def test_percents_are_planned_as_they_are_fitted(lone: bursar.Dataset) -> None:
    """One for all, or one for each; without a total, shares divide what is left."""
    cap, left = lone.remaining().cap_cost_units, lone.remaining().cost_units
    same = lone.plan(FITS, spend=bursar.percent(10))
    each = lone.plan(FITS, spend=[bursar.percent(10), bursar.rho(0.1), bursar.percent(5)])
    assert same.fits[0].preview.price == lone.preview(FITS[0], spend=bursar.percent(10)).price
    assert [one.preview.price.cost_units / cap for one in same.fits] == pytest.approx([0.1] * 3, rel=1e-9)
    assert each.fits[2].preview.price.cost_units == pytest.approx(cap / 20, rel=1e-9)
    assert each.fits[1].spend == bursar.rho(0.1)
    assert left - 1000 <= lone.plan(FITS, shares=[1, 2, 3]).total.cost_units <= left


def test_a_pure_total_is_divided_as_epsilons_are(lone: bursar.Dataset) -> None:
    """They add up; the ledger charges no more than for one of that epsilon."""
    found = lone.plan(FITS, total=bursar.pure(0.5), shares=[1, 2, 2])
    assert [one.spend for one in found.fits] == [bursar.pure(0.1), bursar.pure(0.2), bursar.pure(0.2)]
    assert found.total.cost_units <= lone.preview(FITS[0], spend=bursar.pure(0.5)).price.cost_units


def test_ten_fits_of_ten_percent_fit(lone: bursar.Dataset) -> None:
    """And nothing of them is left over that another could ask for."""
    tenth = lone.preview(FITS[0], spend=bursar.percent(10))
    assert tenth.fits_left == 10
    assert lone.preview(FITS[0], spend=bursar.percent(100)).affordable
    cap = tenth.remaining.cap_cost_units
    assert cap / 10 - 2 <= tenth.price.cost_units <= cap / 10


@pytest.mark.parametrize("value", [0, -1, 100.1, float("nan"), float("inf"), "10"])
def test_what_is_no_part_of_a_budget_is_refused(value: Any) -> None:
    """Above 0, and at most all of it."""
    with pytest.raises(bursar.InvalidRequestError, match=r"spend\.percent"):
        bursar.percent(value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": bursar.rho(1), "spend": bursar.rho(1)},
        {"spend": bursar.rho(1), "shares": [1, 1, 1]},
        {"shares": [1, 1]},
        {"total": bursar.rho(1), "shares": [1, 1]},
        {"total": bursar.rho(1), "shares": [0, 0, 0]},
        {"total": bursar.rho(1), "shares": [1, 1, -1]},
        {"total": bursar.rho(1), "shares": [1, 1, float("nan")]},
    ],
)
def test_totals_and_shares_that_do_not_go_together_are_refused(toy: bursar.Dataset, wrong: dict[str, Any]) -> None:
    """The refusal comes before any question to the server."""
    with pytest.raises(bursar.InvalidRequestError):
        toy.plan(FITS, **wrong)


def test_two_that_do_not_fit_together_say_so(lone: bursar.Dataset) -> None:
    """Each preview alone says that it is affordable; the plan says what part of both would be."""
    found = lone.plan(FITS[:2], spend=bursar.rho(lone.available().rho * 0.75))
    assert [one.preview.affordable for one in found.fits] == [True, True]
    assert verdicts(found) == [True, False]
    assert found.largest == pytest.approx(1 / 1.5, rel=1e-6)
    assert "each alone would be; 66.6% of every spend would fit" in repr(found)
    with pytest.raises(bursar.InvalidRequestError, match="does not fit into the budget, nothing was debited"):
        lone.run(found)
    assert len(lone.releases()) == 0


def test_a_plan_is_kept_in_a_file_and_run_once(lone: bursar.Dataset, server: Line, tmp_path: Path) -> None:
    """One by one, then the rest, from another client too: what is paid is fetched, at the foretold price."""
    path = tmp_path / "study.json"
    found = lone.plan(FITS, total=bursar.percent(60))
    found.save(path)
    again = lone.load_plan(path)
    assert again.study == found.study
    assert again.total == found.total
    first = lone.run(again, only=[1], anyway=True)
    assert [type(model) for model in first] == [bursar.MarkovRandomField]
    with server.client() as other:
        data = other.dataset(lone.name)
        halfway = data.load_plan(path)
        assert [one.paid for one in halfway.fits] == [False, True, False]
        assert halfway.affordable
        models = data.run(halfway, anyway=True)
        assert models[1].receipt.entry == first[0].receipt.entry
        assert [model.receipt.request_id for model in models] == list(found.study.request_ids)
        entries = [model.receipt.entry for model in data.run(data.load_plan(path), anyway=True)]
    assert entries == [model.receipt.entry for model in models]
    assert len(lone.releases()) == 3
    left = lone.remaining()
    assert left.cap_cost_units - left.cost_units == found.total.cost_units
    done = lone.load_plan(path)
    assert done.affordable
    assert done.unpaid.cost_units == 0
    assert "3 paid" in repr(done)


def test_a_cut_plan_goes_on(lone: bursar.Dataset, server: Line) -> None:
    """An error in the middle leaves what is paid; the same call pays the others once."""
    found = lone.plan(FITS[::2], total=bursar.percent(50))
    server.before["FitService/FitDPEM"] = lambda request: _refuse_second(request)
    with pytest.raises(bursar.Error):
        lone.run(found, anyway=True)
    server.before.clear()
    assert len(lone.releases()) == 1
    assert len(lone.run(found, anyway=True)) == 2
    assert [one.request_id for one in lone.releases()] == list(found.study.request_ids)


def _refuse_second(request: Any) -> None:
    if request.n_components == 3:
        raise ValueError("cut")


def test_useless_plans_are_refused_as_a_whole(lone: bursar.Dataset) -> None:
    """The refusal comes before the first is paid, though that one alone would be useful."""
    found = lone.plan(FITS[::2], spend=[bursar.rho(0.05), bursar.rho(1e-7)])
    assert "useless: mean_error" in repr(found)
    with pytest.raises(bursar.InvalidRequestError, match=r"useless: .*nothing was debited, anyway=True"):
        lone.run(found)
    assert len(lone.releases()) == 0


def test_a_plan_of_another_dataset_is_refused(toy: bursar.Dataset, lone: bursar.Dataset, tmp_path: Path) -> None:
    """So is a file that holds none."""
    found = lone.plan(FITS, total=bursar.percent(10))
    found.save(tmp_path / "study.json")
    for call in (lambda: toy.run(found), lambda: toy.load_plan(tmp_path / "study.json")):
        with pytest.raises(bursar.InvalidRequestError, match="is of dataset 'lone-"):
            call()
    for content in ("", "[]", "{}", '{"kind": "Plan", "version": 2}', json.dumps({"kind": "Plan", "version": 1})):
        (tmp_path / "wrong.json").write_text(content)
        with pytest.raises(bursar.InvalidRequestError, match="holds no plan"):
            toy.load_plan(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    "spend", [[1], 1, True, "all", 0.5, {}, {"kind": "rho"}, {"kind": []}, {"kind": "rho", "value": "x"}]
)
def test_a_spend_that_is_none_is_no_plan(spend: Any, tmp_path: Path) -> None:
    """Owners read plans that analysts sent: whatever is in one, there is an error and no traceback."""
    path = tmp_path / "study.json"
    Study("a", "toy", (FITS[0],), (bursar.rho(0.1),)).save(path)
    content = json.loads(path.read_text())
    content["fits"][0]["spend"] = spend
    path.write_text(json.dumps(content))
    with pytest.raises(bursar.InvalidRequestError):
        Study.load(path)


@pytest.mark.parametrize("spend", [bursar.rho(0.1), bursar.epsilon_delta(1.0, 1e-6), bursar.pure(0.5), None])
def test_a_file_keeps_every_amount(spend: Any, tmp_path: Path) -> None:
    """The amounts are equal to the last digit."""
    study = Study("a", "toy", (FITS[0],), (spend,))
    study.save(tmp_path / "study.json")
    assert Study.load(tmp_path / "study.json") == study
