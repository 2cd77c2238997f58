"""Accounts: the purse of one group of people, shared by every dataset of their rows, and the limits inside it.

Every entry that carries caps (registration, new total, debit) carries the account's whole state, so the newest one
answers for all of them and admission takes the same time in a long ledger as in a short one.
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from fractions import Fraction

from ._budget import Remaining
from ._codec import decode_fraction
from ._store import Store
from ._values import EVERYONE, Limits, remaining

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
    def remaining(self) -> Remaining:
        """What is left."""
        return remaining(self.caps, self.spent, self.order)

    def part(self, share: Fraction) -> Amount:
        """A share of the caps, rounded down."""
        return (math.floor(self.caps[0] * share), math.floor(self.caps[1] * share))


@dataclass(frozen=True)
class Bounds:
    """An analyst's limits inside an account: caps of his allowance and of one call, None for none; what he spent."""

    allowance: Amount | None
    call: Amount | None
    spent: Amount


def read_account(store: Store, name: str) -> Account:
    """The account's state, from its newest entry that carries caps."""
    row = store.one(
        "SELECT renyi_order, cap_cost_units, cap_delta_units, coalesce(spent_cost_units, 0),"
        " coalesce(spent_delta_units, 0) FROM entries"
        " WHERE account = ? AND cap_cost_units IS NOT NULL ORDER BY number DESC LIMIT 1",
        name,
    )
    if row is None:  # a registration names its account, so only a file that does not verify comes here
        raise KeyError(f"account {name!r} has no registration")
    return Account(name, _order(row[0]), (row[1], row[2]), (row[3], row[4]))


def bounds(store: Store, account: Account, analyst: str) -> Bounds:
    """The limits of one analyst inside an account, and what he spent of it."""
    share = _share(store, _ALLOWANCE, account.name, analyst)
    if share is None:
        share = _share(store, _ALLOWANCE, account.name, EVERYONE)
    call = _share(store, _CALL_LIMIT, account.name)
    return Bounds(
        allowance=None if share is None else account.part(share),
        call=None if call is None else account.part(call),
        spent=spent_by(store, account.name, analyst),
    )


def spent_by(store: Store, account: str, analyst: str) -> Amount:
    """What an analyst spent of an account, at the order in force."""
    debit = store.one(
        "SELECT number, analyst_spent_cost_units, analyst_spent_delta_units FROM entries"
        " WHERE kind = 'debit' AND account = ? AND actor = ? ORDER BY number DESC LIMIT 1",
        account,
        analyst,
    )
    total = store.one(
        "SELECT number, body FROM entries WHERE kind = 'budget' AND account = ? ORDER BY number DESC LIMIT 1", account
    )
    if total is not None and (debit is None or debit[0] < total[0]):
        # A new total says what everybody's debits cost at its order.
        cost, delta = json.loads(total[1])["details"]["analysts"].get(analyst, NOTHING)
        return cost, delta
    return NOTHING if debit is None else (debit[1], debit[2])


def limits(account: Account, inside: Bounds) -> Limits:
    """What is left of every limit."""
    return Limits(
        dataset=account.remaining,
        allowance=None if inside.allowance is None else remaining(inside.allowance, inside.spent, account.order),
        call=None if inside.call is None else remaining(inside.call, NOTHING, account.order),
    )


_ALLOWANCE = "SELECT share FROM entries WHERE kind = 'allowance' AND account = ? AND analyst = ?"
_CALL_LIMIT = "SELECT share FROM entries WHERE kind = 'call_limit' AND account = ?"


def _share(store: Store, sql: str, *whose: str) -> Fraction | None:
    row = store.one(f"{sql} ORDER BY number DESC LIMIT 1", *whose)
    return None if row is None or row[0] is None else decode_fraction(row[0])


@functools.lru_cache(maxsize=1024)
def _order(text: str) -> Fraction:
    return decode_fraction(text)
