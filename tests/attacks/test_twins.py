"""Two servers whose tables differ in one row: whatever a client, a probe or an operator can see of them is the same.

Noise is equal on both sides, put in by the constructor, and so loud that nothing of the rows is heard through it. What
is compared, byte by byte: answers, errors, previews, the catalogue, health, metrics, log, traces, sizes of files in the
state directory, and what the command line prints and exits with. Left out are times, random ids and hashes of them.
"""

from __future__ import annotations

import contextlib
import http.client
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bursar._cli._app import app
from bursar_ledger import Budget, Ledger, Role
from bursar_proto.v1 import catalog_pb2, dummy_pb2, dummy_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server import log
from bursar_server.access.auth import hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.admin.cli import main as admin
from bursar_server.config import Config
from bursar_server.fits import AnyFit, dpem, gradient_em, mrf, separated_gmm, sketch
from bursar_server.ops.telemetry import Tracing
from bursar_server.state import State
from bursar_server.tables import CsvSource, Manifest
from bursar_server.tables.catalogue import Datasets
from bursar_server.tables.registration import register
from bursar_server.vault import Noise
from bursar_server.wire.server import BursarServer
from tests.attacks.asking import PATIENCE, Metadata
from tests.attacks.deaf import Deaf
from tests.attacks.fixed_search import deafly
from tests.attacks.streams import heard, stream
from tests.audit.wire import Miswired
from tests.logged import logged

pytestmark = pytest.mark.slow

SCHEMA = """
name = "people"
adjacency = "{adjacency}"
[[columns]]
name = "x"
kind = "numeric"
lower = -1.0
upper = 1.0
bins = 4
[[columns]]
name = "y"
kind = "numeric"
lower = 0.0
upper = 10.0
bins = 4
[[columns]]
name = "m"
kind = "numeric"
lower = -2.0
upper = 2.0
nullable = true
[[columns]]
name = "a"
kind = "categorical"
categories = ["p", "q", "r"]
"""
PLAIN = [f"{0.5 - i % 2 + 1e-3 * i},{2.5 + 5 * (i % 2)},{0.1 * (i % 7)},{'pqr'[i % 3]}" for i in range(60)]
POINT = ["0.25,5.0,0.0,p"] * 60
NULLS = [",,,"] * 60

TWINS: Mapping[str, tuple[list[str], list[str]]] = {
    # What overflows, squares to infinity, and belongs to no category.
    "a row that is broken": (PLAIN, ["1e308,-1e308,inf,nobody", *PLAIN[1:]]),
    "a row without values": (PLAIN, ["nan,,,", *PLAIN[1:]]),
    "a row of the smallest numbers": (PLAIN, ["5e-324,-5e-324,1e-310,p", *PLAIN[1:]]),
    "a row far out": (PLAIN, ["1.0,0.0,-2.0,r", *PLAIN[1:]]),
    # Covariances and features without a second dimension, clusters without a member, likelihoods without a bound.
    "one row beside a single point": (POINT, ["-1.0,10.0,2.0,r", *POINT[1:]]),
    "the only row that is there": (NULLS, ["0.1,1.0,,q", *NULLS[1:]]),
}
ABSENT = (PLAIN, PLAIN[1:])
"""Rows that are there or not, under add_remove_one."""

FITS: Mapping[str, AnyFit] = {
    "FitDPEM": Miswired(Deaf(), fit=dpem),
    "FitSketchKMeans": Miswired(Deaf(), fit=sketch),
    "FitMRF": Miswired(Deaf(), fit=mrf),
    "FitGradientEM": Miswired(Deaf(), fit=gradient_em),
    "FitSeparatedGMM": Miswired(Deaf(), deafly, separated_gmm),
}

