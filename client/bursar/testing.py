"""A server without protected rows, for tests of programs that use this package.

    with bursar.testing.fake_server() as server:
        model = server.client().dataset("toy").fit_dpem(n_components=2, spend=bursar.rho(0.1))

It answers on the loopback interface, without TLS, tokens, noise, budget or ledger; of the ledger it has the hashes, so
that it can be rolled back. A released model depends on the request alone: equal weights, means spread evenly over the
bounds. A sketch is that of rows that are uniform in the bounds, and the client decodes it as it decodes any. In a
Markov random field columns that share a clique rise and fall together. By gradient EM components are evenly spread over
the bounds, and regressions cross them. Separated components are evenly spread, too; for a rho below 0.001 only half of
them are found.
Nothing is differentially private: nothing is private.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import grpc
import numpy as np
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import status_pb2
from grpc_status import rpc_status

from bursar._client import Client
from bursar._convert import tensor_to
from bursar._fake_gradient_em import STEPS as GRADIENT_STEPS
from bursar._fake_gradient_em import fake_gradient_em
from bursar._fake_mrf import TABLE_STD, fake_mrf, fake_variables, unpaid
from bursar._fake_separated_gmm import STEPS as SEPARATED_STEPS
from bursar._fake_separated_gmm import fake_preflight, fake_separated_gmm
from bursar._fake_sketch import N_FREQUENCIES, decodes, fake_decoding, fake_sketch
from bursar._fit import FitRequest
from bursar_proto.v1 import (
    catalog_pb2,
    catalog_pb2_grpc,
    dummy_pb2,
    dummy_pb2_grpc,
    fit_pb2,
    fit_pb2_grpc,
    types_pb2,
)

__all__ = ["FakeServer", "fake_server"]

STEPS = 3
"""Steps of a fake fit that leaves them to the server."""


_METHODS: dict[type[FitRequest], str] = {
    fit_pb2.FitDPEMRequest: "FitDPEM",
    fit_pb2.FitSketchKMeansRequest: "FitSketchKMeans",
    fit_pb2.FitMRFRequest: "FitMRF",
    fit_pb2.FitGradientEMRequest: "FitGradientEM",
    fit_pb2.FitSeparatedGMMRequest: "FitSeparatedGMM",
}

_BOUNDS = {"height": (100.0, 220.0), "weight": (30.0, 150.0)}
_BINS = {"weight": (30.0, 60.0, 90.0, 120.0, 150.0)}
_CATEGORIES = {
    "group": ("arm of a trial", ("control", "treated")),
    "spring": ("health in spring", ("well", "ill", "unknown")),
    "summer": ("health in summer", ("well", "ill", "unknown")),
    "autumn": ("health in autumn", ("well", "ill", "unknown")),
}


RequestT = TypeVar("RequestT", bound=FitRequest)


class FakeServer(
    catalog_pb2_grpc.CatalogServiceServicer, fit_pb2_grpc.FitServiceServicer, dummy_pb2_grpc.DummyServiceServicer
):
    """Answers for one dataset, "toy", with two numeric columns, one of them in bins, and four categorical ones.

    Attributes:
        address: "host:port" on the loopback interface.
        requests: every `FitDPEM` that was asked for, in order; a repetition is one more.
        sketch_requests: likewise every `FitSketchKMeans`, free ones included.
        mrf_requests: likewise every `FitMRF`, free ones included.
        gradient_em_requests: likewise every `FitGradientEM`.
        separated_gmm_requests: likewise every `FitSeparatedGMM`.
        dummy_requests: likewise every dummy run; the lists above have none of them.
        metadata: what came with every call, in order; the client's questions about the ledger's history are left out.
    """

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[fit_pb2.FitDPEMRequest] = []
        self.sketch_requests: list[fit_pb2.FitSketchKMeansRequest] = []
        self.mrf_requests: list[fit_pb2.FitMRFRequest] = []
        self.gradient_em_requests: list[fit_pb2.FitGradientEMRequest] = []
        self.separated_gmm_requests: list[fit_pb2.FitSeparatedGMMRequest] = []
        self.dummy_requests: list[dummy_pb2.DummyRequest] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self._failures: deque[grpc.Status] = deque()
        self._released: dict[str, FitRequest] = {}
        self._ledger_id = secrets.token_hex(16)
        self._heads = [_hash(b"genesis")]
        self._lock = threading.Lock()
        self._breaks = 0

    def client(
        self, *, token: str | None = None, retry_delays: Sequence[float] = (0.0, 0.0), patience: float = 0.0
    ) -> Client:
        """A client of this server; it waits for nothing before it repeats a fit, and not for a server that is busy."""
        channel = grpc.insecure_channel(self.address)
        return Client(channel, token=token, retry_delays=retry_delays, patience=patience)

    def fail_next(self, code: grpc.StatusCode, text: str = "", details: Sequence[Message] = ()) -> None:
        """Answer one more of the next calls with this status and these google.rpc details."""
        packed = [AnyMessage() for _ in details]
        for box, detail in zip(packed, details, strict=True):
            box.Pack(detail)
        status = status_pb2.Status(code=code.value[0], message=text, details=packed)
        self._failures.append(rpc_status.to_status(status))

    def break_next(self, times: int = 1) -> None:
        """Break the streams of the next `times` fits after their receipt."""
        self._breaks = times

    def roll_back(self, debits: int = 1) -> None:
        """Forget the newest debits, as if an old copy of the ledger had been put back; clients complain then."""
        with self._lock:
            for _ in range(debits):
                self._released.popitem()
                self._heads.pop()

    def ListDatasets(  # noqa: D102, N802 - the contract's name
        self, request: catalog_pb2.ListDatasetsRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListDatasetsResponse:
        self._enter(context)
        return catalog_pb2.ListDatasetsResponse(datasets=[_toy()])

    def GetDataset(  # noqa: D102, N802 - the contract's name
        self, request: catalog_pb2.GetDatasetRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetDatasetResponse:
        self._enter(context)
        if request.dataset != _toy().name:
            context.abort(grpc.StatusCode.NOT_FOUND, "there is no dataset of this name")
        return catalog_pb2.GetDatasetResponse(dataset=_toy())

    def ListReleases(  # noqa: D102, N802 - the contract's name
        self, request: catalog_pb2.ListReleasesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListReleasesResponse:
        self._enter(context)
        debits, more = self._page(request)
        releases = [
            catalog_pb2.ReleaseSummary(
                entry=self._entry(fit),
                dataset=fit.dataset,
                request_id=fit.request_id,
                method=_METHODS[type(fit)],
                released=True,
                state=catalog_pb2.RELEASE_STATE_RELEASED,
                price=_price(fit),
            )
            for fit in debits
        ]
        return catalog_pb2.ListReleasesResponse(releases=releases, next_page_token=more)

    def ListSketches(  # noqa: D102, N802 - the contract's name
        self, request: catalog_pb2.ListSketchesRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.ListSketchesResponse:
        self._enter(context)
        debits, more = self._page(request)
        sketches = [
            catalog_pb2.SketchSummary(
                entry=self._entry(fit),
                dataset=fit.dataset,
                request_id=fit.request_id,
                price=_price(fit),
                sketch=self._sketch(fit, sums=False),
            )
            for fit in debits
            if isinstance(fit, fit_pb2.FitSketchKMeansRequest)
        ]
        return catalog_pb2.ListSketchesResponse(sketches=sketches, next_page_token=more)

    def GetRelease(  # noqa: D102, N802 - the contract's name
        self, request: catalog_pb2.GetReleaseRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetReleaseResponse:
        self._enter(context)
        paid = next((fit for fit in self._released.values() if self._entry(fit) == request.entry), None)
        if paid is None:
            text = "this entry is no debit of yours; ListReleases has those there are"
            context.abort(grpc.StatusCode.NOT_FOUND, text)
        answer = catalog_pb2.GetReleaseResponse(receipt=self._receipt(paid, paid))
        match paid:
            case fit_pb2.FitDPEMRequest():
                answer.dpem.CopyFrom(_model(paid))
            case fit_pb2.FitSketchKMeansRequest():
                answer.sketch_kmeans.sketch.CopyFrom(self._sketch(paid))
            case fit_pb2.FitMRFRequest():
                answer.mrf.CopyFrom(self._mrf(paid))
            case fit_pb2.FitGradientEMRequest():
                answer.gradient_em.CopyFrom(self._gradient_em(paid, context))
            case fit_pb2.FitSeparatedGMMRequest():
                answer.separated_gmm.CopyFrom(self._separated_gmm(paid, context))
                answer.n_components = paid.n_components
        return answer

    def GetHistory(  # noqa: D102, N802 - the contract's name
        self, request: catalog_pb2.GetHistoryRequest, context: grpc.ServicerContext
    ) -> catalog_pb2.GetHistoryResponse:
        known = 1 <= request.size <= len(self._heads)
        return catalog_pb2.GetHistoryResponse(
            ledger_id=self._ledger_id,
            size=len(self._heads),
            head=self._heads[-1],
            head_at_size=self._heads[request.size - 1] if known else None,
        )

    def Preview(  # noqa: D102, N802 - the contract's name
        self, request: fit_pb2.PreviewRequest, context: grpc.ServicerContext
    ) -> fit_pb2.PreviewResponse:
        self._enter(context)
        fit: FitRequest = getattr(request, request.WhichOneof("fit") or "dpem")
        free = isinstance(fit, fit_pb2.FitMRFRequest) and not fit.HasField("spend")
        match fit:  # first of all, as the server does
            case fit_pb2.FitMRFRequest():
                self._tables(fit, context)
            case fit_pb2.FitGradientEMRequest():
                self._gradient_em(fit, context)
            case fit_pb2.FitSeparatedGMMRequest():
                self._separated_gmm(fit, context)
        price = types_pb2.Price() if free else _price(fit)
        left = 9 if free else _remaining().cost_units // price.cost_units
        preview = fit_pb2.PreviewResponse(
            price=price,
            remaining=_remaining(),
            available=_remaining(),
            affordable=left > 0,
            fits_left=left,
            noise=[_noise(fit)],
            iterations=_steps(fit),
        )
        if isinstance(fit, fit_pb2.FitSeparatedGMMRequest):
            preview.preflight.CopyFrom(fake_preflight(fit))
        if isinstance(fit, fit_pb2.FitDPEMRequest | fit_pb2.FitGradientEMRequest | fit_pb2.FitSeparatedGMMRequest):
            _expect(fit, preview)
        elif isinstance(fit, fit_pb2.FitMRFRequest):
            if not free:
                preview.expected_table_error = min(1.0, 0.05 * _fineness(fit))
        elif isinstance(fit, fit_pb2.FitSketchKMeansRequest):
            preview.predicted_snr = 1000.0 / _fineness(fit)
            preview.warnings.append("this server has no rows")
            if fit.n_clusters:
                preview.predicted_relative_sse = 1.1
        return preview

    def FitDPEM(  # noqa: D102, N802 - the contract's name
        self, request: fit_pb2.FitDPEMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitDPEMResponse]:
        self._enter(context)
        self.requests.append(request)
        self._debit(request, context)
        yield fit_pb2.FitDPEMResponse(receipt=self._receipt(request, request))
        self._break(context)
        for progress in _progress(request):
            yield fit_pb2.FitDPEMResponse(progress=progress)
        yield fit_pb2.FitDPEMResponse(model=_model(request))

    def FitSketchKMeans(  # noqa: D102, N802 - the contract's name
        self, request: fit_pb2.FitSketchKMeansRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitSketchKMeansResponse]:
        self._enter(context)
        self.sketch_requests.append(request)
        source = request.WhichOneof("source")
        paid: FitRequest | None = request
        if source == "new_sketch":
            self._debit(request, context)
        else:
            paid = self._paid(request.entry, fit_pb2.FitSketchKMeansRequest, context) if source == "entry" else None
        yield fit_pb2.FitSketchKMeansResponse(receipt=self._receipt(request, paid))
        self._break(context)
        for progress in _progress(request):
            yield fit_pb2.FitSketchKMeansResponse(progress=progress)
        sketch = self._sketch(paid) if isinstance(paid, fit_pb2.FitSketchKMeansRequest) else None
        sketches = [*([] if sketch is None else [sketch]), *request.foreign]
        decoded = fake_decoding(request, sketches) if decodes(request) else None
        yield fit_pb2.FitSketchKMeansResponse(model=fit_pb2.SketchModel(sketch=sketch, decoded=decoded, residual=1.0))

    def FitMRF(  # noqa: D102, N802 - the contract's name
        self, request: fit_pb2.FitMRFRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitMRFResponse]:
        self._enter(context)
        self.mrf_requests.append(request)
        paid: FitRequest = request
        if request.HasField("spend"):
            if request.request_id not in self._released:
                self._tables(request, context)
            self._debit(request, context)
        else:
            self._tables(request, context)
            paid = self._paid(request.reuse[0], fit_pb2.FitMRFRequest, context)
        yield fit_pb2.FitMRFResponse(receipt=self._receipt(request, paid))
        self._break(context)
        for progress in _progress(request):
            yield fit_pb2.FitMRFResponse(progress=progress)
        yield fit_pb2.FitMRFResponse(model=self._mrf(request))

    def FitGradientEM(  # noqa: D102, N802 - the contract's name
        self, request: fit_pb2.FitGradientEMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitGradientEMResponse]:
        self._enter(context)
        self.gradient_em_requests.append(request)
        model = self._gradient_em(request, context)
        self._debit(request, context)
        yield fit_pb2.FitGradientEMResponse(receipt=self._receipt(request, request))
        self._break(context)
        for progress in _progress(request):
            yield fit_pb2.FitGradientEMResponse(progress=progress)
        yield fit_pb2.FitGradientEMResponse(model=model)

    def FitSeparatedGMM(  # noqa: D102, N802 - the contract's name
        self, request: fit_pb2.FitSeparatedGMMRequest, context: grpc.ServicerContext
    ) -> Iterator[fit_pb2.FitSeparatedGMMResponse]:
        self._enter(context)
        self.separated_gmm_requests.append(request)
        model = self._separated_gmm(request, context)
        self._debit(request, context)
        yield fit_pb2.FitSeparatedGMMResponse(receipt=self._receipt(request, request))
        self._break(context)
        for progress in _progress(request):
            yield fit_pb2.FitSeparatedGMMResponse(progress=progress)
        yield fit_pb2.FitSeparatedGMMResponse(model=model)

    def RunDummy(  # noqa: D102, N802 - the contract's name
        self, request: dummy_pb2.DummyRequest, context: grpc.ServicerContext
    ) -> Iterator[dummy_pb2.DummyResponse]:
        self._enter(context)
        self.dummy_requests.append(request)
        fit: FitRequest = getattr(request.fit, request.fit.WhichOneof("fit") or "dpem")
        if entry := _looked_up(fit):
            text = f"entry: a dummy run looks nothing up in the ledger, so it cannot use entry {entry}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        model = self._dummy_model(fit, context)
        rows = request.rows or _toy().public_rows
        yield dummy_pb2.DummyResponse(start=dummy_pb2.DummyStart(rows=rows, price=_price(fit)))
        for progress in _progress(fit):
            yield dummy_pb2.DummyResponse(progress=progress)
        yield dummy_pb2.DummyResponse(model=model)

    def _dummy_model(self, fit: FitRequest, context: grpc.ServicerContext) -> dummy_pb2.DummyModel:
        match fit:
            case fit_pb2.FitSketchKMeansRequest():
                sketch = None
                if fit.WhichOneof("source") == "new_sketch":
                    sketch = fake_sketch(fit, _BOUNDS)
                    sketch.dummy = True
                sketches = [*([] if sketch is None else [sketch]), *fit.foreign]
                decoded = fake_decoding(fit, sketches) if decodes(fit) else None
                answer = fit_pb2.SketchModel(sketch=sketch, decoded=decoded, residual=1.0)
                return dummy_pb2.DummyModel(sketch_kmeans=answer)
            case fit_pb2.FitMRFRequest():
                self._tables(fit, context)
                field = fake_mrf(fit, fake_variables(fit, _toy().columns), [], 0)
                field.noise.append(_noise(fit))
                return dummy_pb2.DummyModel(mrf=field)
            case fit_pb2.FitGradientEMRequest():
                return dummy_pb2.DummyModel(gradient_em=self._gradient_em(fit, context))
            case fit_pb2.FitSeparatedGMMRequest():
                return dummy_pb2.DummyModel(separated_gmm=self._separated_gmm(fit, context))
        return dummy_pb2.DummyModel(dpem=_model(fit))

    def _enter(self, context: grpc.ServicerContext) -> None:
        self.metadata.append(dict(context.invocation_metadata()))
        if self._failures:
            context.abort_with_status(self._failures.popleft())

    def _debit(self, request: FitRequest, context: grpc.ServicerContext) -> None:
        with self._lock:
            replayed = request.request_id in self._released
            if not replayed:
                self._released[request.request_id] = request
                self._heads.append(_hash(self._heads[-1] + secrets.token_bytes(32)))
        if replayed:
            context.set_trailing_metadata((("bursar-replayed", "true"),))

    def _break(self, context: grpc.ServicerContext) -> None:
        if self._breaks > 0:
            self._breaks -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken on purpose")

    def _paid(self, entry: int, kind: type[RequestT], context: grpc.ServicerContext) -> RequestT:
        paid = next((fit for fit in self._released.values() if self._entry(fit) == entry), None)
        if not isinstance(paid, kind):
            what = "entry: expected the entry of an earlier sketch of yours"
            if kind is fit_pb2.FitMRFRequest:
                what = "reuse: expected entries of earlier FitMRF releases of yours"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, what)
        return paid

    def _tables(self, request: fit_pb2.FitMRFRequest, context: grpc.ServicerContext) -> None:
        """Refuses a request whose columns or entries are not there, and one that does not pay for what it needs."""
        try:
            variables = fake_variables(request, _toy().columns)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        earlier = [self._mrf(self._paid(entry, fit_pb2.FitMRFRequest, context)) for entry in request.reuse]
        new = unpaid(request, variables, earlier)
        if new and not request.HasField("spend"):
            text = f"spend: is missing, and the table over {', '.join(new[0])} is not paid for"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        if request.HasField("spend") and not new:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "spend: everything is paid for already; leave spend out")

    def _mrf(self, request: fit_pb2.FitMRFRequest) -> fit_pb2.MRFModel:
        """The model of a request that was not refused."""
        earlier = [self._mrf(fit) for fit in self._mrf_requests() if self._entry(fit) in request.reuse]
        entry = self._entry(request) if request.HasField("spend") else 0
        model = fake_mrf(request, fake_variables(request, _toy().columns), earlier, entry)
        model.noise.append(_noise(request))
        return model

    def _gradient_em(
        self, request: fit_pb2.FitGradientEMRequest, context: grpc.ServicerContext
    ) -> fit_pb2.GradientEMModel:
        """The model of a request; refuses one whose columns are not there."""
        try:
            model = fake_gradient_em(request, _BOUNDS)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        model.noise.append(_noise(request))
        return model

    def _separated_gmm(
        self, request: fit_pb2.FitSeparatedGMMRequest, context: grpc.ServicerContext
    ) -> fit_pb2.SeparatedGMM:
        """The model of a request; refuses what the server would refuse."""
        try:
            model = fake_separated_gmm(request, _BOUNDS)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        model.noise.append(_noise(request))
        return model

    def _mrf_requests(self) -> list[fit_pb2.FitMRFRequest]:
        return [fit for fit in self._released.values() if isinstance(fit, fit_pb2.FitMRFRequest)]

    def _sketch(self, paid: fit_pb2.FitSketchKMeansRequest, *, sums: bool = True) -> fit_pb2.Sketch:
        sketch = fake_sketch(paid, _BOUNDS)
        sketch.entry = self._entry(paid)
        if not sums:
            sketch.ClearField("sums")
        return sketch

    def _receipt(self, request: FitRequest, paid: FitRequest | None) -> types_pb2.Receipt:
        """For what was asked, of what is paid for: the same, an earlier sketch, or nothing of this server's."""
        entry = self._entry(paid) if paid else 0
        return types_pb2.Receipt(
            dataset=request.dataset,
            request_id=request.request_id,
            entry=entry,
            price=_price(request) if paid is request else types_pb2.Price(),
            remaining=_remaining(),
            ledger_head=self._heads[entry - 1] if entry else b"",
            adjacency=types_pb2.ADJACENCY_REPLACE_ONE,
            free=paid is not request,
        )

    def _entry(self, request: FitRequest) -> int:
        # Every debit is an entry, and the first entry of a ledger is no debit.
        return 2 + list(self._released).index(request.request_id)

    def _page(
        self, request: catalog_pb2.ListReleasesRequest | catalog_pb2.ListSketchesRequest
    ) -> tuple[list[FitRequest], int]:
        """Debits of one page, and the token of the next."""
        later = [fit for fit in self._released.values() if self._entry(fit) > request.page_token]
        page = later[: request.page_size or len(later)]
        return page, self._entry(page[-1]) if len(page) < len(later) else 0


