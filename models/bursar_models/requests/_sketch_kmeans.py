"""The request for a sketch of random Fourier moments, and for what is decoded from it."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeAlias, overload

from typing_extensions import TypeVar

from bursar_models._frequencies import MAX_FREQUENCIES, MAX_SIGMA, MIN_SIGMA, FrequencyLaw, FrequencyStructure
from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._kmeans import KMeans
from bursar_models._sketch import Signature, Sketch
from bursar_models.budget import Receipt
from bursar_models.checks import MAX_COUNT, MAX_SEED, Between, Whole, names, whole
from bursar_models.errors import InvalidRequestError
from bursar_models.requests._json import part
from bursar_models.requests._request import Request
from bursar_models.requests._separated_gmm import ColumnUnits
from bursar_models.requests._transforms import Transforms

Decoding: TypeAlias = Literal["kmeans", "mixture", "none"]
DecodingT = TypeVar("DecodingT", bound=Decoding, default=Literal["kmeans"], covariant=True)

Computer: TypeAlias = Literal["client", "server"]
"""The machine that computes what is free from what was released."""

PaidSketch: TypeAlias = Sketch | Receipt | int
"""An earlier sketch of the caller's: itself, its receipt or its entry."""

NEW_SKETCH = (
    "columns",
    "transform",
    "n_frequencies",
    "frequencies_per_row",
    "law",
    "structure",
    "signature",
    "units",
    "scale",
    "public_seed",
)
"""Arguments that describe a new sketch."""

PILOT_SHARES, PILOT_FREQUENCIES = (0.05, 0.5), (16, 512)
"""Bounds of a pilot sketch: its share of the spend, and its frequencies. Chosen, not tuned."""


@part
@dataclass(frozen=True)
class Pilot:
    """A small sketch that looks for the scale of the clusters before the sketch itself; part of the same price.

    Attributes:
        share: share of the spend, 0.05 to 0.5; None leaves it to the server, which takes 0.15.
        n_frequencies: number of the pilot's frequencies, 16 to 512; None leaves it to the server, which takes 64.

    Raises:
        InvalidRequestError: a number is outside its range.
    """

    share: float | None = None
    n_frequencies: int | None = None

    def __post_init__(self) -> None:
        if self.share is not None:
            object.__setattr__(self, "share", Between(*PILOT_SHARES)("pilot.share", self.share))
        if self.n_frequencies is not None:
            n_frequencies = whole("pilot.n_frequencies", self.n_frequencies, *PILOT_FREQUENCIES)
            object.__setattr__(self, "n_frequencies", n_frequencies)


Scale: TypeAlias = Literal["pilot", "schema"] | float | Pilot
"""Choice of the scale of the frequencies: by a part of the spend, from public facts, or by the analyst."""


def _scale(name: str, value: object) -> object:
    """Return a scale. Raises InvalidRequestError."""
    match value:
        case "pilot" | "schema" | Pilot():
            return value
        case bool():
            pass
        case numbers.Real():
            return Between(MIN_SIGMA, MAX_SIGMA)(name, value)
    text = f"must be 'pilot', 'schema', a bursar.Pilot or a number, got {value!r}"
    raise InvalidRequestError.of(name, text)


def _paid_sketch(name: str, value: object) -> object:
    """Return an earlier sketch. Raises InvalidRequestError."""
    match value:
        case Sketch() | Receipt():
            return value
        case int():
            return whole(name, value, 1, MAX_SEED)
    expected = "a sketch with a receipt, a receipt, or the entry of one"
    raise InvalidRequestError.of(name, f"must be {expected}, got {type(value).__name__}")


