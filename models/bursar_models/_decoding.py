"""Centres and mixtures from random Fourier moments: CL-OMPR with Gaussian atoms.

Sources: N. Keriven, N. Tremblay, Y. Traonmilin, R. Gribonval, "Compressive K-means" (ICASSP 2017), algorithm 1, and
N. Keriven, A. Bourrier, R. Gribonval, P. Perez, "Sketching for large-scale learning of mixture models" (Information
and Inference 2018), algorithm 2. A sketch holds the moments z_j = E exp(i w_j.x), j = 1..m. CL-OMPR builds a mixture
atom by atom: it adds the atom that agrees best with the residual, drops the weakest beyond k, and refines them all.

What differs here, and why:

- Atoms are Gaussian with one common spread v that is fitted too, beta_k exp(i w.c_k - v |w|^2 / 2), not points.
  Clusters have a width; point atoms cannot explain it, so their residual says little about which replicate is right.
- All atoms are refined by Levenberg-Marquardt in the box, or by L-BFGS-B where the Jacobian would be too large. Plain
  gradient steps take hundreds of iterations where these take about ten.
- Candidates are drawn from the one Gaussian that fits the moments best, and some from the whole box; the best climb.
- While atoms are added, the spread has a ceiling, another one in each replicate: one wide atom that explains the low
  frequencies would otherwise leave nothing for the others to find. The last refinement is free of it.
- The atom to drop is the one without which a linearised fit loses least, all others moving to make up for it (the
  saliency of "optimal brain surgeon", Hassibi and Stork 1993). The lightest may be a small cluster of its own.
- A replacement that does not lower the loss is undone, and a replicate ends after some of these; the restarts end when
  the best fit has come up several times.
- A weak prior, weights of about 1/k and centres in the cloud, counts as much as the noise lets it: it keeps atoms from
  fitting noise far outside where the rows are, and has no influence on a clean sketch.
- Atoms count to the degree that they reduce the loss by more than atoms that fit noise would (`_belief`). The rest of
  the density is the cloud, and the rest of the cloud a guess from the box. So where noise dominates, centres stay near
  the mean of the rows, and the sum of squares is about that of one centre.
- A mixture's components have variances of their own, fitted to several replicates; where they leave more than the
  error, single atoms are replaced again.
- k-means centres are not the means of clusters that overlap, nor of more than k clusters. So k-means is run on a
  density: the best fit, with variances of each component and column, and with more atoms than k as long as they explain
  more than noise. It is sampled with public randomness, and Lloyd's algorithm runs on the sample.

Every function here is total: any moments, finite or not, give a valid model, and the same input gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import scipy
from numpy.random import PCG64, Generator  # noqa: TID251 - public randomness of the search, never noise

from bursar_models.arrays import FloatArray

ComplexArray = npt.NDArray[np.complex128]

CANDIDATES = 256
"""Number of places where a search for the next atom starts; one in four anywhere in the box, the others in the cloud.

Chosen, not tuned.
"""

CLIMBERS = 12
"""Number of candidates that climb: the best of the places; at least two for each atom to add. Chosen, not tuned."""

CLIMB_STEPS = 15
"""Number of steps of each climber.

A step multiplies the distance to a peak by at most about a third, so 15 reach it.
"""

SPREAD_CEILINGS = (1 / 4, 1 / 16, 1 / 8, 1 / 32)
"""Highest spread while atoms are added, as a share of the cloud's variance.

The replicates take turns, because the right ceiling depends on the unknown width of the clusters. Chosen, not tuned.
"""

ROUNDS = 20
"""Number of rounds in which the first k atoms are added, and maximum number of rounds of replacements.

So up to k = 20 atoms come one at a time. Chosen, not tuned.
"""

MISSES = 2
"""Number of successive replacements that gain less than `GAIN` and end a replicate. Chosen, not tuned."""

GAIN = 1e-3
"""Share of the loss that a replacement must save. Chosen, not tuned: smaller gains vanish in the final refinement."""

AGREEING = 3
"""Number of replicates that reach the smallest loss (within `AGREEMENT`) and end the restarts. Chosen, not tuned."""

AGREEMENT = 1e-4
"""Relative difference of two losses that count as the same minimum: several times the error of the last steps."""

WEIGHT_PRIOR_STD = 0.25
"""Prior standard deviation of a weight, in units of its mean 1/k.

Chosen, not tuned: weights of one order of magnitude.
"""

CLOUD_WIDTH = 0.1
"""Prior median of the standard deviation of all rows along a column, as a share of the box's width.

Chosen, not tuned.
"""

CLOUD_PLACE = 1 / 6
"""Prior standard deviation of the mean of all rows about the middle of the box, as a share of the box's width.

Three of them reach the edge of the box.
"""

CLUSTER_SHARE = 0.2
"""Prior median of the variance of a cluster, as a share of that of all rows. Chosen, not tuned."""

VARIANCE_PRIOR_STD = 1.0
"""Prior standard deviation of the logarithm of either variance. Chosen, not tuned: a factor of e either way."""

SEARCHED = 1.5
"""Reduction of the loss by one parameter where there is only noise, in noise variances.

It is 1 for a linear fit and more here, because atoms are searched for. Measured with 1, 1.5 and 2 at k = d = 10, m =
400 and SNR m / (k d) = 0.1: sum of squares at most 2.0, 1.45 and 1.07 times that of one centre, before the priors above
were narrowed.
"""

BELIEVED = 0.9
"""Belief in k atoms below which Lloyd's algorithm also starts from rows. Chosen, not tuned."""

WRONG = 1.5
"""Residual, in noise standard deviations, above which a mixture's atoms are replaced again. Chosen, not tuned."""

REPLACEMENTS = 6
"""Maximum number of such replacements. Chosen, not tuned: each costs two full refinements."""

SHAPED = 4
"""Maximum number of replicates that get variances of each component for a mixture; the best is kept.

Chosen, not tuned.
"""

SPREAD_PRIOR_STD = 0.5
"""Prior standard deviation of a component's log-variance along one column about the common one. Chosen, not tuned."""

RICHER_ROUNDS = 8
"""Maximum number of rounds in which k / 4 more atoms join the density of an interval: 3 k atoms in all."""

