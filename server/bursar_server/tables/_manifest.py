"""Manifest of a table: everything that the data owner declares public, in TOML; nothing is computed from data."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from bursar_ledger import Adjacency
from bursar_models.transforms import Transform
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable
from bursar_server.tables._errors import ManifestError
from bursar_server.vault import MAX_ROWS, MAX_UNIT_ROWS, Log1p

MAX_BINS = 1000
"""Maximum number of bins of a numeric column: a model has a state for each. Chosen, not tuned."""

_LARGEST = 1e100
"""Maximum absolute value of a bound: its square, and that of a width, stay far from overflow."""

_NARROWEST = 1e-100
"""Minimum width of bounds: dividing by it, or by its square, stays far from overflow."""

DatasetName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
Description = Annotated[str, StringConstraints(max_length=2000)]
# Far from overflow, so that fits may square a column's bounds or width.
Bound = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]
# A discriminated union, so that a mistake gets one line and not one for each kind.
Bins = Annotated[
    Annotated[int, Field(ge=1, le=MAX_BINS), Tag("number")]
    | Annotated[tuple[Bound, ...], Field(strict=False, min_length=2, max_length=MAX_BINS + 1), Tag("edges")],
    Discriminator(lambda bins: "edges" if isinstance(bins, list | tuple) else "number"),
]


_Location = tuple[int | str, ...]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


Text = Annotated[str, BeforeValidator(_as_text), WithJsonSchema({"type": ["string", "integer"]})]
"""Content of a cell; a whole number means its digits."""

Texts = Annotated[tuple[Text, ...], Field(strict=False)]


_PARTS = {"%Y", "%m", "%d", "%H", "%M", "%S"}
"""Parts of a date that are written in digits, whatever the machine's language."""


class Dates(_Model):
    """Cells of a numeric column that are dates, counted in whole steps since a public day.

    Attributes:
        unit: "days", "months" or "years": the step that is counted. Months and years are those of the calendar.
        since: the day whose days, month or year is 0.
        format: how a date is written as text: `%Y`, `%m`, `%d`, `%H`, `%M`, `%S` and what stands between them. Dates
            and times of a Parquet file or a query need none.
    """

    unit: Literal["days", "months", "years"]
    since: Annotated[datetime.date, Field(strict=False)]
    format: Annotated[str, StringConstraints(max_length=40)] = "%Y-%m-%d"

    @field_validator("format")
    @classmethod
    def _says_each_part_once(cls, text: str) -> str:
        parts = re.findall("%.?", text)
        if not ("%Y" in parts and set(parts) <= _PARTS and len(parts) == len(set(parts))):
            raise ValueError(f"expected %Y, and each of {', '.join(sorted(_PARTS - {'%Y'}))} at most once")
        return text


class Csv(_Model):
    """Dialect of a CSV file. Other sources need none of it.

    Attributes:
        delimiter: character between two cells.
        encoding: encoding of the text. What is no text in it is kept as escapes, so that different bytes stay
            different.
    """

    delimiter: Literal[",", ";", "\t"] = ","
    encoding: Literal["utf-8", "latin-1", "cp1252", "iso-8859-15"] = "utf-8"


