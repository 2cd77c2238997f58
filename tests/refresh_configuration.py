"""The tables of `docs/configuration.md`: every setting with its variable, its default, its range and its meaning.

Meanings are the attributes' lines in the docstrings of `bursar_server.config`. A test compares the page with the code.
After a change of a setting:

    python tests/refresh_configuration.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bursar_server.config import PREFIX, Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
MARK = "<!-- From here on written by tests/refresh_configuration.py -->\n"


def page(text: str) -> str:
    """A page with its tables as the code has them."""
    return text.partition(MARK)[0] + MARK + "\n" + "\n".join(_lines())


def meanings(table: type[BaseModel]) -> dict[str, str]:
    """Return what a table's docstring says of each of its settings."""
    text = inspect.cleandoc(table.__doc__ or "").partition("Attributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return {name: " ".join(words.split()) for name, words in found}


def _lines() -> Iterator[str]:
    kinds = {name: field.annotation for name, field in Config.model_fields.items()}
    nested = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}
    yield "## At the top\n"
    yield from _table(Config, (), skip=set(nested))
    for name, kind in nested.items():
        yield f"\n## [{name}]\n"
        yield inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:")[0].replace("\n", " ") + "\n"
        yield from _table(kind, (name,), skip=set())
    yield ""


def _table(table: type[BaseModel], path: tuple[str, ...], skip: set[str]) -> Iterator[str]:
    said, schema = meanings(table), table.model_json_schema()["properties"]
    yield "| setting | default | allowed | meaning |\n|---|---|---|---|"
    for name, field in table.model_fields.items():
        if name not in skip:
            default = "half the processors" if field.default_factory else _value(field.default)
            variable = "`" + PREFIX + "__".join((*path, name)).upper() + "`"
            yield f"| `{name}`<br>{variable} | {default} | {_range(schema[name])} | {said[name]} |"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _range(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f'`"{one}"`' for one in schema["enum"])
    if "items" in schema:
        inner = schema["items"]
        return "a list" + (f" of {', '.join(inner['enum'])}" if "enum" in inner else "")
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is None or high is None:
        return "`true`, `false`" if schema["type"] == "boolean" else "text"
    above = "above " if "exclusiveMinimum" in schema else ""
    whole = "" if schema["type"] == "number" else ", whole"
    most = f"{high:g}" if schema["type"] == "number" and high > 1e9 else f"{high:,g}" if high < 1e6 else f"{high:,}"
    return f"{above}{low:g} to {most}{whole}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
