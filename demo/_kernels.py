"""Compilation of all kernels before the server starts: one process for each CPU fills the cache on the disk.

A server compiles them at its first start, one after another. That would be the longest wait of the demo. Tests run in
several processes, each of which would compile the same: `python -m demo._kernels` does it once before them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess

_SIGN_SECONDS = 5.0


@contextlib.contextmanager
def compiling() -> Iterator[Callable[[Callable[[float], object]], None]]:
    """Compile while the block runs; give a function that waits until all kernels are compiled.

    That function calls its argument with the seconds that it has waited, every `_SIGN_SECONDS`.
    """
    # Spawned: the block may start threads, and a fork would copy their locks.
    spawn = multiprocessing.get_context("spawn")
    shares = os.cpu_count() or 1
    processes = [spawn.Process(target=_compile, args=(share, shares), daemon=True) for share in range(shares)]
    for process in processes:
        process.start()
    try:
        yield lambda sign: _wait(processes, sign)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compile(share: int, shares: int) -> None:
    """Compile every `shares`-th fit. What fails here is compiled, and reported, by the server."""
    from bursar_server.fits.registry import FITS

    for fit in list(FITS.values())[share::shares]:
        getattr(fit, "warm_up", lambda: None)()


def _wait(processes: Sequence[BaseProcess], sign: Callable[[float], object]) -> None:
    waited = 0.0
    for process in processes:
        process.join(_SIGN_SECONDS)
        while process.is_alive():
            waited += _SIGN_SECONDS
            sign(waited)
            process.join(_SIGN_SECONDS)


if __name__ == "__main__":
    with compiling() as wait_for_kernels:
        wait_for_kernels(lambda _: None)
