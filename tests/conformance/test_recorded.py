"""Integers, prices and models of every fit, and the bytes of the ledger's chain, are those that were recorded.

`tests.conformance.recording` makes the record. It was made anew when gradient EM got its last release, which tests
its form: on one machine, all other integers and prices were those of before.
Later, integers of gradient EM's Gaussian mixtures, which got a private start, and of its regressions, which start about
the one of all rows, took the place of those before.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from bursar_ledger import DebitRequest
from bursar_server.vault._dask import worker_environment
from tests.conformance import recording

RECORD: dict[str, Any] = json.loads(recording.FILE.read_text(encoding="utf-8"))

ELSEWHERE = ("integers", "model")
"""Values that depend on the processor, whose rounding the record's may differ from."""


@pytest.mark.parametrize("case", recording.cases())
def test_fits_are_as_recorded(case: str) -> None:
    """The same columns, events and price; on the record's kind of machine the same integers and model, too."""
    expected, found = dict(RECORD["fits"][case]), recording.record_fit(case)
    if worker_environment() != RECORD["environment"]:
        for name in ELSEWHERE:
            expected.pop(name), found.pop(name)
    assert found == expected


def test_every_record_is_compared() -> None:
    """No record is left of a case that nothing compares."""
    assert sorted(RECORD["fits"]) == sorted(recording.cases())


def test_the_chain_is_as_recorded() -> None:
    """The same history gives the same bodies, byte for byte, and the same head."""
    assert recording.record_ledger() == RECORD["ledger"]


def test_another_integer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a unit on one value of one row changes the record."""
    case = "mixture; add_remove_one"
    usual = recording.row_values

    def moved(name: str, cap: int) -> recording.Array:
        values = usual(name, cap).copy()
        values[1] += 0.5
        return values

    monkeypatch.setattr(recording, "row_values", moved)
    assert recording.record_fit(case) != RECORD["fits"][case]


def test_another_byte_of_the_chain_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another name in one debit changes the head."""
    usual = recording.ask

    def renamed(request_id: str, *arguments: Any) -> DebitRequest:
        return usual("other" if request_id == "cars" else request_id, *arguments)

    monkeypatch.setattr(recording, "ask", renamed)
    assert recording.record_ledger()["head"] != RECORD["ledger"]["head"]
