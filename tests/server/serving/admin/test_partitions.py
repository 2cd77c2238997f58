"""Rows on a cluster's storage: written with an import, written again, looked at, and gone when the rows go."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bursar_ledger import DebitRequest, GaussianEvent, Ledger
from bursar_server.config import Config, ConfigError
from bursar_server.jobs.engine import engine_of, storage_of
from bursar_server.ops.doctor import check
from bursar_server.tables import Partitions, SnapshotError
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import DaskEngine, EngineError, LocalEngine, SpreadRows
from bursar_server.wire.statuses import status_of

if TYPE_CHECKING:
    from tests.server.serving.admin.conftest import Admin

TOTAL = ("--epsilon", 1, "--delta", 1e-6)


@pytest.fixture
def clustered(admin: Admin, tmp_path: Path) -> Admin:
    """An administrator whose settings name a cluster that is not there, and a storage that is."""
    (tmp_path / "storage").mkdir()
    lines = ['kind = "dask"', 'scheduler = "tls://127.0.0.1:1"', 'ca = "a.pem"', 'cert = "b.pem"', 'key = "c.pem"']
    admin.state.config.write_text("\n".join(["[engine]", *lines, f'storage = "{tmp_path / "storage"}"']))
    return admin


def stored(admin: Admin) -> list[Path]:
    """The files of the storage."""
    return sorted((admin.files / "storage").glob("*/*"))


def test_an_import_writes_partitions_where_the_settings_name_a_cluster(clustered: Admin) -> None:
    """So do new rows; fits then get a handle to the files, and the local rows where there is no cluster."""
    clustered.add()
    (first,) = stored(clustered)
    clustered.ok("snapshot", *clustered.table("heights", "height\n1.1\n1.2\n"), "--yes", "--delete-old-rows")
    (second,) = stored(clustered)
    assert first != second
    with Ledger.open(clustered.state.ledger) as ledger:
        debit = ledger.debit(
            DebitRequest("heights", "ann", "r1", bytes(32), "FitDPEM", (GaussianEvent(1, Fraction(1000)),))
        )
        spread = Datasets(ledger, clustered.state.datasets, partitioned=True).rows(debit, ("height",)).open()
        local = Datasets(ledger, clustered.state.datasets).rows(debit, ("height",)).open()
    assert isinstance(spread, SpreadRows)
    assert not isinstance(local, SpreadRows)
    assert spread.slots == local.slots == 2


def test_a_dry_run_and_a_refused_import_leave_nothing_on_the_storage(clustered: Admin) -> None:
    """Rows that were not registered are nowhere."""
    clustered.ok("import", *clustered.table("heights"), *TOTAL, "--dry-run")
    assert not stored(clustered)
    clustered.refused("import", *clustered.table("heights"))
    assert not any((clustered.files / "storage").iterdir())


def test_retired_rows_are_removed_from_the_storage_too(clustered: Admin) -> None:
    """They go with the rows of this disk; if the storage is away, the command says so, and can be repeated."""
    clustered.add()
    (clustered.files / "storage").rename(clustered.files / "away")
    assert "mount the storage" in clustered.refused("retire", "heights", "--delete-rows", "--yes")
    (clustered.files / "away").rename(clustered.files / "storage")
    assert "storage" in clustered.ok("retire", "heights", "--delete-rows", "--yes")
    assert not any((clustered.files / "storage").iterdir())
    assert clustered.snapshots == set()


def test_partitions_are_written_for_a_table_that_was_there(admin: Admin, clustered: Admin) -> None:
    """The command writes once; repeated, it looks at every byte and rewrites what was changed."""
    settings = admin.state.config.read_text()
    admin.state.config.write_text("")
    admin.add()
    assert "name no cluster" in admin.refused("partition", "heights")
    assert not stored(admin)
    clustered.state.config.write_text(settings)
    assert "wrote" in clustered.ok("partition", "heights")
    (file,) = stored(clustered)
    assert "as they were written" in clustered.ok("partition", "heights")
    assert stored(clustered) == [file]
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[::-1])
    assert "wrote" in clustered.ok("partition", "heights")
    assert stored(clustered) != [file]
    clustered.ok("retire", "heights", "--yes")
    assert "retired" in clustered.refused("partition", "heights")


def test_the_check_looks_at_the_cluster(clustered: Admin) -> None:
    """No scheduler, a storage that is away, tables that are not on it, and with --rows files that were changed."""

    def found(*, rows: bool = False) -> dict[str, str]:
        findings = check(clustered.state.path, rows=rows)
        return {one.what: one.problem for one in findings if one.what in {"engine", "storage", "partitions of heights"}}

    clustered.add()
    assert "cannot be reached" in found()["engine"]
    assert not found(rows=True)["partitions of heights"]
    (file,) = stored(clustered)
    file.chmod(0o600)
    file.write_bytes(b"")
    assert not found()["partitions of heights"]
    assert "changed" in found(rows=True)["partitions of heights"]
    file.unlink()
    assert "partition heights" in found()["partitions of heights"]
    (clustered.files / "storage").rename(clustered.files / "away")
    assert "cannot be written to" in found()["storage"]


def test_nobody_pays_where_rows_cannot_be_read(clustered: Admin) -> None:
    """Partitions that are away are said before a debit; what a caller is told names no machine."""
    clustered.add()
    with Ledger.open(clustered.state.ledger) as ledger:
        datasets = Datasets(ledger, clustered.state.datasets, partitioned=True)
        datasets.check(ledger.dataset("heights"))
        (clustered.files / "storage").rename(clustered.files / "away")
        with pytest.raises(SnapshotError, match="mount"):
            datasets.check(ledger.dataset("heights"))
    code, text, _ = status_of(EngineError("tls://secret-host:8786 cannot be reached"))
    assert code.name == "UNAVAILABLE"
    assert "nothing was debited" in text
    assert "secret-host" not in text


def test_settings_make_the_engine(clustered: Admin) -> None:
    """Relative paths start from the state directory; without a cluster the threads are those of this machine."""
    config = Config.load(clustered.state.config, threads_per_fit=3)
    folder = clustered.state.path
    wanted = DaskEngine(
        "tls://127.0.0.1:1", str(folder / "a.pem"), str(folder / "b.pem"), str(folder / "c.pem"), 3600.0, 3
    )
    assert engine_of(config, clustered.state) == wanted
    assert storage_of(config) == clustered.files / "storage"
    local = Config(threads_per_fit=3)
    assert (engine_of(local, clustered.state), storage_of(local)) == (LocalEngine(3), None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('ca = "a.pem"', "", "needs ca"),
        ("tls://", "tcp://", "engine.scheduler"),
        ('storage = "/', 'storage = "', "engine.storage"),
        ('kind = "dask"', 'kind = "spark"', "engine.kind"),
    ],
)
def test_half_a_cluster_is_refused(clustered: Admin, old: str, new: str, message: str) -> None:
    """All of a cluster's settings, TLS always, and a storage that has one name everywhere."""
    text = clustered.state.config.read_text()
    assert old in text
    clustered.state.config.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        Config.load(clustered.state.config)


def test_a_table_without_a_record_is_said(admin: Admin) -> None:
    """One that was imported before there was a cluster: the message names the command."""
    admin.add()
    with Ledger.open(admin.state.ledger) as ledger:
        datasets = Datasets(ledger, admin.state.datasets, partitioned=True)
        with pytest.raises(SnapshotError, match="bursar-admin partition"):
            datasets.check(ledger.dataset("heights"))
    assert Partitions.of(admin.state.datasets / next(iter(admin.snapshots))) is None
