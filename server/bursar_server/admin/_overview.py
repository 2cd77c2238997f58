"""Contents of the owner's page: tables, budgets, analysts, requests, checkpoints and backups, in sentences.

Reads the ledger and files beside it, and never a row.
"""

from __future__ import annotations

import datetime
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import grpc

from bursar_amounts import percent_text
from bursar_ledger import EVERYONE, REQUESTS, DatasetState, Ledger, LedgerError, ReleaseRecord
from bursar_ledger.audit._columns import lines
from bursar_ledger.audit._open import opened, rows_in_context
from bursar_ledger.audit._sentences import story
from bursar_ledger.audit._text import counted, short_time
from bursar_ledger.checkpoints import NoteError, Place, PlaceError, VerifierKey, verifier_keys
from bursar_ledger.refusals import FILE as REFUSALS
from bursar_ledger.refusals import Refusal, read_refusals
from bursar_server.access.tls import Certificates
from bursar_server.admin._acting import Held
from bursar_server.admin._backups import METHOD as WRITE_OFF
from bursar_server.admin._tables import is_closed
from bursar_server.admin._tokens import holders
from bursar_server.admin._totals import sentence, typical
from bursar_server.config import Config
from bursar_server.ops.backups import BackupNote
from bursar_server.ops.checkpoints import newest_at, places_of
from bursar_server.ops.health import ask

_RECENT = 400
"""Newest entries that fits and acts are looked for in: the page of a long ledger is as quick as a short one's."""

_MOST = 20
"""Fits, acts and refusals on the page."""

_PATIENCE = 2.0
"""Seconds to wait for a server's answer."""


@dataclass(frozen=True)
class Bar:
    """Part of a whole as a bar, its width a CSS length, with the same in words for people who do not see it."""

    width: str
    words: str


@dataclass(frozen=True)
class Analyst:
    """Amount that one analyst spent of an account."""

    name: str
    fits: int
    spent: Bar
    limit: str


