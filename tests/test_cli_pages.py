"""The pages of the command lines say what the programs say."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest
from click.testing import CliRunner

from tests.refresh_cli import DOCS, MARK, PAGES, commands, help_of, page

PROGRAMS = {name: program for programs in PAGES.values() for name, program in programs.items()}


def _command(path: tuple[str, ...]) -> click.Command:
    command: click.Command = PROGRAMS[path[0]]
    for word in path[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_current(name: str) -> None:
    """Every command with its help, word for word. If not: .venv/bin/python tests/refresh_cli.py."""
    text = (DOCS / name).read_text(encoding="utf-8")
    assert text == page(text, PAGES[name])


def test_every_program_that_is_installed_has_a_page() -> None:
    """Those of pyproject.toml, and no others."""
    text = (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8")
    scripts = text.partition("[project.scripts]\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^(\S+) =", scripts, re.MULTILINE)) == set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_fits_a_terminal(name: str) -> None:
    """Nothing is cut off at 80 columns and no prose is longer: only lines to be typed, and lists of choices, are."""
    for path in commands(PROGRAMS[name], (name,)):
        text = help_of(PROGRAMS[name], path, width=80)
        long = [line for line in text.splitlines() if len(line) > 80]
        assert [line for line in long if not line.startswith(f"    {name} ") and "|" not in line] == [], path
        # Click cuts a command's sentence in the list of its group off by dots.
        assert "..." not in text.partition("\nCommands:")[2], path


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_command_and_option_says_what_it_is_for(name: str) -> None:
    """Nobody has to guess."""
    for path in commands(PROGRAMS[name], (name,)):
        command = _command(path)
        assert len((command.help or "").split()) > 4, path
        assert [p.name for p in command.params if isinstance(p, click.Option) and not p.help] == [], path


_LOOKING = re.compile(r"(List|Show|Say|Compare|Check|Price|Decode|Draw)\b(?! a ledger in a browser)")


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_lists_or_shows_has_json(name: str) -> None:
    """Scripts need no eyes."""
    without = []
    for path in commands(PROGRAMS[name], (name,)):
        command = _command(path)
        if not isinstance(command, click.Group) and _LOOKING.match(command.help or ""):
            options = [spelt for parameter in command.params for spelt in parameter.opts]
            without += [path] if "--json" not in options else []
    assert without == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_shells_complete_commands_and_options(name: str, shell: str) -> None:
    """The page's line prints a function for the shell, which asks the program and gets its words."""
    variable = f"_{name.upper().replace('-', '_')}_COMPLETE"
    (page_of,) = (page for page, programs in PAGES.items() if name in programs)
    assert variable in (DOCS / page_of).read_text(encoding="utf-8")
    program = PROGRAMS[name]

    def ask(**environment: str) -> str:
        result = CliRunner().invoke(program, [], prog_name=name, env=environment)
        assert result.exit_code == 0
        return result.stdout

    script = ask(**{variable: f"{shell}_source"})
    assert f"{variable}={shell}_complete" in script
    if checker := shutil.which(shell):
        subprocess.run([checker, "-n"], input=script, text=True, check=True)
    # fish says the word that is being typed where the others say its number.
    words = {variable: f"{shell}_complete", "COMP_WORDS": f"{name} ", "COMP_CWORD": "" if shell == "fish" else "1"}
    answer = ask(**words)
    assert [word for word in program.list_commands(click.Context(program)) if word not in answer] == []
    first = program.list_commands(click.Context(program))[0]
    words = {"COMP_WORDS": f"{name} {first} --", "COMP_CWORD": "--" if shell == "fish" else "2"}
    assert "--help" in ask(**words, **{variable: f"{shell}_complete"})


def test_a_page_without_its_mark_is_not_overwritten() -> None:
    """Text that people wrote stays."""
    assert MARK.startswith("<!--")
    with pytest.raises(ValueError, match="has no line"):
        page("# words\n", {})
