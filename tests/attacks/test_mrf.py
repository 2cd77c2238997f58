"""Attacks on random fields: tables that are paid for once, choices that read rows, and requests that ask too much."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.fits import mrf
from bursar_server.fits.mrf._statistics import table_statistic
from bursar_server.vault import GaussianNoise, Session
from tests.attacks.asking import PATIENCE, Careless, Metadata, analyst, differs, heard, refused, told_alike
from tests.attacks.conftest import Pair, PersonsWith
from tests.attacks.deaf import Deaf, Seeded
from tests.audit.wire import Miswired

METHOD = "FitMRF"
_IDS = itertools.count()

SCHEMA = """
name = "{name}"
adjacency = "add_remove_one"
unit = {{column = "who", max_rows = 3}}
[[columns]]
name = "a"
kind = "categorical"
categories = ["p", "q", "r"]
[[columns]]
name = "t1"
kind = "categorical"
categories = ["-", "u", "v"]
[[columns]]
name = "t2"
kind = "categorical"
categories = ["-", "u", "v"]
[[columns]]
name = "t3"
kind = "categorical"
categories = ["-", "u", "v"]
[[columns]]
name = "x"
kind = "numeric"
lower = 0.0
upper = 8.0
bins = [0.0, 1.0, 4.0, 8.0]
[[columns]]
name = "only"
kind = "categorical"
categories = ["it"]
"""
"""Persons of three rows at most; the last column has one state."""

HEADER = "who,a,t1,t2,t3,x,only\n"
HERE = HEADER + "".join(f"u{i // 2},{'pqr'[i % 3]},-,u,{'uv'[i % 2]},{i % 8},it\n" for i in range(60))
THERE = (
    HEADER + "".join(f"w{i // 7},{'pqrs'[i % 4]},-,-,-,{(1e300, 0, -5)[i % 3]},it\n" for i in range(150)) + ",,,\n" * 9
)

TABLES = {"here": HERE, "there": THERE}


def cliques(*listed: tuple[str, ...], precision: float = 0.0) -> fit_pb2.Cliques:
    """Cliques of columns."""
    return fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=one, precision=precision) for one in listed])


PAIRS = cliques(("a", "x"), ("t1", "t2"))


def asked(dataset: str, **fields: Any) -> fit_pb2.FitMRFRequest:
    """A request under an id of its own, by the quickest estimator."""
    defaults: dict[str, Any] = {"estimator": fit_pb2.MRF_ESTIMATOR_NAIVE}
    if not {"cliques", "tree", "chain", "independent"} & fields.keys():
        defaults["cliques"] = PAIRS
    return fit_pb2.FitMRFRequest(request_id=f"mrf-{next(_IDS)}", dataset=dataset, **(defaults | fields))


def paid(dataset: str, **fields: Any) -> fit_pb2.FitMRFRequest:
    """A request that pays for its tables."""
    return asked(dataset, **({"spend": types_pb2.Spend(rho=0.1)} | fields))


def cells(model: fit_pb2.MRFModel) -> list[float]:
    """The noisy counts of a field's tables."""
    return [count for table in model.tables for count in table.counts.values]


def test_two_requests_have_two_draws(persons: Pair) -> None:
    """Ask twice for the same tables, in hope of the same noise or of cells without any: hardly a cell agrees."""
    first, second = (cells(heard(persons, paid("here"))[-1].model) for _ in range(2))
    assert sum(a == b for a, b in zip(first, second, strict=True)) <= 1


def test_the_rivals_have_one(persons_with: PersonsWith) -> None:
    """The same attack on seeded noise."""
    pair = persons_with(Miswired(Seeded(), fit=mrf))
    first, second = (cells(heard(pair, paid("here"))[-1].model) for _ in range(2))
    assert first == second


def test_learning_again_tells_nothing_new(persons: Pair) -> None:
    """Refit stored tables by every estimator, over and over: the stored counts to the last bit, and no debit."""
    first = heard(persons, paid("here"))
    entry, before = first[0].receipt.entry, persons.ledger.newest()
    for estimator in (*fit_pb2.MRFEstimator.values(), fit_pb2.MRF_ESTIMATOR_NAIVE):
        again = heard(persons, asked("here", reuse=[entry], estimator=estimator))
        assert cells(again[-1].model) == cells(first[-1].model)
        assert again[0].receipt.free
        assert again[0].receipt.entry == entry
    assert persons.ledger.newest() == before


