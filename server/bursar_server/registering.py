"""From a source to a registered dataset or to a new snapshot of one, and the end of rows that nobody needs any more.

Rows are in their place before the entry that names them is written, and they go only after an entry has taken their
name away. So a crash at any point leaves at most rows that no entry names; they are never served, and the next import
removes them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from bursar_ledger import (
    Budget,
    DatasetExistsError,
    DatasetRetiredError,
    DatasetState,
    Entry,
    Ledger,
    LedgerError,
    Registration,
)
from bursar_server.datasets import Registered
from bursar_server.state import State, StateError
from bursar_server.tables import ImportReport, Keys, Manifest, Snapshot, Source, content_tag, import_table

_OURS = re.compile(r"[0-9a-f]{32}|\.[0-9a-f]{32}\.partial")
"""What an import makes: a snapshot, or the half of one. Nothing else in the folder is touched."""


def register(
    state: State,
    ledger: Ledger,
    manifest: Manifest,
    source: Source,
    budget: Budget | None,
    *,
    actor: str,
    reason: str,
    same_people_as: str | None = None,
    dry_run: bool = False,
) -> tuple[ImportReport, Entry]:
    """Import a table and register it; the report is for the administrator's eyes only.

    Without a budget the table joins the account that its people have: that of the dataset named, or of the one that had
    the same rows before. With `dry_run` everything is done and checked, and nothing is kept.

    Raises:
        DatasetExistsError: the name is registered already.
        UnknownDatasetError: there is no dataset `same_people_as`.
        AccountConflictError: these people have an account that is not as it is asked to be.
        TableError: the source is not what the manifest says.
        StateError: another import is under way.
        ValueError: the rows are new, and there is no budget.
    """

    def enter(snapshot: Snapshot, tag: bytes) -> Entry:
        registration = Registration(
            dataset=manifest.name,
            adjacency=manifest.adjacency,
            budget=budget,
            content_tag=tag,
            manifest=Registered.imported(snapshot).fields,
            same_people_as=same_people_as,
        )
        return ledger.register_dataset(registration, actor=actor, reason=reason, dry_run=dry_run)

    with state.importing():
        # Said before the long import; the ledger decides it again.
        if any(manifest.name == known.name for known in ledger.datasets()):
            raise DatasetExistsError(
                f"a dataset {manifest.name!r} is registered already. New rows of the same people: bursar-admin "
                "snapshot; another table: give it another name"
            )
        if same_people_as is not None:
            ledger.dataset(same_people_as)
        return _imported(state, ledger, manifest, source, enter, dry_run)


def replace(
    state: State,
    ledger: Ledger,
    manifest: Manifest,
    source: Source,
    *,
    actor: str,
    reason: str,
    dry_run: bool = False,
) -> tuple[ImportReport, Entry]:
    """Import new rows of the same people under the name of a registered dataset.

    The rows that they replace stay on the disk until the next import, or `remove_replaced`: a fit that waits for its
    turn may still open them. One that has them open reads on in any case, since a file that is removed goes away with
    its last reader. One that finds them gone has read nothing; asked again, it runs on the new rows under its debit.

    Raises:
        UnknownDatasetError, DatasetRetiredError: there is no such dataset, or no more.
        AccountConflictError: the rows are known as those of another account.
        TableError: the source is not what the manifest says.
        StateError: another import is under way.
        ValueError: the schema is another.
    """

    def enter(snapshot: Snapshot, tag: bytes) -> Entry:
        fields = Registered.imported(snapshot).fields
        return ledger.new_snapshot(manifest.name, tag, fields, actor=actor, reason=reason, dry_run=dry_run)

    with state.importing():
        present = ledger.dataset(manifest.name)
        if present.retired:
            raise DatasetRetiredError(f"the dataset {manifest.name!r} is retired; it gets no new rows")
        check_schema(Registered.of(present.manifest).manifest, manifest)
        return _imported(state, ledger, manifest, source, enter, dry_run)


def check_schema(registered: Manifest, new: Manifest) -> None:
    """Raises ValueError unless both promise and mean the same: descriptions and `public_rows` alone may differ.

    Adjacency and privacy unit are part of the promise. The columns are what analysts know the dataset by, what their
    models can start from, and what a fit that was interrupted was planned with.
    """
    differ = [name for name in ("adjacency", "unit", "columns") if _meaning(registered)[name] != _meaning(new)[name]]
    if differ:
        raise ValueError(
            f"{', '.join(differ)} of the manifest differ from those of {new.name!r}; a snapshot may change the rows, "
            "descriptions and public_rows only. For another schema, import under another name with: "
            f"--same-people-as {new.name}"
        )


def remove_rows(state: State, ledger: Ledger, name: str) -> None:
    """Remove the rows of a retired dataset from the disk, if they are there; no new debit can ask for them.

    Raises:
        UnknownDatasetError: there is no such dataset.
        StateError: it is not retired, or an import is under way.
    """
    dataset = ledger.dataset(name)
    if not dataset.retired:
        raise StateError(f"the dataset {name!r} is not retired; its rows are needed")
    with state.importing():
        if (folder := rows_folder(state, dataset)).exists():
            shutil.rmtree(folder)
        _remove_unnamed(state, ledger)


def destroy_key(state: State, ledger: Ledger) -> None:
    """Destroy the secret under which tables are recognised, once nothing is left that needs it.

    No table can be imported into this state directory any more. What was released, and the ledger, stay.

    Raises:
        StateError: a dataset is in force, or rows are on the disk, or an import is under way.
    """
    with state.importing():
        live = [dataset.name for dataset in ledger.datasets() if not dataset.retired]
        if live:
            raise StateError(f"the key is needed for {', '.join(live)}; retire them first")
        if left := sorted(found.name for found in state.datasets.iterdir()):
            raise StateError(f"rows are left in {state.datasets}: {', '.join(left)}; remove them first")
        Keys.destroy(state.keys)


def remove_replaced(state: State, ledger: Ledger) -> None:
    """Remove the snapshots that no dataset has any more. Raises StateError if an import is under way."""
    with state.importing():
        _remove_unnamed(state, ledger)


def rows_folder(state: State, dataset: DatasetState) -> Path:
    """Where a dataset's rows are, or were."""
    return state.datasets / Registered.of(dataset.manifest).snapshot


