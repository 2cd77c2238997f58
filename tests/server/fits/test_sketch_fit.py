"""FitSketchKMeans end to end: good centres for a good spend, free decodings, merged sites, and valid models always."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bursar import _convert
from bursar._fits._sketch_kmeans import decode
from bursar_ledger import Adjacency
from bursar_models import Frequencies, Sketch, squared_distances
from bursar_models.requests import SketchKMeans
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import sketch
from bursar_server.fits.sketch import _kernel
from bursar_server.fits.sketch._choices import schema_sigma
from bursar_server.fits.sketch._pilot import PILOT_SIGMA, estimate_scales, frequency_scale
from bursar_server.fits.sketch._wire import sketch_from
from bursar_server.vault import Release
from tests.each import each
from tests.server.fits.running import Array, NoNoise, array, clusters, nothing_released, table
from tests.server.fits.sketching import foreign_sketch, nothing, plan, run

AR, RO = Adjacency.ADD_REMOVE_ONE, Adjacency.REPLACE_ONE
CENTRES = np.array([[-6.0, -5.0], [5.0, -6.0], [0.0, 6.0]])
ROWS = clusters(5000, 1, CENTRES)
AMPLE = types_pb2.Spend(rho=1.0)


def relative_sse(X: Array, means: types_pb2.Tensor, centres: Array = CENTRES) -> float:
    """Sum of squared distances to the nearest centre, over that of the true ones."""
    return float(squared_distances(X, array(means)).min(axis=1).sum() / squared_distances(X, centres).min(axis=1).sum())


def check_valid(model: fit_pb2.SketchModel, made: sketch.SketchPlan, k: int, *, mixture: bool = False) -> None:
    """A model that any client accepts: finite, centres inside the bounds, weights that sum to 1, variances positive."""
    d = len(made.columns)
    weights, means, variances = (array(getattr(model.decoded, name)) for name in ("weights", "means", "covariances"))
    assert weights.shape == (k,)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0)
    assert means.shape == (k, d)
    assert (np.abs(means) <= 10.0).all()
    assert variances.shape == ((k, d) if mixture else (k,))
    assert (variances > 0).all()
    assert np.isfinite(variances).all()
    assert np.isfinite(model.residual)
    sums = array(model.sketch.sums)
    assert np.isfinite(sums).all()
    assert tuple(model.decoded.columns) == tuple(model.sketch.columns) == made.columns


@pytest.mark.parametrize(
    ("adjacency", "spend", "new_sketch"),
    [
        (RO, AMPLE, {}),
        (AR, AMPLE, {}),
        (RO, AMPLE, {"sigma": 0.1}),
        (RO, AMPLE, {"schema": fit_pb2.ScaleFromSchema()}),
        (RO, AMPLE, {"frequencies_per_row": 30}),
        (RO, AMPLE, {"signature": fit_pb2.SIGNATURE_ONE_BIT, "sigma": 0.1}),
        (RO, AMPLE, {"law": fit_pb2.FREQUENCY_LAW_MULTISCALE}),
        (RO, AMPLE, {"units": fit_pb2.COLUMN_UNITS_BOUNDS}),
        (AR, types_pb2.Spend(epsilon=20.0), {}),
    ],
    ids=lambda value: str(value).replace("\n", " ")[:40],
)
def test_an_ample_spend_finds_the_clusters(
    adjacency: Adjacency, spend: types_pb2.Spend, new_sketch: dict[str, Any]
) -> None:
    """Every mechanism, law, structure and scale finds three clear clusters, about as well as if it had the rows."""
    public = table(adjacency=adjacency, rows=None if adjacency is AR else len(ROWS))
    made = plan(public, spend=spend, new_sketch=new_sketch, n_init=6)
    model = run(made, ROWS, adjacency=adjacency)
    check_valid(model, made, 3)
    assert relative_sse(ROWS, model.decoded.means) < 1.05
    assert array(model.decoded.weights) == pytest.approx(1 / 3, abs=0.05)
    # Clusters of standard deviation 1; a one-bit sketch has harmonics, and is less sure of the width.
    assert array(model.decoded.covariances) == pytest.approx(1.0, rel=0.6)
    assert model.decoded.n_rows == pytest.approx(len(ROWS), rel=0.05)
    # A right model leaves noise, and what rows are sampled, less here, where every cluster has as many; of a one-bit
    # sketch also what harmonics are left.
    assert 0.2 < model.residual < (20 if {"signature", "frequencies_per_row"} & new_sketch.keys() else 3)


def test_fast_frequencies_find_clusters_in_many_columns() -> None:
    """Hadamard frequencies do what dense ones do, where there are enough columns for many directions."""
    centres = np.array([[-5.0], [0.0], [5.0]]) * np.where(np.arange(16) % 3, 1.0, -1.0)
    X = clusters(6000, 4, centres)
    new_sketch = {"n_frequencies": 480, "structure": fit_pb2.FREQUENCY_STRUCTURE_HADAMARD}
    made = plan(table(16, rows=len(X)), spend=AMPLE, new_sketch=new_sketch)
    assert made.warnings == ()
    assert relative_sse(X, run(made, X).decoded.means, centres) < 1.05


def test_a_mixture_has_diagonal_covariances() -> None:
    """Widths per column come out in the data's own units, whatever the sketch's units are."""
    X = clusters(20_000, 2, CENTRES) * np.array([1.0, 3.0])
    public = table(bound=30.0, rows=len(X))
    made = plan(public, decoding=fit_pb2.DECODING_MIXTURE, spend=types_pb2.Spend(rho=10.0), new_sketch={})
    model = run(made, X)
    assert model.decoded.mode == fit_pb2.MODE_MIXTURE
    assert model.decoded.covariance_type == fit_pb2.COVARIANCE_TYPE_DIAG
    assert array(model.decoded.covariances) == pytest.approx(np.tile([1.0, 9.0], (3, 1)), rel=0.25)
    assert tuple(model.decoded.noise) == made.noise


def test_the_pilot_decides_the_scale_and_nothing_that_is_paid_for() -> None:
    """Two releases of the plan's events; the second's frequencies have the scale that the first one says."""
    made = plan(table(rows=len(ROWS)), new_sketch={})
    # 0.81 times 3^(-1/2) times the standard deviation of the centres, which is about 0.5, or 0.15 of the bounds; for
    # these what the bounds suggest counts, too.
    for X, expected in ((ROWS, 0.23), (0.3 * ROWS, 0.09)):
        taps: list[Release] = []
        model = run(made, X, taps=taps)
        assert tuple(release.event for release in taps) == made.events
        assert model.sketch.pilot_sigma == model.sketch.frequencies.sigma == pytest.approx(expected, rel=0.6)
        assert [release.statistic.size for release in taps] == [128, 200]
        assert model.decoded.iterations == 2
        assert [noise.name for noise in model.decoded.noise] == ["pilot sketch", "sketch"]


def test_a_sketch_alone_is_not_decoded() -> None:
    """The sketch and nothing else comes without a number of clusters."""
    model = run(plan(n_clusters=0), ROWS)
    assert model.HasField("sketch")
    assert not model.HasField("decoded")


@pytest.mark.parametrize("decoding", ["kmeans", "mixture"])
@pytest.mark.parametrize("n_init", [None, 3])
def test_a_client_decodes_what_the_server_would_decode(decoding: Any, n_init: int | None) -> None:
    """Every field of the model is equal with the same noise, foreign sketches, both adjacencies and the pilot."""
    for adjacency in (AR, RO):
        other = run(plan(table(adjacency=adjacency, rows=900), n_clusters=0), ROWS[:900], adjacency=adjacency).sketch
        cases: tuple[dict[str, Any], ...] = ({"new_sketch": {}}, {"foreign": [other]})
        for fields in cases:
            asked: SketchKMeans[Any] = SketchKMeans(n_clusters=2, decoding=decoding, n_init=n_init, decoder_seed=5)
            sent: dict[str, Any] = {"n_clusters": 2, "n_init": n_init or 0, "public_seed": 5, **fields}
            sent["decoding"] = fit_pb2.Decoding.Value(f"DECODING_{decoding.upper()}")
            models = [
                run(
                    plan(table(adjacency=adjacency, rows=len(ROWS)), decode_on_client=here, **sent),
                    ROWS,
                    adjacency=adjacency,
                    source=NoNoise(),
                )
                for here in (False, True)
            ]
            there, here = (_convert.sketch_model_from(model, None) for model in models)
            assert models[0].sketch == models[1].sketch
            assert here.decoded is None
            assert here.sketch is not None
            foreign = [_convert.sketch_from(one, None) for one in fields.get("foreign", ())]
            decoded = decode(replace(asked, foreign=foreign), here.sketch, None, here.noise[:-1])
            assert there.decoded is not None
            assert decoded.to_dict() == there.decoded.to_dict()


def test_what_a_client_decodes_the_server_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """New, earlier and foreign sketches: it releases the first, gives the second again, and has no part in the last."""
    model = run(plan(new_sketch={}), ROWS)
    monkeypatch.delattr(Sketch, "decode")
    released = run(plan(new_sketch={}, decode_on_client=True), ROWS)
    assert not released.HasField("decoded")
    assert [one.name for one in released.noise] == ["pilot sketch", "sketch"]
    given = run(again(model, decode_on_client=True), nothing())
    assert (given.sketch.sums, given.HasField("decoded")) == (model.sketch.sums, False)
    request = fit_pb2.FitSketchKMeansRequest(n_clusters=3, foreign=[released.sketch], decode_on_client=True)
    made = sketch.plan(request, table(), nothing_released)
    assert run(made, nothing()).ListFields() == [
        (fit_pb2.SketchModel.DESCRIPTOR.fields_by_name["noise"], [*made.noise])
    ]


def test_progress_counts_releases_and_the_decoding() -> None:
    """Steps depend on the plan alone and end with the last."""
    for fields, expected in (
        ({"new_sketch": {}}, [(1, 3), (2, 3), (3, 3)]),
        ({"new_sketch": {}, "n_clusters": 0}, [(1, 2), (2, 2)]),
        ({}, [(1, 2), (2, 2)]),
        ({"n_clusters": 0}, [(1, 1)]),
        ({"new_sketch": {}, "decode_on_client": True}, [(1, 2), (2, 2)]),
    ):
        made, steps = plan(**fields), list[tuple[int, int]]()
        run(made, ROWS[:100], steps=steps)
        assert steps == expected
        assert made.iterations == len(expected)


def test_the_number_of_rows_is_public_or_noisy() -> None:
    """It is the table's under REPLACE_ONE; under ADD_REMOVE_ONE it is measured, with the declared noise."""
    public = run(plan(table(rows=len(ROWS)), n_clusters=0), ROWS).sketch
    assert (public.n_rows, public.n_rows_std) == (len(ROWS), 0.0)
    made = plan(table(adjacency=AR, rows=7), n_clusters=0)
    present = np.arange(len(ROWS)) < 4000
    exact = run(made, ROWS, present=present, adjacency=AR, source=NoNoise()).sketch
    noisy = run(made, ROWS, present=present, adjacency=AR).sketch
    assert exact.n_rows == 4000.0
    assert exact.n_rows_std == made.noise[0].count_std > 0
    assert 0 < abs(noisy.n_rows - 4000.0) < 7 * noisy.n_rows_std  # beyond 7 in 10^11 runs