class Numeric(_Model):
    """Column of numbers. Values outside the bounds are moved to the nearer bound at import.

    Attributes:
        name: name of the source's column.
        description: description for analysts.
        kind: "numeric".
        lower: least value, in the column's own unit; |lower| <= 1e100.
        upper: greatest value, at least 1e-100 above `lower`.
        bins: states of the values, for models of categories: a number of bins of equal width from `lower` to `upper`,
            or their edges in the column's own unit, ascending, the first `lower` and the last `upper`. None: such
            models cannot use the column.
        nullable: True if a row may have no value here and keeps its other values. If False, such a row becomes the null
            row at import.
        decimal: character before the decimals of a number in a text.
        thousands: character between groups of three digits; "" if there is none.
        null_values: cells that mean that there is no value, such as "n/a" or 999.
        date: what is counted, if the cells are dates; the bounds are then numbers of these steps.
        transform: "log1p" to have mixtures and clusters fit log(1 + x) in place of the column unless a request says
            otherwise: for money, counts and durations with `lower` at least 0. Bounds and bins stay in the column's own
            unit, and so do answers.
    """

    kind: Literal["numeric"]
    name: ColumnName
    description: Description = ""
    lower: Bound
    upper: Bound
    bins: Bins | None = None
    nullable: bool = False
    decimal: Literal[".", ","] = "."
    thousands: Literal["", ",", ".", " ", "'"] = ""
    null_values: Texts = ()
    date: Dates | None = None
    transform: Transform = "none"

    @model_validator(mode="after")
    def _has_logarithms(self) -> Self:
        if self.transform == "log1p":
            try:
                Log1p(0, self.lower, self.upper)
            except ValueError:
                text = f"of at least 0 that differ in their logarithms, got lower = {self.lower}, upper = {self.upper}"
                raise ValueError(f"transform: log1p needs bounds {text}") from None
        return self

    @model_validator(mode="after")
    def _is_written_clearly(self) -> Self:
        if self.decimal == self.thousands:
            raise ValueError(f"thousands must differ from decimal, got {self.decimal!r} for both")
        return self

    @model_validator(mode="after")
    def _has_width(self) -> Self:
        if not self.upper - self.lower >= _NARROWEST:
            raise ValueError(f"lower must be below upper, got lower = {self.lower}, upper = {self.upper}")
        return self

    @model_validator(mode="after")
    def _has_bins_within(self) -> Self:
        if isinstance(self.bins, tuple) and (self.bins[0], self.bins[-1]) != (self.lower, self.upper):
            raise ValueError(
                f"bins must begin with lower = {self.lower} and end with upper = {self.upper}, "
                f"got {self.bins[0]} and {self.bins[-1]}"
            )
        if not all(low < high for low, high in pairwise(self.edges)):
            raise ValueError(
                "bins must ascend, each edge above the one before"
                if isinstance(self.bins, tuple)
                else f"bins: {self.bins} of equal width are too narrow to be told apart, expected fewer"
            )
        return self

    @property
    def edges(self) -> tuple[float, ...]:
        """Edges of the bins, ascending from `lower` to `upper`, one more than bins; () without bins."""
        if self.bins is None or isinstance(self.bins, tuple):
            return self.bins or ()
        inner = (self.lower + (self.upper - self.lower) * i / self.bins for i in range(1, self.bins))
        return (self.lower, *inner, self.upper)


class Categorical(_Model):
    """Column of names from a declared list. A row with any other value becomes the null row at import.

    Attributes:
        name: name of the source's column.
        description: description for analysts.
        kind: "categorical".
        categories: values in the order of their codes 0, 1, ...; not empty, distinct. Whole numbers mean their digits.
        aliases: category of other spellings, by the spelling: `{"m" = "male", "" = "unknown"}`.
        case: "ignore" if capital and small letters mean the same.
        trim: True if blanks around a cell mean nothing.
        first: number of a cell's first characters that are compared, so that codes such as E11.9 fall into groups; None
            compares all of them.
        other: the category of cells that hold anything else. None: such a row becomes the null row. An empty cell is
            not anything else.
        null_values: cells that mean that there is no value.
    """

    kind: Literal["categorical"]
    name: ColumnName
    description: Description = ""
    categories: Annotated[tuple[Annotated[Text, StringConstraints(min_length=1)], ...], Field(strict=False)]
    aliases: dict[str, Text] = {}
    case: Literal["exact", "ignore"] = "exact"
    trim: bool = False
    first: Annotated[int, Field(ge=1, le=1000)] | None = None
    other: Text | None = None
    null_values: Texts = ()

    @field_validator("categories")
    @classmethod
    def _are_some(cls, categories: tuple[str, ...]) -> tuple[str, ...]:
        if not categories:
            raise ValueError("expected at least one category, got none")
        if repeated := _repeated(categories):
            raise ValueError(f"expected distinct categories, got {repeated} more than once")
        return categories

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        named = [name for name in (*self.aliases.values(), self.other) if name is not None]
        if unknown := sorted(set(named) - set(self.categories)):
            raise ValueError(f"aliases and other must name categories, got {', '.join(map(repr, unknown))}")
        spelt = [self.key(text) for text in (*self.categories, *self.aliases, *self.null_values)]
        if repeated := _repeated(spelt):
            raise ValueError(f"categories, aliases and null_values must differ, as cells are compared, in {repeated}")
        return self

    def key(self, text: str) -> str:
        """Return what cells are compared by."""
        text = text.strip() if self.trim else text
        text = text.casefold() if self.case == "ignore" else text
        return text[: self.first]


