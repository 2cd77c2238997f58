"""The timing bench: its tests find what is planted, and a short run of it against a real server and its control."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
QUANTUM = 0.25


@pytest.fixture(scope="module")
def timing() -> Iterator[Any]:
    """The script as a module, which finds its siblings beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield importlib.import_module("timing")
        for name in ("timing", "_timing_server", "_serving", "_common"):
            sys.modules.pop(name, None)


def seen(timing: Any, rng: Any, times: int, **planted: float) -> list[tuple[int, Any]]:
    """Make up what a client sees of both tables: a fit that ends in the first quantum or the second, and jitter.

    Args:
        timing: the script.
        rng: of the jitter.
        times: that each table is asked.
        planted: in fits of the second table: `late` is the chance of one more quantum, `after` seconds after each tick,
            `steps` more steps at the first tick.
    """
    found = []
    for i in range(2 * times):
        which = (i + 1) // 2 % 2
        late, after, steps = (planted.get(name, 0.0) * which for name in ("late", "after", "steps"))
        quanta = 1 + (rng.random() < 0.3 + late)
        noise = np.abs(rng.normal(size=len(timing.KINDS))) * 3e-3 + after
        ticks = dict(zip(timing.KINDS, (1, quanta, quanta, quanta), strict=True))
        arrived = {kind: QUANTUM * tick + delay for (kind, tick), delay in zip(ticks.items(), noise, strict=True)}
        found.append((which, timing.Seen(0.01 + noise[0], arrived, int(rng.integers(4, 7) + steps), 50)))
    return found


@pytest.mark.parametrize(
    ("planted", "tests"),
    [
        ({"late": 0.4}, {"answer: quanta", "place: times"}),
        ({"after": 4e-3}, {"list of releases: remainders", "first progress: remainders", "guesses"}),
        ({"steps": 1.0}, {"steps: permuted"}),
    ],
)
def test_a_difference_that_is_planted_is_found(timing: Any, planted: dict[str, float], tests: set[str]) -> None:
    """Each number that a client sees is changed, and the tests that are made for it notice."""
    rng = np.random.default_rng(5)  # noqa: TID251  of made-up times
    assert tests <= set(timing.told_apart(seen(timing, rng, 200, **planted), QUANTUM)["told_apart"])


@pytest.mark.slow
def test_where_there_is_no_difference_none_is_found(timing: Any) -> None:
    """Five times; the chance of one alarm in all is below 1e-6."""
    rng = np.random.default_rng(6)  # noqa: TID251  of made-up times
    for seed in range(5):
        found = timing.told_apart(seen(timing, rng, 60), QUANTUM, level=1e-7, seed=seed)
        assert found["told_apart"] == []


@pytest.mark.slow
def test_a_servers_times_do_not_tell_two_tables_apart_and_those_of_one_without_ticks_do(
    timing: Any, tmp_path: Path
) -> None:
    """A quick run with small tables: one row there or not, and the same with a planted delay and no ticks."""
    home = timing.home_of(timing.cases(scale=100)["first row"], tmp_path)
    found = timing.told_apart(timing.watch(home, 20), QUANTUM, level=1e-6)
    assert found["told_apart"] == [], found
    control = timing.control(home, 2.0)  # above what a busy machine adds; complete separation has a chance of 3e-9
    without = timing.told_apart(timing.watch(home, 16, *control), QUANTUM, level=1e-6)
    assert {f"{kind}: times" for kind in ("answer", "list of releases", "place")} <= set(without["told_apart"]), without
