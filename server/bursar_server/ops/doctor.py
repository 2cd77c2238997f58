"""Command `bursar-server check`: reports whether a state directory can be served, before it is used."""

from __future__ import annotations

import datetime
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bursar_ledger import DatasetState, Ledger, LedgerError, LedgerLostError, check_mark, verify
from bursar_ledger.checkpoints import check_place, verifier_keys
from bursar_server.access.tls import CertificateError, Certificates, ServerPair, client_authority
from bursar_server.config import Config, ConfigError
from bursar_server.jobs.engine import engine_of, storage_of
from bursar_server.jobs.hardening import memory_of_machine, swap_in_use
from bursar_server.jobs.job import FREE_WORKERS
from bursar_server.ops.checkpoints import explained_loss, key_file, load_key, places_of
from bursar_server.state import State, StateError
from bursar_server.tables import Keyring, Partitions, Snapshot, TableError
from bursar_server.tables.catalogue import Registered, StoredRows
from bursar_server.tables.registration import snapshots_of
from bursar_server.vault import EngineError

_WARN_DAYS = 30
"""Days before the end of the certificate at which a warning begins."""

_LEAST_DISK = 2**30
"""Free bytes of disk below which a warning is given: 1 GiB; a debit takes a few KB."""

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "ceph", "glusterfs"})
"""Kinds of file systems whose locks SQLite cannot rely on."""

_EXTRAS = {
    "oidc": ("jwt", "issuer"),
    "metrics": ("prometheus_client", "address"),
    "tracing": ("opentelemetry", "endpoint"),
}
"""Table of the settings -> module that its extra installs, and the setting that requires it."""


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        problem: fault and remedy; "" if there is none.
        fatal: True if the server must not run with this problem; otherwise it may, and an operator should look at it.
    """

    what: str
    problem: str = ""
    fatal: bool = True


def check(path: Path, *, rows: bool = False) -> Iterator[Finding]:
    """Check everything that a server needs, and yield one finding each.

    With `rows`, every row is read, too, and the tables are compared with their tags in the ledger.
    """
    try:
        state = State.open(path)
    except StateError as error:
        yield Finding("state directory", str(error))
        return
    yield from _modes(state)
    yield from _place(state)
    config = None
    try:
        config = Config.load(state.config)
        yield Finding("settings")
    except ConfigError as error:
        yield Finding("settings", f"{error}; see docs/configuration.md")
    if config is not None:
        yield from _extras(config)
        yield from _certificate(state, config)
        yield from _memory(config)
        yield from _engine(state, config)
    try:
        check_mark(state.ledger)
    except LedgerLostError as error:
        yield Finding("ledger", explained_loss(error, state))
        return
    except LedgerError as error:
        yield Finding("ledger", str(error))
        return
    try:
        yield from _keys(state)
        yield from _ledger(state, config, rows=rows)
    except LedgerError as error:  # as on a full disk, where SQLite cannot even read
        yield Finding("ledger", str(error))


def _modes(state: State) -> Iterator[Finding]:
    """Check that folders are 0700 and files 0600, of the user who runs this; all may read certificates."""
    public = {Certificates(state.tls).ca, Certificates(state.tls).chain}
    wrong = []
    folders = (state.path, state.keys, Keyring(state.keys).tables, state.tls, state.datasets)
    for path in (*filter(_is_expected, folders), *_files(state)):
        try:
            status = path.stat()
        except FileNotFoundError:
            wrong.append(f"{path} is missing: restore it from a backup")
            continue
        if status.st_uid != os.geteuid():
            wrong.append(f"{path} belongs to another user: chown -R {os.geteuid()} {state.path}")
        if path not in public and status.st_mode & 0o077:
            wrong.append(f"{path} can be read by others: chmod {'700' if path.is_dir() else '600'} {path}")
    yield Finding("file modes", "; ".join(wrong))
    if (token := state.path / "admin.token").exists():
        text = f"{token} is still here: give it to the administrator and remove it, only its hash is needed"
        yield Finding("administrator's token", text, fatal=False)


def _is_expected(folder: Path) -> bool:
    """Return whether a folder must exist; that of the tables' keys does not before the first import."""
    return folder.name != "tables" or folder.exists()


