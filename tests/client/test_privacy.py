"""Amounts of privacy: what may be spent, and how amounts show themselves."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bursar
from bursar import _convert
from bursar_proto.v1 import types_pb2
from tests.each import each

NOT_POSITIVE = [0.0, -1.0, math.nan, math.inf, -math.inf, 10**400, "0.1", None]


@each("value", NOT_POSITIVE)
@each(
    ("make", "field"),
    [
        (bursar.rho, "spend.rho"),
        (bursar.pure, "spend.epsilon"),
        (lambda value: bursar.epsilon_delta(value, 1e-6), "spend.epsilon_delta.epsilon"),
        (lambda value: bursar.epsilon_delta(1.0, value), "spend.epsilon_delta.delta"),
    ],
)
def test_only_positive_finite_amounts_can_be_spent(make: Any, field: str, value: Any) -> None:
    """NaN, infinity, zero, negative numbers and strings are refused before anything is sent, by the field's name."""
    with pytest.raises(bursar.InvalidRequestError, match="positive finite number") as caught:
        make(value)
    assert caught.value.violations[0][0] == field


def test_delta_is_a_probability() -> None:
    """A delta of 1 or more promises nothing and is refused."""
    with pytest.raises(bursar.InvalidRequestError, match="below 1"):
        bursar.epsilon_delta(1.0, 1.0)


@given(st.floats(min_value=5e-324, max_value=1e308), st.floats(min_value=5e-324, max_value=0.999))
def test_a_spend_shows_the_call_that_makes_it(amount: float, delta: float) -> None:
    """Evaluating the text gives an equal value."""
    for spend in (bursar.rho(amount), bursar.pure(amount), bursar.epsilon_delta(amount, delta)):
        assert eval(repr(spend), {"bursar": bursar}) == spend  # noqa: S307 - our own text


def test_numbers_of_numpy_will_do() -> None:
    """A spend holds a plain float, wherever it came from."""
    half: Any = np.float32(0.5)
    assert type(bursar.rho(half).value) is float


def test_a_budget_of_nothing_shows_no_nan() -> None:
    """The remainder of zero is zero."""
    nothing = bursar.Remaining(0, 0, 0, 0, 0.0, 0.0, 10.0)
    assert nothing.share == 0.0
    assert repr(nothing) == "Remaining: epsilon 0 at delta 0, 0% of the budget"


def test_errors_survive_pickling() -> None:
    """An error from a worker process keeps what it knows."""
    price = bursar.Price(5, 0, 0.1)
    error = bursar.BudgetExhaustedError("no", requested=price)
    error.request_id = "a"
    other = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (str(other), other.request_id, other.requested, other.remaining) == ("no", "a", price, None)


def test_amounts_come_from_the_wire_field_by_field() -> None:
    """No number stands for another: cost is not delta, what is left is not the whole."""
    price = types_pb2.Price(cost_units=1, delta_units=2, rho=3.0)
    shown = types_pb2.Price(cost_units=1, delta_units=2, rho=3.0, epsilon=4.0, share=0.5)
    assert _convert.price_from(shown) == bursar.Price(1, 2, 3.0, 4.0, 0.5)
    assert _convert.price_from(price).epsilon == math.inf
    fields = {
        "cost_units": 1,
        "delta_units": 2,
        "cap_cost_units": 3,
        "cap_delta_units": 4,
        "rho": 5.0,
        "pure_epsilon": 6.0,
        "order": 7.0,
        "delta": 0.8,
    }
    message = types_pb2.Remaining(**fields)  # type: ignore[arg-type]
    whole = types_pb2.Remaining(cap_cost_units=9)
    expected = bursar.Remaining(**fields, budget_cost_units=9)  # type: ignore[arg-type]
    assert _convert.remaining_from(message, whole) == expected
    noise = {"name": "n", "size": 1, "count_std": 2.0, "sum_std": 3.0, "moment_std": 4.0, "times": 5}
    assert _convert.noise_from(types_pb2.ReleaseNoise(**noise)) == bursar.ReleaseNoise(**noise)  # type: ignore[arg-type]
