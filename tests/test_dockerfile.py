"""The server's image, as far as its recipe can be judged without building it."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from bursar_server.__main__ import main
from deploy.lock import FILES
from tests.dockerfile import ROOT, instructions, stages


def test_the_image_has_two_slim_stages() -> None:
    """Tools that build the wheel stay behind; an environment moves only between stages with the same Python."""
    build, final = stages()
    assert build["FROM"] == ["${BASE} AS build"]
    assert final["FROM"] == ["${BASE}"]
    assert final["COPY"] == ["--from=build /opt/bursar /opt/bursar"]


@pytest.mark.parametrize(
    ("base", "good"),
    [
        ("python:3.11-slim@sha256:" + "0123456789abcdef" * 4, True),
        ("registry.example.org/python@sha256:" + "a" * 64, True),
        ("", False),
        ("python:3.11-slim", False),
        ("python:3.11-slim@sha256:" + "a" * 63, False),
        ("python:3.11-slim@sha256:" + "A" * 64, False),
        ("python:3.11-slim@sha256:" + "a" * 64 + " x", False),
        ("python:3.11-slim@md5:" + "a" * 64, False),
        ("@sha256:" + "a" * 64, False),
    ],
)
def test_a_base_without_a_digest_is_refused(base: str, good: bool) -> None:
    """The build's first step, as a shell runs it; both stages begin from the base, which has no default."""
    build = stages()[0]
    assert build["ARG"] == ["BASE"]
    words = [word for word, _ in instructions()]
    assert words[:4] == ["ARG", "FROM", "ARG", "RUN"]
    done = subprocess.run(
        ["/bin/sh", "-c", build["RUN"][0]], env={"BASE": base}, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) is good
    assert good or "docs/operations.md" in done.stderr


def test_only_files_with_a_known_hash_are_installed() -> None:
    """Everything from an index by a lock, and nothing from anywhere else; no place to take packages from is named."""
    (_, run) = stages()[0]["RUN"]
    installs = [part.strip() for part in run.split("&&") if " pip " in part]
    assert len(installs) == 4
    for install in installs:
        assert ("--require-hashes" in install) != ("--no-index" in install)
        assert ("--require-hashes" in install) <= ("--only-binary=:all:" in install)
    locks = set(re.findall(r"-r (\S+)", run))
    assert locks == set(FILES)
    assert locks <= {Path(source).name for source in stages()[0]["COPY"][0].split()[:-1]}
    assert not re.search(r"index-url|find-links|://", run)


def test_the_server_is_not_root() -> None:
    """The last user is neither root nor unknown, and comes before the server is started."""
    (user,) = stages()[1]["USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    words = [word for word, _ in instructions()]
    assert words.index("USER") < words.index("ENTRYPOINT")


def test_the_state_is_a_volume() -> None:
    """The directory that the server serves outlives the container, and was made before it became a volume."""
    final = stages()[1]
    (volume,) = json.loads(final["VOLUME"][0])
    assert f"BURSAR_STATE={volume}" in final["ENV"][0]
    assert volume in final["RUN"][0]
    words = [word for word, _ in instructions()]
    assert words.index("VOLUME") > len(words) - words[::-1].index("RUN") - 1


@pytest.mark.parametrize("command", ["health", "run"])
def test_the_commands_are_those_of_the_server(command: str) -> None:
    """Health check and start use commands and options that exist, without a shell, on the port that is exposed."""
    final = stages()[1]
    entry = json.loads(final["ENTRYPOINT"][0])
    health = json.loads(final["HEALTHCHECK"][0].partition("CMD ")[2])
    words = {"health": health, "run": entry + json.loads(final["CMD"][0])}[command]
    assert words[:2] == ["bursar-server", command]
    options = {option for parameter in main.commands[command].params for option in parameter.opts}
    assert set(words[2::2]) <= options
    assert f":{final['EXPOSE'][0]}" in words[words.index("--address") + 1]


def test_only_what_is_copied_reaches_the_builder() -> None:
    """The context leaves everything out but the build stage's sources: no state, no keys, no history."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    sources = {name for copy in stages()[0]["COPY"] for name in copy.split()[:-1]}
    assert rules[0] == "*"
    assert {rule.removeprefix("!") for rule in rules if rule.startswith("!")} == sources


def test_the_image_is_built_from_every_package() -> None:
    """Each folder of packages is let into the build, and copied there."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {package.split("/")[0] for package in packages["packages"]}
    copied = re.findall(r"^COPY (\w+) \1$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    let_in = re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    assert folders == set(copied) == set(let_in)
