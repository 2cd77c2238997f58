"""Purchases: they are listed, and can be had again free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bursar
from bursar._releases import _pages, _release_from
from bursar_proto.v1 import catalog_pb2
from tests import asking
from tests.client.line import Line, when_released

SPEND: dict[str, Any] = {"spend": bursar.rho(0.1)}


def buy_all(toy: bursar.Dataset) -> list[Any]:
    """A model of every fit, in order of their entries; of a sketch, the sketch."""
    return [
        asking.fit(toy, bursar.DPEM, n_components=2, **SPEND),
        asking.fit(toy, bursar.DPEM, n_components=2, mode="kmeans", **SPEND),
        asking.fit(toy, bursar.MRF, cliques="tree", **SPEND),
        asking.fit(toy, bursar.GradientEM, model="missing_covariates", target="weight", **SPEND),
        asking.fit(toy, bursar.SeparatedGMM, n_components=2, sigma_min=1.0, sigma_max=20.0, **SPEND),
        asking.fit(toy, bursar.SketchKMeans, decoding="none", n_clusters=2, **SPEND),
    ]


def without_receipt(model: Any) -> dict[str, Any]:
    """All of it but what asking again changes."""
    return {name: value for name, value in model.to_dict().items() if name != "receipt"}


def test_every_model_can_be_had_again(server: Line, client: bursar.Client, toy: bursar.Dataset) -> None:
    """An entry, a receipt or a line of the list will do, from dataset or client; nothing is debited."""
    bought = buy_all(toy)
    listed = client.releases()
    assert [one.entry for one in listed] == [model.receipt.entry for model in bought]
    for model, summary in zip(bought, listed, strict=True):
        for again in (toy.model(summary.entry), client.model(model.receipt), client.model(summary)):
            assert type(again) is type(model)
            assert without_receipt(again) == without_receipt(model)
            assert again.receipt is not None
            assert again.receipt.entry == summary.entry
            assert again.receipt.replayed
            assert again.receipt == model.receipt
    assert len(client.releases()) == len(bought)
    assert len(server.requests) == 2


def test_another_client_gets_every_model(server: Line, toy: bursar.Dataset) -> None:
    """One that sent none of the requests, as in another program: the same models, types included."""
    bought = buy_all(toy)
    with server.client() as other:
        for model in bought:
            again = other.dataset("toy").model(model.receipt.entry)
            assert type(again) is type(model)
            assert without_receipt(again) == without_receipt(model)


def test_a_fit_that_broke_off_is_had_by_its_entry(server: Line, toy: bursar.Dataset) -> None:
    """It was paid for, and the server finished it."""
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError):
        asking.fit(toy, bursar.DPEM, n_components=2, **SPEND)
    (release,) = toy.releases()
    model = when_released(lambda: toy.model(release))
    assert isinstance(model, bursar.GaussianMixture)
    assert len(toy.releases()) == 1


@pytest.mark.parametrize("entry", [1, 3, 10**6, 2**62])
def test_an_entry_that_is_no_debit_is_refused(toy: bursar.Dataset, entry: int) -> None:
    """Those before, between and after."""
    asking.fit(toy, bursar.DPEM, n_components=1, **SPEND)
    with pytest.raises(bursar.NotFoundError, match="this entry is no debit of yours"):
        toy.model(entry)


@pytest.mark.parametrize("entry", [0, -1, 2**63, True - 1, "8", None, 8.0, np.int64(0)])
def test_what_is_no_entry_is_refused(toy: bursar.Dataset, entry: Any) -> None:
    """The refusal comes before anything is sent."""
    with pytest.raises(bursar.InvalidRequestError, match="entry: must be a whole number"):
        toy.model(entry)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (
            lambda answer: answer.ClearField("dpem"),
            bursar.ServerError,
            "a kind of model that this client does not know",
        ),
        (lambda answer: answer.dpem.ClearField("means"), bursar.ServerError, "sent 0 values for an array"),
        (lambda answer: answer.sketch_kmeans.SetInParent(), bursar.ServerError, "sent 0 where this client knows"),
        (
            lambda answer: setattr(answer.receipt, "dataset", "other"),
            bursar.NotFoundError,
            "of the ledger is a debit of yours on 'other', not on 'toy'",
        ),
    ],
)
def test_a_release_that_is_not_what_was_asked_for_is_refused(
    server: Line, client: bursar.Client, change: Callable[[Any], None], error: type[bursar.Error], said: str
) -> None:
    """Releases of a newer kind, broken ones, and those of another dataset are refused."""
    toy = client.dataset("toy")
    receipt = asking.fit(toy, bursar.DPEM, n_components=1, **SPEND).receipt
    assert receipt is not None
    server.changes["CatalogService/GetRelease"] = change
    with pytest.raises(error, match=said):
        toy.model(receipt.entry)
    if error is bursar.NotFoundError:
        assert isinstance(client.model(receipt.entry), bursar.GaussianMixture)


def test_a_receipt_of_another_ledger_is_refused(toy: bursar.Dataset) -> None:
    """An entry of the same number is another model."""
    receipt = asking.fit(toy, bursar.DPEM, n_components=1, **SPEND).receipt
    assert receipt is not None
    with pytest.raises(bursar.NotFoundError, match="another debit than the receipt's"):
        toy.model(replace(receipt, ledger_head="00" * 32))


def test_releases_show_themselves(client: bursar.Client, toy: bursar.Dataset) -> None:
    """They are a table, and one of HTML with everything escaped."""
    assert repr(client.releases()).startswith("0 releases\n")
    asking.fit(toy, bursar.DPEM, n_components=1, **SPEND)
    releases = client.releases()
    lines = repr(releases).splitlines()
    assert lines[0] == "1 release"
    assert lines[1].split() == ["entry", "dataset", "method", "state", "paid", "time"]
    assert lines[2].split()[1:5] == ["toy", "FitDPEM", "released", "epsilon"]
    assert "<td>FitDPEM</td>" in releases._repr_html_()


def test_the_receipt_of_a_release_is_compared_with_what_was_seen(server: Line, client: bursar.Client) -> None:
    """A server that shows another head with a model than with its debit has two histories."""
    server.break_next(3)
    with pytest.raises(bursar.UnavailableError):
        asking.fit(client.dataset("toy"), bursar.DPEM, n_components=1, **SPEND)
    (release,) = client.releases()
    server.changes["CatalogService/GetRelease"] = lambda answer: setattr(answer.receipt, "ledger_head", bytes(32))
    with pytest.raises(bursar.HistoryError, match="two different histories"):
        when_released(lambda: client.model(release))


@pytest.mark.parametrize(
    ("tokens", "asked"), [([0], [0]), ([3, 7, 0], [0, 3, 7]), ([3, 3, 9], [0, 3]), ([5, 2], [0, 5])]
)
def test_pages_are_asked_for_until_there_are_no_more(tokens: list[int], asked: list[int]) -> None:
    """Each by the token of the one before it; a token that does not grow would never end."""
    seen: list[int] = []

    def page(token: int) -> catalog_pb2.ListReleasesResponse:
        seen.append(token)
        return catalog_pb2.ListReleasesResponse(next_page_token=tokens[len(seen) - 1])

    assert len(_pages(page)) == len(asked)
    assert seen == asked


@pytest.mark.parametrize("state", bursar.ReleaseState)
def test_a_summary_has_the_state_that_was_sent(state: bursar.ReleaseState) -> None:
    """A fit that failed is not one that was interrupted: its request_id never gets a model."""
    wire = catalog_pb2.ReleaseState.Value(f"RELEASE_STATE_{state.name}")
    assert _release_from(catalog_pb2.ReleaseSummary(state=wire)).state is state
