"""Protected tables: the manifest that says what is public, the import, and the immutable snapshot that fits read."""

from bursar_server.tables._errors import KeysError, ManifestError, SnapshotError, TableError, TableImportError
from bursar_server.tables._importing import DATASETS, ImportReport, import_table
from bursar_server.tables._keys import SHARED, CapKeys, Keyring, Keys
from bursar_server.tables._manifest import Categorical, Column, Manifest, Numeric, Unit
from bursar_server.tables._partitions import PartitionedRows, Partitions, remove_partitions, remove_snapshot
from bursar_server.tables._snapshot import Snapshot, sync
from bursar_server.tables._sources import CsvSource, ParquetSource, Source, SqlSource
from bursar_server.tables._tag import content_tag

__all__ = [
    "DATASETS",
    "SHARED",
    "CapKeys",
    "Categorical",
    "Column",
    "CsvSource",
    "ImportReport",
    "Keyring",
    "Keys",
    "KeysError",
    "Manifest",
    "ManifestError",
    "Numeric",
    "ParquetSource",
    "PartitionedRows",
    "Partitions",
    "Snapshot",
    "SnapshotError",
    "Source",
    "SqlSource",
    "TableError",
    "TableImportError",
    "Unit",
    "content_tag",
    "import_table",
    "remove_partitions",
    "remove_snapshot",
    "sync",
]
