"""Dummy runs: the real code of every fit, on synthetic rows, with no ledger and no table within reach."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from bursar_ledger import Adjacency, Ledger, Role
from bursar_proto.v1 import dummy_pb2, dummy_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.fits import (
    UNIT_ROWS,
    BoundedColumn,
    InvalidFieldsError,
    PublicTable,
)
from bursar_server.fits.registry import FITS
from bursar_server.jobs import runner
from bursar_server.jobs.job import Run
from bursar_server.jobs.limits import check_real
from bursar_server.jobs.runner import InProcess
from bursar_server.jobs.trial import DEFAULT_ROWS, MAX_ROWS, made_up_rows
from bursar_server.tables import Snapshot
from bursar_server.vault import Meter
from tests.server.fits.running import NoNoise
from tests.server.serving.conftest import COUNT
from tests.server.serving.trials import REQUESTS, SPEND, TABLE, dummies, made

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Refusal, Serve

pytestmark = pytest.mark.forks

Make = Callable[..., fit_pb2.FitDPEMRequest]
Refused = Callable[[Callable[[], object]], "Refusal"]


@pytest.mark.parametrize("field", [field for field in REQUESTS if field != "separated_gmm"])
def test_every_fit_runs_its_own_code_with_its_own_noise(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is of the fit's own type, and two runs differ: in the noise alone, as silence shows."""
    spent = []
    monkeypatch.setattr(Meter, "charge", lambda self, event: spent.append(event))
    runner = dummies()
    plan = runner.order(dummy_pb2.DummyRequest(fit=REQUESTS[field])).plan
    first, second = made(runner, field), made(runner, field)
    assert first.WhichOneof("model") == field
    assert first != second
    assert spent == [*plan.events, *plan.events]  # every release of the plan, and nothing else
    monkeypatch.undo()
    silent = dummies(runner=InProcess(FITS, NoNoise()))
    assert made(silent, field) == made(silent, field)
    assert made(silent, field) != made(silent, field, public_seed=1)
    assert made(silent, field) != made(silent, field, rows=2000)


@pytest.mark.parametrize("variant", fit_pb2.SeparatedVariant.values())
def test_a_separated_mixture_runs_its_own_code(variant: fit_pb2.SeparatedVariant.ValueType) -> None:
    """Every variant does: the search buys its operations one by one from a forest, or estimates blocks of rows."""
    request = dummy_pb2.DummyRequest(fit=REQUESTS["separated_gmm"])
    request.fit.separated_gmm.variant = variant
    runner = dummies()
    answer = dummy_pb2.DummyResponse.FromString(runner.run(runner.order(request), Run(incident="test")))
    model = answer.model.separated_gmm
    assert 1 <= model.found <= 2
    assert model.n_rows == TABLE.rows


OWN_PROCESSES = """
from bursar_server.jobs.sandbox import Children, FitLimits
from bursar_server.fits.registry import FITS
from tests.server.serving.trials import REQUESTS, dummies, made

with Children(FITS, FitLimits(1024, 600.0)) as children:
    children.ready()
    for field in REQUESTS:
        first, second = (made(dummies(runner=children), field) for _ in range(2))
        assert first.WhichOneof("model") == field
        assert first != second, "two processes drew the same noise"
"""


@pytest.mark.slow
def test_every_fit_runs_in_a_process_of_its_own() -> None:
    """Its input can be sent there, and what it needs is there: kernels, linear algebra and noise.

    From a process that has no threads, as the server has none yet when it forks.
    """
    subprocess.run([sys.executable, "-c", OWN_PROCESSES], check=True, cwd=Path(__file__).parents[3])


def test_a_dummy_spends_no_more_than_its_plan() -> None:
    """The meter is the real one: a fit that released more than its plan would be stopped here, too."""
    runner = dummies()
    order = runner.order(dummy_pb2.DummyRequest(fit=REQUESTS["dpem"]))
    cheap = replace(order, price=replace(order.price, cost_units=order.price.cost_units - 1))
    with pytest.raises(Exception, match="is not covered by the debit"):
        runner.run(cheap, Run(incident="test"))


