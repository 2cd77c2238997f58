"""Records what must not change when code moves: each fit's integers, prices and models, and the ledger's bytes.

`python -m tests.conformance.recording` writes `recorded.json`, which `test_recorded.py` compares. Record again only for
a change that is meant to alter integers, prices or the chain, and say so in the commit.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_ledger import (
    COST_UNIT,
    EVERYONE,
    Adjacency,
    ApproximateEvent,
    Budget,
    BudgetExhaustedError,
    ConcentratedEvent,
    DatasetRetiredError,
    DebitRequest,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    PureEvent,
    Registration,
    Remainder,
    RequestIdReusedError,
    RestRequest,
    Role,
    SelectionEvent,
    cost_units,
)
from bursar_server.fits import PublicTable
from bursar_server.vault import CHUNK, Noise, Scores, SelectionNoise
from bursar_server.vault._dask import worker_environment
from tests.conformance.checks import bell, uniform
from tests.conformance.requests import CAPS, FITS, FREE, VARIANTS, method_of, tables
from tests.server.fits.running import ORDER, session

FILE = Path(__file__).with_name("recorded.json")
SLOTS = CHUNK + 1000
"""Rows of every run: two blocks, the second one partly padded."""

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

# --- fits ---------------------------------------------------------------------------------------------------


def row_values(name: str, cap: int) -> Array:
    """Values of a column of the table for all slots, around two centres."""
    kind, noise = np.arange(SLOTS) % 2, bell(name, SLOTS)
    if name == "":
        return np.floor(uniform(name, SLOTS) * cap) + 1.0  # a unit's number of rows
    if name in ("a", "b", "c"):
        return np.where(
            uniform(name, SLOTS) < 0.6, kind + 1.0 * (name == "b"), np.floor(uniform(name + "2", SLOTS) * 3)
        )
    centre, spread = {"x": ((-0.5, 0.5), 0.15), "y": ((2.0, 8.0), 1.0), "m": ((-1.0, 1.0), 0.4)}[name]
    values = np.where(kind == 1, *centre) + spread * noise
    values[::97] = 1e6  # out of the public bounds
    if name == "m":
        values[::5] = np.nan
    return np.asarray(values)


@dataclass
class Recorder:
    """A source of noise that writes down every integer vector that reaches it, and adds numbers that are fixed.

    Attributes:
        seen: a digest of each vector, in order.
    """

    seen: list[str] = field(default_factory=list)

    def add(self, sums: Integers, noise: Noise) -> Integers:
        """See `NoiseSource`."""
        self._write(sums)
        return sums + np.rint(bell(f"noise {len(self.seen)}", sums.size) * noise.scale).astype(np.int64).reshape(
            sums.shape
        )

    def argmax(self, scores: Integers, noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        self._write(scores)
        return int((scores + bell(f"choice {len(self.seen)}", scores.size) * noise.scale).argmax())

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """See `SearchSource`: the first of the best candidates."""
        counted = scores.counts(1)
        self._write(np.array([counted.top, counted.numbers[0], counted.below], dtype=np.int64))
        return scores.locate(counted.top, 0)

    def _write(self, numbers: Integers) -> None:
        text = f"{numbers.shape}".encode() + np.ascontiguousarray(numbers, dtype="<i8").tobytes()
        self.seen.append(digest(text))


def digest(content: bytes) -> str:
    """First 64 bits of the SHA-256, in hexadecimal: enough to see a change that nobody intends."""
    return hashlib.sha256(content).hexdigest()[:16]


def fit(request: Any, table: PublicTable, released: Any = None) -> tuple[dict[str, Any], Any]:
    """Plan and run a request; returns its record and its model."""
    module = FITS[method_of(request)]
    plan = module.plan(request, table, lambda entry: released)
    recorder = Recorder()
    values = [row_values(name, table.unit_cap) for name in plan.columns] if plan.events else []
    X = np.stack(values, axis=1) if values else np.zeros((0, 1))
    paid = session(
        plan,
        X,
        present=np.arange(len(X)) % 7 > 0,
        adjacency=table.adjacency,
        unit_cap=table.unit_cap,
        source=recorder,
        search_source=recorder,
    )
    model = module.run(plan, paid)
    return {
        "columns": list(plan.columns),
        "events": digest(repr(plan.events).encode()),
        "cost_units": cost_units(plan.events, ORDER),
        "integers": " ".join(recorder.seen),
        "model": digest(model.SerializeToString(deterministic=True)),
    }, model


def cases() -> list[str]:
    """Names of all records of fits."""
    names = [f"{name}, cap {CAPS[name]}" for name in CAPS]
    return [f"{name}; {adjacency}" for name in (*VARIANTS, *names, *FREE) for adjacency, _ in tables(SLOTS)]


def record_fit(case: str) -> dict[str, Any]:
    """Record one of `cases`."""
    name, adjacency = case.rsplit("; ", 1)
    table = dict(tables(SLOTS))[adjacency]
    if name in FREE:
        origin, request = FREE[name]
        return fit(request, table, fit(VARIANTS[origin], table)[1])[0]
    if name not in VARIANTS:
        name, cap = name.rsplit(", cap ", 1)
        table = replace(table, unit_cap=int(cap))
    return fit(VARIANTS[name], table)[0]


# --- the ledger ---------------------------------------------------------------------------------------------

EVENTS: Mapping[str, tuple[Event, ...]] = {
    "gaussian": (GaussianEvent(1, Fraction(6)), GaussianEvent(3, Fraction(81, 2))),
    "laplace": (LaplaceEvent(1, Fraction(12)),),
    "pure": (PureEvent(Fraction(1, 20)),),
    "selection": (SelectionEvent(1, Fraction(15), count=2),),
    "concentrated": (ConcentratedEvent(Fraction(1, 300)),),
    "approximate": (ApproximateEvent(PureEvent(Fraction(1, 50)), Fraction(4, 10**8)),),
}


def ask(request_id: str, events: tuple[Event, ...], principal: str = "ann", dataset: str = "people") -> DebitRequest:
    """A request with public parameters of all kinds of JSON."""
    parameters = {"n_components": 3, "columns": ["x", "é"], "scale": 0.1, "tied": True, "nothing": None}
    request_hash = hashlib.sha256(request_id.encode()).digest()
    return DebitRequest(dataset, principal, request_id, request_hash, "FitDPEM", events, parameters)


def everything_left(left: Remainder) -> DebitRequest:
    """The Gaussian release that costs exactly what is left."""
    rho = Fraction(left.cost_units) / (COST_UNIT * left.order)
    return ask("rest", (GaussianEvent(2 * rho.numerator * rho.denominator, Fraction(rho.denominator)),))


def history(ledger: Ledger) -> None:
    """Make a history of the ledger: every kind of entry, refusals and repetitions, which leave none."""
    owner: dict[str, Any] = {"actor": "owner", "reason": "recorded"}
    total = Budget(3, 1e-6, Fraction(1, 10))
    ledger.register_dataset(
        Registration("people", Adjacency.REPLACE_ONE, total, b"t" * 32, {"columns": ["x"]}), **owner
    )
    ledger.register_dataset(
        Registration("again", Adjacency.REPLACE_ONE, None, b"u" * 32, same_people_as="people"), **owner
    )
    ledger.register_dataset(Registration("cars", Adjacency.ADD_REMOVE_ONE, Budget(2, 1e-9), b"v" * 32), **owner)
    ledger.issue_credential("ann", Role.ANALYST, b"k" * 32, expires="2036-11-22T03:30:00Z", **owner)
    ledger.issue_credential("bob", Role.ANALYST, b"l" * 32, datasets=("people", "cars"), **owner)
    ledger.set_allowance("people", EVERYONE, Fraction(1, 2), **owner)
    ledger.set_allowance("people", "ann", Fraction(2, 3), **owner)
    ledger.set_call_limit("people", Fraction(3, 4), **owner)
    ledger.set_checkpoint_key("bursar.example+00000000+AAAA", **owner)
    debits = [ledger.debit(ask(name, events)) for name, events in EVENTS.items()]
    debits.append(ledger.debit(ask("joined", EVENTS["gaussian"], "bob", "again")))
    debits.append(ledger.debit(ask("cars", EVENTS["laplace"], "bob", "cars")))
    for debit in debits[::2]:
        ledger.store_release(debit.entry, f"model of {debit.entry}".encode())
    ledger.lose_release(debits[1].entry)
    for refused in (ask("gaussian", EVENTS["pure"]), ask("dear", (PureEvent(Fraction(100)),))):
        with suppress(RequestIdReusedError, BudgetExhaustedError):
            ledger.debit(refused)
    ledger.debit(ask("laplace", EVENTS["laplace"]))  # a repetition
    ledger.write_off(ask("lost", EVENTS["pure"], "bob"), **owner)
    ledger.set_budget("people", Budget(4, 1e-6, Fraction(1, 10)), **owner)
    ledger.new_snapshot("people", b"w" * 32, {"columns": ["x"]}, **owner)
    request_hash = hashlib.sha256(b"rest").digest()
    ledger.debit(RestRequest("people", "ann", "rest", request_hash, "FitDPEM", everything_left))
    ledger.set_allowance("people", "ann", None, **owner)
    ledger.revoke_credential("bob", **owner)
    ledger.retire_dataset("cars", **owner)
    with suppress(DatasetRetiredError):
        ledger.debit(ask("late", EVENTS["pure"], "ann", "cars"))
    ledger.record_destruction("cars", "rows", **owner)
    ledger.record_destruction("cars", "key", **owner)


_DRAWN = re.compile(rb'("ledger_id":")[0-9a-f]{32}(")')
_TIME = re.compile(rb'("time":")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|\+00:00)(")')
_PREVIOUS = re.compile(rb'("previous":")[0-9a-f]{64}(")')


def record_ledger() -> dict[str, Any]:
    """The bodies of a history's entries and the hash of the last, as if its times and the ledger's id were fixed.

    Entries are taken as the file has them, byte for byte; then the id and the times are replaced and the chain is
    hashed anew, so that nothing of the ledger's modules has to be patched.
    """
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger.db", actor="owner") as ledger:
        history(ledger)
        entries = list(ledger.entries())
        head = ledger.head()
    previous, actual, bodies = bytes(32), bytes(32), []
    for entry in entries:
        assert entry.previous == actual
        actual = hashlib.sha256(entry.body).digest()
        assert entry.hash == actual
        body, times = _TIME.subn(rb"\g<1>2026-01-01T00:00:00+00:00\2", entry.body)
        body, links = _PREVIOUS.subn(rb"\g<1>" + previous.hex().encode() + rb"\2", body)
        assert (times, links) == (1, 1)
        body = _DRAWN.sub(rb"\g<1>" + b"0" * 32 + rb"\2", body)
        previous = hashlib.sha256(body).digest()
        bodies.append(body.decode("ascii"))
    assert head == actual
    return {"bodies": bodies, "head": previous.hex()}


def main() -> None:
    """Write the record."""
    record = {
        "environment": worker_environment(),
        "fits": {case: record_fit(case) for case in cases()},
        "ledger": record_ledger(),
    }
    FILE.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
