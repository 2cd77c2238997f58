"""Checks of a request before its debit: it is known in full, real, within the owner's limits, and useful.

They are functions of request, public table and plan. Nothing here reads a row or a debit. Limits of usefulness are in
`bursar_models.usefulness`, because forecasts are judged by them, too; docs/useless.md explains the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bursar_models.usefulness import Finding, findings, percent
from bursar_proto.v1 import fit_pb2
from bursar_server.config import RequestLimits
from bursar_server.fits import InvalidFieldsError, Plan, PublicTable
from bursar_server.fits.contract import BY_FIELD, METHODS, FitRequest, Method

_LIMITS: Mapping[str, str] = {
    "n_components": "components",
    "n_clusters": "components",
    "iterations": "iterations",
    "columns": "columns",
    "cliques": "cliques",
    "n_frequencies": "frequencies",
}
"""Field name anywhere in a request -> limit; for a list it bounds the length."""


def _limited(message: Descriptor, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the limited fields of a request and of the messages in it, each with its limit; not those inside lists."""
    for field in message.fields:
        if field.message_type is not None and not field.is_repeated:
            yield from _limited(field.message_type, f"{path}{field.name}.")
        elif field.name in _LIMITS:
            yield f"{path}{field.name}", _LIMITS[field.name]


_FIELDS: Mapping[str, str] = dict(found for method in METHODS.values() for found in _limited(method.request.DESCRIPTOR))
"""Field of any fit's request -> limit."""


def check_request(limits: RequestLimits, request: Any) -> None:
    """Check that no field of a request exceeds the owner's limits.

    Raises InvalidFieldsError naming every one that does.
    """
    violations = []
    for path, name in _FIELDS.items():
        asked, most = _asked(request, path), getattr(limits, name)
        if not asked <= most:
            violations.append((path, f"expected at most {most} on this server, got {asked}"))
    if violations:
        raise InvalidFieldsError(*violations)


def check_plan(limits: RequestLimits, request: Any, plan: Plan, rows: int | None) -> None:
    """Check that a plan is within the limits where the request left the choice to the server.

    Raises:
        InvalidFieldsError: the plan exceeds a limit.
    """
    if not len(plan.columns) <= limits.columns:
        text = (
            f"expected at most {limits.columns} on this server, and the request is for {len(plan.columns)}; name fewer"
        )
        raise InvalidFieldsError(("columns", text))
    chosen = plan.parameters.get("iterations")
    if isinstance(chosen, int) and not chosen <= limits.iterations:
        text = f"expected at most {limits.iterations} on this server, and the server would make {chosen}; ask for fewer"
        raise InvalidFieldsError(("iterations", text))
    rounds = plan.parameters.get("rounds")
    if isinstance(rounds, int) and not rounds <= limits.cliques:
        text = (
            f"expected at most {limits.cliques} cliques on this server, and it would choose {rounds}; name fewer "
            "columns, or ask for a tree"
        )
        raise InvalidFieldsError(("graph", text))
    seconds = work(request, plan, rows or 0) / limits.work_per_second
    if not seconds <= limits.fit_seconds:
        text = (
            f"is reckoned to take {seconds:.3g} seconds on this server, which allows {limits.fit_seconds:.3g}; ask for "
            "fewer components, columns or iterations"
        )
        raise InvalidFieldsError(("request", text))


def check_fit(limits: RequestLimits, request: Any, plan: Plan, rows: int | None) -> None:
    """Check request and plan of a new fit or a dry run. Raises InvalidFieldsError."""
    check_request(limits, request)
    check_plan(limits, request, plan, rows)


def work(request: Any, plan: Plan, rows: int) -> float:
    """Estimate the number of additions of a fit from public numbers.

    It is rows, times the cost of a row, times passes over the rows. For a sketch a row costs its columns times the
    frequencies; elsewhere its columns squared, as covariances do, times the components, which overestimates models
    without covariances. A pass is a step of progress, or a release if there are more of those.
    """
    passes = max(plan.iterations, len(plan.events), 1) if plan.events else 0
    columns = len(plan.columns)
    chosen = plan.parameters.get("n_frequencies")
    frequencies = chosen if isinstance(chosen, int) else _asked(request, "new_sketch.n_frequencies")
    components = max(_asked(request, "n_components"), 1)
    return float(rows) * (columns * frequencies if frequencies else columns**2 * components) * passes


