"""Engines: the seam between statistics and the machines that hold the rows.

A `Task` defines the result for a span of blocks and how such results combine. It is a value that can be pickled, made
of public or released numbers; it holds no row, no noise and nothing of the ledger. Results are sums of integers, so
every engine gives the same ones, however rows are distributed.
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
    """Error: rows cannot be read. The message names machines and settings, never data."""


class Task(Protocol[T]):
    """One pass over all rows. Total: raises for no content of the table. Can be pickled; keeps no state."""

    def part(self, rows: Rows, columns: int, firsts: range) -> T:
        """Return the result for the blocks that begin at the slots `firsts`; `rows` have `columns` columns."""

    def whole(self, parts: Iterable[T]) -> T:
        """Combine the results of all spans; they come in the order of their slots."""


class RowsPart(Protocol):
    """Consecutive slots of a table, as a value that can be pickled and opened on any machine. Holds no row."""

    @property
    def slots(self) -> int:
        """Number of slots, null rows included."""

    def open(self) -> contextlib.AbstractContextManager[Rows]:
        """Return the rows, with slots counted from 0, for one thread.

        Raises if the stored rows are not those that were written.
        """


@runtime_checkable
class SpreadRows(Rows, Protocol):
    """Table in partitions that several machines can read."""

    @property
    def parts(self) -> Sequence[RowsPart]:
        """Partitions in the order of their slots; each but the last has a multiple of `CHUNK` slots."""


class Engine(Protocol):
    """Runner of tasks over a table's rows. Results do not depend on the engine."""

    @property
    def threads(self) -> int:
        """Number of threads that sum rows in this process's own memory, such as estimates of blocks."""

    def run(self, task: Task[T], rows: Rows, columns: int) -> T:
        """Run a task over all rows and return its result.

        Raises:
            EngineError: the rows cannot be read. Does not depend on what they contain.
        """


class EngineSettings(Protocol):
    """Small frozen value that can be pickled, from which any process opens an engine."""

    def open(self) -> contextlib.AbstractContextManager[Engine]:
        """Return a context that opens an engine and closes it.

        Raises:
            EngineError: no engine is available.
        """

    def check(self) -> None:
        """Raise EngineError if an engine could not be opened now. Reads no rows."""


@dataclass(frozen=True)
class LocalEngine:
    """Engine of threads in this process; it is its own `EngineSettings`.

    Attributes:
        threads: number of threads, at least 1; each reads one span of the table.
        device: name such as "torch:cuda" or "cupy", for kernels that can run there; None: the CPU.
    """

    threads: int = 1
    device: str | None = None

    def __post_init__(self) -> None:
        if not self.threads >= 1:
            raise ValueError(f"threads: expected at least 1, got {self.threads}")

    def open(self) -> contextlib.AbstractContextManager[LocalEngine]:
        """Implement `EngineSettings.open`."""
        self.check()
        return contextlib.nullcontext(self)

    def check(self) -> None:
        """Implement `EngineSettings.check`: raise if the device is not available."""
        if self.device is not None:
            try:
                namespace_of(self.device)
            except ValueError as error:
                raise EngineError(str(error)) from error

    def run(self, task: Task[T], rows: Rows, columns: int) -> T:
        """Implement `Engine.run`: one span of blocks for each thread."""
        spans = spans_of(rows.slots, self.threads)
        # With one thread no pool is started, so that exceptions and profiles show the task itself.
        if len(spans) == 1:
            return task.whole([task.part(rows, columns, spans[0])])
        with ThreadPoolExecutor(len(spans)) as pool:
            return task.whole(list(pool.map(lambda span: task.part(rows, columns, span), spans)))


def spans_of(slots: int, number: int) -> list[range]:
    """Return the first slots of a table's blocks, split into `number` consecutive spans of nearly equal length."""
    blocks = -(-slots // CHUNK)
    # Spans end at multiples of `CHUNK`, so that blocks are the same for any number of threads.
    ends = [CHUNK * (i * blocks // number) for i in range(number + 1)]
    return [range(start, stop, CHUNK) for start, stop in itertools.pairwise(ends)]
