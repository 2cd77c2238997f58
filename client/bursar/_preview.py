"""What a fit would cost and how exact it would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bursar import _convert
from bursar._privacy import Price, ReleaseNoise, Remaining
from bursar._text import text_table
from bursar_proto.v1 import fit_pb2


@dataclass(frozen=True)
class Preflight:
    """Whether a search is expected to find what it looks for, by rules of thumb on public numbers.

    Attributes:
        margins: by the name of a rule, what there is of what it takes, over what it takes: the rule holds from 1 on.
        predicted_found: how many components it is expected to find, if there are as many as it looks for.
        expected_covariance_error: Frobenius norm of the error of a covariance over that of the covariance, for
            components of equal weight.
        suggested_rho: the least rho, about, with which all rules hold; None if none would do.
    """

    margins: Mapping[str, float]
    predicted_found: int
    expected_covariance_error: float
    suggested_rho: float | None

    @property
    def holds(self) -> bool:
        """Whether all rules hold."""
        return all(margin >= 1 for margin in self.margins.values())


@dataclass(frozen=True, repr=False)
class Preview:
    """What a fit would cost and how exact it would be; computed without data, changes nothing.

    Attributes:
        price: exactly what the fit would debit.
        remaining: what is left of the dataset's budget now.
        available: what one request of the caller may cost now, which an allowance or a maximum may make less.
        affordable: whether the fit would be admitted now.
        fits_left: how many fits like this one the caller may still make.
        noise: the noise of every kind of release.
        iterations: steps that would be run; noisy ones, but for the decoding of a sketch.
        expected_mean_error: by column, the rough standard error that the noise alone adds to a component's mean, in the
            column's own units, for components of equal weight; empty if the number of rows is not public. Of gradient
            EM for mixtures with `noise_std` and a variant without `scale` alone: elsewhere a bound follows the noise.
        predicted_snr: of a sketch, its signal-to-noise ratio (Schellekens et al. 2019, equation 6); None for other
            fits, and if the number of rows is neither public nor declared.
        predicted_relative_sse: of a sketch, the sum of squares of the k-means to be decoded, over that of Lloyd's
            algorithm on the rows; a rough guess. None as above, and if no number of clusters was given.
        warnings: what to know before paying.
        preflight: of a separated mixture, whether its components will be found; None for other fits, and if the number
            of rows is neither public nor declared.
    """

    price: Price
    remaining: Remaining
    available: Remaining
    affordable: bool
    fits_left: int
    noise: tuple[ReleaseNoise, ...]
    iterations: int
    expected_mean_error: Mapping[str, float]
    predicted_snr: float | None = None
    predicted_relative_sse: float | None = None
    warnings: tuple[str, ...] = ()
    preflight: Preflight | None = None

    def __repr__(self) -> str:
        verdict = f"affordable, {self.fits_left} like it are left" if self.affordable else "not affordable"
        lines = [
            f"Preview: debits rho={self.price.rho:.6g} of rho={self.available.rho:.6g} left; {verdict}",
            f"  {self.iterations} steps; standard deviations of the noise:",
            text_table(*_noise_table(self.noise)),
        ]
        if self.expected_mean_error:
            errors = ", ".join(f"{name} {error:.3g}" for name, error in self.expected_mean_error.items())
            lines.append(f"  expected error of a component's mean: {errors}")
        if self.predicted_snr is not None:
            lines.append(f"  predicted signal-to-noise ratio: {self.predicted_snr:.3g}")
        if self.predicted_relative_sse is not None:
            lines.append(f"  predicted sum of squares over Lloyd's: {self.predicted_relative_sse:.3g}")
        if self.preflight is not None:
            lines += _preflight_lines(self.preflight)
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def preview_from(message: fit_pb2.PreviewResponse, columns: Sequence[str]) -> Preview:
    """The preview of a fit to `columns`."""
    # Without a public number of rows the server sends no errors, and zip gives none.
    errors = dict(zip(columns, message.expected_mean_error, strict=False))
    return Preview(
        price=_convert.price_from(message.price),
        remaining=_convert.remaining_from(message.remaining),
        available=_convert.remaining_from(message.available if message.HasField("available") else message.remaining),
        affordable=message.affordable,
        fits_left=message.fits_left,
        noise=tuple(map(_convert.noise_from, message.noise)),
        iterations=message.iterations,
        expected_mean_error=errors,
        predicted_snr=message.predicted_snr if message.HasField("predicted_snr") else None,
        predicted_relative_sse=(message.predicted_relative_sse if message.HasField("predicted_relative_sse") else None),
        warnings=tuple(message.warnings),
        preflight=_preflight_from(message.preflight) if message.HasField("preflight") else None,
    )


def _preflight_from(message: fit_pb2.Preflight) -> Preflight:
    return Preflight(
        margins={rule.name: rule.margin for rule in message.rules},
        predicted_found=message.predicted_found,
        expected_covariance_error=message.expected_covariance_error,
        suggested_rho=message.suggested_rho or None,
    )


def _preflight_lines(preflight: Preflight) -> list[str]:
    rules = ", ".join(f"{name} {margin:.3g}" for name, margin in preflight.margins.items())
    rho = preflight.suggested_rho
    return [
        f"  expected to find {preflight.predicted_found} components; "
        f"relative error of a covariance: {preflight.expected_covariance_error:.2g}",
        f"  rules of thumb, which hold from 1 on: {rules}"
        + ("" if rho is None else f"; all do from about rho={rho:.3g}"),
    ]


def _noise_table(noise: Sequence[ReleaseNoise]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells: a row for each kind of release, a column for each kind of number that some release has."""
    stds = {"counts": [n.count_std for n in noise], "sums": [n.sum_std for n in noise]}
    stds |= {"moments": [n.moment_std for n in noise]}
    kept = [name for name, values in stds.items() if any(values)]
    cells = [
        [n.name, str(n.times), str(n.size), *(f"{stds[name][row]:.3g}" for name in kept)] for row, n in enumerate(noise)
    ]
    return ["release", "times", "numbers", *kept], cells
