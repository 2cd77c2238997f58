"""What may be asked of a sketch of random Fourier moments (Schellekens et al. 2019, corrected by the server)."""

from __future__ import annotations

import hashlib
import numbers
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias, TypedDict, get_args

from bursar import _convert
from bursar._arguments import entry_of, names, whole
from bursar._errors import InvalidRequestError
from bursar._privacy import Price, Receipt, ReleaseNoise, Spend, positive
from bursar.models import (
    DEFAULT_RESTARTS,
    MAX_FREQUENCIES,
    MAX_SIGMA,
    MIN_SIGMA,
    FrequencyLaw,
    FrequencyStructure,
    GaussianMixture,
    KMeans,
    Signature,
    Sketch,
    most_restarts,
)
from bursar_proto.v1 import fit_pb2

_MOST = 2**32 - 1
_SEEDS = 2**64 - 1
_PATIENCE = "take your time with the sketch itself: sketch.kmeans(k), sketch.gaussian_mixture(k)"

ColumnUnits: TypeAlias = Literal["common", "bounds"]
Decoding: TypeAlias = Literal["kmeans", "mixture"]
Computer: TypeAlias = Literal["client", "server"]
"""Who computes what is free, from what was released."""

COMPUTERS: tuple[Computer, ...] = get_args(Computer)


@dataclass(frozen=True)
class Pilot:
    """A small sketch that looks for the scale of the clusters before the sketch itself; part of the same price.

    Attributes:
        share: of the spend, 0.05 to 0.5; None leaves it to the server, which takes 0.15.
        n_frequencies: of the pilot, 16 to 512; None leaves it to the server, which takes 64.

    Raises:
        InvalidRequestError: a number outside its range.
    """

    share: float | None = None
    n_frequencies: int | None = None

    def __post_init__(self) -> None:
        if self.share is not None and not 0.05 <= positive("new_sketch.pilot.share", self.share) <= 0.5:
            raise InvalidRequestError.of("new_sketch.pilot.share", f"must be 0.05 to 0.5, got {self.share!r}")
        if self.n_frequencies is not None:
            whole("new_sketch.pilot.n_frequencies", self.n_frequencies, 16, 512)


Scale: TypeAlias = Literal["pilot", "schema"] | float | Pilot
"""How the scale of the frequencies is chosen: by a part of the spend, from public facts, or by the analyst."""

PaidSketch: TypeAlias = Sketch | Receipt | int
"""An earlier sketch of the caller's: itself, its receipt or its entry."""


class NewSketchArguments(TypedDict, total=False):
    """The keyword arguments that describe a new sketch; documented at `Dataset.fit_sketch_kmeans`."""

    columns: Sequence[str] | None
    n_frequencies: int | None
    frequencies_per_row: int | None
    law: FrequencyLaw
    structure: FrequencyStructure
    signature: Signature
    units: ColumnUnits
    scale: Scale
    public_seed: int | None


@dataclass(frozen=True, kw_only=True)
class NewSketch:
    """The arguments of `Dataset.fit_sketch_kmeans` that say what a new sketch is to be; documented there."""

    columns: Sequence[str] | None = None
    n_frequencies: int | None = None
    frequencies_per_row: int | None = None
    law: FrequencyLaw = "adapted_radius"
    structure: FrequencyStructure = "dense"
    signature: Signature = "exponential"
    units: ColumnUnits = "common"
    scale: Scale = "pilot"
    public_seed: int | None = None

    def changed(self) -> list[str]:
        """Names of the arguments that are not as they are by default."""
        given = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]
        return [name for name, value, default in given if (value is not None if default is None else value != default)]

    def message(self, request_id: str) -> fit_pb2.NewSketch:
        """What the wire says of it.

        Raises:
            InvalidRequestError: an argument that no server would accept.
        """
        message = fit_pb2.NewSketch(
            law=_convert.choice("new_sketch.law", self.law, _convert.FREQUENCY_LAWS),
            structure=_convert.choice("new_sketch.structure", self.structure, _convert.FREQUENCY_STRUCTURES),
            signature=_convert.choice("new_sketch.signature", self.signature, _convert.SIGNATURES),
            units=_convert.choice("new_sketch.units", self.units, _convert.COLUMN_UNITS),
            public_seed=_seed_of(request_id)
            if self.public_seed is None
            else whole("new_sketch.public_seed", self.public_seed, 0, _SEEDS),
        )
        if self.n_frequencies is not None:
            message.n_frequencies = whole("new_sketch.n_frequencies", self.n_frequencies, 1, MAX_FREQUENCIES)
        if self.frequencies_per_row is not None:
            most = message.n_frequencies or MAX_FREQUENCIES
            message.frequencies_per_row = whole("new_sketch.frequencies_per_row", self.frequencies_per_row, 1, most)
        _set_scale(message, self.scale)
        return message