def test_a_dummy_sketch_says_what_it_is_and_no_paid_fit_takes_it() -> None:
    """It may be decoded again by a dummy run; in a request of the fit itself it is refused by name."""
    runner = dummies()
    sketch = made(runner, "sketch_kmeans").sketch_kmeans.sketch
    assert sketch.dummy
    assert sketch.entry == 0
    again = fit_pb2.FitSketchKMeansRequest(dataset="people", n_clusters=3, n_init=1, foreign=[sketch])
    order = runner.order(dummy_pb2.DummyRequest(fit=fit_pb2.PreviewRequest(sketch_kmeans=again)))
    assert order.price.cost_units == 0
    answer = dummy_pb2.DummyResponse.FromString(runner.run(order, Run(incident="test")))
    assert tuple(answer.model.sketch_kmeans.decoded.weights.shape) == (3,)
    with pytest.raises(InvalidFieldsError, match=r"foreign\[0\]: is of made-up rows"):
        check_real(again)  # as every request of a fit is


def test_made_up_rows_follow_the_schema() -> None:
    """They are in bounds, in bins evenly, whole codes, nulls where allowed, and people with 1 to 3 rows."""
    rows = made_up_rows(TABLE, ("x", "y", "z", "town", UNIT_ROWS), 6000, public_seed=3).columns
    x, y, z, town, unit = rows
    assert x.min() >= -1
    assert x.max() <= 1
    assert (y.min() < 1, y.max() > 9) == (True, True)
    assert abs(np.isnan(z).mean() - 0.1) < 0.03
    assert np.isnan(rows[[0, 1, 3, 4]]).sum() == 0
    assert set(town) == {0.0, 1.0, 2.0}
    assert set(unit) == {1.0, 2.0, 3.0}
    # The shares of one person's rows add up to one, for every person.
    assert (1 / unit).sum() == pytest.approx(round((1 / unit).sum()))
    assert abs(np.mean(x < 0) - 0.5) < 0.05


def test_a_made_up_column_is_the_same_beside_any_others() -> None:
    """Columns have generators of their own, from seed and name."""
    one = made_up_rows(TABLE, ("y",), 100, 1).columns[0]
    other = made_up_rows(TABLE, ("town", "y"), 100, 1).columns[1]
    assert np.array_equal(one, other)
    assert not np.array_equal(one, made_up_rows(TABLE, ("y",), 100, 2).columns[0])
    assert not np.array_equal(one / 10, (made_up_rows(TABLE, ("x",), 100, 1).columns[0] + 1) / 2)


@pytest.mark.parametrize("width", [1e-100, 1e100])
def test_no_bounds_are_too_wide_to_make_rows_up(width: float) -> None:
    """Widths far from one stay finite and inside."""
    table = replace(TABLE, numeric=(BoundedColumn("x", -width, width),))
    x = made_up_rows(table, ("x",), 1000, 0).columns[0]
    assert np.isfinite(x).all()
    assert np.abs(x).max() <= width


@pytest.mark.parametrize(
    ("table", "asked", "rows", "planned"),
    [
        (TABLE, 0, 3000, 3000),
        (TABLE, 50, 50, 50),
        (replace(TABLE, adjacency=Adjacency.ADD_REMOVE_ONE), 50, 50, 3000),
        (replace(TABLE, adjacency=Adjacency.ADD_REMOVE_ONE, rows=None), 0, DEFAULT_ROWS, None),
        (replace(TABLE, rows=2**26), 0, MAX_ROWS, MAX_ROWS),
    ],
)
def test_how_many_rows(table: PublicTable, asked: int, rows: int, planned: int | None) -> None:
    """The public number, or as many as were asked for; plans know the slots of these rows, or what they always know."""
    order = dummies(table).order(dummy_pb2.DummyRequest(fit=REQUESTS["dpem"], rows=asked))
    assert (order.rows, order.facts.table.rows) == (rows, planned)
    assert any("were made up" in warning for warning in order.warnings) == (table.rows == 2**26)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rows": MAX_ROWS + 1}, "rows"),
        ({"fit": fit_pb2.PreviewRequest()}, "fit"),
        (
            {
                "fit": fit_pb2.PreviewRequest(
                    dpem=fit_pb2.FitDPEMRequest(
                        dataset="people", n_components=2, spend=types_pb2.Spend(remaining=types_pb2.WhatIsLeft())
                    )
                )
            },
            "spend",
        ),
        (
            {
                "fit": fit_pb2.PreviewRequest(
                    dpem=fit_pb2.FitDPEMRequest(
                        dataset="people",
                        columns=["x"],
                        n_components=2,
                        spend=SPEND,
                        released=fit_pb2.StartReleased(entry=7),
                    )
                )
            },
            "entry",
        ),
        (
            {
                "fit": fit_pb2.PreviewRequest(
                    dpem=fit_pb2.FitDPEMRequest(
                        dataset="people", columns=["x", "y"], n_components=256, iterations=200, spend=SPEND
                    )
                ),
                "rows": MAX_ROWS,
            },
            "rows",
        ),
    ],
)
def test_what_a_dummy_refuses(change: dict[str, Any], field: str) -> None:
    """Requests that need the ledger, or take too long, are refused."""
    request = dummy_pb2.DummyRequest(fit=REQUESTS["dpem"])
    for name, value in change.items():
        request.ClearField(name)  # type: ignore[arg-type]  # names of fields
        request.MergeFrom(dummy_pb2.DummyRequest(**{name: value}))
    with pytest.raises(InvalidFieldsError) as refusal:
        dummies().order(request)
    assert [name for name, _ in refusal.value.violations] == [field]


