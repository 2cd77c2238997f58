"""How a released model shows itself."""

from __future__ import annotations

import numpy as np

from bursar._privacy import Receipt
from bursar.models._arrays import FloatArray


def origin(receipt: Receipt | None, made: str = "decoded") -> str:
    """Where a model comes from, to follow its title; empty for a model that does not come from a server.

    Args:
        receipt: of the model.
        made: what was done for nothing, if it was free.
    """
    if receipt is None:
        return ""
    if receipt.free and receipt.entry == 0:
        return ", from releases of other servers"
    return f", entry {receipt.entry} of {receipt.dataset!r}{f', {made} for nothing' if receipt.free else ''}"


def component_table(
    columns: tuple[str, ...], weights: FloatArray, centres: FloatArray
) -> tuple[list[str], list[list[str]]]:
    """Headers and cells: one row a component, its weight and its centre (k, d)."""
    names = list(columns) or [f"x{j}" for j in range(centres.shape[1])]
    cells = [[f"{value:.4g}" for value in row] for row in np.column_stack([weights, centres])]
    return ["weight", *names], cells
