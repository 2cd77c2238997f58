"""Debits and what they paid for: check, then change, in one transaction; no path lowers a sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ._accounts import Account, Bounds, bounds, limits, read_account
from ._budget import Remaining
from ._canonical import Entry
from ._codec import decode_event, decode_fraction, encode_event, encode_fraction
from ._datasets import live_account, read_facts
from ._pricing import Price, price
from ._store import Store
from ._values import (
    Debit,
    DebitRecord,
    DebitRequest,
    DebitStatus,
    Limits,
    ReleaseRecord,
    RestRequest,
    remaining,
)
from .errors import BudgetExhaustedError, ReleaseExistsError, RequestIdReusedError


def debit(store: Store, request: DebitRequest | RestRequest) -> Debit:
    """Debits a request, or finds the debit that the same request made before."""
    guess = store.orders.get(request.dataset)
    # Before the decision, by the caller's own thread, while another one has the lock and waits for the disk.
    bill = None if guess is None or isinstance(request, RestRequest) else _bill(request, guess)
    return store.decide(lambda: _decided(store, request, bill))


def find(store: Store, principal: str, request_id: str) -> DebitRecord | None:
    """The debit of a request, if it was made."""
    earlier = _earlier(store, principal, request_id)
    return None if earlier is None else record(earlier)


@dataclass(frozen=True)
class _Bill:
    """What a request's events come to at an order, and how an entry holds them."""

    price: Price
    events: list[dict[str, object]]


def _bill(request: DebitRequest, order: Fraction) -> _Bill:
    return _Bill(price(request.events, order), [encode_event(event) for event in request.events])


def _decided(store: Store, request: DebitRequest | RestRequest, bill: _Bill | None) -> Debit:
    earlier = _earlier(store, request.principal, request.request_id)
    if earlier is not None:
        return _again(store, earlier, request)
    account = read_account(store, live_account(store, request.dataset))
    inside = bounds(store, account, request.principal)
    left = limits(account, inside)
    if isinstance(request, RestRequest):
        if not left.available.cost_units >= 1:
            _check(Price(1, 0, account.order), left)
        request = request.planned(left.available)
    if bill is None or bill.price.order != account.order:
        bill = _bill(request, account.order)
        store.orders[request.dataset] = account.order
    new = bill.price
    _check(new, left)
    details = _details(request, bill, account, inside)
    entry = store.append("debit", dataset=request.dataset, actor=request.principal, details=details)
    return Debit(
        entry=entry.number,
        price=new,
        remaining=_left(details, "spent", "cap", new.order),
        allowance=_allowance(details, new.order),
        head=entry.hash,
        status=DebitStatus.NEW,
    )


def write_off(store: Store, request: DebitRequest, *, actor: str, reason: str) -> Debit:
    """Debits what was spent and is in no entry, whatever one call may cost; that limit is as before."""
    # A debit's entry has its principal as the actor; who decided this one is beside what was asked.
    request = replace(request, parameters={**request.parameters, "by": actor, "reason": reason})

    def work() -> Debit:
        account = live_account(store, request.dataset)
        row = store.one(
            "SELECT share FROM entries WHERE kind = 'call_limit' AND account = ? ORDER BY number DESC LIMIT 1", account
        )
        share = row[0] if row else None
        limit = {"account": account, "reason": reason}
        if share is not None:  # what was spent may be more; nobody else decides in between
            store.append("call_limit", dataset=request.dataset, actor=actor, details={**limit, "share": None})
        paid = _decided(store, request, None)
        if share is not None:
            store.append("call_limit", dataset=request.dataset, actor=actor, details={**limit, "share": share})
        return paid

    return store.decide(work)


def limits_of(store: Store, dataset: str, principal: str) -> Limits:
    """All that bounds one request of `principal` on `dataset` now; raises UnknownDatasetError."""
    account = read_account(store, read_facts(store, dataset).account)
    return limits(account, bounds(store, account, principal))


def _earlier(store: Store, principal: str, request_id: str) -> Entry | None:
    found = store.find("kind = 'debit' AND actor = ? AND request_id = ?", principal, request_id)
    return found[0] if found else None


def store_release(store: Store, number: int, content: bytes) -> None:
    """Stores the bytes released under a debit, and their digest as an entry of the chain."""
    digest = hashlib.sha256(content).hexdigest()

    def work() -> None:
        paid = store.entry(number, "debit")
        stored = release(store, number)
        if stored == content:
            return
        if stored is not None:
            raise ReleaseExistsError(f"debit {number} has its release already; send that one")
        details = {"debit": number, "sha256": digest, "size": len(content)}
        store.append("release", dataset=paid.dataset, actor=paid.actor, details=details)
        store.db.execute("INSERT INTO releases (debit, content) VALUES (?, ?)", [number, content])

    store.decide(work)


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
    left = _left(details, "spent", "cap", order)
    return DebitRecord(entry.number, request, paid, left, _allowance(details, order), entry.hash, entry.time)


