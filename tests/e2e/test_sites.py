"""Three sites without one another's rows: a server and two tables sketched beside it; one model of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import bursar
from bursar_ledger import Ledger, verify
from tests import asking

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Home

pytestmark = pytest.mark.slow

SEED, SIGMA, M, ROWS = 11, 0.3, 60, 3000
CENTRES = np.array([[0.55, 2.5], [-0.45, 7.5], [-0.45, 1.5]])
"""Centres of the tables of these tests, and of the one that is west."""


def _sites(home: Home, folder: Path) -> list[bursar.Sketch]:
    """Sketches of two other tables, typed while the server runs; the second has a cluster of its own."""
    home.add_table("south", rows=ROWS, shift=0.02)
    (x, y), jitter = CENTRES[2], (1e-3 * (i % 97) for i in range(ROWS))
    home.add_rows("west", ((x + each, y + each) for each in jitter))
    return [_sketched(home, folder, name, seed=SEED) for name in ("south", "west")]


def _sketched(home: Home, folder: Path, name: str, *, seed: int) -> bursar.Sketch:
    """The sketch of a table, made by the command beside its rows."""
    out = folder / f"{name}-{seed}.json"
    agreed = ("--frequencies", M, "--sigma", SIGMA, "--seed", seed, "--units", "bounds")
    home.admin("sketch", "make", name, "--rho", 0.01, *agreed, "--out", out, "--yes")
    return bursar.load_sketch(out)


def test_three_sites_make_one_model(home: Home, tmp_path: Path) -> None:
    """Sketches of others are merged with the server's, by the client or the server; each site pays for itself."""
    server = home.start()
    sites = _sites(home, tmp_path)
    client = bursar.connect(
        server.address, token=home.tokens["analyst"], ca=home.state.tls / "ca.pem", history=tmp_path / "history.json"
    )
    with client:
        people = client.dataset("people")
        agreed: dict[str, Any] = {"n_frequencies": M, "scale": SIGMA, "public_seed": SEED, "units": "bounds"}
        model = asking.fit(
            people,
            bursar.SketchKMeans,
            n_clusters=3,
            spend=bursar.rho(0.02),
            foreign=sites,
            n_init=3,
            progress=False,
            **agreed,
        )
        own = model.sketch
        assert own is not None
        assert own.n_rows == 400
        here = own.merge(*sites).kmeans(3, n_init=3)
        np.testing.assert_allclose(model.cluster_centers_, here.cluster_centers_, rtol=1e-9)
        paid = model.receipt
        assert paid is not None
        there = people.fit(
            bursar.SketchKMeans(n_clusters=3, sketch=own, foreign=sites, n_init=3, decoded_by="server"), progress=False
        )
        np.testing.assert_allclose(there.cluster_centers_, here.cluster_centers_, rtol=1e-9)
        assert there.noise == model.noise
        free = people.fit(bursar.SketchKMeans(n_clusters=3, sketch=paid, foreign=sites, n_init=3), progress=False)
        np.testing.assert_allclose(free.cluster_centers_, here.cluster_centers_, rtol=1e-9)
        assert free.receipt is not None
        assert free.receipt.free
        assert [one.entry for one in people.sketches()] == [paid.entry]
        odd = _sketched(home, tmp_path, "south", seed=SEED + 1)
        with pytest.raises(bursar.InvalidRequestError, match="foreign"):
            people.fit(bursar.SketchKMeans(n_clusters=3, sketch=paid, foreign=[odd]), progress=False)
    distances = np.linalg.norm((here.cluster_centers_[:, None] - CENTRES) / [1, 5], axis=2)
    assert distances.min(axis=0).max() < 0.25
    with Ledger.open(home.state.ledger) as ledger:
        debits = [(entry.dataset, entry.actor) for entry in ledger.entries() if entry.kind == "debit"]
    assert [dataset for dataset, _ in debits] == ["south", "west", "people", "south"]
    assert all(actor.startswith("local:") for dataset, actor in debits if dataset != "people")
    assert verify(home.state.ledger).ok
