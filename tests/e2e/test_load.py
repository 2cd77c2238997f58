"""A short load: the judgement holds for a real server, and trips on each fault that is planted in what it judges."""

from __future__ import annotations

import importlib
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BENCH = Path(__file__).parents[2] / "bench"
CLIENTS, SECONDS, ROWS = 12, 12.0, 2000


@pytest.fixture(scope="module")
def load() -> Iterator[ModuleType]:
    """The load test as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCH)
        yield importlib.import_module("load")


@pytest.fixture(scope="module")
def story(load: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what a short run of few clients was like, who hardly think."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "THINK_SECONDS", 0.1)
        patch.setattr(load, "SAMPLE_SECONDS", 0.25)
        return load.loaded(tmp_path_factory.mktemp("load"), clients=CLIENTS, seconds=SECONDS, rows=ROWS)


def test_a_loaded_server_keeps_its_books(load: ModuleType, story: Any) -> None:
    """Every fit was paid for once, the total was used up to its last unit, and nothing else was found either."""
    assert load.report(story)["problems"] == []
    kinds = {kind for kind, ended in story.witness.seconds if ended == "answered"}
    assert set(load.FITS) | {"fit again", "preview", "limits"} <= kinds
    assert story.witness.beyond
    assert len(story.debits) >= len(load.FITS)


def _witness(load: ModuleType, story: Any, **changed: Any) -> Any:
    seen = story.witness
    fields = ("receipts", "answers", "refused", "beyond", "seconds", "failures")
    return replace(story, witness=load.Witness(**({name: getattr(seen, name) for name in fields} | changed)))


def _twice(load: ModuleType, story: Any) -> Any:
    return replace(story, debits=(*story.debits, replace(story.debits[0], entry=10**6)))


def _refused_and_paid(load: ModuleType, story: Any) -> Any:
    refused = {**story.witness.refused, "mine": Counter({"BudgetExhaustedError": 1})}
    return _witness(load, replace(story, debits=(*story.debits, load.Debit(10**6, "mine", 0, None))), refused=refused)


def _one_unit(load: ModuleType, story: Any) -> Any:
    return replace(story, spent=story.spent + 1, left=story.left - 1)


def _other_receipt(load: ModuleType, story: Any) -> Any:
    key, told = next(iter(story.witness.receipts.items()))
    ((entry, units),) = told
    return _witness(load, story, receipts={**story.witness.receipts, key: {(entry, units + 1)}})


def _lost_debit(load: ModuleType, story: Any) -> Any:
    return replace(story, debits=story.debits[1:])


def _second_draw(load: ModuleType, story: Any) -> Any:
    key, told = next(iter(story.witness.answers.items()))
    return _witness(load, story, answers={**story.witness.answers, key: told | {bytes(32)}})


def _room(load: ModuleType, story: Any) -> Any:
    return _witness(load, story, beyond=[*story.witness.beyond, (5, 5)])


def _unused(load: ModuleType, story: Any) -> Any:
    most = max(debit.units for debit in story.debits)
    return replace(story, cap=story.cap + most, left=story.left + most)


def _leak(load: ModuleType, story: Any) -> Any:
    grown = tuple(replace(one, server=one.server + 10 * one.seconds) for one in story.samples)
    return replace(story, samples=grown)


FAULTS: dict[str, tuple[Callable[[ModuleType, Any], Any], str]] = {
    "a request that was debited twice": (_twice, "more than once"),
    "a refused request that was debited": (_refused_and_paid, "refused and debited"),
    "a unit that is spent and nobody's": (_one_unit, "sums that differ"),
    "a receipt of another price": (_other_receipt, "not the ledger's"),
    "a receipt without a debit": (_lost_debit, "receipts without a debit"),
    "a second draw for one request": (_second_draw, "not what is stored"),
    "a refusal though there was room": (_room, "though there was room"),
    "a budget that somebody could still use": (_unused, "was not used up"),
    "a last request that was not refused": (
        lambda load, story: replace(story, last_refused=False),
        "was not used up",
    ),
    "a ledger that does not verify": (lambda load, story: replace(story, verified=""), "does not verify"),
    "descriptors that stay open": (lambda load, story: replace(story, idle=(10, 40)), "stayed open"),
    "memory that grows": (_leak, "memory grows: server"),
    "a call that ended in no way that it may": (
        lambda load, story: _witness(load, story, failures=["preview: ServerError"]),
        "preview: ServerError",
    ),
}


def _ten_minutes(load: ModuleType, by_the_minute: float) -> tuple[Any, ...]:
    """Samples of a server that warms up, and that then grows by so many MiB a minute, with noise of some tenths."""
    chance = random.Random(5)
    minutes = [i / 30 for i in range(301)]
    return tuple(
        load.Sample(
            60 * t,
            300 - 20 * math.exp(-2 * t) + by_the_minute * t + chance.gauss(0, 0.3),
            250 + chance.gauss(0, 0.1),
            chance.uniform(0, 200),
            80,
            4,
            int(80 * min(t, 5)),
        )
        for t in minutes
    )


def test_memory_is_flat_only_if_that_is_shown(load: ModuleType, story: Any) -> None:
    """A slow leak is found though the run is too short to see it grow by much; and one of the parent of fits."""
    flat = _ten_minutes(load, 0.05)
    assert load.judged(replace(story, samples=flat)) == []
    assert load.flatness(flat).startswith("memory is flat")
    leak = _ten_minutes(load, 0.6)
    (said,) = load.judged(replace(story, samples=leak))
    assert "not shown to be flat: server" in said
    assert "NOT" in load.flatness(leak)
    forks = tuple(replace(one, parent=one.parent + one.seconds / 100) for one in flat)
    assert any("shown to be flat: parent" in said for said in load.judged(replace(story, samples=forks)))
    assert "too short" in load.flatness(flat[:200])


def test_what_an_entry_takes_is_told(load: ModuleType) -> None:
    """Samples in which entries came say it; a ledger that stands still says nothing."""
    samples = [load.Sample(2.0 * i, 300 + 0.01 * min(i, 120), 250, 0, 80, 4, min(i, 120)) for i in range(200)]
    assert load.slope_by_entry(samples).rate == pytest.approx(0.01)
    assert load.slope_by_entry([replace(one, entries=7) for one in samples]) is None
    assert load.slope_by_entry([]) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found(load: ModuleType, story: Any, fault: str) -> None:
    """The real story with one thing wrong in it."""
    plant, said = FAULTS[fault]
    assert any(said in problem for problem in load.judged(plant(load, story)))
