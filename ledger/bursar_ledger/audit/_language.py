"""Language of pages and reports: the table of their texts (`texts.toml`), numbers and dates, and findings in it.

One language is in force for the whole process, chosen when a command starts. What commands print is English. Checks
write findings in English, which programs read; their form says which text of the table they are. They may be a forger's
and of any length, so a form is found by a few searches and not by a regular expression.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import string
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from fractions import Fraction

from bursar_amounts import Part, epsilon_text, percent_text

from ._text import number

LANGUAGES = ("en", "de", "fr")
_SIGNS = {
    "en": str.maketrans({}),
    "de": str.maketrans({".": ",", ",": ".", "%": " %"}),
    "fr": str.maketrans({".": ",", ",": " ", "%": " %"}),
}
"""Signs of numbers that are not the English ones. Spaces are plain ones: pages show any other as an escape."""
_in_force = "en"


@contextlib.contextmanager
def speaking(language: str) -> Iterator[None]:
    """Put a language in force for the block, in all threads."""
    global _in_force
    before, _in_force = _in_force, language
    try:
        yield
    finally:
        _in_force = before


def language() -> str:
    """Return the code of the language in force, such as "en"."""
    return _in_force


def say(text: str, /, **fields: object) -> str:
    """Return a text in the language in force, with its fields filled in; whole numbers get the language's signs."""
    return texts()[text][_in_force].format(**{name: filled_in(value) for name, value in fields.items()})


def say_count(count: int, one: str, many: str, /, **fields: object) -> str:
    """Return the text for one thing or the one for several, whose field `count` is the number."""
    return say(by_number(count, one, many), count=count, **fields)


def say_word(word: str) -> str:
    """Return a word of the ledger's in the language in force; as it is if the table lacks it."""
    return say(word) if word in texts() else word


def figure(text: str) -> str:
    """Return an English number with the signs of the language in force."""
    return text.translate(_SIGNS[_in_force])


def say_number(value: float | None, digits: int = 6) -> str:
    """Return a number for people."""
    return figure(number(value, digits))


def say_percent(share: float | Fraction | None, *, is_left: bool = False) -> str:
    """Return a share in percent, rounded as `percent_text` does."""
    return figure(percent_text(share, is_left=is_left))


def say_epsilon(epsilon: float) -> str:
    """Return an epsilon, rounded as `epsilon_text` does."""
    text = epsilon_text(epsilon)
    return say("infinite") if text == "infinite" else figure(text)


def say_amount(epsilon: float, share: float | Fraction, *, is_left: bool = False) -> str:
    """Return an amount of budget as epsilon and percent."""
    percent = say_percent(share, is_left=is_left)
    return say("epsilon {epsilon} ({percent})", epsilon=say_epsilon(epsilon), percent=percent)


def say_part(part: Part) -> str:
    """Return an amount of budget as epsilon and percent; in percent alone where the budget's delta is unknown."""
    if not part.delta:
        return figure(part.percent)
    return say("epsilon {epsilon} ({percent})", epsilon=say_epsilon(part.epsilon), percent=figure(part.percent))


def say_day(moment: datetime) -> str:
    """Return a date, such as 12 March 2026."""
    day = "1er" if moment.day == 1 and _in_force == "fr" else str(moment.day)
    return say("{day} {month} {year}", day=day, month=say(_MONTHS[moment.month - 1]), year=str(moment.year))


def texts() -> Mapping[str, Mapping[str, str]]:
    """Return the table: for each English text its translations, by language."""
    return _table()[0]


def findings() -> tuple[str, ...]:
    """Return the English texts of the table that are findings."""
    return _table()[1]


@functools.cache
def _table() -> tuple[Mapping[str, Mapping[str, str]], tuple[str, ...]]:
    content = importlib.resources.files(__package__).joinpath("texts.toml").read_text("utf-8")
    read = tomllib.loads(content)
    found = tuple(one["en"] for one in read["finding"])
    return {one["en"]: one for one in (*read["text"], *read["finding"])}, found


def by_number(count: int, one: str, many: str) -> str:
    """Return the text for one thing or the one for several, as the language in force has it."""
    return one if count == 1 or (count == 0 and _in_force == "fr") else many


def filled_in(value: object) -> object:
    """Return what is put into a field: a whole number with the signs of the language in force, all else as it is."""
    return figure(f"{value:,}") if type(value) is int else value


_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


_SENTENCES = frozenset({"finding", "known", "cause", "advice", "named", "agreed", "label", "time", "form"})
"""Fields that hold a sentence of the table, or a part of one; what is in all others is quoted."""
_NUMBERS = frozenset({"number", "index"})
"""Fields that say which entry or note; names could look like the rest of a sentence."""
_MOST_NESTED = 6
"""Sentences within one another: place, note, entry and finding are four."""


def say_finding(text: str) -> str:
    """Return a finding in the language in force; as it is if the table lacks its form."""
    return text if language() == "en" else _said(text, _MOST_NESTED)


def _form_of(text: str) -> tuple[str, Mapping[str, str]] | None:
    """Return the English text of the table that a finding has the form of, with its fields; None if there is none."""
    for english, parts in _forms():
        if (fields := _fields(parts, text)) is not None:
            return english, fields
    return None


def _said(text: str, nested: int) -> str:
    form = _form_of(text) if nested else None
    if form is None:
        return text
    english, fields = form
    return say(
        english,
        **{name: _said(value, nested - 1) if name in _SENTENCES else value for name, value in fields.items()},
    )


@functools.cache
def _forms() -> list[tuple[str, list[tuple[str, str | None]]]]:
    """Return each text with its parts, a literal and the field after it, in the order in which they are tried.

    What a finding is about comes first ("entry 3: ..."), then what is said, texts with the most letters first.
    """
    made = [(text, [(part, field) for part, field, _, _ in string.Formatter().parse(text)]) for text in findings()]
    about = {text for text, parts in made if parts[0][0] and parts[-1] == (": ", "finding")}
    about |= {text for text, parts in made if len(parts) == 1 and parts[0][1] == "finding"}
    return sorted(made, key=lambda form: (form[0] not in about, -sum(len(literal) for literal, _ in form[1])))


def _fields(parts: list[tuple[str, str | None]], text: str) -> dict[str, str] | None:
    """Return what stands in a text in place of the fields, each as short as it can be; None if it has another form."""
    found: dict[str, str] = {}
    waiting: str | None = None
    position = 0
    for index, (literal, field) in enumerate(parts):
        is_last = index == len(parts) - 1 and field is None
        start = len(text) - len(literal) if is_last else text.find(literal, position)
        if start < position or not text.startswith(literal, start) or (waiting is None and start != position):
            return None
        if waiting is not None:
            found[waiting] = text[position:start]
        waiting, position = field, start + len(literal)
    if waiting is not None:
        found[waiting] = text[position:]
    elif position < len(text):
        return None
    fits = all(value.isdigit() if name in _NUMBERS else value or name == "form" for name, value in found.items())
    return found if fits else None
