"""Accounts: the budget of one group of people, shared by every dataset of their rows; its limits and names.

Every entry that carries caps (registration, new total, debit) carries the account's whole state, so the newest one
answers for all of them and admission takes the same time in a long ledger as in a short one. Names that differ in case
only would be taken for one by auditors, so the second one is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

from ._events import decode_fraction
from ._pricing import Remainder
from ._store import Store
from ._types import EVERYONE, SpendingLimits, remaining
from .errors import NameConflictError

Amount = tuple[int, int]
"""(cost units, delta units)."""

NOTHING: Amount = (0, 0)


@dataclass(frozen=True)
class Account:
    """State of an account: the order at which it is priced, its caps in force, the sum of its debits."""

    name: str
    order: Fraction
    caps: Amount
    spent: Amount

    @property
    def remaining(self) -> Remainder:
        """Remaining budget."""
        return remaining(self.caps, self.spent, self.order)

    def part(self, share: Fraction) -> Amount:
        """Return a share of the caps, rounded down."""
        return (math.floor(self.caps[0] * share), math.floor(self.caps[1] * share))


@dataclass(frozen=True)
class Bounds:
    """Limits of an analyst inside an account: caps of allowance and call, None for none; and the amount spent."""

    allowance: Amount | None
    call: Amount | None
    spent: Amount


def read_account(store: Store, name: str) -> Account:
    """Return the account's state, from its newest entry that carries caps."""
    row = store.one(
        "SELECT renyi_order, cap_cost_units, cap_delta_units, coalesce(spent_cost_units, 0),"
        " coalesce(spent_delta_units, 0) FROM entries"
        " WHERE account = ? AND cap_cost_units IS NOT NULL ORDER BY number DESC LIMIT 1",
        name,
    )
    if row is None:  # a registration names its account, so only a file that does not verify comes here
        raise KeyError(f"account {name!r} has no registration")
    return Account(name, decode_fraction(row[0]), (row[1], row[2]), (row[3], row[4]))


_INSIDE = """
    SELECT
        (SELECT share FROM entries WHERE kind = 'allowance' AND account = ?1 AND analyst = ?2
            ORDER BY number DESC LIMIT 1),
        (SELECT share FROM entries WHERE kind = 'allowance' AND account = ?1 AND analyst = ?3
            ORDER BY number DESC LIMIT 1),
        (SELECT share FROM entries WHERE kind = 'call_limit' AND account = ?1 ORDER BY number DESC LIMIT 1),
        (SELECT max(number) FROM entries WHERE kind = 'budget' AND account = ?1),
        (SELECT max(number) FROM entries WHERE kind = 'debit' AND account = ?1 AND actor = ?2)
"""  # one statement instead of five: every decision asks, with the write lock in hand


def bounds(store: Store, account: Account, analyst: str) -> Bounds:
    """Return the limits of one analyst inside an account, and what the analyst spent of it."""
    own, everyone, call, total, debit = store.only(_INSIDE, account.name, analyst, EVERYONE)
    allowance = everyone if own is None else own
    return Bounds(
        allowance=None if allowance is None else account.part(decode_fraction(allowance)),
        call=None if call is None else account.part(decode_fraction(call)),
        spent=_spent_by(store, analyst, total or 0, debit or 0),
    )


_SHARES = """
    SELECT analyst, share, max(number) FROM entries WHERE kind = 'allowance' AND account = ?1 GROUP BY analyst
    UNION ALL SELECT NULL, share, max(number) FROM entries WHERE kind = 'call_limit' AND account = ?1
"""  # the share is that of the newest entry: SQLite takes it from the row of the maximum


def shares(store: Store, account: str) -> dict[str | None, Fraction]:
    """Return the limits of an account that are in force: shares by analyst, the call limit under None."""
    found = store.rows(_SHARES, account)
    return {row["analyst"]: decode_fraction(row["share"]) for row in found if row["share"] is not None}


def spenders(store: Store, account: str) -> dict[str, tuple[int, int]]:
    """Return the number of debits and the cost units that each analyst spent of an account, at its order in force."""
    (total,) = store.only("SELECT max(number) FROM entries WHERE kind = 'budget' AND account = ?", account)
    found = store.rows(
        "SELECT actor, count(*) AS debits, max(number) AS newest FROM entries"
        " WHERE kind = 'debit' AND account = ? GROUP BY actor",
        account,
    )
    return {
        row["actor"]: (row["debits"], _spent_by(store, row["actor"], total or 0, row["newest"])[0]) for row in found
    }


def _spent_by(store: Store, analyst: str, total: int, debit: int) -> Amount:
    """Return what an analyst spent: from the newest debit, or from the newest total if that is newer."""
    if total > debit:
        # A new total states what each analyst's debits cost at its order.
        (body,) = store.only("SELECT body FROM entries WHERE number = ?", total)
        cost, delta = json.loads(body)["details"]["analysts"].get(analyst, NOTHING)
        return cost, delta
    if not debit:
        return NOTHING
    cost, delta = store.only(
        "SELECT analyst_spent_cost_units, analyst_spent_delta_units FROM entries WHERE number = ?", debit
    )
    return cost, delta


def limits(account: Account, inside: Bounds) -> SpendingLimits:
    """Return the remaining budget of every limit."""
    return SpendingLimits(
        dataset=account.remaining,
        allowance=None if inside.allowance is None else remaining(inside.allowance, inside.spent, account.order),
        call=None if inside.call is None else remaining(inside.call, NOTHING, account.order),
    )


# One look-up in an index for each name, however many entries there are.
_CREDENTIALS = "SELECT credential FROM entries WHERE credential > ? ORDER BY credential LIMIT 1"
_DEBITED = "SELECT actor FROM entries WHERE kind = 'debit' AND account = ? AND actor > ? ORDER BY actor LIMIT 1"
_ALLOWED = (
    "SELECT analyst FROM entries WHERE kind = 'allowance' AND account = ? AND analyst > ? ORDER BY analyst LIMIT 1"
)
_HAS_DEBITED = "SELECT 1 FROM entries WHERE kind = 'debit' AND account = ? AND actor = ? LIMIT 1"


def check_credential_name(store: Store, name: str) -> None:
    """Check a name that is to hold a credential. Raises NameConflictError."""
    _check_name(name, _distinct(store, _CREDENTIALS))


def check_allowance_name(store: Store, account: str, analyst: str) -> None:
    """Check a name that is to have an allowance of an account. Raises NameConflictError."""
    _check_name(analyst, chain(_distinct(store, _CREDENTIALS), _names_on(store, account)))


def check_debit_name(store: Store, account: str, principal: str) -> None:
    """Check the principal of a first debit of an account: an identity provider may spell one name in several ways.

    Raises NameConflictError if there are debits or an allowance in another spelling.
    """
    if store.one(_HAS_DEBITED, account, principal) is None:
        _check_name(principal, _names_on(store, account))


def _names_on(store: Store, account: str) -> Iterator[str]:
    return chain(_distinct(store, _DEBITED, account), _distinct(store, _ALLOWED, account))


def _distinct(store: Store, sql: str, *given: str) -> Iterator[str]:
    name = ""
    while (row := store.one(sql, *given, name)) is not None:
        (name,) = row
        yield name


def _check_name(name: str, known: Iterable[str]) -> None:
    folded = name.casefold()
    for other in known:
        if other not in (name, EVERYONE) and other.casefold() == folded:
            raise NameConflictError(f"{name!r} differs from {other!r} in case only; use one spelling for both")
