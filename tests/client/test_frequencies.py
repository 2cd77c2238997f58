"""Public frequencies: the laws that they promise, and the same numbers for ever."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, linalg, special, stats

from bursar_models import Frequencies, FrequencyLaw, FrequencyStructure, Stream, hadamard_transform, public_uniforms
from bursar_models import _frequencies as module
from bursar_models._frequencies import FREQUENCY_LAWS, FREQUENCY_STRUCTURES, MAX_FREQUENCIES, adapted_radius_quantile

ALPHA = 1e-7
"""Level of each test of a law. Seeds are fixed: a pass stays one until the numbers change."""

GOLDEN: dict[tuple[FrequencyLaw, FrequencyStructure], str] = {
    ("adapted_radius", "dense"): "0966d942921f2edef38587f7ad1493de",
    ("adapted_radius", "hadamard"): "3651a1e541306560fa5636b874d88f4c",
    ("multiscale", "dense"): "856c1738612dd43eee871e9b966c5195",
    ("multiscale", "hadamard"): "3c714cbba5de3638f6f2fe260b014a32",
}

SMALL = Frequencies(m=50, d=6, public_seed=11, sigma=0.25)


def directions(frequencies: Frequencies) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Frequencies over their radii, shape (m, d)."""
    return frequencies.matrix() / frequencies.radii()[:, None]


@pytest.mark.parametrize(("law", "structure"), GOLDEN)
def test_numbers_of_stored_sketches_never_change(law: FrequencyLaw, structure: FrequencyStructure) -> None:
    """The digest of one matrix of each kind is the one of the first release.

    A golden value on purpose, and the only one here: sketches keep a seed in place of their frequencies, and have to be
    decoded by later versions, of bursar as of numpy. If this fails, the new numbers are wrong, not the test. (Those of
    "hadamard" changed once, before the first release: its blocks have 64 rows at least, for directions enough.)
    """
    frequencies = Frequencies(m=40, d=5, public_seed=2**64 - 7, sigma=0.125, law=law, structure=structure)
    assert frequencies.digest().hex()[:32] == GOLDEN[law, structure]


def test_digest_is_that_of_the_matrix_in_32_bits() -> None:
    """A holder of the matrix can compute the digest in any language."""
    matrix = SMALL.matrix()
    np.testing.assert_array_equal(matrix, matrix.astype(np.float32))
    assert SMALL.digest() == hashlib.sha256(b"".join(row.astype("<f4").tobytes() for row in matrix)).digest()


