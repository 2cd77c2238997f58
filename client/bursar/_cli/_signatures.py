"""The options of a fit, made from the fields of its request and their descriptions: there is no second list of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import click
import numpy.typing as npt

import bursar
from bursar._cli import _values
from bursar._cli._failing import in_options, option
from bursar_models import requests
from bursar_models.requests import REQUIRED, GradientStart, MRFGraph, PaidSketch, PaidTables, Scale, Start, Workload
from bursar_models.requests._dpem import Components
from bursar_models.transforms import Transform

Given = dict[str, Any]
"""Typed values by the names of click's parameters; a value that was not typed is None or an empty tuple."""


_SHAPE = re.compile(r",? array-like of shape \([^)]*\)")
_SAID = {"None": "left out", "True": "yes", "False": "no"}


@dataclass(frozen=True)
class Argument:
    """One argument of a request.

    Attributes:
        default: `REQUIRED` if it must be given.
        value: makes it of what was typed; None if nothing was.
    """

    name: str
    default: object
    options: tuple[click.Option, ...]
    value: Callable[[Given], Any]


def arguments(kind: type[bursar.Request]) -> list[Argument]:
    """Return the arguments of a request, in its order.

    Raises:
        TypeError: an argument has a type that no option can be made for; this module then needs a line for it.
    """
    return [_argument(field) for field in requests.arguments(kind)]


def _for_people(text: str) -> str:
    """Return an argument's words without Python: None is what happens if an option is left out."""
    text = in_options(_SHAPE.sub("", text.replace("`", "")))
    for python, said in _SAID.items():
        text = re.sub(rf"\b{python}\b", said, text)
    # A symbol stays as it is: m is not M.
    return re.sub(r"(^|\. )([a-z])(?=[a-z])", lambda found: f"{found[1]}{found[2].upper()}", text)


def _argument(field: requests.Argument) -> Argument:
    name, default = field.name, field.default
    for known, make in _SPECIAL:
        if field.hint == known:
            return make(name, default)
    kind, many = _type_of(name, field.hint)
    made = _option(name, kind, default, _for_people(field.words), many=many)
    return Argument(name, default, (made,), lambda given: given[name])


def _type_of(name: str, hint: object) -> tuple[click.ParamType[Any], bool]:
    """Return the type of an option's value, and whether the option may be repeated."""
    for known, kind, many in _TYPES:
        if hint == known:
            return kind, many
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint)), False
    raise TypeError(f"there is no option for the type of {name}, {hint}: say in bursar._cli._signatures how to type it")


def _option(name: str, kind: click.ParamType[Any], default: object, words: str, *, many: bool = False) -> click.Option:
    required = default is REQUIRED
    if kind is click.BOOL:
        spelt = f"{option(name)}/--no-{option(name)[2:]}" if default is not False else option(name)
        return click.Option([spelt, name], is_flag=True, default=None, help=_with_default(words, default))
    return click.Option(
        [option(name), name],
        type=kind,
        multiple=many,
        required=required,
        help=_with_default(words, default),
    )


def _with_default(words: str, default: object) -> str:
    if default in (None, False, (), REQUIRED):
        return words
    word = {True: "yes"}.get(default, default) if isinstance(default, bool) else default
    return f"{words} [default: {word}]".strip()


SPEND = (
    click.Option(["--rho", "rho"], type=float, metavar="R", help="Spend so much, with Gaussian noise."),
    click.Option(
        ["--epsilon", "epsilon"],
        type=float,
        metavar="E",
        help="With --delta: spend what implies them, with Gaussian noise. Alone: Laplace.",
    ),
    click.Option(["--delta", "delta"], type=float, metavar="D", help="Goes with --epsilon."),
    click.Option(
        ["--spend", "percent"], type=_values.Value("P%", _values.percent), help="Spend so much of the whole budget."
    ),
    click.Option(["--what-is-left", "what_is_left"], is_flag=True, help="Spend all that one request may cost now."),
)
"""Options that say a spend."""


