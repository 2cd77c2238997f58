"""From a source to a registered dataset.

The snapshot is in its place before the registration's entry is written, and the entry is what makes a dataset exist.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bursar_ledger import Budget, DatasetExistsError, Entry, Ledger, Registration
from bursar_server.datasets import Registered
from bursar_server.state import State
from bursar_server.tables import ImportReport, Keys, Manifest, Snapshot, Source, content_tag, import_table


def register(
    state: State, ledger: Ledger, manifest: Manifest, source: Source, budget: Budget, *, actor: str, reason: str
) -> tuple[ImportReport, Entry]:
    """Import a table and register it; the report is for the administrator's eyes only.

    A crash at any point leaves at most a snapshot that no entry names. It is never served; the next import removes it.

    Raises:
        DatasetExistsError: name or content are registered already.
        TableError: the source is not what the manifest says.
        StateError: another import is under way.
    """
    with state.importing():
        _remove_unregistered(state, ledger)
        if any(manifest.name == known.name for known in ledger.datasets()):
            raise DatasetExistsError(f"a dataset {manifest.name!r} is registered already; its budget is never set anew")
        keys = Keys.load(state.keys)
        report = import_table(manifest, source, state.path, keys)
        try:
            return report, _registered(ledger, report.directory, keys, budget, actor, reason)
        except BaseException:
            shutil.rmtree(report.directory)
            raise


def _registered(ledger: Ledger, directory: Path, keys: Keys, budget: Budget, actor: str, reason: str) -> Entry:
    snapshot = Snapshot.open(directory)
    registration = Registration(
        dataset=snapshot.manifest.name,
        adjacency=snapshot.manifest.adjacency,
        budget=budget,
        content_tag=bytes.fromhex(content_tag(snapshot, keys)),
        manifest=Registered(snapshot.manifest, directory.name).fields,
    )
    return ledger.register_dataset(registration, actor=actor, reason=reason)


def _remove_unregistered(state: State, ledger: Ledger) -> None:
    known = {Registered.of(dataset.manifest).snapshot for dataset in ledger.datasets()}
    for leftover in state.datasets.iterdir():
        if leftover.name not in known:
            shutil.rmtree(leftover)
