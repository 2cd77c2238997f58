"""Going through cases that hypothesis makes up, until one is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Case = TypeVar("Case")


class WrongError(AssertionError):
    """Something was done that must not be done."""


def explore(cases: st.SearchStrategy[Case], check: Callable[[Case], object], examples: int, seed: int) -> None:
    """Check so many cases. Raises what the first raised whose check raised, with the case in a note.

    The case is not made smaller, nor tried again: a server would first have to be where it was before.
    """
    found: list[tuple[Exception, Case]] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def look(case: Case) -> None:
        if not found:
            try:
                check(case)
            except Exception as error:
                found.append((error, case))

    look()
    for error, case in found:
        error.add_note(f"the case: {case!r:.2000}")
        raise error
