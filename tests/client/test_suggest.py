"""`suggest_spend`: the least spend for an accuracy, found from previews alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import bursar
from bursar._preview import Preview
from bursar._suggest import MOST, TOLERANCE, suggest, suggest_foretold
from tests.client.line import Line

LEFT = bursar.Remaining(9 * 2**40, 0, 10 * 2**40, 0, 0.9, 1.3, 10.0)
NOISE = bursar.ReleaseNoise("moments", 2, 10.0, 5.0, 0.0, 3)


def preview(preflight: bursar.Preflight | None = None, **fields: Any) -> Preview:
    """A preview that tells what a test wants."""
    price = bursar.Price(2**40, 0, 0.1)
    expected = {"mean_error": {"x": 1.0, "y": 2.0}, **fields}
    return Preview(price, LEFT, LEFT, True, 9, noise=(NOISE,), iterations=3, preflight=preflight, expected=expected)


def amount_of(spend: bursar.Spend) -> float:
    """The number in it."""
    return spend.value if isinstance(spend, bursar.Rho) else spend.epsilon  # type: ignore[union-attr]


def asking(law: Callable[[float], float], tried: list[float] | None = None) -> Callable[[bursar.Spend], Preview]:
    """Previews whose error of x follows a law of the amount; what a server would refuse is refused."""

    def ask(spend: bursar.Spend) -> Preview:
        amount = amount_of(spend)
        if tried is not None:
            tried.append(amount)
        if not 1e-6 <= amount <= MOST:
            raise bursar.InvalidRequestError.of("spend.rho", "too small, or too large")
        return preview(mean_error={"x": law(amount)})

    return ask


@pytest.mark.parametrize("first", [1e-8, 1e-3, 0.01, 3.0, 1e5])
@pytest.mark.parametrize("least", [2e-5, 0.4, 700.0])
def test_the_least_amount_is_found_from_everywhere(first: float, least: float) -> None:
    """It is within two per cent and three digits, never below it, whatever was tried first; in few questions."""
    tried: list[float] = []
    target = bursar.Target(mean_error=1.0)
    found = suggest(asking(lambda rho: math.sqrt(least / rho), tried), target, bursar.rho(first))
    assert least <= amount_of(found.spend) <= least * TOLERANCE * 1.01
    assert found.expected["mean_error of x"] <= 1.0
    assert target.met(found.preview)
    assert len(tried) <= 40
    assert len(set(tried)) == len(tried)  # nothing is asked twice


def test_a_promise_that_jumps_is_kept() -> None:
    """The error may rise with the amount where the server chooses other steps; the found amount will do."""

    def law(rho: float) -> float:
        return math.sqrt(0.01 / rho) * (1.5 if 0.02 < rho < 0.05 else 1.0)

    for first in (1e-4, 0.03, 1.0):
        found = suggest(asking(law), bursar.Target(mean_error=0.9), bursar.rho(first))
        assert law(amount_of(found.spend)) <= 0.9


@pytest.mark.parametrize("spend", [bursar.rho(1), bursar.epsilon_delta(1, 1e-6), bursar.pure(2)])
def test_the_kind_is_that_of_what_was_given(spend: bursar.Spend) -> None:
    """The amount is looked for, the rest stays."""
    found = suggest(asking(lambda amount: 0.3 / amount), bursar.Target(mean_error=1), spend).spend
    assert type(found) is type(spend)
    assert 0.3 <= amount_of(found) <= 0.31
    if isinstance(found, bursar.EpsilonDelta):
        assert found.delta == 1e-6


def test_all_that_is_given_has_to_hold() -> None:
    """Errors from above, ratios and counts from below; by column or for all of them."""
    rules = bursar.Preflight(
        margins={"search": 2.0}, predicted_found=3, expected_covariance_error=0.1, suggested_rho=0.1
    )
    one = preview(
        preflight=rules,
        quantile_error={"x": 0.3},
        coef_error={"x": 0.5},
        relative_error=0.2,
        table_error=0.3,
        table_errors={"a, b": 0.1, "b, c": 0.2},
        snr=100.0,
        relative_sse=1.2,
    )
    good: dict[str, Any] = {
        "mean_error": {"x": 1.0},
        "quantile_error": 0.3,
        "coef_error": 0.5,
        "relative_error": 0.2,
        "covariance_error": 0.1,
        "found": 3,
        "table_error": 0.3,
        "table_errors": {"a, b": 0.1},
        "snr": 100,
        "relative_sse": 1.2,
        "noise": {"moments": 10},
    }
    assert bursar.Target(**good).met(one)
    for name, bad in (
        ("mean_error", 1.9),
        ("quantile_error", 0.29),
        ("coef_error", {"x": 0.4}),
        ("relative_error", 0.19),
        ("covariance_error", 0.09),
        ("found", 4),
        ("table_error", 0.29),
        ("table_errors", 0.19),
        ("snr", 101),
        ("relative_sse", 1.19),
        ("noise", {"moments": 9}),
    ):
        assert not bursar.Target(**good | {name: bad}).met(one), name


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ({}, "target"),
        ({"mean_error": 0}, "target.mean_error"),
        ({"mean_error": math.nan}, "target.mean_error"),
        ({"noise": {"moments": -1}}, "target.noise"),
    ],
)
def test_a_target_is_positive_numbers(target: dict[str, Any], field: str) -> None:
    """One number is the least."""
    with pytest.raises(bursar.InvalidRequestError) as refusal:
        bursar.Target(**target)
    assert refusal.value.violations[0][0] == field


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({"snr": 5}, "is not what this fit's preview tells; sketches have it"),
        ({"quantile_error": 5}, "forecasts of mixtures have it: give like"),
        ({"coef_error": 5}, "regressions by gradient EM have it"),
        ({"found": 5}, "separated mixtures have it"),
        ({"mean_error": {"z": 1}}, "'z' is none of x"),
        ({"noise": {"tables": 1}}, "'tables' is none of moments"),
    ],
)
def test_what_a_preview_does_not_tell_is_no_target(target: dict[str, Any], text: str) -> None:
    """It says who has it."""
    with pytest.raises(bursar.InvalidRequestError, match=text):
        suggest(asking(lambda rho: 1 / rho), bursar.Target(**target), bursar.rho(1))


def test_a_target_out_of_reach_says_how_far_one_comes() -> None:
    """Also where only sampling is left: no amount up to the largest does."""
    with pytest.raises(bursar.InvalidRequestError, match=r"no spend reaches it; with epsilon .*mean_error of x 2"):
        suggest(asking(lambda rho: 2.0), bursar.Target(mean_error=1), bursar.rho(1))


def test_a_refusal_for_something_else_is_passed_on() -> None:
    """And so is one of the spend, if no amount was ever accepted."""

    def refuse(field: str) -> Callable[[bursar.Spend], Preview]:
        def ask(spend: bursar.Spend) -> Preview:
            raise bursar.InvalidRequestError.of(field, "is wrong")

        return ask

    for field in ("n_components", "spend"):
        with pytest.raises(bursar.InvalidRequestError, match=f"{field}: is wrong"):
            suggest(refuse(field), bursar.Target(mean_error=1), bursar.rho(1))


def test_what_is_left_is_no_amount_to_begin_with(toy: bursar.Dataset) -> None:
    """It has a price already."""
    with pytest.raises(bursar.InvalidRequestError, match="must be an amount to begin with"):
        toy.suggest_spend(bursar.DPEM(n_components=2), target=bursar.Target(mean_error=1), spend=bursar.what_is_left())


CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dpem": ({"mean_error": 0.3}, {"n_components": 2}),
    "gradient_em": (
        {"coef_error": 0.005, "relative_error": 0.2},
        {"model": "mixture_of_regressions", "target": "weight", "noise_std": 3},
    ),
    "separated_gmm": (
        {"mean_error": 0.3, "found": 2},
        {"n_components": 2, "sigma_min": 1, "sigma_max": 20},
    ),
    "mrf": ({"table_error": 0.02, "table_errors": {"group, spring": 0.015}}, {"cliques": [("group", "spring")]}),
    "sketch_kmeans": ({"snr": 200}, {"n_clusters": 2}),
}


KINDS: dict[str, type[bursar.Request]] = {
    "dpem": bursar.DPEM,
    "gradient_em": bursar.GradientEM,
    "separated_gmm": bursar.SeparatedGMM,
    "mrf": bursar.MRF,
    "sketch_kmeans": bursar.SketchKMeans,
}


@pytest.mark.parametrize("fit", CALLS)
def test_every_fit_has_suggestions(fit: Any, toy: bursar.Dataset, server: Line) -> None:
    """The fit's own arguments are used; only previews are requested, and nothing is debited."""
    wanted, arguments = CALLS[fit]
    found = toy.suggest_spend(KINDS[fit](**arguments), target=bursar.Target(**wanted))
    assert found.target.met(found.preview)
    assert found.affordable
    assert len(toy.releases()) == 0
    assert "left" in repr(found)
    assert ("DPEM(mode=" in repr(found)) == (fit == "sketch_kmeans")


