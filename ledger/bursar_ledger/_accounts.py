"""Accounts and credentials: the budget of a group of people with its limits, and who has access until when.

Every entry that carries caps (registration, new total, debit) carries the account's whole state, so the newest one
answers for all of them and admission takes the same time in a long ledger as in a short one. Credentials are issued and
revoked by entries, so that auditors see who had access to what, and when. Names that differ in case only would be taken
for one by auditors, so the second one is refused.
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

from ._entries import Entry, EntryKind
from ._events import decode_fraction
from ._pricing import Remainder
from ._store import Store
from ._types import EVERYONE, Credential, Role, SpendingLimits, check_expiry, check_name, remaining
from .errors import CredentialExistsError, LastAdministratorError, NameConflictError, UnknownCredentialError

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


_NEWEST = "kind IN ('credential_issued', 'credential_revoked') AND credential = ? ORDER BY number DESC LIMIT 1"


def issue(
    store: Store,
    name: str,
    role: Role,
    token_hash: bytes,
    *,
    actor: str,
    reason: str,
    expires: str | None = None,
    datasets: tuple[str, ...] | None = None,
    dry_run: bool = False,
) -> Entry:
    """Put a credential in force.

    `token_hash` is the SHA-256 of a token of at least 256 random bits. From `expires` on, a time in UTC such as
    2026-11-22T03:30:00Z, the credential is refused; None is never. `datasets` are the only ones that the holder may
    see; None is all.

    Raises:
        CredentialExistsError: the name has one in force, or the token was issued before.
        NameConflictError: the name differs from another one in case only.
        ValueError: a time or a name that is none.
    """
    check_name("name", name)
    if len(token_hash) != 32:
        raise ValueError("token_hash must have 32 bytes")
    # An entry has a field for a limit only if there is one.
    limits: dict[str, object] = {}
    if expires is not None:
        check_expiry(expires)
        limits["expires"] = expires
    if datasets is not None:
        for dataset in datasets:
            check_name("datasets", dataset)
        limits["datasets"] = list(datasets)

    def work() -> Entry:
        check_credential_name(store, name)
        if _in_force(store, name):
            raise CredentialExistsError(f"{name!r} has a credential in force; revoke it first")
        if _issued(store, token_hash):
            raise CredentialExistsError("this token was issued before; make a new one")
        details = {
            "credential": name,
            "role": Role(role).value,
            "token_hash": token_hash.hex(),
            **limits,
            "reason": reason,
        }
        return store.append(EntryKind.CREDENTIAL_ISSUED, actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def revoke(
    store: Store, name: str, *, actor: str, reason: str, keep_admin_at: str | None = None, dry_run: bool = False
) -> Entry:
    """End the credential in force of a name.

    `keep_admin_at` is the time of now in UTC: the last administrator's credential that is in force then is kept.

    Raises:
        UnknownCredentialError: there is none.
        LastAdministratorError: no other administrator would be left.
    """

    def work() -> Entry:
        if not _in_force(store, name):
            raise UnknownCredentialError(f"{name!r} has no credential in force")
        if keep_admin_at is not None and administrators(store, keep_admin_at) == (name,):
            raise LastAdministratorError(f"{name!r} has the last administrator's credential")
        return store.append(EntryKind.CREDENTIAL_REVOKED, actor=actor, details={"credential": name, "reason": reason})

    return store.decide(work, keep=not dry_run)


def live(store: Store, token_hash: bytes) -> Credential | None:
    """Return the credential in force with this token, or None."""
    issued = _issued(store, token_hash)
    # Found by an index over hashes; compared once more in constant time, so that a wrong index lets no other token in.
    if not issued or not hmac.compare_digest(bytes.fromhex(issued[0].details["token_hash"]), token_hash):
        return None
    name = issued[0].details["credential"]
    # The name may have been given a newer token since: only the newest act on it counts.
    in_force = store.find(_NEWEST, name)[0].number == issued[0].number
    return _credential(issued[0].details) if in_force else None


def all_credentials(store: Store) -> tuple[Credential, ...]:
    """Return the newest credential of every name."""
    newest: dict[str, Credential] = {}
    for entry in store.find("kind IN ('credential_issued', 'credential_revoked') ORDER BY number"):
        name = entry.details["credential"]
        if entry.kind == EntryKind.CREDENTIAL_ISSUED:
            newest[name] = _credential(entry.details)
        else:
            newest[name] = dataclasses.replace(newest[name], revoked=True)
    return tuple(newest.values())


def administrators(store: Store, now: str) -> tuple[str, ...]:
    """Return the names with an administrator's credential in force at a time, in UTC as entries have it."""
    found = (held for held in all_credentials(store) if held.role is Role.ADMIN and not held.revoked)
    return tuple(held.name for held in found if held.expires is None or held.expires > now)


def _credential(details: dict[str, Any]) -> Credential:
    datasets = details.get("datasets")
    return Credential(
        details["credential"],
        Role(details["role"]),
        revoked=False,
        expires=details.get("expires"),
        datasets=None if datasets is None else tuple(datasets),
    )


def _in_force(store: Store, name: str) -> bool:
    return [entry.kind for entry in store.find(_NEWEST, name)] == [EntryKind.CREDENTIAL_ISSUED]


def _issued(store: Store, token_hash: bytes) -> list[Entry]:
    return store.find("kind = 'credential_issued' AND token_hash = ?", token_hash.hex())
