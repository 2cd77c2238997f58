"""FitDPEM measured side by side: `python bench/dpem.py [synthetic] [speed] [components]`; tables and a JSON.

synthetic: test log-likelihood below the non-private fit, against the paper's literal allocation of its budget.
components: how often a fit chooses the planted number of components, where scikit-learn's BIC does.
speed: time per EM iteration against scikit-learn on the same rows, in turns; memory; exactness.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import part_of, results_of, show, spread_of
from _kmeans import (
    DELTA,
    THREADS,
    Array,
    array,
    array_rows,
    cube,
    spend,
)
from _kmeans import fit as fit_method
from sklearn.mixture import GaussianMixture

from bursar_ledger import Adjacency
from bursar_models import log_mixture_density
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import dpem
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.vault import CHUNK, ArrayRows, LocalEngine, exact_sum


def fit(X: Array, bound: float, **fields: Any) -> fit_pb2.GaussianMixtureModel:
    """One fit as the server runs it; X (n, d) in [-bound, bound]^d."""
    rows = array_rows(np.clip(X, -bound, bound))
    model: fit_pb2.GaussianMixtureModel = fit_method(
        dpem, fit_pb2.FitDPEMRequest(**fields), rows, cube(X.shape[1], bound)
    )[1]
    return model


# --- the paper's synthetic setting --------------------------------------------------------------------------

SIZES = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000)
RHOS = (0.9, 0.1, 0.01)
STEPS, SPREAD, K = 10, 0.1, 3


def three_gaussians(generator: np.random.Generator) -> tuple[Array, Callable[[int], Array]]:
    """Means and a sampler of three isotropic Gaussians in the unit disc, 0.1 wide, at least four deviations apart."""
    while True:
        means = generator.uniform(-0.6, 0.6, (K, 2))
        gaps = np.linalg.norm(means[:, None] - means[None], axis=2)[np.triu_indices(K, 1)]
        if np.linalg.norm(means, axis=1).max() < 0.6 and gaps.min() > 4 * SPREAD:
            break
    weights = generator.dirichlet(np.full(K, 10.0))

    def sample(n: int) -> Array:
        return means[generator.choice(K, n, p=weights)] + SPREAD * generator.standard_normal((n, 2))

    return means, sample


def literal_dpem(X: Array, rho: float, start: Array, generator: np.random.Generator) -> tuple[Array, Array, Array]:
    """Park et al. 2016, algorithm 1, with (2K + 1) J equal compositions and corrected mechanisms.

    Counts, each sum and each sum of squares are separate Gaussian releases of rho / ((2K + 1) J) under REPLACE_ONE,
    with sensitivities sqrt 2, 2 and 1 about the middle of the unit disc. Returns weights, means, variances.
    """
    d = X.shape[1]
    X = X / np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None]
    std = 1.0 / math.sqrt(2.0 * rho / ((2 * K + 1) * STEPS))
    weights, means, variances = np.full(K, 1 / K), start, np.full(K, 0.1)
    squares = np.sum(X**2, axis=1)
    for _ in range(STEPS):
        logs = log_mixture_terms(X, weights, means, variances)
        gamma = np.exp(logs - logs.max(axis=1, keepdims=True))
        gamma /= gamma.sum(axis=1, keepdims=True)
        counts = gamma.sum(axis=0) + math.sqrt(2.0) * std * generator.standard_normal(K)
        counts = np.maximum(counts, 1.0)
        sums = gamma.T @ X + 2.0 * std * generator.standard_normal((K, d))
        seconds = gamma.T @ squares + std * generator.standard_normal(K)
        means = sums / counts[:, None]
        means /= np.maximum(np.linalg.norm(means, axis=1), 1.0)[:, None]
        floors = np.clip(std / counts / d, 1e-4, 1.0)  # as kind to it as to ours: no variance below its noise
        variances = np.clip(seconds / counts / d - np.sum(means**2, axis=1) / d, floors, 1.0)
        weights = counts / counts.sum()
    return weights, means, variances


def log_mixture_terms(X: Array, weights: Array, means: Array, variances: Array) -> Array:
    """Log of weight times density, (n, k), of spherical components."""
    distances = np.sum((X[:, None] - means[None]) ** 2, axis=2)
    d = X.shape[1]
    return np.asarray(np.log(weights) - d / 2 * np.log(2 * np.pi * variances) - distances / variances / 2)


def synthetic(seeds: int, sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """Median excess test loss per point over scikit-learn's fit."""
    results: list[dict[str, Any]] = []
    for n in sizes:
        data = []
        for seed in range(seeds):
            generator = np.random.default_rng([seed, n])
            means, sample = three_gaussians(generator)
            X, test = sample(n), sample(20_000)
            reference = GaussianMixture(K, covariance_type="spherical", n_init=3, random_state=seed).fit(X).score(test)
            data.append((X, test, reference, means, generator))
        for rho in RHOS:
            ours: list[float] = []
            literal: list[float] = []
            helped: list[float] = []
            for X, test, reference, means, generator in data:
                model = fit(
                    X,
                    1.0,
                    spend=types_pb2.Spend(rho=rho),
                    n_components=K,
                    covariance_type=fit_pb2.COVARIANCE_TYPE_SPHERICAL,
                    iterations=STEPS,
                    clip_radius=1.0,
                )
                weights, centres, variances = (array(t) for t in (model.weights, model.means, model.covariances))
                score = log_mixture_density(test, weights, centres, variances, "spherical")[0].mean()
                ours.append(reference - float(score))
                for start, losses in ((generator.uniform(-0.7, 0.7, (K, 2)), literal), (means, helped)):
                    terms = log_mixture_terms(test, *literal_dpem(X, rho, start, generator))
                    losses.append(reference - float(np.logaddexp.reduce(terms, axis=1).mean()))
            results.append(
                {
                    "n": n,
                    "rho": rho,
                    "bursar": float(np.median(ours)),
                    "bursar_worst": max(ours),
                    "accuracy": spread_of(ours),
                    "literal_random_start": float(np.median(literal)),
                    "literal_true_start": float(np.median(helped)),
                }
            )
    names = ("n", "rho", "bursar", "bursar_worst", "literal_random_start", "literal_true_start")
    told = [part_of(row, *names) for row in results]
    show("Three Gaussians in the plane, J = 10: median test log-likelihood per point below scikit-learn's", told)
    return results


