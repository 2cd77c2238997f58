"""The real server on a real cluster: a fit is paid for and made, and nobody pays once the cluster is gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from bursar_ledger import Ledger
from bursar_proto.v1 import fit_pb2_grpc
from bursar_server.ops.doctor import check
from tests.e2e.conftest import dpem_request
from tests.ports import free_port
from tests.server.engine.clusters import Host, Pems, cluster

if TYPE_CHECKING:
    from tests.e2e.conftest import Home


def _debits(home: Home) -> int:
    with Ledger.open(home.state.ledger) as ledger:
        return len(ledger.releases())


@pytest.mark.slow
def test_a_fit_on_a_cluster_is_paid_for_and_one_without_is_not(home: Home, tmp_path: Path) -> None:
    """Partitions are read by a worker for the process of the fit; the model comes over the wire as ever."""
    pems, port = Pems.make(tmp_path / "pems"), free_port()
    (tmp_path / "storage").mkdir()
    settings = {"scheduler": f"tls://127.0.0.1:{port}", "storage": tmp_path / "storage", **vars(pems)}
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    home.state.config.write_text("\n".join(["[engine]", 'kind = "dask"', *lines]))
    home.admin("partition", "people")
    with cluster(pems, tmp_path / "cluster", [Host()], port=port):
        findings = {found.what: found.problem for found in check(home.state.path, rows=True)}
        assert (findings["engine"], findings["storage"], findings["partitions of people"]) == ("", "", "")
        server = home.start()
        with server.channel() as channel:
            stub: Any = fit_pb2_grpc.FitServiceStub(channel)
            *_, answer = stub.FitDPEM(dpem_request(), metadata=server.bearer())
            assert answer.model.means.shape[1] == 2  # so little is spent that noise may leave one component
            assert _debits(home) == 1
    with server.channel() as channel:
        stub = fit_pb2_grpc.FitServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.FitDPEM(dpem_request(request_id="r2"), metadata=server.bearer()))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        *_, again = stub.FitDPEM(dpem_request(), metadata=server.bearer())
        assert again.model == answer.model
    assert _debits(home) == 1
