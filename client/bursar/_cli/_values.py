"""Readers of the SDK's values on a command line: starts, priors, scales, cliques, lists of columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import bursar


class Value(click.ParamType[Any]):
    """An option's value, read by a function."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the SDK's value; what cannot be one is an error of usage."""
        try:
            return self._read(value)
        except (ValueError, bursar.InvalidRequestError) as error:
            self.fail(str(error), param, ctx)
        except OSError as error:
            self.fail(f"{value}: {error.strerror or error}", param, ctx)


def components(text: str) -> int | tuple[int, int]:
    """Return a number of components, or the least and the largest one, such as "1-10". Raises ValueError."""
    least, dash, most = text.partition("-")
    if not (least.isdecimal() and (most.isdecimal() or not dash)):
        raise ValueError(f"expected a number such as 3, or the least and the largest such as 1-10, got {text!r}")
    return (int(least), int(most)) if dash else int(least)


def percent(text: str) -> bursar.Percent:
    """Return a part of the budget, such as "10%". Raises ValueError, or InvalidRequestError."""
    number, sign, rest = text.partition("%")
    if not sign or rest.strip():
        raise ValueError(f"expected a part of the budget such as 10%, got {text!r}")
    return bursar.percent(_number(number))


def names(text: str) -> list[str]:
    """Return names between commas. Raises ValueError."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise ValueError(f"expected names such as a,b,c, got {text!r}")
    return found


def numbers(text: str) -> list[float]:
    """Return numbers between commas. Raises ValueError."""
    return [_number(part) for part in text.split(",")]


def prior(text: str) -> bursar.GaussianPrior:
    """Return a prior such as "kappa=1,scale=0.1". Raises ValueError, or InvalidRequestError."""
    return bursar.GaussianPrior(**_settings(text, bursar.GaussianPrior))


def scale(text: str) -> str | float | bursar.Pilot:
    """Return the scale of a sketch: "pilot", "schema", "pilot:share=0.2" or a number. Raises as `prior` does."""
    word, _, settings = text.partition(":")
    if word == "pilot" and settings:
        found = _settings(settings, bursar.Pilot)
        if "n_frequencies" in found:
            found["n_frequencies"] = _whole(str(settings), found["n_frequencies"])
        return bursar.Pilot(**found)
    return text if text in ("pilot", "schema") else _number(text)


def start(text: str) -> Any:
    """Return where EM starts: "splitting", "random:7", an entry, or a file. Raises as `prior` does, or OSError."""
    if text == "splitting" or text.isdecimal():
        return int(text) if text.isdecimal() else text
    return _random(text) or _given(Path(text), bursar.GivenStart, "means")


def gradient_start(text: str) -> Any:
    """Return where gradient EM starts: "random:7" or a file. Raises as `start` does."""
    return _random(text) or _given(Path(text), bursar.GivenCoefficients, "coefficients")


def precision(text: str) -> tuple[tuple[str, ...], float]:
    """Return a clique and its precision, such as "age,work=4". Raises ValueError."""
    clique, found, number = text.rpartition("=")
    if not found:
        raise ValueError(f"expected a clique and its precision, such as age,work=4, got {text!r}")
    return tuple(names(clique)), _number(number)


def transform(text: str) -> tuple[str, str]:
    """Return a column and its transform, such as "income=log1p". Raises ValueError."""
    name, found, word = text.rpartition("=")
    if not (found and name.strip()):
        raise ValueError(f"expected a column and its transform, such as income=log1p, got {text!r}")
    return name.strip(), word.strip()


def weighted(text: str) -> str | tuple[tuple[str, ...], float]:
    """Return "pairs", "triples", or a set of columns and its weight, such as "age,work=4". Raises ValueError."""
    if text in ("pairs", "triples"):
        return text
    if "=" not in text:
        raise ValueError(
            f"expected pairs, triples, or a set of columns and its weight, such as age,work=4, got {text!r}"
        )
    return precision(text)


def named_number(text: str) -> tuple[str, float]:
    """Return a name and a number, such as "moments=5". Raises ValueError."""
    name, found, number = text.rpartition("=")
    if not (found and name.strip()):
        raise ValueError(f"expected a name and a number, such as moments=5, got {text!r}")
    return name.strip(), _number(number)


def accuracy(text: str) -> float | dict[str, float]:
    """Return one number for all columns, or numbers by column, such as "visits=0.3,diseases=1". Raises ValueError."""
    return dict(map(named_number, text.split(","))) if "=" in text else _number(text)


def distance(text: str) -> float | tuple[str, float]:
    """Return one number for all tables, or a table and a number, such as "age,work=0.05". Raises ValueError."""
    columns, found, number = text.rpartition("=")
    return (", ".join(names(columns)), _number(number)) if found else _number(number)


def model(text: str) -> bursar.Model:
    """A saved model from a file. Raises ValueError, or OSError."""
    return bursar.load(text)


def foreign(text: str) -> bursar.Sketch:
    """Return a sketch from a file. Raises InvalidRequestError, or OSError."""
    return bursar.load_sketch(text)


def graph(texts: Sequence[str]) -> str | list[tuple[str, ...]]:
    """Return "auto", "tree" or "independent", or cliques such as "age,work". Raises ValueError."""
    if len(texts) == 1 and texts[0] in ("auto", "tree", "independent"):
        return texts[0]
    return [tuple(names(text)) for text in texts]


def _random(text: str) -> bursar.RandomStart | None:
    word, colon, seed = text.partition(":")
    if word != "random":
        return None
    if colon and not seed.isdecimal():
        raise ValueError(f"expected random:SEED with a whole number, got {text!r}")
    return bursar.RandomStart(int(seed or 0))


def _given(path: Path, kind: type[Any], field: str) -> Any:
    """Return a start from a file: the fields of `kind`, which must have `field`; or a saved model."""
    content = _json_object(path)
    if field not in content:
        return bursar.load(path)
    known = [f.name for f in dataclasses.fields(kind)]
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ValueError(f"{path} has {unknown[0]!r}, which is none of {', '.join(known)}")
    return kind(**content)


def _json_object(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no file {str(path)!r}, and it is no other start that is known") from None
    except (ValueError, RecursionError) as error:  # of syntax, encoding, or too many brackets
        raise ValueError(f"{path} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must have a JSON object in it")
    return content


def _settings(text: str, kind: type[Any]) -> dict[str, Any]:
    """Fields of a class, such as "kappa=1,scale=0.1". Raises ValueError."""
    known = [field.name for field in dataclasses.fields(kind)]
    found = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name not in known:
            raise ValueError(f"expected NAME=NUMBER with a name of {', '.join(known)}, got {part!r}")
        found[name] = _number(number)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text!r}") from None


def _whole(text: str, number: float) -> int:
    if not number.is_integer():
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(number)
