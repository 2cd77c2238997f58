"""Datasets in the ledger: registered once under a name, given new snapshots, retired; each belongs to an account."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from bursar_amounts import total_text

from ._accounts import read_account
from ._entries import Entry, EntryKind
from ._events import Adjacency, decode_fraction, encode_fraction
from ._pricing import Budget
from ._store import Store
from ._types import DatasetState, Registration, check_json, check_tag
from .errors import (
    AccountConflictError,
    DatasetExistsError,
    DatasetInUseError,
    DatasetRetiredError,
    UnknownDatasetError,
)

_DESTROYED = ("rows", "key")
"""Files of a dataset in the order of their removal: a key without which rows could not be served goes after them."""


@dataclass(frozen=True)
class Facts:
    """Facts of a dataset in the chain beside sums: of its registration and its newest snapshot."""

    name: str
    account: str
    adjacency: Adjacency
    content_tag: bytes
    manifest: Mapping[str, object]
    retired: bool
    withdrawn: bool
    destroyed: frozenset[str]


def register(store: Store, registration: Registration, *, actor: str, reason: str, dry_run: bool = False) -> Entry:
    """Register a dataset: with a new account and its total, or in the account of `same_people_as`.

    With `dry_run`, here and below, everything is checked and the entry is made up, but nothing is written.

    Raises:
        DatasetExistsError: the name is registered already.
        AccountConflictError: the account to join has another adjacency or total.
        UnknownDatasetError: there is no dataset `registration.same_people_as`.
    """

    def work() -> Entry:
        if _exists(store, registration.dataset):
            raise DatasetExistsError(
                f"a dataset of the name {registration.dataset!r} is registered already; its budget goes on there"
            )
        joined = registration.same_people_as
        account = None if joined is None else read_facts(store, joined).account
        promise = _founding(registration) if account is None else _joining(store, registration, account)
        details = {
            "account": account or registration.dataset,
            "adjacency": registration.adjacency.value,
            "content_tag": registration.content_tag.hex(),
            "manifest": dict(registration.manifest),
            "reason": reason,
            **promise,
        }
        return store.append(EntryKind.REGISTRATION, dataset=registration.dataset, actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def new_snapshot(
    store: Store,
    dataset: str,
    content_tag: bytes,
    manifest: Mapping[str, object],
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
) -> Entry:
    """Enter new rows of the same people under the same name; what was spent stays spent.

    Raises:
        UnknownDatasetError, DatasetRetiredError: there is no such dataset, or no more.
    """
    check_tag(content_tag)
    check_json("manifest", manifest)

    def work() -> Entry:
        details = {
            "account": live_account(store, dataset),
            "content_tag": content_tag.hex(),
            "manifest": dict(manifest),
            "reason": reason,
        }
        return store.append(EntryKind.SNAPSHOT, dataset=dataset, actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def retire(
    store: Store, dataset: str, *, actor: str, reason: str, withdrawn: bool = False, dry_run: bool = False
) -> Entry:
    """End a dataset: no new debits. Stored releases stay available.

    With `withdrawn` the entry says that the registration was a mistake and that nothing was debited. Account, total and
    tags stay, so that the same rows are recognised as they were.

    Raises:
        UnknownDatasetError, DatasetRetiredError: there is no such dataset, or no more.
        DatasetInUseError: it is to be withdrawn, and something was debited.
    """

    def work() -> Entry:
        details: dict[str, object] = {"account": live_account(store, dataset), "reason": reason}
        if withdrawn:
            if store.one("SELECT number FROM entries WHERE kind = 'debit' AND dataset = ? LIMIT 1", dataset):
                raise DatasetInUseError(
                    f"something was debited from {dataset!r}, so its registration stands; it can be retired"
                )
            details["withdrawn"] = True
        return store.append(EntryKind.RETIREMENT, dataset=dataset, actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def destroy(
    store: Store, dataset: str, what: Literal["rows", "key"], *, actor: str, reason: str, dry_run: bool = False
) -> Entry:
    """Record that the rows of a retired dataset, or after them the key of its tags, are destroyed.

    Raises:
        UnknownDatasetError: there is no such dataset.
        DatasetInUseError: it is not retired, this was said before, or a key is destroyed before its rows.
    """
    if what not in _DESTROYED:
        raise ValueError(f"what must be one of {', '.join(_DESTROYED)}, got {what!r}")

    def work() -> Entry:
        facts = read_facts(store, dataset)
        if not facts.retired:
            raise DatasetInUseError(f"the dataset {dataset!r} is not retired, so nothing of it is destroyed")
        expected = _DESTROYED[: _DESTROYED.index(what)]
        if facts.destroyed != set(expected):
            known = ", ".join(sorted(facts.destroyed)) or "nothing"
            raise DatasetInUseError(
                f"of {dataset!r} {known} is destroyed; expected {', '.join(expected) or 'nothing'} before its {what}"
            )
        details = {"account": facts.account, "destroyed": what, "reason": reason}
        return store.append(EntryKind.DESTRUCTION, dataset=dataset, actor=actor, details=details)

    return store.decide(work, keep=not dry_run)


def contents(store: Store) -> tuple[Entry, ...]:
    """Return registrations and snapshots, in order: the entries that name snapshots."""
    found = store.find("content_tag >= ''")  # not null, so that the index of tags finds them
    return tuple(sorted(found, key=lambda entry: entry.number))


def dataset_state(store: Store, name: str) -> DatasetState:
    """Return one dataset; raises UnknownDatasetError."""
    facts = read_facts(store, name)
    account = read_account(store, facts.account)
    return DatasetState(
        name=name,
        account=facts.account,
        adjacency=facts.adjacency,
        budget=budget_in_force(store, facts.account),
        content_tag=facts.content_tag,
        manifest=facts.manifest,
        retired=facts.retired,
        order=account.order,
        cap_cost_units=account.caps[0],
        cap_delta_units=account.caps[1],
        spent_cost_units=account.spent[0],
        spent_delta_units=account.spent[1],
        destroyed=facts.destroyed,
        withdrawn=facts.withdrawn,
    )


def all_states(store: Store) -> tuple[DatasetState, ...]:
    """Return all datasets, in the order of their registration."""
    names = store.rows("SELECT dataset FROM entries WHERE kind = 'registration' ORDER BY number")
    return tuple(dataset_state(store, row["dataset"]) for row in names)


def read_facts(store: Store, name: str) -> Facts:
    """Return the facts of a dataset; raises UnknownDatasetError."""
    registered, newest, retirement, destroyed = store.only(
        "SELECT (SELECT body FROM entries WHERE kind = 'registration' AND dataset = ?1),"
        " (SELECT body FROM entries WHERE kind = 'snapshot' AND dataset = ?1 ORDER BY number DESC LIMIT 1),"
        " (SELECT body FROM entries WHERE kind = 'retirement' AND dataset = ?1),"
        " (SELECT group_concat(destroyed) FROM entries WHERE kind = 'destruction' AND dataset = ?1)",
        name,
    )
    if registered is None:
        raise _unknown(name)
    name, account, adjacency, _, _ = _read(registered)
    _, _, _, content_tag, manifest = _read(newest or registered)
    return Facts(
        name,
        account,
        Adjacency(adjacency),
        content_tag,
        manifest,
        retired=retirement is not None,
        withdrawn=retirement is not None and json.loads(retirement)["details"].get("withdrawn", False),
        destroyed=frozenset(destroyed.split(",") if destroyed else ()),
    )


def live_account(store: Store, name: str) -> str:
    """Return the account of a dataset that takes debits; raises UnknownDatasetError, DatasetRetiredError."""
    # Within a decision, where others wait: that index has the account, so no body is read, and a longer manifest costs
    # nothing.
    account, retired = store.only(
        "SELECT (SELECT account FROM entries INDEXED BY account_of_a_dataset"
        " WHERE kind = 'registration' AND dataset = ?1),"
        " EXISTS (SELECT 1 FROM entries WHERE kind = 'retirement' AND dataset = ?1)",
        name,
    )
    if account is None:
        raise _unknown(name)
    if retired:
        raise DatasetRetiredError(f"the dataset {name!r} is retired; what was released of it can still be had")
    return str(account)


def budget_in_force(store: Store, account: str) -> Budget:
    """Return the total that was promised last."""
    newest = store.one(
        "SELECT body FROM entries WHERE kind = 'budget' AND account = ? ORDER BY number DESC LIMIT 1", account
    ) or store.one("SELECT body FROM entries WHERE kind = 'registration' AND dataset = ?", account)
    if newest is None:  # a registration names its account, so only a file that does not verify comes here
        raise KeyError(f"account {account!r} has no registration")
    return _budget(newest[0])


def budget_details(budget: Budget) -> dict[str, object]:
    """Return a total and its caps, as entries hold them."""
    return {
        "epsilon": float(budget.epsilon),
        "delta": float(budget.delta),
        "delta_fail_share": encode_fraction(budget.delta_fail_share),
        "order": encode_fraction(budget.order),
        "cap_cost_units": budget.cap_cost_units,
        "cap_delta_units": budget.cap_delta_units,
    }


def _unknown(name: str) -> UnknownDatasetError:
    return UnknownDatasetError(f"no dataset is registered under the name {name!r}; list the datasets to see the names")


def _exists(store: Store, name: str) -> bool:
    return store.one("SELECT 1 FROM entries WHERE kind = 'registration' AND dataset = ?", name) is not None


def _founding(registration: Registration) -> dict[str, object]:
    if registration.budget is None:
        raise ValueError("budget is missing: people who have no account yet need a total")
    return budget_details(registration.budget)


def _joining(store: Store, registration: Registration, account: str) -> dict[str, object]:
    """Check that a registration may join an account, and return no further fields: caps and sums are the account's."""
    first = read_facts(store, account)
    if first.adjacency is not registration.adjacency:
        raise AccountConflictError(
            f"adjacency must be {first.adjacency.value}, as in account {account!r}, to which these people belong"
        )
    total = budget_in_force(store, account)
    if registration.budget not in (None, total):
        raise AccountConflictError(
            f"these people have the account {account!r} with a total of {total_text(total.epsilon, total.delta)}, and "
            "what was spent of it stays spent. Leave the total out to share it, or set a new one for the account first"
        )
    return {}


@functools.lru_cache(maxsize=256)
def _read(body: str) -> tuple[str, str, str | None, bytes, Mapping[str, Any]]:
    """Read dataset, account, adjacency, content tag and manifest of a registration or snapshot. Bodies never change."""
    fields = json.loads(body)
    details = fields["details"]
    return (
        fields["dataset"],
        details["account"],
        details.get("adjacency"),
        bytes.fromhex(details["content_tag"]),
        details["manifest"],
    )


@functools.lru_cache(maxsize=256)
def _budget(body: str) -> Budget:
    details = json.loads(body)["details"]
    share: Fraction = decode_fraction(details["delta_fail_share"])
    return Budget(details["epsilon"], details["delta"], share)
