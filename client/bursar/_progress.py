"""Progress of a fit: a bar on a terminal, an output that vanishes in a notebook, nothing elsewhere."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Report = Callable[[int, int], None]
"""Told (step, steps) whenever a step is done."""


class OneMore:
    """Tells a report of the server's steps and of one that is done here, after them."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._steps = 0

    def __call__(self, step: int, steps: int) -> None:
        """Take note that the server is done with a step of its own."""
        self._steps = steps
        self._report(step, steps + 1)

    def done(self) -> None:
        """Take note that the last step is done, too."""
        self._report(self._steps + 1, self._steps + 1)


@contextmanager
def progress_bar(show: bool | None, title: str) -> Iterator[Report]:
    """Show progress on standard error, or in a notebook as an output that is empty at the end.

    If `show` is None, terminals and notebooks show it, and nothing else.
    """
    if show is False or (show is None and not (_is_notebook() or _is_terminal())):
        yield _ignore
    elif _is_notebook():
        with _output(title) as report:
            yield report
    else:
        # Imported late: a server imports `bursar_models`, and needs no bars.
        from tqdm import tqdm

        with tqdm(desc=title, unit="step", leave=False) as bar:

            def report(step: int, steps: int) -> None:
                # Set, not added: after a broken stream the steps are told again from the first.
                bar.total, bar.n = steps, step
                bar.refresh()

            yield report


@contextmanager
def _output(title: str) -> Iterator[Report]:
    """Show progress as one output of a notebook's cell: standard error would leave a red block behind."""
    from IPython.display import display

    show: Any = display  # IPython has no types for it
    begun = time.monotonic()
    shown: Any = show(_state(title, 0, 0, 0.0), raw=True, display_id=True)
    try:
        yield lambda step, steps: shown.update(_state(title, step, steps, time.monotonic() - begun), raw=True)
    finally:
        shown.update({"text/plain": "", "text/html": ""}, raw=True)


def _state(title: str, step: int, steps: int, seconds: float) -> dict[str, str]:
    """Return progress as text and as HTML; the time that is left is estimated from the steps that are done."""
    told = f"{title}: step {step} of {steps}" if steps else f"{title}: sent"
    if step:
        told += f", {seconds:.0f} s so far, about {seconds * (steps - step) / step:.0f} s left"
    words = html.escape(told)
    return {"text/plain": told, "text/html": f'<progress value="{step}" max="{max(steps, 1)}"></progress> {words}'}


def _is_terminal() -> bool:
    # Without a console (pythonw) sys.stderr is None.
    return sys.stderr is not None and sys.stderr.isatty()


def _is_notebook() -> bool:
    # A program may import parts of Jupyter without being run by it; only a kernel's shell displays.
    interactive: Any = sys.modules.get("IPython")
    return interactive is not None and hasattr(interactive.get_ipython(), "kernel")


def _ignore(step: int, steps: int) -> None:
    del step, steps
