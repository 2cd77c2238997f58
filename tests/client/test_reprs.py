"""Texts of everything in notebooks: with what one wants to know, and with nothing that could run."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bursar
from bursar.testing import Server
from bursar_models.text import html_bar, text_bar
from bursar_proto.v1 import catalog_pb2
from tests.client.line import Line

EVIL = "<script>alert(1)</script>&\"'\x1b[2J\r\u202e"
SPEND = bursar.rho(0.1)


def make_evil(answer: catalog_pb2.GetDatasetResponse) -> None:
    """Give a dataset names and descriptions that would run if they were not escaped."""
    answer.dataset.description = EVIL
    for column in answer.dataset.columns:
        column.description = EVIL
        if column.categorical.categories:
            column.categorical.categories.append(EVIL)


@pytest.fixture
def evil(server: Line, client: bursar.Client) -> bursar.Dataset:
    """The dataset of a server that does not mean well."""
    server.changes["CatalogService/GetDataset"] = make_evil
    return client.dataset("toy")


def shown(data: bursar.Dataset) -> dict[str, Any]:
    """One of everything that shows itself."""
    mixture = data.fit(bursar.DPEM(n_components=2), spend=SPEND)
    sketch = data.fit(bursar.SketchKMeans(decoding="none", n_frequencies=16), spend=SPEND)
    models = {
        "mixture": mixture,
        "kmeans": data.fit(bursar.DPEM(n_components=2, mode="kmeans"), spend=SPEND),
        "field": data.fit(bursar.MRF(cliques=[("group", "spring")]), spend=SPEND),
        "lines": data.fit(bursar.GradientEM(model="mixture_of_regressions", target="weight"), spend=SPEND),
        "line": data.fit(bursar.GradientEM(model="missing_covariates", target="weight"), spend=SPEND),
        "symmetric": data.fit(bursar.GradientEM(model="symmetric_mixture"), spend=SPEND),
        "separated": data.fit(bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=20), spend=SPEND),
    }
    return models | {
        "sketch": sketch,
        "dataset": data,
        "remaining": data.remaining(),
        "limits": data.limits(),
        "receipt": mixture.receipt,
        "releases": data.releases(),
        "sketches": data.sketches(),
        "preview": data.preview(bursar.SeparatedGMM(n_components=2, sigma_min=1, sigma_max=20), spend=SPEND),
        "suggestion": data.suggest_spend(bursar.DPEM(n_components=2), target=bursar.Target(mean_error=0.5)),
    }


@pytest.fixture(scope="module")
def things(toys: Server) -> dict[str, Any]:
    """One of everything, fitted once."""
    with Line(toys, "exhibitor", toys.token("exhibitor")).client() as client:
        return shown(client.dataset("toy"))


def renamed(thing: Any) -> Any:
    """The same with evil names wherever it has any."""
    match thing:
        case bursar.Receipt():
            return replace(thing, dataset=EVIL, request_id=EVIL)
        case bursar.Releases():
            return bursar.Releases([replace(one, dataset=EVIL, method=EVIL, time=EVIL) for one in thing])
        case bursar.Preview():
            noise = tuple(replace(one, name=EVIL) for one in thing.noise)
            return replace(
                thing,
                noise=noise,
                warnings=(EVIL,),
                expected={EVIL: 1.0, "mean_error": {EVIL: 1.0}},
                units={EVIL: EVIL},
            )
        case bursar.GaussianMixture() | bursar.KMeans() | bursar.SymmetricMixture() | bursar.Sketch():
            receipt = None if thing.receipt is None else replace(thing.receipt, dataset=EVIL)
            return replace(thing, columns=(EVIL, "b"), receipt=receipt)
        case bursar.MixtureOfRegressions() | bursar.LinearRegression():
            return replace(thing, columns=(EVIL,), target=EVIL)
    return thing


def test_everything_shows_itself_as_text_and_html_and_nothing_runs(evil: bursar.Dataset) -> None:
    """A repr of a few lines that steers no terminal, HTML of balanced tags, and evil names as text."""
    for name, thing in shown(evil).items():
        assert len(repr(thing)) < 4000, name
        assert "object at 0x" not in repr(thing), name
        assert all(map(str.isprintable, repr(renamed(thing)).split("\n"))), name
        page = renamed(thing)._repr_html_()
        assert "<script" not in page, name
        assert all(map(str.isprintable, page.split("\n"))), name
        for tag in ("table", "tr", "td", "ul", "li", "div", "p"):
            assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>"), (name, tag)


WORDS = {
    "dataset": ("height", "100 to 220", "1000 rows", "epsilon 100000"),
    "remaining": ("epsilon", "at delta", "% of the budget"),
    "limits": ("dataset", "available now", "###################", "%"),
    "receipt": ("of 'toy'", "debited epsilon ", "%)", "replace_one", "ledger head"),
    "releases": ("8 releases", "FitDPEM", "released"),
    "sketches": ("1 sketch", "height, weight", "16"),
    "preview": ("debits epsilon ", "would be left", "like it", "expected error", "standard deviations"),
    "suggestion": ("bursar.rho(", "left", "mean_error of height"),
}


def test_a_repr_says_what_one_wants_to_know(things: dict[str, Any]) -> None:
    """The text says it; the HTML has the same numbers."""
    for name, words in WORDS.items():
        assert [word for word in words if word not in repr(things[name])] == [], name
        assert re.search(r"9\d\.\d%|epsilon \d|1000|height", things[name]._repr_html_()), name


@pytest.mark.parametrize(
    ("share", "bar"),
    [
        (0, "...................."),
        (1e-9, "#..................."),
        (0.5, "##########.........."),
        (0.9999, "###################."),
        (1, "####################"),
    ],
)
def test_a_bar_is_empty_only_for_nothing_and_full_only_for_all(share: float, bar: str) -> None:
    """Rounding never says that a budget is untouched, or gone."""
    assert text_bar(share) == bar
    assert f"{100 * share:.1f}%" in html_bar(share)


def test_a_receipt_says_what_was_free_and_what_came_again(toy: bursar.Dataset) -> None:
    """A free receipt has no debit of its own."""
    sketch = toy.fit(bursar.SketchKMeans(decoding="none"), spend=SPEND, request_id="a")
    assert sketch.receipt is not None
    assert "debited" not in repr(toy.fit(bursar.SketchKMeans(decoding="none", sketch=sketch.receipt)).receipt)
    assert "free" in repr(toy.fit(bursar.SketchKMeans(decoding="none", sketch=sketch.receipt)).receipt)
    again = repr(toy.fit(bursar.SketchKMeans(decoding="none"), spend=SPEND, request_id="a").receipt)
    assert "sent again" in again
    assert "debited" in again
    assert "free" not in again


@pytest.mark.parametrize("name", ["mixture", "kmeans", "field", "lines", "line", "symmetric", "separated", "releases"])
def test_tables_come_out(things: dict[str, Any], name: str) -> None:
    """The same cells for every library that is there, whatever features are called: the toy has one called weight."""
    thing = things[name]
    plain = thing.to_table(output="dict")
    frame, arrow = thing.to_table(), thing.to_table("arrow")
    assert list(plain) == list(frame.columns) == arrow.column_names
    for column, cells in plain.items():
        assert frame[column].tolist() == list(cells) == arrow[column].to_pylist()
    with pytest.raises(ValueError, match="output"):
        thing.to_table("excel")


def test_a_table_has_the_numbers_of_the_model(things: dict[str, Any]) -> None:
    """The columns have the names of their attributes."""
    mixture = things["separated"].to_table("dict")
    np.testing.assert_array_equal(mixture["means_.weight"], things["separated"].means_[:, 1])
    np.testing.assert_array_equal(mixture["mean_errors_.height"], things["separated"].mean_errors_[:, 0])
    np.testing.assert_array_equal(things["lines"].to_table("dict")["coef_.height"], things["lines"].coef_[:, 0])
    field = things["field"].to_table()
    chances = field[field["column"] == "spring"].set_index("state")["probability"]
    assert chances["ill"] == pytest.approx(things["field"].marginal("spring")[1])
    assert chances.sum() == pytest.approx(1)


def test_every_list_of_the_sdk_shows_itself_as_a_table(toys: Server, toy: bursar.Dataset) -> None:
    """Datasets, releases, sketches, tokens and entries; what is in them is a list as before."""
    toy.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.01))
    with toys.client("admin") as admin, toys.client("auditor") as auditor:
        listed: list[tuple[Any, str]] = [
            (admin.datasets(), "toy"),
            (toy.releases(), "FitSketchKMeans"),
            (toy.sketches(), "height, weight"),
            (admin.admin.tokens(), "in force"),
            (auditor.audit.entries(limit=3), "hash"),
        ]
    for things, word in listed:
        page = things._repr_html_()
        assert isinstance(things, list)
        title, *lines = repr(things).splitlines()
        assert title.startswith(f"{len(things)} ")
        assert len(lines) == len(things) + 1
        assert word in repr(things)
        assert html.escape(word) in page
        assert page.count("<tr>") == len(things) + 1
