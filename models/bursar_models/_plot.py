"""Pictures of released models: components on one or two columns, and coefficients with their errors.

matplotlib is imported when a picture is drawn, never before.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar_models.arrays import FloatArray
from bursar_models.optional import require
from bursar_models.schema import Column, NumericColumn
from bursar_models.transforms import Transform, into_units, log_slopes

_LISTED = 12
"""Number of components that a legend names; more would not fit beside the axes."""

_WITHIN = 6
"""Maximum number of components that a legend within the axes names; a larger one would cover too much."""

_LETTER = 0.088
"""Width of a letter of a title, in inches; measured on matplotlib's default font."""

_DEVIATIONS = 4.0
"""Range of a drawn density around the outermost means, in standard deviations: beyond it a line looks flat."""

_CIRCLE = np.stack([np.cos(np.linspace(0, 2 * np.pi, 129)), np.sin(np.linspace(0, 2 * np.pi, 129))], axis=1)
"""Points of the unit circle, for outlines that are no ellipses in own units."""

_FAINTEST, _DARKEST = 0.06, 0.3
"""Opacity of a component without weight, and of the heaviest."""


@dataclass(frozen=True, eq=False)
class Components:
    """Drawing data of k components, on one or two columns.

    Attributes:
        names: names of the columns, one or two.
        weights: weights of the components, shape (k,).
        centres: centres of the components, shape (k, len(names)).
        covariances: covariances of the components, shape (k, len(names), len(names)).
        errors: standard errors of the centres or `means`, shape (k, len(names)); None if unknown.
        means: places of the errors' bars, shape (k, len(names)); None for the centres.
        transforms: transforms of the columns, () if none has one; the numbers above are those of the model's space, and
            pictures are in the columns' own units.
    """

    names: tuple[str, ...]
    weights: FloatArray
    centres: FloatArray
    covariances: FloatArray
    errors: FloatArray | None = None
    means: FloatArray | None = None
    transforms: tuple[Transform, ...] = ()


def feature_names(columns: tuple[str, ...], d: int) -> tuple[str, ...]:
    """Return names of the d features; x0, x1, ... if they have none."""
    return columns or tuple(f"x{j}" for j in range(d))


def chosen(columns: tuple[str, ...], d: int, wanted: str | Sequence[str] | None) -> list[int]:
    """Return indices of the columns to draw: the one or two that are wanted, or the first two.

    Raises:
        ValueError: more than two columns, one of them twice, or a column that the model does not have.
    """
    names = feature_names(columns, d)
    if wanted is None:
        return [*range(min(d, 2))]
    asked = [wanted] if isinstance(wanted, str) else list(wanted)
    if missing := [name for name in asked if name not in names]:
        raise ValueError(f"columns: the model has no column {missing[0]!r}; it has {', '.join(names)}")
    if not 1 <= len(asked) == len(set(asked)) <= 2:
        raise ValueError("columns: expected the name of one column, or of two")
    return [names.index(name) for name in asked]


def new_axes(ax: Any, width: float = 6.4, height: float = 4.8) -> Any:
    """Return the axes to draw on: those given, or those of a new figure of that size in inches.

    Raises:
        bursar.MissingDependencyError: matplotlib is not installed.
    """
    pyplot = require("matplotlib.pyplot")
    return pyplot.figure(figsize=(width, height), layout="constrained").gca() if ax is None else ax


def literal(text: str) -> str:
    """Return a text in which each dollar is one: what stands between two of them matplotlib takes for a formula."""
    return text.replace("$", r"\$")


def put_title(ax: Any, title: str) -> None:
    """Set a title, broken into lines that fit above the axes."""
    letters = int(ax.figure.get_figwidth() * ax.get_position().width / _LETTER)
    lines = textwrap.fill(title, max(letters, 24), break_on_hyphens=False)
    ax.set_title(literal(lines), fontsize="medium", loc="left")


def put_legend(ax: Any, title: str) -> None:
    """Put the legend beside the axes if the layout makes room there, otherwise a small one, if any, within them."""
    handles, labels = ax.get_legend_handles_labels()
    style: dict[str, Any] = {"loc": "best", "fontsize": "x-small"}
    if ax.figure.get_layout_engine():
        beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "borderaxespad": 0, "frameon": False}
        style = {**beside, "title": title, "title_fontsize": "small", "fontsize": "small", "alignment": "left"}
    elif len(handles) > _WITHIN:
        return
    ax.legend(handles, labels, **style)


