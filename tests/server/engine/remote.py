"""Work of a test in another network namespace or process; and a kernel that takes its time."""

from __future__ import annotations

import os
import pickle
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar_server.vault import Bounds, DaskEngine, Factor, SpreadRows, Statistic, exact_sum
from tests.server.engine.fits import fitted


@dataclass(frozen=True)
class Slow:
    """Counts rows, a tenth of a second a block, and says who does it in files of a folder."""

    folder: str

    def __call__(self, block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """See `Kernel`."""
        (Path(self.folder) / str(os.getpid())).touch()
        time.sleep(0.1)
        out += int(present.sum())


def slow(folder: Path) -> Statistic:
    """The count of all rows, by `Slow`."""
    return Statistic("slow", Slow(str(folder)), (Factor("one", 0),), (1,), Bounds(1, 1, 1, 1), 1)


@dataclass(frozen=True)
class Asked:
    """Fits on a cluster, and a slow count.

    Attributes:
        engine: of the cluster.
        fits: by name, with their rows.
        counted: rows to be counted.
        folder: of the slow kernel.
    """

    engine: DaskEngine
    fits: dict[str, SpreadRows]
    counted: SpreadRows
    folder: str

    def done(self) -> dict[str, Any]:
        """Models by name, and the count as "count"."""
        with self.engine.open() as engine:
            found: dict[str, Any] = {name: fitted(name, rows, engine) for name, rows in self.fits.items()}
            found["count"] = exact_sum(slow(Path(self.folder)), self.counted, 1, engine=engine).tolist()
            return found


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_bytes(pickle.dumps(pickle.loads(source.read_bytes()).done()))  # noqa: S301 - the test's own
