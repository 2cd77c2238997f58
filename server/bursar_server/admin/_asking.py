"""Questions whose answers are a manifest, at a prompt or one a line on standard input; no row is read for them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import click
import pyarrow as pa

from bursar_server.admin._acting import at_terminal
from bursar_server.tables import (
    TEMPLATES,
    Csv,
    CsvSource,
    Manifest,
    ManifestError,
    Names,
    NoTextError,
    Place,
    TableImportError,
    Template,
    date_fields,
    template_of,
)

_SKIP = "skip"

_WRITTEN = {
    "1234.5": (".", ""),
    "1,234.5": (".", ","),
    "1234,5": (",", ""),
    "1.234,5": (",", "."),
    "1 234,5": (",", " "),
}
"""Ways to write a number in text: character before the decimals, character between thousands."""

_DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}

_LONGEST_HEADER = 2**24
"""Bytes that a header may have, as any record of a CSV file."""


def ask_manifest(name: str, columns: Names, csv: Place | None) -> dict[str, Any]:
    """Ask for a manifest; returns its fields, checked.

    Columns are those of a source that has types; of a CSV file the header is read instead.

    Raises:
        TableImportError: the file has no header.
    """
    form = None if csv is None else _csv(csv)
    if csv is not None:
        columns = CsvSource(csv, Csv.model_validate(form)).columns()
    _say(
        f"{len(columns)} columns: {', '.join(key for key, _ in columns)}. Answer from what you know of the table, and "
        "not from its rows: a bound that is computed from rows is not public. Enter takes what stands in brackets."
    )
    fields: dict[str, Any] = {"name": _name(name)}
    fields["description"] = _text("What the table is, for analysts")
    secret = agree("Is it a secret that somebody is in the table at all?")
    fields["adjacency"] = "add_remove_one" if secret else "replace_one"
    unit = _unit([key for key, _ in columns])
    if not secret and unit:
        fields["public_rows"] = prompt("Number of rows to pad the table to, at least", kind=click.INT)
    elif rows := prompt("Number of rows, roughly, from a public source; 0: unknown", 0, click.INT):
        fields["public_rows"] = rows
    if unit:
        fields["unit"] = unit
    decimal = thousands = ""
    if form is not None:
        fields["csv"] = form
        decimal, thousands = _WRITTEN[_choice("How a number is written", tuple(_WRITTEN), "1234.5")]
    _say(
        f"What is in each column: {', '.join(TEMPLATES)}; or {_SKIP}, to leave it out, as names and addresses must be."
    )
    fields["columns"] = []
    for key, kind in columns:
        if key != unit.get("column") and (column := _column(key, kind, decimal, thousands)) is not None:
            fields["columns"].append(column)
    Manifest.from_public(fields)
    return fields


def _column(name: str, kind: pa.DataType | None, decimal: str, thousands: str) -> dict[str, Any] | None:
    """Ask for one column until the answers are a column; None to leave it out."""
    while True:
        # A list or a record can be no column as it is.
        proposed = _SKIP if kind is not None and pa.types.is_nested(kind) else template_of(name, kind)
        word = _choice(name, (*TEMPLATES, _SKIP), proposed, show=False)
        if word == _SKIP:
            return None
        template = TEMPLATES[word]
        column = {"name": name, "kind": "numeric" if template.kind == "date" else template.kind, **template.fields}
        if template.kind == "date":
            column |= _dates(name, is_text=kind is None or not pa.types.is_temporal(kind))
        elif template.kind == "numeric":
            column |= _numbers(name, template)
            column |= {"decimal": decimal, "thousands": thousands} if decimal else {}
        elif template.kind == "boolean":
            column |= {"true": _list(f"{name}: words for true", "true, yes, 1")}
            column |= {"false": _list(f"{name}: words for false", "false, no, 0")}
        else:
            column |= _categories(name, template)
        if column["kind"] == "numeric":
            column["nullable"] = agree(f"{name}: may the value be missing?")
        if nulls := _list(f"{name}: cells that mean missing, beside empty ones, such as n/a, 999"):
            column["null_values"] = nulls
        try:
            Manifest.from_public({"name": "table", "adjacency": "replace_one", "columns": [column]})
        except ManifestError as error:
            _say(str(error).replace("columns[0]", name))
        else:
            return column


def _numbers(name: str, template: Template) -> dict[str, Any]:
    _say(f"{name}: bounds, {template.hint}. Values outside are moved to the nearer one.")
    return {
        key: prompt(f"{name}: {said}", default, click.FLOAT)
        for key, said, default in (("lower", "least", template.lower), ("upper", "greatest", template.upper))
    }


def _dates(name: str, *, is_text: bool) -> dict[str, Any]:
    form = _text(f"{name}: how a date is written (%d.%m.%Y: 31.12.2024)", "%Y-%m-%d") if is_text else "%Y-%m-%d"
    day = click.DateTime(["%Y-%m-%d"])
    first: datetime.datetime = prompt(f"{name}: first day, as 2024-12-31", kind=day)
    last: datetime.datetime = prompt(f"{name}: last day", kind=day)
    unit = _choice(f"{name}: counted in", ("days", "months", "years"), "days")
    return date_fields(first.date(), last.date(), unit, form)


def _categories(name: str, template: Template) -> dict[str, Any]:
    if "first" in template.fields:
        _say(f"{name}: its category is the first letter of a code, A to Z.")
        return {}
    if template.fields:
        few = _list(f"{name}: codes that are categories of their own; all others are the rest (Enter: all are)")
        return {"categories": [*few, "rest"], "other": "rest"} if few else {}
    said = _list(
        f"{name}: its categories, {template.hint}; with other spellings, if any: female=f=w, male=m", needed=True
    )
    spelt = [[word.strip() for word in group.split("=")] for group in said]
    categories = [names[0] for names in spelt]
    aliases = {alias: names[0] for names in spelt for alias in names[1:]}
    other = _text(f"{name}: category of any other value (Enter: such a row is left out)")
    categories += [other] if other and other not in categories else []
    # Letters and blanks are ignored unless they tell categories apart.
    texts = [*categories, *aliases]
    exact = len({text.casefold() for text in texts}) < len(set(texts))
    column: dict[str, Any] = {"categories": categories, "case": "exact" if exact else "ignore", "trim": True}
    return column | ({"aliases": aliases} if aliases else {}) | ({"other": other} if other else {})


def _unit(names: list[str]) -> dict[str, Any]:
    column = _choice("Column that says whose row it is (none: each row is another person)", (*names, "none"), "none")
    if column == "none":
        return {}
    rows = prompt("Most rows of one person that are kept; more of them need more noise", 1, click.INT)
    return {"column": column, "max_rows": rows}


def csv_form(path: Place, **said: str) -> Csv:
    """Return the dialect that the header of a CSV file suggests, and no other line; `said` is known already."""
    fields: dict[str, str] = {"encoding": _encoding(path), **said}
    found = {sign: len(_header(path, {"delimiter": sign, **fields})) for sign in _DELIMITERS.values()}
    # One name is no sign of a delimiter: the first, a comma, stands for none.
    return Csv.model_validate({"delimiter": max(found, key=lambda sign: max(1, found[sign])), **fields})


def _encoding(path: Place) -> str:
    try:
        with path.open("rb") as file:
            file.readline(_LONGEST_HEADER).decode("utf-8-sig")
    except UnicodeDecodeError:
        return "cp1252"  # that of Windows, which has the letters of latin-1
    except OSError:
        pass  # told by who reads the columns
    return "utf-8"


def _csv(path: Place) -> dict[str, str]:
    """Ask how a CSV file is written: the fields of [csv]."""
    encodings = ("utf-8", "latin-1", "cp1252", "iso-8859-15")
    form = {"encoding": _choice("Encoding of the text", encodings, csv_form(path).encoding)}
    proposed = csv_form(path, **form).delimiter
    words = {sign: word for word, sign in _DELIMITERS.items()}
    word = _choice("What is between two cells", tuple(_DELIMITERS), words[proposed])
    return {"delimiter": _DELIMITERS[word], **form}


def _header(path: Place, form: Mapping[str, str]) -> Names:
    try:
        return CsvSource(path, Csv.model_validate(form)).columns()
    except NoTextError:
        raise  # no answer about delimiter or encoding would make it CSV
    except TableImportError:
        return ()


def _name(proposed: str) -> str:
    plain = re.sub(r"[^a-z0-9_-]+", "-", proposed.lower()).strip("-_")[:63]
    return _text("Name of the table, small letters", plain or "table")


def prompt(question: str, default: Any = None, kind: click.ParamType[Any] = click.STRING, *, choices: str = "") -> Any:
    """Ask until the answer is of a kind. Raises ClickException without a terminal: answers in a file stay in step."""

    def converted(text: Any) -> Any:
        try:
            return kind.convert(text, None, None)
        except click.UsageError as error:
            if at_terminal():
                raise
            raise click.ClickException(f"{question}: {error.message}") from None

    shown = f"{question} ({choices})" if choices else question
    visible = default is not None and default != ""
    answer = click.prompt(shown, default=default, show_default=visible, value_proc=converted, err=True)
    if not at_terminal():
        click.echo(answer, err=True)
    return answer


def agree(question: str) -> bool:
    """Ask for yes or no; yes is proposed."""
    return _choice(question, ("yes", "no"), "yes") == "yes"


def _choice(question: str, words: tuple[str, ...], default: str | None, *, show: bool = True) -> str:
    return str(prompt(question, default, click.Choice(words), choices=", ".join(words) if show else ""))


def _text(question: str, default: str = "") -> str:
    return str(prompt(question, default)).strip()


def _list(question: str, default: str = "", *, needed: bool = False) -> list[str]:
    said = str(prompt(question)) if needed else _text(question, default)
    return [word.strip() for word in said.split(",") if word.strip()]


def _say(text: str) -> None:
    click.echo(text, err=True)