_RHO, _LITTLE, _EPSILON = types_pb2.Spend(rho=0.01), types_pb2.Spend(rho=0.001), types_pb2.Spend(epsilon=0.5)
_XY = ["x", "y"]
_LOG = [types_pb2.ColumnTransform(column="y", transform=types_pb2.TRANSFORM_LOG1P)]
REQUESTS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("FitDPEM", "dpem", {"spend": _RHO, "n_components": 2, "iterations": 3, "columns": _XY}),
    ("FitDPEM", "dpem", {"spend": _LITTLE, "n_components": 2, "iterations": 3, "columns": _XY, "transforms": _LOG}),
    ("FitDPEM", "dpem", {"spend": _EPSILON, "n_components": 3, "iterations": 2, "columns": _XY, "mode": 2}),
    ("FitSeparatedGMM", "separated_gmm", {"spend": _RHO, "n_components": 2, "sigma_min": 0.05, "sigma_max": 0.3}),
    (
        "FitSeparatedGMM",
        "separated_gmm",
        {
            "spend": _RHO,
            "columns": _XY,
            "n_components": 2,
            "sigma_min": 0.05,
            "sigma_max": 0.3,
            "variant": fit_pb2.SEPARATED_VARIANT_SAMPLE_AND_AGGREGATE,
        },
    ),
    ("FitGradientEM", "gradient_em", {"spend": _RHO, "model": 1, "columns": _XY, "iterations": 3}),
    ("FitGradientEM", "gradient_em", {"spend": _RHO, "model": 3, "columns": ["m", "x"], "target": "y"}),
    ("FitGradientEM", "gradient_em", {"spend": _EPSILON, "model": 2, "columns": ["x"], "target": "y", "iterations": 2}),
    (
        "FitSketchKMeans",
        "sketch_kmeans",
        {"spend": _RHO, "columns": _XY, "n_clusters": 2, "new_sketch": fit_pb2.NewSketch(n_frequencies=16)},
    ),
    ("FitMRF", "mrf", {"spend": _RHO, "tree": fit_pb2.SelectTree()}),
    ("FitMRF", "mrf", {"spend": _EPSILON, "independent": fit_pb2.Independent()}),
    # As the SDK asks: what is free it computes itself.
    (
        "FitSketchKMeans",
        "sketch_kmeans",
        {
            "spend": _LITTLE,
            "columns": _XY,
            "n_clusters": 2,
            "new_sketch": fit_pb2.NewSketch(),
            "decode_on_client": True,
        },
    ),
    ("FitMRF", "mrf", {"spend": types_pb2.Spend(rho=0.001), "tree": fit_pb2.SelectTree(), "estimate_on_client": True}),
    # Refused: for a field, for the budget, for the table.
    ("FitDPEM", "dpem", {"spend": _RHO, "n_components": 0}),
    ("FitMRF", "mrf", {"spend": types_pb2.Spend(rho=1e6), "tree": fit_pb2.SelectTree()}),
    ("FitSeparatedGMM", "separated_gmm", {"spend": _RHO, "dataset": "others"}),
)
"""Method, its field of a preview, and what is asked for."""

COMMANDS = (
    ("fit", "dpem", "people", "--n-components", "2", "--rho", "0.005", "--columns", "x,y", "--yes", "--anyway"),
    ("fit", "mrf", "people", "--cliques", "tree", "--rho", "0.005", "--yes", "--anyway"),
    ("fit", "dpem", "people", "--n-components", "2", "--rho", "1000", "--yes"),
    (
        "fit",
        "sketch-kmeans",
        "people",
        "--n-clusters",
        "2",
        "--rho",
        "0.005",
        "--columns",
        "x,y",
        "--public-seed",
        "1",
        "--yes",
        "--anyway",
    ),
    ("datasets",),
)

_METRICS_OF_TIME = re.compile(r"^bursar_(certificate_expires|checkpoint_age)\S* .*$", re.MULTILINE)
_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{16,}|\d{4}-\d\d-\d\dT[0-9:.]+Z?|127\.0\.0\.1:\d+")


def state_of(folder: Path, rows: list[str], adjacency: str) -> tuple[State, str]:
    """A state directory with one table, and an analyst's token."""
    folder.mkdir()
    made = CliRunner().invoke(admin, ["init", "--state", str(folder / "state")])
    assert made.exit_code == 0, made.output
    state, token = State.open(folder / "state"), new_token(Role.ANALYST)
    (folder / "rows.csv").write_text("x,y,m,a\n" + "\n".join(rows) + "\n")
    (folder / "table.toml").write_text(SCHEMA.format(adjacency=adjacency))
    with Ledger.open(state.ledger) as ledger:
        ledger.issue_credential("ann", Role.ANALYST, hash_token(token), actor="test", reason="")
        manifest, source = Manifest.load(folder / "table.toml"), CsvSource(folder / "rows.csv")
        register(state, ledger, manifest, source, Budget(3.0, 1e-6), actor="test", reason="")
    return state, token


