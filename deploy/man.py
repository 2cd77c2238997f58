"""Writes a man page for each command of each program, made of its `--help`.

    .venv/bin/python -m deploy.man FOLDER

`man -l FOLDER/bursar-fit-dpem.1` shows one. `man` finds those in `share/man/man1` beside a folder `bin` of the PATH.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import click
from click_man.core import write_man_pages

from tests.refresh_cli import PAGES


def write(folder: Path) -> None:
    """Write all pages into a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for programs in PAGES.values():
        for name, program in programs.items():
            write_man_pages(name, program, version=importlib.metadata.version("bursar"), target_dir=str(folder))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    click.echo(f"wrote man pages to {sys.argv[1]}")
