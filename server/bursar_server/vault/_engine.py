"""Where rows are read: one small seam between statistics and the machine, or machines, that hold the rows.

A task says what a span of blocks gives and how such parts make a whole. It is a value that can be pickled, made of
public or released numbers: it holds no row, no noise and nothing of the ledger. Sums are of integers, so that every
engine gives the same ones, however rows are spread.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from bursar_server.vault._device import namespace_of
from bursar_server.vault._rows import CHUNK, Rows

T = TypeVar("T")


class EngineError(Exception):
    """Rows cannot be read where they are. Names machines and settings, never data."""


class Task(Protocol[T]):
    """One reading of all rows. Total: raises for no content of the table. Can be pickled; keeps nothing."""

    def part(self, rows: Rows, columns: int, firsts: range) -> T:
        """What the blocks that begin at these slots give; `columns` is the number of columns of `rows`."""

    def whole(self, parts: Iterable[T]) -> T:
        """What all spans give together; the parts come in the order of their slots."""


class RowsPart(Protocol):
    """Consecutive slots of a table, as a value that can be pickled and that every machine can open. Holds no row."""

    @property
    def slots(self) -> int:
        """How many there are, null rows included."""

    def open(self) -> contextlib.AbstractContextManager[Rows]:
        """The rows, with slots counted from 0, for one thread. Raises if they are not as they were written."""


@runtime_checkable
class SpreadRows(Rows, Protocol):
    """A table in parts, which lie where several machines can read them."""

    @property
    def parts(self) -> Sequence[RowsPart]:
        """In the order of their slots; a multiple of `CHUNK` slots each, but for the last."""


class Engine(Protocol):
    """Runs tasks over a table's rows; the results do not depend on which engine it is."""

    @property
    def threads(self) -> int:
        """That sum rows which lie in this process's own memory, such as estimates of blocks."""

    def run(self, task: Task[T], rows: Rows, columns: int) -> T:
        """What a task makes of all rows.

        Raises EngineError, whatever the rows hold, if they cannot be read.
        """


class EngineSettings(Protocol):
    """From what an engine is made, in whatever process needs one: a small frozen value that can be pickled."""

    def open(self) -> contextlib.AbstractContextManager[Engine]:
        """An engine, for as long as the block lasts. Raises EngineError if there is none to be had."""

    def check(self) -> None:
        """Raises EngineError if an engine could not be opened now. Reads no row."""


@dataclass(frozen=True)
class LocalEngine:
    """Threads of this process. Its own settings, too.

    Attributes:
        threads: at least 1; each has a span of the table.
        device: such as "torch:cuda" or "cupy", for statistics that can be summed there; None: this processor.
    """

    threads: int = 1
    device: str | None = None

    def __post_init__(self) -> None:
        if not self.threads >= 1:
            raise ValueError(f"threads: expected at least 1, got {self.threads}")

    def open(self) -> contextlib.AbstractContextManager[LocalEngine]:
        """See `EngineSettings`."""
        self.check()
        return contextlib.nullcontext(self)

    def check(self) -> None:
        """See `EngineSettings`."""
        if self.device is not None:
            try:
                namespace_of(self.device)
            except ValueError as error:
                raise EngineError(str(error)) from error

    def run(self, task: Task[T], rows: Rows, columns: int) -> T:
        """See `Engine`."""
        spans = spans_of(rows.slots, self.threads)
        if len(spans) == 1:
            return task.whole([task.part(rows, columns, spans[0])])
        with ThreadPoolExecutor(len(spans)) as pool:
            return task.whole(list(pool.map(lambda span: task.part(rows, columns, span), spans)))


def spans_of(slots: int, number: int) -> list[range]:
    """First slots of the blocks of a table, in `number` consecutive spans of about the same length."""
    blocks = -(-slots // CHUNK)
    ends = [CHUNK * (i * blocks // number) for i in range(number + 1)]
    return [range(start, stop, CHUNK) for start, stop in itertools.pairwise(ends)]