def asked(channel: grpc.Channel, bearer: Metadata) -> Iterator[tuple[str, Any]]:
    """Yield what an analyst can ask, and the answers."""
    with_token: Any = {"metadata": bearer, "timeout": PATIENCE}
    fits = fit_pb2_grpc.FitServiceStub(channel)
    dummies = dummy_pb2_grpc.DummyServiceStub(channel)
    for i, (method, field, fields) in enumerate(REQUESTS):
        request = getattr(fit_pb2, f"{method}Request")(**{"request_id": f"r{i}", "dataset": "people", **fields})
        preview = fit_pb2.PreviewRequest(**{field: request})
        yield f"preview {i}", heard(stream(channel, "FitService/Preview", preview, fit_pb2.PreviewResponse, bearer))
        yield f"fit {i}", heard(getattr(fits, method)(request, **with_token))
        yield f"again {i}", heard(getattr(fits, method)(request, **with_token))
        dummy = dummies.RunDummy(dummy_pb2.DummyRequest(fit=preview, rows=5, public_seed=1), **with_token)
        # The model has noise of its own, and no row in it.
        yield f"dummy {i}", heard(dummy)[0]
    for name, question in (
        ("ListDatasets", catalog_pb2.ListDatasetsRequest()),
        ("GetDataset", catalog_pb2.GetDatasetRequest(dataset="people")),
        ("ListReleases", catalog_pb2.ListReleasesRequest()),
        ("ListSketches", catalog_pb2.ListSketchesRequest()),
        ("GetHistory", catalog_pb2.GetHistoryRequest(size=3)),
        *(("GetRelease", catalog_pb2.GetReleaseRequest(entry=entry)) for entry in range(1, 24)),
    ):
        answer = getattr(catalog_pb2, f"{name}Response")
        yield f"{name} {question}", heard(stream(channel, f"CatalogService/{name}", question, answer, bearer))
    checked, call = health_pb2_grpc.HealthStub(channel).Check.with_call(health_pb2.HealthCheckRequest())
    yield "health", (checked.status, call.trailing_metadata())


