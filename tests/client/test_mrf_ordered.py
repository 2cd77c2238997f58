"""Ordered bins: what neighbours borrow from each other."""

from __future__ import annotations

import numpy as np
import pytest

from bursar_models.mrf import Graph, NoisyTable, estimate
from bursar_models.mrf._estimation import Estimator
from bursar_models.mrf._ordered import refined

ROWS, BINS = 20_000, 48
PLACES = (np.arange(BINS) + 0.5) / BINS


def bell(centre: float = 0.4, width: float = 0.1) -> np.ndarray:
    """Return probabilities of bins under a normal curve."""
    found = np.exp(-0.5 * np.square((PLACES - centre) / width))
    return np.asarray(found / found.sum())


def noisy(table: np.ndarray, std: float, seed: int) -> np.ndarray:
    """Return counts with noise."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - noise of a test
    return np.asarray(ROWS * table + rng.normal(0, std, table.shape))


def test_without_noise_the_estimate_is_the_table() -> None:
    """Divisions that noise does not hide are those of the counts, along one axis or two."""
    joint = np.outer(bell(0.3), bell(0.7)) + np.outer(bell(0.7), bell(0.2))
    for table, axes in ((bell(), [0]), (joint / joint.sum(), [0, 1]), (joint / joint.sum(), [1])):
        sums = table.sum(axis=tuple(axes), keepdims=True)
        flat = ROWS * np.broadcast_to(sums / np.prod([BINS for _ in axes]), table.shape)
        found, error = refined(ROWS * table, 1e-6, flat, dict.fromkeys(axes, BINS))
        assert np.abs(found - ROWS * table).max() < 1.0  # an empty bin keeps a thousandth of what is expected
        assert error < 1e-5


def test_pure_noise_gives_the_expected_divisions() -> None:
    """A table is as expected if noise hides everything, and sums over other columns are kept."""
    expected = ROWS * np.outer([0.25, 0.75], bell())
    found, error = refined(noisy(np.outer([0.5, 0.5], np.full(BINS, 1 / BINS)), 1e6, 0), 1e6, expected, {1: BINS})
    assert found.sum(axis=1) == pytest.approx([ROWS / 4, 3 * ROWS / 4])
    assert np.abs(found - expected).max() < 0.2 * expected.max()
    assert 0 < error < 1000


@pytest.mark.parametrize("std", [30.0, 300.0])
def test_neighbours_make_a_noisy_histogram_better(std: float) -> None:
    """The order of 48 bins leaves at most nine tenths of the error, and no more of the mean's; seeds are fixed."""
    truth, errors = (bell() + 1 / BINS) / 2, []  # all bins have rows: elsewhere rare states say as much
    middle = float(truth @ PLACES)
    for ordered in ({}, {0: BINS}):
        tables = [NoisyTable((0,), noisy(truth, std, seed), std) for seed in range(10)]
        cells = [estimate(Graph((BINS,), ((0,),)), [one], None, ordered=ordered).marginals[0] for one in tables]
        histogram, mean = [np.abs(p - truth).sum() for p in cells], [abs(p @ PLACES - middle) for p in cells]
        errors.append((np.mean(histogram), np.mean(mean)))
    assert errors[1][0] < 0.9 * errors[0][0]
    assert errors[1][1] < errors[0][1]


def test_a_pair_of_ordered_columns_is_nearer_to_the_truth() -> None:
    """A joint table of fine bins has at most two thirds of the error."""
    true = np.outer(bell(0.3), bell(0.3)) / 2 + np.outer(bell(0.6), bell(0.7)) / 2
    graph, table = Graph((BINS, BINS), ((0, 1),)), NoisyTable((0, 1), noisy(true, 20.0, 1), 20.0)
    orders: tuple[dict[int, int], ...] = {}, dict.fromkeys((0, 1), BINS)
    before, after = (np.abs(estimate(graph, [table], None, ordered=o).marginals[0] - true).sum() for o in orders)
    assert after < 2 / 3 * before


@pytest.mark.parametrize("estimator", ["cgm", "naive", "nlbp"])
def test_categories_do_not_change(estimator: Estimator) -> None:
    """A column without order has the same estimate beside an ordered one; other estimators know no order."""
    tables = [NoisyTable((v,), noisy(bell(), 100.0, v), 100.0) for v in (0, 1)]
    plain, found = (
        estimate(Graph((BINS, BINS), ()), tables, ROWS, estimator=estimator, ordered=ordered).marginals
        for ordered in ({}, {0: BINS})
    )
    assert np.abs(found[1] - plain[1]).sum() < 0.02 * np.abs(plain[1] - bell()).sum()
    assert (np.abs(found[0] - plain[0]).sum() > 0.01) == (estimator == "cgm")


def test_null_is_beside_the_bins() -> None:
    """Its share has half of the error that it has as one more bin; without noise it is that of the counts."""
    true, graph = np.append(0.8 * bell(), 0.2), Graph((BINS + 1,), ((0,),))
    tables = [NoisyTable((0,), noisy(true, 300.0, seed), 300.0) for seed in range(10)]
    apart, within = (
        np.mean([abs(estimate(graph, [one], None, ordered={0: bins}).marginals[0][-1] - 0.2) for one in tables])
        for bins in (BINS, BINS + 1)
    )
    assert apart < within / 2
    flat = np.full(BINS + 1, ROWS / (BINS + 1))
    assert refined(ROWS * true, 1e-6, flat, {0: BINS})[0] == pytest.approx(ROWS * true, abs=1.0)
