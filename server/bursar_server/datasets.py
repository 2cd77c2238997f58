"""Registered datasets: their public facts from the ledger, and, for workers under a debit, their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar_ledger import DatasetRetiredError, DatasetState, Ledger, Limits
from bursar_proto.v1 import catalog_pb2, types_pb2
from bursar_server import convert
from bursar_server.dummy import PublicFacts
from bursar_server.fits import UNIT_ROWS, InvalidRequestError, PublicTable
from bursar_server.fitting import RowSource
from bursar_server.tables import SHARED, Manifest, Partitions, Snapshot, SnapshotError
from bursar_server.vault import Rows


@dataclass(frozen=True)
class Registered:
    """What a registration's entry says about a dataset beside its budget.

    Attributes:
        manifest: the public schema, with the number of slots under REPLACE_ONE.
        snapshot: name of the snapshot's folder; random, says nothing about the rows.
        unit_rows: whether the snapshot can give `UNIT_ROWS`, which depends on the version that imported it only.
        key: name of the secret under which the content is tagged; `SHARED` for what older versions imported.
    """

    manifest: Manifest
    snapshot: str
    unit_rows: bool
    key: str = SHARED

    @classmethod
    def imported(cls, snapshot: Snapshot, key: str) -> Registered:
        """What to register after an import, with the name of the table's secret."""
        return cls(snapshot.manifest, snapshot.directory.name, snapshot.has_unit_rows, key)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Registered:
        """The inverse of `fields`."""
        manifest = Manifest.from_public(fields["schema"])
        # Entries of older versions do not say; K is known without being stored where every unit has one row.
        unit_rows = bool(fields.get("unit_rows", manifest.unit.max_rows == 1))
        return cls(manifest, str(fields["snapshot"]), unit_rows, str(fields.get("key", SHARED)))

    @property
    def fields(self) -> dict[str, Any]:
        """As the ledger's entry has it."""
        key = {"key": self.key} if self.key != SHARED else {}
        return {"schema": self.manifest.public(), "snapshot": self.snapshot, "unit_rows": self.unit_rows, **key}


@dataclass(frozen=True)
class SnapshotSource:
    """Some columns of a snapshot (`bursar_server.fitting.RowSource`).

    Attributes:
        directory: of the snapshot.
        columns: their names, in order.
    """

    directory: Path
    columns: tuple[str, ...]

    def open(self) -> Rows:
        """Map the snapshot into memory; for fits that run under a debit, and for nobody else. Raises SnapshotError."""
        return Snapshot.open(self.directory).rows(self.columns)


@dataclass(frozen=True)
class PartitionSource:
    """The same columns on a cluster's storage (`bursar_server.fitting.RowSource`).

    Attributes:
        directory: of the snapshot, which has the record of the partitions.
        columns: their names, in order.
    """

    directory: Path
    columns: tuple[str, ...]

    def open(self) -> Rows:
        """What a cluster's workers open; no row is read here. Raises SnapshotError."""
        return _partitions(self.directory).rows(Snapshot.open(self.directory), self.columns)


def _partitions(directory: Path) -> Partitions:
    found = Partitions.of(directory)
    if found is None:
        raise SnapshotError(f"the rows in {directory} are not on the cluster's storage: bursar-admin partition")
    return found


class Datasets:
    """Reads the ledger afresh at every call: an administrator may register a dataset while the server runs.

    Args:
        ledger: knows what is registered.
        directory: of the snapshots.
        partitioned: whether fits read the partitions on a cluster's storage.
    """

    def __init__(self, ledger: Ledger, directory: Path, *, partitioned: bool = False) -> None:
        self._ledger = ledger
        self._directory = directory
        self._partitioned = partitioned

    def state(self, name: str) -> DatasetState:
        """A dataset by name. Raises UnknownDatasetError."""
        return self._ledger.dataset(name)

    def table(self, state: DatasetState) -> PublicTable:
        """All that a plan may know."""
        manifest = _registered(state).manifest
        return manifest.table(manifest.public_rows or 0)

    def facts(self, name: str) -> PublicFacts:
        """All that a dummy run may know. Raises UnknownDatasetError."""
        state = self.state(name)
        return PublicFacts(self.table(state), state.order)

    def check(self, state: DatasetState) -> None:
        """Whether a new fit may be paid for. Opens nothing.

        Raises:
            DatasetRetiredError: nothing new is fitted to it.
            SnapshotError: the snapshot, or its partitions, are not in their place; nobody pays to learn that.
        """
        if state.retired:
            raise DatasetRetiredError(f"{state.name} is retired")
        registered = _registered(state)
        if not (self._directory / registered.snapshot).is_dir():
            raise SnapshotError(
                f"the snapshot {registered.snapshot} of {state.name} is missing; restore it from a backup"
            )
        if self._partitioned and not _partitions(self._directory / registered.snapshot).are_there():
            raise SnapshotError(
                f"the partitions of {state.name} are missing: mount the storage, or bursar-admin partition {state.name}"
            )

    def check_columns(self, state: DatasetState, columns: tuple[str, ...]) -> None:
        """Whether a fit that needs these columns can be run. Opens nothing.

        Raises InvalidRequestError if it needs K, and the rows were imported by a version that stored none.
        """
        if UNIT_ROWS in columns and not _registered(state).unit_rows:
            text = (
                "was imported before imports counted the rows of each privacy unit, which this request needs; its "
                "owner can import the same rows again with: bursar-admin snapshot"
            )
            raise InvalidRequestError(("dataset", text))

    def rows(self, state: DatasetState, columns: tuple[str, ...]) -> RowSource:
        """Where the rows are, for a worker that runs under a debit; nobody else calls this. Opens nothing."""
        source = PartitionSource if self._partitioned else SnapshotSource
        return source(self._directory / _registered(state).snapshot, columns)

    def describe(self, state: DatasetState, limits: Limits) -> catalog_pb2.Dataset:
        """A dataset as an analyst with these limits sees it."""
        manifest, budget = _registered(state).manifest, state.budget
        return catalog_pb2.Dataset(
            name=state.name,
            description=manifest.description,
            columns=[_column(column) for column in manifest.columns],
            adjacency=convert.ADJACENCIES[state.adjacency],
            privacy_unit=catalog_pb2.PrivacyUnit(
                unit_column=manifest.unit.column or "", max_rows_per_unit=manifest.unit.max_rows
            ),
            public_rows=manifest.public_rows or 0,
            total=types_pb2.EpsilonDelta(epsilon=budget.epsilon, delta=budget.delta),
            remaining=convert.remaining(limits.dataset),
            available=convert.remaining(limits.available),
            allowance_remaining=None if limits.allowance is None else convert.remaining(limits.allowance),
            call_limit=None if limits.call is None else convert.remaining(limits.call),
            retired=state.retired,
        )


def _registered(state: DatasetState) -> Registered:
    return Registered.of(state.manifest)


def _column(column: Any) -> catalog_pb2.Column:
    message = catalog_pb2.Column(name=column.name, description=column.description)
    if column.kind == "numeric":
        message.numeric.CopyFrom(
            catalog_pb2.NumericColumn(
                lower=column.lower, upper=column.upper, bin_edges=column.edges, nullable=column.nullable
            )
        )
    else:
        message.categorical.CopyFrom(catalog_pb2.CategoricalColumn(categories=column.categories))
    return message
