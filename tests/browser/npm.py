"""Packages of a folder's lock file, installed once. Tests that cannot have them are skipped, and fail in CI."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    """Skips the test with its reason, or fails it where everything has to be there: in CI."""
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        pytest.fail(f"CI has to run this: {reason}")
    pytest.skip(reason)


def node() -> str:
    """The program `node`; unavailable without it and npm."""
    found = shutil.which("node")
    if found is None or shutil.which("npm") is None:
        unavailable("needs Node.js (20.11 or newer) with npm")
    return found


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of such a block about this folder until it ends."""
    with (folder / ".npm-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def installed(folder: Path) -> Path:
    """The folder's node_modules as its package-lock.json says, installed if they are not there or are others.

    No package's scripts are run. Two processes that ask at once wait for each other.
    """
    node()
    modules = folder / "node_modules"
    wanted = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    modules.mkdir(exist_ok=True)
    stamp = modules / ".installed-lock"
    with alone(folder):
        if not stamp.is_file() or stamp.read_text() != wanted:
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                unavailable(f"npm ci in {folder.name} failed: {done.stderr.strip()[-500:]}")
            stamp.write_text(wanted)
    return modules