class Boolean(_Model):
    """Column of two answers; short for the categories "false" and "true" with `case = "ignore"` and `trim = true`.

    Attributes:
        name: name of the source's column.
        description: description for analysts.
        kind: "boolean".
        true: how true is written, such as `["yes", 1]`; "true" in any letters always is.
        false: how false is written; "false" in any letters always is.
        null_values: cells that mean that there is no value.
    """

    kind: Literal["boolean"]
    name: ColumnName
    description: Description = ""
    true: Texts = ()
    false: Texts = ()
    null_values: Texts = ()

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Self:
        spelt = [_plain(text) for text in ("true", "false", *self._others, *self.null_values)]
        if repeated := _repeated(spelt):
            raise ValueError(f"true, false and null_values must differ, as cells are compared, in {repeated}")
        return self

    @property
    def _others(self) -> tuple[str, ...]:
        """Spellings other than "true" and "false" themselves."""
        said = (*((text, "true") for text in self.true), *((text, "false") for text in self.false))
        return tuple(text for text, value in said if _plain(text) != value)

    def registered(self) -> Categorical:
        """Return the column as it is registered."""
        return Categorical(
            kind="categorical",
            name=self.name,
            description=self.description,
            categories=("false", "true"),
            aliases={text: "true" if text in self.true else "false" for text in self._others},
            case="ignore",
            trim=True,
            null_values=self.null_values,
        )


def _plain(text: str) -> str:
    return text.strip().casefold()


def _as_registered(column: Numeric | Categorical | Boolean) -> Numeric | Categorical:
    return column.registered() if isinstance(column, Boolean) else column


if TYPE_CHECKING:
    Column = Numeric | Categorical
else:
    Column = Annotated[
        Annotated[Numeric | Categorical | Boolean, Field(discriminator="kind")], AfterValidator(_as_registered)
    ]


class Unit(_Model):
    """Privacy unit, whose presence is protected.

    Attributes:
        column: column of the source; rows that agree in it belong to one unit. None: every row is a unit.
        max_rows: maximum number of rows of one unit that are kept.
    """

    column: ColumnName | None = None
    max_rows: Annotated[int, Field(ge=1, le=MAX_UNIT_ROWS)] = 1

    @model_validator(mode="after")
    def _cap_has_column(self) -> Self:
        if self.column is None and self.max_rows != 1:
            raise ValueError(f"max_rows must be 1 where a row is the unit, got {self.max_rows}; name the unit's column")
        return self


