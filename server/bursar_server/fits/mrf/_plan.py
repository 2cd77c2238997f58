"""Plan of FitMRF: every check, cost and noise, from a request and the public schema. Reads no rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise

from bursar_ledger import Adjacency, Event
from bursar_models.mrf import MAX_CELLS, MAX_CLIQUE, MAX_TREE, Graph
from bursar_models.mrf._candidates import Clique
from bursar_models.mrf._graph import is_exact, largest_table, pairs_apart, tree_cells
from bursar_models.requests._mrf import HELD_OUT_SHARES, TREE_SHARES
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits._requests import LARGEST, Amount, Violations, amount_of, check_enum, check_or_zero, stop_if
from bursar_server.fits._seam import JSON, InvalidFieldsError, Plan, PublicTable, Released
from bursar_server.fits.mrf._expected import choosable, expected_of, memory_of
from bursar_server.fits.mrf._reuse import MOST_CELLS, Earlier, Kind, check_use, earlier_tables
from bursar_server.fits.mrf._rounds import MOST_DIRECT, MOST_WORK, Rounds
from bursar_server.fits.mrf._run import (
    Measurement,
    MRFSettings,
    Pairs,
    chain_measurements,
    table_measurement,
)
from bursar_server.fits.mrf._schema import (
    LESS,
    Wanted,
    candidates_of,
    check_candidates,
    check_chain_time,
    check_members,
    check_size,
    check_time,
    chosen,
    listed_cliques,
    too_dense,
    with_states,
)
from bursar_server.fits.mrf._selection import Selection
from bursar_server.fits.mrf._statistics import (
    Layout,
    firsts_statistic,
    table_bounds,
    tables_statistic,
    transitions_statistic,
)
from bursar_server.fits.mrf._wire import ESTIMATORS, INFERENCES, release_noise, table_noise
from bursar_server.vault import (
    Bounds,
    Noise,
    SelectionNoise,
    gaussian_for,
    laplace_for,
    noise_std,
    pure_selection_for,
    selection_for,
    sensitivity,
)

DEFAULT_SHARE = Fraction(1, 3)
"""Default share of the budget for the selection of a tree, tables of single columns included."""

SINGLES = Fraction(1, 2)
"""Part of that share for tables of single columns; the choices have the rest.

Measured with the Adult census (39,073 rows, 14 columns of at most 10 states; means of 4 runs of holdout log-likelihood
per row), one half of a third at epsilon 1 and 0.1 without delta: -12.39 and -13.30. At most 0.02 better at any other of
16 divisions, with shares of 0.2 to 0.7 and 0.15 to 0.7 of them for single columns; up to 1.6 worse where these have
little, because their noise looks like dependence. Under zCDP it matters less: -12.37 and -12.85, all of them from
-12.36 to -12.39 and from -12.82 to -13.03. Trees of 12 columns that were made for it, 20,000 rows, agree; there a share
of a fifth is a little better at epsilon 1 (losses of 0.027 and 0.033), and one of a half at 0.1 (0.82 and 0.91).
"""

CELL_COST = 0.4
"""Standard deviations of the noise on a cell by which each cell of a pair's table lowers its score.

An absolute error of a cell is 0.8 of them on average. In the same runs: -12.41, -12.39, -12.39 and -12.38 for 0, 0.24,
0.48 and 0.8 at epsilon 1, -13.37, -13.30, -13.26 and -13.28 at 0.1; -12.84, -12.73, -12.73 and -12.84 at (0.1, 1e-6).
"""

OF_TRANSITIONS = Fraction(9)
"""Precision of the table of transitions; that of first states is 1.

Measured with 10,000 paths of 24 steps among 10 states, loss of holdout log-likelihood per path at precisions 1, 3, 9,
30 and 100: 0.16, 0.12, 0.09, 0.09 and 0.07 at epsilon 1, and 2.5, 1.7, 1.5, 1.2 and 1.2 at 0.1; with 5,000 paths of 6
steps among 4 states 0.14, 0.16, 0.09, 0.11 and 0.11 at 0.1.
"""

OF_CHOICES = Fraction(1, 10)
"""Share of each round's price that its choice has; the table of the chosen pair has the rest."""

