"""FitSketchKMeans passes the audit: adjacencies, noises, signatures, fast frequencies, masks, pilots, several rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar_models import Frequencies
from bursar_models._frequencies import FREQUENCY_LAWS, FREQUENCY_STRUCTURES
from bursar_models._sketch import SIGNATURES, Signature
from bursar_server.fits.sketch._statistics import SketchFrame, sketch_statistic
from bursar_server.tables import CapKeys, CsvSource, Manifest, Snapshot, store_table
from bursar_server.vault import ArrayRows, Statistic, exact_sum
from tests.audit.checks import contribution
from tests.audit.harness import extremes
from tests.audit.sketch import (
    AR,
    COLUMNS,
    HADAMARD,
    MASKED,
    ONE_BIT,
    Fields,
    anywhere,
    planned,
)
from tests.audit.sketch_reference import Said, contributions


@pytest.mark.parametrize("fields", [{}, MASKED, HADAMARD | MASKED, ONE_BIT | MASKED], ids=["all", "r", "fast", "bits"])
def test_a_row_that_leaves_the_file_changes_a_sum_by_its_own_contribution(tmp_path: Path, fields: Fields) -> None:
    """Rows after the one that leaves the source move up in the snapshot, and count as they did before."""
    audited, keys = planned(AR, **fields), CapKeys.draw()
    statistic = statistic_of(audited.said[0])
    columns = [{"name": one.name, "kind": "numeric", "lower": one.lower, "upper": one.upper} for one in COLUMNS]
    manifest = Manifest.from_public({"name": "audit", "adjacency": AR.value, "columns": columns})
    lines = [f"{x!r},{y!r}" for x, y in anywhere().tolist()]
    sums = []
    for rows in (lines, lines[1:]):
        (tmp_path / "audit.csv").write_text("\n".join(["x,y", *rows, ""]))
        report = store_table(manifest, CsvSource(tmp_path / "audit.csv"), tmp_path, keys)
        sums.append(exact_sum(statistic, Snapshot.open(report.directory).rows(("x", "y")), 2))
    assert (np.square(sums[0] - sums[1]).sum()) <= statistic.bounds.l2_squared


def statistic_of(said: Said) -> Statistic:
    """The compiled statistic of a release."""
    frame = SketchFrame(said.centre, said.unit, said.lower, said.upper)
    signature: Signature = "one_bit" if said.one_bit else "exponential"
    return sketch_statistic(frame, said.frequencies, signature, said.r, said.weight)


@st.composite
def releases(draw: st.DrawFn) -> tuple[Said, Statistic]:
    """A sketch with any public parameters, as the reference has it and as the kernel has it."""
    d, m = draw(st.integers(1, 5)), draw(st.integers(1, 24))
    r, weight, seed = draw(st.integers(1, m)), draw(st.integers(0, 5)), draw(st.integers(0, 2**64 - 1))
    law, structure = draw(st.sampled_from(FREQUENCY_LAWS)), draw(st.sampled_from(FREQUENCY_STRUCTURES))
    signature = draw(st.sampled_from(SIGNATURES))
    rng = np.random.default_rng(seed)  # noqa: TID251 - parameters of a test
    centre, unit = rng.normal(size=d), rng.uniform(0.5, 2.0, size=d)
    lower, upper = centre - unit * rng.uniform(0.3, 1.0, size=d), centre + unit * rng.uniform(0.3, 1.0, size=d)
    frequencies = Frequencies(m, d, seed, 0.2, law, structure)
    said = Said(centre, unit, lower, upper, frequencies, signature == "one_bit", r, weight)
    return said, statistic_of(said)


@settings(max_examples=40)
@given(releases(), st.integers(1, 40), st.data())
def test_kernel_and_reference_agree(release: tuple[Said, Statistic], n: int, data: st.DataObject) -> None:
    """The compiled sums are the formulas' but for truncation and float32: less than 2^-11 of a row for every row.

    Signs are compared where cosine and sine are not so small that rounding decides.
    """
    said, statistic = release
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))  # noqa: TID251 - rows of a test
    rows = (said.centre + 1.2 * said.unit * rng.normal(size=(n, len(said.unit)))).T
    rows[:, rng.uniform(size=n) < 0.1] = np.nan
    slots = np.sort(rng.permutation(20_000)[:n])
    values = contributions(said, rows, slots)
    if said.one_bit:
        certain = np.abs(contributions(said, rows, slots, parts=waves)[:, : 2 * said.m]).min(axis=1) > 1e-3
        rows, slots, values = rows[:, certain], slots[certain], values[certain]
    table, present = np.zeros((len(rows), 20_000)), np.zeros(20_000, dtype=np.bool_)
    table[:, slots], present[slots] = rows, True
    sums = exact_sum(statistic, ArrayRows(table, present), len(rows)) * statistic.lattice
    assert np.abs(sums - values.sum(axis=0)).max() <= n * 2.0**-11


def waves(said: Said, phases: np.ndarray) -> np.ndarray:
    """Cosines and sines about the dither, of all phases, so that no mask hides one; 1 for rows that do not count."""
    turned = np.where(np.isnan(phases), np.pi / 4, phases + said.frequencies.dithers())
    return np.stack([np.cos(turned), np.sin(turned)], axis=1)


@settings(max_examples=25)
@given(releases(), st.data(), st.sampled_from([0, 700, 1024, 9000]))
def test_no_bit_pattern_exceeds_the_bounds(release: tuple[Said, Statistic], data: st.DataObject, place: int) -> None:
    """A row's integers stay within norms and distances whatever its bits and wherever it lies."""
    said, statistic = release
    d, numbers = len(said.unit), st.floats(allow_nan=True, allow_infinity=True, width=64) | st.floats(-3, 3)
    drawn = data.draw(st.lists(st.lists(numbers, min_size=d, max_size=d), min_size=1, max_size=4))
    rows = np.hstack([np.array(drawn).T, extremes(d)])
    values = np.array([contribution(statistic, row, place) for row in rows.T], dtype=object)
    apart = values[:, None] - values[None]
    bounds = statistic.bounds
    assert np.abs(values).sum(axis=1).max() <= bounds.l1
    assert (values**2).sum(axis=1).max() <= bounds.l2_squared
    assert np.abs(apart).sum(axis=2).max() <= bounds.l1_distance
    assert (apart**2).sum(axis=2).max() <= bounds.l2_squared_distance
