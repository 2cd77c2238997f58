"""Correction of the bias of sharp borders between components: free post-processing.

Rows of the released mixture are drawn from public numbers and divided by the released rules, which shows how much of
each component lies in which part. Moments of parts are moved by the difference until the mixture's own parts have the
released moments (simulated moments: McFadden 1989). The paper's estimator has this bias (Kamath et al. 2019, algorithm
4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar_models import public_generator
from bursar_models.arrays import FloatArray
from bursar_server.fits.mixtures.em import Mixture
from bursar_server.fits.mixtures.statistics import BallFrame
from bursar_server.vault import CHUNK, Node, Rule

_BLOCKS, _NUMBERS = 16, 2**22
"""Maximum number of blocks of drawn rows, and of their numbers. Chosen, not tuned: bounds memory and time."""

STEPS = 6
"""Steps of the fixed point: each reduces the error to about the share of rows on the wrong side."""

_MOST = 0.25
"""Share of a part's rows beyond which nothing is moved: there borders do not separate components. Chosen, not tuned."""

_SEED = 7
"""Public seed of the draws."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Rows of components outside of their parts, less rows of others inside, about components' means.

    Attributes:
        counts: rows, (K,).
        sums: sums, (K, d).
        seconds: second moments, (K, d, d).
    """

    counts: FloatArray
    sums: FloatArray
    seconds: FloatArray


class Borders:
    """Released parts of the table, applied to drawn rows.

    Args:
        frame: public map into the unit ball, in which mixtures are.
        nodes: K parts; the k-th belongs to the k-th component.
    """

    def __init__(self, frame: BallFrame, nodes: Sequence[Node]) -> None:
        d = len(frame.scale)
        blocks = max(1, min(_BLOCKS, _NUMBERS // (CHUNK * d)))
        half = public_generator(_SEED).standard_normal((blocks * CHUNK // 2, d))
        self._frame = frame
        self._nodes = nodes
        self._draws = np.concatenate([half, -half])
        # Rows of all components alternate, so that every block has some of each.
        self._component = np.arange(len(half)) % len(nodes)
        self._component = np.concatenate([self._component, self._component])

    def exchanges(self, mixture: Mixture, reaches: Sequence[FloatArray]) -> list[Exchange]:
        """Return the exchange of a mixture in the unit ball for each release.

        The release's rows were clipped to a `reach` (K,).
        """
        K, d = mixture.means.shape
        roots = np.linalg.cholesky(mixture.covariances)
        rows = np.empty_like(self._draws)
        for k in range(K):
            mine = self._component == k
            rows[mine] = mixture.means[k] + self._draws[mine] @ roots[k].T
        weights = (mixture.counts / np.bincount(self._component, minlength=K))[self._component]
        labels = self._labels(rows)
        found = [Exchange(np.zeros(K), np.zeros((K, d)), np.zeros((K, d, d))) for _ in reaches]
        for k, node in enumerate(self._nodes):
            inside, own = _inside(node, labels), self._component == k
            lost, gained = own & ~inside, inside & ~own
            away, foreign = rows[lost] - mixture.means[k], rows[gained] - mixture.means[k]
            lengths = np.linalg.norm(foreign, axis=1)
            for one, reach in zip(found, reaches, strict=True):
                clipped = foreign * np.minimum(1.0, reach[k] / np.maximum(lengths, 1e-300))[:, None]
                for apart, weight in ((away, weights[lost]), (clipped, -weights[gained])):
                    one.counts[k] += weight.sum()
                    one.sums[k] += weight @ apart
                    one.seconds[k] += (apart.T * weight) @ apart
        return found

    def _labels(self, rows: FloatArray) -> Callable[[Rule], NDArray[np.int16]]:
        X = self._frame.centre[:, None] + self._frame.scale[:, None] * rows.T
        present, known = np.ones(CHUNK, dtype=np.bool_), dict[int, NDArray[np.int16]]()

        def labels(rule: Rule) -> NDArray[np.int16]:
            if id(rule) not in known:
                known[id(rule)] = np.zeros(len(rows), dtype=np.int16)
                for first in range(0, len(rows), CHUNK):
                    block = np.ascontiguousarray(X[:, first : first + CHUNK])
                    rule(block, present, known[id(rule)][first : first + CHUNK])
            return known[id(rule)]

        return labels


def _inside(node: Node, labels: Callable[[Rule], NDArray[np.int16]]) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = np.array(True)
    here: Node | None = node
    while here is not None and here.rule is not None:
        inside = inside & (labels(here.rule) == here.label)
        here = here.parent
    return inside


def moved(
    counts: FloatArray, means: FloatArray, covariances: FloatArray, about: Mixture, exchange: Exchange, rows: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return counts (K,), means and covariances of parts with `rows` (K,), converted to those of components.

    `about` is the mixture for which the exchange was computed.
    """
    parts = [a / rows.reshape(-1, *[1] * (a.ndim - 1)) for a in (exchange.counts, exchange.sums, exchange.seconds)]
    few = np.abs(parts[0]) <= _MOST  # NaN fails
    a, b, c = (np.where(few.reshape(-1, *[1] * (part.ndim - 1)), part, 0.0) for part in parts)
    shift = means - about.means
    whole = 1.0 + a
    second = (covariances + shift[:, :, None] * shift[:, None, :] + c) / whole[:, None, None]
    mean = (shift + b) / whole[:, None]
    return counts * whole, about.means + mean, second - mean[:, :, None] * mean[:, None, :]
