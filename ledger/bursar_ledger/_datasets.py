"""Datasets in the ledger: one registration entry each, and the running sum in the newest debit."""

from __future__ import annotations

from ._budget import Budget
from ._canonical import Entry
from ._codec import decode_fraction, encode_fraction
from ._events import Adjacency
from ._store import Store
from ._values import DatasetState, Registration
from .errors import DatasetExistsError, UnknownDatasetError


def register(store: Store, registration: Registration, *, actor: str, reason: str) -> Entry:
    """Appends the registration; raises DatasetExistsError if the name or the content is registered already."""
    tag = registration.content_tag.hex()
    with store.decision():
        earlier = store.find("kind = 'registration' AND (dataset = ? OR content_tag = ?)", registration.dataset, tag)
        if earlier:
            what = "a dataset of this name" if earlier[0].dataset == registration.dataset else "the same content"
            raise DatasetExistsError(
                f"{what} is registered already, by entry {earlier[0].number}; its budget goes on there"
            )
        details = {**_details(registration), "reason": reason}
        return store.append("registration", dataset=registration.dataset, actor=actor, details=details)


def dataset_state(store: Store, name: str) -> DatasetState:
    """The state of one dataset; raises UnknownDatasetError."""
    found = store.find("kind = 'registration' AND dataset = ?", name)
    if not found:
        raise UnknownDatasetError(
            f"no dataset is registered under the name {name!r}; list the datasets to see the names"
        )
    return _state(store, found[0])


def all_states(store: Store) -> tuple[DatasetState, ...]:
    """The states of all datasets, in the order of their registration."""
    return tuple(_state(store, entry) for entry in store.find("kind = 'registration' ORDER BY number"))


def _state(store: Store, entry: Entry) -> DatasetState:
    details = entry.details
    spent = store.rows(
        "SELECT spent_cost_units, spent_delta_units FROM entries"
        " WHERE kind = 'debit' AND dataset = ? ORDER BY number DESC LIMIT 1",
        entry.dataset,
    )
    return DatasetState(
        name=entry.dataset,
        registration=read_registration(entry),
        # As registered, not as this version of the program would compute them today.
        order=decode_fraction(details["order"]),
        cap_cost_units=details["cap_cost_units"],
        cap_delta_units=details["cap_delta_units"],
        **(spent[0] if spent else {"spent_cost_units": 0, "spent_delta_units": 0}),
    )


def read_registration(entry: Entry) -> Registration:
    """The registration that an entry holds."""
    details = entry.details
    return Registration(
        dataset=entry.dataset,
        adjacency=Adjacency(details["adjacency"]),
        budget=Budget(details["epsilon"], details["delta"], decode_fraction(details["delta_fail_share"])),
        content_tag=bytes.fromhex(details["content_tag"]),
        manifest=details["manifest"],
    )


def _details(registration: Registration) -> dict[str, object]:
    budget = registration.budget
    return {
        "adjacency": registration.adjacency.value,
        "epsilon": float(budget.epsilon),
        "delta": float(budget.delta),
        "delta_fail_share": encode_fraction(budget.delta_fail_share),
        "order": encode_fraction(budget.order),
        "cap_cost_units": budget.cap_cost_units,
        "cap_delta_units": budget.cap_delta_units,
        "content_tag": registration.content_tag.hex(),
        "manifest": dict(registration.manifest),
    }
