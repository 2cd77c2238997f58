"""Minimization of smooth functions of many variables.

Source: Nocedal and Wright (2006), "Numerical optimization", algorithm 7.4 (limited-memory BFGS) and section 3.1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from bursar.models._arrays import FloatArray

Solve = Callable[[FloatArray], FloatArray]
"""Multiplies by an approximation of the inverse of the second derivatives, symmetric and positive definite."""

Objective = Callable[[FloatArray], tuple[float, FloatArray, Solve]]
"""Value, gradient, and what is known of the second derivatives at a point."""

_MEMORY = 20
"""Steps that are remembered."""

_SUFFICIENT = 1e-4
"""Share of the decrease that the slope promises, from which a step is taken."""

_PATIENCE = 3
"""Steps of little progress in a row after which it ends."""

_HALVINGS = 30
"""Trials of one line search."""

_TO_THE_EDGE = 0.9
"""Share of the way to the edge of the domain that a step may take."""


def minimized(
    objective: Objective,
    starts: Sequence[FloatArray],
    lowest: FloatArray,
    tolerance: float,
    limit: int,
) -> tuple[FloatArray, int]:
    """A point near the minimum, by limited-memory BFGS with backtracking from the best of `starts`.

    BFGS corrects the objective's own approximation at the current point. Total: whatever the objective does,
    it ends within the limit at a finite point that is no worse than the starts.

    Args:
        objective: what to minimize.
        starts: points inside the domain; the first one has a finite value.
        lowest: open lower ends of the domain, where the objective grows beyond all bounds; -inf for none.
        tolerance: decrease in one step that counts as little progress.
        limit: most evaluations.

    Returns:
        The point and the number of evaluations.
    """
    points = [np.maximum(start, _TO_THE_EDGE * lowest) for start in starts]
    found = [objective(point) for point in points]
    best = min(range(len(points)), key=lambda index: (not _finite(found[index]), found[index][0]))
    point, (value, gradient, solve) = points[best], found[best]
    memory: deque[tuple[FloatArray, FloatArray]] = deque(maxlen=_MEMORY)
    used, slow = len(points), 0
    while used < limit and slow < _PATIENCE:
        direction = -_inverse_times(memory, solve, gradient)
        slope = float(direction @ gradient)
        if not slope < 0:
            break
        step = min(1.0, _room(point, direction, lowest))
        for _ in range(min(_HALVINGS, limit - used)):
            trial = point + step * direction
            used += 1
            new = objective(trial)
            if new[0] <= value + _SUFFICIENT * step * slope and _finite(new):
                break
            step *= _shrink(value, slope * step, new[0])
        else:
            break
        moved, changed = trial - point, new[1] - gradient
        if float(moved @ changed) > 0:
            memory.append((moved, changed))
        slow = slow + 1 if value - new[0] <= tolerance else 0
        point, (value, gradient, solve) = trial, new
    return point, used


def _finite(found: tuple[float, FloatArray, Solve]) -> bool:
    return bool(np.isfinite(found[0]) and np.isfinite(found[1]).all())


def _inverse_times(memory: Sequence[tuple[FloatArray, FloatArray]], solve: Solve, gradient: FloatArray) -> FloatArray:
    """The approximate inverse of the second derivatives times the gradient: the two loops of algorithm 7.4."""
    result, factors = gradient.copy(), []
    for moved, changed in reversed(memory):
        factor = (moved @ result) / (moved @ changed)
        factors.append(factor)
        result -= factor * changed
    result = solve(result)
    if memory:
        moved, changed = memory[-1]
        result *= (moved @ changed) / (changed @ solve(changed))
    for (moved, changed), factor in zip(memory, reversed(factors), strict=True):
        result += (factor - (changed @ result) / (moved @ changed)) * moved
    return result


def _room(point: FloatArray, direction: FloatArray, edge: FloatArray) -> float:
    """Longest step that stays within `_TO_THE_EDGE` of the way to the edge."""
    towards = (direction < 0) & np.isfinite(edge)
    if not towards.any():
        return np.inf
    return _TO_THE_EDGE * float(((edge - point)[towards] / direction[towards]).min())


def _shrink(value: float, promised: float, new: float) -> float:
    """Factor for a step that was too long: the minimum of the parabola, within a tenth and a half."""
    excess = new - value - promised
    if not excess > 0 or not np.isfinite(excess):
        return 0.1
    return min(max(-promised / (2 * excess), 0.1), 0.5)
