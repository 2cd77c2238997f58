"""Forecasts against what fits then do: `python bench/forecasts.py [PART ...]`.

    python bench/forecasts.py kmeans --seeds 12 --quick

An earlier release at a quarter of the spend is the prior: a mixture by FitDPEM with as many components as are asked for
("same") or three times as many ("more"), for fields a field, for regressions a regression ("lines") or a mixture of 8.
From rows that are drawn from it, twelve fits (of regressions 16) foretell errors; as many fits of the table itself as
`--seeds` says realise them. "tables" have no prior: they compare fields with their previews, and with the bounds of
previews and of models: a ratio above 1 is a bound that did not hold. A table has the ratio of realised to foretold
errors by column or table ("median": over the columns of a regression): medians, the range of nine in ten, and the
shares below 1 and within a factor of 2. Planted tables are groups of normal rows in [-1, 1]^d; real tables are those of
`_real.py`, of which at most 30,000 rows are drawn, without replacement ("tables": all). "in the range" is the share of
single fits' errors, by column, in the range that a preview shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
from _common import Json, followed, seeded_parts
from _kmeans import DELTA, array_rows
from _real import CATEGORIES, NUMBERS, Array, installed
from fields import triples_of
from real_tables import codes_of, fitted, names_of, number_table

import bursar
from bursar._fits import KINDS
from bursar._fits._kind import Asked
from bursar._forecast import forecast
from bursar_ledger import Adjacency
from bursar_models import Model
from bursar_models._quantile_errors import quantile_errors
from bursar_models.forecasts import foretold, spreads
from bursar_models.requests import Request
from bursar_models.schema import CategoricalColumn, Column, NumericColumn
from bursar_server.fits import CodedColumn, PublicTable
from bursar_server.fits.registry import FITS

SEEDS = 12
MOST = 30_000
HELD_OUT = {table.name for table in NUMBERS if table.held_out}
CHOSEN_ON = frozenset(("stops", "weather", "storms", "earnings", "parties", "diamonds", "magic"))
"""Real tables on which rows for forecasts of mixtures were chosen."""
RHO = 0.02


@dataclass(frozen=True)
class Table:
    """Rows with what is public about them.

    Attributes:
        name: what it is.
        real: True if it is of real people or things, False if it was made up.
        rows: shape (n, d), numbers in [-1, 1].
        k: number of groups to look for.
    """

    name: str
    real: bool
    rows: Array
    k: int


def generator(*seed: int) -> np.random.Generator:
    """Return the generator of a table."""
    return np.random.default_rng(seed)


def planted() -> Iterator[Table]:
    """Make tables of normal groups, 3 to 8 deviations apart."""
    for number, (n, k, d, near) in enumerate(
        [(8_000, 3, 2, 0.8), (20_000, 5, 2, 0.8), (20_000, 3, 2, 0.35), (30_000, 3, 5, 0.6), (5_000, 2, 3, 0.5)]
    ):
        rng = generator(4, number)
        means = (
            near * rng.uniform(-1, 1, (k, d))
            if d > 2
            else near * np.array([[-0.9, -0.9], [0.9, -0.9], [0, 0.9], [0, 0], [0.9, 0.9]][:k])
        )
        z = rng.choice(k, n, p=rng.dirichlet(np.full(k, 10.0)))
        yield Table(f"planted {number + 1}", False, np.clip(means[z] + 0.1 * rng.standard_normal((n, d)), -1, 1), k)


def lines() -> Iterator[Table]:
    """Make tables of one or two lines, with features and noise of several laws."""
    for number, (n, d, k, noise, law) in enumerate(
        [
            (8_000, 2, 1, 0.1, "uniform"),
            (20_000, 3, 1, 0.2, "uniform"),
            (20_000, 5, 1, 0.1, "correlated"),
            (10_000, 4, 1, 0.1, "heavy"),
            (30_000, 6, 1, 0.15, "skewed"),
            (20_000, 2, 2, 0.05, "uniform"),
            (20_000, 4, 2, 0.1, "correlated"),
            (10_000, 3, 2, 0.05, "uniform"),
        ]
    ):
        rng = generator(9, number)
        match law:
            case "correlated":
                X = 0.3 * (rng.standard_normal((n, d)) + rng.standard_normal((n, 1)))
            case "skewed":
                X = rng.exponential(0.3, (n, d)) - 0.9
            case _:
                X = rng.uniform(-1, 1, (n, d))
        X = np.clip(X, -1, 1)
        slopes = rng.uniform(-0.4, 0.4, (k, d)) * (3 / d) ** 0.5
        residuals = rng.standard_t(3, n) / 3**0.5 if law == "heavy" else rng.standard_normal(n)
        y = (X * slopes[rng.integers(0, k, n)]).sum(axis=1) + noise * residuals
        yield Table(f"lines {number + 1}, {law}", False, np.column_stack([X, np.clip(y, -1, 1)]), k)


def real() -> Iterator[Table]:
    """Load the real tables that are installed."""
    for table, rows in installed(NUMBERS):
        kept = generator(5).permutation(len(rows))[:MOST]
        yield Table(table.name, True, rows[kept], min(table.clusters, 4))


def ratios(
    request: Request, like: Model, public: PublicTable, columns: list[Column], rows: Array, rho: float, seeds: int
) -> dict[str, list[float]]:
    """Return realised over foretold errors, by the name of the error."""

    def run(amount: Any, values: Mapping[str, Array]) -> Any:
        drawn = np.stack([values[column.name] for column in columns], axis=1)
        return fitted(request, amount, with_rows(public, len(drawn)), array_rows(drawn))

    price = bursar.Price(0, 0, rho)
    told = forecast(run, like, columns, len(rows), price=price, spend=bursar.rho(rho), report=lambda *_: None)
    fits = [fitted(request, bursar.rho(rho), public, array_rows(rows)) for _ in range(seeds)]
    own = dict(zip([column.name for column in columns], rows.T, strict=True))
    found: dict[str, list[float]] = {}
    for name, (_, middle, _) in foretold(fits, own).items():
        said = told.expected[name]
        if name in ("mean_error", "coef_error", "quantile_error") and isinstance(said, Mapping):
            low, high = (list(part[name].values()) for part in (told.low, told.high))  # type: ignore[union-attr]
            errors = quantile_errors(fits) if name == "quantile_error" else spreads([centres_of(fit) for fit in fits])
            found[name] = (np.median(errors, axis=0) / list(said.values())).tolist()
            found[f"{name}, median"] = [float(np.median(found[name]))]
            found[f"{name}, in the range"] = ((errors >= low) & (errors <= high)).mean(axis=0).tolist()
        elif isinstance(middle, Mapping) and isinstance(said, Mapping):
            found[name] = [middle[column] / said[column] for column in middle]
        elif isinstance(middle, float) and isinstance(said, float):
            found[name] = [middle / said]
    return found


def centres_of(fit: Any) -> Array:
    """Return means, centres or coefficients of a model."""
    if hasattr(fit, "coef_"):
        return np.atleast_2d(fit.coef_)
    return np.asarray(fit.means_ if hasattr(fit, "means_") else fit.cluster_centers_)


def with_rows(table: PublicTable, n: int) -> PublicTable:
    """Return the table with another declared number of rows."""
    return PublicTable(table.name, table.numeric, table.adjacency, 1, n, table.categorical)


Make = Callable[[int, list[str]], Request]


def clusters(make: Make, seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure a fit of groups on all tables, with both priors."""
    for table in [*planted(), *real()]:
        n, d = table.rows.shape
        if quick and (d > 6 or table.name in ("places", "flights")):
            continue
        names = names_of(d)
        columns: list[Column] = [NumericColumn(name, "", -1.0, 1.0) for name in names]
        public = number_table(n, d)
        rhos = (RHO,) if quick else (RHO / 10, RHO, RHO * 5)
        for rho, (prior, more) in product(rhos, (("same", 1), ("more", 3))):
            asked = bursar.DPEM(n_components=more * table.k, columns=names)
            like = fitted(asked, bursar.rho(rho / 4), public, array_rows(table.rows))
            one = ratios(make(table.k, names), like, public, columns, table.rows, rho, seeds)
            kind = f"{prior}{', chosen on' * (table.name in CHOSEN_ON)}, rho {rho:g}"
            yield {"table": table.name, "real": table.real, "prior": kind, "ratios": one}


