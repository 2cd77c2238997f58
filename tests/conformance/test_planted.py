"""Planted bugs, the same for every fit, and the check of the catalogue that sees each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bursar_ledger import GaussianEvent
from bursar_proto.v1 import types_pb2
from bursar_server.fits import Plan
from bursar_server.vault import Kernel, Session, Statistic
from tests.conformance import checks
from tests.conformance.checks import SLOTS, Case, Silent, plain_rows, run
from tests.conformance.requests import FITS, FREE, VARIANTS, fit_of, method_of, tables

FEW = ("mixture", "components", "sketch alone", "cliques", "tree", "separated")
"""One of each fit, and both that FitMRF does with rows."""


@dataclass(frozen=True)
class Buggy:
    """A fit with a bug in its plan or its run.

    Attributes:
        fit: without the bug.
        after: makes the wrong plan from the right one.
        instead: runs a plan wrongly, given the fit.
    """

    fit: Any
    after: Callable[[Plan], Plan] = lambda plan: plan
    instead: Callable[[Any, Plan, Session], Any] = lambda fit, plan, session: fit.run(plan, session)

    def plan(self, *arguments: Any) -> Plan:
        """See `Fit`."""
        return self.after(self.fit.plan(*arguments))

    def run(self, plan: Plan, session: Session) -> Any:
        """See `Fit`."""
        return self.instead(self.fit, plan, session)


def rows_of(session: Session) -> Any:
    """The raw table, which no fit may read."""
    return session._rows


# Runs


def without_noise(fit: Any, plan: Plan, session: Session) -> Any:
    """Sums and choices reach the fit as they are."""
    session._source = session._search_source = Silent()
    return fit.run(plan, session)


def telling_slots(fit: Any, plan: Plan, session: Session) -> Any:
    """The number of slots is in the model."""
    model = fit.run(plan, session)
    add_to_a_number(model, rows_of(session).slots)
    return model


def telling_parity(fit: Any, plan: Plan, session: Session) -> Any:
    """Progress has one step more where the number of slots is odd."""
    progress = session.progress
    session.progress = lambda step, steps: progress(step, steps + rows_of(session).slots % 2)
    return fit.run(plan, session)


def failing_on_nan(fit: Any, plan: Plan, session: Session) -> Any:
    """Rows that are not numbers raise after the debit."""
    if np.isnan(rows_of(session).columns).all() and rows_of(session).slots:
        raise FloatingPointError("a row is not a number")
    return fit.run(plan, session)


def dividing_by_rows(fit: Any, plan: Plan, session: Session) -> Any:
    """A table without rows has a model that is not finite."""
    model = fit.run(plan, session)
    add_to_a_number(model, np.nan if rows_of(session).slots == 0 else 0.0)
    return model


def losing_a_number(fit: Any, plan: Plan, session: Session) -> Any:
    """The first tensor of the model has a number less than its shape says."""
    model = fit.run(plan, session)
    tensors = (tensor for tensor in checks.messages(model) if isinstance(tensor, types_pb2.Tensor) and tensor.values)
    next(tensors).values.pop()
    return model


def silent_progress(fit: Any, plan: Plan, session: Session) -> Any:
    """The last step is never reported."""
    progress = session.progress
    session.progress = lambda step, steps: None if step == steps else progress(step, steps)
    return fit.run(plan, session)


def uneven_progress(fit: Any, plan: Plan, session: Session) -> Any:
    """Every other run reports that it begins, whatever the rows are."""
    if next(_CALLS) % 2:
        session.progress(0, plan.iterations)
    return fit.run(plan, session)


def releasing_twice(fit: Any, plan: Plan, session: Session) -> Any:
    """Everything is released again under the same debit."""
    fit.run(plan, session)
    return fit.run(plan, session)


def stopping_early(fit: Any, plan: Plan, session: Session) -> Any:
    """Rows that are all alike are not summed at all."""
    if rows_of(session).slots == 0:
        session._meter.charge = lambda event: None  # type: ignore[method-assign] # the bug
    return fit.run(plan, session)


def louder(fit: Any, plan: Plan, session: Session) -> Any:
    """Rows count twice, under bounds of rows that count once."""
    noisy_sum, choose, forest = session.noisy_sum, session.choose, session.forest

    def loud_forest(*arguments: Any) -> Any:
        made = forest(*arguments)
        sums = made.noisy_sums
        made.noisy_sums = lambda asked: sums([(node, loud(one), noise) for node, one, noise in asked])  # type: ignore[method-assign] # the bug
        return made

    tampered: Any = session
    tampered.noisy_sum = lambda statistic, noise: noisy_sum(loud(statistic), noise)
    tampered.choose = lambda candidates, *more: choose(replace(candidates, statistic=loud(candidates.statistic)), *more)
    tampered.forest = loud_forest
    return fit.run(plan, session)


def loud(statistic: Statistic) -> Statistic:
    """The statistic whose rows count twice."""
    return replace(statistic, kernel=Doubled(statistic.kernel))


@dataclass(frozen=True)
class Doubled:
    """A kernel that adds everything twice."""

    kernel: Kernel

    def __call__(self, block: Any, present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        """See `Kernel`."""
        for _ in range(2):
            self.kernel(block, present, out)


def add_to_a_number(model: Any, amount: float) -> None:
    """Add to the first number that a model has, in whatever message of it."""
    for descriptor, value in model.ListFields():
        if descriptor.cpp_type == descriptor.CPPTYPE_DOUBLE:
            if descriptor.is_repeated:
                value[0] += amount
            else:
                setattr(model, descriptor.name, value + amount)
            return
        if descriptor.cpp_type == descriptor.CPPTYPE_MESSAGE:
            one = value[0] if descriptor.is_repeated else value
            if any(True for _ in checks.numbers(one)):
                add_to_a_number(one, amount)
                return
    raise ValueError("the model has no number")


# Plans

_CALLS = itertools.count(1)


def cheaper(plan: Plan) -> Plan:
    """The last release is not paid for."""
    return replace(plan, events=plan.events[:-1])


def dearer(plan: Plan) -> Plan:
    """More is debited than was offered."""
    return replace(plan, events=(*plan.events, GaussianEvent(1, Fraction(3))))


def changing(plan: Plan) -> Plan:
    """No two plans of a request are alike."""
    return replace(plan, parameters={**plan.parameters, "call": next(_CALLS)})


BUGS: dict[str, tuple[str, dict[str, Any]]] = {
    "no noise": ("rows_decide_nothing", {"instead": without_noise}),
    "the number of slots in the model": ("rows_decide_nothing", {"instead": telling_slots}),
    "parity of the slots in the progress": ("rows_decide_nothing", {"instead": telling_parity}),
    "a release that is not charged": ("rows_decide_nothing", {"instead": stopping_early}),
    "an error on some rows": ("total", {"instead": failing_on_nan}),
    "a number that is not finite": ("total", {"instead": dividing_by_rows}),
    "a number that is missing": ("total", {"instead": losing_a_number}),
    "progress that depends on more than the request": ("total", {"instead": uneven_progress}),
    "no last step": ("total", {"instead": silent_progress}),
    "released twice": ("releases_are_the_debit", {"instead": releasing_twice}),
    "one release not paid for": ("releases_are_the_debit", {"after": cheaper}),
    "less debited than offered": ("price_is_the_spend", {"after": cheaper}),
    "more debited than offered": ("price_is_the_spend", {"after": dearer}),
    "a plan that changes": ("plan_is_public", {"after": changing}),
    "rows count twice": ("twins_are_close", {"instead": louder}),
}
"""Bugs, each with the check that must see it."""


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, name: str) -> None:
    """The check says what is wrong, where it says nothing of the fit as it is."""
    check, wrong = BUGS[bug]
    table = dict(tables(SLOTS))["add_remove_one"]
    case = Case(name, Buggy(fit_of(name), **wrong), VARIANTS[name], table)
    assert checks.CHECKS[check](case) is not None


def answering_anew(fit: Any, plan: Plan, session: Session) -> Any:
    """A number of the model is another in every run."""
    model = fit.run(plan, session)
    add_to_a_number(model, next(_CALLS))
    return model


FREE_BUGS: dict[str, dict[str, Any]] = {
    "a free request with a price": {"after": dearer},
    "a free request with a new answer each time": {"instead": answering_anew},
}


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("bug", FREE_BUGS)
def test_a_planted_bug_of_free_requests_is_seen(bug: str, name: str) -> None:
    """The check of requests that start from a release says what is wrong."""
    origin, request = FREE[name]
    table = dict(tables(SLOTS))["replace_one"]
    paid = Case(origin, fit_of(origin), VARIANTS[origin], table)
    model = run(paid, plain_rows(paid), Silent()).model
    free = Case(name, Buggy(FITS[method_of(request)], **FREE_BUGS[bug]), request, table, model)
    assert checks.free_of_charge(free) is not None


def test_bugs_are_planted_in_every_fit() -> None:
    """None of the registry's fits is left out."""
    assert {method_of(VARIANTS[name]) for name in FEW} == set(FITS)
