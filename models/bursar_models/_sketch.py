"""Released sketch: noisy random Fourier moments of a table, from which many models can be decoded.

Source: Schellekens, Chatalic, Houssiau, de Montjoye, Jacques, Gribonval (2019), "Differentially private compressive
k-means". Its SNR is used with the sensitivities and noise of the release itself, not with its proposition 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from bursar_models._cluster_choice import ClusterChoice, choose_clusters
from bursar_models._decoding import Decoded, decode_kmeans, decode_mixture
from bursar_models._describe import origin
from bursar_models._frequencies import Frequencies, FrequencyLaw
from bursar_models._gaussian_mixture import GaussianMixture
from bursar_models._kmeans import KMeans
from bursar_models._plot import new_axes, put_legend, put_title
from bursar_models._portable import Portable
from bursar_models.arrays import ComplexArray, FloatArray, checked_columns, frozen
from bursar_models.budget import Receipt
from bursar_models.text import harmless, html_table
from bursar_models.transforms import Transform, checked_transforms, into_model, said_transforms

Signature = Literal["exponential", "one_bit"]
"""Contribution of a row at a frequency: cosine and sine, or only their signs."""

SIGNATURES: tuple[Signature, ...] = get_args(Signature)

TYPICAL_ENERGY = 0.35
"""Mean squared modulus of a moment without noise.

"About 0.35" for mixtures of Gaussians and frequencies of adapted radius, whatever the mixture (Schellekens et al. 2019,
section 5, delta).
"""

TRUSTWORTHY_QUALITY = 100.0
"""SNR m / (k d) from which a decoding is reliable, given m >= 10 k d (Schellekens et al. 2019, section 5)."""

_SSE_CONSTANTS: Mapping[FrequencyLaw, tuple[float, float]] = {"adapted_radius": (1.5, 1.9), "multiscale": (4.5, 23.0)}
"""Constants c and b of `predicted_relative_sse`.

Fitted to least squares at the truth, by the matrix of derivatives ((k, d) = (5, 5) and (10, 10), 2 to 20 and 6 to 20
frequencies per coordinate, three seeds: 0.56 to 1.66 times that), and checked on fits (k = d = 10, 20,000 rows,
epsilon 0.2 and 1; 1 to 4 seeds): c (1 + b / 4) was 1.4 to 3.5 for adapted radii; at 10 frequencies per coordinate,
where b hardly counts, 1.2 to 2.8, and 4 to 6 at many scales.
"""

LEAST_FREQUENCIES: Mapping[FrequencyLaw, int] = {"adapted_radius": 2, "multiscale": 5}
"""Frequencies per coordinate below which nothing is predicted: a decoder often ends in a wrong place.

Measured (epsilon 1, 50,000 rows of narrow clusters, (k, d) = (8, 2), (5, 5) and (16, 5), 6 seeds each): with adapted
radii 13 of 18 sketches ended in a wrong place at 1, 2 at 1.5 and none at 2. At many scales 6 of 12 did at 2, 1 at 3 and
none at 5.
"""

_FARTHEST = 4.0
"""Limit of bounds in frame coordinates.

