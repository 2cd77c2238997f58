"""The server as an operator sees it: a process that starts, refuses to start, is asked for its health, and ends."""

from __future__ import annotations

import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest
from click.testing import CliRunner

from bursar_ledger import Ledger, verify
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.__main__ import main
from tests.e2e.conftest import Home, Server, dpem_request

PATIENCE = 600.0
"""Seconds after which a process hangs, as in the fixtures."""

TOLD_TO_STOP = """
import signal, threading, time
from bursar_server.process import told_to_stop

def elsewhere():
    time.sleep(0.3)  # the main thread sleeps by then
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with told_to_stop() as told:
    threading.Thread(target=elsewhere).start()
    told()
with told_to_stop() as told:
    signal.raise_signal(signal.SIGINT)  # before anybody waits
    signal.raise_signal(signal.SIGINT)
    told()
heard = []
with told_to_stop(lambda: heard.append(1)) as told:
    signal.raise_signal(signal.SIGHUP)  # reads the certificate again, and stops nothing
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    told()
if heard != [1, 1]:
    raise SystemExit(f"SIGHUP was heard {len(heard)} times")
"""


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bursar_server", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what `bursar-server run` says when it does not start.

    Here, for a process of its own takes seconds to load.
    """
    monkeypatch.setattr("bursar_server.log.set_up", lambda *_: None)

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(main, ["run", *map(str, arguments)])
        assert isinstance(result.exception, SystemExit), "ended in a traceback"
        assert result.exit_code == 1
        return result.stderr

    return run


@pytest.mark.slow
def test_health_says_whether_a_server_serves(home: Home) -> None:
    """Exit 0 while it serves and 1 when it is gone; SIGTERM ends it in order. Its start ends a killed import's rows."""
    unfinished = home.state.datasets / f".{'a' * 32}.partial"
    unfinished.mkdir()
    server = home.start()
    assert not unfinished.exists()
    options = ("health", "--address", server.address, "--ca", home.state.tls / "ca.pem")
    answer = _run(*options)
    assert (answer.returncode, answer.stdout) == (0, "SERVING\n")
    status, log = server.end(signal.SIGTERM)
    assert status == 0
    assert "stopped" in log
    answer = _run(*options)
    assert answer.returncode == 1
    assert "UNAVAILABLE" in answer.stderr


@pytest.mark.slow
def test_a_copied_ledger_is_named_once(home: Home) -> None:
    """An operator who puts a copy of files back, in place of a restore, finds it in the log of the next start."""
    copy = home.state.ledger.with_name("copy")
    shutil.copy2(home.state.ledger, copy)
    copy.replace(home.state.ledger)
    for named in (True, False):
        _, log = home.start().end(signal.SIGTERM)
        assert ("ledger_copied" in log) == named


