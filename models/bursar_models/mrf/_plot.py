"""Pictures of a graph and of a chain's transitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bursar_models._plot import literal, new_axes, put_title
from bursar_models.arrays import FloatArray
from bursar_models.optional import require

_WIDEST = 6.0
"""Width of the line of the strongest dependence, in points."""

_LETTER, _AROUND = 0.085, 1.5
"""Width of a letter, and height of title and legend together, in inches; measured on matplotlib's default font."""

_LEGEND = 3
"""Number of lines whose mutual information is written out."""

_WRITTEN, _NAMED = 12, 40
"""Maximum numbers of a chain's states for which probabilities are written out, and for which states are named."""


def plot_graph(columns: Sequence[str], dependence: Mapping[tuple[str, str], float], title: str, ax: Any = None) -> Any:
    """Draw columns on a circle, joined by lines whose width and darkness grow with their dependence in nats.

    Columns are in the given order, clockwise from the top, or in one with fewer crossings; a tree has none.

    Args:
        columns: names of the columns.
        dependence: dependence of each joined pair of columns, in nats; the strongest first.
        title: title above the picture.
        ax: matplotlib axes to draw on; None makes a figure.

    Raises:
        bursar.MissingDependencyError: matplotlib is not installed.
    """
    pyplot = require("matplotlib.pyplot")
    radius = 1.6 + 0.06 * len(columns)
    # Half-sizes of the picture in radii, with room for names beside, above and below the circle.
    width = 1 + max(0.3 + _LETTER * max(map(len, columns)), 0.8) / radius
    height = 1 + 0.4 / radius
    if ax is None:
        size = (2 * radius * width, 2 * radius * height + _AROUND)
        ax = pyplot.figure(figsize=size, layout="constrained").gca()
    orders = [list(columns), _along_branches(columns, list(dependence))]
    order = min(orders, key=lambda names: _crossings(names, dependence))
    places = {name: _on_circle(number, len(columns)) for number, name in enumerate(order)}
    strongest = max(dependence.values(), default=0.0) or 1.0
    # Strongest last, so that it lies on top.
    for rank, ((a, b), value) in reversed(list(enumerate(dependence.items()))):
        share = math.sqrt(value / strongest)
        xs, ys = zip(places[a], places[b], strict=True)
        label = literal(f"{a} - {b}: {value:.2g} nats") if rank < _LEGEND else None
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
            literal(name),
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
    ax.set_title(literal(title), fontsize="medium", wrap=True)
    ax.set_aspect("equal", anchor="N")
    ax.set(xlim=(-width, width), ylim=(-height, height))
    ax.set_axis_off()
    return ax


def plot_chain(
    states: Sequence[str], null: str | None, first: FloatArray, pairs: FloatArray, title: str, ax: Any = None
) -> Any:
    """Draw a matrix of the probabilities of the next state, one row for each state before, below the first state's.

    Args:
        states: labels of the states, s.
        null: label of the state that means "not observed"; None if there is none.
        first: probabilities of the first state, shape (s,).
        pairs: probabilities of two consecutive states, shape (s, s). A state without successors has an empty row.
        title: title above the picture.
        ax: matplotlib axes to draw on; None makes a figure.

    Raises:
        bursar.MissingDependencyError: matplotlib is not installed.
    """
    s, before = len(states), pairs.sum(axis=1, keepdims=True)
    transitions = np.divide(pairs, before, out=np.full_like(pairs, np.nan), where=before > 0)
    # An empty row separates the first state from the transitions.
    cells = np.concatenate([first[None], np.full((1, s), np.nan), transitions])
    size = min(max(3.2, 0.62 * s), 10.0)
    ax = new_axes(ax, size + 2.4, size + 1.4)
    image = ax.imshow(cells, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    if s <= _WRITTEN:
        for row, column in np.argwhere(np.isfinite(cells)).tolist():
            value = cells[row, column]
            colour = "white" if value > 0.6 else "0.15"
            ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize="small")
    names = [f"{state}\n(not observed)" if state == null else state for state in states] if s <= _NAMED else [""] * s
    longest = max(len(line) for name in names for line in name.split("\n"))
    # Names that would overlap are slanted.
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if _LETTER * longest > size / s else {}
    names = [*map(literal, names)]
    ax.set_xticks(range(s), names, **slanted)
    ax.set_yticks([0, *range(2, s + 2)], ["first state", *names])
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.set(xlabel="next state", ylabel="state before")
    ax.figure.colorbar(image, ax=ax, label="probability")
    put_title(ax, title)
    return ax


def _along_branches(columns: Sequence[str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return columns in the order of a walk along the strongest pairs, each branch to its end.

    The walk follows a spanning forest of the strongest pairs (Kruskal 1956), from the first column of each tree.
    """
    neighbours: dict[str, list[str]] = {name: [] for name in columns}
    trees = {name: {name} for name in columns}
    for a, b in pairs:
        if trees[a] is not trees[b]:
            trees[a] |= trees[b]
            trees.update(dict.fromkeys(trees[b], trees[a]))
            neighbours[a].append(b)
            neighbours[b].append(a)
    met: dict[str, None] = {}
    ahead = [*reversed(columns)]
    while ahead:
        name = ahead.pop()
        if name not in met:
            met[name] = None
            ahead += sorted(neighbours[name], key=columns.index, reverse=True)
    return [*met]


def _crossings(order: Sequence[str], pairs: Iterable[tuple[str, str]]) -> int:
    """Return the number of pairs of straight lines that cross when columns are on a circle in this order."""
    place = {name: number for number, name in enumerate(order)}
    ends = np.sort(np.array([(place[a], place[b]) for a, b in pairs], dtype=np.intp).reshape(-1, 2), axis=1)
    low, high = ends[:, None, 0], ends[:, None, 1]
    return int(((low < ends[:, 0]) & (ends[:, 0] < high) & (high < ends[:, 1])).sum())


def _on_circle(number: int, total: int) -> tuple[float, float]:
    """Return a place on the unit circle, clockwise from the top."""
    angle = math.pi / 2 - 2 * math.pi * number / total
    return math.cos(angle), math.sin(angle)
