"""Command that lists admin events: the entries that are neither debits nor releases."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from bursar_ledger import EVERYONE, REQUESTS, Entry, EntryKind, by_kind
from bursar_server.admin._acting import JSON, STATE, opened, say_json
from bursar_server.admin._shares import moment, table

Details = Mapping[str, Any]


@click.command()
@STATE
@click.option("--dataset", help="Only acts on this dataset, under this name.")
@click.option("--last", type=click.IntRange(min=1), help="Only the newest N.")
@JSON
def acts(directory: Path, dataset: str | None, last: int | None, as_json: bool) -> None:
    """List every admin event, with its reason.

    The auditor sees the same and more with: bursar-audit entries state/ledger.sqlite
    """
    with opened(directory) as (_, ledger):
        wanted = (entry for entry in ledger.entries() if _is_act(entry) and dataset in (None, entry.dataset))
        found = list(deque(wanted, maxlen=last))
    if as_json:
        say_json([_record(entry) for entry in found])
        return
    click.echo(table([("entry", "time", "who", "what", "why"), *map(_row, found)], whole=("entry", "time")))


def _is_act(entry: Entry) -> bool:
    return entry.kind not in REQUESTS


def _row(entry: Entry) -> tuple[str, ...]:
    details = entry.details
    return (str(entry.number), moment(entry.time), entry.actor, in_words(entry), str(details.get("reason", "")))


def _record(entry: Entry) -> dict[str, object]:
    named = {"entry": entry.number, "time": entry.time, "kind": entry.kind, "actor": entry.actor}
    return {**named, "dataset": entry.dataset or None, "words": in_words(entry), "details": dict(entry.details)}


def in_words(entry: Entry) -> str:
    """Return an admin event in one line; its name if this version does not know its kind."""
    words = _WORDS.get(entry.kind)
    return entry.kind if words is None else words(entry.dataset, entry.details)


def _registration(name: str, details: Details) -> str:
    if "epsilon" in details:
        return f"registered {name} with {_total(details)}"
    return f"registered {name} in the account {details['account']}"


def _budget(name: str, details: Details) -> str:
    before, after = _total(details["previous"]), _total(details)
    return f"total of {details['account']}: {after}, before {before}"


def _allowance(name: str, details: Details) -> str:
    who = "everyone else" if details["analyst"] == EVERYONE else details["analyst"]
    if details["share"] is None:
        return f"ended the allowance of {who} on {details['account']}"
    return f"{who} may spend {details['share']} of {details['account']}"


def _call_limit(name: str, details: Details) -> str:
    if details["share"] is None:
        return f"ended the call limit of {details['account']}"
    return f"one request may cost {details['share']} of {details['account']}"


def _total(details: Details) -> str:
    return f"({details['epsilon']:g}, {details['delta']:g})"


def _key_id(verifier_key: str) -> str:
    """Return the middle of "name+key id+key", by which people distinguish keys."""
    return verifier_key.partition("+")[2].partition("+")[0]


_WORDS: Mapping[str, Callable[[str, Details], str]] = by_kind(
    {
        EntryKind.GENESIS: lambda name, details: "made the ledger",
        EntryKind.REGISTRATION: _registration,
        EntryKind.BUDGET: _budget,
        EntryKind.ALLOWANCE: _allowance,
        EntryKind.CALL_LIMIT: _call_limit,
        EntryKind.SNAPSHOT: lambda name, details: f"new rows of {name}",
        EntryKind.RETIREMENT: lambda name, details: f"{'withdrew' if details.get('withdrawn') else 'retired'} {name}",
        EntryKind.DESTRUCTION: lambda name, details: f"destroyed the {details['destroyed']} of {name}",
        EntryKind.CREDENTIAL_ISSUED: lambda name, details: f"token of {details['credential']} ({details['role']})",
        EntryKind.CREDENTIAL_REVOKED: lambda name, details: f"revoked the token of {details['credential']}",
        EntryKind.CHECKPOINT_KEY: lambda name, details: f"checkpoint key {_key_id(details['verifier_key'])}",
        EntryKind.UPGRADE: lambda name, details: f"ledger of schema {details['from']} became {details['to']}",
    },
    without=REQUESTS,
)