@contextmanager
def fake_server(kind: type[FakeServer] = FakeServer) -> Iterator[FakeServer]:
    """A fake server that listens while the context is open.

    Args:
        kind: a class of your own, for other answers.

    Example:
        >>> import bursar.testing
        >>> with bursar.testing.fake_server() as server, server.client() as client:
        ...     client.dataset("toy").remaining()
        Remaining(rho=0.9, pure_epsilon=1.3, share=90.0%)
    """
    servicer = kind()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    catalog_pb2_grpc.add_CatalogServiceServicer_to_server(servicer, server)
    fit_pb2_grpc.add_FitServiceServicer_to_server(servicer, server)
    dummy_pb2_grpc.add_DummyServiceServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield servicer
    finally:
        server.stop(grace=None).wait()


def _toy() -> catalog_pb2.Dataset:
    numeric = [
        catalog_pb2.Column(
            name=name, numeric=catalog_pb2.NumericColumn(lower=lower, upper=upper, bin_edges=_BINS.get(name))
        )
        for name, (lower, upper) in _BOUNDS.items()
    ]
    categorical = [
        catalog_pb2.Column(
            name=name, description=text, categorical=catalog_pb2.CategoricalColumn(categories=categories)
        )
        for name, (text, categories) in _CATEGORIES.items()
    ]
    return catalog_pb2.Dataset(
        name="toy",
        description="invented people",
        columns=[*numeric, *categorical],
        adjacency=types_pb2.ADJACENCY_REPLACE_ONE,
        privacy_unit=catalog_pb2.PrivacyUnit(max_rows_per_unit=1),
        public_rows=1000,
        total=types_pb2.EpsilonDelta(epsilon=3.0, delta=1e-6),
        remaining=_remaining(),
        available=_remaining(),
    )


