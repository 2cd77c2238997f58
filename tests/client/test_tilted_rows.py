"""Rows of a start's cells, so weighted that they have the moments of the mixture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bursar_models import GaussianMixture, StartCells, load
from bursar_models._tilted_rows import rows_of_mixture

MIXTURE: Any = GaussianMixture
CELLS_OF: Any = StartCells
"""Both take lists as arrays."""

WIDE: GaussianMixture = MIXTURE(
    [0.4, 0.6],
    [[-3.0, 0.0], [3.0, 0.0]],
    [np.diag([1.0, 0.5]), np.diag([1.0, 2.0])],
    columns=("a", "b"),
    bounds_=np.array([[-10.0, -10.0], [10.0, 10.0]]),
    background_weight=0.001,
)
CELLS: StartCells = CELLS_OF(
    [0.2, 0.2, 0.2, 0.2, 0.2],
    [[-4.0, 0.0], [-2.5, 0.5], [2.0, 1.5], [2.0, -1.5], [4.5, 0.0]],
    np.broadcast_to(0.5 * np.eye(2), (5, 2, 2)),
)
KNOWN = replace(WIDE, cells=CELLS)


def third(rows: Any) -> float:
    """A moment that is no matter of the mixture: that the right component is narrower, the further right."""
    shares = WIDE.predict_proba(rows)[:, 1]
    return float(shares @ ((rows[:, 0] - 3.0) * rows[:, 1] ** 2) / shares.sum())


def test_rows_have_the_moments_of_the_mixture_and_the_structure_of_the_cells() -> None:
    """Shares, means and covariances by component are those of rows of the mixture; the third moment is another.

    Of 20,000 rows a share has a standard error below 0.004, a mean below 0.02 and a variance below 0.04.
    """
    rows, plain = rows_of_mixture(KNOWN, 20_000, 1), WIDE.sample(20_000, 1)[0]
    assert rows.shape == (20_000, 2)
    assert (np.abs(rows) <= 10).all()
    for component in range(2):
        mine, others = (WIDE.predict_proba(X)[:, component] for X in (rows, plain))
        assert mine.mean() == pytest.approx(others.mean(), abs=0.02)
        for power, far in ((1, 0.1), (2, 0.25)):
            ours, theirs = (
                (share @ (X - WIDE.means_[component]) ** power / share.sum())
                for share, X in ((mine, rows), (others, plain))
            )
            np.testing.assert_allclose(ours, theirs, atol=far)
    cells = replace(WIDE, weights_=CELLS.weights, means_=CELLS.means, covariances_=CELLS.covariances).sample(20_000, 1)
    assert abs(third(plain)) < 0.4
    assert third(cells[0]) < -1
    assert third(rows) < -0.7


def test_without_cells_rows_are_those_of_the_mixture() -> None:
    """The same rows as its samples, also where there are too many moments, and the same rows for the same seed."""
    assert np.array_equal(rows_of_mixture(WIDE, 50, 3), WIDE.sample(50, 3)[0])
    assert np.array_equal(rows_of_mixture(KNOWN, 50, 3), rows_of_mixture(KNOWN, 50, 3))
    d = 310
    large = MIXTURE(np.ones(1), np.zeros((1, d)), np.ones((1, d)), "diag")
    many = replace(large, cells=CELLS_OF(np.ones(1), np.zeros((1, d)), np.eye(d)[None]))
    assert np.array_equal(rows_of_mixture(many, 5, 0), large.sample(5, 0)[0])


@pytest.mark.parametrize("kind", ["tied", "diag", "spherical"])
def test_other_forms_and_transforms(kind: Any) -> None:
    """Rows are in the columns' own units and within the bounds."""
    shapes = {"tied": np.eye(2) / 9, "diag": np.full((1, 2), 1 / 9), "spherical": np.full(1, 1 / 9)}
    model = MIXTURE(
        [1.0],
        [[1.0, 2.0]],
        shapes[kind],
        kind,
        bounds_=np.array([[0.0, 0.0], [20.0, 50.0]]),
        transforms=("log1p", "none"),
        cells=CELLS_OF([0.5, 0.5], [[0.8, 2.0], [1.2, 2.0]], np.broadcast_to(np.eye(2) / 8, (2, 2, 2))),
    )
    rows = rows_of_mixture(model, 4000, 0)
    assert (rows >= 0).all()
    assert np.log1p(rows[:, 0]).mean() == pytest.approx(1.0, abs=0.05)
    assert rows[:, 1].mean() == pytest.approx(2.0, abs=0.05)


def test_a_few_columns_with_many_components_have_fewer_moments() -> None:
    """Second moments off the diagonal are left out where there would be too many."""
    d = 20
    model = MIXTURE(
        [0.5, 0.5, 0.0],
        np.array([[-1.0], [1.0], [0.0]]) * np.ones(d),
        np.broadcast_to(np.eye(d), (3, d, d)),
        cells=CELLS_OF(np.ones(4) / 4, np.outer([-1.2, -0.8, 0.8, 1.2], np.ones(d)), np.stack(4 * [np.eye(d)])),
    )
    rows = rows_of_mixture(model, 1000, 0)
    assert np.abs(rows.mean(axis=0)).max() < 0.3


def test_moments_that_no_weights_reach_are_no_error() -> None:
    """Cells that are nowhere near leave rows of the cells."""
    away = replace(KNOWN, cells=CELLS_OF([1.0], [[9.0, 9.0]], 0.01 * np.eye(2)[None]), background_weight=0.0)
    assert rows_of_mixture(away, 100, 0).mean() == pytest.approx(9, abs=0.3)


def test_cells_are_saved(tmp_path: Any) -> None:
    """A model in a file has them."""
    KNOWN.save(tmp_path / "model.json")
    again: Any = load(tmp_path / "model.json")
    assert np.array_equal(again.cells.covariances, CELLS.covariances)
    assert repr(again.cells) == "StartCells: 5 Gaussians"


def test_cells_are_checked() -> None:
    """Shapes, weights and covariances."""
    with pytest.raises(ValueError, match="cells: expected 2 columns, got 1"):
        replace(WIDE, cells=CELLS_OF([1.0], [[0.0]], [[[1.0]]]))
    with pytest.raises(ValueError, match="sum of 1"):
        CELLS_OF([0.5], [[0.0]], [[[1.0]]])
    with pytest.raises(ValueError, match="positive definite"):
        CELLS_OF([1.0], [[0.0]], [[[-1.0]]])
