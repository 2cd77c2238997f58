"""Mixture of a plan: its numbers of components, cells and steps by public rules, and its start without splitting."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import Message

from bursar_models import uniform_in_ball
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits._requests import ModelColumns, Violations, array_of, checked_array
from bursar_server.fits._seam import Released
from bursar_server.fits.dpem._kmeans import WIDER, floored
from bursar_server.fits.mixtures.em import VARIANCE_FLOOR, Mixture, Rules, shaped
from bursar_server.fits.mixtures.splitting import inside_ball
from bursar_server.fits.mixtures.statistics import BallFrame, Moments, spectral_noise
from bursar_server.fits.mixtures.steps import Step, default_iterations

_HOPELESS = 0.108
"""Noise of a component's covariance over the covariance from which there are fewer components, for each root of the
number d of columns, or d / 2 if less. As the other numbers here, chosen on real tables: up to there a mixture is not
below one Gaussian.
"""

_WIDE = 16
"""Number of columns from which that noise falls as 1 / sqrt(d): one Gaussian follows many thin directions sooner."""

_FEW, _NOISY, _NOISY_ALONE, _STEPS_SAVED = 2, 0.6, 0.8, 3
"""Number of components up to which fewer steps serve better where noise rules, that noise (any, under pure epsilon) for
two and for one, which has thin directions to settle only, and how many are saved.
"""

_ROOM, _ROOM_OF_FEW, _ROOM_RELATIVE = 0.6, 0.25, 0.006
"""Limits of that noise, in general and for few components, which hardly gain from it, and of the noise of a second
moment over a component's records, up to which the start has twice as many cells as components.
"""

_ROOM_OF_MANY, _OVER = 0.1, 4
"""Limit of that noise up to which the start has more cells yet, and how many for each component. Chosen on real tables:
optima differ less by where cells were halved.
"""

_MOST_DOUBLED, _MOST_MANY = 32, 16
"""Maximum number of components of such starts: all pairs of their cells are compared."""

_STEP, _STEP_RELATIVE, _MORE_STEPS = 0.8, 0.03, 21
"""The same two up to which there are more EM steps, and how many more at the most."""


@dataclass(frozen=True)
class Size:
    """Public size of a fit.

    Attributes:
        components: number of components, at most what was asked for.
        cells: number of cells that the start ends with.
        iterations: number of steps.
    """

    components: int
    cells: int
    iterations: int


def size_of(
    k: int, d: int, iterations: int, single: Step, rows: int | None, *, splitting: bool, background: bool, pure: bool
) -> Size:
    """Return the size of a fit of k components.

    Args:
        k: number of components asked for.
        d: number of columns.
        iterations: number of steps asked for, or 0.
        single: an EM step that spends the whole amount.
        rows: public or declared number of rows, or None.
        splitting: True for the private start; a given one has all k components.
        background: True with a background; without one more cells would end as components of their own in the tails.
        pure: True for Laplace noise, which grows linearly with the number of steps.
    """
    base = default_iterations(k, splitting=splitting)
    if not rows:
        return Size(k, k, iterations or base)
    # A spend that is split over T steps makes the noise of each T ** power times as large.
    power = 1.0 if pure else 0.5
    relative = single.std / single.weights.c / rows
    covariance = _noise(single, d) / rows
    components = k
    if splitting:
        bound = _HOPELESS * min(d**0.5, d / 2.0, _WIDE / d**0.5)
        components = next((K for K in range(k, 1, -1) if _effective(covariance * K, K, iterations, power) <= bound), 1)
        base = default_iterations(components, splitting=True)
        noisy = _NOISY if components > 1 else _NOISY_ALONE
        if components <= _FEW and (pure or covariance * components * base**power > noisy):
            base -= _STEPS_SAVED
    if iterations:
        return Size(components, components, iterations)
    quiet = min(_STEP / (covariance * components), _STEP_RELATIVE / (relative * components)) ** (1.0 / power)
    # One Gaussian has nothing to find: its first steps settle it.
    more = _MORE_STEPS if components > 1 or not splitting else 0
    T = int(min(max(base, quiet), base + more))
    most = _ROOM if k > _FEW else _ROOM_OF_FEW
    noise = covariance * k * base**power
    room = noise <= most and relative * k <= _ROOM_RELATIVE
    doubled = splitting and background and 1 < k == components and room and k <= _MOST_DOUBLED
    over = _OVER if noise <= _ROOM_OF_MANY and _FEW < k <= _MOST_MANY else 2
    return Size(components, over * k if doubled else components, T)


def _effective(noise: float, components: int, iterations: int, power: float) -> float:
    """Return the noise of a fit's covariances when all its steps are taken together."""
    base = default_iterations(components, splitting=True)
    return float(noise * (iterations or base) ** power / base**0.5)


