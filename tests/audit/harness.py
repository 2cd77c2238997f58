"""The audit of a fit: every test, and the rule by which they condemn it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_server.vault import CHUNK, ArrayRows
from tests.audit import checks
from tests.audit.checks import Finding
from tests.audit.target import Target, collect, observe

BIT_PATTERNS = (
    0.0,
    -0.0,
    5e-324,
    2.0**-1074,
    1e-300,
    1.0,
    -1.0,
    1e6,
    -1e6,
    1e150,
    1e308,
    -1e308,
    np.inf,
    -np.inf,
    np.nan,
)
"""Values that a column may hold and that arithmetic may trip over."""


@dataclass(frozen=True)
class Verdict:
    """Verdict of an audit.

    Attributes:
        condemned: tests that rejected twice, the second time on fresh randomness and four times as many runs.
        findings: of the last round.
        reach: largest change that the search found, over the claimed sensitivity; near 1 unless the search was idle.
    """

    condemned: frozenset[str]
    findings: tuple[Finding, ...]
    reach: float


def extremes(columns: int, *rows: FloatArray) -> FloatArray:
    """Rows (columns, m) of adversarial bit patterns in each column and in all, with a target's own rows besides."""
    made = [np.full(columns, value) for value in BIT_PATTERNS]
    made += [np.where(np.arange(columns) == i, value, 0.0) for i in range(columns) for value in BIT_PATTERNS[5:11]]
    return np.array([*made, *rows]).T


def verdict(target: Target, n: int, *, again: int = 4) -> Verdict:
    """Audit with n runs on each table; what rejects is repeated with `again` times as many before it condemns."""
    findings, reach = round_of_tests(target, n)
    first = {finding.test for finding in findings if finding.rejects}
    if not first:
        return Verdict(frozenset(), findings, reach)
    findings, reach = round_of_tests(target, again * n)
    second = {finding.test for finding in findings if finding.rejects}
    return Verdict(frozenset(first & second), findings, reach)


def round_of_tests(target: Target, n: int) -> tuple[tuple[Finding, ...], float]:
    """Every test once."""
    seen = observe(target, target.rows)
    bounds, reach = checks.sensitivity_search(target, seen)
    certain = (
        bounds,
        checks.placement(target, seen),
        checks.arithmetic(target, seen),
        checks.replay(target, seen, other_tables(target), ArrayRows(target.extremes)),
    )
    black_box = len(target.claims) == 1 and not target.brief
    return (*certain, *_statistical_tests(target, n, black_box=black_box)), reach


def rejecting(target: Target, asked: frozenset[str], n: int) -> frozenset[str]:
    """Return the requested tests that reject once, with n runs on each table; few others are made."""
    seen = observe(target, target.rows)
    certain: dict[str, Callable[[], Finding]] = {
        "T4 sensitivity": lambda: checks.sensitivity_search(target, seen)[0],
        "T4 placement": lambda: checks.placement(target, seen),
        "T5 arithmetic": lambda: checks.arithmetic(target, seen),
        "T7 replay": lambda: checks.replay(target, seen, other_tables(target), ArrayRows(target.extremes)),
    }
    found = [check() for test, check in certain.items() if test in asked]
    if asked - certain.keys():
        found += _statistical_tests(target, n, black_box="T6 black box" in asked)
    return asked & {finding.test for finding in found if finding.rejects}


def _statistical_tests(target: Target, n: int, *, black_box: bool) -> list[Finding]:
    """Those of many runs, n on each table; T6 takes as many again."""
    sample = collect(target, n)
    if isinstance(sample, str):
        return [Finding("form", 0.0, sample)]
    found = [
        checks.agreement(sample),
        *checks.energy(sample),
        checks.distinguish(sample),
        checks.whiteness(sample),
        *(checks.choices(sample) if target.chosen else []),
    ]
    if black_box:
        fresh = collect(target, n)
        if not isinstance(fresh, str):
            found.append(checks.black_box(sample, fresh))
    return found


def other_tables(target: Target) -> list[ArrayRows]:
    """Tables on which a replay must not differ: the neighbour, one of null rows only, and the same rows stretched.

    Each has another number of slots: null rows fill more than a block, and the stretched rows are one more, so that odd
    stands beside even.
    """
    columns = target.rows.columns
    slots = columns.shape[1] + CHUNK
    empty = ArrayRows(np.zeros((len(columns), slots)), np.zeros(slots, dtype=np.bool_))
    with np.errstate(over="ignore"):  # a table may hold the largest numbers
        stretched = ArrayRows(-3.0 * np.hstack([columns[:, ::-1], columns[:, :1]]))
    return [target.neighbour, empty, stretched]
