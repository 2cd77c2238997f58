"""Dry runs: the server's own code of a fit, on synthetic rows drawn from the public schema, for free."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bursar._connection import Connection
from bursar._errors import UnavailableError
from bursar._progress import Report
from bursar_models.arrays import FloatArray
from bursar_models.checks import whole
from bursar_proto.v1 import dummy_pb2, fit_pb2

_OWN = ("bursar", "contextlib")
"""Modules between a caller and a warning."""

_MOST_ROWS, _SEEDS = 2**20, 2**64 - 1
"""Most rows that a server makes up, and the largest number of the seed's field, a uint64: refused here, by name."""


@dataclass(frozen=True)
class SyntheticRows:
    """The rows that a dry run makes.

    Numbers are even over a column's bounds, or over its bins; categories are equally likely; a tenth of the rows have
    no value in a column that may be null. Columns are independent of each other.

    Attributes:
        rows: how many, 1 to 2^20; None for the public or declared number, as far as the server allows, and 10,000 if
            there is none.
        seed: of the rows, 0 to 2^64 - 1. The noise is drawn afresh each time, as it is for the fit itself.
        values: the caller's own values by column, instead of drawn ones.

    Raises:
        InvalidRequestError: a number out of its range.
    """

    rows: int | None = None
    seed: int = 0
    values: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows is not None:
            object.__setattr__(self, "rows", whole("rows", self.rows, 1, _MOST_ROWS))
        object.__setattr__(self, "seed", whole("seed", self.seed, 0, _SEEDS))


def run_dummy(connection: Connection, fit: fit_pb2.PreviewRequest, rows: SyntheticRows, report: Report) -> Any:
    """Return the wire's model of a fit on made-up rows. Nothing is debited, so a stream that breaks is not repeated.

    A `RuntimeWarning` says if fewer rows were made up than the table has.

    Raises:
        HistoryError: the server's ledger is not the one that was seen before; nothing was asked.
        Error: the call failed.
    """
    request = dummy_pb2.DummyRequest(fit=fit, rows=rows.rows or 0, public_seed=rows.seed)
    for name, values in rows.values.items():
        request.columns.add(name=name, values=values)

    def attempt(timeout: float | None) -> Any:
        call = connection.dummies.RunDummy(request, timeout=timeout, metadata=connection.metadata)
        try:
            return _read(call, report)
        finally:
            call.cancel()

    model = connection.patiently(attempt)
    if model is None:
        raise UnavailableError("the stream ended before the model")
    return model


def callers_level() -> int:
    """Return the number of frames from the caller of this function up to the code that called this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _OWN:
        frame, level = frame.f_back, level + 1
    return level


def _read(answers: Iterable[dummy_pb2.DummyResponse], report: Report) -> Any:
    """Return the model; None if there was none."""
    model = None
    for answer in answers:
        match answer.WhichOneof("event"):
            case "start":
                for warning in answer.start.warnings:
                    warnings.warn(warning, RuntimeWarning, stacklevel=callers_level())
            case "progress":
                report(answer.progress.step, answer.progress.steps)
            case "model":
                model = getattr(answer.model, answer.model.WhichOneof("model") or "", None)
    return model