def _imported(
    state: State,
    ledger: Ledger,
    manifest: Manifest,
    source: Source,
    enter: Callable[[Snapshot, bytes], Entry],
    dry_run: bool,
) -> tuple[ImportReport, Entry]:
    if not dry_run:
        _remove_unnamed(state, ledger)
    keys = Keys.load(state.keys)
    report = import_table(manifest, source, state.path, keys)
    kept = False
    try:
        snapshot = Snapshot.open(report.directory)
        entry = enter(snapshot, bytes.fromhex(content_tag(snapshot, keys)))
        kept = not dry_run
    finally:
        # An interruption may come just after the entry was written, and then the rows have to stay.
        if not kept and not _is_named(ledger, report.directory.name):
            shutil.rmtree(report.directory)
    return report, entry


def _remove_unnamed(state: State, ledger: Ledger) -> None:
    named = _named(ledger)
    for found in state.datasets.iterdir():
        if found.name not in named and _OURS.fullmatch(found.name):
            shutil.rmtree(found)


def _is_named(ledger: Ledger, snapshot: str) -> bool:
    """Whether an entry names these rows; True if that cannot be found out now, and the next import decides."""
    try:
        return snapshot in _named(ledger)
    except LedgerError:
        return True


def _named(ledger: Ledger) -> set[str]:
    return {Registered.of(dataset.manifest).snapshot for dataset in ledger.datasets()}


def _meaning(manifest: Manifest) -> dict[str, object]:
    columns = [column.model_copy(update={"description": ""}) for column in manifest.columns]
    return {"adjacency": manifest.adjacency, "unit": manifest.unit, "columns": columns}