SINGLES_FOR, LEAST_SINGLES, MANY_SINGLES, MOST_SINGLES = Fraction(3), Fraction(1, 10), Fraction(1, 2), Fraction(4, 5)
"""Share of the budget for tables of single columns over what noise moves (`_drowned`), and its bounds; above the third
number it is what noise moves.

Columns that no clear pair covers keep the noise of these tables, so they weigh more where noise does. With 3/2, and one
round for each column at least, pairs of youth were further off than those of independent columns. Errors of pairs at
epsilon 0.1 then and now, means of 4 or 5 fits: youth 0.080 and 0.073 (independent 0.083), Adult 0.047 and 0.043, birds
0.062 and 0.060, marketing 0.156 and 0.158 (0.159), churn 0.101 and 0.102. With at most a half, and half a round for
each column at least, marketing at 0.05 (5,500 rows) had errors of 0.224 and now has 0.211 (independent 0.207; means of
6 and 4 fits, noise in floating point).
"""

ROUNDS_FOR, FEW_ROUNDS, LEAST_ROUNDS, MOST_ROUNDS = Fraction(1, 10), Fraction(1, 2), Fraction(1, 5), Fraction(6)
"""Rounds for each column times what noise moves, and their bounds; the lower one is the second number, or the third
over what noise moves where that is less. The upper one is less where `_most_rounds` says so.

More rounds are better tables of more pairs only where noise is small. Adult (39,074 rows, 14 columns) at epsilon 1,
two and three rounds for each column: mean error of all pairs 0.0126 and 0.0112. With a twentieth and a tenth of what
noise moves, medians of 2 to 4 fits with noise in floating point: marketing 0.0511 and 0.0407 at epsilon 1, 0.0705 and
0.0675 at 0.5; survey 0.0455 and 0.0390 at 0.1; Adult and stones at 0.1 the same within 2 %. Prices that double
whenever a chosen table moved the model by less than its noise: 0.0450 on marketing at 1.
With three and six rounds for each column, means of one to four fits: votes 0.0190 and 0.0174 at 0.5, 0.0144 and
0.0120 at 1, Adult and marketing at 1 0.0113 and 0.0110, 0.0419 and 0.0403, all three with 0.006 to 0.05 nats more.
"""

USUAL_ROUNDS, MOST_IN_ALL, HARDLY = Fraction(3), 100, Fraction(1, 300)
"""Rounds for each column that are made however many sets and columns there are; the most that go beyond them, as each
takes a tenth of a second of one CPU, and more where the model is large; and what noise may move where there are more
than the usual ones beside tables of all pairs.

These tell of the pairs that were not chosen. Errors of pairs with three and five rounds for each column, and nats of
the latter less those of the former: illness at epsilon 1, where noise moves 1/230, 0.0058 and 0.0062, -0.008 (medians
of three fits); crashes there 0.0068 both, -0.009; votes at 3, 1/420, 0.0058 and 0.0050, 0.020 (one fit each).
"""

DIRECT, MOST_MOVED = Fraction(3, 10), Fraction(1, 50)
"""Share of the budget for tables of all pairs, and the share of the rows that its noise may move in the average one.

A model of few pairs has an error that no budget lowers; these tables have none but noise. On marketing at epsilon 10 a
twenty-fifth would release them: errors of pairs 0.012 instead of 0.015, of triples 0.047 instead of 0.043 (medians of 2
and 3 fits). Two fits each elsewhere, pairs and nats: youth at 3 0.0146 instead of 0.0156 and 0.017 worse, votes at 1
0.0122 instead of 0.0146 and 0.01 worse, stones at 0.5 0.0164 either way and 0.033 worse, wives at 1 0.0109 instead of
0.0104 and 0.027 worse.
"""

CELL_DISCOUNT = 0.4
"""Standard deviations of the noise on a cell that each cell of a pair's table adds to its discount; as `CELL_COST`."""

_UNKNOWN = Fraction(1, 20)
"""Share of the rows that noise is taken to move where no number of rows is public: two rounds for each column."""

_NAMED = 8
"""Number of columns that an error names; of more it says how many: a line or two."""

_CHOSEN = ("tree", "auto")
"""Kinds of graphs whose pairs are chosen in the run."""

MOST_NUMBERS = MOST_CELLS
"""Maximum number of numbers in an answer: the cells of its tables, potentials and marginals; they fit into 64 MiB."""


