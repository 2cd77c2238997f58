"""Rows open only for a debit that the ledger made, and the fit's meter is made from the same debit."""

from __future__ import annotations

import ast
import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from bursar_ledger import Adjacency, Budget, Debit, DebitRequest, GaussianEvent, Ledger, Registration
from bursar_server.jobs.runner import NoRows
from bursar_server.tables import Identity
from bursar_server.tables.catalogue import Datasets, PartitionSource, SnapshotSource
from bursar_server.vault import Meter, OverspendError, PaidBudget, SyntheticBudget

ROOT = Path(__file__).parents[2]
EVENT = GaussianEvent(1, Fraction(64))
ASKED = DebitRequest("people", "ann", "r1", bytes(32), "FitDPEM", (EVENT,))
MADE_UP = SyntheticBudget(Fraction(2), 10**18)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger with one dataset."""
    with Ledger.create(tmp_path / "ledger.sqlite", actor="owner") as made:
        people = Registration("people", Adjacency.REPLACE_ONE, Budget(1.0, 1e-6), b"tag")
        made.register_dataset(people, actor="owner", reason="test")
        yield made


@pytest.fixture
def debit(ledger: Ledger) -> Debit:
    """A debit."""
    return ledger.debit(ASKED)


def test_nobody_but_the_ledger_makes_a_debit(debit: Debit) -> None:
    """All the values of a real one do not help."""
    fields = {name: getattr(debit, name) for name in Debit.__dataclass_fields__ if name != "key"}
    for key in (None, True, object()):
        with pytest.raises(TypeError, match=r"expected the answer of Ledger\.debit"):
            Debit(**fields, key=key)
    with pytest.raises(TypeError, match="key"):
        Debit(**fields)


@pytest.mark.parametrize(
    "change",
    [
        lambda debit: replace(debit, entry=1),
        lambda debit: replace(debit, key=None),
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        lambda debit: setattr(debit, "entry", 1),
    ],
    ids=["replaced", "replaced with a key", "copied", "copied in depth", "pickled", "changed"],
)
def test_a_debit_is_neither_changed_nor_copied(debit: Debit, change: Callable[[Debit], object]) -> None:
    """Not even into another price."""
    with pytest.raises((TypeError, ValueError, AttributeError)):
        change(debit)


def test_rows_are_asked_for_with_a_debit(ledger: Ledger, tmp_path: Path) -> None:
    """A dataset's state, its name or a record of an earlier debit open nothing; mypy refuses them, too."""
    datasets = Datasets(ledger, tmp_path / "datasets")
    state, entry = ledger.dataset("people"), ledger.debit(ASKED).entry
    with pytest.raises(TypeError, match="expected a Debit"):
        datasets.rows(state, ("height",))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a Debit"):
        datasets.rows(ledger.debit_entry(entry), ("height",))  # type: ignore[arg-type]


def test_a_debit_that_has_its_release_opens_no_rows(ledger: Ledger, debit: Debit) -> None:
    """A second draw under one debit would be unaccounted; a debit that was cut off may be used."""
    assert PaidBudget(ledger.debit(ASKED)) == PaidBudget(debit)
    ledger.store_release(debit.entry, b"released")
    for found in (ledger.debit(ASKED), ledger.find_debit("ann", "r1", bytes(32))):
        assert found is not None
        with pytest.raises(ValueError, match="has its release already"):
            PaidBudget(found)


def test_the_meter_allows_what_was_debited(debit: Debit) -> None:
    """The debit's price at the debit's order, in the process of the fit, too; one release more is stopped."""
    budget = pickle.loads(pickle.dumps(PaidBudget(debit)))  # noqa: S301  made here
    assert (budget.entry, budget.order, budget.cost_units) == (debit.entry, debit.price.order, debit.price.cost_units)
    meter = Meter(budget)
    meter.charge(EVENT)
    with pytest.raises(OverspendError):
        meter.charge(EVENT)


@pytest.mark.parametrize(
    "made",
    [lambda kind: kind(MADE_UP), lambda kind: kind(), lambda kind: kind(1, Fraction(2), 3)],
    ids=["from a budget of synthetic rows", "from nothing", "from numbers"],
)
def test_a_paid_budget_is_made_from_a_debit_alone(made: Callable[[Any], object]) -> None:
    """Not from numbers, and not from a budget of synthetic rows."""
    with pytest.raises(TypeError):
        made(PaidBudget)


def test_a_paid_budget_is_not_made_larger(debit: Debit) -> None:
    """Its numbers are the debit's."""
    with pytest.raises((TypeError, ValueError)):
        replace(PaidBudget(debit), debit=debit, cost_units=10**18)


@pytest.mark.parametrize("source", [SnapshotSource, PartitionSource])
def test_dry_runs_cannot_open_stored_rows(source: type[SnapshotSource | PartitionSource], tmp_path: Path) -> None:
    """Their budget has another type, which no source of stored rows accepts."""
    identity = cast("Identity", None)
    with pytest.raises(TypeError, match="under a debit"):
        source(MADE_UP, tmp_path, ("height",), identity)  # type: ignore[arg-type]


def test_free_requests_release_nothing() -> None:
    """Their meter is empty, and so are their rows."""
    rows = NoRows(Fraction(2))
    assert rows.open().slots == 0
    with pytest.raises(OverspendError):
        Meter(rows.budget).charge(EVENT)


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    """Every module of the product, the demo and the benchmarks, but for the ledger's own."""
    folders = [ROOT / folder for folder in ("client", "models", "server", "demo", "bench")]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in paths]


@cache
def called(tree: ast.Module) -> set[str]:
    """Last names of what is called, `x.y.name(...)` as much as `name(...)`."""
    functions = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {getattr(one, "attr", getattr(one, "id", "")) for one in functions}


@pytest.mark.slow
def test_no_module_outside_the_ledger_makes_debits() -> None:
    """Neither by calling the type, nor with the key, nor around its constructor."""
    for path, tree in modules():
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
        private = {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bursar_ledger._")
        }
        if "Debit" in names:
            assert not {"Debit", "__new__"} & called(tree), path
        assert "LEDGER_KEY" not in names, path
        assert not private, path


def test_stored_rows_are_read_in_one_place() -> None:
    """`Snapshot.rows` is called by the sources that hold a paid budget, and by the partitions of one of them."""
    product = {
        str(path)
        for path, tree in modules()
        if str(path).startswith("server/") and "rows" in called(tree) and "Snapshot" in path.read_text()
    }
    assert product == {"server/bursar_server/tables/catalogue.py", "server/bursar_server/tables/_partitions.py"}


def test_sources_of_stored_rows_are_made_by_the_catalogue_alone() -> None:
    """The debit is in hand there; the paid budget is made there, and nowhere else."""
    for name in ("SnapshotSource", "PartitionSource", "PaidBudget"):
        makers = {str(path) for path, tree in modules() if name in called(tree)}
        assert makers <= {"server/bursar_server/tables/catalogue.py"}, name
