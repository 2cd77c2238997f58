"""Values that go into the ledger and come out of it: frozen, checked when they are made."""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from fractions import Fraction
from typing import NoReturn

from bursar_amounts import Part

from ._entries import canonical
from ._events import Adjacency, Event
from ._pricing import Budget, Cost, Remainder

EVERYONE = "*"
"""Analyst of an allowance that holds for every analyst without one of their own."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Registration:
    """Dataset as its owner declares it.

    Attributes:
        dataset: name, 1 to 200 printable characters.
        adjacency: effect of one privacy unit on the table.
        budget: the total for the whole life of the account; None for the total of the account that the registration
            joins.
        content_tag: a hash of the rows under a secret of this snapshot, 1 to 64 bytes; the ledger only keeps it.
        manifest: the public schema, as JSON holds it.
        same_people_as: a registered dataset with rows of the same people, whose account this one joins; None founds an
            account.
    """

    dataset: str
    adjacency: Adjacency
    budget: Budget | None
    content_tag: bytes
    manifest: Mapping[str, object] = field(default_factory=dict)
    same_people_as: str | None = None

    def __post_init__(self) -> None:
        check_name("dataset", self.dataset)
        if not isinstance(self.adjacency, Adjacency):
            raise ValueError(f"adjacency must be an Adjacency, got {self.adjacency!r}")
        check_tag(self.content_tag)
        check_json("manifest", self.manifest)


@dataclass(frozen=True)
class DatasetState:
    """Dataset, and the state of the account that pays for it.

    Attributes:
        account: name of the first registered dataset of the same people. Budget, order and sums are the account's.
        budget: the total in force.
        content_tag: content tag of the newest snapshot.
        manifest: public schema of the newest snapshot.
        order: Renyi order at which the account's debits are priced.
        cap_cost_units: the total in force, as the filter counts it.
        spent_cost_units: sum over the account's debits; above the cap after a lowering.
        destroyed: what the ledger says is gone for good: "rows", and after them "key".
        withdrawn: True if it is retired because its registration was a mistake.
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
    withdrawn: bool = False

    @property
    def spent(self) -> Part:
        """Spent part of the account's budget, for people."""
        return self.budget.part(self.spent_cost_units)

    @property
    def left(self) -> Part:
        """Remaining part of the account's budget, for people."""
        return self.budget.part(self.remaining.cost_units, is_left=True)

    @property
    def remaining(self) -> Remainder:
        """Remaining budget of the account."""
        return remaining(
            (self.cap_cost_units, self.cap_delta_units), (self.spent_cost_units, self.spent_delta_units), self.order
        )


@dataclass(frozen=True)
class SpendingLimits:
    """Limits on one request of one analyst.

    Attributes:
        dataset: what is left of the account. This one is the guarantee; the others share it out.
        allowance: what is left of the analyst's part, None without one.
        call: the most that one request may cost, None without such a maximum.
    """

    dataset: Remainder
    allowance: Remainder | None
    call: Remainder | None

    @property
    def available(self) -> Remainder:
        """Amount that one request may cost now: the least of all, under the dataset's caps."""
        every = [self.dataset, *filter(None, (self.allowance, self.call))]
        return Remainder(
            cost_units=min(limit.cost_units for limit in every),
            delta_units=min(limit.delta_units for limit in every),
            cap_cost_units=self.dataset.cap_cost_units,
            cap_delta_units=self.dataset.cap_delta_units,
            order=self.dataset.order,
        )


def remaining(caps: tuple[int, int], spent: tuple[int, int], order: Fraction) -> Remainder:
    """Return what is left of `caps`, both in (cost units, delta units).

    Nothing of either if more of one of the two was spent than there is now: that admits no more debits at all.
    """
    left = caps[0] - spent[0], caps[1] - spent[1]
    cost_units, delta_units = left if min(left) >= 0 else (0, 0)
    return Remainder(
        cost_units=cost_units,
        delta_units=delta_units,
        cap_cost_units=caps[0],
        cap_delta_units=caps[1],
        order=order,
    )