@dataclass(frozen=True, kw_only=True)
class MRFPlan(Plan):
    """Plan with the settings of its run.

    Attributes:
        settings: settings of the run.
        null_category: category of a chain that means "not observed"; empty if there is none.
    """

    settings: MRFSettings
    null_category: str


@dataclass(frozen=True)
class _Asked:
    """Checked request.

    Attributes:
        kind: "cliques", "tree", "auto" or "chain".
        layout: layout of the rows.
        wanted: cliques with a potential, with single columns outside of them; elsewhere all single columns.
        null: state of a chain that means "not observed"; None if there is none.
        rounds: sets to choose from if the kind is "auto"; else None.
    """

    kind: str
    layout: Layout
    wanted: tuple[Wanted, ...]
    null: int | None = None
    rounds: Rounds | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables."""
        return tuple(variable.name for variable in self.layout.variables)

    def clique(self, columns: Sequence[str]) -> tuple[int, ...]:
        """Return the indices of variables, ascending."""
        return tuple(sorted(self.names.index(column) for column in columns))

    def graph(self) -> Graph:
        """Return the graph; where pairs are chosen, that of all candidates."""
        cliques: Sequence[tuple[int, ...]] = [self.clique(one.columns) for one in self.wanted]
        if self.kind == "tree":
            cliques = list(combinations(range(len(self.names)), 2))
        elif self.rounds is not None:
            cliques = self.rounds.largest
        return Graph(self.layout.sizes, tuple(cliques))


@dataclass(frozen=True)
class _New:
    """New releases."""

    measurements: tuple[Measurement, ...]
    pairs: Pairs | None
    held_out: Pairs | None = None


@dataclass(frozen=True)
class _Payment:
    """Budget in a dataset's terms."""

    amount: Amount
    table: PublicTable

    def noise(self, bounds: Bounds, share: Fraction) -> Noise:
        """Return the least noise on a sum for a share. Raises ValueError if the share is too small."""
        calibrate = laplace_for if self.amount.pure else gaussian_for
        return calibrate(sensitivity(bounds, self.table.adjacency, self.table.unit_cap), share * self.amount.value)

    def choice(self, bounds: Bounds, share: Fraction) -> SelectionNoise:
        """Return the least noise on scores for a share. Raises ValueError if the share is too small."""
        calibrate = pure_selection_for if self.amount.pure else selection_for
        return calibrate(sensitivity(bounds, self.table.adjacency, self.table.unit_cap), share * self.amount.value)

    def shares(self, precisions: Sequence[Fraction]) -> list[Fraction]:
        """Return the shares with which the standard deviations of tables are as 1 / sqrt(precision).

        Gaussian noise has the variance sensitivity / (2 rho), Laplace noise the deviation sqrt(2) sensitivity /
        epsilon. Any positive weights are as private.
        """
        weights = [Fraction(math.sqrt(p)) if self.amount.pure else p for p in precisions]
        total = sum(weights)
        return [weight / total for weight in weights]


def plan(request: fit_pb2.FitMRFRequest, table: PublicTable, released: Released) -> MRFPlan:
    """Check a request against the public schema and decide every release.

    Raises InvalidFieldsError naming every field that is wrong.
    """
    violations: Violations = []
    # Without a spend only earlier releases are used: that fit is free, reads no row and has no amount to check.
    paid = request.HasField("spend") or not request.reuse
    amount = amount_of(request.spend, violations) if paid else None
    _check_choices(request, violations)
    asked = _asked(request, table, violations)
    stop_if(violations)
    _check_graph(request, asked, violations)
    kind = Kind(asked.layout.shares, asked.names if asked.kind == "chain" else None, request.chain.null_category)
    earlier = earlier_tables(request, kind, with_states(table), released, violations)
    check_use(earlier, [one.columns for one in asked.wanted], violations)
    due = _due(asked, earlier)
    _check_spend(amount, bool(due) or asked.kind in _CHOSEN, violations)
    stop_if(violations)
    new = _New((), None) if amount is None else _new(request, _Payment(amount, table), asked, due)
    settings = _settings(request, table, asked, earlier, new)
    _check_answer(settings, violations)
    stop_if(violations)
    events, noise = _releases(settings, table)
    return MRFPlan(
        columns=asked.layout.columns,
        events=events,
        iterations=len(events) + settings.here or 1,
        noise=noise,
        parameters=_parameters(request, asked, new),
        expected=expected_of(settings, table),
        warnings=_warnings(request, table, asked, settings),
        memory=memory_of(settings),
        of_entry=0 if events else request.reuse[0],
        settings=settings,
        null_category=request.chain.null_category,
    )


