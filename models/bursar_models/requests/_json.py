"""Values of a request's fields as plain JSON and back, and as text for people.

The constructors check what is read, so that no second set of checks is needed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from bursar_models._portable import Portable, receipt_from, receipt_to
from bursar_models.budget import Receipt
from bursar_models.errors import InvalidRequestError

_PARTS: dict[str, type[Any]] = {}
_PAIRS = "pairs"


def part(kind: type[Any]) -> type[Any]:
    """Register a dataclass that may stand in a field of a request."""
    _PARTS[kind.__name__] = kind
    return kind


def written(value: Any) -> Any:
    """Return the JSON form of what a field holds."""
    match value:
        case Portable():
            return value.to_dict()
        case Receipt():
            return {"kind": "Receipt", **receipt_to(value)}
        case np.ndarray():
            return value.tolist()
        case tuple() | list():
            return [written(one) for one in value]
        case Mapping():
            return {"kind": _PAIRS, _PAIRS: [[written(key), written(one)] for key, one in value.items()]}
    if is_dataclass(value):
        return {"kind": type(value).__name__, **{f.name: written(getattr(value, f.name)) for f in fields(value)}}
    return value


def read(field: str, value: Any) -> Any:
    """Return what `written` wrote.

    Raises:
        InvalidRequestError: an object of a kind that stands in no request.
    """
    if isinstance(value, list):
        return [read(f"{field}[{place}]", one) for place, one in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    kind = value.get("kind")
    body = {name: one for name, one in value.items() if name != "kind"}
    try:
        if kind == _PAIRS:
            # JSON has text keys only: a mapping by columns was written as pairs.
            return {tuple(key) if isinstance(key, list) else key: read(field, one) for key, one in body[_PAIRS]}
        if kind == "Receipt":
            return receipt_from(body)
        if kind in _PARTS:
            return _PARTS[kind](**{name: read(f"{field}.{name}", one) for name, one in body.items()})
        return Portable.from_dict(value)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequestError.of(field, f"cannot be read: {error}") from error


def identified(value: Any) -> Any:
    """Return the JSON form without what does not say which release is meant: of receipts, all but dataset and entry."""
    return _reduced(written(value))


def _reduced(value: Any) -> Any:
    if isinstance(value, list):
        return [_reduced(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    if "ledger_head" in value and "entry" in value:  # a receipt, whether it has its kind beside it or not
        return {"dataset": value["dataset"], "entry": value["entry"]}
    # A field without content is left out, so that a new optional field of a model changes no request's digest.
    return {name: _reduced(one) for name, one in value.items() if not (one is None or one is False or one == [])}


def shown(value: Any) -> str:
    """Return a field as a line of Python, as far as it is short; a model or a receipt by its title."""
    if isinstance(value, Portable | Receipt):
        return f"<{repr(value).partition(chr(10))[0]}>"
    if isinstance(value, np.ndarray):
        return repr(value.tolist())
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, value))}]"
    if is_dataclass(value):
        given = [(f.name, getattr(value, f.name)) for f in fields(value)]
        words = ", ".join(f"{name}={shown(one)}" for name, one in given if one is not None)
        return f"bursar.{type(value).__name__}({words})"
    return repr(value)


def told(value: Any, most: int = 60) -> str:
    """Return a value as text that is short enough for a message."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def canonical(value: Any) -> str:
    """Return the JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
