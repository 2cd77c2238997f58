"""Targets of the attacks: a real server over TLS, a real ledger, and rivals with the defect that an attack needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from bursar_ledger import Adjacency, Budget, Ledger, Registration, Role
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.access.auth import hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.config import Config
from bursar_server.fits import AnyFit
from bursar_server.fits.registry import FITS
from bursar_server.state import State
from bursar_server.tables import CsvSource, Manifest
from bursar_server.tables.catalogue import Datasets
from bursar_server.tables.registration import register as import_table
from bursar_server.wire.server import BursarServer
from tests.attacks.asking import PATIENCE
from tests.attacks.purses import Bursar
from tests.server.serving.conftest import fit_request, refused, serve, served, state, template

__all__ = ["fit_request", "refused", "serve", "served", "state", "template"]

BUDGET = Budget(1.0, 1e-6)


def register(ledger: Ledger, name: str = "people", same_people_as: str | None = None) -> None:
    """One more dataset under a total of (1, 1e-6), which is that of the account that it may join."""
    made = Registration(name, Adjacency.REPLACE_ONE, BUDGET, b"tag", same_people_as=same_people_as)
    ledger.register_dataset(made, actor="owner", reason="test")


@pytest.fixture
def ledger_path(tmp_path: Path) -> Path:
    """Return where the attacked ledger is."""
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def purse(ledger_path: Path) -> Iterator[Bursar]:
    """Bursar's purse with the dataset "people"."""
    with Ledger.create(ledger_path, actor="owner") as ledger:
        register(ledger)
        yield Bursar(ledger)


@dataclass
class Pair:
    """A server with the real fit and two tables of one schema, as different as tables can be.

    "here" has two tight clusters; "there" has twice as many rows and one, which are broken, missing, huge or in one
    point. The number of rows is private, and odd beside even. A budget that is never exhausted.
    """

    ledger: Ledger
    channel: grpc.Channel
    bearer: tuple[tuple[str, str], ...]
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def request(self, dataset: str, **fields: Any) -> fit_pb2.FitDPEMRequest:
        """A request that the real fit accepts; a new one each time, unless it says otherwise."""
        defaults: dict[str, Any] = {
            "request_id": f"pair-{next(self._ids)}",
            "spend": types_pb2.Spend(rho=0.1),
            "n_components": 2,
            "iterations": 3,
        }
        return fit_pb2.FitDPEMRequest(**{**defaults, "dataset": dataset, **fields})

    def fit(self, dataset: str, **fields: Any) -> list[fit_pb2.FitDPEMResponse]:
        """Everything that a fit answers."""
        stub = fit_pb2_grpc.FitServiceStub(self.channel)
        return list(stub.FitDPEM(self.request(dataset, **fields), metadata=self.bearer, timeout=PATIENCE))


SCHEMA = """
name = "{name}"
adjacency = "add_remove_one"
[[columns]]
name = "x"
kind = "numeric"
lower = -1.0
upper = 1.0
[[columns]]
name = "y"
kind = "numeric"
lower = 0.0
upper = 10.0
"""
HERE = "".join(f"{0.5 - i % 2 + 1e-3 * i},{2.5 + 5 * (i % 2)}\n" for i in range(60))
THERE = "nan,inf\n,\n1e308,-1e308\n5e-324,0\nabc,7\n" * 12 + "0.25,9.75\n" * 61


TABLES = {"here": "x,y\n" + HERE, "there": "x,y\n" + THERE}


@contextmanager
def pair_of(
    folder: Path,
    fit: AnyFit | None,
    method: str = "FitDPEM",
    *,
    schema: str = SCHEMA,
    tables: Mapping[str, str] = TABLES,
) -> Iterator[Pair]:
    """A server in an empty folder with two tables of one schema, and the fit that it has for a method.

    Args:
        folder: empty.
        fit: in the place of the method's; None for what a server that is started normally has.
        method: that is asked for.
        schema: manifest of both tables, with a place for the name.
        tables: "here" and "there" as CSV.
    """
    state = State.prepare(folder / "state")
    Certificates(state.tls).create()
    token = new_token(Role.ANALYST)
    settings = Config(address="127.0.0.1:0", threads_per_fit=1, response_quantum_seconds=0.01)
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.create(state.ledger, actor="test"))
        ledger.issue_credential("the-analyst", Role.ANALYST, hash_token(token), actor="test", reason="")
        for name, rows in tables.items():
            (folder / f"{name}.csv").write_text(rows)
            (folder / f"{name}.toml").write_text(schema.format(name=name))
            manifest, source = Manifest.load(folder / f"{name}.toml"), CsvSource(folder / f"{name}.csv")
            import_table(state, ledger, manifest, source, Budget(2.0**17, 1e-6), actor="test", reason="")
        fits = FITS if fit is None else {method: fit}
        datasets = Datasets(ledger, state.datasets)
        server = BursarServer(state=state, config=settings, ledger=ledger, datasets=datasets, fits=fits)
        stack.enter_context(server)
        credentials = grpc.ssl_channel_credentials(Certificates(state.tls).ca.read_bytes())
        channel = stack.enter_context(grpc.secure_channel(server.address, credentials))
        yield Pair(ledger, channel, (("authorization", f"Bearer {token}"),))


PersonsWith = Callable[..., Pair]


@pytest.fixture(scope="module")
def persons(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two utterly different tables, the module's `TABLES` by its `SCHEMA`, behind the fit that every server has."""
    module: Any = request.module
    with pair_of(tmp_path_factory.mktemp("persons"), None, schema=module.SCHEMA, tables=module.TABLES) as served:
        yield served


@pytest.fixture
def persons_with(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PersonsWith]:
    """The same behind another fit for the module's `METHOD`, or the real one with other noise: `persons_with(fit)`."""
    module: Any = request.module
    with ExitStack() as stack:
        yield lambda fit: stack.enter_context(
            pair_of(tmp_path_factory.mktemp("persons"), fit, module.METHOD, schema=module.SCHEMA, tables=module.TABLES)
        )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The pair of tables behind the fit that every server has."""
    with pair_of(tmp_path_factory.mktemp("pair"), None) as served:
        yield served


@pytest.fixture
def pair_with(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Pair]]:
    """The pair of tables behind another fit, or the real one with other noise: `pair_with(fit, method)`."""
    with ExitStack() as stack:
        yield lambda *fit: stack.enter_context(pair_of(tmp_path_factory.mktemp("pair"), *fit))