RICHER_GAIN = 0.2
"""Share of the loss that such a round must save for an interval. Atoms that fit noise save a few in a hundred."""

NOISE_ROUNDS = 5
"""Maximum number of rounds in which a quarter more atoms join the density of k-means: 3 k atoms in all.

With 8, for 6 k, atoms beyond the rows cost single sketches of weather a sum of squares of 1.12 and 1.13 times Lloyd's.
"""

NOISE_GAIN = 2.0
"""Loss that such a round must save for k-means, in what as many atoms that fit noise save.

Sums of squares over Lloyd's at epsilon 1 with 8 seeds of the frequencies, median and standard deviation, with it and 15
starts instead of `RICHER_GAIN` and 3: stops 1.005, 0.002 (before: 1.044, 0.060), magic 1.012, 0.006 (1.057, 0.049),
careers 1.008, 0.004 (1.028, 0.024), storms 1.007, 0.004 (1.035, 0.023), RAND HIE 1.011, 0.002 (1.033, 0.040).
"""

FINER_ROUNDS = 4
"""Maximum number of further rounds for k-means once atoms have variances of their own: 7 k atoms in all.

Sums of squares of towns (12 clusters, 720 frequencies) over Lloyd's, with and without them: median 1.004 and 1.014,
worst 1.03 and 1.64 at epsilon 1 (8 seeds); 1.008 and 1.009, 1.01 and 1.64 at 0.1 (6). They begin above `WRONG` only, so
that stops at 0.1 and diamonds at 1 have the same centres; weather at 1: 1.010 and 1.009.
"""

RICHER_STEPS = 6
"""Number of refining steps of such a round. Chosen, not tuned."""

GROWING_STEPS = 2
"""Number of refining steps after each change of atoms.

Chosen, not tuned: the last refinement makes up for few steps.
"""

FINAL_STEPS = 40
"""Maximum number of refining steps at the end. `TOLERANCE` usually ends them earlier; a bound keeps decoding total."""

TOLERANCE = 1e-6
"""Relative gain of a refining step below which refining ends.

Far below `AGREEMENT`, so that equal minima compare equal.
"""

DENSE_WORK = 5e8
"""Multiplications in one product J^T J up to which it is formed; above it L-BFGS-B refines, without a Jacobian."""

LLOYD_ROWS = 20_000
"""Number of rows drawn from the decoded mixture for Lloyd's algorithm; even, because they come in pairs."""

LLOYD_STARTS = 15
"""Number of k-means++ starts of Lloyd's algorithm where the density has more than k atoms, besides the decoded means.

With 3 instead of 20 the sum of squares of two sketches of stops was 1.048 and 1.042 instead of 1.010 and 1.017.
"""

LLOYD_FINISHERS = 3
"""Number of starts that go on with all drawn rows: the best on one row in `LLOYD_THINNING`. Chosen, not tuned."""

LLOYD_THINNING = 5
"""Drawn rows for each one that starts are compared on. Chosen, not tuned: 4,000 rows tell starts apart."""

LLOYD_STEPS = 30
"""Maximum number of steps of Lloyd's algorithm on those rows. Chosen, not tuned."""

DEFAULT_RESTARTS = 20
"""Maximum number of restarts of a decoding whose caller sets none. Chosen, not tuned; agreeing restarts end sooner."""

MAX_DECODING_WORK = 7.0e8
"""Maximum of k^2 m d times restarts in a fit: one to two minutes of one CPU.

Measured: 1.2e-7 s for each unit at k = d = 20, m = 4096, 1.4e-7 s at k = 50, d = 5, m = 2500, where normal equations
dominate, and 3e-7 s at k = d = 10, m = 1000, where 20 restarts take 7 s.
"""

MAX_MOMENT = 1e6
"""Limit to which moments are clipped.

A true one is at most 1; noise can be larger, and clipping keeps squares finite.
"""


@dataclass(frozen=True)
class Decoded:
    """Mixture decoded from a sketch, in frame coordinates; `Sketch.decode` converts it to the data's units.

    Attributes:
        weights: shape (k,), non-negative, sum 1.
        centres: shape (k, d), inside the box.
        variances: positive and finite. For k-means shape (k,), mean squared distance to the centre per column; for a
            mixture shape (k, d).
        residual: root mean square of the unexplained moments, in standard deviations of the noise. About 1 for a model
            that explains all but the noise; sampling noise adds to it where it is not small beside the noise.
        mass: sum of the weights before they were scaled to 1; far from 1 for a model that does not fit.
    """

    weights: FloatArray
    centres: FloatArray
    variances: FloatArray
    residual: float
    mass: float


@dataclass(frozen=True)
class Density:
    """Mixture that explains a sketch, in frame coordinates, with what is needed to correct it by linear algebra.

    Parameters are weights, centres and log-variances, in this order; p is their number.

    Attributes:
        weights: shape (k,), non-negative, not scaled to sum 1.
        centres: shape (k, d).
        variances: shape (k, d).
        rest: unexplained real, then imaginary parts of the moments, shape (2m,).
        slopes: derivatives of the moments by the parameters, shape (2m, p).
        prior_shift: parameters less the means of their prior, shape (p,).
        prior_variances: variances of the prior, shape (p,).
    """

    weights: FloatArray
    centres: FloatArray
    variances: FloatArray
    rest: FloatArray
    slopes: FloatArray
    prior_shift: FloatArray
    prior_variances: FloatArray


def most_restarts(k: int, m: int, d: int) -> int:
    """Return the maximum number of restarts of a fit for k clusters in d columns at m frequencies.

    0 if even one is too many.

    The limit holds for fits wherever they decode. Callers of `Sketch.decode` set their own.
    """
    return int(MAX_DECODING_WORK / (k**2 * m * d))