def test_no_other_fit_is_named_for_what_a_sketch_alone_does(toy: bursar.Dataset) -> None:
    """A sketch that is decoded later, or to a mixture, is no k-means."""
    for decoding in ("none", "mixture"):
        request = bursar.SketchKMeans(n_clusters=2, decoding=decoding)
        assert toy.suggest_spend(request, target=bursar.Target(snr=200)).instead == ""


def test_more_than_is_left_is_said(lone: bursar.Dataset) -> None:
    """It is no error: the owner may give more, or one asks for less."""
    found = lone.suggest_spend(bursar.DPEM(n_components=2), target=bursar.Target(mean_error=0.1))
    assert not found.affordable
    assert "which is more than is left" in repr(found)
    assert "mean_error of height" in found._repr_html_()
    html = replace(found, expected={"<b>": 1.0})._repr_html_()
    assert "<b>" not in html


def test_another_fit_is_refused(toy: bursar.Dataset) -> None:
    """Another type of value is refused, and so is a target that is none."""
    with pytest.raises(bursar.InvalidRequestError, match=r"request: must be one of bursar\.DPEM"):
        toy.suggest_spend("kmeans", target=bursar.Target(mean_error=1))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(bursar.InvalidRequestError, match=r"target: must be a bursar\.Target, got float"):
        toy.suggest_spend(bursar.DPEM(n_components=2), target=0.5)  # type: ignore[arg-type]  # on purpose


