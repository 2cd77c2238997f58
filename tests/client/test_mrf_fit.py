"""Markov random fields through the client: what is sent, what comes back, and what earlier tables are good for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import bursar
from tests import asking
from tests.client.line import Line

PAIRS = [("group", "weight"), ("spring", "weight")]
SEASONS = ("spring", "summer", "autumn")
ASK: dict[str, Any] = {"cliques": PAIRS, "spend": bursar.rho(0.1)}
EVERY: dict[str, Any] = {
    "cliques": [("group", "weight"), ["spring"]],
    "columns": ["spring", "weight", "group", "summer"],
    "precisions": {("weight", "group"): 4},
    "estimator": "naive",
    "regularization": 2,
    "inference": "loopy",
    "unit_weights": "shares",
}


def receipt_of(model: bursar.MarkovRandomField) -> bursar.Receipt:
    """Return what it cost."""
    assert model.receipt is not None
    return model.receipt


def test_a_fit_returns_a_model_with_its_tables_and_receipt(toy: bursar.Dataset) -> None:
    """Columns with their states, marginals of the cliques, the noisy tables, what it cost."""
    model = asking.fit(toy, bursar.MRF, **ASK)
    assert model.columns == ("weight", "group", "spring")
    assert model.variables_[0].states == ("[30, 60)", "[60, 90)", "[90, 120)", "[120, 150]")
    assert model.variables_[0].edges == (30.0, 60.0, 90.0, 120.0, 150.0)
    assert model.variables_[1].states == ("control", "treated")
    assert model.cliques_ == (("weight", "group"), ("weight", "spring"))
    np.testing.assert_allclose(model.marginal(["weight", "group"]), model.marginals_[0])
    entry = receipt_of(model).entry
    assert [(table.columns, table.entry, table.laplace, table.pooled) for table in model.tables_] == [
        (("weight", "group"), entry, False, False),
        (("weight", "spring"), entry, False, False),
    ]
    np.testing.assert_allclose(model.tables_[0].counts, 1000 * model.marginals_[0], atol=60)
    receipt = receipt_of(model)
    assert (receipt.free, receipt.replayed) == (False, False)
    assert receipt.price.rho == pytest.approx(0.1)
    assert re.fullmatch("[0-9a-f]{16}-1", receipt.request_id)
    assert (model.n_rows, model.estimator, model.inference) == (1000.0, "cgm", "exact")
    assert (model.unit_weights, model.null_category, model.homogeneous_chain) == ("rows", None, False)
    assert f"entry {entry} of 'toy'" in repr(model)
    assert [release.method for release in toy.releases()] == ["FitMRF"]


@pytest.mark.parametrize("estimator", ["cgm", "nlbp", "naive"])
def test_every_estimator_comes_back(toy: bursar.Dataset, estimator: Literal["cgm", "nlbp", "naive"]) -> None:
    """The model says who made it."""
    assert asking.fit(toy, bursar.MRF, **ASK, estimator=estimator).estimator == estimator


def test_every_argument_is_obeyed(toy: bursar.Dataset) -> None:
    """Order, precision, noise, estimator; a column in no clique has a table of its own."""
    model = asking.fit(toy, bursar.MRF, **EVERY, spend=bursar.pure(0.5))
    assert model.columns == ("spring", "weight", "group", "summer")
    assert [(table.columns, table.laplace) for table in model.tables_] == [
        (("weight", "group"), True),
        (("spring",), True),
        (("summer",), True),
    ]
    precise, *others = (table.noise_std for table in model.tables_)
    assert others == [pytest.approx(2 * precise)] * 2  # of four times the precision
    # Without a cycle inference is exact, whatever is asked for.
    assert (model.estimator, model.inference) == ("naive", "exact")


def test_a_preview_tells_the_noise_of_each_table(lone: bursar.Dataset, toy: bursar.Dataset) -> None:
    """And what it would cost, and what is left."""
    preview = asking.preview(lone, bursar.MRF, **{**ASK, "spend": bursar.rho(0.05)})
    assert preview.price.rho == pytest.approx(0.05)
    assert (preview.affordable, "mean_error" in preview.expected) == (True, False)
    assert [noise.name for noise in preview.noise] == ["table of weight, group", "table of weight, spring"]
    first, _, header, *_ = repr(preview).splitlines()
    assert first == "Preview: debits epsilon 1.48 (27.1%) of epsilon 3 (100%) left; affordable, 3 like it are left"
    assert header.split() == ["release", "times", "numbers", "counts"]
    entry = receipt_of(asking.fit(toy, bursar.MRF, **ASK)).entry
    assert toy.preview(bursar.MRF(cliques=PAIRS, reuse=[entry])).price.rho == 0


def test_trees_and_independent_columns_are_of_all_that_have_states(toy: bursar.Dataset) -> None:
    """Numbers without bins are left out; a tree joins all columns and brings the tables of its selection along."""
    columns = ("weight", "group", *SEASONS)
    alone = toy.fit(bursar.MRF(cliques="independent"), spend=bursar.rho(0.1))
    assert alone.columns == columns
    assert {len(table.columns) for table in alone.tables_} == {1}
    tree = toy.fit(bursar.MRF(cliques="tree"), spend=bursar.rho(0.1))
    assert tree.columns == columns
    assert [len(table.columns) for table in tree.tables_] == [1] * 5 + [2] * 4
    assert len(tree.mutual_information()) == 4


def test_a_chain_repeats_its_transitions(toy: bursar.Dataset) -> None:
    """Two pooled tables, however many columns; probabilities of all neighbours follow from one potential."""
    model = toy.fit(bursar.MRF(cliques=bursar.Chain(SEASONS, null="unknown")), spend=bursar.rho(0.1))
    assert model.homogeneous_chain
    assert model.null_category == "unknown"
    assert model.columns == SEASONS
    assert [(table.columns, table.pooled) for table in model.tables_] == [
        (("spring",), True),
        (("spring", "summer"), True),
    ]
    average = (model.marginal(SEASONS[:2]) + model.marginal(SEASONS[1:])) / 2
    np.testing.assert_allclose(average, model.marginals_[1])


def test_a_chain_is_a_value() -> None:
    """Lists and tuples make the same one."""
    assert bursar.Chain(list(SEASONS)) == bursar.Chain(SEASONS)
    assert hash(bursar.Chain(list(SEASONS))) == hash(bursar.Chain(SEASONS))


def test_earlier_tables_are_used_for_nothing(server: Line, toy: bursar.Dataset) -> None:
    """Named by the model, its receipt or its entry; without a spend, and without a new entry in the ledger."""
    paid = asking.fit(toy, bursar.MRF, **ASK)
    entry = receipt_of(paid).entry
    for source in (paid, receipt_of(paid), receipt_of(paid).entry):
        model = toy.fit(bursar.MRF(cliques=[("weight", "spring")], estimator="naive", reuse=[source]))
        sent = server.mrf_requests[-1]
        assert (list(sent.reuse), sent.HasField("spend"), sent.request_id) == ([entry], False, "")
        receipt = receipt_of(model)
        assert (receipt.free, receipt.entry, receipt.price.cost_units) == (True, entry, 0)
        assert receipt.ledger_head == receipt_of(paid).ledger_head
        assert {table.entry for table in model.tables_} == {entry}
        assert f"entry {entry} of 'toy', learnt for free" in repr(model)
    assert len(toy.releases()) == 1


def test_only_what_is_new_is_paid_for(server: Line, toy: bursar.Dataset) -> None:
    """The model has the tables of both, each with the entry that paid; a free one names them all."""
    first = asking.fit(toy, bursar.MRF, **ASK)
    second = toy.fit(bursar.MRF(cliques=[("weight",), ("spring", "summer")], reuse=[first]), spend=bursar.rho(0.1))
    old, new = receipt_of(first).entry, receipt_of(second).entry
    entries = {table.columns: table.entry for table in second.tables_}
    assert entries.pop(("spring", "summer")) == new
    assert set(entries.values()) == {old}
    third = toy.fit(bursar.MRF(cliques=[*PAIRS, ("spring", "summer")], reuse=[second, new, first]))
    assert list(server.mrf_requests[-1].reuse) == [new, old]
    assert {table.columns: table.entry for table in third.tables_} == {
        ("weight", "group"): old,
        ("weight", "spring"): old,
        ("spring", "summer"): new,
    }
    # What was free is stored nowhere, so that it is named by all that had been paid for it.
    toy.fit(bursar.MRF(cliques=[*PAIRS, ("spring", "summer")], reuse=[third]))
    assert sorted(server.mrf_requests[-1].reuse) == [old, new]
    assert len(toy.releases()) == 2


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"cliques": [("group", "spring")]}, "do not have all tables of this graph"),
        ({"cliques": PAIRS, "spend": bursar.rho(0.1)}, "spend"),
        ({"cliques": bursar.Chain(SEASONS)}, r"reuse\[0\]: pooled tables are of use for a chain"),
        ({"cliques": "tree"}, "do not have all tables of this graph"),
        ({"cliques": PAIRS, "reuse": [2**40]}, r"reuse\[0\]: no field of yours of this dataset is stored under entry"),
        ({"cliques": [("height", "group")]}, r"cliques\[0\]\.columns\[0\]: is numeric and has no bins"),
    ],
)
def test_the_server_refuses_what_earlier_tables_do_not_cover(
    toy: bursar.Dataset, ask: dict[str, Any], message: str
) -> None:
    """Nothing is had without being paid, and nothing is paid twice."""
    paid = asking.fit(toy, bursar.MRF, **ASK)
    for call in (asking.fit, asking.preview):
        with pytest.raises(bursar.InvalidRequestError, match=message):
            call(toy, bursar.MRF, **{"reuse": [paid], **ask})
    assert len(toy.releases()) == 1


def test_a_chains_tables_are_for_the_same_chain(toy: bursar.Dataset) -> None:
    """The same columns in the same order of time, and the same null category."""
    paid = toy.fit(bursar.MRF(cliques=bursar.Chain(SEASONS)), spend=bursar.rho(0.1))
    assert receipt_of(toy.fit(bursar.MRF(cliques=bursar.Chain(SEASONS), estimator="naive", reuse=[paid]))).free
    for other in (bursar.Chain(SEASONS[:2]), bursar.Chain(SEASONS, null="unknown"), [SEASONS[:2]]):
        with pytest.raises(bursar.InvalidRequestError, match=r"spend: expected one of|reuse"):
            toy.fit(bursar.MRF(cliques=other, reuse=[paid]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "has no receipt; give the entries that paid for its tables"),
        ({"dataset": "people"}, "of dataset 'people', not of 'toy'"),
        ({"entry": 0, "free": True}, "free and names no entry"),
    ],
)
def test_tables_that_were_not_paid_for_here_are_not_named(
    toy: bursar.Dataset, change: dict[str, Any] | None, message: str
) -> None:
    """The error says what else can be done."""
    paid = asking.fit(toy, bursar.MRF, **ASK)
    receipt = None if change is None else replace(receipt_of(paid), **change)
    with pytest.raises(bursar.InvalidRequestError, match=message):
        toy.fit(bursar.MRF(cliques=PAIRS, reuse=[replace(paid, receipt=receipt)]))


GRAPHS: tuple[Any, ...] = (PAIRS, "tree", "independent", bursar.Chain(SEASONS, null="unknown"))


@pytest.mark.parametrize("cliques", GRAPHS)
def test_a_stored_release_gives_the_same_model(toy: bursar.Dataset, cliques: Any) -> None:
    """Asked for again, and by another program that knows its entry alone; no request comes with that."""
    ask: dict[str, Any] = {"cliques": cliques, "spend": bursar.rho(0.1), "request_id": "mine", "estimator": "naive"}
    model = asking.fit(toy, bursar.MRF, **ask, regularization=2)
    for again in (asking.fit(toy, bursar.MRF, **ask, regularization=2), toy.model(receipt_of(model).entry)):
        assert isinstance(again, bursar.MarkovRandomField)
        assert {**again.to_dict(), "receipt": None} == {**model.to_dict(), "receipt": None}
        assert receipt_of(again).replayed
    other = asking.fit(toy, bursar.MRF, **{**ask, "request_id": "another"})
    if cliques != "independent":  # which is even, with any penalty
        assert other.log_partition_ != model.log_partition_  # the penalty is in the release, too


@pytest.mark.parametrize("cliques", GRAPHS)
def test_the_server_estimates_if_it_is_asked_to(server: Line, toy: bursar.Dataset, cliques: Any) -> None:
    """Its tables are as good for later requests, and later tables for it; what is stored is its model."""
    model = toy.fit(bursar.MRF(cliques=cliques, estimated_by="server"), spend=bursar.rho(0.1))
    assert not server.mrf_requests[-1].estimate_on_client
    stored = toy.model(receipt_of(model))
    assert {**stored.to_dict(), "receipt": None} == {**model.to_dict(), "receipt": None}
    if cliques != "tree":
        for who in ("client", "server"):
            assert receipt_of(toy.fit(bursar.MRF(cliques=cliques, reuse=[model], estimated_by=who))).free
            assert server.mrf_requests[-1].estimate_on_client == (who == "client")
    with pytest.raises(bursar.InvalidRequestError, match="estimated_by: must be one of"):
        toy.fit(bursar.MRF(cliques=cliques, estimated_by="nobody"), spend=bursar.rho(0.1))  # type: ignore[arg-type]


def test_progress_counts_tables_and_the_estimate(toy: bursar.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """The count is the same whoever estimates."""
    asking.fit(toy, bursar.MRF, **ASK, progress=True)
    assert re.search(r"\b(\d+)/\1\b", capsys.readouterr().err)