def decode_kmeans(
    matrix: FloatArray,
    moments: ComplexArray,
    noise_std: float,
    k: int,
    lower: FloatArray,
    upper: FloatArray,
    *,
    n_init: int,
    public_seed: int,
    harmonics: bool = False,
) -> Decoded:
    """Decode cluster centres, weights and variances from a sketch.

    Args:
        matrix: frequencies w_j, shape (m, d).
        moments: estimates of E exp(i w_j.x), shape (m,).
        noise_std: standard deviation of the noise on the real and on the imaginary part of a moment.
        k: number of clusters.
        lower: lower end of the box of the centres, shape (d,).
        upper: upper end of the box, shape (d,).
        n_init: number of replicates; the one with the smallest residual is kept.
        public_seed: seed of the search's randomness, which is public.
        harmonics: True if moments have harmonics beside noise, which more atoms would take for rows.
    """
    problem, cloud = _with_prior(_problem(matrix, moments, lower, upper), noise_std)
    fit = _replicates(problem, cloud, k, n_init, public_seed)[0]
    generator = _generator(public_seed, max(n_init, 1))
    richer = _richer(problem, cloud, fit, generator, None if harmonics else noise_std)
    shaped = _shaped(problem, fit.mixture, noise_std)
    belief = _belief(_evaluate(problem, cloud), fit, _noise2(noise_std))
    density, starts = shaped, [shaped.mixture.centres]
    if richer is not fit:  # the best k centres of more than k groups need not be near any k of the groups
        density = _shaped(problem, richer.mixture, noise_std)
        if not harmonics:
            shaping = _shaping(problem, float(richer.mixture.log_v[0, 0]), noise_std)
            density = _finer(shaping, cloud, density, noise_std, _generator(public_seed, max(n_init, 1) + 1))
    rows = _rows(problem, _joined(density.mixture, cloud, belief), generator)
    # The mixture of k groups is in doubt: several starts, each tried on few of the rows, the best finished on all.
    if richer is not fit or belief < BELIEVED:
        starts += [_kmeans_plus_plus(rows, k, generator) for _ in range(LLOYD_STARTS)]
        few = [lloyd(rows[::LLOYD_THINNING], start) for start in starts]
        starts = [found.centres for found in sorted(few, key=lambda found: found.inertia)[:LLOYD_FINISHERS]]
    clustering = min((lloyd(rows, start) for start in starts), key=lambda found: found.inertia)
    empty = clustering.weights == 0
    return Decoded(
        clustering.weights,
        np.clip(clustering.centres, problem.lower, problem.upper),
        np.maximum(np.where(empty, np.exp(fit.mixture.log_v[0, 0]), clustering.variances), 1e-12),
        _residual(shaped, noise_std),
        float(shaped.mixture.beta.sum()),
    )


def decode_mixture(
    matrix: FloatArray,
    moments: ComplexArray,
    noise_std: float,
    k: int,
    lower: FloatArray,
    upper: FloatArray,
    *,
    n_init: int,
    public_seed: int,
) -> Decoded:
    """Decode a Gaussian mixture with diagonal covariances from a sketch; arguments as in `decode_kmeans`."""
    problem, cloud = _with_prior(_problem(matrix, moments, lower, upper), noise_std)
    # The replicate that is best with one common spread need not be best once each component has its own variances.
    replicates = _replicates(problem, cloud, k, n_init, public_seed)[:SHAPED]
    fit, best = min(
        ((_shaped(problem, found.mixture, noise_std), found) for found in replicates), key=lambda pair: pair[0].loss
    )
    fit = _moved(problem, cloud, fit, noise_std, _generator(public_seed, max(n_init, 1)))
    model = _shrunk(fit.mixture, cloud, _belief(_evaluate(problem, cloud), best, _noise2(noise_std)))
    return Decoded(
        _normalised(model.beta),
        np.clip(model.centres, problem.lower, problem.upper),
        np.exp(np.clip(model.log_v, *problem.log_v_range)),
        _residual(fit, noise_std),
        float(fit.mixture.beta.sum()),
    )


def decode_density(
    matrix: FloatArray,
    moments: ComplexArray,
    noise_std: float,
    k: int,
    lower: FloatArray,
    upper: FloatArray,
    *,
    n_init: int,
    public_seed: int,
    richer: bool,
) -> Density:
    """Decode a mixture as it fits best, without shrinkage: of k Gaussians, or of more while they explain much more.

    Arguments are those of `decode_kmeans`; `richer` allows more than k.
    """
    problem, cloud = _with_prior(_problem(matrix, moments, lower, upper), noise_std)
    replicates = _replicates(problem, cloud, k, n_init, public_seed)[:SHAPED]
    if richer:
        replicates = [_richer(problem, cloud, replicates[0], _generator(public_seed, max(n_init, 1)))]
    fit = min((_shaped(problem, found.mixture, noise_std) for found in replicates), key=lambda found: found.loss)
    # The common spread of the best replicate is near that of its own variances.
    prior = replace(
        problem.prior,
        spread=_noise2(noise_std) / SPREAD_PRIOR_STD**2,
        log_v=float(np.average(fit.mixture.log_v.mean(axis=1), weights=_normalised(fit.mixture.beta))),
    )
    precision, target = prior.terms(fit.mixture)
    return Density(
        fit.mixture.beta,
        fit.mixture.centres,
        np.exp(fit.mixture.log_v),
        fit.rest,
        _jacobian(problem, fit),
        fit.mixture.pack() - target,
        _noise2(noise_std) / np.maximum(precision, 1e-300),
    )


@dataclass(frozen=True)
class _Prior:
    """Squared errors added to the loss; precisions are in units of the squared moments."""

    weight: float  # precision of k beta about 1
    place: FloatArray  # (d,), precision of a centre's coordinates about `mean`
    mean: FloatArray  # (d,)
    spread: float  # precision of a log-variance about `log_v`
    log_v: float

    def terms(self, mixture: _Mixture) -> tuple[FloatArray, FloatArray]:
        """Return precision and target of each parameter, in the order of `_Mixture.pack`."""
        k, spreads = len(mixture.beta), mixture.log_v.size
        precision = [np.full(k, self.weight * k * k), np.tile(self.place, k), np.full(spreads, self.spread)]
        target = [np.full(k, 1 / max(k, 1)), np.tile(self.mean, k), np.full(spreads, self.log_v)]
        return np.concatenate(precision), np.concatenate(target)


