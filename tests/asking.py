"""Fits, previews and dry runs from one dictionary with the arguments of the request and of the call."""

from __future__ import annotations

from typing import Any

import bursar

_OF_CALLS = ("spend", "request_id", "progress")


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
