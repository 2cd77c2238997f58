"""Tests of whether released numbers contradict the form of a model."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import ndtr

_DOUBTFUL = 1e-3
"""Chance of a false alarm for a model that is right. Chosen: wrong forms that matter are 20 errors away."""


@dataclass(frozen=True)
class Goodness:
    """Test of a model's form, free, on what was released.

    Attributes:
        statistic: what was looked at.
        observed: its value.
        error: standard deviation of its noise and sampling.
        expected: its value if the model is right.
        p_value: chance of a value as large as the observed one, or larger, if the model is right, by a normal law.
        doubtful: True if that is below 0.001: intervals of the model are not to be trusted.
        verdict: what follows, in words.
    """

    statistic: str
    observed: float
    error: float
    expected: float
    p_value: float
    doubtful: bool
    verdict: str

    def __str__(self) -> str:
        return (
            f"{self.statistic}: {self.observed:.3g} ± {self.error:.2g} (expected {self.expected:.3g}); {self.verdict}"
        )


def background_goodness(share: float, error: float) -> Goodness:
    """Return the test of a mixture whose background has this share of the rows, and error; the share may be negative.

    Tails that are heavier than a Gaussian's, skewness and outliers leave rows that no component explains; they count
    for the background.
    """
    p_value = float(ndtr(-share / error)) if error > 0 else 1.0
    doubtful = p_value < _DOUBTFUL
    verdict = "nothing released contradicts Gaussians; other shapes with as few rows in their tails are not seen"
    if doubtful:
        verdict = (
            "some rows are no part of any Gaussian: outliers, heavy tails or skewness. Read means as those of the best "
            "mixture, and trust no variance"
        )
    return Goodness("share of the rows that no component explains", share, error, 0.0, p_value, doubtful, verdict)
