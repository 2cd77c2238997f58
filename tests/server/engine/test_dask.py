"""Real clusters: LocalCluster's processes, and two hosts in network namespaces. The same integers, whoever is lost."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from distributed import LocalCluster
from distributed.security import Security

from bursar_server.jobs.trial import made_up_rows
from bursar_server.tables import CapKeys, Manifest, Partitions, Snapshot, store_table
from bursar_server.tables._partitions import PartitionedRows
from bursar_server.tables._snapshot import BATCH
from bursar_server.vault import DaskEngine, EngineError, LocalEngine, exact_sum
from bursar_server.vault import _dask as dask_engine
from tests.conformance.requests import FEW, TABLE
from tests.ports import free_port
from tests.server.engine.clusters import ROOT, Host, Pems, cluster
from tests.server.engine.fits import fitted, planned
from tests.server.engine.remote import Asked, slow

pytestmark = pytest.mark.slow

N = BATCH + 1000

HERE = (*FEW, "fast sketch", "missing", "chain")
THERE = ("mixture", "components", "tree")
AGAIN = 6


@dataclass(frozen=True)
class People:
    """`fits.TABLE` with made-up rows, as a source."""

    n: int

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `Source`; a category of nobody now and then."""
        made = made_up_rows(TABLE, tuple(columns), self.n, 5).columns
        letters = np.array(["p", "q", "r", "-"])
        codes = np.where(np.arange(self.n) % 17, 0, 3)
        arrays = [
            letters[np.maximum(values.astype(np.int64), codes)] if name in "abc" else values
            for name, values in zip(columns, made, strict=True)
        ]
        yield from pa.table(arrays, names=list(columns)).to_batches(max_chunksize=BATCH)


@dataclass(frozen=True)
class Table:
    """A snapshot and its partitions."""

    snapshot: Snapshot
    partitions: Partitions

    def rows(self, *columns: str) -> PartitionedRows:
        """Partitioned."""
        return self.partitions.rows(self.snapshot, columns)

    def local(self, name: str) -> bytes:
        """A fit on this machine."""
        return fitted(name, self.snapshot.rows(planned(name).columns), LocalEngine())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """People in two partitions."""
    folder = tmp_path_factory.mktemp("people")
    numeric = [
        {"name": c.name, "kind": "numeric", "lower": c.lower, "upper": c.upper, "nullable": c.nullable}
        for c in TABLE.numeric
    ]
    categorical = [{"name": c.name, "kind": "categorical", "categories": list("pqr")} for c in TABLE.categorical]
    made = {"name": "people", "adjacency": "add_remove_one", "columns": numeric + categorical}
    report = store_table(Manifest.from_public(made), People(N), folder, CapKeys.draw())
    snapshot = Snapshot.open(report.directory)
    (folder / "storage").mkdir()
    return Table(snapshot, Partitions.write(snapshot, folder / "storage", slots=BATCH))


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Pems:
    """Certificates of a cluster."""
    return Pems.make(tmp_path_factory.mktemp("tls") / "pems")


@pytest.fixture(scope="module")
def engine(pems: Pems) -> Iterator[DaskEngine]:
    """Two processes of Dask's LocalCluster, TLS between all."""
    everybody: dict[str, str] = {}
    for who in ("scheduler", "worker", "client"):
        everybody |= {f"tls_{who}_cert": pems.cert, f"tls_{who}_key": pems.key}
    security = Security(tls_ca_file=pems.ca, require_encryption=True, **everybody)
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        protocol="tls://",
        security=security,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address="127.0.0.1:0",
    ) as local:
        yield pems.engine(local.scheduler_address)


def test_every_fit_is_the_same_on_a_local_cluster(engine: DaskEngine, table: Table) -> None:
    """Bit for bit the model of one thread on the snapshot, of every fit; rows go by partitions."""
    with engine.open() as opened:
        for name in HERE:
            assert fitted(name, table.rows(*planned(name).columns), opened) == table.local(name), name


def test_a_worker_that_is_killed_changes_nothing_but_time(engine: DaskEngine, table: Table, tmp_path: Path) -> None:
    """SIGKILL in the middle of its part: the part is read again by another, and is counted once."""
    rows = table.rows("x")
    killed = threading.Event()

    def kill() -> None:
        until = time.monotonic() + 600
        while not (begun := list(tmp_path.iterdir())) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(int(begun[0].name), signal.SIGKILL)
        killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    with engine.open() as opened:
        found = exact_sum(slow(tmp_path), rows, 1, engine=opened)
    killer.join()
    assert killed.is_set()
    there = sum(block.rows for block in table.snapshot.blocks())
    assert found.tolist() == [there]
    assert len(list(tmp_path.iterdir())) >= 2


def test_a_pass_that_takes_too_long_is_given_up(engine: DaskEngine, table: Table, tmp_path: Path) -> None:
    """The public time of the settings decides, whatever the rows; the cluster is there for the next pass."""
    with replace(engine, seconds=0.5).open() as opened, pytest.raises(EngineError, match="did not finish"):
        exact_sum(slow(tmp_path), table.rows("x"), 1, engine=opened)
    engine.check()


