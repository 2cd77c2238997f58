"""A plan of a field refuses what is wrong by its name, and its events cost what was offered, not a bit more."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from google.protobuf.message import Message

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent, SelectionEvent
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import UNIT_ROWS, CodedColumn, InvalidFieldsError, PublicTable, mrf
from bursar_server.fits.mrf._plan import (
    DEFAULT_SHARE,
    DIRECT,
    LEAST_SINGLES,
    MANY_SINGLES,
    MOST_NUMBERS,
    MOST_SINGLES,
    OF_CHOICES,
    SINGLES_FOR,
)
from bursar_server.fits.mrf._reuse import MOST_REUSED
from bursar_server.fits.mrf._rounds import Rounds
from bursar_server.fits.mrf._schema import MOST_CLIQUES
from bursar_server.fits.mrf._wire import table_from
from tests.each import each
from tests.server.fits.fielding import AR, PAIRS, PURE, RHO, RO, cliques, nothing, people, plan, request, rows_of, run
from tests.server.fits.running import nothing_released

NAN, INF = math.nan, math.inf
CHAIN = people(s0=3, s1=3, s2=3, s3=3, other=2)


def workload(*columns: str, weights: Sequence[float] = ()) -> fit_pb2.ChooseCliques:
    """Sets of columns with names of one letter."""
    given = [*weights, *[0.0] * len(columns)]
    return fit_pb2.ChooseCliques(
        workload=[fit_pb2.WeightedSet(columns=one, weight=w) for one, w in zip(columns, given, strict=False)]
    )


def same_states(public: PublicTable) -> PublicTable:
    """Return columns whose categories are those of the first that has as many."""
    first = {len(c.categories): c.categories for c in reversed(public.categorical)}
    columns = tuple(CodedColumn(c.name, first[len(c.categories)]) for c in public.categorical)
    return PublicTable(public.name, public.numeric, public.adjacency, public.unit_cap, public.rows, columns)


PATHS = same_states(CHAIN)


def path(*columns: str, **fields: Any) -> fit_pb2.HomogeneousChain:
    """A chain over these columns; over all four of `PATHS` if there are none."""
    return fit_pb2.HomogeneousChain(columns=columns or ("s0", "s1", "s2", "s3"), **fields)


def refused(public: PublicTable | None = None, released: Any = nothing_released, **fields: Any) -> list[str]:
    """Names of the fields for which a request is refused."""
    with pytest.raises(InvalidFieldsError) as caught:
        plan(public, released, **fields)
    names = [name for name, _ in caught.value.violations]
    assert len(set(caught.value.violations)) == len(names)
    return names


def message_of(public: PublicTable | None = None, released: Any = nothing_released, **fields: Any) -> str:
    """Return what a refused request is told."""
    with pytest.raises(InvalidFieldsError) as caught:
        plan(public, released, **fields)
    return str(caught.value)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("spend", {"spend": None}),
    ("spend", {"spend": types_pb2.Spend(epsilon=1e-30), "tree": {}}),
    *(("auto.workload[1].columns", {"auto": workload("ab", one)}) for one in ("", "a", "aa", "abb", "aq", "ay")),
    *(("auto.workload[0].weight", {"auto": workload("ab", weights=[x])}) for x in (-1.0, 1e-7, 1e7)),
    ("auto.workload", {"auto": workload(*["ab"] * (MOST_CLIQUES + 1))}),
    ("auto.workload", {"auto": workload("a" * 10_000)}),
    *(("auto.all_sets_of", {"auto": {"all_sets_of": k}}) for k in (1, 4, 2**32 - 1)),
    ("auto.all_sets_of", {"auto": {"all_sets_of": 3, "workload": [{"columns": ["a", "b"]}]}}),
    ("regularization", {"regularization": -1.0}),
    ("columns[1]", {"independent": {}, "columns": ["a", "y"]}),
    ("columns[0]", {"cliques": cliques("ab"), "columns": ["q", "a", "b"]}),
    ("cliques", {"cliques": fit_pb2.Cliques()}),
    ("cliques", {"cliques": cliques(*["ab"] * (MOST_CLIQUES + 1))}),
    ("cliques[1].columns", {"cliques": cliques("ab", "")}),
    ("cliques[1].columns", {"cliques": cliques("ab", "aca")}),
    ("cliques[1].columns", {"cliques": cliques("ab", "ba")}),
    ("cliques[1].columns[1]", {"cliques": cliques("ab", "aq")}),
    ("cliques[1].columns[0]", {"cliques": cliques("ab", "yb")}),
    ("cliques[1].columns", {"cliques": cliques("ab", "bc"), "columns": ["a", "b"]}),
    *(("cliques[0].precision", {"cliques": cliques("ab", precisions=[x])}) for x in (-1.0, 1e-7, 1e7)),
    *(("tree.share", {"tree": {"share": x}}) for x in (-1.0, 0.04, 0.91)),
    *(("held_out", {"held_out": x}) for x in (-1.0, 0.001, 0.51)),
    ("reuse", {"reuse": list(range(1, MOST_REUSED + 2))}),
    ("reuse", {"reuse": [1, 1]}),
    ("reuse[0]", {"reuse": [2**64 - 1]}),
]


@each(("field", "fields"), WRONG, ids=lambda value: str(value).replace("\n", " ")[:60])
def test_a_wrong_field_is_named(field: str, fields: dict[str, Any]) -> None:
    """Everything in a request is checked before the debit."""
    assert field in refused(**fields)


WRONG_CHAINS: list[tuple[str, dict[str, Any]]] = [
    ("chain.columns", {"chain": fit_pb2.HomogeneousChain()}),
    ("chain.columns", {"chain": path("s0")}),
    ("chain.columns", {"chain": path("s0", "s0")}),
    ("chain.columns", {"chain": path("s0", "other")}),
    ("chain.columns[1]", {"chain": path("s0", "y")}),
    ("chain.null_category", {"chain": path(null_category="nowhere")}),
    ("columns", {"chain": path(), "columns": ["s0"]}),
    ("inference", {"chain": path(), "inference": fit_pb2.MRF_INFERENCE_LOOPY}),
]


@pytest.mark.parametrize(("field", "fields"), WRONG_CHAINS, ids=lambda value: str(value).replace("\n", " ")[:60])
def test_a_wrong_field_of_a_chain_is_named(field: str, fields: dict[str, Any]) -> None:
    """Its columns have the same categories, the null one among them."""
    assert plan(PATHS, chain=path()).events
    assert field in refused(PATHS, **fields)


def test_all_wrong_fields_are_named_at_once() -> None:
    """A request can be corrected in one go."""
    names = refused(spend=types_pb2.Spend(rho=NAN), cliques=cliques("ab", "aq", precisions=[-1.0]), estimator=9)
    assert set(names) == {"spend.rho", "cliques[0].precision", "cliques[1].columns[1]", "estimator"}
    assert set(refused(independent={}, columns=["a", "q"], inference=9)) == {"columns[1]", "inference"}


def test_columns_without_states_are_told_what_is_missing() -> None:
    """A numeric column needs bins; who has none is told to ask for them."""
    assert "has no bins in the schema" in message_of(cliques=cliques("ay"))
    assert refused(PublicTable("t", (), RO, 1, 10), independent={}) == ["columns"]


def wide(count: int, size: int) -> PublicTable:
    """So many columns v0, v1, ... of so many categories."""
    columns = tuple(CodedColumn(f"v{i}", tuple(map(str, range(size)))) for i in range(count))
    return PublicTable("people", people().numeric, RO, 1, 5000, columns)


def candidates_among(public: PublicTable, auto: Any) -> dict[int, int]:
    """Return how many sets of each size a plan may choose from."""
    pairs = plan(public, auto=auto).settings.pairs
    assert pairs is not None
    assert pairs.rounds is not None
    return Counter(map(len, pairs.rounds.cliques))


def candidates(**fields: Any) -> Rounds:
    """Sets that a plan may choose from."""
    pairs = plan(**fields).settings.pairs
    assert pairs is not None
    assert pairs.rounds is not None
    return pairs.rounds


def every_pair(count: int) -> fit_pb2.Cliques:
    """The complete graph over v0, v1, ..."""
    names = [f"v{i}" for i in range(count)]
    return cliques(*((a, b) for i, a in enumerate(names) for b in names[i + 1 :]))


def test_a_graph_that_is_too_dense_is_refused_with_its_table_and_a_remedy() -> None:
    """The refusal comes before the debit; left to the server, inference is loopy, and the preview says so."""
    public, dense = wide(9, 10), every_pair(9)
    exact = fit_pb2.MRF_INFERENCE_EXACT
    assert refused(public, cliques=dense, inference=exact) == ["cliques"]
    text = message_of(public, cliques=dense, inference=exact)
    assert "needs a table of 1.0e9 cells after triangulation" in text
    assert "remove a clique among (v0, v1)" in text
    (warning,) = plan(public, cliques=dense).warnings
    assert "1.0e9 cells" in warning
    assert plan(public, cliques=dense, inference=fit_pb2.MRF_INFERENCE_LOOPY).warnings == ()
    assert plan(public, cliques=cliques(("v0", "v1"), ("v1", "v2")), inference=exact).events


def test_limits_on_sizes_hold_before_the_debit() -> None:
    """Cells of a clique, of all together, of what an answer has, and the number of columns (x has states, too)."""
    assert refused(wide(3, 1100), cliques=cliques(("v0", "v1"))) == ["cliques"]
    assert refused(wide(3, 1100), tree={}) == ["tree"]
    assert refused(people(s0=1100, s1=1100), chain=path("s0", "s1")) != []
    assert refused(same_states(people(s0=1100, s1=1100)), chain=path("s0", "s1")) == ["chain.columns"]
    assert refused(wide(64, 2), tree={}) == ["columns"]
    assert refused(wide(62, 60), tree={}) == ["tree"]
    star = [("v0", f"v{i}") for i in range(1, 6)]
    assert 3 * len(star) * 700**2 > MOST_NUMBERS
    assert refused(wide(6, 700), cliques=cliques(*star)) == ["graph"]
    assert plan(wide(63, 2), tree={}).events


def test_what_would_hold_the_server_is_refused() -> None:
    """Loopy inference of large tables, and long chains among many states; less of either is planned."""
    ring = cliques(("v0", "v1"), ("v1", "v2"), ("v0", "v2"))
    assert refused(wide(3, 800), cliques=ring) == ["cliques"]
    assert "too long to learn from with loopy inference" in message_of(wide(3, 800), cliques=ring)
    assert plan(wide(3, 400), cliques=ring, inference=fit_pb2.MRF_INFERENCE_LOOPY).events
    steps = [f"s{i}" for i in range(60)]
    sizes: dict[str, Any] = dict.fromkeys(steps, 800)
    paths = same_states(people(**sizes))
    assert refused(paths, chain=path(*steps)) == ["chain.columns"]
    assert "among 800 states takes too long" in message_of(paths, chain=path(*steps))
    assert plan(paths, chain=path(*steps[:20])).events


def costs(made: mrf.MRFPlan, pure: bool) -> list[Fraction]:
    """Rho, or epsilon, of each event from its own numbers."""
    found = []
    for event in made.events:
        if isinstance(event, SelectionEvent):
            found.append(event.bounded_range if pure else event.bounded_range**2 / 8)
        elif isinstance(event, LaplaceEvent):
            assert pure
            found.append(event.groups * Fraction(event.l1) / event.scale)
        else:
            assert isinstance(event, GaussianEvent)
            assert not pure
            found.append(Fraction(event.l2_squared) / (2 * event.scale**2))
    return found


GRAPHS: list[dict[str, Any]] = [
    {"cliques": PAIRS},
    {"cliques": cliques("abc", "bcd", "ad")},
    {"cliques": cliques("ab", "bc", precisions=[4.0, 0.3]), "columns": ["a", "b", "c", "d", "x"]},
    {"independent": {}},
    {"tree": {}},
    {"tree": {"share": 0.77}},
    {"auto": {}},
    {"auto": {}, "columns": ["x", "c", "a"]},
    {"chain": path("b", "d")},
]


@each("graph", GRAPHS, ids=lambda value: str(value).replace("\n", " ")[:50])
@each("adjacency", [AR, RO])
@each("weights", [fit_pb2.UNIT_WEIGHTS_ROWS, fit_pb2.UNIT_WEIGHTS_SHARES])
@each(("spend", "amount"), [(RHO, 1.0), (PURE, 2.0), (types_pb2.Spend(rho=0.013), 0.013)])
def test_events_cost_what_was_offered(
    graph: dict[str, Any], adjacency: Adjacency, weights: int, spend: types_pb2.Spend, amount: float
) -> None:
    """The releases together cost at most the spend, and within 1e-12 of it; as many as noise is shown for."""
    public = same_states(people(adjacency=adjacency, unit_cap=4))
    made = plan(public, spend=spend, unit_weights=weights, **graph)
    total = sum(costs(made, spend.HasField("epsilon")), Fraction())
    assert Fraction(amount) * (1 - Fraction(1, 10**12)) <= total <= Fraction(amount)
    assert sum(noise.times for noise in made.noise) == len(made.events) == made.iterations - 1
    assert all(noise.count_std > 0 for noise in made.noise)
    assert (made.columns[-1] == UNIT_ROWS) == (weights == fit_pb2.UNIT_WEIGHTS_SHARES)


@pytest.mark.parametrize("spend", [RHO, PURE])
def test_precisions_divide_the_noise_by_their_roots(spend: types_pb2.Spend) -> None:
    """Both kinds of noise do; no precision is 1."""
    made = plan(spend=spend, cliques=cliques("ab", "bc", "cd", precisions=[1.0, 4.0, 0.0]))
    stds = [noise.count_std for noise in made.noise]
    assert stds[0] / stds[1] == pytest.approx(2.0)
    assert stds[0] == pytest.approx(stds[2])


def test_noise_is_that_of_the_corrected_proposition() -> None:
    """Bernstein et al. 2017, proposition 3: scale |C| / epsilon is for rows that come or go; twice that otherwise."""
    for adjacency, factor in ((AR, 1.0), (RO, 2.0)):
        laplace = plan(people(adjacency=adjacency), spend=types_pb2.Spend(epsilon=0.5))
        assert laplace.noise[0].count_std == pytest.approx(math.sqrt(2) * factor * 3 / 0.5)
        gaussian = plan(people(adjacency=adjacency), spend=types_pb2.Spend(rho=0.5))
        assert gaussian.noise[0].count_std == pytest.approx(math.sqrt(factor * 3 / (2 * 0.5)))


def test_shares_cost_what_one_row_does() -> None:
    """However many rows a unit may have; where each counts 1, noise grows with the cap."""
    one = plan().noise[0].count_std
    assert plan(people(unit_cap=7)).noise[0].count_std == pytest.approx(one)
    assert plan(people(unit_cap=7), unit_weights=fit_pb2.UNIT_WEIGHTS_ROWS).noise[0].count_std == pytest.approx(7 * one)


def test_shares_of_units_of_one_row_are_rows() -> None:
    """Then nothing is asked of the import about units."""
    made = plan(unit_weights=fit_pb2.UNIT_WEIGHTS_SHARES)
    assert made.columns == ("a", "b", "c", "d")
    assert made.events == plan().events
    assert made.parameters["unit_weights"] == "rows"


def test_the_share_of_a_tree_pays_for_its_selection() -> None:
    """Tables of single columns and choices; the rest is for the chosen pairs."""
    for share, expected in ((0.0, float(DEFAULT_SHARE)), (0.5, 0.5)):
        made = plan(tree={"share": share})
        parts = costs(made, pure=False)
        assert float(sum(parts[: 5 + 4])) == pytest.approx(expected)
        assert [isinstance(e, SelectionEvent) for e in made.events] == [False] * 5 + [True] * 4 + [False] * 4


def test_what_is_asked_without_a_graph_is_chosen_in_rounds() -> None:
    """The same plan as with the word, for every estimator; all that the entry says of it is in its parameters."""
    fields: dict[str, Any] = {"cliques": None, "estimator": fit_pb2.MRF_ESTIMATOR_NLBP}
    made = plan(**fields)
    assert made == plan(**fields, auto={})
    assert made.parameters["graph"] == "auto"
    assert made.parameters["rounds"] == sum(isinstance(event, SelectionEvent) for event in made.events)


def test_rounds_are_as_many_as_noise_allows() -> None:
    """Public numbers decide: one in all to three for each column, two where the number of rows is unknown."""
    rows = (10, 200, 5_000_000, None)
    made_for = [plan(people(adjacency=AR, rows=n), auto={}, spend=types_pb2.Spend(rho=0.01)) for n in rows]
    assert [made.parameters["rounds"] for made in made_for] == [1, 3, 15, 10]
    singles = [float(sum(costs(made, pure=False)[:5])) / 0.01 for made in made_for]
    left = 1 - float(DIRECT)  # of the spend, where tables of all pairs are released
    least, usual = left * float(LEAST_SINGLES), float(SINGLES_FOR) / 20
    assert singles == pytest.approx([float(MOST_SINGLES), float(MANY_SINGLES), least, usual])
    for made in made_for:
        times = sum(isinstance(event, SelectionEvent) for event in made.events)
        choices, tables = (costs(made, pure=False)[5 + odd : 5 + 2 * times : 2] for odd in (0, 1))
        assert len(set(choices)) == len(set(tables)) == 1
        assert float(choices[0] / tables[0]) == pytest.approx(float(OF_CHOICES / (1 - OF_CHOICES)))


def test_more_rounds_are_made_where_there_are_more_pairs() -> None:
    """Rounds under hardly any noise: three a column, or as many as pairs, up to six a column and to a hundred."""
    sizes = (4, 2, 12), (8, 2, 28), (14, 2, 84), (30, 2, 100), (40, 2, 120), (14, 60, 42)  # the last has large tables
    for columns, states, rounds in sizes:
        public = replace(wide(columns, states), rows=100_000_000)
        made = plan(public, auto={}, columns=[f"v{i}" for i in range(columns)], spend=types_pb2.Spend(rho=1.0))
        assert made.parameters["rounds"] == rounds


def test_tables_of_all_pairs_are_released_where_noise_moves_little() -> None:
    """They cost their share, as one release; not with much noise, an unknown number of rows, or pure epsilon."""
    small, unknown, pure = (
        plan(people(adjacency=AR, rows=rows), auto={}, spend=spend)
        for rows, spend in ((100, RHO), (None, RHO), (5_000_000, PURE))
    )
    assert not any(made.parameters["all_pairs"] for made in (small, unknown, pure))
    for adjacency in (AR, RO):
        made = plan(people(adjacency=adjacency, rows=5_000_000), auto={}, spend=RHO)
        assert made.parameters["all_pairs"]
        assert len(made.events) == 5 + 2 * sum(isinstance(event, SelectionEvent) for event in made.events) + 1
        assert float(costs(made, pure=False)[-1]) == pytest.approx(float(DIRECT))
        # Ten tables share it, and a unit changes each of them.
        distance = 1 if adjacency is AR else 2
        assert made.noise[-1].count_std == pytest.approx(math.sqrt(distance * 10 / (2 * float(DIRECT))))


def test_tables_of_all_pairs_stand_in_for_those_of_all_triples() -> None:
    """They have fewer cells and so less noise: a workload of triples has them before it has its own."""
    for rows, columns in ((500, 0), (1500, 2), (5000, 3)):
        pairs = plan(people(adjacency=AR, rows=rows), auto={"all_sets_of": 3}, spend=RHO).settings.pairs
        assert pairs is not None
        assert pairs.direct_sets == (tuple(combinations(range(5), columns)) if columns else ())
        assert (pairs.direct is None) == (columns == 0)


def test_a_workload_says_what_may_be_chosen_and_how_much_it_weighs() -> None:
    """Sets within one of the workload's, by the weights of those that have them; others have tables of their own."""
    rounds = candidates(auto=workload("abc", "cd", "bc", weights=[2.0, 1.0]))
    assert dict(zip(rounds.cliques, rounds.weights, strict=True)) == {
        (0, 1): Fraction(2, 3),
        (0, 2): Fraction(2, 3),
        (0, 1, 2): Fraction(2, 3),
        (1, 2): Fraction(1),
        (2, 3): Fraction(1, 3),
    }
    assert rounds.pairs == ((0, 1), (0, 2), (1, 2), (2, 3))
    assert rounds.largest == ((2, 3), (0, 1, 2))
    assert candidates(auto={}).cliques == candidates(auto={}).largest == tuple(combinations(range(5), 2))
    assert set(candidates(auto={}).weights) == {Fraction(1)}
    triples = candidates(auto={"all_sets_of": 3})
    assert triples.largest == tuple(combinations(range(5), 3))
    assert dict(zip(triples.cliques, triples.weights, strict=True)) == {
        one: Fraction(1) if len(one) == 2 else Fraction(1, 3) for k in (2, 3) for one in combinations(range(5), k)
    }
    assert candidates(auto=workload("abcd", "ad")).largest == ((0, 1, 2, 3),)
    made = plan(auto=workload("ab"))
    assert made.parameters["tables"] == [[name] for name in ("a", "b", "c", "d", "x")]
    assert made.parameters["workload"] == [[["a", "b"], 1.0]]