X = dummy_pb2.DummyColumn(name="x", values=[-3.0, 0.5, 3.0])
OWN = [X, dummy_pb2.DummyColumn(name="town", values=[2, 0, 1])]


def test_own_values_stand_for_made_up_ones() -> None:
    """They are within the bounds; the plan has their number of rows; other columns are made up."""
    for table in (TABLE, replace(TABLE, adjacency=Adjacency.ADD_REMOVE_ONE)):
        order = dummies(table).order(dummy_pb2.DummyRequest(fit=REQUESTS["dpem"], columns=OWN))
        assert order.rows == order.facts.table.rows == 3
        rows = made_up_rows(order.facts.table, ("x", "y", "town"), 3, 0, order.values).columns
        assert rows[0].tolist() == [-1.0, 0.5, 1.0]
        assert rows[2].tolist() == [2.0, 0.0, 1.0]
        assert rows[1].tolist() == made_up_rows(TABLE, ("y",), 3, 0).columns[0].tolist()


def test_a_fit_runs_on_own_values() -> None:
    """The one mean without noise is theirs."""
    request = fit_pb2.PreviewRequest()
    request.CopyFrom(REQUESTS["dpem"])
    request.dpem.n_components = 1
    values = np.tile([-0.5, 0.25], 50)
    columns = [dummy_pb2.DummyColumn(name=name, values=values + shift) for name, shift in (("x", 0.0), ("y", 4.0))]
    runner = dummies(runner=InProcess(FITS, NoNoise()))
    order = runner.order(dummy_pb2.DummyRequest(fit=request, columns=columns))
    answer = dummy_pb2.DummyResponse.FromString(runner.run(order, Run(incident="test"))).model.dpem
    np.testing.assert_allclose(answer.means.values, [-0.125, 3.875], atol=1e-3)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ([X, X], "columns[1].name"),
        ([dummy_pb2.DummyColumn(name="else", values=[1])], "columns[0].name"),
        ([dummy_pb2.DummyColumn(name="x")], "columns[0].values"),
        ([X, dummy_pb2.DummyColumn(name="y", values=[1])], "columns[1].values"),
        ([dummy_pb2.DummyColumn(name="x", values=[float("nan")])], "columns[0].values"),
        ([dummy_pb2.DummyColumn(name="z", values=[float("inf")])], "columns[0].values"),
        ([dummy_pb2.DummyColumn(name="town", values=[3])], "columns[0].values"),
        ([dummy_pb2.DummyColumn(name="town", values=[0.5])], "columns[0].values"),
    ],
)
def test_own_values_are_checked(columns: list[dummy_pb2.DummyColumn], field: str) -> None:
    """The check comes before anything runs; no value is quoted."""
    with pytest.raises(InvalidFieldsError) as refusal:
        dummies().order(dummy_pb2.DummyRequest(fit=REQUESTS["dpem"], columns=columns))
    assert [name for name, _ in refusal.value.violations] == [field]


def test_rows_and_own_values_are_one_number() -> None:
    """Given twice, it is the same."""
    with pytest.raises(InvalidFieldsError, match="or that number"):
        dummies().order(dummy_pb2.DummyRequest(fit=REQUESTS["dpem"], rows=4, columns=OWN))


@dataclass
class Answers:
    """A dummy run's answers by their kind."""

    start: dummy_pb2.DummyStart
    model: dummy_pb2.DummyModel


