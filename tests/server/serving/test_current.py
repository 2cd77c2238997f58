"""Nothing that is kept of the ledger outlives an entry, whoever wrote it, or is of two moments at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import Adjacency, Budget, Ledger, Registration, Role
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc
from bursar_server.access import auth
from bursar_server.access.auth import Current

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Make a ledger with one dataset."""
    with Ledger.create(tmp_path / "ledger.sqlite", actor="test") as made:
        registration = Registration("people", Adjacency.REPLACE_ONE, Budget(1.0, 1e-6), bytes(32), {"columns": []})
        made.register_dataset(registration, actor="test", reason="")
        yield made


def _entry(ledger: Ledger, name: str = "bob") -> None:
    ledger.issue_credential(name, Role.ANALYST, name.encode().ljust(32), actor="test", reason="")


def test_an_answer_is_kept_until_the_next_entry(ledger: Ledger) -> None:
    """However often it is asked for; other questions have their own."""
    now, asked = Current(ledger), []

    def ask() -> int:
        asked.append(1)
        return len(asked)

    assert [now.get("a", ask) for _ in range(3)] == [1, 1, 1]
    assert [now.get("b", ask), now.get("a", ask)] == [2, 1]
    _entry(ledger)
    assert [now.get("a", ask), now.get("a", ask), now.get("b", ask)] == [3, 3, 4]


def test_names_that_there_are_not_take_no_place(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers' made-up tokens crowd nothing out."""
    monkeypatch.setattr(auth, "_MOST_CACHED", 3)
    now, asked = Current(ledger), []
    for name in range(10):
        assert now.get(name, lambda: None) is None
    for _ in range(2):
        now.get("there", lambda: asked.append(1) or "is")  # type: ignore[func-returns-value]
    assert asked == [1]


def test_an_entry_of_another_process_counts(ledger: Ledger, tmp_path: Path) -> None:
    """The file is what is asked, not this process's memory of it."""
    now = Current(ledger)
    assert now.get("size", lambda: ledger.newest()[0]) == 2
    with Ledger.open(tmp_path / "ledger.sqlite") as other:
        _entry(other)
    assert now.get("size", lambda: ledger.newest()[0]) == 3


def test_what_was_read_while_an_entry_came_is_not_kept(ledger: Ledger) -> None:
    """It may be half of before and half of after; the next one asks again."""
    now = Current(ledger)

    def torn() -> str:
        _entry(ledger)
        return "torn"

    assert now.get("a", torn) == "torn"
    assert now.get("a", lambda: "whole") == "whole"


def test_an_error_is_not_kept(ledger: Ledger) -> None:
    """The next question goes to the ledger."""
    now = Current(ledger)
    with pytest.raises(ZeroDivisionError):
        now.get("a", lambda: 1 // 0)
    assert now.get("a", lambda: 1) == 1


def test_made_up_questions_do_not_fill_the_memory(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is kept than there is room for; everything is answered."""
    monkeypatch.setattr(auth, "_MOST_CACHED", 5)
    now = Current(ledger)
    assert [now.get(i, lambda i=i: i) for i in range(100)] == list(range(100))  # type: ignore[misc]
    assert len(now._kept) == 5


def test_nobody_is_told_of_an_earlier_moment(ledger: Ledger) -> None:
    """Threads that ask while entries come see sizes that never go back, nor lag behind what they saw before."""
    now, done = Current(ledger), threading.Event()
    wrong: list[tuple[int, int]] = []

    def look() -> None:
        while not done.is_set():
            before = ledger.newest()[0]
            told = now.get("size", lambda: ledger.newest()[0])
            if told < before:
                wrong.append((told, before))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(50):
        _entry(ledger, f"analyst-{i}")
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_catalogue_shows_every_act_at_once(served: Harness) -> None:
    """Allowances, limits, totals, retirements and tokens that an administrator's own process changes."""
    catalogue = catalog_pb2_grpc.CatalogServiceStub(served.channel)

    def seen() -> catalog_pb2.Dataset:
        one = catalogue.GetDataset(catalog_pb2.GetDatasetRequest(dataset="people"), metadata=served.bearer()).dataset
        (same,) = catalogue.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=served.bearer()).datasets
        assert one == same
        return one

    assert seen() == seen()
    with Ledger.open(served.state.ledger) as other:
        other.set_allowance("people", "the-analyst", Fraction(1, 2), actor="test", reason="")
        assert 2 * seen().allowance_remaining.cost_units == pytest.approx(seen().remaining.cost_units, rel=1e-9)
        other.set_budget("people", Budget(0.5, 1e-6), actor="test", reason="")
        assert seen().total.epsilon == 0.5
        assert not seen().retired
        other.retire_dataset("people", actor="test", reason="")
        assert seen().retired
        other.revoke_credential("the-analyst", actor="test", reason="")
    with pytest.raises(grpc.RpcError) as caught:
        seen()
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
