"""A server to be fuzzed: real TLS, real ledger, real fits, in this process or in one of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
from click.testing import CliRunner

from bursar._process import command, start
from bursar_ledger import Budget, Ledger, Role
from bursar_server.access.auth import hash_token, new_token
from bursar_server.access.tls import Certificates
from bursar_server.admin.cli import main as admin
from bursar_server.config import Config
from bursar_server.fits.registry import FITS
from bursar_server.state import State
from bursar_server.tables import CsvSource, Manifest
from bursar_server.tables.catalogue import Datasets
from bursar_server.tables.registration import register
from bursar_server.wire.server import BursarServer

PATIENCE = 600.0
"""Seconds after which a call hangs."""

_COLUMNS = """
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
bins = [0.0, 1.0, 4.0, 10.0]
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
[[columns]]
name = "t1"
kind = "categorical"
categories = ["-", "u", "v"]
[[columns]]
name = "t2"
kind = "categorical"
categories = ["-", "u", "v"]
"""
_SLOTS = 'name = "{name}"\nadjacency = "replace_one"\n' + _COLUMNS
_PERSONS = 'name = "{name}"\nadjacency = "add_remove_one"\nunit = {{column = "who", max_rows = 3}}\n' + _COLUMNS
_HEADER = "who,x,y,m,a,t1,t2\n"


def _rows(shift: float) -> str:
    return "".join(
        f"w{i // 2},{0.5 - i % 2 + 1e-3 * i + shift},{2.5 + 5 * (i % 2)},"
        f"{0.1 * (i % 7)},{'pqr'[i % 3]},-,{'uv'[i % 2]}\n"
        for i in range(60)
    )


_BROKEN = "".join(
    f"w{i // 7},{('nan', '1e308', 7, '')[i % 4]},{('-1e308', 0, 'abc')[i % 3]},{('', 'inf', 2)[i % 3]},"
    f"{'pqrs'[i % 4]},{'-w'[i % 2]},-\n"
    for i in range(60)
)
_MORE_BROKEN = _BROKEN + _BROKEN.replace("w", "v")

TWINS: Mapping[str, str] = {"people": "others", "person": "nobody"}
"""Tables of one schema and, where it is public, one number of rows; the second of broken rows."""

_TABLES: Mapping[str, tuple[str, str, Budget]] = {
    "people": (_SLOTS, _rows(0.0), Budget(2.0**17, 1e-6)),
    "others": (_SLOTS, _BROKEN, Budget(2.0**17, 1e-6)),
    "person": (_PERSONS, _rows(0.03), Budget(2.0**17, 1e-6)),
    "nobody": (_PERSONS, _MORE_BROKEN, Budget(2.0**17, 1e-6)),
    "little": (_SLOTS, _rows(0.01), Budget(0.5, 1e-6)),
    "closed": (_SLOTS, _rows(0.02), Budget(1.0, 1e-6)),
}
_LARGEST_CALL = Fraction(1, 2**12)
"""Largest part of a total: requests for all that is left come thousands of times before nothing is left."""

SETTINGS: Mapping[str, Any] = {
    "fit_workers": 1,
    "threads_per_fit": 1,
    "response_quantum_seconds": 0.01,
    "calls_per_principal": 16,
    # Else the fuzzer is told to wait, which is another test's matter.
    "rates": {"calls_per_minute": 10**6, "failures": 10**6},
    # So that what is admitted is quick, and that their edges are near.
    "limits": {"components": 12, "iterations": 40, "cliques": 40, "frequencies": 512},
}

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Prepared:
    """A state directory with tables, and tokens by what their holder is.

    Attributes:
        state: of the server.
        tokens: of each role; "scoped" is an analyst who may see one table.
    """

    state: State
    tokens: Mapping[str, str]

    def bearer(self, who: str) -> Metadata:
        """Metadata of a caller."""
        return (("authorization", f"Bearer {self.tokens[who]}"),)


def prepare(folder: Path) -> Prepared:
    """A state directory in an empty folder: twins, a table with hardly any budget, and a retired one."""
    made = CliRunner().invoke(admin, ["init", "--state", str(folder / "state")])
    if made.exit_code:
        raise RuntimeError(made.output)
    state = State.open(folder / "state")
    tokens = {role.value: new_token(role) for role in Role} | {"scoped": new_token(Role.ANALYST)}
    with Ledger.open(state.ledger) as ledger:
        for name, (schema, rows, budget) in _TABLES.items():
            (folder / f"{name}.csv").write_text(_HEADER + rows)
            (folder / f"{name}.toml").write_text(schema.format(name=name))
            manifest, source = Manifest.load(folder / f"{name}.toml"), CsvSource(folder / f"{name}.csv")
            register(state, ledger, manifest, source, budget, actor="fuzzer", reason="")
        for name in ("people", "others", "person", "nobody"):
            ledger.set_call_limit(name, _LARGEST_CALL, actor="fuzzer", reason="")
        ledger.retire_dataset("closed", actor="fuzzer", reason="")
        for name, token in tokens.items():
            role = Role.ANALYST if name == "scoped" else Role(name)
            scope = ("people", "little") if name == "scoped" else None
            ledger.issue_credential(
                f"the-{name}", role, hash_token(token), actor="fuzzer", reason="", datasets=scope, expires=None
            )
    return Prepared(state, tokens)


@dataclass(frozen=True)
class Running:
    """A server that serves a prepared state directory.

    Attributes:
        prepared: what it serves.
        ledger: its ledger, opened once more to read it.
        channel: to it.
        alive: whether it is still there.
        held: what it holds for calls that are under way; empty where it holds nothing, or cannot be asked.
    """

    prepared: Prepared
    ledger: Ledger
    channel: grpc.Channel
    alive: Callable[[], bool]
    held: Callable[[], str]


@contextmanager
def in_this_process(folder: Path) -> Iterator[Running]:
    """A server of which one can ask whether something of a call was left behind."""
    prepared = prepare(folder)
    state = prepared.state
    config = Config.model_validate({"address": "127.0.0.1:0"} | dict(SETTINGS))
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.open(state.ledger))
        datasets = Datasets(ledger, state.datasets)
        server = BursarServer(state=state, config=config, ledger=ledger, datasets=datasets, fits=FITS)
        stack.enter_context(server)
        yield Running(
            prepared=prepared,
            ledger=stack.enter_context(Ledger.open(state.ledger)),
            channel=stack.enter_context(_channel(state, server.address)),
            alive=lambda: True,
            held=lambda: _held(server),
        )


def _held(server: BursarServer) -> str:
    """Places of pools that are taken, and calls that are counted as under way, if there are any."""
    pools = {"fits": server._pool, "free": server._free_pool, "dummies": server._dummy_pool}
    taken = {name: pool._size - pool._places._value for name, pool in pools.items()}
    taken["calls"] = sum(server._turnstile._under_way.values())
    return "" if not any(taken.values()) else str(taken)


@contextmanager
def in_its_own_process(folder: Path) -> Iterator[Running]:
    """A server as it is started normally; it is ended with SIGTERM, and has to end well."""
    prepared = prepare(folder)
    state = prepared.state
    state.config.write_text(_toml(SETTINGS))
    server = start(command(state.path), folder / "server.log")
    try:
        with Ledger.open(state.ledger) as ledger, _channel(state, server.address) as channel:
            yield Running(prepared, ledger, channel, lambda: server.process.poll() is None, str)
        if status := server.end():
            raise RuntimeError(f"the server ended with {status}: {server.log.read_text()[-2000:]}")
    finally:
        server.end(signal.SIGKILL)


def _channel(state: State, address: str) -> grpc.Channel:
    ca = grpc.ssl_channel_credentials(Certificates(state.tls).ca.read_bytes())
    return grpc.secure_channel(address, ca, (("grpc.max_receive_message_length", 2**27),))


def _toml(settings: Mapping[str, Any]) -> str:
    tables = {name: value for name, value in settings.items() if isinstance(value, Mapping)}
    lines = [f"{name} = {value}" for name, value in settings.items() if name not in tables]
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{name} = {value}" for name, value in values.items())]
    return "\n".join(lines) + "\n"
