"""Released Markov random field: probabilities, samples and pictures of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from bursar_models._describe import origin
from bursar_models._goodness import Goodness, table_goodness
from bursar_models._intervals import POPULATION, Interval, Intervals, two_sided
from bursar_models._portable import Model
from bursar_models._tables import Categories, Output
from bursar_models.arrays import FloatArray, IntArray, frozen
from bursar_models.budget import Receipt, ReleaseNoise
from bursar_models.mrf._direct import MOST_FITTED, between, excess, fitted_to_pairs
from bursar_models.mrf._estimation import ESTIMATORS, Estimator
from bursar_models.mrf._graph import Graph, check_exact, is_exact, pairs_apart
from bursar_models.mrf._inference import Calibrated, cached_tree, calibrate, draw, exact, gibbs, loopy, sum_to
from bursar_models.mrf._intervals import Bounds, Evidence, TableError
from bursar_models.mrf._plot import plot_chain, plot_graph
from bursar_models.mrf._variables import Variable, decode_table, encode_table
from bursar_models.text import harmless, html_table, text_table

UnitWeights: TypeAlias = Literal["rows", "shares"]
"""Weight of a row in the tables."""

GIBBS_SWEEPS = 50
"""Number of rounds of Gibbs sampling for a graph that is too dense for exact samples. Chosen, not tuned."""

_SHOWN = 10
"""Number of dependences in the text of a model."""


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedTable:
    """Noisy contingency table, as it was released and charged.

    Attributes:
        columns: names of the axes.
        counts: noisy numbers of rows, of any sign, read-only.
        noise_std: standard deviation of the noise on each cell.
        laplace: True for discrete Laplace noise, False for discrete Gaussian noise.
        entry: ledger entry of its debit; None for a table from elsewhere.
        pooled: True for first states or transitions of a homogeneous chain, pooled over the columns.
        held_out: True if the model was not learnt from it: it tests the graph, see `MarkovRandomField.goodness`.
    """

    columns: tuple[str, ...]
    counts: FloatArray
    noise_std: float
    laplace: bool = False
    entry: int | None = None
    pooled: bool = False
    held_out: bool = False

    def __post_init__(self) -> None:
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "counts", frozen("counts", self.counts))
        if not 0 <= self.noise_std < math.inf:
            raise ValueError(f"noise_std: expected a finite number of at least 0, got {self.noise_std!r}")

    def __repr__(self) -> str:
        cells = " x ".join(map(str, self.counts.shape))
        facts = [f"{', '.join(self.columns)}{', pooled over time' if self.pooled else ''}: {cells} cells"]
        facts += ["held out of the model"] if self.held_out else []
        facts.append(f"{'Laplace' if self.laplace else 'Gaussian'} noise of standard deviation {self.noise_std:.4g}")
        facts += [] if self.entry is None else [f"entry {self.entry}"]
        return harmless(f"ReleasedTable({', '.join(facts)})")


@dataclass(frozen=True, eq=False, repr=False)
class MarkovRandomField(Model):
    """Markov random field p(x) = exp(sum over cliques C of theta_C(x_C) - A(theta)) over discrete columns.

    Everything in it is released or public. The arrays are read-only copies.

    Attributes:
        variables_: columns and their states.
        cliques_: names of the columns of each potential; for a homogeneous chain the first column, and the first two.
        log_potentials_: theta_C, one array a clique, one axis a column.
        marginals_: probabilities of each clique under the model; approximate under loopy inference. For a homogeneous
            chain those of the first state, and of a consecutive pair averaged over time.
        log_partition_: A(theta), or its Bethe approximation.
        tables_: noisy tables from which it was learnt.
        n_rows: estimated number of rows, or of units where rows count as shares.
        estimator: "cgm", "nlbp" or "naive".
        inference: "exact" or "loopy".
        homogeneous_chain: True if the columns are in the order of time and all transitions have the same potential.
        null_category: category of a homogeneous chain that means "not observed"; None if there is none.
        unit_weights: weight of a row in the tables: "rows" 1, "shares" 1/K where its unit has K rows.
        receipt: receipt of its debit; None for a model that does not come from a server.
        noise: the noise of every kind of release that went into the model.
        iterations: number of evaluations of the marginals while learning; they are free post-processing.
        unexplained: by how much models of the later rounds missed the next table, for `error`; None without rounds.
        dummy_: True if a dry run made it from synthetic rows; its numbers carry no information.

    Raises:
        ValueError: fields that do not fit together, or an entry that is not finite; the message names the field.

    Example:
        >>> field = data.fit(bursar.MRF(cliques=[("group", "spring")]), spend=bursar.rho(0.1))
        >>> field.marginal("group").shape
        (2,)
        >>> list(field.sample(2, random_state=0, output="dict"))
        ['group', 'spring']
    """

    _doubted: ClassVar[str] = "probabilities that no released table has"

    variables_: tuple[Variable, ...]
    cliques_: tuple[tuple[str, ...], ...]
    log_potentials_: tuple[FloatArray, ...]
    marginals_: tuple[FloatArray, ...]
    log_partition_: float
    tables_: tuple[ReleasedTable, ...] = ()
    n_rows: float | None = None
    estimator: Estimator = "cgm"
    inference: Literal["exact", "loopy"] = "exact"
    homogeneous_chain: bool = False
    null_category: str | None = None
    unit_weights: UnitWeights = "rows"
    receipt: Receipt | None = None
    noise: tuple[ReleaseNoise, ...] = ()
    iterations: int | None = None
    unexplained: float | None = None
    dummy_: bool = False

    def __post_init__(self) -> None:
        # A frozen dataclass can store its cleaned fields in no other way.
        for name in ("variables_", "tables_", "noise"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "cliques_", tuple(tuple(clique) for clique in self.cliques_))
        if len(set(self.columns)) != len(self.columns):
            raise ValueError("variables_: every column must be there once")
        shapes = [tuple(len(self._variable(name).states) for name in clique) for clique in self.cliques_]
        for name in ("log_potentials_", "marginals_"):
            arrays = getattr(self, name)
            if len(arrays) != len(shapes):
                raise ValueError(f"{name}: expected {len(shapes)} arrays, one for each clique, got {len(arrays)}")
            object.__setattr__(self, name, tuple(frozen(name, a, s) for a, s in zip(arrays, shapes, strict=True)))
        if not math.isfinite(self.log_partition_):
            raise ValueError(f"log_partition_: expected a finite number, got {self.log_partition_!r}")
        if self.unexplained is not None and not 0 <= self.unexplained < math.inf:
            raise ValueError(f"unexplained: expected a finite number of at least 0, or None, got {self.unexplained!r}")
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"estimator: expected one of {ESTIMATORS}, got {self.estimator!r}")
        if self.inference not in ("exact", "loopy"):
            raise ValueError(f"inference: expected 'exact' or 'loopy', got {self.inference!r}")
        if self.homogeneous_chain:
            self._check_chain(shapes)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in their order."""
        return tuple(variable.name for variable in self.variables_)

    def marginal(self, columns: str | Sequence[str]) -> FloatArray:
        """Return the probabilities of the joint states of a few columns, one axis a column in the order of `columns`.

        Exact by elimination; where the graph is too dense for that, the approximate marginal of a clique. Columns that
        are in no clique together, but in a released table, are answered between the model and that table. Three or more
        have the model's dependences beyond pairs, and such answers for pairs.

        Raises:
            ValueError: a column that the model does not have, or columns whose table is too large to compute.
        """
        found = self.conditional(columns, {})
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        if self._within(names) or self.n_rows is None or self.homogeneous_chain:
            return found
        observed, rows = self._evidence().observed, max(self.n_rows, 1.0)
        if (table := observed(names)) is not None:
            return between(found, table.counts, table.std, rows)
        pairs, apart = [], False
        for axes in combinations(range(len(names)), 2) if found.size <= MOST_FITTED else ():
            pair, others = tuple(names[axis] for axis in axes), tuple(set(range(len(names))) - set(axes))
            answer, table = found.sum(axis=others), None
            if not any(set(pair) <= set(clique) for clique in self.cliques_):
                table = observed(pair)
            if table is not None:
                answer, apart = between(answer, table.counts, table.std, rows), True
            pairs.append((others, answer))
        return fitted_to_pairs(found, pairs) if apart else found

    def conditional(self, columns: str | Sequence[str], given: Mapping[str, Any]) -> FloatArray:
        """Return the probabilities of the joint states of `columns` given values of others; as `marginal` otherwise.

        Args:
            columns: names of the columns, each once.
            given: values of other columns: a label; for a numeric column, a number or the label of its bin.

        Raises:
            ValueError: a column that the model does not have or that is queried and given, a value that is no state,
                or a table that is too large to compute.
        """
        names = [columns] if isinstance(columns, str) else list(columns)
        asked = [self._index(name) for name in names]
        known = {self._index(name): self._state(name, value) for name, value in given.items()}
        if not 1 <= len(asked) == len(set(asked)):
            raise ValueError("columns: expected at least one column, and each once")
        if both := sorted(set(asked) & set(known)):
            raise ValueError(f"given: {self.columns[both[0]]!r} is asked for and given")
        graph, theta, left = _restricted(*self._model, known)
        return _queried(
            graph, theta, tuple(left.index(variable) for variable in asked), [self.columns[v] for v in left]
        )

    def intervals(
        self,
        level: float = 0.95,
        *,
        columns: str | Sequence[str] | None = None,
        given: Mapping[str, Any] | None = None,
    ) -> Intervals:
        """Return intervals of probabilities from the noise of the tables and the sampling of rows, in closed form.

        Cells of a released table, or of sums over one, have intervals about the model's probabilities; conditional ones
        those of Fieller. Cells that no table has get bounds from tables of fewer columns, which hold whatever the
        dependence, and are wide. Rows of a person count as independent unless rows count as shares.

        Args:
            level: share of fits in which an interval is meant to contain its target, above 0 and below 1.
            columns: names of the columns, each once; None for each column by itself, or, of a homogeneous chain, its
                two tables.
            given: values of other columns, as in `conditional`.

        Raises:
            ValueError: another level, columns or values as in `conditional`, or columns of a homogeneous chain.
        """
        if columns is None and not given:
            return super().intervals(level)
        if columns is None:
            raise ValueError("columns: expected the names of those whose probabilities are asked for")
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        z, known = two_sided(level), {name: self._state(name, value) for name, value in (given or {}).items()}
        return Intervals(level, POPULATION, tuple(self._interval_rows(names, known, z)), warnings=self._warnings())

    def error(self, columns: str | Sequence[str], level: float = 0.95) -> TableError:
        """Return how far the model's table of some columns may be from that of the rows.

        Args:
            columns: names of the columns, each once.
            level: share of tables for which the bound is meant to hold, above 0 and below 1.

        Raises:
            ValueError: another level, columns as in `marginal`, or a homogeneous chain.

        Example:
            >>> field = data.fit(bursar.MRF(cliques=[("group", "spring")]), spend=bursar.rho(0.1))
            >>> field.error(["group", "spring"]).measured
            True
        """
        two_sided(level)
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        return self._evidence().error(names, level)

    @property
    def goodness(self) -> Goodness | None:
        """Test of the graph on the table that was held out of the model, free; None without one.

        It asks whether two columns that are in no clique together depend on each other as the model says. They were
        chosen because they seemed not to, so that the chance of a false alarm is multiplied by the number of pairs.
        """
        return self._goodness

    @cached_property
    def _goodness(self) -> Goodness | None:
        held = next((table for table in self.tables_ if table.held_out), None)
        if held is None or self.n_rows is None:
            return None
        pairs = max(len(pairs_apart(self._model[0])), 1)
        cells = self.conditional(held.columns, {})
        return table_goodness(
            held.columns, cells, max(self.n_rows, 1.0), held.counts, held.noise_std, laplace=held.laplace, pairs=pairs
        )

    def log_prob(self, table: Any) -> FloatArray:
        """Return the natural logarithm of the probability of each row, shape (n,).

        Args:
            table: a mapping, pandas, pyarrow or polars table that has the model's columns by name, and may have more:
                labels of categories, and numbers or labels of bins.

        Raises:
            ValueError: a column is missing, or a value has no state; the message names the column.
        """
        rows = encode_table(table, self.variables_)
        graph, theta = self._model
        total = np.full(len(rows), -self.log_partition_)
        for clique, potential in zip(graph.cliques, theta, strict=True):
            total += potential[tuple(rows[:, variable] for variable in clique)]
        return total

    def score(self, table: Any) -> float:
        """Return the mean log-probability per row, in nats; `table` as in `log_prob`, with at least one row.

        Raises:
            ValueError: as in `log_prob`, or no row.
        """
        values = self.log_prob(table)
        if not len(values):
            raise ValueError("table: expected at least one row")
        return float(values.mean())

    def sample(
        self,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,  # noqa: TID251 - a caller's generator on released values
        *,
        output: Output = "pandas",
        bins: Literal["values", "labels"] = "values",
    ) -> Any:
        """Draw a synthetic table of `n` rows with the original categories.

        Samples are exact, drawn from the roots of the junction tree to its leaves. Where the graph is too dense for
        that, each row is the last of `GIBBS_SWEEPS` rounds of Gibbs sampling.

        Args:
            n: number of rows, at least 0.
            random_state: seed or numpy generator; None draws fresh randomness. The model is released, so this protects
                nothing.
            output: "pandas" or "polars" for a DataFrame, "arrow" for a pyarrow Table, "dict" for arrays by name.
            bins: "values" draws a numeric column's number uniformly in its bin; "labels" returns the bin's label.

        Raises:
            ValueError: an argument outside its range.
            bursar.MissingDependencyError: the package of `output` is not installed.
        """
        if not n >= 0:
            raise ValueError(f"n: expected at least 0 rows, got {n}")
        if bins not in ("values", "labels"):
            raise ValueError(f"bins: expected 'values' or 'labels', got {bins!r}")
        rng = np.random.default_rng(random_state)  # noqa: TID251 - a caller's generator on released values
        rows = self._sample_states(n, rng)
        return decode_table(rows, self.variables_, rng.random(rows.shape) if bins == "values" else None, output)

    def mutual_information(self) -> dict[tuple[str, str], float]:
        """Return the mutual information, in nats, of each pair of columns that share a clique, largest first.

        It is computed under the model.
        """
        graph, _ = self._model
        pairs: dict[tuple[str, str], float] = {}
        for clique, table in zip(graph.cliques, self._clique_marginals, strict=True):
            for a, b in combinations(clique, 2):
                pairs[self.columns[a], self.columns[b]] = _mutual_information(sum_to(table, clique, (a, b)))
        return dict(sorted(pairs.items(), key=lambda pair: -pair[1]))

    def plot(self, ax: Any = None) -> Any:
        """Draw the graph, or the probabilities of a homogeneous chain.

        A graph has its columns on a circle; lines join those that share a clique, wider for more mutual information.
        A chain has the probabilities of the first state, and of the next state given the state before, averaged over
        time.

        Args:
            ax: matplotlib axes to draw on; None makes a figure.

        Returns:
            The axes.

        Raises:
            bursar.MissingDependencyError: matplotlib is not installed.
        """
        if self.homogeneous_chain:
            first, pairs = self.marginals_
            return plot_chain(self.variables_[0].states, self.null_category, first, pairs, self._title(), ax)
        return plot_graph(self.columns, self.mutual_information(), self._title(), ax)

    @cached_property
    def _model(self) -> tuple[Graph, list[FloatArray]]:
        """Graph over indices of columns, and its log-potentials with axes in the graph's order."""
        sizes = tuple(len(variable.states) for variable in self.variables_)
        if self.homogeneous_chain:
            first, transition = self.log_potentials_
            steps = [(t, t + 1) for t in range(len(sizes) - 1)]
            return Graph(sizes, ((0,), *steps)), [first, *([transition] * len(steps))]
        indices = [tuple(self._index(name) for name in clique) for clique in self.cliques_]
        graph = Graph(sizes, tuple(indices))
        theta = [np.zeros(graph.shape(clique)) for clique in graph.cliques]
        places = {clique: place for place, clique in enumerate(graph.cliques)}
        for clique, table in zip(indices, self.log_potentials_, strict=True):
            ordered = tuple(sorted(clique))
            theta[places[ordered]] = theta[places[ordered]] + sum_to(table, clique, ordered)
        return graph, theta

    @cached_property
    def _calibrated(self) -> Calibrated:
        graph, theta = self._model
        return calibrate(graph, theta, cached_tree(graph))

    @cached_property
    def _clique_marginals(self) -> list[FloatArray]:
        graph, theta = self._model
        return exact(graph, theta)[0] if is_exact(graph) else loopy(graph, theta)[0]

    def _sample_states(self, n: int, rng: np.random.Generator) -> IntArray:  # noqa: TID251 - a caller's generator
        graph, theta = self._model
        if is_exact(graph):
            return draw(graph, self._calibrated, rng.random((n, len(self._calibrated.tree.cliques))))
        start = [
            rng.choice(size, n, p=self.marginal(name)) for size, name in zip(graph.sizes, self.columns, strict=True)
        ]
        return gibbs(graph, theta, np.stack(start, axis=1), rng, GIBBS_SWEEPS)

    def _index(self, name: str) -> int:
        if name not in self.columns:
            raise ValueError(f"columns: the model has no column {name!r}; it has {', '.join(self.columns)}")
        return self.columns.index(name)

    def _variable(self, name: str) -> Variable:
        return self.variables_[self._index(name)]

    def _check_chain(self, shapes: list[tuple[int, ...]]) -> None:
        states = {len(variable.states) for variable in self.variables_}
        size = len(self.variables_[0].states)
        if len(self.variables_) < 2 or len(states) != 1 or shapes != [(size,), (size, size)]:
            raise ValueError(
                "homogeneous_chain: expected at least two columns with the same states, and two cliques: the first "
                "column, and the first two"
            )

    def _intervals(self, z: float) -> tuple[Sequence[Interval], Sequence[str]]:
        if not self.tables_ or self.n_rows is None:
            return (), ("all: the model has no tables",)
        if self.homogeneous_chain:
            return self._chain_intervals(z), ()
        return [row for name in self.columns for row in self._interval_rows((name,), {}, z)], ()

    def _interval_rows(self, names: tuple[str, ...], known: Mapping[str, int], z: float) -> list[Interval]:
        evidence = self._evidence()
        given = {name: self._variable(name).states[state] for name, state in known.items()}
        cells = self.conditional(names, given) if given else self.marginal(names)
        every = (*names, *known)
        about = "a released table has it" if evidence.observed(every) else "no table has it: bounds from smaller ones"
        ends = evidence.conditional(names, known, z)[1] if known else evidence.bounds(names, z)
        suffix = " | " + ", ".join(f"{name}={state}" for name, state in given.items()) if given else ""
        return _rows([(name, self._variable(name).states) for name in names], cells, ends, suffix, about)

    def _chain_intervals(self, z: float) -> list[Interval]:
        """Return intervals of the first state, and of a transition averaged over time."""
        states, rows = self.variables_[0].states, max(self.n_rows or 0.0, 1.0)
        found = []
        axes = [("first", states)], [("from", states), ("to", states)]
        for names, cells in zip(axes, self.marginals_, strict=True):
            precision = sum(max(t.noise_std, 1e-6) ** -2 for t in self.tables_ if t.counts.ndim == cells.ndim)
            error = z * np.sqrt(1 / (precision * rows**2) + np.maximum(cells * (1 - cells), 1 / rows) / rows)
            ends = np.maximum(cells - error, 0.0), np.minimum(cells + error, 1.0)
            found += _rows(names, cells, ends, "", "pooled over time" if cells.ndim == 2 else "first state")
        return found

    def _evidence(self) -> Evidence:
        if self.homogeneous_chain:
            raise ValueError("columns: a homogeneous chain has intervals of its own two tables only; leave them out")
        tables = [(t.columns, t.counts, t.noise_std, t.laplace) for t in self.tables_ if not t.pooled]
        sizes = {variable.name: len(variable.states) for variable in self.variables_}
        rows = max(self.n_rows or 0.0, 1.0)
        chosen = [one.count_std for one in self.noise if one.name == "choice of a pair"]
        choice = max(chosen, default=None)
        return Evidence(tables, sizes, rows, self.marginal, self.unexplained, choice, self._apart)

    def _apart(self, columns: tuple[str, ...]) -> tuple[FloatArray, float] | None:
        """Return the graph's probabilities of columns that no clique has together, and how far off it is of such."""
        if self._within(columns):
            return None
        return self.conditional(columns, {}), self._excess

    @cached_property
    def _excess(self) -> float:
        """Mean `excess` of the released pairs that no clique has."""
        pairs = {tuple(sorted(table.columns)) for table in self.tables_ if table.counts.ndim == 2}
        found, cells, evidence = 0.0, 1, self._evidence()
        for pair in sorted(pairs):
            if self._within(pair) or (table := evidence.observed(pair)) is None:
                continue
            one = excess(self.conditional(pair, {}), table.counts, table.std, evidence.rows)
            found, cells = found + one * table.counts.size, cells + table.counts.size
        # No less than what noise hides of all of them.
        return max(found / cells, math.sqrt(2.0 / cells))

    def _within(self, columns: tuple[str, ...]) -> bool:
        return len(columns) < 2 or any(set(columns) <= set(clique) for clique in self.cliques_)

    def _state(self, name: str, value: Any) -> int:
        return int(self._variable(name).encode([value])[0])

    def _parameters(self) -> dict[str, FloatArray | Categories]:
        """Return the marginal distribution of each column."""
        sizes = [len(variable.states) for variable in self.variables_]
        states = tuple(dict.fromkeys(state for variable in self.variables_ for state in variable.states))
        codes = [states.index(state) for variable in self.variables_ for state in variable.states]
        return {
            "column": Categories(np.repeat(np.arange(len(sizes)), sizes), self.columns),
            "state": Categories(np.array(codes, dtype=np.intp), states),
            "probability": np.concatenate([self.marginal(name) for name in self.columns]),
        }

    def _title(self) -> str:
        kind = "homogeneous chain of " if self.homogeneous_chain else ""
        return (
            f"MarkovRandomField: {kind}{len(self.variables_)} columns, {len(self.cliques_)} cliques, {self.estimator}, "
            f"{self.inference} inference{origin(self.receipt, 'learnt', dummy=self.dummy_)}"
        )

    def _facts(self) -> tuple[list[str], list[list[str]]]:
        """Return the headers and cells: a row for each column."""
        cells = []
        for variable in self.variables_:
            probabilities = self.marginal(variable.name)
            mode = int(probabilities.argmax())
            cells.append(
                [variable.name, str(len(variable.states)), variable.states[mode], f"{probabilities[mode]:.4g}"]
            )
        return ["column", "states", "most probable", "probability"], cells

    def _strongest(self) -> str:
        pairs = list(self.mutual_information().items())
        shown = ", ".join(f"{a} - {b} {value:.3g}" for (a, b), value in pairs[:_SHOWN])
        more = f", and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
        return f"mutual information (nats): {shown}{more}" if pairs else "no interactions"

    def __repr__(self) -> str:
        return harmless(f"{self._title()}\n{text_table(*self._facts())}\n  {self._strongest()}")

    def _repr_html_(self) -> str:
        return html_table(f"{self._title()}; {self._strongest()}", *self._facts())


