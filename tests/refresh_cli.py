"""The reference of the command line, `docs/cli.md` from its mark on: what `--help` prints, for every command.

A test compares the page with the program. After a change of a command, or of the docstring of a fit, which its options
have their words from:

    python tests/refresh_cli.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from bursar._cli._app import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
MARK = "<!-- From here on written by tests/refresh_cli.py -->\n"
_WIDTH = 100


def commands(command: click.Command, path: tuple[str, ...] = ("bursar",)) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups before what is in them."""
    yield path
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))


def reference() -> str:
    """The help of every command, as Markdown."""
    return "\n".join(_section(path) for path in commands(app))


def page(text: str) -> str:
    """The page with the reference as it is now. Raises ValueError if it has no mark."""
    before, found, _ = text.partition(MARK)
    if not found:
        raise ValueError(f"{PAGE.name} has no line {MARK.strip()}")
    return f"{before}{MARK}\n{reference()}"


def _section(path: tuple[str, ...]) -> str:
    result = CliRunner().invoke(app, [*path[1:], "--help"], prog_name="bursar", terminal_width=_WIDTH)
    # The meaning of the exit status is the same everywhere, and the page says it once.
    text = result.stdout.partition("\n  Exit status:")[0].rstrip()
    return f"### {' '.join(path)}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
