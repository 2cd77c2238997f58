"""Registry of the fits of this version.

A new fit is one line here; the contract's descriptors supply everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bursar_server.fits import dpem, gradient_em, mrf, separated_gmm, sketch
from bursar_server.fits._seam import AnyFit
from bursar_server.fits.contract import METHODS

FITS: Mapping[str, AnyFit] = {
    "FitDPEM": dpem,
    "FitSketchKMeans": sketch,
    "FitMRF": mrf,
    "FitGradientEM": gradient_em,
    "FitSeparatedGMM": separated_gmm,
}
"""Fits by the name of their RPC."""

UNIMPLEMENTED: frozenset[str] = frozenset()
"""Methods of the contract that this version answers with UNIMPLEMENTED."""


class RegistryError(Exception):
    """Error: the registry and the contract disagree."""


def check(fits: Iterable[str], unimplemented: Iterable[str] = UNIMPLEMENTED) -> None:
    """Check that each method of the contract is either registered or listed as unimplemented, and nothing else is.

    Raises RegistryError naming every method that is not.
    """
    registered, left_out, known = set(fits), set(unimplemented), set(METHODS)
    wrong = {
        "registered, but FitService has no such method": (registered | left_out) - known,
        "neither registered in FITS nor listed in UNIMPLEMENTED": known - registered - left_out,
        "both registered in FITS and listed in UNIMPLEMENTED": registered & left_out,
    }
    problems = [f"{name} is {text}" for text, names in wrong.items() for name in sorted(names)]
    if problems:
        raise RegistryError("; ".join(problems))
