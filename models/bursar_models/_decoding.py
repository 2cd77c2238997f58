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

import numpy as np
from numpy.random import Generator  # noqa: TID251 - the type only

from bursar_models._atom_search import FINAL_STEPS, find_atoms, pruned, with_more
from bursar_models._lloyd import kmeans_plus_plus, lloyd
from bursar_models._moment_fit import (
    MAX_MOMENT,
    Fit,
    Mixture,
    Prior,
    Problem,
    evaluate,
    jacobian,
    levenberg_marquardt,
    normalised,
    pose,
    refine,
    residual,
)
from bursar_models._starts import public_generator
from bursar_models.arrays import ComplexArray, FloatArray

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

DEFAULT_RESTARTS = 20
"""Maximum number of restarts of a decoding whose caller sets none. Chosen, not tuned; agreeing restarts end sooner."""

MAX_DECODING_WORK = 7.0e8
"""Maximum of k^2 m d times restarts in a fit: one to two minutes of one CPU.

Measured: 1.2e-7 s for each unit at k = d = 20, m = 4096, 1.4e-7 s at k = 50, d = 5, m = 2500, where normal equations
dominate, and 3e-7 s at k = d = 10, m = 1000, where 20 restarts take 7 s.
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
    problem, cloud = _with_prior(pose(matrix, moments, lower, upper), noise_std)
    fit = find_atoms(problem, cloud, k, n_init, public_seed)[0]
    generator = public_generator(public_seed, max(n_init, 1))
    richer = _richer(problem, cloud, fit, generator, None if harmonics else noise_std)
    shaped = _shaped(problem, fit.mixture, noise_std)
    belief = _belief(evaluate(problem, cloud), fit, _noise2(noise_std))
    density, starts = shaped, [shaped.mixture.centres]
    if richer is not fit:  # the best k centres of more than k groups need not be near any k of the groups
        density = _shaped(problem, richer.mixture, noise_std)
        if not harmonics:
            shaping = _shaping(problem, float(richer.mixture.log_v[0, 0]), noise_std)
            density = _finer(shaping, cloud, density, noise_std, public_generator(public_seed, max(n_init, 1) + 1))
    rows = _rows(problem, _joined(density.mixture, cloud, belief), generator)
    # The mixture of k groups is in doubt: several starts, each tried on few of the rows, the best finished on all.
    if richer is not fit or belief < BELIEVED:
        starts += [kmeans_plus_plus(rows, k, generator) for _ in range(LLOYD_STARTS)]
        few = [lloyd(rows[::LLOYD_THINNING], start) for start in starts]
        starts = [found.centres for found in sorted(few, key=lambda found: found.inertia)[:LLOYD_FINISHERS]]
    clustering = min((lloyd(rows, start) for start in starts), key=lambda found: found.inertia)
    empty = clustering.weights == 0
    return Decoded(
        clustering.weights,
        np.clip(clustering.centres, problem.lower, problem.upper),
        np.maximum(np.where(empty, np.exp(fit.mixture.log_v[0, 0]), clustering.variances), 1e-12),
        residual(shaped, noise_std),
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
    problem, cloud = _with_prior(pose(matrix, moments, lower, upper), noise_std)
    # The replicate that is best with one common spread need not be best once each component has its own variances.
    replicates = find_atoms(problem, cloud, k, n_init, public_seed)[:SHAPED]
    fit, best = min(
        ((_shaped(problem, found.mixture, noise_std), found) for found in replicates), key=lambda pair: pair[0].loss
    )
    fit = _moved(problem, cloud, fit, noise_std, public_generator(public_seed, max(n_init, 1)))
    model = _shrunk(fit.mixture, cloud, _belief(evaluate(problem, cloud), best, _noise2(noise_std)))
    return Decoded(
        normalised(model.beta),
        np.clip(model.centres, problem.lower, problem.upper),
        np.exp(np.clip(model.log_v, *problem.log_v_range)),
        residual(fit, noise_std),
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
    problem, cloud = _with_prior(pose(matrix, moments, lower, upper), noise_std)
    replicates = find_atoms(problem, cloud, k, n_init, public_seed)[:SHAPED]
    if richer:
        replicates = [_richer(problem, cloud, replicates[0], public_generator(public_seed, max(n_init, 1)))]
    fit = min((_shaped(problem, found.mixture, noise_std) for found in replicates), key=lambda found: found.loss)
    # The common spread of the best replicate is near that of its own variances.
    prior = replace(
        problem.prior,
        spread=_noise2(noise_std) / SPREAD_PRIOR_STD**2,
        log_v=float(np.average(fit.mixture.log_v.mean(axis=1), weights=normalised(fit.mixture.beta))),
    )
    precision, target = prior.terms(fit.mixture)
    return Density(
        fit.mixture.beta,
        fit.mixture.centres,
        np.exp(fit.mixture.log_v),
        fit.rest,
        jacobian(problem, fit),
        fit.mixture.pack() - target,
        _noise2(noise_std) / np.maximum(precision, 1e-300),
    )


def _cloud(problem: Problem, noise2: float) -> Mixture:
    """Return the single Gaussian of mass 1 that fits the moments best: the place of all clusters together.

    With a free mass it would fit some of the clusters, and the others would be searched for in the wrong place. Where
    noise dominates, it is a narrow Gaussian in the middle of the box, the best guess about unknown rows.
    """
    width2 = np.maximum(np.square(problem.upper - problem.lower), 1e-12)
    middle = (problem.lower + problem.upper) / 2

    def gaussian(variance: float) -> Mixture:
        log_v = np.clip(np.log(variance), *problem.log_v_range)
        return Mixture(np.ones(1), middle[None, :], np.full((1, 1), float(log_v)))

    guess, start = gaussian(CLOUD_WIDTH**2 * float(width2.mean())), gaussian(float(width2.max()) / 16)
    prior = replace(
        problem.prior,
        place=noise2 / (CLOUD_PLACE**2 * width2),
        mean=middle,
        spread=noise2 / VARIANCE_PRIOR_STD**2,
        log_v=float(guess.log_v[0, 0]),
    )
    informed = replace(problem, prior=prior)
    fit = levenberg_marquardt(informed, start, FINAL_STEPS)
    belief = _belief(evaluate(informed, guess), fit, noise2)
    return guess.unpack(belief * fit.mixture.pack() + (1 - belief) * guess.pack())


def _noise2(noise_std: float) -> float:
    """Return the squared noise of a moment's part by which a prior weighs.

    0 for noise that is not a positive number.
    """
    return min(noise_std, MAX_MOMENT) ** 2 if noise_std > 0 else 0.0


def _with_prior(problem: Problem, noise_std: float) -> tuple[Problem, Mixture]:
    """Return the problem with the weak prior of the clusters, and the cloud from which the prior is made.

    The prior weighs as much as the noise.
    """
    noise2 = _noise2(noise_std)
    cloud = _cloud(problem, noise2)
    log_v = float(cloud.log_v[0, 0])
    prior = Prior(
        noise2 / WEIGHT_PRIOR_STD**2,
        np.full(len(problem.lower), noise2 / np.exp(log_v)),
        cloud.centres[0],
        noise2 / VARIANCE_PRIOR_STD**2,
        log_v + float(np.log(CLUSTER_SHARE)),
    )
    return replace(problem, prior=prior), cloud


def _belief(simple: Fit, fit: Fit, noise2: float) -> float:
    """Return the degree of belief in a fit against a simpler one, 0 to 1.

    It is the share of the saved loss that noise would not save. James and Stein (1961) shrink a fit of p parameters
    towards a simpler one by about p times the noise's variance over the saved loss.
    """
    saved = float(simple.rest @ simple.rest - fit.rest @ fit.rest)
    by_noise = SEARCHED * noise2 * (fit.mixture.beta.size + fit.mixture.centres.size)
    return max(1 - by_noise / saved, 0.0) if saved > 0 else 0.0


def _joined(mixture: Mixture, cloud: Mixture, belief: float) -> Mixture:
    """Return the believed density: the mixture with a weight of `belief`, the cloud with the rest."""
    return Mixture(
        np.append(belief * normalised(mixture.beta), 1 - belief),
        np.concatenate([mixture.centres, cloud.centres]),
        np.concatenate([mixture.log_v, np.full((1, mixture.centres.shape[1]), cloud.log_v[0, 0])]),
    )


def _shrunk(mixture: Mixture, cloud: Mixture, belief: float) -> Mixture:
    """Return the believed density with as many atoms as the mixture: each atom takes an equal part of the cloud.

    An atom and its part of the cloud become one Gaussian with the mean and variance of both together.
    """
    own = belief * normalised(mixture.beta)
    beta = own + (1 - belief) / len(own)
    share = (own / np.maximum(beta, 1e-200))[:, None]
    variances = share * np.exp(mixture.log_v) + (1 - share) * np.exp(cloud.log_v[0, 0])
    variances += share * (1 - share) * np.square(mixture.centres - cloud.centres)
    return Mixture(beta, share * mixture.centres + (1 - share) * cloud.centres, np.log(variances))


def _shaping(problem: Problem, log_v: float, noise_std: float) -> Problem:
    """Return the problem of atoms with variances of their own, whose prior is about this one."""
    spread = _noise2(noise_std) / SPREAD_PRIOR_STD**2
    return replace(problem, prior=replace(problem.prior, spread=spread, log_v=log_v))


def _shaped(problem: Problem, mixture: Mixture, noise_std: float) -> Fit:
    """Return the fit with one variance for each component and column; the common variance is its prior."""
    common = float(mixture.log_v[0, 0])
    start = replace(mixture, log_v=np.full(mixture.centres.shape, common))
    return refine(_shaping(problem, common, noise_std), start, FINAL_STEPS)


def _moved(problem: Problem, cloud: Mixture, fit: Fit, noise_std: float, generator: Generator) -> Fit:
    """Return a shaped fit after replacing single atoms, while its residual exceeds the error; failures are undone."""
    k = len(fit.mixture.beta)
    problem = _shaping(problem, float(np.median(fit.mixture.log_v)), noise_std)
    fit = evaluate(problem, fit.mixture)
    for _ in range(REPLACEMENTS):
        if k < 2 or not residual(fit, noise_std) > WRONG:
            break
        richer = with_more(problem, cloud, fit, 1, FINAL_STEPS, generator)
        trial = refine(problem, pruned(problem, richer, k), FINAL_STEPS)
        fit = trial if trial.loss < fit.loss else fit
    return fit


def _richer(problem: Problem, cloud: Mixture, fit: Fit, generator: Generator, noise_std: float | None = None) -> Fit:
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
        trial = with_more(problem, cloud, fit, count, RICHER_STEPS, generator)
        least = RICHER_GAIN * fit.loss
        if noise_std is not None:
            least = NOISE_GAIN * SEARCHED * _noise2(noise_std) * count * (d + 1)
        if not fit.loss - trial.loss > least:
            break
        fit = trial
    return fit


def _finer(problem: Problem, cloud: Mixture, fit: Fit, noise_std: float, generator: Generator) -> Fit:
    """Return a shaped fit with more atoms of their own variances, while it leaves more than the error.

    Arguments are those of `_richer`; the problem has the prior of shaped atoms.
    """
    m, d = problem.W.shape
    before = fit
    for _ in range(FINER_ROUNDS):
        size = len(fit.mixture.beta)
        count = -(-size // 4)
        # At least four real numbers for each parameter.
        if not residual(fit, noise_std) > WRONG or 2 * (size + count) * (2 * d + 1) > m:
            break
        trial = with_more(problem, cloud, fit, count, RICHER_STEPS, generator)
        if not fit.loss - trial.loss > NOISE_GAIN * SEARCHED * _noise2(noise_std) * count * (2 * d + 1):
            break
        fit = trial
    return fit if fit is before else refine(problem, fit.mixture, FINAL_STEPS)


def _rows(problem: Problem, mixture: Mixture, generator: Generator) -> FloatArray:
    """Draw rows from a mixture with variances of each component, clipped to the box, (LLOYD_ROWS, d)."""
    # Stratified, so that the shares of the components have no sampling error; and in pairs of opposite errors, so that
    # the means of components that lie apart have none, either.
    levels = (np.arange(LLOYD_ROWS) + 0.5) / LLOYD_ROWS
    component = np.searchsorted(np.cumsum(normalised(mixture.beta))[:-1], levels)
    half = generator.standard_normal((LLOYD_ROWS // 2, problem.W.shape[1]))
    errors = np.stack([half, -half], axis=1).reshape(LLOYD_ROWS, -1)
    rows = mixture.centres[component] + np.exp(0.5 * mixture.log_v[component]) * errors
    # Rows of the table are clipped to the bounds, so the drawn ones are, too.
    inside: FloatArray = np.clip(rows, problem.lower, problem.upper)
    return inside
