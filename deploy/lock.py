"""Writes the lock files of the image: every package that goes into it, at the tested version, with its hashes.

    .venv/bin/python deploy/lock.py

`requirements.lock` has what the server needs, `build.lock` what makes its wheel. Versions are those of
`constraints.txt`; pip resolves them for each platform of the image and says the hash of the file that it would take,
which the index serves and the installation checks again (`pip install --require-hashes`). A package whose file
changed on the way, or that nobody resolved here, is then refused. The lock names no index.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("server", "gateway", "oidc", "metrics", "tracing", "audit")
"""Extras of the image; test_dockerfile.py compares them with what is installed there."""
PYTHON = "3.11"
PLATFORMS = {
    machine: [f"manylinux_2_{minor}_{machine}" for minor in range(36, 16, -1)] + [f"manylinux2014_{machine}"]
    for machine in ("x86_64", "aarch64")
}
FILES = {"requirements.lock": False, "build.lock": True}
"""Name of each lock, and whether it is that of the build."""

Lock = dict[str, tuple[str, set[str]]]
"""Name of a package, its version, the hashes of its files."""


def canonical(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(project: Mapping[str, Any], *, build: bool) -> list[str]:
    """The requirements of the image, or of the build of the wheel, as pyproject.toml has them."""
    if build:
        return list(project["build-system"]["requires"])
    extras = project["project"]["optional-dependencies"]
    return [*project["project"]["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]


def constraints(text: str) -> dict[str, str]:
    """Versions by canonical name."""
    pins = (line.partition("#")[0].strip().partition("==") for line in text.splitlines())
    return {canonical(name): version for name, equal, version in pins if equal}


def read(text: str) -> Lock:
    """A lock file's packages."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    found: Lock = {}
    for line in filter(str.strip, joined.splitlines()):
        name, _, rest = line.partition("==")
        version, *hashes = rest.split()
        found[name] = version, {each.removeprefix("--hash=") for each in hashes}
    return found


def written(lock: Lock) -> str:
    """A lock file of these packages."""
    lines = ["# Written by deploy/lock.py. Every file that pip may take, by its hash.\n"]
    for name, (version, hashes) in sorted(lock.items()):
        lines.append(" \\\n".join([f"{name}=={version}", *(f"    --hash={each}" for each in sorted(hashes))]) + "\n")
    return "".join(lines)


def resolve(requirements: list[str], tags: list[str]) -> Lock:
    """Return what pip would install for a platform. Raises subprocess.CalledProcessError if it finds nothing."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--target", folder, "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", PYTHON, *(word for tag in tags for word in ("--platform", tag))]
        subprocess.run([*command, "--constraint", str(ROOT / "constraints.txt"), *requirements], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        canonical(one["metadata"]["name"]): (
            one["metadata"]["version"],
            {f"sha256:{one['download_info']['archive_info']['hashes']['sha256']}"},
        )
        for one in found
    }


def main() -> None:
    """Writes both locks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name, build in FILES.items():
        lock: Lock = {}
        for tags in PLATFORMS.values():
            for package, (version, hashes) in resolve(wanted(project, build=build), tags).items():
                locked, known = lock.setdefault(package, (version, set()))
                if locked != version:
                    raise ValueError(f"{package} is {locked} on one platform and {version} on another; constrain it")
                known |= hashes
        (ROOT / "deploy" / name).write_text(written(lock), encoding="utf-8")


if __name__ == "__main__":
    main()