def peeking(plan: Any, session: Session) -> Message:
    """A run that makes a release where there is nothing to pay for."""
    model = mrf.run(plan, session)
    if not plan.events:
        session.noisy_sum(table_statistic(plan.settings.layout, (0,)), GaussianNoise(1.0))
    return model


def test_a_run_for_nothing_has_no_rows(persons_with: PersonsWith) -> None:
    """Were the fit to release something under a free plan, nothing would come of it: no answer, no debit."""
    pair = persons_with(Miswired(run_instead=peeking, fit=mrf))
    entry = heard(pair, paid("here"))[0].receipt.entry
    assert refused(pair, asked("here", reuse=[entry]))[0] == "INTERNAL"


def test_a_new_table_beside_an_old_one_is_paid_for(persons: Pair) -> None:
    """Reuse one table and ask for another: without a spend refused; with one the debit has exactly the new release."""
    entry = heard(persons, paid("here", cliques=cliques(("a", "x"))))[0].receipt.entry
    both = cliques(("a", "x"), ("t1", "t2"))
    assert refused(persons, asked("here", reuse=[entry], cliques=both))[:2] == ("INVALID_ARGUMENT", ("spend",))
    answer = heard(persons, paid("here", reuse=[entry], cliques=both))
    new = answer[0].receipt.entry
    assert not answer[0].receipt.free
    assert len(persons.ledger.debit_entry(new).request.events) == 1
    assert [(tuple(one.columns), one.entry) for one in answer[-1].model.tables] == [
        (("t1", "t2"), new),
        (("a", "x"), entry),
    ]


def test_a_smaller_table_does_not_open_a_larger_one(persons: Pair) -> None:
    """Reuse tables of single columns and ask for the pair of them, or with one column more, for nothing: refused."""
    entry = heard(persons, paid("here", independent=fit_pb2.Independent()))[0].receipt.entry
    for larger in (("a", "x"), ("a", "t1", "x")):
        assert refused(persons, asked("here", reuse=[entry], cliques=cliques(larger)))[1] == ("spend",)
    assert refused(persons, asked("here", reuse=[entry], tree=fit_pb2.SelectTree()))[1] == ("spend",)
    chain = fit_pb2.HomogeneousChain(columns=["t1", "t2", "t3"])
    assert "reuse[0]" in refused(persons, asked("here", reuse=[entry], chain=chain))[1]


def test_tables_that_count_otherwise_are_not_mixed(persons: Pair) -> None:
    """Reuse shares as rows, one chain's transitions as another's, or pooled tables as tables: refused."""
    shares = heard(persons, paid("here"))[0].receipt.entry
    rows = fit_pb2.UNIT_WEIGHTS_ROWS
    assert "reuse[0]" in refused(persons, asked("here", reuse=[shares], unit_weights=rows))[1]
    chain = fit_pb2.HomogeneousChain(columns=["t1", "t2", "t3"], null_category="-")
    entry = heard(persons, paid("here", chain=chain))[0].receipt.entry
    for other in (
        {"chain": fit_pb2.HomogeneousChain(columns=["t1", "t2", "t3"])},
        {"chain": fit_pb2.HomogeneousChain(columns=["t3", "t2", "t1"], null_category="-")},
        {"cliques": cliques(("t1", "t2"))},
    ):
        assert "reuse[0]" in refused(persons, asked("here", reuse=[entry], **other))[1]


def strange_entries(pair: Pair) -> dict[str, tuple[int, Metadata]]:
    """Entries under which the caller has no field of "here", by what they are."""
    mallory = analyst(pair, f"mallory-{next(_IDS)}")  # type: ignore[arg-type] # has a ledger, too
    mine, elsewhere = (heard(pair, paid(name))[0].receipt.entry for name in ("here", "there"))
    of_sketch = sketched(pair)
    return {
        "another's field": (mine, mallory),
        "a field of another table": (elsewhere, pair.bearer),
        "a model of another method": (of_sketch, pair.bearer),
        "an entry that is no debit": (1, pair.bearer),
        "nothing": (0, pair.bearer),
        "an entry to come": (10**6, pair.bearer),
        "the last number": (2**64 - 1, pair.bearer),
    }


