"""A server that was killed, and whose files were touched before it starts again; and one whose files are touched."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from bursar_ledger import Ledger
from bursar_proto.v1 import fit_pb2_grpc, types_pb2
from tests.asking import debit_of
from tests.e2e.conftest import Home, Server, dpem_request

LITTLE = types_pb2.Spend(rho=0.002)


def _fit(server: Server, request_id: str) -> list[bytes]:
    with server.channel() as channel:
        fits = fit_pb2_grpc.FitServiceStub(channel)
        answers = list(fits.FitDPEM(dpem_request(request_id=request_id, spend=LITTLE), metadata=server.bearer()))
    return [answer.SerializeToString() for answer in answers if answer.HasField("model") or answer.HasField("receipt")]


def _image(home: Home) -> dict[str, tuple[bytes, int]]:
    files = (path for path in home.state.path.rglob("*") if path.is_file())
    return {str(path.relative_to(home.state.path)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def _lost(home: Home, *words: str) -> None:
    """The server does not start, says so in these words and without a traceback, and changes no byte."""
    before = _image(home)
    with pytest.raises(RuntimeError) as caught:
        home.start()
    for word in (*words, "nothing is served", "bursar-admin restore", "file:checkpoints: the newest signed checkpoint"):
        assert word in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert _image(home) == before


@pytest.mark.slow
def test_a_lost_log_stops_the_start_after_a_kill(home: Home, tmp_path: Path) -> None:
    """SIGKILL; then -wal is gone, cut or old, and the database alone would forget debits. Whole, it forgets nothing."""
    server = home.start()
    _fit(server, "r0")
    log = home.state.ledger.with_name("ledger.sqlite-wal")
    old = log.read_bytes()
    answers = [_fit(server, f"r{i}") for i in range(1, 3)]
    server.end(signal.SIGKILL)
    away = tmp_path / "away"
    shutil.copytree(home.state.path, away)
    harms: tuple[Callable[[], object], ...] = (
        lambda: log.unlink(),
        lambda: os.truncate(log, 0),
        lambda: os.truncate(log, log.stat().st_size // 2),
        lambda: log.write_bytes(old[: len(old) // 2]),
        lambda: [home.state.path.joinpath(f"ledger.sqlite-{end}").rename(tmp_path / end) for end in ("wal", "shm")],
    )
    for harm in harms:
        harm()
        _lost(home, "its mark says that entry", " lost: ", "receipts")
        for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
            shutil.copyfile(away / name, home.state.path / name)
    server = home.start()
    assert [_fit(server, f"r{i}")[-1] for i in range(1, 3)] == [answer[-1] for answer in answers]
    assert server.end(signal.SIGTERM)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_log_that_is_removed_under_a_server(home: Home, end: signal.Signals) -> None:
    """No debit, no act of an administrator. An end in order saves what was in it, a kill is told at the next start."""
    server = home.start()
    paid = _fit(server, "before")
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        home.state.path.joinpath(name).unlink()
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            _fit(server, "after")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(RuntimeError, match="another process has"):
        home.admin("call-limit", "set", "people", "--share", "50%")
    assert not (home.state.path / "ledger.sqlite-wal").exists()
    status, _ = server.end(end)
    if end is signal.SIGKILL:
        _lost(home, " lost: ")
        return
    assert status == 0
    server = home.start()
    assert _fit(server, "before")[-1] == paid[-1]
    with Ledger.open(home.state.ledger) as ledger:
        assert debit_of(ledger, "the-analyst", "after") is None
    assert home.admin("call-limit", "set", "people", "--share", "50%")
