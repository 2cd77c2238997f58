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
        short: runs of a target in the short tests, by its name.
        long: in the long ones.
        mutants: its planted bugs.
    """

    targets: Mapping[str, Callable[[], Target]]
    quick: Set[str]
    short: Callable[[str], Runs]
    long: Callable[[str], Runs]
    mutants: Callable[[], Iterable[Mutant]]


def _sketch(name: str, n: int) -> Runs:
    """Fewer where every run decodes; far from the sensitivity where a pilot chooses the scale."""
    return Runs(n // 10 if "decoded" in name else n, 0.7 if name in sketch.FAR_OFF else 0.95)


def _mrf(name: str, n: int) -> Runs:
    """Fewer where every run makes an estimate."""
    return Runs(n // 2 if any(word in name for word in ("tree", "learnt", "rounds")) else n, 0.99)


FITS: Mapping[str, Covered] = {
    "FitDPEM": Covered(
        dpem.TARGETS, dpem.QUICK, lambda _: Runs(40, 0.95), lambda _: Runs(300, 0.95), dpem_mutants.mutants
    ),
    "FitSketchKMeans": Covered(
        sketch.TARGETS,
        sketch.QUICK,
        lambda name: _sketch(name, 50),
        lambda name: _sketch(name, 300),
        sketch_mutants.mutants,
    ),
    # How near a short search comes is luck; `test_gradients_reach_their_bounds` looks longer. Under pure epsilon,
    # replaced, with several blocks, 2 l1 is far from what two rows can do.
    "FitGradientEM": Covered(
        gradient_em.TARGETS,
        gradient_em.QUICK,
        lambda _: Runs(30, 0.6),
        lambda _: Runs(300, 0.45),
        gradient_em_mutants.mutants,
    ),
    "FitMRF": Covered(
        mrf.TARGETS,
        mrf.QUICK,
        lambda name: _mrf(name, 60),
        lambda name: _mrf(name, 900 if name.startswith("one column") else 300),  # which has three cells
        mrf_mutants.mutants,
    ),
}
"""FitSeparatedGMM chooses parts of rows, and has checks of its own in `separated_gmm.py`."""