def spend(given: Given, *, must: bool) -> bursar.Spend | None:
    """Return the spend that was typed.

    Raises:
        click.UsageError: none, or more than one.
        InvalidRequestError: an amount that is not positive and finite.
    """
    amounts = (given.pop(name) for name in ("rho", "epsilon", "delta", "percent"))
    match (*amounts, bool(given.pop("what_is_left"))):
        case float(amount), None, None, None, False:
            return bursar.rho(amount)
        case None, float(epsilon), None, None, False:
            return bursar.pure(epsilon)
        case None, float(epsilon), float(delta), None, False:
            return bursar.epsilon_delta(epsilon, delta)
        case None, None, None, bursar.Percent() as part, False:
            return part
        case None, None, None, None, True:
            return bursar.what_is_left()
        case None, None, None, None, False if not must:
            return None
    raise click.UsageError(
        "say what to spend: --rho, or --epsilon with --delta (Gaussian noise), or --epsilon alone (Laplace noise), or "
        "--spend 10%, or --what-is-left; one of them"
    )


def _cliques(name: str, default: object) -> Argument:
    options = (
        click.Option(
            ["--cliques", name],
            multiple=True,
            metavar="auto|tree|independent|A,B",
            help="Which columns have a table together: a,b for each clique (repeat it); auto to have the server choose "
            "pairs, each where the model so far is wrong, or tree to have it choose a tree of strong dependences; part "
            "of the spend pays for that; independent for one table a column. [default: auto]",
        ),
        click.Option(
            ["--chain", "chain"],
            type=_values.Value("a,b,c", _values.names),
            help="Instead: columns in the order of time, with the same transitions between all neighbours.",
        ),
        click.Option(["--null", "null"], metavar="CATEGORY", help="With --chain: stands for not observed."),
    )
    return Argument(name, default, options, lambda given: _graph(given[name], given["chain"], given["null"]))


