"""DummyService: fits on synthetic rows. It has access to neither ledger nor tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc

from bursar_proto.v1 import dummy_pb2, dummy_pb2_grpc, types_pb2
from bursar_server.access.auth import caller
from bursar_server.jobs.job import Follower, FreeRuns, Step, leave_with
from bursar_server.jobs.trial import Dummies
from bursar_server.wire import messages


class DummyService(dummy_pb2_grpc.DummyServiceServicer):
    """Service of dry runs; they have a pool of their own, so that they never delay charged fits."""

    def __init__(self, dummies: Dummies, runs: FreeRuns, follower: Follower) -> None:
        self._dummies = dummies
        self._runs = runs
        self._follower = follower

    def RunDummy(  # noqa: N802  the contract's name
        self, request: dummy_pb2.DummyRequest, context: grpc.ServicerContext
    ) -> Iterator[Any]:  # the model leaves as the bytes that a worker made of it
        """Run a fit on synthetic rows; see the contract."""
        order = self._dummies.order(request)
        run = self._runs.compute(caller().name, lambda run: self._dummies.run(order, run))
        leave_with(context, run)
        start = dummy_pb2.DummyStart(rows=order.rows, price=messages.price(order.price, None), warnings=order.warnings)
        yield dummy_pb2.DummyResponse(start=start)
        for event in self._follower.follow(run, context.is_active):
            yield (
                dummy_pb2.DummyResponse(progress=types_pb2.Progress(step=event.step, steps=event.steps))
                if isinstance(event, Step)
                else event
            )
