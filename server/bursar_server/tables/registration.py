"""Import of tables and their registration, new snapshots of them, and the removal of rows and keys.

Rows and the key of their tags are stored before the entry that names them, and removed only after an entry has dropped
their name. So a crash at any point leaves at most rows without an entry; they are never served, and the next import
removes them. A destruction is recorded after it happened: rows that the ledger says are destroyed are destroyed, and if
the entry is missing, the same command writes it.

Data never decide what a client sees. The administrator declares whose rows a table holds. Rows that look like those of
an earlier table are refused, to the administrator alone, until that declaration is made; a refusal writes nothing. The
comparison is made here and not in the ledger, whose entries auditors read.
"""

from __future__ import annotations

import contextlib
import hmac
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

from bursar_amounts import bound_text, exact_text
from bursar_ledger import (
    AccountConflictError,
    Adjacency,
    Budget,
    DatasetExistsError,
    DatasetRetiredError,
    DatasetState,
    Entry,
    Ledger,
    LedgerError,
    Registration,
)
from bursar_server.state import State, StateError
from bursar_server.tables import (
    ArrowSource,
    ArrowStream,
    CapKeys,
    ImportReport,
    Keyring,
    Keys,
    Manifest,
    Partitions,
    Snapshot,
    Source,
    TableError,
    content_tag,
    remove_snapshot,
    rows_tag,
    store_table,
    sync,
)
from bursar_server.tables.catalogue import Registered, StoredRows

_OURS = re.compile(r"[0-9a-f]{32}|\.[0-9a-f]{32}\.partial")
"""Names that an import makes: snapshots and unfinished ones. Other files in the folder are never touched."""

LARGE_EPSILON = 10
"""Epsilon above which a total has to be confirmed: a guess from fifty-fifty may be right 99,995 times of 100,000."""

Look = Callable[[ImportReport], Callable[[], None]]
"""A look at a report, which may refuse it; returns the last question before the entry, which may refuse, too."""


def _as_it_is(_: ImportReport) -> Callable[[], None]:
    return lambda: None


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
    other_people: bool = False,
    storage: Path | None = None,
    dry_run: bool = False,
    look: Look = _as_it_is,
) -> tuple[ImportReport, Entry]:
    """Import a table and register it; the report is for the administrator only.

    The table joins the account of the dataset `same_people_as`, or opens one with a budget. Rows that are known as
    those of another account, or that cannot be compared with a table whose key is destroyed, are refused unless
    `other_people` declares that they are rows of other people. With `dry_run` everything is done and checked, and
    nothing is kept.

    If there is a shared `storage`, the rows are also written there, in partitions. `look` is called with the report
    after the rows were read, before anything is written to the ledger; what it returns is called last before that. Both
    may raise, and then nothing is kept.

    Raises:
        DatasetExistsError: the name is registered already.
        UnknownDatasetError: there is no dataset `same_people_as`.
        AccountConflictError: the rows are known as those of another account, or the account to join has another
            adjacency or budget.
        TableError: the source does not fit the manifest.
        StateError: another import is under way.
        ValueError: there is neither a budget nor an account to join; or the rows cannot be compared.
    """
    with state.importing():
        # Checked before the long import; the ledger checks it again.
        if any(manifest.name == known.name for known in ledger.datasets()):
            raise DatasetExistsError(
                f"a dataset {manifest.name!r} is registered already. New rows of the same people: bursar-admin "
                "snapshot; another table: give it another name"
            )
        if budget is None and same_people_as is None:
            raise ValueError(
                "budget is missing: give --epsilon and --delta for people who have no account yet, or --same-people-as "
                "with a dataset of the same people"
            )
        joins = None if same_people_as is None else ledger.dataset(same_people_as).account

        def enter(tag: str, fields: Mapping[str, object]) -> Entry:
            registration = Registration(
                dataset=manifest.name,
                adjacency=manifest.adjacency,
                budget=budget,
                content_tag=bytes.fromhex(tag),
                manifest=fields,
                same_people_as=same_people_as,
            )
            return ledger.register_dataset(registration, actor=actor, reason=reason, dry_run=dry_run)

        return _imported(state, ledger, manifest, source, enter, joins, other_people, storage, dry_run, look)


