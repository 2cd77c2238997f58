"""Run of FitSketchKMeans: at most two releases, decided in advance; then merging and decoding of released numbers.

Schellekens et al. 2019, definitions 3 and 4, with the noise of the corrected proposition 1. The releases depend on the
plan alone; the frequencies of the second release may depend on the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bursar_ledger import Adjacency, Event
from bursar_models import Decoded, Frequencies, Signature, Sketch
from bursar_server.fits._requests import ModelColumns, transforms_from
from bursar_server.fits.sketch._pilot import frequency_scale
from bursar_server.fits.sketch._statistics import LATTICE, SketchFrame, sketch_bounds, sketch_statistic
from bursar_server.vault import Noise, Sensitivity, Session, event_of, noise_std, sensitivity


@dataclass(frozen=True)
class Shape:
    """Sketch before its noise is known.

    Attributes:
        frequencies: frequencies of the sketch; a pilot, if there is one, sets their sigma.
        signature: term that a row adds at a frequency.
        per_row: number r of frequencies at which each row contributes.
        count_weight: weight of the number of rows beside the moments; 0 if that number is public.
    """

    frequencies: Frequencies
    signature: Signature
    per_row: int
    count_weight: int

    def sensitivity(self, adjacency: Adjacency, unit_cap: int) -> Sensitivity:
        """Return the sensitivity of the release."""
        bounds = sketch_bounds(self.frequencies.m, self.per_row, self.signature, self.count_weight)
        return sensitivity(bounds, adjacency, unit_cap)


@dataclass(frozen=True)
class Measurement:
    """Release, decided before any row is read."""

    shape: Shape
    noise: Noise

    @property
    def std(self) -> float:
        """Standard deviation of the noise on every number of the release."""
        return noise_std(self.noise, LATTICE)

    @property
    def count_std(self) -> float:
        """Standard deviation of the noise on the number of rows; 0 if that is public."""
        return self.std / self.shape.count_weight if self.shape.count_weight else 0.0

    def event(self, adjacency: Adjacency, unit_cap: int) -> Event:
        """Return the ledger event of the release."""
        return event_of(self.shape.sensitivity(adjacency, unit_cap), self.noise)


@dataclass(frozen=True)
class New:
    """New sketch.

    Attributes:
        own: the columns in their own units.
        frame: frame of the rows, in the space of the transforms.
        pilot: measurement that sets the scale of the main frequencies; None if it is decided.
        main: measurement of the sketch itself.
        public_rows: number of rows if it is public, else None.
        n_clusters: number of clusters for the pilot's estimate; 0 if unknown.
    """

    own: ModelColumns
    frame: SketchFrame
    pilot: Measurement | None
    main: Measurement
    public_rows: int | None
    n_clusters: int

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in the order of the frame."""
        return self.own.names

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All releases, in order."""
        return (self.main,) if self.pilot is None else (self.pilot, self.main)


@dataclass(frozen=True)
class Decoding:
    """Request to decode.

    Attributes:
        mixture: True for diagonal Gaussians, False for k-means.
        n_clusters: number of clusters k; 0 to decode nothing.
        n_init: number of restarts of the decoder.
        public_seed: seed of its random starts.
        here: True if this server decodes, False if the client does.
    """

    mixture: bool
    n_clusters: int
    n_init: int
    public_seed: int
    here: bool

    @property
    def wanted_here(self) -> bool:
        """Return whether this server has clusters to decode."""
        return self.here and self.n_clusters > 0


@dataclass(frozen=True)
class SketchSettings:
    """Sources of sketches and their use; at most one of `new` and `earlier`, or `foreign` alone."""

    new: New | None
    earlier: Sketch | None
    foreign: tuple[Sketch, ...]
    decoding: Decoding

    def merged(self, source: Sketch | None) -> Sketch:
        """Return the source, new or earlier, merged with the foreign sketches."""
        first, *rest = self.foreign if source is None else (source, *self.foreign)
        return first.merge(*rest) if rest else first


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        source: new or earlier sketch; None if all are foreign.
        merged: sketch that was decoded: source and foreign sketches together.
        decoded: model in the data's own units; None if nothing was decoded here.
    """

    source: Sketch | None
    merged: Sketch
    decoded: Decoded | None


def run(settings: SketchSettings, iterations: int, session: Session) -> Result:
    """Release the new sketch, merge, decode. A total function of rows and noise."""
    source = settings.earlier if settings.new is None else _release(settings.new, iterations, session)
    merged = settings.merged(source)
    asked, decoded = settings.decoding, None
    if asked.wanted_here:
        decoded = merged.decode(
            asked.n_clusters, mixture=asked.mixture, n_init=asked.n_init, public_seed=asked.public_seed
        )
    session.progress(iterations, iterations)
    return Result(source, merged, decoded)


def _release(new: New, iterations: int, session: Session) -> Sketch:
    """Release the new sketch, after its pilot."""
    frequencies, pilot_sigma = new.main.shape.frequencies, None
    if new.pilot is not None:
        pilot = _measure(new, new.pilot, new.pilot.shape.frequencies, None, session)
        session.progress(1, iterations)
        pilot_sigma = frequency_scale(pilot, new.n_clusters, frequencies.law)
        # Only the scale follows the pilot, which is released; directions and lengths stay those of the public seed.
        frequencies = replace(frequencies, sigma=pilot_sigma)
    main = _measure(new, new.main, frequencies, pilot_sigma, session)
    done = len(new.measurements)
    if done < iterations:  # the last step is reported at the end of the run
        session.progress(done, iterations)
    return main


def _measure(
    new: New, measurement: Measurement, frequencies: Frequencies, pilot_sigma: float | None, session: Session
) -> Sketch:
    shape, frame = measurement.shape, new.frame
    statistic = sketch_statistic(frame, frequencies, shape.signature, shape.per_row, shape.count_weight)
    flat = session.noisy_sum(statistic, measurement.noise)
    counted = float(flat[-1]) / shape.count_weight if shape.count_weight else 0.0
    return Sketch(
        columns=new.columns,
        centre=frame.centre,
        unit=frame.unit,
        lower=new.own.own_box[0],
        upper=new.own.own_box[1],
        transforms=transforms_from(new.own.wire),
        frequencies=frequencies,
        signature=shape.signature,
        frequencies_per_row=shape.per_row,
        sums=np.reshape(flat[: 2 * frequencies.m], (2, frequencies.m)),
        noise_std=measurement.std,
        n_rows=counted if new.public_rows is None else float(new.public_rows),
        n_rows_std=measurement.count_std,
        pilot_sigma=pilot_sigma,
    )
