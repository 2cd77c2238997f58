"""Entries as lines of a table with columns of fixed names and types, for people and other programs.

Stability: names, types and order of the columns do not change; new ones come at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from bursar_amounts import COST_UNIT, Part, float_down, total_text

from .._entries import REQUESTS, EntryKind, by_kind
from .._events import decode_fraction
from ._language import say_amount, say_part, say_percent
from ._open import BUDGETS, Fields, Row

_INT64 = 2**63
"""Integers of Parquet and SQLite end here; a forged ledger may hold larger ones, which become None."""


@dataclass(frozen=True)
class Line:
    """One entry. None stands for a field that an entry of its kind does not have.

    Attributes:
        entry: number.
        time: RFC 3339, as the server's clock said; informational, the order is that of the numbers.
        kind: what happened.
        dataset: name of the dataset concerned.
        account: the budget that the dataset spends.
        actor: person or program that did it; the analyst of a debit.
        method: RPC of a debit.
        request_id: the analyst's key of a debited request.
        cost_units: what was debited, in 2^-40 of Renyi divergence at the account's order.
        rho: the same for people, the zCDP parameter of Gaussian noise of that cost.
        share: the same as a part of the account's total at that time.
        delta_units: failure probability debited, in 2^-60.
        spent_cost_units: the account's sum just after the debit.
        cap_cost_units: the account's total at that time.
        released: whether a debit has its stored release.
        reason: why, in the actor's words, for administrative acts.
        head: hash of the entry, hexadecimal: the head of the chain just after it.
        epsilon: what was debited, as the epsilon that it implies by itself at `delta`, rounded up.
        delta: the part of the budget's delta at that time that converts divergence.
        percent: what was debited, in percent of the account's total at that time.
    """

    entry: int
    time: str | None
    kind: str | None
    dataset: str | None
    account: str | None
    actor: str | None
    method: str | None
    request_id: str | None
    cost_units: int | None
    rho: float | None
    share: float | None
    delta_units: int | None
    spent_cost_units: int | None
    cap_cost_units: int | None
    released: bool | None
    reason: str | None
    head: str
    epsilon: float | None = None
    delta: float | None = None
    percent: float | None = None


COLUMNS: dict[str, type] = {
    f.name: {"int": int, "float": float, "bool": bool, "str": str}[str(f.type).split(" ")[0]]
    for f in dataclasses.fields(Line)
}
"""Name and type of every column."""

_TYPES: dict[str, type] = {
    **dict.fromkeys(("method", "request_id", "reason", "account"), str),
    **dict.fromkeys(("cost_units", "delta_units", "spent_cost_units", "cap_cost_units"), int),
}


@dataclass(frozen=True)
class Filter:
    """Selection of entries, from `since` on and before `until`, or of unreadable time; None and no kinds select all."""

    dataset: str | None = None
    analyst: str | None = None
    method: str | None = None
    kinds: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None

    def wants(self, line: Line) -> bool:
        """Return whether an entry is selected."""
        return (
            self.dataset in (None, line.dataset, line.account)
            and (self.analyst is None or (line.actor == self.analyst and line.kind in REQUESTS))
            and self.method in (None, line.method)
            and (not self.kinds or line.kind in self.kinds)
            and self._in_time(line.time)
        )

    def _in_time(self, text: str | None) -> bool:
        time = read_time(text)
        return time is None or (
            (self.since is None or self.since <= time) and (self.until is None or time < self.until)
        )


def read_time(text: str | None) -> datetime | None:
    """Return the instant of an entry's time; None if it cannot be read."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


class Accounts:
    """Account of each dataset, and the budget's delta of each account, learned while entries go by in order."""

    def __init__(self) -> None:
        self._accounts: dict[str, str] = {}
        self._deltas: dict[str | None, float] = {}

    def learn(self, row: Row, account: str | None) -> None:
        """Take the delta of a budget that an entry promises; of a budget that cannot be read none is known."""
        details = row.details
        if row.text("kind") in BUDGETS and "epsilon" in details:
            self._deltas.pop(account, None)
            with contextlib.suppress(KeyError, TypeError, ValueError, ArithmeticError):
                share = decode_fraction(details["delta_fail_share"])
                self._deltas[account] = float_down(Fraction(details["delta"]) * (1 - share))

    def delta(self, account: str | None) -> float | None:
        """Return the part of the delta in force that converts divergence; None if it is unknown."""
        return self._deltas.get(account)

    def of(self, row: Row) -> str | None:
        """Return the account of an entry, None if it concerns none."""
        dataset, named = row.text("dataset"), row.details.get("account")
        if not dataset:
            return named if isinstance(named, str) else None
        if isinstance(named, str):
            return self._accounts.setdefault(dataset, named)
        return self._accounts.get(dataset, dataset)


def lines(rows: Iterable[Row]) -> Iterator[tuple[Row, Line, bool]]:
    """Yield each row with its line, and whether every field was of its type; a field that is not becomes None."""
    accounts = Accounts()
    for row in rows:
        details = row.details
        taken = {name: _typed(details, name, kind) for name, kind in _TYPES.items()}
        right = row.fields is not None and all(taken[n] is not None for n in _TYPES if details.get(n) is not None)
        taken["account"] = account = accounts.of(row)
        accounts.learn(row, account)
        debit = row.text("kind") == EntryKind.DEBIT
        share = _share(taken["cost_units"], taken["cap_cost_units"])
        line = Line(
            entry=row.number,
            time=row.text("time"),
            kind=row.text("kind"),
            dataset=row.text("dataset") or None,
            actor=row.text("actor"),
            rho=rho(taken["cost_units"], details.get("order")) if debit else None,
            share=share,
            released=row.released if debit else None,
            head=row.hash.hex(),
            delta=accounts.delta(account) if debit else None,
            percent=None if share is None else 100 * share,
            **taken,
        )
        yield row, replace(line, epsilon=_epsilon(row, line)) if debit else line, right