def _noise(single: Step, d: int) -> float:
    """Return the noise of the covariance, or of the mean, of all rows, in units of their covariance.

    The squared clip radius is about 1.2 d.
    """
    std, v = single.std, 1.2 * d
    # A matrix from all rows has less noise than the means of the components.
    pooled = single.components if single.moments is Moments.TIED else 1
    matrix = spectral_noise(std / single.weights.c, d, single.moments) * v / pooled
    return max(matrix, std / single.weights.b * math.sqrt(d * v))


def rules_for(d: int, moments: Moments, log_uniform: float | None) -> Rules:
    """Return the rules for rows of any kind, with a background or without.

    A clipped row still shows its direction, and the noise falls with the square of the radius: in many columns radii
    are small. What lies beyond belongs to the background; without one radii must grow to hold it.
    """
    root = math.sqrt(moments.size(d))
    tail, growth = (min(3.0, d / 2.0), 0.1) if log_uniform is not None else (0.3, 0.5)
    return Rules(tail * root, 0.5, growth / root, VARIANCE_FLOOR / d, True, log_uniform)


_FAR = 1e100
"""Maximum distance of a start from the public ball, in its radii: squares and sums of squares stay doubles."""


def start_mixture(
    request: fit_pb2.FitDPEMRequest,
    columns: ModelColumns,
    k: int,
    frame: BallFrame,
    moments: Moments,
    released: Released,
    violations: Violations,
) -> Mixture | None:
    """Return the requested start in the unit ball; None for splitting, and if something is wrong."""
    kind = request.WhichOneof("start")
    kmeans = request.mode == fit_pb2.MODE_KMEANS
    if kind == "random":
        means = uniform_in_ball(k, len(frame.scale), request.random.public_seed)
        return _mixture(np.ones(k), means, _spheres(means, kmeans=kmeans), moments)
    if kind == "given":
        return _given(request.given, k, frame, moments, violations, kmeans=kmeans)
    if kind == "released":
        return _released(
            released(request.released.entry), request.released.entry, columns, k, frame, moments, violations
        )
    return None


def _spheres(means: FloatArray, *, kmeans: bool) -> FloatArray:
    """Return spheres (k, d, d): half the spacing of a grid of k points in the unit ball; for k-means as wide as fits.

    That is, clip radii reach to the nearest other centre: the whole ball is far too wide in many columns.
    """
    k, d = means.shape
    variances = np.full(k, (0.5 * k ** (-1.0 / d)) ** 2)
    if kmeans:
        points = inside_ball(means)
        distances = np.linalg.norm(points[:, None] - points, axis=2) + np.diag(np.full(k, np.inf))
        variances = (floored(np.minimum(distances.min(axis=1), 1.0)) / WIDER) ** 2 / d
    return np.asarray(variances[:, None, None] * np.eye(d))


def _mixture(weights: FloatArray, means: FloatArray, covariances: FloatArray, moments: Moments) -> Mixture:
    # Counts are unknown yet, and clip radii depend on them: 1000 each is a middle value, chosen, not tuned.
    counts = 1000.0 * len(weights) * np.maximum(weights / weights.sum(), 1e-6)
    return Mixture(counts, inside_ball(means), shaped(covariances, counts, moments))


