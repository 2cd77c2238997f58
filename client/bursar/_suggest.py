"""The least that a fit has to cost for an accuracy: previews turned around, by bisection. Debits nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from bursar._preview import Preview
from bursar_models.budget import Amount, EpsilonDelta, Price, Pure, Rho, Spend, implied_rho, positive
from bursar_models.errors import InvalidRequestError
from bursar_models.requests import Request, SketchKMeans
from bursar_models.text import TableText

STEP, TOLERANCE = 4.0, 1.02
"""Factor between amounts while a bracket is looked for, and between the two ends of the bracket in the end."""

TRIES, CLOSE = 8, 0.8
"""Forecasts that are made at most, and the part of the wanted error from which on one is close enough: a forecast is
itself known to about a fifth."""

_MORE = frozenset({"snr", "found"})
"""Parts of a target of which more is better; of all others less."""

FIRST_RHO = 0.01
"""Rho of the first preview, if none was given."""

LEAST, MOST = 1e-9, 1e6
"""Amounts beyond these are not tried; a server takes no more than the larger one."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Accuracy that a preview has to promise: all numbers that are given.

    Attributes:
        mean_error: largest error of a component's mean, for all columns or by column, in their units: for
            `DPEM`, `SeparatedGMM`, and `GradientEM` of mixtures with `noise_std`.
        quantile_error: largest mean error of a column's quantiles, for all columns or by column, in their units: for
            mixtures, with `like`.
        coef_error: largest error of a coefficient, for all features or by feature: for `GradientEM` of regressions with
            `noise_std`.
        relative_error: largest error of parameters in units of the model's noise level: for `GradientEM`.
        covariance_error: largest relative error of a covariance: for `SeparatedGMM`.
        found: how many components are expected to be found at least: for `SeparatedGMM`.
        table_error: largest distance of a table from the truth, 0 to 1: for `MRF`.
        table_errors: largest distance of the model's tables from the truth, of all or by names of columns, as in
            "sex, income": for `MRF`.
        snr: least signal-to-noise ratio: for `SketchKMeans`.
        relative_sse: largest sum of squares over that of Lloyd's algorithm, above 1: for `SketchKMeans` with
            `n_clusters`.
        noise: largest standard deviation by the name of a release, in rows: for every fit, on the counts or cells of
            the release, and on its sums if it counts nothing.

    Raises:
        InvalidRequestError: nothing is given, or a number that is not positive and finite.
    """

    mean_error: float | Mapping[str, float] | None = None
    quantile_error: float | Mapping[str, float] | None = None
    coef_error: float | Mapping[str, float] | None = None
    relative_error: float | None = None
    covariance_error: float | None = None
    found: int | None = None
    table_error: float | None = None
    table_errors: float | Mapping[str, float] | None = None
    snr: float | None = None
    relative_sse: float | None = None
    noise: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        given = self.given
        if not given:
            names = ", ".join(field.name for field in fields(self))
            raise InvalidRequestError.of("target", f"must have at least one of {names}")
        for name, wanted in given.items():
            for number in wanted.values() if isinstance(wanted, Mapping) else [wanted]:
                positive(f"target.{name}", number)

    @property
    def given(self) -> dict[str, Any]:
        """Numbers that were given, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def expected(self, preview: Preview) -> dict[str, float]:
        """Return the numbers that a preview promises for each target, by its name, and by column or release.

        Raises:
            InvalidRequestError: the preview does not tell it.
        """
        return {name: told for name, (told, _) in self._compared(preview).items()}

    def met(self, preview: Preview) -> bool:
        """Return whether a preview promises everything.

        Raises:
            InvalidRequestError: the preview does not tell it.
        """
        return all(
            told >= wanted if name in _MORE else told <= wanted
            for name, (told, wanted) in self._compared(preview).items()
        )

    def missed(self, preview: Preview) -> float:
        """Return the largest part of what is wanted that a preview promises: at most 1 if it is met.

        Raises:
            InvalidRequestError: the preview does not tell it.
        """
        parts = []
        for name, (told, wanted) in self._compared(preview).items():
            if name in _MORE:
                parts.append(wanted / told if told > 0 else math.inf)
            elif name == "relative_sse" and wanted > 1.0:
                parts.append((told - 1.0) / (wanted - 1.0))
            else:
                parts.append(told / wanted)
        return max(parts)

    def _compared(self, preview: Preview) -> dict[str, tuple[float, float]]:
        """Return pairs of a promised and a wanted number."""
        pairs: dict[str, tuple[float, float]] = {}
        for name, wanted in self.given.items():
            told = _told(name, preview)
            if told is None or told == {}:
                raise InvalidRequestError.of(f"target.{name}", f"is not what this fit's preview tells; {_TELLS[name]}")
            if isinstance(told, Mapping):
                asked = wanted if isinstance(wanted, Mapping) else dict.fromkeys(told, wanted)
                if unknown := [key for key in asked if key not in told]:
                    text = f"{unknown[0]!r} is none of {', '.join(told)}"
                    raise InvalidRequestError.of(f"target.{name}", text)
                pairs |= {f"{name} of {key}": (told[key], asked[key]) for key in asked}
            else:
                pairs[name] = told, wanted
        return pairs


