"""Values of the ledger and of manifests as the contract's messages."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from bursar_ledger import Adjacency, Debit, DebitRecord, Price, Remaining, Role
from bursar_proto.v1 import admin_pb2, types_pb2

_UINT64 = 2**64 - 1

ADJACENCIES: Mapping[Adjacency, types_pb2.Adjacency.ValueType] = {
    Adjacency.REPLACE_ONE: types_pb2.ADJACENCY_REPLACE_ONE,
    Adjacency.ADD_REMOVE_ONE: types_pb2.ADJACENCY_ADD_REMOVE_ONE,
}
"""Adjacencies as the contract has them."""

ROLES: Mapping[Role, admin_pb2.Role.ValueType] = {
    Role.ADMIN: admin_pb2.ROLE_ADMIN,
    Role.ANALYST: admin_pb2.ROLE_ANALYST,
    Role.AUDITOR: admin_pb2.ROLE_AUDITOR,
}
"""Roles as the contract has them."""


def price(value: Price) -> types_pb2.Price:
    """A price; one beyond what the wire can hold is shown as the largest, which no budget covers either."""
    return types_pb2.Price(
        cost_units=min(value.cost_units, _UINT64), delta_units=min(value.delta_units, _UINT64), rho=value.rho
    )


def remaining(value: Remaining) -> types_pb2.Remaining:
    """What is left of a budget."""
    return types_pb2.Remaining(
        cost_units=value.cost_units,
        delta_units=value.delta_units,
        cap_cost_units=value.cap_cost_units,
        cap_delta_units=value.cap_delta_units,
        rho=value.rho,
        pure_epsilon=_pure_epsilon(value),
        order=float(value.order),
    )


@functools.lru_cache(maxsize=4096)
def _pure_epsilon(value: Remaining) -> float:
    # Found by bisection with long decimals, some 20 ms each time; a catalogue shows the same amounts again and again.
    return value.pure_epsilon


def receipt(debit: Debit | DebitRecord, dataset: str, request_id: str, adjacency: Adjacency) -> types_pb2.Receipt:
    """The receipt of a debit; the same whenever it is asked for."""
    return types_pb2.Receipt(
        dataset=dataset,
        request_id=request_id,
        entry=debit.entry,
        price=price(debit.price),
        remaining=remaining(debit.remaining),
        allowance_remaining=None if debit.allowance is None else remaining(debit.allowance),
        ledger_head=debit.head,
        adjacency=ADJACENCIES[adjacency],
    )
