"""A server with real TLS, a real ledger and a real snapshot, and a fit that is quick and does as it is told."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from numpy.typing import NDArray

from bursar_ledger import Budget, Event, Ledger, Role
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server import log
from bursar_server.access.auth import hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.config import Config
from bursar_server.fits import Expected, InvalidFieldsError, Plan, PublicTable, Released
from bursar_server.state import State
from bursar_server.tables import CsvSource, Manifest
from bursar_server.tables.catalogue import Datasets
from bursar_server.tables.registration import register
from bursar_server.vault import Bounds, Factor, Sensitivity, Session, Statistic, event_of, gaussian_for
from bursar_server.wire.server import BursarServer

ROWS = 40
MANIFEST = """
name = "people"
description = "made up"
adjacency = "replace_one"
[[columns]]
name = "height"
kind = "numeric"
lower = 0.0
upper = 3.0
[[columns]]
name = "town"
kind = "categorical"
categories = ["here", "there"]
"""


def _count(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
    out += int(present.sum())


COUNT = Statistic("count", _count, (Factor("one", 1),), (1,), Bounds(1, 1, 1, 1), 1)
SENSITIVITY = Sensitivity(1, 1)


@dataclass
class FakeFit:
    """Counts the present rows; waits, fails or answers as a test wants.

    Attributes:
        runs: how often it ran.
        started: set whenever a run begins.
        hold: a run waits for it; set unless a test clears it.
        hold_free: likewise, for a run that is for nothing.
        error: raised by a run, after its release.
        peeks: whether a run that is for nothing asks for a release.
        preflight: of its plans.
        beyond: how many releases it makes beyond its plan.
    """

    runs: int = 0
    started: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event = field(default_factory=threading.Event)
    hold_free: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    peeks: bool = False
    preflight: fit_pb2.Preflight | None = None
    beyond: int = 0

    def __post_init__(self) -> None:
        self.hold.set()
        self.hold_free.set()

    def plan(self, request: fit_pb2.FitDPEMRequest, table: PublicTable, released: Released) -> Plan:
        """One count at the price asked for."""
        if not 1 <= request.n_components <= 100:
            raise InvalidFieldsError(("n_components", "must lie in 1 to 100"))
        if request.WhichOneof("start") == "released" and released(request.released.entry) is None:
            raise InvalidFieldsError(("start.released.entry", "is not a release of yours on this dataset"))
        if not request.HasField("spend"):
            if request.WhichOneof("start") != "released":
                raise InvalidFieldsError(("spend", "is missing"))
            parameters = {"n_components": request.n_components}
            names = (table.numeric[0].name,)
            entry = request.released.entry
            return Plan(columns=names, events=(), iterations=2, noise=(), parameters=parameters, of_entry=entry)
        event: Event = event_of(SENSITIVITY, gaussian_for(SENSITIVITY, Fraction(request.spend.rho)))
        noise = types_pb2.ReleaseNoise(name="count", size=1, times=1)
        return Plan(
            columns=(table.numeric[0].name,),
            events=(event,),
            iterations=2,
            noise=(noise,),
            expected={"mean_error": Expected({table.numeric[0].name: 0.5}, "cm"), "snr": Expected(2.0)},
            preflight=self.preflight,
            parameters={"n_components": request.n_components},
        )

    def run(self, plan: Plan, session: Session) -> fit_pb2.GaussianMixtureModel:
        """Release the count; for nothing, say the number of components."""
        self.runs += 1
        self.started.set()
        session.progress(1, 2)
        if not plan.events:
            self.hold_free.wait()
            if self.peeks:
                session.noisy_sum(COUNT, gaussian_for(SENSITIVITY, Fraction(1, 10**6)))
            if self.error:
                raise self.error
            return fit_pb2.GaussianMixtureModel(columns=plan.columns, iterations=2)
        self.hold.wait()
        rho = Fraction(1) / (2 * plan.events[0].scale ** 2)  # type: ignore[union-attr]  # of a Gaussian event
        noisy = session.noisy_sum(COUNT, gaussian_for(SENSITIVITY, rho))
        for _ in range(self.beyond):
            session.noisy_sum(COUNT, gaussian_for(SENSITIVITY, rho))
        if self.error:
            raise self.error
        session.progress(2, 2)
        return fit_pb2.GaussianMixtureModel(columns=plan.columns, n_rows=float(noisy[0]), iterations=2)


@dataclass
class Harness:
    """A running server and what a test needs to talk to it.

    Attributes:
        stop: stops the server, once; it is stopped in the end in any case.
        events: of the server.
    """

    state: State
    ledger: Ledger
    fit: FakeFit
    address: str
    tokens: dict[Role, str]
    channel: grpc.Channel
    stop: Callable[[], None]
    events: log.Events

    def bearer(self, role: Role = Role.ANALYST) -> tuple[tuple[str, str], ...]:
        """Metadata of a caller in a role."""
        return (("authorization", f"Bearer {self.tokens[role]}"),)

    def entries(self, kind: str | None = None) -> int:
        """Return how many entries the ledger holds, of a kind or in all."""
        return sum(entry.kind == kind or kind is None for entry in self.ledger.entries())


def request(**fields: Any) -> fit_pb2.FitDPEMRequest:
    """A request that the fake fit accepts."""
    defaults: dict[str, Any] = {
        "request_id": "r1",
        "dataset": "people",
        "spend": types_pb2.Spend(rho=0.01),
        "n_components": 2,
    }
    return fit_pb2.FitDPEMRequest(**(defaults | fields))


@pytest.fixture
def fit_request() -> Callable[..., fit_pb2.FitDPEMRequest]:
    """Makes requests that the fake fit accepts."""
    return request


@dataclass(frozen=True)
class Refusal:
    """Refusal as a caller learns it."""

    code: grpc.StatusCode
    text: str
    reason: str | None
    metadata: dict[str, str]
    fields: tuple[str, ...]
    subjects: tuple[str, ...]
    everything: str


def refusal_of(call: Callable[[], object]) -> Refusal:
    """Make a call that must be refused, and decode the refusal."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    status = rpc_status.from_call(error)
    reason, metadata = None, {}
    fields: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    for detail in status.details if status else ():
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        quota = error_details_pb2.QuotaFailure()
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            fields = tuple(violation.field for violation in bad.field_violations)
        elif detail.Unpack(quota):
            subjects = tuple(violation.subject for violation in quota.violations)
    everything = f"{error.code()} {error.details()} {error.trailing_metadata()} {status}"
    return Refusal(error.code(), error.details(), reason, metadata, fields, subjects, everything)


