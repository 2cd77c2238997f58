"""A progress bar where someone is looking, and silence elsewhere."""

from __future__ import annotations

import importlib.util
import io
import re
import sys

import pytest
import tqdm.auto
import tqdm.std

import bursar
from bursar import _progress
from tests.client.line import Line


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        """It does."""
        return True


def fit(toy: bursar.Dataset, progress: bool | None = None) -> None:
    """One fit."""
    toy.fit(bursar.DPEM(n_components=1), spend=bursar.rho(0.1), progress=progress)


def test_silent_where_nobody_looks(toy: bursar.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither standard stream gets a byte when they are no terminal."""
    fit(toy)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("progress", "shown"), [(None, True), (False, False)])
def test_a_terminal_gets_a_bar(
    toy: bursar.Dataset, monkeypatch: pytest.MonkeyPatch, progress: bool | None, shown: bool
) -> None:
    """Unless the caller wants none."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    fit(toy, progress)
    assert ("DPEM on toy" in terminal.getvalue()) is shown


def test_a_bar_can_be_forced(toy: bursar.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Into a log file, say; it reaches the last step, even after a broken stream."""
    fit(toy, progress=True)
    assert re.search(r"\b(\d+)/\1\b", capsys.readouterr().err)


def test_a_repetition_counts_from_the_start(
    server: Line, toy: bursar.Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a broken stream the bar does not run past its end."""
    server.break_next()
    fit(toy, progress=True)
    shown = capsys.readouterr().err
    counts = [(int(step), int(steps)) for step, steps in re.findall(r"(\d+)/(\d+) \[", shown)]
    assert max(step for step, _ in counts) == max(steps for _, steps in counts)


def test_no_console_is_no_terminal(toy: bursar.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without a console have no standard error at all."""
    monkeypatch.setattr(sys, "stderr", None)
    fit(toy)


@pytest.mark.parametrize(("widgets", "kind"), [(None, tqdm.std.tqdm), (object(), tqdm.auto.tqdm)])
def test_a_notebook_without_widgets_gets_text_and_no_warning(
    monkeypatch: pytest.MonkeyPatch, widgets: object, kind: type
) -> None:
    """Nobody needs ipywidgets; tqdm's own choice warns in red if they are missing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: widgets)
    assert _progress._kind() is kind
