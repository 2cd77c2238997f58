"""Fits, previews and dry runs from one dictionary of arguments; and the debit that a request made."""

from __future__ import annotations

from typing import Any

import bursar
from bursar_ledger import DebitRecord, Ledger

_OF_CALLS = ("spend", "request_id", "anyway", "progress")


def fit(data: bursar.Dataset, kind: type[bursar.Request], **arguments: Any) -> Any:
    """Fit a request of a kind, made of the arguments that are not of the call; with dummy=True a dry run of it."""
    dry = arguments.pop("dummy", False)
    call = {name: arguments.pop(name) for name in _OF_CALLS if name in arguments}
    request: Any = kind(**arguments)
    return data.dry_run(request, **call) if dry else data.fit(request, **call)


def preview(data: bursar.Dataset, kind: type[bursar.Request], **arguments: Any) -> bursar.Preview:
    """Preview a request of a kind, made of the arguments that are not of the call."""
    spend = arguments.pop("spend", None)
    return data.preview(kind(**arguments), spend=spend)


def debit_of(ledger: Ledger, principal: str, request_id: str) -> DebitRecord | None:
    """The debit that a request made, None if it made none."""
    entries = (one.entry for one in ledger.releases(principal) if one.request_id == request_id)
    return next(map(ledger.debit_entry, entries), None)
