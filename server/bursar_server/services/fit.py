"""FitService: plan, debit, receipt, run, release. The only way from rows to the wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import grpc

from bursar_ledger import Ledger, price
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server import convert, refusing
from bursar_server.auth import caller
from bursar_server.computing import Run
from bursar_server.config import RequestLimits
from bursar_server.datasets import Datasets
from bursar_server.fits import Plan
from bursar_server.fitting import Runner
from bursar_server.follow import Follower, Step
from bursar_server.orders import RESPONSES, AnyFit, Order, Orders
from bursar_server.requests import METHODS, FitRequest, previewed
from bursar_server.runs import Runs
from bursar_server.vault import EngineSettings

_MOST_FITS_LEFT = 2**32 - 1


class FitService(fit_pb2_grpc.FitServiceServicer):
    """Fits by name of their RPC; a method that has none answers UNIMPLEMENTED.

    Args:
        fits: the registry, by name of the RPC.
        datasets: public facts and, for workers only, rows.
        ledger: is debited.
        runs: of this process.
        follower: how callers hear of runs.
        engine: reads rows, for one fit at a time.
        runner: runs the fits.
        most: the owner's limits on one request.
    """

    def __init__(
        self,
        *,
        fits: Mapping[str, AnyFit],
        datasets: Datasets,
        ledger: Ledger,
        runs: Runs,
        follower: Follower,
        engine: EngineSettings | None = None,
        runner: Runner | None = None,
        most: RequestLimits | None = None,
    ) -> None:
        self._orders = Orders(
            fits=fits, datasets=datasets, ledger=ledger, engine=engine, runner=runner, most=most or RequestLimits()
        )
        self._ledger = ledger
        self._runs = runs
        self._follower = follower

    def FitDPEM(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitDPEMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitDPEMResponse]:
        """See the contract."""
        return self._fit("FitDPEM", request, context)

    def FitSeparatedGMM(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitSeparatedGMMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitSeparatedGMMResponse]:
        """See the contract."""
        return self._fit("FitSeparatedGMM", request, context)

    def FitGradientEM(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitGradientEMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitGradientEMResponse]:
        """See the contract."""
        return self._fit("FitGradientEM", request, context)

    def FitSketchKMeans(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitSketchKMeansRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitSketchKMeansResponse]:
        """See the contract."""
        return self._fit("FitSketchKMeans", request, context)

    def FitMRF(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitMRFRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitMRFResponse]:
        """See the contract."""
        return self._fit("FitMRF", request, context)

    def Preview(  # noqa: N802  the contract's name
        self, request: fit_pb2.PreviewRequest, context: grpc.ServicerContext
    ) -> fit_pb2.PreviewResponse:
        """The same plan and the same price as the fit's, and no debit."""
        field, asked = previewed(request)
        quote = self._orders.quote(self._orders.order(METHODS[field], caller().name, asked))
        plan, limits = quote.plan, quote.limits
        return fit_pb2.PreviewResponse(
            price=convert.price(quote.price),
            remaining=convert.remaining(limits.dataset),
            available=convert.remaining(limits.available),
            affordable=quote.times >= 1,
            fits_left=min(quote.times, _MOST_FITS_LEFT),
            noise=plan.noise,
            iterations=plan.iterations,
            expected_mean_error=plan.expected_mean_error,
            predicted_snr=plan.predicted_snr,
            predicted_relative_sse=plan.predicted_relative_sse,
            sum_units=plan.sum_units,
            expected_relative_error=plan.expected_relative_error,
            expected_coefficient_error=plan.expected_coefficient_error,
            expected_table_error=plan.expected_table_error,
            warnings=plan.warnings,
            preflight=plan.preflight,
        )

    def _fit(self, method: str, request: FitRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        order = self._orders.order(method, caller().name, request)
        response = RESPONSES[method]
        plan = order.free_plan()
        if plan is None:
            receipt, run = self._paid(order, context)
        else:
            receipt, run = self._free(order, plan)
        if run is None:
            return  # the caller left before the debit
        yield response(receipt=receipt)
        for event in self._follower.follow(run, context.is_active):
            yield (
                response(progress=types_pb2.Progress(step=event.step, steps=event.steps))
                if isinstance(event, Step)
                else event
            )

    def _paid(self, order: Order, context: grpc.ServicerContext) -> tuple[types_pb2.Receipt | None, Run | None]:
        """The receipt of a debit and its run; the debit of now, or an earlier one of the same request."""
        with refusing.told(dataset=order.state.name, principal=order.principal, method=order.method):
            asked = self._orders.asked(order)
            if not context.is_active():
                return None, None
            admission = self._runs.admit(asked, lambda run: self._orders.release(order, run))
        if not admission.paid_now:
            context.set_trailing_metadata((("bursar-replayed", "true"),))
        run = admission.run
        return convert.receipt(run.debit, asked.dataset, asked.request_id, order.state.adjacency), run

    def _free(self, order: Order, plan: Plan) -> tuple[types_pb2.Receipt, Run]:
        """The receipt of what costs nothing, and its run. Neither the ledger nor the data have a part in it."""
        self._orders.check(order, plan)
        paid = self._ledger.debit_entry(plan.of_entry) if plan.of_entry else None
        limits = self._ledger.limits(order.state.name, order.principal)
        receipt = types_pb2.Receipt(
            dataset=order.state.name,
            request_id=order.request.request_id,
            entry=plan.of_entry,
            price=convert.price(price((), order.state.order)),
            remaining=convert.remaining(limits.dataset),
            allowance_remaining=None if limits.allowance is None else convert.remaining(limits.allowance),
            ledger_head=b"" if paid is None else paid.head,
            adjacency=convert.ADJACENCIES[order.state.adjacency],
            free=True,
        )
        return receipt, self._runs.compute(order.principal, lambda run: self._orders.computed(order, plan, run))