def _check_choices(request: fit_pb2.FitMRFRequest, violations: Violations) -> None:
    for field, enum in (
        ("estimator", fit_pb2.MRFEstimator),
        ("inference", fit_pb2.MRFInference),
        ("unit_weights", fit_pb2.UnitWeights),
    ):
        check_enum(field, enum, getattr(request, field), violations)
    check_or_zero("held_out", request.held_out, HELD_OUT_SHARES, "for no test of the graph", violations)
    if not 0 <= request.regularization < LARGEST:
        text = f"expected a positive number, or 0 for the estimator's own, got {request.regularization}"
        violations.append(("regularization", text))
    check_or_zero("tree.share", request.tree.share, TREE_SHARES, "for a third", violations)  # 0 of other graphs
    if request.WhichOneof("graph") == "chain" and request.inference == fit_pb2.MRF_INFERENCE_LOOPY:
        violations.append(("inference", "of a homogeneous chain is exact; leave it out"))


def _asked(request: fit_pb2.FitMRFRequest, table: PublicTable, violations: Violations) -> _Asked:
    """Return the checked request; incomplete where it is wrong."""
    # Where a unit has one row at most, both weights are the same, and the simpler one needs no column.
    shares = table.unit_cap > 1 and request.unit_weights != fit_pb2.UNIT_WEIGHTS_ROWS
    kind, before = request.WhichOneof("graph") or "auto", len(violations)
    if kind == "chain":
        return _asked_chain(request, table, shares, violations)
    listed = listed_cliques(request.cliques, violations) if kind == "cliques" else ()
    covered = {column for one in listed for column in one.columns}
    names = list(request.columns)
    if not names:
        names = [name for name in with_states(table) if name in covered or kind != "cliques"]
    check_members(listed, names, table, violations)
    if not (kind == "cliques" and len(violations) > before):  # there may be no columns left
        variables = chosen("columns", names, table, violations)
    if len(violations) > before:
        return _Asked("cliques", Layout((), shares), ())
    if kind in _CHOSEN and len(names) <= 2:  # there is nothing to choose
        listed, covered = (Wanted(tuple(names), Fraction(1)),), set(names)
    singles = [Wanted((name,), Fraction(1)) for name in names if name not in covered]
    rounds = candidates_of(request.auto, variables, violations) if kind == "auto" else None
    if kind in _CHOSEN and not listed:
        return _Asked(kind, Layout(variables, shares), tuple(singles), rounds=rounds)
    return _Asked("cliques", Layout(variables, shares), (*listed, *singles))


def _asked_chain(request: fit_pb2.FitMRFRequest, table: PublicTable, shares: bool, violations: Violations) -> _Asked:
    asked = request.chain
    if request.columns:
        violations.append(("columns", "are those of the chain; leave them out"))
    if not len(asked.columns) >= 2:
        violations.append(("chain.columns", f"expected at least two, got {len(asked.columns)}"))
    variables = chosen("chain.columns", asked.columns, table, violations)
    if any((a.states, a.edges) != (b.states, b.edges) for a, b in pairwise(variables)):
        text = "expected columns that all have the same categories in the same order, or the same bins"
        violations.append(("chain.columns", text))
    null = None
    if asked.null_category and variables:
        if asked.null_category in variables[0].states:
            null = variables[0].states.index(asked.null_category)
        else:
            violations.append(("chain.null_category", "expected a category of the columns, or none"))
    singles = tuple(Wanted((variable.name,), Fraction(1)) for variable in variables)
    return _Asked("chain", Layout(variables, shares), singles, null)


def _check_graph(request: fit_pb2.FitMRFRequest, asked: _Asked, violations: Violations) -> None:
    """Check that tables, and the work of inference on them, are within the limits."""
    variables = asked.layout.variables
    if asked.kind == "chain":
        check_size("chain.columns", Graph(asked.layout.sizes[:2], ((0, 1),)), variables, violations)
        check_chain_time(len(variables), variables, violations)
        return
    if request.HasField("spend") and request.held_out and _is_testable(asked):
        _check_test(asked, violations)
    field, graph = request.WhichOneof("graph") or "graph", asked.graph()
    if asked.rounds is not None:
        check_candidates(field, asked.rounds, asked.layout, violations)
        return
    check_size(field, graph, variables, violations)
    exact = request.inference == fit_pb2.MRF_INFERENCE_EXACT and asked.kind == "cliques"
    if exact and (dense := too_dense(graph, variables)):
        violations.append((field, dense))
    elif asked.kind == "cliques":  # trees end in time whenever their tables fit into an answer
        check_time(field, graph, INFERENCES[request.inference], variables, violations)