# --- speed --------------------------------------------------------------------------------------------------


def speed(rounds: int, n: int = 1_000_000, d: int = 10, k: int = 5) -> dict[str, Any]:
    """Seconds per EM iteration, in turns with scikit-learn; peak memory at two sizes; equality of sums."""
    generator = np.random.default_rng(0)
    means = generator.uniform(-6, 6, (k, d))
    X = np.clip(means[generator.integers(k, size=n)] + generator.standard_normal((n, d)), -10, 10)
    start = means + 0.5 * generator.standard_normal((k, d))
    given = fit_pb2.StartGiven(means=types_pb2.Tensor(shape=[k, d], values=start.ravel().tolist()))

    def ours(iterations: int) -> None:
        fit(X, 10.0, spend=types_pb2.Spend(rho=1.0), n_components=k, given=given, iterations=iterations)

    def theirs(iterations: int) -> None:
        GaussianMixture(
            k,
            max_iter=iterations,
            tol=0.0,
            weights_init=np.full(k, 1 / k),
            means_init=start,
            precisions_init=[np.eye(d)] * k,
        ).fit(X)

    def per_iteration(run: Callable[[int], None]) -> float:
        begin = time.perf_counter()
        run(1)
        middle = time.perf_counter()
        run(6)
        return (time.perf_counter() - middle - (middle - begin)) / 5

    dpem.warm_up()
    pairs = [(per_iteration(ours), per_iteration(theirs)) for _ in range(rounds)]
    mine, peer = np.array(pairs).T
    ratios = mine / peer
    result = {
        "n": n,
        "d": d,
        "k": k,
        "rounds": rounds,
        "bursar_seconds": float(np.median(mine)),
        "sklearn_seconds": float(np.median(peer)),
        "ratio_median": float(np.median(ratios)),
        "ratio_range": [float(ratios.min()), float(ratios.max())],
        "ratio_spread": spread_of(ratios.tolist()),
        "peak_bytes": {str(size): _peak_bytes(X[:size]) for size in (n // 10, n)},
        "sums_equal": _sums_equal(X[: 40 * CHUNK], generator),
    }
    told = {name: value for name, value in result.items() if name not in ("ratio_spread", "rounds")}
    show(f"One EM iteration, full covariances, {THREADS} threads, {rounds} rounds in turns", [told])
    return result


def _statistic(d: int, k: int = 5) -> Any:
    step = EStep(
        hard=False,
        log_scale=np.zeros(k),
        means=np.linspace(-0.3, 0.3, k)[:, None] * np.ones(d),
        factors=np.broadcast_to(4 * np.eye(d), (k, d, d)).copy(),
        diagonal=False,
        centres=np.linspace(-0.3, 0.3, k)[:, None] * np.ones(d),
        whiteners=np.broadcast_to(2 * np.eye(d), (k, d, d)).copy(),
    )
    frame = BallFrame(np.zeros(d), np.full(d, 30.0))
    return moment_statistic(frame, step, Moments.FULL, Weights(0.5, 0.7, 1.0))


def _peak_bytes(X: Array) -> int:
    rows = ArrayRows(np.ascontiguousarray(X.T))
    statistic = _statistic(X.shape[1])
    tracemalloc.start()
    exact_sum(statistic, rows, X.shape[1], engine=LocalEngine(THREADS))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _sums_equal(X: Array, generator: np.random.Generator) -> bool:
    d, statistic = X.shape[1], _statistic(X.shape[1])
    rows = ArrayRows(np.ascontiguousarray(X.T))
    shuffled = ArrayRows(np.ascontiguousarray(generator.permutation(X).T))
    sums = [exact_sum(statistic, rows, d, engine=LocalEngine(t)) for t in (1, 2, 3)] + [
        exact_sum(statistic, shuffled, d)
    ]
    return all(np.array_equal(sums[0], s) for s in sums[1:])


# --- a chosen number of components --------------------------------------------------------------------------

MOST = 10
CHOSEN_EPSILONS = (0.3, 1.0, 5.0)
PLANTED = (
    *((1, 2, 5_000), (2, 2, 10_000), (3, 2, 20_000), (4, 2, 5_000), (5, 2, 50_000), (6, 2, 20_000), (8, 2, 100_000)),
    *((1, 4, 20_000), (2, 4, 5_000), (3, 4, 10_000), (4, 4, 20_000), (5, 4, 50_000), (7, 4, 50_000), (8, 4, 20_000)),
    *((1, 6, 10_000), (2, 6, 20_000), (3, 6, 50_000), (5, 6, 20_000), (1, 8, 5_000), (2, 8, 50_000), (3, 8, 10_000)),
    *((4, 8, 20_000), (6, 8, 50_000)),
)
"""Components, columns and rows of each table."""


def planted(components: int, d: int, n: int, seed: int) -> Array:
    """Rows of Gaussians of any shape in [-1, 1]^d, 3.5 deviations of the wider one apart, 4 % of the rows or more."""
    generator = np.random.default_rng([seed, components, d, n])
    while True:
        sizes, means = generator.uniform(0.04, 0.09, components), generator.uniform(-0.7, 0.7, (components, d))
        gaps = np.linalg.norm(means[:, None] - means, axis=2) / np.maximum(sizes[:, None], sizes)
        if np.all(gaps + np.diag(np.full(components, np.inf)) > 3.5):
            break
    weights = np.maximum(generator.dirichlet(np.full(components, 6.0)), 0.04)
    labels = generator.choice(components, n, p=weights / weights.sum())
    roots = [np.linalg.qr(generator.standard_normal((d, d)))[0] * generator.uniform(0.6, 1.4, d) for _ in sizes]
    factors = np.array(roots) * sizes[:, None, None]
    rows = means[labels] + np.einsum("nij,nj->ni", factors[labels], generator.standard_normal((n, d)))
    return np.asarray(np.clip(rows, -1.0, 1.0))


def components(seeds: int) -> list[dict[str, Any]]:
    """Numbers that fits choose from 1 to `MOST`, of tables on which scikit-learn's BIC chooses the planted one."""
    results: list[dict[str, Any]] = []
    print(f"\nNumber of components chosen from 1 to {MOST} under (eps, {DELTA}), add/remove")
    for K, d, n in PLANTED:
        for seed in range(seeds):
            X = planted(K, d, n, seed)
            fits = (GaussianMixture(k, n_init=2, random_state=0).fit(X) for k in range(1, min(K + 2, MOST) + 1))
            reference = 1 + int(np.argmin([one.bic(X) for one in fits]))
            for epsilon in CHOSEN_EPSILONS:
                request = fit_pb2.FitDPEMRequest(
                    spend=spend(epsilon, pure=False), n_components=MOST, least_components=1
                )
                rows, box, start = array_rows(X), cube(d, 1.0), time.perf_counter()
                choice = fit_method(dpem, request, rows, box, Adjacency.ADD_REMOVE_ONE)[1].choice
                scores, errors = array(choice.scores), array(choice.errors)
                row = {"planted": K, "d": d, "n": n, "seed": seed, "epsilon": epsilon, "bic": reference}
                row |= {"chosen": choice.least + int(np.argmin(scores)), "seconds": time.perf_counter() - start}
                row |= {"scores": scores.tolist(), "errors": errors.tolist()}
                results.append(row)
                print(*(f"{name} {row[name]:g}" for name in list(row)[:-2]), flush=True)
    for epsilon in CHOSEN_EPSILONS:
        fair = [row for row in results if row["epsilon"] == epsilon and row["bic"] == row["planted"]]
        print(f"eps {epsilon:g}: right in {sum(row['chosen'] == row['planted'] for row in fair)} of {len(fair)}")
    return results


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", default=["synthetic", "speed"])
    parser.add_argument("--seeds", type=int, help="instead of 20 (synthetic) and 3 (components)")
    parser.add_argument("--json", type=Path, default=results_of(__file__))
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # scikit-learn's about iterations that were asked for
    results: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    results |= {"python": platform.python_version(), "machine": platform.machine()}
    if "synthetic" in options.parts:
        results["synthetic"] = synthetic(options.seeds or 20)
    if "components" in options.parts:
        results["components"] = components(options.seeds or 3)
    if "speed" in options.parts:
        results["speed"] = speed(rounds=5)
    options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
