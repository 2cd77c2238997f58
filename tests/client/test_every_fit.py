"""Every fit through the client: what is previewed, refused and repeated. `test_messages.py` says what is sent."""

from __future__ import annotations

from typing import Any

import pytest

import bursar
from bursar._fits import BY_NAME, KINDS
from tests import asking
from tests.client.line import Line

ASKS: dict[str, dict[str, Any]] = {
    "dpem": {"n_components": 2},
    "separated_gmm": {"n_components": 2, "sigma_min": 1, "sigma_max": 20},
    "gradient_em": {"model": "gaussian_mixture"},
    "sketch_kmeans": {"n_clusters": 2, "decoding": "none"},
    "mrf": {"cliques": [("group", "weight"), ("spring", "weight")]},
}
"""A plain request of each kind."""

REQUESTS = {kind.name: request for request, kind in KINDS.items()}
SPEND = bursar.rho(0.1)


def test_no_fit_is_left_out() -> None:
    """A new kind needs a row above."""
    assert set(ASKS) == set(BY_NAME)


@pytest.mark.parametrize("name", ASKS)
def test_a_preview_sends_what_the_fit_sends(server: Line, toy: bursar.Dataset, name: str) -> None:
    """But for the request_id; a preview debits nothing, and tells the price of the receipt."""
    preview = asking.preview(toy, REQUESTS[name], **ASKS[name], spend=SPEND)
    assert toy.releases() == []
    receipt = asking.fit(toy, REQUESTS[name], **ASKS[name], spend=SPEND).receipt
    assert receipt.price == preview.price
    (asked,) = server.previews
    previewed, (sent,) = getattr(asked, name), server.sent(type(getattr(asked, name)))
    assert asked.WhichOneof("fit") == name
    assert previewed.request_id
    previewed.request_id = sent.request_id
    if name == "sketch_kmeans":  # without a seed of the caller's it follows from the request_id
        previewed.new_sketch.public_seed = sent.new_sketch.public_seed
    assert previewed == sent
    request = REQUESTS[name](**ASKS[name])
    assert sent == BY_NAME[name].message(request, toy._asked(SPEND, sent.request_id))


@pytest.mark.parametrize("name", ASKS)
def test_the_same_request_gets_the_same_model(server: Line, toy: bursar.Dataset, name: str) -> None:
    """Streams that break, and a repeated request_id, make one debit; the repetition knows that it is one."""
    first = asking.fit(toy, REQUESTS[name], **ASKS[name], spend=SPEND)
    server.break_next(2)
    again = asking.fit(toy, REQUESTS[name], **ASKS[name], spend=SPEND, request_id=first.receipt.request_id)
    assert (first.receipt.replayed, again.receipt.replayed) == (False, True)
    assert first.receipt == again.receipt
    assert {**first.to_dict(), "receipt": None} == {**again.to_dict(), "receipt": None}
    sent = server.sent(type(BY_NAME[name].message(REQUESTS[name](**ASKS[name]), toy._asked(SPEND, "x"))))
    assert sent == [sent[0]] * 4
    assert [release.method for release in toy.releases()] == [BY_NAME[name].method]


@pytest.mark.parametrize("name", ASKS)
def test_what_the_server_refuses_names_the_field(toy: bursar.Dataset, name: str) -> None:
    """The refusal comes before the debit, of a fit as of its preview."""
    columns = {"cliques": [("age", "weight")]} if name == "mrf" else {"columns": ["age"]}
    for call in (asking.fit, asking.preview):
        with pytest.raises(bursar.InvalidRequestError, match=r"no .*column of .*this name") as caught:
            call(toy, REQUESTS[name], **{**ASKS[name], **columns}, spend=SPEND)
        assert caught.value.violations[0][0] in ("columns[0]", "cliques[0].columns[0]")
    assert toy.releases() == []


WRONG_SPENDS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"spend": 0.1}) for name in ASKS),
    *((name, {}) for name in ("mrf", "sketch_kmeans")),
    ("separated_gmm", {"spend": bursar.pure(1.0)}),
    ("sketch_kmeans", {"spend": SPEND, "sketch": 2}),
]


def test_a_wrong_spend_is_not_sent(server: Line, toy: bursar.Dataset) -> None:
    """No amount, none where one is needed, or one for what is paid for; the error names the argument."""
    for name, change in WRONG_SPENDS:
        for call in (asking.fit, asking.preview):
            with pytest.raises(bursar.InvalidRequestError) as caught:
                call(toy, REQUESTS[name], **ASKS[name], **change)
            assert caught.value.violations[0][0] == "spend", (name, change)
    assert server.careful == []
