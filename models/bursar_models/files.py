"""Atomic writing of files."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: str | Path, text: str, *, mode: int = 0o666) -> None:
    """Replace a file atomically: a concurrent reader sees the old content or the new content.

    A symbolic link stays, and the file it points to is replaced. A path that is not a regular file, such as a device,
    is written to directly.

    Args:
        path: path of the file, in a folder that exists.
        text: new content, written as UTF-8.
        mode: permissions of the new file, before the user's umask.

    Raises:
        OSError: the file cannot be written; an older file remains.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    # In the same folder, because a rename is atomic only within one file system.
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        error.filename = str(path)  # the caller does not know the temporary one
        raise
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # Without it a power failure after the rename could leave an empty file.
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