They are in [-1, 1], except for a column narrower than the rounding of its numbers.
"""


@dataclass(frozen=True, eq=False, repr=False)
class Sketch(Portable):
    """Noisy sums over rows of a signature at m public frequencies. Everything in it is released or public.

    One sketch serves any number of decodings, of k-means and mixtures with any k, at no further cost to privacy.
    The arrays are read-only copies. Frequencies act on frame coordinates x' = (x - centre) / unit.

    Attributes:
        columns: names of the d features in their order; empty if they have none.
        centre: origin of the frame, shape (d,), in the data's own units or, for columns with a transform, of it.
        unit: units of the frame, shape (d,), positive, likewise.
        lower: public lower bounds, shape (d,), in the data's own units.
        upper: public upper bounds, shape (d,), above the lower ones.
        frequencies: the m frequencies.
        signature: term that is summed at frequency w: "exponential" exp(i w x'); "one_bit" sign cos(w x' + dither) +
            i sign sin(w x' + dither) (Schellekens and Jacques 2018).
        frequencies_per_row: r, 1 to m: every row contributes at r of the m frequencies (paper, definition 3).
        sums: real and imaginary parts as they were released, shape (2, m), not divided by n or alpha_r.
        noise_std: standard deviation of the noise on each sum, at least 0.
        n_rows: number of rows: public under REPLACE_ONE, a noisy number, of any sign, under ADD_REMOVE_ONE.
        n_rows_std: standard deviation of the noise on the number of rows, at least 0.
        sites: number of sketches that were merged into this one.
        receipt: receipt of its debit; None for a sketch that is merged or comes from elsewhere.
        pilot_sigma: scale estimated by a pilot sketch; None if there was none.
        dummy_: True if a dry run made it from synthetic rows; its numbers carry no information.
        transforms: transform of each column, "none" or "log1p"; () if none has one.

    Raises:
        ValueError: a field with a wrong shape, or an entry outside its range; the message names the field.

    Example:
        >>> sketch = data.fit(bursar.SketchKMeans(decoding="none"), spend=bursar.rho(0.1))
        >>> sketch.kmeans(2).n_clusters, sketch.gaussian_mixture(3).n_components
        (2, 3)
        >>> bursar.save_sketch(sketch, "sketch.json")
        >>> (bursar.load_sketch("sketch.json").sums == sketch.sums).all().item()
        True
    """

    columns: tuple[str, ...]
    centre: FloatArray
    unit: FloatArray
    lower: FloatArray
    upper: FloatArray
    frequencies: Frequencies
    signature: Signature
    frequencies_per_row: int
    sums: FloatArray
    noise_std: float
    n_rows: float
    n_rows_std: float
    sites: int = 1
    receipt: Receipt | None = None
    pilot_sigma: float | None = None
    dummy_: bool = False
    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        # A frozen dataclass can store its cleaned fields in no other way.
        object.__setattr__(self, "columns", checked_columns(self.columns, self.d))
        for name in ("centre", "unit", "lower", "upper"):
            object.__setattr__(self, name, frozen(name, getattr(self, name), (self.d,)))
        object.__setattr__(self, "sums", frozen("sums", self.sums, (2, self.m)))
        if not (self.unit > 0).all():
            raise ValueError("unit: every unit must be above 0")
        if not (self.lower < self.upper).all():
            raise ValueError("upper: every upper bound must be above the lower one")
        bounds = np.stack([self.lower, self.upper])
        object.__setattr__(self, "transforms", checked_transforms(self.transforms, self.d, bounds))
        with np.errstate(over="ignore", invalid="ignore"):
            # Bounds far from the centre overflow in the frame: the comparison is then False, and the fault is told.
            if not (np.abs(self._box()) <= _FARTHEST).all():
                raise ValueError("unit: the bounds must be in [-1, 1] of the frame (x - centre) / unit, up to rounding")
        if self.signature not in SIGNATURES:
            raise ValueError(f"signature: expected one of {SIGNATURES}, got {self.signature!r}")
        if not 1 <= self.frequencies_per_row <= self.m:
            raise ValueError(f"frequencies_per_row: expected 1 to m = {self.m}, got {self.frequencies_per_row!r}")
        for name in ("noise_std", "n_rows_std"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: expected a finite number of at least 0, got {getattr(self, name)!r}")
        if not math.isfinite(self.n_rows):
            raise ValueError(f"n_rows: expected a finite number, got {self.n_rows!r}")
        if not self.sites >= 1:
            raise ValueError(f"sites: expected at least 1, got {self.sites!r}")
        if self.pilot_sigma is not None and not 0 < self.pilot_sigma < math.inf:
            raise ValueError(f"pilot_sigma: expected a positive finite number or None, got {self.pilot_sigma!r}")

    @property
    def m(self) -> int:
        """Number of frequencies."""
        return self.frequencies.m

    @property
    def d(self) -> int:
        """Number of features."""
        return self.frequencies.d

    @property
    def alpha_r(self) -> float:
        """Share of the frequencies at which each row contributes, r / m (paper, section 4)."""
        return self.frequencies_per_row / self.m

    def moments(self) -> ComplexArray:
        """Return estimates of E exp(i w_j x') over the rows, shape (m,): sums / (alpha_r n).

        They are unbiased but for the noise in n. A one-bit signature is periodic, and its first harmonic is 4 / pi
        exp(i (w x' + dither)), so the sums are also multiplied by pi / 4 exp(-i dither). The third and higher harmonics
        remain, at most a third of the moment at -3 w and so on; they are small for a density that is smooth at the
        scale of 1 / |w|. Fewer than one row count as one, so that noise in the number of rows cannot turn or inflate a
        sketch.
        """
        moments = (self.sums[0] + 1j * self.sums[1]) * self._moment_scale()
        if self.signature == "one_bit":
            moments = moments * np.exp(-1j * self.frequencies.dithers())
        return np.asarray(moments)

    def moment_std(self) -> float:
        """Return the standard deviation of the noise on the real and on the imaginary part of each moment."""
        return self.noise_std * self._moment_scale()

    def moment_error(self) -> float:
        """Return the standard deviation of a moment's real or imaginary part, from noise and sampling of rows.

        A decoder weighs moments by it: a correct model leaves about this much unexplained, for any number of rows.
        """
        sampling = _sampling_variance(self._rows(), self.alpha_r, self.signature, TYPICAL_ENERGY)
        return math.hypot(self.moment_std(), math.sqrt(sampling / 2))

    def energy(self) -> float:
        """Return the mean |z_j|^2 of the moments z_j without their noise, estimated from this sketch, 0 to 1.

        Near 1 the frequencies are too low to separate clusters, near 0 too high to detect them: sigma is wrong.
        """
        noise = self.moment_std()
        # A power would raise for the 1e300 that a file may have.
        energy = float(np.square(np.abs(self.moments())).mean()) - 2 * noise * noise
        return min(max(energy, 0.0), 1.0)

    def snr(self) -> float:
        """Return the signal-to-noise ratio of the moments (paper, equation 6), with noise and sampling of rows.

        As in the paper and in a preview, the signal is `TYPICAL_ENERGY`, so that the ratio measures only the noise.
        `predicted_snr` with `energy()` uses this sketch's own signal.
        """
        return predicted_snr(
            n_rows=self.n_rows,
            m=self.m,
            frequencies_per_row=self.frequencies_per_row,
            noise_std=self.noise_std,
            signature=self.signature,
        )

    def merge(self, *others: Sketch) -> Sketch:
        """Merge sketches of several sites into one sketch of all their rows (paper, definition 4).

        Sums over alpha_r, rows and variances of noise add. Sites may differ in noise and in frequencies_per_row r; the
        result gets the r with which one site would have the same sampling error, rounded. It has no receipt. The sites'
        rows must be disjoint, which cannot be checked.

        Raises:
            ValueError: another sketch differs in columns, centre, unit, lower, upper, frequencies or signature.
        """
        sites = (self, *others)
        for other in others:
            self._check_same_measurement(other)
        alphas = np.array([site.alpha_r for site in sites])
        rows = np.array([site._rows() for site in sites])
        r = min(max(round(self.m * float(rows.sum() / (rows / alphas).sum())), 1), self.m)
        # With equal r everywhere the factors are 1, and the sums are exactly those of one sketch of all rows.
        factors = (r / self.m) / alphas
        return replace(
            self,
            receipt=None,
            frequencies_per_row=r,
            sums=sum((factor * site.sums for factor, site in zip(factors, sites, strict=True)), np.zeros((2, self.m))),
            noise_std=math.hypot(*(factors * [site.noise_std for site in sites])),
            n_rows=math.fsum(site.n_rows for site in sites),
            n_rows_std=math.hypot(*(site.n_rows_std for site in sites)),
            sites=sum(site.sites for site in sites),
            dummy_=any(site.dummy_ for site in sites),
            pilot_sigma=self.pilot_sigma if all(site.pilot_sigma == self.pilot_sigma for site in others) else None,
        )

    def kmeans(self, n_clusters: int, *, n_init: int = 20, public_seed: int = 0) -> KMeans:
        """Decode `n_clusters` centres, on this machine and at no cost to privacy.

        Args:
            n_clusters: k, at least 1.
            n_init: number of restarts, of which the one that explains the sketch best is kept.
            public_seed: seed of the restarts; the same seed gives the same model.

        Returns:
            The model in the data's own units, with this sketch's columns, receipt and number of rows. Its variances_
            are the decoder's mean squared radius per column.

        Raises:
            ValueError: `n_clusters` or `n_init` below 1.
        """
        _at_least_one("n_clusters", n_clusters)
        decoded = self.decode(n_clusters, n_init=n_init, public_seed=public_seed)
        return KMeans(
            decoded.centres,
            decoded.weights,
            decoded.variances,
            columns=self.columns,
            receipt=self.receipt,
            dummy_=self.dummy_,
            n_rows=self.n_rows,
            sketch=self,
            transforms=self.transforms,
        )

    def gaussian_mixture(self, n_components: int, *, n_init: int = 20, public_seed: int = 0) -> GaussianMixture:
        """Decode a mixture of `n_components` Gaussians with diagonal covariances; arguments as in `kmeans`.

        Returns:
            The model in the data's own units, with this sketch's columns, receipt and number of rows.

        Raises:
            ValueError: `n_components` or `n_init` below 1.
        """
        _at_least_one("n_components", n_components)
        decoded = self.decode(n_components, mixture=True, n_init=n_init, public_seed=public_seed)
        return GaussianMixture(
            decoded.weights,
            decoded.centres,
            decoded.variances,
            "diag",
            columns=self.columns,
            receipt=self.receipt,
            dummy_=self.dummy_,
            n_rows=self.n_rows,
            sketch=self,
            bounds_=np.stack([self.lower, self.upper]),
            transforms=self.transforms,
        )

    def choose(
        self, most: int = 10, *, least: int = 1, level: float = 0.95, n_init: int = 20, public_seed: int = 0
    ) -> ClusterChoice:
        """Return what k-means with each of several numbers of clusters leaves, with intervals, and a choice; free.

        Args:
            most: largest number of clusters, at least `least` and at most m.
            least: smallest number of clusters, at least 1.
            level: share of sketches in which an interval is meant to hold.
            n_init: number of restarts of each k-means, as in `kmeans`.
            public_seed: seed of the restarts, as in `kmeans`, and of points, at least 0.

        Raises:
            ValueError: an argument out of its range.
        """
        if not 1 <= least <= most <= self.m:
            raise ValueError(f"most: expected at least {least} and at most m = {self.m}, got {most!r} from {least!r}")
        if not public_seed >= 0:
            raise ValueError(f"public_seed: expected at least 0, got {public_seed!r}")
        # Imported late: a server imports this package, and needs no bars.
        from tqdm import tqdm

        numbers = range(least, most + 1)
        with tqdm(total=2 * len(numbers) + 1, desc="clusters", unit="decoding", leave=False, disable=None) as bar:
            models = []
            for k in numbers:
                models.append(self.kmeans(k, n_init=n_init, public_seed=public_seed))
                bar.update()
            return choose_clusters(self, models, least, level, public_seed, bar.update)

    def decode(self, k: int, *, mixture: bool = False, n_init: int = 20, public_seed: int = 0) -> Decoded:
        """Return the decoded model of `kmeans` or `gaussian_mixture` as plain arrays, with its unexplained residual.

        The arrays are in the data's own units or, for columns with a transform, of it.

        Args:
            k: number of clusters or components, at least 1.
            mixture: True for Gaussians with diagonal covariances, False for k-means.
            n_init: number of restarts, as in `kmeans`.
            public_seed: seed of the restarts, as in `kmeans`.

        Raises:
            ValueError: `k` or `n_init` below 1.
        """
        decoder = decode_mixture if mixture else partial(decode_kmeans, harmonics=self.signature == "one_bit")
        found = decoder(
            self.frequencies.matrix(),
            self.moments(),
            self.moment_error(),
            _at_least_one("k", k),
            *self._box(),
            n_init=_at_least_one("n_init", n_init),
            public_seed=public_seed,
        )
        squares = np.square(self.unit)
        return replace(
            found,
            # Clipped, because rounding could move centres out of the bounds.
            centres=np.clip(found.centres * self.unit + self.centre, *self.edges()),
            variances=found.variances * squares if mixture else (found.variances[:, None] * squares).mean(axis=1),
        )

    def edges(self) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper public bounds, (d,) each, transformed as the rows were."""
        lower, upper = into_model(np.stack([self.lower, self.upper]), self.transforms)
        return lower, upper

    def plot(self, ax: Any = None) -> Any:
        """Draw the size of each moment against the length of its frequency, with the size that noise alone would give.

        Moments of low frequencies are near 1, because they hardly distinguish rows. Moments of high frequencies, which
        resolve less than a cluster, vanish in the noise. A good sketch has most of its frequencies in between.

        Args:
            ax: matplotlib axes to draw on; None makes a figure.

        Returns:
            The axes.

        Raises:
            bursar.MissingDependencyError: matplotlib is not installed.
        """
        ax = new_axes(ax, 8.0)
        lengths = np.linalg.norm(self.frequencies.matrix(), axis=1)
        ax.plot(lengths, np.abs(self.moments()), "o", markersize=3, alpha=0.6, label="moments of the rows")
        # A moment has two parts, each with this error.
        noise = math.sqrt(2) * self.moment_error()
        ax.axhline(noise, color="0.15", linewidth=1, label="noise and sampling alone")
        ax.set(xlabel="length of the frequency, in 1 / unit of the frame", ylabel="modulus of the moment")
        ax.set_ylim(bottom=0)
        put_legend(ax, f"SNR {self.snr():.3g}, energy {self.energy():.2g}")
        put_title(ax, self._title())
        return ax

    def _rows(self) -> float:
        return max(self.n_rows, 1.0)

    def _moment_scale(self) -> float:
        return _first_harmonic(self.signature) / (self.alpha_r * self._rows())

    def _check_same_measurement(self, other: Sketch) -> None:
        if other.columns != self.columns:
            raise ValueError(f"columns: expected {list(self.columns)} to merge, got {list(other.columns)}")
        for name in ("centre", "unit", "lower", "upper"):
            if not np.array_equal(getattr(self, name), getattr(other, name)):
                raise ValueError(f"{name}: sketches to merge must have the same; give all sites the same public bounds")
        if other.frequencies != self.frequencies and other.frequencies.digest() != self.frequencies.digest():
            different = self.frequencies.differences(other.frequencies)
            raise ValueError(f"frequencies: sketches to merge must have the same, but another's {different}")
        if other.transforms != self.transforms:
            raise ValueError("transforms: sketches to merge must have the same; give all sites the same ones")
        if other.signature != self.signature:
            raise ValueError(f"signature: expected {self.signature!r} to merge, got {other.signature!r}")

    def _box(self) -> tuple[FloatArray, FloatArray]:
        """Return the public bounds in frame coordinates, (d,) each."""
        lower, upper = self.edges()
        return (lower - self.centre) / self.unit, (upper - self.centre) / self.unit

    def _title(self) -> str:
        space = said_transforms(self.columns, self.transforms)
        return f"Sketch: {self.m} frequencies of {self.d} columns{space}{origin(self.receipt, dummy=self.dummy_)}"

    def _facts(self) -> list[list[str]]:
        """Return names and values of the facts that describe a sketch."""
        snr = self.snr()
        r, n, std = self.frequencies_per_row, f"{self.n_rows:.6g}", self.n_rows_std
        scale = f"sigma {self.frequencies.sigma:.4g}{'' if self.pilot_sigma is None else ', from a pilot sketch'}"
        return [
            ["columns", ", ".join(self.columns) or "without names"],
            ["frequencies", f"{self.frequencies.law}, {self.frequencies.structure}, {scale}"],
            ["signature", f"{self.signature}, {'all' if r == self.m else r} frequencies a row"],
            [
                "rows",
                (n if std == 0 else f"{n}, noise {std:.3g}") + (f", {self.sites} sites" if self.sites > 1 else ""),
            ],
            ["noise", f"{self.noise_std:.4g} on a sum, {self.moment_std():.3g} on a moment"],
            ["SNR", f"{snr:.4g}, good for k up to {trustworthy_clusters(self.d, self.m, snr)}"],
        ]

    def __repr__(self) -> str:
        width = max(len(name) for name, _ in self._facts())
        lines = (f"  {name.ljust(width)}  {value}" for name, value in self._facts())
        return harmless("\n".join([self._title(), *lines]))

    def _repr_html_(self) -> str:
        return html_table(self._title(), ["", ""], self._facts())


def predicted_snr(
    *,
    n_rows: float,
    m: int,
    frequencies_per_row: int,
    noise_std: float,
    signature: Signature = "exponential",
    energy: float = TYPICAL_ENERGY,
) -> float:
    """Predict the signal-to-noise ratio of a sketch from public numbers (Schellekens et al. 2019, equation 6).

    With alpha_r = r / m and noise of standard deviation s on the real and the imaginary part of each sum, a moment has
    the variance (1 / alpha_r - energy) / n from the sampling of rows and frequencies, and 2 s^2 / (alpha_r n)^2 from
    the noise; the ratio is energy over their sum. This is equation 6 without its scaling of the noise, so that it holds
    for every mechanism. A one-bit signature has the square 2 in place of the 1, and its sums, and so both
    squares and s^2, count (pi / 4)^2 fold (see `Sketch.moments`).

    Args:
        n_rows: number of rows n; below 1 counts as 1.
        m: number of frequencies.
        frequencies_per_row: number r of frequencies at which a row contributes, 1 to m.
        noise_std: standard deviation s of the noise on each undivided sum, at least 0.
        signature: term that is summed.
        energy: mean squared modulus of a moment without noise, 0 to 1.

    Returns:
        The ratio, at least 0; a power ratio, not decibels.
    """
    n, alpha_r = max(n_rows, 1.0), frequencies_per_row / m
    scale = _first_harmonic(signature)
    sampling = _sampling_variance(n, alpha_r, signature, energy)
    noise = scale * noise_std / (alpha_r * n)
    return energy / (sampling + 2 * noise * noise)


def _sampling_variance(n: float, alpha_r: float, signature: Signature, energy: float) -> float:
    """Return the variance of a moment from the sampling of n rows and of the frequencies at which each contributes."""
    one_row = _first_harmonic(signature) ** 2 * (1.0 if signature == "exponential" else 2.0)
    # At least rounding: a table of one distinct row would have no variance at all, and the SNR would be infinite.
    return max(one_row / alpha_r - energy, 2.0**-52) / n


def predicted_relative_sse(k: int, d: int, m: int, snr: float, law: FrequencyLaw = "adapted_radius") -> float:
    """Predict the sum of squares of k-means from a sketch over that of Lloyd's algorithm, as far as noise explains it.

    The formula is 1 + c (1 + b (k d / m)^2) k (k d) / (m SNR). Derivation of the first term: near the truth, decoding
    is least squares from 2 m real numbers with noise of variance v = TYPICAL_ENERGY / (2 SNR) each. A centre of weight
    1 / k has the derivative i w / k exp(i w centre) g(w), g the characteristic function of its cluster; the derivatives
    of clusters that are far apart are uncorrelated over random w. So a coordinate of a centre has the variance v k^2 /
    (m E[w_1^2 g(w)^2]), and d such variances, averaged over the centres, come on top of the d s^2 per row of clusters
    of standard deviation s. For frequencies of adapted radius tuned to s that is the formula, with c = 0.83. Fitting
    weights and a radius takes more, the nearer m is to k d, and so do frequencies at many scales, of which few have the
    clusters': hence the measured c and b of each law.

    Assumed: spherical clusters of one size and weight, apart from one another; sigma 0.7 to 1.5 times their s; a
    decoder that finds the right optimum. Where one of them fails the ratio is larger: for clusters a tenth as wide as
    the scale that a pilot takes, the excess is 1.4 to 6.3 times this one (0.3 to 0.6 at many scales). It also is
    above about 1.1, where errors are no longer small: there the excess over 1 was up to twice as large in the
    simulation. Above 1.2 it is not a prediction but a sign that noise dominates: the decoded sum of squares levels off
    at about that of one centre (k = d = 10, paper's clusters, m = 400, at SNR m / (k d) = 1000, 100, 30, 10, 3, 1 and
    0.01: measured 1.01, 1.15, 1.9, 2.4, 2.9, 3.0 and 3.0, one centre 3.75; the formula gives 1.02, 1.17, 1.6, 2.7,
    6.6, 18 and 1680).

    Args:
        k: number of clusters.
        d: number of columns.
        m: number of frequencies.
        snr: result of `predicted_snr`, with the typical energy.
        law: law of the frequencies.

    Returns:
        The ratio, at least 1; infinite if `snr` is 0, or if m is below the law's `LEAST_FREQUENCIES` k d.
    """
    if not (snr > 0 and m >= LEAST_FREQUENCIES[law] * k * d):
        return math.inf
    c, b = _SSE_CONSTANTS[law]
    return 1.0 + c * (1.0 + b * (k * d / m) ** 2) * k * (k * d) / (m * snr)


def trustworthy_clusters(d: int, m: int, snr: float) -> int:
    """Return the largest k for which the paper trusts a sketch: SNR m / (k d) >= 100, and m >= 10 k d (section 5)."""
    return math.floor(min(snr / TRUSTWORTHY_QUALITY, 0.1) * m / d)


def _first_harmonic(signature: Signature) -> float:
    """Return the factor that gives the first harmonic of the signature the modulus of exp(i t)."""
    return 1.0 if signature == "exponential" else math.pi / 4


def _at_least_one(name: str, value: int) -> int:
    if not value >= 1:
        raise ValueError(f"{name}: expected at least 1, got {value!r}")
    return value
