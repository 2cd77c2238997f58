"""What the fit knows of the public, and its releases from parts of the table, in shares of the spend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from bursar_ledger import Adjacency
from bursar_server.fits.dpem._statistics import Frame, Moments
from bursar_server.fits.separated_gmm._statistics import FloatArray
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
"""No release of moments costs a smaller part of the spend; a plan makes sure that this much pays for one."""


@dataclass(frozen=True)
class Settings:
    """What the steps need beside their releases; all public. Lengths are radii of the ball that rows are clipped to.

    Attributes:
        frame: from the data's units into the unit ball.
        k: most components.
        moments: form of the covariances.
        radius: of the ball that holds all means.
        sigma_min, sigma_max: square roots of the least and the largest eigenvalue.
        min_weight: w_min.
        separation: least distance of two means, as far as the analyst knows.
        rho: the spend.
        adjacency, unit_cap: of the dataset.
        rows: number of rows where it is public.
        seed: of directions.
        easy: the paper's easy case: one set of principal directions, and a ball for each component among them.
        aggregate: blocks of rows are estimated without noise, and then their answers with.
        clusters: every row counts for one component.
        balls: Euclidean balls are looked for in the space of the principal directions, which has few dimensions then.
        em_steps: releases of the last phase.
    """

    frame: Frame
    k: int
    moments: Moments
    radius: float
    sigma_min: float
    sigma_max: float
    min_weight: float
    separation: float
    rho: Fraction
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
        """Columns."""
        return len(self.frame.scale)

    @property
    def replaces(self) -> bool:
        """Whether what can change is one row for another: noise is up to twice as large."""
        return self.adjacency is Adjacency.REPLACE_ONE


class Parts:
    """Releases from parts of the table; prices are shares of the spend, on the path of the part."""

    def __init__(self, settings: Settings, forest: Forest) -> None:
        self.settings = settings
        self.forest = forest

    def left(self, node: Node) -> float:
        """Share of the spend that is left on the way to a part; rounded down."""
        return float(self.forest.left(node) / self.settings.rho) * (1.0 - 1e-12)

    def amount(self, node: Node, share: float) -> Fraction:
        """Rho of a share, and no more than is left on the way to a part."""
        return min(Fraction(share) * self.settings.rho, self.forest.left(node))

    def release(self, node: Node, statistic: Statistic, share: float) -> tuple[FloatArray, float]:
        """The noisy sum over a part, and the standard deviation of its noise; `share` is positive."""
        return self.releases([node], [statistic], share)[0]

    def releases(
        self, nodes: Sequence[Node], statistics: Sequence[Statistic], share: float
    ) -> list[tuple[FloatArray, float]]:
        """Likewise of several parts at once, no two of them on one path, each for the same share."""
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
        """Standard deviation of the noise of a release that costs this share."""
        s = self.settings
        return noise_std(
            gaussian_for(part_sensitivity(bounds, s.adjacency, s.unit_cap), self.amount(node, share)), lattice
        )

    def noise_of(self, family: Family, node: Node, share: float) -> SelectionNoise:
        """Of a search that costs this share."""
        s = self.settings
        return search_noise_for(family.bounds, s.adjacency, s.unit_cap, self.amount(node, share))
