"""View of an operator: health, metrics, traces and the log; and that none of it knows a row."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bursar_ledger import Budget, Debit, Ledger, Role
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server import log
from bursar_server.__main__ import main
from bursar_server.access.auth import hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.admin._overview import server_health
from bursar_server.config import Config, ConfigError
from bursar_server.fits.registry import FITS
from bursar_server.ops import telemetry
from bursar_server.ops.health import Condition, Watch
from bursar_server.ops.telemetry import Endpoint, Metrics, ObservingError, Tracing
from bursar_server.state import State
from bursar_server.tables import CsvSource, Manifest
from bursar_server.tables.catalogue import Datasets
from bursar_server.tables.registration import register
from bursar_server.vault import CHUNK, RowSource
from bursar_server.wire.server import CONDITION, BursarServer
from tests.logged import logged

if TYPE_CHECKING:
    from tests.server.serving.conftest import Harness, Serve

METRICS = {"address": "127.0.0.1:0"}


def test_the_condition_is_the_worst_that_was_found(caplog: pytest.LogCaptureFixture) -> None:
    """A missing need makes it unavailable, a missing wish degrades; only changes are told and logged."""
    caplog.set_level("INFO", "bursar.server")
    wrong: dict[str, str | None] = {"ledger": None, "disk": None}
    told: list[Condition] = []
    watch = Watch(
        {"ledger": lambda: wrong["ledger"]}, {"disk": lambda: wrong["disk"]}, told.append, events=log.Events()
    )
    for ledger, disk in ((None, None), (None, None), (None, "full"), ("gone", "full"), (None, None)):
        wrong.update(ledger=ledger, disk=disk)
        watch.look()
    assert told == [Condition.READY, Condition.DEGRADED, Condition.UNAVAILABLE, Condition.READY]
    assert caplog.text.count("health condition=") == 4
    assert "disk: full" in caplog.text
    wrong["disk"] = "full"
    watch.look()
    watch.stop()
    assert watch.look() is Condition.STOPPING
    assert watch.problems == ("disk: full",), "why it stops may be among them"


def test_a_check_that_raises_has_failed() -> None:
    """Nobody's thread ends by it, and the text of an exception is not told."""

    def burst() -> None:
        raise RuntimeError("SECRET")

    with Watch({}, {"disk": burst}, seconds=0.01, events=log.Events()) as watch:
        time.sleep(0.05)
        assert (watch.condition, watch.problems) == (Condition.DEGRADED, ("disk: RuntimeError",))


