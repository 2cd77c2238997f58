"""Sites that sketch rows of their own: the function for a site that publishes once, and sketches in files.

A site's sketch goes the way of every release: `plan` decides it, a meter allows exactly its price, a session sums and
adds the noise. `bursar.models.Sketch.merge` makes one of those of several sites (Schellekens et al. 2019, definitions 3
and 4), if all sites took the same columns, bounds, units, frequencies and signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format

from bursar._privacy import EpsilonDelta, Pure, Rho
from bursar.models import FrequencyLaw, FrequencyStructure, Signature, Sketch
from bursar_ledger import Adjacency, cost_units
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import InvalidRequestError, NumericColumn, PublicTable, sketch
from bursar_server.fits._requests import LARGEST, Violations, stop_if
from bursar_server.fits.sketch._wire import LAWS, SIGNATURES, STRUCTURES, sketch_from, sketch_to
from bursar_server.state import write_private
from bursar_server.vault import MAX_ROWS, ArrayRows, LocalEngine, Meter, OpenDPNoise, Session

NumberT = TypeVar("NumberT")

UNITS: Mapping[fit_pb2.ColumnUnits.ValueType, str] = {
    fit_pb2.COLUMN_UNITS_COMMON: "common",
    fit_pb2.COLUMN_UNITS_BOUNDS: "bounds",
}
"""Units of columns as the contract has them, and in words."""

_ORDER = Fraction(2)
"""Of the Renyi divergence that the meter counts in. One release at its own price fits at every order."""


def sketch_rows(
    columns: Mapping[str, tuple[float, float]],
    rows: npt.ArrayLike,
    *,
    adjacency: Adjacency,
    spend: Rho | EpsilonDelta | Pure,
    n_frequencies: int,
    sigma: float,
    public_seed: int,
    frequencies_per_row: int | None = None,
    law: FrequencyLaw = "adapted_radius",
    structure: FrequencyStructure = "dense",
    signature: Signature = "exponential",
    units: str = "common",
    unit_cap: int = 1,
    threads: int = 1,
) -> Sketch:
    """Sketch rows of one's own, on a device that publishes ONE sketch of them, ever.

    NOTHING HERE REMEMBERS WHAT WAS SPENT. Two sketches of the same rows, or of rows of the same people, cost the sum of
    both, and a second call knows nothing of the first. Whoever publishes more than once, or answers others, keeps a
    ledger: `bursar-admin sketch make` makes the same sketch under the total of a state directory.

    All sites whose sketches are to be merged agree on everything but `rows`, `adjacency`, `spend`,
    `frequencies_per_row` and `unit_cap`. None of it may come from anybody's rows: that would be an unpaid query.

    Args:
        columns: public lower and upper bounds by name, in the order of the columns of `rows`. Values beyond them are
            moved to them.
        rows: shape (n, d), in the data's own units. A row with a number that is not finite counts as one that is not
            there.
        adjacency: REPLACE_ONE protects what a row says; n is public and goes into the sketch as it is. ADD_REMOVE_ONE
            protects whether there is a row; n goes into the sketch with noise.
        spend: `bursar.rho(...)` or `bursar.epsilon_delta(...)` for Gaussian noise, `bursar.pure(...)` for Laplace's.
        n_frequencies: m, 1 to `bursar.models.MAX_FREQUENCIES`; 10 k d are enough for k clusters in d columns.
        sigma: standard deviation of a cluster, in units of the largest half-width of the bounds (units "common") or of
            every column's own ("bounds").
        public_seed: of the frequencies, 0 to 2^64 - 1; protects nothing.
        frequencies_per_row: r, 1 to m; None: every row is asked for all m.
        law: of the radii of the frequencies.
        structure: of their matrix.
        signature: what is summed at a frequency.
        units: "common" or "bounds".
        unit_cap: most rows that one privacy unit (a person, say) has; the caller sees to it. Noise grows with it.
        threads: that sum rows; the sums do not depend on it.

    Returns:
        The sketch, without a receipt.

    Raises:
        InvalidRequestError: an argument is wrong; names it, says what was expected, and nothing was drawn.
    """
    violations: Violations = []
    numeric = _numeric(columns, violations)
    values = _values(rows, len(columns), violations)
    amount = _spend(spend, violations)
    if adjacency not in tuple(Adjacency):
        violations.append(("adjacency", f"expected one of {', '.join(map(str, Adjacency))}, got {adjacency!r}"))
    if not (_is_whole(unit_cap) and unit_cap >= 1):
        violations.append(("unit_cap", f"expected a whole number of at least 1, got {unit_cap!r}"))
    stop_if(violations)
    new = new_sketch(
        n_frequencies=n_frequencies,
        sigma=sigma,
        public_seed=public_seed,
        frequencies_per_row=frequencies_per_row,
        law=law,
        structure=structure,
        signature=signature,
        units=units,
    )
    # Under ADD_REMOVE_ONE nothing that is decided may know how many rows there are.
    public_rows = len(values) if adjacency is Adjacency.REPLACE_ONE else None
    table = PublicTable("these rows", numeric, adjacency, unit_cap, public_rows)
    plan = _plan(fit_pb2.FitSketchKMeansRequest(spend=amount, new_sketch=new), table)
    return _released(plan, table, values, threads)


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
    """What sites have in common, on the wire; arguments as in `sketch_rows`.

    Raises InvalidRequestError naming an argument that the wire cannot hold; a plan checks the rest.
    """
    violations: Violations = []
    r = n_frequencies if frequencies_per_row is None else frequencies_per_row
    for name, number, least, most in (
        ("n_frequencies", n_frequencies, 1, 2**32 - 1),
        ("frequencies_per_row", r, 1, 2**32 - 1),
        ("public_seed", public_seed, 0, 2**64 - 1),
    ):
        if not (_is_whole(number) and least <= number <= most):
            violations.append((name, f"expected a whole number from {least} to {most}, got {number!r}"))
    new = fit_pb2.NewSketch(
        law=_number("law", law, LAWS, violations),
        structure=_number("structure", structure, STRUCTURES, violations),
        signature=_number("signature", signature, SIGNATURES, violations),
        units=_number("units", units, UNITS, violations),
        sigma=sigma,
    )
    stop_if(violations)
    new.n_frequencies, new.frequencies_per_row, new.public_seed = n_frequencies, r, public_seed
    return new


def read_sketch(path: Path) -> Sketch:
    """A sketch from a file that `bursar-admin sketch make`, `sketch merge` or the SDK wrote. Trusts nothing in it.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no sketch, or its frequencies are not those that this version draws; names file and field.
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
        OSError: it cannot be written.
        ValueError: there is a file that holds something else.
    """
    content = json_format.MessageToJson(message, preserving_proto_field_name=True).encode() + b"\n"
    if not path.exists():
        write_private(path, content)
    elif path.read_bytes() != content:
        raise ValueError(f"{path} is there already and holds something else; choose another name")


def merged(sketches: Mapping[str, Sketch]) -> fit_pb2.Sketch:
    """One sketch of all sites' rows (paper, definition 4), on the wire.

    Args:
        sketches: by a name for messages; at least one.

    Raises ValueError naming a sketch that cannot be merged with the first and the field that differs, or one that is
    there twice: its rows would count twice.
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


