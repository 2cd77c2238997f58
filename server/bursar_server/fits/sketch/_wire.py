"""Conversion of sketches to and from messages; those that are received are checked field by field."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bursar_models import Frequencies, FrequencyLaw, FrequencyStructure, Signature, Sketch
from bursar_models.arrays import FloatArray
from bursar_proto.filling import message_of
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits._requests import (
    MAX_COLUMNS,
    Violations,
    check_enum,
    checked_array,
    transforms_from,
)

LAWS: Mapping[fit_pb2.FrequencyLaw.ValueType, FrequencyLaw] = {
    fit_pb2.FREQUENCY_LAW_UNSPECIFIED: "adapted_radius",
    fit_pb2.FREQUENCY_LAW_ADAPTED_RADIUS: "adapted_radius",
    fit_pb2.FREQUENCY_LAW_MULTISCALE: "multiscale",
}
STRUCTURES: Mapping[fit_pb2.FrequencyStructure.ValueType, FrequencyStructure] = {
    fit_pb2.FREQUENCY_STRUCTURE_UNSPECIFIED: "dense",
    fit_pb2.FREQUENCY_STRUCTURE_DENSE: "dense",
    fit_pb2.FREQUENCY_STRUCTURE_HADAMARD: "hadamard",
}
SIGNATURES: Mapping[fit_pb2.Signature.ValueType, Signature] = {
    fit_pb2.SIGNATURE_UNSPECIFIED: "exponential",
    fit_pb2.SIGNATURE_EXPONENTIAL: "exponential",
    fit_pb2.SIGNATURE_ONE_BIT: "one_bit",
}
"""Values of the contract -> words of the models."""

FAR = 1e100
"""Maximum absolute value of a sketch's numbers: squares, and sums of products with them, stay doubles."""

_MOST_SITES = 2**20
"""Maximum number of merged sites, so that sums of their numbers stay below 2^32."""


def sketch_to(sketch: Sketch, entry: int = 0) -> fit_pb2.Sketch:
    """Return a sketch as a message, with the ledger entry of its debit."""
    frequencies = message_of(fit_pb2.Frequencies, sketch.frequencies, digest=sketch.frequencies.digest())
    return message_of(fit_pb2.Sketch, sketch, frequencies=frequencies, entry=entry)


def sketch_from(message: fit_pb2.Sketch, field: str, violations: Violations) -> Sketch | None:
    """Return the sketch of a message without comparing the digest of its frequencies; None if something is wrong.

    Args:
        message: message as it was sent.
        field: its name in the request.
        violations: list to which a fault is added for every wrong field.
    """
    # The message comes from outside: what is built from it below may rely on numbers and shapes that are checked here.
    before = len(violations)
    d = len(message.columns)
    if not (1 <= d <= MAX_COLUMNS and len(set(message.columns)) == d):
        violations.append((f"{field}.columns", f"expected 1 to {MAX_COLUMNS} columns, each once, got {d}"))
        return None
    frequencies = _frequencies_from(message.frequencies, d, f"{field}.frequencies", violations)
    check_enum(f"{field}.signature", fit_pb2.Signature, message.signature, violations)
    if len(transforms_from(message.transforms)) != len(message.transforms) or len(message.transforms) not in (0, d):
        violations.append((f"{field}.transforms", f"expected none, or {d} of TRANSFORM_NONE and TRANSFORM_LOG1P"))
    frame = _frame_from(message, d, field, violations)
    _check_numbers(message, field, violations)
    if frequencies is None or frame is None or len(violations) > before:
        return None
    m = frequencies.m
    sums = checked_array(f"{field}.sums", message.sums, (2, m), violations)
    if not 1 <= message.frequencies_per_row <= m:
        text = f"expected 1 to the sketch's {m} frequencies, got {message.frequencies_per_row}"
        violations.append((f"{field}.frequencies_per_row", text))
    if sums is not None and not np.all(np.abs(sums) <= FAR):
        violations.append((f"{field}.sums", f"expected numbers up to {FAR:g}"))
    if sums is None or len(violations) > before:
        return None
    centre, unit, lower, upper = frame
    try:
        return Sketch(
            columns=tuple(message.columns),
            centre=centre,
            unit=unit,
            lower=lower,
            upper=upper,
            frequencies=frequencies,
            signature=SIGNATURES[message.signature],
            frequencies_per_row=message.frequencies_per_row,
            sums=sums,
            noise_std=message.noise_std,
            n_rows=message.n_rows,
            n_rows_std=message.n_rows_std,
            sites=message.sites,
            pilot_sigma=message.pilot_sigma or None,
            transforms=transforms_from(message.transforms),
        )
    except ValueError as error:
        violations.append(_violation(field, error))
        return None


