"""Intervals, verdicts and previews at settings that nothing was tuned on: `python bench/drawn.py [PART ...]`.

    python bench/drawn.py gradients --seeds 4

Twelve settings of each fit are drawn once, from a public seed: 5,000 to 1,000,000 rows and epsilon 0.1 to 3, evenly in
logarithms, up to eight groups in 2 to 20 columns, a neighbouring relation, shares, shapes and distances of groups. Rows
are of the right model, so that each warning after a fit is a false one. What the rule calls useless is fitted, too
("useless"), with the error of its means over the range of a column ("off"); "told" is how many warnings come before
the fit. A fit of fewer components than there are groups is "fewer", and has no intervals here; one whose means are not
one at each group is "lost", and its intervals are counted apart. Coverage and width are those of `intervals.py`.

mixtures, kmeans: FitDPEM; kmeans has targets over the population as `intervals.py` has.
reports: the last release of FitDPEM's k-means, 50 times for each seed, about the centres of one fit, in floating point:
    four fits of a few clusters say little about widths.
gradients, lines: FitGradientEM, groups of one variance, and one to three regressions.
separated: FitSeparatedGMM, groups 6 to 20 deviations apart.
sketches: k-means and mixtures decoded from FitSketchKMeans.
fields: FitMRF with "tree" or "auto", of columns of two to eight states in which each depends on one or two others;
    released pairs that no clique has are "apart".
spends: `suggest_spend` for half of the error that is foretold at the setting's spend, from an earlier mixture at a
    quarter of its rho: the median error of fits to at most 30,000 rows at the suggestion, over the target, by column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from _common import Json, followed, seeded_parts
from _kmeans import DELTA, array_rows
from _real import Array
from forecasts import centres_of, with_rows
from intervals import Tallies, Tally, cluster_tallies, generator, joined, matched, mixture_tallies, printed
from real_tables import fitted, names_of, spend_of

import bursar
from bursar._fits import KINDS
from bursar._fits._kind import Asked
from bursar._forecast import Run, forecast
from bursar._suggest import Target, suggest_foretold
from bursar_ledger import Adjacency
from bursar_models.forecasts import Forecast, spreads
from bursar_models.requests import Request
from bursar_models.schema import NumericColumn
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable
from bursar_server.fits.registry import FITS
from bursar_server.jobs.limits import judged

SETTINGS = 12
SEEDS = 4
MOST = 30_000


@dataclass(frozen=True)
class Setting:
    """Population and request that were drawn.

    Attributes:
        number: which of the settings.
        n: number of rows.
        epsilon: of the guarantee, at delta 1e-6.
        adjacency: neighbouring relation.
        means: (k, d) in [-1, 1].
        weights: (k,).
        lowers: factors of the covariances, (k, d, d).
    """

    number: int
    n: int
    epsilon: float
    adjacency: Adjacency
    means: Array
    weights: Array
    lowers: Array

    def rows(self, n: int, seed: int) -> Array:
        """Draw rows."""
        rng = generator(12, seed)
        group = rng.choice(len(self.weights), n, p=self.weights)
        z = rng.standard_normal((n, self.means.shape[1]))
        for i, lower in enumerate(self.lowers):
            z[group == i] = z[group == i] @ lower.T
        return np.asarray(np.clip(self.means[group] + z, -1, 1))

    @property
    def table(self) -> PublicTable:
        """Public facts of the rows."""
        columns = tuple(BoundedColumn(name, -1.0, 1.0) for name in names_of(self.means.shape[1]))
        return PublicTable("bench", columns, self.adjacency, 1, self.n)

    @property
    def facts(self) -> Json:
        """Return what was drawn, for a line."""
        k, d = self.means.shape
        common = {"n": self.n, "epsilon": round(self.epsilon, 2), "adjacency": self.adjacency.value}
        return {"number": self.number, "k": k, "d": d, **common}


def drawn(number: int, *, apart: tuple[float, float] = (3.0, 8.0), round_: bool = False) -> Setting:
    """Draw a setting.

    Args:
        number: which of the settings.
        apart: least and largest distance of the two nearest means, in the largest deviation of a group.
        round_: whether all groups have one variance.
    """
    rng = generator(11, number)
    n, epsilon = round(5_000 * 200 ** rng.random()), 0.1 * 30 ** rng.random()
    adjacency = (Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE)[int(rng.integers(2))]
    k, d = int(rng.integers(2, 9)), int(rng.integers(2, 21))
    # The widest of a hundred draws of places, so that eight groups in the plane are not one heap.
    places = rng.uniform(-0.7, 0.7, (100, k, d))
    far = [min(float(np.linalg.norm(a - b)) for a, b in combinations(one, 2)) for one in places]
    means, width = places[int(np.argmax(far))], min(max(far) / rng.uniform(*apart), 0.15)
    axes = [np.linalg.qr(rng.standard_normal((d, d)))[0] * rng.uniform(0.4, 1.0, d) for _ in range(k)]
    lowers = width * np.array([np.eye(d) if round_ else one for one in axes])
    return Setting(number, n, epsilon, adjacency, means, rng.dirichlet(np.full(k, 8.0)), lowers)


def preview_of(request: Request, setting: Setting, table: PublicTable) -> Any:
    """Return a request's judged plan, which has what a preview shows."""
    kind = KINDS[type(request)]
    message = kind.message(request, Asked(dataset=table.name, spend=spend_of(setting.epsilon)))
    return judged(FITS[kind.method].plan(message, table, lambda entry: None), table)


