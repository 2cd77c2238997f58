"""A server that strangers leave no descriptors: who is connected is served or refused before the debit."""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest

from bursar_ledger import verify
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2, fit_pb2_grpc
from tests.e2e.conftest import PATIENCE, dpem_request

if TYPE_CHECKING:
    from tests.e2e.conftest import Home, Server


GRPC_SECONDS = 120.0
"""Seconds until gRPC by itself gives up a handshake that does not come."""


def _fit(server: Server, channel: grpc.Channel, request_id: str) -> list[fit_pb2.FitDPEMResponse]:
    message = dpem_request(request_id=request_id, iterations=1)
    message.spend.rho = 1e-4
    return list(fit_pb2_grpc.FitServiceStub(channel).FitDPEM(message, metadata=server.bearer()))


def _debits(home: Home) -> int:
    return home.log.read_text().count(" debit ")


def _comes_in(server: Server) -> bool:
    """Return whether a client of a connection of its own is served."""
    with server.channel() as channel, contextlib.suppress(grpc.RpcError):
        stub = catalog_pb2_grpc.CatalogServiceStub(channel)
        return bool(stub.ListDatasets(catalog_pb2.ListDatasetsRequest(), metadata=server.bearer()).datasets)
    return False


@pytest.mark.slow
def test_idle_connections_take_nothing_from_fits_and_end(home: Home) -> None:
    """200 that never begin a handshake, where 128 descriptors may be had; the review's fits ended as INTERNAL.

    Fits of who is connected run, since connections leave descriptors for them; new clients come in once the handshakes
    that do not come were given up.
    """
    server = home.start(descriptors="-n 128")
    host, _, port = server.address.rpartition(":")
    with server.channel() as channel, contextlib.ExitStack() as flood:
        assert _fit(server, channel, "before")[-1].HasField("model")
        for _ in range(200):
            flood.enter_context(socket.create_connection((host, int(port)), PATIENCE))
        answers = [_fit(server, channel, f"during-{i}") for i in range(3)]
        assert all(answer[-1].HasField("model") for answer in answers)
        until = time.monotonic() + GRPC_SECONDS / 2
        while not (came := _comes_in(server)) and time.monotonic() < until:
            time.sleep(0.1)
        assert came
    assert server.end(signal.SIGTERM)[0] == 0
    assert _debits(home) == 4
    assert verify(home.state.ledger).problems == ()


@pytest.mark.slow
def test_a_server_without_descriptors_debits_nothing(home: Home) -> None:
    """Its callers are told to come back; what was paid for before is served; later all is as it was."""
    server = home.start(descriptors="-S -n 256")
    assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0] > 256, "the limit was not raised"
    with server.channel() as channel:
        first = _fit(server, channel, "first")
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        used = psutil.Process(server.process.pid).num_fds()
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used, limits[1]))
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                _fit(server, channel, "second")
            error: Any = caught.value
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "nothing was debited" in error.details()
        assert _fit(server, channel, "first") == [first[0], first[-1]]
        assert _debits(home) == 1
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
        assert _fit(server, channel, "second")[-1].HasField("model")
    assert server.end(signal.SIGTERM)[0] == 0
    assert _debits(home) == 2
    assert verify(home.state.ledger).problems == ()