def forecast_of(error: float) -> bursar.Forecast:
    """A forecast whose single fits are at half and twice the error."""
    numbers = [{"mean_error": {"x": error * part}} for part in (1.0, 0.5, 2.0)]
    expected, low, high = numbers
    return bursar.Forecast(like="a guess", guessed=True, replicates=12, rows=100, expected=expected, low=low, high=high)


@pytest.mark.parametrize(
    ("first", "power", "low", "high"),
    [(bursar.rho(0.01), 0.5, 0.25, 4.0), (bursar.rho(500.0), 0.5, 0.25, 4.0), (bursar.pure(0.1), 1.0, 0.5, 2.0)],
)
def test_a_forecast_is_turned_around_in_few_tries(first: bursar.Spend, power: float, low: float, high: float) -> None:
    """The range is what fits at the ends of the forecast would need."""
    tried: list[float] = []

    def ask(spend: bursar.Spend) -> Preview:
        tried.append(amount_of(spend))
        told = forecast_of(tried[-1] ** -power)
        return replace(preview(), expected=told.expected, forecast=told)

    found = suggest_foretold(ask, bursar.Target(mean_error=0.5), first)
    assert len(tried) <= 3
    assert 0.8 <= found.expected["mean_error of x"] / 0.5 <= 1
    amount = amount_of(found.spend)
    assert found.low is not None
    assert found.high is not None
    # Of what the target itself needs, which the amount is somewhat above.
    least = amount * (found.expected["mean_error of x"] / 0.5) ** (1 / power)
    assert amount_of(found.low) == pytest.approx(low * least, rel=0.02)
    assert amount_of(found.high) == pytest.approx(high * least, rel=0.02)
    assert "one fit in ten would do with" in repr(found)
    wide = replace(forecast_of(1.0), wide=True)
    assert "one fit in twenty would do with" in repr(replace(found, preview=replace(found.preview, forecast=wide)))


def test_a_forecast_that_no_spend_betters_is_said() -> None:
    """The remaining error comes from something else than noise."""
    told = forecast_of(1.0)
    with pytest.raises(bursar.InvalidRequestError, match="no spend reaches it"):
        suggest_foretold(
            lambda spend: replace(preview(), expected=told.expected, forecast=told),
            bursar.Target(mean_error=0.5),
            bursar.rho(1),
        )
