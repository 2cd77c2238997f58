"""The JSON gateway as a process of its own, in front of a real server: the same answers, roles, limits and debits."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from bursar._process import ServerProcess, start
from bursar_ledger import Ledger, verify
from bursar_proto.v1 import fit_pb2
from bursar_server.gateway.mapping import METHODS
from tests.browser.npm import node
from tests.e2e.conftest import PATIENCE, Home, Server, dpem_request
from tests.ports import free_port

DOCS = Path(__file__).resolve().parents[2] / "docs"
WITH_LIMITS = """
import sys
from pathlib import Path
from bursar_server.gateway.calls import Limits
from bursar_server.gateway.serving import serve
server, tls, limits = sys.argv[1:]
serve("127.0.0.1:0", server, Path(tls), ready=lambda at: print(f"on https://{at}", flush=True), limits=eval(limits))
"""

RIDES = """
name = "rides"
adjacency = "replace_one"
[[columns]]
name = "from"
kind = "categorical"
categories = ["north", "south"]
[[columns]]
name = "to"
kind = "categorical"
categories = ["north", "south"]
"""


@dataclass
class Gateway:
    """A running gateway.

    Attributes:
        served: its process, whose address is a URL.
        home: state directory of the server behind it.
        context: TLS that trusts the state's authority.
    """

    served: ServerProcess
    home: Home
    context: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        """Trust the state's authority."""
        self.context = ssl.create_default_context(cafile=self.home.state.tls / "ca.pem")

    def post(self, path: str, body: Any, role: str | None = "analyst", **headers: str) -> httpx.Response:
        """Send a body, as JSON if it is no bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        token = {"authorization": f"Bearer {self.home.tokens[role]}"} if role else {}
        given = {"content-type": "application/json"} | token | headers
        url = f"{self.served.address}/bursar.v1.{path}"
        return httpx.post(url, content=content, headers=given, verify=self.context, timeout=PATIENCE)

    def lines(self, path: str, body: Any, role: str = "analyst") -> list[dict[str, Any]]:
        """Return the lines of a stream."""
        answer = self.post(path, body, role)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.text.splitlines()]

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.served.address.rpartition(":")[2])

    def raw(self) -> ssl.SSLSocket:
        """Return a connection without HTTP."""
        return self.context.wrap_socket(
            socket.create_connection(("127.0.0.1", self.port), PATIENCE), server_hostname="localhost"
        )


@contextlib.contextmanager
def _gateway(home: Home, server: str, log: Path, limits: str = "") -> Iterator[Gateway]:
    server = server.replace("127.0.0.1", "localhost")
    command = [sys.executable, "-m", "bursar_server", "gateway", "--listen", "127.0.0.1:0", "--server", server]
    command += ["--tls", str(home.state.tls)]
    if limits:
        command = [sys.executable, "-c", WITH_LIMITS, server, str(home.state.tls), limits]
    served = start(command, log)
    try:
        yield Gateway(served, home)
    finally:
        served.process.kill()
        served.process.wait(PATIENCE)
        if served.process.stdout is not None:
            served.process.stdout.close()


@pytest.fixture(scope="module")
def gateway(shared: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway in front of the shared server."""
    with _gateway(shared.home, shared.address, tmp_path_factory.mktemp("gateway") / "log") as made:
        yield made


