"""Synthetic tables by others, in an environment of their own: `python bench/_field_peers.py GIVEN.npz ANSWER.npz`.

It needs numpy and what the method needs: "smartnoise aim" and "smartnoise mst" the package smartnoise-synth, "pgm aim"
and "pgm mst" the package mbi and the folder mechanisms of github.com/ryan112358/private-pgm. bench/fields.py runs it.

GIVEN.npz: rows (n, T), codes from 0; sizes (T,), method, epsilon, delta, folder of mechanisms, and size, the most
megabytes of AIM's model, which the authors have as 80. ANSWER.npz: rows (m, T), seconds of processor of the fit with
the compilation that jax does in each process, peak memory in megabytes, version.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from importlib.metadata import version
from itertools import combinations
from typing import Any

import numpy as np


def by_smartnoise(given: Any, frame: Any, name: str) -> Any:
    """Return a data frame of SmartNoise's synthetic rows. It reads the states off the rows, which is not private."""
    snsynth: Any = importlib.import_module("snsynth")
    more = {"max_model_size": float(given["size"])} if name == "aim" else {}
    synthesizer = snsynth.Synthesizer.create(name, epsilon=float(given["epsilon"]), delta=float(given["delta"]), **more)
    synthesizer.fit(frame.astype(str), categorical_columns=list(frame.columns), preprocessor_eps=0.0)
    return synthesizer.sample(len(frame)).astype(int)


def by_pgm(given: Any, frame: Any, name: str) -> Any:
    """Return a data frame of private-pgm's synthetic rows, by its own mechanisms with all pairs for a workload."""
    sys.path.insert(0, str(given["folder"]))
    mbi: Any = importlib.import_module("mbi")
    module: Any = importlib.import_module(name)
    data = mbi.Dataset(frame, mbi.Domain(list(frame.columns), [int(size) for size in given["sizes"]]))
    epsilon, delta = float(given["epsilon"]), float(given["delta"])
    if name == "mst":
        return module.MST(data, epsilon, delta).df
    workload = [(pair, 1.0) for pair in combinations(frame.columns, 2)]
    return module.AIM(epsilon, delta, max_model_size=float(given["size"])).run(data, workload)[1].df


def main() -> None:
    """Draw synthetic rows from the rows of a file."""
    pandas: Any = importlib.import_module("pandas")
    given = np.load(sys.argv[1])
    family, name = str(given["method"]).split(" ")
    frame = pandas.DataFrame(given["rows"], columns=[f"x{i}" for i in range(len(given["sizes"]))])
    start = time.process_time()
    found = (by_smartnoise if family == "smartnoise" else by_pgm)(given, frame, name)
    seconds = time.process_time() - start
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    versions = f"mbi {version('mbi')}"
    if family == "smartnoise":
        versions += f", smartnoise-synth {version('smartnoise-synth')}"
    np.savez(sys.argv[2], rows=np.asarray(found), seconds=seconds, megabytes=megabytes, version=versions)


if __name__ == "__main__":
    main()
