"""Gradient EM through the SDK from the real server: every model, missing values, errors."""

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
name = "houses"
adjacency = "add_remove_one"
public_rows = 6000
[[columns]]
name = "age"
kind = "numeric"
lower = 0.0
upper = 100.0
[[columns]]
name = "size"
kind = "numeric"
lower = 20.0
upper = 220.0
nullable = true
[[columns]]
name = "rent"
kind = "numeric"
lower = -1000.0
upper = 3000.0
[[columns]]
name = "price"
kind = "numeric"
lower = -1000.0
upper = 3000.0
"""

N = 6000
SPEND = bursar.rho(0.5)
NOISE = 40.0


def _houses(home: Home) -> None:
    """The rent follows age and size; the price follows the age in one of two ways; half of the sizes are unknown."""
    rng = np.random.default_rng(7)  # noqa: TID251 - invented rows
    age, size = rng.uniform(20, 80, N), rng.normal(120, 20, N)
    rent = 200 + 10 * size - 5 * age + NOISE * rng.standard_normal(N)
    price = np.where(rng.random(N) < 0.4, 300 + 20 * age, 1800 - 15 * age) + NOISE * rng.standard_normal(N)
    sizes = [f"{value:.6f}" if known else "" for value, known in zip(size, rng.random(N) < 0.5, strict=True)]
    rows = [f"{a:.6f},{s},{r:.6f},{p:.6f}" for a, s, r, p in zip(age, sizes, rent, price, strict=True)]
    folder = home.state.path.parent
    (folder / "rows.csv").write_text("\n".join(["age,size,rent,price", *rows]))
    (folder / "table.toml").write_text(MANIFEST)
    budget = ("--epsilon", "30", "--delta", "1e-6", "--i-know")
    home.admin("import", "--manifest", folder / "table.toml", "--csv", folder / "rows.csv", *budget)


def _check_numbers(estimate: object, errors: object, truth: object) -> None:
    """Check that numbers are within eight of their claimed errors, and these small enough to say something."""
    distance = np.abs(np.asarray(estimate, dtype=float) - np.asarray(truth, dtype=float))
    assert (distance <= 8 * np.asarray(errors, dtype=float)).all()
    assert (np.asarray(errors, dtype=float) < 0.2 * np.abs(np.asarray(truth, dtype=float))).all()


@pytest.mark.slow
def test_every_model_is_previewed_paid_found_and_verified(shared: Server) -> None:
    """The debit is the previewed one, results are near the truth, and a repetition is free."""
    home = shared.home
    _houses(home)
    with bursar.connect(shared.address, token=home.tokens["analyst"], ca=home.state.tls / "ca.pem") as client:
        houses = client.dataset("houses")
        lines_of: dict[str, Any] = {"target": "price", "features": ["age"], "spend": SPEND}
        preview = asking.preview(houses, bursar.GradientEM, model="mixture_of_regressions", **lines_of)
        start = bursar.GivenCoefficients([[10.0], [-10.0]], intercepts=[500.0, 1500.0])
        lines = asking.fit(
            houses,
            bursar.GradientEM,
            model="mixture_of_regressions",
            **lines_of,
            start=start,
            request_id="lines",
            progress=False,
        )
        assert lines.receipt is not None
        assert preview.price == lines.receipt.price
        assert [(noise.name, noise.times) for noise in lines.noise] == [(n.name, n.times) for n in preview.noise]
        _check_numbers(lines.coef_, lines.coef_errors_, [[20.0], [-15.0]])
        _check_numbers(lines.intercept_, lines.intercept_errors_, [300.0, 1800.0])
        assert lines.weights_ == pytest.approx([0.4, 0.6], abs=0.05)
        assert lines.noise_std_ == pytest.approx([NOISE, NOISE], rel=0.2)
        assert lines.n_rows == pytest.approx(N, abs=100)
        left = houses.remaining()
        again = asking.fit(
            houses,
            bursar.GradientEM,
            model="mixture_of_regressions",
            **lines_of,
            start=start,
            request_id="lines",
            progress=False,
        )
        assert (again.coef_ == lines.coef_).all()
        assert houses.remaining() == left

        line = houses.fit(
            bursar.GradientEM(model="missing_covariates", target="rent", features=["age", "size"], iterations=40),
            spend=SPEND,
            progress=False,
        )
        _check_numbers(line.coef_, line.coef_errors_, [-5.0, 10.0])
        assert line.predict([[50.0, np.nan]]) == pytest.approx([200 + 1200 - 250], abs=30)

        further = asking.fit(
            houses, bursar.GradientEM, model="mixture_of_regressions", **lines_of, start=lines, progress=False
        )
        _check_numbers(further.coef_, further.coef_errors_, [[20.0], [-15.0]])
        one = houses.fit(
            bursar.GradientEM(model="mixture_of_regressions", target="age", features=["price"], n_components=1),
            spend=SPEND,
            progress=False,
        )
        assert one.n_components == 1
        mirrored = houses.fit(
            bursar.GradientEM(model="symmetric_mixture", columns=["rent", "price"]), spend=SPEND, progress=False
        )
        assert mirrored.centre_ == pytest.approx([1000, 1000])
        mixture = houses.fit(
            bursar.GradientEM(
                model="gaussian_mixture",
                units="bounds",
                start=houses.fit(bursar.DPEM(n_components=2), spend=SPEND, progress=False),
                n_components=2,
                heavy_tails=True,
            ),
            spend=bursar.pure(2.0),
            progress=False,
        )
        assert mixture.columns == ("age", "rent", "price")
        assert mixture.covariance_type == "diag"
    with Ledger.open(home.state.ledger) as ledger:
        assert [one.dataset for one in ledger.releases()].count("houses") == 7
    assert verify(home.state.ledger).ok