def test_a_test_of_the_graph_that_could_not_end_is_refused_before_it_is_paid_for() -> None:
    """It compares all pairs of columns, however few have a table, and joins each column with the whole model."""
    wide_apart = wide(60, 300)
    graphs: list[dict[str, Any]] = [{"independent": {}}, {"cliques": cliques(("v0", "v1"))}]
    for graph in graphs:
        columns = [column.name for column in wide_apart.categorical]
        assert plan(wide_apart, columns=columns, **graph).events
        assert refused(wide_apart, columns=columns, held_out=0.1, **graph) == ["held_out"]
        assert plan(wide_apart, columns=columns[:9], held_out=0.1, **graph).settings.held_out is not None
    few = people(adjacency=RO, a=3, b=3, c=3, **{f"w{i}": 700 for i in range(5)})
    assert plan(few, auto=workload("abc")).events
    assert "4,942,054 cells, the largest 490,000" in message_of(few, auto=workload("abc"), held_out=0.1)
    # 2^22 cells after triangulation, and a column of 2,000 states beside them.
    ring = people(adjacency=RO, z=2000, **{f"v{i}": 2 for i in range(22)})
    dense = cliques(*combinations([f"v{i}" for i in range(22)], 2), ("v0", "z"))
    assert plan(ring, cliques=dense).events
    assert refused(ring, cliques=dense, held_out=0.1) == ["held_out"]