@dataclass(frozen=True)
class DebitRequest:
    """Request that is to be paid for, before any row is read.

    Attributes:
        dataset: name of a registered dataset.
        principal: analyst who asks.
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
        if not self.events or not all(isinstance(event, Event) for event in self.events):
            raise ValueError("events must hold at least one event, and events only")
        check_json("parameters", self.parameters)


@dataclass(frozen=True)
class RestRequest:
    """Request for all that this analyst may spend at once; the amount is decided with the debit.

    Attributes:
        dataset: as in `DebitRequest`, and so are principal, request_id, request_hash and method.
        plan: makes the request from what may be spent, within the decision's transaction: a pure function, and quick,
            since all other decisions wait for it. An exception refuses the request.
    """

    dataset: str
    principal: str
    request_id: str
    request_hash: bytes
    method: str
    plan: Callable[[Remainder], DebitRequest]

    def __post_init__(self) -> None:
        for name in ("dataset", "principal", "method"):
            check_name(name, getattr(self, name))
        _check_request(self.request_id, self.request_hash)

    def planned(self, available: Remainder) -> DebitRequest:
        """Return the request for `available`. Raises ValueError if the plan returns another request."""
        made = self.plan(available)
        for name in ("dataset", "principal", "request_id", "request_hash", "method"):
            if getattr(made, name) != getattr(self, name):
                raise ValueError(f"plan changed {name}; it may choose events and parameters only")
        return made


class DebitStatus(enum.Enum):
    """State of the release that a debit paid for."""

    NEW = "new"
    """Debited just now: run the fit, store its release."""
    INTERRUPTED = "interrupted"
    """Debited before, no release stored. Once no worker runs it any more, run it under this debit."""
    RELEASED = "released"
    """Debited and released before: send the stored bytes."""


LEDGER_KEY = object()
"""Shown by the ledger's own decisions when they make a `Debit`; no other package imports this module."""


@dataclass(frozen=True, kw_only=True)
class Debit:
    """Durable debit, and the permission to read rows for it. The ledger alone makes one.

    It has the same values whenever its request is repeated, but for status and release. It cannot be changed by
    `dataclasses.replace`, copied or pickled: a debit in hand is always the ledger's answer in this process.

    Attributes:
        request: the request that was paid for; its dataset, events and parameters are what was debited.
        entry: number of the debit's entry.
        price: what was debited.
        remaining: what was left of the account just after it.
        allowance: what was left of the analyst's allowance just after it, None without one.
        head: hash of the debit's entry, the head of the chain just after it.
        status: what the caller has to do now.
        release: the stored bytes if status is RELEASED.
    """

    request: DebitRequest
    entry: int
    price: Cost
    remaining: Remainder
    allowance: Remainder | None
    head: bytes
    status: DebitStatus
    release: bytes | None = None
    key: InitVar[object]

    def __post_init__(self, key: object) -> None:
        if key is not LEDGER_KEY:
            raise TypeError("a Debit is made by the ledger alone; expected the answer of Ledger.debit")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Debit is neither copied nor pickled; send what the receiver needs of it")


@dataclass(frozen=True)
class DebitRecord:
    """Debit as the ledger holds it. `time` is RFC 3339."""

    entry: int
    request: DebitRequest
    price: Cost
    remaining: Remainder
    allowance: Remainder | None
    head: bytes
    time: str


@dataclass(frozen=True)
class ReleaseRecord:
    """Line of a list of past debits.

    Attributes:
        released: False while the fit runs or if it was interrupted.
        size: bytes of the release, None if there is none.
    """

    entry: int
    dataset: str
    principal: str
    request_id: str
    method: str
    price: Cost
    time: str
    released: bool
    size: int | None


class Role(enum.Enum):
    """Role of a credential's holder."""

    ADMIN = "admin"
    """Registers datasets, issues and revokes credentials."""
    ANALYST = "analyst"
    """Lists datasets, previews, fits."""
    AUDITOR = "auditor"
    """Reads and verifies entries."""


@dataclass(frozen=True)
class Credential:
    """Credential: who has access, and in which role; a revoked one gives none.

    Attributes:
        expires: RFC 3339, in UTC; None for never. The ledger keeps it and reads no clock: the caller compares it.
        datasets: the only datasets that the holder may see; None for all.
    """

    name: str
    role: Role
    revoked: bool
    expires: str | None = None
    datasets: tuple[str, ...] | None = None


def check_name(name: str, value: object) -> None:
    """Check that `value` has 1 to 200 printable characters. Raises ValueError."""
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable():
        raise ValueError(f"{name} must have 1 to 200 printable characters")


def check_expiry(expires: object) -> None:
    """Check that `expires` is a time as entries have it: 2026-11-22T03:30:00Z. Raises ValueError."""
    if not isinstance(expires, str) or not _TIME.fullmatch(expires):
        raise ValueError("expires must be a time in UTC such as 2026-11-22T03:30:00Z")
    datetime.datetime.fromisoformat(expires)


def check_tag(tag: object) -> None:
    """Check that `tag` has 1 to 64 bytes. Raises ValueError."""
    if not isinstance(tag, bytes) or not 1 <= len(tag) <= 64:
        raise ValueError("content_tag must have 1 to 64 bytes")


def check_json(name: str, value: object) -> None:
    """Check that `value` is a mapping that JSON has one form for. Raises ValueError."""
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
