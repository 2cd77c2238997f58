"""Conversion of values of the ledger and of manifests to the contract's messages."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from bursar_amounts import float_down
from bursar_ledger import Adjacency, Budget, Cost, DatasetState, Debit, DebitRecord, Remainder, Role
from bursar_proto.filling import message_of
from bursar_proto.v1 import admin_pb2, fit_pb2, types_pb2
from bursar_server.fits import Expected
from bursar_server.jobs.limits import WARNINGS

_UINT64 = 2**64 - 1
"""Largest number of the fields that hold units, which are uint64."""

ADJACENCIES: Mapping[Adjacency, types_pb2.Adjacency.ValueType] = {
    Adjacency.REPLACE_ONE: types_pb2.ADJACENCY_REPLACE_ONE,
    Adjacency.ADD_REMOVE_ONE: types_pb2.ADJACENCY_ADD_REMOVE_ONE,
}
"""Adjacency -> value of the contract."""

ROLES: Mapping[Role, admin_pb2.Role.ValueType] = {
    Role.ADMIN: admin_pb2.ROLE_ADMIN,
    Role.ANALYST: admin_pb2.ROLE_ANALYST,
    Role.AUDITOR: admin_pb2.ROLE_AUDITOR,
}
"""Role -> value of the contract."""


def price(value: Cost, budget: Budget | None) -> types_pb2.Price:
    """Return a cost as a message; one beyond the wire's range becomes the largest, which no budget covers either."""
    part = None if budget is None else budget.part(value.cost_units, value.order)
    return types_pb2.Price(
        cost_units=min(value.cost_units, _UINT64),
        delta_units=min(value.delta_units, _UINT64),
        rho=value.rho,
        epsilon=None if part is None else part.epsilon,
        share=None if part is None else part.share,
    )


def remaining(value: Remainder, budget: Budget) -> types_pb2.Remaining:
    """Return a remaining budget as a message."""
    order, delta = float(value.order), float_down(budget.conversion_delta)
    return message_of(types_pb2.Remaining, value, pure_epsilon=_pure_epsilon(value), order=order, delta=delta)


@functools.lru_cache(maxsize=4096)
def _pure_epsilon(value: Remainder) -> float:
    # Found by bisection with long decimals, some 20 ms each time; a catalogue shows the same amounts again and again.
    return value.pure_epsilon


def receipt(debit: Debit | DebitRecord, state: DatasetState) -> types_pb2.Receipt:
    """Return the receipt of a debit; the same at every request, until a new total makes its epsilon another part."""
    parameters: Mapping[str, Any] = debit.request.parameters
    warnings: Sequence[str] = parameters.get(WARNINGS, ())
    return types_pb2.Receipt(
        dataset=debit.request.dataset,
        request_id=debit.request.request_id,
        entry=debit.entry,
        price=price(debit.price, state.budget),
        remaining=remaining(debit.remaining, state.budget),
        allowance_remaining=None if debit.allowance is None else remaining(debit.allowance, state.budget),
        ledger_head=debit.head,
        adjacency=ADJACENCIES[state.adjacency],
        warnings=warnings,
    )


def expected(name: str, value: Expected) -> fit_pb2.Expected:
    """Return an expected accuracy, its columns in their order."""
    found = value.value if isinstance(value.value, Mapping) else {"": value.value}
    columns = value.value if isinstance(value.value, Mapping) else ()
    return fit_pb2.Expected(name=name, values=found.values(), columns=columns, unit=value.unit)
