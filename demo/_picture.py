"""A picture of released models. It is drawn from released numbers only: no row is anywhere near."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

import bursar

Array = npt.NDArray[np.float64]

_COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#7b4fa3")
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.8}
_CLIP_RADIUS = 3.5
"""Approximate clip radius of an EM step in standard deviations of a component: the unit of the noise on its sums."""


def draw(plans: bursar.GaussianMixture, people: bursar.GaussianMixture, path: Path) -> None:
    """Draw both models of the demo side by side and write a PNG.

    Args:
        plans: over "coinsurance" and "visits" at least; means and weights are drawn.
        people: over "visits" and "diseases"; its density and its components are drawn.
        path: of the file to write.
    """
    figure = Figure(figsize=(10, 4.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_plans(left, plans)
    _draw_people(right, people)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def draw_graph(field: bursar.MarkovRandomField, path: Path) -> None:
    """Draw which columns depend on which and write a PNG."""
    figure = Figure(figsize=(4.6, 4.8), dpi=110, layout="constrained")
    field.plot(figure.add_subplot())
    figure.savefig(path)


def _draw_plans(axes: Axes, model: bursar.GaussianMixture) -> None:
    share, visits = (model.columns.index(name) for name in ("coinsurance", "visits"))
    x, y = model.means_[:, share], model.means_[:, visits]
    axes.errorbar(x, y, yerr=2 * _mean_errors(model, visits), fmt="none", ecolor="0.55", capsize=3, zorder=1)
    axes.scatter(x, y, s=1400 * model.weights_, color=_COLOURS[: len(x)], zorder=2)
    for weight, at in zip(model.weights_, zip(x, y, strict=True), strict=True):
        axes.annotate(f"{weight:.0%}", at, xytext=(14, 9), textcoords="offset points", color="0.25")
    axes.set(xlim=(-8, 112), ylim=(0, 4), xlabel="part of the bill that the family paid, %")
    axes.set_ylabel("visits to a doctor in a year")
    axes.set_title("Four insurance plans (bars: about two standard errors of the noise)", fontsize=10)


def _mean_errors(model: bursar.GaussianMixture, column: int) -> Array:
    """Return the approximate error of the means of a column by noise, standard deviations of shape (k,).

    Averaging J releases with rising weights would leave 4 / (3 J) of the variance of one; on this table four times that
    is left, since steps that look larger than noise are taken whole.
    """
    deviations = np.sqrt(model.covariances_[:, column, column])
    records = (model.n_rows or 1.0) * model.weights_
    last = model.noise[-1]
    averaged = min(1.0, (16.0 / (3.0 * last.times)) ** 0.5)
    return np.asarray(last.sum_std * averaged / records * _CLIP_RADIUS * deviations)


def _draw_people(axes: Axes, model: bursar.GaussianMixture) -> None:
    order = [model.columns.index(name) for name in ("diseases", "visits")]
    x, y = np.meshgrid(np.linspace(0, 36, 181), np.linspace(0, 14, 141))
    points = np.stack([x.ravel(), y.ravel()], axis=1)[:, np.argsort(order)]
    density = np.exp(model.score_samples(points)).reshape(x.shape)
    levels = np.geomspace(density.max() / 200, density.max(), 10)
    axes.contourf(x, y, density, levels=levels, norm=LogNorm(levels[0], levels[-1] * 50), cmap="Greys")
    for index, colour in zip(np.argsort(-model.weights_), _COLOURS, strict=False):
        mean, covariance = model.means_[index][order], model.covariances_[index][np.ix_(order, order)]
        axes.add_patch(_ellipse(mean, covariance, colour))
        axes.plot(*mean, "o", color=colour, markersize=6)
        label = f"{model.weights_[index]:.0%}"
        axes.annotate(
            label, mean, xytext=(8, -4), textcoords="offset points", color=colour, fontweight="bold", bbox=_PAPER
        )
    axes.set(xlim=(0, 36), ylim=(0, 14), xlabel="index of chronic diseases", ylabel="visits to a doctor in a year")
    axes.set_title("Four groups (lines: one standard deviation)", fontsize=10)


def _ellipse(mean: Array, covariance: Array, colour: str) -> Ellipse:
    values, vectors = np.linalg.eigh(covariance)
    width, height = 2 * np.sqrt(values)
    angle = float(np.degrees(np.arctan2(vectors[1, 0], vectors[0, 0])))
    return Ellipse((mean[0], mean[1]), width, height, angle=angle, fill=False, edgecolor=colour, linewidth=2)
