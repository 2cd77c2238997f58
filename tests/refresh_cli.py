"""The references of the command lines, `docs/cli*.md` from their marks on: what `--help` prints, for every command.

A test compares the pages with the programs. After a change of a command, or of the docstring of a fit, which its
options have their words from:

    python tests/refresh_cli.py
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import click
from click.testing import CliRunner

from bursar._cli._app import app
from bursar_ledger.audit.cli import main as audit
from bursar_server.__main__ import main as server
from bursar_server.admin.cli import main as admin

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES: Mapping[str, Mapping[str, click.Group]] = MappingProxyType(
    {
        "cli.md": {"bursar": app},
        "cli-admin.md": {"bursar-admin": admin, "bursar-server": server},
        "cli-audit.md": {"bursar-audit": audit},
    }
)
"""Programs by their names, for each page."""

MARK = "<!-- From here on written by tests/refresh_cli.py -->\n"
_WIDTH = 100


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups before what is in them, in the order of their group's help."""
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from commands(command.commands[name], (*path, name))


def help_of(program: click.Group, path: tuple[str, ...], width: int = _WIDTH) -> str:
    """Return what `--help` prints for a command.

    Args:
        program: the group of all its commands.
        path: its words, that of the program first.
        width: of the terminal.
    """
    words = [*path[1:], "--help"]
    return CliRunner().invoke(program, words, prog_name=path[0], terminal_width=width).stdout


def reference(programs: Mapping[str, click.Group]) -> str:
    """The help of every command, as Markdown. An option that another command has, too, is written out once."""
    told: dict[str, str] = {}
    return "\n".join(
        _section(program, path, told) for name, program in programs.items() for path in commands(program, (name,))
    )


def page(text: str, programs: Mapping[str, click.Group]) -> str:
    """A page's text with the reference as it is now. Raises ValueError if it has no mark."""
    before, found, _ = text.partition(MARK)
    if not found:
        raise ValueError(f"the page has no line {MARK.strip()}")
    return f"{before}{MARK}\n{reference(programs)}"


def _section(program: click.Group, path: tuple[str, ...], told: dict[str, str]) -> str:
    """A command's help under a heading; `told` has options that were written out, and where."""
    # The meaning of the exit status is the same everywhere, and the page says it once.
    text = help_of(program, path).partition("\n  Exit status:")[0].rstrip()
    name = " ".join(path)
    head, found, options = text.partition("\nOptions:\n")
    if found:
        text = f"{head}\nOptions:\n{_untold(options, name, told)}"
    return f"### {name}\n\n```text\n{text}\n```\n"


def _untold(options: str, name: str, told: dict[str, str]) -> str:
    """The options of a command without those that earlier ones have, of which the names and the command are left."""
    options, commands_mark, rest = options.partition("\n\nCommands:\n")
    lines: list[str] = []
    elsewhere: dict[str, list[str]] = {}
    for one in re.split(r"\n(?=  -)", options):
        words = " ".join(one.split())
        if told.setdefault(words, name) == name:
            lines.append(one)
        else:
            flag = next(word.rstrip(",") for word in words.split() if word.startswith("--"))
            elsewhere.setdefault(told[words], []).append(flag)
    for other, flags in elsewhere.items():
        text = f"As of {other}: {', '.join(flags)}"
        lines.append(textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))
    return "\n".join(lines) + commands_mark + rest


if __name__ == "__main__":
    for _name, _programs in PAGES.items():
        _path = DOCS / _name
        _path.write_text(page(_path.read_text(encoding="utf-8"), _programs), encoding="utf-8")
