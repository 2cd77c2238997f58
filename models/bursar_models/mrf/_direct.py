"""Answers for columns that have a released table together which no clique of the model contains."""

from __future__ import annotations

import numpy as np

from bursar_models.arrays import FloatArray


def between(model: FloatArray, counts: FloatArray, std: float, rows: float) -> FloatArray:
    """Return probabilities between those of a model and a noisy table: the James-Stein estimate towards the model.

    The squared distance of the two has the model's error and the noise in it; the table's share of the answer is the
    part of the distance that noise does not explain (James and Stein 1961). It is 0 where the distance is no more than
    noise makes, and nearly 1 where noise is small against the model's error.

    Args:
        model: probabilities of the cells.
        counts: noisy numbers of rows in them.
        std: standard deviation of the noise.
        rows: number of rows, at least 1.
    """
    away = counts - rows * model
    distance, noise = float(np.square(away).sum()), counts.size * std**2
    if not distance > noise:
        return model
    found = np.maximum(rows * model + (1 - noise / distance) * away, 0.0)
    total = float(found.sum())
    return np.asarray(found / total) if total > 0 else model
