"""Skeleton of a manifest from the names and types of a source's columns, and its text; no row plays a part."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from bursar_server.tables._manifest import Csv

Names = Sequence[tuple[str, pa.DataType | None]]
"""Columns of a source: names, with their types where the source declares types."""

_ISO_3166 = """
AD AE AF AG AI AL AM AO AQ AR AS AT AU AW AX AZ BA BB BD BE BF BG BH BI BJ BL BM BN BO BQ BR BS BT BV BW BY BZ CA CC CD
CF CG CH CI CK CL CM CN CO CR CU CV CW CX CY CZ DE DJ DK DM DO DZ EC EE EG EH ER ES ET FI FJ FK FM FO FR GA GB GD GE GF
GG GH GI GL GM GN GP GQ GR GS GT GU GW GY HK HM HN HR HT HU ID IE IL IM IN IO IQ IR IS IT JE JM JO JP KE KG KH KI KM KN
KP KR KW KY KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MF MG MH MK ML MM MN MO MP MQ MR MS MT MU MV MW MX MY MZ NA
NC NE NF NG NI NL NO NP NR NU NZ OM PA PE PF PG PH PK PL PM PN PR PS PT PW PY QA RE RO RS RU RW SA SB SC SD SE SG SH SI
SJ SK SL SM SN SO SR SS ST SV SX SY SZ TC TD TF TG TH TJ TK TL TM TN TO TR TT TV TW TZ UA UG UM US UY UZ VA VC VE VG VI
VN VU WF WS YE YT ZA ZM ZW
"""
"""Codes of countries."""

_ICD_10: Mapping[str, Any] = {
    "description": "chapter of ICD-10 by its first letter: A also has B, S has T, V has W, X and Y",
    "categories": [*"ACDEFGHIJKLMNOPQRSUVZ"],
    "aliases": {"B": "A", "T": "S", "W": "V", "X": "V", "Y": "V"},
    "case": "ignore",
    "trim": True,
    "first": 1,
}


@dataclass(frozen=True)
class Template:
    """Meaning of a column, and public knowledge of such columns; nothing is computed from data.

    Attributes:
        kind: what its cells are.
        hint: what its bounds or categories should be.
        named: regular expression of what its name begins with; "" if names do not tell.
        lower: lower bound that is proposed; None: there is none that suits every table.
        upper: upper bound, likewise.
        fields: fields of the manifest, which are not asked for.
    """

    kind: Literal["numeric", "date", "boolean", "categorical"]
    hint: str
    named: str = ""
    lower: float | None = None
    upper: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "age": Template("numeric", "0 to 110, in years", "age", 0, 110),
        "date": Template(
            "date", "a range of dates, as numbers of steps since `since`", "date|born|birth|admi|discharg"
        ),
        "year": Template(
            "numeric", "a range of years that you would have named before the data were collected", "year"
        ),
        "share": Template("numeric", "0 to 1, or 0 to 100", "share|ratio|percent|rate", 0, 1),
        "money": Template(
            "numeric",
            "from what the currency and the population make plausible",
            "income|price|cost|salary|amount|revenue",
            0,
        ),
        "country": Template(
            "categorical",
            'codes of ISO 3166, or regions of them with other = "rest"',
            "country|nation",
            fields={"categories": _ISO_3166.split(), "case": "ignore", "trim": True},
        ),
        "count": Template("numeric", "from 0 to what one unit can have", "count|number|visits|n_.*", 0),
        "number": Template("numeric", "from what the column means"),
        "boolean": Template("boolean", "how true and false are written", "is_|has_|smok"),
        "icd10": Template("categorical", "letters of ICD-10, not single codes", "icd|diagnos", fields=_ICD_10),
        "categories": Template("categorical", "the codes of the form, and one for not stated", "sex|gender"),
    }
)
"""Templates by the name that the owner types."""

_HEAD = """\
# Skeleton of a manifest, from names and types of columns alone. Replace every TODO by what you know without looking at
# the rows (docs/choosing-bounds.md), remove what identifies people, then: bursar-admin manifest check THIS_FILE
name = "TODO"            # small letters, digits, - and _
description = ""
adjacency = "TODO"       # "add_remove_one": it is a secret that somebody is in the table; "replace_one": it is not
# public_rows = TODO     # roughly, from a public source; for previews

# [unit]                 # where a person has several rows
# column = "TODO"        # whose row it is; not one of the columns below
# max_rows = TODO        # of one person that are kept

