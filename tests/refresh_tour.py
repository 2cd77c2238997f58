"""`docs/tour.ipynb`: run in a kernel of its own, against a real server on the demo's table.

Its outputs are kept in the file, for those who only read it. A test runs it and compares what comes out in kind. After
a change of a cell, or of what the SDK shows:

    python tests/refresh_tour.py
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from demo.__main__ import _prepare
from demo._home import Home

if TYPE_CHECKING:  # importing nbformat takes seconds, which collecting the tests would take each time
    import nbformat

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "tour.ipynb"
_SECONDS = 600
"""Time limit of one cell: against endless runs, not about speed."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """The demo's table behind a new server; gives the variables that `bursar.connect` reads for its first analyst."""
    home = Home.fresh(folder)
    _prepare(home)
    with home.serving() as address:
        token = {"BURSAR_TOKEN": home.token("alice"), "BURSAR_HISTORY": str(home.path / "history.json")}
        yield {"BURSAR_ADDRESS": address, "BURSAR_CA": str(home.ca), **token}


def read(path: Path = NOTEBOOK) -> nbformat.NotebookNode:
    """A notebook. Raises nbformat.ValidationError if it is none."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def execute(notebook: nbformat.NotebookNode, variables: Mapping[str, str], folder: Path) -> nbformat.NotebookNode:
    """Run every cell in order and keep what comes out.

    Args:
        notebook: it is changed.
        variables: of its kernel's environment, beside those of this process.
        folder: where the kernel is, and writes its files.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=_SECONDS,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    )
    client.execute(env={**os.environ, **variables})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # What a progress bar leaves behind is blank.
            cell.outputs = [output for output in cell.outputs if not _blank(output)]
        # When a cell ran and for how long is no part of the page.
        cell.metadata.pop("execution", None)
    notebook.metadata = {name: notebook.metadata[name] for name in ("kernelspec",)}
    return notebook


def shapes(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """Return what the outputs of each cell are in kind: noise and entries change, words and kinds do not."""
    return [[_shape(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _blank(output: nbformat.NotebookNode) -> bool:
    if output.output_type == "stream":
        return not output.text.strip()
    return not any(str(shown).strip() for shown in output.get("data", {"": "an error"}).values())


def _shape(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return f"{output.name}: {_first_words(output.text)}"
    kinds = ", ".join(sorted(output.get("data", {})))
    return f"{output.output_type}: {kinds}: {_first_words(output.get('data', {}).get('text/plain', ''))}"


def _first_words(text: str) -> str:
    """The first line without its numbers, and without the blanks that numbers of other lengths are filled up with."""
    line = re.sub(r"-?\d+(\.\d*)?(e[+-]?\d+)?", "0", text.strip().partition("\n")[0])
    return re.sub(r"(?<=\[) | (?=[\],])", "", " ".join(line.split()))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as _folder, serving(Path(_folder, "demo-state")) as _variables:
        _notebook = execute(read(), _variables, Path(_folder))
    import nbformat

    nbformat.write(_notebook, NOTEBOOK)