def replace(
    state: State,
    ledger: Ledger,
    manifest: Manifest,
    source: Source,
    *,
    actor: str,
    reason: str,
    other_people: bool = False,
    storage: Path | None = None,
    dry_run: bool = False,
    look: Look = _as_it_is,
) -> tuple[ImportReport, Entry]:
    """Import new rows of the same people under the name of a registered dataset.

    Rows that are known as those of another account are refused unless `other_people` declares that they are rows of
    other people. `storage`, `dry_run` and `look` are those of `register`.

    The replaced rows stay on the disk until the next import, or `remove_replaced`: a queued fit may still open them. A
    fit that has them open keeps reading, because a removed file disappears with its last reader. A fit that finds them
    gone has read nothing; requested again, it runs on the new rows under its debit. Partitions have no such last
    reader: a fit on a cluster that is running when they are removed fails, and stays charged.

    Raises:
        UnknownDatasetError, DatasetRetiredError: the dataset does not exist, or is retired.
        AccountConflictError: the rows are known as those of another account.
        TableError: the source does not fit the manifest.
        StateError: another import is under way.
        ValueError: the schema differs.
    """
    with state.importing():
        present = ledger.dataset(manifest.name)
        if present.retired:
            raise DatasetRetiredError(f"the dataset {manifest.name!r} is retired; it gets no new rows")
        check_schema(Registered.of(present.manifest).manifest, manifest)

        def enter(tag: str, fields: Mapping[str, object]) -> Entry:
            return ledger.new_snapshot(
                manifest.name, bytes.fromhex(tag), fields, actor=actor, reason=reason, dry_run=dry_run
            )

        return _imported(state, ledger, manifest, source, enter, present.account, other_people, storage, dry_run, look)


def dangers(total: Budget, rows: int | None) -> list[str]:
    """Return why a total protects hardly anybody; empty if it does. `rows` is the public number of rows, if known."""
    found = []
    if not total.epsilon <= LARGE_EPSILON:
        found.append(
            f"epsilon {exact_text(total.epsilon)} is above {LARGE_EPSILON}: a guess about a person may be all but "
            "certain"
        )
    if rows is not None and not total.delta * rows <= 1:
        many = bound_text(Fraction(total.delta) * rows)
        found.append(
            f"delta {exact_text(total.delta)} times {rows:,} rows is {many}: so many rows may be published as they "
            "are; take delta far below one over the number of rows"
        )
    return found


def public_rows(manifest: Manifest, report: ImportReport) -> int | None:
    """Return the number of rows that is public: declared, or read where rows are replaced; None if it is a secret."""
    return manifest.public_rows or (report.rows_read if manifest.adjacency is Adjacency.REPLACE_ONE else None)


def import_table(
    state: Path | str,
    manifest: Manifest | Path | str,
    table: ArrowStream | Source,
    budget: Budget | None,
    *,
    actor: str,
    reason: str = "",
    same_people_as: str | None = None,
    other_people: bool = False,
    accept_bad_rows: float | None = None,
    accept_danger: bool = False,
    dry_run: bool = False,
) -> ImportReport:
    """Import a table and register it, for good: what `bursar-admin import` does, from Python.

    Args:
        state: state directory, on this machine and of this user.
        manifest: public schema, or its file.
        table: pandas or polars DataFrame, pyarrow Table, or one of this package's sources.
        budget: total of these people's account; None for a table that joins one.
        actor: who does it, such as "local:ada".
        reason: reason for the entry.
        same_people_as: dataset of the same people, whose account the table joins.
        other_people: True if the rows are known, or might be, and are of other people.
        accept_bad_rows: share of bad rows and values that is accepted, from 0 to 1; None: a fifth, and no column
            without any value.
        accept_danger: True to promise a total that protects hardly anybody.
        dry_run: True to check everything and keep nothing.

    Returns:
        The report, which is computed from the rows: it is for the administrator alone.

    Raises:
        TableError: the table does not fit the manifest.
        ValueError: `accept_bad_rows` is out of its range, too much of the table is bad, the total protects hardly
            anybody, or there is no total. Nothing is kept.
        LedgerError, StateError: as in `register`.
    """
    if accept_bad_rows is not None and not 0 <= accept_bad_rows <= 1:
        raise ValueError(f"accept_bad_rows: expected a share from 0 to 1, got {accept_bad_rows}")
    place = State.open(Path(state))
    read = manifest if isinstance(manifest, Manifest) else Manifest.load(Path(manifest))
    source = ArrowSource(table) if isinstance(table, ArrowStream) else table

    def look(report: ImportReport) -> Callable[[], None]:
        problems = report.problems(None if accept_bad_rows is None else Fraction(accept_bad_rows))
        if problems:
            raise ValueError(f"{'; '.join(problems)}. Nothing was kept; accept_bad_rows says how much may be bad")
        if budget is not None and not accept_danger and (found := dangers(budget, public_rows(read, report))):
            raise ValueError(f"{'; '.join(found)}. Nothing was kept; accept_danger=True promises it all the same")
        return lambda: None

    with Ledger.open(place.ledger) as ledger:
        report, _ = register(
            place,
            ledger,
            read,
            source,
            budget,
            actor=actor,
            reason=reason,
            same_people_as=same_people_as,
            other_people=other_people,
            dry_run=dry_run,
            look=look,
        )
    return report


