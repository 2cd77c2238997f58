"""Command that lists admin events: the entries that are neither debits nor releases."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import click

from bursar_ledger import REQUESTS
from bursar_ledger.audit._columns import Line, lines, summary
from bursar_ledger.audit._open import Row, rows
from bursar_ledger.audit._open import opened as opened_for_audit
from bursar_server.admin._acting import JSON, STATE, opened, say_json
from bursar_server.admin._shares import moment, table


@click.command()
@STATE
@click.option("--dataset", help="Only acts on this dataset, under this name.")
@click.option("--last", type=click.IntRange(min=1), help="Only the newest N.")
@JSON
def acts(directory: Path, dataset: str | None, last: int | None, as_json: bool) -> None:
    """List every admin event, with its reason.

    The auditor sees the same and more with: bursar-audit entries state/ledger.sqlite
    """
    with opened(directory) as (state, _), opened_for_audit(state.ledger) as db:
        wanted = (
            (row, line)
            for row, line, _ in lines(rows(db))
            if line.kind not in REQUESTS and dataset in (None, line.dataset)
        )
        found = list(deque(wanted, maxlen=last))
    if as_json:
        say_json([_record(row, line) for row, line in found])
        return
    shown = [
        (line.entry, moment(line.time or ""), line.actor, line.kind, line.dataset or "", summary(row, line))
        for row, line in found
    ]
    click.echo(table([("entry", "time", "who", "kind", "dataset", "what and why"), *shown], whole=("entry", "time")))


def _record(row: Row, line: Line) -> dict[str, object]:
    named = {"entry": line.entry, "time": line.time, "kind": line.kind, "actor": line.actor, "dataset": line.dataset}
    return {**named, "words": summary(row, line), "details": row.details}