@pytest.mark.slow
def test_too_much_to_choose_from_is_refused_with_what_fits() -> None:
    """Cells of all pairs together, and of one; and rounds that would take hours."""
    assert refused(wide(62, 60), auto={}) == ["auto"]
    assert refused(wide(4, 60), auto={"all_sets_of": 3}) == refused(wide(40, 2), auto={"all_sets_of": 3}) == ["auto"]
    assert "the 16 smallest fit, of up to 10,800 cells" in message_of(wide(4, 60), auto={"all_sets_of": 3})
    assert "the 4,096 smallest fit, of up to 8 cells" in message_of(wide(40, 2), auto={"all_sets_of": 3})
    assert plan(wide(25, 4), auto={"all_sets_of": 3}).events
    assert "the 1,223 smallest fit, of up to 3,600 cells" in message_of(wide(62, 60), auto={})
    assert "1,210,000, more than the limits" in message_of(wide(3, 1100), cliques=None)
    twelve = {"workload": [{"columns": [f"v{i}" for i in range(12)]}]}
    assert candidates_among(wide(62, 60), twelve) == {2: 66}
    assert candidates_among(wide(62, 5), twelve) == {2: 66, 3: 220, 4: 495, 5: 792}
    assert candidates_among(wide(62, 3), twelve) == {k: math.comb(12, k) for k in range(2, 8)}
    many = {"auto": {}, "spend": types_pb2.Spend(rho=100.0)}
    assert refused(wide(62, 45), **many) == ["graph"]
    assert "choices among 1,953 sets take too long" in message_of(wide(62, 45), **many)
    assert plan(wide(62, 10), auto={}).events


