"""Plan of FitSketchKMeans: every check, cost and noise, from a request and the public schema. Reads no rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from bursar_ledger import Adjacency
from bursar_models import (
    DEFAULT_RESTARTS,
    MAX_FREQUENCIES,
    MAX_SIGMA,
    MIN_SIGMA,
    Frequencies,
    Sketch,
    most_restarts,
    predicted_snr,
)
from bursar_models.requests._sketch_kmeans import PILOT_FREQUENCIES, PILOT_SHARES
from bursar_proto.v1 import fit_pb2
from bursar_server.fits._requests import (
    Amount,
    ModelColumns,
    Violations,
    amount_of,
    check_enum,
    check_or_zero,
    columns_of,
    left_out,
    model_columns,
    stop_if,
    transforms_from,
)
from bursar_server.fits._seam import JSON, BoundedColumn, InvalidFieldsError, Plan, PublicTable, Released
from bursar_server.fits.sketch._choices import default_frequencies, outlook, schema_sigma
from bursar_server.fits.sketch._pilot import PILOT_SIGMA
from bursar_server.fits.sketch._run import Decoding, Measurement, New, Shape, SketchSettings
from bursar_server.fits.sketch._sources import Kind, check_kinds, earlier_sketch, foreign_sketches, kind_of
from bursar_server.fits.sketch._statistics import SketchFrame, default_count_weight
from bursar_server.fits.sketch._wire import FAR, LAWS, SIGNATURES, STRUCTURES, noise_of, release_noise
from bursar_server.vault import Noise, Sensitivity, gaussian_for, laplace_for

MAX_CLUSTERS, MAX_INIT = 256, 100
"""Limits of public numbers, which bound the time of a fit. Chosen, not tuned."""

DEFAULT_SHARE, DEFAULT_PILOT = Fraction(15, 100), 64
"""Defaults of a pilot sketch: its share of the budget, and its frequencies. Chosen, not tuned."""


@dataclass(frozen=True, kw_only=True)
class SketchPlan(Plan):
    """Plan with the settings of its run."""

    settings: SketchSettings


def plan(request: fit_pb2.FitSketchKMeansRequest, table: PublicTable, released: Released) -> SketchPlan:
    """Check a request against the public schema and decide every release.

    Raises InvalidFieldsError naming every field that is wrong.
    """
    violations: Violations = []
    decoding = _decoding(request, violations)
    foreign = foreign_sketches(request, table, violations)
    source = request.WhichOneof("source")
    if source is None and not request.foreign:
        violations.append(("source", "expected new_sketch, the entry of an earlier sketch, or foreign sketches"))
    if request.foreign and not decoding.n_clusters:
        violations.append(("n_clusters", "foreign sketches are merged only to be decoded; expected at least 1"))
    if source == "new_sketch":
        return _paid(request, table, decoding, foreign, violations)
    if request.HasField("spend"):
        violations.append(("spend", "a sketch that is there already costs nothing; leave spend out"))
    earlier = earlier_sketch(request, released, violations) if source == "entry" else None
    stop_if(violations)
    return _free(request, decoding, earlier, foreign)


def _free(
    request: fit_pb2.FitSketchKMeansRequest, decoding: Decoding, earlier: Sketch | None, foreign: tuple[Sketch, ...]
) -> SketchPlan:
    violations: Violations = []
    first = foreign[0] if earlier is None else earlier
    check_kinds(kind_of(first), request, foreign, violations)
    if request.columns and tuple(request.columns) != first.columns:
        text = f"the sketch is of {', '.join(first.columns)}; leave the columns out, or ask for a new sketch"
        violations.append(("columns", text))
    decoding = _fitted(decoding, first.frequencies, violations)
    stop_if(violations)
    settings = SketchSettings(None, earlier, foreign, decoding)
    merged = settings.merged(earlier)
    expected = outlook(
        merged.snr(), decoding.n_clusters, merged.frequencies, per_row=merged.frequencies_per_row, pure=False
    )
    return SketchPlan(
        columns=first.columns,
        events=(),
        iterations=1,
        noise=(noise_of(merged),),
        parameters={},
        expected=expected.accuracy,
        warnings=expected.warnings,
        of_entry=request.entry,
        settings=settings,
    )


def _paid(
    request: fit_pb2.FitSketchKMeansRequest,
    table: PublicTable,
    decoding: Decoding,
    foreign: tuple[Sketch, ...],
    violations: Violations,
) -> SketchPlan:
    asked = request.new_sketch
    amount = amount_of(request.spend, violations)
    named = columns_of(request.columns, table, violations)
    own = model_columns(named, asked.transforms, violations)
    _check_new(asked, violations)
    if request.foreign and asked.WhichOneof("scale") in (None, "pilot"):
        text = "foreign sketches have their scale, which a pilot would not find again; give their sigma"
        violations.append(("new_sketch.scale", text))
    stop_if(violations)
    frame = _frame(own.columns, asked.units, violations)
    stop_if(violations)
    new = _new(asked, _Payment(amount, table), frame, own, decoding.n_clusters)
    frequencies = new.main.shape.frequencies
    if not asked.frequencies_per_row <= frequencies.m:
        text = f"expected at most the sketch's {frequencies.m} frequencies, got {asked.frequencies_per_row}"
        violations.append(("new_sketch.frequencies_per_row", text))
    in_units = replace(frame, lower=own.own_box[0], upper=own.own_box[1])
    kind = Kind(new.columns, in_units, frequencies, new.main.shape.signature, transforms_from(own.wire))
    check_kinds(kind, request, foreign, violations)
    decoding = _fitted(decoding, frequencies, violations)
    stop_if(violations)
    # Without a public number of rows there is no prediction: it would reveal the private one.
    snr = None
    if table.rows is not None:
        here = (float(table.rows), _snr(new.main, table.rows))
        snr = _merged_snr([here, *((sketch.n_rows, sketch.snr()) for sketch in foreign)])
    expected = outlook(snr, decoding.n_clusters, frequencies, per_row=new.main.shape.per_row, pure=amount.pure)
    return SketchPlan(
        columns=new.columns,
        events=tuple(one.event(table.adjacency, table.unit_cap) for one in new.measurements),
        iterations=len(new.measurements) + decoding.wanted_here,
        noise=tuple(
            release_noise(name, one.shape.frequencies.m, one.std, one.count_std)
            for name, one in zip(("pilot sketch", "sketch")[-len(new.measurements) :], new.measurements, strict=True)
        ),
        parameters={**_parameters(request, new, decoding), **own.parameters},
        transforms=own.transforms,
        expected=expected.accuracy,
        warnings=(*expected.warnings, *left_out(named)),
        settings=SketchSettings(new, None, foreign, decoding),
    )


def _decoding(request: fit_pb2.FitSketchKMeansRequest, violations: Violations) -> Decoding:
    if not 0 <= request.n_clusters <= MAX_CLUSTERS:
        violations.append(("n_clusters", f"expected 0 to {MAX_CLUSTERS}, got {request.n_clusters}"))
    check_or_zero("n_init", request.n_init, (1, MAX_INIT), "to let the server choose", violations)
    check_enum("decoding", fit_pb2.Decoding, request.decoding, violations)
    mixture = request.decoding == fit_pb2.DECODING_MIXTURE
    return Decoding(mixture, request.n_clusters, request.n_init, request.public_seed, here=not request.decode_on_client)


def _fitted(decoding: Decoding, frequencies: Frequencies, violations: Violations) -> Decoding:
    """Return the decoding with its number of restarts, the requested one, if it ends in bounded time.

    The limit also holds if the client decodes: a sketch that cannot be decoded should not be charged.
    """
    k, m, d = decoding.n_clusters, frequencies.m, frequencies.d
    if not k <= m:
        violations.append(("n_clusters", f"expected at most the {m} frequencies of the sketch, got {k}"))
    if not k:
        return decoding
    most, size = most_restarts(k, m, d), f"{k} clusters in {d} columns at {m} frequencies"
    if not most:
        text = f"{size} take too long to decode; ask for fewer, or for the sketch alone, and take your time with that"
        violations.append(("n_clusters", text))
    elif not decoding.n_init <= most:
        violations.append(("n_init", f"{size} take long to decode; expected at most {most}, got {decoding.n_init}"))
    return replace(decoding, n_init=decoding.n_init or min(DEFAULT_RESTARTS, most))


def _check_new(asked: fit_pb2.NewSketch, violations: Violations) -> None:
    for field, enum in (
        ("law", fit_pb2.FrequencyLaw),
        ("structure", fit_pb2.FrequencyStructure),
        ("signature", fit_pb2.Signature),
        ("units", fit_pb2.ColumnUnits),
    ):
        check_enum(f"new_sketch.{field}", enum, getattr(asked, field), violations)
    count = asked.n_frequencies
    check_or_zero("new_sketch.n_frequencies", count, (1, MAX_FREQUENCIES), "to let the server choose", violations)
    if asked.WhichOneof("scale") == "sigma" and not MIN_SIGMA <= asked.sigma <= MAX_SIGMA:
        violations.append(("new_sketch.sigma", f"expected {MIN_SIGMA:g} to {MAX_SIGMA:g}, got {asked.sigma}"))
    pilot = asked.pilot
    check_or_zero("new_sketch.pilot.share", pilot.share, PILOT_SHARES, f"for {float(DEFAULT_SHARE)}", violations)
    field, count = "new_sketch.pilot.n_frequencies", pilot.n_frequencies
    check_or_zero(field, count, PILOT_FREQUENCIES, f"for {DEFAULT_PILOT}", violations)


def _frame(columns: tuple[BoundedColumn, ...], units: int, violations: Violations) -> SketchFrame:
    """Return the bounds, with their largest half-width as the unit of all columns, or each its own."""
    lower, upper = (np.array([getattr(c, side) for c in columns], dtype=np.float64) for side in ("lower", "upper"))
    # Halved first: the width of bounds could overflow.
    half = upper / 2.0 - lower / 2.0
    unit = half if units == fit_pb2.COLUMN_UNITS_BOUNDS else np.full_like(half, half.max())
    if not np.all((unit > 1 / FAR) & (unit < FAR)):
        text = f"bounds must be between {1 / FAR:g} and {FAR:g} wide; leave columns out or narrow their bounds"
        violations.append(("columns", text))
    return SketchFrame(lower / 2.0 + upper / 2.0, unit, lower, upper)


@dataclass(frozen=True)
class _Payment:
    """Budget in a dataset's terms."""

    amount: Amount
    table: PublicTable

    def of(self, share: Fraction) -> _Payment:
        """Return a share of the budget."""
        return replace(self, amount=replace(self.amount, value=share * self.amount.value))

    def measure(self, shape: Shape) -> Measurement:
        """Return the measurement with the least noise for the budget. Raises ValueError if it is too small."""
        calibrate: Callable[[Sensitivity, Fraction], Noise] = laplace_for if self.amount.pure else gaussian_for
        return Measurement(
            shape, calibrate(shape.sensitivity(self.table.adjacency, self.table.unit_cap), self.amount.value)
        )


