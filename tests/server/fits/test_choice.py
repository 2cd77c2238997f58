"""Numbers of components that a fit chooses: the planted one, at the price of the largest, for any rows and noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import InvalidFieldsError
from bursar_server.fits.dpem import _choice
from bursar_server.vault import NoiseSource, Release
from tests.each import each
from tests.server.fits.running import Array, NoNoise, array, plan, run, table

MEANS = np.array([[-5.0, -5.0], [5.0, -2.0], [0.0, 6.0]])
ROWS = 6000


def groups(means: Array, seed: int = 1) -> Array:
    """Rows of equal groups about the means."""
    rng = np.random.default_rng(seed)  # noqa: TID251 - rows of a test
    return np.asarray(means[np.arange(ROWS) % len(means)] + rng.standard_normal((ROWS, means.shape[1])))


def fit(X: Array, source: NoiseSource | None = None, **fields: Any) -> fit_pb2.GaussianMixtureModel:
    """A fit that chooses."""
    defaults = {"n_components": 3, "least_components": 1, "spend": types_pb2.Spend(rho=0.1)}
    return run(plan(table(X.shape[1], rows=len(X)), **{**defaults, **fields}), X, source=source)


@pytest.mark.slow
def test_the_planted_number_is_chosen_and_its_mixture_returned() -> None:
    """Three groups: three components at the groups' places; the others score clearly worse.

    No noise is drawn, so that the margin is the same in each run; the choice reckons with the plan's all the same.
    """
    model = fit(groups(MEANS), NoNoise(), n_components=5)
    assert model.choice.least == 1
    scores, errors = array(model.choice.scores), array(model.choice.errors)
    assert int(np.argmin(scores)) == 2
    assert scores[2] == errors[2] == 0.0
    assert scores[:2].min() > 100
    assert scores[3:].min() > 5
    means = array(model.means)
    assert means.shape == MEANS.shape
    assert np.linalg.norm(means[:, None] - MEANS, axis=2).min(axis=0).max() < 0.5
    assert np.allclose(array(model.weights), 1 / 3, atol=0.05)


@pytest.mark.slow
def test_one_group_is_one_component() -> None:
    """The largest number is not what is chosen where there is nothing to tell apart.

    The least margin of 336 fits was 3.0 of 20 in the median: perhaps one in a thousand is wrong, three of five never.
    """
    X = groups(MEANS[:1])
    assert np.median([len(array(fit(X).means)) for _ in range(5)]) == 1


def test_parameters_that_cost_nothing_would_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: without its price a component more explains the sample, and more than one is chosen for one group.

    No noise is drawn: with it, 12 of 537 fits would have chosen one.
    """
    usual = _choice._Problem.fitted

    def free(self: _choice._Problem, candidate: Any) -> Any:
        found = usual(self, candidate)
        return _choice._Fitted(candidate, found.residual, float(found.residual @ found.residual))

    monkeypatch.setattr(_choice._Problem, "fitted", free)
    assert len(array(fit(groups(MEANS[:1]), NoNoise()).means)) > 1


def test_a_round_on_two_equal_components_is_finite() -> None:
    """Their columns are the same, and so large that damping is lost: a solver of equations would raise."""
    design = np.full((3, 2), 1e12)
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.solve(design.T @ design + _choice._DAMPING * np.eye(2), design.T @ np.ones(3))
    assert np.allclose(_choice._gauss_newton(design, np.ones(3)), 5e-13)


def test_the_price_is_that_of_the_largest_number() -> None:
    """The same events, and the same releases in the same order, as a fit of as many components."""
    X, taps = groups(MEANS), []
    for least in (0, 1):
        made, found = plan(table(2, rows=ROWS), n_components=4, least_components=least), list[Release]()
        run(made, X, taps=found)
        taps.append((made.events, [(one.statistic.shape, one.noise) for one in found]))
    assert taps[0] == taps[1]


@pytest.mark.slow
@each(
    "fields",
    [
        {"covariance_type": fit_pb2.COVARIANCE_TYPE_TIED},
        {"covariance_type": fit_pb2.COVARIANCE_TYPE_DIAG, "background": fit_pb2.BACKGROUND_OFF},
        {"covariance_type": fit_pb2.COVARIANCE_TYPE_SPHERICAL, "spend": types_pb2.Spend(epsilon=5.0)},
        {"spend": types_pb2.Spend(rho=1e-7), "iterations": 2, "least_components": 3},
        {"spend": types_pb2.Spend(rho=1e6), "iterations": 3},
    ],
)
def test_every_answer_is_a_mixture(fields: dict[str, Any]) -> None:
    """Rows that are all alike, rows on the border, and groups: finite numbers of one shape, whatever the noise."""
    for X in (np.full((300, 2), 10.0), np.zeros((300, 2)), groups(MEANS)[:300]):
        model = fit(X, **fields)
        k = len(array(model.weights))
        scores, errors = array(model.choice.scores), array(model.choice.errors)
        assert scores[k - model.choice.least] == 0.0
        assert np.all(scores >= 0.0)
        assert errors.shape == scores.shape
        for numbers in (scores, errors, *(array(t) for t in (model.weights, model.means, model.covariances))):
            assert np.all(np.isfinite(numbers))


@each(
    "field, fields",
    [
        ("least_components", {"least_components": 5}),
        ("least_components", {"mode": fit_pb2.MODE_KMEANS}),
        ("least_components", {"moments": fit_pb2.MOMENTS_FIXED_ORIGIN}),
        ("least_components", {"estimator": fit_pb2.ESTIMATOR_MAXIMUM_A_POSTERIORI}),
        ("least_components", {"random": fit_pb2.StartAtRandom(public_seed=1)}),
        ("iterations", {"iterations": 1}),
        ("n_components", {"n_components": 200}),
    ],
)
def test_what_leaves_no_choice_is_refused_before_the_debit(field: str, fields: dict[str, Any]) -> None:
    """The field that is wrong is named."""
    with pytest.raises(InvalidFieldsError) as caught:
        plan(**{"n_components": 4, "least_components": 1, **fields})
    assert [name for name, _ in caught.value.violations] == [field]
