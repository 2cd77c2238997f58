"""Replay of a ledger's history, entry by entry, which computes again everything that can be computed.

Each entry was examined by itself before (`_check_entry`); here are the links between them and the sums over them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ._bounds_check import cap_problems
from ._check_entry import UNREADABLE, Examined, Fields, unreadable
from ._entries import ACCOUNT_STATES, NO_ENTRY, EntryKind, by_kind
from ._events import Adjacency, decode_fraction, encode_fraction
from ._types import EVERYONE


@dataclass
class AccountTotals:
    """Totals that were promised to the people of an account, and the sums of its debits; in the ledger's units.

    Attributes:
        name: name of the account: the dataset that was registered first.
        datasets: all names that share it, in order.
        order: Renyi order of the total in force.
        budgets: every total that was promised: (entry, epsilon, delta). If totals were changed because of what was
            released, their deltas add up.
        spent_cost_units: sum over all debits, at the order in force.
        analysts: amount that each analyst spent: (cost units, delta units).
    """

    name: str
    datasets: tuple[str, ...]
    adjacency: str
    epsilon: float
    delta: float
    delta_fail_share: Fraction
    order: Fraction
    cap_cost_units: int
    cap_delta_units: int
    budgets: tuple[tuple[int, float, float], ...]
    spent_cost_units: int = 0
    spent_delta_units: int = 0
    debits: int = 0
    analysts: dict[str, tuple[int, int]] = field(default_factory=dict)
    allowances: dict[str, Fraction] = field(default_factory=dict)
    call_share: Fraction | None = None

    @property
    def closed(self) -> bool:
        """True if a total was set below what had been spent."""
        return not (self.spent_cost_units <= self.cap_cost_units and self.spent_delta_units <= self.cap_delta_units)

    def part(self, share: Fraction | None) -> tuple[int | None, int | None]:
        """Return a share of the caps in force, rounded down."""
        if share is None:
            return None, None
        return math.floor(share * self.cap_cost_units), math.floor(share * self.cap_delta_units)


@dataclass(frozen=True)
class Restatement:
    """Sums before a new total, as its entry states them; compared with the events, which are read once more."""

    number: int
    account: str
    order: Fraction
    analysts: Mapping[str, tuple[int, int]]


@dataclass
class Replay:
    """State after the entries taken so far. `take` them in order, then `take_releases`."""

    number: int = 0
    head: bytes = NO_ENTRY
    ledger_id: str = ""
    problems: list[str] = field(default_factory=list)
    accounts: dict[str, AccountTotals] = field(default_factory=dict)
    restatements: list[Restatement] = field(default_factory=list)
    verifier_keys: list[tuple[int, str]] = field(default_factory=list)
    _account_of: dict[str, str] = field(default_factory=dict)
    _retired: set[str] = field(default_factory=set)
    _debited: set[str] = field(default_factory=set)
    _destroyed: set[tuple[str, str]] = field(default_factory=set)
    _requests: set[tuple[str, str]] = field(default_factory=set)
    _unreleased: dict[int, str] = field(default_factory=dict)
    _digests: dict[int, tuple[int, str]] = field(default_factory=dict)
    _credentials: dict[str, bool] = field(default_factory=dict)
    _tokens: set[str] = field(default_factory=set)

    def take(self, entry: Examined) -> None:
        """Take the next entry."""
        expected, previous = self.number + 1, self.head
        # Go on from what is there, also after a finding: one damaged entry must not hide those behind it.
        self.number, self.head = entry.number, entry.hash
        if self.number != expected:
            self._problem(f"expected entry {expected} here; entries are missing or out of order")
        for problem in entry.problems:
            self._problem(problem)
        fields = entry.fields
        if fields is None:
            return
        try:
            if fields["previous"] != previous.hex():
                self._problem("it does not follow from the entry before it; one of the two was changed")
            if (fields["kind"] == EntryKind.GENESIS) != (self.number == 1):
                self._problem("a ledger begins with one genesis entry")
            # The newest entry with caps answers for the whole account, so none but these may hold any.
            if fields["kind"] not in ACCOUNT_STATES and not _STATE.isdisjoint(fields["details"]):
                self._problem("only registrations, totals and debits have caps and sums")
            _KINDS.get(fields["kind"], Replay._unknown)(self, fields)
        except UNREADABLE as error:
            self._problem(unreadable(error))

    def take_releases(self, stored: Iterable[tuple[int, str]]) -> None:
        """Take the table of released bytes as (debit, SHA-256 in hexadecimal digits), after the last entry.

        Entries may follow all the same: nothing but findings is changed.
        """
        missing = dict(self._digests)
        for debit, digest in stored:
            number, recorded = missing.pop(debit, (debit, ""))
            if not recorded:
                self._problem("released bytes are stored, but no release entry names them", number)
            elif digest != recorded:
                self._problem(f"the bytes released under debit {debit} are not those whose digest was recorded", number)
        for debit, (number, _) in missing.items():
            self._problem(f"the bytes released under debit {debit} are missing", number)
        if self.number == 0:
            self.problems.append("the ledger is empty; it must begin with a genesis entry")

    def _genesis(self, fields: Fields) -> None:
        details = fields["details"]
        if (details["format"], details["cost_unit"], details["delta_unit"]) != (1, 1 << 40, 1 << 60):
            self._problem("the format or the units are not those of this version")
        self.ledger_id = str(details["ledger_id"])

    def _registration(self, fields: Fields) -> None:
        name, details = fields["dataset"], fields["details"]
        account = details["account"]
        Adjacency(details["adjacency"])
        if name in self._account_of:
            self._problem(f"dataset {name!r} is registered twice")
        _check_tag(details)
        self._account_of[name] = account
        if not (_SUMS if account == name else _STATE).isdisjoint(details):
            self._problem("a registration has sums, or caps of an account that it only joins")
        if account == name:
            self._open_account(name, details)
        elif account not in self.accounts:
            self._problem(f"dataset {name!r} joins account {account!r}, which there is not")
        else:
            totals = self.accounts[account]
            totals.datasets += (name,)
            if details["adjacency"] != totals.adjacency:
                self._problem(f"dataset {name!r} joins account {account!r} with another adjacency")

    def _open_account(self, name: str, details: Fields) -> None:
        self.accounts[name] = AccountTotals(
            name=name,
            datasets=(name,),
            adjacency=details["adjacency"],
            budgets=((self.number, details["epsilon"], details["delta"]),),
            **promised(details),
        )
        self._check_caps(self.accounts[name])

    def _check_caps(self, totals: AccountTotals) -> None:
        for problem in cap_problems(
            totals.epsilon,
            totals.delta,
            totals.delta_fail_share,
            totals.order,
            totals.cap_cost_units,
            totals.cap_delta_units,
        ):
            self._problem(f"account {totals.name!r}: {problem}")

    def _totals(self, fields: Fields) -> AccountTotals | None:
        """Return the account that an entry about a dataset names, if it is the dataset's."""
        name = fields["dataset"]
        account = fields["details"]["account"]
        if self._account_of.get(name) != account or account not in self.accounts:
            self._problem(f"dataset {name!r} was not registered before with account {account!r}")
            return None
        return self.accounts[account]

    def _snapshot(self, fields: Fields) -> None:
        self._totals(fields)
        _check_tag(fields["details"])
        if fields["dataset"] in self._retired:
            self._problem("a snapshot of a retired dataset")

    def _retirement(self, fields: Fields) -> None:
        self._totals(fields)
        if fields["dataset"] in self._retired:
            self._problem("a dataset was retired twice")
        if fields["details"].get("withdrawn", False) and fields["dataset"] in self._debited:
            self._problem("a dataset was withdrawn that had debits")
        self._retired.add(fields["dataset"])

    def _destruction(self, fields: Fields) -> None:
        self._totals(fields)
        name, what = fields["dataset"], fields["details"]["destroyed"]
        if name not in self._retired:
            self._problem("a destruction of a dataset that is not retired")
        if what not in ("rows", "key") or (name, what) in self._destroyed:
            self._problem("the rows or the key of a dataset are destroyed, each once")
        if what == "key" and (name, "rows") not in self._destroyed:
            self._problem("a key was destroyed before the rows")
        self._destroyed.add((name, what))

    def _budget(self, fields: Fields) -> None:
        totals, details = self._totals(fields), fields["details"]
        if totals is None:
            return
        if details["previous"] != {"epsilon": totals.epsilon, "delta": totals.delta}:
            self._problem("previous is not the total that was in force")
        analysts = {name: (cost, delta) for name, (cost, delta) in details["analysts"].items()}
        stated = {name: delta for name, (_, delta) in analysts.items()}
        # A new order changes what debits cost; failure probabilities have no order, so they stay.
        if stated != {name: delta for name, (_, delta) in totals.analysts.items()}:
            self._problem("analysts are not those who were debited, or their units of delta changed")
        totals.budgets += ((self.number, details["epsilon"], details["delta"]),)
        for key, value in promised(details).items():
            setattr(totals, key, value)
        totals.analysts = analysts
        totals.spent_cost_units = sum(cost for cost, _ in analysts.values())
        totals.spent_delta_units = sum(delta for _, delta in analysts.values())
        self._check_state(details, totals)
        self._check_caps(totals)
        # A copy: later debits go on from the same sums.
        self.restatements.append(Restatement(self.number, totals.name, totals.order, dict(analysts)))

    def _allowance(self, fields: Fields) -> None:
        totals, details = self._totals(fields), fields["details"]
        if totals is None:
            return
        totals.allowances.pop(details["analyst"], None)
        if details["share"] is not None:
            totals.allowances[details["analyst"]] = share_of(details["share"])

    def _call_limit(self, fields: Fields) -> None:
        totals, share = self._totals(fields), fields["details"]["share"]
        if totals is not None:
            totals.call_share = None if share is None else share_of(share)

    def _debit(self, fields: Fields) -> None:
        details, analyst = fields["details"], fields["actor"]
        request = (analyst, details["request_id"])
        if request in self._requests:
            self._problem("a request was debited twice")
        self._requests.add(request)
        self._debited.add(fields["dataset"])
        self._unreleased[self.number] = fields["dataset"]
        if fields["dataset"] in self._retired:
            self._problem("a debit from a retired dataset")
        totals = self._totals(fields)
        if totals is None:
            return
        cost, failure = details["cost_units"], details["delta_units"]
        if type(cost) is not int or type(failure) is not int or not (cost >= 1 and failure >= 0):
            self._problem("cost_units must be a positive integer, delta_units one that is not negative")
        if details["order"] != encode_fraction(totals.order):
            self._problem("priced at another order than the account's")
        before = totals.analysts.get(analyst, (0, 0))
        totals.analysts[analyst] = (before[0] + cost, before[1] + failure)
        totals.debits += 1
        totals.spent_cost_units += cost
        totals.spent_delta_units += failure
        self._check_state(details, totals)
        # Only a debit is wrong here: a total that was set below what was spent closes the account, and is no finding.
        if totals.closed:
            self._problem(f"account {totals.name!r} is overspent")
        self._check_limits(details, totals, analyst)

    def _check_state(self, details: Fields, totals: AccountTotals) -> None:
        for name in ("spent_cost_units", "spent_delta_units", "cap_cost_units", "cap_delta_units"):
            if details[name] != getattr(totals, name):
                self._problem(f"{name} is {details[name]}, but the history gives {getattr(totals, name)}")

    def _check_limits(self, details: Fields, totals: AccountTotals, analyst: str) -> None:
        allowance = totals.part(totals.allowances.get(analyst, totals.allowances.get(EVERYONE)))
        call = totals.part(totals.call_share)
        spent = totals.analysts[analyst]
        expected = dict(zip(_LIMIT_FIELDS, (*spent, *allowance, *call), strict=True))
        for name, value in expected.items():
            if details[name] != value:
                self._problem(f"{name} is {details[name]}, but the history gives {value}")
        if not (_within(spent, allowance) and _within((details["cost_units"], details["delta_units"]), call)):
            self._problem(f"analyst {analyst!r} spent more than the limits of account {totals.name!r} allow")

    def _release(self, fields: Fields) -> None:
        details = fields["details"]
        if self._unreleased.pop(details["debit"], None) != fields["dataset"]:
            self._problem(f"entry {details['debit']} is not a debit of this dataset that waits for its release")
        self._digests[details["debit"]] = (self.number, details["sha256"])

    def _credential_issued(self, fields: Fields) -> None:
        details = fields["details"]
        if self._credentials.get(details["credential"]) or details["token_hash"] in self._tokens:
            self._problem("a credential was issued to a name that has one in force, or a token was issued twice")
        self._credentials[details["credential"]] = True
        self._tokens.add(details["token_hash"])

    def _credential_revoked(self, fields: Fields) -> None:
        name = fields["details"]["credential"]
        if not self._credentials.get(name):
            self._problem("a credential was revoked that was not in force")
        self._credentials[name] = False

    def _checkpoint_key(self, fields: Fields) -> None:
        self.verifier_keys.append((self.number, str(fields["details"]["verifier_key"])))

    def _upgrade(self, fields: Fields) -> None:
        if not fields["details"]["from"] < fields["details"]["to"]:
            self._problem("an upgrade goes from an older version to a newer one")

    def _unknown(self, fields: Fields) -> None:
        self._problem(f"entries of kind {fields['kind']!r} are unknown to this version")

    def _problem(self, text: str, number: int | None = None) -> None:
        self.problems.append(f"entry {self.number if number is None else number}: {text}")