@dataclass(frozen=True, kw_only=True)
class SketchSettings:
    """The arguments of `Dataset.fit_sketch_kmeans` that say what is computed; documented there.

    Attributes:
        new: the sketch that `spend` pays for; ignored without a spend, where it must be as it is by default.
        n_clusters: None asks for the sketch alone, as do those that the client decodes.
    """

    new: NewSketch = NewSketch()
    spend: Spend | None = None
    sketch: PaidSketch | None = None
    foreign: Sequence[Sketch] = ()
    n_clusters: int | None = None
    decoding: Decoding = "kmeans"
    n_init: int | None = None
    decoder_seed: int = 0
    decoded_by: Computer = "client"

    @property
    def decoded_here(self) -> bool:
        """Whether the client is to decode something."""
        return self.n_clusters is not None and self.decoded_by == "client"

    def message(self, dataset: str, request_id: str | None, numeric: Sequence[str]) -> fit_pb2.FitSketchKMeansRequest:
        """The request on the wire.

        Args:
            dataset: its name.
            request_id: None makes one for a new sketch; what is free needs none.
            numeric: the dataset's numeric columns, which a new sketch has if it names none.

        Raises:
            InvalidRequestError: an argument that no server would accept, or too many of them.
        """
        request = fit_pb2.FitSketchKMeansRequest(request_id=request_id or "", dataset=dataset)
        self._set_source(request, numeric)
        self._set_foreign(request)
        if self.n_clusters is not None:
            request.n_clusters = whole("n_clusters", self.n_clusters, 1, _MOST)
            request.decoding = _convert.choice("decoding", self.decoding, _convert.DECODINGS)
            # 0 leaves it to the server, whose limit falls with the number of clusters.
            request.n_init = 0 if self.n_init is None else whole("n_init", self.n_init, 1, _MOST)
            request.public_seed = whole("decoder_seed", self.decoder_seed, 0, _SEEDS)
            request.decode_on_client = checked_computer("decoded_by", self.decoded_by) == "client"
        return request

    def decoded(
        self, source: Sketch | None, receipt: Receipt | None, before: Sequence[ReleaseNoise] = ()
    ) -> KMeans | GaussianMixture:
        """What a server would decode from the same numbers, but for rounding.

        Args:
            source: the caller's own sketch; None if all are foreign.
            receipt: of the model.
            before: noise of the releases before the sketch, for the model to tell.

        Raises:
            InvalidRequestError: the sketches do not go together.
        """
        sketch = self._merged(source)
        k = self.n_clusters or 1
        n_init = self.n_init or min(DEFAULT_RESTARTS, max(most_restarts(k, sketch.m, sketch.d), 1))
        decode = sketch.gaussian_mixture if self.decoding == "mixture" else sketch.kmeans
        model: KMeans | GaussianMixture = decode(k, n_init=n_init, public_seed=self.decoder_seed)
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

    def check_decoding(self, sketch: Sketch) -> None:
        """That what is decoded for nothing ends in bounded time, as a server sees to before it is paid.

        Raises:
            InvalidRequestError: it does not, or there are more clusters than frequencies.
        """
        k, m, d = self.n_clusters or 1, sketch.m, sketch.d
        if not k <= m:
            raise InvalidRequestError.of("n_clusters", f"must be at most the sketch's {m} frequencies, got {k}")
        most, size = most_restarts(k, m, d), f"{k} clusters in {d} columns at {m} frequencies"
        if not most:
            raise InvalidRequestError.of("n_clusters", f"{size} take too long; ask for fewer, or {_PATIENCE}")
        if not (self.n_init or 1) <= most:
            text = f"{size} take long to decode; must be at most {most}, got {self.n_init}, or {_PATIENCE}"
            raise InvalidRequestError.of("n_init", text)

    def _merged(self, source: Sketch | None) -> Sketch:
        """The caller's own sketch and the foreign ones as one. Raises InvalidRequestError."""
        first, *rest = self.foreign if source is None else (source, *self.foreign)
        try:
            return first.merge(*rest) if rest else first
        except ValueError as error:
            raise InvalidRequestError.of("foreign", f"these sketches do not go together: {error}") from error

    def _set_source(self, request: fit_pb2.FitSketchKMeansRequest, numeric: Sequence[str]) -> None:
        if self.spend is not None:
            if self.sketch is not None:
                text = "pays for a new sketch, but an earlier one is named, which is paid for: leave one of them out"
                raise InvalidRequestError.of("spend", text)
            request.request_id = request.request_id or str(uuid.uuid4())
            request.columns.extend(numeric if self.new.columns is None else names(self.new.columns))
            request.spend.CopyFrom(_convert.spend_to(self.spend))
            request.new_sketch.CopyFrom(self.new.message(request.request_id))
            return
        if self.sketch is None and not self.foreign:
            text = (
                "is missing: a new sketch needs it; an earlier one costs nothing and is named by sketch= (to have only "
                "the sketch, by entry=); sketches of other sites are given by foreign= alone"
            )
            raise InvalidRequestError.of("spend", text)
        for name in self.new.changed():
            raise InvalidRequestError.of(name, "is for a new sketch, which needs a spend=; leave it out")
        if self.sketch is not None:
            request.entry = _paid_entry(self.sketch, request.dataset)

    def _set_foreign(self, request: fit_pb2.FitSketchKMeansRequest) -> None:
        foreign: object = self.foreign
        if not (isinstance(foreign, Sequence) and all(isinstance(one, Sketch) for one in foreign)):
            raise InvalidRequestError.of("foreign", "must be a list of sketches")
        if self.foreign and request.new_sketch.WhichOneof("scale") == "pilot":
            sigma = self.foreign[0].frequencies.sigma
            text = f"a pilot would not find the scale of the foreign sketches again; give theirs, scale={sigma!r}"
            raise InvalidRequestError.of("new_sketch.scale", text)
        if self.foreign:
            self._merged(self.sketch if isinstance(self.sketch, Sketch) else None)
        request.foreign.extend(_convert.sketch_to(one, entry=0) for one in self.foreign)


