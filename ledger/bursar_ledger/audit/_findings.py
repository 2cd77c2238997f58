"""Findings in the language in force. Checks write them in English, which programs read; their form says which.

Texts may be a forger's and of any length, so a form is found by a few searches and not by a regular expression.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping

from ._language import findings, language, say

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
