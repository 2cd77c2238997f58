"""Coverage of intervals: `python bench/intervals.py [PART ...]`.

    python bench/intervals.py fields --seeds 4
    python bench/intervals.py sketches --quick

Rows are drawn anew from a population for every seed, fits are those of the server at (epsilon, 1e-6), adding or
removing a row, and intervals are at 95 %. A row of a table has the share of intervals with the population's number
inside, how many there were, and their half-width over 1.96 errors of the released numbers, both as root mean squares: 1
is as sharp as an interval that knows the law of the errors. Intervals of one fit depend on one another.

fields: populations are real tables (`_real.py`), drawn from with replacement; cells of at least five rows. "bound" is
    the share of tables whose distance to the drawn rows' own is within `model.error`, and the median of bound over
    distance.
graphs: how often the table that is held out of a field warns, of a real table and of rows of a tree.
sketches: k-means and mixtures decoded from a sketch, of populations in the plane; targets are Lloyd's algorithm on
    the population from its own means, and the population's means.
choices: mean squared distances of k-means with one to six clusters from a sketch, of planted groups and of real tables;
    targets are those of the released centres over the population.
gradients: means by FitGradientEM, coefficients of mixtures of regressions, and how many of the fits warn.
variants: two lines by each variant of FitGradientEM, and how many of the fits warn, of normal and of other residuals.
separated: FitSeparatedGMM, one to eight Gaussians in two to ten columns, and how many of the fits warn.
clusters: k-means by FitDPEM, of real tables as populations and of normal groups; targets are shares, means and mean
    squared distances of the population's rows nearest to the returned centres.
real_mixtures: mixtures of real tables by FitDPEM; targets are the mixtures nearest to the population in what the steps
    summed and, "by EM", what EM without noise makes of it from the released mixture.
mixtures: mixtures by FitDPEM, of planted groups, and how many of the fits warn; targets are weights, means and
    variances of the best mixture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

import numpy as np
from _common import Json, followed, seeded_parts
from _kmeans import array_rows
from _real import CATEGORIES, NUMBERS, Array, MissingTableError, installed
from real_tables import fitted, names_of, spend_of

import bursar
from bursar_ledger import Adjacency
from bursar_models._trajectory_fit import features_of, fit_trajectory, units_of
from bursar_server.fits import BoundedColumn, CodedColumn, PublicTable

Z = 1.959963984540054
SEEDS = 8
ADJACENCY = Adjacency.ADD_REMOVE_ONE
ADD, REPLACE = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE


@dataclass
class Tally:
    """Intervals of one kind of number over all seeds of a setting.

    Attributes:
        inside: whether each contained its number.
        errors: released number less the true one.
        widths: half of each interval.
    """

    inside: list[bool] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def add(self, rows: Iterable[bursar.Interval], truths: Iterable[float]) -> None:
        """Count intervals, in the order of the true numbers."""
        for row, truth in zip(rows, truths, strict=True):
            self.inside.append(row.low <= truth <= row.high)
            self.errors.append(row.estimate - truth)
            self.widths.append((row.high - row.low) / 2)

    def row(self) -> Json:
        """Return the line of a table."""
        rms = math.sqrt(float(np.square(self.errors).mean()))
        sharp = float(np.sqrt(np.square(self.widths).mean())) / (Z * rms) if rms > 0 else math.inf
        return {"coverage": float(np.mean(self.inside)), "intervals": len(self.inside), "width": sharp}


Tallies = dict[str, Tally]


def generator(*seed: int) -> np.random.Generator:
    """Return the generator of a population or of a seed's rows."""
    return np.random.default_rng(seed)


# --- fields --------------------------------------------------------------------------------------------------


