"""The public rule about useless requests: what it calls useless in each fit, and in which words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from bursar_ledger import Adjacency, GaussianEvent
from bursar_models import usefulness as limits
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import (
    BoundedColumn,
    CodedColumn,
    Expected,
    InvalidFieldsError,
    Plan,
    PublicTable,
)
from bursar_server.fits.registry import FITS
from bursar_server.jobs.limits import USELESS_MARGIN, check_useful, judged

TABLE = PublicTable(
    name="people",
    numeric=(BoundedColumn("x", -1.0, 1.0), BoundedColumn("y", 0.0, 40.0)),
    adjacency=Adjacency.REPLACE_ONE,
    unit_cap=1,
    rows=2000,
    categorical=(CodedColumn("town", tuple("abcdefgh")), CodedColumn("work", ("yes", "no"))),
)

REQUESTS: Mapping[str, tuple[str, Any, str]] = {
    "mixture": ("FitDPEM", fit_pb2.FitDPEMRequest(columns=["x", "y"], n_components=2), "the noise of a mean is"),
    "k-means": (
        "FitDPEM",
        fit_pb2.FitDPEMRequest(columns=["x", "y"], n_components=2, mode=fit_pb2.MODE_KMEANS),
        "the noise of a mean is",
    ),
    "sketch": (
        "FitSketchKMeans",
        fit_pb2.FitSketchKMeansRequest(columns=["x", "y"], n_clusters=3, new_sketch=fit_pb2.NewSketch()),
        "the predicted sum of squares is",
    ),
    "field": (
        "FitMRF",
        fit_pb2.FitMRFRequest(cliques=fit_pb2.Cliques(cliques=[fit_pb2.Clique(columns=["town", "work"])])),
        "noise moves",
    ),
    "gradient mixture": (
        "FitGradientEM",
        fit_pb2.FitGradientEMRequest(
            columns=["x", "y"], model=fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE, n_components=2, noise_std=1.0
        ),
        "the noise of a mean is",
    ),
    "gradient without a level": (
        "FitGradientEM",
        fit_pb2.FitGradientEMRequest(columns=["x", "y"], model=fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE, n_components=2),
        "noise moves parameters by",
    ),
    "regressions": (
        "FitGradientEM",
        fit_pb2.FitGradientEMRequest(
            columns=["x"],
            target="y",
            model=fit_pb2.LATENT_MODEL_MIXTURE_OF_REGRESSIONS,
            n_components=2,
            noise_std=1.0,
        ),
        "the noise of a coefficient moves predictions by",
    ),
    "separated": (
        "FitSeparatedGMM",
        fit_pb2.FitSeparatedGMMRequest(columns=["x", "y"], n_components=2, sigma_min=0.05, sigma_max=0.2),
        "of what finding components takes",
    ),
}
"""Name -> method, request without a spend, and words of a warning."""


def planned(name: str, rho: float, table: PublicTable = TABLE) -> Plan:
    """The judged plan of a request."""
    method, asked, _ = REQUESTS[name]
    request = type(asked)()
    request.CopyFrom(asked)
    request.dataset = "people"
    request.spend.CopyFrom(types_pb2.Spend(rho=rho))
    made: Plan = FITS[method].plan(request, table, _nothing)
    return judged(made, table)


def _nothing(entry: int) -> Message | None:
    return None


def made(name: str, value: float | Mapping[str, float], **fields: Any) -> Plan:
    """A plan that expects one thing."""
    event = GaussianEvent(1, Fraction(1))
    known: dict[str, Any] = {"columns": ("x", "y"), "iterations": 1, "noise": (), "parameters": {}}
    return judged(Plan(events=(event,), expected={name: Expected(value)}, **known, **fields), TABLE)


@pytest.mark.parametrize("name", REQUESTS)
def test_every_fit_says_what_noise_leaves_nothing_of(name: str) -> None:
    """A tiny spend is useless in words of its own, a large one is not, and none is where no number of rows is known."""
    poor, rich = planned(name, 1e-7), planned(name, 10.0)
    words = REQUESTS[name][2]
    assert poor.useless
    assert any(text.startswith("useless: ") and words in text for text in poor.warnings)
    assert not rich.useless
    assert not any(text.startswith(("useless", "rough")) for text in rich.warnings)
    check_useful(rich)
    with pytest.raises(InvalidFieldsError, match=r"spend: useless: .*; spend more, ask for fewer .* anyway=True"):
        check_useful(poor)
    private = replace(TABLE, rows=None, adjacency=Adjacency.ADD_REMOVE_ONE)
    assert not planned(name, 1e-7, private).useless


@pytest.mark.parametrize("name", REQUESTS)
def test_more_spend_never_makes_a_request_useless(name: str) -> None:
    """A useful request stays useful with more."""
    verdicts = [planned(name, 10.0**power).useless for power in range(-7, 2)]
    assert verdicts == sorted(verdicts, reverse=True)


def test_the_least_noise_over_its_range_decides() -> None:
    """One unit may serve all columns: narrow ones are then all noise, and nobody expects anything else of them."""
    assert not made("mean_error", {"x": 1.9, "y": 0.1}).warnings
    found = made("mean_error", {"x": 1.9, "y": 16.4})
    assert found.warnings == ("useless: the noise of a mean is 41 % of the range of 'y' at best",)
    assert found.useless
    assert made("mean_error", {"y": 16.4}).warnings == ("useless: the noise of a mean is 41 % of the range of 'y'",)


def test_what_is_rough_is_said_and_not_refused() -> None:
    """It is said from a tenth of the range on; the fit's own warnings come after it."""
    found = made("mean_error", {"y": 4.4}, warnings=("another",))
    assert found.warnings == ("rough: the noise of a mean is 11 % of the range of 'y'", "another")
    assert not found.useless
    check_useful(found)
    assert not made("mean_error", {"y": 3.9}).warnings


@pytest.mark.parametrize(
    ("name", "useful", "useless"),
    [
        ("mean_error", {"y": 9.9}, {"y": 10.0}),
        ("coef_error", {"x": 9.9}, {"x": 10.0}),
        ("relative_error", 1.99, 2.0),
        ("table_error", 0.49, 0.5),
        ("relative_sse", 3.99, 4.0),
        ("table_error", 0.49, float("nan")),
    ],
)
def test_the_limits_are_where_the_page_says(name: str, useful: Any, useless: Any) -> None:
    """Just below and at each of them; what is no number is useless, too."""
    assert not made(name, useful).useless
    assert made(name, useless).useless


def test_what_is_free_is_never_useless() -> None:
    """A plan without releases computes from what was paid for."""
    paid = made("table_error", 1.0)
    assert not judged(replace(paid, events=(), warnings=(), useless=False), TABLE).useless


def test_the_page_has_the_limits_of_the_code() -> None:
    """The rule is public: its page says every limit, and no other one."""
    page = (Path(__file__).parents[3] / "docs" / "useless.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]*\| ([\d.]+)(?: %)?[^|]*\|", page, re.MULTILINE)
    percents = (limits.USELESS_RANGE, limits.USELESS_RANGE, limits.USELESS_TABLE, USELESS_MARGIN)
    a, b, table, margin = (100 * one for one in percents)
    assert list(map(float, rows)) == [a, b, limits.USELESS_LEVEL, table, limits.USELESS_SSE, margin]
    assert f"{100 * limits.ROUGH_RANGE:.0f} %" in page
