"""The page about testing: its file of tests passes as a user would run it, and its server is as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import bursar

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


def test_the_pages_tests_pass(tmp_path: Path) -> None:
    """In a folder and a process of their own, with pytest as it comes."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_mine.py").write_text(block, encoding="utf-8")
    command = [sys.executable, "-Im", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(re.findall(r'^def test_', block, re.MULTILINE))} passed" in done.stdout


def test_the_toy_is_what_the_page_says(toy: bursar.Dataset) -> None:
    """Two numeric columns, one of them in bins, four categorical ones, 1,000 rows."""
    text = PAGE.read_text(encoding="utf-8")
    numeric = [column for column in toy.columns if isinstance(column, bursar.NumericColumn)]
    assert [column.name for column in numeric] == re.findall(r"`(\w+)`", text.partition("two numeric\ncolumns")[2])[:2]
    assert [bool(column.bin_edges) for column in numeric] == [False, True]
    assert (len(toy.columns), toy.public_rows) == (6, 1000)
