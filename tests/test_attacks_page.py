"""The page of attacks and the repository agree: every test that is named exists, no attack and no file is left out."""

from __future__ import annotations

import ast
import functools
import json
import re
from pathlib import Path

from tests.fuzz.calls import ALL
from tests.fuzz.files import TARGETS
from tests.fuzz.planners import TARGETS as PLANNERS
from tests.pages import ROOT

PAGE = ROOT / "docs" / "attacks.md"
IDS = [
    *(f"C{i}" for i in range(1, 25)),
    *(f"D{i}" for i in (1, 2, 4, 5, *range(7, 17))),
    "D16a",
    *(f"D{i}" for i in (17, 18, 19, 21, 22)),
]
"""Leaks beside an answer (C), and defects of enforcement (D); D3, D6 and D20 are those of C1, C19 and C4."""

_NAMED = re.compile(r"\[`(test_\w+\.py)(?:::(\w+))?`\]\(\.\./([^)]+)\)")


def named(page: str) -> list[tuple[str, str]]:
    """Files of tests, by their path from the root, and the test in each; "" for a whole file."""
    found = _NAMED.findall(page)
    assert all(Path(path).name == file for file, _, path in found)
    return [(path, name) for _, name, path in found]


def missing(page: str) -> list[str]:
    """Tests that a page names, and that are not there."""
    lost = []
    for path, name in named(page):
        file = ROOT / path
        tests = _tests(file) if file.is_file() else frozenset()
        if not tests or (name and name not in tests):
            lost.append(f"{path}::{name}")
    return lost


@functools.cache
def _tests(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_")


def test_every_test_that_is_named_exists() -> None:
    """Files and functions are looked up; one that does not exist is noticed."""
    page = PAGE.read_text("utf-8")
    assert len(named(page)) > 100
    assert missing(page) == []
    assert missing("[`test_races.py::test_nothing`](../tests/attacks/test_races.py)")
    assert missing("[`test_none.py`](../tests/attacks/test_none.py)")


def test_every_file_of_attacks_is_named() -> None:
    """A new one has to say on the page what it plays."""
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "attacks").glob("test_*.py")}
    assert files <= {path for path, _ in named(PAGE.read_text("utf-8"))}


def test_every_attack_is_there_and_is_played() -> None:
    """Each has its label in one section, which says what was seen, done, and stopped, and names a test."""
    sections = re.split(r"^### ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    labels = [label for section in sections for label in section.partition(".")[0].split(", ")]
    assert len(labels) == len(set(labels))
    assert set(IDS) <= set(labels)
    for section in sections:
        assert all(part in section for part in ("**Seen in**", "**Here**", "**Tests**")), section
        assert named(section), section


def test_the_campaign_on_the_page_is_the_one_that_was_run() -> None:
    """Its numbers are those of the file that it links to; and it was long enough, and found nothing."""
    run = json.loads((ROOT / "bench" / "fuzz.json").read_text("utf-8"))
    counts = ("calls", "fits_asked", "fits_debited", "compared_with_other_rows", "files_and_lines")
    row = [str(run["minutes"]), *(f"{run[name]:,}" for name in counts), str(len(run["findings"]))]
    assert f"| {' | '.join(row)} |" in PAGE.read_text("utf-8")
    assert run["minutes"] >= 30
    assert not run["findings"]
    assert {method.path for method in ALL} <= run["statuses"].keys()
    assert run["files"].keys() == TARGETS.keys()


def test_a_million_planned_calls_found_nothing() -> None:
    """The page's numbers of the planners' campaign are those of its file; enough of its requests were planned."""
    run = json.loads((ROOT / "bench" / "fuzz.json").read_text("utf-8"))["planners"]
    row = [f"{run['calls']:,}", f"{run['planned']:,}", str(run["seed"]), str(len(run["findings"]))]
    assert f"| {' | '.join(row)} |" in PAGE.read_text("utf-8")
    assert run["calls"] >= 1_000_000
    assert run["planned"] >= 100_000
    assert not run["findings"]
    assert run["targets"].keys() == PLANNERS.keys()