def commands(address: str, state: State, token: str, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield output and exit status of the command line."""
    settings = {
        "BURSAR_ADDRESS": address,
        "BURSAR_TOKEN": token,
        "BURSAR_CA": str(Certificates(state.tls).ca),
        "BURSAR_HISTORY": str(folder / "history.json"),
    }
    for words in COMMANDS:
        result = CliRunner(env=settings).invoke(app, list(words))
        yield " ".join(words), (result.exit_code, _RANDOM.sub("#", result.output).replace(str(folder), ""))


def sizes(state: State) -> dict[str, int]:
    """Return sizes of files, by path without random names. Certificates differ in length: their numbers are random."""
    return {
        re.sub(r"[0-9a-f]{32}", "#", path.relative_to(state.path).as_posix()): path.stat().st_size
        for path in sorted(state.path.rglob("*"))
        if path.is_file() and path.suffix != ".pem"
    }


def everything(
    folder: Path,
    rows: list[str],
    *,
    adjacency: str = "replace_one",
    fits: Mapping[str, AnyFit] = FITS,
) -> dict[str, Any]:
    """All that can be seen of a server with a table of these rows, by channel."""
    state, token = state_of(folder, rows, adjacency)
    exporter = InMemorySpanExporter()
    config = Config.model_validate(
        {"address": "127.0.0.1:0", "metrics": {"address": "127.0.0.1:0"}, "response_quantum_seconds": 0.05}
    )
    with Ledger.open(state.ledger) as ledger, logged() as lines:
        server = BursarServer(
            state=state,
            config=config,
            ledger=ledger,
            datasets=Datasets(ledger, state.datasets),
            fits=fits,
            tracing=Tracing(exporter),
        )
        with server:
            credentials = grpc.ssl_channel_credentials(Certificates(state.tls).ca.read_bytes())
            with grpc.secure_channel(server.address, credentials) as channel:
                answers = dict(asked(channel, (("authorization", f"Bearer {token}"),)))
            printed = dict(commands(server.address, state, token, folder))
            with contextlib.closing(http.client.HTTPConnection(server.metrics_address, timeout=600)) as connection:
                connection.request("GET", "/metrics", headers={"Host": "localhost"})
                metrics = connection.getresponse().read().decode()
    spans = [
        (span.name, dict(span.attributes or {}), [(one.name, dict(one.attributes or {})) for one in span.events])
        for span in exporter.get_finished_spans()
    ]
    return {
        "answers": answers,
        "commands": printed,
        "metrics": _METRICS_OF_TIME.sub("", metrics),
        # In order of their words: calls end on threads of their own, in either order on a machine that is busy.
        "log": sorted(_RANDOM.sub("#", str(line)) for line in lines),
        "traces": sorted(_RANDOM.sub("#", str(span)) for span in spans),
        "files": {
            name: size for name, size in sizes(state).items() if adjacency == "replace_one" or "rows" not in name
        },
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Return what is seen of the table that most pairs begin with."""
    return everything(tmp_path_factory.mktemp("twins") / "plain", PLAIN)


def unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Channels that tell the two apart, and for answers and commands which."""
    found = []
    for channel, seen in first.items():
        if isinstance(seen, dict):
            other = second[channel]
            found += [f"{channel}: {name}" for name in sorted({*seen, *other}) if seen.get(name) != other.get(name)]
        elif seen != second[channel]:
            found.append(channel)
    return found


def test_a_row_that_breaks_things_changes_nothing_that_is_seen(tmp_path: Path, plain: Mapping[str, Any]) -> None:
    """The first of the pairs below, for every fit and channel; and that there was something to see."""
    _, rows = TWINS["a row that is broken"]
    assert unlike(plain, everything(tmp_path / "other", rows)) == []
    models = [name for name, seen in plain["answers"].items() if name.startswith("fit") and len(seen) >= 2]
    assert len(models) >= 9
    refused = [" ".join(words) for words in COMMANDS if "1000" in words]
    assert [words for words, (code, _) in plain["commands"].items() if code] == refused
    assert "bursar_debits_total" in plain["metrics"]
    assert "debit" in str(plain["log"])
    assert "FitGradientEM" in str(plain["traces"])
    assert plain["files"]["ledger.sqlite"] > 0


@pytest.mark.parametrize("name", [name for name in TWINS if name != "a row that is broken"])
def test_no_row_changes_anything_that_is_seen(tmp_path: Path, plain: Mapping[str, Any], name: str) -> None:
    """Every pair of neighbours that could break a fit: empty, singular, far out, denormal."""
    one, other = TWINS[name]
    first = plain if one is PLAIN else everything(tmp_path / "one", one)
    assert unlike(first, everything(tmp_path / "other", other)) == []


def test_nor_does_whether_a_row_is_there(tmp_path: Path) -> None:
    """The file of rows alone has another size under add_remove_one, where the number of rows is private."""
    first, second = (everything(tmp_path / str(i), rows, adjacency="add_remove_one") for i, rows in enumerate(ABSENT))
    assert unlike(first, second) == []


@dataclass(frozen=True)
class Summed(log.Event):
    """Sum that the log must never have."""

    word = "summed"
    total: int


class Loud(Deaf):
    """A planted bug: what was summed is logged."""

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Return what nobody must be told."""
        log.Events().tell(Summed(total=int(sums.sum())))
        return super().add(sums, noise)


class Bursting(Deaf):
    """A planted bug: fails for some rows; here for those that give another sum than the first table did."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._second: Iterator[int] | None = None

    def turn(self) -> None:
        """Sum the second table from here on."""
        self._second = iter(self._first)

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """Raise as if a matrix were singular."""
        total = int(sums.sum())
        if self._second is None:
            self._first.append(total)
        elif next(self._second, total) != total:
            raise ValueError("singular matrix")
        return super().add(sums, noise)


def test_the_rivals_are_told_apart(tmp_path: Path) -> None:
    """The same comparison on a fit that fails for some rows, and on one that logs what it summed."""
    pair = TWINS["a row without values"]
    bursting = Bursting()
    failing = {**FITS, "FitDPEM": Miswired(bursting, fit=dpem)}
    first = everything(tmp_path / "f0", pair[0], fits=failing)
    bursting.turn()
    told = unlike(first, everything(tmp_path / "f1", pair[1], fits=failing))
    assert {"answers: fit 0", "answers: again 0", "answers: ListReleases ", "log"} <= set(told)
    assert any(one.startswith("commands: fit dpem") for one in told)
    loud = {**FITS, "FitMRF": Miswired(Loud(), fit=mrf)}
    first, second = (everything(tmp_path / f"t{i}", rows, fits=loud) for i, rows in enumerate(pair))
    assert unlike(first, second) == ["log"]
