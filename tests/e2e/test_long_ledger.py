"""A real server on a ledger that is too long to be verified before it serves."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bursar_ledger import Ledger, Role, adopt_copy, mark_of
from bursar_ledger._entries import chain
from bursar_ledger._verify import SHORT
from bursar_proto.v1 import fit_pb2_grpc, types_pb2
from bursar_server.config import Config
from tests.e2e.conftest import Home, Server, dpem_request
from tests.server.serving.forging import forged

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def _lengthened(home: Home) -> None:
    """Append more entries than a start verifies, in bulk, and a checkpoint."""
    with Ledger.open(home.state.ledger) as ledger:
        last = ledger.issue_credential("p", Role.AUDITOR, bytes(32), actor="test", reason="")
    details, head = last.details, {name: getattr(last, name) for name in ("kind", "dataset", "actor", "time")}
    with closing(sqlite3.connect(home.state.ledger, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        db.execute("BEGIN")
        for name, _ in triggers:
            db.execute(f'DROP TRIGGER "{name}"')
        for number in range(1, SHORT + 1):
            token = {"credential": f"p{number}", "token_hash": number.to_bytes(32).hex()}
            last = chain(last.number + 1, last.hash, head, details | token)
            db.execute("INSERT INTO entries VALUES (?, ?, ?)", (last.number, last.body.decode(), last.hash))
        for _, sql in triggers:
            db.execute(sql)
        db.execute("COMMIT")
    mark_of(home.state.ledger).unlink()
    adopt_copy(home.state.ledger)
    home.admin("checkpoint", "write")


def _fit(server: Server, request_id: str) -> None:
    with server.channel() as channel:
        asked = dpem_request(request_id=request_id, spend=types_pb2.Spend(rho=0.002))
        list(fit_pb2_grpc.FitServiceStub(channel).FitDPEM(asked, metadata=server.bearer()))


def _logged(log: Path, event: str) -> bool:
    """Wait until a server has logged an event."""
    for _ in range(3000):
        if event in log.read_text():
            return True
        time.sleep(0.1)
    return False


def _health(server: Server) -> int:
    with server.channel() as channel:
        answer: health_pb2.HealthCheckResponse = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest()
        )
        return int(answer.status)


@pytest.mark.slow
def test_a_long_ledger_is_served_and_verified_meanwhile(home: Home) -> None:
    """It serves, says that it verifies and that it has; killed in between, it begins again."""
    server = home.start()
    _fit(server, "first")
    assert server.end(signal.SIGTERM)[0] == 0
    _lengthened(home)
    server = home.start()
    _fit(server, "second")
    # It is verified while kernels are loaded, or after the server has begun to serve.
    told = home.log.read_text()
    assert "verification: being verified" in told or "ledger_verified" in told
    assert _logged(home.log, "ledger_verified")
    assert _health(server) == SERVING
    server.end(signal.SIGKILL)
    server = home.start()
    server.end(signal.SIGKILL)
    server = home.start()
    _fit(server, "second")
    assert _logged(home.log, "ledger_verified")
    assert server.end(signal.SIGTERM)[0] == 0


@pytest.mark.slow
def test_a_finding_stops_the_debits_and_the_next_start(home: Home) -> None:
    """A price that was signed as it is: found while it serves; then nothing is debited, and nothing is served again."""
    server = home.start()
    _fit(server, "first")
    assert server.end(signal.SIGTERM)[0] == 0
    _lengthened(home)
    forged(home.state, Config())
    server = home.start()
    assert _logged(home.log, "ledger_does_not_verify")
    with pytest.raises(grpc.RpcError) as caught:
        _fit(server, "second")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "LEDGER_UNAVAILABLE" in str(caught.value.trailing_metadata())
    assert _health(server) == NOT_SERVING
    server.end(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="the ledger does not verify, nothing is served from it"):
        home.start()