def _graph(cliques: Sequence[str], chain: list[str] | None, null: str | None) -> Any:
    if cliques and chain:
        raise click.UsageError("say which columns have a table together: --cliques or --chain, one of them")
    if chain:
        return bursar.Chain(chain, null)
    if null is not None:
        raise click.UsageError("--null goes with --chain")
    try:
        return _values.graph(cliques or ["auto"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--cliques'") from None


def _numbers_of_sets(name: str, default: object) -> Argument:
    words = " ".join(_OF_SETS[name].split())
    made = _option(name, _values.Value("a,b=number", _values.precision), default, words, many=True)
    return Argument(name, default, (made,), lambda given: dict(given[name]) or None)


def _transforms(name: str, default: object) -> Argument:
    made = _option(name, _values.Value("COLUMN=TRANSFORM", _values.transform), default, _TRANSFORM, many=True)
    return Argument(name, default, (made,), lambda given: dict(given[name]) or None)


def _workload(name: str, default: object) -> Argument:
    words = " ".join(_WORKLOAD.split())
    made = _option(name, _values.Value("pairs|triples|a,b=number", _values.weighted), None, words, many=True)
    return Argument(name, default, (made,), lambda given: _one_workload(given[name]) or default)


def _one_workload(given: Sequence[Any]) -> Any:
    words = [one for one in given if isinstance(one, str)]
    if not words:
        return dict(given)
    if len(given) > 1:
        raise click.UsageError("--workload is pairs, or triples, or sets such as a,b,c=2; one of them")
    return words[0]


DRY_RUN = (
    click.Option(
        ["--dry-run", "dry_run"],
        is_flag=True,
        default=None,
        help="Run the server's code on synthetic rows instead, for free: nothing is debited or stored.",
    ),
    click.Option(
        ["--dry-run-rows", "dry_run_rows"],
        type=click.IntRange(min=1),
        help="With --dry-run: number of rows. [default: the public number]",
    ),
    click.Option(
        ["--dry-run-seed", "dry_run_seed"],
        type=click.IntRange(0, 2**64 - 1),
        help="With --dry-run: seed of the rows. [default: 0]",
    ),
)
"""Options that make a dry run of a fit."""


def dry_run(given: Given) -> dict[str, int] | None:
    """Return the arguments of a dry run; None for a fit that is paid for.

    Raises:
        click.UsageError: options of a dry run without it.
    """
    rows, seed = given.pop("dry_run_rows"), given.pop("dry_run_seed")
    if given.pop("dry_run"):
        return {name: value for name, value in (("rows", rows), ("seed", seed)) if value is not None}
    if rows is not None or seed is not None:
        raise click.UsageError("--dry-run-rows and --dry-run-seed go with --dry-run")
    return None


LIKE = (
    click.Option(
        ["--like"],
        type=_values.Value("FILE", _values.model),
        help="Foretell errors from rows like those of this saved model: the fit is tried on made-up rows, for free.",
    ),
    click.Option(
        ["--guess"],
        type=_values.Value("W,W,...", _values.numbers),
        help="Instead: from groups with these shares of the rows; with --guess-spread.",
    ),
    click.Option(
        ["--guess-spread"],
        type=_values.Value("X or NAME=X,...", _values.accuracy),
        help="With --guess: standard deviation within a group, for all columns or by column.",
    ),
)
"""Options that say what rows are expected to look like."""


def like(given: Given) -> bursar.Model | bursar.Guess | None:
    """Return the rows that were typed as expected; None if nothing was.

    Raises:
        click.UsageError: options that do not go together.
        InvalidRequestError: a number of a guess that is not positive and finite.
    """
    model, weights, spread = (given.pop(name) for name in ("like", "guess", "guess_spread"))
    if (weights is None) != (spread is None) or (model is not None and weights is not None):
        raise click.UsageError("say what rows look like: --like, or --guess with --guess-spread; one of them")
    return model if weights is None else bursar.Guess(weights=weights, spread=spread)


def _simple(
    label: str, read: Callable[[str], Any], words: str, *, many: bool = False
) -> Callable[[str, object], Argument]:
    """Return the option of a type whose docstring is about Python, with plain words."""

    def make(name: str, default: object) -> Argument:
        made = _option(name, _values.Value(label, read), default, " ".join(words.split()), many=many)
        return Argument(name, default, (made,), lambda given: given[name])

    return make


_START = """
Where EM starts: splitting (private), random:SEED (a public place), the ENTRY of an earlier model of yours, or a file: a
saved model, or a JSON object with means, and with weights and covariances if you know them.
"""
_GRADIENT_START = """
Where it starts: random:SEED (a public place), or a file: a saved model of this kind, or a JSON object with
coefficients, and with intercepts and weights if you know them. Left out: random:0, or private for a Gaussian mixture.
"""
_PRIOR = f"""
For --estimator map, NAME=NUMBER between commas, of {", ".join(bursar.GaussianPrior.__dataclass_fields__)}; left out:
the server's.
"""
_SCALE = """
Standard deviation of a cluster that the frequencies are tuned to: found by a pilot sketch, which a part of the spend
pays for (pilot:share=S,n_frequencies=M says which part); from the public schema, which costs nothing and knows nothing;
or a number in the sketch's units.
"""
_FOREIGN = "Sketch of another site with the same frequencies, in a file (repeat it), merged with yours before decoding."
_TRANSFORM = (
    "Of a column, as income=log1p (repeat it): fit log(1 + x) in its place; none for the column itself. Left out: what "
    "the owner declared. Answers are in the columns' own units."
)
_OF_SETS = {
    "precisions": """
Of listed cliques relative to one another, as a,b=4 (repeat it): the noise on a clique's table is divided by the square
root of its precision. Left out: 1.
""",
}

_WORKLOAD = """
Tables that the model is for, with --cliques auto: all pairs of columns, all triples, or sets of columns with their
weights, as a,b,c=2 (repeat it). Only these sets, and sets within them, are chosen. [default: pairs]
"""

_SPECIAL: list[tuple[object, Callable[[str, object], Argument]]] = [
    (MRFGraph, _cliques),
    (Workload, _workload),
    (Mapping[tuple[str, ...], float], _numbers_of_sets),
    (Mapping[str, Transform], _transforms),
    (Start, _simple("start", _values.start, _START)),
    (GradientStart, _simple("start", _values.gradient_start, _GRADIENT_START)),
    (bursar.GaussianPrior, _simple("prior", _values.prior, _PRIOR)),
    (Scale, _simple("scale", _values.scale, _SCALE)),
    (PaidSketch, _simple("entry", int, "Entry of an earlier sketch of yours of this dataset. Costs nothing.")),
    (
        Sequence[PaidTables],
        _simple(
            "entry",
            int,
            "Entry of an earlier model of this dataset (repeat it). All its tables are used beside the new ones, and "
            "cliques that are within one of them are not paid for again.",
            many=True,
        ),
    ),
    (Sequence[bursar.Sketch], _simple("file", _values.foreign, _FOREIGN, many=True)),
]

_TYPES: list[tuple[object, click.ParamType[Any], bool]] = [
    (bool, click.BOOL, False),
    (int, click.INT, False),
    (float, click.FLOAT, False),
    (str, click.STRING, False),
    (Components, _values.Value("K|LEAST-MOST", _values.components), False),
    (Sequence[str], _values.Value("a,b,c", _values.names), False),
    (npt.ArrayLike, _values.Value("x,y,...", _values.numbers), False),
]
