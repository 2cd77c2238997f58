"""A ledger's history walked once more, entry by entry, believing nothing that can be computed.

Reads numbers, bodies, hashes and released bytes only; sums, caps and prices come out of the bodies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from ._canonical import NO_ENTRY, body_hash, canonical
from ._codec import decode_event, decode_fraction
from ._events import Adjacency
from ._reprice import cap_problems, price_range

Fields = dict[str, Any]


@dataclass
class DatasetTotals:
    """A dataset's promise and what the debits add up to; `order`, caps and sums in the ledger's units."""

    name: str
    epsilon: float
    delta: float
    order: Fraction
    cap_cost_units: int
    cap_delta_units: int
    spent_cost_units: int = 0
    spent_delta_units: int = 0
    debits: int = 0


@dataclass
class Replay:
    """State after the entries taken so far. `take` them in order, then every row of released bytes, then `finish`."""

    reprice: bool
    number: int = 0
    head: bytes = NO_ENTRY
    problems: list[str] = field(default_factory=list)
    datasets: dict[str, DatasetTotals] = field(default_factory=dict)
    _content_tags: set[str] = field(default_factory=set)
    _requests: set[tuple[str, str]] = field(default_factory=set)
    _unreleased: dict[int, str] = field(default_factory=dict)
    _digests: dict[int, tuple[int, str]] = field(default_factory=dict)
    _credentials: dict[str, bool] = field(default_factory=dict)
    _tokens: set[str] = field(default_factory=set)

    def take(self, number: int, body: str, stored_hash: bytes) -> None:
        """The next row of the table of entries."""
        expected, previous = self.number + 1, self.head
        self.number, self.head = number, stored_hash
        try:
            self._check_link(expected, body)
            fields = json.loads(body)
            if canonical(fields).decode() != body:
                self._problem("the body is not in canonical form")
            self._check_head(fields, previous)
            _KINDS.get(fields["kind"], Replay._unknown)(self, fields)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            self._problem(f"the body cannot be read ({type(error).__name__}: {error})")

    def take_release(self, debit: int, content: bytes) -> None:
        """A row of the table of released bytes."""
        number, digest = self._digests.pop(debit, (debit, ""))
        if not digest:
            self._problem("released bytes are stored, but no release entry names them", number)
        elif hashlib.sha256(content).hexdigest() != digest:
            self._problem(f"the bytes released under debit {debit} are not those whose digest was recorded", number)

    def finish(self) -> None:
        """After the last row: what should have come and did not."""
        for debit, (number, _) in self._digests.items():
            self._problem(f"the bytes released under debit {debit} are missing", number)
        if self.number == 0:
            self.problems.append("the ledger is empty; it must begin with a genesis entry")

    def _check_link(self, expected: int, body: str) -> None:
        if self.number != expected:
            self._problem(f"expected entry {expected} here; entries are missing or out of order")
        if body_hash(body.encode()) != self.head:
            self._problem("the body does not have the recorded hash; one of the two was changed")

    def _check_head(self, fields: Fields, previous: bytes) -> None:
        if fields["number"] != self.number:
            self._problem(f"the body says that it is entry {fields['number']}")
        if fields["previous"] != previous.hex():
            self._problem("it does not follow from the entry before it; one of the two was changed")
        if (fields["kind"] == "genesis") != (self.number == 1):
            self._problem("a ledger begins with one genesis entry")

    def _genesis(self, fields: Fields) -> None:
        details = fields["details"]
        if (details["format"], details["cost_unit"], details["delta_unit"]) != (1, 1 << 40, 1 << 60):
            self._problem("the format or the units are not those of this version")

    def _registration(self, fields: Fields) -> None:
        name, details = fields["dataset"], fields["details"]
        Adjacency(details["adjacency"])
        if name in self.datasets or details["content_tag"] in self._content_tags:
            self._problem(f"dataset {name!r} or its content is registered twice")
        self._content_tags.add(details["content_tag"])
        totals = DatasetTotals(
            name=name,
            order=decode_fraction(details["order"]),
            **{key: details[key] for key in ("epsilon", "delta", "cap_cost_units", "cap_delta_units")},
        )
        self.datasets[name] = totals
        share = decode_fraction(details["delta_fail_share"])
        for problem in cap_problems(
            totals.epsilon, totals.delta, share, totals.order, totals.cap_cost_units, totals.cap_delta_units
        ):
            self._problem(f"dataset {name!r}: {problem}")

    def _debit(self, fields: Fields) -> None:
        details = fields["details"]
        request = (fields["actor"], details["request_id"])
        if request in self._requests:
            self._problem("a request was debited twice")
        self._requests.add(request)
        self._unreleased[self.number] = fields["dataset"]
        if fields["dataset"] not in self.datasets:
            self._problem("a debit from a dataset that was not registered before")
            return
        totals = self.datasets[fields["dataset"]]
        self._check_price(details, totals)
        self._add(details, totals)

    def _check_price(self, details: Fields, totals: DatasetTotals) -> None:
        cost, failure = details["cost_units"], details["delta_units"]
        if type(cost) is not int or type(failure) is not int or not (cost >= 1 and failure == 0):
            self._problem("cost_units must be a positive integer and delta_units 0")
        if decode_fraction(details["order"]) != totals.order:
            self._problem("priced at another order than the dataset's")
        if self.reprice:
            low, high = price_range(map(decode_event, details["events"]), totals.order)
            if not low <= cost <= high:
                self._problem(f"the debit is {cost} units, but its events cost {low}")

    def _add(self, details: Fields, totals: DatasetTotals) -> None:
        totals.debits += 1
        totals.spent_cost_units += details["cost_units"]
        totals.spent_delta_units += details["delta_units"]
        for name in ("spent_cost_units", "spent_delta_units", "cap_cost_units", "cap_delta_units"):
            if details[name] != getattr(totals, name):
                self._problem(f"{name} is {details[name]}, but the history gives {getattr(totals, name)}")
        if not (
            totals.spent_cost_units <= totals.cap_cost_units and totals.spent_delta_units <= totals.cap_delta_units
        ):
            self._problem(f"dataset {totals.name!r} is overspent")

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

    def _unknown(self, fields: Fields) -> None:
        self._problem(f"entries of kind {fields['kind']!r} are unknown to this version")

    def _problem(self, text: str, number: int | None = None) -> None:
        self.problems.append(f"entry {self.number if number is None else number}: {text}")


_KINDS: dict[str, Callable[[Replay, Fields], None]] = {
    "genesis": Replay._genesis,
    "registration": Replay._registration,
    "debit": Replay._debit,
    "release": Replay._release,
    "credential_issued": Replay._credential_issued,
    "credential_revoked": Replay._credential_revoked,
}
