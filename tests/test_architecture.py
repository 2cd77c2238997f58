"""The page for maintainers and the decision records name files, rooms and packages that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/architecture.md"
RECORDS = tuple(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "adr").glob("[0-9]*.md")))
MOST_LINES = 40
"""Maximum number of lines of a decision record: it is read in a minute."""


def _missing(text: str) -> list[str]:
    """Paths of the repository that a text names and that do not exist."""
    named = re.findall(r"`((?:client|models|server|ledger|proto|tests|docs|bench|demo|deploy)/[^`*<> ]*)`", text)
    return [path for path in named if not (ROOT / path).exists()]


def _layers() -> list[str]:
    """Rooms of the server from top to bottom, as import-linter checks them."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = config["tool"]["importlinter"]["contracts"]
    (rooms,) = (one["layers"] for one in contracts if one.get("containers") == ["bursar_server"])
    return [re.sub(r"\s*[|:]\s*", ", ", line) for line in rooms]


@pytest.mark.parametrize("page", [PAGE, "docs/adr/README.md", *RECORDS])
def test_files_that_a_page_names_exist(page: str) -> None:
    """A file that moved is named by its new path."""
    assert _missing((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_file_that_does_not_exist_is_found() -> None:
    """Any folder of the project is searched."""
    assert _missing("`server/bursar_server/nowhere.py`, `ledger/`, `docs/limits.md`") == [
        "server/bursar_server/nowhere.py"
    ]


def test_a_request_has_ten_steps() -> None:
    """Each names at least one file."""
    text = (ROOT / PAGE).read_text(encoding="utf-8").partition("ten steps")[2].partition("\n## ")[0]
    steps = re.split(r"^(?=\d+\. )", text, flags=re.MULTILINE)[1:]
    assert [step.partition(".")[0] for step in steps] == [str(n) for n in range(1, 11)]
    assert all(re.search(r"`[\w/]+/(\w+\.py)?`", step) for step in steps)


def test_the_rooms_are_those_of_the_contract() -> None:
    """The table has the same order; and each is in the picture."""
    text = (ROOT / PAGE).read_text(encoding="utf-8").partition("## Rooms of the server")[2].partition("\n## ")[0]
    found = [line.split("|")[1].replace("`", "").strip() for line in text.splitlines() if line.startswith("| `")]
    assert found == _layers()
    picture = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    drawn = {name for line in re.findall(r">([\w, :]+)</text>", picture) for name in re.split(r"[,:] ?", line)}
    assert {name for line in found for name in line.split(", ")} <= drawn


@pytest.mark.parametrize("record", RECORDS)
def test_a_decision_is_short_and_has_its_reason(record: str) -> None:
    """Decision, reason, cost and place; and a line in the index."""
    text = (ROOT / record).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    for word in ("**Decision.**", "**Why.**", "**Where.**"):
        assert word in text
    assert f"({Path(record).name})" in (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