def releases(
    store: Store, principal: str | None, dataset: str | None, after: int, limit: int | None
) -> tuple[ReleaseRecord, ...]:
    """Past debits in order; None stands for all."""
    wanted = ["kind = 'debit'", "number > ?"]
    given: list[object] = [after]
    if principal is not None:  # from the index of what he asked for
        wanted.append("actor = ?")
        given.append(principal)
    if dataset is not None:  # + keeps off the index of datasets: there are more debits of one than of one principal
        wanted.append("dataset = ?" if principal is None else "+dataset = ?")
        given.append(dataset)
    numbers = f"SELECT number FROM entries WHERE {' AND '.join(wanted)} ORDER BY number LIMIT ?"  # noqa: S608
    found = store.find(f"number IN ({numbers}) ORDER BY number", *given, -1 if limit is None else limit)
    # Of these debits only: between the first and the last of somebody's lie all the others'.
    stored = store.rows(
        "SELECT debit, length(content) AS size FROM releases WHERE debit IN (SELECT value FROM json_each(?))",
        json.dumps([entry.number for entry in found]),
    )
    sizes = {row["debit"]: row["size"] for row in stored}
    return tuple(_line(record(entry), sizes.get(entry.number)) for entry in found)


def _line(debit: DebitRecord, size: int | None) -> ReleaseRecord:
    request = debit.request
    return ReleaseRecord(
        entry=debit.entry,
        dataset=request.dataset,
        principal=request.principal,
        request_id=request.request_id,
        method=request.method,
        price=debit.price,
        time=debit.time,
        released=size is not None,
        size=size,
    )


def _fits(new: Price, left: Remaining) -> bool:
    return new.cost_units <= left.cost_units and new.delta_units <= left.delta_units


def _check(new: Price, left: Limits) -> None:
    """Raises BudgetExhaustedError naming the first limit that `new` does not fit into."""
    for name, limit in (("dataset", left.dataset), ("allowance", left.allowance), ("call", left.call)):
        if limit is not None and not _fits(new, limit):
            raise BudgetExhaustedError(new, limit, name)


def _again(store: Store, entry: Entry, request: DebitRequest | RestRequest) -> Debit:
    if entry.details["request_hash"] != request.request_hash.hex():
        raise RequestIdReusedError(
            f"request_id {request.request_id!r} was used for another request (entry {entry.number}); choose a new one"
        )
    content = release(store, entry.number)
    status = DebitStatus.INTERRUPTED if content is None else DebitStatus.RELEASED
    paid = record(entry)
    return Debit(paid.entry, paid.price, paid.remaining, paid.allowance, paid.head, status, content)


def _details(request: DebitRequest, bill: _Bill, account: Account, inside: Bounds) -> dict[str, Any]:
    new = bill.price
    allowance, call = inside.allowance or (None, None), inside.call or (None, None)
    return {
        "account": account.name,
        "request_id": request.request_id,
        "request_hash": request.request_hash.hex(),
        "method": request.method,
        "events": bill.events,
        "parameters": dict(request.parameters),
        "order": encode_fraction(new.order),
        "cost_units": new.cost_units,
        "delta_units": new.delta_units,
        "spent_cost_units": account.spent[0] + new.cost_units,
        "spent_delta_units": account.spent[1] + new.delta_units,
        "cap_cost_units": account.caps[0],
        "cap_delta_units": account.caps[1],
        "analyst_spent_cost_units": inside.spent[0] + new.cost_units,
        "analyst_spent_delta_units": inside.spent[1] + new.delta_units,
        "allowance_cost_units": allowance[0],
        "allowance_delta_units": allowance[1],
        "call_cost_units": call[0],
        "call_delta_units": call[1],
    }


def _left(details: Mapping[str, Any], spent: str, cap: str, order: Fraction) -> Remaining:
    caps = details[f"{cap}_cost_units"], details[f"{cap}_delta_units"]
    return remaining(caps, (details[f"{spent}_cost_units"], details[f"{spent}_delta_units"]), order)


def _allowance(details: Mapping[str, Any], order: Fraction) -> Remaining | None:
    # Debits of the first version of the schema know no allowances.
    if details.get("allowance_cost_units") is None:
        return None
    return _left(details, "analyst_spent", "allowance", order)
