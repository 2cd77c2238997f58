"""Parametric bootstrap of decoding a sketch: what decoding gives again from rows of the model that it gave.

Rows are stood in for by points of the mixture that the sketch itself decodes to, with random counts; their moments get
the sketch's own noise, and are decoded. Everything is computed from released and public numbers. Source: Efron and
Tibshirani (1993), "An introduction to the bootstrap", section 6.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy

from bursar_models._decoding import Decoded
from bursar_models._lloyd import lloyd
from bursar_models._starts import public_generator
from bursar_models.arrays import ComplexArray, FloatArray, IntArray

if TYPE_CHECKING:
    from bursar_models._sketch import Sketch

RESTARTS = 5
"""Restarts of each decoding: as many as in the measured coverage; three agreeing ones end them earlier."""

_POINTS = 256
"""Points of each component for the sampling of rows: enough for the covariance of all moments."""

_TARGET_POINTS = 100_000
"""Points for k-means on the population, whose own error has to be far below the intervals'."""

_PADDED = 0.75
"""Mass of a decoded mixture below which the public number of rows counts padded ones, which no row's moments are from.

Measured without padding: .9 to 1.1; .65 to .95 where components are too few for the groups, whose intervals become 1.2
times as wide at most. Where noise is all that there is, the prior holds the mass near 1, padded or not.
"""

_MOST_TERMS = 2**22
"""Maximum number of points times frequencies: 64 MB of complex numbers."""


@dataclass(frozen=True, eq=False)
class Errors:
    """Root mean square errors of decoded numbers over replicates: noise, sampling and the decoder's bias together.

    Attributes:
        centres: shape (k, d), in the data's own units.
        weights: of logits, shape (k,).
        variances: of logarithms, shape (k,) for k-means, (k, d) for a mixture.
        residual: mean square of the sketch's moments that its mixture leaves unexplained, in squared deviations of the
            noise; 0 for k-means.
        residuals: the same of every replicate, shape (replicates,).
    """

    centres: FloatArray
    weights: FloatArray
    variances: FloatArray
    residual: float
    residuals: FloatArray


def decoding_errors(sketch: Sketch, model: Decoded, *, mixture: bool, replicates: int, public_seed: int) -> Errors:
    """Return the errors of a model's numbers, in the order of its components.

    The errors of k-means are about Lloyd's algorithm on the population, started from the model's centres.

    Args:
        sketch: sketch from which the model was decoded.
        model: decoded model in the data's own units.
        mixture: True for a mixture, False for k-means.
        replicates: number of decodings, at least 2.
        public_seed: seed of rows and noise, at least 0.

    Raises:
        ValueError: `replicates` or `public_seed` out of its range; or the sketch and the model, of a hand-written
            file, do not belong together or hold numbers that no decoding survives.
    """
    if not replicates >= 2:
        raise ValueError(f"replicates: expected at least 2, got {replicates!r}")
    if not public_seed >= 0:
        raise ValueError(f"public_seed: expected at least 0, got {public_seed!r}")
    if len(sketch.unit) != model.centres.shape[1]:
        raise ValueError(f"sketch: expected one of {model.centres.shape[1]} columns, got {len(sketch.unit)}")
    try:
        with np.errstate(all="ignore"):
            return _replicated(sketch, model, mixture, replicates, public_seed)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            "sketch: its numbers and the model's are so far apart that they cannot be decoded again; load the model "
            "from its own file"
        ) from error


def _replicated(sketch: Sketch, model: Decoded, mixture: bool, replicates: int, public_seed: int) -> Errors:
    # Imported late: a server imports this package, and needs no bars.
    from tqdm import tqdm

    k = len(model.weights)
    # Decoded as replicates are: the model may have had other restarts.
    own = sketch.decode(k, mixture=True, n_init=RESTARTS, public_seed=public_seed)
    population = model if mixture else own
    target = model if mixture else _clustered(sketch, population, model.centres, public_seed)
    simulated = _Simulated(sketch, population, own.mass if own.mass < _PADDED else 1.0, public_seed)
    found = []
    # None: on a terminal only.
    for number in tqdm(range(replicates), desc="intervals", unit="replicate", leave=False, disable=None):
        again = simulated.sketch(number).decode(k, mixture=mixture, n_init=RESTARTS, public_seed=number)
        found.append(_matched(again, target))
    return Errors(
        _rms([one.centres - target.centres for one in found]),
        _rms([_logits(one.weights) - _logits(target.weights) for one in found]),
        _rms([_logs(one.variances) - _logs(target.variances) for one in found]),
        own.residual**2 if mixture else 0.0,
        np.array([one.residual**2 for one in found]),
    )


_STREAM = 2**32
"""Stream of the seed for points; replicates have those of their numbers."""

_HARMONICS = (1, -3, 5, -7, 9, -11)
"""Harmonics of a one-bit signature; those of a Gaussian density vanish beyond."""


