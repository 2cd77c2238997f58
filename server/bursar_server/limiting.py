"""The owner's limits on what one request may ask for: functions of request, public table and plan. No row, no debit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bursar_server.config import RequestLimits
from bursar_server.fits import InvalidRequestError, Plan

_FIELDS: Mapping[str, str] = {
    "n_components": "components",
    "n_clusters": "components",
    "iterations": "iterations",
    "columns": "columns",
    "cliques.cliques": "cliques",
    "new_sketch.n_frequencies": "frequencies",
    "new_sketch.pilot.n_frequencies": "frequencies",
}
"""Which limit bounds which field of a fit's request; of a list, its length."""


def check_request(limits: RequestLimits, request: Any) -> None:
    """Raises InvalidRequestError naming every field that asks for more than the owner of the server allows."""
    violations = []
    for path, name in _FIELDS.items():
        asked, most = _asked(request, path), getattr(limits, name)
        if not asked <= most:
            violations.append((path, f"expected at most {most} on this server, got {asked}"))
    if violations:
        raise InvalidRequestError(*violations)


def check_plan(limits: RequestLimits, request: Any, plan: Plan, rows: int | None) -> None:
    """Whether what is planned stays within the limits, where the request left it to the server.

    Args:
        limits: of the server.
        request: of the fit.
        plan: made from it.
        rows: the public number of rows, None if there is none.

    Raises InvalidRequestError.
    """
    if not len(plan.columns) <= limits.columns:
        text = (
            f"expected at most {limits.columns} on this server, and the request is for {len(plan.columns)}; name fewer"
        )
        raise InvalidRequestError(("columns", text))
    chosen = plan.parameters.get("iterations")
    if isinstance(chosen, int) and not chosen <= limits.iterations:
        text = f"expected at most {limits.iterations} on this server, and the server would make {chosen}; ask for fewer"
        raise InvalidRequestError(("iterations", text))
    seconds = work(request, plan, rows or 0) / limits.work_per_second
    if not seconds <= limits.fit_seconds:
        text = (
            f"is reckoned to take {seconds:.3g} seconds on this server, which allows {limits.fit_seconds:.3g}; ask for "
            "fewer components, columns or iterations"
        )
        raise InvalidRequestError(("request", text))


def check_fit(limits: RequestLimits, request: Any, plan: Plan, rows: int | None) -> None:
    """Both of the above, for what is new or only tried. Raises InvalidRequestError."""
    check_request(limits, request)
    check_plan(limits, request, plan, rows)


def work(request: Any, plan: Plan, rows: int) -> float:
    """Additions that a fit makes, roughly, from public numbers.

    Rows, times what one row costs, times passes over the rows. For a sketch a row costs its columns times the
    frequencies; elsewhere its columns squared, as covariances have them, times the components: what has no covariances
    is overestimated. A pass is a step that progress tells of, or a release if there are more of those.
    """
    passes = max(plan.iterations, len(plan.events), 1) if plan.events else 0
    columns = len(plan.columns)
    chosen = plan.parameters.get("n_frequencies")
    frequencies = chosen if isinstance(chosen, int) else _asked(request, "new_sketch.n_frequencies")
    components = max(_asked(request, "n_components"), 1)
    return float(rows) * (columns * frequencies if frequencies else columns**2 * components) * passes


def page(limits: RequestLimits, asked: int, largest: int) -> int:
    """Rows of a page of a list: as asked for, 0 for as many as there may be, and never more than that."""
    most = min(limits.page_rows, largest)
    return min(asked or most, most)


def check_entries(limits: RequestLimits, asked: int, there: int) -> None:
    """Whether one call may list so many entries.

    Args:
        limits: of the server.
        asked: for at most so many, 0 for all.
        there: entries from the first that was asked for.

    Raises InvalidRequestError.
    """
    if not (min(asked, there) if asked else there) <= limits.entry_rows:
        text = f"one call of this server lists at most {limits.entry_rows} entries; ask for them in parts, with first"
        raise InvalidRequestError(("limit", text))


def _asked(request: Any, path: str) -> int:
    """A number of a request, or the length of a list; 0 where it has no such field."""
    return next(_numbers(request, path.split(".")), 0)


def _numbers(message: Any, path: Sequence[str]) -> Iterator[int]:
    field = message.DESCRIPTOR.fields_by_name.get(path[0])
    if field is None:
        return
    value = getattr(message, path[0])
    if len(path) > 1:
        yield from _numbers(value, path[1:])
    else:
        yield value if isinstance(value, int) else len(value)
