"""T6 through the wire: a real server on a registered pair of tables, of which only what the SDK returns is seen.

TLS, tokens, import, ledger, worker pool, store and stream are those of the product. A bug is planted by giving the
server's constructor another registry of fits; a server that is started normally takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import Message

import bursar
from bursar_ledger import Adjacency, Budget, Ledger, Role
from bursar_models import GaussianMixture
from bursar_models.arrays import FloatArray
from bursar_proto.v1 import fit_pb2
from bursar_server.access.auth import hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.config import Config
from bursar_server.fits import AnyFit, BoundedColumn, Plan, PublicTable, Released, dpem
from bursar_server.fits.registry import FITS
from bursar_server.state import State
from bursar_server.tables import CsvSource, Manifest
from bursar_server.tables.catalogue import Datasets
from bursar_server.tables.registration import register
from bursar_server.vault import ArrayRows, NoiseSource, Session
from bursar_server.wire.server import BursarServer
from tests.audit.checks import Finding, black_box
from tests.audit.dpem import COVARIANCES, pair
from tests.audit.target import Sample

RHO = 2.0
"""Spend of every request, so that mu = 2: under it noise that is too small shows in the fewest fits."""

LITTLE_RHO = 0.125
"""Spend of every request, so that mu = 0.5 and nearly every guess of an honest server's tables is luck.

15 fits on each table are enough then for what is not noised at all: 0.5987^30 = 2e-7, held to 1e-4.
"""

BUDGET = Budget(2.0**17, 1e-6)
"""Enough for tens of thousands of such requests."""

NAMES = ("here", "there")
"""Names of D and D' on the server."""

BALL = (BoundedColumn("x", -1.0, 1.0), BoundedColumn("y", -1.0, 1.0))
"""Columns whose ball is the unit ball."""

_CALLERS = 4


@dataclass(frozen=True)
class Miswired:
    """A fit with noise from another source than the vault's, or with another run.

    Attributes:
        source: draws the noise; None leaves the vault's.
        run_instead: (plan, session) -> model; None leaves the fit's.
        fit: which one.
    """

    source: NoiseSource | None = None
    run_instead: Callable[[Any, Session], Message] | None = None
    fit: AnyFit = dpem

    def plan(self, request: Any, table: PublicTable, released: Released) -> Plan:
        """See `Fit`."""
        plan: Plan = self.fit.plan(request, table, released)
        return plan

    def run(self, plan: Any, session: Session) -> Message:
        """See `Fit`."""
        if self.source is not None:
            session._source = self.source
        model: Message = (self.run_instead or self.fit.run)(plan, session)
        return model


def dpem_numbers(dataset: bursar.Dataset, rho: float) -> FloatArray:
    """Return what an analyst gets from one fit of FitDPEM."""
    return numbers_of(one_fit(dataset, rho))


def sketch_numbers(dataset: bursar.Dataset, rho: float, *, r: int | None = None) -> FloatArray:
    """Return what an analyst gets from one sketch (of r frequencies per row): its sums and its number of rows."""
    made = dataset.fit(
        bursar.SketchKMeans(decoding="none", n_frequencies=8, frequencies_per_row=r, scale=0.01, public_seed=3),
        spend=bursar.rho(rho),
        progress=False,
    )
    return np.array([*made.sums.ravel(), made.n_rows])


def masked_numbers(dataset: bursar.Dataset, rho: float) -> FloatArray:
    """The same of a sketch for which each row is asked for one frequency in eight."""
    return sketch_numbers(dataset, rho, r=1)


def mrf_numbers(dataset: bursar.Dataset, rho: float) -> FloatArray:
    """Return what an analyst gets from one field of two columns: its table, its marginal and its number of rows.

    At `LITTLE_RHO` its noise has a standard deviation of two rows: with less its law is not nearly Gaussian.
    """
    made = dataset.fit(bursar.MRF(cliques=[("x", "y")], estimator="naive"), spend=bursar.rho(rho), progress=False)
    return np.array([*made.tables_[0].counts.ravel(), *made.marginals_[0].ravel(), made.n_rows])


def gradient_numbers(dataset: bursar.Dataset, rho: float) -> FloatArray:
    """Return an analyst's numbers of one step of FitGradientEM: a multiple of its noisy sum, its number of rows."""
    made = dataset.fit(
        bursar.GradientEM(
            model="symmetric_mixture",
            columns=["x", "y"],
            start=bursar.GivenCoefficients([[1.0, 0.0]]),
            noise_std=0.3,
            iterations=1,
        ),
        spend=bursar.rho(rho),
        progress=False,
    )
    if made.trace is None or made.n_rows is None:
        raise TypeError("a released model has a trace and a number of rows")
    start, end = made.trace.iterates[:, 0]
    return np.append((end - start) * made.n_rows, made.n_rows)


def separated_numbers(dataset: bursar.Dataset, rho: float) -> FloatArray:
    """Return what an analyst gets from one component of FitSeparatedGMM: the moments that it implies."""
    return numbers_of(
        dataset.fit(
            bursar.SeparatedGMM(
                columns=["x", "y"], n_components=1, sigma_min=0.05, sigma_max=0.5, covariance_type="full"
            ),
            spend=bursar.rho(rho),
            progress=False,
        )
    )