def field_trial(rows: Array, sizes: Sequence[int], n: int, epsilon: float, graph: str, seed: int) -> Json:
    """Return tallies of one fit, and the bounds of its tables."""
    names = names_of(len(sizes))
    columns = tuple(CodedColumn(name, tuple(map(str, range(size)))) for name, size in zip(names, sizes, strict=True))
    drawn = rows[generator(1, seed).integers(0, len(rows), n)]
    table = PublicTable("bench", (), ADJACENCY, 1, n, columns)
    model = fitted(bursar.MRF(cliques=graph), spend_of(epsilon), table, array_rows(drawn))  # type: ignore[arg-type]
    tallies: Tallies = {kind: Tally() for kind in ("single", "pair", "conditional", "unmeasured")}
    bounds: dict[str, list[tuple[float, float]]] = {"measured": [], "unmeasured": []}

    def shares(places: Sequence[int], of: Array) -> Array:
        found = np.zeros([sizes[place] for place in places])
        np.add.at(found, tuple(of[:, place].astype(int) for place in places), 1 / len(of))
        return found

    def add(kind: str, found: bursar.Intervals, truth: Array, probability: Array) -> None:
        kept = probability.ravel() * n >= 5
        tallies[kind].add([row for row, keep in zip(found, kept, strict=True) if keep], truth.ravel()[kept])

    for place, name in enumerate(names):
        add("single", model.intervals(columns=name), *[shares([place], rows)] * 2)
    for a, b in combinations(range(len(sizes)), 2):
        pair = [names[a], names[b]]
        truth, error = shares([a, b], rows), model.error(pair)
        far = float(np.abs(model.marginal(pair) - shares([a, b], drawn)).sum()) / 2
        bounds["measured" if error.measured else "unmeasured"].append((error.bound, far))
        add("pair" if error.measured else "unmeasured", model.intervals(columns=pair), truth, truth)
        if error.measured:
            for state, total in enumerate(truth.sum(axis=1)):
                if total * n >= 50:
                    given = model.intervals(columns=names[b], given={names[a]: str(state)})
                    add("conditional", given, truth[state] / total, truth[state])
    return {"tallies": tallies, "bounds": bounds}


