"""Every fit refuses what no request may say, by the name of the field, in all its variants and before any price."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from bursar_proto.v1 import types_pb2
from bursar_server.fits import InvalidFieldsError
from tests.conformance.checks import SLOTS
from tests.conformance.requests import FEW, VARIANTS, fit_of, tables

TABLE = dict(tables(SLOTS))["replace_one"]
NO_NUMBERS = (math.nan, math.inf, -math.inf)
NO_CHOICE = 77


def refused(name: str, request: Any) -> list[str]:
    """Names of the fields for which a variant's plan is refused; none if it is not."""
    found: tuple[tuple[str, str], ...] = ()
    try:
        fit_of(name).plan(request, TABLE, lambda entry: None)
    except InvalidFieldsError as error:
        found = tuple(error.violations)
    assert len(set(found)) == len(found), "something is said twice"
    return [field for field, _ in found]


def copy_of(name: str, **fields: Any) -> Any:
    """A variant's request with other fields."""
    request = type(VARIANTS[name]).FromString(VARIANTS[name].SerializeToString())
    for field in fields:
        request.ClearField(field)
    request.MergeFrom(type(request)(**fields))
    return request


def wrong_values(message: Message) -> Iterator[tuple[str, Any]]:
    """Set each number and each choice within a message to what it may not be, one by one; yields name and value."""
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            there = field.is_repeated or message.HasField(field.name)
            value = getattr(message, field.name)
            for one in () if not there else value if field.is_repeated else (value,):
                yield from wrong_values(one)
        elif field.type == FieldDescriptor.TYPE_DOUBLE and not field.is_repeated and _is_open(message, field):
            yield from _each(message, field, NO_NUMBERS)
        elif field.type == FieldDescriptor.TYPE_ENUM and not field.is_repeated:
            yield from _each(message, field, (NO_CHOICE,))


def _is_open(message: Message, field: Any) -> bool:
    """Return whether a field can be set without another one of its oneof going."""
    oneof = field.containing_oneof
    return oneof is None or message.WhichOneof(oneof.name) in (None, field.name)


def _each(message: Message, field: Any, values: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    before = getattr(message, field.name) if not field.has_presence or message.HasField(field.name) else None
    for value in values:
        setattr(message, field.name, value)
        yield field.name, value
    if before is None:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, before)


@pytest.mark.parametrize("name", VARIANTS)
def test_no_number_and_no_choice_of_a_request_is_without_sense(name: str) -> None:
    """NaN, infinities, and a choice that there is not: each is named."""
    request = copy_of(name)
    tried = [(field, value, refused(name, request)) for field, value in wrong_values(request)]
    assert len(tried) > 3
    assert [(field, value, names) for field, value, names in tried if not any(field in one for one in names)] == []
    assert request == VARIANTS[name]
    assert refused(name, request) == []


def pair(epsilon: float, delta: float) -> types_pb2.Spend:
    """An amount."""
    return types_pb2.Spend(epsilon_delta=types_pb2.EpsilonDelta(epsilon=epsilon, delta=delta))


SPENDS = [
    ("spend", types_pb2.Spend()),
    ("spend", types_pb2.Spend(rho=1e-300)),
    *(("spend.rho", types_pb2.Spend(rho=x)) for x in (0.0, -1.0, *NO_NUMBERS)),
    *(("spend.epsilon", types_pb2.Spend(epsilon=x)) for x in (0.0, -1.0, *NO_NUMBERS)),
    *(("spend.epsilon_delta.epsilon", pair(x, 1e-6)) for x in (0.0, -1.0, *NO_NUMBERS)),
    *(("spend.epsilon_delta.delta", pair(1.0, x)) for x in (0.0, 1.0, -1.0, *NO_NUMBERS)),
    ("spend.epsilon_delta", pair(5e-324, 5e-324)),
]


@pytest.mark.parametrize("name", FEW)
def test_an_amount_without_sense_is_named(name: str) -> None:
    """None, nothing, too little for any noise, less than nothing, and what is no number."""
    assert [(field, spend) for field, spend in SPENDS if field not in refused(name, copy_of(name, spend=spend))] == []


@pytest.mark.parametrize("name", FEW)
def test_columns_that_there_are_not_are_named(name: str) -> None:
    """Unknown ones by their place, a column twice, and a long list in a short answer, with all else that is wrong."""
    (first, *_) = VARIANTS[name].columns
    assert "columns[1]" in refused(name, copy_of(name, columns=[first, "salary"]))
    assert "columns" in refused(name, copy_of(name, columns=[first, first]))
    assert {*refused(name, copy_of(name, columns=["nobody"] * 100_000))} == {"columns"}
    both = refused(name, copy_of(name, columns=["nobody"], spend=types_pb2.Spend(rho=-1.0)))
    assert {*both} == {"columns[0]", "spend.rho"} or (name, both) == ("components", ["spend.rho"])