def test_health_tells_a_degraded_server_that_serves(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """SERVING, and in the trailing metadata that somebody should look; NOT_SERVING without the ledger."""
    monkeypatch.setattr("bursar_server.wire.server.Watch", functools.partial(Watch, seconds=0.05))
    served = serve()
    stub = health_pb2_grpc.HealthStub(served.channel)

    def asked() -> tuple[int, str]:
        answer, call = stub.Check.with_call(health_pb2.HealthCheckRequest())
        return answer.status, dict(call.trailing_metadata())[CONDITION]

    assert asked() == (health_pb2.HealthCheckResponse.SERVING, "ready")
    monkeypatch.setattr("bursar_server.wire.server._LEAST_DISK", 2**63)
    _until(lambda: asked() == (health_pb2.HealthCheckResponse.SERVING, "degraded"))
    words = ["health", "--address", served.address, "--ca", str(Certificates(served.state.tls).ca)]
    told = CliRunner().invoke(main, words)
    assert (told.exit_code, told.output) == (0, "SERVING DEGRADED\n")
    certificates = Certificates(served.state.tls)
    assert "needs to be looked at" in server_health(served.address, certificates)
    port = served.address.rpartition(":")[2]
    assert "needs to be looked at" in server_health(f"0.0.0.0:{port}", certificates)
    assert "none answers at 127.0.0.1:1," in server_health("127.0.0.1:1", certificates)
    monkeypatch.setattr(served.ledger, "newest", _burst)
    _until(lambda: asked() == (health_pb2.HealthCheckResponse.NOT_SERVING, "unavailable"))
    assert CliRunner().invoke(main, words).exit_code == 1
    assert "does not serve" in server_health(served.address, certificates)
    assert CliRunner().invoke(main, [*words, "--live"]).exit_code == 0


def _burst() -> None:
    raise OSError


def _until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("never came true")


def _get(address: str, path: str, host: str = "localhost") -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=600)) as connection:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_the_endpoint_tells_probes_and_monitoring(
    serve: Serve, fit_request: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live, ready, health and counts; a name that is not loopback's is refused, against pages in a browser."""
    addresses: list[str] = []
    monkeypatch.setattr(telemetry, "Endpoint", _noting(addresses))
    served = serve(metrics=METRICS)
    (address,) = addresses
    assert _get(address, "/live") == (200, "alive\n")
    assert _get(address, "/ready") == (200, "ready\n")
    assert json.loads(_get(address, "/health")[1]) == {"condition": "ready", "problems": []}
    assert _get(address, "/")[0] == 404
    assert _get(address, "/metrics", "evil.example.org")[0] == 403
    fits: Any = served.channel.unary_stream("/bursar.v1.FitService/FitDPEM")
    list(fits(fit_request().SerializeToString(), metadata=served.bearer()))
    text = _get(address, "/metrics")[1]
    for line in (
        'bursar_calls_total{method="/bursar.v1.FitService/FitDPEM",status="OK"} 1.0',
        'bursar_debits_total{method="FitDPEM",status="new"} 1.0',
        "bursar_releases_total 1.0",
        'bursar_condition{condition="ready"} 1.0',
        f"bursar_ledger_entries {float(served.entries())}",
    ):
        assert f"{line}\n" in text
    assert re.search(r'bursar_account_spent_ratio\{account="people"\} 0\.\d+\n', text)


def _noting(addresses: list[str]) -> type[Endpoint]:
    class Noting(Endpoint):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            addresses.append(self.address)

    return Noting


def test_metrics_are_off_unless_they_are_asked_for(served: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where the library is missing, the message says what to install."""
    assert Config().metrics.address == ""
    assert Config().tracing.endpoint == ""
    monkeypatch.setattr(telemetry, "prometheus_client", None)
    with pytest.raises(ObservingError, match=r"bursar\[server,metrics\]"):
        Metrics(served.ledger, Watch({}, {}, events=log.Events()), lambda: 0.0)
    monkeypatch.setattr(telemetry, "TracerProvider", None)
    with pytest.raises(ObservingError, match=r"bursar\[server,tracing\]"):
        Tracing(InMemorySpanExporter())


def test_a_port_of_metrics_that_is_taken_is_named() -> None:
    """The setting is named."""
    with (
        Endpoint("127.0.0.1:0", Watch({}, {}, events=log.Events()), bytes) as endpoint,
        pytest.raises(ObservingError, match=r"metrics\.address"),
    ):
        Endpoint(endpoint.address, Watch({}, {}, events=log.Events()), bytes)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[metrics]\naddress = "0.0.0.0:9464"', "loopback"),
        ('[metrics]\naddress = "10.0.0.1:9464"', "loopback"),
        ('[metrics]\naddress = "localhost"', "address"),
        ('[tracing]\nendpoint = "http://collector:4317"', "tracing.endpoint"),
        ('[tracing]\nendpoint = "ftp://127.0.0.1:4317"', "https"),
    ],
)
def test_what_needs_no_token_stays_on_this_machine(tmp_path: Path, text: str, named: str) -> None:
    """Metrics on loopback only; spans leave the machine over TLS only."""
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=named):
        Config.load(tmp_path / "config.toml")


def test_the_log_may_be_json(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One object a line with time, level, event and fields, whatever a field holds; libraries say their names only."""
    logger = logging.getLogger("bursar.server")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(log, "_bound", None)
    log.set_up("json")
    with log.without_libraries(events := log.Events()):
        events.tell(log.Call(method="/x", principal='eve"\n{', status="OK"))
        events.tell(log.Call(method="/y", principal=None, status="OK"))
        logging.getLogger("grpc._server").error("SECRET %s", "row")
        logging.getLogger("grpc._server").info("SECRET")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [sorted(line) for line in lines] == [
        ["event", "level", "method", "principal", "status", "timestamp"],
        ["event", "level", "method", "status", "timestamp"],
        ["event", "level", "logger", "timestamp"],
    ]
    assert lines[2]["logger"] == "grpc._server"
    assert "SECRET" not in str(lines)


# Two servers whose tables differ in one row.

MANIFEST = """
name = "people"
adjacency = "replace_one"
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
"""
PLAIN = [f"{(-1) ** i * 0.5},{2.5 + 5 * (i % 2)}" for i in range(200)]
ROWS = {
    "extreme": ["1e308,-1e308", *PLAIN[1:]],
    "missing": ["nan,", *PLAIN[1:]],
}
_TIMES = re.compile(r"bursar_certificate_expires_timestamp_seconds [0-9.e+]+\n")


def _state(folder: Path, rows: list[str]) -> tuple[State, str]:
    state = State.prepare(folder / "state")
    Certificates(state.tls).create()
    token = new_token(Role.ANALYST)
    (folder / "rows.csv").write_text("x,y\n" + "\n".join(rows) + "\n")
    (folder / "table.toml").write_text(MANIFEST)
    with Ledger.create(state.ledger, actor="test") as ledger:
        ledger.issue_credential("ann", Role.ANALYST, hash_token(token), actor="test", reason="")
        manifest, source = Manifest.load(folder / "table.toml"), CsvSource(folder / "rows.csv")
        register(state, ledger, manifest, source, Budget(1.0, 1e-6), actor="test", reason="")
    return state, token


def _requests() -> Iterator[tuple[str, Any]]:
    spend = types_pb2.Spend(rho=0.001)
    common: dict[str, Any] = {"dataset": "people", "columns": ["x", "y"], "spend": spend}
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("FitDPEM", {"n_components": 2, "iterations": 2}),
        ("FitSketchKMeans", {"n_clusters": 2, "new_sketch": fit_pb2.NewSketch(n_frequencies=16)}),
        ("FitMRF", {"tree": fit_pb2.SelectTree()}),
        ("FitDPEM", {"n_components": 0}),  # refused
        ("FitDPEM", {"n_components": 2, "spend": types_pb2.Spend(rho=1e6)}),  # too much
    )
    for i, (name, fields) in enumerate(asked):
        yield name, getattr(fit_pb2, f"{name}Request")(request_id=f"r{i}", **(common | fields))


@dataclass(frozen=True)
class Opened(log.Event):
    """Value that the log must never have."""

    word = "opened"
    rows: int


class Telling(Datasets):
    """A planted bug: says something of the rows when they are opened."""

    def rows(self, debit: Debit, columns: tuple[str, ...]) -> RowSource:
        """Return what the log must never have."""
        found = super().rows(debit, columns)
        block, present = np.empty((len(columns), CHUNK)), np.empty(CHUNK, dtype=np.bool_)
        found.open().read(0, block, present)
        log.Events().tell(Opened(rows=int(present.sum())))
        return found


def _everything(folder: Path, rows: list[str], kind: type[Datasets] = Datasets) -> dict[str, Any]:
    """Log, metrics, spans and statuses of one run, without times and random names."""
    folder.mkdir()
    state, token = _state(folder, rows)
    exporter, statuses = InMemorySpanExporter(), []
    config = Config.model_validate({"address": "127.0.0.1:0", "metrics": METRICS, "response_quantum_seconds": 0.05})
    with Ledger.open(state.ledger) as ledger, logged() as lines:
        datasets = kind(ledger, state.datasets)
        tracing = Tracing(exporter)
        server = BursarServer(state=state, config=config, ledger=ledger, datasets=datasets, fits=FITS, tracing=tracing)
        with server:
            ca = grpc.ssl_channel_credentials(Certificates(state.tls).ca.read_bytes())
            with grpc.secure_channel(server.address, ca) as channel:
                stub = fit_pb2_grpc.FitServiceStub(channel)
                for name, request in _requests():
                    call = getattr(stub, name)(request, metadata=(("authorization", f"Bearer {token}"),))
                    try:
                        statuses.append((name, [event.WhichOneof("event") for event in call][-1]))
                    except grpc.RpcError as error:
                        statuses.append((name, str(error)))
            metrics = _get(server.metrics_address, "/metrics")[1]
    spans = [
        (span.name, dict(span.attributes or {}), [(one.name, dict(one.attributes or {})) for one in span.events])
        for span in exporter.get_finished_spans()
    ]
    return {"log": lines, "metrics": _TIMES.sub("", metrics), "spans": spans, "statuses": statuses}


@pytest.mark.slow
def test_nothing_that_an_operator_sees_depends_on_a_row(tmp_path: Path) -> None:
    """Tables that differ in one row, one as broken as a file can have it: log, metrics and traces are the same."""
    expected = _everything(tmp_path / "plain", PLAIN)
    assert [status for _, status in expected["statuses"][:3]] == ["model"] * 3
    assert sum(line.startswith("debit ") for line in expected["log"]) == 3
    assert "bursar_debits_total" in expected["metrics"]
    assert [span[2] for span in expected["spans"] if span[2]]
    for name, rows in ROWS.items():
        assert _everything(tmp_path / name, rows) == expected, name


@pytest.mark.slow
def test_a_log_that_told_of_rows_would_be_found(tmp_path: Path) -> None:
    """The comparison above sees a count of rows that are not null."""
    plain, missing = (
        _everything(tmp_path / name, rows, Telling) for name, rows in (("plain", PLAIN), ("missing", ROWS["missing"]))
    )
    assert plain["log"] != missing["log"]
