"""Refusals are counted in a file beside the ledger, one row a kind, and are read without changing it."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from bursar_ledger import refusals as module
from bursar_ledger.refusals import Refusals, read_refusals


def test_refusals_of_one_kind_are_one_row(tmp_path: Path) -> None:
    """The row has the last amounts, and times that stand for the first and the last."""
    file = Refusals(tmp_path / "r")
    for asked in (0.5, 0.25):
        file.note(analyst="ann", dataset="people", method="FitMRF", refused_by="total", rho_asked=asked, rho_left=0.125)
    file.note(analyst="bob", dataset="people", method="FitMRF", refused_by="retired")
    file.close()
    ann, bob = sorted(read_refusals(tmp_path / "r"), key=lambda refusal: refusal.analyst)
    assert (ann.times, ann.rho_asked, ann.rho_left) == (2, 0.25, 0.125)
    assert ann.first <= ann.last
    assert (bob.times, bob.rho_asked, bob.rho_left, bob.refused_by) == (1, None, None, "retired")
    assert (tmp_path / "r").stat().st_mode & 0o077 == 0


def _note_often(file: Refusals) -> None:
    for _ in range(20):
        file.note(analyst="ann", dataset="people", method="FitMRF", refused_by="total")


def test_counts_go_on_after_a_restart_and_in_threads(tmp_path: Path) -> None:
    """Nothing is lost between two servers, or among threads."""
    for _ in range(2):
        file = Refusals(tmp_path / "r")
        threads = [threading.Thread(target=_note_often, args=[file]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        file.close()
    assert [refusal.times for refusal in read_refusals(tmp_path / "r")] == [120]


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal of a new kind is not counted beyond a number of rows; those that are there still count."""
    monkeypatch.setattr(module, "_MOST", 3)
    file = Refusals(tmp_path / "r")
    for name in "abcdea":
        file.note(analyst=name, dataset="people", method="FitMRF", refused_by="total")
    file.close()
    assert {refusal.analyst: refusal.times for refusal in read_refusals(tmp_path / "r")} == {"a": 2, "b": 1, "c": 1}


def test_what_is_no_file_of_refusals_is_an_error(tmp_path: Path) -> None:
    """Reading makes no file, and says so of one that is something else."""
    with pytest.raises(sqlite3.Error):
        read_refusals(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "other").write_text("words" * 1000)
    with pytest.raises(sqlite3.Error):
        read_refusals(tmp_path / "other")
