"""Separated components through the SDK from the real server: found, estimated, and too few for the spend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import bursar
from bursar_ledger import Ledger, verify
from tests import asking

if TYPE_CHECKING:
    from tests.e2e.conftest import Home, Server

MANIFEST = """
name = "stars"
adjacency = "add_remove_one"
public_rows = 9000
[[columns]]
name = "x"
kind = "numeric"
lower = -100.0
upper = 100.0
[[columns]]
name = "y"
kind = "numeric"
lower = -100.0
upper = 100.0
[[columns]]
name = "mass"
kind = "numeric"
lower = 0.0
upper = 10.0
nullable = true
"""

N = 9000
MEANS = np.array([[-30.0, 10.0], [0.0, -20.0], [40.0, 30.0]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
ASK: dict[str, Any] = {"columns": ["x", "y"], "n_components": 3, "sigma_min": 0.5, "sigma_max": 5.0}
SPEND = bursar.rho(0.5)


def _stars(home: Home) -> None:
    """Three round groups of standard deviation 2, far apart; some masses are unknown."""
    rng = np.random.default_rng(3)  # noqa: TID251 - invented rows
    group = rng.choice(3, size=N, p=WEIGHTS)
    places = MEANS[group] + 2.0 * rng.standard_normal((N, 2))
    rows = [f"{x:.6f},{y:.6f},{'' if index % 3 else 5.0}" for index, (x, y) in enumerate(places)]
    folder = home.state.path.parent
    (folder / "rows.csv").write_text("\n".join(["x,y,mass", *rows]))
    (folder / "table.toml").write_text(MANIFEST)
    budget = ("--epsilon", "30", "--delta", "1e-6", "--i-know")
    home.admin("import", "--manifest", folder / "table.toml", "--csv", folder / "rows.csv", *budget)


def _check_found(model: bursar.GaussianMixture) -> None:
    """Every group, within eight of the errors that the result says it has, which are small."""
    assert model.found_ == 3
    order = np.argsort(model.means_[:, 0])
    errors = [model.mean_errors_, model.weight_errors_, model.covariance_errors_]
    means, weights, covariances = (np.asarray(error)[order] for error in errors)
    assert (means < 1.0).all()
    assert (np.abs(model.means_[order] - MEANS) <= 8 * means).all()
    assert (np.abs(model.weights_[order] - WEIGHTS) <= 8 * weights + 0.02).all()
    distances = np.linalg.norm(model.covariances_[order] - 4.0 * np.eye(2), axis=(1, 2))
    assert (distances <= 8 * covariances * 4.0 * 2**0.5).all()


@pytest.mark.slow
def test_what_lies_apart_is_found_paid_and_verified(shared: Server) -> None:
    """The debit is the previewed one, results are near the truth, and a repetition is free."""
    home = shared.home
    _stars(home)
    with bursar.connect(shared.address, token=home.tokens["analyst"], ca=home.state.tls / "ca.pem") as client:
        stars = client.dataset("stars")
        preview = asking.preview(stars, bursar.SeparatedGMM, **ASK, spend=SPEND)
        model = asking.fit(stars, bursar.SeparatedGMM, **ASK, spend=SPEND, request_id="stars", progress=False)
        assert model.receipt is not None
        assert (preview.price, preview.iterations) == (model.receipt.price, model.iterations)
        assert model.noise == preview.noise
        assert model.n_rows == pytest.approx(N, abs=200)
        assert preview.preflight is not None
        assert (preview.preflight.holds, preview.preflight.predicted_found) == (True, 3)
        _check_found(model)
        left = stars.remaining()
        again = asking.fit(stars, bursar.SeparatedGMM, **ASK, spend=SPEND, request_id="stars", progress=False)
        assert (again.means_ == model.means_).all()
        assert stars.remaining() == left

        _check_found(
            asking.fit(
                stars, bursar.SeparatedGMM, **ASK, search="balls", estimator="clusters", spend=SPEND, progress=False
            )
        )
        start: dict[str, Any] = {"columns": ["x", "y"], "n_components": 3, "start": model, "progress": False}
        closer = asking.fit(stars, bursar.DPEM, **start, iterations=1, spend=SPEND)
        assert np.linalg.norm(closer.means_ - model.means_, axis=1).max() < 2.0
        asking.fit(stars, bursar.GradientEM, model="gaussian_mixture", **start, spend=SPEND)

        little = asking.preview(stars, bursar.SeparatedGMM, **ASK, spend=bursar.rho(1e-4)).preflight
        assert little is not None
        assert not little.holds
        assert (little.suggested_rho or 1.0) > 1e-4
        poor = asking.fit(stars, bursar.SeparatedGMM, **ASK, spend=bursar.rho(1e-4), anyway=True, progress=False)
        assert 1 <= (poor.found_ or 0) <= 3
        rest = asking.fit(stars, bursar.SeparatedGMM, **ASK, spend=bursar.what_is_left(), progress=False)
        _check_found(rest)
        assert stars.remaining().rho < 1e-9
    with Ledger.open(home.state.ledger) as ledger:
        assert [one.dataset for one in ledger.releases()].count("stars") == 6
    assert verify(home.state.ledger).ok
