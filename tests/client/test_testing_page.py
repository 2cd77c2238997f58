"""The page about testing: its file of tests passes as a user would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"


@pytest.mark.slow
def test_the_pages_tests_pass(tmp_path: Path) -> None:
    """They run in a folder and a process of their own, with pytest as it comes."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "test_mine.py").write_text(block, encoding="utf-8")
    command = [sys.executable, "-Im", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{len(re.findall(r'^def test_', block, re.MULTILINE))} passed" in done.stdout
