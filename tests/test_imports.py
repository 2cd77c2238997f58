"""Imports of tests: shared parts are in modules of their own, and no file imports another file of tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+\(?([\w, ]*)|import\s+([\w.]+))", re.MULTILINE)


def imported_tests(source: str) -> list[str]:
    """Return the test files that a source imports, in programs that it holds as text, too."""
    lines = IMPORT.findall(source)
    found = [f"{module}.{name.strip()}" for module, names, whole in lines for name in (names or whole).split(",")]
    return [name for name in found if "tests." in name and re.search(r"\.test_\w+", name)]


def test_no_file_imports_a_file_of_tests() -> None:
    """Helpers would be found in one place, and a failing import would break one file."""
    found = {
        path.relative_to(ROOT).as_posix(): names
        for folder in ("tests", "bench", "demo", "docs")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (names := imported_tests(path.read_text(encoding="utf-8"))) and path != Path(__file__)
    }
    assert found == {}


@pytest.mark.parametrize(
    "planted",
    [
        "from tests.server.vault.test_session import Echo",
        "from tests.server.vault import doubles, test_session",
        "import tests.test_pages",
        'PROGRAM = """\nfrom tests.attacks.test_twins import heard\n"""',
    ],
)
def test_such_an_import_is_found(planted: str) -> None:
    """Each way to write it."""
    assert len(imported_tests(planted)) == 1


def test_other_imports_are_not_found() -> None:
    """Modules that only sound alike."""
    assert imported_tests("from bursar.testing import fake\nfrom tests.pages import ROOT\nimport testing") == []
