"""Templates and style sheets of all pages. Every value is made visible and escaped where a template puts it in."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ._text import visible

_FOLDER = Path(str(importlib.resources.files(__package__)))


def environment(folder: Path) -> Environment:
    """Return the templates of a folder; no text gets through unescaped at a place that was forgotten."""
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def style() -> str:
    """Return the style sheet of a report's parts."""
    return (_FOLDER / "report.css").read_text("utf-8")


def site_style() -> str:
    """Return the style sheet of a site around them: navigation, forms, text."""
    return (_FOLDER / "pages" / "site.css").read_text("utf-8")


def _shown(value: object) -> object:
    """Return what a template puts in: HTML as it is, and of everything else the visible text, which is escaped then."""
    return value if isinstance(value, Markup) else visible(value)
