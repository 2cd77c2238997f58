"""Intervals of released numbers, computed from released and public numbers only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import scipy

from bursar_models._density import CovarianceType
from bursar_models._tables import Output, as_table
from bursar_models.arrays import FloatArray
from bursar_models.text import harmless, html_table, text_table

POPULATION = "the population that the rows are an independent sample of: noise and sampling are covered, bias is not"
"""Target of intervals from standard errors."""

DECODED = "the best mixture of this form of the population: noise, sampling and the decoder's bias are covered"
"""Target of intervals of a mixture that was decoded from a sketch."""

CENTRES = (
    "k-means of the population, by Lloyd's algorithm from the released centres: noise, sampling and bias are covered"
)
"""Target of intervals of centres that were decoded from a sketch."""

CELLS = (
    "the rows of the population nearest to the returned centres: their shares, and their means within the public "
    "bounds; noise and sampling are covered. Means differ from the centres where these have not settled"
)
"""Target of intervals of k-means by FitDPEM."""

REPLICATES = 60
"""Decodings of a bootstrap: the error's own relative error is 9 %."""

NO_ERRORS = "all: the release has no errors and no noisy sums of its steps; most by FitDPEM have them"
"""Reason why older releases by FitDPEM, and those without room for a report, have no intervals."""

MIXTURE = (
    "the mixture of this form that is nearest to the population in what the last steps summed: noise and sampling are "
    "covered. Where the population is no such mixture, the one of greatest likelihood is another"
)
"""Target of intervals from a trajectory."""

NO_TRACE = "all: the model has no standard errors; those that gradient EM releases have"
"""Reason why a regression or a symmetric mixture has no intervals."""

NO_WEIGHTS = "weights_: gradient EM has no errors of them"
"""Reason why weights of gradient EM have no intervals."""


@dataclass(frozen=True)
class Interval:
    """Interval of one released number.

    Attributes:
        name: attribute and place in the model, such as "means_[0].age".
        estimate: released number, or what follows from released ones.
        low: lower end.
        high: upper end.
        about: what the number is, in words.
    """

    name: str
    estimate: float
    low: float
    high: float
    about: str


@dataclass(frozen=True, eq=False, repr=False)
class Intervals:
    """Intervals of a model's released numbers: a table with a row for each, in the model's order.

    Attributes:
        level: share of fits in which an interval is meant to contain its target.
        target: what the intervals are meant to contain, and what they do not cover.
        rows: intervals.
        left_out: released numbers that have no interval, each with the reason.
        warnings: what the intervals suppose of the rows and the releases contradict.

    Example:
        >>> field = data.fit(bursar.MRF(cliques=[("group",)]), spend=bursar.rho(0.1))
        >>> found = field.intervals(level=0.9)
        >>> len(found), found["group=treated"].name
        (2, 'group=treated')
    """

    level: float
    target: str
    rows: tuple[Interval, ...]
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Interval]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Interval:
        """Return the interval of this name.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_table(self, output: Output = "pandas") -> Any:
        """Return a table with the columns name, estimate, low, high and about.

        Args:
            output: "pandas" or "polars" for a DataFrame, "arrow" for a pyarrow Table, "dict" for arrays by name.

        Raises:
            ValueError: another output.
            bursar.MissingDependencyError: its library is not installed.
        """
        return as_table(
            {field.name: np.array([getattr(row, field.name) for row in self.rows]) for field in fields(Interval)},
            output,
        )

    def __repr__(self) -> str:
        lines = [f"Intervals at {self.level:.4g} of {self.target}"]
        if self.rows:
            lines.append(text_table(*self._table()))
        return harmless("\n".join([*lines, *(f"  {note}" for note in self._notes())]))

    def _repr_html_(self) -> str:
        notes = "".join(f"; {note}" for note in self._notes())
        return html_table(f"Intervals at {self.level:.4g} of {self.target}{notes}", *self._table())

    def _notes(self) -> list[str]:
        reasons = (f"without an interval: {reason}" for reason in self.left_out)
        return [*(f"warning: {warning}" for warning in self.warnings), *reasons]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        cells = [[r.name, f"{r.estimate:.4g}", f"{r.low:.4g}", f"{r.high:.4g}", r.about] for r in self.rows]
        return ["name", "estimate", "low", "high", "about"], cells


def two_sided(level: float) -> float:
    """Return the number of standard errors on both sides of an estimate, for a normal law.

    Raises:
        ValueError: a level that is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number above 0 and below 1, such as 0.95, got {level!r}")
    return float(scipy.special.ndtri((1 + level) / 2))


