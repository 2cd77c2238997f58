"""Public transforms of columns: what a model's space is, and the way back to the columns' own units.

`log1p` is computed from additions, multiplications and divisions of IEEE 754 alone, so that a row means the same
numbers on every machine; a library's logarithm may differ in its last bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from bursar_models.arrays import FloatArray

Transform: TypeAlias = Literal["none", "log1p"]
"""Transform of a column: none, or the natural logarithm of one plus the value."""

TRANSFORMS: tuple[Transform, ...] = get_args(Transform)
"""All transforms."""

_LEAST = 2.0**-60
"""Values below it become 0: they are far below the last bit of 1 + x, and sums of subnormal numbers take longer."""

_LOG_2 = 0.6931471805599453
_ROOT_HALF = 0.7071067811865476


def log1p(x: FloatArray) -> FloatArray:
    """Return log(1 + x) of numbers from 0 to 1e300, to a few units of the last place; NaN stays NaN."""
    x = np.where(x < _LEAST, 0.0, x)
    u = 1.0 + x
    m, e = np.frexp(u)
    low = m < _ROOT_HALF
    # u = m 2^e with m in [sqrt(1/2), sqrt(2)), so that |s| < .172 and the series ends below 1e-17.
    m, e = np.where(low, 2.0 * m, m), e - low
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = np.full_like(z, 1.0 / 21.0)
    for n in range(19, 2, -2):
        series = series * z + 1.0 / n
    rounded = (x - (u - 1.0)) / u  # what rounding took from 1 + x
    return np.asarray(e * _LOG_2 + (2.0 * (s + s * z * series) + rounded))


def checked_transforms(
    transforms: Sequence[Transform], d: int, bounds: FloatArray | None = None
) -> tuple[Transform, ...]:
    """Return the transforms of `d` columns as a tuple; () if none has one.

    Raises:
        ValueError: another number of them, an unknown one, or bounds (2, d) without logarithms.
    """
    found = tuple(transforms)
    if found and len(found) != d:
        raise ValueError(f"transforms: expected {d} of them, one for each feature, got {len(found)}")
    if not set(found) <= set(TRANSFORMS):
        raise ValueError(f"transforms: expected each to be one of {TRANSFORMS}, got {found}")
    if bounds is not None and not np.all(bounds[0, _logs(found)] > -1.0):
        raise ValueError("bounds_: a column with log1p must have a lower bound above -1")
    return () if set(found) <= {"none"} else found


def into_model(rows: FloatArray, transforms: Sequence[Transform]) -> FloatArray:
    """Return rows (..., d) in the model's space. -1 and less, which have no logarithm, are taken for 0."""
    logs = _logs(transforms)
    if not logs:
        return rows
    found = rows.copy()
    values = found[..., logs]
    found[..., logs] = np.log1p(np.where(values > -1.0, values, 0.0))
    return found


def into_units(rows: FloatArray, transforms: Sequence[Transform]) -> FloatArray:
    """Return points (..., d) of the model's space in the columns' own units."""
    logs = _logs(transforms)
    if not logs:
        return rows
    found = rows.copy()
    with np.errstate(over="ignore"):
        found[..., logs] = np.expm1(found[..., logs])
    return found


def means_in_units(means: FloatArray, variances: FloatArray, transforms: Sequence[Transform]) -> FloatArray:
    """Return the means (k, d), in the columns' own units, of Gaussians with these means and variances (k, d).

    That of exp(z) - 1 for a Gaussian z is exp(mean + variance / 2) - 1.
    """
    logs = _logs(transforms)
    shifted = means.copy()
    shifted[:, logs] += variances[:, logs] / 2.0
    return into_units(shifted, transforms)


def log_slopes(rows: FloatArray, transforms: Sequence[Transform]) -> FloatArray:
    """Return the logarithm of the volume in the model's space of a unit of volume around each row (n, d), shape (n,).

    It is what a logarithm of a density in the model's space lacks to that in the columns' own units; -inf for rows
    without a logarithm.
    """
    values = rows[:, _logs(transforms)]
    inside = values > -1.0
    return np.asarray(np.where(inside, -np.log1p(np.where(inside, values, 0.0)), -np.inf).sum(axis=1))


def slopes(points: FloatArray, transforms: Sequence[Transform]) -> FloatArray:
    """Return own units per unit of the model's space at points (..., d) in own units."""
    found = np.ones_like(points)
    logs = _logs(transforms)
    found[..., logs] = 1.0 + points[..., logs]
    return found


def names_in_model(columns: tuple[str, ...], transforms: Sequence[Transform]) -> tuple[str, ...]:
    """Return the names of the features of the model's space, such as "log1p(income)"; () without names."""
    logs = _logs(transforms)
    return tuple(f"log1p({name})" if place in logs else name for place, name in enumerate(columns))


def said_transforms(columns: Sequence[str], transforms: Sequence[Transform]) -> str:
    """Return the part of a model's title that names transformed columns; "" if there are none."""
    names = tuple(columns) or tuple(f"x{place}" for place in range(len(transforms)))
    shown = names_in_model(names, transforms)
    return "".join(f", with {shown[place]}" for place in _logs(transforms))


def _logs(transforms: Sequence[Transform]) -> list[int]:
    return [place for place, name in enumerate(transforms) if name == "log1p"]