def test_rounds_that_take_too_long_are_refused_with_the_columns_that_do_not() -> None:
    """Those of most states are left out, as few as may be: with one fewer it is refused, too."""
    public, names = wide(30, 90), [f"v{i}" for i in range(30)]
    found = re.search(
        r"take too long; without the (\d+) columns of most states they do not;", message_of(public, auto={})
    )
    assert found is not None
    left = 30 - int(found[1])
    assert plan(public, auto={}, columns=names[:left]).events
    assert refused(public, auto={}, columns=names[: left + 1]) == ["graph"]
    sizes = [1000, 1000, 8, 8, 1000, 8, 8, 8]
    columns = tuple(CodedColumn(f"v{i}", tuple(map(str, range(size)))) for i, size in enumerate(sizes))
    mixed = PublicTable("people", people().numeric, RO, 1, 5000, columns)
    assert "choices among 36 sets take too long; without v1, v4 they do not;" in message_of(mixed, auto={})
    assert plan(mixed, auto={}, columns=["v0", "v2", "v3", "v5", "v6", "v7"]).events


def test_two_columns_are_their_pair() -> None:
    """There is nothing to choose, so nothing is spent on a choice."""
    assert plan(auto={}, columns=["a", "b"]).events == plan(cliques=cliques("ab")).events
    assert plan(auto={}, columns=["a"]).events == plan(cliques=cliques("a")).events
    assert plan(tree={}, columns=["a", "b"]).events == plan(cliques=cliques("ab")).events
    assert plan(tree={}, columns=["a"]).events == plan(cliques=cliques("a")).events


