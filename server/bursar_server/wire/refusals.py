"""Counts of refused requests in a file beside the ledger, for auditors: a refusal does not change the ledger itself.

The counts depend on request and ledger, and on no row: a refusal comes before a debit, and rows are read after it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bursar_ledger import BudgetExhaustedError, DatasetRetiredError
from bursar_ledger.refusals import FILE, Refusals
from bursar_server import log

_NAMES = {"dataset": "total", "allowance": "allowance", "call": "maximum per call"}
"""Limits by the ledger's names -> auditors' names."""


@contextlib.contextmanager
def told(events: log.Events, *, dataset: str, principal: str, method: str) -> Iterator[None]:
    """Report a refused debit of the block. The exception propagates."""
    try:
        yield
    except BudgetExhaustedError as error:
        asked, left = error.requested.rho, error.remaining.rho
        events.tell(log.Refused(dataset, principal, method, _NAMES[error.limit], asked, left))
        raise
    except DatasetRetiredError:
        events.tell(log.Refused(dataset, principal, method, "retired"))
        raise


@contextlib.contextmanager
def counted(ledger: Path, events: log.Events) -> Iterator[None]:
    """Count refusals in a file beside the ledger until the block ends; without such a file nothing is counted."""
    try:
        refusals = Refusals(ledger.with_name(FILE))
    except (sqlite3.Error, OSError) as error:
        log.failure(error)
        yield
        return

    def hear(event: log.Event) -> None:
        if not isinstance(event, log.Refused):
            return
        try:
            refusals.note(
                analyst=event.principal,
                dataset=event.dataset,
                method=event.method,
                refused_by=event.by,
                rho_asked=event.rho_asked,
                rho_left=event.rho_left,
            )
        except sqlite3.Error as error:
            log.failure(error)  # the refusal itself is reported; only the count is wrong

    with contextlib.closing(refusals), events.heard_by(hear):
        yield