@pytest.fixture
def alone(home: Home, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway with short limits, without a server behind it."""
    limits = "Limits(connections=4, request_seconds=1.0, idle_seconds=1, write_seconds=1.0, header_bytes=2048)"
    with _gateway(home, f"127.0.0.1:{free_port()}", tmp_path / "gateway.log", limits) as made:
        yield made


def _grpc(server: Server, path: str, request: Message, role: str) -> list[Message]:
    """Return what gRPC answers."""
    method = METHODS[path]
    with server.channel() as channel:
        make: Any = channel.unary_stream if method.is_stream else channel.unary_unary
        call = make(
            path,
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=method.response.FromString,
        )
        answer = call(request, metadata=server.bearer(role))
        return list(answer) if method.is_stream else [answer]


def _as_json(message: Message) -> Any:
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


UNARY: dict[str, tuple[str, Any]] = {
    "CatalogService/ListDatasets": ("analyst", {}),
    "CatalogService/GetDataset": ("analyst", {"dataset": "remainder"}),
    "CatalogService/ListReleases": ("analyst", {}),
    "CatalogService/ListSketches": ("analyst", {}),
    "CatalogService/GetRelease": ("analyst", None),
    "CatalogService/GetHistory": ("analyst", {}),
    "FitService/Preview": (
        "analyst",
        {"dpem": {"dataset": "remainder", "columns": ["x"], "n_components": 1, "spend": {"rho": 1e-4}}},
    ),
    "AuditService/Verify": ("auditor", {}),
}
"""Role and body for every method with one answer."""


def test_every_method_with_one_answer_is_asked() -> None:
    """A new one has to be added to the table above."""
    assert {f"/bursar.v1.{path}" for path in UNARY} == {path for path, one in METHODS.items() if not one.is_stream}


@pytest.mark.parametrize("path", UNARY)
def test_an_answer_is_that_of_grpc(shared: Server, gateway: Gateway, path: str) -> None:
    """Field by field."""
    role, body = UNARY[path]
    if body is None:
        (receipt, *_) = _grpc(shared, "/bursar.v1.FitService/FitDPEM", dpem_request(spend={"rho": 1e-5}), "analyst")
        assert isinstance(receipt, fit_pb2.FitDPEMResponse)
        body = {"entry": receipt.receipt.entry}
    answer = gateway.post(path, body, role)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    assert not {"access-control-allow-origin", "set-cookie", "server"} & set(answer.headers)
    request = json_format.ParseDict(body, METHODS[f"/bursar.v1.{path}"].request())
    (told,) = _grpc(shared, f"/bursar.v1.{path}", request, role)
    assert _comparable(answer.json()) == _comparable(_as_json(told))


def _comparable(value: Any) -> Any:
    """Leave out times, which differ from call to call."""
    if isinstance(value, dict):
        return {key: _comparable(one) for key, one in value.items() if "seconds" not in key}
    return [_comparable(one) for one in value] if isinstance(value, list) else value


_FITS: dict[str, dict[str, Any]] = {
    "FitDPEM": {"dataset": "people", "columns": ["x", "y"], "n_components": 2},
    "FitSeparatedGMM": {
        "dataset": "people",
        "columns": ["x", "y"],
        "n_components": 2,
        "sigma_min": 0.05,
        "sigma_max": 0.3,
    },
    "FitGradientEM": {"dataset": "people", "columns": ["x"], "model": 1, "noise_std": 0.5, "iterations": 2},
    "FitSketchKMeans": {
        "dataset": "people",
        "columns": ["x", "y"],
        "n_clusters": 2,
        "n_init": 1,
        "new_sketch": {"n_frequencies": 16, "sigma": 0.2},
    },
    "FitMRF": {"dataset": "rides", "cliques": {"cliques": [{"columns": ["from", "to"]}]}},
}


@pytest.mark.slow
def test_a_fit_is_the_same_debit_by_both_ways(home: Home, tmp_path: Path) -> None:
    """All five: the request by gRPC gets the answer of the same request by JSON, and is free."""
    assert {f"/bursar.v1.FitService/{name}" for name in _FITS} == {
        path for path, one in METHODS.items() if one.is_stream and "/bursar.v1.FitService/" in path
    }
    folder = home.state.path.parent
    (folder / "rows.csv").write_text("from,to\n" + "north,south\nsouth,south\nnorth,north\n" * 100)
    (folder / "rides.toml").write_text(RIDES)
    budget = ("--epsilon", "1", "--delta", "1e-6")
    home.admin("import", "--manifest", folder / "rides.toml", "--csv", folder / "rows.csv", *budget)
    server = home.start()
    with _gateway(home, server.address, tmp_path / "gateway.log") as gateway:
        for name, fields in _FITS.items():
            body = {"request_id": f"same-{name}", "spend": {"rho": 0.002}, **fields}
            lines = gateway.lines(f"FitService/{name}", body)
            path = f"/bursar.v1.FitService/{name}"
            told = _grpc(server, path, json_format.ParseDict(body, METHODS[path].request()), "analyst")
            again = gateway.lines(f"FitService/{name}", body)
            assert next(iter(lines[0])) == "receipt"
            assert next(iter(lines[-1])) == "model"
            assert (lines[0], lines[-1]) == (_as_json(told[0]), _as_json(told[-1])) == (again[0], again[-1])
    assert server.end(signal.SIGTERM)[0] == 0
    with Ledger.open(home.state.ledger) as ledger:
        assert len(ledger.releases()) == len(_FITS)
    assert verify(home.state.ledger).ok


def test_other_streams_are_lines(shared: Server, gateway: Gateway) -> None:
    """The ledger for an auditor, a dry run for an analyst."""
    entries = gateway.lines("AuditService/ListEntries", {}, "auditor")
    told = _grpc(
        shared,
        "/bursar.v1.AuditService/ListEntries",
        METHODS["/bursar.v1.AuditService/ListEntries"].request(),
        "auditor",
    )
    assert entries[:5] == [_as_json(one) for one in told[:5]]
    assert len(entries) > 5


@pytest.mark.parametrize(
    ("role", "path", "status", "code"),
    [
        ("auditor", "FitService/Preview", 403, "permission_denied"),
        ("analyst", "AuditService/Verify", 403, "permission_denied"),
        ("analyst", "AuditService/ListEntries", 403, "permission_denied"),
        ("admin", "FitService/FitDPEM", 403, "permission_denied"),
        (None, "CatalogService/ListDatasets", 401, "unauthenticated"),
        ("admin", "AdminService/ListTokens", 404, "unimplemented"),
        ("analyst", "CatalogService/Nothing", 404, "unimplemented"),
    ],
)
def test_roles_are_those_of_the_server(gateway: Gateway, role: str | None, path: str, status: int, code: str) -> None:
    """The gateway knows no token; the server's own sentence is passed on."""
    answer = gateway.post(path, {}, role)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json()["message"]
    if status == 401:
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_made_up_token_is_refused_and_in_no_log(gateway: Gateway) -> None:
    """Neither token nor request is written anywhere."""
    answer = gateway.post("CatalogService/GetDataset", {"dataset": "secret-name"}, None, authorization="Bearer made-up")
    assert answer.status_code == 401
    gateway.post("CatalogService/GetDataset", {"secret-field": 1})
    text = gateway.served.log.read_text()
    assert "made-up" not in text
    assert "secret" not in text


def test_refusals_cost_nothing(shared: Server, gateway: Gateway) -> None:
    """Too much, wrong fields, an id that was used: the statuses of Connect, and the ledger as before."""
    body = {"request_id": "gw-1", "dataset": "people", "columns": ["x"], "n_components": 1, "spend": {"rho": 1e-5}}
    lines = gateway.lines("FitService/FitDPEM", body)
    with Ledger.open(shared.home.state.ledger) as ledger:
        before = len(ledger.releases())
    for change, status, said in (
        ({"request_id": "gw-2", "spend": {"rho": 1000}}, 429, "Nothing was debited"),
        ({"n_components": 2}, 409, "this request_id was used"),
        ({"request_id": "gw-3", "columns": ["nothing"]}, 400, "nothing was debited: columns"),
        ({"request_id": "gw-4", "colums": ["x"]}, 400, "colums"),
        ({"request_id": "gw-5", "dataset": "none"}, 404, "there is no dataset"),
    ):
        answer = gateway.post("FitService/FitDPEM", body | change)
        assert (answer.status_code, said in answer.json()["message"]) == (status, True), answer.text
    with Ledger.open(shared.home.state.ledger) as ledger:
        assert len(ledger.releases()) == before
    assert gateway.lines("FitService/FitDPEM", body)[-1] == lines[-1]


def test_a_time_limit_is_passed_on(gateway: Gateway) -> None:
    """A limit of a millisecond ends the call with 504."""
    answer = gateway.post("AuditService/Verify", {}, "auditor", **{"connect-timeout-ms": "1"})
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")


def test_bodies_of_every_kind_are_answered(gateway: Gateway) -> None:
    """Made-up bytes and JSON for every method: never a 500, never a traceback."""
    bodies: tuple[bytes, ...] = (
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"null",
        b'{"a": 1}',
        b"[" * 50_000,
        b'{"dataset": "\\ud800"}',
        b'{"spend": []}',
    )
    bodies += (b'{"request_id": {"a": []}, "columns": 3}', b'{"dpem": {"spend": {"rho": "NaN"}}}', b"{}\n{}")
    for path in METHODS:
        for body in bodies:
            answer = gateway.post(path.removeprefix("/bursar.v1."), body)
            assert answer.status_code in (200, 400, 403, 404), (path, body[:40], answer.text)
            assert answer.status_code == 200 or answer.json()["message"]
    assert gateway.served.process.poll() is None
    text = gateway.served.log.read_text()
    assert "Traceback" not in text
    assert "failure" not in text


def test_a_body_that_is_too_large_is_refused(gateway: Gateway) -> None:
    """The announced length decides before it is read, and the arriving bytes if none is announced."""
    with gateway.raw() as connection:
        head = "POST /bursar.v1.FitService/Preview HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {2**20 + 1}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(4096)
    with gateway.raw() as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(17):
            connection.sendall(b"10000\r\n" + b" " * 2**16 + b"\r\n")
        assert b" 413 " in connection.recv(4096)


def test_a_client_that_leaves_ends_its_call_and_not_its_fit(shared: Server, gateway: Gateway) -> None:
    """The debit stands; asked again with the same id, the model comes, and nothing is paid twice."""
    body = json.dumps(
        {"request_id": "gw-left", "dataset": "people", "columns": ["x"], "n_components": 1, "spend": {"rho": 1e-5}}
    )
    token = shared.home.tokens["analyst"]
    with gateway.raw() as connection:
        head = f"POST /bursar.v1.FitService/FitDPEM HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body.encode())
        received = b""
        while b"receipt" not in received:
            received += connection.recv(4096)
    entry = re.search(rb'"entry":"(\d+)"', received)
    assert entry is not None
    lines = gateway.lines("FitService/FitDPEM", json.loads(body))
    assert lines[0]["receipt"]["entry"] == entry[1].decode()
    assert "model" in lines[-1]


def test_a_server_that_is_away_is_told_without_its_address(alone: Gateway) -> None:
    """Status 503, for an answer and for a stream."""
    for path in ("CatalogService/ListDatasets", "FitService/FitDPEM"):
        answer = alone.post(path, {})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "the gateway cannot reach the server" in answer.json()["message"]


def _closed_after(connection: ssl.SSLSocket, trickle: bytes = b"") -> float:
    """Return after how many seconds the other side ended the connection."""
    began = time.monotonic()
    connection.settimeout(0.1)
    while time.monotonic() - began < 20:
        with contextlib.suppress(TimeoutError):
            try:
                if trickle:
                    connection.sendall(trickle)
                if connection.recv(4096) == b"":
                    break
            except OSError as error:
                if isinstance(error, TimeoutError):
                    continue
                break
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("begun", "trickle"),
    [
        (b"", b""),
        (b"POST /bursar.v1.FitService/Preview HTTP/1.1\r\n", b"a: b\r\n"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\nContent-Type: application/json\r\n\r\n", b" "),
        (
            b"POST /bursar.v1.FitService/Preview HTTP/1.1\r\nHost: a\r\n"
            b"Content-Type: application/json\r\nContent-Length: 9000\r\n\r\n",
            b" ",
        ),
    ],
)
def test_a_slow_client_is_disconnected(alone: Gateway, begun: bytes, trickle: bytes) -> None:
    """One that sends nothing, headers or a body byte by byte: about a second each."""
    with alone.raw() as connection:
        connection.sendall(begun)
        assert _closed_after(connection, trickle) < 8


def test_a_handshake_that_does_not_end_is_cut_off(alone: Gateway) -> None:
    """A client that connects and says nothing."""
    with socket.create_connection(("127.0.0.1", alone.port), PATIENCE) as connection:
        connection.settimeout(10)
        assert connection.recv(1) == b""


def _first_byte(gateway: Gateway) -> bytes:
    """Return the first byte of an answer; none if the connection is closed."""
    try:
        with gateway.raw() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            return connection.recv(1)
    except OSError:
        return b""


def test_connections_are_limited(alone: Gateway) -> None:
    """A fifth is closed at once; when the others are gone, new ones are answered."""
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(alone.raw())
        assert _first_byte(alone) == b""
    time.sleep(1.5)
    assert _first_byte(alone) == b"H"
    assert alone.post("CatalogService/ListDatasets", {}).status_code == 503


def test_large_headers_are_refused(alone: Gateway) -> None:
    """The refusal comes before the request is looked at."""
    with alone.raw() as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 4000)
        assert b" 400 " in connection.recv(4096)


