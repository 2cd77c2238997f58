"""The real server and the processes that its fits run in, as its operator sees and treats them."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import grpc
import psutil
import pytest

from bursar_ledger import verify
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc
from tests.e2e.conftest import PATIENCE, dpem_request

if TYPE_CHECKING:
    from tests.e2e.conftest import Home, Server


def parent_of_fits(server: Server) -> psutil.Process:
    """The one child that an idle server has."""
    (parent,) = psutil.Process(server.process.pid).children(recursive=True)
    assert parent.name() == "bursar-fits"
    return parent


def fit(server: Server, request_id: str) -> list[fit_pb2.FitDPEMResponse]:
    """Everything that a fit answers."""
    with server.channel() as channel:
        stub = fit_pb2_grpc.FitServiceStub(channel)
        message = dpem_request(request_id=request_id, iterations=1)
        message.spend.rho = 1e-4
        return list(stub.FitDPEM(message, metadata=server.bearer()))


@pytest.mark.slow
def test_who_signals_all_processes_or_kills_the_wrong_one_loses_nothing(home: Home) -> None:
    """SIGTERM to the parent of all fits changes nothing; without it the server ends, and the next one goes on.

    Nothing of the server's own is open there: neither ledger nor lock nor port.
    """
    server = home.start()
    parent = parent_of_fits(server)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        parent.send_signal(number)
    first = fit(server, "first")
    assert first[-1].HasField("model")
    assert parent_of_fits(server) == parent
    assert parent.open_files() == []
    assert parent.net_connections() == []
    assert os.getsid(parent.pid) == parent.pid
    parent.kill()
    assert server.process.wait(PATIENCE) == 1
    log = home.log.read_text()
    assert "start it again" in log
    assert "condition=unavailable problems=fits: their parent was killed" in log
    assert "condition=stopping problems=fits: their parent was killed" in log
    again = home.start()
    assert fit(again, "first") == [first[0], first[-1]]
    assert fit(again, "second")[-1].HasField("model")
    assert again.end(signal.SIGTERM)[0] == 0
    assert verify(home.state.ledger).problems == ()


@pytest.mark.slow
def test_a_fit_that_is_killed_has_failed_for_good(home: Home) -> None:
    """SIGKILL at work, as of a kernel out of memory, leaves one debit, the constant failure and no draw."""
    home.add_table("large", rows=200_000, shift=0.25)
    server = home.start()
    parent = parent_of_fits(server)
    with server.channel() as channel:
        stub = fit_pb2_grpc.FitServiceStub(channel)
        message = dpem_request(request_id="long", dataset="large", n_components=32, iterations=200)
        answers = stub.FitDPEM(message, metadata=server.bearer())
        for answer in answers:
            if answer.progress.step > 1:
                break
        (child,) = parent.children()
        assert child.name() == "bursar-fit"
        child.kill()
        told = []
        for stream in (answers, stub.FitDPEM(message, metadata=server.bearer())):
            with pytest.raises(grpc.RpcError) as caught:
                list(stream)
            told.append((caught.value.code(), caught.value.details()))
        assert told[0] == told[1]
        assert told[0][0] is grpc.StatusCode.INTERNAL
    assert fit(server, "beside")[-1].HasField("model")
    until = time.monotonic() + PATIENCE
    while parent.children() and time.monotonic() < until:
        time.sleep(0.01)
    assert parent.children() == []
    status, log = server.end(signal.SIGTERM)
    assert status == 0
    assert log.count(" failure ") == 1
    assert "error=FitEnded at=signal 9" in log
    assert verify(home.state.ledger).problems == ()
