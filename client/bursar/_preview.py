"""Previews: the cost and the expected accuracy of a fit."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bursar import _convert
from bursar_models.budget import Price, ReleaseNoise, Remaining
from bursar_models.forecasts import Forecast
from bursar_models.text import harmless, html_table, text_table, visible
from bursar_models.transforms import Transform, names_in_model
from bursar_models.usefulness import findings
from bursar_proto.v1 import fit_pb2


@dataclass(frozen=True)
class Preflight:
    """Prediction whether a search finds its components, by rules of thumb on public numbers.

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
        """True if all rules hold."""
        return all(margin >= 1 for margin in self.margins.values())


@dataclass(frozen=True, repr=False)
class Preview:
    """Cost and expected accuracy of a fit, computed without data.

    Attributes:
        price: exactly what the fit would debit.
        remaining: what is left of the dataset's budget now.
        available: what one request of the caller may cost now, which an allowance or a maximum may make less.
        affordable: whether the fit would be admitted now.
        fits_left: how many fits like this one the caller may still make.
        noise: the noise of every kind of release.
        iterations: steps that would be run; noisy ones, but for the decoding of a sketch.
        expected: how accurate the model will be, by name: a number, or numbers by column. `Target` has the same names,
            and says which fits have them; what is unknown, for instance without a public number of rows, is left out.
        units: of each of `expected` that has one, by the same name.
        sum_units: by column, what a `sum_std` of 1 is in the column's own units at most: `noise_in_units` multiplies
            the two. Empty where sums are not of positions, and for regressions.
        warnings: what to know before paying.
        useless: whether the public rule says that noise leaves nothing of the answer, so that a fit is refused without
            `anyway`; `warnings` tell why. A forecast is judged in its place, by the same limits.
        memory: bytes, about, that the process of the fit takes at its peak, and a client that learns the model; None
            where it is not estimated.
        forecast: with `like`: where numbers of `expected` come from, and how far single fits are from them. None for
            rules of thumb from the public schema.
        transforms: of the columns; numbers of one with log1p are of its logarithms, and are shown as "log1p(income)".
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
    expected: Mapping[str, float | Mapping[str, float]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    preflight: Preflight | None = None
    sum_units: Mapping[str, float] = field(default_factory=dict)
    useless: bool = False
    memory: int | None = None
    forecast: Forecast | None = None
    transforms: Mapping[str, Transform] = field(default_factory=dict)

    @property
    def left_after(self) -> Remaining:
        """Most that a request of the caller could cost after this one; nothing if this one is not affordable."""
        return self.available.less(self.price.cost_units)

    def noise_in_units(self, release: str) -> dict[str, float]:
        """Standard deviation of the noise on the sums of a release, by column, in the unit of the fit times rows.

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
        return harmless("\n".join([self._title(), lines[0], text_table(*_noise_table(self.noise)), *lines[1:]]))

    def _repr_html_(self) -> str:
        facts = "".join(f"<li>{html.escape(visible(fact))}</li>" for fact in self._facts())
        return f"{html_table(f'{self._title()};{self._steps()}', *_noise_table(self.noise))}<ul>{facts}</ul>"

    def _title(self) -> str:
        verdict = f"affordable, {self.fits_left} like it are left" if self.affordable else "not affordable"
        return f"Preview: debits {self.price} of {self.available} left; {verdict}"

    def _steps(self) -> str:
        return f"  {self.iterations} steps; standard deviations of the noise:"

    def _facts(self) -> list[str]:
        """Return what to expect, a line each."""
        facts = [f"{self.left_after} would be left"] if self.affordable else []
        for name in dict.fromkeys(noise.name for noise in self.noise):
            if units := self.noise_in_units(name):
                sums = _by_name(self.in_space(units))
                facts.append(f"at most, in the columns' units times rows, on sums of {name}: {sums}")
        facts += [_fact(name, self.in_space(value), self.units.get(name)) for name, value in self.expected.items()]
        if self.forecast is not None:
            low, high = (
                {k: self.in_space(v) for k, v in ends.items()} for ends in (self.forecast.low, self.forecast.high)
            )
            facts += _forecast_lines(replace(self.forecast, low=low, high=high))
        elif self.expected:
            facts.append(_GUESSED)
        if self.memory is not None:
            facts.append(f"about {self.memory / 2**20:,.0f} MiB of memory")
        if self.preflight is not None:
            facts += _preflight_lines(self.preflight, self.remaining)
        return [*facts, *(f"warning: {warning}" for warning in self.warnings)]

    def in_space(self, value: float | Mapping[str, float]) -> Any:
        """Numbers by the names that columns have in the space of the fit; a number alone as it is.

        Args:
            value: one of `expected`.
        """
        if not isinstance(value, Mapping):
            return value
        transforms = [self.transforms.get(name, "none") for name in value]
        return dict(zip(names_in_model(tuple(value), transforms), value.values(), strict=True))