def is_lost(found: Array, setting: Setting) -> bool:
    """Return whether means are not one for each group, nearest to it."""
    near = np.square(found[:, None] - setting.means).sum(axis=2).argmin(axis=1)
    return len(set(near.tolist())) < len(setting.means)


def off(found: Array, setting: Setting) -> float:
    """Return how far true means are from the nearest released ones, as a root mean square, over the range of 2."""
    return float(np.sqrt(np.square(found[:, None] - setting.means).mean(axis=2).min(axis=0).mean()) / 2)


Trial = tuple[Tallies, bool, bool, float]
"""Tallies, whether the fit is lost, whether it is warned, and how far its means are off, over the range."""


def line_of(setting: Setting, trials: list[Trial], preview: Any) -> Json:
    """Return the line of a setting."""
    whole, lost, warned, far = zip(*trials, strict=True)
    kinds = joined([one for one, away in zip(whole, lost, strict=True) if not away])
    kinds |= {f"{kind}, lost": row for kind, row in joined([o for o, a in zip(whole, lost, strict=True) if a]).items()}
    return setting.facts | {
        "lost": sum(lost),
        "fewer": sum(not tallies for tallies in whole),
        "warned": sum(warned),
        "lost, not warned": sum(a and not w for a, w in zip(lost, warned, strict=True)),
        "told": len(preview.warnings),
        "useless": preview.useless,
        "off": round(float(np.median(far)), 4),
        "kinds": kinds,
    }


def mixtures(number: int, seeds: int) -> Json:
    """Measure mixtures by FitDPEM."""
    setting = drawn(number)
    return _groups(bursar.DPEM(n_components=len(setting.means)), setting, seeds)


def gradients(number: int, seeds: int) -> Json:
    """Measure mixtures by FitGradientEM."""
    setting = drawn(number, round_=True)
    return _groups(bursar.GradientEM(model="gaussian_mixture", n_components=len(setting.means)), setting, seeds)


def separated(number: int, seeds: int) -> Json:
    """Measure FitSeparatedGMM: its least and largest deviations hold with a factor of 2 to spare."""
    setting = drawn(number, apart=(6.0, 20.0))
    most = float(np.linalg.norm(setting.lowers, ord=2, axis=(1, 2)).max())
    request = bursar.SeparatedGMM(n_components=len(setting.means), sigma_min=0.2 * most, sigma_max=2 * most)
    return _groups(request, setting, seeds)


