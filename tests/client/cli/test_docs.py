"""The page of the command line says what the program says."""

from __future__ import annotations

import pytest

from bursar._cli._app import app
from tests.refresh_cli import MARK, PAGE, commands, page


def test_the_reference_is_current() -> None:
    """Every command with its help, word for word. If not: .venv/bin/python tests/refresh_cli.py."""
    assert PAGE.read_text(encoding="utf-8") == page(PAGE.read_text(encoding="utf-8"))


def test_every_command_is_documented() -> None:
    """Each has a heading of its own."""
    text = PAGE.read_text(encoding="utf-8")
    names = [" ".join(path) for path in commands(app)]
    assert len(names) > 20
    assert [name for name in names if f"\n### {name}\n" not in text] == []


def test_a_page_without_its_mark_is_not_overwritten() -> None:
    """What people wrote stays."""
    assert MARK.startswith("<!--")
    with pytest.raises(ValueError, match="has no line"):
        page("# words\n")
