"""What goes into the ledger and comes out of it: frozen values, checked when they are made."""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from ._budget import Budget, Remaining
from ._canonical import canonical
from ._events import (
    Adjacency,
    ApproximateEvent,
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SelectionEvent,
)
from ._pricing import Price

EVERYONE = "*"
"""In an allowance: every analyst who has none of his own."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Registration:
    """A dataset as its owner declares it.

    Attributes:
        dataset: name, 1 to 200 printable characters.
        adjacency: what one privacy unit may do to the table.
        budget: the total for the whole life of the account; None takes the account's, which the registration joins.
        content_tag: a keyed hash of the rows, 1 to 64 bytes. Rows that are known by their tag belong to the account
            that had them first, whatever their new name.
        manifest: the public schema, as JSON holds it.
        same_people_as: a registered dataset with rows of the same people, whose account this one joins.
        known_tags: the hashes of the same rows under the keys of other tables, by which they may be known already.
    """

    dataset: str
    adjacency: Adjacency
    budget: Budget | None
    content_tag: bytes
    manifest: Mapping[str, object] = field(default_factory=dict)
    same_people_as: str | None = None
    known_tags: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        check_name("dataset", self.dataset)
        if not isinstance(self.adjacency, Adjacency):
            raise ValueError(f"adjacency must be an Adjacency, got {self.adjacency!r}")
        for tag in (self.content_tag, *self.known_tags):
            check_tag(tag)
        check_json("manifest", self.manifest)


@dataclass(frozen=True)
class DatasetState:
    """A dataset and the purse that it is paid from.

    Attributes:
        name: of the dataset.
        account: of the people whose rows these are: the name of the dataset of them that was registered first. Budget,
            order and sums are the account's.
        adjacency: what one privacy unit may do to the table.
        budget: the total in force.
        content_tag: of the newest snapshot.
        manifest: likewise.
        retired: no new debits.
        order: Renyi order at which the account's debits are priced.
        cap_cost_units: the total in force, as the filter counts it.
        cap_delta_units: likewise.
        spent_cost_units: sum over the account's debits; above the cap after a lowering.
        spent_delta_units: likewise.
        destroyed: what the ledger says is gone for good: "rows", and after them "key".
    """

    name: str
    account: str
    adjacency: Adjacency
    budget: Budget
    content_tag: bytes
    manifest: Mapping[str, object]
    retired: bool
    order: Fraction
    cap_cost_units: int
    cap_delta_units: int
    spent_cost_units: int
    spent_delta_units: int
    destroyed: frozenset[str] = frozenset()

    @property
    def remaining(self) -> Remaining:
        """What is left of the account."""
        return remaining(
            (self.cap_cost_units, self.cap_delta_units), (self.spent_cost_units, self.spent_delta_units), self.order
        )


@dataclass(frozen=True)
class Limits:
    """All that bounds one request of one analyst.

    Attributes:
        dataset: what is left of the account. This one is the guarantee; the others share it out.
        allowance: what is left of the analyst's part, None without one.
        call: the most that one request may cost, None without such a maximum.
    """

    dataset: Remaining
    allowance: Remaining | None
    call: Remaining | None

    @property
    def available(self) -> Remaining:
        """What one request may cost now: the least of all, under the dataset's caps."""
        every = [self.dataset, *filter(None, (self.allowance, self.call))]
        return Remaining(
            cost_units=min(limit.cost_units for limit in every),
            delta_units=min(limit.delta_units for limit in every),
            cap_cost_units=self.dataset.cap_cost_units,
            cap_delta_units=self.dataset.cap_delta_units,
            order=self.dataset.order,
        )


def remaining(caps: tuple[int, int], spent: tuple[int, int], order: Fraction) -> Remaining:
    """What is left of `caps`, both in (cost units, delta units).

    Nothing of either if more of one of the two was spent than there is now: that admits no more debits at all.
    """
    left = caps[0] - spent[0], caps[1] - spent[1]
    cost_units, delta_units = left if min(left) >= 0 else (0, 0)
    return Remaining(
        cost_units=cost_units,
        delta_units=delta_units,
        cap_cost_units=caps[0],
        cap_delta_units=caps[1],
        order=order,
    )


@dataclass(frozen=True)
class DebitRequest:
    """What is to be paid for, before any row is read.

    Attributes:
        dataset: name of a registered dataset.
        principal: who asks.
        request_id: idempotency key within the principal's requests, 1 to 64 characters of [A-Za-z0-9_.:-].
        request_hash: hash of the whole request, 32 bytes; tells a repetition from another request.
        method: name of the RPC.
        events: what will be released; at least one.
        parameters: the request's public parameters, as JSON holds them.
    """

    dataset: str
    principal: str
    request_id: str
    request_hash: bytes
    method: str
    events: tuple[Event, ...]
    parameters: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dataset", "principal", "method"):
            check_name(name, getattr(self, name))
        _check_request(self.request_id, self.request_hash)
        if not self.events or not all(isinstance(event, _EVENTS) for event in self.events):
            raise ValueError("events must hold at least one event, and events only")
        check_json("parameters", self.parameters)


