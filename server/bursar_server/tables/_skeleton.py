"""Skeleton of a manifest from the names and types of a source's columns; no row plays a part."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pyarrow as pa

Names = Sequence[tuple[str, pa.DataType | None]]
"""Columns of a source: names, with their types where the source declares types."""

_HINTS = (
    (r"age", "0 to 110, in years"),
    (r"year", "a range of years that you would have named before the data were collected"),
    (r"date|born|admi|discharg", "a range of dates, as numbers of steps since `since`"),
    (r"share|ratio|percent|rate", "0 to 1, or 0 to 100"),
    (r"income|price|cost|salary|amount|revenue", "from what the currency and the population make plausible"),
    (r"count|number|visits|n_.*", "from 0 to what one unit can have"),
    (r"sex|gender", "the codes of the form, and one for not stated"),
    (r"icd|diagnos", "chapters of ICD-10, not single codes: A-B, C-D48, ..."),
    (r"country|nation", 'codes of ISO 3166, or regions of them with other = "rest"'),
)
"""Hints by what a name says; they are public knowledge, and not computed from rows."""

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
"""


def skeleton(columns: Names) -> str:
    """Return a manifest in TOML in which every bound and category is a TODO, which `Manifest.load` refuses."""
    return "\n".join([_HEAD, *(_column(name, kind) for name, kind in columns)])


def _column(name: str, kind: pa.DataType | None) -> str:
    hint = next((hint for said, hint in _HINTS if re.search(rf"(?:^|[^a-z])(?:{said})", name.lower())), "")
    lines = ["[[columns]]", f"name = {json.dumps(name, ensure_ascii=False)}", 'description = ""']
    if kind is None:
        lines += ['kind = "TODO"            # "numeric" or "categorical"; remove the lines of the other kind']
    numeric, categorical = kind is None or not _is_named(kind), kind is None or _is_named(kind)
    if numeric:
        lines += [] if kind is None else [f'kind = "numeric"         # {kind} in the source']
        if kind is not None and pa.types.is_temporal(kind):
            lines += ['date = { unit = "days", since = 2000-01-01 }   # TODO: days, months or years, since when']
        lines += [f'lower = "TODO"           # {hint}'.rstrip(" #"), 'upper = "TODO"']
    if categorical:
        lines += [] if kind is None else [f'kind = "categorical"     # {kind} in the source']
        if kind is not None and pa.types.is_boolean(kind):
            lines += ['categories = ["false", "true"]']
        else:
            lines += [f"categories = []          # TODO {hint}".rstrip()]
    return "\n".join(lines) + "\n"


def _is_named(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not (pa.types.is_temporal(value) or pa.types.is_decimal(value) or _is_number(value))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