@pytest.fixture
def refused() -> Callable[[Callable[[], object]], Refusal]:
    """Makes a call that must be refused, and decodes the refusal."""
    return refusal_of


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Role, str]]:
    """A state directory with one dataset and one token a role, to be copied."""
    directory = tmp_path_factory.mktemp("template")
    state = State.prepare(directory / "state")
    Certificates(state.tls).create()
    tokens = {role: new_token(role) for role in Role}
    source = directory / "people.csv"
    source.write_text("height,town\n" + "".join(f"{1 + i / ROWS},here\n" for i in range(ROWS)))
    (directory / "people.toml").write_text(MANIFEST)
    with Ledger.create(state.ledger, actor="test") as ledger:
        for role, token in tokens.items():
            ledger.issue_credential(f"the-{role.value}", role, hash_token(token), actor="test", reason="")
        manifest = Manifest.load(directory / "people.toml")
        register(state, ledger, manifest, CsvSource(source), Budget(1.0, 1e-6), actor="test", reason="")
    return state.path, tokens


@pytest.fixture
def state(template: tuple[Path, dict[Role, str]], tmp_path: Path) -> State:
    """A fresh copy of the state directory."""
    shutil.copytree(template[0], tmp_path / "state")
    return State.open(tmp_path / "state")


Serve = Callable[..., Harness]


@pytest.fixture
def serve(state: State, template: tuple[Path, dict[Role, str]]) -> Iterator[Serve]:
    """Starts servers on the state directory: `serve(ledger=..., datasets=..., **config)`."""
    with ExitStack() as stack:

        def start(
            *,
            wrap_ledger: Callable[[Path], Ledger] = Ledger.open,
            make_datasets: Callable[[Ledger, Path], Datasets] = Datasets,
            **config: Any,
        ) -> Harness:
            fit = FakeFit()
            ledger = stack.enter_context(wrap_ledger(state.ledger))
            settings = Config.model_validate({"address": "127.0.0.1:0", "response_quantum_seconds": 0.01} | config)
            datasets = make_datasets(ledger, state.datasets)
            fits, events = {"FitDPEM": fit}, log.Events()
            server = BursarServer(
                state=state, config=settings, ledger=ledger, datasets=datasets, fits=fits, events=events
            )
            running = stack.enter_context(ExitStack())
            running.enter_context(server)
            stack.callback(fit.hold.set)  # else a failing test would wait for its own fit
            credentials = grpc.ssl_channel_credentials(Certificates(state.tls).ca.read_bytes())
            channel = stack.enter_context(grpc.secure_channel(server.address, credentials))
            return Harness(state, ledger, fit, server.address, template[1], channel, running.close, events)

        yield start


@pytest.fixture
def served(serve: Serve) -> Harness:
    """A server with its defaults, but for a short quantum."""
    return serve()
