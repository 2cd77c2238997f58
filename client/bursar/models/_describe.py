"""How a released model shows itself."""

from __future__ import annotations

import numpy as np

from bursar._privacy import Receipt
from bursar.models._arrays import FloatArray


def origin(receipt: Receipt | None, made: str = "decoded", *, dummy: bool = False) -> str:
    """Where a model comes from, to follow its title; empty for a model that does not come from a server.

    Args:
        receipt: of the model.
        made: what was done for nothing, if it was free.
        dummy: it was made by a dummy run, of rows of nobody.
    """
    if dummy:
        return ", DUMMY: of made-up rows, for trying a program out"
    if receipt is None:
        return ""
    if receipt.free and receipt.entry == 0:
        return ", from releases of other servers"
    return f", entry {receipt.entry} of {receipt.dataset!r}{f', {made} for nothing' if receipt.free else ''}"


def with_errors(estimates: FloatArray, errors: FloatArray | None) -> list[list[str]]:
    """Cells of numbers (k, p), each with its error, unless there are none or it is 0."""
    sizes = np.zeros_like(estimates) if errors is None else errors
    pairs = zip(estimates, sizes, strict=True)
    return [[_with_error(value, error) for value, error in zip(*rows, strict=True)] for rows in pairs]


def _with_error(value: float, error: float) -> str:
    return f"{value:.4g} ± {error:.2g}" if error > 0 else f"{value:.4g}"


def component_table(
    columns: tuple[str, ...],
    weights: FloatArray,
    centres: FloatArray,
    errors: FloatArray | None = None,
    weight_errors: FloatArray | None = None,
) -> tuple[list[str], list[list[str]]]:
    """Headers and cells: one row a component, its weight and its centre (k, d), with their errors if there are any."""
    names = list(columns) or [f"x{j}" for j in range(centres.shape[1])]
    first = with_errors(weights[:, None], None if weight_errors is None else weight_errors[:, None])
    cells = zip(first, with_errors(centres, errors), strict=True)
    return ["weight", *names], [[*weight, *centre] for weight, centre in cells]
