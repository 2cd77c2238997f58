"""What the audit covers: of every fit its targets, how often they run, and its planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from tests.audit import dpem, dpem_mutants, gradient_em, gradient_em_mutants, mrf, mrf_mutants, sketch, sketch_mutants
from tests.audit.faults import Mutant
from tests.audit.target import Target


@dataclass(frozen=True)
class Runs:
    """How a target is audited.

    Attributes:
        n: runs on each table.
        reach: the least that the search for the sensitivity comes near it, as a share.
    """

    n: int
    reach: float


@dataclass(frozen=True)
class Covered:
    """What is audited of a fit.

    Attributes:
        targets: by name.
        quick: names of those that the short tests audit, too.
        short_reach: of a target in the short tests, by its name, as in `Runs`.
        long: runs of a target in the long tests, by its name.
        mutants: its planted bugs.
    """

    targets: Mapping[str, Callable[[], Target]]
    quick: Set[str]
    short_reach: Callable[[str], float]
    long: Callable[[str], Runs]
    mutants: Callable[[], Iterable[Mutant]]


def _sketch_reach(name: str) -> float:
    """Far from the sensitivity where a pilot chooses the scale."""
    return 0.7 if name in sketch.FAR_OFF else 0.95


def _mrf(name: str) -> int:
    """Fewer where every run makes an estimate, more of one column, which has three cells."""
    if name.startswith("one column"):
        return 900
    return 150 if any(word in name for word in ("tree", "learnt", "rounds")) else 300


FITS: Mapping[str, Covered] = {
    "FitDPEM": Covered(dpem.TARGETS, dpem.QUICK, lambda _: 0.95, lambda _: Runs(300, 0.95), dpem_mutants.mutants),
    "FitSketchKMeans": Covered(
        sketch.TARGETS,
        sketch.QUICK,
        _sketch_reach,
        # Fewer where every run decodes.
        lambda name: Runs(30 if "decoded" in name else 300, _sketch_reach(name)),
        sketch_mutants.mutants,
    ),
    # How near a short search comes is luck; `test_gradients_reach_their_bounds` looks longer. Under pure epsilon,
    # replaced, with several blocks, 2 l1 is far from what two rows can do.
    "FitGradientEM": Covered(
        gradient_em.TARGETS, gradient_em.QUICK, lambda _: 0.6, lambda _: Runs(300, 0.45), gradient_em_mutants.mutants
    ),
    "FitMRF": Covered(mrf.TARGETS, mrf.QUICK, lambda _: 0.99, lambda name: Runs(_mrf(name), 0.99), mrf_mutants.mutants),
}
"""FitSeparatedGMM chooses parts of rows, and has checks of its own in `separated_gmm.py`."""