class Manifest(_Model):
    """Everything public about a table.

    Attributes:
        name: name of the dataset.
        description: description for analysts.
        adjacency: neighbouring relation: the change of the table by one privacy unit; without a default.
        public_rows: public number of rows. ADD_REMOVE_ONE: a number that the owner declares for previews and step
            sizes. REPLACE_ONE: the number of slots. If a row is the unit it may be left out; otherwise it must equal
            the number of rows. With a unit column it is required: the table is padded to it with null rows, and must
            not have more.
        unit: privacy unit.
        csv: how a CSV file is written.
        columns: columns, at least one, with distinct names.
    """

    name: DatasetName
    description: Description = ""
    adjacency: Annotated[Adjacency, Field(strict=False)]
    public_rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] | None = None
    unit: Unit = Unit()
    csv: Csv = Csv()
    columns: Annotated[tuple[Column, ...], Field(strict=False)]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [column.name for column in self.columns]
        if not names:
            raise ValueError("columns: expected at least one, got none")
        if repeated := _repeated(names):
            raise ValueError(f"columns: expected distinct names, got {repeated} more than once")
        if self.unit.column in names:
            raise ValueError(f"unit.column: {self.unit.column!r} identifies people, so it cannot be one of the columns")
        if self.adjacency is Adjacency.REPLACE_ONE and self.unit.column is not None and self.public_rows is None:
            raise ValueError(
                "public_rows: missing; expected a number of slots, because under replace_one with a unit column "
                "the number of rows would tell how many rows a unit has"
            )
        return self

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read a manifest in TOML. Raises ManifestError with one line for every problem, its column and its line."""
        try:
            text = path.read_text(encoding="utf-8")
            fields = tomllib.loads(text)
        except (OSError, UnicodeDecodeError):
            raise ManifestError(f"{path}: expected a readable text file in UTF-8") from None
        except (ValueError, RecursionError) as error:  # of syntax, too many digits, or too many brackets
            raise ManifestError(f"{path}: expected TOML, got an error in its syntax: {error}") from None
        return cls._checked(fields, lambda location: _place(text, fields, location))

    @classmethod
    def from_public(cls, fields: Mapping[str, Any]) -> Manifest:
        """Return the manifest from the result of `public`. Raises ManifestError with one line for every problem."""
        return cls._checked(fields, lambda _: "")

    @classmethod
    def _checked(cls, fields: Mapping[str, Any], place: Callable[[_Location], str]) -> Self:
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            found = error.errors(include_url=False)
            raise ManifestError(*(_problem(one) + place(one["loc"]) for one in found)) from None

    @classmethod
    def editor_schema(cls) -> dict[str, Any]:
        """Return the JSON Schema of a manifest, for editors."""
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **cls.model_json_schema()}

    def public(self) -> dict[str, Any]:
        """Return the manifest as JSON values, for the ledger."""
        return self.model_dump(mode="json")

    def with_slots(self, slots: int) -> Manifest:
        """Return the manifest of an imported table: under REPLACE_ONE the number of slots is public from now on."""
        if self.adjacency is Adjacency.REPLACE_ONE:
            return self.model_copy(update={"public_rows": slots})
        return self

    def table(self, slots: int) -> PublicTable:
        """Return the facts that plans may use, for a table of `slots` slots.

        Under ADD_REMOVE_ONE these are private and ignored.
        """
        return PublicTable(
            name=self.name,
            numeric=tuple(
                BoundedColumn(c.name, c.lower, c.upper, c.edges, c.nullable, c.transform)
                for c in self.columns
                if isinstance(c, Numeric)
            ),
            adjacency=self.adjacency,
            unit_cap=self.unit.max_rows,
            rows=slots if self.adjacency is Adjacency.REPLACE_ONE else self.public_rows,
            categorical=tuple(CodedColumn(c.name, c.categories) for c in self.columns if isinstance(c, Categorical)),
            names=tuple(c.name for c in self.columns),
        )


def _place(text: str, fields: Mapping[str, Any], location: _Location) -> str:
    """Return where a problem is, as " (column 'age', line 12)"; less if the file is laid out in another way."""
    lines, said, start = text.splitlines(), [], 0
    heads = [i for i, line in enumerate(lines) if line.lstrip().startswith("[")]
    if location[:1] == ("columns",) and len(location) > 1 and isinstance(location[1], int):
        number = location[1]
        name = _name_of(fields, number)
        said = [f"column {name!r}"] if name else []
        tables = [i for i in heads if re.match(r"\s*\[\[\s*columns\s*\]\]", lines[i])]
        if number >= len(tables):
            return f" ({said[0]})" if said else ""
        start, location = tables[number], location[3:]
    elif location and (len(location) > 1 or isinstance(fields.get(str(location[0])), Mapping)):
        start = next((i for i in heads if re.match(rf"\s*\[\s*{location[0]}\s*\]", lines[i])), 0)
        location = location[1:]
    end = next((i for i in heads if i > start), len(lines))
    field = location[0] if location else None
    line = next((i for i in range(start, end) if re.match(rf"\s*{re.escape(str(field))}\s*=", lines[i])), start)
    return f" ({', '.join([*said, f'line {line + 1}'])})"


def _name_of(fields: Mapping[str, Any], number: int) -> str:
    try:
        return str(fields["columns"][number]["name"])
    except (KeyError, IndexError, TypeError):
        return ""


def _problem(error: ErrorDetails) -> str:
    """Return one line: field, expected value, found value."""
    field = _path(error["loc"])
    match error["type"]:
        case "missing":
            hint = (
                '; expected "replace_one" or "add_remove_one", there is no default'
                if field == "adjacency"
                else "; it is required"
            )
            return f"{field}: missing{hint}"
        case "extra_forbidden":
            return f"{field}: unknown field; remove it, or correct its name"
        case "union_tag_not_found" | "union_tag_invalid":
            return f'{field}.kind: expected "numeric", "categorical" or "boolean"{_got(error["input"], "kind")}'
        case "tuple_type" if field == "columns":
            return "columns: expected [[columns]], with two brackets, before the fields of each column"
        case "tuple_type":
            return f"{field}: expected a list in brackets, got {_short(error['input'])}"
        case "model_type" | "dict_type" | "mapping_type":
            return f"{field}: expected a table in braces, such as {{ key = value }}, got {_short(error['input'])}"
        case "string_pattern_mismatch":
            text = "1 to 63 small letters, digits, - and _, of which the first is a letter or a digit"
            return f"{field}: expected {text}, got {_short(error['input'])}"
        case "too_short":
            return f"{field}: expected at least {error['ctx']['min_length']} items, got {_short(error['input'])}"
        case "too_long":
            return f"{field}: expected at most {error['ctx']['max_length']} items, got {len(error['input'])}"
        case "value_error":
            text = error["msg"].removeprefix("Value error, ")
            return f"{field}: {text}" if field else text
    expected = error["msg"].replace("Input should be", "expected").replace("Input should", "expected to")
    return f"{field}: {expected}, got {_short(error['input'])}"


def _path(location: _Location) -> str:
    """Return a location as TOML writes it, `columns[2].bins[3]`, without the tags of kinds, which the file lacks."""
    parts = [
        part
        for i, part in enumerate(location)
        if not (i == 2 and location[0] == "columns") and not (i == 4 and location[3] == "bins")
    ]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _got(table: Any, field: str) -> str:
    found = table.get(field, None) if isinstance(table, Mapping) else table
    return ", got nothing" if found is None else f", got {_short(found)}"


def _repeated(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name, n in Counter(names).items() if n > 1)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
