"""FitMRF passes the audit: adjacencies, noises, rows and shares of units, chains, chosen pairs, earlier tables."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bursar_ledger import Adjacency, GaussianEvent, LaplaceEvent
from bursar_proto.v1 import types_pb2
from bursar_server.tables import CapKeys, CsvSource, Manifest, Snapshot, store_table
from bursar_server.vault import Statistic, exact_sum, sensitivity
from tests.audit.mrf import (
    AUTO,
    CHAIN,
    EDGES,
    RO,
    ROWS,
    STATES,
    STEPS,
    TABLES,
    TREE,
    TRIPLES,
    Fields,
    fit_mrf,
    planned,
)
from tests.audit.mrf_choices import one_choice
from tests.audit.target import observe


@pytest.mark.parametrize("adjacency", Adjacency)
def test_no_edge_is_chosen_more_often_than_its_price_allows(adjacency: Adjacency) -> None:
    """The odds between two edges of the worst pair change by e^eta; no less, so that the test sees something."""
    found = one_choice(adjacency).audit(250)
    assert not found.rejects, found.detail
    assert found.p < 1 - 1e-6, found.detail


GRAPHS = {"tables": TABLES, "chain": CHAIN, "tree": TREE, "rounds": AUTO, "triples": TRIPLES}


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("weights", [{}, ROWS], ids=["shares", "rows"])
def test_releases_and_choices_add_up_to_the_spend(adjacency: Adjacency, graph: str, weights: Fields) -> None:
    """Events that are added up by hand spend nothing twice and leave hardly anything."""
    rho, epsilon = Fraction(0.7), Fraction(1.3)
    fields = GRAPHS[graph] | weights
    gaussian = fit_mrf(adjacency, cap=3, spend=types_pb2.Spend(rho=float(rho)), **fields)
    laplace = fit_mrf(adjacency, cap=3, spend=types_pb2.Spend(epsilon=float(epsilon)), **fields)
    ranges = [[2 * choice.sensitivity / choice.scale for choice in one.chosen] for one in (gaussian, laplace)]
    concentrated = [one.l2_squared / (2 * one.scale**2) for one in gaussian.claims if isinstance(one, GaussianEvent)]
    pure = [one.groups * one.l1 / one.scale for one in laplace.claims if isinstance(one, LaplaceEvent)]
    assert len(concentrated) == len(gaussian.chosen) + {"tables": 3, "chain": 2}.get(graph, 3)
    assert len(pure) == len(laplace.chosen) + {"tables": 3, "chain": 2}.get(graph, 3)
    little = Fraction(1, 10**9)
    assert rho * (1 - little) <= sum(concentrated) + sum(eta**2 for eta in ranges[0]) / 8 <= rho
    assert epsilon * (1 - little) <= sum(pure) + sum(ranges[1]) <= epsilon


COLUMNS: list[dict[str, Any]] = [
    *({"name": name, "kind": "categorical", "categories": list(STATES)} for name in ("a", "b", *STEPS)),
    {"name": "x", "kind": "numeric", "lower": EDGES[0], "upper": EDGES[-1], "bins": list(EDGES)},
]


def lines_of(unit: str, states: list[list[int]]) -> list[str]:
    """Records of a unit, one for each list of the states of all columns."""
    return [",".join([unit, *(STATES[i] for i in one[:-1]), repr(EDGES[one[-1]] + 0.5)]) for one in states]


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(
    "fields",
    [TABLES, TABLES | ROWS, CHAIN, CHAIN | ROWS, TREE, AUTO, TRIPLES],
    ids=["shares", "rows", "chain", "path", "tree", "rounds", "triples"],
)
def test_a_unit_of_the_file_changes_sums_by_no_more_than_was_priced(
    tmp_path: Path, adjacency: Adjacency, fields: Fields
) -> None:
    """Units have up to six records in the source, and three of them count.

    A unit all of whose records are in one cell vanishes, or is replaced: that changes what is priced, to the last row.
    """
    keys, replaced = CapKeys.draw(), adjacency is RO
    public = {"public_rows": 80} if replaced else {}
    unit = {"column": "who", "max_rows": 3}
    manifest = Manifest.from_public(
        {"name": "audit", "adjacency": adjacency.value, "columns": COLUMNS, "unit": unit, **public}
    )
    rng = np.random.default_rng(8)  # noqa: TID251 - records of a test
    others = [line for i in range(18) for line in lines_of(f"u{i}", rng.integers(3, size=(1 + i % 6, 7)).tolist())]
    here, there = lines_of("worst", [[2, 2, 0, 0, 0, 1, 2]] * 5), lines_of("other", [[0, 0, 2, 0, 0, 0, 0]] * 2)
    audited = planned(adjacency, cap=3, **fields)
    tables = []
    for lines in ([*others[:20], *here, *others[20:]], [*others, *there] if replaced else others):
        (tmp_path / "audit.csv").write_text(
            "\n".join([",".join(["who", *(one["name"] for one in COLUMNS)]), *lines, ""])
        )
        snapshot = Snapshot.open(store_table(manifest, CsvSource(tmp_path / "audit.csv"), tmp_path, keys).directory)
        tables.append(snapshot.rows(audited.plan.columns))
    for statistic in statistics_of(adjacency, fields):
        sums = [exact_sum(statistic, rows, len(audited.plan.columns)) for rows in tables]
        change, most = np.abs(sums[0] - sums[1]).sum(), sensitivity(statistic.bounds, adjacency, 3).l1_total
        assert change <= most
        assert change >= (0.6 if replaced else 1) * (
            most - 4
        )  # the unit that comes has fewer rows; four tables are cut


def statistics_of(adjacency: Adjacency, fields: Fields) -> list[Statistic]:
    """Return what a fit sums."""
    one = fit_mrf(adjacency, cap=3, **fields)
    seen = observe(one, one.rows)
    return [of.statistic for of in seen.releases] + [of.candidates.statistic for of in seen.choices]
