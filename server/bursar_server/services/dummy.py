"""DummyService: fits on made-up rows. Has no ledger and no table that it could ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from bursar_proto.v1 import dummy_pb2, dummy_pb2_grpc, types_pb2
from bursar_server import convert
from bursar_server.auth import caller
from bursar_server.computing import FreeRuns
from bursar_server.dummy import Dummies
from bursar_server.follow import Follower, Step


class DummyService(dummy_pb2_grpc.DummyServiceServicer):
    """Tries fits.

    Args:
        dummies: plans and runs them.
        runs: has a pool of its own, so that nobody who has paid waits for a dummy.
        follower: how callers hear of runs.
    """

    def __init__(self, dummies: Dummies, runs: FreeRuns, follower: Follower) -> None:
        self._dummies = dummies
        self._runs = runs
        self._follower = follower

    def RunDummy(  # noqa: N802  the contract's name
        self, request: dummy_pb2.DummyRequest, context: grpc.ServicerContext
    ) -> Iterator[Any]:  # the model leaves as the bytes that a worker made of it
        """See the contract."""
        order = self._dummies.order(request)
        run = self._runs.compute(caller().name, lambda run: self._dummies.run(order, run))
        yield dummy_pb2.DummyResponse(
            start=dummy_pb2.DummyStart(rows=order.rows, price=convert.price(order.price), warnings=order.warnings)
        )
        for event in self._follower.follow(run, context.is_active):
            yield (
                dummy_pb2.DummyResponse(progress=types_pb2.Progress(step=event.step, steps=event.steps))
                if isinstance(event, Step)
                else event
            )
