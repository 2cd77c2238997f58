"""Sketches of several sites: what one releases, and what all of them are together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import bursar
from bursar_ledger import Adjacency
from bursar_models import Sketch
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.admin._site_sketch import merged, new_sketch, read_sketch, write_sketch
from bursar_server.fits import BoundedColumn, InvalidFieldsError, PublicTable, sketch
from bursar_server.fits.sketch._statistics import default_count_weight
from bursar_server.fits.sketch._wire import sketch_from, sketch_to
from bursar_server.vault import ArrayRows, Meter, NoiseSource, Session, SyntheticBudget
from tests.server.fits import running
from tests.server.fits.running import Array, NoNoise, clusters, nothing_released, table

if TYPE_CHECKING:
    from pathlib import Path

BOUNDS = {"x0": (-10.0, 10.0), "x1": (-10.0, 10.0)}
CENTRES = np.array([[-6.0, -6.0], [6.0, 6.0], [-6.0, 6.0]])
M = 60
SIZES = (700, 1500, 3000)
RHOS = (0.5, 2.0, 0.1)


def site(
    rows: Any,
    *,
    source: NoiseSource | None = None,
    columns: dict[str, tuple[float, float]] = BOUNDS,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    unit_cap: int = 1,
    spend: types_pb2.Spend | None = None,
    **new: Any,
) -> Sketch:
    """A site's sketch as its ledger's price pays for it, with what all sites agree on but for what is given."""
    agreed: dict[str, Any] = {
        "n_frequencies": M,
        "sigma": 0.1,
        "public_seed": 7,
        "frequencies_per_row": None,
        "law": "adapted_radius",
        "structure": "dense",
        "signature": "exponential",
        "units": "common",
    }
    X = np.asarray(rows)
    numeric = tuple(BoundedColumn(name, lower, upper) for name, (lower, upper) in columns.items())
    public_rows = len(X) if adjacency is Adjacency.REPLACE_ONE else None
    request = fit_pb2.FitSketchKMeansRequest(spend=spend or rho(0.5), new_sketch=new_sketch(**{**agreed, **new}))
    plan = sketch.plan(request, PublicTable("people", numeric, adjacency, unit_cap, public_rows), nothing_released)
    session = running.session(plan, X, adjacency=adjacency, unit_cap=unit_cap, source=source)
    found = sketch_from(sketch.run(plan, session).sketch, "sketch", [])
    assert found is not None
    return found


def rho(amount: float) -> types_pb2.Spend:
    """An amount for Gaussian noise."""
    return types_pb2.Spend(rho=amount)


def sites(**arguments: Any) -> tuple[list[Array], list[Sketch]]:
    """Rows and sketches of three sites of different sizes and noise."""
    rows = [clusters(n, seed, CENTRES) for seed, n in enumerate(SIZES)]
    return rows, [site(X, spend=rho(amount), **arguments) for X, amount in zip(rows, RHOS, strict=True)]


def together(parts: list[Sketch]) -> Sketch:
    """Sketches of several sites as one."""
    return parts[0].merge(*parts[1:])


@pytest.mark.parametrize("signature", ["exponential", "one_bit"])
@pytest.mark.parametrize("structure", ["dense", "hadamard"])
def test_merged_sites_are_the_union_of_their_rows(signature: str, structure: str) -> None:
    """The merged sums without noise are those of one table with all rows, to the last bit."""
    rows, parts = sites(source=NoNoise(), signature=signature, structure=structure)
    union = site(np.concatenate(rows), source=NoNoise(), signature=signature, structure=structure)
    both = together(parts)
    np.testing.assert_array_equal(both.sums, union.sums)
    np.testing.assert_allclose(both.moments(), union.moments(), rtol=1e-12)
    assert (both.n_rows, both.sites, both.receipt) == (sum(SIZES), 3, None)
    assert both.noise_std == pytest.approx(math.hypot(*(part.noise_std for part in parts)))


def test_merged_noise_is_as_large_as_it_says() -> None:
    """Three sites spent differently: the difference to the exact sums is in its standard deviations."""
    rows, parts = sites()
    both, exact = together(parts), site(np.concatenate(rows), source=NoNoise())
    scores = (both.sums - exact.sums) / both.noise_std
    assert np.abs(scores).max() < 7  # 120 normal numbers: 3e-10
    assert 0.35 < np.square(scores).mean() < 1.9  # chi-squared with 120 degrees of freedom: 1e-7
    assert len({part.noise_std for part in parts}) == 3


def test_rows_count_the_same_whatever_site_they_are_of() -> None:
    """Moments are weighted by rows; for sites of one size that is their plain mean (paper, definition 4)."""
    _, parts = sites(source=NoNoise())
    weighted = sum(n * part.moments() for n, part in zip(SIZES, parts, strict=True)) / sum(SIZES)
    np.testing.assert_allclose(together(parts).moments(), weighted, rtol=1e-12)
    equal = [site(clusters(500, seed, CENTRES), source=NoNoise()) for seed in range(3)]
    np.testing.assert_allclose(together(equal).moments(), np.mean([one.moments() for one in equal], axis=0), rtol=1e-12)


def test_sites_may_ask_their_rows_for_different_numbers_of_frequencies() -> None:
    """Each site's alpha_r = r / m is divided out of its own sums and noise (paper, definition 3)."""
    rows = [clusters(n, seed, CENTRES) for seed, n in enumerate(SIZES)]
    parts = [site(X, source=NoNoise(), frequencies_per_row=r) for X, r in zip(rows, (6, 30, 60), strict=True)]
    both = together(parts)
    weighted = sum(n * part.moments() for n, part in zip(SIZES, parts, strict=True)) / sum(SIZES)
    np.testing.assert_allclose(both.moments(), weighted, rtol=1e-12)
    noise = math.hypot(*(part.noise_std / part.alpha_r for part in parts)) / sum(SIZES)
    assert both.moment_std() == pytest.approx(noise)
    # A moment of a site misses that of its rows by a variance of at most (1 / alpha_r) / n.
    error = np.abs(both.moments() - site(np.concatenate(rows), source=NoNoise()).moments())
    allowed = math.sqrt(sum(n / part.alpha_r for n, part in zip(SIZES, parts, strict=True))) / sum(SIZES)
    assert np.sqrt(np.square(error).mean()) < 2 * allowed