def test_columns_are_those_of_the_graph_or_all_that_have_states() -> None:
    """The order is the schema's, or the requested one; a column in no clique gets a table of its own."""
    assert plan(cliques=cliques("dc", "xa")).columns == ("a", "c", "d", "x")
    assert plan(independent={}).columns == plan(tree={}).columns == ("a", "b", "c", "d", "x")
    assert plan(replace(people(), names=("x", "y", "d", "c", "b", "a")), tree={}).columns == ("x", "d", "c", "b", "a")
    made = plan(cliques=cliques("ab"), columns=["x", "b", "a", "d"])
    assert made.columns == ("x", "b", "a", "d")
    assert made.parameters["tables"] == [["b", "a"], ["x"], ["d"]]


def test_noise_that_drowns_a_table_is_warned_of() -> None:
    """The warning comes before payment and says what would help; only where the number of rows is known."""
    (warning,) = plan(people(rows=20), spend=types_pb2.Spend(rho=0.01)).warnings
    assert "fewer rows than the noise on it in: table of a, b; table of b, c; table of c, d" in warning
    assert plan().warnings == ()
    assert plan(people(rows=None, adjacency=AR), spend=types_pb2.Spend(rho=0.01)).warnings == ()


def test_parameters_say_what_an_auditor_wants() -> None:
    """The request is described in words."""
    parameters = plan(PATHS, chain=path(null_category="s00")).parameters
    assert parameters["graph"] == "chain"
    assert parameters["null_category"] == "s00"
    assert parameters["tables"] == [["s0"], ["s0", "s1"]]
    assert plan(tree={}).parameters["tree_share"] == pytest.approx(1 / 3)


