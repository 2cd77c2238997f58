"""Man pages: one for each command of each program."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.man import write
from tests.refresh_cli import PAGES, commands


@pytest.mark.filterwarnings("ignore:.*make_default_short_help:DeprecationWarning")  # click-man 0.6 with click 8.5
def test_every_command_has_a_man_page(tmp_path: Path) -> None:
    """It has the command's options; pages of programs that are gone are not written."""
    write(tmp_path / "man")
    names = {
        "-".join(path)
        for programs in PAGES.values()
        for name, one in programs.items()
        for path in commands(one, (name,))
    }
    assert {page.stem for page in (tmp_path / "man").iterdir()} == names
    text = (tmp_path / "man" / "bursar-fit-dpem.1").read_text("utf-8")
    assert text.startswith('.TH "BURSAR FIT DPEM" "1"')
    assert "\\-\\-n\\-components" in text
