"""Requests made from the contract's descriptors: whole ones, whole ones with a few fields exchanged, and bytes.

A request that is drawn field by field is refused at its first field nearly always, so most of what is made here is a
request that works with some fields exchanged for others near an edge. Everything is read off the descriptors, so nobody
has to say here what a new message or field is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

DATASETS = ("people", "others", "person", "nobody", "little", "closed")
"""Datasets of the server that is fuzzed; see `server`."""

_MOST_NESTED = 4
"""Messages within messages of a request that is drawn field by field."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "dataset": (*DATASETS, "People", "nothing", "people\0", "../people"),
    "datasets": DATASETS,
    "columns": ("x", "y", "m", "a", "t1", "t2", "b", "who", "X", ""),
    "target": ("x", "y", "m", "a", ""),
    "null_category": ("-", "u", "w", ""),
    "name": ("somebody", "s", "-", "a" * 64, "a" * 65, "x y", "the-nobody"),
    "request_id": ("again", "", "a" * 64, "a" * 65, "a b", "a\n", "\u00e4"),
    "reason": ("", "r" * 500, "r" * 501, "two\nlines"),
}
"""Strings that mean something, by the field that has them."""

WHOLE = (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 40, 41, 64, 65, 128, 129, 200, 201, 256, 257, 512, 513, 1000, 1001)
HUGE = (
    2016,
    2017,
    2**14,
    2**14 + 1,
    2**20,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
REAL = (
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        -0.0,
        0.0,
        5e-324,
        2.2e-308,
        1e-300,
        1e-160,
        1e-100,
        1e-20,
        1e-9,
        1e-6,
    ),
    *(1e-3, 0.01, 0.05, 0.0499, 0.1, 0.25, 0.5, 0.51, 0.9, 0.91, 1.0, 1.0 - 2.0**-53, 1.0 + 2.0**-52, 2.0, 3.0, 10.0),
    *(100.0, 1e4, 1e6, 1.0000001e6, 1e9, 1e20, 1e99, 1e150, 1e290, 1.1e290, 1e308, 1.7976931348623157e308),
)
LENGTHS = (0, 1, 2, 3, 5, 12, 13, 40, 41, 64, 65, 66, 129, 257, 2017, 5000)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_ODD_TEXT = st.sampled_from(
    ("\0", "\n", "%s%n{0}", "' OR 1=1 --", "\u202e\u0301\u00e9", "\U0001f600", "a" * 300, "z" * 70_000, "-1", "nan")
)


def integers(lowest: int, highest: int) -> st.SearchStrategy[int]:
    """Whole numbers of a type, near limits above all."""
    edges = sorted({n for n in (*WHOLE, *HUGE, *(-n for n in WHOLE), lowest, highest) if lowest <= n <= highest})
    return st.sampled_from(edges) | st.integers(lowest, highest) | st.integers(0, 16)


_SCALARS: Mapping[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.sampled_from([*REAL, *(-x for x in REAL)]) | st.floats() | st.floats(0, 1),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
}


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of a field, or of an element of a list."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=40) | st.sampled_from((b"\0" * 32, b"\xff" * 10_000))
    if field.type == FieldDescriptor.TYPE_STRING:
        named = _NAMES.get(field.name)
        odd = _TEXT | _ODD_TEXT
        return odd if named is None else st.sampled_from(named) | st.sampled_from(named) | odd
    if field.enum_type is not None:
        known = [value.number for value in field.enum_type.values]
        return st.sampled_from(known) | st.sampled_from((*known, max(known) + 1, 99, -1, 2**31 - 1, -(2**31)))
    return _SCALARS[field.cpp_type]


@st.composite
def built(draw: st.DrawFn, descriptor: Any, depth: int = _MOST_NESTED) -> Message:
    """A message of a descriptor with any of its fields; of a oneof the last that is set stays, as on the wire."""
    message: Message = GetMessageClass(descriptor)()
    fields = [field for field in descriptor.fields if field.message_type is None or depth > 0]
    chosen = draw(st.lists(st.sampled_from(fields), max_size=6, unique_by=lambda field: field.number)) if fields else []
    for field in chosen:
        _fill(draw, message, field, depth)
    return message


