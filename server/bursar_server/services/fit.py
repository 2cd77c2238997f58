"""FitService: plan, debit, receipt, run, release. The only way from rows to the wire."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bursar_ledger import DatasetState, DebitRequest, Ledger, UnknownEntryError, price
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server import convert
from bursar_server.auth import caller
from bursar_server.datasets import Datasets
from bursar_server.errors import NotAvailableError
from bursar_server.fits import InvalidRequestError, Plan
from bursar_server.fits._seam import Fit, Released
from bursar_server.follow import Follower, Step
from bursar_server.runs import NothingReadError, Run, Runs
from bursar_server.vault import Meter, OpenDPNoise, Session

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_MOST_FITS_LEFT = 2**32 - 1
_LAST_ENTRY = 2**62
"""Beyond every ledger, and within SQLite's integers."""

AnyFit = Fit[Any, Any, Any]
"""A fitting method, whatever its request, plan and model are."""


FitRequest = (
    fit_pb2.FitDPEMRequest
    | fit_pb2.FitSeparatedGMMRequest
    | fit_pb2.FitGradientEMRequest
    | fit_pb2.FitSketchKMeansRequest
    | fit_pb2.FitMRFRequest
)
"""The requests of all fits; they have request_id, dataset, columns and spend in common."""


@dataclass(frozen=True)
class _Order:
    """A valid request and what it will release."""

    method: str
    state: DatasetState
    plan: Plan
    debit: DebitRequest