def _new(asked: fit_pb2.NewSketch, payment: _Payment, frame: SketchFrame, own: ModelColumns, k: int) -> New:
    """Return the releases of a new sketch. Raises InvalidFieldsError if the budget is too small."""
    d, table = len(own.columns), payment.table
    share = Fraction(asked.pilot.share) or DEFAULT_SHARE
    scale = asked.WhichOneof("scale") or "pilot"
    # Only a pilot reads rows to find the scale; the others leave all of the spend to the sketch.
    main_payment = payment.of(1 - share) if scale == "pilot" else payment
    sigma = asked.sigma if scale == "sigma" else schema_sigma(k, d)
    counted = table.adjacency is Adjacency.ADD_REMOVE_ONE

    def shape(m: int) -> Shape:
        r = min(asked.frequencies_per_row or m, m)
        frequencies = Frequencies(m, d, asked.public_seed, sigma, LAWS[asked.law], STRUCTURES[asked.structure])
        return Shape(frequencies, SIGNATURES[asked.signature], r, default_count_weight(r) if counted else 0)

    def snr(m: int) -> float | None:
        return None if table.rows is None else _snr(main_payment.measure(shape(m)), table.rows)

    try:
        m = asked.n_frequencies or default_frequencies(k, d, pure=payment.amount.pure, snr=snr)
        main = main_payment.measure(shape(m))
        pilot = payment.of(share).measure(_pilot_shape(asked, d, counted)) if scale == "pilot" else None
    except ValueError as error:
        raise InvalidFieldsError(("spend", str(error))) from None
    return New(own, frame, pilot, main, None if counted else table.rows, k)


