"""Answers for columns that have a released table together which no clique of the model contains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bursar_models.arrays import FloatArray

MOST_FITTED = 2**18
"""Maximum number of cells of a table that is fitted to its pairs: about a second of one CPU."""

_POWER = 0.75
"""Power of a cell's probability to which the variance of the model's error in it is in proportion.

Errors of pairs outside of the model at epsilon 3, with one share for all cells, and with 0.5, 0.75 and 1, means of one
to three fits: Adult 0.0099, 0.0066, 0.0061 and 0.0060, votes 0.0084, 0.0078, 0.0076 and 0.0076, stones 0.0053, 0.0051,
0.0053 and 0.0054.
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
    away = counts - rows * model
    excess = float(np.square(away).sum()) - counts.size * std**2
    if not excess > 0:
        return model
    powers = model**_POWER
    variances = excess * powers / powers.sum()
    shares = np.divide(variances, variances + std**2, out=np.zeros_like(variances), where=variances > 0)
    moves = shares * away
    # The noise of the total is in the cells that moved.
    found = np.maximum(rows * model + moves - shares * (moves.sum() / shares.sum()), 0.0)
    total = float(found.sum())
    return np.asarray(found / total) if total > 0 else model


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
