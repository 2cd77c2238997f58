"""No row passes the largest coordinate that a statistic declares, and rows reach it.

What is compared is what the kernels add for single rows, found by search, and not a proof's number.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bursar_server import fits
from bursar_server.fits.gradient_em import _kernel as gradient_kernel
from bursar_server.fits.gradient_em import _statistics as gradients
from bursar_server.fits.sketch import _kernel as sketch_kernel
from bursar_server.fits.sketch._statistics import MAX_COUNT_WEIGHT
from bursar_server.vault import MAX_ROWS
from tests.each import each
from tests.server.fits.catalogue import CATALOGUE, EXACT, Entry, search


@pytest.mark.slow
@each("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_no_row_passes_the_declared_number_and_some_reach_it(entry: Entry) -> None:
    """Public parameters and rows are searched; the rest of the lattice's last places is in the catalogue."""
    found = [search(entry, seed) for seed in range(4)]
    assert [beyond for _, beyond in found if beyond] == []
    assert max(part for part, _ in found) >= entry.reached


@pytest.mark.slow
@each("entry", [e for e in CATALOGUE if e.reached == EXACT], ids=lambda entry: entry.name)
def test_a_declared_number_that_is_one_too_small_is_found(entry: Entry) -> None:
    """The planted bug: where rows reach the number, the search says so of one less."""
    generator = np.random.default_rng(0)  # noqa: TID251 - parameters of a test
    found = []
    for seed in range(4):
        made = entry.made(generator)
        if made.largest > 1:  # of one there is no smaller
            found.append(search(entry, seed, replace(made, largest=made.largest - 1))[1])
    assert not found or any(found)


def test_the_catalogue_has_all_statistics_of_all_fits() -> None:
    """Every function of a fit that returns a statistic is in it."""
    modules: list[ModuleType] = [
        importlib.import_module(f"bursar_server.fits.{path.parent.name}.{path.stem}")
        for path in Path(next(iter(fits.__path__))).glob("*/*statistics.py")
    ]
    there = {
        function
        for module in modules
        for name, function in vars(module).items()
        if getattr(function, "__module__", None) == module.__name__
        and getattr(function, "__annotations__", {}).get("return") == "Statistic"
        and not name.startswith("_")
    }
    assert {entry.function for entry in CATALOGUE} == there


def test_the_largest_numbers_are_those_that_sums_have_room_for() -> None:
    """FitDPEM with hard assignments and the box of FitGradientEM have 2^36, and MAX_ROWS is the most rows for it."""
    largest = {entry.made(np.random.default_rng(0)).largest for entry in CATALOGUE}  # noqa: TID251 - of a test
    assert max(largest) == 2 ** (2 * gradient_kernel.BITS) == 2**36
    assert MAX_ROWS * 2**36 < 2**63 <= (MAX_ROWS + 1) * 2**36
    assert gradients.LATTICE == 2.0**-36
    assert MAX_COUNT_WEIGHT * sketch_kernel.UNIT in largest