@dataclass(frozen=True)
class _Problem:
    """The data of the fit: minimise |y - A(theta) beta|^2 in the box."""

    W: FloatArray  # (m, d)
    W2: FloatArray  # (m, d), squares
    radii2: FloatArray  # (m, 1), |w|^2
    y: FloatArray  # (2m,): real parts, then imaginary parts
    lower: FloatArray  # (d,)
    upper: FloatArray
    log_v_range: tuple[float, float]
    prior: _Prior

    def spread_frequencies(self, mixture: _Mixture) -> FloatArray:
        """Return the squared frequencies that multiply a column of spreads.

        They are (m, d), or their sums (m, 1) for round atoms.
        """
        return self.radii2 if mixture.log_v.shape[1] == 1 else self.W2


@dataclass(frozen=True)
class _Mixture:
    """Atoms. `log_v` is (1, 1), one log-variance for all atoms, or (k, d), log-variances of each atom and column."""

    beta: FloatArray  # (k,)
    centres: FloatArray  # (k, d)
    log_v: FloatArray

    def pack(self) -> FloatArray:
        return np.concatenate([self.beta, self.centres.ravel(), self.log_v.ravel()])

    def unpack(self, theta: FloatArray) -> _Mixture:
        k, size = len(self.beta), self.centres.size
        return _Mixture(
            theta[:k],
            theta[k : k + size].reshape(self.centres.shape),
            theta[k + size :].reshape(self.log_v.shape),
        )


@dataclass(frozen=True)
class _Fit:
    """Mixture with its residual."""

    mixture: _Mixture
    atoms: FloatArray  # (2m, k)
    rest: FloatArray  # (2m,)
    loss: float  # squared rest and prior


def _generator(public_seed: int, replicate: int) -> Generator:
    return Generator(PCG64([public_seed, replicate]))


def _problem(matrix: FloatArray, moments: ComplexArray, lower: FloatArray, upper: FloatArray) -> _Problem:
    """Return the data of a fit. Moments that are not numbers become 0, large ones are clipped.

    The prior only holds the mass at 1.
    """
    W = np.asarray(matrix, dtype=np.float64)
    z = np.asarray(moments, dtype=np.complex128)
    y = np.nan_to_num(np.concatenate([z.real, z.imag]), nan=0.0, posinf=MAX_MOMENT, neginf=-MAX_MOMENT)
    W2 = W * W
    radii2 = W2.sum(axis=1, keepdims=True)
    scale = 1 / max(float(radii2.mean()), 1e-12)  # the spread at which an atom fades at the typical frequency
    lower, upper = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    widest = max(float(np.square(upper - lower).max()), 1e-12)
    return _Problem(
        W,
        W2,
        radii2,
        np.clip(y, -MAX_MOMENT, MAX_MOMENT),
        lower,
        upper,
        (float(np.log(min(1e-4 * scale, widest))), float(np.log(widest))),
        _Prior(1e3 * len(y), np.zeros(len(lower)), np.zeros(len(lower)), 0.0, 0.0),
    )


def _normalised(beta: FloatArray) -> FloatArray:
    total = float(beta.sum())
    return beta / total if total > 0 else np.full(len(beta), 1 / len(beta))


def _residual(fit: _Fit, noise_std: float) -> float:
    """Return the root mean square of the rest, in noise standard deviations.

    Noise that is not a positive number counts as very small.
    """
    std = noise_std if np.isfinite(noise_std) and noise_std > 1e-12 else 1e-12
    return float(np.sqrt(fit.rest @ fit.rest / max(len(fit.rest), 1)) / std)


def _evaluate(problem: _Problem, mixture: _Mixture) -> _Fit:
    phase = problem.W @ mixture.centres.T
    envelope = np.exp(-0.5 * (problem.spread_frequencies(mixture) @ np.exp(mixture.log_v).T))
    atoms = np.concatenate([np.cos(phase) * envelope, np.sin(phase) * envelope])
    rest = problem.y - atoms @ mixture.beta
    precision, target = problem.prior.terms(mixture)
    return _Fit(mixture, atoms, rest, float(rest @ rest + precision @ np.square(mixture.pack() - target)))


def _bounds(problem: _Problem, mixture: _Mixture) -> tuple[FloatArray, FloatArray]:
    k, spreads = len(mixture.beta), mixture.log_v.size
    low = np.concatenate([np.zeros(k), np.tile(problem.lower, k), np.full(spreads, problem.log_v_range[0])])
    high = np.concatenate([np.full(k, np.inf), np.tile(problem.upper, k), np.full(spreads, problem.log_v_range[1])])
    return low, high


def _jacobian(problem: _Problem, fit: _Fit) -> FloatArray:
    """Return derivatives of the model's moments by (beta, centres, log_v), shape (2m, parameters)."""
    m, d = problem.W.shape
    mixture = fit.mixture
    k = len(mixture.beta)
    weighted = fit.atoms * mixture.beta
    J = np.empty((2 * m, k * (d + 1) + mixture.log_v.size))
    J[:, :k] = fit.atoms
    by_centre = J[:, k : k * (d + 1)].reshape(2 * m, k, d)
    np.multiply(-weighted[m:, :, None], problem.W[:, None, :], out=by_centre[:m])
    np.multiply(weighted[:m, :, None], problem.W[:, None, :], out=by_centre[m:])
    shares = weighted.sum(axis=1, keepdims=True) if mixture.log_v.shape[0] == 1 else weighted
    decay = -0.5 * np.tile(problem.spread_frequencies(mixture), (2, 1))
    by_spread = shares[:, :, None] * decay[:, None, :] * np.exp(mixture.log_v)
    J[:, k * (d + 1) :] = by_spread.reshape(2 * m, -1)
    return J


def _gradient(problem: _Problem, fit: _Fit) -> FloatArray:
    """Return the gradient of half the loss, without forming the Jacobian."""
    m = len(problem.W)
    mixture = fit.mixture
    real, imaginary = fit.rest[:m, None], fit.rest[m:, None]
    agreement = real * fit.atoms[:m] + imaginary * fit.atoms[m:]
    turn = imaginary * fit.atoms[:m] - real * fit.atoms[m:]
    by_centre = mixture.beta[:, None] * (turn.T @ problem.W)
    by_spread = -0.5 * mixture.beta[:, None] * (agreement.T @ problem.spread_frequencies(mixture))
    if mixture.log_v.shape[0] == 1:
        by_spread = by_spread.sum(axis=0, keepdims=True)
    by_spread = by_spread * np.exp(mixture.log_v)
    precision, target = problem.prior.terms(mixture)
    uphill: FloatArray = precision * (mixture.pack() - target)
    uphill -= np.concatenate([agreement.sum(axis=0), by_centre.ravel(), by_spread.ravel()])
    return uphill


