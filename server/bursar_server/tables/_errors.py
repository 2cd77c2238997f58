"""What can go wrong between an administrator's file and a snapshot, on his machine, before it is registered."""


class TableError(Exception):
    """Base of the errors below."""


class ManifestError(TableError):
    """The manifest does not describe a table.

    Attributes:
        problems: one line each, starting with the TOML field.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class TableImportError(TableError):
    """The source cannot be read as the manifest says. Names columns and counts, never values."""


class SnapshotError(TableError):
    """A snapshot's folder is not as the import left it."""


class KeysError(TableError):
    """The server's data keys are missing, damaged, or readable by others."""