def page(limits: RequestLimits, asked: int, largest: int) -> int:
    """Return the number of rows of a page: the requested one, the maximum for 0, and never more than the maximum."""
    most = min(limits.page_rows, largest)
    return min(asked or most, most)


def check_entries(limits: RequestLimits, asked: int, there: int) -> None:
    """Check that one call may list this many entries.

    All are `asked` for by 0; `there` are those from the first requested one on.

    Raises:
        InvalidFieldsError: there are too many.
    """
    if not (min(asked, there) if asked else there) <= limits.entry_rows:
        text = f"one call of this server lists at most {limits.entry_rows} entries; ask for them in parts, with first"
        raise InvalidFieldsError(("limit", text))


def _asked(request: Any, path: str) -> int:
    """Return a number of a request, or the length of a list; 0 if it has no such field."""
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


def previewed(request: fit_pb2.PreviewRequest) -> tuple[Method, FitRequest]:
    """Return the method and the request of a preview. Raises InvalidFieldsError if there is none."""
    field = request.WhichOneof("fit")
    if field is None:
        raise InvalidFieldsError(("fit", "is missing; expected the request of a fit that is to be previewed"))
    found: FitRequest = getattr(request, field)
    return BY_FIELD[field], found


def check_known(request: Message | FitRequest) -> None:
    """Check that a request has no unknown fields, as a newer client may send; their meaning is not guessed.

    Raises:
        InvalidFieldsError: there are unknown fields; names their numbers.
    """
    if unknown := _unknown_fields(cast(Message, request)):
        raise InvalidFieldsError(("request", f"has fields that this version does not know: {', '.join(unknown)}"))


def check_real(request: FitRequest) -> None:
    """Check that no synthetic result enters a charged or stored request. Raises InvalidFieldsError."""
    if isinstance(request, fit_pb2.FitSketchKMeansRequest):
        text = "is of made-up rows, by a dummy run; expected a sketch that was released"
        wrong = [(f"foreign[{place}]", text) for place, sketch in enumerate(request.foreign) if sketch.dummy]
        if wrong:
            raise InvalidFieldsError(*wrong)


def _unknown_fields(message: Message, path: str = "") -> list[str]:
    unknown = UnknownFieldSet(message)
    found = [f"{path}{unknown[i].field_number}" for i in range(len(unknown))]
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                found += _unknown_fields(part, f"{path}{field.name}.")
    return found


USELESS_MARGIN = 0.25
"""Margin of a preflight's rule below which a search is useless: it takes sixteen times the spend, about."""

WARNINGS = "warnings"
"""Name among a debit's parameters of what the analyst was told before it, for its receipt."""

PlanT = TypeVar("PlanT", bound=Plan)


def judged(plan: PlanT, table: PublicTable) -> PlanT:
    """Return the plan with what the rule says of it first among its warnings, and `useless` set.

    A plan without events is free, so nothing is said of it.
    """
    found = sorted(_findings(plan, table), key=lambda one: not one.useless) if plan.events else []
    useless = any(one.useless for one in found)
    return replace(plan, warnings=(*map(str, found), *plan.warnings), useless=useless)


def check_useful(plan: Plan) -> None:
    """Check that the rule does not call a judged plan useless. Raises InvalidFieldsError with what would help."""
    if plan.useless:
        help_ = (
            "spend more, ask for fewer components, columns or cells, or insist with anyway=True, for instance where a "
            "forecast (like=...) says otherwise"
        )
        raise InvalidFieldsError(("spend", f"{plan.warnings[0]}; {help_}"))


def _findings(plan: Plan, table: PublicTable) -> Iterator[Finding]:
    widths = {column.name: column.upper - column.lower for column in table.numeric}
    widths |= {plan.columns[one.place]: one.ends[1] - one.ends[0] for one in plan.transforms}
    target = plan.columns[-1] if plan.columns else None
    yield from findings({name: one.value for name, one in plan.expected.items()}, widths, target)
    if plan.preflight is not None:
        for rule in plan.preflight.rules:
            text = f"{rule.name}: there is {percent(rule.margin)} of what finding components takes"
            yield from [Finding(text, useless=True)] * (not rule.margin >= USELESS_MARGIN)
