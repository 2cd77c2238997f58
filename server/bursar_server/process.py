"""One server process: check the ledger, compile the kernels, serve until a signal, finish what was paid for."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bursar_ledger import Ledger, LedgerCorruptError, LedgerError
from bursar_server import logs
from bursar_server.checkpointing import Checkpointer, open_checkpoints, places_of
from bursar_server.config import Config, ConfigError
from bursar_server.datasets import Datasets
from bursar_server.fits import dpem, gradient_em, mrf, separated_gmm, sketch
from bursar_server.orders import AnyFit
from bursar_server.server import AddressError, BursarServer
from bursar_server.state import State, StateError

FITS: Mapping[str, AnyFit] = {
    "FitDPEM": dpem,
    "FitSketchKMeans": sketch,
    "FitMRF": mrf,
    "FitGradientEM": gradient_em,
    "FitSeparatedGMM": separated_gmm,
}
"""The fits of this version, by name of their RPC."""


class StartError(Exception):
    """The server does not start; says why and what to do."""


def serve(directory: Path, *, ready: Callable[[str], object], **overrides: object) -> None:
    """Serve a state directory until SIGTERM or SIGINT.

    Args:
        directory: the state directory.
        ready: called with host:port once the server serves.
        overrides: settings that win over the file's; None is none.

    Raises:
        StartError: no state directory, a bad setting, a ledger that does not verify or does not agree with its
            checkpoints, a taken port, or another server.
    """
    logs.set_up()
    try:
        state = State.open(directory)
        config = Config.load(state.config, **overrides)
        with state.serving(), _verified(state) as ledger:
            key = open_checkpoints(state, ledger, config)
            with Checkpointer(ledger, key, places_of(state, config), config.checkpoints.every) as checkpointer:
                _serve(state, config, ledger, checkpointer.newest_note, ready)
    except (StateError, ConfigError, LedgerError, AddressError) as error:
        raise StartError(str(error)) from error


def _verified(state: State) -> Ledger:
    """The ledger, after every debit was priced again. Raises LedgerError naming the entries that are wrong."""
    try:
        return Ledger.open(state.ledger, reprice=True, processes=os.cpu_count() or 1)
    except LedgerCorruptError as error:
        lines = "\n".join(error.problems)
        raise LedgerError(f"the ledger does not verify, nothing is served from it:\n{lines}") from error


def _serve(
    state: State, config: Config, ledger: Ledger, note: Callable[[], str], ready: Callable[[str], object]
) -> None:
    # Kernels are compiled on made-up rows now, so that the time of the first request says nothing.
    for fit in FITS.values():
        getattr(fit, "warm_up", lambda: None)()
    datasets = Datasets(ledger, state.datasets)
    server = BursarServer(state=state, config=config, ledger=ledger, datasets=datasets, fits=FITS, note=note)
    with told_to_stop() as told, server:
        logs.event("serving", address=server.address, workers=config.fit_workers, queue=config.queue_length)
        ready(server.address)
        told()
        logs.event("stopping")


@contextlib.contextmanager
def told_to_stop() -> Iterator[Callable[[], object]]:
    """A function that returns once SIGTERM or SIGINT has come, since this block began; more of them change nothing.

    A pipe, not an event that a handler sets. Python runs handlers between two steps of the main thread. A signal that
    comes while that thread is on its way to sleep on a lock, for instance as it hands the interpreter to another
    thread, wakes nobody, and the server would serve on for ever. A byte in a pipe stays there until it is read.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        yield lambda: os.read(reader, 1)
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
