"""The control of the timing bench: the real server without ticks, whose fits take longer for one of two tables."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bursar_server import process
from bursar_server.fits import gradient_em
from bursar_server.jobs.job import Run
from bursar_server.vault import CHUNK

AT_ONCE = 1e-3
"""Seconds to the next tick, at every moment."""
MARK = 0.75
"""First number of a table whose fits take longer."""


def main() -> None:
    """Serve the state directory that is named first, on a free port; fits of marked tables wait for some seconds."""
    state, seconds = Path(sys.argv[1]), float(sys.argv[2])
    without_ticks: Any = lambda run, quantum: AT_ONCE  # noqa: E731
    setattr(Run, "to_next_tick", without_ticks)  # noqa: B010  mypy knows that it is a method
    run: Any = gradient_em.run

    def slower(plan: Any, session: Any) -> Any:
        block, present = np.empty((len(plan.columns), CHUNK)), np.empty(CHUNK, dtype=np.bool_)
        session._rows.read(0, block, present)
        time.sleep(seconds * bool(block[0, 0] == MARK))
        return run(plan, session)

    setattr(gradient_em, "run", slower)  # noqa: B010
    process.serve(state, ready=lambda address: print(f"at {address}", flush=True), address="127.0.0.1:0")


if __name__ == "__main__":
    main()