class _Simulated:
    """Sketches of rows that are drawn from a mixture, with a sketch's own size, signature and noise.

    Args:
        sketch: the sketch.
        population: mixture with diagonal covariances in the data's own units.
        mass: share of the rows that are none of the padded ones, at most 1.
        public_seed: seed of points, rows and noise.
    """

    def __init__(self, sketch: Sketch, population: Decoded, mass: float, public_seed: int) -> None:
        self._sketch, self._seed, self._mass = sketch, public_seed, mass
        k = len(population.weights)
        count = max(min(_POINTS, _MOST_TERMS // (k * sketch.m)), 2)
        points = (_points(population, np.full(k, count), public_seed) - sketch.centre) / sketch.unit
        self._shares = np.repeat(population.weights / population.weights.sum() / count, count)
        self._terms = row_terms(sketch, points)
        self._moments = mixture_moments(sketch, population)
        self._rows = max(round(mass * sketch.n_rows), 1)

    def sketch(self, number: int) -> Sketch:
        """Return one replicate."""
        sketch, rows = self._sketch, self._rows
        generator = public_generator(self._seed, number)
        counts = generator.multinomial(rows, self._shares)
        moments = self._moments + (counts / rows - self._shares) @ self._terms
        # Each row counts at some of the frequencies only, drawn anew for each.
        energy = float(np.square(np.abs(self._terms)).mean()) / 2
        chosen = math.sqrt((1 / sketch.alpha_r - 1) * energy / rows)
        moments = self._mass * (moments + chosen * _complex_normals(generator, sketch.m))
        turned = moments if sketch.signature == "exponential" else moments * np.exp(1j * sketch.frequencies.dithers())
        sums = turned / sketch._moment_scale() + sketch.noise_std * _complex_normals(generator, sketch.m)
        counted = sketch.n_rows + sketch.n_rows_std * generator.standard_normal()
        return replace(sketch, sums=np.stack([sums.real, sums.imag]), n_rows=counted)


def _complex_normals(generator: np.random.Generator, m: int) -> ComplexArray:  # noqa: TID251 - the type only
    return np.asarray(generator.standard_normal(m) + 1j * generator.standard_normal(m))


def _points(population: Decoded, counts: IntArray, public_seed: int) -> FloatArray:
    """Return normal points, `counts` of each component, which have its mean and, if there are two, its variances."""
    generator, parts = public_generator(public_seed, _STREAM), []
    for centre, variances, count in zip(population.centres, population.variances, counts, strict=True):
        normals = generator.standard_normal((count, len(centre)))
        normals -= normals.mean(axis=0)
        parts.append(centre + np.sqrt(variances) * normals / (normals.std(axis=0) if count > 1 else 1.0))
    return np.concatenate(parts)


def row_terms(sketch: Sketch, points: FloatArray) -> ComplexArray:
    """Return the contribution of points (s, d) in frame coordinates to each moment, shape (s, m)."""
    phases = points @ sketch.frequencies.matrix().T
    if sketch.signature == "exponential":
        return np.asarray(np.exp(1j * phases))
    dithers = sketch.frequencies.dithers()
    signs = np.sign(np.cos(phases + dithers)) + 1j * np.sign(np.sin(phases + dithers))
    return np.asarray(math.pi / 4 * signs * np.exp(-1j * dithers))


def mixture_moments(sketch: Sketch, population: Decoded) -> ComplexArray:
    """Return the moments of a mixture exactly, shape (m,)."""
    matrix = sketch.frequencies.matrix()
    centres = (population.centres - sketch.centre) / sketch.unit
    widths = (population.variances / np.square(sketch.unit)) @ np.square(matrix).T
    shares, phases = population.weights / population.weights.sum(), centres @ matrix.T
    if sketch.signature == "exponential":
        return np.asarray(shares @ np.exp(1j * phases - widths / 2))
    # The Fourier series of the signs: sum over q of exp(i q t) / q, which holds the harmonics that a decoder ignores.
    dithers = sketch.frequencies.dithers()
    found = np.zeros(sketch.m, dtype=np.complex128)
    for q in _HARMONICS:
        found += shares @ np.exp(1j * q * phases - q**2 * widths / 2) * np.exp(1j * (q - 1) * dithers) / q
    return found


def _clustered(sketch: Sketch, population: Decoded, start: FloatArray, public_seed: int) -> Decoded:
    """Return k-means of a mixture, from centres (k, d): Lloyd's algorithm on its points within the bounds."""
    counts = np.maximum(np.rint(_TARGET_POINTS * population.weights), 1).astype(np.intp)
    points = np.clip(_points(population, counts, public_seed), *sketch.edges())
    found = lloyd(points, start)
    return Decoded(found.weights, found.centres, found.variances, residual=0.0, mass=1.0)


def _matched(found: Decoded, target: Decoded) -> Decoded:
    """Return a decoding with its components in the order of those of `target` that they are nearest to."""
    spread = np.maximum(target.variances.mean(), np.finfo(float).tiny)
    differences = target.centres[:, None] - found.centres[None]
    _, places = scipy.optimize.linear_sum_assignment(np.square(differences).sum(axis=2) / spread)
    return replace(
        found, centres=found.centres[places], weights=found.weights[places], variances=found.variances[places]
    )


def _rms(deviations: list[FloatArray]) -> FloatArray:
    """Return the root mean square: the root of squared bias and variance together."""
    return np.asarray(np.sqrt(np.square(deviations).mean(axis=0)))


def _logits(shares: FloatArray) -> FloatArray:
    inside = np.clip(shares, 1e-9, 1 - 1e-9)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _logs(variances: FloatArray) -> FloatArray:
    return np.asarray(np.log(np.maximum(variances, np.finfo(float).tiny)))
