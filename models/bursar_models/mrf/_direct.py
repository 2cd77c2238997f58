"""Answers for columns that have a released table together which no clique of the model contains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from bursar_models.arrays import FloatArray

MOST_FITTED = 2**18
"""Maximum number of cells of a table that is fitted to its pairs: about a second of one CPU."""

_POWER = 0.75
"""Power of a cell's probability to which the variance of the model's error in it is in proportion.

Errors of pairs outside of the model at epsilon 3, with one share for all cells, and with 0.5, 0.75 and 1, means of one
to three fits: Adult 0.0099, 0.0066, 0.0061 and 0.0060, votes 0.0084, 0.0078, 0.0076 and 0.0076, stones 0.0053, 0.0051,
0.0053 and 0.0054.
"""

_LEAST = 0.5
"""Least error of the model in one table, over that of all such tables.

Where the model is off alike in all of them, by 0.6 to 1 of the noise, 91 to 92 % of cells are covered; with 0 it is
90 %, and with 1, where tables differ, widths are up to 1.9 errors. Pairs of seven drawn settings hardly see it.
"""

_TURNS = 5
"""Turns of the fit: errors of triples on votes, wives, youth and crashes at epsilon 3 and 10 hardly change after 3."""


def between(model: FloatArray, counts: FloatArray, std: float, rows: float) -> FloatArray:
    """Return probabilities between those of a model and a noisy table, cell by cell.

    The squared distance of the two has the model's error and the noise in it. What noise does not explain is taken as
    variance of the model's counts, in proportion to their power `_POWER`, and each cell goes to the table by the part
    of its variance that is not noise (Efron and Morris 1973). So cells where the model has hardly any rows do not take
    the noise.

    Args:
        model: probabilities of the cells.
        counts: noisy numbers of rows in them.
        std: standard deviation of the noise.
        rows: number of rows, at least 1.
    """
    away, shares = counts - rows * model, _weights(model, counts, std, rows)
    if not shares.any():
        return model
    moves = shares * away
    # The noise of the total is in the cells that moved.
    found = np.maximum(rows * model + moves - shares * (moves.sum() / shares.sum()), 0.0)
    total = float(found.sum())
    return np.asarray(found / total) if total > 0 else model


def between_variances(model: FloatArray, counts: FloatArray, std: float, rows: float, typical: float) -> FloatArray:
    """Return variances of the errors of `between`, in squared rows: what is left of the model's error and of the noise.

    What noise does not explain of one table is known no better than noise is, and its positive part is often 0 where
    the model is off. So its size has an exponential prior, whose mean is that of all such tables (empirical Bayes).

    Args:
        model: as in `between`, like the following ones.
        counts: noisy numbers of rows.
        std: standard deviation of the noise.
        rows: number of rows.
        typical: mean of `excess` of such tables.
    """
    shares = _weights(model, counts, std, rows)
    error = math.sqrt(2.0 / counts.size)
    # With an exponential prior and normal errors it is normal, cut at 0.
    place = excess(model, counts, std, rows) - error**2 / max(typical, error / 100)
    log = -((place / error) ** 2) / 2 - math.log(2 * math.pi) / 2 - scipy.special.log_ndtr(place / error)
    powers = model**_POWER
    likely = max(place + error * math.exp(log), _LEAST * typical)
    variances = likely * counts.size * std**2 * powers / powers.sum()
    return np.asarray((1.0 - shares) ** 2 * variances + (shares * std) ** 2)


def excess(model: FloatArray, counts: FloatArray, std: float, rows: float) -> float:
    """Return the mean squared distance of a table from a model, over the noise's variance, less 1."""
    return float(np.square(counts - rows * model).mean()) / std**2 - 1.0


def _weights(model: FloatArray, counts: FloatArray, std: float, rows: float) -> FloatArray:
    """Return by which part each cell goes to the table: that of its variance which noise does not explain."""
    powers = model**_POWER
    variances = max(excess(model, counts, std, rows), 0.0) * counts.size * powers / powers.sum()
    return np.asarray(variances / (variances + 1.0))


def fitted_to_pairs(table: FloatArray, pairs: Sequence[tuple[tuple[int, ...], FloatArray]]) -> FloatArray:
    """Return probabilities that have nearly the sums of given pairs, and the further dependences of a table.

    Each pair in turn rescales the table (Deming and Stephan 1940). Cells of probability 0 keep it.

    Args:
        table: probabilities of the cells.
        pairs: for each pair of axes, the others, and the probabilities of the pair.
    """
    for _ in range(_TURNS):
        for others, wanted in pairs:
            sums = table.sum(axis=others)
            # Sums so small that a quotient would overflow are as good as 0.
            ratios = np.divide(wanted, sums, out=np.zeros_like(sums), where=sums > 1e-300)
            table = table * np.expand_dims(ratios, others)
    total = float(table.sum())
    return table / total if total > 0 else table