def put_schema(ax: Any, names: Sequence[str], schema: Sequence[Column]) -> Any:
    """Label axes with the descriptions of their columns, draw dotted lines at the public bounds, and return the axes.

    Args:
        ax: matplotlib axes.
        names: names of the column on the horizontal axis, and of that on the vertical one if there is one.
        schema: columns of a public schema; those that are not drawn or not numeric are left out.
    """
    known = {column.name: column for column in schema if isinstance(column, NumericColumn)}
    for name, axis, line in zip(names, (ax.xaxis, ax.yaxis), (ax.axvline, ax.axhline), strict=False):
        if name in known:
            column = known[name]
            label = f"{name}: {column.description}" if column.description else name
            axis.set_label_text(literal(textwrap.shorten(label, 60, placeholder="...")))
            for bound in (column.lower, column.upper):
                line(bound, color="0.5", linestyle=":", linewidth=1, zorder=0)
    return ax


def plot_mixture(shown: Components, title: str, ax: Any = None) -> Any:
    """Draw Gaussians: the density along one column, or ellipses of 1 and 2 standard deviations on two."""
    ax = new_axes(ax, 8.0)
    if len(shown.names) == 1:
        _plot_density(shown, ax)
        put_legend(ax, "component: share of the rows")
    else:
        _plot_ellipses(shown, (1, 2), ax)
        put_legend(ax, "component: share of the rows\nellipses: 1 and 2 standard deviations" + _bars(shown))
    put_title(ax, title)
    return ax


def plot_centres(shown: Components, title: str, ax: Any = None) -> Any:
    """Draw cluster centres: with outlines at their root mean square distance on two columns, with shares on one."""
    ax = new_axes(ax, 8.0)
    if len(shown.names) == 1:
        deviations = np.sqrt(shown.covariances[:, 0, 0])
        for number in range(len(shown.weights)):
            weight = shown.weights[number]
            centre, bars = _in_units(shown.centres[number], deviations[number : number + 1], shown.transforms)
            style = {"color": _colour(number), "label": _label(shown.weights, number)}
            ax.errorbar(centre, [weight], xerr=bars, fmt="o", capsize=4, **style)
            ax.vlines(centre, 0, weight, color=_colour(number), alpha=0.5)
        ax.set(xlabel=literal(shown.names[0]), ylabel="share of the rows")
        ax.set_ylim(bottom=0)
    else:
        _plot_ellipses(shown, (1,), ax)
    shape = "bars: root mean square distance"
    if len(shown.names) == 2:
        shape = f"outlines: root mean square distance{_bars(shown)}"
    put_legend(ax, f"cluster: share of the rows\n{shape}")
    put_title(ax, title)
    return ax


def plot_coefficients(
    names: Sequence[str],
    estimates: FloatArray,
    errors: FloatArray | None,
    labels: Sequence[str],
    axis: str,
    title: str,
    ax: Any = None,
) -> Any:
    """Draw coefficients of k regressions, (k, d), as points beside their features, with bars of two standard errors.

    Args:
        names: names of the d features.
        estimates: coefficients, shape (k, d).
        errors: standard errors, shape (k, d); None if unknown.
        labels: names of the regressions, for the legend; none for a single one.
        axis: label of the coefficients' axis.
        title: title above the picture.
        ax: matplotlib axes to draw on; None makes a figure.

    Raises:
        bursar.MissingDependencyError: matplotlib is not installed.
    """
    k, d = estimates.shape
    ax = new_axes(ax, 7.2 if k == 1 else 9.0, 1.6 + 0.3 * d * (1 + 0.35 * (k - 1)))
    ax.axvline(0, color="0.6", linewidth=0.8, zorder=0)
    for number in range(k):
        # Offset within the row of a feature, so that bars of several regressions do not overlap.
        rows = np.arange(d) + 0.7 * ((number + 0.5) / k - 0.5)
        ax.errorbar(
            estimates[number],
            rows,
            xerr=None if errors is None else 2 * errors[number],
            fmt="o",
            markersize=5,
            capsize=3,
            color=_colour(number),
            label=literal(labels[number]) if labels and number < _LISTED else None,
        )
    ax.set_yticks(range(d), [literal(textwrap.shorten(name, 40, placeholder="...")) for name in names])
    ax.set_ylim(d - 0.5, -0.5)
    ax.margins(x=0.08)
    ax.set_xlabel(literal(axis if errors is None else f"{axis}\nbars: 2 standard errors (noise and sampling)"))
    if labels:
        put_legend(ax, "regression: share of the rows")
    put_title(ax, title)
    return ax