def _fill(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    """Give a field a value of its type."""
    if field.message_type is not None:
        part = draw(built(field.message_type, max(0, depth - 1)))
        if field.is_repeated:
            getattr(message, field.name).extend([part] * draw(st.sampled_from((1, 1, 1, 2, 3, *LENGTHS[:-2]))))
        else:
            getattr(message, field.name).CopyFrom(part)
    elif field.is_repeated:
        del getattr(message, field.name)[:]
        getattr(message, field.name).extend(draw(_many(scalars(field))))
    else:
        setattr(message, field.name, draw(scalars(field)))


def _many(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Short lists of different values, and one value as often as there may be, or more often."""
    return st.lists(values, max_size=5) | st.builds(lambda value, n: [value] * n, values, st.sampled_from(LENGTHS))


def exchange(draw: st.DrawFn, message: Any) -> None:
    """Change one thing somewhere in a message: a field, an element of a list, what a oneof holds, an unknown field."""
    place = message
    while True:
        inner = [
            part
            for field, value in place.ListFields()
            if field.message_type is not None
            for part in ([value] if isinstance(value, Message) else list(value)[:8])
        ]
        # Twice as likely further in as to stay: what is nested has most of the fields.
        if not inner or draw(st.sampled_from((True, False, False))):
            break
        place = draw(st.sampled_from(inner))
    fields = list(place.DESCRIPTOR.fields)
    if not fields:
        place.MergeFromString(b"\x98\x06\x01")  # an unknown field, 99
        return
    field = draw(st.sampled_from(fields))
    how = draw(st.sampled_from(("set", "set", "set", "clear", "element", "unknown")))
    values = getattr(place, field.name)
    if how == "unknown":
        place.MergeFromString(b"\x98\x06\x01")
    elif how == "clear":
        place.ClearField(field.name)
    elif how == "element" and field.is_repeated and len(values):
        at = draw(st.integers(0, len(values) - 1))
        kind = draw(st.sampled_from(("drop", "repeat", "other")))
        if kind == "drop":
            del values[at]
        elif kind == "repeat":
            values.append(values[at])
        elif field.message_type is None:
            values[at] = draw(scalars(field))
    else:
        _fill(draw, place, field, 2)


@st.composite
def changed(draw: st.DrawFn, valid: Sequence[Message]) -> Message:
    """A request that works, with none to four things exchanged, under an id that hardly anybody has had."""
    message: Any = type(valid[0])()
    message.CopyFrom(draw(st.sampled_from(valid)))
    _under_a_new_id(message)
    kept = getattr(message, "dataset", "")
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 1, 1, 2, 3)))):
        exchange(draw, message)
    if kept and draw(st.sampled_from((True, True, True, True, True, False))):
        message.dataset = kept  # another one is seldom there, and then nothing else is looked at
    changed_message: Message = message
    return changed_message


def _under_a_new_id(message: Any) -> None:
    fields = message.DESCRIPTOR.fields_by_name
    if "request_id" in fields:
        # Not drawn, since hypothesis likes to draw the same again: it is a name, and what is done for it is the same.
        message.request_id = uuid.uuid4().hex
    for field, value in message.ListFields():
        if field.message_type is not None and isinstance(value, Message) and field.name in _HOLDS_A_REQUEST:
            _under_a_new_id(value)


_HOLDS_A_REQUEST = frozenset({"dpem", "sketch_kmeans", "mrf", "gradient_em", "separated_gmm", "fit"})

_BOMBS: tuple[bytes, ...] = (
    b"",
    b"\x0b" * 5000,  # groups in groups
    b"\xff" * 40,  # a varint without end
    b"\x0a\xff\xff\xff\xff\x0f",  # a length of 4 GiB
    b"\x00\x01",  # field 0
    b"\x0f",  # wire type 7
    b"\x0a\x02\xff\xfe",  # no UTF-8
    b"\x12\x00" * 2000,
    b"\x0a\x00" + b"\x1a\x01x" * 3000,
)


def nested(number: int, times: int) -> bytes:
    """A message in field `number` of a message in field `number`, and so on."""
    body = b""
    for _ in range(times):
        size, prefix = len(body), bytearray([number << 3 | 2])
        while size >= 0x80:
            prefix.append(size & 0x7F | 0x80)
            size >>= 7
        body = bytes(prefix) + bytes([size]) + body
    return body


@st.composite
def garbled(draw: st.DrawFn, body: bytes) -> bytes:
    """A message's bytes with some of them flipped, left out, repeated, or followed by others."""
    how = draw(st.sampled_from(("flip", "cut", "double", "tail", "bomb", "noise", "nest")))
    at = draw(st.integers(0, max(0, len(body) - 1)))
    if how == "flip" and body:
        return body[:at] + bytes([body[at] ^ draw(st.integers(1, 255))]) + body[at + 1 :]
    if how == "cut":
        return body[:at]
    if how == "double":
        return body + body
    if how == "tail":
        return body + draw(st.binary(min_size=1, max_size=12))
    if how == "bomb":
        return draw(st.sampled_from(_BOMBS)) + (body if draw(st.booleans()) else b"")
    if how == "nest":
        return nested(draw(st.integers(1, 15)), draw(st.sampled_from((3, 99, 101, 1000))))
    return draw(st.binary(max_size=120))


@st.composite
def bodies(draw: st.DrawFn, descriptor: Any, valid: Sequence[Message]) -> bytes:
    """Return what is sent to a method: mostly valid requests with fields exchanged; some made from nothing; some bytes.

    Args:
        draw: of hypothesis.
        descriptor: of the method's request.
        valid: requests that work, of which there is one at least.
    """
    # By a number and not by `one_of`, which takes the same strategy many times for once.
    kind = draw(st.sampled_from(range(10)))
    body = encoded(draw(built(descriptor)) if kind == 0 else draw(changed(valid)))
    return draw(garbled(body)) if kind == 1 else body


def encoded(message: Message) -> bytes:
    """A message's bytes."""
    return message.SerializeToString(deterministic=True)


def decoded(body: bytes, make: Callable[[], Message]) -> Message | None:
    """The message that bytes are, None if they are none."""
    message = make()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return None
    return message
