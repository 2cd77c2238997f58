"""Sketches that are free for a request: an earlier one of the caller's, and those of other sites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bursar_models import Frequencies, Signature, Sketch
from bursar_models.transforms import Transform
from bursar_proto.v1 import fit_pb2
from bursar_server.fits._requests import Violations
from bursar_server.fits._seam import PublicTable, Released
from bursar_server.fits.sketch._statistics import SketchFrame
from bursar_server.fits.sketch._wire import sketch_from

MAX_FOREIGN = 64
"""Maximum number of sketches of other sites in a request. Chosen, not tuned."""


@dataclass(frozen=True, eq=False)
class Kind:
    """Properties that two sketches must share to be merged; the bounds of the frame are in own units."""

    columns: tuple[str, ...]
    frame: SketchFrame
    frequencies: Frequencies
    signature: Signature
    transforms: tuple[Transform, ...] = ()


def kind_of(sketch: Sketch) -> Kind:
    """Return the kind of sketch with which this one can be merged."""
    frame = SketchFrame(sketch.centre, sketch.unit, sketch.lower, sketch.upper)
    return Kind(sketch.columns, frame, sketch.frequencies, sketch.signature, sketch.transforms)


def earlier_sketch(
    request: fit_pb2.FitSketchKMeansRequest, released: Released, violations: Violations
) -> Sketch | None:
    """Return the sketch of the request's entry; None if that is wrong."""
    model = released(request.entry)
    if not (isinstance(model, fit_pb2.SketchModel) and model.HasField("sketch")):
        text = f"no sketch of yours of this dataset is stored under entry {request.entry}; see your list of sketches"
        violations.append(("entry", text))
        return None
    sketch = sketch_from(model.sketch, "entry", violations)
    if sketch is not None and sketch.frequencies.digest() != model.sketch.frequencies.digest:
        text = "this version of the server draws other frequencies than the sketch was made with; ask for a new one"
        violations.append(("entry", text))
    return sketch


def foreign_sketches(
    request: fit_pb2.FitSketchKMeansRequest, table: PublicTable, violations: Violations
) -> tuple[Sketch, ...]:
    """Return the sketches of other sites, without wrong ones. `check_kinds` checks that they can be merged."""
    if not len(request.foreign) <= MAX_FOREIGN:
        violations.append(("foreign", f"expected at most {MAX_FOREIGN} sketches, got {len(request.foreign)}"))
        return ()
    sketches = []
    known = {column.name for column in table.numeric}
    for index, message in enumerate(request.foreign):
        field = f"foreign[{index}]"
        sketch = sketch_from(message, field, violations)
        if not known.issuperset(message.columns):
            text = f"dataset {table.name!r} has other numeric columns: {', '.join(sorted(known))}"
            violations.append((f"{field}.columns", text))
        if sketch is not None:
            sketches.append(sketch)
    return tuple(sketches)


def check_kinds(
    expected: Kind, request: fit_pb2.FitSketchKMeansRequest, foreign: tuple[Sketch, ...], violations: Violations
) -> None:
    """Check that all sketches of other sites can be merged with one of the expected kind.

    Args:
        expected: kind of the source; of the first foreign sketch if there is no source.
        request: request as it was sent.
        foreign: all its foreign sketches.
        violations: list to which a fault is added for every wrong field.
    """
    digest = expected.frequencies.digest() if foreign else b""
    for index, (message, sketch) in enumerate(zip(request.foreign, foreign, strict=True)):
        field, kind = f"foreign[{index}]", kind_of(sketch)
        if kind.columns != expected.columns:
            violations.append((f"{field}.columns", f"expected {', '.join(expected.columns)}, in this order"))
            continue
        for name in ("centre", "unit", "lower", "upper"):
            # To the bit: in other units the sums are of other functions of the rows, and nothing would show it.
            if not np.array_equal(getattr(kind.frame, name), getattr(expected.frame, name)):
                violations.append((f"{field}.{name}", "expected that of the other sketches, to the last bit"))
        if kind.transforms != expected.transforms:
            violations.append((f"{field}.transforms", "expected those of the other sketches"))
        if kind.signature != expected.signature:
            violations.append((f"{field}.signature", f"expected {expected.signature}"))
        if different := expected.frequencies.differences(kind.frequencies):
            violations.append((f"{field}.frequencies", f"are not those of the other sketches: {different}"))
        elif message.frequencies.digest != digest:
            text = "is not that of the frequencies that the other fields say; they were drawn by another version"
            violations.append((f"{field}.frequencies.digest", text))