def _pilot_shape(asked: fit_pb2.NewSketch, d: int, counted: bool) -> Shape:
    m = asked.pilot.n_frequencies or DEFAULT_PILOT
    # Its own seed, also public, so that the pilot's directions differ from the sketch's.
    seed = int.from_bytes(hashlib.sha256(b"pilot" + asked.public_seed.to_bytes(8, "big")).digest()[:8], "big")
    frequencies = Frequencies(m, d, seed, PILOT_SIGMA, "multiscale")
    return Shape(frequencies, "exponential", m, default_count_weight(m) if counted else 0)


def _snr(measurement: Measurement, rows: int) -> float:
    shape = measurement.shape
    return predicted_snr(
        n_rows=rows,
        m=shape.frequencies.m,
        frequencies_per_row=shape.per_row,
        noise_std=measurement.std,
        signature=shape.signature,
    )


def _merged_snr(sites: Sequence[tuple[float, float]]) -> float:
    """Return the SNR of merged sketches of n rows each: n^2 over the ratio adds up (paper, definition 4)."""
    rows = [(max(n, 1.0), snr) for n, snr in sites]
    return sum(n for n, _ in rows) ** 2 / sum(n**2 / snr for n, snr in rows)


def _parameters(request: fit_pb2.FitSketchKMeansRequest, new: New, decoding: Decoding) -> dict[str, JSON]:
    """Return public parameters for the ledger's entry, beside the events."""
    asked, main = request.new_sketch, new.main.shape
    frequencies = main.frequencies
    pilot: dict[str, JSON] | None = None
    if new.pilot is not None:
        one = new.pilot.shape.frequencies
        pilot = {"n_frequencies": one.m, "public_seed": str(one.public_seed), "sigma": one.sigma, "law": one.law}
    return {
        "columns": list(new.columns),
        "n_frequencies": frequencies.m,
        "frequencies_per_row": main.per_row,
        "count_weight": main.count_weight,
        "law": frequencies.law,
        "structure": frequencies.structure,
        "signature": main.signature,
        "units": "bounds" if asked.units == fit_pb2.COLUMN_UNITS_BOUNDS else "common",
        "public_seed": str(frequencies.public_seed),
        "scale": asked.WhichOneof("scale") or "pilot",
        "sigma": None if pilot else frequencies.sigma,
        "pilot": pilot,
        "n_clusters": decoding.n_clusters,
        "decoding": "mixture" if decoding.mixture else "kmeans",
        "n_init": decoding.n_init,
        "decoding_seed": str(decoding.public_seed),
        "foreign_sketches": len(request.foreign),
    }
