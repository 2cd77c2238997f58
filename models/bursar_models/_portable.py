"""Released models as plain JSON values and back, without loss, and in files.

There is no pickle: a file can hold numbers and text only, so loading it runs no code. The types of a class's fields say
what they may hold, so a new field of a model needs no change here.
"""

from __future__ import annotations

import enum
import json
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self, Union, get_args, get_origin, get_type_hints

import numpy as np

from bursar_models._frequencies import Frequencies
from bursar_models._goodness import Goodness, distrust
from bursar_models._intervals import POPULATION, Interval, Intervals, two_sided
from bursar_models._tables import Categories, Output, as_table
from bursar_models.arrays import FloatArray
from bursar_models.budget import Receipt
from bursar_models.files import write_whole
from bursar_models.text import visible

VERSION = 1
"""Version of the format. It rises when fields change their meaning; a new field does not change it."""

_DIGEST = "digest"
"""Key of the hash of the frequencies, as hexadecimal digits, beside the numbers from which they are drawn."""

# JSON has no such numbers, and fields of receipts may hold them.
_NOT_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


class Portable:
    """Released value that converts to plain JSON values and back without loss: every float stays the same float.

    Attributes:
        receipt: receipt of its debit; None for what does not come from a server.
    """

    _kinds: ClassVar[dict[str, type[Portable]]] = {}
    receipt: Receipt | None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if ABC not in cls.__bases__:
            Portable._kinds.setdefault(cls.__name__, cls)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what a preview warned of before it was paid for, from public numbers; () without a receipt."""
        return () if self.receipt is None else self.receipt.warnings

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain JSON values, with the kind and the version of the format.

        Arrays are nested lists in row-major order. Receipt, noise and the sketch or tables behind a model are included.

        Example:
            >>> content = bursar.KMeans([[0], [5]], [0.3, 0.7], [1, 4]).to_dict()
            >>> content["kind"], content["version"], content["cluster_centers_"]
            ('KMeans', 1, [[0.0], [5.0]])
            >>> bursar.KMeans.from_dict(content).n_clusters
            2
        """
        return {"kind": type(self).__name__, "version": VERSION, **_record(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the value from which `to_dict` made `content`; JSON in between changes nothing.

        Args:
            content: values as `to_dict` returns them.

        Raises:
            ValueError: wrong kind or version, or a field that is missing, unknown, or of a wrong type, shape or range;
                the message names the field.
        """
        found = _from_dict(content)
        if not isinstance(found, cls):
            raise ValueError(f"kind: expected {cls.__name__!r}, got {type(found).__name__!r}; use that class")
        return found


class Model(Portable, ABC):
    """Released model: it can be saved to a file and drawn."""

    def save(self, path: str | Path) -> None:
        """Write the model to a file, from which `bursar_models.load` reads the same model; an older file is replaced.

        The file is JSON text of `to_dict()`, written whole or not at all. It contains the receipt, but no token and no
        row.

        Args:
            path: path of the file.

        Raises:
            OSError: the file cannot be written.
        """
        parts = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in self.to_dict().items())
        write_whole(path, "{\n" + ",\n".join(parts) + "\n}\n")

    _doubted: ClassVar[str] = "all intervals"
    """Numbers that are not to be trusted where the form is doubtful."""

    def to_table(self, output: Output = "pandas") -> Any:
        """Return the parameters as a table with a row for each component (of a Markov random field: for each state).

        Columns are named by attribute and feature: "weights_", "means_.age". Covariances are left out, because they are
        not columns of numbers.

        Args:
            output: "pandas" or "polars" for a DataFrame, "arrow" for a pyarrow Table, "dict" for arrays by name.

        Raises:
            ValueError: another output.
            bursar.MissingDependencyError: its library is not installed.

        Example:
            >>> model = bursar.KMeans([[0], [5]], [0.3, 0.7], [1, 4], columns=("age",))
            >>> {name: cells.tolist() for name, cells in model.to_table(output="dict").items()}
            {'weights_': [0.3, 0.7], 'cluster_centers_.age': [0.0, 5.0], 'variances_': [1.0, 4.0]}
        """
        return as_table(self._parameters(), output)

    def intervals(self, level: float = 0.95) -> Intervals:
        """Return intervals of the released numbers, computed on this machine and at no cost to privacy.

        Numbers that have none are listed with the reason: see `Intervals.left_out`.

        Args:
            level: share of fits in which an interval is meant to contain its target, above 0 and below 1.

        Raises:
            ValueError: another level.
        """
        rows, left_out = self._intervals(two_sided(level))
        return Intervals(level, POPULATION, tuple(rows), tuple(left_out), self._warnings())

    @property
    def goodness(self) -> Goodness | None:
        """Test of the model's form on what was released, free; None where nothing that was released tells."""
        return None

    def _warnings(self) -> tuple[str, ...]:
        """Return what the intervals suppose and the releases contradict."""
        return distrust(self.goodness, self._doubted)

    @abstractmethod
    def _intervals(self, z: float) -> tuple[Sequence[Interval], Sequence[str]]:
        """Return intervals of `z` standard errors on both sides, and the numbers that have none, with reasons."""

    @abstractmethod
    def _parameters(self) -> Mapping[str, FloatArray | Categories]:
        """Return the columns of `to_table`."""

    @abstractmethod
    def plot(self, ax: Any = None) -> Any:
        """Draw the model.

        Args:
            ax: matplotlib axes to draw on; None makes a figure.

        Returns:
            The axes.

        Raises:
            bursar.MissingDependencyError: matplotlib is not installed.
        """


def load(path: str | Path) -> Model:
    """Return the model that a model's `save` wrote to a file, receipt and noise included.

    Args:
        path: path of the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no model, or one that this version cannot read.

    Example:
        >>> model = bursar.KMeans([[0], [5]], [0.3, 0.7], [1, 4], columns=("age",))
        >>> model.save("model.json")
        >>> bursar.load("model.json")
        KMeans: 2 clusters
          weight  age
             0.3    0
             0.7    5
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_no_constant)
        if isinstance(content, dict) and "kind" not in content and "frequencies" in content:
            raise ValueError("it holds a sketch; use bursar.load_sketch")
        found = _from_dict(content)
        if not isinstance(found, Model):
            raise ValueError(f"kind: {type(found).__name__!r} is no model; use bursar.{type(found).__name__}.from_dict")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no model that this version can read: {visible(error)}") from error
    return found


def _from_dict(content: Any) -> Portable:
    if not isinstance(content, Mapping):
        raise ValueError(f"expected an object with kind and version, got {_told(content)}")
    kind, version = content.get("kind"), content.get("version")
    if not isinstance(kind, str) or kind not in Portable._kinds:
        raise ValueError(f"kind: expected one of {sorted(Portable._kinds)}, got {kind!r}")
    if type(version) is not int or version < 1:
        raise ValueError(f"version: expected {VERSION}, got {version!r}")
    if version > VERSION:
        raise ValueError(
            f"version: {version} was written by a newer bursar, and this one reads {VERSION}: upgrade bursar"
        )
    body = {name: value for name, value in content.items() if name not in ("kind", "version")}
    made: Portable = _made(Portable._kinds[kind], body, "")
    return made


def receipt_to(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as plain JSON values."""
    return _record(receipt)


def receipt_from(content: Mapping[str, Any]) -> Receipt:
    """Return the receipt that `receipt_to` wrote.

    Raises:
        ValueError: a field is missing, unknown or of another type.
    """
    receipt: Receipt = _made(Receipt, content, "")
    return receipt


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _record(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name."""
    record = {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.init}
    # Only the seed is stored; the digest detects a version that draws other frequencies from it.
    return {**record, _DIGEST: value.digest().hex()} if isinstance(value, Frequencies) else record


def _plain(value: Any) -> Any:
    """Return a field's value as JSON values."""
    if isinstance(value, np.ndarray):
        return value.tolist()  # all finite: constructors of models check it
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else next(n for n, x in _NOT_FINITE.items() if str(x) == str(value))
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return _record(value) if is_dataclass(value) else value


def _made(cls: Any, value: Any, path: str) -> Any:
    """Return a dataclass from the values of its fields; `path` is the prefix of their names in messages."""
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{path.rstrip('.')}: expected an object with the fields of {cls.__name__}, got {_told(value)}"
        )
    left, hints = dict(value), _hints(cls)
    # The digest is no field of the class: it is compared below, with frequencies drawn anew from their seed.
    if cls is Frequencies:
        left.pop(_DIGEST, None)
    known = {field.name: field for field in fields(cls) if field.init}
    if unknown := sorted(str(name) for name in left if name not in known):
        raise ValueError(f"{path}{unknown[0]}: {cls.__name__} has no such field here; a newer bursar may know it")
    needed = [name for name, field in known.items() if field.default is field.default_factory is MISSING]
    if missing := [name for name in needed if name not in left]:
        raise ValueError(f"{path}{missing[0]}: is missing")
    arguments = {name: _read(hints[name], one, f"{path}{name}") for name, one in left.items()}
    try:
        made = cls(**arguments)
    except ValueError as error:
        raise ValueError(f"{path}{error}") from error
    # After the owner has checked m and d: a wrong file could ask for an enormous matrix.
    for name, one in arguments.items():
        if isinstance(one, Frequencies) and one.digest().hex() != value[name].get(_DIGEST):
            text = "this version of bursar draws others from their seed: use the version that the sketch was made with"
            raise ValueError(f"{path}{name}: {text}")
    return made


@cache
def _hints(cls: Hashable) -> dict[str, Any]:
    """Return the types of the fields, including those that a module imports for type checkers only."""
    return get_type_hints(cls, localns=dict(Portable._kinds))


def _read(hint: Any, value: Any, path: str) -> Any:
    """Return a value of the type `hint` from JSON values."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        # Fields of models are of one type or None, never of two types.
        kinds = [kind for kind in arguments if kind is not type(None)]
        return None if value is None else _read(kinds[0], value, path)
    if origin is np.ndarray:
        return _array(value, path)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{path}: expected a list, got {_told(value)}")
        return tuple(_read(arguments[0], one, f"{path}[{place}]") for place, one in enumerate(value))
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise ValueError(f"{path}: expected one of {arguments}, got {_told(value)}")
        return value
    if issubclass(hint, enum.Enum):
        names = [one.value for one in hint]
        if value not in names:
            raise ValueError(f"{path}: expected one of {names}, got {_told(value)}")
        return hint(value)
    return _made(hint, value, f"{path}.") if is_dataclass(hint) else _SIMPLE[hint](value, path)


def _array(value: Any, path: str) -> FloatArray:
    try:
        array = np.array(value)
    except ValueError as error:
        raise ValueError(f"{path}: expected lists of numbers, all of one length at each depth") from error
    # numpy would convert text to numbers.
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{path}: expected lists of numbers, all of one length at each depth")
    return array.astype(np.float64)


def _number(value: Any, path: str) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path}: expected a number, got {_told(value)}")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{path}: expected a number within the range of floats") from error


def _exactly(kind: type[Any], name: str) -> Callable[[Any, str], Any]:
    def read(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{path}: expected {name}, got {_told(value)}")
        return value

    return read


_SIMPLE: dict[Any, Callable[[Any, str], Any]] = {
    float: _number,
    int: _exactly(int, "a whole number"),
    bool: _exactly(bool, "true or false"),
    str: _exactly(str, "text"),
}


def _told(value: Any) -> str:
    """Return a wrong value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