def _is_dense(problem: _Problem, mixture: _Mixture) -> bool:
    """Return whether J^T J is small enough to be formed."""
    return 2 * len(problem.W) * mixture.pack().size ** 2 <= DENSE_WORK


def _refine(problem: _Problem, mixture: _Mixture, steps: int) -> _Fit:
    """Fit all parameters together inside the box, from a start; the loss never rises."""
    if _is_dense(problem, mixture):
        return _levenberg_marquardt(problem, mixture, steps)
    return _lbfgs(problem, mixture, 4 * steps)


def _levenberg_marquardt(problem: _Problem, mixture: _Mixture, steps: int) -> _Fit:
    """Take damped Gauss-Newton steps on the parameters that are not at a bound, clipped to the bounds."""
    low, high = _bounds(problem, mixture)
    fit = _evaluate(problem, mixture)
    # The usual start of Levenberg-Marquardt; the steps adapt it by factors of ten.
    damping = 1e-3
    for _ in range(steps):
        J = _jacobian(problem, fit)
        theta = fit.mixture.pack()
        precision, target = problem.prior.terms(fit.mixture)
        downhill = J.T @ fit.rest - precision * (theta - target)
        H = J.T @ J + np.diag(precision)
        # A parameter at a bound is held only if the step would leave the box; otherwise it may return inside.
        free = ~((theta <= low) & (downhill <= 0) | (theta >= high) & (downhill >= 0))
        before, fit, damping = fit, *_damped_step(problem, fit, theta, downhill, H, free, (low, high), damping)
        if not fit.loss < before.loss * (1 - TOLERANCE):
            break
    return fit


def _damped_step(
    problem: _Problem,
    fit: _Fit,
    theta: FloatArray,
    downhill: FloatArray,
    H: FloatArray,
    free: npt.NDArray[np.bool_],
    bounds: tuple[FloatArray, FloatArray],
    damping: float,
) -> tuple[_Fit, float]:
    """Return the first of several shorter and shorter steps that lowers the loss, or no step, and the next damping."""
    diagonal = H.diagonal()[free]
    # Keeps the matrix positive definite where an atom has no weight and so no derivative by its centre.
    diagonal = diagonal + 1e-9 * diagonal.max(initial=0.0) + 1e-200
    inner = H[np.ix_(free, free)]
    for _ in range(6):
        step = np.zeros_like(theta)
        try:
            step[free] = scipy.linalg.cho_solve(
                scipy.linalg.cho_factor(inner + np.diag(damping * diagonal)), downhill[free]
            )
        except scipy.linalg.LinAlgError:
            damping *= 10
            continue
        trial = _evaluate(problem, fit.mixture.unpack(np.clip(theta + step, *bounds)))
        if trial.loss < fit.loss:
            return trial, max(damping / 10, 1e-9)
        damping *= 10
    return fit, damping


def _lbfgs(problem: _Problem, mixture: _Mixture, steps: int) -> _Fit:
    """Refine by L-BFGS-B, in coordinates in which all parameters have about the same curvature."""
    from scipy.optimize import minimize  # here: loading it takes as long as the rest of the SDK

    low, high = _bounds(problem, mixture)
    k = len(mixture.beta)
    units = np.ones(len(low))
    units[k:] = 1 / max(float(mixture.beta.mean()), 1e-6)
    units[k : k + mixture.centres.size] *= np.sqrt(problem.W.shape[1] / max(float(problem.radii2.mean()), 1e-12))
    start = _evaluate(problem, mixture)
    # L-BFGS-B's tolerances are absolute in part, so the loss starts at 1 whatever the noise.
    scale = 1 / max(start.loss, 1e-200)

    def half_loss(scaled: FloatArray) -> tuple[float, FloatArray]:
        fit = _evaluate(problem, mixture.unpack(np.clip(scaled * units, low, high)))
        return 0.5 * scale * fit.loss, scale * units * _gradient(problem, fit)

    found = minimize(
        half_loss,
        mixture.pack() / units,
        jac=True,
        method="L-BFGS-B",
        bounds=np.stack([low / units, high / units], axis=1),
        options={"maxiter": steps, "ftol": TOLERANCE / 10, "gtol": 1e-12},
    )
    end = _evaluate(problem, mixture.unpack(np.clip(found.x * units, low, high)))
    return end if end.loss < start.loss else start


def _cloud(problem: _Problem, noise2: float) -> _Mixture:
    """Return the single Gaussian of mass 1 that fits the moments best: the place of all clusters together.

    With a free mass it would fit some of the clusters, and the others would be searched for in the wrong place. Where
    noise dominates, it is a narrow Gaussian in the middle of the box, the best guess about unknown rows.
    """
    width2 = np.maximum(np.square(problem.upper - problem.lower), 1e-12)
    middle = (problem.lower + problem.upper) / 2

    def gaussian(variance: float) -> _Mixture:
        log_v = np.clip(np.log(variance), *problem.log_v_range)
        return _Mixture(np.ones(1), middle[None, :], np.full((1, 1), float(log_v)))

    guess, start = gaussian(CLOUD_WIDTH**2 * float(width2.mean())), gaussian(float(width2.max()) / 16)
    prior = replace(
        problem.prior,
        place=noise2 / (CLOUD_PLACE**2 * width2),
        mean=middle,
        spread=noise2 / VARIANCE_PRIOR_STD**2,
        log_v=float(guess.log_v[0, 0]),
    )
    informed = replace(problem, prior=prior)
    fit = _levenberg_marquardt(informed, start, FINAL_STEPS)
    belief = _belief(_evaluate(informed, guess), fit, noise2)
    return guess.unpack(belief * fit.mixture.pack() + (1 - belief) * guess.pack())