@dataclass(frozen=True)
class Account:
    """Budget of one group of people.

    Attributes:
        datasets: tables that share it, each with its state in words.
        open: names of the tables that accept fits.
        debits: number of debits; without one, a registration can be withdrawn.
        others: limits for everybody, in sentences.
    """

    name: str
    datasets: tuple[tuple[str, str], ...]
    open: tuple[str, ...]
    meaning: str
    spent: Bar
    left: str
    debits: int
    analysts: tuple[Analyst, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Overview:
    """Everything on the page.

    Attributes:
        holders: name, role, state, end and datasets of each token.
        fits: number of the entry and a sentence for each recent debit, newest first.
        refusals: sentences, newest first; None if the server left no counts.
    """

    facts: tuple[tuple[str, str], ...]
    accounts: tuple[Account, ...]
    holders: tuple[tuple[str, ...], ...]
    fits: tuple[tuple[int, str], ...]
    refusals: tuple[str, ...] | None
    acts: tuple[tuple[int, str], ...]


def overview(held: Held, config: Config, health: str) -> Overview:
    """Return everything that the page shows."""
    ledger, now = held.ledger, datetime.datetime.now(datetime.UTC)
    states = {state.name: state for state in ledger.datasets()}
    newest = ledger.newest()[0]
    first = max(1, newest - _RECENT + 1)
    debits = ledger.releases(after=first - 1)[-_MOST:]
    acts = [entry.number for entry in ledger.entries(first) if entry.kind not in REQUESTS][-_MOST:]
    with opened(held.state.ledger) as db:
        told = {row.number: story(row, line).text for row, line, _ in lines(rows_in_context(db, acts))}
    refused = _refusals(held.state.path / REFUSALS)
    return Overview(
        facts=(
            ("server", health),
            ("ledger", f"{newest:,} entries, verified when this page was started"),
            *_checkpoints(held, config, newest),
            ("backup", _backup(BackupNote.load(held.state), newest, now)),
        ),
        accounts=tuple(_account(ledger, list(states.values()), s) for s in states.values() if s.account == s.name),
        holders=tuple(holders(ledger)),
        fits=tuple((debit.entry, _fit(debit, states[debit.dataset])) for debit in reversed(debits)),
        refusals=None if refused is None else tuple(_refusal(one, states.get(one.dataset)) for one in refused[:_MOST]),
        acts=tuple((number, told[number]) for number in reversed(acts)),
    )


def server_health(address: str, certificates: Certificates) -> str:
    """Ask the server at an address of the settings, and return its answer in words."""
    host, _, port = address.rpartition(":")
    reached = f"localhost:{port}" if host in ("0.0.0.0", "[::]") else address  # noqa: S104 - compared, not bound
    try:
        said = ask(reached, grpc.ssl_channel_credentials(certificates.ca.read_bytes()), _PATIENCE)
    except (grpc.RpcError, OSError):
        return f"none answers at {address}, the address in the settings; bursar-server health says more"
    return {
        "SERVING": f"serves at {address}",
        "SERVING DEGRADED": f"serves at {address}, and needs to be looked at: see its log, or Health here",
    }.get(said, f"answers at {address} that it does not serve: see its log, or Health here")


def _account(ledger: Ledger, states: list[DatasetState], state: DatasetState) -> Account:
    debits = sum(fits for fits, _ in ledger.spenders(state.account).values())
    sharing = [other for other in states if other.account == state.account]
    cap, left = state.cap_cost_units, state.remaining.cost_units
    shares, spenders = ledger.shares(state.account), ledger.spenders(state.account)
    names = dict.fromkeys([*sorted(spenders, key=lambda who: -spenders[who][1]), *shares])
    limits = {EVERYONE: "each analyst without an allowance of their own may spend", None: "one request may cost"}
    return Account(
        name=state.account,
        datasets=tuple((other.name, _kind(other)) for other in sharing),
        open=tuple(other.name for other in sharing if not other.retired),
        meaning=sentence(state.budget),
        spent=_bar(state.spent_cost_units, cap, "of the total is spent"),
        left=_left(state, debits, left),
        debits=debits,
        analysts=tuple(
            _analyst(name, spenders.get(name, (0, 0)), shares.get(name), state)
            for name in names
            if name is not None and name != EVERYONE
        ),
        others=tuple(
            f"{text} {state.budget.part(int(shares[whose] * cap))} of the total at most"
            for whose, text in limits.items()
            if whose in shares
        ),
    )


def _kind(state: DatasetState) -> str:
    if state.withdrawn:
        return "withdrawn, registered by mistake: accepts no fits"
    return "retired: accepts no fits" if state.retired else "accepts fits"


def _left(state: DatasetState, fits: int, left: int) -> str:
    if is_closed(state):
        return (
            f"More was spent, by {counted(fits, 'debit')}, than the total in force allows: no fit is accepted until "
            "the total is raised."
        )
    one = typical(state.budget)
    return (
        f"{state.left} of the total is left: enough for {counted(left // one.cost_units, 'fit')} of {one}. "
        f"{state.spent} was spent by {counted(fits, 'debit')}."
    )


def _analyst(name: str, spent: tuple[int, int], share: Fraction | None, state: DatasetState) -> Analyst:
    fits, units = spent
    most = percent_text(share, is_left=True)
    limit = "no allowance of their own" if share is None else f"at most {most} of the total"
    return Analyst(name, fits, _bar(units, state.cap_cost_units, f"of the total was spent by {name}"), limit)


def _bar(part: int, whole: int, words: str) -> Bar:
    # Rounded up, so that no debit is invisible; a closed account has spent more than all.
    share = Fraction(part, whole) if whole else Fraction(1)
    return Bar(f"{min(100.0, 100 * float(share)):.2f}%", f"{percent_text(share)} {words}")


def _fit(debit: ReleaseRecord, state: DatasetState) -> str:
    done = "wrote off" if debit.method == WRITE_OFF else f"ran {debit.method} on"
    released = "" if debit.released else " Nothing is stored as released: it runs, was interrupted, or failed."
    price = state.budget.part(debit.price.cost_units, debit.price.order)
    return f"{short_time(debit.time)} UTC: {debit.principal} {done} {debit.dataset} for {price} of the total.{released}"


def _refusal(refusal: Refusal, state: DatasetState | None) -> str:
    asked = ""
    if refusal.rho_asked is not None and refusal.rho_left is not None and state is not None:
        wanted = state.budget.part_of_rho(refusal.rho_asked)
        asked = f" It asked for {wanted}, and {state.budget.part_of_rho(refusal.rho_left, is_left=True)} was left."
    return (
        f"{refusal.analyst}: {refusal.method} on {refusal.dataset} was refused {counted(refusal.times, 'time')} "
        f"({refusal.refused_by}), the last one at {short_time(refusal.last)} UTC.{asked}"
    )


def _refusals(path: Path) -> tuple[Refusal, ...] | None:
    try:
        return read_refusals(path) if path.is_file() else None
    except sqlite3.Error:
        return None


def _checkpoints(held: Held, config: Config, newest: int) -> Iterator[tuple[str, str]]:
    keys = verifier_keys(held.state.ledger)
    if not keys:
        yield "checkpoints", "none: the ledger names no key yet; the server makes one when it starts"
        return
    places = places_of(held.state, config)
    if not places:
        yield "checkpoints", "none: the settings name no place for them"
    for place in places:
        yield f"checkpoints in {place.name}", _checkpoint(place, keys[-1].key, newest)


def _checkpoint(place: Place, key: VerifierKey, newest: int) -> str:
    if not place.readable:
        return "written, and cannot be read again here"
    try:
        found = newest_at(place, key)
    except (PlaceError, NoteError, LedgerError) as error:
        return f"cannot be read: {error}"
    if found is None:
        return "there is none that the key in force signed: bursar-admin checkpoint write"
    when = "" if found.time is None else f", made at {short_time(found.time)} UTC"
    return f"the newest is of entry {found.size}{when}; {_newer(newest - found.size)}"


def _backup(note: BackupNote | None, newest: int, now: datetime.datetime) -> str:
    if note is None:
        return "bursar-admin has made none of this directory: bursar-admin backup --whole FOLDER"
    days = (now - note.time).days
    age = f"{counted(days, 'day')} ago" if days > 0 else "less than a day ago"
    return (
        f"made {age}, at {short_time(note.time.isoformat())} UTC, to {note.path}, with {note.entries:,} entries; "
        f"{_newer(newest - note.entries)}"
    )


def _newer(count: int) -> str:
    return "no entry is newer" if count <= 0 else "1 entry is newer" if count == 1 else f"{count:,} entries are newer"
