"""The seam between statistics and rows: what goes over it, and that it does not matter what is on the other side."""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from bursar_ledger import Adjacency
from bursar_server.fits.mixtures.kernel import moment_sums
from bursar_server.vault import (
    CHUNK,
    ArrayRows,
    EngineError,
    GaussianNoise,
    LocalEngine,
    Meter,
    OpenDPNoise,
    Rows,
    SyntheticBudget,
    Task,
)
from bursar_server.vault._dask import part_of, worker_environment
from bursar_server.vault._engine import SpreadRows, T, spans_of
from tests.conformance.requests import FEW, VARIANTS
from tests.server.engine.fits import fitted, people

N = 3 * CHUNK + 100
SECRET = 0.123456789123


@dataclass(frozen=True)
class Part:
    """Some slots of a table in memory."""

    rows: ArrayRows
    slots: int

    @contextmanager
    def open(self) -> Iterator[Rows]:
        """See `RowsPart`."""
        yield self.rows


@dataclass(frozen=True)
class Elsewhere:
    """An engine that does what a cluster does but for the machines: everything goes as bytes, part by part.

    Attributes:
        sent: what would go to workers.
    """

    threads: int = 1
    sent: list[bytes] = field(default_factory=list)

    def run(self, task: Task[T], rows: Rows, columns: int) -> T:
        """See `Engine`. Estimates of blocks are read where they are."""
        self.sent.append(pickle.dumps(task))
        environment = worker_environment()
        assert isinstance(rows, SpreadRows)
        return task.whole(
            pickle.loads(pickle.dumps(part_of(part, self.sent[-1], columns=columns, environment=environment)))  # noqa: S301
            for part in rows.parts
        )


@dataclass(frozen=True)
class Parts(ArrayRows):
    """A table in memory in parts of two blocks and of one, in turns (`SpreadRows`)."""

    @property
    def parts(self) -> list[Part]:
        """Return the parts in the order of their slots."""
        parts: list[Part] = []
        first = 0
        while first < self.slots:
            stop = min(self.slots, first + CHUNK * (2 - len(parts) % 2))
            present = None if self.present is None else self.present[first:stop]
            parts.append(Part(ArrayRows(self.columns[:, first:stop], present), stop - first))
            first = stop
        return parts


def in_parts(rows: ArrayRows) -> Parts:
    """Return the same table in parts."""
    return Parts(rows.columns, rows.present)


def globals_of(pickled: bytes) -> set[str]:
    """Modules whose names a pickle holds."""
    return {str(argument) for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in VARIANTS]
)
def test_every_fit_is_the_same_from_every_engine(name: str) -> None:
    """One thread, three, and parts through pickles give the same model, bit for bit, for every kind of release.

    What goes to workers has no row in it, nothing of the ledger, and no noise.
    """
    rows = people(name, N)
    rows.columns[0, CHUNK + 1] = SECRET
    wanted = fitted(name, rows, LocalEngine())
    assert fitted(name, rows, LocalEngine(3)) == wanted
    elsewhere = Elsewhere()
    assert fitted(name, in_parts(rows), elsewhere) == wanted
    assert elsewhere.sent
    for sent in elsewhere.sent:
        assert np.float64(SECRET).tobytes() not in sent
        for module in globals_of(sent):
            assert not is_foreign(module)


def is_foreign(module: str) -> bool:
    """Return whether a worker has no business with it, or numba would compile what it restores."""
    own = {f"bursar_server.vault._{part}" for part in ("noise", "session", "sampling", "meter")}
    return module in own or module.startswith(("bursar_ledger", "opendp", "sqlite", "bursar_server.tables", "numba"))


@pytest.mark.parametrize(
    "thing",
    [
        GaussianNoise(1.0),
        Adjacency.REPLACE_ONE,
        Meter(SyntheticBudget(Fraction(2), 1)),
        [OpenDPNoise()],
        moment_sums,
    ],
)
def test_what_must_not_leave_would_be_seen(thing: object) -> None:
    """The look into pickles finds noise, meter, what is the ledger's, and compiled code."""
    assert any(map(is_foreign, globals_of(pickle.dumps(thing))))


def test_notes_of_labels_stay_where_they_were_made() -> None:
    """However many passes there were over one forest, what leaves has no note of slots in it."""
    elsewhere = Elsewhere()
    fitted("separated", in_parts(people("separated", N)), elsewhere)
    assert max(map(len, elsewhere.sent)) < N // 2


@pytest.mark.parametrize("slots", [0, 1, CHUNK, 5 * CHUNK + 1])
@pytest.mark.parametrize("number", [1, 2, 7])
def test_spans_are_all_blocks_in_order(slots: int, number: int) -> None:
    """However many there are, of whatever table: each block once, and spans differ by one block at most."""
    spans = spans_of(slots, number)
    assert [first for span in spans for first in span] == list(range(0, slots, CHUNK))
    assert len(spans) == number
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


def test_a_worker_of_another_kind_reads_nothing() -> None:
    """Its rounding might be another: it refuses before it opens the rows."""

    class Untouchable:
        slots = 1

        def open(self) -> object:
            raise AssertionError("opened")

    with pytest.raises(EngineError, match="other versions"):
        part_of(Untouchable(), b"", columns=1, environment="another")  # type: ignore[arg-type]


def test_an_engine_has_at_least_one_thread() -> None:
    """Zero threads would add up nothing, and say so to nobody."""
    with pytest.raises(ValueError, match="at least 1"):
        LocalEngine(0)
