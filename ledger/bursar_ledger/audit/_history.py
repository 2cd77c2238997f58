"""History of every account, collected in one walk over the entries: totals, analysts, the burn-down, admin events.

Sums and caps are taken as the entries state them; that they are right is what `verify` has found out before.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from bursar_amounts import COST_UNIT, Part

from .._entries import REQUESTS, EntryKind, by_kind
from .._events import ApproximateEvent, GaussianEvent, decode_event, decode_fraction
from ..refusals import Refusal
from ._columns import Line, lines, read_time, summary
from ._open import Row
from ._sentences import Story, story


@dataclass(frozen=True)
class Promise:
    """Total that was promised for an account.

    Attributes:
        entry: number of the entry that promised it; time, actor and reason are the entry's.
        spent: part of this total that earlier debits had taken.
    """

    entry: int
    time: str
    actor: str
    reason: str
    epsilon: float
    delta: float
    spent: float


@dataclass
class Losses:
    """Releases to an analyst or from an account, collected so that they can be composed in any way.

    Attributes:
        gaussian: sum over Gaussian releases of squared sensitivity / squared scale.
        others: the other exact events, each with how often it happened.
        failures: sum of failure probabilities.
    """

    gaussian: float = 0.0
    others: Counter[Any] = field(default_factory=Counter)
    failures: Fraction = Fraction(0)

    def add(self, other: Losses) -> None:
        """Add what `other` holds."""
        self.gaussian += other.gaussian
        self.others.update(other.others)
        self.failures += other.failures


@dataclass
class Spender:
    """Amounts that one analyst spent of an account.

    Attributes:
        cost_units: sum of the debits at the account's order in force.
        unreleased: number of debits without a stored release.
    """

    cost_units: int = 0
    delta_units: int = 0
    debits: int = 0
    unreleased: int = 0
    losses: Losses = field(default_factory=Losses)


@dataclass
class BurnDown:
    """Account after each debit and each new total: number of the entry, its time, what is left, and by whom.

    Attributes:
        entries: numbers.
        times: seconds since 1970, NaN if the time cannot be read.
        left: part of the total in force, 0 to 1.
        who: index into the analysts' names, -1 for a new total.
        analysts: names.
    """

    entries: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    left: array[float] = field(default_factory=lambda: array("d"))
    who: array[int] = field(default_factory=lambda: array("l"))
    analysts: dict[str, int] = field(default_factory=dict)

    def add(self, row: Row, left: float, analyst: str | None) -> None:
        """Add the next point."""
        time = read_time(row.text("time"))
        self.entries.append(row.number)
        self.times.append(time.timestamp() if time else float("nan"))
        self.left.append(min(max(left, 0.0), 1.0))
        self.who.append(-1 if analyst is None else self.analysts.setdefault(analyst, len(self.analysts)))


@dataclass
class AccountHistory:
    """One account: the people whose rows its datasets hold."""

    name: str
    datasets: dict[str, str] = field(default_factory=dict)
    """Names with what is said about them: adjacency, and whether they are retired."""
    promises: list[Promise] = field(default_factory=list)
    delta_fail_share: Fraction = Fraction(0)
    order: Fraction = Fraction(2)
    cap_cost_units: int = 0
    cap_delta_units: int = 0
    spent_cost_units: int = 0
    spent_delta_units: int = 0
    allowances: dict[str, Fraction] = field(default_factory=dict)
    call_limit: Fraction | None = None
    spenders: dict[str, Spender] = field(default_factory=dict)
    burn_down: BurnDown = field(default_factory=BurnDown)

    @property
    def epsilon(self) -> float:
        """Epsilon of the total in force."""
        return self.promises[-1].epsilon

    @property
    def delta(self) -> float:
        """Delta of the total in force."""
        return self.promises[-1].delta

    @property
    def left_cost_units(self) -> int:
        """Remaining units of cost; 0 if more was spent than the total in force."""
        return max(self.cap_cost_units - self.spent_cost_units, 0)

    @property
    def left_delta_units(self) -> int:
        """Remaining units of failure probability; 0 if more was spent than the total in force."""
        return max(self.cap_delta_units - self.spent_delta_units, 0)

    @property
    def closed(self) -> bool:
        """True if the total was lowered below what had been spent."""
        return self.spent_cost_units > self.cap_cost_units or self.spent_delta_units > self.cap_delta_units

    def part(self, cost_units: int, *, is_left: bool = False) -> Part:
        """Return units of cost at the order in force as an amount for people."""
        delta = Fraction(self.delta) * (1 - self.delta_fail_share)
        return Part(cost_units, self.cap_cost_units, self.order, delta, is_left)

    def limit(self, share: Fraction) -> Part:
        """Return a share of the total in force as an amount for people."""
        return self.part(math.floor(self.cap_cost_units * share), is_left=True)

    def allowance(self, analyst: str) -> Fraction | None:
        """Return the part of the total that an analyst may spend, None without a limit."""
        return self.allowances.get(analyst, self.allowances.get("*"))

    @property
    def debits(self) -> int:
        """Number of debits."""
        return sum(spender.debits for spender in self.spenders.values())

    @property
    def unreleased(self) -> int:
        """Number of debits without a stored release."""
        return sum(spender.unreleased for spender in self.spenders.values())

    @property
    def losses(self) -> Losses:
        """Privacy losses of all releases from the account."""
        total = Losses()
        for spender in self.spenders.values():
            total.add(spender.losses)
        return total


@dataclass(frozen=True)
class Act:
    """Admin event, in words: `what` in a few, `story` in a sentence."""

    entry: int
    time: str
    kind: str
    dataset: str
    actor: str
    what: str
    story: Story


@dataclass
class History:
    """History of the whole ledger.

    Attributes:
        ledger_id: ledger id of the genesis entry, "" if there is none.
        accounts: by name, in the order in which they began.
        unread: numbers of the entries that could not be understood.
    """

    ledger_id: str = ""
    accounts: dict[str, AccountHistory] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)


def refused_amounts(refusal: Refusal, told: History) -> tuple[Part, Part] | None:
    """Return what a refused request would have cost, and what was left; None if the server or the ledger lacks it."""
    account = next((one for one in told.accounts.values() if refusal.dataset in one.datasets), None)
    asked, left = refusal.rho_asked, refusal.rho_left
    # The file may hold anything.
    if account is None or not all(isinstance(one, float) and math.isfinite(one) for one in (asked, left)):
        return None
    unit = COST_UNIT * account.order
    return (
        account.part(math.ceil(unit * Fraction(asked or 0))),
        account.part(math.floor(unit * Fraction(left or 0)), is_left=True),
    )


def history(rows: Iterable[Row]) -> History:
    """Collect the history from entries in order. An entry that cannot be read is left out, and its number noted."""
    found = History()
    for _ in following(found, lines(rows)):
        pass
    return found


def following(
    found: History, entries: Iterable[tuple[Row, Line, bool]], last: int | None = None
) -> Iterator[tuple[Row, Line]]:
    """Yield the same entries, each up to `last` after `found` has taken it; `found` is whole when they end."""
    for row, line, right in entries:
        if last is not None and row.number > last:
            yield row, line
            continue
        try:
            _take(found, row, line)
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
            right = False
        if not right:
            found.unread.append(row.number)
        yield row, line
    # An account without a promise is one that a forger made up: there is nothing to say about it.
    found.accounts = {name: account for name, account in found.accounts.items() if account.promises}


def _take(found: History, row: Row, line: Line) -> None:
    if line.kind not in REQUESTS:
        found.acts.append(
            Act(
                entry=row.number,
                time=line.time or "",
                kind=line.kind or "unreadable",
                dataset=line.dataset or "",
                actor=line.actor or "",
                what=summary(row, line),
                story=story(row, line),
            )
        )
    if line.kind == EntryKind.GENESIS:
        found.ledger_id = str(row.details["ledger_id"])
    elif line.account is not None and line.kind in _TAKERS:
        account = found.accounts.setdefault(line.account, AccountHistory(line.account))
        _TAKERS[line.kind](account, row, line)


def _registration(account: AccountHistory, row: Row, line: Line) -> None:
    account.datasets[str(line.dataset)] = str(row.details["adjacency"])
    if "epsilon" in row.details:  # one that joins an account makes no promise of its own
        _promise(account, row, line)


def _promise(account: AccountHistory, row: Row, line: Line) -> None:
    details = row.details
    order, cap = decode_fraction(details["order"]), int(details["cap_cost_units"])
    spent = int(details.get("spent_cost_units", 0))
    epsilon, delta = float(details["epsilon"]), float(details["delta"])
    account.promises.append(
        Promise(
            entry=row.number,
            time=line.time or "",
            actor=line.actor or "",
            reason=str(details.get("reason") or ""),
            epsilon=epsilon,
            delta=delta,
            spent=spent / cap,
        )
    )
    account.order, account.cap_cost_units, account.cap_delta_units = order, cap, int(details["cap_delta_units"])
    account.spent_cost_units, account.spent_delta_units = spent, int(details.get("spent_delta_units", 0))
    account.delta_fail_share = decode_fraction(details["delta_fail_share"])
    for analyst, (cost, failure) in details.get("analysts", {}).items():
        spender = account.spenders.setdefault(str(analyst), Spender())
        spender.cost_units, spender.delta_units = int(cost), int(failure)
    account.burn_down.add(row, 1 - spent / cap, None)


def _debit(account: AccountHistory, row: Row, line: Line) -> None:
    details, analyst = row.details, str(line.actor)
    cost, failure = int(details["cost_units"]), int(details["delta_units"])
    spent, cap = int(details["spent_cost_units"]), int(details["cap_cost_units"])
    losses = _losses(json.dumps(details["events"]))
    account.spent_cost_units, account.spent_delta_units = spent, int(details["spent_delta_units"])
    spender = account.spenders.setdefault(analyst, Spender())
    spender.cost_units += cost
    spender.delta_units += failure
    spender.debits += 1
    spender.unreleased += not row.released
    spender.losses.add(losses)
    account.burn_down.add(row, 1 - spent / cap, analyst)


def _allowance(account: AccountHistory, row: Row, line: Line) -> None:
    analyst, share = str(row.details["analyst"]), row.details["share"]
    if share is None:
        account.allowances.pop(analyst, None)
    else:
        account.allowances[analyst] = decode_fraction(share)


def _call_limit(account: AccountHistory, row: Row, line: Line) -> None:
    share = row.details["share"]
    account.call_limit = None if share is None else decode_fraction(share)


def _retirement(account: AccountHistory, row: Row, line: Line) -> None:
    ended = "withdrawn" if row.details.get("withdrawn", False) else "retired"
    account.datasets[str(line.dataset)] = f"{account.datasets.get(str(line.dataset), '')}, {ended}"


def _destruction(account: AccountHistory, row: Row, line: Line) -> None:
    so_far = account.datasets.get(str(line.dataset), "")
    account.datasets[str(line.dataset)] = f"{so_far}, {row.details['destroyed']} destroyed"


_TAKERS = by_kind(
    {
        EntryKind.REGISTRATION: _registration,
        EntryKind.BUDGET: _promise,
        EntryKind.DEBIT: _debit,
        EntryKind.ALLOWANCE: _allowance,
        EntryKind.CALL_LIMIT: _call_limit,
        EntryKind.RETIREMENT: _retirement,
        EntryKind.DESTRUCTION: _destruction,
    },
    without=(
        EntryKind.GENESIS,
        EntryKind.SNAPSHOT,
        EntryKind.RELEASE,
        EntryKind.CREDENTIAL_ISSUED,
        EntryKind.CREDENTIAL_REVOKED,
        EntryKind.CHECKPOINT_KEY,
        EntryKind.UPGRADE,
    ),
)


@functools.lru_cache(maxsize=16384)
def _losses(events: str) -> Losses:
    """Return what the events of one debit (as JSON) add; the caller must not change it."""
    made = Losses()
    for event in map(decode_event, json.loads(events)):
        times = event.count
        inner = event
        if isinstance(event, ApproximateEvent):
            made.failures += event.count * Fraction(event.delta)
            inner, times = event.event, event.count * event.event.count
        if isinstance(inner, GaussianEvent):
            made.gaussian += float(times * inner.l2_squared / Fraction(inner.scale) ** 2)
        else:
            made.others[dataclasses.replace(inner, count=1)] += times
    return made