def _groups(request: Request, setting: Setting, seeds: int) -> Json:
    """Measure a fit that releases a mixture."""
    variances, trials = np.square(setting.lowers).sum(axis=2), []
    for seed in range(seeds):
        model = fitted(request, spend_of(setting.epsilon), setting.table, array_rows(setting.rows(setting.n, seed)))
        order = np.square(model.means_[:, None] - setting.means).sum(axis=2).argmin(axis=1)
        tallies: Tallies = {}
        if len(order) == len(setting.means):
            tallies = mixture_tallies(model, setting.weights[order], setting.means[order], variances[order])
        warned = bool(model.intervals().warnings)
        trials.append((tallies, is_lost(model.means_, setting), warned, off(model.means_, setting)))
    return line_of(setting, trials, preview_of(request, setting, setting.table))


def kmeans(number: int, seeds: int) -> Json:
    """Measure k-means by FitDPEM."""
    setting, trials = drawn(number), []
    request, population = bursar.DPEM(n_components=len(setting.means), mode="kmeans"), setting.rows(400_000, 10**6)
    for seed in range(seeds):
        rows = population[generator(16, seed).integers(0, len(population), setting.n)]
        model = fitted(request, spend_of(setting.epsilon), setting.table, array_rows(rows))
        warned = bool(model.intervals().warnings)
        trials.append((cluster_tallies(model, population), False, warned, off(model.cluster_centers_, setting)))
    return line_of(setting, trials, preview_of(request, setting, setting.table))


def reports(number: int, seeds: int) -> Json:
    """Measure the intervals of k-means over many draws of rows and noise about one fit's centres."""
    setting, rng = drawn(number), generator(17, number)
    request, population = bursar.DPEM(n_components=len(setting.means), mode="kmeans"), setting.rows(60_000, 10**6)
    model: Any = fitted(request, spend_of(setting.epsilon), setting.table, array_rows(setting.rows(setting.n, 0)))
    report, nearest, trials = model.report, model.predict(population), []
    u = population - model.cluster_centers_[nearest]
    u *= np.minimum(1.0, report.radii[nearest] / np.maximum(np.linalg.norm(u, axis=1), 1e-12))[:, None]
    (k, d), radii = report.sums.shape, report.radii[:, None]
    inside = np.eye(k)[nearest]
    for _ in range(50 * seeds):
        weights = rng.multinomial(setting.n, np.full(len(population), 1 / len(population)))
        members = inside * weights[:, None]
        one = replace(
            report,
            counts=members.sum(axis=0) + report.count_std * rng.standard_normal(k),
            sums=members.T @ u + report.sum_std * radii * rng.standard_normal((k, d)),
            squares=members.T @ u**2 + report.square_std * radii**2 * rng.standard_normal((k, d)),
        )
        trials.append(cluster_tallies(replace(model, report=one), population))
    return setting.facts | {"kinds": joined(trials)}


def lines(number: int, seeds: int) -> Json:
    """Measure one to three regressions by FitGradientEM, 2.5 to 6 noise levels apart."""
    setting, rng, trials = drawn(number), generator(13, number), []
    n, k, d = setting.n, min(len(setting.means), 1 + number % 3), setting.means.shape[1]
    slopes = rng.uniform(-0.4, 0.4, (k, d)) * math.sqrt(3 / d)
    gaps = [float(np.linalg.norm(a - b)) / math.sqrt(3) for a, b in combinations(slopes, 2)]
    noise = min(min(gaps, default=0.5) / rng.uniform(2.5, 6.0), 0.2)
    setting = replace(setting, means=slopes)
    table = replace(setting.table, numeric=(*setting.table.numeric, BoundedColumn("y", -1.0, 1.0)))
    request = bursar.GradientEM(model="mixture_of_regressions", target="y", n_components=k)
    for seed in range(seeds):
        rng = generator(14, seed)
        X, z = rng.uniform(-1, 1, (n, d)), rng.integers(0, k, n)
        y = np.clip((X * slopes[z]).sum(axis=1) + noise * rng.standard_normal(n), -1, 1)
        model = fitted(request, spend_of(setting.epsilon), table, array_rows(np.column_stack([X, y])))
        tally, coef = Tally(), np.atleast_2d(model.coef_)
        tally.add(*matched(model.intervals(), "coef_", d, slopes))
        warned = bool(model.intervals().warnings)
        trials.append(({"coefficient": tally}, is_lost(coef, setting), warned, off(coef, setting)))
    return line_of(setting, trials, preview_of(request, setting, table))