def check_schema(registered: Manifest, new: Manifest) -> None:
    """Raise ValueError unless both manifests promise and mean the same: only descriptions and `public_rows` may differ.

    Adjacency and privacy unit are part of the guarantee. Analysts know the dataset by its columns, their models start
    from them, and interrupted fits were planned with them.
    """
    differ = [name for name in ("adjacency", "unit", "columns") if _meaning(registered)[name] != _meaning(new)[name]]
    if differ:
        raise ValueError(
            f"{', '.join(differ)} of the manifest differ from those of {new.name!r}; a snapshot may change the rows, "
            "descriptions and public_rows only. For another schema, import under another name with: "
            f"--same-people-as {new.name}"
        )


def remove_rows(state: State, ledger: Ledger, name: str, *, actor: str, reason: str) -> Entry | None:
    """Remove the rows of a retired dataset from the disk, and record it in the ledger.

    No new debit can request them.

    Returns:
        The entry; None if it was written before.

    Raises:
        UnknownDatasetError: there is no such dataset.
        StateError: the dataset is not retired, or an import is under way.
    """
    dataset = ledger.dataset(name)
    if not dataset.retired:
        raise StateError(f"the dataset {name!r} is not retired; its rows are needed")
    with state.importing():
        # The rows first, then the entry: the ledger never says that something is gone which is there.
        if (folder := rows_folder(state, dataset)).exists():
            remove_snapshot(folder)
        # Snapshots that newer ones replaced hold rows of the same people.
        _remove_unnamed(state, ledger)
        sync(state.datasets)
        if "rows" in dataset.destroyed:
            return None
        return ledger.record_destruction(name, "rows", actor=actor, reason=reason)


def destroy_key(state: State, ledger: Ledger, name: str, *, actor: str, reason: str) -> tuple[Entry, ...]:
    """Destroy the secrets by which a dataset's snapshots are recognised, and record it in the ledger.

    Its rows are not recognised if they are imported again: see `register`. Releases and the ledger stay.

    Returns:
        The entries; none if all of them were written before.

    Raises:
        UnknownDatasetError: there is no such dataset.
        StateError: the dataset is not retired, its rows are on the disk, or an import is under way.
    """
    ring = Keyring(state.keys)
    with state.importing():
        dataset = ledger.dataset(name)
        if not dataset.retired or rows_folder(state, dataset).exists():
            raise StateError(f"the dataset {name!r} is not retired, or its rows are left; its key is needed")
        # Before the entry, as in `remove_rows`; of every snapshot, because each was tagged under a key of its own.
        for snapshot in snapshots_of(ledger, name):
            ring.destroy(snapshot)
        return tuple(
            ledger.record_destruction(name, what, actor=actor, reason=reason)
            for what in ("rows", "key")
            if what not in dataset.destroyed
        )


def partition(state: State, ledger: Ledger, name: str, storage: Path) -> Partitions | None:
    """Write a dataset's rows to a shared storage in partitions. Return None if they are complete already.

    Reads all existing files. Fits that are reading partitions which are written again fail.

    Raises:
        UnknownDatasetError, DatasetRetiredError: the dataset does not exist, or is retired.
        SnapshotError: the rows are missing or not as they were registered, or the storage is missing.
        KeysError: the key of the rows' tag is missing.
        StateError: an import is under way.
    """
    with state.importing():
        dataset = ledger.dataset(name)
        if dataset.retired:
            raise DatasetRetiredError(f"the dataset {name!r} is retired; nothing reads its rows any more")
        registered = Registered.of(dataset.manifest)
        stored = StoredRows(state.datasets, Keyring(state.keys))
        stored.compare(registered.snapshot, registered.manifest, registered.rows_tag)
        snapshot = Snapshot.open(rows_folder(state, dataset))
        found = Partitions.of(snapshot.directory)
        if found is not None and found.is_of(snapshot, storage) and not found.damaged():
            return None
        return Partitions.write(snapshot, storage)


def remove_replaced(state: State, ledger: Ledger) -> None:
    """Remove the snapshots that no dataset uses any more. Raises StateError if an import is under way."""
    with state.importing():
        _remove_unnamed(state, ledger)


def remove_unfinished(state: State, ledger: Ledger) -> None:
    """Remove rows and keys of imports that were killed, also while they asked: no entry ever named them.

    Nothing is removed if an import is under way, or if the folders are read-only or their partitions out of reach.
    """
    with contextlib.suppress(StateError, OSError, TableError), state.importing():
        named = {Registered.of(entry.details["manifest"]).snapshot for entry in ledger.contents()}
        for found in state.datasets.iterdir():
            if found.name not in named and _OURS.fullmatch(found.name):
                remove_snapshot(found)
                if not found.name.startswith("."):  # unfinished ones have no key yet
                    Keyring(state.keys).destroy(found.name)


