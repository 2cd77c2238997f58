"""Acts of the owner while the server runs, which bind the next request that comes by the wire."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import verify
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2
from tests.e2e.conftest import MANIFEST

if TYPE_CHECKING:
    from tests.e2e.conftest import Home, Server

PATIENCE = 600.0
"""Seconds after which a process hangs, as in the fixtures."""


def _typed(home: Home, *arguments: object) -> str:
    """`bursar-admin` as a process of its own beside the server."""
    command = [sys.executable, "-m", "bursar_server.admin", *map(str, arguments), "--state", str(home.state.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _fit(server: Server, channel: grpc.Channel, request_id: str, rho: float) -> bytes:
    """The model of a fit, as the wire has it."""
    request = fit_pb2.FitDPEMRequest(
        request_id=request_id,
        dataset="people",
        columns=["x", "y"],
        spend=types_pb2.Spend(rho=rho),
        n_components=2,
        iterations=2,
    )
    answers: Any = fit_pb2_grpc.FitServiceStub(channel).FitDPEM(request, metadata=server.bearer())
    models: list[bytes] = [answer.model.SerializeToString() for answer in answers if answer.HasField("model")]
    assert len(models) == 1
    return models[0]


def _refused(server: Server, channel: grpc.Channel, request_id: str, rho: float) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        _fit(server, channel, request_id, rho)
    error: Any = caught.value
    code: grpc.StatusCode = error.code()
    return code


@pytest.mark.slow
def test_acts_bind_the_next_request_of_a_running_server(home: Home) -> None:
    """A table, an allowance, a call limit, a total, new rows, retirement: each from the next request on."""
    server = home.start()
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    with server.channel() as channel:
        home.add_table("later", shift=0.02)
        listed: Any = catalog_pb2_grpc.CatalogServiceStub(channel).ListDatasets(
            catalog_pb2.ListDatasetsRequest(), metadata=server.bearer()
        )
        assert [dataset.name for dataset in listed.datasets] == ["people", "later"]
        first = _fit(server, channel, "r1", 0.002)
        # The total of (1, 1e-6) is worth rho 0.0244; a tenth of it is 0.0024.
        _typed(home, "allowance", "set", "people", "--analyst", "the-analyst", "--share", "10%")
        assert _refused(server, channel, "r2", 0.002) is exhausted
        home.admin("allowance", "set", "people", "--analyst", "the-analyst", "--share", "1/2")
        home.admin("call-limit", "set", "people", "--share", "5%")
        assert _refused(server, channel, "r2", 0.002) is exhausted
        _fit(server, channel, "r2", 0.001)
        home.admin("call-limit", "end", "people")
        home.admin("budget", "set", "people", "--epsilon", "0.2", "--yes")
        assert _refused(server, channel, "r3", 0.001) is exhausted
        home.admin("budget", "set", "people", "--epsilon", "1", "--yes")
        new_rows = home.state.path.parent / "new.csv"
        new_rows.write_text("x,y\n" + "".join(f"{(i % 9) / 9},{i % 10}\n" for i in range(300)))
        manifest = home.state.path.parent / "people.toml"
        manifest.write_text(MANIFEST.format(name="people"))
        home.admin("snapshot", "--manifest", manifest, "--csv", new_rows, "--yes", "--delete-old-rows")
        assert len(list(home.state.datasets.iterdir())) == 2
        _fit(server, channel, "r3", 0.001)
        home.admin("retire", "people", "--yes", "--delete-rows", "--reason", "over")
        assert len(list(home.state.datasets.iterdir())) == 1
        assert _refused(server, channel, "r4", 0.001) is grpc.StatusCode.FAILED_PRECONDITION
        assert _fit(server, channel, "r1", 0.002) == first  # what was released can still be had
    found = verify(home.state.ledger)
    assert found.ok, found.problems
    assert found.accounts[0].debits == 3