def noise_of(sketch: Sketch) -> types_pb2.ReleaseNoise:
    """Return the noise of a sketch for people; sums of signatures have no unit."""
    return release_noise("sketch", sketch.m, sketch.noise_std, sketch.n_rows_std)


def release_noise(name: str, m: int, std: float, count_std: float) -> types_pb2.ReleaseNoise:
    """Return the noise of one release of m moments and, if its noise is not 0, a number of rows."""
    size = 2 * m + (count_std > 0)
    return types_pb2.ReleaseNoise(name=name, size=size, count_std=count_std, sum_std=std, times=1)


def _frequencies_from(message: fit_pb2.Frequencies, d: int, field: str, violations: Violations) -> Frequencies | None:
    before = len(violations)
    check_enum(f"{field}.law", fit_pb2.FrequencyLaw, message.law, violations)
    check_enum(f"{field}.structure", fit_pb2.FrequencyStructure, message.structure, violations)
    if message.d != d:
        violations.append((f"{field}.d", f"expected {d}, the number of columns, got {message.d}"))
    if len(violations) > before:
        return None
    law, structure = LAWS[message.law], STRUCTURES[message.structure]
    try:
        return Frequencies(message.m, d, message.public_seed, message.sigma, law, structure)
    except ValueError as error:
        violations.append(_violation(field, error))
        return None


def _frame_from(
    message: fit_pb2.Sketch, d: int, field: str, violations: Violations
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray] | None:
    arrays = [
        checked_array(f"{field}.{name}", getattr(message, name), (d,), violations)
        for name in ("centre", "unit", "lower", "upper")
    ]
    if any(array is None for array in arrays):
        return None
    centre, unit, lower, upper = (array for array in arrays if array is not None)
    if not np.all((unit > 1 / FAR) & (unit < FAR)):
        violations.append((f"{field}.unit", f"expected positive numbers between {1 / FAR:g} and {FAR:g}"))
    if not np.all(lower < upper):
        violations.append((f"{field}.lower", "expected every lower bound to be below the upper one"))
    return centre, unit, lower, upper


def _check_numbers(message: fit_pb2.Sketch, field: str, violations: Violations) -> None:
    if not 0 < message.noise_std <= FAR:
        violations.append((f"{field}.noise_std", f"expected a positive number, got {message.noise_std}"))
    if not abs(message.n_rows) <= FAR:
        violations.append((f"{field}.n_rows", f"expected a finite number, got {message.n_rows}"))
    for name in ("n_rows_std", "pilot_sigma"):
        value = getattr(message, name)
        if not 0 <= value <= FAR:
            violations.append((f"{field}.{name}", f"expected a number of at least 0, got {value}"))
    if not 1 <= message.sites <= _MOST_SITES:  # their sums stay below 2^32
        violations.append((f"{field}.sites", f"expected 1 to {_MOST_SITES}, got {message.sites}"))


def _violation(field: str, error: ValueError) -> tuple[str, str]:
    """Return the fault that a constructor of the models found; its text begins with the name of the argument."""
    name, _, text = str(error).partition(": ")
    return f"{field}.{name}", text
