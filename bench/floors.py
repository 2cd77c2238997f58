"""Mixtures against scikit-learn's on held-out rows, with noise and without: `python bench/floors.py [TABLE ...]`.

A fifth of the rows is held out, and every model is scored on it: mean log-likelihood in nats a row, medians over the
seeds. "default" is FitDPEM with (5, 1e-6), "noise off" the same plan whose sums have no noise and whose steps know of
next to none. "blurred" rows have uniform noise of one unit's width in each column: whole numbers have spikes, whose
density a model may raise at will, and what is left without them has other causes.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np
from _kmeans import array_rows
from _real import NUMBERS, Array, NumberTable
from numpy.typing import NDArray
from real_tables import fitted, names_of, number_table, spend_of

import bursar
from bursar_server.fits.mixtures.steps import Step, traced
from bursar_server.vault import ExactNoise, Noise

EPSILON, NO_NOISE = 5.0, 1e-9


def unchanged(source: ExactNoise, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
    """Return the sums, in the place of `ExactNoise.add`."""
    del source, noise
    return sums


def without_noise(X: Array, k: int) -> Any:
    """Return the mixture of FitDPEM's plan whose releases have no noise."""

    def silent(*arguments: object) -> object:
        # Only the run: the plan, made before, is that of the spend.
        with patch.object(Step, "std", PropertyMock(return_value=NO_NOISE)):
            return traced(*arguments)  # type: ignore[arg-type]

    request = bursar.DPEM(n_components=k, columns=names_of(X.shape[1]))
    with patch.object(ExactNoise, "add", unchanged), patch("bursar_server.fits.dpem._answer.traced", silent):
        return fitted(request, spend_of(EPSILON), number_table(*X.shape), array_rows(X))


def blurred(X: Array, table: NumberTable, seed: int) -> Array:
    """Return rows with uniform noise as wide as one unit of each column, within the bounds."""
    lower, upper = np.array(list(table.bounds.values()), dtype=np.float64).T
    noise = np.random.default_rng(seed).uniform(-1.0, 1.0, X.shape)
    return np.asarray(np.clip(X + noise / (upper - lower), -1.0, 1.0))


def scores(X: Array, k: int, seed: int) -> dict[str, float]:
    """Return the held-out nats a row of each model."""
    from sklearn.mixture import GaussianMixture

    order = np.random.default_rng(seed).permutation(len(X))
    test, train = X[order[: len(X) // 5]], X[order[len(X) // 5 :]]
    request = bursar.DPEM(n_components=k, columns=names_of(X.shape[1]))
    default = fitted(request, spend_of(EPSILON), number_table(*train.shape), array_rows(train))
    models = {
        "scikit-learn": GaussianMixture(k, random_state=seed).fit(train),
        "with reg_covar 1e-4": GaussianMixture(k, random_state=seed, reg_covar=1e-4).fit(train),
        "noise off": without_noise(train, k),
        "default": default,
    }
    return {name: float(model.score(test)) for name, model in models.items()}


def main() -> None:
    """Print a line for each table as it is, and one with blurred rows."""
    warnings.filterwarnings("ignore")  # of scikit-learn, about steps that end before they converge
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=("letter", "penbased", "careers"))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for table in (table for table in NUMBERS if table.name in options.tables and table.components):
        X, k = table.rows(), table.components or 1
        for way in ("", ", blurred"):
            versions = [blurred(X, table, seed) if way else X for seed in range(options.seeds)]
            found = [scores(rows, k, seed) for seed, rows in enumerate(versions)]
            told = [f"{name} {statistics.median(one[name] for one in found):.2f}" for name in found[0]]
            print(f"{table.name}{way}: {', '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