# Reuse

ROWS = rows_of(2000)


def model_of(made: mrf.MRFPlan, entry: int) -> fit_pb2.MRFModel:
    """Return what a plan releases under an entry, of rows that do not matter."""
    return run(replace(made, of_entry=entry), nothing(made))


def stored(models: Mapping[int, Message]) -> Any:
    """Earlier releases by entry."""
    return models.get


PAID = {7: model_of(plan(), 7)}
FIVE = {5: model_of(plan(PATHS, chain=path(null_category="s00")), 5)}


def test_tables_that_are_there_are_not_paid_for_again() -> None:
    """Those of the same columns, or of more; the rest shares the spend."""
    made = plan(released=stored(PAID), cliques=cliques("ba", "c", "ad"), reuse=[7])
    assert made.parameters["tables"] == [["a", "d"]]
    assert sum(costs(made, pure=False)) == pytest.approx(1.0)
    assert [table.columns for table in made.settings.earlier] == [("a", "b"), ("b", "c"), ("c", "d")]
    assert made.of_entry == 0


def test_with_nothing_left_to_pay_for_a_request_is_free() -> None:
    """No events, no spend; a spend is refused, and so is none where something is left to pay for."""
    free = plan(released=stored(PAID), reuse=[7], spend=None)
    assert (free.events, free.of_entry, free.iterations) == ((), 7, 1)
    assert [noise.name for noise in free.noise] == ["table of a, b", "table of b, c", "table of c, d"]
    assert refused(released=stored(PAID), reuse=[7]) == ["spend"]
    assert refused(released=stored(PAID), reuse=[7], spend=None, cliques=cliques("ab", "ad")) == ["spend"]
    assert refused(released=stored(PAID), reuse=[7], spend=None, tree={}) == ["spend"]
    chain = plan(PATHS, stored(FIVE), chain=path(null_category="s00"), reuse=[5], spend=None)
    assert (chain.events, chain.of_entry) == ((), 5)


