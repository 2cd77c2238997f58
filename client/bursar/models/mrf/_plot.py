"""The picture of a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bursar.models.mrf._variables import require

_WIDEST = 6.0
"""Points: the line of the strongest dependence."""

_LEGEND = 3
"""Lines whose mutual information is written out."""


def plot_graph(columns: Sequence[str], dependence: Mapping[tuple[str, str], float], title: str, ax: Any = None) -> Any:
    """Columns on a circle, joined by lines whose width and darkness grow with their dependence in nats.

    Raises:
        bursar.MissingDependencyError: matplotlib is not installed.
    """
    pyplot = require("matplotlib.pyplot")
    if ax is None:
        side = 5.0 + 0.1 * len(columns)
        ax = pyplot.figure(figsize=(side + 1, side), layout="constrained").gca()
    places = {name: _on_circle(number, len(columns)) for number, name in enumerate(columns)}
    strongest = max(dependence.values(), default=0.0) or 1.0
    # The strongest last, above the others.
    for rank, ((a, b), value) in reversed(list(enumerate(dependence.items()))):
        share = math.sqrt(value / strongest)
        xs, ys = zip(places[a], places[b], strict=True)
        label = f"{a} - {b}: {value:.2g} nats" if rank < _LEGEND else None
        ax.plot(
            xs,
            ys,
            color=str(0.85 - 0.65 * share),
            linewidth=0.5 + (_WIDEST - 0.5) * share,
            zorder=1,
            label=label,
            solid_capstyle="round",
        )
    for name, (x, y) in places.items():
        ax.plot([x], [y], "o", markersize=10, color="tab:blue", markeredgecolor="white", zorder=2)
        ax.annotate(
            name,
            (x, y),
            xytext=(12 * x, 12 * y),
            textcoords="offset points",
            va="center",
            ha="center" if abs(x) < 0.2 else ("left" if x > 0 else "right"),
        )
    if dependence:
        handles, labels = ax.get_legend_handles_labels()
        ax.legend(
            handles[::-1],
            labels[::-1],
            title="strongest dependence",
            loc="upper center",
            bbox_to_anchor=(0.5, -0.02),
            frameon=False,
        )
    ax.set_title(title, fontsize="medium", wrap=True)
    ax.set_aspect("equal")
    ax.margins(0.25)
    ax.set_axis_off()
    return ax


def _on_circle(number: int, total: int) -> tuple[float, float]:
    """From the top, clockwise."""
    angle = math.pi / 2 - 2 * math.pi * number / total
    return math.cos(angle), math.sin(angle)
