"""Validators and planners under edge numbers: every plan has a price, every refusal names fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from bursar_ledger import ConcentratedEvent
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.access.auth import METHOD_ROLES
from bursar_server.fits import Expected, InvalidFieldsError, _requests
from bursar_server.fits.contract import METHODS
from bursar_server.fits.registry import FITS
from bursar_server.fits.separated_gmm import _plan as separated
from bursar_server.tables import Manifest
from bursar_server.vault import MAX_ROWS
from tests.fuzz.exploring import WrongError
from tests.fuzz.planners import CONTEXT, SHARES, TARGETS, Desk, desk, manifest, run

_FEW = {"suggest_spend": 4, "other methods": 20, "manifest": 10, "settings": 10, "amounts": 40}
"""Calls of a target in the suite, 100 where nothing is said; `make fuzz-planners` has a million."""
_ENOUGH = 2000
"""Calls in which a planted defect is found."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Make the services of a server that does not listen."""
    with desk(tmp_path_factory.mktemp("planners")) as made:
        yield made


def test_no_request_is_left_out() -> None:
    """Every method that has a request is called, and every target has its share of the calls."""
    planned = {f"/bursar.v1.FitService/{name}" for name in METHODS}
    known = planned | {"/bursar.v1.FitService/Preview", "/bursar.v1.DummyService/RunDummy"}
    others = {path for path in METHOD_ROLES if path.startswith("/bursar.") and path not in known}
    services = {path.removeprefix("/bursar.v1.").split("/")[0] for path in others}
    assert services == {"CatalogService", "AdminService", "AuditService"}
    assert TARGETS.keys() == SHARES.keys()
    assert math.isclose(sum(SHARES.values()), 1.0)


@pytest.mark.parametrize("target", TARGETS)
def test_every_request_is_planned_or_refused(services: Desk, target: str) -> None:
    """Every plan has finite positive prices within the offer, or a refusal names fields, whatever the numbers."""
    run(services, target, _FEW.get(target, 100), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_requests_are(services: Desk, target: str) -> None:
    """The same with more of them; some are planned, so that it is not always a refusal that is judged."""
    run(services, target, 20 * _FEW.get(target, 100), seed=1)
    outcomes = {outcome for name, outcome in services.outcomes if name == target}
    assert outcomes & {"planned", "suggested", "taken", "answered"}


def test_manifests_that_are_made_are_taken() -> None:
    """The tables that are planned for come through the same door as an owner's."""
    assert all(Manifest.from_public(manifest(seed)).columns for seed in range(50))


# What was found, and is refused now.


def _preview(services: Desk, **fit: Any) -> fit_pb2.PreviewResponse:
    return services.fit_service.preview(fit_pb2.PreviewRequest(**fit), CONTEXT)


@pytest.mark.parametrize("variant", fit_pb2.SeparatedVariant.values())
@pytest.mark.parametrize("weight", [5e-324, 2.2e-308, 1e-300, 1e-160, 1e-9, 0.999 / MAX_ROWS, -1e-300, math.nan])
def test_a_component_of_less_than_a_row_is_refused(services: Desk, weight: float, variant: Any) -> None:
    """Predictions divide by the square of `min_weight`: 1e-300 ended in ZeroDivisionError or OverflowError."""
    asked = fit_pb2.FitSeparatedGMMRequest(
        dataset="people",
        columns=["x", "y"],
        spend=types_pb2.Spend(rho=0.01),
        n_components=2,
        sigma_min=0.05,
        sigma_max=0.3,
        min_weight=weight,
        variant=variant,
    )
    with pytest.raises(InvalidFieldsError) as caught:
        _preview(services, separated_gmm=asked)
    assert [field for field, _ in caught.value.violations] == ["min_weight"]
    asked.min_weight = 1.0 / MAX_ROWS
    assert math.isfinite(_preview(services, separated_gmm=asked).preflight.suggested_rho)


@pytest.mark.parametrize("radius", [1e308, -1e308, 1.7976931348623157e308])
def test_a_radius_beyond_the_box_is_refused_before_it_is_used(services: Desk, radius: float) -> None:
    """It was multiplied with the columns' widths all the same, which warned of an overflow."""
    asked = fit_pb2.FitDPEMRequest(
        dataset="people", columns=["y"], spend=types_pb2.Spend(rho=0.01), n_components=2, clip_radius=radius
    )
    with pytest.raises(InvalidFieldsError) as caught:
        _preview(services, dpem=asked)
    assert [field for field, _ in caught.value.violations] == ["clip_radius"]


# Planners with one defect each, which the same calls find.

Patch = pytest.MonkeyPatch


def dividing(patch: Patch) -> None:
    """Takes a component of any weight."""
    patch.setattr(separated, "_LEAST_WEIGHT", 5e-324)


def believing(patch: Patch) -> None:
    """Compares as Python does by itself, so that NaN passes."""

    def positive(field: str, value: float, violations: Any) -> Fraction:
        if value <= 0 or value > 1e6:
            violations.append((field, "is wrong"))
            return Fraction(1)
        return Fraction(value)

    patch.setattr(_requests, "_positive", positive)


def overspending(patch: Patch) -> None:
    """Plans one release more than was offered."""
    _planning(patch, lambda plan: replace(plan, events=(*plan.events, ConcentratedEvent(Fraction(1, 1000)))))


def promising(patch: Patch) -> None:
    """Promises an error that is no number."""
    _planning(patch, lambda plan: replace(plan, expected={"mean_error": Expected(math.nan)}))


def silencing(patch: Patch) -> None:
    """Has a release without noise."""
    silent = types_pb2.ReleaseNoise(name="means", size=0, times=1)
    _planning(patch, lambda plan: replace(plan, noise=(silent,)))


def recording(patch: Patch) -> None:
    """Keeps a parameter that no entry of the ledger can hold."""
    _planning(patch, lambda plan: replace(plan, parameters={"scale": [math.inf]}))


def nameless(patch: Patch) -> None:
    """Refuses without saying which field is wrong."""

    def plan(*arguments: Any) -> Any:
        raise InvalidFieldsError(("", "no"))

    patch.setattr(FITS["FitSeparatedGMM"], "plan", plan)


def _planning(patch: Patch, change: Callable[[Any], Any]) -> None:
    plan = FITS["FitSeparatedGMM"].plan
    patch.setattr(FITS["FitSeparatedGMM"], "plan", lambda *arguments: change(plan(*arguments)))


RIVALS: Mapping[Callable[[Patch], None], type[Exception]] = {
    dividing: ArithmeticError,
    believing: ValueError,
    overspending: WrongError,
    promising: WrongError,
    silencing: WrongError,
    recording: WrongError,
    nameless: WrongError,
}


@pytest.mark.parametrize(("rival", "error"), RIVALS.items(), ids=lambda one: one.__name__)
def test_a_planner_with_a_defect_is_found_out(
    services: Desk, rival: Callable[[Patch], None], error: type[Exception], monkeypatch: Patch
) -> None:
    """It is found within calls of one fit that find nothing without the defect."""
    rival(monkeypatch)
    with pytest.raises(error):
        run(services, "FitSeparatedGMM", _ENOUGH, seed=2)