def _files(state: State) -> Iterator[Path]:
    yield state.ledger
    yield from filter(Path.is_file, (state.config, *state.path.glob("ledger.sqlite-*")))
    for folder in (state.keys, Keyring(state.keys).tables, state.tls):
        if folder.is_dir():
            yield from filter(Path.is_file, folder.iterdir())


def _place(state: State) -> Iterator[Finding]:
    kind = _filesystem(state.path)
    text = f"{state.path} is on {kind}: SQLite's locks need a local disk, move it there" if kind in _NETWORK else ""
    yield Finding("file system", text)
    free = shutil.disk_usage(state.path).free
    text = f"{free >> 20} MiB are free; a debit that cannot be written is refused" if free < _LEAST_DISK else ""
    yield Finding("disk", text, fatal=False)


def _filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the kind of a path's file system; "" if the kernel does not report it."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    path = path.resolve()
    on = [(len(words[1]), words[2]) for words in lines if path.is_relative_to(words[1].replace("\\040", " "))]
    # The longest mount point that contains the path is the one in force.
    return max(on)[1] if on else ""


def _extras(config: Config) -> Iterator[Finding]:
    for table, (module, setting) in _EXTRAS.items():
        if getattr(getattr(config, table), setting):
            missing = importlib.util.find_spec(module) is None
            yield Finding(table, f"install it with: pip install './bursar[server,{table}]'" if missing else "")
    if config.oidc.issuer:
        for name in ("keys", "document"):
            source = getattr(config.oidc, name)
            if source and "://" not in source and not os.access(source, os.R_OK):
                yield Finding("oidc", f"oidc.{name}: {source} cannot be read")


def _certificate(state: State, config: Config) -> Iterator[Finding]:
    try:
        pair = ServerPair.load(Certificates(state.tls), client_authority(state, config))
    except CertificateError as error:
        yield Finding("certificate", str(error))
        return
    days = (pair.expires - datetime.datetime.now(datetime.UTC)).total_seconds() / 86_400
    text = f"ends in {days:.0f} days" if days > 0 else "has ended, clients refuse it"
    renew = f"{text}: put a new pair into {state.tls}; a running server takes it by itself"
    yield Finding("certificate", renew if days < _WARN_DAYS else "", fatal=days < 0)


def _memory(config: Config) -> Iterator[Finding]:
    text = ""
    if swap_in_use() and not config.lock_memory:
        text = (
            "rows in memory may be written to the swap: switch it off, limit it for the server (systemd: "
            "MemorySwapMax=0), encrypt it, or set lock_memory = true"
        )
    yield Finding("swap", text, fatal=False)
    fits = config.fit_workers + FREE_WORKERS
    most, there = fits * config.fit_memory_mib, memory_of_machine() >> 20
    text = (
        f"{fits} fits may take {most} MiB together, and {there} MiB are there: lower fit_memory_mib or fit_workers, "
        "else the kernel may end fits that were paid for"
    )
    yield Finding("memory", text if there and most > there else "", fatal=False)


def _engine(state: State, config: Config) -> Iterator[Finding]:
    if config.engine.kind == "dask":
        yield _tried("engine", engine_of(config, state).check)
        storage = config.engine.storage
        there = os.access(storage, os.R_OK | os.W_OK | os.X_OK) and Path(storage).is_dir()
        yield Finding("storage", "" if there else f"{storage} cannot be written to: mount it, and let this user write")


def _keys(state: State) -> Iterator[Finding]:
    if verifier_keys(state.ledger):
        yield _tried("key of checkpoints", lambda: load_key(state))
    elif not key_file(state).exists():
        yield Finding("key of checkpoints", "none yet; the server makes one when it starts", fatal=False)