def _plot_density(shown: Components, ax: Any) -> None:
    means, deviations = shown.centres[:, 0], np.sqrt(shown.covariances[:, 0, 0])
    low, high = (means - _DEVIATIONS * deviations).min(), (means + _DEVIATIONS * deviations).max()
    # An even grid would miss components that are narrow beside wide ones.
    near = (means[:, None] + deviations[:, None] * np.linspace(-_DEVIATIONS, _DEVIATIONS, 81)).ravel()
    x = np.unique(np.concatenate([np.linspace(low, high, 401), near]))
    standard = (x - means[:, None]) / deviations[:, None]
    parts = shown.weights[:, None] * np.exp(-0.5 * np.square(standard)) / (deviations[:, None] * math.sqrt(2 * math.pi))
    x = into_units(x[:, None], shown.transforms)
    parts, x = parts * np.exp(log_slopes(x, shown.transforms)), x[:, 0]
    for number, part in enumerate(parts):
        ax.fill_between(x, part, color=_colour(number), alpha=0.35, linewidth=0, label=_label(shown.weights, number))
    ax.plot(x, parts.sum(axis=0), color="0.15")
    ax.set(xlabel=literal(shown.names[0]), ylabel="density", xlim=(x[0], x[-1]))
    ax.set_ylim(bottom=0)


def _plot_ellipses(shown: Components, radii: Sequence[int], ax: Any) -> None:
    patches = require("matplotlib.patches")
    heaviest = shown.weights.max()
    # Largest first, so that small ellipses lie on top.
    for number in np.argsort(-np.linalg.det(shown.covariances), kind="stable").tolist():
        centre, share = shown.centres[number], shown.weights[number] / heaviest
        lengths, directions = np.linalg.eigh(shown.covariances[number])
        angle = math.degrees(math.atan2(directions[1, 1], directions[0, 1]))
        height, width = 2 * np.sqrt(np.maximum(lengths, 0))
        colour = _colour(number)
        for radius in radii:
            ellipse = patches.Ellipse(centre, radius * width, radius * height, angle=angle, edgecolor=colour)
            if shown.transforms:
                points = centre + radius * _CIRCLE @ (np.sqrt(np.maximum(lengths, 0))[:, None] * directions.T)
                ellipse = patches.Polygon(into_units(points, shown.transforms), closed=True, edgecolor=colour)
            ellipse.set(linewidth=1.5 / radius, facecolor=(colour, _FAINTEST + (_DARKEST - _FAINTEST) * share))
            ax.add_patch(ellipse)
        middle, _ = _in_units(centre, np.zeros(2), shown.transforms)
        ax.plot(*middle, "o", color=colour, markersize=4 + 6 * math.sqrt(share), markeredgecolor="white", zorder=3)
        if shown.errors is not None and np.isfinite(shown.errors[number]).all():
            mean = centre if shown.means is None else shown.means[number]
            middle, bars = _in_units(mean, 2 * shown.errors[number], shown.transforms)
            ax.errorbar(*middle, xerr=bars[:, :1], yerr=bars[:, 1:], color=colour, capsize=3, zorder=4)
    # Empty plots, so that the legend has the model's order and not the order of drawing.
    for number in range(len(shown.weights)):
        ax.plot([], [], "o", color=_colour(number), label=_label(shown.weights, number))
    ax.autoscale_view()
    ax.margins(0.05)
    ax.set(xlabel=literal(shown.names[0]), ylabel=literal(shown.names[1]))


def _in_units(
    centre: FloatArray, deviations: FloatArray, transforms: tuple[Transform, ...]
) -> tuple[FloatArray, FloatArray]:
    """Return a point (d,) in own units, and how far deviations (d,) of it go down and up there, (2, d)."""
    low, middle, high = (into_units(centre + sign * deviations, transforms) for sign in (-1, 0, 1))
    return middle, np.stack([middle - low, high - middle])


def _bars(shown: Components) -> str:
    what = "the mean" if shown.means is None else "the mean of the nearest rows"
    return "" if shown.errors is None else f"\nbars: 2 standard errors of {what}"


def _label(weights: FloatArray, number: int) -> str | None:
    if number == _LISTED and len(weights) > _LISTED:
        return f"and {len(weights) - _LISTED} more"
    return f"{number}: {weights[number]:.1%}" if number < _LISTED else None


def _colour(number: int) -> str:
    return f"C{number % 10}"