def again(model: fit_pb2.SketchModel, **fields: Any) -> sketch.SketchPlan:
    """The plan that decodes an earlier model's sketch."""
    request = fit_pb2.FitSketchKMeansRequest(**{"entry": 7, "n_clusters": 3, "n_init": 2, **fields})
    return sketch.plan(request, table(), lambda entry: model if entry == 7 else None)


def test_an_earlier_sketch_is_decoded_for_nothing() -> None:
    """The same decoding comes out again; another k, too; and the sketch says which entry paid for it."""
    model = run(plan(new_sketch={}), ROWS)
    free = again(model)
    assert (free.events, free.of_entry, free.iterations) == ((), 7, 1)
    steps: list[tuple[int, int]] = []
    second = run(free, nothing(), steps=steps)
    assert steps == [(1, 1)]
    assert second.sketch.entry == 7
    assert second.sketch.sums == model.sketch.sums
    assert second.decoded.means == model.decoded.means
    assert second.decoded.weights == model.decoded.weights
    assert second.residual == model.residual
    assert len(array(run(again(model, n_clusters=2), nothing()).decoded.weights)) == 2
    assert not run(again(model, n_clusters=0), nothing()).HasField("decoded")


def test_whoever_has_the_sketch_decodes_the_same() -> None:
    """The server's model is that of the sketch's own methods, number by number."""
    model = run(plan(new_sketch={"units": fit_pb2.COLUMN_UNITS_BOUNDS}), ROWS)
    received = sketch_from(model.sketch, "sketch", [])
    assert received is not None
    kmeans = received.kmeans(3, n_init=2)
    assert np.array_equal(kmeans.cluster_centers_, array(model.decoded.means))
    assert np.array_equal(kmeans.weights_, array(model.decoded.weights))
    assert np.array_equal(kmeans.variances_, array(model.decoded.covariances))
    mixture = received.gaussian_mixture(3, n_init=2)
    decoded = run(again(model, decoding=fit_pb2.DECODING_MIXTURE), nothing()).decoded
    assert np.array_equal(mixture.means_, array(decoded.means))
    assert np.array_equal(mixture.covariances_, array(decoded.covariances))


