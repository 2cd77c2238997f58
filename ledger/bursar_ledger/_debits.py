"""Debits and their releases: check, then change, in one transaction; no path lowers a sum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ._accounts import Account, Bounds, bounds, check_debit_name, limits, read_account
from ._datasets import budget_in_force, live_account, read_facts
from ._entries import Entry, EntryKind
from ._events import decode_event, decode_fraction, encode_event, encode_fraction
from ._pricing import Cost, Remainder, price
from ._store import Store
from ._types import (
    LEDGER_KEY,
    Debit,
    DebitRecord,
    DebitRequest,
    DebitStatus,
    ReleaseRecord,
    RestRequest,
    SpendingLimits,
    remaining,
)
from .errors import BudgetExhaustedError, ReleaseExistsError, RequestIdReusedError


def debit(store: Store, request: DebitRequest | RestRequest) -> Debit:
    """Debit a request, durably, or answer again for a request that was debited before.

    A repetition (same principal, request_id and request_hash) gets the price, remainder and head of the first time
    and nothing is debited. If it is INTERRUPTED, the caller makes sure that no worker is still running it.

    Raises:
        UnknownDatasetError: no such dataset.
        DatasetRetiredError: it is retired.
        BudgetExhaustedError: it does not fit, and says into which limit; nothing changed.
        RequestIdReusedError: the request_id came before with another body.
        NameConflictError: another principal, whose name differs in case only, has debits or an allowance here.
    """
    guess = store.orders.get(request.dataset)
    # Before the decision, by the caller's own thread, while another one has the lock and waits for the disk.
    bill = None if guess is None or isinstance(request, RestRequest) else _bill(request, guess)
    return store.decide(lambda: _decided(store, request, bill))


def find_debit(store: Store, principal: str, request_id: str, request_hash: bytes) -> Debit | None:
    """Return the debit that the same request made before, as `debit` would; None if it made none.

    It is durable: entries are read after the transaction that wrote them.

    Raises RequestIdReusedError: the request_id came before with another body.
    """
    earlier = _earlier(store, principal, request_id)
    return None if earlier is None else _again(store, earlier, request_hash)


@dataclass(frozen=True)
class _Bill:
    """Price of a request's events at an order, and the events as an entry holds them."""

    price: Cost
    events: list[dict[str, object]]


def _bill(request: DebitRequest, order: Fraction) -> _Bill:
    return _Bill(price(request.events, order), [encode_event(event) for event in request.events])


def _decided(store: Store, request: DebitRequest | RestRequest, bill: _Bill | None) -> Debit:
    # Inside the transaction: of two equal requests at once, only this look-up decides which one is charged.
    earlier = _earlier(store, request.principal, request.request_id)
    if earlier is not None:
        return _again(store, earlier, request.request_hash)
    account = read_account(store, live_account(store, request.dataset))
    check_debit_name(store, account.name, request.principal)
    inside = bounds(store, account, request.principal)
    left = limits(account, inside)
    if isinstance(request, RestRequest):
        if not left.available.cost_units >= 1:
            # The least cost that there is: the refusal then names the limit that is empty.
            _check(store, account, Cost(1, 0, account.order), left)
        request = request.planned(left.available)
    # The bill was made before the lock, at the order of the last debit; a new total since then has another order.
    if bill is None or bill.price.order != account.order:
        bill = _bill(request, account.order)
        store.orders[request.dataset] = account.order
    new = bill.price
    _check(store, account, new, left)
    details = _details(request, bill, account, inside)
    entry = store.append(EntryKind.DEBIT, dataset=request.dataset, actor=request.principal, details=details)
    return Debit(
        key=LEDGER_KEY,
        request=request,
        entry=entry.number,
        price=new,
        remaining=_left(details, "spent", "cap", new.order),
        allowance=_allowance(details, new.order),
        head=entry.hash,
        status=DebitStatus.NEW,
    )


def write_off(store: Store, request: DebitRequest, *, actor: str, reason: str) -> Debit:
    """Debit an amount that was spent without an entry of this ledger, for example after a restore from a backup.

    As `debit`, with the maximum per call lifted for this one debit. It gets the empty release: there is none.

    Raises:
        As `debit` does.
    """
    # The actor of a debit's entry is its principal; the administrator of this one is in the parameters.
    request = replace(request, parameters={**request.parameters, "by": actor, "reason": reason})

    def work() -> Debit:
        account = live_account(store, request.dataset)
        row = store.one(
            "SELECT share FROM entries WHERE kind = 'call_limit' AND account = ? ORDER BY number DESC LIMIT 1", account
        )
        share = row[0] if row else None
        limit = {"account": account, "reason": reason}
        if share is not None:  # the amount spent may exceed it; no other decision comes in between
            store.append(EntryKind.CALL_LIMIT, dataset=request.dataset, actor=actor, details={**limit, "share": None})
        paid = _decided(store, request, None)
        if share is not None:
            store.append(EntryKind.CALL_LIMIT, dataset=request.dataset, actor=actor, details={**limit, "share": share})
        return paid

    paid = store.decide(work)
    # Without a release the debit would count as interrupted, and the fit could run under it.
    lose_release(store, paid.entry)
    return paid


def limits_of(store: Store, dataset: str, principal: str) -> SpendingLimits:
    """Return everything that bounds one request of `principal` on a dataset now; raises UnknownDatasetError."""
    account = read_account(store, read_facts(store, dataset).account)
    return limits(account, bounds(store, account, principal))


def _earlier(store: Store, principal: str, request_id: str) -> Entry | None:
    found = store.find("kind = 'debit' AND actor = ? AND request_id = ?", principal, request_id)
    return found[0] if found else None


