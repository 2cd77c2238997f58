"""Debits and what they paid for: check, then change, in one transaction; no path lowers a sum."""

from __future__ import annotations

import hashlib

from ._budget import Remaining
from ._canonical import Entry
from ._codec import decode_event, decode_fraction, encode_event, encode_fraction
from ._datasets import dataset_state
from ._pricing import Price, price
from ._store import Store
from ._values import DatasetState, Debit, DebitRecord, DebitRequest, DebitStatus, ReleaseRecord
from .errors import BudgetExhaustedError, ReleaseExistsError, RequestIdReusedError


def debit(store: Store, request: DebitRequest) -> Debit:
    """Debits a request, or finds the debit that the same request made before."""
    with store.decision():
        earlier = store.find("kind = 'debit' AND actor = ? AND request_id = ?", request.principal, request.request_id)
        if earlier:
            return _again(store, earlier[0], request)
        state = dataset_state(store, request.dataset)
        new = price(request.events, state.order)
        if not _fits(new, state.remaining):
            raise BudgetExhaustedError(new, state.remaining)
        entry = store.append(
            "debit", dataset=request.dataset, actor=request.principal, details=_details(request, new, state)
        )
    return _answer(entry, DebitStatus.NEW, None)


def store_release(store: Store, number: int, content: bytes) -> None:
    """Stores the bytes released under a debit, and their digest as an entry of the chain."""
    with store.decision():
        paid = store.entry(number, "debit")
        stored = release(store, number)
        if stored == content:
            return
        if stored is not None:
            raise ReleaseExistsError(f"debit {number} has its release already; send that one")
        details = {"debit": number, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        store.append("release", dataset=paid.dataset, actor=paid.actor, details=details)
        store.db.execute("INSERT INTO releases (debit, content) VALUES (?, ?)", [number, content])


def release(store: Store, number: int) -> bytes | None:
    """The bytes released under a debit, if there are any."""
    rows = store.rows("SELECT content FROM releases WHERE debit = ?", number)
    return bytes(rows[0]["content"]) if rows else None


def record(entry: Entry) -> DebitRecord:
    """A debit entry, decoded."""
    details = entry.details
    request = DebitRequest(
        dataset=entry.dataset,
        principal=entry.actor,
        request_id=details["request_id"],
        request_hash=bytes.fromhex(details["request_hash"]),
        method=details["method"],
        events=tuple(map(decode_event, details["events"])),
        parameters=details["parameters"],
    )
    order = decode_fraction(details["order"])
    paid = Price(details["cost_units"], details["delta_units"], order)
    left = Remaining(
        cost_units=details["cap_cost_units"] - details["spent_cost_units"],
        delta_units=details["cap_delta_units"] - details["spent_delta_units"],
        cap_cost_units=details["cap_cost_units"],
        cap_delta_units=details["cap_delta_units"],
        order=order,
    )
    return DebitRecord(entry.number, request, paid, left, entry.hash, entry.time)


def releases(store: Store, principal: str | None, dataset: str | None) -> tuple[ReleaseRecord, ...]:
    """Past debits in order; None stands for all."""
    found = store.find(
        "kind = 'debit' AND actor = coalesce(?, actor) AND dataset = coalesce(?, dataset) ORDER BY number",
        principal,
        dataset,
    )
    released = {row["debit"] for row in store.rows("SELECT debit FROM releases")}
    return tuple(_line(record(entry), entry.number in released) for entry in found)


def _line(debit: DebitRecord, released: bool) -> ReleaseRecord:
    request = debit.request
    return ReleaseRecord(
        entry=debit.entry,
        dataset=request.dataset,
        principal=request.principal,
        request_id=request.request_id,
        method=request.method,
        price=debit.price,
        time=debit.time,
        released=released,
    )


def _fits(new: Price, left: Remaining) -> bool:
    return new.cost_units <= left.cost_units and new.delta_units <= left.delta_units


def _again(store: Store, entry: Entry, request: DebitRequest) -> Debit:
    if entry.details["request_hash"] != request.request_hash.hex():
        raise RequestIdReusedError(
            f"request_id {request.request_id!r} was used for another request (entry {entry.number}); choose a new one"
        )
    content = release(store, entry.number)
    return _answer(entry, DebitStatus.INTERRUPTED if content is None else DebitStatus.RELEASED, content)


def _answer(entry: Entry, status: DebitStatus, content: bytes | None) -> Debit:
    paid = record(entry)
    return Debit(paid.entry, paid.price, paid.remaining, paid.head, status, content)


def _details(request: DebitRequest, new: Price, state: DatasetState) -> dict[str, object]:
    return {
        "request_id": request.request_id,
        "request_hash": request.request_hash.hex(),
        "method": request.method,
        "events": [encode_event(event) for event in request.events],
        "parameters": dict(request.parameters),
        "order": encode_fraction(new.order),
        "cost_units": new.cost_units,
        "delta_units": new.delta_units,
        "spent_cost_units": state.spent_cost_units + new.cost_units,
        "spent_delta_units": state.spent_delta_units + new.delta_units,
        "cap_cost_units": state.cap_cost_units,
        "cap_delta_units": state.cap_delta_units,
    }