_SUMS = frozenset({"spent_cost_units", "spent_delta_units"})
_STATE = _SUMS | {"cap_cost_units", "cap_delta_units"}
_NO_LIMIT = (None, None)
_LIMIT_FIELDS = (
    "analyst_spent_cost_units",
    "analyst_spent_delta_units",
    "allowance_cost_units",
    "allowance_delta_units",
    "call_cost_units",
    "call_delta_units",
)


def _check_tag(details: Fields) -> None:
    """Raise ValueError or KeyError unless the tag of a content can be read, as every list of datasets does."""
    bytes.fromhex(details["content_tag"])


def promised(details: Fields) -> dict[str, Any]:
    """Read a total from an entry that states one."""
    plain = {key: details[key] for key in ("epsilon", "delta", "cap_cost_units", "cap_delta_units")}
    return {
        **plain,
        "order": decode_fraction(details["order"]),
        "delta_fail_share": decode_fraction(details["delta_fail_share"]),
    }


def share_of(text: str) -> Fraction:
    """Read a share of a total. Raises ValueError unless it lies from 0 to 1."""
    share = decode_fraction(text)
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie from 0 to 1, got {share}")
    return share


def _within(amount: tuple[int, int], limit: tuple[int | None, int | None]) -> bool:
    return limit == _NO_LIMIT or all(cap is None or part <= cap for part, cap in zip(amount, limit, strict=True))


_KINDS: Mapping[str, Callable[[Replay, Fields], None]] = by_kind(
    {
        EntryKind.GENESIS: Replay._genesis,
        EntryKind.REGISTRATION: Replay._registration,
        EntryKind.SNAPSHOT: Replay._snapshot,
        EntryKind.RETIREMENT: Replay._retirement,
        EntryKind.DESTRUCTION: Replay._destruction,
        EntryKind.BUDGET: Replay._budget,
        EntryKind.ALLOWANCE: Replay._allowance,
        EntryKind.CALL_LIMIT: Replay._call_limit,
        EntryKind.DEBIT: Replay._debit,
        EntryKind.RELEASE: Replay._release,
        EntryKind.CREDENTIAL_ISSUED: Replay._credential_issued,
        EntryKind.CREDENTIAL_REVOKED: Replay._credential_revoked,
        EntryKind.CHECKPOINT_KEY: Replay._checkpoint_key,
        EntryKind.UPGRADE: Replay._upgrade,
    }
)
