"""`python -m tests.conformance.compiled`: prints the kernels that some variant compiles although fits are warmed up.

It runs in a process of its own, because what other tests have compiled would hide them.
"""

from __future__ import annotations

import sys

import click
from numba.core.dispatcher import Dispatcher

from bursar_server.fits.registry import FITS
from bursar_server.vault import LocalEngine
from tests.conformance.requests import VARIANTS
from tests.server.engine.fits import fitted, people


def main() -> None:
    """Warm up, fit every variant, and print what has another signature now, with the variant."""
    for fit in FITS.values():
        fit.warm_up()  # type: ignore[attr-defined]  # all five have kernels
    known = _signatures()
    for name in VARIANTS:
        fitted(name, people(name, 100), LocalEngine())
        now = _signatures()
        for kernel in sorted(now - known):
            click.echo(f"{name}: {kernel}")
        known = now


def _signatures() -> set[str]:
    modules = [module for name, module in sys.modules.items() if name.startswith("bursar")]
    kernels = {kernel for module in modules for kernel in vars(module).values() if isinstance(kernel, Dispatcher)}
    return {f"{kernel.py_func.__name__}{signature}" for kernel in kernels for signature in kernel.signatures}


if __name__ == "__main__":
    main()
