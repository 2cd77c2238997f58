"""Every fit beside its nearest peer, on the same rows, in turns: `python bench/peers.py [kmeans] [mixture] ...`.

    python bench/peers.py                      all of them, and bench/results/peers.json
    python bench/peers.py --pgm PYTHON tables  with private-pgm, if that interpreter has it (package mbi)
    python bench/peers.py --quick              few rows, minutes, no JSON

kmeans: FitDPEM's and FitSketchKMeans' centres beside diffprivlib's k-means and DPLloyd (Su et al. 2016), pure epsilon
under ADD_REMOVE_ONE, with the same public bounds: sum of squares above Lloyd's.
mixture: FitDPEM beside the algorithm of Park et al. (2016) with its own division of the budget, started at the truth.
gradient: FitGradientEM. No package that we know fits these models privately: beside the mixture stands scikit-learn's
GaussianMixture without privacy, beside the regression with missing features diffprivlib's LinearRegression, which sees
the complete rows, and beside the mixture of regressions EM without privacy.
sketch: the sums of FitSketchKMeans beside numpy's exp(i X W), which is what pycle evaluates.
tables: the counts of FitMRF beside numpy's histogramdd, with which private-pgm counts; and its estimate beside
private-pgm's mirror descent from the same noisy tables.
separated: FitSeparatedGMM beside diffprivlib's k-means and two noisy EM steps from its centres, and scikit-learn's
GaussianMixture without privacy.

Peers that no package index has are told with what was measured of them earlier, on two such processors, and their
revision: such a row has no ratio. Times are of one processor, but those beside private-pgm, which takes all that there
are: they are by the clock, and with its compilation, which every process of it pays.
"""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # so that times are of one processor
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import _em
import dpem as dpem_bench
import mrf as mrf_bench
import numpy as np
import sketch as sketch_bench
from _common import Json, Wish, options_of, part_of, ratio_of, run_parts, show, spread_of
from _kmeans import BOUND, CLUSTERS, DIMENSIONS, GOOGLE_LSH, Array, MixtureRows, array, cube, sum_of_squares
from _kmeans import fit as fit_in_box
from _separated import Truth, World, by_diffprivlib, by_labels, by_sklearn, drawn, scored, separated
from kernels import table_statistic
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture

from bursar_models import Frequencies, decode_kmeans, log_mixture_density
from bursar_models.mrf import estimate
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import dpem, gradient_em, mrf, separated_gmm, sketch
from bursar_server.fits.sketch._wire import sketch_from
from bursar_server.vault import ArrayRows, Statistic, exact_sum


@dataclass(frozen=True)
class Extent:
    """Extent of the measurement.

    Attributes:
        rounds: each with rows of its own.
        rows: of most tables.
        slow: rounds beside private-pgm, which compiles for tens of seconds in each of its processes.
    """

    rounds: int = 7
    rows: int = 200_000
    slow: int = 5


QUICK = Extent(rounds=5, rows=50_000, slow=1)


Outcome = tuple[float, float]
"""Error of what one method found, and the seconds that it took."""


@dataclass(frozen=True)
class Peer:
    """Peer of a fit.

    Attributes:
        name: by which its numbers are compared between runs.
        version: or revision; empty: it is code of this repository.
    """

    name: str
    version: str = ""

    @property
    def facts(self) -> Json:
        """Return facts for JSON."""
        return {"peer": self.name, "version": self.version}


def installed(package: str, what: str) -> Peer:
    """Return the version of an installed package."""
    return Peer(f"{package} {what}", importlib.metadata.version(package))


