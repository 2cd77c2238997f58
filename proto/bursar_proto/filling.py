"""Messages of values whose fields have the names that the contract has: each field is described once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bursar_proto.v1 import types_pb2

MessageT = TypeVar("MessageT", bound=Message)

_LONG = {"ml": "MAXIMUM_LIKELIHOOD", "map": "MAXIMUM_A_POSTERIORI", "auto": "UNSPECIFIED"}
"""Names of the contract that people write otherwise."""


def message_of(kind: type[MessageT], value: object, **found: Any) -> MessageT:
    """Return a message of what is found, and of the value's attributes that its other fields are named after.

    None leaves a field out. Choices between fields (oneof) are made by the caller.
    """
    fields: Sequence[Any] = kind.DESCRIPTOR.fields
    for field in fields:
        if field.name not in found and field.containing_oneof is None and hasattr(value, field.name):
            found[field.name] = _on_the_wire(field, getattr(value, field.name))
    return kind(**found)


def tensor_of(array: npt.ArrayLike) -> types_pb2.Tensor:
    """Return numbers in row-major order, with their shape."""
    numbers = np.asarray(array, dtype=np.float64)
    return types_pb2.Tensor(shape=numbers.shape, values=numbers.ravel().tolist())


def _on_the_wire(field: Any, value: Any) -> Any:
    """Return a value of a message's field: an enumeration's by its name, an array as a tensor."""
    if value is None:
        return None
    if field.enum_type is not None:
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        names = value if isinstance(value, tuple) else (value,)
        spelt = [prefix + _LONG.get(name, name.upper()) for name in names]
        return spelt if isinstance(value, tuple) else spelt[0]
    if field.message_type is None:
        return value
    if field.message_type is types_pb2.Tensor.DESCRIPTOR:
        return tensor_of(value)
    return message_of(GetMessageClass(field.message_type), value)
