"""From a source to a registered dataset or to a new snapshot of one, and the end of rows that nobody needs any more.

Rows and the key of their tag are in their place before the entry that names them is written, and they go only after an
entry has taken their name away. So a crash at any point leaves at most rows that no entry names; they are never served,
and the next import removes them. That something was destroyed is written after it was: what the ledger says is gone is
gone, and if the entry is missing, the same command writes it.

Every table has a key of its own. An import is compared with what was imported before by tagging the new rows with the
key of each table that could have them, too. So equal rows are recognised as long as a table that had them has its key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
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
from bursar_server.tables import (
    SHARED,
    ImportReport,
    Keyring,
    Keys,
    KeysError,
    Manifest,
    Partitions,
    Snapshot,
    Source,
    content_tag,
    import_table,
    remove_snapshot,
    sync,
)

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
    new_people: bool = False,
    storage: Path | None = None,
    dry_run: bool = False,
) -> tuple[ImportReport, Entry]:
    """Import a table and register it; the report is for the administrator's eyes only.

    Without a budget the table joins the account that its people have: that of the dataset named, or of the one that had
    the same rows before. With `dry_run` everything is done and checked, and nothing is kept.

    What cannot be compared any more, since a key was destroyed, is the administrator's word: either `same_people_as`
    names the dataset, or `new_people` says that these people are in no such table.

    Where there is a shared `storage`, the rows are written there, too, in partitions.

    Raises:
        DatasetExistsError: the name is registered already.
        UnknownDatasetError: there is no dataset `same_people_as`.
        AccountConflictError: these people have an account that is not as it is asked to be.
        TableError: the source is not what the manifest says.
        StateError: another import is under way.
        ValueError: the rows are new, and there is no budget; or nobody can say whether they are.
    """

    def enter(content: _Content) -> Entry:
        known = (content.tag, *content.known_tags)
        if forgotten and not any(entry.details["content_tag"] in known for entry in ledger.contents()):
            raise ValueError(
                f"the keys of {', '.join(forgotten)} are destroyed, so nobody can say whether these are the same rows. "
                "If they are rows of the same people, give --same-people-as with the name; if not, give --new-people"
            )
        registration = Registration(
            dataset=manifest.name,
            adjacency=manifest.adjacency,
            budget=budget,
            content_tag=bytes.fromhex(content.tag),
            manifest=content.registered.fields,
            same_people_as=same_people_as,
            known_tags=tuple(map(bytes.fromhex, content.known_tags)),
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
        asked = same_people_as is None and not new_people
        forgotten = _forgotten(ledger, manifest) if asked else ()
        return _imported(state, ledger, manifest, source, SHARED, enter, storage, dry_run)


def replace(
    state: State,
    ledger: Ledger,
    manifest: Manifest,
    source: Source,
    *,
    actor: str,
    reason: str,
    storage: Path | None = None,
    dry_run: bool = False,
) -> tuple[ImportReport, Entry]:
    """Import new rows of the same people under the name of a registered dataset; `storage` as in `register`.

    The rows that they replace stay on the disk until the next import, or `remove_replaced`: a fit that waits for its
    turn may still open them. One that has them open reads on in any case, since a file that is removed goes away with
    its last reader. One that finds them gone has read nothing; asked again, it runs on the new rows under its debit.
    Partitions have no such last reader: a fit on a cluster that is still running when they go fails, and stays paid.

    Raises:
        UnknownDatasetError, DatasetRetiredError: there is no such dataset, or no more.
        AccountConflictError: the rows are known as those of another account.
        TableError: the source is not what the manifest says.
        StateError: another import is under way.
        ValueError: the schema is another.
    """

    def enter(content: _Content) -> Entry:
        return _new_snapshot(ledger, manifest.name, content, actor, reason, dry_run)

    with state.importing():
        present = ledger.dataset(manifest.name)
        if present.retired:
            raise DatasetRetiredError(f"the dataset {manifest.name!r} is retired; it gets no new rows")
        registered = Registered.of(present.manifest)
        check_schema(registered.manifest, manifest)
        return _imported(state, ledger, manifest, source, registered.key, enter, storage, dry_run)


def give_key(
    state: State, ledger: Ledger, name: str, *, actor: str, reason: str, dry_run: bool = False
) -> tuple[Entry, int]:
    """Tag the rows of a dataset anew, under a key of its own; the rows stay.

    For tables of older versions, which had one key for all, and for a table whose key was lost.

    Returns:
        The entry, and how many other tables have tags under the key that older versions shared.

    Raises:
        UnknownDatasetError, DatasetRetiredError: there is no such dataset, or no more.
        StateError: it has a key of its own, or an import is under way.
        TableError: the rows or a key are not in their place.
    """
    ring = Keyring(state.keys)
    with state.importing():
        present = ledger.dataset(name)
        if present.retired:
            raise DatasetRetiredError(f"the dataset {name!r} is retired; destroy its key, if it is to have none")
        registered = Registered.of(present.manifest)
        if registered.key != SHARED and ring.has(registered.key):
            raise StateError(f"the dataset {name!r} has a key of its own already")
        snapshot = Snapshot.open(rows_folder(state, present))
        known = _known_tags(ring, ledger, snapshot, without=name)
        content = _tagged(ring, snapshot, SHARED, known, dry_run=dry_run)
        entry = _new_snapshot(ledger, name, content, actor, reason, dry_run)
        shared = {other.name for other in ledger.datasets() if Registered.of(other.manifest).key == SHARED} - {name}
        return entry, len(shared)


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


def remove_rows(state: State, ledger: Ledger, name: str, *, actor: str, reason: str) -> Entry | None:
    """Remove the rows of a retired dataset from the disk, if they are there, and say so in the ledger.

    No new debit can ask for them. Returns the entry, None if it is there from before.

    Raises:
        UnknownDatasetError: there is no such dataset.
        StateError: it is not retired, or an import is under way.
    """
    dataset = ledger.dataset(name)
    if not dataset.retired:
        raise StateError(f"the dataset {name!r} is not retired; its rows are needed")
    with state.importing():
        if (folder := rows_folder(state, dataset)).exists():
            remove_snapshot(folder)
        _remove_unnamed(state, ledger)
        sync(state.datasets)
        if "rows" in dataset.destroyed:
            return None
        return ledger.record_destruction(name, "rows", actor=actor, reason=reason)


def shares_key(state: State, ledger: Ledger, name: str) -> tuple[DatasetState, ...]:
    """The retired datasets whose key goes with that of `name`, itself among them; what `destroy_key` would ask for.

    More than one only for tags of older versions, which had one key for all tables.

    Raises:
        UnknownDatasetError: there is no such dataset.
        StateError: the key is needed by another dataset, which is in force or whose rows are still there.
    """
    dataset = ledger.dataset(name)
    if not any(Registered.of(entry.details["manifest"]).key == SHARED for entry in _contents_of(ledger, name)):
        return (dataset,)
    together = [other for other in ledger.datasets() if Registered.of(other.manifest).key == SHARED]
    if live := [other.name for other in together if not other.retired and other.name != name]:
        raise StateError(
            f"the content of {name!r} was tagged with the key that an older version had for all tables, and "
            f"{', '.join(live)} needs it; give it one of its own first: bursar-admin rekey {live[0]}"
        )
    if left := [o.name for o in together if o.name != name and rows_folder(state, o).exists()]:
        raise StateError(
            f"the content of {name!r} was tagged with the key that an older version had for all tables, and the rows "
            f"of {', '.join(left)} are left; remove them first: bursar-admin retire {left[0]} --delete-rows"
        )
    others = [other for other in together if other.name != name and "key" not in other.destroyed]
    return (dataset, *others)


def destroy_key(state: State, ledger: Ledger, name: str, *, actor: str, reason: str) -> tuple[Entry, ...]:
    """Destroy the secret under which a table is recognised, and say so in the ledger.

    Its rows are then not known any more if they come again: see `register`. What was released, and the ledger, stay.

    Returns:
        The entries, of every dataset that had this key; none if all of them are there from before.

    Raises:
        UnknownDatasetError: there is no such dataset.
        StateError: it is not retired, its rows are on the disk, another one needs the key, or an import is under way.
    """
    ring = Keyring(state.keys)
    with state.importing():
        dataset = ledger.dataset(name)
        if not dataset.retired or rows_folder(state, dataset).exists():
            raise StateError(f"the dataset {name!r} is not retired, or its rows are left; its key is needed")
        gone = shares_key(state, ledger, name)
        names = {Registered.of(entry.details["manifest"]).key for entry in _contents_of(ledger, name)}
        if SHARED in names:
            ring.keep_caps()
        for key in names:
            ring.destroy(key)
        return tuple(
            ledger.record_destruction(one.name, what, actor=actor, reason=reason)
            for one in gone
            for what in ("rows", "key")
            if what not in one.destroyed
        )


def partition(state: State, ledger: Ledger, name: str, storage: Path) -> Partitions | None:
    """Write a dataset's rows to a shared storage in partitions, unless they are there as they should be: then None.

    Reads all of what is there. Fits that read partitions which are written again fail.

    Raises:
        UnknownDatasetError, DatasetRetiredError: there is no such dataset, or no more.
        SnapshotError: the rows, or the storage, are not there.
        StateError: an import is under way.
    """
    with state.importing():
        dataset = ledger.dataset(name)
        if dataset.retired:
            raise DatasetRetiredError(f"the dataset {name!r} is retired; nothing reads its rows any more")
        snapshot = Snapshot.open(rows_folder(state, dataset))
        found = Partitions.of(snapshot.directory)
        if found is not None and found.is_of(snapshot, storage) and not found.damaged():
            return None
        return Partitions.write(snapshot, storage)


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
    key: str,
    enter: Callable[[_Content], Entry],
    storage: Path | None,
    dry_run: bool,
) -> tuple[ImportReport, Entry]:
    ring = Keyring(state.keys)
    if not dry_run:
        _remove_unnamed(state, ledger)
    report = import_table(manifest, source, state.path, ring.caps())
    kept, content = False, None
    try:
        snapshot = Snapshot.open(report.directory)
        if storage is not None and not dry_run:
            Partitions.write(snapshot, storage)
        content = _tagged(ring, snapshot, key, _known_tags(ring, ledger, snapshot), dry_run=dry_run)
        entry = enter(content)
        kept = not dry_run
    finally:
        # An interruption may come just after the entry was written, and then rows and key have to stay.
        if not kept and not _is_named(ledger, report.directory.name):
            remove_snapshot(report.directory)
            if content is not None and content.registered.key != key:
                ring.destroy(content.registered.key)
    return report, entry


@dataclass(frozen=True)
class _Content:
    """What an entry says of rows, and their tags under the keys of the tables that could have them, too."""

    registered: Registered
    tag: str
    known_tags: tuple[str, ...]


def _tagged(ring: Keyring, snapshot: Snapshot, key: str, known_tags: tuple[str, ...], *, dry_run: bool) -> _Content:
    """The content under the key of this name, or under a new one if that is the shared one, which nothing new gets."""
    if key == SHARED:
        keys = Keys.draw()
        key = "0" * 32 if dry_run else ring.save(keys)
    else:
        keys = ring.load(key)
    return _Content(Registered.imported(snapshot, key), content_tag(snapshot, keys), known_tags)


def _known_tags(ring: Keyring, ledger: Ledger, snapshot: Snapshot, *, without: str = "") -> tuple[str, ...]:
    """The tags that these rows have under the keys of the tables with as many columns.

    Every dataset's newest key has to be there, unless the ledger says that it was destroyed: else rows that come again
    would be taken for new. Its older keys count as far as they are there.

    Args:
        ring: the keys.
        ledger: open.
        snapshot: the rows.
        without: a dataset whose own key need not be there.
    """
    width, names = len(snapshot.manifest.columns), set()
    for dataset in ledger.datasets():
        if "key" in dataset.destroyed:
            continue
        registered = Registered.of(dataset.manifest)
        if len(registered.manifest.columns) != width:
            continue
        if dataset.name != without and not ring.has(registered.key):
            raise KeysError(
                f"{ring.path(registered.key)}, the key of {dataset.name}, is missing: without it these rows might not "
                f"be recognised. Restore it from a backup; if it is lost: bursar-admin rekey {dataset.name}, or, once "
                f"retired: bursar-admin retire {dataset.name} --delete-rows --destroy-key"
            )
        keys = {Registered.of(entry.details["manifest"]).key for entry in _contents_of(ledger, dataset.name)}
        names |= {key for key in keys if ring.has(key)}
    return tuple(content_tag(snapshot, ring.load(name)) for name in sorted(names))


def _forgotten(ledger: Ledger, manifest: Manifest) -> tuple[str, ...]:
    """The datasets with as many columns whose key is destroyed."""
    return tuple(
        dataset.name
        for dataset in ledger.datasets()
        if "key" in dataset.destroyed and len(Registered.of(dataset.manifest).manifest.columns) == len(manifest.columns)
    )


def _contents_of(ledger: Ledger, name: str) -> tuple[Entry, ...]:
    return tuple(entry for entry in ledger.contents() if entry.dataset == name)


def _new_snapshot(ledger: Ledger, name: str, content: _Content, actor: str, reason: str, dry_run: bool) -> Entry:
    return ledger.new_snapshot(
        name,
        bytes.fromhex(content.tag),
        content.registered.fields,
        actor=actor,
        reason=reason,
        known_tags=tuple(map(bytes.fromhex, content.known_tags)),
        dry_run=dry_run,
    )


def _remove_unnamed(state: State, ledger: Ledger) -> None:
    named = _named(ledger)
    for found in state.datasets.iterdir():
        if found.name not in named and _OURS.fullmatch(found.name):
            remove_snapshot(found)


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