def with_forecast(preview: Preview, made: Forecast, widths: Mapping[str, float], target: str | None) -> Preview:
    """Return a preview whose expected accuracies, and verdict on them, are a forecast's where it has them.

    The widths are those of the columns' ranges, as for `usefulness.findings`.
    """
    guessed = {str(one) for one in findings(preview.expected, widths, target)}
    expected = {**preview.expected, **made.expected}
    found = sorted(findings(expected, widths, target), key=lambda one: not one.useless)
    kept = [warning for warning in preview.warnings if warning not in guessed]
    useless = any(one.useless for one in found) or any(warning.startswith("useless: ") for warning in kept)
    refused = preview.useless and not useless
    warnings = (*map(str, found), *kept, *([_OTHERWISE] * refused))
    return replace(preview, forecast=made, expected=expected, warnings=warnings, useless=useless)


_OTHERWISE = "a rule of thumb calls this useless, the forecast does not; fit with the same like=... (--like)"
_WIDE = (
    "the expected error of means or coefficients is a guess, and the range is wide: rows of so simple a model show too "
    "little of what noise does; of such guesses about real tables half were off by more than a factor of 2"
)
_GUESSED = "a guess from the public schema alone; like=... (--like) foretells errors and their range"


def preview_from(
    message: fit_pb2.PreviewResponse, columns: Sequence[str], transforms: Sequence[Transform] = ()
) -> Preview:
    """Return the preview of a fit to `columns`, which have `transforms`; none: they have none."""
    return _convert.value_of(
        Preview,
        message,
        remaining=_convert.remaining_from(message.remaining, message.remaining),
        available=_convert.remaining_from(message.available, message.remaining),
        expected={one.name: _expected_from(one) for one in message.expected},
        units={one.name: one.unit for one in message.expected if one.unit},
        memory=message.memory or None,
        forecast=None,
        preflight=_preflight_from(message.preflight) if message.HasField("preflight") else None,
        sum_units=dict(zip(columns, message.sum_units, strict=False)),
        transforms=dict(zip(columns, transforms, strict=False)),
    )


def _expected_from(message: fit_pb2.Expected) -> float | Mapping[str, float]:
    if len(message.columns):
        return dict(zip(message.columns, message.values, strict=True))
    return message.values[0]


def forecast(preview: Preview) -> str:
    """Return the first of the expected accuracies in few words, and whether the fit is useless."""
    said = ["useless"] * preview.useless
    for name, value in list(preview.expected.items())[:1]:
        said.append(f"{name} {shown(name, preview.in_space(value))}")
    return ": ".join(said)


def _forecast_lines(forecast: Forecast) -> list[str]:
    """Return where the expected errors come from, and their range."""
    lines = []
    for name, low in forecast.low.items():
        high = forecast.high[name]
        if isinstance(low, Mapping) and isinstance(high, Mapping):
            shown = _joined({column: f"{low[column]:.3g} to {high[column]:.3g}" for column in low})
        else:
            shown = f"{low:.3g} to {high:.3g}"
        lines.append(f"{'nine' if forecast.wide else 'eight'} of ten fits: {name} {shown}")
    source = f"foretold by {forecast.replicates} dry runs on rows like those of {forecast.like}"
    lines.append(f"{source}: a guess, and nothing released" if forecast.guessed else source)
    return [*lines, *([_WIDE] * forecast.wide)]


