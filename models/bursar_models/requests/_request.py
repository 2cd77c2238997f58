"""The base of the five request values: checks by annotation, equality, JSON, printing and a stable digest.

A request class declares each argument once, as a field with its type, and describes it once, in its docstring. What
may be in a field is said by its annotation: `Annotated[int, Whole(1, 9)]` has the check in it. The command line and
the pages read the same fields with `arguments()`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from bursar_models.checks import choice, flag
from bursar_models.errors import InvalidRequestError
from bursar_models.files import write_whole
from bursar_models.requests._json import canonical, identified, read, shown, told, written

VERSION = 1
"""Version of the JSON form. It rises when a field changes its meaning, not when a field with a default is added."""

REQUIRED = MISSING
"""Default of an argument that must be given."""

ResultT = TypeVar("ResultT", covariant=True)
Check = Callable[[str, Any], Any]


class Fits(Protocol[ResultT]):
    """A request whose fit returns a `ResultT`, for type checkers."""

    def result_type(self) -> type[ResultT]:
        """Return the class of the fit's result."""


@dataclass(frozen=True)
class Argument:
    """One argument of a request, for programs that offer it: the command line, the pages.

    Attributes:
        name: its name.
        hint: its type, without `Annotated` and None.
        default: its default, `REQUIRED` if it must be given.
        optional: whether it may be None.
        check: the check in its annotation, such as `Whole(1, 9)`; None if the type says all.
        words: its description.
    """

    name: str
    hint: Any
    default: Any
    optional: bool
    check: Check | None
    words: str


