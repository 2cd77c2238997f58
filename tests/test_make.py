"""The Makefile explains itself, and the demo installs no tool of developers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _make(*words: str) -> str:
    # `make test` tells the programs that it runs how it was called; make would print that it is one of them.
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout


def test_help_explains_every_command() -> None:
    """Each phony target has its line, and `make` alone is `make help`."""
    phony = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0].split()
    printed = _make("help")
    assert [line.split()[0] for line in printed.splitlines()] == phony
    assert all(len(line.split()) > 1 for line in printed.splitlines())
    assert _make() == printed


def test_the_demo_installs_only_what_it_needs() -> None:
    """A clone without an environment gets the extra `demo`; the tests install the rest."""
    demo, tests = (_make("--dry-run", "VENV=/nowhere", target) for target in ("demo", "test"))
    assert "-e '.[demo]'" in demo
    assert ".[dev" not in demo
    assert "-e '.[dev,bench]'" in tests
