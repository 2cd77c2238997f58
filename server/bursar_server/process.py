"""One server: fork the parent of fits, check the ledger, serve until a signal, finish what was paid for."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bursar_ledger import Ledger, LedgerCorruptError, LedgerError
from bursar_server import hardening, logs
from bursar_server.checkpointing import Checkpointer, open_checkpoints, places_of
from bursar_server.children import Children, ChildrenError, FitLimits
from bursar_server.config import Config, ConfigError
from bursar_server.datasets import Datasets
from bursar_server.engines import storage_of
from bursar_server.fits import dpem, gradient_em, mrf, separated_gmm, sketch
from bursar_server.observing import ObservingError, Tracing
from bursar_server.oidc import OidcError
from bursar_server.orders import AnyFit
from bursar_server.server import AddressError, BursarServer
from bursar_server.state import State, StateError
from bursar_server.tls import CertificateError, speaks_old_tls

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


def serve(directory: Path, *, ready: Callable[[str], object], **overrides: object) -> bool:
    """Serve a state directory until SIGTERM or SIGINT; SIGHUP reads the certificate again.

    Args:
        directory: the state directory.
        ready: called with host:port once the server serves.
        overrides: settings that win over the file's; None is none.

    Returns:
        Whether every fit that was paid for is done; else threads of this process still run some, and it is to end.

    Raises:
        StartError: no state directory, a bad setting, a ledger that does not verify or does not agree with its
            checkpoints, a taken port, or another server.
    """
    logs.set_up()
    try:
        state = State.open(directory)
        config = Config.load(state.config, **overrides)
        logs.set_up(config.log_format)
        if config.lock_memory:
            hardening.lock_memory()
        # The fork comes before the first thread, and before anything is in memory that a fit must not see.
        with (
            logs.without_libraries(),
            state.serving(),
            Children(FITS, _limits(config)) as children,
            _verified(state) as ledger,
        ):
            key = open_checkpoints(state, ledger, config)
            with Checkpointer(ledger, key, places_of(state, config), config.checkpoints.every) as checkpointer:
                return _serve(state, config, ledger, checkpointer, children, ready)
    except (
        ChildrenError,
        StateError,
        ConfigError,
        LedgerError,
        AddressError,
        CertificateError,
        OidcError,
        ObservingError,
        hardening.HardeningError,
    ) as error:
        raise StartError(str(error)) from error


def _limits(config: Config) -> FitLimits:
    return FitLimits(config.fit_memory_mib, config.fit_wall_seconds, config.lock_memory)


def _verified(state: State) -> Ledger:
    """The ledger, after every debit was priced again. Raises LedgerError naming the entries that are wrong."""
    try:
        return Ledger.open(state.ledger, reprice=True, processes=os.cpu_count() or 1)
    except LedgerCorruptError as error:
        lines = "\n".join(error.problems)
        raise LedgerError(f"the ledger does not verify, nothing is served from it:\n{lines}") from error


def _serve(
    state: State,
    config: Config,
    ledger: Ledger,
    checkpointer: Checkpointer,
    children: Children,
    ready: Callable[[str], object],
) -> bool:
    datasets = Datasets(ledger, state.datasets, partitioned=storage_of(config) is not None)
    server = BursarServer(
        state=state,
        config=config,
        ledger=ledger,
        datasets=datasets,
        fits=FITS,
        runner=children,
        note=checkpointer.newest_note,
        needed={"fits": lambda: "their parent was killed" if children.lost else None},
        wanted={"checkpoints": lambda: checkpointer.problem},
        tracing=Tracing.to(config.tracing.endpoint) if config.tracing.endpoint else None,
    )

    def lost() -> None:
        # No other parent can be forked: by now this process has threads and keys. A new server has a new one.
        server.watch.look()
        os.kill(os.getpid(), signal.SIGTERM)

    with told_to_stop(server.certificate.reload) as told:
        # Kernels are compiled by then, so that the time of the first request says nothing.
        children.ready(lost=lost)
        server.start()
        try:
            if speaks_old_tls(server.address):
                raise StartError("the server answered TLS 1.2; import bursar_server before grpc, which reads that once")
            logs.event("serving", address=server.address, workers=config.fit_workers, queue=config.queue_length)
            if server.metrics_address:
                logs.event("metrics", address=server.metrics_address)
            ready(server.address)
            told()
            logs.event("stopping")
        finally:
            finished = server.stop()
    if children.lost:
        raise StartError("the process that fits are run from was killed, so the server has stopped; start it again")
    return finished


@contextlib.contextmanager
def told_to_stop(reload: Callable[[], object] = bool) -> Iterator[Callable[[], object]]:
    """A function that returns once SIGTERM or SIGINT has come, since this block began; more of them change nothing.

    Until then it calls `reload` for every SIGHUP.

    A pipe, not an event that a handler sets. Python runs handlers between two steps of the main thread. A signal that
    comes while that thread is on its way to sleep on a lock, for instance as it hands the interpreter to another
    thread, wakes nobody, and the server would serve on for ever. A byte in a pipe stays there until it is read.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

        def told() -> None:
            while os.read(reader, 1)[0] == signal.SIGHUP:
                reload()

        yield told
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