def sketched(pair: Pair) -> int:
    """The entry of a sketch."""
    stub = fit_pb2_grpc.FitServiceStub(pair.channel)
    message = fit_pb2.FitSketchKMeansRequest(
        request_id=f"mrf-{next(_IDS)}",
        dataset="here",
        spend=types_pb2.Spend(rho=0.1),
        new_sketch=fit_pb2.NewSketch(n_frequencies=8, sigma=1.0),
    )
    first, *_ = stub.FitSketchKMeans(message, metadata=pair.bearer, timeout=PATIENCE)
    entry: int = first.receipt.entry
    return entry


def test_a_number_opens_only_ones_own_fields_of_a_table(persons: Pair) -> None:
    """Name whatever entry one likes: one answer for all that is not one's own, which so tells nothing."""
    answers = set()
    for entry, bearer in strange_entries(persons).values():
        code, fields, text = refused(persons, asked("here", reuse=[entry]), bearer)
        assert (code, fields) == ("INVALID_ARGUMENT", ("reuse[0]", "spend"))
        answers.add(text.replace(f"entry {entry};", "entry #;"))
    assert len(answers) == 1


def test_at_a_careless_rival_they_open_anothers(persons_with: PersonsWith) -> None:
    """The same attack on a fit with a memory of its own: mallory reads tables that she did not pay for."""
    pair = persons_with(Careless(mrf))
    mine, mallory = heard(pair, paid("here")), analyst(pair, "mallory")  # type: ignore[arg-type] # likewise
    stolen = heard(pair, asked("here", reuse=[mine[0].receipt.entry]), mallory)
    assert cells(stolen[-1].model) == cells(mine[-1].model)


REQUESTS: list[dict[str, Any]] = [
    {},
    {"unit_weights": fit_pb2.UNIT_WEIGHTS_ROWS, "estimator": fit_pb2.MRF_ESTIMATOR_CGM},
    {"cliques": cliques(("a", "t1", "x")), "estimator": fit_pb2.MRF_ESTIMATOR_NLBP},
    {"cliques": cliques(("a", "x"), ("x", "t1"), ("t1", "a")), "inference": fit_pb2.MRF_INFERENCE_LOOPY},
    {"tree": fit_pb2.SelectTree(), "columns": ["a", "t1", "x", "only"]},
    {"chain": fit_pb2.HomogeneousChain(columns=["t1", "t2", "t3"], null_category="-")},
    {"independent": fit_pb2.Independent(), "spend": types_pb2.Spend(epsilon=1.0)},
]
IDS = ["shares", "rows", "cube", "loopy", "tree", "chain", "independent"]


def differ(pair: Pair, **fields: Any) -> bool:
    """Return whether anything but the noisy tables tells "here" from "there"."""

    def forget(model: fit_pb2.MRFModel) -> None:
        for table in model.tables:
            table.entry = 0

    return differs(pair, METHOD, "mrf", lambda name: paid(name, **fields), forget)


@pytest.mark.parametrize("fields", REQUESTS, ids=IDS)
def test_under_equal_noise_all_tables_have_one_field(persons_with: PersonsWith, fields: dict[str, Any]) -> None:
    """Compare all that two utterly different tables give when noise is equal, and so loud that nothing else is heard.

    Edges, states, domains, numbers of rows and of iterations, inference: nothing came past the noise. Structure
    learning as it is in libraries reads edges off the rows, and categories, too.
    """
    assert not differ(persons_with(Miswired(Deaf(), fit=mrf)), **fields)


def graph_of_rows(plan: Any, session: Session) -> Message:
    """A field whose number of iterations is that of its rows."""
    model = mrf.run(plan, session)
    model.iterations = session._rows.slots
    return model


def test_a_rival_that_reads_its_graph_off_the_rows_is_heard(persons_with: PersonsWith) -> None:
    """The same comparison finds what comes from the table."""
    assert differ(persons_with(Miswired(Deaf(), graph_of_rows, mrf)))