def _looked_up(request: FitRequest) -> int:
    """An entry that the request names; 0 if there is none."""
    match request:
        case fit_pb2.FitDPEMRequest():
            return request.released.entry
        case fit_pb2.FitSketchKMeansRequest():
            return request.entry
        case fit_pb2.FitMRFRequest():
            return request.reuse[0] if request.reuse else 0
    return 0


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _price(request: FitRequest) -> types_pb2.Price:
    if request.spend.WhichOneof("amount") == "remaining":
        return types_pb2.Price(cost_units=_remaining().cost_units, rho=_remaining().rho)
    if request.spend.WhichOneof("amount") == "rho":
        return types_pb2.Price(cost_units=int(np.ceil(request.spend.rho * 10 * 2**40)), rho=request.spend.rho)
    return types_pb2.Price(cost_units=2**40, rho=0.1)


def _remaining() -> types_pb2.Remaining:
    return types_pb2.Remaining(
        cost_units=9 * 2**40, cap_cost_units=10 * 2**40, rho=0.9, pure_epsilon=1.3, order=10.0, delta_units=0
    )


def _noise(request: FitRequest) -> types_pb2.ReleaseNoise:
    if isinstance(request, fit_pb2.FitSketchKMeansRequest):
        m = request.new_sketch.n_frequencies or N_FREQUENCIES
        return types_pb2.ReleaseNoise(name="sketch", size=2 * m, times=1)
    if isinstance(request, fit_pb2.FitMRFRequest):
        return types_pb2.ReleaseNoise(name="tables", size=1, count_std=TABLE_STD, times=1)
    if isinstance(request, fit_pb2.FitGradientEMRequest):
        T = _steps(request) - 1
        return types_pb2.ReleaseNoise(name="gradient", size=len(request.columns), sum_std=5.0, times=T)
    if isinstance(request, fit_pb2.FitSeparatedGMMRequest):
        return types_pb2.ReleaseNoise(name="splits", size=3, count_std=10.0, times=request.n_components - 1)
    return types_pb2.ReleaseNoise(
        name="moments", size=request.n_components, count_std=10.0, sum_std=5.0, times=_steps(request)
    )


