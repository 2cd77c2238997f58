"""Entries in sentences: every kind and method, folded, and whatever a forger writes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from bursar_ledger import (
    ApproximateEvent,
    ConcentratedEvent,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
)
from bursar_ledger._entries import EntryKind
from bursar_ledger._events import encode_event
from bursar_ledger.audit._columns import lines
from bursar_ledger.audit._open import Row, opened, rows
from bursar_ledger.audit._sentences import (
    Story,
    day_of,
    folded,
    listed,
    noise_in_words,
    request_in_words,
    story,
)
from tests.each import each
from tests.ledger.history import KINDS, play


def _told(path: Path) -> list[str]:
    with opened(path) as db:
        return [story(row, line).text for row, line, _ in lines(rows(db))]


def test_every_kind_has_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence has the day, the person, the act, and the reason that was given."""
    path = tmp_path / "ledger.db"
    play(path, monkeypatch)
    told = _told(path)
    assert len(told) == len(KINDS)
    assert all(text.startswith("On 2 January 2026, ") for text in told)
    assert not [text for text in told if "cannot be read" in text]
    for number, part in (
        (2, "owner gave ann access as analyst until 1 January 2027, to people only. Reason given: why: “é”"),
        (3, "owner named the key that signs checkpoints."),
        (4, "owner registered people with a lifetime budget of epsilon 3 and delta 1e-06."),
        (5, "owner registered again, of the same people as people, whose budget it uses."),
        (7, "owner limited ann to 66.6% of the lifetime budget of people."),
        (8, "owner limited all other analysts to 50% of the lifetime budget of again."),
        (9, "owner limited each request about people to 33.3% of the lifetime budget."),
        (10, "the release was delivered."),
        (11, "the release of entry 10 was delivered: 5 bytes."),
        (14, "the release of entry 13 was recorded as lost."),
        (15, "owner put new rows of the same people into people."),
        (16, "owner raised the lifetime budget of people from epsilon 3 and delta 1e-06 to epsilon 4 and delta 1e-06."),
        (22, "owner retired cars: it answers no more new requests."),
        (23, "owner destroyed the rows of cars."),
        (25, "owner ended the access of ann. Reason given: left"),
    ):
        assert part in told[number - 1], told[number - 1]


@pytest.mark.parametrize(
    ("method", "parameters", "words"),
    [
        ("FitDPEM", {"n_components": 4, "mode": "mixture"}, "a mixture of 4 groups"),
        ("FitDPEM", {"n_components": 9, "least_components": 1, "mode": "mixture"}, "a mixture of 1 to 9 groups"),
        ("FitDPEM", {"n_components": 4, "mode": "kmeans"}, "4 clusters"),
        ("FitSeparatedGMM", {"n_components": 2}, "a mixture of 2 well separated groups"),
        ("FitGradientEM", {"model": "symmetric_mixture", "n_components": 2}, "a mixture of 2 groups"),
        (
            "FitGradientEM",
            {"model": "mixture_of_regressions", "n_components": 2, "target": "cost"},
            "a mixture of 2 regressions of cost",
        ),
        (
            "FitGradientEM",
            {"model": "missing_covariates", "target": "cost"},
            "a regression of cost with missing values",
        ),
        ("FitSketchKMeans", {"n_clusters": 8}, "a sketch for 8 clusters"),
        ("FitMRF", {}, "a table of how often categories occur together"),
        ("FitNews", {}, "a result of FitNews"),
        ("FitDPEM", {}, "a result of FitDPEM"),
    ],
)
def test_every_request_is_described(method: str, parameters: dict[str, Any], words: str) -> None:
    """Also one whose parameters are not those of its method."""
    assert request_in_words(method, parameters) == words
    assert request_in_words(method, {**parameters, "columns": ["x", "y"]}) == f"{words} by x and y"


def test_noise_is_counted_by_kind() -> None:
    """Equal releases are one, however many events they are; five kinds are named."""
    event = encode_event(GaussianEvent(4, Fraction(16), 3))
    assert noise_in_words([event] * 5) == "Gaussian, 8 times the most that one person can change (15 times)"
    kinds = (
        LaplaceEvent(2, Fraction(40)),
        SelectionEvent(1, Fraction(50)),
        ConcentratedEvent(Fraction(1, 900)),
        PureEvent(Fraction(1, 40)),
        ApproximateEvent(GaussianEvent(1, Fraction(30)), Fraction(1, 10**9)),
    )
    words = noise_in_words([encode_event(kind) for kind in kinds])
    for part in (
        "Laplace, 20 times the most",
        "that of a random choice with epsilon 0.04",
        "one bound for all of them",
        "that of a mechanism with epsilon 0.025",
        "Gaussian, 30 times the most that one person can change, with a probability of failure of 1e-09",
    ):
        assert part in words
    many = [encode_event(GaussianEvent(1, Fraction(n))) for n in range(1, 9)]
    assert noise_in_words(many).endswith("and 3 other kinds")


def test_neighbours_that_say_the_same_are_one() -> None:
    """They have the days from the first to the last, in either order of the list."""
    one, two, other = Story((3,), "1 May 2026", "1 May 2026", "x."), Story((4,), "2 May 2026", "2 May 2026", "x."), "y."
    for both in ([one, two], [two, one]):
        (made,) = folded(both)
        assert (made.entries, made.text) == ((3, 4), "2 times from 1 May 2026 to 2 May 2026, x.")
    same = Story((5,), "2 May 2026", "2 May 2026", "x.")
    assert next(folded([two, same])).text == "2 times on 2 May 2026, x."
    assert len(list(folded([one, Story((4,), "", "", other), two]))) == 3
    assert Story((4,), "", "", other).text == "At an unknown time, y."


def test_days_and_lists() -> None:
    """Times that cannot be read are left out; long lists end with a count."""
    assert day_of("2026-03-12T08:00:00+00:00") == "12 March 2026"
    assert day_of("never") == ""
    assert listed(["a"]) == "a"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


@each("kind", [*EntryKind, "unknown", None])
@each("details", [{}, {"events": 3, "share": "x/0", "previous": 1, "reason": ["a"]}, {"events": []}])
def test_what_cannot_be_read_is_said(kind: str | None, details: dict[str, Any]) -> None:
    """Never an exception, whatever is missing."""
    row = Row(5, "", b"", False, {"kind": kind, "details": details, "time": 7})
    ((_, line, _),) = lines([row])
    assert story(row, line).text.startswith("At an unknown time, ")
