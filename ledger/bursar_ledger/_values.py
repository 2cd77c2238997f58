"""What goes into the ledger and comes out of it: frozen values, checked when they are made."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from ._budget import Budget, Remaining
from ._canonical import canonical
from ._events import Adjacency, Event, GaussianEvent, LaplaceEvent, PureEvent
from ._pricing import Price

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True)
class Registration:
    """A dataset as its owner declares it, once and for all.

    Attributes:
        dataset: name, 1 to 200 printable characters.
        adjacency: what one privacy unit may do to the table.
        budget: the total for the dataset's whole life.
        content_tag: a keyed hash of the rows, 1 to 64 bytes; the same rows cannot be registered under another name.
        manifest: the public schema, as JSON holds it.
    """

    dataset: str
    adjacency: Adjacency
    budget: Budget
    content_tag: bytes
    manifest: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("dataset", self.dataset)
        if not isinstance(self.adjacency, Adjacency):
            raise ValueError(f"adjacency must be an Adjacency, got {self.adjacency!r}")
        if not isinstance(self.content_tag, bytes) or not 1 <= len(self.content_tag) <= 64:
            raise ValueError("content_tag must have 1 to 64 bytes")
        _check_json("manifest", self.manifest)


@dataclass(frozen=True)
class DatasetState:
    """A dataset and what was spent of it: sums over its debits."""

    name: str
    registration: Registration
    order: Fraction
    cap_cost_units: int
    cap_delta_units: int
    spent_cost_units: int
    spent_delta_units: int

    @property
    def remaining(self) -> Remaining:
        """What is left."""
        return Remaining(
            cost_units=self.cap_cost_units - self.spent_cost_units,
            delta_units=self.cap_delta_units - self.spent_delta_units,
            cap_cost_units=self.cap_cost_units,
            cap_delta_units=self.cap_delta_units,
            order=self.order,
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
            _check_name(name, getattr(self, name))
        if not _REQUEST_ID.fullmatch(self.request_id):
            raise ValueError("request_id must have 1 to 64 characters of [A-Za-z0-9_.:-]")
        if not isinstance(self.request_hash, bytes) or len(self.request_hash) != 32:
            raise ValueError("request_hash must have 32 bytes")
        if not self.events or not all(isinstance(e, (GaussianEvent, LaplaceEvent, PureEvent)) for e in self.events):
            raise ValueError("events must hold at least one event, and events only")
        _check_json("parameters", self.parameters)


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
        remaining: what was left just after it.
        head: hash of the debit's entry, the head of the chain just after it.
        status: what the caller has to do now.
        release: the stored bytes if status is RELEASED.
    """

    entry: int
    price: Price
    remaining: Remaining
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
    head: bytes
    time: str


@dataclass(frozen=True)
class ReleaseRecord:
    """One line of a list of past debits; `released` is False while the fit runs or if it was interrupted."""

    entry: int
    dataset: str
    principal: str
    request_id: str
    method: str
    price: Price
    time: str
    released: bool


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
    """Who may come in as what; a revoked one may not."""

    name: str
    role: Role
    revoked: bool


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable():
        raise ValueError(f"{name} must have 1 to 200 printable characters")


def _check_json(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping")
    try:
        canonical(dict(value))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