def fields(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure FitMRF on real tables."""
    for table, rows in installed(CATEGORIES):
        rows = rows[generator(5).permutation(len(rows))[: MOST // (2 if quick else 1)]]
        names = names_of(len(table.sizes))
        public = categories_table(names, table.sizes, len(rows))
        columns: list[Column] = [CategoricalColumn(one.name, "", one.categories) for one in public.categorical]
        for graph in ("tree",) if quick else ("tree", "auto"):
            request = bursar.MRF(cliques=graph)  # type: ignore[arg-type]
            like = fitted(request, bursar.rho(RHO / 4), public, array_rows(rows))
            one = ratios(request, like, public, columns, rows, RHO, seeds)
            yield {"table": f"{table.name}, {graph}", "real": True, "prior": "field", "ratios": one}


def tables(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure distances of pairs and triples over what previews of FitMRF expect, and over bounds; without a prior."""
    for table, rows in installed(CATEGORIES):
        names, codes = names_of(len(table.sizes)), codes_of(rows, table.sizes)
        facts = categories_table(names, table.sizes, len(rows))
        for graph, epsilon in product(("tree",) if quick else ("tree", "auto"), (0.1, 0.3, 1.0, 3.0)):
            request, spend = bursar.MRF(cliques=graph), bursar.epsilon_delta(epsilon, DELTA)  # type: ignore[arg-type]
            message = KINDS[bursar.MRF].message(request, Asked(dataset=facts.name, spend=spend))
            expected = FITS["FitMRF"].plan(message, facts, lambda entry: None).expected
            told: Any = {name: expected[name].value for name in ("table_errors", "table_bounds")}
            one: dict[str, list[float]] = {}
            for _ in range(seeds):
                model = fitted(request, spend, facts, array_rows(rows))
                for places in (*combinations(range(len(names)), 2), *triples_of(len(names))):
                    columns = [names[place] for place in places]
                    error = float(np.abs(codes.table(places) - np.asarray(model.marginal(columns))).sum()) / 2
                    after, name = model.error(columns), ", ".join(columns)
                    kind = "triples" if len(places) == 3 else "released" if after.measured else "others"
                    one.setdefault(f"{kind}, bound after", []).append(error / after.bound)
                    if name in told["table_errors"]:
                        one.setdefault(kind, []).append(error / told["table_errors"][name])
                        one.setdefault(f"{kind}, bound before", []).append(error / told["table_bounds"][name])
            yield {"table": table.name, "real": True, "prior": f"{graph}, {epsilon:g}", "ratios": one}


def categories_table(names: list[str], sizes: Sequence[int], n: int) -> PublicTable:
    """Return the public facts of n declared rows of categories."""
    columns = tuple(CodedColumn(name, tuple(map(str, range(size)))) for name, size in zip(names, sizes, strict=True))
    return PublicTable("bench", (), Adjacency.ADD_REMOVE_ONE, 1, n, columns)


def regressions(seeds: int, *, quick: bool) -> Iterator[Json]:
    """Measure FitGradientEM's regressions of a table's last column, with priors of its kind and of a mixture."""
    for table in [*lines(), *planted(), *real()]:
        n, d = table.rows.shape
        if not 2 <= d <= (6 if quick else 16):
            continue
        names = names_of(d)
        columns: list[Column] = [NumericColumn(name, "", -1.0, 1.0) for name in names]
        public = number_table(n, d)
        truly = table.name.startswith("lines")
        kind = "lines" if truly else "groups" if not table.real else "held out" if table.name in HELD_OUT else "tuned"
        for k, rho in product((table.k,) if truly else (1, 2), (RHO,) if quick else (RHO / 5, RHO, RHO * 5)):
            request = bursar.GradientEM(model="mixture_of_regressions", target=names[-1], n_components=k)
            for prior, asked in (("lines", request), ("mixture", bursar.DPEM(n_components=8, columns=names))):
                like = fitted(asked, bursar.rho(rho / 4), public, array_rows(table.rows))
                one = ratios(request, like, public, columns, table.rows, rho, seeds)
                label = f"{prior} for {k} of {kind}, rho {rho:g}"
                yield {"table": table.name, "real": table.real, "prior": label, "ratios": one}


def printed(row: Json) -> None:
    """Print one setting."""
    told = [f"{name} {np.round(values, 2).tolist()}" for name, values in row["ratios"].items()]
    print(f"{row['table']}, prior {row['prior']}: {'; '.join(told)}", flush=True)


def summary(rows: list[Json]) -> None:
    """Print medians and ranges over tables, planted and real ones apart."""
    for is_real in (False, True):
        for prior in dict.fromkeys(row["prior"] for row in rows):
            chosen = [row["ratios"] for row in rows if row["real"] == is_real and row["prior"] == prior]
            for name in dict.fromkeys(name for one in chosen for name in one):
                values = [value for one in chosen for value in one.get(name, [])]
                low, middle, high = np.percentile(values, [5, 50, 95])
                kind = "real" if is_real else "planted"
                below = f"{np.mean(np.array(values) <= 1):.1%} below 1"
                near = f"{np.mean(np.abs(np.log2(np.maximum(values, 1e-9))) <= 1):.0%} within a factor of 2"
                found = f"{middle:.2f} | {low:.2f} to {high:.2f}"
                print(f"| {kind}, {prior} | {name} | {len(values)} | {found} | {below}, {near} |")


MAKES: dict[str, Make] = {
    "mixtures": lambda k, names: bursar.DPEM(n_components=k, columns=names),
    "kmeans": lambda k, names: bursar.DPEM(n_components=k, columns=names, mode="kmeans"),
    "sketches": lambda k, names: bursar.SketchKMeans(n_clusters=k, columns=names),
    "gradients": lambda k, names: bursar.GradientEM(model="gaussian_mixture", n_components=k, columns=names),
    "separated": lambda k, names: bursar.SeparatedGMM(n_components=k, columns=names, sigma_min=0.05, sigma_max=0.2),
}


def main() -> None:
    """Measure what was asked for."""
    others = {"fields": fields, "tables": tables, "regressions": regressions}
    for part, options, save in seeded_parts(__doc__, [*MAKES, *others], __file__, seeds=SEEDS, of="table"):
        measure = partial(clusters, MAKES[part]) if part in MAKES else others[part]
        summary(followed(measure(options.seeds, quick=options.quick), printed, save))


if __name__ == "__main__":
    main()