def checked_computer(field: str, value: str) -> str:
    """Who computes what is free. Raises InvalidRequestError for somebody else."""
    if value not in COMPUTERS:
        raise InvalidRequestError.of(field, f"must be one of {', '.join(map(repr, COMPUTERS))}, got {value!r}")
    return value


def receipt_for_nothing(receipt: Receipt, request_id: str) -> Receipt:
    """The receipt of what is computed here from a release, by the receipt of that; what is left is what was then."""
    return replace(receipt, request_id=request_id, price=Price(0, 0, 0.0), replayed=False, free=True)


def _paid_entry(sketch: object, dataset: str) -> int:
    match sketch:
        case int():
            return whole("entry", sketch, 1, _SEEDS)
        case Sketch() | Receipt():
            receipt = sketch if isinstance(sketch, Receipt) else sketch.receipt
            if receipt is not None and receipt.dataset != dataset:
                text = f"this sketch is of dataset {receipt.dataset!r}, not of {dataset!r}"
                raise InvalidRequestError.of("entry", text)
            return entry_of("entry", sketch, "give its entry, or decode it here: sketch.kmeans(k)")
    expected = "a sketch with a receipt, a receipt, or the entry of one"
    raise InvalidRequestError.of("entry", f"must be {expected}, got {type(sketch).__name__}")


def _set_scale(message: fit_pb2.NewSketch, scale: object) -> None:
    match scale:
        case "pilot":
            message.pilot.SetInParent()
        case Pilot():
            message.pilot.share = scale.share or 0.0
            message.pilot.n_frequencies = scale.n_frequencies or 0
            message.pilot.SetInParent()
        case "schema":
            message.schema.SetInParent()
        case numbers.Real():
            sigma = positive("new_sketch.sigma", scale)
            if not MIN_SIGMA <= sigma <= MAX_SIGMA:
                text = f"must be {MIN_SIGMA:g} to {MAX_SIGMA:g} in the sketch's units, got {scale!r}"
                raise InvalidRequestError.of("new_sketch.sigma", text)
            message.sigma = sigma
        case _:
            text = f"must be 'pilot', 'schema', a bursar.Pilot or a number, got {scale!r}"
            raise InvalidRequestError.of("new_sketch.scale", text)


def _seed_of(request_id: str) -> int:
    """A seed that differs between requests and is the same when one is asked again: 64 bits of SHA-256 of its id."""
    return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big")
