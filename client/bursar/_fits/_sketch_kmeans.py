"""Messages of sketches of random Fourier moments, and what is decoded from them on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bursar import _convert
from bursar._errors import ServerError
from bursar._fits._kind import Asked, Kind, check_dataset, entry_of
from bursar_models import DEFAULT_RESTARTS, GaussianMixture, KMeans, Sketch, most_restarts
from bursar_models.budget import Price, Receipt, ReleaseNoise, Spend
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import PaidSketch, Pilot, SketchKMeans
from bursar_proto.filling import message_of
from bursar_proto.v1 import catalog_pb2, fit_pb2

_PATIENCE = "take your time with the sketch itself: sketch.kmeans(k), sketch.gaussian_mixture(k)"


class SketchKMeansKind(Kind[SketchKMeans[Any]]):
    """Sketches, and k-means or mixtures decoded from them."""

    name = "sketch_kmeans"
    method = "FitSketchKMeans"

    def message(self, request: SketchKMeans[Any], asked: Asked) -> fit_pb2.FitSketchKMeansRequest:
        """Return the request on the wire. Raises InvalidRequestError."""
        message = fit_pb2.FitSketchKMeansRequest(request_id=asked.request_id, dataset=asked.dataset)
        foreign = request.foreign
        if asked.dry and asked.spend is None and isinstance(request.sketch, Sketch):
            # A dry run looks no entry up, so that the numbers of the sketch are sent.
            foreign = (request.sketch, *foreign)
        else:
            _set_source(message, request, asked)
        message.foreign.extend(_convert.sketch_to(one, entry=0) for one in foreign)
        if request.n_clusters is not None:
            message.n_clusters = request.n_clusters
            message.decoding = fit_pb2.DECODING_MIXTURE if request.decoding == "mixture" else fit_pb2.DECODING_KMEANS
            # 0 leaves it to the server, whose limit falls with the number of clusters. Where nothing is decoded, one
            # restart keeps the number of clusters from being refused as too large.
            message.n_init = 1 if request.decoding == "none" else request.n_init or 0
            message.public_seed = request.decoder_seed
            message.decode_on_client = request.decoding == "none" or request.decoded_by == "client"
        return message

    def result(
        self, request: SketchKMeans[Any], answer: Any, receipt: Receipt | None
    ) -> KMeans | GaussianMixture | Sketch:
        """Return the sketch, or the model that the server decoded or that is decoded here. Raises ServerError."""
        found = _convert.sketch_model_from(answer, receipt)
        if found.decoded is not None and request.decoding != "none":
            return found.decoded
        if found.sketch is None:
            raise ServerError("the server sent no sketch, nor what was to be decoded from it")
        if request.decoding == "none":
            return found.sketch
        return decode(request, found.sketch, found.sketch.receipt, found.noise[:-1])

    def stored(self, message: catalog_pb2.GetReleaseResponse, receipt: Receipt) -> Sketch:
        """Return the sketch. Raises ServerError."""
        return _convert.sketch_from(message.sketch_kmeans.sketch, receipt)

    def steps_here(self, request: SketchKMeans[Any]) -> bool:
        """Return whether the model is decoded on this machine."""
        return request.decoding != "none" and request.decoded_by == "client"


def is_decoded_from_earlier(request: object, spend: Spend | None) -> bool:
    """Return whether a fit only decodes earlier sketches here, so that the server has nothing to compute."""
    return (
        isinstance(request, SketchKMeans)
        and request.decoding != "none"
        and request.decoded_by == "client"
        and spend is None
    )


def decode_earlier(
    request: SketchKMeans[Any],
    asked: Asked,
    fetch: Callable[[SketchKMeans[Any]], Sketch],
    free_receipt: Callable[[], Receipt],
) -> KMeans | GaussianMixture:
    """Decode earlier sketches, for free.

    Raises:
        InvalidRequestError: there is nothing to decode, or it does not end in bounded time.
        Error: a call to the server failed.
    """
    SketchKMeansKind().message(request, asked)  # for its checks
    source, receipt = request.sketch, None
    if source is None:
        _check_foreign(request, asked)
        receipt = None if asked.dry else free_receipt()
    elif isinstance(source, Sketch):
        receipt = None if source.receipt is None else _free(source.receipt, asked.request_id)
    elif asked.dry:
        text = "a dry run looks nothing up in the ledger; give the sketch itself, or leave it out"
        raise InvalidRequestError.of("sketch", text)
    else:
        source = fetch(SketchKMeans(decoding="none", sketch=source))
        receipt = source.receipt
    _check_decoding(request, request.foreign[0] if source is None else source)
    return decode(request, source, receipt)


def decode(
    request: SketchKMeans[Any], source: Sketch | None, receipt: Receipt | None, before: Sequence[ReleaseNoise] = ()
) -> KMeans | GaussianMixture:
    """Decode what a server would decode from the same numbers, but for rounding.

    There is no `source`, the caller's own sketch, if all are foreign. The model also tells of the noise of the releases
    `before` the sketch.

    Raises:
        InvalidRequestError: the sketches do not go together.
    """
    sketch = request.merged(source)
    k = request.n_clusters or 1
    n_init = request.n_init or min(DEFAULT_RESTARTS, max(most_restarts(k, sketch.m, sketch.d), 1))
    run = sketch.gaussian_mixture if request.decoding == "mixture" else sketch.kmeans
    model: KMeans | GaussianMixture = run(k, n_init=n_init, public_seed=request.decoder_seed)
    noise = ReleaseNoise(
        name="sketch",
        size=2 * sketch.m + (sketch.n_rows_std > 0),
        count_std=sketch.n_rows_std,
        sum_std=sketch.noise_std,
        moment_std=0.0,
        times=1,
    )
    steps = 1 if sketch.pilot_sigma is None else 2
    return replace(model, receipt=receipt, sketch=source, noise=(*before, noise), iterations=steps)


def _check_decoding(request: SketchKMeans[Any], sketch: Sketch) -> None:
    """Check that a free decoding ends in bounded time, as a server does before a fit is paid.

    Raises:
        InvalidRequestError: it does not, or there are more clusters than frequencies.
    """
    k, m, d = request.n_clusters or 1, sketch.m, sketch.d
    if not k <= m:
        raise InvalidRequestError.of("n_clusters", f"must be at most the sketch's {m} frequencies, got {k}")
    most, size = most_restarts(k, m, d), f"{k} clusters in {d} columns at {m} frequencies"
    if not most:
        raise InvalidRequestError.of("n_clusters", f"{size} take too long; ask for fewer, or {_PATIENCE}")
    if not (request.n_init or 1) <= most:
        text = f"{size} take long to decode; must be at most {most}, got {request.n_init}, or {_PATIENCE}"
        raise InvalidRequestError.of("n_init", text)


def _check_foreign(request: SketchKMeans[Any], asked: Asked) -> None:
    """Check that foreign sketches alone are of columns that this dataset has, too. Raises InvalidRequestError."""
    known = asked.numeric(nullable=True)
    for index, sketch in enumerate(request.foreign):
        if not set(sketch.columns) <= set(known):
            text = f"dataset {asked.dataset!r} has other numeric columns: {', '.join(known)}"
            raise InvalidRequestError.of(f"foreign[{index}].columns", text)


def _set_source(message: fit_pb2.FitSketchKMeansRequest, request: SketchKMeans[Any], asked: Asked) -> None:
    if asked.spend is not None:
        if request.sketch is not None:
            text = "pays for a new sketch, but an earlier one is named, which is paid for: leave one of them out"
            raise InvalidRequestError.of("spend", text)
        message.columns.extend(asked.numeric() if request.columns is None else request.columns)
        message.spend.CopyFrom(_convert.spend_to(asked.spend))
        message.new_sketch.CopyFrom(_new_sketch(request, asked.request_id))
        return
    if request.sketch is None and not request.foreign:
        text = (
            "is missing: a new sketch needs it; an earlier one costs nothing and is named by sketch=; sketches of "
            "other sites are given by foreign= alone"
        )
        raise InvalidRequestError.of("spend", text)
    request.refuse_new_sketch("which needs a spend=")
    if request.sketch is not None:
        message.entry = _paid_entry(request.sketch, asked.dataset)


def _new_sketch(request: SketchKMeans[Any], request_id: str) -> fit_pb2.NewSketch:
    seed = _seed_of(request_id) if request.public_seed is None else request.public_seed
    transforms = _convert.transforms_to(request.transform)
    message = message_of(fit_pb2.NewSketch, request, public_seed=seed, transforms=transforms)
    match request.scale:
        case "schema":
            message.schema.SetInParent()
        case float(sigma):
            message.sigma = sigma
        case pilot:
            if request.foreign:
                sigma = request.foreign[0].frequencies.sigma
                text = f"a pilot would not find the scale of the foreign sketches again; give theirs, scale={sigma!r}"
                raise InvalidRequestError.of("scale", text)
            settings = pilot if isinstance(pilot, Pilot) else Pilot()
            message.pilot.CopyFrom(message_of(fit_pb2.PilotSketch, settings))
    return message


def _paid_entry(sketch: PaidSketch, dataset: str) -> int:
    if isinstance(sketch, int):
        return sketch
    check_dataset("sketch", sketch, dataset, "this sketch is")
    return entry_of("sketch", sketch, "give its entry, or decode it here: sketch.kmeans(k)")


def _free(receipt: Receipt, request_id: str) -> Receipt:
    """Return the receipt of what is computed here from a release; the remaining budget is that of the release."""
    return replace(receipt, request_id=request_id, price=Price(0, 0, 0.0), replayed=False, free=True)


def _seed_of(request_id: str) -> int:
    """Derive a seed that differs between requests and is the same for a repetition: 64 bits of SHA-256 of the id."""
    return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")
