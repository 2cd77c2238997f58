"""Mean squared distances of k-means from a sketch, with intervals, and the number of clusters."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bursar
from bursar_models import Frequencies, Sketch
from bursar_models import _cluster_choice as choice
from bursar_models._frequencies import FrequencyLaw
from bursar_models._sketch import Signature
from bursar_models.arrays import FloatArray
from tests.client.sketches import masked, sketch_of
from tests.each import each

GROUPS = np.array([[-0.5, -0.4], [0.4, -0.3], [0.0, 0.5]])
NOISE, COUNT_NOISE = 60.0, 60.0


def rows_of(seed: int, law: str = "normal", n: int = 20_000) -> FloatArray:
    """Draw rows of three groups in frame coordinates."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    errors = rng.standard_normal((n, 2))
    if law == "t":
        errors = rng.standard_t(3, (n, 2)) / math.sqrt(3)
    rows = np.clip(GROUPS[rng.choice(3, n, p=[0.5, 0.3, 0.2])] + 0.12 * errors, -1, 1)
    if law == "outliers":
        rows[: n // 100] = rng.uniform(-1, 1, (n // 100, 2))
    return np.asarray(rows)


def noisy(exact: Sketch, seed: int) -> Sketch:
    """Return a sketch with noise on its sums and its number of rows."""
    rng = np.random.default_rng([seed, 1])  # noqa: TID251 - noise of a test
    return replace(
        exact,
        sums=exact.sums + NOISE * rng.standard_normal(exact.sums.shape),
        noise_std=NOISE,
        n_rows=exact.n_rows + COUNT_NOISE * float(rng.standard_normal()),
        n_rows_std=COUNT_NOISE,
    )


def sketched(seed: int, law: str = "normal", frequencies: FrequencyLaw = "adapted_radius", **change: Any) -> Sketch:
    """Return a noisy sketch of 100 frequencies of such rows."""
    return noisy(sketch_of(rows_of(seed, law), Frequencies(100, 2, 3, 0.12, law=frequencies), **change), seed)


def deviations(sketch: Sketch, law: str, numbers: tuple[int, ...]) -> FloatArray:
    """Return errors of mean squares of k-means in standard errors."""
    rows = rows_of(99, law, 400_000) * sketch.unit + sketch.centre
    models = [sketch.kmeans(k, n_init=3) for k in numbers]
    true = np.array([-model.score(rows) / len(rows) for model in models])
    found = choice.choose_clusters(sketch, models, 1, 0.95, 0, lambda: None)
    errors = (found.high - found.mean_squares) / 1.959964
    return np.asarray((found.mean_squares - true) / errors)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["normal", "t", "outliers"])
@pytest.mark.parametrize("signature", ["exponential", "one_bit"])
def test_mean_squares_are_those_of_the_population(law: str, signature: Signature) -> None:
    """Estimates are within four errors, also where a mixture of few Gaussians would be 10 or 20 % off."""
    sketch = sketched(5, law, signature=signature)
    found = deviations(sketch, law, (1, 2, 3))
    assert (np.abs(found) < 4).all(), found


@pytest.mark.slow
def test_a_density_that_is_no_mixture_leaves_an_error_that_moments_do_not_take_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows along a curve, hardly any noise: intervals are half as wide again as where moments explain the change."""
    rng = np.random.default_rng(11)  # noqa: TID251 - rows of a test
    x = rng.uniform(-0.8, 0.8, 20_000)
    rows = np.column_stack([x, x * x - 0.3 + 0.03 * rng.standard_normal(len(x))])
    sketch = replace(sketch_of(rows, Frequencies(100, 2, 3, 0.12)), noise_std=3.0, n_rows_std=3.0)
    found = sketch.choose(2, n_init=2)
    monkeypatch.setattr(choice, "_BLIND", 0.0)
    explained = sketch.choose(2, n_init=2)
    assert (found.high - found.low > 1.5 * (explained.high - explained.low)).all()


@pytest.mark.slow
def test_rows_at_few_of_the_frequencies_add_their_error() -> None:
    """A mask of an eighth of the frequencies makes intervals wider, and they hold."""
    frequencies = Frequencies(100, 2, 3, 0.12)
    whole, few = (noisy(masked(rows_of(6), frequencies, r), 6) for r in (100, 12))
    widths = [np.ptp([(one := sketch.choose(2, n_init=2)).low, one.high], axis=0) for sketch in (whole, few)]
    assert (widths[1] > 1.2 * widths[0]).all()
    assert (np.abs(deviations(few, "normal", (1, 2))) < 4).all()


@pytest.mark.slow
def test_combinations_of_many_moments_lose_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the numbers, chosen where the rows' law can differ, gives nearly the same intervals."""
    sketch = sketched(7)
    whole = sketch.choose(3, n_init=2)
    monkeypatch.setattr(choice, "_MOST_NUMBERS", 60)
    part = sketch.choose(3, n_init=2)
    assert part.mean_squares == pytest.approx(whole.mean_squares, rel=0.03)
    assert part.high - part.low == pytest.approx(whole.high - whole.low, rel=0.5)