def test_a_tree_pays_for_single_columns_only_where_it_has_to() -> None:
    """The saving goes to the choices; they and the chosen pairs are always paid for."""
    made = plan(released=stored(PAID), tree={}, reuse=[7])
    kinds = [type(event) for event in made.events]
    assert kinds == [GaussianEvent] + [SelectionEvent] * 4 + [GaussianEvent] * 4
    without = plan(released=stored(PAID), tree={}, reuse=[7], columns=["a", "b", "c"])
    assert [type(event) for event in without.events] == [SelectionEvent] * 2 + [GaussianEvent] * 2
    assert float(sum(costs(without, pure=False)[:2])) == pytest.approx(1 / 3)


def test_a_table_counts_once_however_it_came_in() -> None:
    """A field that reuses tables names the entries that paid for them; naming both changes nothing."""
    second = plan(released=stored(PAID), cliques=cliques("ab", "ad"), reuse=[7])
    models = {**PAID, 9: model_of(second, 9)}
    assert [table.entry for table in models[9].tables] == [9, 7, 7, 7]
    for reuse in ([7, 9], [9, 7], [9]):
        made = plan(released=stored(models), cliques=cliques("ab", "ad", "cd"), reuse=reuse, spend=None)
        found = sorted((table.entry or 0, table.columns) for table in made.settings.earlier)
        assert found == [(7, ("a", "b")), (7, ("b", "c")), (7, ("c", "d")), (9, ("a", "d"))]