def _check_test(asked: _Asked, violations: Violations) -> None:
    """Check that a test of the graph, which compares the tables of all pairs of columns, ends in time and memory."""
    sizes, graph = asked.layout.sizes, asked.graph()
    pairs = [a * b for a, b in combinations(sizes, 2)]
    # Chosen pairs are limited as candidates. What is listed may have a larger model, which is joined with each column.
    cells, largest = (tree_cells(graph), largest_table(graph)[0]) if asked.kind == "cliques" else (0, 0)
    small = sum(pairs) <= MAX_CELLS and max(pairs) <= MAX_CLIQUE
    if not (small and cells * sum(sizes) <= MOST_WORK and largest * max(sizes) <= MAX_TREE):
        text = (
            f"a test compares the tables of all pairs of columns, here {sum(pairs):,} cells, the largest "
            f"{max(pairs):,}, with a model: more than ends in time and memory. Leave the test out, leave out columns "
            "or cliques, or give columns fewer bins"
        )
        violations.append(("held_out", text))


def _due(asked: _Asked, earlier: Earlier) -> tuple[Wanted, ...]:
    """Return the tables to be charged, by their columns; for a tree those before the choices."""
    if asked.kind == "chain" and earlier.tables:
        return ()
    return tuple(one for one in asked.wanted if not earlier.covers(one.columns))


def _check_spend(amount: Amount | None, needed: bool, violations: Violations) -> None:
    """Check that there is a budget exactly if there are new tables."""
    if needed and amount is None:
        text = "expected one of rho, epsilon_delta, epsilon: the entries to reuse do not have all tables of this graph"
        violations.append(("spend", text))
    if not needed and amount is not None:
        text = "all tables of this graph are there already and cost nothing; leave spend out, or reuse fewer entries"
        violations.append(("spend", text))


def _new(request: fit_pb2.FitMRFRequest, payment: _Payment, asked: _Asked, due: tuple[Wanted, ...]) -> _New:
    """Return the releases. Raises InvalidFieldsError if the budget is too small."""
    try:
        if asked.kind == "chain":
            return _New(_new_chain(payment, asked), None)
        share = Fraction(request.held_out) if _is_testable(asked) else Fraction(0)
        held_out = _new_held_out(payment, asked, share) if share else None
        # The test of the graph is paid for first; the graph itself gets what remains.
        payment = replace(payment, amount=replace(payment.amount, value=(1 - share) * payment.amount.value))
        if asked.kind == "tree":
            new = _new_tree(payment, asked, due, Fraction(request.tree.share) or DEFAULT_SHARE)
        elif asked.rounds is not None:
            new = _new_rounds(payment, asked, due, asked.rounds)
        else:
            new = _New(_new_tables(payment, asked, due, Fraction(1)), None)
        return replace(new, held_out=held_out)
    except ValueError as error:
        raise InvalidFieldsError(("spend", str(error))) from None


def _is_testable(asked: _Asked) -> bool:
    """Return whether two columns may be in no clique together, and the model of the rest is exact."""
    if asked.kind in _CHOSEN:
        return len(asked.names) > 2
    graph = asked.graph()
    return is_exact(graph) and bool(pairs_apart(graph))


def _new_held_out(payment: _Payment, asked: _Asked, share: Fraction) -> Pairs:
    """Return the choice of the pair that tests the graph, and the noise of its table, as one round."""
    bounds = table_bounds(asked.layout)
    noise = payment.noise(bounds, share * (1 - OF_CHOICES))
    cost = CELL_DISCOUNT * noise_std(noise, asked.layout.lattice)
    return Pairs(Selection(1, payment.choice(bounds, share * OF_CHOICES), cost), noise)


def _new_tables(payment: _Payment, asked: _Asked, due: tuple[Wanted, ...], share: Fraction) -> tuple[Measurement, ...]:
    bounds, shares = table_bounds(asked.layout), payment.shares([one.precision for one in due])
    return tuple(
        table_measurement(asked.layout, asked.clique(one.columns), payment.noise(bounds, share * part))
        for one, part in zip(due, shares, strict=True)
    )


