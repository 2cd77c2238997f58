"""Statistics on devices against this machine's processors: `python bench/devices.py torch:cuda cupy`.

    python bench/devices.py torch:cuda          medians of five rounds in turns, 200,000 rows
    python bench/devices.py torch --rows 50000  fewer rows

Times are those of the clock, of one pass over all rows, which lie in this machine's memory. The integers are compared
before anything is timed. It is in no record, since the machines that the record is made on have no device.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics as st
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import _em
import numpy as np
from _common import Json
from kernels import KINDS, gradient_statistic, in_turns, moments_step, seconds, table_statistic

from bursar_server.fits.mixtures.statistics import Weights, moment_statistic
from bursar_server.vault import ArrayRows, LocalEngine, Statistic, exact_sum


def cases(n: int) -> Iterator[tuple[str, Statistic, ArrayRows]]:
    """Statistics that have a kernel for devices, and rows for them; one at a time, as rows take memory."""
    generator = np.random.default_rng(0)
    for d, k in ((10, 5), (50, 5), (50, 32), (10, 128), (64, 128)):
        rows = ArrayRows(generator.standard_normal((d, n)))
        for name in ("full", "diag"):
            frame, step = moments_step(d, k, KINDS[name])
            statistic = moment_statistic(frame, step, KINDS[name], Weights(0.5, 0.7, 1.0))
            yield f"moments {name}, d = {d}, k = {k}", statistic, rows
    for name, model in _em.MODELS.items():
        drawn, _ = model.draw(n, 20, "normal", np.random.default_rng(1))
        yield f"gradients {name}, d = 20", gradient_statistic(model, 20), ArrayRows(np.ascontiguousarray(drawn.T))
    for sizes in ((10, 10), (5, 5, 5)):
        rows = ArrayRows(generator.uniform(0, sizes[0], (len(sizes), n)))
        yield f"table of {' x '.join(map(str, sizes))}", table_statistic(sizes), rows


def measured(statistic: Statistic, rows: ArrayRows, rounds: int, devices: list[str]) -> Json:
    """Return medians of seconds by where the sum is made, after a comparison of the integers."""
    processors = os.cpu_count() or 1
    engines = {
        f"{processors} processors": LocalEngine(processors),
        **{device: LocalEngine(1, device) for device in devices},
    }
    columns = len(rows.columns)
    sums = [exact_sum(statistic, rows, columns, engine=engine) for engine in engines.values()]
    if not all(np.array_equal(one, sums[0]) for one in sums):
        raise RuntimeError(f"{statistic.name}: integers differ")
    works = {name: partial(exact_sum, statistic, rows, columns, engine=engine) for name, engine in engines.items()}
    times = in_turns(rounds, {name: partial(seconds, work) for name, work in works.items()})
    return {name: st.median(values) for name, values in times.items()}


def main() -> None:
    """Measures every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", nargs="+", help="such as torch:cuda or cupy")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[Json] = []
    for name, statistic, rows in cases(options.rows):
        times = measured(statistic, rows, options.rounds, options.devices)
        found.append({"case": name, **times})
        print(f"{name:<30}" + "".join(f"  {where} {value:.3f} s" for where, value in times.items()), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"rows": options.rows, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