def _places(problem: _Problem, cloud: _Mixture, present: _Mixture, generator: Generator) -> FloatArray:
    """Draw starting places of a search from the cloud and the box, and one beside each atom, shape (places, d)."""
    d = problem.W.shape[1]
    spread = np.exp(0.5 * cloud.log_v[0, 0])
    drawn = cloud.centres + spread * generator.standard_normal((CANDIDATES, d))
    drawn[::4] = generator.uniform(problem.lower, problem.upper, drawn[::4].shape)
    beside = present.centres + np.exp(0.5 * present.log_v[0, 0]) * generator.standard_normal(present.centres.shape)
    places: FloatArray = np.clip(np.concatenate([drawn, beside]), problem.lower, problem.upper)
    return places


def _search(
    problem: _Problem, rest: FloatArray, log_v: float, places: FloatArray, climbers: int
) -> tuple[FloatArray, FloatArray]:
    """Return where an atom of spread v agrees with the rest: the best climbers, shape (climbers, d), best first.

    All climb together, in float32, on f(c) = Re sum_j conj(rest_j) exp(i w_j.c - v |w_j|^2 / 2). Steps are those of a
    mean shift, at the curvature of a lone peak. Success lengthens them, failure shortens them.

    Returns:
        The places and their values of f.
    """
    m, d = problem.W.shape
    envelope = np.exp(-0.5 * np.exp(log_v) * problem.radii2[:, 0])
    scale = max(float(np.abs(rest).max(initial=0.0)), 1e-30)  # keeps float32 away from its limits
    real = (rest[:m] / scale * envelope).astype(np.float32)
    imaginary = (rest[m:] / scale * envelope).astype(np.float32)
    W = problem.W.astype(np.float32)
    lower, upper = problem.lower.astype(np.float32), problem.upper.astype(np.float32)
    power = envelope * envelope
    width2 = d * float(power.sum()) / max(float(power @ problem.radii2[:, 0]), 1e-30)
    # Frequencies near 0 would make steps longer than the box.
    width2 = min(width2, float(np.square(problem.upper - problem.lower).sum()))

    def waves(at: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], ...]:
        phase = W @ at.T
        cos, sin = np.cos(phase), np.sin(phase)
        return cos, sin, real @ cos + imaginary @ sin

    c = places.astype(np.float32)
    value = waves(c)[2]
    # Stable, so that ties, and so the model, are the same on every machine.
    c = c[np.argsort(-value, kind="stable")[:climbers]]
    cos, sin, value = waves(c)
    pace = np.ones((len(c), 1), dtype=np.float32)
    for _ in range(CLIMB_STEPS):
        slope = ((imaginary[:, None] * cos - real[:, None] * sin).T @ W).astype(np.float64)
        # Values near or below 0 would make a mean-shift step infinite or turn it around.
        floor = max(0.05 * float(value.max(initial=0)), 1e-30)
        step = slope * (width2 / np.maximum(value, floor)[:, None])
        length = np.linalg.norm(step, axis=1, keepdims=True)
        step = step * np.minimum(1, np.sqrt(width2 * d) / np.maximum(length, 1e-30))
        trial = np.clip(c + (pace * step).astype(np.float32), lower, upper)
        trial_cos, trial_sin, trial_value = waves(trial)
        up = trial_value > value
        c = np.where(up[:, None], trial, c)
        cos, sin, value = np.where(up, trial_cos, cos), np.where(up, trial_sin, sin), np.where(up, trial_value, value)
        # Factors chosen, not tuned: several successes undo one failure.
        pace = np.where(up[:, None], np.minimum(pace * 1.5, 4), pace * 0.4).astype(np.float32)
    order = np.argsort(-value, kind="stable")
    peaks = np.clip(c[order].astype(np.float64), problem.lower, problem.upper)
    return peaks, value[order].astype(np.float64) * scale


def _add(problem: _Problem, fit: _Fit, count: int, places: FloatArray) -> _Mixture:
    """Return the mixture with `count` more atoms, at the highest distinct peaks of the rest."""
    log_v = float(fit.mixture.log_v.mean())
    peaks, values = _search(problem, fit.rest, log_v, places, max(CLIMBERS, 2 * count))
    envelope = np.exp(-np.exp(log_v) * problem.radii2[:, 0])
    # Squared width of the peak of a lone atom; climbers nearer than that are on the same peak.
    apart = problem.W.shape[1] * envelope.sum() / max(float(envelope @ problem.radii2[:, 0]), 1e-30)
    chosen: list[int] = []
    for index in range(len(peaks)):
        if len(chosen) < count and all(np.square(peaks[index] - peaks[c]).sum() > apart for c in chosen):
            chosen.append(index)
    chosen += [index for index in range(len(peaks)) if index not in chosen][: count - len(chosen)]
    beta = np.maximum(values[chosen], 0) / max(float(envelope.sum()), 1e-30)
    mixture = fit.mixture
    spreads = [mixture.log_v]
    if mixture.log_v.size > 1:  # one for each atom and column
        spreads.append(np.full((count, mixture.log_v.shape[1]), log_v))
    return _Mixture(
        np.concatenate([mixture.beta, beta]),
        np.concatenate([mixture.centres, peaks[chosen]]),
        np.concatenate(spreads),
    )


def _with_more(problem: _Problem, cloud: _Mixture, fit: _Fit, count: int, steps: int, generator: Generator) -> _Fit:
    """Return the fit after adding `count` atoms and so many refining steps; arguments are those of `_richer`."""
    places = _places(problem, cloud, fit.mixture, generator)
    return _refine(problem, _add(problem, fit, count, places), steps)


def _prune(problem: _Problem, fit: _Fit, k: int) -> _Mixture:
    """Return the mixture reduced to k atoms, without those whose removal costs a linearised fit least.

    Setting parameter l of a least-squares fit to 0 and refitting the others costs theta_l^2 / (H^-1)_ll.
    """
    mixture = fit.mixture
    # Where the Jacobian is too large, only the weights are refitted: a coarser but cheaper saliency.
    directions = _jacobian(problem, fit) if _is_dense(problem, mixture) else fit.atoms
    H = directions.T @ directions
    diagonal = H.diagonal()
    H[np.diag_indices_from(H)] += (
        problem.prior.terms(mixture)[0][: len(H)] + 1e-6 * diagonal + 1e-9 * diagonal.max() + 1e-200
    )
    variances = np.maximum(np.linalg.pinv(H, hermitian=True).diagonal()[: len(mixture.beta)], 1e-200)
    kept = np.sort(np.argsort(-np.square(mixture.beta) / variances, kind="stable")[:k])
    log_v = mixture.log_v[kept] if len(mixture.log_v) == len(mixture.beta) > 1 else mixture.log_v
    return _Mixture(mixture.beta[kept], mixture.centres[kept], log_v)