def plain(name: str, estimate: float, error: float, z: float, about: str) -> Interval:
    """Return an interval of `z` standard errors on both sides."""
    return Interval(name, float(estimate), float(estimate - z * error), float(estimate + z * error), about)


def within(name: str, estimate: float, error: float, z: float, about: str) -> Interval:
    """Return the same for a number from 0 to 1, cut there."""
    return Interval(name, float(estimate), max(estimate - z * error, 0.0), min(estimate + z * error, 1.0), about)


def positive(name: str, estimate: float, error: float, z: float, about: str) -> Interval:
    """Return an interval of a number above 0, on its logarithm; `error` is that of the logarithm."""
    with np.errstate(over="ignore"):
        factor = float(np.exp(z * error))
    return Interval(name, float(estimate), float(estimate / factor), float(estimate * factor), about)


def share(name: str, estimate: float, error: float, z: float, about: str) -> Interval:
    """Return an interval of a share, on its logit; `error` is that of the logit. 0 and 1 have all of 0 to 1."""
    if not 0 < estimate < 1:
        return Interval(name, float(estimate), 0.0, 1.0, about)
    place = math.log(estimate) - math.log1p(-estimate)
    return Interval(
        name,
        float(estimate),
        float(scipy.special.expit(place - z * error)),
        float(scipy.special.expit(place + z * error)),
        about,
    )


def covariance_intervals(
    names: Sequence[str], covariances: FloatArray, errors: FloatArray, z: float, covariance_type: CovarianceType
) -> Iterator[tuple[Interval, float]]:
    """Yield intervals of the entries of covariances (k, d, d) that have standard errors, with their relative errors.

    A variance's is relative to itself, a covariance's to the deviations of both columns.
    """
    for i in range(1 if covariance_type == "tied" else len(covariances)):
        part = "" if covariance_type == "tied" else f"[{i}]"
        where = "all components" if covariance_type == "tied" else f"component {i}"
        spherical, variances = covariance_type == "spherical", np.diagonal(covariances[i])
        for j, name in enumerate(names[:1] if spherical else names):
            relative = errors[i, j, j] / variances[j]
            label = f"covariances_{part}" if spherical else f"covariances_{part}.{name}"
            words = f"variance of {where}" if spherical else f"variance of {name!r} in {where}"
            yield positive(label, variances[j], relative, z, words), relative
            # Columns before this one: every covariance once.
            for m, other in enumerate(names[:j] if covariance_type in ("full", "tied") else ()):
                words = f"covariance of {other!r} and {name!r} in {where}"
                row = plain(f"covariances_{part}.{other}.{name}", covariances[i, j, m], errors[i, j, m], z, words)
                yield row, errors[i, j, m] / math.sqrt(variances[j] * variances[m])


def spread(
    attribute: str,
    words: str,
    names: Sequence[str],
    estimates: FloatArray,
    errors: FloatArray,
    z: float,
    part: str = "component",
) -> list[Interval]:
    """Return intervals of numbers (k, d) with standard errors, named by attribute, component and feature.

    A number with an error of 0 is public and has none.
    """
    return [
        plain(f"{attribute}[{k}].{name}", estimates[k, j], errors[k, j], z, f"{words} of {name!r} in {part} {k}")
        for k in range(len(estimates))
        for j, name in enumerate(names)
        if errors[k, j] > 0
    ]
