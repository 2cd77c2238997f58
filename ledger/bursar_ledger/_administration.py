"""Changes by an administrator to accounts and to the ledger itself; each appends an entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from bursar_amounts import total_text

from ._accounts import check_allowance_name
from ._datasets import budget_details, budget_in_force, read_facts
from ._entries import Entry, EntryKind
from ._events import decode_event, encode_fraction
from ._pricing import Budget, cost_units
from ._store import PAGE, Store
from ._types import EVERYONE, check_name
from .errors import AccountConflictError

_LARGEST_SUM = 2**62  # of what SQLite can add to and compare


@dataclass
class _Repricing:
    """Debits of an account at another order, up to entry `last`."""

    order: Fraction
    last: int = 0
    analysts: dict[str, list[int]] = field(default_factory=dict)

    def add(self, debits: Iterable[Entry]) -> None:
        for entry in debits:
            details, spent = entry.details, self.analysts.setdefault(entry.actor, [0, 0])
            spent[0] += cost_units(map(decode_event, details["events"]), self.order)
            spent[1] += details["delta_units"]
            self.last = entry.number


def set_budget(
    store: Store,
    dataset: str,
    budget: Budget,
    *,
    actor: str,
    reason: str,
    replaces: Budget | None = None,
    dry_run: bool = False,
) -> Entry:
    """Set a new total for the dataset's account. Every past debit is priced again at the order of the new total.

    A total below what was spent closes the account. What the totals promise together is in `_pricing.md`. With
    `replaces`, the total that the administrator saw, a total that another one set since stays in force.

    Raises:
        UnknownDatasetError: there is no such dataset.
        AccountConflictError: this is the total already, or the one in force is not `replaces`.
    """
    account = read_facts(store, dataset).account
    repriced = _Repricing(budget.order)
    # A long history is priced while others go on; the decision itself prices only what came meanwhile.
    repriced.add(_debits(store, account, repriced.last))

    def work() -> Entry:
        previous = budget_in_force(store, account)
        if previous == budget:
            raise AccountConflictError(
                f"the total of account {account!r} is {total_text(budget.epsilon, budget.delta)} already"
            )
        if replaces not in (None, previous):
            raise AccountConflictError(
                f"the total of account {account!r} was changed meanwhile, to "
                f"{total_text(previous.epsilon, previous.delta)}; nothing was done. Look at it, and try again"
            )
        repriced.add(_debits(store, account, repriced.last))
        if not sum(cost for cost, _ in repriced.analysts.values()) <= _LARGEST_SUM:
            raise AccountConflictError(
                f"at the order of a total of {total_text(budget.epsilon, budget.delta)}, what account {account!r} has "
                "spent is beyond all counting; choose a larger epsilon, or retire its datasets"
            )
        details = {
            "account": account,
            **budget_details(budget),
            "spent_cost_units": sum(cost for cost, _ in repriced.analysts.values()),
            "spent_delta_units": sum(delta for _, delta in repriced.analysts.values()),
            "analysts": repriced.analysts,
            "previous": {"epsilon": float(previous.epsilon), "delta": float(previous.delta)},
            "reason": reason,
        }
        return store.append(EntryKind.BUDGET, dataset=dataset, actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def set_allowance(
    store: Store,
    dataset: str,
    analyst: str,
    share: Fraction | None,
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
) -> Entry:
    """Set the part of the account's total that an analyst may spend, from 0 to 1; None ends the allowance.

    `share` is exact and follows the total when that changes. `EVERYONE` stands for each analyst without an allowance of
    their own.

    Raises:
        UnknownDatasetError: there is no such dataset.
        NameConflictError: the analyst's name differs from another one in case only.
        ValueError: a share out of range.
    """
    if analyst != EVERYONE:
        check_name("analyst", analyst)
    return _set_share(store, dataset, EntryKind.ALLOWANCE, {"analyst": analyst}, share, actor, reason, dry_run)


def set_call_limit(
    store: Store, dataset: str, share: Fraction | None, *, actor: str, reason: str, dry_run: bool = False
) -> Entry:
    """Set the most that one request may cost, as a part of the account's total from 0 to 1; None ends the limit.

    Raises:
        UnknownDatasetError: there is no such dataset.
        ValueError: a share out of range.
    """
    return _set_share(store, dataset, EntryKind.CALL_LIMIT, {}, share, actor, reason, dry_run)


def set_checkpoint_key(store: Store, verifier_key: str, *, actor: str, reason: str, dry_run: bool = False) -> Entry:
    """Set the public key of signed checkpoints from here on, as one line of text."""
    check_name("verifier_key", verifier_key)
    details = {"verifier_key": verifier_key, "reason": reason}
    return store.decide(lambda: store.append(EntryKind.CHECKPOINT_KEY, actor=actor, details=details), keep=not dry_run)


def _set_share(
    store: Store,
    dataset: str,
    kind: EntryKind,
    whose: dict[str, object],
    share: Fraction | None,
    actor: str,
    reason: str,
    dry_run: bool,
) -> Entry:
    if share is not None and (not isinstance(share, (int, Fraction)) or not 0 <= share <= 1):
        raise ValueError(f"share must be a Fraction from 0 to 1, or None for no limit, got {share!r}")

    def work() -> Entry:
        account = read_facts(store, dataset).account
        if isinstance(analyst := whose.get("analyst"), str) and analyst != EVERYONE:
            check_allowance_name(store, account, analyst)
        details = {
            "account": account,
            **whose,
            "share": None if share is None else encode_fraction(share),
            "reason": reason,
        }
        return store.append(kind, dataset=dataset, actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def _debits(store: Store, account: str, after: int) -> Iterable[Entry]:
    while found := store.find(
        "kind = 'debit' AND account = ? AND number > ? ORDER BY number LIMIT ?", account, after, PAGE
    ):
        yield from found
        after = found[-1].number