def test_clusters_are_found_though_no_site_has_all_of_them() -> None:
    """One site has the first cluster only, another the rest."""
    parts = [
        site(clusters(1500, 1, CENTRES[:1])),
        site(clusters(3000, 2, CENTRES[1:]), spend=types_pb2.Spend(epsilon=5)),
    ]
    model = together(parts).kmeans(3, n_init=4)
    found = model.cluster_centers_[np.argsort(model.cluster_centers_ @ [1.0, 2.0])]
    np.testing.assert_allclose(found, CENTRES[np.argsort(CENTRES @ [1.0, 2.0])], atol=0.5)
    np.testing.assert_allclose(model.weights_, 1 / 3, atol=0.05)


def test_private_numbers_of_rows_are_merged_with_their_noise() -> None:
    """The noise of n under ADD_REMOVE_ONE adds as its variance does, also beside a site whose n is public."""
    rows, parts = sites(adjacency=Adjacency.ADD_REMOVE_ONE)
    public = site(clusters(100, 9, CENTRES))
    both = together([*parts, public])
    assert both.n_rows == pytest.approx(sum(part.n_rows for part in parts) + 100)
    assert both.n_rows_std == pytest.approx(math.hypot(*(part.n_rows_std for part in parts)))
    assert public.n_rows_std == 0
    assert abs(both.n_rows - sum(map(len, rows)) - 100) < 7 * both.n_rows_std
    assert all(part.n_rows != len(X) for part, X in zip(parts, rows, strict=True))