def _rounds(k: int) -> list[int]:
    """Return the number of atoms that each round adds, k in all."""
    return [int(count) for count in np.diff(np.linspace(0, k, min(k, ROUNDS) + 1).round())]


def _replicate(problem: _Problem, k: int, cloud: _Mixture, ceiling: float, generator: Generator) -> _Fit:
    """Run CL-OMPR once: add k atoms one after another, then replace atoms, then refine all together.

    Args:
        problem: data of the fit.
        k: number of atoms.
        cloud: region where atoms are searched for.
        ceiling: highest spread until the end, as a share of the cloud's variance.
        generator: generator of the places where searches start.
    """
    lowest, highest = problem.log_v_range
    # Never below the lowest: the range of spreads must not become empty.
    highest = max(min(highest, float(cloud.log_v[0, 0]) + float(np.log(ceiling))), lowest)
    capped = replace(problem, log_v_range=(lowest, highest))
    log_v = np.clip(-np.log(max(float(problem.radii2.mean()), 1e-12)), lowest, highest)
    empty = _Mixture(np.zeros(0), np.zeros((0, problem.W.shape[1])), np.full((1, 1), float(log_v)))
    fit = _evaluate(capped, empty)

    for count in _rounds(k):
        fit = _with_more(capped, cloud, fit, count, GROWING_STEPS, generator)
    misses = 0
    for count in _rounds(k):
        more = _with_more(capped, cloud, fit, count, GROWING_STEPS, generator)
        trial = _refine(capped, _prune(capped, more, k), GROWING_STEPS)
        if trial.loss < fit.loss * (1 - GAIN):
            fit, misses = trial, 0
        else:
            misses += 1
        if misses == MISSES:
            break
    return _refine(problem, fit.mixture, FINAL_STEPS)


def _noise2(noise_std: float) -> float:
    """Return the squared noise of a moment's part by which a prior weighs.

    0 for noise that is not a positive number.
    """
    return min(noise_std, MAX_MOMENT) ** 2 if noise_std > 0 else 0.0


def _with_prior(problem: _Problem, noise_std: float) -> tuple[_Problem, _Mixture]:
    """Return the problem with the weak prior of the clusters, and the cloud from which the prior is made.

    The prior weighs as much as the noise.
    """
    noise2 = _noise2(noise_std)
    cloud = _cloud(problem, noise2)
    log_v = float(cloud.log_v[0, 0])
    prior = _Prior(
        noise2 / WEIGHT_PRIOR_STD**2,
        np.full(len(problem.lower), noise2 / np.exp(log_v)),
        cloud.centres[0],
        noise2 / VARIANCE_PRIOR_STD**2,
        log_v + float(np.log(CLUSTER_SHARE)),
    )
    return replace(problem, prior=prior), cloud


def _belief(simple: _Fit, fit: _Fit, noise2: float) -> float:
    """Return the degree of belief in a fit against a simpler one, 0 to 1.

    It is the share of the saved loss that noise would not save. James and Stein (1961) shrink a fit of p parameters
    towards a simpler one by about p times the noise's variance over the saved loss.
    """
    saved = float(simple.rest @ simple.rest - fit.rest @ fit.rest)
    by_noise = SEARCHED * noise2 * (fit.mixture.beta.size + fit.mixture.centres.size)
    return max(1 - by_noise / saved, 0.0) if saved > 0 else 0.0


def _joined(mixture: _Mixture, cloud: _Mixture, belief: float) -> _Mixture:
    """Return the believed density: the mixture with a weight of `belief`, the cloud with the rest."""
    return _Mixture(
        np.append(belief * _normalised(mixture.beta), 1 - belief),
        np.concatenate([mixture.centres, cloud.centres]),
        np.concatenate([mixture.log_v, np.full((1, mixture.centres.shape[1]), cloud.log_v[0, 0])]),
    )


def _shrunk(mixture: _Mixture, cloud: _Mixture, belief: float) -> _Mixture:
    """Return the believed density with as many atoms as the mixture: each atom takes an equal part of the cloud.

    An atom and its part of the cloud become one Gaussian with the mean and variance of both together.
    """
    own = belief * _normalised(mixture.beta)
    beta = own + (1 - belief) / len(own)
    share = (own / np.maximum(beta, 1e-200))[:, None]
    variances = share * np.exp(mixture.log_v) + (1 - share) * np.exp(cloud.log_v[0, 0])
    variances += share * (1 - share) * np.square(mixture.centres - cloud.centres)
    return _Mixture(beta, share * mixture.centres + (1 - share) * cloud.centres, np.log(variances))


def _replicates(problem: _Problem, cloud: _Mixture, k: int, n_init: int, public_seed: int) -> list[_Fit]:
    """Return distinct replicates, the smallest loss first; all atoms of one replicate share one spread."""

    def replicate(index: int) -> _Fit:
        ceiling = SPREAD_CEILINGS[index % len(SPREAD_CEILINGS)]
        return _replicate(problem, k, cloud, ceiling, _generator(public_seed, index))

    fits = [replicate(0)]
    while len(fits) < n_init and sum(fit.loss <= _least(fits) * (1 + AGREEMENT) for fit in fits) < AGREEING:
        fits.append(replicate(len(fits)))
    fits.sort(key=lambda fit: fit.loss)
    return [fits[0], *(fit for before, fit in pairwise(fits) if fit.loss > before.loss * (1 + AGREEMENT))]


def _least(fits: list[_Fit]) -> float:
    return min(fit.loss for fit in fits)


def _shaping(problem: _Problem, log_v: float, noise_std: float) -> _Problem:
    """Return the problem of atoms with variances of their own, whose prior is about this one."""
    spread = _noise2(noise_std) / SPREAD_PRIOR_STD**2
    return replace(problem, prior=replace(problem.prior, spread=spread, log_v=log_v))


