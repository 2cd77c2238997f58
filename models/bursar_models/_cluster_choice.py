"""Mean squared distances of k-means from a sketch, with intervals, and the number of clusters. All of it is free.

The mean of a function over the population is not among a sketch's moments. It is estimated as the mean over a mixture
of many Gaussians that explains the sketch, corrected by what the mixture leaves unexplained. The population is taken
for the mixture, plus errors of its parameters, plus a random relative change of the density, plus rows anywhere; the
sizes of the latter two are averaged over a grid, weighed by their likelihood. Given them, the estimate is a linear
prediction from the moments. Sources: Rasmussen and Williams (2006), "Gaussian processes for machine learning", sections
2.2, 2.7 and 5.4; O'Hagan (1991), "Bayes-Hermite quadrature".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy

from bursar_models._bootstrap import RESTARTS, mixture_moments, row_terms
from bursar_models._component_choice import ComponentChoice
from bursar_models._decoding import Decoded, Density, decode_density
from bursar_models._intervals import two_sided
from bursar_models._kmeans import KMeans, squared_distances
from bursar_models._starts import public_generator
from bursar_models._tables import Output, as_table
from bursar_models.arrays import FloatArray, IntArray, frozen
from bursar_models.text import html_table, text_table

if TYPE_CHECKING:
    from bursar_models._sketch import Sketch

CHANGES = (0.0, *(10.0 ** (power / 2) for power in range(-10, 2)))
"""Variances of the relative change of the density: from none to three."""

FAR_SHARES = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Standard deviations of the share of rows anywhere."""

_TAILS, _TAIL_FACTOR = 0.3, 4.0
"""Share of the change that is in the tails, and their deviations in those of the Gaussians.

Measured: with (0.1, 2.5) sums of squares of exponential clusters were up to 13 % off, with (0.2, 3) half the tables'
intervals were too short.
"""

_BLIND = 0.1
"""Share of the change's variance that moments do not take away, since no change of a real table is without a shape.

Measured on seven planted and thirteen real populations, 20,000 and 50,000 rows, epsilon 0.3 to 3: without it intervals
held in 87 and 73 %, with 0.1 in 92 and 92 %, with 0.2 in 93 and 95 %; but on six other tables with 0.2 in 100 %.
"""

_LOOSER = 4.0
"""Factor on the prior's variances: it was chosen for a steady search, not as a belief."""

_POINTS, _MOST_TERMS = 6_000, 2**22
"""Points for covariances of moments, and the maximum of points times frequencies: 64 MB."""

_MEAN_POINTS = 60_000
"""Points for means of squared distances: their own error is below 0.3 %."""

_MOST_NUMBERS = 1_500
"""Combinations of the moments that are used, so that matrices take 18 MB; more only where there are more moments."""

_UNSEEN = 0.01
"""Variance of the change of the density from which a sketch is said to see too little of the rows.

Measured: at most 0.001 where intervals hold, 0.03 for positions of towns, where four in five did not.
"""

_COLLINEAR = 0.85
"""Correlation of two columns in the mixture from which intervals are said to be too short.

Components have no correlations of their own. Measured for five and six clusters: at 0.87 to 0.98 means are up to 12 %
off, beyond their intervals (magic, flights, diamonds; not batters); at 0.84 and less they are not (storms, weather).
Two groups on a diagonal have such a correlation, too, and are warned of without need.
"""