def asked(served: Harness, message: fit_pb2.FitDPEMRequest, **fields: Any) -> Answers:
    """A dummy run over the wire."""
    stub = dummy_pb2_grpc.DummyServiceStub(served.channel)
    request = dummy_pb2.DummyRequest(fit=fit_pb2.PreviewRequest(dpem=message), **fields)
    start, *_, last = list(stub.RunDummy(request, metadata=served.bearer()))
    return Answers(start.start, last.model)


def files(folder: Path) -> dict[str, bytes]:
    """Every file of the ledger, log and index of SQLite included."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("ledger.sqlite*")) if path.suffix != ".shm"}


DEBITING = ("debit", "store_release", "limits", "release", "find_debit", "debit_entry", "entries")


def test_no_ledger_code_and_no_table_is_on_the_path(
    serve: Serve, fit_request: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything of the ledger but the token and the registered schema fails, the table is gone, and a dummy runs."""
    served = serve()
    shutil.rmtree(served.state.datasets)

    def touched(*_: object, **__: object) -> None:
        pytest.fail("a dummy run touched it")

    for name in DEBITING:
        assert hasattr(Ledger, name)
        monkeypatch.setattr(Ledger, name, touched)
    monkeypatch.setattr(Snapshot, "open", touched)
    answers = asked(served, fit_request())
    assert answers.start.rows == 40
    assert answers.start.price.rho == pytest.approx(0.01)
    assert answers.model.dpem.columns == ["height"]


def test_the_ledgers_bytes_are_as_they_were(served: Harness, fit_request: Make) -> None:
    """Not an entry, not a page: the files are the same, byte by byte. A fit changes them."""
    before = files(served.state.path)
    for seed in range(3):
        asked(served, fit_request(), public_seed=seed)
    assert files(served.state.path) == before
    list(fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(fit_request(), metadata=served.bearer()))
    assert files(served.state.path) != before


def test_the_table_has_no_part_in_it(serve: Serve, fit_request: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables of one schema give the same answer once noise is silenced; the seed alone changes the rows."""
    monkeypatch.setattr(runner, "ExactNoise", NoNoise)
    served = serve()
    first = asked(served, fit_request()).model
    rows = next(served.state.datasets.rglob("rows.arrow"))
    rows.chmod(0o600)
    content = bytearray(rows.read_bytes())
    rows.write_bytes(bytes(byte ^ 0x5A for byte in content))
    assert asked(served, fit_request()).model == first
    assert first.dpem.n_rows == 40 * COUNT.lattice  # each row made up once


def test_only_analysts_run_dummies_and_not_many_at_once(served: Harness, fit_request: Make, refused: Refused) -> None:
    """Authorised as a preview is; two of one caller may run or wait."""
    stub = dummy_pb2_grpc.DummyServiceStub(served.channel)
    request = dummy_pb2.DummyRequest(fit=fit_pb2.PreviewRequest(dpem=fit_request()))
    for role in (Role.ADMIN, Role.AUDITOR):
        refusal = refused(lambda role=role: list(stub.RunDummy(request, metadata=served.bearer(role))))  # type: ignore[misc]
        assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
    served.fit.hold.clear()
    waiting = [stub.RunDummy(request, metadata=served.bearer()) for _ in range(2)]
    for call in waiting:
        next(call)
    refusal = refused(lambda: list(stub.RunDummy(request, metadata=served.bearer())))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    # They stand in nobody's way who pays.
    paid = fit_pb2_grpc.FitServiceStub(served.channel).FitDPEM(fit_request(), metadata=served.bearer())
    assert next(paid).receipt.entry
    served.fit.hold.set()
    list(paid)
    for call in waiting:
        list(call)


def test_the_owners_limits_hold_for_dummies(serve: Serve, fit_request: Make, refused: Refused) -> None:
    """A request that a fit may not make is not tried either."""
    served = serve(limits={"components": 1})
    refusal = refused(lambda: asked(served, fit_request()))
    assert (refusal.code, refusal.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("n_components",))


def test_a_dummy_that_raises_tells_nothing(served: Harness, fit_request: Make, refused: Refused) -> None:
    """A bug of a fit is told in the one constant text, as for a debit."""
    served.fit.error = ValueError("secret")
    refusal = refused(lambda: asked(served, fit_request()))
    assert refusal.code is grpc.StatusCode.INTERNAL
    assert "secret" not in refusal.everything
