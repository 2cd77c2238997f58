"""Lists that show themselves as tables, in terminals and notebooks."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, TypeVar

from bursar_models.text import TableText

T = TypeVar("T")


class Listing(TableText, list[T]):
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
