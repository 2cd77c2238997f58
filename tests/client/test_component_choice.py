"""Number of components that a fit chose, as its model tells it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bursar
from bursar._cli._values import components
from bursar_models import ComponentChoice, GaussianMixture
from tests.client.trajectories import released
from tests.each import each

CHOICE = ComponentChoice(1, np.array([900.0, 0.0, 8.0, 30.0, 12.0]), np.array([60.0, 0.0, 3.0, 4.0, 7.0]))


def test_the_numbers_near_the_chosen_one_are_not_ruled_out() -> None:
    """A score below 10, or below two of its errors, leaves its number open."""
    assert CHOICE.numbers == (1, 2, 3, 4, 5)
    assert CHOICE.chosen == 2
    assert CHOICE.not_ruled_out == (3, 5)
    assert repr(CHOICE) == "ComponentChoice: 2 components, chosen from 1 to 5 (3, 5 not ruled out)"


def test_a_clear_choice_says_no_more() -> None:
    """Nothing is added where all others are clearly worse."""
    assert str(ComponentChoice(2, np.array([0.0, 40.0]), np.array([0.0, 6.0]))) == "2 components, chosen from 2 to 3"


@each(
    "changed",
    [
        {"least": 0},
        {"scores": np.array([1.0, 2.0])},
        {"scores": np.array([-1.0, 0.0])},
        {"scores": np.zeros((1, 2))},
        {"errors": np.array([0.0])},
        {"errors": np.array([0.0, -1.0])},
    ],
)
def test_what_is_no_choice_is_refused(changed: dict[str, Any]) -> None:
    """Scores are differences from the least, one of them 0."""
    with pytest.raises(ValueError, match="expected"):
        ComponentChoice(**{"least": 1, "scores": np.array([0.0, 2.0]), "errors": np.array([0.0, 1.0]), **changed})


def test_a_model_prints_its_choice_and_keeps_it_in_a_file() -> None:
    """The title says what was chosen from what; JSON brings it back."""
    model = replace(released("diag", 1), choice=CHOICE)
    assert "2 components, chosen from 1 to 5 (3, 5 not ruled out), diag" in repr(model)
    again = GaussianMixture.from_dict(model.to_dict())
    assert again.choice is not None
    assert again.choice.scores.tolist() == CHOICE.scores.tolist()


def test_a_model_of_another_number_is_refused() -> None:
    """A choice of two belongs to no model of one."""
    with pytest.raises(ValueError, match="choice: expected one of the model's 1 components"):
        GaussianMixture(np.ones(1), np.zeros((1, 1)), np.ones(1), "spherical", choice=CHOICE)


def test_intervals_follow_from_steps_of_more_components() -> None:
    """Two groups, fitted by steps of two: the model of one has intervals about the mean of all rows."""
    two = released("full", 3)
    whole = np.array([0.6, 0.4]) @ two.means_
    apart = two.means_ - whole
    spread = 0.02 * np.eye(2) + np.einsum("k,ki,kj->ij", [0.6, 0.4], apart, apart)
    one = replace(
        two,
        weights_=np.ones(1),
        means_=whole[None],
        covariances_=spread[None],
        choice=ComponentChoice(1, np.array([0.0, 20.0]), np.array([0.0, 2.0])),
    )
    found = one.intervals()
    assert {"means_[0].a", "means_[0].b"} <= {row.name for row in found}
    with pytest.raises(ValueError, match="trajectory"):
        replace(one, choice=None)


def test_a_range_is_two_numbers_in_order() -> None:
    """Lists and tuples are ranges; others are refused with what was expected."""
    listed: Any = [1, 10]
    assert bursar.DPEM(n_components=listed) == bursar.DPEM(n_components=(1, 10))
    request = bursar.DPEM(n_components=(2, 4))
    assert bursar.DPEM.from_dict(request.to_dict()) == request
    for wrong in ((4, 2), (1, 2, 3), (0, 3), "1-3", (1, 2.5)):
        with pytest.raises(bursar.InvalidRequestError, match="n_components: must"):
            bursar.DPEM(n_components=wrong)  # type: ignore[arg-type]  # what is refused


def test_a_range_is_typed_with_a_dash() -> None:
    """Such as 1-10; a single number stays one."""
    assert components("1-10") == (1, 10)
    assert components("3") == 3
    for wrong in ("", "1-", "-3", "a-b", "1-2-3", "2.5"):
        with pytest.raises(ValueError, match="expected a number such as 3"):
            components(wrong)
