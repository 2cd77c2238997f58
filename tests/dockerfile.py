"""Reads the stages of the Dockerfile."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def instructions() -> list[tuple[str, str]]:
    """Pairs of instruction and arguments, continued lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def stages() -> list[dict[str, list[str]]]:
    """Return each stage's instructions' arguments."""
    found: list[dict[str, list[str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append({})
        if not found:  # before the first stage
            assert (word, rest) == ("ARG", "BASE")
            continue
        found[-1].setdefault(word, []).append(rest)
    return found
