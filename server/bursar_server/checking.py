"""`bursar-server check`: whether a state directory can be served, said before anybody depends on it."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bursar_ledger import Ledger, LedgerError, verify
from bursar_ledger.checkpoints import check_place, verifier_keys
from bursar_server.checkpointing import key_file, load_key, places_of
from bursar_server.computing import FREE_WORKERS
from bursar_server.config import Config, ConfigError
from bursar_server.datasets import Registered
from bursar_server.engines import engine_of, storage_of
from bursar_server.hardening import memory_of_machine, swap_in_use
from bursar_server.state import State, StateError
from bursar_server.tables import Keyring, Partitions, Snapshot, TableError, content_tag
from bursar_server.tls import CertificateError, Certificates, ServerPair
from bursar_server.vault import EngineError

_WARN_DAYS = 30
_LEAST_DISK = 2**30
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "fuse.s3fs", "ceph", "glusterfs"})
_EXTRAS = {
    "oidc": ("jwt", "issuer"),
    "metrics": ("prometheus_client", "address"),
    "tracing": ("opentelemetry", "endpoint"),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: it is.
        problem: what is wrong and what to do about it; "" if nothing is.
        fatal: whether the server should not run like that; else it may, and somebody should look.
    """

    what: str
    problem: str = ""
    fatal: bool = True


def check(path: Path, *, rows: bool = False) -> Iterator[Finding]:
    """Look at everything that a server needs, one finding each, as they come.

    Args:
        path: the state directory.
        rows: also read every row, and compare the tables with what the ledger says of their content.
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
    yield from _keys(state)
    yield from _ledger(state, config, rows=rows)


def _modes(state: State) -> Iterator[Finding]:
    """Folders 0700 and files 0600, of the user who runs this; certificates may be read by all."""
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
    """Whether a folder has to be there: that of the tables' keys has not, in the directory of an older version."""
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
    """The kind of the file system that a path is on; "" where the kernel does not tell."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    path = path.resolve()
    on = [(len(words[1]), words[2]) for words in lines if path.is_relative_to(words[1].replace("\\040", " "))]
    return max(on)[1] if on else ""


def _extras(config: Config) -> Iterator[Finding]:
    for table, (module, setting) in _EXTRAS.items():
        if getattr(getattr(config, table), setting):
            missing = importlib.util.find_spec(module) is None
            yield Finding(table, f"install it with: pip install 'bursar[server,{table}]'" if missing else "")
    if config.oidc.issuer:
        for name in ("keys", "document"):
            source = getattr(config.oidc, name)
            if source and "://" not in source and not os.access(source, os.R_OK):
                yield Finding("oidc", f"oidc.{name}: {source} cannot be read")


def _certificate(state: State, config: Config) -> Iterator[Finding]:
    client_ca = state.path / config.tls.client_ca if config.tls.client_ca else None
    try:
        left = ServerPair.load(Certificates(state.tls), client_ca).expires - datetime.datetime.now(datetime.UTC)
    except CertificateError as error:
        yield Finding("certificate", str(error))
        return
    days = left.total_seconds() / 86_400
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
    yield _tried("key of unit caps", Keyring(state.keys).caps)
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
        if "key" not in dataset.destroyed:
            yield _tried(f"key of {dataset.name}", functools.partial(ring.load, registered.key))
        elif ring.has(registered.key):
            text = f"{ring.path(registered.key)} is there, and the ledger says that it is destroyed: remove it"
            yield Finding(f"key of {dataset.name}", text)
        if dataset.retired:
            text = f"retired, and its rows are still in {folder}: bursar-admin retire {dataset.name} --delete-rows"
            gone = "rows" in dataset.destroyed  # then they came back with a backup
            yield Finding(f"dataset {dataset.name}", text if folder.exists() else "", fatal=gone)
            continue
        try:
            snapshot = Snapshot.open(folder)
            tag = content_tag(snapshot, ring.load(registered.key)) if rows else dataset.content_tag.hex()
            changed = bytes.fromhex(tag) != dataset.content_tag
            text = f"the rows in {folder} are not those that were registered: restore them from a backup"
            yield Finding(f"dataset {dataset.name}", text if changed else "")
            if storage is not None:
                yield Finding(f"partitions of {dataset.name}", _partitions(dataset.name, snapshot, storage, rows=rows))
        except TableError as error:
            yield Finding(f"dataset {dataset.name}", str(error))
    left = sorted(found.name for found in state.datasets.iterdir() if found.name not in named)
    text = f"no dataset has {', '.join(left)}; the next import removes what an import left" if left else ""
    yield Finding("other tables", text, fatal=False)


def _partitions(name: str, snapshot: Snapshot, storage: Path, *, rows: bool) -> str:
    """What is wrong with a table's rows on a cluster's storage. Raises SnapshotError for a damaged record."""
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
