"""Text that describes a released model: its origin, and cells with errors."""

from __future__ import annotations

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_models.budget import Receipt


def origin(receipt: Receipt | None, made: str = "decoded", *, dummy: bool = False) -> str:
    """Return the end of a model's title, which names its origin; empty for a model that does not come from a server.

    Args:
        receipt: receipt of the model, or None.
        made: verb for a model that was free: how it was made.
        dummy: True if a dry run made the model from synthetic rows.
    """
    if dummy:
        return ", DUMMY: of made-up rows, for trying a program out"
    if receipt is None:
        return ""
    if receipt.free and receipt.entry == 0:
        return ", from releases of other servers"
    return f", entry {receipt.entry} of {receipt.dataset!r}{f', {made} for free' if receipt.free else ''}"


def with_errors(estimates: FloatArray, errors: FloatArray | None) -> list[list[str]]:
    """Return numbers (k, p) as text, each with its error unless there is none or it is 0; infinite ones are hidden."""
    sizes = np.zeros_like(estimates) if errors is None else errors
    pairs = zip(estimates, sizes, strict=True)
    return [[_with_error(value, error) for value, error in zip(*rows, strict=True)] for rows in pairs]


def _with_error(value: float, error: float) -> str:
    if error == np.inf:
        return "hidden by noise"
    return f"{value:.4g} ± {error:.2g}" if error > 0 else f"{value:.4g}"


def component_table(
    columns: tuple[str, ...],
    weights: FloatArray,
    centres: FloatArray,
    errors: FloatArray | None = None,
    weight_errors: FloatArray | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Return headers and cells: one row a component, with its weight and its centre (k, d), and their known errors."""
    names = list(columns) or [f"x{j}" for j in range(centres.shape[1])]
    first = with_errors(weights[:, None], None if weight_errors is None else weight_errors[:, None])
    cells = zip(first, with_errors(centres, errors), strict=True)
    return ["weight", *names], [[*weight, *centre] for weight, centre in cells]
