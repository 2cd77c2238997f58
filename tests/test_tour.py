"""The notebook: it runs from the first cell to the last against a real server, and its stored outputs are not stale."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.refresh_tour import NOTEBOOK, execute, read, serving, shapes

if TYPE_CHECKING:  # importing nbformat takes seconds, which collecting the tests would take each time
    import nbformat


def _code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_the_stored_outputs_are_of_one_run_without_errors() -> None:
    """Every cell has run, in order; none failed or warned, and pictures are there."""
    cells = _code(read())
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 5


def test_the_notebook_names_no_machine_and_runs_nothing() -> None:
    """Stored outputs have no paths of whoever ran it, no tokens and no scripts; and it is a page of moderate size."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/home/|/root/|/tmp/|bursar_analyst_|<script", text)
    assert len(text) < 1_000_000


@pytest.mark.slow
def test_every_fit_of_the_sdk_is_in_the_tour() -> None:
    """And what there is before and after paying."""
    code = "\n".join(cell.source for cell in _code(read()))
    asked = ("DPEM(", "SketchKMeans(", ".kmeans(", "MRF(", "GradientEM(", "SeparatedGMM(")
    around = (".preview(", ".suggest_spend(", ".dry_run(", ".releases()", "client.model(", ".plot(", ".save(")
    assert [word for word in (*asked, *around) if word not in code] == []


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_stores(tmp_path: Path) -> None:
    """It runs in a fresh kernel, as a reader would run it. If kinds of outputs differ: python tests/refresh_tour.py."""
    stored = shapes(read())
    with serving(tmp_path / "demo-state") as variables:
        assert shapes(execute(read(), variables, tmp_path)) == stored


@pytest.mark.slow
def test_a_cell_that_fails_fails_the_run(tmp_path: Path) -> None:
    """Nothing is swallowed on the way from the kernel."""
    import nbformat
    from nbclient.exceptions import CellExecutionError

    cells = [nbformat.v4.new_code_cell(source) for source in ("1 + 1", "assert 1 + 1 == 3", "print('on')")]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=read().metadata)
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(notebook, {}, tmp_path)
    assert [output.output_type for output in cells[1].outputs] == ["error"]
    assert cells[2].outputs == []


@pytest.mark.slow
def test_an_output_of_another_kind_is_seen() -> None:
    """A picture that is gone, a first line with other words; numbers may differ."""
    import nbformat

    def shape(text: str, *kinds: str) -> list[list[str]]:
        output = nbformat.v4.new_output("execute_result", {"text/plain": text, **dict.fromkeys(kinds, "x")})
        cell = nbformat.v4.new_code_cell("x", outputs=[output])
        return shapes(nbformat.v4.new_notebook(cells=[cell]))

    assert shape("rho 0.12, entry 4\n1", "image/png") == shape("rho 1e-05, entry 12\nx", "image/png")
    assert shape("array([[ 1.5, 20  ],\n x") == shape("array([[12.25,  3],\n y") != shape("array([[1, 2, 3],")
    assert shape("   visits  health\n0  1") == shape("visits     health\n0  100")
    assert shape("rho 0.12") != shape("rho 0.12", "image/png")
    assert shape("rho 0.12") != shape("epsilon 0.12")