@dataclass(frozen=True, eq=False, repr=False)
class ClusterChoice:
    """Mean squared distances of the rows to the nearest centre for several numbers of clusters, and a choice of one.

    Arrays are read-only copies of shape (numbers,). Distances are in the space of `KMeans`, so that a sum of squares is
    the number of rows times them.

    Attributes:
        level: share of sketches in which an interval is meant to hold.
        mean_squares: mean squared distance to the nearest centre of `Sketch.kmeans`, over the population.
        low: lower ends.
        high: upper ends.
        components: choice of the number of Gaussian components, with its uncertainty.
        notes: reasons to trust the numbers less; () if there are none.

    Example:
        >>> sketch = data.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
        >>> found = sketch.choose(3)
        >>> found.numbers, bool((found.low <= found.high).all())
        ((1, 2, 3), True)
    """

    level: float
    mean_squares: FloatArray
    low: FloatArray
    high: FloatArray
    components: ComponentChoice
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("mean_squares", "low", "high"):
            # A frozen dataclass can store its cleaned fields in no other way.
            object.__setattr__(self, name, frozen(name, getattr(self, name), (len(self.components.numbers),)))

    @property
    def least(self) -> int:
        """Number of clusters that the first entries are of; each later one is of one more."""
        return self.components.least

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of clusters that the entries are of."""
        return self.components.numbers

    def to_table(self, output: Output = "pandas") -> Any:
        """Return a table with the columns clusters, mean_squares, low and high.

        Args:
            output: "pandas" or "polars" for a DataFrame, "arrow" for a pyarrow Table, "dict" for arrays by name.

        Raises:
            ValueError: another output.
            bursar.MissingDependencyError: its library is not installed.
        """
        columns = {
            "clusters": np.array(self.numbers),
            "mean_squares": self.mean_squares,
            "low": self.low,
            "high": self.high,
        }
        return as_table(columns, output)

    def _title(self) -> str:
        return f"Mean squared distance to the nearest centre, intervals at {self.level:.4g}"

    def _lines(self) -> list[str]:
        last = self.components.chosen == self.numbers[-1] > self.least
        more = ": more than were tried may explain the sketch better" if last else ""
        return [f"mixture: {self.components}{more}", *self.notes]

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        numbers = zip(self.numbers, self.mean_squares, self.low, self.high, strict=True)
        return ["clusters", "mean square", "low", "high"], [[str(k), *(f"{x:.4g}" for x in row)] for k, *row in numbers]

    def __repr__(self) -> str:
        return "\n".join([self._title(), text_table(*self._cells()), *(f"  {line}" for line in self._lines())])

    def _repr_html_(self) -> str:
        return html_table("; ".join([self._title(), *self._lines()]), *self._cells())


def choose_clusters(
    sketch: Sketch, models: Sequence[KMeans], least: int, level: float, public_seed: int, done: Callable[[], object]
) -> ClusterChoice:
    """Return the mean squared distances of models with consecutive numbers of clusters, and a choice.

    Args:
        sketch: sketch from which they were decoded.
        models: k-means of `least`, `least` + 1, ... clusters.
        least: number of clusters of the first.
        level: share of sketches in which an interval is meant to hold.
        public_seed: seed of restarts and points.
        done: called after each decoding.
    """
    z = two_sided(level)

    def density(k: int, *, richer: bool) -> Density:
        found = decode_density(
            sketch.frequencies.matrix(),
            sketch.moments(),
            sketch.moment_error(),
            k,
            *sketch._box(),
            n_init=RESTARTS,
            public_seed=public_seed,
            richer=richer,
        )
        done()
        return _with_harmonics(sketch, found)

    numbers = range(least, least + len(models))
    finest = density(numbers[-1], richer=True)
    population = Population(sketch, finest, public_seed)
    means, errors, change = population.mean_squares([model.cluster_centers_ for model in models])
    choice = _components([density(k, richer=False) for k in numbers], population, least)
    notes = []
    if change > _UNSEEN:
        off = f"{math.sqrt(change):.0%}"
        notes.append(f"the sketch sees too little of the rows to be trusted (their density is off by {off})")
    if (correlation := _largest_correlation(finest)) > _COLLINEAR:
        notes.append(
            f"two columns have a correlation of {correlation:.2f}: mean squares of many clusters may be a tenth off, "
            "more than intervals say"
        )
    return ClusterChoice(
        level,
        np.maximum(means, 0.0),
        np.maximum(means - z * errors, 0.0),
        np.maximum(means + z * errors, 0.0),
        choice,
        tuple(notes),
    )


def _largest_correlation(density: Density) -> float:
    """Return the largest correlation of two columns in a mixture, without its sign; 0 of one column."""
    shares = density.weights / max(float(density.weights.sum()), np.finfo(float).tiny)
    errors = density.centres - shares @ density.centres
    whole = (errors.T * shares) @ errors + np.diag(shares @ density.variances)
    deviations = np.sqrt(np.maximum(np.diagonal(whole), np.finfo(float).tiny))
    return float(np.abs(np.triu(whole / np.outer(deviations, deviations), 1)).max())


def _with_harmonics(sketch: Sketch, density: Density) -> Density:
    """Return a density whose rest is also without the harmonics of a one-bit signature, which a decoder ignores."""
    if sketch.signature == "exponential":
        return density
    total = density.weights.sum()
    centres = density.centres * sketch.unit + sketch.centre
    mixture = Decoded(density.weights, centres, density.variances * np.square(sketch.unit), residual=0.0, mass=total)
    more = total * (
        mixture_moments(sketch, mixture) - mixture_moments(replace(sketch, signature="exponential"), mixture)
    )
    return replace(density, rest=density.rest - np.concatenate([more.real, more.imag]))


def _components(densities: Sequence[Density], population: Population, least: int) -> ComponentChoice:
    """Return the scores of mixtures: what each leaves unexplained, in squared errors, and a price for each number."""
    sizes = np.array([one.slopes.shape[1] for one in densities])
    unexplained = np.array([population.unexplained(one) for one in densities])
    scores = unexplained + sizes * math.log(population.numbers)
    best = int(scores.argmin())
    scores = scores - scores[best]
    # The difference of two sums of squares: a shift of it and as many squared normal numbers as parameters.
    errors = 2 * np.sqrt(np.abs(unexplained - unexplained[best]) + np.abs(sizes - sizes[best]) / 2)
    return ComponentChoice(least, scores, errors)


class Population:
    """Law of the rows given a sketch: a density, and the covariances of moments under it.

    Args:
        sketch: the sketch.
        density: mixture that explains it.
        public_seed: seed of points.
    """

    def __init__(self, sketch: Sketch, density: Density, public_seed: int) -> None:
        self._sketch, self._density, self._seed = sketch, density, public_seed
        count = max(min(_POINTS, _MOST_TERMS // sketch.m) // 2, 2)
        own, _, shares = _drawn(density, count, public_seed, 1.0)
        tails, _, _ = _drawn(density, count, public_seed, _TAIL_FACTOR)
        self._points = self._inside(np.concatenate([own, tails]))
        self._shares = np.concatenate([(1 - _TAILS) * shares, _TAILS * shares])
        self._far = self._far_points(own, shares)
        features = _parts(sketch, self._points)
        self._basis = self._combinations(features)
        self._features = features @ self._basis
        self._errors = self._released_errors(self._features[: len(own)], shares)

    @property
    def numbers(self) -> int:
        """Number of combinations of the moments that are used."""
        return int(self._basis.shape[1])

    def unexplained(self, density: Density) -> float:
        """Return what the mixture nearest to a density leaves of the moments, in squared errors."""
        rest, slopes = self._basis.T @ density.rest, self._basis.T @ density.slopes
        weighed = scipy.linalg.cho_solve(self._factor, np.column_stack([rest, slopes]))
        inner = slopes.T @ weighed[:, 1:]
        # Parameters of which the moments say nothing do not move.
        inner[np.diag_indices_from(inner)] += 1e-9 * inner.trace() + 1e-200
        along = slopes.T @ weighed[:, 0]
        return float(rest @ weighed[:, 0] - along @ scipy.linalg.cho_solve(scipy.linalg.cho_factor(inner), along))

    @cached_property
    def _factor(self) -> tuple[FloatArray, bool]:
        return scipy.linalg.cho_factor(self._errors)  # type: ignore[no-any-return]

    def mean_squares(self, centres: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray, float]:
        """Return means and standard errors of squared distances to the nearest of each of several centres (k, d).

        Returns:
            Means and errors, (centres,) each, and the variance of the relative change of the density.
        """
        density, r = self._density, self.numbers
        sums = [self._sums(one) for one in centres]
        means, slopes, far, along, spread = (np.array(one) for one in zip(*sums, strict=True))
        # The last number is the sum of all weights, which is 1 up to rounding.
        J = np.zeros((r + 1, slopes.shape[1]))
        J[:r], J[r, : len(density.weights)] = self._basis.T @ density.slopes, 1.0
        variances = _LOOSER * density.prior_variances
        rest = np.append(self._basis.T @ density.rest, 1 - density.weights.sum())
        known = (J * variances) @ J.T + _bordered(self._errors, 1e-8)
        mean = self._shares @ self._features
        kernel = _bordered((self._features * self._shares[:, None]).T @ self._features - np.outer(mean, mean), 0.0)
        anywhere = np.append(_parts(self._sketch, self._far).mean(axis=0) @ self._basis, 1.0)
        rest, start = rest + J @ density.prior_shift, means - slopes @ density.prior_shift
        found = []
        for change in CHANGES:
            factor = scipy.linalg.cho_factor(known + change * kernel)
            shared = slopes @ (J * variances).T + change * np.pad(along, ((0, 0), (0, 1)))
            solved = scipy.linalg.cho_solve(factor, np.column_stack([rest, anywhere, shared.T]))
            loss = 2 * np.log(np.diag(factor[0])).sum() + rest @ solved[:, 0]
            free = np.square(slopes) @ variances + change * spread
            for deviation in FAR_SHARES:
                likelihood, move, less = _with_far(deviation**2, rest, anywhere, shared, solved, far)
                left = np.maximum(free + deviation**2 * far**2 - less, 0.0) + _BLIND * change * spread
                found.append((likelihood - loss / 2, start + move, left, change))
        return _averaged(found)

    def _sums(self, centres: FloatArray) -> tuple[float, FloatArray, float, FloatArray, float]:
        """Return what the squared distance to the nearest of centres (k, d) has over the density.

        Returns:
            Its mean, the derivatives of that by the parameters, the mean of rows anywhere, the covariance with the
            moments, and the variance.
        """
        density, sketch = self._density, self._sketch
        centres = (centres - sketch.centre) / sketch.unit
        raw, component, _ = _drawn(density, _MEAN_POINTS, self._seed + 1, 1.0)
        points = self._inside(raw)
        f, nearest = _nearest(points, centres, sketch.unit)
        # Each component's points have the same share, so that its means are plain ones.
        own = np.bincount(component)
        pull = 2 * (points - centres[nearest]) * np.square(sketch.unit) * (points == raw)
        widen = pull * (raw - density.centres[component]) / 2
        by = [np.stack([np.bincount(component, column) / own for column in one.T], axis=1) for one in (pull, widen)]
        by_weight = np.bincount(component, f) / own
        weights = density.weights[:, None]
        slopes = np.concatenate([by_weight, (weights * by[0]).ravel(), (weights * by[1]).ravel()])
        g = _nearest(self._points, centres, sketch.unit)[0]
        g = g - self._shares @ g
        far = float(_nearest(self._far, centres, sketch.unit)[0].mean())
        along = (self._shares * g) @ self._features
        return float(by_weight @ density.weights), slopes, far, along, float(self._shares @ np.square(g))

    def _inside(self, points: FloatArray) -> FloatArray:
        return np.asarray(np.clip(points, *self._sketch._box()))

    def _far_points(self, own: FloatArray, shares: FloatArray) -> FloatArray:
        """Return points anywhere within the bounds and four deviations of the rows' mean."""
        mean = shares @ own
        reach = 4 * np.sqrt(shares @ np.square(own - mean))
        low, high = self._inside(np.stack([mean - reach, mean + reach]))
        return np.asarray(low + (high - low) * public_generator(self._seed, 3).random(own.shape))

    def _combinations(self, features: FloatArray) -> FloatArray:
        """Return an orthonormal basis (2m, r) of the combinations that are used: all of few moments."""
        m2 = features.shape[1]
        if m2 <= _MOST_NUMBERS:
            return np.eye(m2)
        slopes = self._density.slopes * np.sqrt(self._density.prior_variances)
        more = max(_MOST_NUMBERS - slopes.shape[1], _MOST_NUMBERS // 2)
        signs = public_generator(self._seed, 4).standard_normal((more, len(features)))
        whole = np.column_stack([slopes, ((signs * np.sqrt(self._shares)) @ features).T])
        return np.asarray(np.linalg.qr(whole)[0])

    def _released_errors(self, own: FloatArray, shares: FloatArray) -> FloatArray:
        """Return the covariance of the combinations' noise and sampling; that of the number of rows scales them all."""
        sketch, rows = self._sketch, self._sketch._rows()
        mean = shares @ own
        sampling = ((own * shares[:, None]).T @ own - np.outer(mean, mean)) / rows
        # Each row counts at some of the frequencies only, drawn anew for each.
        energy = float(shares @ np.square(own).sum(axis=1)) / (2 * sketch.m)
        alone = sketch.moment_std() ** 2 + (1 / sketch.alpha_r - 1) * energy / rows
        # A table of few distinct rows and no noise would have no errors at all.
        alone = max(alone, 1e-6 * sketch.moment_error() ** 2)
        moments = sketch.moments()
        whole = np.concatenate([moments.real, moments.imag]) @ self._basis
        scale = (sketch.n_rows_std / rows) ** 2
        return np.asarray(sampling + alone * np.eye(len(mean)) + scale * np.outer(whole, whole))


def _with_far(
    q: float, rest: FloatArray, anywhere: FloatArray, shared: FloatArray, solved: FloatArray, far: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return the prediction with rows anywhere, whose share has the variance q: a change of rank one.

    Args:
        q: variance of the share.
        rest: numbers to predict from, (r,).
        anywhere: these numbers of rows anywhere, (r,).
        shared: covariances of the predicted with them, without rows anywhere, (predicted, r).
        solved: inverse covariance, without rows anywhere, times `rest`, `anywhere` and `shared`.
        far: predicted numbers of rows anywhere, (predicted,).

    Returns:
        What it adds to the log likelihood, the predicted move, and the variance that the numbers take away.
    """
    by_rest, by_far = solved[:, 0], solved[:, 1]
    rank = 1 + q * (anywhere @ by_far)
    together = shared + q * far[:, None] * anywhere
    weighed = solved[:, 2:] + q * np.outer(by_far, far)
    weighed = weighed - np.outer(by_far, q / rank * (anywhere @ weighed))
    pull = anywhere @ by_rest
    likelihood = -math.log(rank) / 2 + q * pull**2 / rank / 2
    return float(likelihood), weighed.T @ rest, (together * weighed.T).sum(axis=1)


def _averaged(found: Sequence[tuple[float, FloatArray, FloatArray, float]]) -> tuple[FloatArray, FloatArray, float]:
    """Return means, standard errors and the mean change over log likelihoods, means, variances and changes."""
    likelihoods, means, variances, changes = (np.array(one) for one in zip(*found, strict=True))
    weights = np.exp(likelihoods - likelihoods.max())
    weights /= weights.sum()
    mean = weights @ means
    errors = np.sqrt(weights @ (variances + np.square(means - mean)))
    return np.asarray(mean), np.asarray(errors), float(weights @ changes)


def _bordered(square: FloatArray, corner: float) -> FloatArray:
    """Return a matrix with one more row and column of zeros, which end in this number."""
    whole = np.pad(square, ((0, 1), (0, 1)))
    whole[-1, -1] = corner
    return whole


def _drawn(density: Density, total: int, seed: int, factor: float) -> tuple[FloatArray, IntArray, FloatArray]:
    """Return points of the mixture with deviations times a factor, their components and their shares.

    A component's points come in pairs of opposite errors and have its variances, so that means of squares are exact.
    """
    generator = public_generator(seed, 2)
    shares = density.weights / max(float(density.weights.sum()), np.finfo(float).tiny)
    # At least 16 points of each, in pairs.
    halves = np.maximum((total * shares / 2).astype(int), 8)
    component = np.repeat(np.arange(len(shares)), 2 * halves)
    parts = []
    for half in halves:
        normals = generator.standard_normal((half, density.centres.shape[1]))
        normals /= np.sqrt(np.square(normals).mean(axis=0))
        parts.append(np.concatenate([normals, -normals]))
    errors = factor * np.sqrt(density.variances[component]) * np.concatenate(parts)
    return density.centres[component] + errors, component, (shares / (2 * halves))[component]


def _parts(sketch: Sketch, points: FloatArray) -> FloatArray:
    """Return real, then imaginary parts of the contributions of points (s, d) to the moments, shape (s, 2m)."""
    terms = row_terms(sketch, points)
    return np.concatenate([terms.real, terms.imag], axis=1)


def _nearest(points: FloatArray, centres: FloatArray, unit: FloatArray) -> tuple[FloatArray, IntArray]:
    """Return squared distances to the nearest centre, in the units of the data, and which it is."""
    far = squared_distances(points * unit, centres * unit)
    nearest = far.argmin(axis=1)
    return far[np.arange(len(far)), nearest], nearest