class Request:
    """A fit that may be asked for: all of its arguments but the spend. It is checked when it is made.

    Requests are values: two with the same arguments are equal, have the same hash and the same `digest()`. They can be
    printed, kept in files and compared. No request holds rows.
    """

    _kinds: ClassVar[dict[str, type[Request]]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        Request._kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        for argument in arguments(type(self)):
            # A frozen dataclass can store its checked fields in no other way.
            object.__setattr__(self, argument.name, _checked(argument, getattr(self, argument.name)))
        self._check()

    def _check(self) -> None:
        """Check arguments that depend on each other. Raises InvalidRequestError."""

    def result_type(self) -> type[Any]:
        """Return the class of the fit's result."""
        raise NotImplementedError

    def changed(self) -> dict[str, Any]:
        """Return the arguments that are not at their defaults, by name."""
        found = {argument.name: (getattr(self, argument.name), argument.default) for argument in arguments(type(self))}
        return {name: value for name, (value, default) in found.items() if identified(value) != identified(default)}

    def to_dict(self) -> dict[str, Any]:
        """Return everything in it as plain JSON values: its kind, the version of the form, and all arguments by name.

        Example:
            >>> content = bursar.DPEM(n_components=3, columns=["age"]).to_dict()
            >>> content["kind"], content["n_components"], content["columns"]
            ('DPEM', 3, ['age'])
            >>> bursar.DPEM.from_dict(content) == bursar.DPEM(n_components=3, columns=["age"])
            True
        """
        values = {argument.name: written(getattr(self, argument.name)) for argument in arguments(type(self))}
        return {"kind": type(self).__name__, "version": VERSION, **values}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the request that `to_dict` wrote; JSON in between changes nothing.

        Called on `bursar.Request`, it reads every kind; on one of the classes, that kind alone.

        Args:
            content: as `to_dict` returns it.

        Raises:
            InvalidRequestError: another kind or version, or a field that is missing, unknown or out of its range.
        """
        if not isinstance(content, Mapping):
            raise InvalidRequestError.of("request", f"must be an object with kind and version, got {told(content)}")
        body = dict(content)
        kind, version = body.pop("kind", None), body.pop("version", None)
        found = Request._kinds.get(kind) if isinstance(kind, str) else None
        if found is None or not issubclass(found, cls):
            allowed = [name for name, one in Request._kinds.items() if issubclass(one, cls)]
            raise InvalidRequestError.of("kind", f"must be one of {', '.join(sorted(allowed))}, got {told(kind)}")
        # Not isinstance: True is an int in Python, and no version.
        if type(version) is not int or version != VERSION:
            advice = "; a newer bursar wrote it: upgrade" if isinstance(version, int) and version > VERSION else ""
            raise InvalidRequestError.of("version", f"must be {VERSION}, got {told(version)}{advice}")
        known = {argument.name: argument for argument in arguments(found)}
        if unknown := sorted(str(name) for name in body if name not in known):
            raise InvalidRequestError.of(unknown[0], f"{kind} has no such argument")
        if missing := [name for name, one in known.items() if one.default is REQUIRED and name not in body]:
            raise InvalidRequestError.of(missing[0], "is missing")
        made: Self = found(**{name: read(name, value) for name, value in body.items()})
        return made

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, which `load` reads; an older file is replaced.

        Args:
            path: of the file.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the request that `save` wrote to a file.

        Args:
            path: of the file.

        Raises:
            OSError: it cannot be read.
            InvalidRequestError: it holds no request of this class, or one that this version cannot read.

        Example:
            >>> bursar.DPEM(n_components=3).save("request.json")
            >>> bursar.Request.load("request.json")
            bursar.DPEM(n_components=3)
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError.of("path", f"{path} is no JSON: {error}") from error
        return cls.from_dict(content)

    def digest(self) -> str:
        """Return the SHA-256 of what the fit computes, as 64 hexadecimal digits; the same in every program and version.

        Arguments at their defaults have no part in it, so that a new optional argument changes no digest. Arguments
        that say only which machine computes have none either, nor has what a receipt tells beside dataset and entry.

        Example:
            >>> a, b = bursar.DPEM(n_components=3), bursar.DPEM(n_components=3, estimator="ml")
            >>> a.digest() == b.digest()
            True
        """
        return hashlib.sha256(canonical(self._identity()).encode()).hexdigest()

    def _identity(self) -> dict[str, Any]:
        compared = {field.name for field in _fields(type(self)) if field.compare}
        values = {name: identified(value) for name, value in self.changed().items() if name in compared}
        return {"kind": type(self).__name__, "version": VERSION, **values}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return int(self.digest()[:15], 16)

    def __repr__(self) -> str:
        required = [argument.name for argument in arguments(type(self)) if argument.default is REQUIRED]
        given = {**{name: getattr(self, name) for name in required}, **self.changed()}
        return f"bursar.{type(self).__name__}({', '.join(f'{name}={shown(value)}' for name, value in given.items())})"


def arguments(kind: type[Request]) -> tuple[Argument, ...]:
    """Return the arguments of a request class, in its order."""
    hashable: Any = kind  # mypy takes the __hash__ of instances for that of the class
    return _arguments(hashable)


@cache
def _arguments(kind: Any) -> tuple[Argument, ...]:
    hints, words = get_type_hints(kind, include_extras=True), described(kind)
    return tuple(_argument(field, hints[field.name], words.get(field.name, "")) for field in _fields(kind))


def described(kind: type[Any]) -> dict[str, str]:
    """Return what a class's docstring says of each attribute, each as one line."""
    section = (inspect.getdoc(kind) or "").partition("\nAttributes:\n")[2]
    text = re.split(r"\n\S", section)[0]
    found = re.findall(r"^    (\w+): (.*(?:\n {6,}.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


def _fields(kind: type[Any]) -> tuple[Field[Any], ...]:
    return fields(kind)


def _argument(field: Field[Any], hint: Any, words: str) -> Argument:
    optional, check = False, None
    for _ in range(2):  # None is outside of the annotation or inside of it
        if get_origin(hint) is Annotated:
            hint, check, *_rest = get_args(hint)
        if get_origin(hint) in (Union, UnionType) and type(None) in get_args(hint):
            optional = True
            hint = Union[tuple(part for part in get_args(hint) if part is not type(None))]  # noqa: UP007 - made here
    if isinstance(hint, TypeVar):
        hint = hint.__bound__
    return Argument(field.name, hint, field.default, optional, check, words)


def _checked(argument: Argument, value: Any) -> Any:
    """Return the normal form of an argument. Raises InvalidRequestError."""
    if value is None and argument.optional:
        return None
    if argument.check is not None:
        return argument.check(argument.name, value)
    if get_origin(argument.hint) is Literal:
        return choice(argument.name, value, get_args(argument.hint))
    if argument.hint is bool:
        return flag(argument.name, value)
    if not isinstance(value, argument.hint):
        raise InvalidRequestError.of(
            argument.name, f"must be a bursar.{argument.hint.__name__}, got {type(value).__name__}"
        )
    return value