@pytest.mark.parametrize("mixture", [False, True])
def test_a_server_merges_foreign_sketches_as_the_client_does(mixture: bool) -> None:
    """The same centres, from the same sketches, at no cost."""
    _, parts = sites(adjacency=Adjacency.ADD_REMOVE_ONE)
    request = fit_pb2.FitSketchKMeansRequest(
        dataset="people",
        n_clusters=3,
        n_init=2,
        public_seed=5,
        foreign=[sketch_to(part) for part in parts],
        decoding=fit_pb2.DECODING_MIXTURE if mixture else fit_pb2.DECODING_KMEANS,
    )
    plan = sketch.plan(request, table(), nothing_released)
    session = Session(
        rows=ArrayRows(np.empty((0, 0))),
        columns=2,
        adjacency=Adjacency.REPLACE_ONE,
        unit_cap=1,
        meter=Meter(SyntheticBudget(Fraction(2), 0)),
        source=NoNoise(),
    )
    decoded = sketch.run(plan, session).decoded
    assert plan.events == ()
    here = together(parts)
    if mixture:
        model = here.gaussian_mixture(3, n_init=2, public_seed=5)
        weights, centres, variances = model.weights_, model.means_, model.covariances_
    else:
        kmeans = here.kmeans(3, n_init=2, public_seed=5)
        weights, centres, variances = kmeans.weights_, kmeans.cluster_centers_, kmeans.variances_
    np.testing.assert_allclose(decoded.weights.values, weights, rtol=1e-9)
    np.testing.assert_allclose(decoded.means.values, centres.ravel(), rtol=1e-9)
    np.testing.assert_allclose(decoded.covariances.values, variances.ravel(), rtol=1e-9)
    assert decoded.n_rows == here.n_rows


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("frequencies", {"public_seed": 8}),
    ("frequencies", {"sigma": 0.11}),
    ("frequencies", {"n_frequencies": M + 1}),
    ("frequencies", {"law": "multiscale"}),
    ("frequencies", {"structure": "hadamard"}),
    ("columns", {"columns": {"x1": (-10.0, 10.0), "x0": (-10.0, 10.0)}}),
    ("centre", {"columns": BOUNDS | {"x1": (-10.0, 9.0)}}),
    ("lower", {"columns": BOUNDS | {"x1": (-9.0, 9.0)}}),
    ("unit", {"columns": BOUNDS | {"x1": (-8.0, 8.0)}, "units": "bounds"}),
    ("signature", {"signature": "one_bit"}),
]


@pytest.mark.parametrize(
    ("field", "change"), CHANGES, ids=[str(next(iter(c))) + str(i) for i, (_, c) in enumerate(CHANGES)]
)
def test_sites_that_did_not_agree_are_not_merged(field: str, change: dict[str, Any]) -> None:
    """The field that differs is named: by the client, for files, and by a server."""
    one, other = site(clusters(50, 0, CENTRES)), site(clusters(50, 1, CENTRES), **change)
    with pytest.raises(ValueError, match=field):
        one.merge(other)
    with pytest.raises(ValueError, match=rf"south.json does not go with north.json: .*{field}"):
        merged({"north.json": one, "south.json": other})
    request = fit_pb2.FitSketchKMeansRequest(dataset="people", n_clusters=3, foreign=[sketch_to(one), sketch_to(other)])
    with pytest.raises(InvalidFieldsError) as caught:
        sketch.plan(request, table(), nothing_released)
    assert f"foreign[1].{field}" in dict(caught.value.violations)


def test_a_sketch_is_not_merged_with_itself() -> None:
    """Its rows would count twice."""
    one = site(clusters(50, 0, CENTRES))
    with pytest.raises(ValueError, match=r"a\.json and c\.json are the same sketch"):
        merged({"a.json": one, "b.json": site(clusters(50, 1, CENTRES)), "c.json": replace(one)})


@pytest.mark.parametrize(
    ("arguments", "std"),
    [
        ({}, 2 * math.sqrt(M)),
        ({"frequencies_per_row": 15}, 2 * math.sqrt(15)),
        ({"signature": "one_bit"}, 2 * math.sqrt(2 * M)),
        ({"unit_cap": 3}, 6 * math.sqrt(M)),
        ({"adjacency": Adjacency.ADD_REMOVE_ONE}, math.hypot(math.sqrt(M), default_count_weight(M))),
        ({"spend": types_pb2.Spend(epsilon=1)}, 2 * math.sqrt(2) * M * math.sqrt(2)),
    ],
    ids=["all", "some", "one bit", "three rows a unit", "private n", "Laplace"],
)
def test_noise_is_what_the_spend_buys(arguments: dict[str, Any], std: float) -> None:
    """Sensitivity over sqrt(2 rho), rho being 1/2, or sqrt(2) times that in L1 over epsilon; the lattice rounds it."""
    made = site(clusters(50, 0, CENTRES), **arguments)
    assert made.noise_std == pytest.approx(std, rel=1e-4)


