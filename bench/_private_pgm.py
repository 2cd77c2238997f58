"""private-pgm on noisy tables, in an environment of its own: `python bench/_private_pgm.py TABLES.npz POTENTIALS.npz`.

It needs `mbi` (github.com/ryan112358/private-pgm) and numpy only, so that bursar's environment stays without jax.
bench/mrf.py runs it where `--pgm` names the interpreter of such an environment.

TABLES.npz: sizes (T,), stds (cliques,), iterations (), and for each clique c its variables v{c} and noisy counts y{c}.
POTENTIALS.npz: log-potentials t{c} of the cliques, seconds (), with the compilation that jax does in each process, and
version, a string.
"""

from __future__ import annotations

import importlib
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np


def main() -> None:
    """Mirror descent from tables to potentials; the number of rows is estimated from the tables."""
    mbi: Any = importlib.import_module("mbi")
    given = np.load(sys.argv[1])
    domain = mbi.Domain([f"x{i}" for i in range(len(given["sizes"]))], given["sizes"].tolist())
    cliques = [tuple(f"x{v}" for v in given[f"v{c}"]) for c in range(len(given["stds"]))]
    measurements = [
        mbi.LinearMeasurement(given[f"y{c}"].ravel(), clique, stddev=float(given["stds"][c]))
        for c, clique in enumerate(cliques)
    ]
    start = time.perf_counter()
    model = mbi.estimation.mirror_descent(domain, measurements, iters=int(given["iterations"]))
    # It keeps potentials on the largest cliques only.
    found: dict[str, Any] = {
        f"t{c}": np.asarray(model.potentials[clique].transpose(clique).values)
        if clique in model.potentials.cliques
        else np.zeros_like(given[f"y{c}"])
        for c, clique in enumerate(cliques)
    }
    np.savez(sys.argv[2], seconds=time.perf_counter() - start, version=version("mbi"), **found)


if __name__ == "__main__":
    main()
