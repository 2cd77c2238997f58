"""Parts of the benchmark of separated Gaussians: rows, the ways to fit them, real tables."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from _common import Json
from _kmeans import EARTH, Array, Box, array, array_rows, cube
from _kmeans import fit as fit_in_box
from _real import from_new_york, package, places
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.mixture import GaussianMixture

from bursar_ledger import Adjacency
from bursar_models import log_mixture_density
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import dpem, separated_gmm, sketch

Fields = dict[str, Any]

RADIUS = 1000.0
"""R, public, of means that may be anywhere; true ones are within about 25."""

MARGIN = 10.0
"""Margin of the public bounds about the ball of means."""

ADJACENCY = Adjacency.ADD_REMOVE_ONE

# --- rows ---------------------------------------------------------------------------------------------------

SHAPES = ("round", "stretched", "ratio 4", "ratio 16", "outliers", "t", "shell")
"""round: covariances are the identity. stretched: deviations 0.4 to 1 along random axes, other ones in each component.
ratio: round, deviations of components from 0.5 to 2, or 0.25 to 4. outliers: round, and `OUTLIERS` of all rows are
uniform in a cube of half-width 100. t: `DEGREES` of freedom, scaled to covariance one. shell: round, one component in
the middle and the others on a sphere about it, so that no plane has it alone on one side."""

OUTLIERS, DEGREES = 0.03, 5.0

WEIGHTS = ("equal", "geometric")
"""geometric: each half of the one before."""


@dataclass(frozen=True)
class World:
    """A law of mixtures.

    Attributes:
        n: rows.
        d: columns.
        k: components.
        separation: least distance of two means, in the largest deviation of any component.
        weights: of `WEIGHTS`.
        shape: of `SHAPES`.
        far: the components come in pairs, which are about this far from each other; 0: they do not.
        radius: R, public.
        small: weights of the last components; the others share the rest evenly.
    """

    n: int
    d: int
    k: int
    separation: float = 10.0
    weights: str = "equal"
    shape: str = "round"
    far: float = 0.0
    radius: float = RADIUS
    small: tuple[float, ...] = ()

    @property
    def key(self) -> str:
        """Its name among what is kept."""
        return (
            f"n {self.n}, d {self.d}, k {self.k}, separation {self.separation:g}, {self.weights}, {self.shape}, "
            f"far {self.far:g}, R {self.radius:g}" + "".join(f", {weight:g}" for weight in self.small)
        )

    @property
    def box(self) -> Box:
        """Public bounds."""
        return cube(self.d, self.radius + MARGIN)

    def deviations(self) -> Array:
        """Return the deviations of round components, or the largest of others, (k,)."""
        span = {"ratio 4": 4.0, "ratio 16": 16.0}.get(self.shape, 1.0)
        return np.asarray(np.geomspace(span**-0.5, span**0.5, self.k)) if self.k > 1 else np.ones(1)

    def shares(self) -> Array:
        """Weights of the components, (k,)."""
        weights = np.ones(self.k) if self.weights == "equal" else 0.5 ** np.arange(self.k)
        if self.small:
            large = self.k - len(self.small)
            weights = np.array([(1.0 - sum(self.small)) / large] * large + [*self.small])
        return np.asarray(weights / weights.sum())

    def known(self) -> Fields:
        """Return what requests say of it.

        Bounds of deviations that are two to five times off, and 0.6 of the least weight.
        """
        deviations = self.deviations()
        return {
            "n_components": self.k,
            "radius": self.radius,
            "sigma_min": 0.2 * float(deviations.min()),
            "sigma_max": 2.0 * float(deviations.max()),
            "min_weight": 0.6 * float(self.shares().min()),
        }


@dataclass(frozen=True, eq=False)
class Truth:
    """A mixture and rows of it.

    Attributes:
        weights: (k,).
        means: (k, d).
        covariances: (k, d, d).
        deviations: largest of every component, (k,).
        rows: (n, d).
        labels: (n,), components, -1 of outliers.
    """

    weights: Array
    means: Array
    covariances: Array
    deviations: Array
    rows: Array
    labels: NDArray[np.int64]


def means_of(world: World, generator: np.random.Generator) -> Array:
    """Return means in random directions, as far apart as the world says."""
    deviations, k, d = world.deviations(), world.k, world.d
    directions = generator.standard_normal((k, d))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    least = world.separation * float(deviations.max())
    if world.far:
        sides = np.repeat(directions[: (k + 1) // 2], 2, axis=0)[:k] * world.far / 2.0
        across = generator.standard_normal((k, d))
        across[1::2] = -across[: k - k % 2 : 2]
        return np.asarray(sides + across / np.linalg.norm(across, axis=1)[:, None] * least / 2.0)
    if world.shape == "shell":
        directions[0] = 0.0
    if k == 1:
        return np.asarray(directions * least)
    gaps = np.linalg.norm(directions[:, None] - directions[None], axis=2)[np.triu_indices(k, 1)]
    return np.asarray(directions * least / gaps.min())


@lru_cache(maxsize=1)
def drawn(world: World, seed: int) -> Truth:
    """A mixture and its rows, from a public seed."""
    kind = [SHAPES.index(world.shape), WEIGHTS.index(world.weights)]
    generator = np.random.default_rng([seed, world.n, world.d, world.k, round(10 * world.separation), *kind])
    means, weights, deviations = means_of(world, generator), world.shares(), world.deviations()
    roots = np.eye(world.d) * deviations[:, None, None]
    if world.shape == "stretched":
        axes = np.linalg.qr(generator.standard_normal((world.k, world.d, world.d)))[0]
        roots = axes * np.exp(generator.uniform(np.log(0.4), 0.0, (world.k, 1, world.d)))
        roots /= np.linalg.norm(roots, ord=2, axis=(1, 2))[:, None, None]
    labels = generator.choice(world.k, world.n, p=weights)
    rows = generator.standard_normal((world.n, world.d))
    if world.shape == "t":
        chi = generator.chisquare(DEGREES, world.n) / (DEGREES - 2.0)
        rows /= np.sqrt(chi)[:, None]
    for j, root in enumerate(roots):
        mine = labels == j
        rows[mine] = rows[mine] @ root.T + means[j]
    if world.shape == "outliers":
        outside = generator.random(world.n) < OUTLIERS
        rows[outside] = generator.uniform(-100.0, 100.0, (int(outside.sum()), world.d))
        labels[outside] = -1
    return Truth(weights, means, roots @ np.swapaxes(roots, 1, 2), deviations, rows, labels)


# --- ways to fit --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Model:
    """Result of a fit.

    Attributes:
        weights: (found,).
        means: (found, d).
        covariances: (found, d, d); None: it has none.
        mean_errors: (found, d) standard errors that it claims; None: it claims none.
        foretold: components that a preview expects; None: it does not say.
    """

    weights: Array
    means: Array
    covariances: Array | None = None
    mean_errors: Array | None = None
    foretold: int | None = None


def full(covariances: Array, d: int) -> Array:
    """Matrices (found, d, d) of whatever form has come."""
    if covariances.ndim == 3:
        return covariances
    return np.asarray((covariances[:, None] if covariances.ndim == 1 else covariances)[:, :, None] * np.eye(d))


def separated(rows: Array, box: Box, rho: float, fields: Fields, adjacency: Adjacency = ADJACENCY) -> Model:
    """FitSeparatedGMM, by one thread."""
    request = fit_pb2.FitSeparatedGMMRequest(spend=types_pb2.Spend(rho=rho), **fields)
    plan, model = fit_in_box(separated_gmm, request, array_rows(rows), box, adjacency, threads=1)
    means = array(model.means)
    return Model(
        array(model.weights),
        means,
        full(array(model.covariances), means.shape[1]),
        array(model.mean_errors),
        plan.preflight.predicted_found if plan.preflight else None,
    )


def by_dpem(rows: Array, box: Box, rho: float, k: int, start: Array | None = None, steps: int = 0) -> Model:
    """FitDPEM, clipped to the ball that the box holds; from means that are given, or as it likes."""
    d = rows.shape[1]
    request = fit_pb2.FitDPEMRequest(spend=types_pb2.Spend(rho=rho), n_components=k, clip_radius=1.0, iterations=steps)
    if start is not None:
        tensor = types_pb2.Tensor(shape=start.shape, values=start.ravel().tolist())
        request.given.CopyFrom(fit_pb2.StartGiven(means=tensor))
    model = fit_in_box(dpem, request, array_rows(rows), box, ADJACENCY, threads=1)[1]
    return Model(array(model.weights), array(model.means), full(array(model.covariances), d))


def by_sketch(rows: Array, box: Box, rho: float, k: int, seed: int) -> Model:
    """FitSketchKMeans, which has no covariances."""
    request = fit_pb2.FitSketchKMeansRequest(
        spend=types_pb2.Spend(rho=rho),
        n_clusters=k,
        public_seed=seed,
        new_sketch=fit_pb2.NewSketch(public_seed=seed),
    )
    found = fit_in_box(sketch, request, array_rows(rows), box, ADJACENCY, threads=1)[1].decoded
    return Model(array(found.weights), array(found.means))


def by_diffprivlib(rows: Array, box: Box, rho: float, k: int, seed: int) -> Model:
    """KMeans of diffprivlib for half of rho, which pure epsilon = sqrt(2 rho / 2) is worth, and two noisy EM steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own dependencies
        from diffprivlib.models import KMeans

        peer = KMeans(k, epsilon=rho**0.5, bounds=(box.lower, box.upper), random_state=seed).fit(rows)
    return by_dpem(rows, box, rho / 2.0, k, np.asarray(peer.cluster_centers_, dtype=np.float64), 2)