def test_nothing_that_is_decided_knows_a_private_number_of_rows() -> None:
    """An empty site releases as a full one does under ADD_REMOVE_ONE."""
    empty, full = (site(clusters(n, 0, CENTRES), adjacency=Adjacency.ADD_REMOVE_ONE) for n in (0, 2000))
    assert (empty.noise_std, empty.n_rows_std, empty.frequencies) == (full.noise_std, full.n_rows_std, full.frequencies)


def test_rows_that_are_no_numbers_are_not_there_and_rows_outside_are_at_the_bounds() -> None:
    """No row can stop the release, or count for more than any other row."""
    rows = clusters(5, 0, CENTRES)
    odd = np.vstack([rows, [[np.nan, 1.0], [np.inf, 1.0], [50.0, -1e300]]])
    private = site(odd, source=NoNoise(), adjacency=Adjacency.ADD_REMOVE_ONE)
    plain = site(np.vstack([rows, [[10.0, -10.0]]]), source=NoNoise(), adjacency=Adjacency.ADD_REMOVE_ONE)
    np.testing.assert_array_equal(private.sums, plain.sums)
    assert (private.n_rows, site(odd, source=NoNoise()).n_rows) == (6, 8)


ROWS = np.zeros((4, 2))


def test_a_file_has_the_same_numbers_for_server_and_sdk(tmp_path: Path) -> None:
    """They agree to the last bit; the owner alone reads it, and no other file is replaced."""
    made = site(clusters(50, 0, CENTRES), signature="one_bit", structure="hadamard", law="multiscale")
    path = tmp_path / "site.json"
    write_sketch(path, sketch_to(made))
    for read in (read_sketch(path), bursar.load_sketch(path)):
        np.testing.assert_array_equal(read.sums, made.sums)
        assert (read.noise_std, read.frequencies, read.signature) == (made.noise_std, made.frequencies, "one_bit")
    assert path.stat().st_mode & 0o777 == 0o600
    write_sketch(path, sketch_to(made))
    with pytest.raises(ValueError, match="something else"):
        write_sketch(path, sketch_to(site(ROWS)))
    bursar.save_sketch(read_sketch(path), again := tmp_path / "again.json")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields["frequencies"].update(publicSeed="9", public_seed="9"), "is no sketch"),
        (lambda fields: fields["frequencies"].update(public_seed="9"), "frequencies.digest"),
        (lambda fields: fields["frequencies"].update(sigma=0.2), "frequencies.digest"),
        (lambda fields: fields["sums"]["values"].pop(), "sums"),
        (lambda fields: fields["sums"]["values"].__setitem__(0, "NaN"), "sums"),
        (lambda fields: fields.update(frequencies_per_row=M + 1), "frequencies_per_row"),
        (lambda fields: fields.update(noise_std="Infinity"), "noise_std"),
        (lambda fields: fields.update(colour="red"), "is no sketch"),
        (lambda fields: fields.clear(), "columns"),
    ],
)
def test_a_file_is_not_trusted(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    """The message has its name and what is wrong."""
    path = tmp_path / "site.json"
    write_sketch(path, sketch_to(site(ROWS)))
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(ValueError, match=rf"site\.json is no sketch.*{message}|site\.json {message}"):
        read_sketch(path)


def test_what_is_no_text_is_no_sketch(tmp_path: Path) -> None:
    """An error with the file's name, whatever is in it."""
    for content in (b"", b"\xff\xfe", b"[]", b'"sketch"', b"{"):
        (tmp_path / "site.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"site\.json is no sketch"):
            read_sketch(tmp_path / "site.json")


def test_merged_sketches_go_on_the_wire() -> None:
    """Merged for a file is merged by the client."""
    _, parts = sites()
    read = sketch_from(merged({str(i): part for i, part in enumerate(parts)}), "sketch", [])
    assert read is not None
    np.testing.assert_array_equal(read.sums, together(parts).sums)
    assert (read.sites, read.n_rows) == (3, sum(SIZES))