NAN, INF = math.nan, math.inf
IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "no spend": ({"spend": types_pb2.Spend()}, "spend"),
    "a spend that is no number": ({"spend": types_pb2.Spend(rho=NAN)}, "spend"),
    "a spend below nothing": ({"spend": types_pb2.Spend(epsilon=-1.0)}, "spend"),
    "a spend without end": ({"spend": types_pb2.Spend(rho=INF)}, "spend"),
    "a spend of next to nothing": ({"spend": types_pb2.Spend(rho=5e-324)}, "spend"),
    "a precision that is no number": ({"cliques": cliques(("a", "x"), precision=NAN)}, "cliques[0].precision"),
    "a precision below nothing": ({"cliques": cliques(("a", "x"), precision=-1.0)}, "cliques[0].precision"),
    "a precision without end": ({"cliques": cliques(("a", "x"), precision=INF)}, "cliques[0].precision"),
    "a precision of next to nothing": ({"cliques": cliques(("a", "x"), precision=1e-300)}, "cliques[0].precision"),
    "a clique of no columns": ({"cliques": cliques(())}, "cliques[0].columns"),
    "a column twice in a clique": ({"cliques": cliques(("a", "a"))}, "cliques[0].columns"),
    "a clique twice": ({"cliques": cliques(("a", "x"), ("x", "a"))}, "cliques[1].columns"),
    "a column that is not there": ({"cliques": cliques(("a", "z"))}, "cliques[0].columns"),
    "the column of persons": ({"cliques": cliques(("a", "who"))}, "cliques[0].columns"),
    "the column of K": ({"cliques": cliques(("a", ""))}, "cliques[0].columns"),
    "the column of K alone": ({"independent": fit_pb2.Independent(), "columns": [""]}, "columns[0]"),
    "a chain through the column of K": ({"chain": fit_pb2.HomogeneousChain(columns=["t1", ""])}, "chain.columns"),
    "a chain of one": ({"chain": fit_pb2.HomogeneousChain(columns=["t1"])}, "chain.columns"),
    "a chain twice at one time": ({"chain": fit_pb2.HomogeneousChain(columns=["t1", "t1"])}, "chain.columns"),
    "a chain of unlike columns": ({"chain": fit_pb2.HomogeneousChain(columns=["t1", "a"])}, "chain.columns"),
    "another null": (
        {"chain": fit_pb2.HomogeneousChain(columns=["t1", "t2"], null_category="p")},
        "chain.null_category",
    ),
    "a share that is no number": ({"tree": fit_pb2.SelectTree(share=NAN)}, "tree.share"),
    "a share of all": ({"tree": fit_pb2.SelectTree(share=1.0)}, "tree.share"),
    "a share below nothing": ({"tree": fit_pb2.SelectTree(share=-0.5)}, "tree.share"),
    "a penalty that is no number": ({"regularization": NAN}, "regularization"),
    "a penalty below nothing": ({"regularization": -1.0}, "regularization"),
    "another estimator": ({"estimator": 99}, "estimator"),
    "another inference": ({"inference": 99}, "inference"),
    "another weight of units": ({"unit_weights": 99}, "unit_weights"),
    "more cliques than there may be": ({"cliques": cliques(*[("a",)] * 5000)}, "cliques"),
    "more entries than there may be": ({"reuse": list(range(5000))}, "reuse"),
    "an entry twice": ({"reuse": [1, 1]}, "reuse"),
}
"""Wrong requests, and the field that must be named."""


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_is_wrong_is_refused_before_the_debit_alike_for_all_tables(persons: Pair, name: str) -> None:
    """Ask for what cannot be: the same refusal for two utterly different tables, by the field, and no debit."""
    fields, field = IMPOSSIBLE[name]
    told_alike(persons, lambda table: paid(table, **fields), field)


def test_tables_of_one_cell_are_no_way_around_the_noise(persons: Pair) -> None:
    """Ask for a column of one state: its only cell is the number of persons, and is noised like any other."""
    asking = {"cliques": cliques(("only",)), "spend": types_pb2.Spend(rho=0.1)}
    counts = [cells(heard(persons, paid("here", **asking))[-1].model)[0] for _ in range(12)]
    assert len(set(counts)) > 6
    assert float(np.std(counts)) > 0.3