def fields(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure FitMRF on real tables."""
    settings = [(n, eps) for n in (5_000, 20_000, 100_000) for eps in (0.3, 1.0, 3.0)]
    for table, rows in installed(CATEGORIES):
        for n, epsilon in settings[3:5] if quick else settings:
            for graph in ("tree", "auto"):
                trials = [field_trial(rows, table.sizes, n, epsilon, graph, seed) for seed in range(seeds)]
                kinds = joined([one["tallies"] for one in trials])
                for kind in ("measured", "unmeasured"):
                    pairs = [pair for one in trials for pair in one["bounds"][kind]]
                    if pairs:
                        held = float(np.mean([bound >= far for bound, far in pairs]))
                        ratio = float(np.median([bound / max(far, 1e-9) for bound, far in pairs]))
                        kinds[f"bound, {kind}"] = {
                            "coverage": held,
                            "intervals": len(pairs),
                            "width": ratio,
                        }
                yield {"table": table.name, "graph": graph, "n": n, "epsilon": epsilon, "kinds": kinds}


def right(model: Any, n: int, seed: int) -> Array:
    """Return n rows drawn from a field, which is then the right model of them."""
    drawn = model.sample(n, random_state=seed, output="dict", bins="labels")
    return np.stack([np.asarray(drawn[name]).astype(np.float64) for name in model.columns], axis=1)


def graphs(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure how often fields warn: of real tables, and of rows drawn from a tree."""
    settings = [(n, eps) for n in (5_000, 20_000, 100_000) for eps in (0.3, 1.0, 3.0)]
    for table, rows in installed(CATEGORIES):
        names = names_of(len(table.sizes))
        columns = tuple(
            CodedColumn(name, tuple(map(str, range(size)))) for name, size in zip(names, table.sizes, strict=True)
        )
        for graph, (n, epsilon) in product(("tree", "auto"), settings[1:5:3] if quick else settings):
            request: Any = bursar.MRF(cliques=graph, held_out=0.05)  # type: ignore[arg-type]
            public = PublicTable("bench", (), ADJACENCY, 1, n, columns)
            verdicts: dict[str, list[bool]] = {"real": [], "right": []}
            tree = bursar.MRF(cliques="tree")
            truth = fitted(tree, spend_of(3.0), public, array_rows(rows[generator(7).integers(0, len(rows), n)]))
            for seed in range(seeds):
                drawn = {"real": rows[generator(1, seed).integers(0, len(rows), n)], "right": right(truth, n, seed)}
                for kind, one in drawn.items():
                    goodness = fitted(request, spend_of(epsilon), public, array_rows(one)).goodness
                    # Nothing is held out where the graph has all pairs.
                    verdicts[kind] += [] if goodness is None else [goodness.doubtful]
            told = {kind: f"{sum(one)} of {len(one)}" for kind, one in verdicts.items()}
            yield {"table": table.name, "graph": graph, "n": n, "epsilon": epsilon, **told, "kinds": {}}


# --- clusters and regressions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Population:
    """Mixture in [-1, 1]^d.

    Attributes:
        name: what it is.
        means: shape (k, d).
        weights: shape (k,).
        width: standard deviation of every column.
        law: "normal", "t" with three degrees of freedom, "exponential" less its mean, "gamma" of shape 4 in the same
            way, "discrete": rounded to half a deviation, or "outliers": 1 % uniform.
    """

    name: str
    means: Array
    weights: Array
    width: float
    law: str = "normal"

    def rows(self, n: int, seed: int) -> Array:
        """Draw rows."""
        rng = generator(2, seed)
        d = self.means.shape[1]
        noise: Array = {
            "t": lambda: rng.standard_t(3, (n, d)) / math.sqrt(3),
            "exponential": lambda: rng.exponential(1.0, (n, d)) - 1,
            "gamma": lambda: (rng.gamma(4.0, 1.0, (n, d)) - 4) / 2,
        }.get(self.law, lambda: rng.standard_normal((n, d)))()
        drawn = self.means[rng.choice(len(self.weights), n, p=self.weights)] + self.width * noise
        if self.law == "outliers":
            far = rng.random(n) < 0.01
            drawn[far] = rng.uniform(-1, 1, (int(far.sum()), d))
        if self.law == "discrete":
            drawn = np.rint(2 * drawn / self.width) * self.width / 2
        return np.asarray(np.clip(drawn, -1, 1))


THREE = np.array([[-0.5, -0.4], [0.4, -0.3], [0.0, 0.5]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
FIVE = np.array([[-0.6, -0.6], [0.6, -0.6], [0.0, 0.0], [-0.6, 0.6], [0.6, 0.6]])
PLANE = (
    Population("3 apart", THREE, WEIGHTS, 0.12),
    Population("3 near", 0.5 * THREE, WEIGHTS, 0.12),
    Population("5 apart", FIVE, np.full(5, 0.2), 0.1),
    Population("3 apart, t", THREE, WEIGHTS, 0.12, "t"),
    Population("3 apart, exponential", THREE, WEIGHTS, 0.12, "exponential"),
    Population("3 apart, 1 % outliers", THREE, WEIGHTS, 0.12, "outliers"),
)


def plane_table(n: int, d: int, names: Sequence[str] = ()) -> PublicTable:
    """Return the public facts of d numbers from -1 to 1."""
    columns = tuple(BoundedColumn(name, -1.0, 1.0) for name in names or names_of(d))
    return PublicTable("bench", columns, ADJACENCY, 1, n)


def matched(rows: bursar.Intervals, prefix: str, d: int, truth: Array) -> tuple[list[bursar.Interval], Array]:
    """Return intervals of centres, and the nearest true ones in their order."""
    found = [row for row in rows if row.name.startswith(prefix)]
    centres = np.array([row.estimate for row in found]).reshape(-1, d)
    return found, truth[[int(np.square(truth - centre).sum(axis=1).argmin()) for centre in centres]].ravel()


def centres_of(population: Population) -> Array:
    """Return k-means of the population by Lloyd's algorithm from its means."""
    from sklearn.cluster import KMeans

    rows = population.rows(400_000, 10**6)
    return np.asarray(KMeans(len(population.means), init=population.means, n_init=1, tol=0).fit(rows).cluster_centers_)


def sketches(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure centres and means that are decoded from sketches."""
    for population in PLANE[:2] if quick else PLANE:
        k, d = population.means.shape
        lloyd = centres_of(population)
        for n, epsilon in ((20_000, 1.0),) if quick else ((5_000, 1.0), (20_000, 0.3), (20_000, 1.0), (100_000, 1.0)):
            tallies: Tallies = {"centre": Tally(), "mean": Tally()}
            for seed in range(seeds):
                request = bursar.SketchKMeans(decoding="none", n_clusters=k)
                table = plane_table(n, d)
                sketch = fitted(request, spend_of(epsilon), table, array_rows(population.rows(n, seed)))
                tallies["centre"].add(*matched(sketch.kmeans(k).intervals(), "cluster_centers_", d, lloyd))
                mixture = sketch.gaussian_mixture(k).intervals()
                tallies["mean"].add(*matched(mixture, "means_", d, population.means))
            yield {"table": population.name, "n": n, "epsilon": epsilon, "kinds": joined([tallies])}


CHOICES: tuple[tuple[str, int, float, Adjacency], ...] = (
    ("3 apart", 20_000, 1.0, ADD),
    ("3 apart", 5_000, 3.0, REPLACE),
    ("3 near", 20_000, 1.0, ADD),
    ("5 apart", 100_000, 0.3, REPLACE),
    ("3 apart, t", 20_000, 1.0, ADD),
    ("3 apart, exponential", 20_000, 1.0, ADD),
    ("3 apart, 1 % outliers", 20_000, 1.0, ADD),
    ("5 groups, 5", 100_000, 1.0, REPLACE),
    ("stops", 20_000, 1.0, ADD),
    ("storms", 20_000, 1.0, ADD),
    ("careers", 20_000, 1.0, REPLACE),
    ("diamonds", 50_000, 1.0, ADD),
    ("weather", 20_000, 3.0, ADD),
    ("places", 50_000, 1.0, ADD),
)
"""Populations, rows, epsilon and neighbouring relation."""

MOST_CLUSTERS = 6


def choices(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure mean squared distances from sketches, how often the number of components is right, and warnings."""
    plane = {one.name: one for one in PLANE}
    for name, n, epsilon, adjacency in CHOICES[:1] if quick else CHOICES:
        try:
            rows = plane[name].rows(400_000, 10**6) if name in plane else population_of(name)[0]
        except MissingTableError as missing:
            print(missing)
            continue
        tally, chosen, warned = Tally(), [], 0
        for seed in range(seeds):
            drawn = plane[name].rows(n, seed) if name in plane else rows[generator(5, seed).integers(0, len(rows), n)]
            request = bursar.SketchKMeans(decoding="none", n_clusters=MOST_CLUSTERS)
            table = replace(plane_table(n, rows.shape[1]), adjacency=adjacency)
            sketch = fitted(request, spend_of(epsilon), table, array_rows(drawn))
            one = sketch.choose(MOST_CLUSTERS, n_init=5)
            for place, k in enumerate(one.numbers):
                truth = -sketch.kmeans(k, n_init=5).score(rows) / len(rows)
                mean, low, high = (float(x[place] / truth) for x in (one.mean_squares, one.low, one.high))
                tally.add([bursar.Interval("", mean, low, high, "")], [1.0])  # relative, since they differ in size
            chosen.append(one.components.chosen)
            warned += bool(one.notes)
        facts = {"table": name, "n": n, "epsilon": epsilon, "adjacency": adjacency.value}
        yield {**facts, "components": chosen, "warned": warned, "kinds": joined([{"mean square": tally}])}


def groups(k: int, d: int, width: float) -> Array:
    """Return a million rows of k normal groups of this deviation in [-1, 1]^d."""
    rng = generator(4, k, d)
    means, weights = rng.uniform(-0.7, 0.7, (k, d)), rng.dirichlet(np.full(k, 5.0))
    return Population("groups", means, weights, width).rows(1_000_000, k * d)


def grid(k: int, d: int, apart: float) -> Array:
    """Return k corners of a cube in [-1, 1]^d, whose edges have this length."""
    corners = (generator(6, k, d).permutation(2**d) if d < 10 else np.arange(2**d))[:k]
    return np.asarray(apart * (((corners[:, None] >> np.arange(d)) & 1) - 0.5), dtype=np.float64)


GRADIENTS: tuple[tuple[int, float, int, Adjacency], ...] = (
    (5_000, 1.0, 2, Adjacency.ADD_REMOVE_ONE),
    (5_000, 3.0, 5, Adjacency.REPLACE_ONE),
    (20_000, 0.3, 2, Adjacency.ADD_REMOVE_ONE),
    (20_000, 1.0, 2, Adjacency.ADD_REMOVE_ONE),
    (20_000, 1.0, 5, Adjacency.REPLACE_ONE),
    (20_000, 3.0, 8, Adjacency.ADD_REMOVE_ONE),
    (100_000, 0.3, 5, Adjacency.ADD_REMOVE_ONE),
    (100_000, 1.0, 2, Adjacency.REPLACE_ONE),
    (100_000, 1.0, 8, Adjacency.ADD_REMOVE_ONE),
    (100_000, 3.0, 5, Adjacency.REPLACE_ONE),
    (500_000, 0.1, 5, Adjacency.ADD_REMOVE_ONE),
    (1_000_000, 1.0, 3, Adjacency.ADD_REMOVE_ONE),
)
"""Rows, epsilon, number of columns or features, and neighbouring relation."""


def gradients(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure FitGradientEM: a mixture of Gaussians, and one of two regressions; where some rows are far off, too."""
    for law in ("normal",) if quick else ("normal", "t", "exponential", "gamma", "outliers", "far"):
        settings = GRADIENTS[3:4] if quick else GRADIENTS if law == "normal" else GRADIENTS[3:6]
        for n, epsilon, d, adjacency in settings:
            trials = [gradient_trial(law, n, epsilon, d, adjacency, seed) for seed in range(seeds)]
            warned = [int(sum(one)) for one in zip(*(goodness for _, goodness in trials), strict=True)]
            facts = {"table": law, "d": d, "n": n, "epsilon": epsilon, "adjacency": adjacency.value}
            rows = [tallies for tallies, _ in trials]
            yield {**facts, "warned, means and lines": warned, "kinds": joined(rows)}


def variants(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure mixtures of two lines in three features by each variant, and how many of the fits warn."""
    for variant, law in product(
        ("truncated",) if quick else ("truncated", "recentred", "radial", "clipped"),
        ("normal", "t", "exponential", "gamma", "outliers", "far"),
    ):
        for noise, (n, epsilon) in product((0.05, 0.1), ((10_000, 1.0), (20_000, 3.0))):
            request = bursar.GradientEM(model="mixture_of_regressions", target="y", variant=variant)  # type: ignore[arg-type]
            warned, tally = 0, Tally()
            for seed in range(seeds):
                rng, line = generator(30, seed), generator(70, seed).uniform(-0.4, 0.4, (2, 3))
                X, z = rng.uniform(-1, 1, (n, 3)), rng.integers(0, 2, n)
                laws = "normal" if law == "far" else law
                residuals = Population(law, np.zeros((1, 1)), np.ones(1), noise, laws).rows(n, seed)[:, 0]
                y = np.clip((X * line[z]).sum(axis=1) + residuals, -1, 1)
                if law == "far":
                    far = rng.random(n) < 0.02
                    X[far], y[far] = 0.8, 1.0
                table = plane_table(n, 4, [*names_of(3), "y"])
                model = fitted(request, spend_of(epsilon), table, array_rows(np.column_stack([X, y])))
                warned += model.goodness.doubtful
                tally.add(*matched(model.intervals(), "coef_", 3, line))
            facts = {"variant": variant, "law": law, "noise": noise, "n": n, "epsilon": epsilon}
            yield {**facts, "warned": f"{warned} of {seeds}", "kinds": joined([{"coefficient": tally}])}


def gradient_trial(law: str, n: int, epsilon: float, d: int, adjacency: Adjacency, seed: int) -> tuple[Tallies, Any]:
    """Return tallies of a mixture and of regressions, and whether intervals of each are said not to be trusted."""
    laws = "normal" if law == "far" else law
    rng, means = generator(3, seed), grid(2, d, 0.6) if d > 2 else 0.8 * THREE[:2]
    tallies: Tallies = {"mean": Tally(), "coefficient": Tally()}
    rows = Population(law, means, np.full(2, 0.5), 0.12, laws).rows(n, seed)
    line = generator(7, d).uniform(-0.4, 0.4, (2, d)) * math.sqrt(3 / d)
    X, z = rng.uniform(-1, 1, (n, d)), rng.integers(0, 2, n)
    noise = Population(law, np.zeros((1, 1)), np.ones(1), 0.1, laws).rows(n, seed)[:, 0]
    y = np.clip((X * line[z]).sum(axis=1) + noise, -1, 1)
    if law == "far":
        far = rng.random(n) < 0.02
        rows[far], X[far], y[far] = 1.0, 0.8, 1.0
    names = [*names_of(d), "y"]
    columns = tuple(BoundedColumn(name, -1.0, 1.0) for name in names)
    table, spend = PublicTable("bench", columns[:-1], adjacency, 1, n), spend_of(epsilon)
    model = fitted(bursar.GradientEM(model="gaussian_mixture"), spend, table, array_rows(rows))
    tallies["mean"].add(*matched(model.intervals(), "means_", d, means))
    request = bursar.GradientEM(model="mixture_of_regressions", target="y", fit_intercept=False)
    table = PublicTable("bench", columns, adjacency, 1, n)
    lines = fitted(request, spend, table, array_rows(np.column_stack([X, y])))
    tallies["coefficient"].add(*matched(lines.intervals(), "coef_", d, line))
    return tallies, [any("not to be trusted" in note for note in one.intervals().warnings) for one in (model, lines)]


CLUSTERS: tuple[tuple[str, int, float, Adjacency], ...] = (
    ("stops", 20_000, 0.3, ADD),
    ("stops", 100_000, 3.0, REPLACE),
    ("diamonds", 20_000, 1.0, REPLACE),
    ("diamonds", 200_000, 1.0, ADD),
    ("magic", 5_000, 3.0, ADD),
    ("magic", 20_000, 0.3, REPLACE),
    ("letter", 50_000, 1.0, ADD),
    ("places", 1_000_000, 0.1, ADD),
    ("storms", 20_000, 0.3, ADD),
    ("careers", 50_000, 1.0, REPLACE),
    ("weather", 20_000, 0.3, REPLACE),
    ("weather", 100_000, 3.0, ADD),
    ("movies", 20_000, 1.0, ADD),
    ("earnings", 50_000, 0.3, ADD),
    ("earnings", 500_000, 1.0, REPLACE),
    ("8 groups, 2", 5_000, 1.0, ADD),
    ("5 groups, 5", 50_000, 0.1, ADD),
    ("5 groups, 20", 100_000, 1.0, REPLACE),
    ("8 groups, 20", 1_000_000, 3.0, ADD),
)
"""Populations (number of groups and columns of a planted one), rows, epsilon and neighbouring relation."""


def population_of(name: str) -> tuple[Array, int]:
    """Return a population's rows and its number of clusters. Raises MissingTableError."""
    if "groups" in name:
        k, d = (int(part.split()[0]) for part in name.split(","))
        return groups(k, d, 0.15), k
    (table,) = (table for table in NUMBERS if table.name == name)
    return table.rows(), table.clusters


def clusters(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure k-means by FitDPEM."""
    for name, n, epsilon, adjacency in CLUSTERS[::6] if quick else CLUSTERS:
        try:
            rows, k = population_of(name)
        except MissingTableError as missing:
            print(missing)
            continue
        d, trials = rows.shape[1], []
        for seed in range(seeds):
            drawn = rows[generator(5, seed).integers(0, len(rows), n)]
            columns = tuple(BoundedColumn(column, -1.0, 1.0) for column in names_of(d))
            request = bursar.DPEM(n_components=k, mode="kmeans")
            table = PublicTable("bench", columns, adjacency, 1, n)
            model = fitted(request, spend_of(epsilon), table, array_rows(drawn))
            trials.append(cluster_tallies(model, rows))
        facts = {"table": name, "k": k, "d": d, "n": n, "epsilon": epsilon, "adjacency": adjacency.value}
        yield {**facts, "kinds": joined(trials)}


def cluster_tallies(model: Any, rows: Array) -> Tallies:
    """Return tallies of k-means over the rows of a population."""
    nearest = model.predict(rows)
    tallies: Tallies = {"share": Tally(), "mean": Tally(), "variance": Tally()}
    for one in model.intervals():
        cell = nearest == int(one.name.partition("[")[2].partition("]")[0])
        if one.name.startswith("weights_"):
            tallies["share"].add([one], [float(cell.mean())])
        elif one.name.startswith("variances_") and cell.any():
            centre = model.cluster_centers_[int(one.name.partition("[")[2][:-1])]
            tallies["variance"].add([one], [float(np.square(rows[cell] - centre).mean())])
        elif cell.any():
            tallies["mean"].add([one], [float(rows[cell, int(one.name.partition(".x")[2])].mean())])
    return tallies


MIXTURES: tuple[tuple[Population, int, float, Adjacency], ...] = (
    (PLANE[0], 5_000, 1.0, ADD),
    (PLANE[0], 20_000, 1.0, REPLACE),
    (PLANE[0], 100_000, 0.3, ADD),
    (PLANE[1], 20_000, 1.0, ADD),
    (PLANE[1], 100_000, 3.0, REPLACE),
    (PLANE[2], 20_000, 3.0, ADD),
    (PLANE[2], 200_000, 0.3, REPLACE),
    (Population("2 in 5", grid(2, 5, 1.0), np.array([0.7, 0.3]), 0.15), 20_000, 1.0, ADD),
    (Population("4 in 5", grid(4, 5, 1.0), np.full(4, 0.25), 0.15), 100_000, 1.0, REPLACE),
    (Population("8 in 3", grid(8, 3, 1.0), np.full(8, 0.125), 0.12), 200_000, 1.0, ADD),
    (Population("3 in 10", grid(3, 10, 0.8), np.array([0.5, 0.3, 0.2]), 0.1), 100_000, 3.0, ADD),
    (PLANE[0], 1_000_000, 1.0, ADD),
)
"""Right models, rows, epsilon and neighbouring relation."""

WRONG = ("t", "exponential", "gamma", "discrete", "outliers")
"""Laws of residuals that are not normal, of the first population."""


def separated_trial(population: Population, n: int, epsilon: float, adjacency: Adjacency, seed: int) -> Any:
    """Return tallies of one fit, and whether it warns; of a fit that found too few, the latter alone."""
    k, d = population.means.shape
    request = bursar.SeparatedGMM(n_components=k, sigma_min=0.03, sigma_max=0.2)
    columns = tuple(BoundedColumn(column, -1.0, 1.0) for column in names_of(d))
    table = PublicTable("bench", columns, adjacency, 1, n)
    model = fitted(request, spend_of(epsilon), table, array_rows(population.rows(n, seed)))
    tallies: Tallies = {}
    if model.found_ == k:
        order = [int(np.square(population.means - mean).sum(axis=1).argmin()) for mean in model.means_]
        variances = np.full((k, d), population.width**2)
        tallies = mixture_tallies(model, population.weights[order], population.means[order], variances)
    return tallies, bool(model.goodness.doubtful)


def separated(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure FitSeparatedGMM, and how many of the fits warn."""
    three = Population("3 in 3", np.array([[-0.6, -0.4, 0.0], [0.5, -0.4, 0.3], [0.0, 0.6, -0.3]]), WEIGHTS, 0.06)
    near = replace(three, name="3 in 3, 5 apart", means=0.25 * three.means)
    five, eight = (Population(f"{k} in {d}", grid(k, d, 1.0), np.full(k, 1 / k), 0.06) for k, d in ((5, 10), (8, 4)))
    one, flat = Population("1 in 5", np.zeros((1, 5)), np.ones(1), 0.1), replace(PLANE[0], width=0.06)
    settings: list[tuple[Population, int, float, Adjacency]] = [
        (three, 20_000, 1.0, ADD),
        (three, 100_000, 1.0, REPLACE),
        (three, 100_000, 0.3, ADD),
        (three, 1_000_000, 0.1, ADD),
        (flat, 5_000, 1.0, ADD),
        (flat, 20_000, 0.3, REPLACE),
        (near, 20_000, 3.0, ADD),
        (near, 100_000, 1.0, REPLACE),
        (five, 100_000, 1.0, ADD),
        (eight, 100_000, 1.0, ADD),
        (one, 5_000, 1.0, REPLACE),
        (one, 100_000, 3.0, ADD),
    ]
    laws = [
        (replace(three, name=f"3 in 3, {law}", law=law), *three_of[1:]) for law in WRONG for three_of in settings[:3]
    ]
    for population, n, epsilon, adjacency in settings[:1] if quick else [*settings, *laws]:
        trials = [separated_trial(population, n, epsilon, adjacency, seed) for seed in range(seeds)]
        facts = {"table": population.name, "n": n, "epsilon": epsilon, "adjacency": adjacency.value}
        warned = sum(doubtful for _, doubtful in trials)
        yield {**facts, "warned": warned, "kinds": joined([tallies for tallies, _ in trials])}


def best_of(population: Population) -> tuple[Array, Array, Array]:
    """Return weights, means and variances of the best mixture of the population, by EM from its own."""
    from sklearn.mixture import GaussianMixture

    k, d = population.means.shape
    if population.law in ("normal", "outliers"):  # a background is part of the model
        return population.weights, population.means, np.full((k, d), population.width**2)
    start = {"weights_init": population.weights, "means_init": population.means}
    found = GaussianMixture(k, **start, tol=1e-6, max_iter=500).fit(population.rows(400_000, 10**6))
    return found.weights_, found.means_, np.diagonal(found.covariances_, axis1=1, axis2=2)


def mixture_trial(population: Population, best: Any, n: int, epsilon: float, adjacency: Adjacency, seed: int) -> Any:
    """Return tallies of one mixture by FitDPEM, and the model."""
    k, d = population.means.shape
    table = replace(plane_table(n, d), adjacency=adjacency)
    model = fitted(bursar.DPEM(n_components=k), spend_of(epsilon), table, array_rows(population.rows(n, seed)))
    order = [int(np.square(best[1] - mean).sum(axis=1).argmin()) for mean in model.means_]
    return mixture_tallies(model, *(part[order] for part in best)), model


def mixture_tallies(model: Any, weights: Array, means: Array, variances: Array) -> Tallies:
    """Return tallies of a mixture, whose true components are in the order of its own."""
    tallies: Tallies = {"mean": Tally(), "weight": Tally(), "variance": Tally()}
    for one in model.intervals():
        attribute, _, rest = one.name.partition("[")
        parts = rest.replace("]", "").split(".")
        if attribute == "weights_":
            tallies["weight"].add([one], [float(weights[int(parts[0])])])
        elif attribute in ("means_", "covariances_") and len(parts) == 2:
            kind, truth = ("mean", means) if attribute == "means_" else ("variance", variances)
            tallies[kind].add([one], [float(truth[int(parts[0]), int(parts[1][1:])])])
    return tallies


REAL_MIXTURES: tuple[tuple[str, int, float, Adjacency], ...] = (
    ("storms", 20_000, 1.0, ADD),
    ("careers", 50_000, 1.0, REPLACE),
    ("stops", 20_000, 3.0, ADD),
    ("earnings", 20_000, 1.0, ADD),
    ("weather", 20_000, 1.0, ADD),
    ("movies", 50_000, 1.0, REPLACE),
    ("diamonds", 20_000, 1.0, ADD),
    ("storms", 50_000, 3.0, ADD),
)
"""Populations, rows, epsilon and neighbouring relation."""


def nearest(model: Any, population: Array) -> Any:
    """Return the mixture nearest to the population in what the steps of a model summed."""
    trajectory, found = model.trajectory, model._explained
    z = (population - trajectory.centre) / trajectory.scale

    def summed(step: Any) -> Any:
        parts = [features_of(step, z[i : i + 4096], model.covariance_type).sum(axis=0) for i in range(0, len(z), 4096)]
        sums = np.sum(parts, axis=0) * found.n_rows / len(z)
        return replace(step, sums=sums * units_of(step, len(sums)))

    steps = tuple(map(summed, trajectory.steps))
    start = found.weights, found.means, found.covariances
    return fit_trajectory(
        replace(trajectory, steps=steps), model.bounds_, model.covariance_type, start, found.background, found.n_rows
    )


def real_mixtures(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure mixtures of five components of real tables, and how many intervals are said not to be trusted."""
    from sklearn.mixture import GaussianMixture

    for name, n, epsilon, adjacency in REAL_MIXTURES[:1] if quick else REAL_MIXTURES:
        try:
            rows = population_of(name)[0]
        except MissingTableError as missing:
            print(missing)
            continue
        population, trials, warned = rows[generator(8).permutation(len(rows))[:20_000]], [], 0
        table = replace(plane_table(n, rows.shape[1]), adjacency=adjacency)
        for seed in range(seeds):
            drawn = population[generator(5, seed).integers(0, len(population), n)]
            model = fitted(bursar.DPEM(n_components=5), spend_of(epsilon), table, array_rows(drawn))
            one = nearest(model, population)
            tallies = mixture_tallies(model, one.weights, one.means, np.diagonal(one.covariances, axis1=1, axis2=2))
            start = {"means_init": model.means_, "precisions_init": np.linalg.inv(model.covariances_)}
            best = GaussianMixture(5, weights_init=model.weights_, **start, tol=1e-5, max_iter=400).fit(population)
            variances = np.diagonal(best.covariances_, axis1=1, axis2=2)
            by_em = mixture_tallies(model, best.weights_, best.means_, variances)
            trials.append(tallies | {f"{kind}, by EM": tally for kind, tally in by_em.items()})
            warned += model.goodness.doubtful
        facts = {"table": name, "n": n, "epsilon": epsilon, "adjacency": adjacency.value}
        yield {**facts, "warned": warned, "kinds": joined(trials)}


def mixtures(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure mixtures by FitDPEM: right models, and residuals that are not normal."""
    wrong = [(replace(PLANE[0], name=f"3 apart, {law}", law=law), 20_000, 1.0, ADD) for law in WRONG]
    settings = [*MIXTURES[:2], *wrong[:1]] if quick else [*MIXTURES, *wrong]
    for population, n, epsilon, adjacency in settings:
        best = best_of(population)
        trials = [mixture_trial(population, best, n, epsilon, adjacency, seed) for seed in range(seeds)]
        facts = {"table": population.name, "n": n, "epsilon": epsilon, "adjacency": adjacency.value}
        warned = sum(model.goodness.doubtful for _, model in trials)
        yield {**facts, "warned": warned, "kinds": joined([tallies for tallies, _ in trials])}


# --- tables --------------------------------------------------------------------------------------------------


def joined(trials: Sequence[Tallies]) -> Json:
    """Return the rows of all kinds of number that have intervals."""
    whole: Tallies = {}
    for trial in trials:
        for kind, tally in trial.items():
            one = whole.setdefault(kind, Tally())
            one.inside += tally.inside
            one.errors += tally.errors
            one.widths += tally.widths
    return {kind: tally.row() for kind, tally in whole.items() if tally.inside}


def printed(row: Json) -> None:
    """Print one setting."""
    told = [
        f"{kind} {one['coverage']:.1%} of {one['intervals']} ({one['width']:.2f})" for kind, one in row["kinds"].items()
    ]
    print(
        ", ".join(f"{name} {value}" for name, value in row.items() if name != "kinds"), "|", "; ".join(told), flush=True
    )


PARTS: dict[str, Callable[..., Iterator[Json]]] = {
    "fields": fields,
    "graphs": graphs,
    "sketches": sketches,
    "choices": choices,
    "gradients": gradients,
    "variants": variants,
    "separated": separated,
    "clusters": clusters,
    "mixtures": mixtures,
    "real_mixtures": real_mixtures,
}


def main() -> None:
    """Measure what was asked for."""
    for part, options, save in seeded_parts(__doc__, PARTS, __file__, seeds=SEEDS, of="setting"):
        followed(PARTS[part](options.seeds, quick=options.quick), printed, save)


if __name__ == "__main__":
    main()