def _new_chain(payment: _Payment, asked: _Asked) -> tuple[Measurement, ...]:
    first, transitions = payment.shares([Fraction(1), OF_TRANSITIONS])
    statistics = firsts_statistic(asked.layout, asked.null), transitions_statistic(asked.layout, asked.null)
    noises = [payment.noise(s.bounds, share) for s, share in zip(statistics, (first, transitions), strict=True)]
    return chain_measurements(asked.layout, asked.null, (noises[0], noises[1]))


def _new_tree(payment: _Payment, asked: _Asked, due: tuple[Wanted, ...], share: Fraction) -> _New:
    bounds, times = table_bounds(asked.layout), len(asked.names) - 1
    singles = share * SINGLES if due else Fraction(0)
    measurements = _new_tables(payment, asked, due, singles)
    pair_noise = payment.noise(bounds, (1 - share) / times)
    cost = CELL_COST * noise_std(pair_noise, asked.layout.lattice)
    selection = Selection(times, payment.choice(bounds, (share - singles) / times), cost)
    return _New(measurements, Pairs(selection, pair_noise))


def _new_rounds(payment: _Payment, asked: _Asked, due: tuple[Wanted, ...], rounds: Rounds) -> _New:
    """Return tables of single columns and rounds; all rounds have the same price. Uses public numbers only."""
    bounds, drowned = table_bounds(asked.layout), _drowned(payment, asked, rounds)
    direct, sets = _direct(payment, asked, rounds, drowned)
    left = 1 if direct is None else 1 - DIRECT
    most = max(MANY_SINGLES, min(drowned, MOST_SINGLES))
    singles = left * min(max(SINGLES_FOR * drowned, LEAST_SINGLES), most) if due else Fraction(0)
    times = _times(asked.layout, rounds, drowned, beside=direct is not None)
    if not rounds.fits(asked.layout, times):
        text = f"choices among {len(rounds.cliques):,} sets take too long{_those_that_fit(payment, asked, rounds)}"
        raise InvalidFieldsError(("graph", f"{text}; {LESS}, or ask for a tree"))
    measurements = _new_tables(payment, asked, due, singles)
    each = (left - singles) / times
    noise = payment.noise(bounds, each * (1 - OF_CHOICES))
    cost = CELL_DISCOUNT * noise_std(noise, asked.layout.lattice)
    choices = Selection(times, payment.choice(bounds, each * OF_CHOICES), cost)
    return _New(measurements, Pairs(choices, noise, rounds, direct, sets))


def _times(layout: Layout, rounds: Rounds, drowned: Fraction, *, beside: bool) -> int:
    """Return the number of rounds, by the share of the rows that noise moves in a table.

    Args:
        layout: layout of the rows.
        rounds: sets to choose from.
        drowned: that share.
        beside: True if tables of all pairs, or larger sets, are released beside the rounds.
    """
    least = min(FEW_ROUNDS, LEAST_ROUNDS / drowned)
    wanted = math.ceil(rounds.columns * max(ROUNDS_FOR / drowned, least))
    usual = math.ceil(rounds.columns * USUAL_ROUNDS)
    most = usual if beside and drowned > HARDLY else _most_rounds(layout, rounds)
    times = min(wanted, max(usual, most))
    return times if rounds.fits(layout, times) else min(times, usual)


def _most_rounds(layout: Layout, rounds: Rounds) -> int:
    """Return the most rounds beyond the usual ones: one for each set, where all tables together are small."""
    small = sum(math.prod(layout.shape(one)) for one in rounds.cliques) <= MOST_DIRECT
    return min(math.ceil(rounds.columns * MOST_ROUNDS), len(rounds.cliques), MOST_IN_ALL) if small else 0


def _those_that_fit(payment: _Payment, asked: _Asked, rounds: Rounds) -> str:
    """Return which columns to leave out, those of most states first, so that the others can be chosen from."""
    narrow = sorted(range(len(asked.names)), key=lambda variable: asked.layout.sizes[variable])
    for number in range(len(narrow) - 1, 2, -1):
        kept = sorted(narrow[:number])
        fewer = replace(asked, layout=replace(asked.layout, variables=tuple(asked.layout.variables[i] for i in kept)))
        left = rounds.among(kept)
        if left.cliques and left.fits(
            fewer.layout, _times(fewer.layout, left, _drowned(payment, fewer, left), beside=False)
        ):
            out = [asked.names[i] for i in sorted(narrow[number:])]
            most = f"the {len(out)} columns of most states" if len(out) > _NAMED else ", ".join(out)
            return f"; without {most} they do not"
    return ""


