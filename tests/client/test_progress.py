"""A progress bar where someone is looking, and silence elsewhere."""

from __future__ import annotations

import importlib
import io
import re
import sys
from types import SimpleNamespace

import pytest

import bursar
from bursar import _progress


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
    """A caller can switch it off."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    fit(toy, progress)
    assert ("DPEM on toy" in terminal.getvalue()) is shown


def test_a_bar_can_be_forced(toy: bursar.Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """A log file can have one; it reaches the last step, even after a broken stream."""
    fit(toy, progress=True)
    assert re.search(r"\b(\d+)/\1\b", capsys.readouterr().err)


def test_a_repetition_counts_from_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    """The steps are told again after a broken stream, and the bar does not run past its end."""
    with _progress.progress_bar(True, "fit") as report:
        for step in (1, 2, 3, 1, 2, 3, 4):
            report(step, 4)
    counts = [int(step) for step in re.findall(r"(\d+)/4 \[", capsys.readouterr().err)]
    assert counts[-7:] == [1, 2, 3, 1, 2, 3, 4]


def test_no_console_is_no_terminal(toy: bursar.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without a console have no standard error at all."""
    monkeypatch.setattr(sys, "stderr", None)
    fit(toy)


def test_a_program_that_imports_a_kernel_is_no_notebook(toy: bursar.Dataset) -> None:
    """Tools of Jupyter import its kernel and display nothing."""
    importlib.import_module("ipykernel")

    fit(toy)


def test_a_notebook_gets_an_output_that_ends_empty(toy: bursar.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and an estimate on the way, nothing at the end, and no byte on standard error, which would be red."""
    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, state: dict[str, str], *, raw: bool) -> None:
            shown.append(state)

    def display(state: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(state)
        return Handle()

    monkeypatch.setattr("IPython.get_ipython", lambda: SimpleNamespace(kernel=None))
    monkeypatch.setattr("IPython.display.display", display)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    fit(toy)
    first, *between, last = shown
    assert first["text/plain"].startswith("DPEM on toy, ")
    assert any(re.search(r"step (\d+) of \1, \d+ s so far, about 0 s left", state["text/plain"]) for state in between)
    assert all("<progress value=" in state["text/html"] for state in (first, *between))
    assert set(last.values()) == {""}
    assert stream.getvalue() == ""


def test_an_estimate_is_from_the_steps_that_are_done() -> None:
    """Three of nine in 6 seconds: 12 more. Names are shown as text."""
    state = _progress._state("<b>", 3, 9, 6.0)
    assert state["text/plain"] == "<b>: step 3 of 9, 6 s so far, about 12 s left"
    assert "&lt;b&gt;" in state["text/html"]