def _rows(
    axes: Sequence[tuple[str, Sequence[str]]], cells: FloatArray, ends: Bounds, suffix: str, about: str
) -> list[Interval]:
    """Return an interval for each cell, named by its states."""
    return [
        Interval(
            ", ".join(f"{name}={states[i]}" for (name, states), i in zip(axes, place, strict=True)) + suffix,
            float(cells[place]),
            float(ends[0][place]),
            float(ends[1][place]),
            f"probability; {about}",
        )
        for place in np.ndindex(cells.shape)
    ]


def _restricted(
    graph: Graph, theta: Sequence[FloatArray], known: Mapping[int, int]
) -> tuple[Graph, list[FloatArray], list[int]]:
    """Return the model of the remaining variables given known ones: graph, log-potentials, and their old indices."""
    left = [variable for variable in range(len(graph.sizes)) if variable not in known]
    potentials: dict[tuple[int, ...], FloatArray] = {}
    for clique, table in zip(graph.cliques, theta, strict=True):
        part = table[tuple(known.get(variable, slice(None)) for variable in clique)]
        rest = tuple(left.index(variable) for variable in clique if variable not in known)
        # A clique of known variables only is a constant, which conditioning cancels.
        if rest:
            potentials[rest] = potentials[rest] + part if rest in potentials else part
    restricted = Graph(tuple(graph.sizes[variable] for variable in left), tuple(potentials))
    return restricted, [potentials[clique] for clique in restricted.cliques], left