def _direct(
    payment: _Payment, asked: _Asked, rounds: Rounds, drowned: Fraction
) -> tuple[Measurement | None, tuple[Clique, ...]]:
    """Return the tables of the largest sets to choose from, or else of all pairs, and these sets.

    None and no sets where both, or their noise, are too large. By default the largest sets are all pairs.
    """
    if payment.amount.pure or not payment.table.rows:
        return None, ()
    for sets in dict.fromkeys((rounds.largest, rounds.pairs)):
        # A table's Gaussian noise is as 1 / sqrt(its share), and `drowned` is for one table a column, of a pair.
        larger = _mean_cells(asked.layout, sets) / _mean_cells(asked.layout, rounds.pairs)
        moved = drowned * larger * Fraction(math.sqrt(len(sets) / (rounds.columns * DIRECT)))
        if moved <= MOST_MOVED and (statistic := tables_statistic(asked.layout, sets)).size <= MOST_DIRECT:
            return Measurement((), statistic, payment.noise(statistic.bounds, DIRECT)), sets
    return None, ()


def _drowned(payment: _Payment, asked: _Asked, rounds: Rounds) -> Fraction:
    """Return the expected share of the rows that noise moves in the average pair's table, if there is one a column.

    Half of the total absolute noise, as in `_expected`; `_UNKNOWN` if nobody says how many rows there are.
    """
    people = payment.table.rows
    if not people:
        return _UNKNOWN
    layout = asked.layout
    noise = payment.noise(table_bounds(layout), Fraction(1, rounds.columns))
    moved = Fraction(0.8 * noise_std(noise, layout.lattice)) * _mean_cells(layout, rounds.pairs) / 2
    return moved * (payment.table.unit_cap if layout.shares else 1) / people


def _mean_cells(layout: Layout, cliques: Sequence[tuple[int, ...]]) -> Fraction:
    return Fraction(sum(math.prod(layout.shape(one)) for one in cliques), len(cliques))


def _settings(
    request: fit_pb2.FitMRFRequest, table: PublicTable, asked: _Asked, earlier: Earlier, new: _New
) -> MRFSettings:
    public = table.adjacency is Adjacency.REPLACE_ONE and table.unit_cap == 1
    return MRFSettings(
        layout=asked.layout,
        cliques=asked.graph().cliques if asked.kind == "cliques" else (),
        measurements=new.measurements,
        pairs=new.pairs,
        chain=asked.kind == "chain",
        null=asked.null,
        held_out=new.held_out,
        earlier=earlier.tables,
        public_rows=table.rows if public else None,
        estimator=ESTIMATORS[request.estimator],
        regularization=request.regularization or None,
        inference=INFERENCES[request.inference],
        here=not request.estimate_on_client,
    )


def _check_answer(settings: MRFSettings, violations: Violations) -> None:
    """Check that the answer fits into a message."""
    layout = settings.layout
    if settings.chain:
        cells = layout.sizes[0] * (layout.sizes[0] + 1)
    elif settings.pairs is not None:
        # Which tables will be chosen is not known before the debit: the largest that may be have to fit.
        pairs = sorted(map(math.prod, map(layout.shape, choosable(settings))), reverse=True)
        direct = sum(map(math.prod, map(layout.shape, settings.pairs.direct_sets)))
        cells = sum(pairs[: settings.pairs.selection.times]) + direct + sum(layout.sizes)
    else:
        cells = sum(math.prod(layout.shape(clique)) for clique in settings.cliques)
    tables = sum(one.statistic.size for one in settings.measurements) + (cells if settings.pairs else 0)
    if settings.held_out is not None:
        tables += _largest_pair(layout)
    numbers = 2 * cells + tables + sum(table.counts.size for table in settings.earlier)
    if not numbers <= MOST_NUMBERS:
        text = (
            f"tables, potentials and marginals have {numbers:,} numbers together, more than the limit of "
            f"{MOST_NUMBERS:,} for an answer; leave out cliques, columns or entries, or give columns fewer bins"
        )
        violations.append(("graph", text))