def _sketches(name: str, value: object) -> tuple[Sketch, ...]:
    """Return a list of sketches as a tuple. Raises InvalidRequestError."""
    if not isinstance(value, Sequence) or not all(isinstance(one, Sketch) for one in value):
        raise InvalidRequestError.of(name, "must be a list of sketches")
    return tuple(value)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SketchKMeans(Request, Generic[DecodingT]):
    """Find cluster centres, or a mixture, in a noisy sketch of the rows (Schellekens et al. 2019, corrected).

    The sketch is what is paid for: noisy sums over the rows of random Fourier moments. The model is decoded from it on
    this machine, for free; so is every other model, with `sketch=` or `model.sketch.kmeans(k)`. Fit it with a spend for
    a new sketch; without one for an earlier `sketch`, or for `foreign` sketches alone. The fit returns a `KMeans`, a
    `GaussianMixture` for decoding="mixture", or the `Sketch` for decoding="none".

    Attributes:
        n_clusters: number of clusters or components to decode. With decoding="none" about how many you will look for:
            the server chooses the number of frequencies, and the scale by the schema, for that many; None leaves it
            open.
        decoding: "kmeans", "mixture" for Gaussians with diagonal covariances, or "none" for the sketch alone.
        sketch: an earlier sketch of yours of this dataset, its receipt or its entry. It is free, and a sketch itself is
            decoded without a call to the server.
        foreign: sketches of other sites with the same frequencies, merged with that one before decoding.
        columns: numeric columns in the order that the model has them; None for all that are never null. This and the
            arguments down to `public_seed` are for a new sketch only.
        transform: by column, "log1p" to sketch log(1 + x) in place of the column, "none" for the column itself. None,
            and columns left out: what the owner declared.
        n_frequencies: m, number of moments, 1 to 16384; None lets the server choose from public numbers.
        frequencies_per_row: r, number of moments that each row takes part in; None for all m. Fewer save the server's
            time; they save no privacy and cost accuracy.
        law: law of the frequencies: "adapted_radius", or "multiscale" if the scale is not known.
        structure: "dense", or "hadamard", which is faster for many columns.
        signature: "exponential", or "one_bit" for the signs of cosine and sine.
        units: "common" measures distances as the data do; "bounds" takes every column's half-width as its unit.
        scale: standard deviation of a cluster that the frequencies are tuned to: found by a "pilot" sketch, which a
            part of the spend pays for (`bursar.Pilot(share=..., n_frequencies=...)` says which part); from the public
            "schema", which is free and not tuned; or a number in the sketch's units, in which the widest column (for
            units="bounds" every column) reaches from -1 to 1.
        public_seed: seed of the frequencies, 0 to 2^64 - 1; None derives it from the request_id, so that it differs
            between requests. It is part of the request and the answer and protects nothing. Sketches to be merged need
            the same one.
        n_init: number of restarts of the decoder, of which the one that explains the sketch best is kept; they are
            free. None is 20, or as many as take a minute or two, which is fewer for many clusters.
        decoder_seed: seed of the decoder's random starts; with the same one both sides decode the same but for
            rounding.
        decoded_by: "client", or "server" if this machine is too slow: the owner's server decodes then, for free, and
            the fit takes longer.

    Raises:
        InvalidRequestError: an argument is outside its range, or arguments contradict each other.

    Example:
        >>> bursar.SketchKMeans(n_clusters=3, scale="schema")
        bursar.SketchKMeans(n_clusters=3, scale='schema')
    """

    n_clusters: Annotated[int | None, Whole(1, MAX_COUNT)] = None
    # The type checker has the default from the type parameter; the value is the same.
    decoding: DecodingT = "kmeans"  # type: ignore[assignment]
    sketch: Annotated[PaidSketch | None, _paid_sketch] = None
    foreign: Annotated[Sequence[Sketch], _sketches] = ()
    columns: Annotated[Sequence[str] | None, names] = None
    transform: Transforms = None
    n_frequencies: Annotated[int | None, Whole(1, MAX_FREQUENCIES)] = None
    frequencies_per_row: Annotated[int | None, Whole(1, MAX_FREQUENCIES)] = None
    law: FrequencyLaw = "adapted_radius"
    structure: FrequencyStructure = "dense"
    signature: Signature = "exponential"
    units: ColumnUnits = "common"
    scale: Annotated[Scale, _scale] = "pilot"
    public_seed: Annotated[int | None, Whole(0, MAX_SEED)] = None
    n_init: Annotated[int | None, Whole(1, MAX_COUNT)] = None
    decoder_seed: Annotated[int, Whole(0, MAX_SEED)] = 0
    # Which machine decodes changes no release, so that it is no part of equality and digest.
    decoded_by: Computer = field(default="client", compare=False)

    def _check(self) -> None:
        if self.n_clusters is None and self.decoding != "none":
            text = 'is missing: say how many clusters to decode, or decoding="none" for the sketch alone'
            raise InvalidRequestError.of("n_clusters", text)
        most = self.n_frequencies or MAX_FREQUENCIES
        if self.frequencies_per_row is not None:
            whole("frequencies_per_row", self.frequencies_per_row, 1, most)
        if self.sketch is not None:
            self.refuse_new_sketch("but an earlier one is named with sketch=")
        if self.foreign:
            self.merged(self.sketch if isinstance(self.sketch, Sketch) else None)

    def refuse_new_sketch(self, why: str) -> None:
        """Check that nothing describes a new sketch, where there is none.

        Raises:
            InvalidRequestError: an argument does.
        """
        for name in self.changed():
            if name in NEW_SKETCH:
                raise InvalidRequestError.of(name, f"is for a new sketch, {why}; leave it out")

    def merged(self, source: Sketch | None) -> Sketch:
        """Return the caller's own sketch and the foreign ones as one.

        Args:
            source: the caller's own sketch; None merges the foreign ones alone.

        Raises:
            InvalidRequestError: the sketches do not go together.
        """
        first, *rest = self.foreign if source is None else (source, *self.foreign)
        try:
            return first.merge(*rest) if rest else first
        except ValueError as error:
            raise InvalidRequestError.of("foreign", f"these sketches do not go together: {error}") from error

    @overload
    def result_type(self: SketchKMeans[Literal["kmeans"]]) -> type[KMeans]: ...
    @overload
    def result_type(self: SketchKMeans[Literal["mixture"]]) -> type[GaussianMixture]: ...
    @overload
    def result_type(self: SketchKMeans[Literal["none"]]) -> type[Sketch]: ...
    @overload
    def result_type(self) -> type[KMeans] | type[GaussianMixture] | type[Sketch]: ...
    def result_type(self) -> type[Any]:
        """Return the class of the fit's result."""
        return {"kmeans": KMeans, "mixture": GaussianMixture, "none": Sketch}[self.decoding]
