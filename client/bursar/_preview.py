"""What a fit would cost and how exact it would be."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bursar import _convert
from bursar._privacy import Price, ReleaseNoise, Remaining
from bursar._text import html_table, text_table
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
        sum_units: by column, what a `sum_std` of 1 is in the column's own units at most: `noise_in_units` multiplies
            the two. Empty where sums are not of positions, and for regressions.
        expected_relative_error: of gradient EM, about how far the noise moves the parameters in the end, in units of
            the model's own noise level; None for other fits, for variants with a fixed bound, and if the number of rows
            is neither public nor declared.
        expected_coefficient_error: of regressions by gradient EM with `noise_std`, by feature: the rough standard error
            that the noise alone adds to a coefficient, if features are even over their bounds. Empty elsewhere.
        expected_table_error: of a Markov random field, the total variation distance, 0 to 1, that the noise alone puts
            between a table and the true one, at the worst of the new tables; the estimator makes it less. None for
            other fits, without new tables, and if the number of rows is neither public nor declared.
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
    sum_units: Mapping[str, float] = field(default_factory=dict)
    expected_relative_error: float | None = None
    expected_coefficient_error: Mapping[str, float] = field(default_factory=dict)
    expected_table_error: float | None = None

    @property
    def rho_left_after(self) -> float:
        """What one request of the caller could still cost after this one, in rho; 0 if this one is not affordable."""
        left = self.available.cost_units - self.price.cost_units
        return max(0.0, self.available.rho * left / self.available.cost_units) if self.available.cost_units else 0.0

    def noise_in_units(self, release: str) -> dict[str, float]:
        """Standard deviation of the noise on the sums of a release, by column, in the column's unit times rows.

        Steps that clip rows to less than the widest radius have less noise. Over the number of rows of a component it
        is about the error of that component's mean in one step.

        Args:
            release: name of one of `noise`; if several have it, the one with the most noise.

        Returns:
            By column; empty if the release has no sums of positions.

        Raises:
            KeyError: there is no such release.
        """
        stds = [noise.sum_std for noise in self.noise if noise.name == release]
        if not stds:
            raise KeyError(f"{release!r} is none of {', '.join(noise.name for noise in self.noise)}")
        return {name: max(stds) * unit for name, unit in self.sum_units.items()} if max(stds) > 0 else {}

    def __repr__(self) -> str:
        lines = [self._steps(), *(f"  {fact}" for fact in self._facts())]
        return "\n".join([self._title(), lines[0], text_table(*_noise_table(self.noise)), *lines[1:]])

    def _repr_html_(self) -> str:
        facts = "".join(f"<li>{html.escape(fact)}</li>" for fact in self._facts())
        return f"{html_table(f'{self._title()};{self._steps()}', *_noise_table(self.noise))}<ul>{facts}</ul>"

    def _title(self) -> str:
        verdict = f"affordable, {self.fits_left} like it are left" if self.affordable else "not affordable"
        return f"Preview: debits rho={self.price.rho:.6g} of rho={self.available.rho:.6g} left; {verdict}"

    def _steps(self) -> str:
        return f"  {self.iterations} steps; standard deviations of the noise:"

    def _facts(self) -> list[str]:
        """What is to be expected, a line each."""
        facts = [f"rho={self.rho_left_after:.6g} would be left"] if self.affordable else []
        for name in dict.fromkeys(noise.name for noise in self.noise):
            if units := self.noise_in_units(name):
                facts.append(f"at most, in the columns' units times rows, on sums of {name}: {_by_name(units)}")
        if self.expected_mean_error:
            facts.append(f"expected error of a component's mean: {_by_name(self.expected_mean_error)}")
        if self.expected_coefficient_error:
            facts.append(f"expected error of a coefficient: {_by_name(self.expected_coefficient_error)}")
        if self.expected_relative_error is not None:
            facts.append(
                f"expected error of parameters over the model's noise level: {self.expected_relative_error:.3g}"
            )
        if self.expected_table_error is not None:
            facts.append(f"expected distance of the worst table from the truth: {self.expected_table_error:.3g}")
        if self.predicted_snr is not None:
            facts.append(f"predicted signal-to-noise ratio: {self.predicted_snr:.3g}")
        if self.predicted_relative_sse is not None:
            facts.append(f"predicted sum of squares over Lloyd's: {self.predicted_relative_sse:.3g}")
        if self.preflight is not None:
            facts += _preflight_lines(self.preflight)
        return [*facts, *(f"warning: {warning}" for warning in self.warnings)]


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
        sum_units=dict(zip(columns, message.sum_units, strict=False)),
        expected_relative_error=(
            message.expected_relative_error if message.HasField("expected_relative_error") else None
        ),
        expected_coefficient_error=dict(zip(columns, message.expected_coefficient_error, strict=False)),
        expected_table_error=message.expected_table_error if message.HasField("expected_table_error") else None,
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
        f"expected to find {preflight.predicted_found} components; "
        f"relative error of a covariance: {preflight.expected_covariance_error:.2g}",
        f"rules of thumb, which hold from 1 on: {rules}"
        + ("" if rho is None else f"; all do from about rho={rho:.3g}"),
    ]


_SHOWN = 8
"""Columns that a line has at most."""


def _by_name(values: Mapping[str, float]) -> str:
    """Numbers with their names, of the first columns."""
    shown = ", ".join(f"{name} {value:.3g}" for name, value in list(values.items())[:_SHOWN])
    return shown if len(values) <= _SHOWN else f"{shown}, and {len(values) - _SHOWN} more"


def _noise_table(noise: Sequence[ReleaseNoise]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells: a row for each kind of release, a column for each kind of number that some release has."""
    stds = {"counts": [n.count_std for n in noise], "sums": [n.sum_std for n in noise]}
    stds |= {"moments": [n.moment_std for n in noise]}
    kept = [name for name, values in stds.items() if any(values)]
    cells = [
        [n.name, str(n.times), str(n.size), *(f"{stds[name][row]:.3g}" for name in kept)] for row, n in enumerate(noise)
    ]
    return ["release", "times", "numbers", *kept], cells