def amount(row: Row, line: Line, units: int, *, is_left: bool = False) -> str:
    """Return units of cost as a part of the budget that was in force at a debit, as people read it.

    Raises KeyError, TypeError, ValueError or ArithmeticError if a field is missing or of another type.
    """
    return say_part(_part(row, line, units, is_left=is_left))


def cost_text(line: Line) -> str:
    """Return what a debit cost, as people read it; without the epsilon where the budget's delta is unknown."""
    if line.epsilon is None or line.share is None:
        return say_percent(line.share)
    return say_amount(line.epsilon, line.share)


def rho(units: int | None, order: object) -> float | None:
    """Convert units of cost at an entry's order to zCDP's rho of Gaussian noise; None if one is missing."""
    if units is None or not isinstance(order, str):
        return None
    try:
        return float(Fraction(units) / (COST_UNIT * decode_fraction(order)))
    except (ValueError, ArithmeticError):
        return None


def summary(row: Row, line: Line) -> str:
    """Describe an entry in a few words."""
    try:
        return _SUMMARIES.get(line.kind or "", _reason)(row.details, line)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return "(fields are missing or of another type; run verify)"


def _typed(details: Fields, name: str, kind: type) -> Any:
    value = details.get(name)
    return value if type(value) is kind and (not isinstance(value, int) or abs(value) < _INT64) else None


def _epsilon(row: Row, line: Line) -> float | None:
    if line.cost_units is None or line.delta is None:
        return None
    try:
        epsilon = _part(row, line, line.cost_units).epsilon
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
    return epsilon if math.isfinite(epsilon) else None


def _part(row: Row, line: Line, units: int, *, is_left: bool = False) -> Part:
    order = decode_fraction(row.details["order"])
    return Part(units, line.cap_cost_units or 0, order, Fraction(line.delta or 0), is_left)


def _share(cost: int | None, cap: int | None) -> float | None:
    return cost / cap if cost is not None and cap else None


def _with_reason(text: str, details: Fields) -> str:
    return f"{text}: {details['reason']}" if details.get("reason") else text


def _reason(details: Fields, line: Line) -> str:
    return str(details.get("reason") or "")


def _promise(details: Fields) -> str:
    return f"(epsilon, delta) = {total_text(float(details['epsilon']), float(details['delta']))}"


def _registration(details: Fields, line: Line) -> str:
    joined = f", joins account {details['account']}" if details["account"] != line.dataset else ""
    promise = f"{_promise(details)}, " if "epsilon" in details else ""
    return _with_reason(f"{promise}{details['adjacency']}{joined}", details)


def _budget(details: Fields, line: Line) -> str:
    before = f", before {_promise(details['previous'])}" if details.get("previous") else ""
    return _with_reason(f"new total {_promise(details)}{before}", details)


def _debit(details: Fields, line: Line) -> str:
    waiting = "" if line.released else ", no release stored"
    return f"{line.method}: {cost_text(line)}, request {line.request_id}{waiting}"


def _release(details: Fields, line: Line) -> str:
    return f"{details['size']} bytes under debit {details['debit']}"


def _credential(details: Fields, line: Line) -> str:
    until = f", until {details['expires']}" if "expires" in details else ""
    only = f", only {', '.join(map(str, details['datasets']))}" if "datasets" in details else ""
    return _with_reason(f"{details['credential']} ({details.get('role', 'revoked')}{until}{only})", details)


def _allowance(details: Fields, line: Line) -> str:
    who = "everyone else" if details["analyst"] == "*" else str(details["analyst"])
    what = f"at most {details['share']} of the total" if details["share"] is not None else "no allowance any more"
    return _with_reason(f"{who}: {what}", details)


def _call_limit(details: Fields, line: Line) -> str:
    share = details["share"]
    what = f"one call costs at most {share} of the total" if share is not None else "no limit for one call any more"
    return _with_reason(what, details)


def _retirement(details: Fields, line: Line) -> str:
    mistake = details.get("withdrawn", False)
    return _with_reason("withdrawn: registered by mistake, no debits" if mistake else "no new debits", details)


def _destruction(details: Fields, line: Line) -> str:
    return _with_reason(f"{details['destroyed']} destroyed", details)


def _snapshot(details: Fields, line: Line) -> str:
    return _with_reason("new rows of the same people", details)


def _checkpoint_key(details: Fields, line: Line) -> str:
    return _with_reason(f"{details['verifier_key']}", details)


def _upgrade(details: Fields, line: Line) -> str:
    return _with_reason(f"schema {details['from']} to {details['to']}", details)


_SUMMARIES = by_kind(
    {
        EntryKind.GENESIS: _reason,
        EntryKind.REGISTRATION: _registration,
        EntryKind.BUDGET: _budget,
        EntryKind.DEBIT: _debit,
        EntryKind.RELEASE: _release,
        EntryKind.CREDENTIAL_ISSUED: _credential,
        EntryKind.CREDENTIAL_REVOKED: _credential,
        EntryKind.ALLOWANCE: _allowance,
        EntryKind.CALL_LIMIT: _call_limit,
        EntryKind.RETIREMENT: _retirement,
        EntryKind.DESTRUCTION: _destruction,
        EntryKind.SNAPSHOT: _snapshot,
        EntryKind.CHECKPOINT_KEY: _checkpoint_key,
        EntryKind.UPGRADE: _upgrade,
    }
)
