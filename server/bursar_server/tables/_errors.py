"""Errors between an administrator's file and a registered snapshot; they are shown to the administrator."""

from __future__ import annotations

import errno

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors for want of descriptors. A lack of memory is not among them: it depends on the number of rows."""


class TableError(Exception):
    """Base class of the errors below."""


class ManifestError(TableError):
    """Error: the manifest does not describe a table.

    Attributes:
        problems: one line each, starting with the TOML field.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class TableImportError(TableError):
    """Error: the source cannot be read as the manifest says. The message names columns and counts, never values.

    Attributes:
        detail: message of the library that read the source, which may quote a cell; "" if there is none.
    """

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class NoTextError(TableImportError):
    """Error: a file that was given as CSV is something else, whatever its delimiter and encoding may be."""


class SnapshotError(TableError):
    """Error: a snapshot's folder is not as the import left it."""


class ShortageError(TableError):
    """Error: this process lacks descriptors to open a snapshot's files, which may be as they should be."""


class KeysError(TableError):
    """Error: the server's data keys are missing, damaged, or readable by others."""


def is_shortage(error: BaseException | None) -> bool:
    """Return whether an error was raised for want of a descriptor, or while one such was handled."""
    if error is None:
        return False
    return (isinstance(error, OSError) and error.errno in _SHORTAGES) or is_shortage(error.__context__)
