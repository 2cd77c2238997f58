"""Coverage of the audit: of every fit its targets and its planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from tests.audit import dpem, dpem_mutants, gradient_em, gradient_em_mutants, mrf, mrf_mutants, sketch, sketch_mutants
from tests.audit.faults import Mutant
from tests.audit.target import Target


@dataclass(frozen=True)
class Covered:
    """Coverage of a fit.

    Attributes:
        targets: by name.
        quick: names of those that the short tests audit, too.
        reach: the least that the search for the sensitivity comes near it, as a share, by a target's name.
        mutants: its planted bugs.
    """

    targets: Mapping[str, Callable[[], Target]]
    quick: Set[str]
    reach: Callable[[str], float]
    mutants: Callable[[], Iterable[Mutant]]


def _sketch_reach(name: str) -> float:
    """Far from the sensitivity where a pilot chooses the scale."""
    return 0.7 if name in sketch.FAR_OFF else 0.95


def _gradient_reach(name: str) -> float:
    """Return how near a search comes is luck; `test_gradients_reach_their_bounds` looks longer.

    Under pure epsilon, replaced, with several blocks, 2 l1 is far from what two rows can do.
    """
    return 0.6 if name in gradient_em.QUICK else 0.45


FITS: Mapping[str, Covered] = {
    "FitDPEM": Covered(dpem.TARGETS, dpem.QUICK, lambda _: 0.95, dpem_mutants.mutants),
    "FitSketchKMeans": Covered(sketch.TARGETS, sketch.QUICK, _sketch_reach, sketch_mutants.mutants),
    "FitGradientEM": Covered(gradient_em.TARGETS, gradient_em.QUICK, _gradient_reach, gradient_em_mutants.mutants),
    "FitMRF": Covered(mrf.TARGETS, mrf.QUICK, lambda _: 0.99, mrf_mutants.mutants),
}
"""FitSeparatedGMM chooses parts of rows, and has checks of its own in `separated_gmm.py`."""
