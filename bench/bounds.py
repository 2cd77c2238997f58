"""Cost of bounds that are too wide or too narrow: the same four Gaussians under declarations that fit ever less.

Writes bench/results/bounds.json. About a minute on one processor.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path

import numpy as np
from _common import results_of, spread_of
from dpem import fit

from bursar._convert import tensor_from
from bursar_proto.v1 import fit_pb2, types_pb2

ROWS, RHO, SEEDS = 20_000, 0.01, 5
MEANS = np.array([[-2.0, -2.0], [2.0, -2.0], [-2.0, 2.0], [2.0, 2.0]])
SPREAD = 0.5
BOUNDS = (1.0, 3.0, 5.0, 10.0, 50.0, 250.0, 1250.0)
"""Bounds of both columns, +-; the rows lie within 4.5 or so, their means at 2."""

MOMENTS = {
    "recentred": fit_pb2.MOMENTS_RECENTRED,
    "fixed_origin": fit_pb2.MOMENTS_FIXED_ORIGIN,
}


def error(bound: float, moments: fit_pb2.Moments.ValueType, seed: int) -> float:
    """Mean distance of a true mean from the nearest released one; one standard deviation is 0.5."""
    generator = np.random.default_rng(seed)
    X = MEANS[generator.integers(len(MEANS), size=ROWS)] + SPREAD * generator.standard_normal((ROWS, 2))
    spend = types_pb2.Spend(rho=RHO)
    model = fit(X, bound, spend=spend, n_components=len(MEANS), clip_radius=1.0, moments=moments)
    found = tensor_from(model.means)
    return float(np.linalg.norm(MEANS[:, None] - found[None], axis=2).min(axis=1).mean())


def main() -> None:
    """Prints a line for each kind of moments and bound, and writes all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=results_of(__file__))
    output = parser.parse_args().json
    cells = []
    for name, moments in MOMENTS.items():
        for bound in BOUNDS:
            errors = [error(bound, moments, seed) for seed in range(SEEDS)]
            cells.append({"moments": name, "bound": bound, "error": statistics.median(errors), "worst": max(errors)})
            cells[-1]["accuracy"] = spread_of(errors)
            print(f"{name:>12} +-{bound:<6g} {cells[-1]['error']:.4f} (worst {cells[-1]['worst']:.4f})", flush=True)
    settings = {"rows": ROWS, "rho": RHO, "seeds": SEEDS, "means": MEANS.tolist(), "spread": SPREAD}
    found = {"python": platform.python_version(), "machine": platform.machine(), "settings": settings, "cells": cells}
    output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
