"""The real process under an operator's hands: TLS versions, signals, logs, secrets, fits that are not waited for."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from bursar_ledger import Ledger, verify
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2_grpc
from bursar_server.access.tls import Certificates
from tests.e2e.conftest import Home, Server, dpem_request

PATIENCE = 600.0
"""Seconds after which a process hangs, as in the fixtures."""


def _handshake(server: Server, version: ssl.TLSVersion) -> tuple[str | None, bytes | None]:
    context = ssl.create_default_context(cafile=str(Certificates(server.home.state.tls).ca))
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    host, _, port = server.address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return secure.version(), secure.getpeercert(binary_form=True)


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "never came true"
        time.sleep(0.05)


@pytest.mark.slow
def test_an_operators_day(home: Home) -> None:
    """JSON logs, a certificate renewed by SIGHUP, and no secret in anything that was written.

    Secrets are tokens, private keys and the key of tables; whatever the process wrote, its command line and its
    environment are searched for them.
    """
    home.state.config.write_text('log_format = "json"\n[metrics]\naddress = "127.0.0.1:0"\n')
    server = home.start()
    with server.channel() as channel:
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        fits = fit_pb2_grpc.FitServiceStub(channel)
        list(fits.FitDPEM(dpem_request(), metadata=server.bearer()))
        refusals = []
        for metadata in (
            (("authorization", f"Bearer {home.tokens['analyst']}x"),),
            (("authorization", home.tokens["analyst"]),),
            (("authorization", f"Bearer {home.tokens['auditor'][:-1]}"),),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=metadata)
            refusals.append(str(caught.value))
        before = _handshake(server, ssl.TLSVersion.TLSv1_3)[1]
        old_key = Certificates(home.state.tls).key.read_text()
        Certificates(home.state.tls).create()
        server.process.send_signal(signal.SIGHUP)
        _until(lambda: "certificate_loaded" in home.log.read_text())
        after = _handshake(server, ssl.TLSVersion.TLSv1_3)[1]
        shown = x509.load_pem_x509_certificate(Certificates(home.state.tls).chain.read_bytes())
        assert after is not None
        assert x509.load_der_x509_certificate(after) == shown
        assert after != before
        # The connection from before goes on.
        assert stub.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=server.bearer()).datasets
        process = Path("/proc") / str(server.process.pid)
        outside = [(process / name).read_bytes() for name in ("cmdline", "environ")] if os.geteuid() == 0 else []
    status, log = server.end(signal.SIGTERM)
    assert status == 0
    events = [json.loads(line) for line in log.splitlines()]
    assert {"serving", "metrics", "health", "call", "debit", "released", "stopping", "stopped"} <= {
        event["event"] for event in events
    }
    keys = [Certificates(home.state.tls).key.read_text(), old_key]
    secrets = [token.encode() for token in home.tokens.values()]
    secrets += [line.encode() for key in keys for line in key.splitlines() if "-----" not in line]
    table_keys = list((home.state.keys / "tables").iterdir())
    for path in table_keys:
        secrets += [path.read_bytes(), path.read_bytes().hex().encode()]
    written = {path: path.read_bytes() for path in home.state.path.parent.rglob("*") if path.is_file()}
    kept = {home.state.path / "admin.token", *table_keys, Certificates(home.state.tls).key}
    assert len(written) > len(kept)
    for secret in secrets:
        assert not any(secret in text for text in outside)
        assert not any(secret.decode("latin1") in refusal for refusal in refusals)
        assert [path for path, content in written.items() if secret in content and path not in kept] == []


@pytest.mark.slow
def test_fits_that_are_not_waited_for_run_again_under_their_debit(home: Home) -> None:
    """The server ends in time with unfinished_fits = "abandon"; a paid fit is neither lost nor paid twice."""
    # The quantum holds the release back, so the fit is unfinished when the signal comes. The first fit waits for its
    # end before the debit, too, while the rows are compared with what was registered.
    home.state.config.write_text(
        'response_quantum_seconds = 10.0\nshutdown_seconds = 0.5\nunfinished_fits = "abandon"\n'
    )
    server = home.start()
    with server.channel() as channel:
        call = fit_pb2_grpc.FitServiceStub(channel).FitDPEM(dpem_request(), metadata=server.bearer())
        receipt = next(iter(call)).receipt
        status, log = server.end(signal.SIGTERM)
        call.cancel()
    assert status == 0
    assert "fits_left" in log
    assert "Traceback" not in log
    home.state.config.write_text("")
    server = home.start()
    with server.channel() as channel:
        answers = list(fit_pb2_grpc.FitServiceStub(channel).FitDPEM(dpem_request(), metadata=server.bearer()))
    assert answers[0].receipt == receipt
    assert answers[-1].HasField("model")
    server.end(signal.SIGTERM)
    with Ledger.open(home.state.ledger) as ledger:
        assert [entry.kind for entry in ledger.entries()].count("debit") == 1
    assert verify(home.state.ledger).ok