OTHER_STATES = people(a=2, b=5, c=4, d=3)
SHARED = {8: model_of(plan(people(unit_cap=3)), 8)}

WRONG_REUSE: list[tuple[str, PublicTable, dict[int, Any], dict[str, Any]]] = [
    ("no field of yours", people(), {}, {}),
    ("no field of yours", people(), {7: fit_pb2.SketchModel()}, {}),
    ("states of column 'b'", OTHER_STATES, PAID, {"cliques": cliques("ac")}),
    ("states of column 'd'", people(a=2, b=3, c=4), PAID, {"cliques": cliques("ab")}),
    ("is of use for this graph", people(), PAID, {"cliques": cliques("x")}),
    ("UNIT_WEIGHTS_ROWS", people(unit_cap=3), PAID, {}),
    ("pooled tables", people(), PAID, {"chain": path("b", "d"), "cliques": None}),
]


@pytest.mark.parametrize(("text", "public", "models", "fields"), WRONG_REUSE, ids=lambda value: str(value)[:30])
def test_a_wrong_entry_is_named(text: str, public: PublicTable, models: dict[int, Any], fields: dict[str, Any]) -> None:
    """Only fields of the caller's whose tables mean the same now, and say something about the graph."""
    public = same_states(public) if "chain" in fields else public
    asked = {"reuse": [7], **fields}
    assert "reuse[0]" in refused(public, stored(models), **asked)
    if "chain" not in fields:
        assert text in message_of(public, stored(models), **asked)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("null_category is 's00'", {"chain": path()}),
        ("null_category is 's00'", {"chain": path(null_category="s01")}),
        ("pooled tables", {"chain": path("s1", "s0", "s2", "s3", null_category="s00")}),
        ("pooled tables", {"chain": path("s0", "s1", "s2", null_category="s00")}),
        ("pooled tables", {"cliques": cliques(("s0", "s1"))}),
    ],
    ids=lambda value: str(value).replace("\n", " ")[:50],
)
def test_pooled_tables_are_for_the_same_chain(text: str, fields: dict[str, Any]) -> None:
    """The same columns in the same order, with the same null category."""
    assert text in message_of(PATHS, stored(FIVE), reuse=[5], **fields)


def test_earlier_tables_are_counted_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first entry with which there are too many is named, and neither it nor those after it are converted."""
    models = {7: PAID[7], 8: model_of(plan(cliques=cliques("ad")), 8), 9: model_of(plan(cliques=cliques("bd")), 9)}
    first = sum(math.prod(table.counts.shape) for table in models[7].tables)
    monkeypatch.setattr("bursar_server.fits.mrf._reuse.MOST_CELLS", first)
    read: list[int] = []

    def counted(message: fit_pb2.NoisyTable) -> Any:
        read.append(message.entry)
        return table_from(message)

    monkeypatch.setattr("bursar_server.fits.mrf._reuse.table_from", counted)
    text = message_of(released=stored(models), reuse=[7, 8, 9], cliques=cliques("ab", "bc", "ad", "bd"))
    assert "reuse[1]" in text
    assert "reuse fewer entries" in text
    assert set(read) == {7}
    assert plan(released=stored(models), reuse=[7], spend=None).events == ()
    # A table that comes in twice counts once.
    monkeypatch.setattr("bursar_server.fits.mrf._reuse.MOST_CELLS", first + 20)
    second = plan(released=stored(PAID), cliques=cliques("ab", "ad"), reuse=[7])
    models[10] = model_of(second, 10)
    assert plan(released=stored(models), cliques=cliques("ab", "ad"), reuse=[7, 10], spend=None).events == ()


def test_shares_are_reused_with_shares() -> None:
    """Tables that count units are not mixed with tables that count rows."""
    public = people(unit_cap=3)
    assert plan(public, stored(SHARED), reuse=[8], spend=None).events == ()
    rows = fit_pb2.UNIT_WEIGHTS_ROWS
    assert "UNIT_WEIGHTS_SHARES" in message_of(public, stored(SHARED), reuse=[8], unit_weights=rows)


def test_the_requests_that_wrong_ones_start_from_are_right() -> None:
    """The wrong requests of the tests above differ in nothing else."""
    assert plan().events
    assert plan(released=stored(PAID), reuse=[7], spend=None).events == ()
    assert request().cliques == PAIRS