def by_sklearn(rows: Array, k: int, seed: int) -> Model:
    """scikit-learn's EM, best of three starts (of one where rows are many): not private."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about steps
        starts = 3 if len(rows) <= 200_000 else 1
        found = GaussianMixture(k, n_init=starts, random_state=seed).fit(rows)
    return Model(found.weights_, found.means_, found.covariances_)


def by_labels(truth: Truth) -> Model:
    """Moments of the rows of each component, as if labels were known: not private, what the sample allows."""
    k = len(truth.weights)
    some = [truth.rows[truth.labels == j] for j in range(k)]
    d = truth.rows.shape[1]
    return Model(
        np.array([len(one) for one in some]) / len(truth.rows),
        np.array([one.mean(axis=0) for one in some]),
        np.array([np.cov(one.T).reshape(d, d) for one in some]),
    )


def scored(truth: Truth, model: Model) -> Json:
    """Return how far a model is from the truth, components matched by the sum of the distances of their means.

    ok: as many components as there are, and every mean within one deviation (its component's largest). hits: means
    that have one of the model's so near. Errors are
    those of the worst component: of the mean in its deviations, of the covariance in relative Frobenius norm, of the
    weight. None where the number of components is another. covered: part of the means' coordinates within two of
    their standard errors.
    """
    distances = np.linalg.norm(truth.means[:, None] - model.means[None], axis=2)
    hits = int(np.sum(distances.min(axis=1) <= truth.deviations))
    found: Json = {"found": len(model.means), "ok": False, "hits": hits}
    if model.foretold is not None:
        found["foretold"] = model.foretold
    if len(model.means) != len(truth.means):
        return found
    matched = linear_sum_assignment(distances)[1]
    means = distances[np.arange(len(matched)), matched] / truth.deviations
    found |= {"ok": bool(means.max() <= 1.0), "mean": float(means.max())}
    found["weight"] = float(np.abs(truth.weights - model.weights[matched]).max())
    if model.covariances is not None:
        wrong = np.linalg.norm(model.covariances[matched] - truth.covariances, axis=(1, 2))
        found["covariance"] = float((wrong / np.linalg.norm(truth.covariances, axis=(1, 2))).max())
    if model.mean_errors is not None:
        apart = np.abs(truth.means - model.means[matched])
        found["covered"] = float(np.mean(apart <= 2.0 * model.mean_errors[matched]))
    return found


def measured(truth: Truth, work: Callable[[], Model]) -> Json:
    """Return what comes out, and the seconds of one processor that it took."""
    begun = time.process_time()
    model = work()
    seconds = time.process_time() - begun
    return scored(truth, model) | {"seconds": seconds}


# --- real tables --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Real:
    """A real table with what is public about it.

    Attributes:
        title: for people.
        rows: (n, d).
        box: public bounds.
        k: components that are looked for.
        fields: of requests.
        labels: (n,) classes that the table has; None: it has none.
    """

    title: str
    rows: Array
    box: Box
    k: int
    fields: Fields
    labels: Array | None = None


def digits() -> Real:
    """scikit-learn's images of digits along their ten first principal directions, which are declared public here."""
    from sklearn.datasets import load_digits

    images = load_digits()
    X = np.asarray(images.data, dtype=np.float64) - 8.0  # the middle of the bounds
    directions = np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :10]
    bound = 8.0 * np.abs(directions).sum(axis=0)
    fields = {"n_components": 10, "sigma_min": 2.0, "sigma_max": 15.0, "min_weight": 0.06, "radius": 50.0}
    title = "images of digits, ten principal directions that are declared public"
    return Real(title, X @ directions, Box(-bound, bound), 10, fields, np.asarray(images.target))


