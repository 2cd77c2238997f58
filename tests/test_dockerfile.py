"""The server's image, as far as its recipe can be judged without building it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bursar_server.__main__ import main

ROOT = Path(__file__).parents[1]


def instructions() -> list[tuple[str, str]]:
    """Pairs of instruction and arguments, continued lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def stages() -> list[dict[str, list[str]]]:
    """For each stage its instructions' arguments."""
    found: list[dict[str, list[str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append({})
        found[-1].setdefault(word, []).append(rest)
    return found


def test_the_image_has_two_slim_stages() -> None:
    """What builds the wheel stays behind; an environment moves only between stages with the same Python."""
    build, final = stages()
    assert build["FROM"] == ["python:3.11-slim AS build"]
    assert final["FROM"] == ["python:3.11-slim"]
    assert final["COPY"] == ["--from=build /opt/bursar /opt/bursar"]


def test_versions_are_those_that_were_tested() -> None:
    """The installation takes the constraints file, and names no place to take packages from."""
    (run,) = stages()[0]["RUN"]
    assert "--constraint constraints.txt" in run
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