# Cells that are written in other ways: null_values, decimal, thousands, aliases, case, trim, other, first. What models
# need: nullable, bins, transform. docs/reference/manifest.md has an example of each.
"""


def skeleton(columns: Names, form: Csv | None = None) -> str:
    """Return a manifest in TOML in which every bound and category is a TODO, which `Manifest.load` refuses."""
    dialect = [] if form is None or form == Csv() else [_dialect(form)]
    return "\n".join([_HEAD, *dialect, *(_column(name, kind) for name, kind in columns)])


def template_of(name: str, kind: pa.DataType | None) -> str | None:
    """Return the template that a column's name and type suggest; None if they suggest none."""
    named = (key for key, template in TEMPLATES.items() if template.named)
    found = next((key for key in named if re.search(rf"(?:^|[^a-z])(?:{TEMPLATES[key].named})", name.lower())), None)
    if kind is None:
        return found
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_temporal(kind):
        return "date"
    wanted, other = ("categorical", "categories") if _is_named(kind) else ("numeric", "number")
    return found if found and TEMPLATES[found].kind == wanted else other


def date_fields(first: datetime.date, last: datetime.date, unit: str, form: str) -> dict[str, Any]:
    """Return the fields of a column of dates from `first` to `last`, counted from the first."""
    years = last.year - first.year
    upper = {"days": (last - first).days, "months": 12 * years + last.month - first.month, "years": years}[unit]
    return {"lower": 0, "upper": upper, "date": {"unit": unit, "since": first, "format": form}}


def written(manifest: Mapping[str, Any]) -> str:
    """Return a manifest's fields in TOML."""
    tables = {key: value for key, value in manifest.items() if isinstance(value, Mapping)}
    top = {key: value for key, value in manifest.items() if key not in tables and key != "columns"}
    sections = [("", top), *((f"[{key}]", table) for key, table in tables.items())]
    sections += [("[[columns]]", column) for column in manifest["columns"]]
    return "\n".join("\n".join(_section(head, fields)) + "\n" for head, fields in sections)


def _section(head: str, fields: Mapping[str, Any]) -> Iterator[str]:
    if head:
        yield head
    for key, value in fields.items():
        yield f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_value(str(key))} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # JSON of text, numbers and truth values is TOML, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _dialect(form: Csv) -> str:
    return (
        "[csv]                    # as the header suggests; see that it is so of all lines\n"
        f"delimiter = {_value(form.delimiter)}\nencoding = {_value(form.encoding)}\n"
    )


def _column(name: str, kind: pa.DataType | None) -> str:
    lines = _named_only(name) if kind is None else _typed(name, kind)
    return "\n".join(["[[columns]]", f"name = {_value(name)}", 'description = ""', *lines]) + "\n"


def _named_only(name: str) -> list[str]:
    """Return the lines of a column without a type: those of the kind that its name suggests, or of each kind."""
    key = template_of(name, None)
    if key is None:
        head = 'kind = "TODO"            # "numeric", "categorical" or "boolean"; remove the lines of other kinds'
        return [head, *_bounds(""), *_categories("")]
    kind, hint = TEMPLATES[key].kind, TEMPLATES[key].hint
    head = f'kind = "TODO"            # "{"numeric" if kind == "date" else kind}", as its name suggests'
    if kind == "date":
        date = (
            'date = { unit = "days", since = 2000-01-01, format = "TODO" }   # "days", "months" or "years"; "%d.%m.%Y"'
        )
        return [head, date, *_bounds(hint)]
    if kind == "boolean":
        return [head, f"true = []                # TODO {hint}, beside true and false themselves", "false = []"]
    return [head, *(_bounds(hint) if kind == "numeric" else _categories(hint))]


def _typed(name: str, kind: pa.DataType) -> list[str]:
    key = template_of(name, None)
    hint = TEMPLATES[key].hint if key else ""
    if pa.types.is_nested(kind):
        return [f'kind = "TODO"            # {kind} in the source, which no column can be: remove it, or use --sql']
    if pa.types.is_boolean(kind):
        return ['kind = "boolean"         # bool in the source']
    if _is_named(kind):
        return [f'kind = "categorical"     # {kind} in the source', *_categories(hint)]
    codes = '; "categorical", with categories = [0, 1], if the numbers are codes' if pa.types.is_integer(kind) else ""
    lines = [f'kind = "numeric"         # {kind} in the source{codes}']
    if pa.types.is_temporal(kind):
        lines += ['date = { unit = "days", since = 2000-01-01 }   # TODO: days, months or years, since when']
    return [*lines, *_bounds(hint)]


def _bounds(hint: str) -> list[str]:
    return [f'lower = "TODO"           # {hint}'.rstrip(" #"), 'upper = "TODO"']


def _categories(hint: str) -> list[str]:
    return [f"categories = []          # TODO {hint}".rstrip()]


def _is_named(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not (pa.types.is_temporal(value) or pa.types.is_decimal(value) or _is_number(value))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