def flights() -> Real:
    """Minutes in the air and miles of the flights that left New York City in 2013."""
    table = from_new_york("flights.csv.zip")[["air_time", "distance"]].dropna()
    box = Box(np.zeros(2), np.array([720.0, 5000.0]))
    X = np.clip(np.asarray(table, dtype=np.float64), box.lower, box.upper)
    fields = {"n_components": 6, "sigma_min": 0.005, "sigma_max": 0.2, "min_weight": 0.03}
    fields |= {"units": fit_pb2.COLUMN_UNITS_BOUNDS}
    return Real("minutes in the air and miles of flights from New York City, 2013", X, box, 6, fields)


def towns() -> Real:
    """Longitude and latitude of all places of at least 1,000 people."""
    fields = {"n_components": 8, "sigma_min": 1.0, "sigma_max": 25.0, "min_weight": 0.03}
    X = np.asarray(places(), dtype=np.float64)
    return Real("longitude and latitude of places of at least 1,000 people", X, EARTH, 8, fields)


def coinsurance() -> Real:
    """Return the part of a bill that families of the RAND Health Insurance Experiment paid, by plan, in %."""
    percent = np.expm1(np.asarray(package("statsmodels.datasets").randhie.load_pandas().data["lncoins"]))
    box = Box(np.zeros(1), np.full(1, 100.0))
    fields = {"n_components": 4, "sigma_min": 1.0, "sigma_max": 5.0, "min_weight": 0.06}
    fields |= {"covariance_type": fit_pb2.COVARIANCE_TYPE_SPHERICAL}
    X = np.clip(percent, 0.0, 100.0)
    return Real("part of the bill, RAND Health Insurance Experiment", X[:, None], box, 4, fields, np.rint(X))


REAL = {"coinsurance": coinsurance, "digits": digits, "flights": flights, "towns": towns}


def log_densities(real: Real, model: Model) -> tuple[Array, Array]:
    """Return the log density of every row, (n,), and its most probable component, (n,)."""
    if model.covariances is None:
        raise ValueError("covariances: a density needs them")
    density, shares = log_mixture_density(real.rows, model.weights, model.means, model.covariances, "full")
    return density, np.argmax(shares, axis=1)
