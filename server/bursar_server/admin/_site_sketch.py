"""Files of sketches from several sites: shared settings, reading, writing and merging.

`bursar_models.Sketch.merge` makes one sketch of those of several sites (Schellekens et al. 2019, definitions 3 and 4)
if all sites used the same columns, bounds, units, frequencies and signature. A sketch is made under a ledger only: by a
server, or by `bursar-admin sketch make`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from google.protobuf import json_format

from bursar_models import Sketch
from bursar_proto.v1 import fit_pb2
from bursar_server.fits._requests import Violations
from bursar_server.fits.sketch._wire import sketch_from, sketch_to
from bursar_server.state import write_private


def new_sketch(
    *,
    n_frequencies: int,
    sigma: float,
    public_seed: int,
    frequencies_per_row: int | None,
    law: str,
    structure: str,
    signature: str,
    units: str,
) -> fit_pb2.NewSketch:
    """Return the settings that sites share, on the wire; a plan checks the values.

    Args:
        n_frequencies: number of frequencies m; 10 k d are enough for k clusters in d columns.
        sigma: standard deviation of a cluster, in units of the largest half-width of the bounds (units "common") or of
            every column's own ("bounds").
        public_seed: seed of the frequencies; public.
        frequencies_per_row: number r of frequencies at which a row contributes, 1 to m; None: all m.
        law: law of the radii of the frequencies.
        structure: structure of their matrix.
        signature: term that is summed at a frequency.
        units: "common" or "bounds".
    """
    return fit_pb2.NewSketch(
        n_frequencies=n_frequencies,
        sigma=sigma,
        public_seed=public_seed,
        frequencies_per_row=n_frequencies if frequencies_per_row is None else frequencies_per_row,
        law=fit_pb2.FrequencyLaw.Value(f"FREQUENCY_LAW_{law.upper()}"),
        structure=fit_pb2.FrequencyStructure.Value(f"FREQUENCY_STRUCTURE_{structure.upper()}"),
        signature=fit_pb2.Signature.Value(f"SIGNATURE_{signature.upper()}"),
        units=fit_pb2.ColumnUnits.Value(f"COLUMN_UNITS_{units.upper()}"),
    )


def read_sketch(path: Path) -> Sketch:
    """Read a sketch from a file that `sketch make`, `sketch merge` or the SDK wrote; trusts nothing in it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a sketch, or its frequencies are not those that this version draws; names file and field.
    """
    message = fit_pb2.Sketch()
    try:
        json_format.Parse(path.read_text(encoding="utf-8"), message)
    except (json_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no sketch: {error}") from None
    violations: Violations = []
    found = sketch_from(message, "sketch", violations)
    if found is not None and found.frequencies.digest() != message.frequencies.digest:
        text = "is not that of the frequencies that the other fields say; another version drew them"
        violations.append(("sketch.frequencies.digest", text))
    if found is None or violations:
        problems = "; ".join(f"{field.removeprefix('sketch.')}: {text}" for field, text in violations)
        raise ValueError(f"{path} is no sketch that can be used here: {problems}")
    return found


def write_sketch(path: Path, message: fit_pb2.Sketch) -> None:
    """Write a sketch to a file (0600), whole or not at all; the same sketch always as the same bytes.

    Raises:
        OSError: the file cannot be written.
        ValueError: the file exists with other content.
    """
    content = json_format.MessageToJson(message, preserving_proto_field_name=True).encode() + b"\n"
    if not path.exists():
        write_private(path, content)
    elif path.read_bytes() != content:
        raise ValueError(f"{path} is there already and holds something else; choose another name")


def merged(sketches: Mapping[str, Sketch]) -> fit_pb2.Sketch:
    """Return one sketch of all sites' rows (paper, definition 4), on the wire.

    Args:
        sketches: sketches by a name for messages; at least one.

    Raises:
        ValueError: a sketch cannot be merged with the first, or occurs twice, so that its rows would count twice.
    """
    (first_name, first), *others = sketches.items()
    seen = {first.sums.tobytes(): first_name}
    for name, other in others:
        try:
            first.merge(other)
        except ValueError as error:
            raise ValueError(f"{name} does not go with {first_name}: {error}") from None
        same = seen.setdefault(other.sums.tobytes(), name)
        if same != name:
            raise ValueError(f"{same} and {name} are the same sketch; its rows would count twice")
    return sketch_to(first.merge(*(other for _, other in others)))