_TELLS = {
    "mean_error": "mixtures have it, where the number of rows is public; of gradient EM with noise_std",
    "quantile_error": "forecasts of mixtures have it: give like",
    "coef_error": "regressions by gradient EM have it with noise_std, where the number of rows is public",
    "relative_error": "gradient EM has it, where the number of rows is public, for variants without a fixed bound",
    "covariance_error": "separated mixtures have it, where the number of rows is public",
    "found": "separated mixtures have it, where the number of rows is public",
    "table_error": "Markov random fields with new tables have it, where the number of rows is public",
    "table_errors": "Markov random fields but chains have it, where the number of rows is public",
    "snr": "sketches have it, where the number of rows is public",
    "relative_sse": "sketches have it with n_clusters and frequencies enough, where the number of rows is public",
    "noise": "it has no releases",
}


def _told(name: str, preview: Preview) -> float | Mapping[str, float] | None:
    preflight = preview.preflight
    if name == "noise":
        return {noise.name: noise.count_std or noise.sum_std for noise in preview.noise}
    if preflight is not None and name == "covariance_error":
        return preflight.expected_covariance_error
    if preflight is not None and name == "found":
        return preflight.predicted_found
    return preview.expected.get(name)


@dataclass(frozen=True, repr=False)
class Suggestion(TableText):
    """A spend that a fit needs for a target, found from previews. Nothing was debited.

    Attributes:
        spend: to be given to the fit.
        preview: of the fit with that spend.
        target: what was asked for.
        expected: what the preview promises of each part of it, by its name.
        low: with a forecast, the spend at which one fit in ten would be as accurate, or one in twenty if its range is
            wide; None for rules of thumb.
        high: spend at which nine in ten would be, or nineteen in twenty.
        instead: another fit that is usually better at the same spend, and what this one is for; "" for none.
    """

    spend: Spend
    preview: Preview
    target: Target
    expected: Mapping[str, float]
    low: Amount | None = None
    high: Amount | None = None
    instead: str = ""

    @property
    def affordable(self) -> bool:
        """True if the fit would be admitted now."""
        return self.preview.affordable

    def _title(self) -> str:
        cost = f"{self.preview.price} of {self.preview.available} left"
        source = "a guess from the public schema alone"
        if self.preview.forecast is not None:
            source = "foretold" + (" from a guess" if self.preview.forecast.guessed else "")
        if self.low is not None and self.high is not None:
            wide = self.preview.forecast is not None and self.preview.forecast.wide
            few, most = ("one fit in twenty", "nineteen") if wide else ("one fit in ten", "nine")
            source += f": {few} would do with {self._cost(self.low)}, {most} with {self._cost(self.high)}"
        more = f"{self.preview.fits_left} like it are left"
        cost = f"{cost}; {more}" if self.affordable else f"more than is left: {cost}"
        return f"Suggestion: {self.spend!r}, which is {cost}; {source}{self.instead and '; '}{self.instead}"

    def _cost(self, spend: Amount) -> Price:
        remaining = self.preview.remaining
        return remaining.price(remaining.units_of(implied_rho(spend)))

    def _table(self) -> tuple[list[str], list[list[str]]]:
        return ["target", "expected"], [[name, f"{value:.3g}"] for name, value in self.expected.items()]


def instead_of(request: Request) -> str:
    """Return the fit that is usually better than this one at the same spend; "" if there is none."""
    if not (isinstance(request, SketchKMeans) and request.decoding == "kmeans"):
        return ""
    return _INSTEAD if request.sketch is None and not request.foreign else ""


_INSTEAD = (
    'for one number of clusters, DPEM(mode="kmeans") is usually more accurate at the same spend; a sketch is for '
    "several numbers, later questions and several sites"
)
"""Measured on real tables: docs/fit-sketch-kmeans.md."""


def suggest(ask: Callable[[Spend], Preview], target: Target, spend: Spend) -> Suggestion:
    """Return the least amount, within two per cent, with which a preview promises the target.

    What a preview promises gets better with the amount, but for places where the server makes another choice, such as
    one more step; the amount that is found has a larger one's promise in any case.

    The given spend is tried first, and says of which kind the amounts are.

    Raises:
        InvalidRequestError: no amount up to 1e6 does, the preview does not tell what was asked for, or the spend is
            `what_is_left`.
        Error: a preview failed.
    """
    trial = _Trial(ask, target, spend)
    amount = _amount(spend)
    if trial.met(amount):
        high = amount
        while trial.met(high / STEP) and high / STEP > LEAST:
            high /= STEP
        low = high / STEP
    else:
        low = amount
        while not trial.met(low * STEP):
            low *= STEP
            if not low * STEP <= MOST:
                raise trial.hopeless()
        high = low * STEP
    while high > low * TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if trial.met(middle) else (middle, high)
    return trial.suggestion(high)