def _shaped(problem: _Problem, mixture: _Mixture, noise_std: float) -> _Fit:
    """Return the fit with one variance for each component and column; the common variance is its prior."""
    common = float(mixture.log_v[0, 0])
    start = replace(mixture, log_v=np.full(mixture.centres.shape, common))
    return _refine(_shaping(problem, common, noise_std), start, FINAL_STEPS)


def _moved(problem: _Problem, cloud: _Mixture, fit: _Fit, noise_std: float, generator: Generator) -> _Fit:
    """Return a shaped fit after replacing single atoms, while its residual exceeds the error; failures are undone."""
    k = len(fit.mixture.beta)
    problem = _shaping(problem, float(np.median(fit.mixture.log_v)), noise_std)
    fit = _evaluate(problem, fit.mixture)
    for _ in range(REPLACEMENTS):
        if k < 2 or not _residual(fit, noise_std) > WRONG:
            break
        richer = _with_more(problem, cloud, fit, 1, FINAL_STEPS, generator)
        trial = _refine(problem, _prune(problem, richer, k), FINAL_STEPS)
        fit = trial if trial.loss < fit.loss else fit
    return fit


def _richer(
    problem: _Problem, cloud: _Mixture, fit: _Fit, generator: Generator, noise_std: float | None = None
) -> _Fit:
    """Return the fit with more atoms while they explain much more; the same object if they do not.

    Args:
        problem: data of the fit.
        cloud: region where atoms are searched for.
        fit: fit of k atoms.
        generator: generator of the places where searches start.
        noise_std: noise of a moment's part, if all that is beyond noise counts as much; None: a share of the loss does.
    """
    m, d = problem.W.shape
    k = len(fit.mixture.beta)
    for _ in range(RICHER_ROUNDS if noise_std is None else NOISE_ROUNDS):
        size = len(fit.mixture.beta)
        count = -(-(k if noise_std is None else size) // 4)
        if (size + count) * (d + 1) > m:  # at least two real numbers for each parameter
            break
        trial = _with_more(problem, cloud, fit, count, RICHER_STEPS, generator)
        least = RICHER_GAIN * fit.loss
        if noise_std is not None:
            least = NOISE_GAIN * SEARCHED * _noise2(noise_std) * count * (d + 1)
        if not fit.loss - trial.loss > least:
            break
        fit = trial
    return fit


def _finer(problem: _Problem, cloud: _Mixture, fit: _Fit, noise_std: float, generator: Generator) -> _Fit:
    """Return a shaped fit with more atoms of their own variances, while it leaves more than the error.

    Arguments are those of `_richer`; the problem has the prior of shaped atoms.
    """
    m, d = problem.W.shape
    before = fit
    for _ in range(FINER_ROUNDS):
        size = len(fit.mixture.beta)
        count = -(-size // 4)
        # At least four real numbers for each parameter.
        if not _residual(fit, noise_std) > WRONG or 2 * (size + count) * (2 * d + 1) > m:
            break
        trial = _with_more(problem, cloud, fit, count, RICHER_STEPS, generator)
        if not fit.loss - trial.loss > NOISE_GAIN * SEARCHED * _noise2(noise_std) * count * (2 * d + 1):
            break
        fit = trial
    return fit if fit is before else _refine(problem, fit.mixture, FINAL_STEPS)


def _rows(problem: _Problem, mixture: _Mixture, generator: Generator) -> FloatArray:
    """Draw rows from a mixture with variances of each component, clipped to the box, (LLOYD_ROWS, d)."""
    # Stratified, so that the shares of the components have no sampling error; and in pairs of opposite errors, so that
    # the means of components that lie apart have none, either.
    levels = (np.arange(LLOYD_ROWS) + 0.5) / LLOYD_ROWS
    component = np.searchsorted(np.cumsum(_normalised(mixture.beta))[:-1], levels)
    half = generator.standard_normal((LLOYD_ROWS // 2, problem.W.shape[1]))
    errors = np.stack([half, -half], axis=1).reshape(LLOYD_ROWS, -1)
    rows = mixture.centres[component] + np.exp(0.5 * mixture.log_v[component]) * errors
    # Rows of the table are clipped to the bounds, so the drawn ones are, too.
    inside: FloatArray = np.clip(rows, problem.lower, problem.upper)
    return inside


def _kmeans_plus_plus(rows: FloatArray, k: int, generator: Generator) -> FloatArray:
    """Draw starting centres, each with probability proportional to its squared distance to those before it."""
    centres = [rows[int(generator.integers(len(rows)))]]
    distance = np.square(rows - centres[0]).sum(axis=1)
    for _ in range(1, k):
        reach = np.cumsum(distance)
        # Rounding could place the draw beyond the last cumulative sum.
        index = min(int(np.searchsorted(reach, generator.random() * reach[-1])), len(rows) - 1)
        centres.append(rows[index])
        distance = np.minimum(distance, np.square(rows - rows[index]).sum(axis=1))
    return np.stack(centres)


@dataclass(frozen=True)
class _Clustering:
    """Result of Lloyd's algorithm."""

    weights: FloatArray  # (k,)
    centres: FloatArray  # (k, d)
    variances: FloatArray  # (k,), per column
    inertia: float


def lloyd(rows: FloatArray, start: FloatArray) -> _Clustering:
    """Run Lloyd's algorithm: each centre moves to the mean of its rows; a centre without rows stays."""
    k, d = start.shape
    centres = start
    for _ in range(LLOYD_STEPS):
        label = _nearest(rows, centres)
        counts = np.bincount(label, minlength=k)
        sums = np.stack([np.bincount(label, weights=column, minlength=k) for column in rows.T], axis=1)
        before, centres = centres, np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres)
        if np.allclose(before, centres, rtol=0, atol=1e-7):
            break
    label = _nearest(rows, centres)
    counts = np.bincount(label, minlength=k)
    distance = np.square(rows - centres[label]).sum(axis=1)
    variances = np.bincount(label, weights=distance, minlength=k) / np.maximum(counts, 1) / d
    return _Clustering(counts / len(rows), centres, variances, float(distance.sum()))


def _nearest(rows: FloatArray, centres: FloatArray) -> npt.NDArray[np.intp]:
    nearest: npt.NDArray[np.intp] = (np.square(centres).sum(axis=1) - 2 * rows @ centres.T).argmin(axis=1)
    return nearest