def _plan(request: fit_pb2.FitSketchKMeansRequest, table: PublicTable) -> sketch.SketchPlan:
    try:
        return sketch.plan(request, table, lambda entry: None)
    except InvalidRequestError as error:
        named = ((field.removeprefix("new_sketch."), text) for field, text in error.violations)
        raise InvalidRequestError(*named) from None


def _released(plan: sketch.SketchPlan, table: PublicTable, values: npt.NDArray[np.float64], threads: int) -> Sketch:
    """The release of a plan, made as under a debit of exactly its price."""
    session = Session(
        rows=ArrayRows(np.ascontiguousarray(values.T)),
        columns=len(plan.columns),
        adjacency=table.adjacency,
        unit_cap=table.unit_cap,
        meter=Meter(_ORDER, cost_units(plan.events, _ORDER)),
        source=OpenDPNoise(),
        engine=LocalEngine(threads),
    )
    violations: Violations = []
    found = sketch_from(sketch.run(plan, session).sketch, "sketch", violations)
    if found is None:
        raise InvalidRequestError(*violations)
    return found


def _spend(spend: object, violations: Violations) -> types_pb2.Spend:
    if isinstance(spend, Rho):
        return types_pb2.Spend(rho=spend.value)
    if isinstance(spend, Pure):
        return types_pb2.Spend(epsilon=spend.epsilon)
    if isinstance(spend, EpsilonDelta):
        pair = types_pb2.EpsilonDelta(epsilon=spend.epsilon, delta=spend.delta)
        return types_pb2.Spend(epsilon_delta=pair)
    text = f"expected bursar.rho, bursar.epsilon_delta or bursar.pure, got {type(spend).__name__}"
    violations.append(("spend", text))
    return types_pb2.Spend()


def _numeric(columns: Mapping[str, tuple[float, float]], violations: Violations) -> tuple[NumericColumn, ...]:
    numeric = []
    for name, bounds in columns.items():
        lower, upper = bounds
        if not -LARGEST < lower < upper < LARGEST:
            text = f"expected a finite lower bound below a finite upper one, got {lower} and {upper}"
            violations.append((f"columns[{name!r}]", text))
        numeric.append(NumericColumn(name, float(lower), float(upper)))
    return tuple(numeric)


def _values(rows: npt.ArrayLike, d: int, violations: Violations) -> npt.NDArray[np.float64]:
    try:
        values = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):  # its text would quote a cell
        violations.append(("rows", "expected numbers"))
        return np.empty((0, d))
    if not (values.ndim == 2 and values.shape[1] == d and len(values) <= MAX_ROWS):
        text = f"expected shape (n, {d}), a column for each of `columns`, and n up to {MAX_ROWS}, got {values.shape}"
        violations.append(("rows", text))
    return values


def _number(field: str, word: str, table: Mapping[NumberT, str], violations: Violations) -> NumberT:
    """The contract's number for a word; of several the last, since the first stands for what is left out."""
    numbers = {meaning: number for number, meaning in table.items()}
    if word not in numbers:
        violations.append((field, f"expected one of {', '.join(numbers)}, got {word!r}"))
    return numbers.get(word, next(iter(table)))


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