def sketches(number: int, seeds: int) -> Json:
    """Measure centres and means that are decoded from sketches."""
    from sklearn.cluster import KMeans

    setting, trials = drawn(number), []
    k, d = setting.means.shape
    request, population = bursar.SketchKMeans(decoding="none", n_clusters=k), setting.rows(400_000, 10**6)
    centres = KMeans(k, init=setting.means, n_init=1, tol=0).fit(population).cluster_centers_
    for seed in range(seeds):
        rows = population[generator(16, seed).integers(0, len(population), setting.n)]
        sketch = fitted(request, spend_of(setting.epsilon), setting.table, array_rows(rows))
        clusters, mixture = sketch.kmeans(k), sketch.gaussian_mixture(k)
        found = clusters.intervals(), mixture.intervals()
        tallies: Tallies = {"centre": Tally(), "mean": Tally()}
        tallies["centre"].add(*matched(found[0], "cluster_centers_", d, centres))
        tallies["mean"].add(*matched(found[1], "means_", d, setting.means))
        lost = is_lost(clusters.cluster_centers_, setting) or is_lost(mixture.means_, setting)
        warned = bool(found[0].warnings or found[1].warnings or sketch.notes)
        trials.append((tallies, lost, warned, off(clusters.cluster_centers_, setting)))
    return line_of(setting, trials, preview_of(request, setting, setting.table))


def fields(number: int, seeds: int) -> Json:
    """Measure FitMRF: cells of at least five rows of single columns and pairs, and bounds of distances of pairs."""
    setting, rng, trials = drawn(number), generator(15, number), []
    sizes = rng.integers(2, 9, max(setting.means.shape[1], 3)).tolist()
    names, population = names_of(len(sizes)), codes(rng, sizes)
    request = bursar.MRF(cliques="tree" if number % 2 else "auto")
    columns = tuple(CodedColumn(name, tuple(map(str, range(size)))) for name, size in zip(names, sizes, strict=True))
    table = replace(setting.table, numeric=(), categorical=columns)
    for seed in range(seeds):
        rows = population[generator(16, seed).integers(0, len(population), setting.n)]
        model = fitted(request, spend_of(setting.epsilon), table, array_rows(rows))
        tallies: Tallies = {kind: Tally() for kind in ("single", "pair", "apart", "unmeasured", "bound")}
        far = []
        for places in combinations(range(len(names)), 2):
            pair, shape = [names[place] for place in places], [sizes[place] for place in places]
            error, truth = model.error(pair), shares(population[:, places], shape)
            kept = truth * setting.n >= 5
            told = [row for row, keep in zip(model.intervals(columns=pair), kept, strict=True) if keep]
            within = any(set(pair) <= set(clique) for clique in model.cliques_)
            kind = ("pair" if within else "apart") if error.measured else "unmeasured"
            tallies[kind].add(told, truth[kept])
            far.append(float(np.abs(model.marginal(pair).ravel() - shares(rows[:, places], shape)).sum()) / 2)
            tallies["bound"].add([bursar.Interval("", error.expected, 0.0, error.bound, "")], [far[-1]])
        for place, name in enumerate(names):
            tallies["single"].add(model.intervals(columns=name), shares(population[:, [place]], [sizes[place]]))
        trials.append((tallies, False, bool(model.intervals(columns=names[0]).warnings), max(far)))
    return line_of(setting, trials, preview_of(request, setting, table))