def site(X: Array) -> fit_pb2.Sketch:
    """A site's sketch of its own rows, without noise."""
    return run(plan(table(rows=len(X)), n_clusters=0), X, source=NoNoise()).sketch


def test_sites_together_are_one_table() -> None:
    """Sketches of two halves, merged by the server, are decoded like the sketch of the whole."""
    halves = [site(ROWS[:1500]), site(ROWS[1500:])]
    request = fit_pb2.FitSketchKMeansRequest(n_clusters=3, n_init=2, foreign=halves)
    made = sketch.plan(request, table(), nothing_released)
    together = run(made, nothing())
    whole = run(again(fit_pb2.SketchModel(sketch=site(ROWS))), nothing())
    assert not together.HasField("sketch")
    assert together.decoded.n_rows == len(ROWS)
    assert array(together.decoded.means) == pytest.approx(array(whole.decoded.means), abs=1e-3)


def test_a_new_sketch_and_an_earlier_one_are_merged_with_those_of_other_sites() -> None:
    """The new sketch alone is released; all rows are decoded."""
    other = site(ROWS[:4000])
    made = plan(table(rows=1000), foreign=[other])
    model = run(made, ROWS[4000:])
    assert model.sketch.n_rows == 1000.0
    assert model.sketch.sites == 1
    assert model.decoded.n_rows == 5000.0
    assert relative_sse(ROWS, model.decoded.means) < 1.05
    free = again(model, foreign=[other])
    assert run(free, nothing()).decoded.means == model.decoded.means