def _given(
    given: fit_pb2.StartGiven, k: int, frame: BallFrame, moments: Moments, violations: Violations, *, kmeans: bool
) -> Mixture | None:
    d = len(frame.scale)
    means = checked_array("start.given.means", given.means, (k, d), violations)
    weights = (
        checked_array("start.given.weights", given.weights, (k,), violations) if given.weights.values else np.ones(k)
    )
    if weights is not None and not (np.all(weights >= 0) and weights.sum() > 0):
        violations.append(("start.given.weights", "expected non-negative numbers, not all of them 0"))
    covariances = None
    if given.covariances.values:
        covariances = _covariances(given.covariances, k, frame, moments, violations)
    if violations or means is None or weights is None:
        return None
    inside = _into_frame(means, frame)
    if not _is_near(inside):
        violations.append(("start.given.means", f"expected points within {_FAR:g} radii of the public ball"))
        return None
    return _mixture(weights, inside, _spheres(inside, kmeans=kmeans) if covariances is None else covariances, moments)


def _into_frame(means: FloatArray, frame: BallFrame) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray((means - frame.centre) / frame.scale)


def _is_near(array: FloatArray) -> bool:
    return bool(np.all(np.abs(array) < _FAR))  # NaN fails


def _covariances(
    tensor: types_pb2.Tensor, k: int, frame: BallFrame, moments: Moments, violations: Violations
) -> FloatArray | None:
    """Return covariances (k, d, d) in the unit ball, from the shape of the covariance type in the data's units."""
    d, field = len(frame.scale), "start.given.covariances"
    shape = {Moments.SPHERICAL: (k,), Moments.DIAG: (k, d), Moments.TIED: (d, d)}.get(moments, (k, d, d))
    values = checked_array(field, tensor, shape, violations)
    if values is None:
        return None
    full = _full(values, k, d, moments) / np.outer(frame.scale, frame.scale)
    symmetric = bool(np.allclose(full, np.swapaxes(full, 1, 2), rtol=1e-9, atol=0.0))
    if not (np.all(np.isfinite(full)) and symmetric and np.linalg.eigvalsh(full).min() > 0):
        violations.append((field, "expected symmetric positive definite matrices (positive variances)"))
        return None
    return full


def _full(values: FloatArray, k: int, d: int, moments: Moments) -> FloatArray:
    if moments is Moments.SPHERICAL:
        return values[:, None, None] * np.eye(d)
    if moments is Moments.DIAG:
        return values[:, :, None] * np.eye(d)
    return np.broadcast_to(values, (k, d, d)).copy()


def _released(
    model: Message | None,
    entry: int,
    columns: ModelColumns,
    k: int,
    frame: BallFrame,
    moments: Moments,
    violations: Violations,
) -> Mixture | None:
    field = "start.released.entry"
    if not isinstance(model, fit_pb2.GaussianMixtureModel):
        violations.append((field, f"no release of this dataset is stored under entry {entry}"))
        return None
    if list(model.means.shape) != [k, len(frame.scale)] or tuple(model.columns) != columns.names:
        violations.append((field, "the earlier release has other columns or another number of components"))
        return None
    if tuple(model.transforms) != columns.wire:
        violations.append((field, "the earlier release has other transforms of its columns; ask for the same"))
        return None
    means = _into_frame(array_of(model.means), frame)
    # The release may have other covariances than this fit: they are read in their own form and become this fit's.
    form = (
        Moments.SPHERICAL
        if model.mode == fit_pb2.MODE_KMEANS
        else Moments[fit_pb2.CovarianceType.Name(model.covariance_type)[16:]]
    )
    # An earlier ball may be so much larger that its covariances overflow in this one: told below, not raised here.
    with np.errstate(over="ignore"):
        covariances = _full(array_of(model.covariances), k, len(frame.scale), form) / np.outer(frame.scale, frame.scale)
    if not (_is_near(means) and np.all(np.isfinite(covariances))):
        violations.append((field, "the earlier release had a ball too large for this one; choose another clip_radius"))
        return None
    start = _mixture(array_of(model.weights), means, covariances, moments)
    counts = np.maximum(model.n_rows, 1.0) * start.weights
    return Mixture(counts, start.means, start.covariances)
