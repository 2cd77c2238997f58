"""Public settings of the fit, and its releases from parts of the table, in shares of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from bursar_ledger import Adjacency
from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.statistics import BallFrame, Moments
from bursar_server.vault import (
    Bounds,
    Family,
    Forest,
    Node,
    SelectionNoise,
    Statistic,
    gaussian_for,
    noise_std,
    part_sensitivity,
    search_noise_for,
)

LEAST_SHARE = 1e-4
"""Minimum share of the budget for a release of moments; the plan checks that it pays for one."""


@dataclass(frozen=True)
class SplitSettings:
    """Public settings of the steps beside their releases. Lengths are radii of the ball to which rows are clipped.

    Attributes:
        frame: map from the data's units into the unit ball.
        k: maximum number of components.
        moments: form of the covariances.
        radius: radius of the ball that holds all means.
        sigma_min: square root of the least eigenvalue.
        sigma_max: square root of the largest eigenvalue.
        min_weight: least weight w_min of a component.
        separation: least distance of two means, as declared by the analyst.
        rho: budget of splits and estimates.
        form: budget of the counts by radius, which test the form; 0 for none.
        adjacency: neighbouring relation of the dataset.
        unit_cap: maximum number of rows of one privacy unit.
        rows: number of rows if it is public.
        seed: seed of directions.
        easy: True for the paper's easy case: one set of principal directions, and a ball for each component among them.
        aggregate: True if blocks of rows are estimated without noise, and then their answers with noise.
        clusters: True if every row counts for one component.
        balls: True if balls are sought in the space of the principal directions, which then has few dimensions.
        em_steps: number of releases of the last phase.
    """

    frame: BallFrame
    k: int
    moments: Moments
    radius: float
    sigma_min: float
    sigma_max: float
    min_weight: float
    separation: float
    rho: Fraction
    form: Fraction
    adjacency: Adjacency
    unit_cap: int
    rows: int | None
    seed: int
    easy: bool
    aggregate: bool
    clusters: bool
    balls: bool
    em_steps: int

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.frame.scale)

    @property
    def replaces(self) -> bool:
        """Return whether neighbouring datasets differ by replacing a row: noise is then up to twice as large."""
        return self.adjacency is Adjacency.REPLACE_ONE


class Parts:
    """Releases from parts of the table; costs are shares of the budget, on the path of the part."""

    def __init__(self, settings: SplitSettings, forest: Forest) -> None:
        self.settings = settings
        self.forest = forest

    def left(self, node: Node) -> float:
        """Return the remaining share of the budget on the path to a part, rounded down."""
        return float(self.forest.left(node) / self.settings.rho) * (1.0 - 1e-12)

    def amount(self, node: Node, share: float) -> Fraction:
        """Return the rho of a share, at most the remainder on the path to a part."""
        return min(Fraction(share) * self.settings.rho, self.forest.left(node))

    def release(self, node: Node, statistic: Statistic, share: float) -> tuple[FloatArray, float]:
        """Return the noisy sum over a part, and the standard deviation of its noise; `share` is positive."""
        return self.releases([node], [statistic], share)[0]

    def releases(
        self, nodes: Sequence[Node], statistics: Sequence[Statistic], share: float
    ) -> list[tuple[FloatArray, float]]:
        """Release sums over several parts at once, no two of them on one path, each for the same share."""
        s = self.settings
        noises = [
            gaussian_for(part_sensitivity(statistic.bounds, s.adjacency, s.unit_cap), self.amount(node, share))
            for node, statistic in zip(nodes, statistics, strict=True)
        ]
        sums = self.forest.noisy_sums(list(zip(nodes, statistics, noises, strict=True)))
        return [
            (flat, noise_std(noise, statistic.lattice))
            for flat, statistic, noise in zip(sums, statistics, noises, strict=True)
        ]

    def std(self, node: Node, bounds: Bounds, lattice: float, share: float) -> float:
        """Return the standard deviation of the noise of a release that costs this share."""
        s = self.settings
        return noise_std(
            gaussian_for(part_sensitivity(bounds, s.adjacency, s.unit_cap), self.amount(node, share)), lattice
        )

    def noise_of(self, family: Family, node: Node, share: float) -> SelectionNoise:
        """Return the noise of a search that costs this share."""
        s = self.settings
        return search_noise_for(family.bounds, s.adjacency, s.unit_cap, self.amount(node, share))