def _steps(request: FitRequest) -> int:
    if isinstance(request, fit_pb2.FitDPEMRequest):
        return request.iterations or STEPS
    if isinstance(request, fit_pb2.FitMRFRequest):
        return 1
    if isinstance(request, fit_pb2.FitGradientEMRequest):
        return 1 + (request.iterations or GRADIENT_STEPS)  # the first one looks at the scales
    if isinstance(request, fit_pb2.FitSeparatedGMMRequest):
        return SEPARATED_STEPS
    source, scale = request.WhichOneof("source"), request.new_sketch.WhichOneof("scale")
    return (source == "new_sketch") + (scale == "pilot") + decodes(request) or 1


def _fineness(request: FitRequest) -> float:
    """By how much errors differ from those of rho = 0.1: they go with its inverse square root, as those of a server."""
    return float(np.sqrt(0.1 / request.spend.rho)) if request.spend.WhichOneof("amount") == "rho" else 1.0


def _expect(
    request: fit_pb2.FitDPEMRequest | fit_pb2.FitGradientEMRequest | fit_pb2.FitSeparatedGMMRequest,
    preview: fit_pb2.PreviewResponse,
) -> None:
    """What a preview says of accuracy."""
    known, fineness = True, _fineness(request)
    if isinstance(request, fit_pb2.FitGradientEMRequest):
        preview.expected_relative_error = 0.1 * fineness
        known = request.noise_std > 0
        if request.target:
            preview.expected_coefficient_error.extend([0.01 * fineness] * len(request.columns) * known)
            return
    preview.sum_units.extend((upper - lower) / 2 for lower, upper in map(_BOUNDS.__getitem__, request.columns))
    preview.expected_mean_error.extend([0.5 * fineness] * len(request.columns) * known)