def suggest_foretold(ask: Callable[[Spend], Preview], target: Target, spend: Spend) -> Suggestion:
    """Return an amount with which a forecast promises the target and hardly more, and the range of amounts.

    The error of noise goes with 1 / epsilon, or the root of 1 / rho, which gives the next amount to try.

    Raises:
        InvalidRequestError: none of the amounts that were tried does, the preview does not tell what was asked for, or
            the spend is `what_is_left`.
        Error: a preview failed.
    """
    trial, amount = _Trial(ask, target, spend), _amount(spend)
    power = 2.0 if isinstance(spend, Rho) else 1.0
    enough = []
    for _ in range(TRIES):
        missed = trial.missed(amount)
        if missed <= 1.0:
            enough.append(amount)
        if CLOSE <= missed <= 1.0:
            break
        # A refused amount was too small. Aims at the middle of what is close enough.
        factor = STEP if missed == math.inf else (missed / (CLOSE**0.5)) ** power
        amount = min(MOST, max(LEAST, _up(amount * min(STEP**4, max(STEP**-4, factor)))))
    if not enough:
        raise trial.hopeless()
    return trial.range_of(min(enough), power)


class _Trial:
    """Amounts and what their previews promise."""

    def __init__(self, ask: Callable[[Spend], Preview], target: Target, spend: Spend) -> None:
        self._ask = ask
        self._target = target
        self._spend = spend
        self._previews: dict[float, Preview | None] = {}
        self._refusal: InvalidRequestError | None = None

    def met(self, amount: float) -> bool:
        """Return whether an amount is enough; one that the fit refuses is too small, or far too large."""
        preview = self._preview(amount)
        return preview is not None and self._target.met(preview)

    def missed(self, amount: float) -> float:
        """Return the largest part of a wanted error that is promised, at most 1 if all are met; infinite if refused."""
        preview = self._preview(amount)
        return math.inf if preview is None else self._target.missed(preview)

    def range_of(self, amount: float, power: float) -> Suggestion:
        """Return the suggestion of an amount that is enough, and the amounts for more and less lucky fits."""
        told = self._previews[amount]
        if told is None or told.forecast is None:
            return self.suggestion(amount)
        found = Suggestion(_with_amount(self._spend, amount), told, self._target, self._target.expected(told))
        few, most = (
            self._target.missed(replace(told, expected={**told.expected, **part}))
            for part in (told.forecast.low, told.forecast.high)
        )
        low, high = (_with_amount(self._spend, _up(amount * part**power)) for part in (few, most))
        return replace(found, low=low, high=high)

    def suggestion(self, amount: float) -> Suggestion:
        """Return the suggestion of an amount that is enough, rounded up to three digits if that is enough, too."""
        rounded = _up(amount)
        chosen = rounded if self.met(rounded) else amount
        preview = self._previews[chosen]
        if preview is None:
            raise self.hopeless()
        return Suggestion(_with_amount(self._spend, chosen), preview, self._target, self._target.expected(preview))

    def hopeless(self) -> InvalidRequestError:
        """Return the error that no amount is enough, or the fit's own refusal if it accepted none."""
        found = [preview for preview in self._previews.values() if preview is not None]
        if not found and self._refusal is not None:
            return self._refusal
        best = max(found, key=lambda preview: preview.price.cost_units)
        told = ", ".join(f"{name} {value:.3g}" for name, value in self._target.expected(best).items())
        return InvalidRequestError.of(
            "target", f"no spend reaches it; with {best.price}, the most that was tried: {told}"
        )

    def _preview(self, amount: float) -> Preview | None:
        if amount not in self._previews:
            try:
                self._previews[amount] = self._ask(_with_amount(self._spend, amount))
            except InvalidRequestError as error:
                if not all(field.startswith("spend") for field, _ in error.violations):
                    raise
                self._previews[amount], self._refusal = None, error
        return self._previews[amount]


def _amount(spend: Spend) -> float:
    match spend:
        case Rho():
            return spend.value
        case EpsilonDelta() | Pure():
            return spend.epsilon
    text = "must be an amount to begin with: bursar.rho(...), bursar.epsilon_delta(...) or bursar.pure(...)"
    raise InvalidRequestError.of("spend", f"{text}, got {spend!r}")


def _with_amount(spend: Spend, amount: float) -> Amount:
    match spend:
        case EpsilonDelta():
            return EpsilonDelta(amount, spend.delta)
        case Pure():
            return Pure(amount)
    return Rho(amount)


def _up(amount: float) -> float:
    """Rounded up to three significant digits."""
    digits = 2 - math.floor(math.log10(amount))
    return math.ceil(amount * 10.0**digits) / 10.0**digits
