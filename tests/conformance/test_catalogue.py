"""Every fit of the registry passes the same checks, in all its variants: see `checks.py`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bursar_amounts import rho_of
from bursar_proto.v1 import types_pb2
from tests.conformance import checks
from tests.conformance.checks import SLOTS, Case, Silent, plain_rows, run
from tests.conformance.requests import CAPS, DECLARED, FEW, FITS, FREE, VARIANTS, fit_of, method_of, tables

TABLES = dict(tables(SLOTS))
ROOT = Path(__file__).resolve().parents[2]


def cases() -> dict[str, Case]:
    """Every variant under one adjacency, in turns; one of each fit under both; some with more rows, or more a unit."""
    made: dict[str, Case] = {}
    for number, name in enumerate(VARIANTS):
        for place, adjacency in enumerate(TABLES):
            if name in FEW or number % 2 == place:
                made[f"{name}; {adjacency}"] = Case(name, fit_of(name), VARIANTS[name], TABLES[adjacency])
    for name, cap in CAPS.items():
        for adjacency, table in TABLES.items():
            made[f"{name}, cap {cap}; {adjacency}"] = Case(
                name, fit_of(name), VARIANTS[name], replace(table, unit_cap=cap)
            )
    for name, rows in DECLARED.items():
        table = replace(TABLES["add_remove_one"], rows=rows)
        made[f"{name}, {rows} declared; add_remove_one"] = Case(name, fit_of(name), VARIANTS[name], table)
    return made


CASES = cases()
LONG = (
    *("separated, by steps", "separated, aggregated", "separated, searched", "separated, log1p", "separated, cap 2"),
    *("rounds, pure", "rounds of triples", "dense sketch, pure", "dense sketch, cap 2", "k-means, log1p", "one bit"),
)
"""More than a second each; what the short tests have of the same fits is like them but for one option."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name.startswith(LONG) else ()) for name in CASES]
)
def test_every_fit_conforms(name: str) -> None:
    """Public plan, price of the spend, charges of the plan, nothing past the noise, total, twins close."""
    found = {check: wrong for check, look in checks.CHECKS.items() if (wrong := look(CASES[name]))}
    assert found == {}


@pytest.mark.parametrize("name", FEW)
def test_epsilon_delta_buys_the_largest_rho(name: str) -> None:
    """A spend in (epsilon, delta) has the events of the rho that it converts to."""
    pair = types_pb2.EpsilonDelta(epsilon=1.0, delta=1e-6)
    events = []
    for spend in (types_pb2.Spend(epsilon_delta=pair), types_pb2.Spend(rho=rho_of(1.0, 1e-6))):
        request = type(VARIANTS[name]).FromString(VARIANTS[name].SerializeToString())
        request.spend.CopyFrom(spend)
        events.append(fit_of(name).plan(request, TABLES["replace_one"], lambda entry: None).events)
    assert events[0] == events[1]


def test_declared_rows_release_all_pairs() -> None:
    """Variants of rounds with declared rows have one release after them, of pairs, whatever the workload."""
    rounds = {name: rows for name, rows in DECLARED.items() if name.startswith("rounds")}
    assert len(rounds) == 2
    for name, rows in rounds.items():
        plan = fit_of(name).plan(VARIANTS[name], replace(TABLES["add_remove_one"], rows=rows), lambda entry: None)
        assert len(plan.settings.pairs.direct_sets) == 6
        assert {len(one) for one in plan.settings.pairs.direct_sets} == {2}


def test_declared_rows_give_a_mixture_four_cells_for_each_component() -> None:
    """Its cells are reduced on points of them, which no other variant does."""
    plan: Any = CASES["mixture, default steps, 10000000 declared; add_remove_one"].plan
    assert (plan.settings.components, plan.settings.cells) == (3, 12)


@pytest.mark.parametrize("adjacency", TABLES)
@pytest.mark.parametrize("name", FREE)
def test_requests_that_start_from_a_release_are_free(name: str, adjacency: str) -> None:
    """No events, no charge, no row, and the same model each time."""
    origin, request = FREE[name]
    paid = Case(origin, fit_of(origin), VARIANTS[origin], TABLES[adjacency])
    model = run(paid, plain_rows(paid), Silent()).model
    free = Case(name, FITS[method_of(request)], request, TABLES[adjacency], model)
    assert checks.free_of_charge(free) is None
    assert checks.plan_is_public(free) is None


def test_the_catalogue_has_every_fit() -> None:
    """A fit of the registry without a request here would be checked by nothing; each has one that is tried twice."""
    assert {method_of(request) for request in VARIANTS.values()} == set(FITS)
    assert {method_of(VARIANTS[name]) for name in FEW} == set(FITS)


@pytest.mark.slow
def test_no_fit_compiles_anything_after_the_warm_up() -> None:
    """The time of the first fit reveals nothing, and nobody waits for a compiler."""
    command = [sys.executable, "-m", "tests.conformance.compiled"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == ""