def _progress(request: FitRequest) -> Iterator[types_pb2.Progress]:
    steps = _steps(request)
    return (types_pb2.Progress(step=step, steps=steps) for step in range(1, steps + 1))


def _model(request: fit_pb2.FitDPEMRequest) -> fit_pb2.GaussianMixtureModel:
    lower, upper = np.array([_BOUNDS[name] for name in request.columns]).T
    k, d = request.n_components, len(request.columns)
    places = (np.arange(k)[:, None] + 0.5) / k
    variances = np.square((upper - lower) / (2 * k))
    return fit_pb2.GaussianMixtureModel(
        columns=request.columns,
        covariance_type=request.covariance_type or fit_pb2.COVARIANCE_TYPE_FULL,
        mode=request.mode,
        weights=tensor_to(np.full(k, 1 / k)),
        means=tensor_to(lower + places * (upper - lower)),
        covariances=tensor_to(_covariances(request, variances, k, d)),
        iterations=_steps(request),
        noise=[_noise(request)],
        n_rows=1000.0,
    )


def _covariances(
    request: fit_pb2.FitDPEMRequest, variances: np.ndarray[tuple[int], np.dtype[np.float64]], k: int, d: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if request.mode == fit_pb2.MODE_KMEANS or request.covariance_type == fit_pb2.COVARIANCE_TYPE_SPHERICAL:
        return np.full(k, variances.mean())
    if request.covariance_type == fit_pb2.COVARIANCE_TYPE_DIAG:
        return np.tile(variances, (k, 1))
    matrix = np.diag(variances)
    return (
        matrix
        if request.covariance_type == fit_pb2.COVARIANCE_TYPE_TIED
        else np.tile(matrix, (k, 1, 1)).reshape(k, d, d)
    )
