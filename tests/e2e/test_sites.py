"""Three sites without one another's rows: a server, a state directory beside it, and a device; one model of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import bursar
from bursar_ledger import Adjacency, Ledger, verify
from bursar_server.devices import sketch_rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Home

SEED, SIGMA, M, ROWS = 11, 0.3, 60, 3000
CENTRES = np.array([[0.55, 2.5], [-0.45, 7.5], [-0.45, 1.5]])
"""Of the tables of these tests, and of the device."""


def _sites(home: Home, folder: Path) -> list[bursar.Sketch]:
    """The state directory's sketch, typed while the server runs, and the device's, which has a cluster of its own."""
    home.add_table("south", rows=ROWS, shift=0.02)
    agreed = ("--frequencies", M, "--sigma", SIGMA, "--seed", SEED, "--units", "bounds")
    home.admin("sketch", "make", "south", "--rho", 0.02, *agreed, "--out", folder / "south.json", "--yes")
    rows = CENTRES[2] + np.random.default_rng(0).normal(0, 0.05, (ROWS, 2)) * [1, 5]  # noqa: TID251 - rows of a test
    device = sketch_rows(
        {"x": (-1, 1), "y": (0, 10)},
        rows,
        adjacency=Adjacency.ADD_REMOVE_ONE,
        spend=bursar.rho(0.5),
        n_frequencies=M,
        sigma=SIGMA,
        public_seed=SEED,
        units="bounds",
    )
    return [bursar.load_sketch(folder / "south.json"), device]


def test_three_sites_make_one_model(home: Home, tmp_path: Path) -> None:
    """What others published is merged with the server's sketch, by the client or the server; each pays for itself."""
    server = home.start()
    sites = _sites(home, tmp_path)
    client = bursar.connect(
        server.address, token=home.tokens["analyst"], ca=home.state.tls / "ca.pem", history=tmp_path / "history.json"
    )
    with client:
        people = client.dataset("people")
        agreed: dict[str, Any] = {"n_frequencies": M, "scale": SIGMA, "public_seed": SEED, "units": "bounds"}
        model = people.fit_sketch_kmeans(
            n_clusters=3, spend=bursar.rho(0.02), foreign=sites, n_init=3, progress=False, **agreed
        )
        own = model.sketch
        assert own is not None
        assert own.n_rows == 400
        here = own.merge(*sites).kmeans(3, n_init=3)
        np.testing.assert_allclose(model.cluster_centers_, here.cluster_centers_, rtol=1e-9)
        paid = model.receipt
        assert paid is not None
        there = people.fit_sketch_kmeans(
            n_clusters=3, sketch=own, foreign=sites, n_init=3, progress=False, decoded_by="server"
        )
        np.testing.assert_allclose(there.cluster_centers_, here.cluster_centers_, rtol=1e-9)
        assert there.noise == model.noise
        free = people.fit_sketch_kmeans(n_clusters=3, sketch=paid, foreign=sites, n_init=3, progress=False)
        np.testing.assert_allclose(free.cluster_centers_, here.cluster_centers_, rtol=1e-9)
        assert free.receipt is not None
        assert free.receipt.free
        assert [one.entry for one in people.sketches()] == [paid.entry]
        odd = sketch_rows(
            {"x": (-1, 1), "y": (0, 10)},
            np.zeros((5, 2)),
            adjacency=Adjacency.REPLACE_ONE,
            spend=bursar.rho(0.5),
            n_frequencies=M,
            sigma=SIGMA,
            public_seed=SEED + 1,
        )
        with pytest.raises(bursar.InvalidRequestError, match="foreign"):
            people.fit_sketch_kmeans(n_clusters=3, sketch=paid, foreign=[odd], progress=False)
    distances = np.linalg.norm((here.cluster_centers_[:, None] - CENTRES) / [1, 5], axis=2)
    assert distances.min(axis=0).max() < 0.25
    with Ledger.open(home.state.ledger) as ledger:
        debits = [(entry.dataset, entry.actor) for entry in ledger.entries() if entry.kind == "debit"]
    assert [dataset for dataset, _ in debits] == ["south", "people"]
    assert debits[0][1].startswith("local:")
    assert verify(home.state.ledger).ok