@dataclass(frozen=True)
class RestRequest:
    """A request for as much as this analyst may spend at once; how much that is, is decided with the debit.

    Attributes:
        dataset: as in `DebitRequest`, and so are principal, request_id, request_hash and method.
        plan: makes the request from what may be spent, within the decision's transaction: a pure function, and quick,
            since everybody else waits for it. What it raises refuses the request.
    """

    dataset: str
    principal: str
    request_id: str
    request_hash: bytes
    method: str
    plan: Callable[[Remaining], DebitRequest]

    def __post_init__(self) -> None:
        for name in ("dataset", "principal", "method"):
            check_name(name, getattr(self, name))
        _check_request(self.request_id, self.request_hash)

    def planned(self, available: Remaining) -> DebitRequest:
        """The request for `available`. Raises ValueError if the plan speaks of another request."""
        made = self.plan(available)
        for name in ("dataset", "principal", "request_id", "request_hash", "method"):
            if getattr(made, name) != getattr(self, name):
                raise ValueError(f"plan changed {name}; it may choose events and parameters only")
        return made


class DebitStatus(enum.Enum):
    """What a debit says about the release it paid for."""

    NEW = "new"
    """Debited just now: run the fit, store its release."""
    INTERRUPTED = "interrupted"
    """Debited before, no release stored. Once nobody is at it any more, run it under this debit."""
    RELEASED = "released"
    """Debited and released before: send the stored bytes."""


@dataclass(frozen=True)
class Debit:
    """The answer to a request: the same values whenever it is repeated, but for status and release.

    Attributes:
        entry: number of the debit's entry.
        price: what was debited.
        remaining: what was left of the account just after it.
        allowance: what was left of the analyst's allowance just after it, None without one.
        head: hash of the debit's entry, the head of the chain just after it.
        status: what the caller has to do now.
        release: the stored bytes if status is RELEASED.
    """

    entry: int
    price: Price
    remaining: Remaining
    allowance: Remaining | None
    head: bytes
    status: DebitStatus
    release: bytes | None = None


@dataclass(frozen=True)
class DebitRecord:
    """A debit as the ledger holds it. `time` is RFC 3339."""

    entry: int
    request: DebitRequest
    price: Price
    remaining: Remaining
    allowance: Remaining | None
    head: bytes
    time: str


@dataclass(frozen=True)
class ReleaseRecord:
    """One line of a list of past debits.

    Attributes:
        entry: number of the debit's entry.
        dataset: as in `DebitRequest`, and so are principal, request_id and method.
        price: what was debited.
        time: RFC 3339, informational.
        released: False while the fit runs or if it was interrupted.
        size: bytes of the release, None if there is none.
    """

    entry: int
    dataset: str
    principal: str
    request_id: str
    method: str
    price: Price
    time: str
    released: bool
    size: int | None


class Role(enum.Enum):
    """What the holder of a credential may do."""

    ADMIN = "admin"
    """Registers datasets, issues and revokes credentials."""
    ANALYST = "analyst"
    """Lists datasets, previews, fits."""
    AUDITOR = "auditor"
    """Reads and verifies entries."""


@dataclass(frozen=True)
class Credential:
    """Who may come in as what; a revoked one may not.

    Attributes:
        name: of the holder.
        role: what he may do.
        revoked: whether it is worth nothing any more.
        expires: RFC 3339, in UTC; None for never. The ledger keeps it and asks no clock: whoever lets people in does.
        datasets: the only ones that he may see; None for all.
    """

    name: str
    role: Role
    revoked: bool
    expires: str | None = None
    datasets: tuple[str, ...] | None = None


_EVENTS = (GaussianEvent, LaplaceEvent, PureEvent, SelectionEvent, ConcentratedEvent, ApproximateEvent)


def check_name(name: str, value: object) -> None:
    """Raises ValueError unless `value` has 1 to 200 printable characters."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable():
        raise ValueError(f"{name} must have 1 to 200 printable characters")


def check_expiry(expires: object) -> None:
    """Raises ValueError unless `expires` is a time as entries have it: 2026-11-22T03:30:00Z."""
    if not isinstance(expires, str) or not _TIME.fullmatch(expires):
        raise ValueError("expires must be a time in UTC such as 2026-11-22T03:30:00Z")
    datetime.datetime.fromisoformat(expires)


def check_tag(tag: object) -> None:
    """Raises ValueError unless `tag` has 1 to 64 bytes."""
    if not isinstance(tag, bytes) or not 1 <= len(tag) <= 64:
        raise ValueError("content_tag must have 1 to 64 bytes")


def check_json(name: str, value: object) -> None:
    """Raises ValueError unless `value` is a mapping that JSON has one form for."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping")
    try:
        canonical(dict(value))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_request(request_id: str, request_hash: object) -> None:
    if not _REQUEST_ID.fullmatch(request_id):
        raise ValueError("request_id must have 1 to 64 characters of [A-Za-z0-9_.:-]")
    if not isinstance(request_hash, bytes) or len(request_hash) != 32:
        raise ValueError("request_hash must have 32 bytes")
