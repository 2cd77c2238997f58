"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: str | Path, text: str, *, mode: int = 0o666) -> None:
    """Put a text in the place of a file; who reads it meanwhile sees the old file or the new one, never a half.

    A link stays one, and its file is replaced. What is no file, such as a device, is written to as it is.

    Args:
        path: of the file, in a folder that exists.
        text: written as UTF-8.
        mode: permissions of the new file, before the user's umask.

    Raises:
        OSError: it cannot be written; an older file is still there.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
