"""Counts of refused requests beside the ledger, for auditors: the ledger itself is not changed by a refusal.

What is counted depends on the request and the ledger, and on no row: a refusal comes before a debit, and rows after it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

from bursar_ledger import BudgetExhaustedError, DatasetRetiredError
from bursar_ledger.refusals import FILE, Refusals
from bursar_server import logs

_NAMES = {"dataset": "total", "allowance": "allowance", "call": "maximum per call"}
"""What auditors call the limits that the ledger names so."""


@contextlib.contextmanager
def told(*, dataset: str, principal: str, method: str) -> Iterator[None]:
    """Around asking for a debit: an event of the log if it is refused. The exception goes on."""
    try:
        yield
    except BudgetExhaustedError as error:
        asked, left = repr(error.requested.rho), repr(error.remaining.rho)
        _tell(dataset, principal, method, _NAMES[error.limit], asked, left)
        raise
    except DatasetRetiredError:
        _tell(dataset, principal, method, "retired")
        raise


@contextlib.contextmanager
def counted(ledger: Path) -> Iterator[None]:
    """Counts these events in a file beside the ledger until the block ends; without such a file nothing is counted."""
    try:
        refusals = Refusals(ledger.with_name(FILE))
    except (sqlite3.Error, OSError) as error:
        logs.failure(error)
        yield
        return

    def hear(what: str, fields: Mapping[str, str | int | None]) -> None:
        if what != "refused":
            return
        asked, left = fields["rho_asked"], fields["rho_left"]
        try:
            refusals.note(
                analyst=str(fields["principal"]),
                dataset=str(fields["dataset"]),
                method=str(fields["method"]),
                refused_by=str(fields["by"]),
                rho_asked=None if asked is None else float(asked),
                rho_left=None if left is None else float(left),
            )
        except sqlite3.Error as error:
            logs.failure(error)  # whoever was refused is told so; only the count is not right

    with contextlib.closing(refusals), logs.heard_by(hear):
        yield


def _tell(
    dataset: str, principal: str, method: str, by: str, rho_asked: str | None = None, rho_left: str | None = None
) -> None:
    logs.event(
        "refused", dataset=dataset, principal=principal, method=method, by=by, rho_asked=rho_asked, rho_left=rho_left
    )