def clocked(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> tuple[Any, float]:
    """Return what work returns, and its seconds."""
    begun = clock()
    found = work()
    return found, clock() - begun


def row_of(
    facts: Json, peer: Peer, ours: Mapping[float, Sequence[Outcome]], theirs: Mapping[float, Sequence[Outcome]]
) -> Json:
    """One fit beside one peer: the time ratio over all rounds, errors by what was spent.

    Args:
        facts: of the comparison.
        peer: the other.
        ours: outcomes by spend, a round each.
        theirs: likewise, in the same order.
    """
    seconds = [[one[1] for spend in ours for one in some[spend]] for some in (ours, theirs)]
    return timed_row(facts, peer, *seconds) | {
        "points": [
            {
                "spend": spend,
                "accuracy": spread_of([one[0] for one in ours[spend]]),
                "error": statistics.median(one[0] for one in ours[spend]),
                "peer_error": statistics.median(one[0] for one in theirs[spend]),
            }
            for spend in ours
        ],
    }


def timed_row(facts: Json, peer: Peer, ours: Sequence[float], theirs: Sequence[float]) -> Json:
    """One computation beside a peer's, of which only the time differs."""
    return facts | peer.facts | {"rounds": len(ours)} | ratio_of(ours, theirs) | {"points": []}


def recorded(
    facts: Json, peer: Peer, seconds: Sequence[float] | None, errors: Mapping[float, float], where: str = ""
) -> Json:
    """Return what was measured of a peer earlier; `where` says on which rows, if they were others.

    Args:
        facts: of the comparison.
        peer: the other.
        seconds: least and most; None: unknown.
        errors: by spend.
        where: what was different.
    """
    points = [{"spend": spend, "peer_error": error} for spend, error in errors.items()]
    return facts | peer.facts | {"recorded": True, "theirs_range": seconds, "where": where, "points": points}


# --- k-means ------------------------------------------------------------------------------------------------

EPSILONS = (0.1, 0.5, 1.0, 2.0)


def kmeans(wish: Wish[Extent]) -> list[Json]:
    """FitDPEM and FitSketchKMeans, diffprivlib and DPLloyd on the same rows."""
    n = wish.extent.rows
    subject = sketch_bench.Subject("mixture", "ten Gaussians", CLUSTERS, n, clip_radius=2.0)
    methods = ("dpem", "sketch", "diffprivlib", "dplloyd")
    found: dict[str, dict[float, list[Outcome]]] = {name: {one: [] for one in EPSILONS} for name in methods}
    for seed in range(wish.extent.rounds):
        X, box = subject.load(seed)
        best = sum_of_squares(X, KMeans(subject.k, n_init=10, random_state=seed).fit(X).cluster_centers_)
        for epsilon in EPSILONS:
            for name in methods:
                work = partial(sketch_bench.centres_of, name, subject, X, box, epsilon, True, seed)
                centres, seconds = clocked(work)
                found[name][epsilon].append((sum_of_squares(X, centres) / best - 1.0, seconds))
    common: Json = {"n": n, "d": DIMENSIONS, "k": CLUSTERS, "unit": "epsilon"}
    common |= {"measure": "sum of squares over Lloyd's, minus 1"}
    rows = []
    for name, case in (("dpem", "FitDPEM, k-means"), ("sketch", "FitSketchKMeans")):
        facts = common | {"case": case}
        rows.append(row_of(facts, installed("diffprivlib", "KMeans"), found[name], found["diffprivlib"]))
        rows.append(row_of(facts, Peer("DPLloyd (Su et al. 2016), in numpy"), found[name], found["dplloyd"]))
        google = {epsilon: GOOGLE_LSH[epsilon] - 1.0 for epsilon in EPSILONS}
        other = "n = 100,000, (epsilon, 1e-6), bounds taken from the rows"
        rows.append(recorded(facts, Peer("Google's LSH clustering", "b5b0286e"), (2.4, 4.5), google, other))
    return rows


# --- a mixture ----------------------------------------------------------------------------------------------


def mixture(wish: Wish[Extent]) -> list[Json]:
    """FitDPEM and the paper's algorithm on three spherical Gaussians in the plane."""
    n, steps, k = wish.extent.rows, dpem_bench.STEPS, dpem_bench.K
    found: dict[str, dict[float, list[Outcome]]] = {
        name: {rho: [] for rho in dpem_bench.RHOS[::-1]} for name in ("ours", "theirs")
    }
    for seed in range(wish.extent.rounds):
        generator = np.random.default_rng([seed, n])
        means, sample = dpem_bench.three_gaussians(generator)
        X, test = sample(n), sample(20_000)
        best = GaussianMixture(k, covariance_type="spherical", n_init=3, random_state=seed).fit(X).score(test)
        for rho in found["ours"]:
            spend = types_pb2.Spend(rho=rho)
            fields: Json = {"covariance_type": fit_pb2.COVARIANCE_TYPE_SPHERICAL, "iterations": steps}
            model, seconds = clocked(
                partial(dpem_bench.fit, X, 1.0, spend=spend, n_components=k, clip_radius=1.0, **fields)
            )
            weights, centres, variances = (array(one) for one in (model.weights, model.means, model.covariances))
            score = float(log_mixture_density(test, weights, centres, variances, "spherical")[0].mean())
            found["ours"][rho].append((best - score, seconds))
            theirs, seconds = clocked(partial(dpem_bench.literal_dpem, X, rho, means, generator))
            terms = dpem_bench.log_mixture_terms(test, *theirs)
            found["theirs"][rho].append((best - float(np.logaddexp.reduce(terms, axis=1).mean()), seconds))
    facts = {"case": "FitDPEM, a mixture", "n": n, "d": 2, "k": k, "unit": "rho"}
    facts |= {"measure": "nats of a row below scikit-learn's fit"}
    return [row_of(facts, Peer("DPEM (Park et al. 2016), in numpy"), found["ours"], found["theirs"])]


# --- gradient EM --------------------------------------------------------------------------------------------

GRADIENT_EPSILONS = (0.1, 0.2, 0.5, 1.0)
FEATURES = 10


def complete_rows(n: int, generator: np.random.Generator) -> tuple[Array, Array, Array]:
    """Rows of the regression with missing features, the same before they went missing, and the truth."""
    b = _em.truth(FEATURES, generator)
    X = generator.standard_normal((n, FEATURES))
    y = X @ b + generator.standard_normal(n)
    holes = np.where(generator.random(X.shape) < _em.MISSING, np.nan, X)
    return np.column_stack([holes, y]), np.column_stack([X, y]), b


def by_linear_regression(rows: Array, epsilon: float, seed: int) -> Array:
    """Coefficients of diffprivlib, pure epsilon, with the same public bounds; the truth has no intercept either."""
    from diffprivlib.models import LinearRegression

    bounds = {"bounds_X": (-_em.FEATURES, _em.FEATURES), "bounds_y": (-_em.TARGETS, _em.TARGETS)}
    model = LinearRegression(epsilon=epsilon, fit_intercept=False, random_state=seed, **bounds)
    X, y = np.clip(rows[:, :-1], -_em.FEATURES, _em.FEATURES), np.clip(rows[:, -1], -_em.TARGETS, _em.TARGETS)
    return np.asarray(model.fit(X, y).coef_).ravel()


def by_mixture(rows: Array, seed: int) -> Array:
    """scikit-learn's two Gaussians: half of the difference of their means."""
    means = GaussianMixture(2, covariance_type="spherical", random_state=seed).fit(rows).means_
    return np.asarray((means[0] - means[1]) / 2.0)


def gradient(wish: Wish[Extent]) -> list[Json]:
    """FitGradientEM's three models, each beside what comes nearest."""
    n = wish.extent.rows
    peers = {
        "GMM": installed("scikit-learn", "GaussianMixture, not private"),
        "MRM": Peer("EM in numpy, not private"),
        "RMC": installed("diffprivlib", "LinearRegression, complete rows"),
    }
    return [gradient_row(wish, _em.MODELS[name], n, peer) for name, peer in peers.items()]


def gradient_row(wish: Wish[Extent], model: _em.Model, n: int, peer: Peer) -> Json:
    """One model."""
    ours: dict[float, list[Outcome]] = {epsilon: [] for epsilon in GRADIENT_EPSILONS}
    theirs: dict[float, list[Outcome]] = {epsilon: [] for epsilon in GRADIENT_EPSILONS}
    for seed in range(wish.extent.rounds):
        generator = np.random.default_rng([seed, n])
        if model.name == "RMC":
            rows, whole, b = complete_rows(n, generator)
        else:
            rows, b = model.draw(n, FEATURES, "normal", generator)
            whole = rows
        for epsilon in GRADIENT_EPSILONS:
            request = fit_pb2.FitGradientEMRequest(
                spend=_em.spend(epsilon, n), random=fit_pb2.StartAtRandom(public_seed=seed), **model.fields
            )
            fitted, seconds = clocked(partial(_em.fit, request, rows, model.columns(FEATURES)))
            ours[epsilon].append((model.error(array(fitted.coefficients)[0], b), seconds))
            works: dict[str, Callable[[], Array]] = {
                "GMM": partial(by_mixture, whole, seed),
                "MRM": partial(model.em, whole, _em.start(FEATURES, seed), 1.0),
                "RMC": partial(by_linear_regression, whole, epsilon, seed),
            }
            estimated, seconds = clocked(works[model.name])
            theirs[epsilon].append((model.error(estimated, b), seconds))
    facts = {"case": f"FitGradientEM, {GRADIENT_NAMES[model.name]}", "n": n, "d": FEATURES, "unit": "epsilon"}
    return row_of(facts | {"measure": "distance from the truth, of length 3"}, peer, ours, theirs)


GRADIENT_NAMES = {"GMM": "mixture", "MRM": "regressions", "RMC": "missing features"}


# --- sketches -----------------------------------------------------------------------------------------------


def summed(statistic: Statistic, rows: ArrayRows) -> Any:
    """Sum once, exactly, by one thread."""
    return exact_sum(statistic, rows, len(rows.columns))


def in_turns(rounds: int, ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[list[float], list[float]]:
    """Seconds of both; a first round is not counted."""
    pairs = [(clocked(ours)[1], clocked(theirs)[1]) for _ in range(rounds + 1)][1:]
    return [a for a, _ in pairs], [b for _, b in pairs]


PYCLE = "e664f2f2"


def sketches(wish: Wish[Extent], m: int = 1000) -> list[Json]:
    """Sums over rows of exp(i X W), truncated to integers; decoding is told beside pycle's."""
    n = wish.extent.rows // 10
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (n, DIMENSIONS))
    W = Frequencies(m, DIMENSIONS, 1, 0.1).matrix().T
    rows = ArrayRows(np.ascontiguousarray(X.T))
    statistic = sketch_bench.statistic_of(m, DIMENSIONS)
    numpys = partial(sketch_bench.numpy_part, X, W, complex_exponential=True)
    facts: Json = {"case": "FitSketchKMeans, the sums", "n": n, "d": DIMENSIONS, "m": m}
    times = in_turns(wish.extent.rounds, partial(summed, statistic, rows), numpys)
    found = [timed_row(facts, installed("numpy", "exp(i X W), as pycle has it"), *times)]
    where = f"165 s per 1,000,000 rows, here for {n:,}"
    found.append(recorded(facts, Peer("pycle computeSketch", PYCLE), (165e-6 * n, 165e-6 * n), {}, where))
    decoding = {"case": "FitSketchKMeans, the decoding", "d": DIMENSIONS, "k": CLUSTERS, "m": m}
    seconds = [decoded(m, seed) for seed in range(wish.extent.rounds)]
    own: Json = decoding | {"ours": statistics.median(seconds)}
    where = "sketches of 1,000,000 rows of the same law"
    return [*found, recorded(own, Peer("pycle CLOMPR", PYCLE), sketch_bench.PYCLE_SECONDS, {}, where)]


def decoded(m: int, seed: int) -> float:
    """Seconds of one decoding from one start, as pycle makes it."""
    rows = MixtureRows(20_000, seed)
    request = sketch_bench.sketch_request(0, 1.0, pure=False, sigma=1 / BOUND, n_frequencies=m)
    _, model = fit_in_box(sketch, request, rows, cube(DIMENSIONS, BOUND))
    released = sketch_from(model.sketch, "sketch", [])
    if released is None:
        raise SystemExit("the sketch cannot be read back")
    ones = np.ones(DIMENSIONS)
    given = (released.frequencies.matrix(), released.moments(), released.moment_std(), CLUSTERS, -ones, ones)
    return clocked(partial(decode_kmeans, *given, n_init=1, public_seed=seed))[1]


# --- tables -------------------------------------------------------------------------------------------------

TABLE_EPSILONS = (0.1, 0.5, 1.0)
STATES = 10
PGM = "private-pgm mirror descent"
PGM_REVISION = "4d2b3c56"
PGM_SECONDS = (8.4, 9.1)


def tables(wish: Wish[Extent]) -> list[Json]:
    """Counting, and the estimate from noisy tables."""
    return [counting(wish), *estimating(wish)]


def counting(wish: Wish[Extent]) -> Json:
    """Two columns of ten bins each."""
    n, sizes = wish.extent.rows, (STATES, STATES)
    X = np.random.default_rng(0).uniform(0, STATES, (n, len(sizes)))
    rows, statistic, edges = ArrayRows(np.ascontiguousarray(X.T)), table_statistic(sizes), np.arange(STATES + 1.0)
    facts: Json = {"case": "FitMRF, a table", "n": n, "columns": len(sizes), "states": STATES}
    peer = installed("numpy", "histogramdd, as private-pgm has it")
    theirs = partial(np.histogramdd, X, bins=[edges, edges])
    return timed_row(facts, peer, *in_turns(wish.extent.rounds, partial(summed, statistic, rows), theirs))


def estimating(wish: Wish[Extent]) -> list[Json]:
    """Measure estimates from the same noisy tables of a random graph of ten columns."""
    n = wish.extent.rows
    law = mrf_bench.Law("Erdos-Renyi graph", STATES, n)
    facts: Json = {"case": "FitMRF, the estimate", "n": n, "columns": mrf_bench.NODES, "states": STATES}
    facts |= {"unit": "epsilon", "measure": "KL divergence from the truth, nats"}
    ours: dict[float, list[Outcome]] = {epsilon: [] for epsilon in TABLE_EPSILONS}
    theirs: dict[float, list[Outcome]] = {epsilon: [] for epsilon in TABLE_EPSILONS}
    version = PGM_REVISION
    for number in range(wish.extent.slow if wish.options.pgm else wish.extent.rounds):
        true = mrf_bench.population(law, number)
        for epsilon in TABLE_EPSILONS:
            noisy = mrf_bench.draws(law, number, n, epsilon, pure=True)
            found, seconds = clocked(partial(estimate, true.graph, noisy, None), time.perf_counter)
            ours[epsilon].append((true.divergence(found.log_potentials, found.log_partition), seconds))
            if wish.options.pgm:
                one = mrf_bench.peers_private_pgm(wish.options.pgm, true, noisy)
                theirs[epsilon].append((one["kl"], one["seconds"]))
                version = f"mbi {one['version']}"
    if wish.options.pgm:
        return [row_of(facts, Peer(PGM, version), ours, theirs)]
    earlier = {epsilon: kl for (states, epsilon), kl in mrf_bench.PEERS_EARLIER.items() if states == STATES}
    own = {
        "ours": statistics.median(one[1] for some in ours.values() for one in some),
        "our_points": [
            {"spend": spend, "error": statistics.median(one[0] for one in some)}
            | {"accuracy": spread_of([one[0] for one in some])}
            for spend, some in ours.items()
        ],
    }
    where = "n = 100,000, other graphs of the same law; no interpreter with private-pgm was named"
    return [recorded(facts | own, Peer(PGM, PGM_REVISION), PGM_SECONDS, earlier, where)]


# --- separated Gaussians ------------------------------------------------------------------------------------

RHOS = (0.01, 0.05, 0.5)


def separated_gaussians(wish: Wish[Extent]) -> list[Json]:
    """Four Gaussians ten deviations apart, within a public radius of 30: kind to those whose noise goes with it."""
    world = World(max(20_000, wish.extent.rows // 5), 10, 4, radius=30.0)
    names = ("ours", "diffprivlib", "scikit-learn")
    found: dict[str, dict[float, list[Outcome]]] = {name: {rho: [] for rho in RHOS} for name in names}
    plain = []
    for seed in range(wish.extent.rounds):
        truth = drawn(world, seed)
        plain.append(worst_mean(world, truth, by_labels(truth)))
        for rho in RHOS:
            works: dict[str, Callable[[], Any]] = {
                "ours": partial(separated, truth.rows, world.box, rho, world.known() | {"public_seed": seed}),
                "diffprivlib": partial(by_diffprivlib, truth.rows, world.box, rho, world.k, seed),
                "scikit-learn": partial(by_sklearn, truth.rows, world.k, seed),
            }
            for name, work in works.items():
                model, seconds = clocked(work)
                found[name][rho].append((worst_mean(world, truth, model), seconds))
    facts: Json = {"case": "FitSeparatedGMM", "n": world.n, "d": world.d, "k": world.k, "unit": "rho"}
    facts |= {"measure": "worst mean's error, deviations", "plain": statistics.median(plain)}
    private = installed("diffprivlib", "KMeans, and two EM steps")
    return [
        row_of(facts, private, found["ours"], found["diffprivlib"]),
        row_of(facts, installed("scikit-learn", "GaussianMixture, not private"), found["ours"], found["scikit-learn"]),
    ]


def worst_mean(world: World, truth: Truth, model: Any) -> float:
    """Return the worst error of a mean in deviations; with another number of components, their largest distance."""
    return float(scored(truth, model).get("mean", world.separation))


PARTS: dict[str, Callable[[Wish[Extent]], list[Json]]] = {
    "kmeans": kmeans,
    "mixture": mixture,
    "gradient": gradient,
    "sketch": sketches,
    "tables": tables,
    "separated": separated_gaussians,
}


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    warnings.filterwarnings("ignore")  # of peers, about their own dependencies and about steps that were asked for
    parser = options_of(__doc__, PARTS, Extent())
    given = os.environ.get("PGM")
    parser.add_argument("--pgm", type=Path, default=Path(given) if given else None, help="Python with package mbi")
    for fit in (dpem, gradient_em, mrf, separated_gmm, sketch):
        fit.warm_up()
    parts = {name: partial(measured, part) for name, part in PARTS.items()}
    run_parts(parser, parts, __file__, full=Extent(), quick=QUICK)


def measured(part: Callable[[Wish[Extent]], list[Json]], wish: Wish[Extent]) -> None:
    """Measure a part: seconds, ours and theirs, and errors by what was spent."""
    rows = part(wish)
    wish.save("rows", rows)
    names = ("ours", "theirs", "theirs_range", "ratio")
    show(
        "Seconds, ours and theirs",
        [part_of(row, "case", "peer") | {name: row.get(name) for name in names} for row in rows],
    )
    points = [(row, one) for row in rows for one in row["points"]]
    told = [
        part_of(row, "case", "peer") | part_of(one, "spend", "peer_error") | {"error": one.get("error")}
        for row, one in points
    ]
    show("Errors by what was spent", told)


if __name__ == "__main__":
    main()