def test_only_the_newest_tls_is_spoken(shared: Server) -> None:
    """1.3, and not 1.2 with any cipher."""
    host, _, port = shared.address.rpartition(":")

    def spoken(version: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=str(shared.home.state.tls / "ca.pem"))
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), timeout=PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            return secure.version()

    assert spoken(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        spoken(ssl.TLSVersion.TLSv1_2)


def test_a_second_server_on_one_state_directory_is_refused(shared: Server, refusal: Callable[..., str]) -> None:
    """The lock goes with the process, and the message says who holds it."""
    said = refusal("--state", shared.home.state.path, "--address", "127.0.0.1:0")
    assert "another bursar-server" in said


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(home: Home, shared: Server, refusal: Callable[..., str]) -> None:
    """Two servers never share a port."""
    assert shared.address in refusal("--state", home.state.path, "--address", shared.address)


@pytest.mark.slow
def test_nothing_is_served_from_a_ledger_that_does_not_verify(home: Home, refusal: Callable[..., str]) -> None:
    """A changed entry is named, and the server does not start."""
    with sqlite3.connect(home.state.ledger) as file:
        file.execute("DROP TRIGGER IF EXISTS entries_no_update")
        triggers = [row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
        for trigger in triggers:
            file.execute(f'DROP TRIGGER "{trigger}"')
        file.execute("UPDATE entries SET body = replace(body, 'the-analyst', 'the-anarchist') WHERE number = 4")
    file.close()
    assert "entry 4" in refusal("--state", home.state.path, "--address", "127.0.0.1:0")


@pytest.mark.slow
def test_a_bad_setting_keeps_the_server_from_starting(home: Home, refusal: Callable[..., str]) -> None:
    """The message names the setting."""
    home.state.config.write_text("fit_workers = 0")
    assert "fit_workers" in refusal("--state", home.state.path)


@pytest.mark.slow
def test_a_fit_killed_between_debit_and_release_runs_again_under_its_debit(home: Home) -> None:
    """The next server after kill -9 answers with the same receipt, and there is one debit."""
    server = home.start()
    # The parent of all fits sleeps, so that the kill comes before the release.
    (parent,) = psutil.Process(server.process.pid).children()
    parent.suspend()
    with server.channel() as channel:
        call = fit_pb2_grpc.FitServiceStub(channel).FitDPEM(dpem_request(), metadata=server.bearer())
        receipt = next(iter(call)).receipt
        server.end(signal.SIGKILL)
    parent.kill()
    with Ledger.open(home.state.ledger) as ledger:
        assert ledger.release(receipt.entry) is None
    server = home.start()
    with server.channel() as channel:
        stub = fit_pb2_grpc.FitServiceStub(channel)
        first, again = (list(stub.FitDPEM(dpem_request(), metadata=server.bearer())) for _ in range(2))
    assert first[0].receipt == again[0].receipt == receipt
    assert first[-1].HasField("model")
    assert first[-1] == again[-1]
    with Ledger.open(home.state.ledger) as ledger:
        assert [entry.kind for entry in ledger.entries()].count("debit") == 1
    assert verify(home.state.ledger).ok


@pytest.mark.slow
def test_a_signal_that_no_sleeping_thread_hears_still_stops_the_server() -> None:
    """The kernel may hand it to any thread, and it may come before the main thread sleeps; either way it is read."""
    done = subprocess.run(
        [sys.executable, "-c", TOLD_TO_STOP], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_client_that_does_not_read_cannot_keep_the_server_from_ending(home: Home) -> None:
    """Its stream is full and stays so; after `shutdown_seconds` it is cut off, and the release is stored anyway."""
    home.state.config.write_text("shutdown_seconds = 1.0\n")
    server = home.start()
    # A window of one kilobyte that does not grow: the model does not fit in.
    with server.channel(("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)) as channel:
        # About a fixed origin all components are kept, whatever noise does to them.
        fit = dpem_request(n_components=256, iterations=1, moments=fit_pb2.MOMENTS_FIXED_ORIGIN)
        call = fit_pb2_grpc.FitServiceStub(channel).FitDPEM(fit, metadata=server.bearer())
        receipt = next(iter(call)).receipt
        until = time.monotonic() + PATIENCE
        with Ledger.open(home.state.ledger) as ledger:
            while not ledger.release(receipt.entry) and time.monotonic() < until:
                time.sleep(0.05)
        status, log = server.end(signal.SIGTERM)
        call.cancel()
    assert status == 0
    assert "status=OK" not in log, "the stream was not full"
    assert "stopped" in log
    assert "calls_left" not in log
    with Ledger.open(home.state.ledger) as ledger:
        assert ledger.release(receipt.entry)


@pytest.mark.slow
def test_a_busy_server_that_is_told_to_stop_finishes_what_was_paid_for(home: Home) -> None:
    """Calls that run, that wait and that come too late: every debit has its release when the process has ended."""
    home.state.config.write_text("fit_workers = 1\nresponse_quantum_seconds = 0.1\n")
    server = home.start()
    with server.channel() as channel:
        stub = fit_pb2_grpc.FitServiceStub(channel)
        calls = [
            stub.FitDPEM(dpem_request(request_id=f"r{i}", spend=types_pb2.Spend(rho=0.001)), metadata=server.bearer())
            for i in range(8)
        ]
        next(iter(calls[0]))
        status, log = server.end(signal.SIGTERM)
    assert status == 0
    assert "Traceback" not in log
    with Ledger.open(home.state.ledger) as ledger:
        paid = ledger.releases()
    assert paid
    assert all(debit.released for debit in paid)
    assert verify(home.state.ledger).ok
