"""Useless requests: refused before the debit, paid for if one insists, and what was said stays with the model."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

import bursar
import bursar.aio
from bursar._preview import with_forecast
from bursar_models.forecasts import Forecast
from bursar_proto.v1 import catalog_pb2
from tests.client.line import Line

ASKED = bursar.DPEM(n_components=2)
LITTLE = bursar.rho(1e-6)


def entries(client: bursar.Client) -> int:
    """Return how many entries the ledger has."""
    asked, metadata = catalog_pb2.GetHistoryRequest(), client._connection.metadata
    return client._connection.catalog.GetHistory(asked, metadata=metadata).size


def test_a_useless_request_is_refused_and_changes_nothing(lone: bursar.Dataset, client: bursar.Client) -> None:
    """It says why, and what would help; the ledger and what is left are as they were."""
    preview = lone.preview(ASKED, spend=LITTLE)
    assert preview.useless
    assert preview.affordable
    assert "warning: useless: the noise of a mean is" in repr(preview)
    before, left = entries(client), lone.limits()
    with pytest.raises(
        bursar.InvalidRequestError, match=r"nothing was debited: spend: useless: .*; spend more.*anyway=True"
    ):
        lone.fit(ASKED, spend=LITTLE)
    assert lone.limits() == left
    assert len(lone.releases()) == 0
    assert entries(client) == before


@pytest.mark.parametrize(
    ("asked", "spend"),
    [
        (ASKED, LITTLE),
        (bursar.DPEM(n_components=2, mode="kmeans"), LITTLE),
        (bursar.SketchKMeans(n_clusters=3, decoding="none"), LITTLE),
        (bursar.MRF(cliques="tree"), bursar.pure(0.001)),
        (bursar.GradientEM(model="gaussian_mixture", n_components=2), LITTLE),
        (bursar.SeparatedGMM(n_components=2, sigma_min=2, sigma_max=8), LITTLE),
    ],
    ids=["mixture", "k-means", "sketch", "field", "gradient", "separated"],
)
def test_who_insists_pays_and_keeps_the_warnings(toy: bursar.Dataset, asked: Any, spend: bursar.Spend) -> None:
    """All five fits: refused, then paid; the model has what the preview said, also in a file and when fetched again."""
    told = toy.preview(asked, spend=spend)
    assert told.useless
    with pytest.raises(bursar.InvalidRequestError, match="useless"):
        toy.fit(asked, spend=spend)
    model = toy.fit(asked, spend=spend, anyway=True)
    assert model.warnings == told.warnings
    assert model.receipt.warnings == told.warnings
    assert type(model).from_dict(model.to_dict()).warnings == told.warnings
    assert toy.model(model.receipt).warnings == told.warnings
    # What is paid for is fetched without insisting.
    again = toy.fit(asked, spend=spend, request_id=model.receipt.request_id)
    assert again.receipt.replayed
    assert again.warnings == told.warnings


def test_insisting_is_no_part_of_what_is_asked(server: Line, toy: bursar.Dataset) -> None:
    """The names of fits that are left out do not depend on it, so a fit that was cut off is found by either way."""
    first = toy.fit(ASKED, spend=bursar.rho(0.1), anyway=True)
    assert not first.warnings
    with pytest.warns(bursar.RepeatedFitWarning):
        second = toy.fit(ASKED, spend=bursar.rho(0.1))
    assert first.receipt is not None
    assert second.receipt is not None
    assert first.receipt.request_id.split("-")[0] == second.receipt.request_id.split("-")[0]
    assert server.careful == [False, True]


def test_awaited_fits_are_refused_alike(client: bursar.Client) -> None:
    """`anyway` goes through."""

    async def ask(*, anyway: bool) -> bursar.GaussianMixture:
        data = await bursar.aio.Client(client).dataset("toy")
        return await data.fit(ASKED, spend=LITTLE, anyway=anyway)

    with pytest.raises(bursar.InvalidRequestError, match="useless"):
        asyncio.run(ask(anyway=False))
    assert asyncio.run(ask(anyway=True)).warnings


def test_a_dry_run_is_never_refused(toy: bursar.Dataset) -> None:
    """It costs nothing, and shows what noise looks like."""
    assert toy.dry_run(ASKED, spend=LITTLE, rows=100).warnings == ()


def test_a_forecast_is_judged_in_the_place_of_the_rule_of_thumb(lone: bursar.Dataset) -> None:
    """One preview never says both that nothing is left of an answer and that errors are small."""
    little, enough = (lone.preview(ASKED, spend=spend) for spend in (LITTLE, bursar.rho(10.0)))
    assert (little.useless, enough.useless) == (True, False)
    widths = lone._widths(ASKED)

    def foretold(part: float) -> Forecast:
        errors = {"mean_error": {name: part * widths[name] for name in ("height", "weight")}}
        return Forecast(like="a guess", guessed=True, replicates=12, rows=100, expected=errors, low=errors, high=errors)

    small = foretold(0.01)
    good = with_forecast(little, small, widths, None)
    assert not good.useless
    assert good.expected["mean_error"] == small.expected["mean_error"]
    assert not [one for one in good.warnings if one.startswith(("useless", "rough"))]
    assert "a rule of thumb calls this useless, the forecast does not; fit with the same like=" in good.warnings[-1]
    bad = with_forecast(enough, foretold(0.4), widths, None)
    assert bad.useless
    assert bad.warnings[0] == "useless: the noise of a mean is 40 % of the range of 'height' at best"
    assert "a guess from the public schema alone" in repr(little)
    assert "a guess from the public schema alone" not in repr(good)


def test_widths_are_those_of_the_space_of_a_fit(lone: bursar.Dataset) -> None:
    """A forecast of logarithms is compared with the range of logarithms."""
    plain = lone._widths(bursar.MRF())
    logs = lone._widths(bursar.DPEM(n_components=2, transform={"weight": "log1p"}))
    weight = next(column for column in lone.columns if column.name == "weight")
    assert logs["height"] == plain["height"]
    assert isinstance(weight, bursar.NumericColumn)
    assert logs["weight"] == pytest.approx(math.log1p(weight.upper) - math.log1p(weight.lower))


def test_a_fit_with_a_forecast_is_judged_by_it(
    server: Line, toy: bursar.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's rule of thumb plays no part then: not where the forecast is better, nor where it is worse."""
    guess = bursar.Guess(weights=[1, 1], spread={"height": 1, "weight": 1})
    verdict = [False]

    def foretold(self: bursar.Dataset, request: Any, spend: Any, found: bursar.Preview, *_: Any) -> bursar.Preview:
        errors = {"mean_error": {"height": 1.0}}
        made = Forecast(like="a guess", guessed=True, replicates=12, rows=100, expected=errors, low=errors, high=errors)
        return replace(found, forecast=made, warnings=("useless: it was foretold",), useless=verdict[0])

    monkeypatch.setattr(bursar.Dataset, "_foretold", foretold)
    assert toy.preview(ASKED, spend=LITTLE).useless
    assert toy.fit(ASKED, spend=LITTLE, like=guess).receipt is not None
    plan = toy.plan([ASKED], spend=LITTLE, like=guess)
    assert toy.run(plan)[0].receipt is not None
    assert server.careful == [False, False]
    verdict[0] = True
    with pytest.raises(bursar.InvalidRequestError, match="it was foretold"):
        toy.fit(ASKED, spend=bursar.rho(0.1), like=guess)
    with pytest.raises(bursar.InvalidRequestError, match="it was foretold"):
        toy.run(toy.plan([ASKED], spend=bursar.rho(0.1), like=guess))
    assert server.careful == [False, False]
    assert toy.fit(ASKED, spend=bursar.rho(0.1), like=guess, anyway=True).receipt is not None