def test_a_partition_that_was_changed_stops_the_pass(engine: DaskEngine, table: Table, tmp_path: Path) -> None:
    """The worker refuses a file that has another hash, and the error names no row."""
    file = table.partitions.files[1]
    spoilt = tmp_path / "part.parquet"
    spoilt.write_bytes(Path(file.path).read_bytes()[:-5] + b"12345")
    files = (table.partitions.files[0], replace(file, path=str(spoilt)))
    rows = replace(table.partitions, files=files).rows(table.snapshot, ("x",))
    with engine.open() as opened, pytest.raises(EngineError, match="SnapshotError"):
        exact_sum(slow(tmp_path), rows, 1, engine=opened)


def test_a_cluster_that_is_none_is_said_before_anything_is_paid(
    engine: DaskEngine, pems: Pems, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No scheduler; another authority's certificate; none that is a file; workers of other versions."""
    engine.check()
    with monkeypatch.context() as impatient:
        impatient.setattr(dask_engine, "_CONNECT_SECONDS", 3.0)
        with pytest.raises(EngineError, match="cannot be reached"):
            pems.engine(f"tls://127.0.0.1:{free_port()}").check()
        with pytest.raises(EngineError, match="cannot be reached"):
            Pems.make(tmp_path / "others").engine(engine.scheduler).check()
        with pytest.raises(EngineError, match="cannot be reached"):
            replace(engine, cert=str(tmp_path / "nowhere.pem")).check()
    monkeypatch.setattr(dask_engine, "_versions", lambda: "Python 2")
    with pytest.raises(EngineError, match="versions of this server"):
        engine.check()


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two network namespaces with a cable between them. Skips, or fails where CI is set, if none can be made."""
    names = [f"bursar-{os.getpid()}-{side}" for side in "ab"]
    links = [f"br{os.getpid() % 10**6}{side}" for side in "ab"]
    hosts = tuple(Host(f"10.231.77.{i}", ("ip", "netns", "exec", name)) for i, name in enumerate(names, start=1))
    ip = shutil.which("ip")
    made = ip is not None and subprocess.run([ip, "netns", "add", names[0]], capture_output=True, check=False)
    if not made or made.returncode:
        why = "no ip command" if not made else made.stderr.decode().strip()
        if os.environ.get("CI"):
            pytest.fail(f"network namespaces are needed: {why}")
        pytest.skip(f"network namespaces cannot be made here: {why}")

    def run(*words: str) -> None:
        subprocess.run([str(ip), *words], check=True)

    try:
        run("netns", "add", names[1])
        run("link", "add", links[0], "netns", names[0], "type", "veth", "peer", "name", links[1], "netns", names[1])
        for name, link, host in zip(names, links, hosts, strict=True):
            run("-n", name, "address", "add", f"{host.address}/24", "dev", link)
            run("-n", name, "link", "set", link, "up")
            run("-n", name, "link", "set", "lo", "up")
        yield hosts[0], hosts[1]
    finally:
        for name in names:
            subprocess.run([str(ip), "netns", "delete", name], capture_output=True, check=False)


def test_two_hosts_give_the_same_integers_and_one_may_be_lost(table: Table, pems: Pems, tmp_path: Path) -> None:
    """A scheduler and a worker on one host, a worker on another. The other dies in the middle of the last pass."""
    folder = tmp_path / "begun"
    folder.mkdir()
    with two_hosts() as (here, there), cluster(pems, tmp_path / "cluster", (here, there), port=8786) as address:
        once = table.rows("x")
        asked = Asked(
            pems.engine(address),
            {name: table.rows(*planned(name).columns) for name in THERE},
            # The first partition several times: of two parts alone the other host might get none.
            PartitionedRows(once.slots + AGAIN * BATCH, (*AGAIN * once.parts[:1], *once.parts)),
            str(folder),
        )
        (tmp_path / "asked").write_bytes(pickle.dumps(asked))
        command = [*here.enter, sys.executable, "-m", "tests.server.engine.remote"]
        with subprocess.Popen([*command, str(tmp_path / "asked"), str(tmp_path / "done")], cwd=ROOT) as client:
            while not (begun := {int(path.name) for path in folder.iterdir()}) & (lost := _pids(there)):
                assert client.poll() is None
                time.sleep(0.02)
            for pid in lost:
                with contextlib.suppress(ProcessLookupError):  # a worker ends by itself once its nanny is gone
                    os.kill(pid, signal.SIGKILL)
            assert client.wait(600) == 0
    found = pickle.loads((tmp_path / "done").read_bytes())  # noqa: S301 - our own
    first, rest = (block.rows for block in table.snapshot.blocks())
    assert found.pop("count") == [(AGAIN + 1) * first + rest]
    assert found == {name: table.local(name) for name in THERE}
    assert begun


def _pids(host: Host) -> set[int]:
    """Processes of a namespace."""
    listed = subprocess.run(["ip", "netns", "pids", host.enter[-1]], capture_output=True, check=True)  # noqa: S607
    return set(map(int, listed.stdout.split()))
