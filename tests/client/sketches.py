"""Sketches without noise of rows in frame coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from bursar_models import Frequencies, Sketch, Stream, public_uniforms
from bursar_models._sketch import Signature
from bursar_models.arrays import FloatArray

FREQUENCIES = Frequencies(m=60, d=2, public_seed=1, sigma=0.2)
CENTRE, UNIT = np.array([10.0, -1.0]), np.array([4.0, 2.0])


def signature_of(rows: FloatArray, frequencies: Frequencies, signature: Signature) -> FloatArray:
    """Return what each row in frame coordinates adds to the two sums, shape (2, n, m)."""
    phases = rows @ frequencies.matrix().T
    if signature == "exponential":
        return np.stack([np.cos(phases), np.sin(phases)])
    return np.sign([np.cos(phases + frequencies.dithers()), np.sin(phases + frequencies.dithers())])


def sketch_of(rows: FloatArray, frequencies: Frequencies = FREQUENCIES, **change: Any) -> Sketch:
    """A sketch without noise of rows in frame coordinates, all frequencies for each."""
    signature = change.get("signature", "exponential")
    d = frequencies.d
    good = {
        "columns": tuple(f"c{j}" for j in range(d)),
        "centre": np.resize(CENTRE, d),
        "unit": np.resize(UNIT, d),
        "lower": np.resize(CENTRE - UNIT, d),
        "upper": np.resize(CENTRE + UNIT, d),
        "frequencies": frequencies,
        "signature": signature,
        "frequencies_per_row": frequencies.m,
        "sums": signature_of(rows, frequencies, signature).sum(axis=1),
        "noise_std": 0.0,
        "n_rows": float(len(rows)),
        "n_rows_std": 0.0,
    }
    return Sketch(**{**good, **change})


def masked(rows: FloatArray, frequencies: Frequencies, r: int, signature: Signature = "exponential") -> Sketch:
    """A sketch in which every row is asked for r frequencies of its own."""
    order = public_uniforms(99, Stream.SCALES, len(rows), frequencies.m).argsort(axis=1)
    sums = (signature_of(rows, frequencies, signature) * (order < r)).sum(axis=1)
    return sketch_of(rows, frequencies, sums=sums, frequencies_per_row=r, signature=signature)
