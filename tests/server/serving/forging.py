"""Forges a ledger's file."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import closing
from fractions import Fraction

from bursar_ledger import (
    DebitRequest,
    GaussianEvent,
    Ledger,
    adopt_copy,
    mark_of,
)
from bursar_ledger.checkpoints import FilePlace, checkpoint_of, sign
from bursar_server.config import Config
from bursar_server.ops.checkpoints import (
    load_key,
    places_of,
)
from bursar_server.state import State

CONFIG = Config.model_validate({"checkpoints": {"places": ["file:checkpoints", "file:second"]}})


def debit(ledger: Ledger, number: int) -> None:
    """Debit a little, and store a release."""
    name = ledger.datasets()[0].name
    events = (GaussianEvent(1, Fraction(500 + number)),)
    request = DebitRequest(name, "ann", f"r{number}", hashlib.sha256(bytes([number])).digest(), "FitDPEM", events)
    ledger.store_release(ledger.debit(request).entry, b"model")


def forged(state: State, config: Config = CONFIG) -> None:
    """Change the price of a signed debit, hash everything behind it anew, and sign that with the server's own key."""
    with closing(sqlite3.connect(state.ledger, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f'DROP TRIGGER "{name}"')
        first = None
        previous = b""
        for number, body in db.execute("SELECT number, body FROM entries ORDER BY number").fetchall():
            fields = json.loads(body)
            details = fields["details"]
            if fields["kind"] == "debit":
                if first is None:
                    first, details["cost_units"] = number, details["cost_units"] - 1
                details["spent_cost_units"] -= 1
                details["analyst_spent_cost_units"] -= 1
            fields["previous"] = previous.hex() or fields["previous"]
            text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
            previous = hashlib.sha256(text.encode()).digest()
            db.execute("UPDATE entries SET body = ?, hash = ? WHERE number = ?", (text, previous, number))
        for _, sql in triggers:
            db.execute(sql)
    mark_of(state.ledger).unlink()
    adopt_copy(state.ledger)
    for place in places_of(state, config):
        assert isinstance(place, FilePlace)
        place.path.write_text("")
    with Ledger.open(state.ledger) as ledger:
        note = sign(checkpoint_of(ledger), load_key(state))
    for place in places_of(state, config):
        place.write(note)