def _ledger(state: State, config: Config | None, *, rows: bool) -> Iterator[Finding]:
    found = verify(state.ledger)
    more = len(found.problems) - 3
    told = "; ".join(found.problems[:3]) + (f"; and {more} more" if more > 0 else "")
    yield Finding("ledger", f"{told}: see docs/ledger.md, and restore a backup only as it says" if told else "")
    if config is not None and (keys := verifier_keys(state.ledger)):
        for place in places_of(state, config):
            if place.readable:
                problems = "; ".join(check_place(state.ledger, place, keys[-1].key).problems)
                yield Finding(f"checkpoints in {place.name}", problems)
    if found.ok:
        with Ledger.open(state.ledger) as ledger:
            storage = None if config is None else storage_of(config)
            yield from _snapshots(state, ledger, storage, rows=rows)


def _snapshots(state: State, ledger: Ledger, storage: Path | None, *, rows: bool) -> Iterator[Finding]:
    named = set()
    ring = Keyring(state.keys)
    for dataset in ledger.datasets():
        registered = Registered.of(dataset.manifest)
        folder = state.datasets / registered.snapshot
        named.add(folder.name)
        yield _secrets(ring, ledger, dataset)
        if dataset.retired:
            text = f"retired, and its rows are still in {folder}: bursar-admin retire {dataset.name} --delete-rows"
            gone = "rows" in dataset.destroyed  # then they came back with a backup
            yield Finding(f"dataset {dataset.name}", text if folder.exists() else "", fatal=gone)
            continue
        try:
            snapshot = Snapshot.open(folder)
            if rows:
                StoredRows(state.datasets, ring).compare(folder.name, registered.manifest, registered.rows_tag)
            yield Finding(f"dataset {dataset.name}")
            if storage is not None:
                yield Finding(f"partitions of {dataset.name}", _partitions(dataset.name, snapshot, storage, rows=rows))
        except TableError as error:
            yield Finding(f"dataset {dataset.name}", str(error))
    left = sorted(found.name for found in state.datasets.iterdir() if found.name not in named)
    text = f"no dataset has {', '.join(left)}; the next import removes what an import left" if left else ""
    yield Finding("other tables", text, fatal=False)


def _secrets(ring: Keyring, ledger: Ledger, dataset: DatasetState) -> Finding:
    """Check the secrets of a dataset's snapshots."""
    what = f"key of {dataset.name}"
    paths = [ring.path(snapshot) for snapshot in snapshots_of(ledger, dataset.name)]
    if "key" in dataset.destroyed:
        left = ", ".join(str(path) for path in paths if path.exists())
        return Finding(what, f"{left} is there, and the ledger says that it is destroyed: remove it" if left else "")
    missing = ", ".join(str(path) for path in paths if not path.exists())
    text = (
        f"{missing} is missing: restore it from a backup. Without it rows are not recognised when they are imported "
        "again, and those that cannot be compared with what was registered are not fitted; if it is lost, import them "
        "again with: bursar-admin snapshot"
    )
    newest = Registered.of(dataset.manifest)
    needed = not dataset.retired and not ring.has(newest.snapshot)
    return Finding(what, text if missing else "", fatal=needed)


def _partitions(name: str, snapshot: Snapshot, storage: Path, *, rows: bool) -> str:
    """Return the problem of a table's rows on a cluster's storage; "" if there is none.

    Raises:
        SnapshotError: the record of the partitions is damaged.
    """
    found = Partitions.of(snapshot.directory)
    if found is None or not found.is_of(snapshot, storage):
        return f"not on {storage}: bursar-admin partition {name}"
    away = tuple(file.path for file in found.files if not os.access(file.path, os.R_OK))
    wrong = ", ".join(away or (found.damaged() if rows else ()))
    return f"{wrong}: missing or changed; write them again: bursar-admin partition {name}" if wrong else ""


def _tried(what: str, attempt: Callable[[], object]) -> Finding:
    try:
        attempt()
    except (TableError, StateError, LedgerError, EngineError, OSError) as error:
        return Finding(what, str(error))
    return Finding(what)