def store_release(store: Store, entry: int, release: bytes) -> None:
    """Store the release of a debit, with its SHA-256 in the chain. The same bytes again change nothing.

    Raises:
        UnknownEntryError: `entry` is not a debit.
        ReleaseExistsError: other bytes are stored; those are the release.
    """
    _store_release(store, entry, release, {})


def lose_release(store: Store, entry: int) -> None:
    """Store the empty release of a debit whose fit will never run, marked as lost.

    Raises:
        UnknownEntryError, ReleaseExistsError: as `store_release`.
    """
    _store_release(store, entry, b"", {"lost": True})


def _store_release(store: Store, number: int, content: bytes, more: Mapping[str, object]) -> None:
    digest = hashlib.sha256(content).hexdigest()

    def work() -> None:
        paid = store.entry(number, EntryKind.DEBIT)
        stored = _stored(store, number)
        # A worker that was killed after the commit, before it knew, stores the same bytes again.
        if stored == content:
            return
        if stored is not None:
            raise ReleaseExistsError(f"debit {number} has its release already; send that one")
        details = {"debit": number, "sha256": digest, "size": len(content), **more}
        # Digest and bytes in one transaction: an entry whose bytes are missing would not verify.
        store.append(EntryKind.RELEASE, dataset=paid.dataset, actor=paid.actor, details=details)
        store.db.execute("INSERT INTO releases (debit, content) VALUES (?, ?)", [number, content])

    store.decide(work)


def _stored(store: Store, number: int) -> bytes | None:
    rows = store.rows("SELECT content FROM releases WHERE debit = ?", number)
    return bytes(rows[0]["content"]) if rows else None


def released(store: Store, entry: int) -> bytes | None:
    """Return the release of a debit; None if nothing is stored. UnknownEntryError if `entry` is not a debit."""
    store.entry(entry, EntryKind.DEBIT)
    return _stored(store, entry)


def debit_entry(store: Store, entry: int) -> DebitRecord:
    """Return a debit, decoded; raises UnknownEntryError if `entry` is not one."""
    return record(store.entry(entry, EntryKind.DEBIT))


def is_lost(store: Store, entry: int) -> bool:
    """Return whether `lose_release` has settled a debit."""
    found = store.find("kind = 'release' AND debit = ?", entry)
    return bool(found) and bool(found[0].details.get("lost"))


def record(entry: Entry) -> DebitRecord:
    """Decode a debit entry."""
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
    paid = Cost(details["cost_units"], details["delta_units"], order)
    left = _left(details, "spent", "cap", order)
    return DebitRecord(entry.number, request, paid, left, _allowance(details, order), entry.hash, entry.time)


def releases(
    store: Store,
    principal: str | None = None,
    dataset: str | None = None,
    *,
    after: int = 0,
    limit: int | None = None,
) -> tuple[ReleaseRecord, ...]:
    """Return debits in order, of one principal or all (None), on one dataset or all (None).

    Only debits of entries later than `after` are returned, and at most `limit` of them.
    """
    wanted = ["kind = 'debit'", "number > ?"]
    given: list[object] = [after]
    if principal is not None:  # uses the index of requests
        wanted.append("actor = ?")
        given.append(principal)
    if dataset is not None:  # + keeps off the index of datasets: there are more debits of one than of one principal
        wanted.append("dataset = ?" if principal is None else "+dataset = ?")
        given.append(dataset)
    numbers = f"SELECT number FROM entries WHERE {' AND '.join(wanted)} ORDER BY number LIMIT ?"  # noqa: S608
    found = store.find(f"number IN ({numbers}) ORDER BY number", *given, -1 if limit is None else limit)
    # Only these debits: between the first and the last of one analyst lie those of all others.
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


def _fits(new: Cost, left: Remainder) -> bool:
    return new.cost_units <= left.cost_units and new.delta_units <= left.delta_units


def _check(store: Store, account: Account, new: Cost, left: SpendingLimits) -> None:
    """Check that `new` fits into every limit. Raises BudgetExhaustedError, naming the first that refuses."""
    for name, limit in (("dataset", left.dataset), ("allowance", left.allowance), ("call", left.call)):
        if limit is not None and not _fits(new, limit):
            raise BudgetExhaustedError(new, limit, budget_in_force(store, account.name), name)


def _again(store: Store, entry: Entry, request_hash: bytes) -> Debit:
    # Refused, not answered: the caller would take the release of another request for this one's.
    if entry.details["request_hash"] != request_hash.hex():
        name = entry.details["request_id"]
        raise RequestIdReusedError(
            f"request_id {name!r} was used for another request (entry {entry.number}); choose a new one"
        )
    content = _stored(store, entry.number)
    status = DebitStatus.INTERRUPTED if content is None else DebitStatus.RELEASED
    paid = record(entry)
    return Debit(
        key=LEDGER_KEY,
        request=paid.request,
        entry=paid.entry,
        price=paid.price,
        remaining=paid.remaining,
        allowance=paid.allowance,
        head=paid.head,
        status=status,
        release=content,
    )


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


def _left(details: Mapping[str, Any], spent: str, cap: str, order: Fraction) -> Remainder:
    caps = details[f"{cap}_cost_units"], details[f"{cap}_delta_units"]
    return remaining(caps, (details[f"{spent}_cost_units"], details[f"{spent}_delta_units"]), order)


def _allowance(details: Mapping[str, Any], order: Fraction) -> Remainder | None:
    if details["allowance_cost_units"] is None:
        return None
    return _left(details, "analyst_spent", "allowance", order)
