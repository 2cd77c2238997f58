"""Released centres mean what scikit-learn means by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bursar

CENTRES = np.array([[0.0, 0.0], [5.0, 5.0], [-5.0, 5.0]])
ROWS = np.array([[0.1, 0.2], [4.0, 6.0], [-9.0, 5.0], [0.0, 2.0]])


def make(**change: Any) -> bursar.KMeans:
    """A model of three clusters."""
    good = {"cluster_centers_": CENTRES, "weights_": [0.5, 0.25, 0.25], "variances_": [1.0, 0.0, 2.0]}
    return bursar.KMeans(**{**good, **change})


def test_agrees_with_scikit_learn() -> None:
    """Labels, distances and score equal those of the scikit-learn model that `to_sklearn` gives."""
    ours, other = make(), make().to_sklearn()
    np.testing.assert_array_equal(ours.predict(ROWS), other.predict(ROWS))
    np.testing.assert_allclose(ours.transform(ROWS), other.transform(ROWS), atol=1e-6)
    assert ours.score(ROWS) == pytest.approx(other.score(ROWS), rel=1e-10)


def test_coinciding_centres_still_make_a_scikit_learn_model() -> None:
    """Noise can put two centres in one place; the model is as good as any and nothing warns."""
    other = make(cluster_centers_=CENTRES[[0, 0, 1]]).to_sklearn()
    np.testing.assert_array_equal(other.cluster_centers_, CENTRES[[0, 0, 1]])


def test_to_sklearn_claims_no_rows() -> None:
    """Labels and inertia are properties of rows that the client never had."""
    assert not hasattr(make().to_sklearn(), "labels_")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cluster_centers_": [1.0]}, "cluster_centers_: expected shape"),
        ({"weights_": [1.0, 1.0, 1.0]}, "expected a sum of 1, got 3"),
        ({"variances_": [1.0, -1.0, 1.0]}, "at least 0"),
        ({"variances_": [1.0]}, r"expected shape \(3,\)"),
        ({"columns": ("a",)}, "expected 2 names"),
    ],
)
def test_what_is_no_clustering_is_refused(change: dict[str, Any], message: str) -> None:
    """Every rule on the parameters has an error that names the field."""
    with pytest.raises(ValueError, match=message):
        make(**change)


def test_centres_show_themselves() -> None:
    """The text names the columns; the sizes are those of the centres."""
    model = replace(make(), columns=("x", "y"))
    assert (model.n_clusters, model.n_features) == (3, 2)
    assert repr(model).splitlines()[1].split() == ["weight", "x", "y"]
    assert "<table>" in model._repr_html_()