def _preflight_from(message: fit_pb2.Preflight) -> Preflight:
    return Preflight(
        margins={rule.name: rule.margin for rule in message.rules},
        predicted_found=message.predicted_found,
        expected_covariance_error=message.expected_covariance_error,
        suggested_rho=message.suggested_rho or None,
    )


def _preflight_lines(preflight: Preflight, budget: Remaining) -> list[str]:
    rules = ", ".join(f"{name} {margin:.3g}" for name, margin in preflight.margins.items())
    rho = preflight.suggested_rho
    return [
        f"expected to find {preflight.predicted_found} components; "
        f"relative error of a covariance: {preflight.expected_covariance_error:.2g}",
        f"rules of thumb, which hold from 1 on: {rules}"
        + ("" if rho is None else f"; all do from about {budget.price(budget.units_of(rho))}"),
    ]


_SHOWN = 8
"""Columns that a line has at most."""


def _by_name(values: Mapping[str, float]) -> str:
    """Return numbers with their names, of the first columns."""
    return _joined({name: f"{value:.3g}" for name, value in values.items()})


def _joined(values: Mapping[str, str]) -> str:
    """Return texts with their names, of the first columns."""
    shown = ", ".join(f"{name} {value}" for name, value in list(values.items())[:_SHOWN])
    return shown if len(values) <= _SHOWN else f"{shown}, and {len(values) - _SHOWN} more"


_SAID = {
    "mean_error": "expected error of a component's mean",
    "quantile_error": "expected error of the quantiles of a column, on average",
    "coef_error": "expected error of a coefficient",
    "relative_error": "expected error of parameters over the model's noise level",
    "table_error": "expected distance of the worst table from the truth",
    "table_errors": "expected distance of the model from the truth, from the best to the worst table",
    "table_bounds": "95 of 100 tables are nearer than",
    "snr": "predicted signal-to-noise ratio",
    "relative_sse": "predicted sum of squares over Lloyd's",
}
"""Names as people read them; any other is shown as it is."""


_SPANS = frozenset({"table_errors", "table_bounds"})
"""Names of numbers of which the least and the largest are shown, since there may be hundreds."""


def shown(name: str, value: float | Mapping[str, float]) -> str:
    """Return an expected accuracy as people read it: of many numbers the first, or the least and the largest."""
    if isinstance(value, Mapping):
        return _span(value) if name in _SPANS else _by_name(value)
    return f"{value:.3g}"


def _span(values: Mapping[str, float]) -> str:
    """Return the least and the largest of numbers with their names."""
    ends = sorted(values.items(), key=lambda one: one[1])
    return " to ".join(f"{number:.3g} ({name})" for name, number in dict((ends[0], ends[-1])).items())


def _fact(name: str, value: float | Mapping[str, float], unit: str | None) -> str:
    text = shown(name, value)
    return f"{_SAID[name]}: {text}" if name in _SAID else f"expected {name}: {text}" + (f" {unit}" if unit else "")


def _noise_table(noise: Sequence[ReleaseNoise]) -> tuple[list[str], list[list[str]]]:
    """Headers and cells: a row for each kind of release, a column for each kind of number that some release has."""
    stds = {"counts": [n.count_std for n in noise], "sums": [n.sum_std for n in noise]}
    stds |= {"moments": [n.moment_std for n in noise]}
    kept = [name for name, values in stds.items() if any(values)]
    cells = [
        [n.name, str(n.times), str(n.size), *(f"{stds[name][row]:.3g}" for name in kept)] for row, n in enumerate(noise)
    ]
    return ["release", "times", "numbers", *kept], cells
