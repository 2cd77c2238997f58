"""Protected tables: the public manifest, the import, and the immutable snapshot that fits read.

Must not import jobs, ops, wire, admin or process. Rows are opened for fits only, under a debit.
"""

from bursar_server.tables._buckets import BUCKETS, Place, Stored
from bursar_server.tables._cap import CapKeys
from bursar_server.tables._databases import POSTGRESQL, PostgresSource, SqliteSource, is_sqlite
from bursar_server.tables._errors import (
    KeysError,
    ManifestError,
    NoTextError,
    ShortageError,
    SnapshotError,
    TableError,
    TableImportError,
)
from bursar_server.tables._importing import ACCEPTED, DATASETS, ColumnReport, ImportReport, store_table
from bursar_server.tables._keys import Fingerprint, Keyring, Keys, content_tag, rows_tag
from bursar_server.tables._manifest import Categorical, Column, Csv, Dates, Manifest, Numeric, Unit
from bursar_server.tables._partitions import PartitionedRows, Partitions, remove_partitions, remove_snapshot
from bursar_server.tables._skeleton import TEMPLATES, Names, Template, date_fields, skeleton, template_of, written
from bursar_server.tables._snapshot import Identity, Snapshot, sync
from bursar_server.tables._sources import (
    ArrowSource,
    ArrowStream,
    CsvSource,
    NamedSource,
    ParquetSource,
    Source,
    SqlSource,
)
from bursar_server.tables.registration import import_table

__all__ = [
    "ACCEPTED",
    "BUCKETS",
    "DATASETS",
    "POSTGRESQL",
    "TEMPLATES",
    "ArrowSource",
    "ArrowStream",
    "CapKeys",
    "Categorical",
    "Column",
    "ColumnReport",
    "Csv",
    "CsvSource",
    "Dates",
    "Fingerprint",
    "Identity",
    "ImportReport",
    "Keyring",
    "Keys",
    "KeysError",
    "Manifest",
    "ManifestError",
    "NamedSource",
    "Names",
    "NoTextError",
    "Numeric",
    "ParquetSource",
    "PartitionedRows",
    "Partitions",
    "Place",
    "PostgresSource",
    "ShortageError",
    "Snapshot",
    "SnapshotError",
    "Source",
    "SqlSource",
    "SqliteSource",
    "Stored",
    "TableError",
    "TableImportError",
    "Template",
    "Unit",
    "content_tag",
    "date_fields",
    "import_table",
    "is_sqlite",
    "remove_partitions",
    "remove_snapshot",
    "rows_tag",
    "skeleton",
    "store_table",
    "sync",
    "template_of",
    "written",
]