def test_tls_1_2_is_not_spoken(alone: Gateway) -> None:
    """The server does not speak it either."""
    alone.context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, OSError)):
        alone.raw()


def test_it_ends_when_it_is_told_to(alone: Gateway) -> None:
    """The status is 0; SIGHUP before that reads the certificate again and changes nothing else."""
    alone.served.process.send_signal(signal.SIGHUP)
    assert alone.post("CatalogService/ListDatasets", {}).status_code == 503
    assert alone.served.end(signal.SIGTERM) == 0


def test_many_callers_get_their_own_answers(gateway: Gateway) -> None:
    """Thirty-two at once: each gets the dataset that it asked for."""
    names = ["people", "remainder"] * 16
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda name: gateway.post("CatalogService/GetDataset", {"dataset": name}), names))
    assert [answer.json()["dataset"]["name"] for answer in answers] == names


CLOSURE = """
import sys
import bursar_server.__main__, bursar_server.gateway.serving
rooms = ("access.auth", "access.oidc", "access.tls", "admin", "config", "fits", "jobs", "ops.doctor", "process")
rooms += ("state", "tables", "vault", "wire")
names = [f"bursar_server.{room}" for room in rooms] + ["bursar_ledger", "bursar", "sqlite3", "numpy", "duckdb"]
print([name for name in sys.modules if any(name == one or name.startswith(one + ".") for one in names)])
"""


