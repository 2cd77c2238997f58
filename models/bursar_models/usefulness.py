"""Public limits from which noise leaves nothing of an answer: docs/useless.md. Used by servers and by forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

USELESS_RANGE, ROUGH_RANGE = 0.25, 0.1
"""Noise over a column's range from which an answer is useless, or rough.

The middle of a range, which costs nothing to guess, is on average a quarter of the range from a point drawn evenly.
"""

USELESS_LEVEL = 2.0
"""Noise over the model's own noise level from which an answer is useless: components change places."""

USELESS_TABLE = 0.5
"""Part of the rows that noise moves in a table from which the table is useless."""

USELESS_SSE = 4.0
"""Sum of squares over Lloyd's from which clusters are useless: about that of one centre for all rows, measured."""


@dataclass(frozen=True)
class Finding:
    """Effect of the noise on an answer.

    Attributes:
        text: in words.
        useless: whether nothing is left of the answer; otherwise it is rough.
    """

    text: str
    useless: bool

    def __str__(self) -> str:
        return f"{'useless' if self.useless else 'rough'}: {self.text}"


def findings(
    expected: Mapping[str, float | Mapping[str, float]], widths: Mapping[str, float], target: str | None
) -> Iterator[Finding]:
    """Yield what noise does to an answer, for each expected accuracy beyond a limit.

    Args:
        expected: accuracies by the names of `Preview.expected`; unknown ones are passed over.
        widths: width of the public range of every column, transformed where the column is.
        target: name of a regression's target column; None for other fits.
    """
    for name, value in expected.items():
        match name, value:
            case "mean_error", Mapping():
                yield from _of_range("the noise of a mean is", {c: (error, widths[c], c) for c, error in value.items()})
            case "coef_error", Mapping() if target is not None:
                # From the middle of a feature's range to its end.
                ends = {c: (error * widths[c] / 2.0, widths[target], target) for c, error in value.items()}
                yield from _of_range("the noise of a coefficient moves predictions by", ends)
            case "relative_error", float() if expected.keys().isdisjoint(("mean_error", "coef_error")):
                yield from _above(
                    value, USELESS_LEVEL, f"noise moves parameters by {value:.2g} noise levels of the model"
                )
            case "table_error", float():
                yield from _above(value, USELESS_TABLE, f"noise moves {percent(value)} of the rows of a table")
            case "relative_sse", float():
                text = f"the predicted sum of squares is {value:.2g} times Lloyd's, as one centre for all rows has"
                yield from _above(value, USELESS_SSE, text)


def _of_range(what: str, errors: Mapping[str, tuple[float, float, str]]) -> Iterator[Finding]:
    """Yield what noise does to numbers by column: of error, width and name of the column whose range counts.

    The least one decides: where one unit serves all columns, narrow ones are not expected to say anything.
    """
    error, width, column = min(errors.values(), key=lambda one: one[0] / one[1])
    if not error / width < ROUGH_RANGE:
        others = "" if len(errors) == 1 else " at best"
        text = f"{what} {percent(error / width)} of the range of {column!r}{others}"
        yield Finding(text, useless=not error / width < USELESS_RANGE)


def _above(value: float, limit: float, text: str) -> Iterator[Finding]:
    if not value < limit:
        yield Finding(text, useless=True)


def percent(share: float) -> str:
    """Return a share in a warning: whole percents, one digit below."""
    return f"{100.0 * share:,.0f} %" if share >= 0.01 else f"{100.0 * share:.1g} %"