@dataclass(frozen=True)
class Wire:
    """An analyst's connection to a server that holds D and D'.

    Attributes:
        client: of the server.
        ask: what the analyst does with a dataset and a rho, and all the numbers that come of it.
        rho: of each time that it is done.
    """

    client: bursar.Client
    ask: Callable[[bursar.Dataset, float], FloatArray]
    rho: float = RHO

    def sample(self, n: int) -> Sample:
        """The models of n fits on each table, as numbers; nothing else of a run leaves the server."""
        datasets = [self.client.dataset(name) for name in NAMES]
        order = [datasets[i % 2] for i in range(2 * n)]
        with ThreadPoolExecutor(_CALLERS) as pool:
            features = np.array(list(pool.map(lambda dataset: self.ask(dataset, self.rho), order)))
        unseen = np.empty((2 * n, 0))
        return Sample(
            residual=unseen,
            gap=0.0,
            here=unseen,
            there=unseen,
            other=np.arange(2 * n) % 2 == 1,
            release=np.empty(0, dtype=np.int64),
            laplace=np.empty(0, dtype=np.bool_),
            scale=np.empty(0),
            limit=np.array([(2 * self.rho) ** 0.5]),
            features=features,
        )

    def verdict(self, n: int, *, again: int = 4) -> tuple[bool, Finding]:
        """Return whether T6 condemns: it rejects, and rejects once more on fresh fits, `again` times as many."""
        finding = self.look(n)
        if not finding.rejects:
            return False, finding
        finding = self.look(again * n)
        return finding.rejects, finding

    def look(self, n: int) -> Finding:
        """T6 on two samples of n fits on each table: one to learn from, one to guess."""
        return black_box(self.sample(n), self.sample(n))


def one_fit(dataset: bursar.Dataset, rho: float) -> GaussianMixture:
    """One release of the whole spend, from the start that the audit of FitDPEM has, too."""
    start = bursar.GivenStart(means=[[-0.45, 0.0], [0.45, 0.0]], covariances=COVARIANCES[fit_pb2.COVARIANCE_TYPE_FULL])
    # About a fixed origin, where a far row changes a release by its whole sensitivity at any spend.
    asked = bursar.DPEM(n_components=2, iterations=1, clip_radius=1.0, start=start, moments="fixed_origin")
    return dataset.fit(asked, spend=bursar.rho(rho), progress=False)


def numbers_of(model: GaussianMixture) -> FloatArray:
    """The moments that a model implies, in records: they are what was noised, so a linear test sees most in them."""
    counts = model.weights_ * (model.n_rows or 0.0)
    sums = counts[:, None] * model.means_
    seconds = counts[:, None, None] * (model.covariances_ + model.means_[:, :, None] * model.means_[:, None, :])
    return np.concatenate([counts, sums.ravel(), seconds[:, *np.tril_indices(model.means_.shape[1])].ravel()])


@contextmanager
def wire(
    folder: Path,
    adjacency: Adjacency,
    fit: AnyFit | None = None,
    tables: tuple[ArrayRows, ArrayRows] | None = None,
    *,
    method: str = "FitDPEM",
    ask: Callable[[bursar.Dataset, float], FloatArray] = dpem_numbers,
    columns: Sequence[BoundedColumn] = BALL,
    rho: float = RHO,
) -> Iterator[Wire]:
    """A server on a fresh state directory with a pair of tables, asked by an analyst.

    Args:
        folder: empty.
        adjacency: of the pair.
        fit: in the place of the method's; None for what a server that is started normally has.
        tables: D and D'; None for the pair of FitDPEM's audit.
        method: that is asked for.
        ask: what the analyst does.
        columns: of the tables, x and y.
        rho: that this spends.
    """
    state = State.prepare(folder / "state")
    Certificates(state.tls).create()
    token = new_token(Role.ANALYST)
    settings = Config(address="127.0.0.1:0", fit_workers=_CALLERS, threads_per_fit=1, response_quantum_seconds=0.01)
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.create(state.ledger, actor="test"))
        ledger.issue_credential("the-analyst", Role.ANALYST, hash_token(token), actor="test", reason="")
        for name, rows in zip(NAMES, tables or pair(adjacency, 1), strict=True):
            _add(state, ledger, name, rows, _manifest(name, adjacency, columns))
        fits = FITS if fit is None else {method: fit}
        datasets = Datasets(ledger, state.datasets)
        server = BursarServer(state=state, config=settings, ledger=ledger, datasets=datasets, fits=fits)
        stack.enter_context(server)
        # Without the file of paid fits, which is written as a whole at each: a third of the time, and more each time.
        client = bursar.connect(server.address, token=token, ca=Certificates(state.tls).ca, history=False)
        yield Wire(stack.enter_context(client), ask, rho)


def _add(state: State, ledger: Ledger, name: str, rows: ArrayRows, manifest: dict[str, Any]) -> None:
    """Import a table from a file; a null row is not in it, so that all after it move up."""
    columns = rows.columns if rows.present is None else rows.columns[:, rows.present]
    lines = [f"{x!r},{y!r}" for x, y in columns.T.tolist()]
    source = state.path.parent / f"{name}.csv"
    source.write_text("\n".join(["x,y", *lines, ""]))
    register(state, ledger, Manifest.from_public(manifest), CsvSource(source), BUDGET, actor="test", reason="")


def _manifest(name: str, adjacency: Adjacency, columns: Sequence[BoundedColumn]) -> dict[str, Any]:
    described: list[dict[str, Any]] = [
        {"name": one.name, "kind": "numeric", "lower": one.lower, "upper": one.upper}
        | ({"bins": list(one.bins)} if one.bins else {})
        for one in columns
    ]
    return {"name": name, "adjacency": adjacency.value, "columns": described}