def _largest_pair(layout: Layout) -> int:
    return math.prod(sorted(layout.sizes)[-2:])


def _releases(
    settings: MRFSettings, table: PublicTable
) -> tuple[tuple[Event, ...], tuple[types_pb2.ReleaseNoise, ...]]:
    """Return events in the order in which the run makes them, and the noise for people."""
    adjacency, cap, layout = table.adjacency, table.unit_cap, settings.layout
    events = [one.event(adjacency, cap) for one in settings.measurements]
    noise = [release_noise(one) for one in settings.measurements]
    if settings.pairs is not None:
        selection, pair = settings.pairs.selection, table_measurement(layout, (0, 1), settings.pairs.noise)
        times = selection.times
        choices, tables = [selection.event(layout, adjacency, cap)], [pair.event(adjacency, cap)]
        # A tree is chosen as a whole before its tables are read; rounds choose and read by turns.
        events += choices * times + tables * times if settings.pairs.rounds is None else (choices + tables) * times
        largest = max(map(math.prod, map(layout.shape, choosable(settings))))
        one = "pair" if all(len(candidate) == 2 for candidate in choosable(settings)) else "set of columns"
        noise += [
            types_pb2.ReleaseNoise(name=f"choice of a {one}", size=1, count_std=selection.std(layout), times=times),
            types_pb2.ReleaseNoise(name=f"table of a chosen {one}", size=largest, count_std=pair.std, times=times),
        ]
        if settings.pairs.direct is not None:
            events.append(settings.pairs.direct.event(adjacency, cap))
            noise.append(release_noise(settings.pairs.direct))
    if settings.held_out is not None:
        selection, pair = settings.held_out.selection, table_measurement(layout, (0, 1), settings.held_out.noise)
        events += [selection.event(layout, adjacency, cap), pair.event(adjacency, cap)]
        size, std = _largest_pair(layout), selection.std(layout)
        noise += [
            types_pb2.ReleaseNoise(name="choice of the pair held out", size=1, count_std=std, times=1),
            types_pb2.ReleaseNoise(name="table held out", size=size, count_std=pair.std, times=1),
        ]
    return tuple(events), tuple(noise or map(table_noise, settings.earlier))


def _warnings(
    request: fit_pb2.FitMRFRequest, table: PublicTable, asked: _Asked, settings: MRFSettings
) -> tuple[str, ...]:
    """Return warnings for the analyst before the debit."""
    warnings = []
    automatic = request.inference == fit_pb2.MRF_INFERENCE_UNSPECIFIED and asked.kind == "cliques"
    if automatic and (dense := too_dense(asked.graph(), asked.layout.variables)):
        warnings.append(f"marginals will be approximate, by loopy belief propagation: {dense}")
    drowned = [
        one.statistic.name
        for one in settings.measurements
        if table.rows is not None and one.std * one.statistic.size > table.rows
    ]
    if drowned:
        warnings.append(
            f"an average cell has fewer rows than the noise on it in: {'; '.join(drowned)}. What would help: a larger "
            "spend, fewer tables, fewer columns in a table, fewer bins"
        )
    return tuple(warnings)


def _parameters(request: fit_pb2.FitMRFRequest, asked: _Asked, new: _New) -> dict[str, JSON]:
    """Return public parameters for the ledger's entry, beside the events."""
    return {
        "columns": list(asked.names),
        "graph": asked.kind,
        "tables": [list(one.columns) for one in new.measurements],
        "all_pairs": new.pairs is not None and new.pairs.direct is not None,
        "rounds": None if asked.rounds is None or new.pairs is None else new.pairs.selection.times,
        "workload": [[list(one.columns), one.weight or 1.0] for one in request.auto.workload],
        "all_sets_of": (0 if request.auto.workload else request.auto.all_sets_of or 2) if asked.rounds else None,
        "held_out": request.held_out if new.held_out else None,
        "tree_share": (request.tree.share or float(DEFAULT_SHARE)) if asked.kind == "tree" else None,
        "null_category": request.chain.null_category or None,
        "estimator": ESTIMATORS[request.estimator],
        "regularization": request.regularization,
        "inference": INFERENCES[request.inference],
        "unit_weights": "shares" if asked.layout.shares else "rows",
        "reuse": list(request.reuse),
    }