@pytest.mark.slow
def test_three_groups_are_found_and_fewer_are_ruled_out() -> None:
    """The choice is of components; its text says what was tried."""
    found = sketched(8).choose(5, n_init=2)
    assert found.components.chosen == 3
    assert not {1, 2} & set(found.components.not_ruled_out)
    assert str(found.components).startswith("3 components, chosen from 1 to 5")
    assert found.notes == ()
    assert "mean square" in repr(found)
    assert "3 components" in found._repr_html_()
    assert found.to_table("dict")["clusters"].tolist() == [1, 2, 3, 4, 5]
    assert (np.diff(found.mean_squares[:3]) < 0).all()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers() -> None:
    """A seed of restarts and points is all the randomness there is."""
    sketch = sketched(9)
    one, same, other = (sketch.choose(2, n_init=2, public_seed=seed) for seed in (1, 1, 2))
    assert one.mean_squares.tolist() == same.mean_squares.tolist()
    assert one.mean_squares.tolist() != other.mean_squares.tolist()


def test_the_largest_number_is_no_end() -> None:
    """More may be better if the last number is best, and the text says so."""
    found = sketched(10).choose(2, n_init=2)
    assert found.components.chosen == 2
    assert "more than were tried" in repr(found)


@pytest.mark.slow
def test_what_the_frequencies_do_not_see_is_said() -> None:
    """Frequencies for clusters a thirtieth as wide do not see wide ones."""
    rng = np.random.default_rng(3)  # noqa: TID251 - rows of a test
    points = rng.uniform(-1, 1, (60, 2)) * rng.uniform(0, 1, (60, 1))
    rows = points[rng.choice(60, 50_000, p=rng.dirichlet(np.ones(60)))] + 0.003 * rng.standard_normal((50_000, 2))
    sketch = noisy(sketch_of(np.clip(rows, -1, 1), Frequencies(150, 2, 3, 0.02)), 3)
    assert any("too little" in note for note in sketch.choose(3, n_init=2).notes)


def test_columns_that_nearly_determine_one_another_are_said() -> None:
    """Components have no correlations of their own, so that intervals are too short there."""
    rng = np.random.default_rng(4)  # noqa: TID251 - rows of a test
    line = rng.uniform(-0.7, 0.7, 4_000)
    for spread, warned in ((0.02, True), (0.4, False)):
        rows = np.clip(np.column_stack([line, line + spread * rng.standard_normal(4_000)]), -1, 1)
        notes = sketch_of(rows, Frequencies(60, 2, 3, 0.2)).choose(2, n_init=1).notes
        assert any("correlation" in note for note in notes) == warned


@each("options", [{"most": 0}, {"most": 101}, {"most": 2, "least": 3}, {"public_seed": -1}, {"level": 1.0}])
def test_choosing_refuses_nothing_to_do(options: dict[str, Any]) -> None:
    """A range from 1 to the number of frequencies, and a level below 1."""
    with pytest.raises(ValueError, match="expected"):
        sketched(11).choose(**{"most": 1, "n_init": 1, **options})


def test_one_row_many_times_is_a_choice_like_any() -> None:
    """Nothing to explain and no noise: numbers, not errors."""
    found = sketch_of(np.zeros((500, 2))).choose(2, n_init=1)
    assert np.isfinite(found.high).all()
    assert (found.mean_squares < 1e-2).all()
    assert isinstance(found, bursar.ClusterChoice)
