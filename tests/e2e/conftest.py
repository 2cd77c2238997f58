"""The real server as a process of its own, with the real fit, on a made-up table.

Whatever waits for another process gives up after `PATIENCE`: a server that hangs is a test that fails.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from bursar._process import ServerProcess, command, start
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.admin.cli import main as admin
from bursar_server.state import State
from tests.ports import free_port

PATIENCE = 600.0
"""Seconds after which a process or call hangs. Far above what the slowest machine needs."""

MANIFEST = """
name = "{name}"
adjacency = "replace_one"
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


def dpem_request(**fields: Any) -> fit_pb2.FitDPEMRequest:
    """Two components of the table above, for little."""
    defaults: dict[str, Any] = {
        "request_id": "r1",
        "dataset": "people",
        "columns": ["x", "y"],
        "spend": types_pb2.Spend(rho=0.01),
        "n_components": 2,
    }
    return fit_pb2.FitDPEMRequest(**(defaults | fields))


@dataclass
class Home:
    """A state directory, its tokens, and the server processes that a test starts on it.

    Attributes:
        state: made by `bursar-admin init`.
        tokens: by role.
        processes: started, ended by the fixture at the latest.
    """

    state: State
    tokens: dict[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def admin(self, *arguments: object) -> str:
        """Run `bursar-admin` and return its standard output."""
        result = CliRunner().invoke(admin, [*map(str, arguments), "--state", str(self.state.path)])
        if result.exit_code:
            raise RuntimeError(result.output)
        return result.stdout

    def add_table(self, name: str, rows: int = 400, shift: float = 0.0) -> None:
        """Import two clusters under a total of (epsilon, delta) = (1, 1e-6)."""
        self.add_rows(name, ((0.5 - (i % 2) + shift + 1e-3 * (i % 97), 2.5 + 5 * (i % 2)) for i in range(rows)))

    def add_rows(self, name: str, cells: Iterable[tuple[float, float]]) -> None:
        """Import these rows under a total of (epsilon, delta) = (1, 1e-6)."""
        folder = self.state.path.parent
        (folder / "rows.csv").write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in cells))
        (folder / "table.toml").write_text(MANIFEST.format(name=name))
        budget = ("--epsilon", "1", "--delta", "1e-6")
        self.admin("import", "--manifest", folder / "table.toml", "--csv", folder / "rows.csv", *budget)

    def start(self, address: str = "", descriptors: str = "") -> Server:
        """Start a server and wait until it serves.

        Args:
            address: to listen on; empty for a free port, which is still free when the server is started again there.
            descriptors: words for `ulimit` that limit them, such as "-n 128"; empty for the limits of this process.
        """
        limited = ["sh", "-c", f'ulimit {descriptors}; exec "$@"', "sh"] if descriptors else []
        address = address or f"127.0.0.1:{free_port()}"
        served = start([*limited, *command(self.state.path, address)], self.log)
        self.processes.append(served.process)
        return Server(self, served)

    @property
    def log(self) -> Path:
        """Return what the newest server wrote for its operator."""
        return self.state.path.parent / "server.log"


class _Patience(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Gives a deadline to every call that has none."""

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """A call with one answer."""
        return continuation(_with_deadline(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """A call with a stream of answers."""
        return continuation(_with_deadline(details), request)


def _with_deadline(details: Any) -> Any:
    return details if details.timeout is not None else details._replace(timeout=PATIENCE)


@dataclass(frozen=True)
class Server:
    """A running server process."""

    home: Home
    served: ServerProcess

    @property
    def process(self) -> subprocess.Popen[str]:
        """Its process."""
        return self.served.process

    @property
    def address(self) -> str:
        """Its host and port."""
        return self.served.address

    def channel(self, *options: tuple[str, int]) -> grpc.Channel:
        """A connection that trusts the state directory's authority, with options of gRPC."""
        credentials = grpc.ssl_channel_credentials((self.home.state.tls / "ca.pem").read_bytes())
        return grpc.intercept_channel(grpc.secure_channel(self.address, credentials, options), _Patience())

    def bearer(self, role: str = "analyst") -> tuple[tuple[str, str], ...]:
        """Metadata of a caller in a role."""
        return (("authorization", f"Bearer {self.home.tokens[role]}"),)

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal and wait for the end; exit status and log."""
        return self.served.end(number), self.home.log.read_text()


def _home(folder: Path, stack: ExitStack) -> Home:
    home = Home(State(folder / "state"))
    home.admin("init")
    for role in ("analyst", "auditor", "admin"):
        home.tokens[role] = home.admin("token", "issue", "--name", f"the-{role}", "--role", role).strip()
    home.add_table("people")
    stack.callback(_end_all, home)
    return home


def _end_all(home: Home) -> None:
    for process in home.processes:
        process.kill()
        process.wait(PATIENCE)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A fresh state directory with the table "people"."""
    with ExitStack() as stack:
        yield _home(tmp_path, stack)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that leave it as good as they found it."""
    with ExitStack() as stack:
        home = _home(tmp_path_factory.mktemp("shared"), stack)
        home.add_table("remainder", shift=0.01)
        yield home.start()