class FitService(fit_pb2_grpc.FitServiceServicer):
    """Fits by name of their RPC; a method that has none answers UNIMPLEMENTED.

    Args:
        fits: the registry, by name of the RPC.
        datasets: public facts and, for workers only, rows.
        ledger: is debited.
        runs: of this process.
        follower: how callers hear of runs.
        threads: that sum rows for one fit.
    """

    def __init__(
        self,
        *,
        fits: Mapping[str, AnyFit],
        datasets: Datasets,
        ledger: Ledger,
        runs: Runs,
        follower: Follower,
        threads: int = 1,
    ) -> None:
        self._fits = fits
        self._datasets = datasets
        self._ledger = ledger
        self._runs = runs
        self._follower = follower
        self._threads = threads

    def FitDPEM(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitDPEMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitDPEMResponse]:
        """See the contract."""
        return self._fit("FitDPEM", request, context, fit_pb2.FitDPEMResponse)

    def FitSeparatedGMM(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitSeparatedGMMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitSeparatedGMMResponse]:
        """See the contract."""
        return self._fit("FitSeparatedGMM", request, context, fit_pb2.FitSeparatedGMMResponse)

    def FitGradientEM(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitGradientEMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitGradientEMResponse]:
        """See the contract."""
        return self._fit("FitGradientEM", request, context, fit_pb2.FitGradientEMResponse)

    def FitSketchKMeans(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitSketchKMeansRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitSketchKMeansResponse]:
        """See the contract."""
        return self._fit("FitSketchKMeans", request, context, fit_pb2.FitSketchKMeansResponse)

    def FitMRF(  # noqa: N802  the contract's name
        self, request: fit_pb2.FitMRFRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitMRFResponse]:
        """See the contract."""
        return self._fit("FitMRF", request, context, fit_pb2.FitMRFResponse)

    def Preview(  # noqa: N802  the contract's name
        self, request: fit_pb2.PreviewRequest, context: grpc.ServicerContext
    ) -> fit_pb2.PreviewResponse:
        """The same plan and the same price as the fit's, and no debit."""
        if request.WhichOneof("fit") != "dpem":
            raise InvalidRequestError(("fit", "is missing; expected the request of a fit that is to be previewed"))
        state, plan = self._planned("FitDPEM", request.dpem)
        cost, left = price(plan.events, state.order), state.remaining
        fits_left = left.cost_units // max(cost.cost_units, 1)
        if cost.delta_units:
            fits_left = min(fits_left, left.delta_units // cost.delta_units)
        return fit_pb2.PreviewResponse(
            price=convert.price(cost),
            remaining=convert.remaining(left),
            affordable=fits_left >= 1,
            fits_left=min(fits_left, _MOST_FITS_LEFT),
            noise=plan.noise,
            iterations=plan.iterations,
            expected_mean_error=plan.expected_mean_error,
        )

    def _fit(
        self, method: str, request: FitRequest, context: grpc.ServicerContext, response: type[Any]
    ) -> Iterator[Any]:
        order = self._ordered(method, request)
        if not context.is_active():
            return  # the caller left before the debit
        admission = self._runs.admit(order.debit, lambda run: self._release(order, run, response))
        if not admission.paid_now:
            context.set_trailing_metadata((("bursar-replayed", "true"),))
        run = admission.run
        yield response(receipt=convert.receipt(run.debit, order.debit, order.state.registration.adjacency))
        for event in self._follower.follow(run, context.is_active):
            yield (
                response(progress=types_pb2.Progress(step=event.step, steps=event.steps))
                if isinstance(event, Step)
                else event
            )

    def _ordered(self, method: str, request: FitRequest) -> _Order:
        state, plan = self._planned(method, request)
        if not _REQUEST_ID.fullmatch(request.request_id):
            raise InvalidRequestError(
                (
                    "request_id",
                    "must have 1 to 64 characters of [A-Za-z0-9_.:-]; a fresh UUID for every new request will do",
                )
            )
        principal = caller().name
        debit = DebitRequest(
            dataset=state.name,
            principal=principal,
            request_id=request.request_id,
            request_hash=_request_hash(method, principal, request),
            method=method,
            events=plan.events,
            parameters=plan.parameters,
        )
        return _Order(method, state, plan, debit)

    def _planned(self, method: str, request: FitRequest) -> tuple[DatasetState, Plan]:
        fit = self._fits.get(method)
        if fit is None:
            raise NotAvailableError(f"{method} is not available in this version of the server")
        if unknown := _unknown_fields(request):
            raise InvalidRequestError(("request", f"has fields that this version does not know: {', '.join(unknown)}"))
        state = self._datasets.state(request.dataset)
        self._datasets.check(state)
        plan: Plan = fit.plan(request, self._datasets.table(state), self._released(state.name, caller().name))
        return state, plan

    def _released(self, dataset: str, principal: str) -> Released:
        def released(entry: int) -> fit_pb2.GaussianMixtureModel | None:
            # The caller's own only: what others asked is their secret, though their models hold no one's data.
            try:
                paid = self._ledger.debit_entry(min(entry, _LAST_ENTRY)).request
            except UnknownEntryError:
                return None
            asked = (paid.method, paid.dataset, paid.principal)
            release = self._ledger.release(entry) if asked == ("FitDPEM", dataset, principal) else None
            message = fit_pb2.FitDPEMResponse.FromString(release or b"")
            return message.model if message.HasField("model") else None

        return released

    def _release(self, order: _Order, run: Run, response: type[Any]) -> bytes:
        """What a worker does under a debit: the first moment at which rows are opened."""
        table = self._datasets.table(order.state)
        try:
            rows = self._datasets.rows(order.state, order.plan.columns)
        except Exception as error:
            raise NothingReadError from error
        session = Session(
            rows=rows,
            columns=len(order.plan.columns),
            adjacency=table.adjacency,
            unit_cap=table.unit_cap,
            # What was debited, not what the plan would cost now: a new version may have started between the two.
            meter=Meter(run.debit.price.order, run.debit.price.cost_units),
            source=OpenDPNoise(),
            threads=self._threads,
            progress=run.advance,
        )
        model = self._fits[order.method].run(order.plan, session)
        release: bytes = response(model=model).SerializeToString(deterministic=True)
        return release


def _unknown_fields(message: Message, path: str = "") -> list[str]:
    """Numbers of the fields that a newer client sent: what it meant by them is not known, so nothing is guessed."""
    unknown = UnknownFieldSet(message)
    found = [f"{path}{unknown[i].field_number}" for i in range(len(unknown))]
    for field, value in message.ListFields():
        if isinstance(value, Message):
            found += _unknown_fields(value, f"{path}{field.name}.")
    return found


def _request_hash(method: str, principal: str, request: FitRequest) -> bytes:
    """SHA-256 over method, principal and the request without its request_id: what makes two requests the same."""
    body = type(request).FromString(request.SerializeToString())
    body.ClearField("request_id")
    parts = (method.encode(), principal.encode(), body.SerializeToString(deterministic=True))
    # Lengths first, so that no two different triples have one text.
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