def test_its_process_has_neither_ledger_nor_rows() -> None:
    """Not even the modules that could read them are loaded."""
    done = subprocess.run([sys.executable, "-c", CLOSURE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "nowhere"], "is no HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "is no HOST:PORT"),
        (["--tls", "/nowhere"], "cannot use the certificates"),
    ],
)
def test_a_start_that_cannot_work_says_why(shared: Server, arguments: list[str], said: str) -> None:
    """The message is one line, and the status 1."""
    given = ["--listen", "127.0.0.1:0", "--tls", str(shared.home.state.tls), *arguments]
    command = [sys.executable, "-m", "bursar_server", "gateway", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_told(shared: Server, gateway: Gateway) -> None:
    """The message says what to do."""
    given = ["--listen", f"127.0.0.1:{gateway.port}", "--tls", str(shared.home.state.tls)]
    command = [sys.executable, "-m", "bursar_server", "gateway", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr


def _tour(gateway: Gateway, *command: str, **changed: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "BURSAR_GATEWAY": gateway.served.address.replace("127.0.0.1", "localhost"),
        "BURSAR_TOKEN": gateway.home.tokens["analyst"],
        "BURSAR_CA": str(gateway.home.state.tls / "ca.pem"),
    }
    environment = os.environ | variables | changed
    return subprocess.run(
        command, cwd=DOCS / "json", env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


def test_the_tour_in_curl_runs(gateway: Gateway) -> None:
    """Datasets, price, fit, releases, refusal: lines of JSON."""
    done = _tour(gateway, "sh", "tour.sh", "people", "x", "y", "0.0001")
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    assert last == "refused: curl ends with 22"
    values = [json.loads(line) for line in lines]
    assert values[0]["datasets"]
    assert values[1]["price"]
    assert values[2]["receipt"]["price"] == values[1]["price"]
    assert any("model" in value for value in values)
    assert "Nothing was debited" in values[-1]["message"]


@pytest.mark.parametrize(
    "changed", [{"BURSAR_TOKEN": "made-up"}, {"BURSAR_CA": "/etc/hostname"}, {"BURSAR_GATEWAY": "https://localhost:1"}]
)
def test_the_tour_in_curl_fails_where_it_should(gateway: Gateway, changed: dict[str, str]) -> None:
    """The checks that its success rests on can fail."""
    assert _tour(gateway, "sh", "tour.sh", "people", "x", "y", "0.0001", **changed).returncode != 0


def _rscript() -> str:
    """Return the program `Rscript`; skip the test without it or httr2, which CI installs first."""
    found = shutil.which("Rscript")
    if found is None or subprocess.run([found, "-e", "library(httr2)"], check=False, capture_output=True).returncode:
        pytest.skip("needs R with httr2: apt-get install r-base-core r-cran-httr2 r-cran-jsonlite")
    return found


def _command(language: str) -> list[str]:
    program = [_rscript(), "tour.R"] if language == "R" else [node(), "tour.mjs"]
    return [*program, "people", "x", "y", "0.0001"]


def _trusting(gateway: Gateway) -> dict[str, str]:
    return {"NODE_EXTRA_CA_CERTS": str(gateway.home.state.tls / "ca.pem")}


@pytest.mark.slow
@pytest.mark.parametrize("language", ["R", "Node.js"])
def test_the_tour_in_a_language_runs(gateway: Gateway, language: str) -> None:
    """Datasets, price, fit with receipt and model, refusal."""
    done = _tour(gateway, *_command(language), **_trusting(gateway))
    assert done.returncode == 0, done.stderr
    said = re.sub(r"\s*\n", "\n", done.stdout)
    assert "dataset: people\n" in said
    assert re.search(r"^price: epsilon 0\.\d+ \([\d.]+ %\)$", said, re.MULTILINE), said
    assert re.search(r"^receipt: entry \d+$", said, re.MULTILINE), said
    assert re.search(r"^means: -?\d", said, re.MULTILINE), said
    assert re.search(r"^refused: [\s\S]*Nothing was debited", said, re.MULTILINE), said


@pytest.mark.slow
@pytest.mark.parametrize("language", ["R", "Node.js"])
@pytest.mark.parametrize("changed", [{"BURSAR_TOKEN": "made-up"}, {"BURSAR_GATEWAY": "https://localhost:1"}])
def test_the_tour_in_a_language_fails_where_it_should(gateway: Gateway, language: str, changed: dict[str, str]) -> None:
    """Each check that its success rests on can fail."""
    assert _tour(gateway, *_command(language), **_trusting(gateway), **changed).returncode != 0
