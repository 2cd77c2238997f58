"""A progress bar where someone is looking."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Report = Callable[[int, int], None]
"""Told (step, steps) whenever a step is done."""


class OneMore:
    """Tells a report of the server's steps and of one that is done here, after them.

    Args:
        report: told.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._steps = 0

    def __call__(self, step: int, steps: int) -> None:
        """The server is done with a step of its own."""
        self._steps = steps
        self._report(step, steps + 1)

    def done(self) -> None:
        """The last step is done, too."""
        self._report(self._steps + 1, self._steps + 1)


@contextmanager
def progress_bar(show: bool | None, title: str) -> Iterator[Report]:
    """A bar on standard error, or in a notebook its widget.

    Args:
        show: None shows it in terminals and notebooks, and nowhere else.
        title: stands before the bar.
    """
    if show is False or (show is None and not _someone_is_looking()):
        yield _ignore
        return
    with _kind()(desc=title, unit="step", leave=False) as bar:

        def report(step: int, steps: int) -> None:
            # Set, not added: after a broken stream the steps are told again from the first.
            bar.total, bar.n = steps, step
            bar.refresh()

        yield report


def _kind() -> Any:
    """The class of bars that can be shown here."""
    # Imported late: it looks for a notebook, which takes time and is no use to a server that imports `bursar_models`.
    # Without ipywidgets tqdm's bar for notebooks warns, in red, about something that nobody needs; this one is text.
    if importlib.util.find_spec("ipywidgets") is None:
        from tqdm import tqdm
    else:
        from tqdm.auto import tqdm
    return tqdm


def _someone_is_looking() -> bool:
    # Without a console (pythonw) sys.stderr is None.
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return is_terminal or "ipykernel" in sys.modules


def _ignore(step: int, steps: int) -> None:
    del step, steps
