"""Lists that show themselves as tables, in terminals and notebooks."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, TypeVar

from bursar_models.text import html_table, text_table

T = TypeVar("T")


class Listing(list[T]):
    """List that shows itself as a table with a row for each item."""

    _names: ClassVar[tuple[str, str]]
    """Words for one item and for several."""
    _headers: ClassVar[tuple[str, ...]]

    @abstractmethod
    def _row(self, one: T) -> list[str]:
        """Return the cells of an item, one for each header."""

    def _table(self) -> tuple[tuple[str, ...], list[list[str]]]:
        return self._headers, [self._row(one) for one in self]

    def _title(self) -> str:
        return f"{len(self)} {self._names[len(self) != 1]}"

    def __repr__(self) -> str:
        return f"{self._title()}\n{text_table(*self._table())}"

    def _repr_html_(self) -> str:
        return html_table(self._title(), *self._table())
