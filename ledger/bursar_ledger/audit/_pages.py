"""Templates and style sheets of all pages. Every value is made visible and escaped where a template puts it in."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ._language import by_number, figure, filled_in, language, texts
from ._text import visible

_FOLDER = Path(str(importlib.resources.files(__package__)))


def say_html(text: str, /, **fields: object) -> Markup:
    """Return a text as HTML; its fields are made visible and escaped."""
    shown = {name: value if isinstance(value, Markup) else visible(filled_in(value)) for name, value in fields.items()}
    return Markup(texts()[text][language()]).format(**shown)  # noqa: S704  our own table


def say_count_html(count: int, one: str, many: str, /, **fields: object) -> Markup:
    """Return the text for one thing or the one for several as HTML."""
    return say_html(by_number(count, one, many), count=count, **fields)


TEXTS = {"say": say_html, "say_count": say_count_html, "figure": figure, "language": language}
"""Functions that put texts of the language in force into templates."""


def environment(folder: Path) -> Environment:
    """Return the templates of a folder; no text gets through unescaped at a place that was forgotten."""
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(TEXTS)
    return made


def style() -> str:
    """Return the style sheet of a report's parts."""
    return (_FOLDER / "report.css").read_text("utf-8")


def site_style() -> str:
    """Return the style sheet of a site around them: navigation, forms, text."""
    return (_FOLDER / "pages" / "site.css").read_text("utf-8")


def _shown(value: object) -> object:
    """Return what a template puts in: HTML as it is, and of everything else the visible text, which is escaped then."""
    return value if isinstance(value, Markup) else visible(value)
