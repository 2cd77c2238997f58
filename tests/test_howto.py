"""The how-to pages of owners and auditors: their files are written and their lines typed in, page after page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import click
import pytest
from click.testing import CliRunner

from bursar_ledger import Ledger
from bursar_ledger._schema import MIGRATIONS
from bursar_ledger.audit.cli import main as audit
from bursar_server.admin.cli import main as admin
from tests.console import lines, matches
from tests.ledger.next_version import NAME, SQL
from tests.pages import ROOT

PAGES = ("howto-first-dataset.md", "howto-several-analysts.md", "howto-audit.md", "howto-restore.md")
PROGRAMS: Mapping[str, click.Command] = MappingProxyType({"bursar-admin": admin, "bursar-audit": audit})


def _block(page: str, kind: str) -> str:
    found = re.search(
        rf"^```{kind}\n(.*?)^```$", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1]


def test_what_the_pages_say_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner who types the pages, from the first line to the last, sees what they say."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BURSAR_STATE", raising=False)
    for name, kind in (("people.csv", "csv"), ("people.toml", "toml")):
        Path(name).write_text(_block(PAGES[0], kind), encoding="utf-8")
    typed = 0
    for page in PAGES:
        for line, said in lines(ROOT / "docs" / page):
            words = shlex.split(line)
            result = CliRunner().invoke(PROGRAMS[words[0]], words[1:], prog_name=words[0])
            assert result.exit_code == 0, f"{page}\n$ {line}\n{result.output}"
            assert matches(said, result.output), f"{page}\n$ {line}\n{result.output}"
            typed += 1
    assert typed > 15


def test_the_page_about_upgrades_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines, typed in by the next version on a directory of this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BURSAR_STATE", raising=False)
    for name, kind in (("people.csv", "csv"), ("people.toml", "toml")):
        Path(name).write_text(_block(PAGES[0], kind), encoding="utf-8")
    for line, _ in lines(ROOT / "docs" / PAGES[0]):
        assert CliRunner().invoke(admin, shlex.split(line)[1:]).exit_code == 0
    typed = list(lines(ROOT / "docs" / "howto-upgrade.md"))
    assert len(typed) >= 5
    MIGRATIONS[NAME] = SQL
    try:
        for line, said in typed:
            words = shlex.split(line)
            result = CliRunner().invoke(PROGRAMS[words[0]], words[1:], prog_name=words[0])
            assert result.exit_code == 0, f"$ {line}\n{result.output}"
            assert matches(said, result.output), f"$ {line}\n{result.output}"
        with Ledger.open("state/ledger.sqlite") as ledger:
            assert "upgrade" in [entry.kind for entry in ledger.entries()]
    finally:
        del MIGRATIONS[NAME]


def test_a_table_in_python_is_registered_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its rows are those of the CSV file: known, though pandas read them."""
    monkeypatch.chdir(tmp_path)
    for name, kind in (("people.csv", "csv"), ("people.toml", "toml")):
        Path(name).write_text(_block(PAGES[0], kind), encoding="utf-8")
    assert CliRunner().invoke(admin, ["init", "--state", "state"]).exit_code == 0
    exec(compile(_block("howto-sources.md", "python"), "howto-sources.md", "exec"), {})  # noqa: S102  our own page
    assert capsys.readouterr().out == "11 2\n"
    with Ledger.open("state/ledger.sqlite") as ledger:
        (entry,) = (entry for entry in ledger.entries() if entry.dataset == "people")
    assert (entry.actor, entry.details["reason"]) == ("local:ada", "from pandas")
    Path("again.toml").write_text(Path("people.toml").read_text().replace('"people"', '"again"', 1))
    words = shlex.split("import --state state --manifest again.toml --csv people.csv --epsilon 3 --delta 1e-6")
    assert "these rows are known" in CliRunner().invoke(admin, words).output


def test_the_owners_command_line_does_what_its_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes from making a state directory to the end of a dataset; failures say what the page says, with status 1."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BURSAR_STATE", "state")
    for name, kind in (("people.csv", "csv"), ("people.toml", "toml")):
        Path(name).write_text(_block("cli-admin.md", kind), encoding="utf-8")
    typed = list(lines(ROOT / "docs" / "cli-admin.md"))
    assert len(typed) > 15
    for line, said in typed:
        result = CliRunner().invoke(admin, shlex.split(line)[1:], prog_name="bursar-admin")
        assert matches(said, result.output), f"$ {line}\n{result.output}"
        assert result.exit_code == (1 if "Error:" in said else 0)


@pytest.mark.parametrize(
    ("said", "printed", "right"),
    [
        ("entry 4: all\n", "entry 12:  all\n", True),
        ("entry [...]\n", "entry 12: all\nand more\n", True),
        ("entry 4: all\n", "entry 12: none\n", False),
        ("entry 4\n", "entry 4\nand more\n", False),
    ],
)
def test_words_that_were_not_printed_are_found(said: str, printed: str, right: bool) -> None:
    """Numbers and spaces may differ, words may not, and nothing may be left out unless the page says so."""
    assert matches(said, printed) is right