def rows_folder(state: State, dataset: DatasetState) -> Path:
    """Return the folder of a dataset's rows, which may have been removed."""
    return state.datasets / Registered.of(dataset.manifest).snapshot


def snapshots_of(ledger: Ledger, name: str) -> tuple[str, ...]:
    """Return the ids of all snapshots that a dataset ever had, in order; they name folders and keys."""
    return tuple(
        Registered.of(entry.details["manifest"]).snapshot for entry in ledger.contents() if entry.dataset == name
    )


def _imported(
    state: State,
    ledger: Ledger,
    manifest: Manifest,
    source: Source,
    enter: Callable[[str, Mapping[str, object]], Entry],
    joins: str | None,
    other_people: bool,
    storage: Path | None,
    dry_run: bool,
    look: Look,
) -> tuple[ImportReport, Entry]:
    # A secret of its own for each snapshot: under a common one, equal tags would tell auditors that two tables are
    # equal.
    ring, keys = Keyring(state.keys), Keys.draw()
    if not dry_run:
        _remove_unnamed(state, ledger)
    report = store_table(manifest, source, state.path, CapKeys.draw())
    kept = False
    try:
        confirm = look(report)
        if not other_people:
            _check_people(ring, ledger, manifest, report.fingerprint, joins)
        confirm()
        snapshot = Snapshot.open(report.directory)
        if not dry_run:
            if storage is not None:
                Partitions.write(snapshot, storage)
            # Before the entry: a table that is named without its key could never be compared with its rows again.
            ring.save(report.dataset_id, keys)
        fields = Registered.imported(snapshot, rows_tag(keys, snapshot)).fields
        entry = enter(content_tag(keys, report.fingerprint), fields)
        kept = not dry_run
    finally:
        # An interruption may come just after the entry was written; then rows and key must stay.
        if not kept and not _is_named(ledger, report.dataset_id):
            remove_snapshot(report.directory)
            ring.destroy(report.dataset_id)
    return report, entry


def _check_people(ring: Keyring, ledger: Ledger, manifest: Manifest, fingerprint: bytes, joins: str | None) -> None:
    """Check that rows are not known as those of another account than the one that they join.

    Every snapshot that the ledger names is compared under its own secret, unless it has another number of columns: such
    tables are never equal.

    They join the account `joins`, or open one if it is None.

    Raises:
        AccountConflictError: the rows are known as those of another account.
        ValueError: the rows open an account, and a destroyed secret might have recognised them.
    """
    gone = {}
    for entry in ledger.contents():
        registered = Registered.of(entry.details["manifest"])
        # Such tables are never equal, so a key of theirs that is gone does not stop this import.
        if len(registered.manifest.columns) != len(manifest.columns):
            continue
        if not ring.has(registered.snapshot):
            gone[entry.dataset] = True
        elif hmac.compare_digest(
            content_tag(ring.load(registered.snapshot), fingerprint), str(entry.details["content_tag"])
        ):
            account = ledger.dataset(entry.dataset).account
            if account == joins:
                continue
            merged = f" They are to join the account {joins!r}, and two accounts are never merged." if joins else ""
            same = "" if joins else f"of the same people, give --same-people-as {entry.dataset}; if they are rows "
            raise AccountConflictError(
                f"these rows are known: {entry.dataset!r}, of the account {account!r}, has or had the same.{merged} If "
                f"they are rows {same}of other people, give --other-people"
            )
    if joins is None and gone:
        raise ValueError(
            f"the keys of {', '.join(gone)} are destroyed or missing in {ring.tables}, so these rows cannot be "
            "compared with theirs. If they are rows of the same people, give --same-people-as with the name; if they "
            "are rows of other people, give --other-people"
        )


def _remove_unnamed(state: State, ledger: Ledger) -> None:
    named = _named(ledger)
    for found in state.datasets.iterdir():
        if found.name not in named and _OURS.fullmatch(found.name):
            remove_snapshot(found)


def _is_named(ledger: Ledger, snapshot: str) -> bool:
    """Return whether an entry names these rows; True if that cannot be read now, so that the next import decides."""
    try:
        return snapshot in _named(ledger)
    except LedgerError:
        return True


def _named(ledger: Ledger) -> set[str]:
    return {Registered.of(dataset.manifest).snapshot for dataset in ledger.datasets()}


def _meaning(manifest: Manifest) -> dict[str, object]:
    columns = [column.model_copy(update={"description": ""}) for column in manifest.columns]
    return {"adjacency": manifest.adjacency, "unit": manifest.unit, "columns": columns}