@pytest.mark.parametrize("law", FREQUENCY_LAWS)
@pytest.mark.parametrize("structure", FREQUENCY_STRUCTURES)
def test_last_bits_of_a_library_do_not_matter(
    law: FrequencyLaw, structure: FrequencyStructure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose special functions and exponentials differ in the last bits has the same frequencies."""
    here = Frequencies(m=300, d=6, public_seed=1, sigma=0.3, law=law, structure=structure)
    digest = here.digest()
    inverse_normal, density = special.ndtri, module.adapted_radius_density
    monkeypatch.setattr(special, "ndtri", lambda u: np.nextafter(inverse_normal(u), 9.0))
    monkeypatch.setattr(module, "adapted_radius_density", lambda radii: np.nextafter(density(radii), 9.0))
    assert replace(here).digest() == digest


def test_adapted_radius_has_its_density() -> None:
    """The quantile inverts the integral of sqrt(R^2 + R^4 / 4) exp(-R^2 / 2), computed another way."""

    def mass(below: float) -> float:
        return float(integrate.quad(lambda x: np.sqrt(x**2 + x**4 / 4) * np.exp(-(x**2) / 2), 0, below)[0])

    for probability in (1e-4, 0.05, 0.5, 0.9, 0.999):
        (radius,) = adapted_radius_quantile(np.array([probability]))
        assert mass(radius) / mass(20.0) == pytest.approx(probability, abs=1e-6)


@pytest.mark.parametrize("structure", FREQUENCY_STRUCTURES)
def test_radii_follow_their_laws(structure: FrequencyStructure) -> None:
    """Adapted radii have uniform probabilities, scales are log-uniform."""
    adapted = Frequencies(m=2000, d=6, public_seed=2, sigma=0.1, structure=structure)
    grid = np.linspace(0, 1, 2001)
    quantiles = adapted_radius_quantile(grid)
    radii = np.linalg.norm(adapted.matrix(), axis=1)
    assert stats.kstest(radii * 0.1, lambda r: np.interp(r, quantiles, grid)).pvalue > ALPHA

    # The same radius at another scale: their ratio is sigma_j / sigma.
    scales = 0.1 * radii / np.linalg.norm(replace(adapted, law="multiscale").matrix(), axis=1)
    assert stats.kstest(np.log(scales) / np.log(0.1), "uniform").pvalue > ALPHA


def test_dense_directions_are_uniform() -> None:
    """The square of each coordinate of a direction is beta(1/2, (d - 1) / 2), and coordinates are uncorrelated."""
    frequencies = Frequencies(m=3000, d=5, public_seed=3, sigma=0.5)
    for coordinate in directions(frequencies).T:
        assert stats.kstest(np.square(coordinate), stats.beta(0.5, 2.0).cdf).pvalue > ALPHA
        assert stats.binomtest(int((coordinate > 0).sum()), 3000).pvalue > ALPHA
    np.testing.assert_allclose(np.corrcoef(directions(frequencies).T), np.eye(5), atol=0.12)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 10, 33, 64, 65])
def test_hadamard_matrix_is_what_its_factors_say(d: int) -> None:
    """Row j of a block is scales[j] times row j of H D3 H D2 H D1, with H as scipy has it; the last block is cut."""
    frequencies = Frequencies(m=70, d=d, public_seed=4, sigma=0.2, structure="hadamard")
    factors = frequencies.factors()
    n_blocks, _, p = factors.signs.shape
    assert p == (64 if d <= 64 else 128)
    assert (n_blocks - 1) * p < 70 <= n_blocks * p
    assert set(np.unique(factors.signs)) == {-1.0, 1.0}
    assert (factors.scales.ravel()[:70] > 0).all()
    assert (factors.scales.ravel()[70:] == 0).all()
    H = linalg.hadamard(p).astype(np.float64)
    products = [H @ np.diag(d3) @ H @ np.diag(d2) @ H @ np.diag(d1) for d1, d2, d3 in factors.signs]
    rows = [scale[:, None] * product[:, :d] for scale, product in zip(factors.scales, products, strict=True)]
    np.testing.assert_allclose(frequencies.matrix(), np.concatenate(rows)[:70], rtol=2**-24, atol=0)


def test_hadamard_directions_are_orthogonal_in_a_block_and_have_length_one() -> None:
    """The directions of a block are an orthonormal basis for d a power of two; for others they are unit vectors."""
    basis = directions(Frequencies(m=128, d=64, public_seed=5, sigma=0.2, structure="hadamard"))
    for block in (basis[:64], basis[64:]):
        np.testing.assert_allclose(block @ block.T, np.eye(64), atol=1e-6)
    assert np.abs(basis[:64] @ basis[64:].T).max() < 0.95
    for d in (1, 3, 5, 9, 20):
        unit = directions(Frequencies(m=500, d=d, public_seed=6, sigma=0.2, structure="hadamard"))
        np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1.0, rtol=1e-6)
        # No axis is favoured: the mean square of each coordinate is 1 / d.
        np.testing.assert_allclose(np.square(unit).mean(axis=0), 1 / d, rtol=0.35)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_hadamard_directions_are_many_in_few_columns(d: int) -> None:
    """No gap between lines through 0: every dense direction is near to one that the fast frequencies have.

    Blocks of p = d rows had two lines at d = 2, and the sum of squares was 42 times Lloyd's.
    """
    fast = directions(Frequencies(m=1000, d=d, public_seed=6, sigma=0.2, structure="hadamard"))
    dense = directions(Frequencies(m=300, d=d, public_seed=7, sigma=0.2))
    nearest = np.abs(dense @ fast.T).max(axis=1)
    assert nearest.min() > {2: 0.999, 3: 0.98, 5: 0.85}[d]


@pytest.mark.parametrize("shape", [(1,), (2, 3), (16, 2, 2), (64,)])
def test_fast_transform_is_the_hadamard_matrix(shape: tuple[int, ...]) -> None:
    """The first axis is transformed, whatever the others are."""
    columns = public_uniforms(7, Stream.RADII, *shape)
    H = linalg.hadamard(shape[0]).astype(np.float64)
    np.testing.assert_allclose(hadamard_transform(columns), np.tensordot(H, columns, axes=1), atol=1e-12)


@pytest.mark.parametrize("structure", FREQUENCY_STRUCTURES)
def test_another_sigma_changes_the_unit_only(structure: FrequencyStructure) -> None:
    """A pilot sketch that corrects sigma leaves directions and radii as they were."""
    one = Frequencies(m=50, d=6, public_seed=8, sigma=0.25, structure=structure)
    np.testing.assert_array_equal(one.matrix(), 4 * replace(one, sigma=1.0).matrix())
    np.testing.assert_allclose(one.matrix(), replace(one, sigma=0.1).matrix() * 0.4, rtol=1e-6)
    np.testing.assert_array_equal(one.dithers(), replace(one, sigma=0.1).dithers())


def test_multiscale_lies_between_sigma_and_one() -> None:
    """It is the adapted radius at sigma 1; else its radii lie between those of sigma and of 1."""
    adapted = replace(SMALL, sigma=1.0)
    np.testing.assert_array_equal(replace(adapted, law="multiscale").matrix(), adapted.matrix())
    ratios = replace(SMALL, law="multiscale").radii() / adapted.radii()
    assert ((ratios >= 1) & (ratios <= 4)).all()


@pytest.mark.parametrize("structure", FREQUENCY_STRUCTURES)
def test_more_frequencies_begin_with_the_fewer(structure: FrequencyStructure) -> None:
    """A larger m adds rows and dithers to those of a smaller one."""
    few = replace(SMALL, structure=structure)
    many = replace(few, m=200)
    np.testing.assert_array_equal(many.matrix()[:50], few.matrix())
    np.testing.assert_array_equal(many.dithers()[:50], few.dithers())


def test_dithers_are_uniform_phases() -> None:
    """Uniform in (0, 2 pi), and unrelated to the radii of the same seed."""
    frequencies = replace(SMALL, m=4000)
    dithers = frequencies.dithers()
    assert stats.kstest(dithers / (2 * np.pi), "uniform").pvalue > ALPHA
    assert stats.spearmanr(dithers, frequencies.radii()).pvalue > ALPHA


def test_public_uniforms_are_the_bits_of_the_generator() -> None:
    """They are numpy's own uniforms in [0, 1) up to the 53rd bit, never 0 or 1, with a stream for each purpose."""
    sequence = np.random.SeedSequence(9, spawn_key=(int(Stream.SCALES),))  # noqa: TID251 - public randomness
    usual = np.random.Generator(np.random.PCG64(sequence)).random(1000)  # noqa: TID251 - public randomness
    uniforms = public_uniforms(9, Stream.SCALES, 10, 100)
    np.testing.assert_allclose(uniforms.ravel(), usual, rtol=0, atol=2**-52)
    # Odd multiples of 2^-53: so neither end can come up, which no sample would show.
    assert (uniforms * 2.0**53 % 2 == 1).all()
    streams = np.stack([public_uniforms(9, stream, 500) for stream in Stream])
    assert np.abs(np.corrcoef(streams) - np.eye(len(Stream))).max() < 0.25


def test_differences_are_named() -> None:
    """The message for two sketches that cannot be merged says what to agree on."""
    assert SMALL.differences(replace(SMALL)) == ""
    one = replace(SMALL, public_seed=7, law="adapted_radius")
    assert one.differences(replace(one, public_seed=8, law="multiscale")) == (
        "public_seed is 8 instead of 7; law is 'multiscale' instead of 'adapted_radius'"
    )


def test_matrix_cannot_be_written_to() -> None:
    """It is computed once and shared, as are the factors."""
    fast = replace(SMALL, structure="hadamard")
    assert SMALL.matrix() is SMALL.matrix()
    for array in (SMALL.matrix(), fast.matrix(), fast.factors().signs, fast.factors().scales):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0.0


def test_equal_fields_are_equal_frequencies() -> None:
    """They compare by what determines them, whether the matrix is there already or not."""
    SMALL.matrix()
    assert replace(SMALL) == SMALL
    assert hash(replace(SMALL)) == hash(SMALL)
    digests = {
        replace(SMALL, **change).digest()
        for change in ({}, {"public_seed": 12}, {"sigma": 0.26}, {"law": "multiscale"}, {"structure": "hadamard"})
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, f"m: expected 1 to {MAX_FREQUENCIES}"),
        ({"m": MAX_FREQUENCIES + 1}, "m: expected 1 to"),
        ({"d": 0}, "d: expected at least 1"),
        ({"public_seed": -1}, "public_seed: expected 0 to"),
        ({"public_seed": 2**64}, "public_seed: expected 0 to"),
        ({"sigma": 0.0}, "sigma: expected 0.0001 to 10000"),
        ({"sigma": 1e5}, "sigma: expected"),
        ({"sigma": float("nan")}, "sigma: expected"),
        ({"law": "cauchy"}, "law: expected one of"),
        ({"structure": "sparse"}, "structure: expected one of"),
    ],
)
def test_what_determines_no_frequencies_is_refused(change: dict[str, Any], message: str) -> None:
    """Every rule has an error that names the field."""
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)


def test_dense_frequencies_have_no_factors() -> None:
    """Asking for them says what to use instead."""
    with pytest.raises(ValueError, match=r"structure: expected 'hadamard'.*matrix\(\)"):
        SMALL.factors()