def test_nonsense_from_elsewhere_is_decoded_to_something_valid() -> None:
    """The largest numbers that a foreign sketch may have, merged, still give a model."""
    wild: dict[str, Any] = {"noise_std": 1e100, "sums": types_pb2.Tensor(shape=[2, 20], values=[1e100, -1e100] * 20)}
    foreign = [foreign_sketch(**wild, n_rows=n) for n in (1e-300, 1.0, 1e100)]
    request = fit_pb2.FitSketchKMeansRequest(n_clusters=3, n_init=1, foreign=foreign)
    made = sketch.plan(request, table(), nothing_released)
    weights = array(run(made, nothing()).decoded.weights)
    assert weights.sum() == pytest.approx(1.0)


def test_releases_do_not_depend_on_what_is_decoded() -> None:
    """Two requests that differ in their decoding have the same sketch with the same noise."""
    first, second = (
        run(plan(n_clusters=k, decoding=decoding, n_init=1), ROWS, source=NoNoise())
        for k, decoding in ((2, fit_pb2.DECODING_KMEANS), (4, fit_pb2.DECODING_MIXTURE))
    )
    assert first.sketch == second.sketch


def pilot(d: int, k: int, sd: float, noise: float, seed: int, reach: float = 1.0) -> Sketch:
    """A pilot sketch of a mixture of k spheres of standard deviation sd in [-1, 1]^d.

    `noise` is the variance of the noise of a moment; centres are uniform in [-reach, reach]^d.
    """
    generator = np.random.default_rng(seed)  # noqa: TID251 - a made-up table
    frequencies = Frequencies(64, d, seed, PILOT_SIGMA, "multiscale")
    W, n = frequencies.matrix(), 1e6
    centres = generator.uniform(-reach, reach, (k, d))
    moments = np.exp(1j * W @ centres.T) @ generator.dirichlet(np.full(k, 5.0))
    moments *= np.exp(-np.square(W).sum(axis=1) * sd**2 / 2)
    sums = n * (np.array([moments.real, moments.imag]) + generator.normal(0, np.sqrt(noise / 2), (2, 64)))
    box = np.ones(d)
    return Sketch(
        tuple(f"x{i}" for i in range(d)),
        0 * box,
        box,
        -box,
        box,
        frequencies,
        "exponential",
        64,
        sums,
        n * np.sqrt(noise / 2),
        n,
        0.0,
    )


@pytest.mark.slow
@each("d", [1, 5, 30])
@each("k", [2, 5, 20])
@each("sd", [0.01, 0.03, 0.1, 0.3])
def test_the_width_of_clusters_is_found_from_noisy_moments(d: int, k: int, sd: float) -> None:
    """Widths are a hundredth to a third of the bounds, clusters and columns few and many, k known or not."""
    for noise, worst in ((1e-6, 1.25), (1e-3, 2.0)):
        guesses = [estimate_scales(pilot(d, k, sd, noise, seed), n).within for seed in range(5) for n in (k, 0)]
        assert sd / worst < np.median(guesses) < sd * worst
        assert max(max(guesses) / sd, sd / min(guesses)) < 2.5