def _queried(graph: Graph, theta: list[FloatArray], asked: tuple[int, ...], names: Sequence[str]) -> FloatArray:
    """Return the marginal over `asked`: exact with these as one more clique, else from a clique that contains them."""
    together = tuple(sorted(asked))
    holders = [place for place, clique in enumerate(graph.cliques) if set(asked) <= set(clique)]
    joined = graph if holders else Graph(graph.sizes, (*graph.cliques, together))
    if len(asked) > 1 and is_exact(graph) and not is_exact(joined):
        return _by_states(graph, theta, asked, names)
    if holders and not is_exact(graph):
        marginals = loopy(graph, theta)[0]
    else:
        check_exact(joined, names)
        padded = theta if holders else [*theta, np.zeros(joined.shape(together))]
        marginals = exact(joined, padded)[0]
    place = holders[0] if holders else joined.cliques.index(together)
    return sum_to(marginals[place], joined.cliques[place], asked)


def _by_states(graph: Graph, theta: list[FloatArray], asked: tuple[int, ...], names: Sequence[str]) -> FloatArray:
    """Return the marginal over `asked` from conditionals given each state of one of them, whose tables are smaller."""
    given = max(asked, key=lambda variable: graph.sizes[variable])
    cells = []
    for state, probability in enumerate(_queried(graph, theta, (given,), names)):
        smaller, potentials, left = _restricted(graph, theta, {given: state})
        others = tuple(left.index(variable) for variable in asked if variable != given)
        cells.append(probability * _queried(smaller, potentials, others, [names[variable] for variable in left]))
    return np.stack(cells, axis=asked.index(given))


def _mutual_information(joint: FloatArray) -> float:
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(joint > 0, joint * np.log(joint / independent), 0.0)
    return max(float(terms.sum()), 0.0)
