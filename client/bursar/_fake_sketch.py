"""What the fake server sketches: rows that are uniform in the bounds, without noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bursar._convert import (
    FREQUENCY_LAWS,
    FREQUENCY_STRUCTURES,
    SIGNATURES,
    named,
    sketch_to,
    tensor_from,
    tensor_to,
)
from bursar.models import Frequencies, Sketch
from bursar.models._arrays import FloatArray
from bursar_proto.v1 import fit_pb2

N_FREQUENCIES = 64
"""Of a fake sketch that leaves them to the server."""

N_ROWS = 1000

_SIGMA = 0.2


def fake_sketch(request: fit_pb2.FitSketchKMeansRequest, bounds: Mapping[str, tuple[float, float]]) -> fit_pb2.Sketch:
    """The sketch that a request pays for, without its entry."""
    new = request.new_sketch
    lower, upper = np.array([bounds[name] for name in request.columns]).T
    half = (upper - lower) / 2
    unit = half if new.units == fit_pb2.COLUMN_UNITS_BOUNDS else np.full(len(half), half.max())
    m = new.n_frequencies or N_FREQUENCIES
    # The keys of these tables are the names that the models know; mypy sees strings.
    law: Any = named(FREQUENCY_LAWS, new.law)
    structure: Any = named(FREQUENCY_STRUCTURES, new.structure)
    signature: Any = named(SIGNATURES, new.signature)
    frequencies = Frequencies(m, len(half), new.public_seed, new.sigma or _SIGMA, law, structure)
    r = new.frequencies_per_row or m
    sums = _moments(frequencies, signature, half / unit) * (N_ROWS * r / m)
    sketch = Sketch(
        columns=tuple(request.columns),
        centre=(lower + upper) / 2,
        unit=unit,
        lower=lower,
        upper=upper,
        frequencies=frequencies,
        signature=signature,
        frequencies_per_row=r,
        sums=np.stack([sums.real, sums.imag]),
        noise_std=0.0,
        n_rows=float(N_ROWS),
        n_rows_std=0.0,
        pilot_sigma=_SIGMA if new.WhichOneof("scale") == "pilot" else None,
    )
    return sketch_to(sketch, entry=0)


def decodes(request: fit_pb2.FitSketchKMeansRequest) -> bool:
    """Whether the server is to decode something."""
    return request.n_clusters > 0 and not request.decode_on_client


def fake_decoding(
    request: fit_pb2.FitSketchKMeansRequest, sketches: Sequence[fit_pb2.Sketch]
) -> fit_pb2.GaussianMixtureModel:
    """Clusters of equal weights, evenly spread over the bounds of a sketch."""
    first = sketches[0]
    lower, upper = tensor_from(first.lower), tensor_from(first.upper)
    k = request.n_clusters
    places = (np.arange(k)[:, None] + 0.5) / k
    variances = np.tile(np.square((upper - lower) / (2 * k)), (k, 1))
    mixture = request.decoding == fit_pb2.DECODING_MIXTURE
    return fit_pb2.GaussianMixtureModel(
        columns=first.columns,
        covariance_type=fit_pb2.COVARIANCE_TYPE_DIAG if mixture else fit_pb2.COVARIANCE_TYPE_SPHERICAL,
        mode=fit_pb2.MODE_MIXTURE if mixture else fit_pb2.MODE_KMEANS,
        weights=tensor_to(np.full(k, 1 / k)),
        means=tensor_to(lower + places * (upper - lower)),
        covariances=tensor_to(variances if mixture else variances.mean(axis=1)),
        iterations=1,
        n_rows=sum(sketch.n_rows for sketch in sketches),
    )


def _moments(frequencies: Frequencies, signature: str, half: FloatArray) -> npt.NDArray[np.complex128]:
    """Mean signature (m,) of rows that are uniform in [-half, half]; of one bit the first harmonic alone."""
    moments = np.sinc(frequencies.matrix() * half / np.pi).prod(axis=1).astype(np.complex128)
    turns = 4 / np.pi * np.exp(1j * frequencies.dithers())
    return moments if signature == "exponential" else np.asarray(turns * moments)
