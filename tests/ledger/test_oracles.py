"""The same prices and decisions as two libraries that share no code with ours."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import dp_accounting
import opendp.prelude as dp
import pytest
from dp_accounting import rdp as dp_rdp
from hypothesis import given
from hypothesis import strategies as st
from opendp.mod import OpenDPException

from bursar_amounts import epsilon_of, rho_of
from bursar_ledger import COST_UNIT, Budget, GaussianEvent, PureEvent, cost_units, rdp
from bursar_ledger._events import LaplaceEvent


@pytest.fixture(autouse=True, scope="module")
def _opendp_features() -> None:
    dp.enable_features("contrib", "honest-but-curious")


GAUSSIANS = st.builds(
    GaussianEvent, st.integers(1, 2**50), st.fractions(2**23, 2**27, max_denominator=10**6), st.integers(1, 5)
)
# At such scales the discrete curve has reached the continuous one that the oracle knows.
LAPLACES = st.builds(
    LaplaceEvent, st.integers(10**6, 10**8), st.fractions(10**7, 10**9, max_denominator=10**6), st.integers(1, 5)
)


@given(st.lists(GAUSSIANS | LAPLACES, min_size=1, max_size=6), st.sampled_from([2.5, 8.9375, 40.0]))
def test_never_below_the_rdp_accountant_and_never_far_above(
    events: list[GaussianEvent | LaplaceEvent], order: float
) -> None:
    """Random ledgers cost at least what dp_accounting says at the same order, within 1e-9."""
    oracle = dp_rdp.RdpAccountant([order])
    for event in events:
        if isinstance(event, GaussianEvent):
            oracle.compose(dp_accounting.GaussianDpEvent(float(event.scale) / event.l2_squared**0.5), event.count)
        else:
            oracle.compose(dp_accounting.LaplaceDpEvent(float(event.scale / event.l1)), event.count)
    expected = float(oracle._rdp[0])
    ours = cost_units(events, Fraction(order)) / COST_UNIT
    assert ours >= expected * (1 - 1e-13)  # the oracle's own rounding
    assert ours <= expected * (1 + 1e-9) + 1 / COST_UNIT


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (1.0, 1e-6), (3.0, 1e-6), (8.0, 1e-9)])
def test_a_spent_budget_keeps_its_promise_by_a_tighter_account(epsilon: float, delta: float) -> None:
    """One Gaussian release that spends all has a smaller epsilon by its privacy loss distribution."""
    from dp_accounting import pld

    budget = Budget(epsilon, delta, Fraction(0))
    oracle = pld.PLDAccountant()
    oracle.compose(dp_accounting.GaussianDpEvent((2 * budget.cap_cost_units / COST_UNIT / float(budget.order)) ** -0.5))
    assert oracle.get_epsilon(delta) <= epsilon


@pytest.mark.parametrize(("rho", "delta"), [(0.01, 1e-6), (0.185, 1e-6), (1.0, 1e-9)])
def test_conversion_agrees_with_opendp(rho: float, delta: float) -> None:
    """OpenDP converts zCDP to the same epsilon."""
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=1), dp.l2_distance(T=float)
    release = dp.m.make_gaussian(*space, scale=1000.0)
    d_in = (2 * rho) ** 0.5 * 1000.0
    theirs = dp.c.make_zCDP_to_approxDP(release).map(d_in).epsilon(delta)  # type: ignore[no-untyped-call]
    assert epsilon_of(rho, delta) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize(("squared", "scale"), [(1, 4.0), (2**40, 2.0**22), (7, 0.75)])
def test_gaussian_price_agrees_with_opendp_map(squared: int, scale: float) -> None:
    """OpenDP's map of the integer Gaussian is our price at order one."""
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=1), dp.l2_distance(T=float)
    theirs = dp.m.make_gaussian(*space, scale=scale).map(squared**0.5)  # type: ignore[no-untyped-call]
    assert float(rdp(GaussianEvent(squared, Fraction(scale)), Fraction(2)) / 2) == pytest.approx(theirs, rel=1e-12)


def test_the_filter_decides_as_opendps() -> None:
    """OpenDP's privacy filter admits as many equal Gaussian releases as our cap."""
    rho, scale = rho_of(3.0, 1e-6), 4.0
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=1), dp.l2_distance(T=float)
    adaptive = dp.c.make_fully_adaptive_composition(*space, dp.zero_concentrated_divergence())
    theirs, admitted = dp.c.make_privacy_filter(adaptive, d_in=1.0, d_out=rho)([0]), 0
    release = dp.m.make_gaussian(*space, scale=scale)
    with contextlib.suppress(OpenDPException):
        while admitted < 1000:
            theirs(release)
            admitted += 1
    budget = Budget(3, 1e-6, Fraction(0))
    assert budget.cap_cost_units // cost_units([GaussianEvent(1, Fraction(scale))], budget.order) == admitted


def test_a_pure_release_that_plain_zcdp_refuses_fits() -> None:
    """A pure epsilon = 1 costs rho = 1/2 by the general bound, above (3, 1e-6); its own curve fits."""
    budget = Budget(3, 1e-6)
    assert rho_of(3, 1e-6) < 0.5
    assert cost_units([PureEvent(Fraction(1))], budget.order) < budget.cap_cost_units