@pytest.mark.parametrize("d", [1, 5, 30])
@pytest.mark.parametrize("k", [5, 20])
@pytest.mark.parametrize("reach", [0.2, 1.0])
def test_the_spread_of_centres_is_found_from_noisy_moments(d: int, k: int, reach: float) -> None:
    """Centres all over the box, or in the middle fifth of it."""
    guesses = [estimate_scales(pilot(d, k, 0.02, 1e-3, seed, reach), k).between for seed in range(5)]
    assert reach / np.sqrt(3) / 2 < np.median(guesses) < 2 * reach / np.sqrt(3)


def test_frequencies_suit_clusters_or_the_room_between_them() -> None:
    """Wide clusters have their own scale, tight ones most of their spacing, many scales begin at a cluster's."""
    wide, tight = (pilot(2, 4, sd, 1e-5, 1) for sd in (0.3, 0.01))
    assert frequency_scale(wide, 4, "adapted_radius") == pytest.approx(1.2 * estimate_scales(wide, 4).within)
    scales = estimate_scales(tight, 4)
    assert frequency_scale(tight, 4, "adapted_radius") == pytest.approx(0.81 * 4**-0.5 * scales.between)
    assert frequency_scale(tight, 4, "multiscale") == pytest.approx(1.2 * scales.within)
    assert frequency_scale(tight, 1, "adapted_radius") == pytest.approx(1.2 * estimate_scales(tight, 1).within)


def test_a_small_cloud_gets_wider_frequencies_than_its_clusters_need() -> None:
    """Up to 0.6 of what the bounds suggest, but no more than 3.5 times what the cloud's own spacing does."""
    for reach in (0.05, 0.2):
        small = pilot(2, 4, 0.002, 1e-5, 1, reach)
        spacing = 0.45 * 4**-0.5 * estimate_scales(small, 4).between
        least = max(1.8 * spacing, min(0.6 * schema_sigma(4, 2), 3.5 * spacing))
        assert frequency_scale(small, 4, "adapted_radius") == pytest.approx(least)
        assert least > 1.8 * spacing


def test_noise_alone_gives_the_middle_of_the_range() -> None:
    """The guess under noise is that of somebody who has not looked, not an extreme."""
    for seed in range(5):
        assert 0.01 < frequency_scale(pilot(3, 4, 0.05, 1e3, seed), 4, "adapted_radius") < 0.5


@each("n_rows", [-1e15, 0.0, 1e15])
@each("size", [0.0, 1e-300, 1.0, 1e100])
@each("noise_std", [1e-300, 1.0, 1e100])
def test_the_scale_is_always_within_its_range(n_rows: float, size: float, noise_std: float) -> None:
    """Nonsense moments give some scale."""
    box = np.ones(1)
    sums = size * np.array([[1.0, -1.0] * 8, [1.0] * 16])
    frequencies = Frequencies(16, 1, 0, PILOT_SIGMA, "multiscale")
    wild = Sketch(("x",), 0 * box, box, -box, box, frequencies, "exponential", 16, sums, noise_std, n_rows, 1.0)
    for k in (0, 1, 256):
        assert PILOT_SIGMA * 0.999 <= frequency_scale(wild, k, "adapted_radius") <= 1.0


def test_kernels_are_compiled_before_the_first_request() -> None:
    """No kind of sketch compiles anything after warming up, so the time of the first one says nothing."""
    kernels = [
        _kernel.dense_sums,
        _kernel.masked_dense_sums,
        _kernel.hadamard_sums,
        _kernel.masked_hadamard_sums,
    ]
    sketch.warm_up()
    compiled = [len(kernel.signatures) for kernel in kernels]
    assert min(compiled) >= 1
    for structure in (fit_pb2.FREQUENCY_STRUCTURE_DENSE, fit_pb2.FREQUENCY_STRUCTURE_HADAMARD):
        for signature in (fit_pb2.SIGNATURE_EXPONENTIAL, fit_pb2.SIGNATURE_ONE_BIT):
            for r in (0, 30):
                new = {"structure": structure, "signature": signature, "frequencies_per_row": r, "sigma": 0.1}
                run(plan(n_clusters=0, new_sketch=new), ROWS[:10])
    assert [len(kernel.signatures) for kernel in kernels] == compiled