def codes(rng: np.random.Generator, sizes: list[int]) -> Array:
    """Draw 400,000 rows of categories, each column given one or two earlier ones."""
    n = 400_000
    rows = np.zeros((n, len(sizes)))
    for column, size in enumerate(sizes):
        parents = rng.permutation(column)[: int(rng.integers(1, 3))]
        place = np.zeros(n, dtype=np.intp)
        for parent in parents:
            place = place * sizes[parent] + rows[:, parent].astype(np.intp)
        chances = rng.dirichlet(np.full(size, 1.0), int(place.max()) + 1).cumsum(axis=1)
        rows[:, column] = np.minimum((rng.random(n)[:, None] > chances[place]).sum(axis=1), size - 1)
    return rows


def shares(rows: Array, shape: list[int]) -> Array:
    """Return the share of rows in each cell, flat."""
    place = np.ravel_multi_index(tuple(rows.T.astype(np.intp)), shape)
    return np.bincount(place, minlength=math.prod(shape)) / len(rows)


@dataclass(frozen=True)
class Told:
    """Part of a preview that `suggest_spend` reads."""

    expected: Mapping[str, Any]
    forecast: Forecast
    preflight: None = None


def spends(number: int, seeds: int) -> Json:
    """Measure whether `suggest_spend` comes true, of mixtures and k-means by FitDPEM, and of FitGradientEM."""
    setting = drawn(number)
    k, d = setting.means.shape
    n = min(setting.n, MOST)
    rows, public, rho = setting.rows(n, 0), with_rows(setting.table, n), bursar.rho_of(setting.epsilon, DELTA)
    columns = [NumericColumn(name, "", -1.0, 1.0) for name in names_of(d)]
    like = fitted(bursar.DPEM(n_components=k), bursar.rho(rho / 4), public, array_rows(rows))
    requests: dict[str, Request] = {
        "mixture": bursar.DPEM(n_components=k),
        "kmeans": bursar.DPEM(n_components=k, mode="kmeans"),
        "gradient": bursar.GradientEM(model="gaussian_mixture", n_components=k),
    }
    found: Json = setting.facts | {"n": n, "kinds": {}}
    for name, request in requests.items():

        def run(amount: Any, values: Mapping[str, Array], request: Request = request) -> Any:
            made = np.stack([values[column.name] for column in columns], axis=1)
            return fitted(request, amount, with_rows(public, len(made)), array_rows(made))

        def ask(spend: Any, run: Run = run) -> Any:
            price = bursar.Price(0, 0, spend.value)
            told = forecast(run, like, columns, n, price=price, spend=spend, report=lambda *_: None)
            return Told(told.expected, told)

        wanted = {column: error / 2 for column, error in ask(bursar.rho(rho)).expected["mean_error"].items()}
        advice = suggest_foretold(ask, Target(mean_error=wanted), bursar.rho(rho))
        fits = [fitted(request, advice.spend, public, array_rows(rows)) for _ in range(seeds)]
        errors = np.median(spreads([centres_of(fit) for fit in fits]), axis=0)
        told: Any = advice.preview.expected["mean_error"]
        found[name] = np.round(errors / [told[column] for column in wanted], 2).tolist()
        found[f"{name}, over the target"] = np.round(errors / list(wanted.values()), 2).tolist()
    return found


PARTS: dict[str, Callable[[int, int], Json]] = {
    "mixtures": mixtures,
    "kmeans": kmeans,
    "reports": reports,
    "gradients": gradients,
    "lines": lines,
    "separated": separated,
    "sketches": sketches,
    "fields": fields,
    "spends": spends,
}


def main() -> None:
    """Measure what was asked for."""
    for part, options, save in seeded_parts(__doc__, PARTS, __file__, seeds=SEEDS, of="setting"):
        settings = range(2 if options.quick else SETTINGS)
        followed((PARTS[part](number, options.seeds) for number in settings), printed, save)


if __name__ == "__main__":
    main()
