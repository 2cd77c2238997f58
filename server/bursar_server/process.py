"""Life of one server process: fork the parent of fits, check the ledger, serve until a signal, finish charged fits."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from bursar_ledger import Ledger, LedgerCorruptError, LedgerError, LedgerLostError, Witness
from bursar_server import log
from bursar_server.access.oidc import OidcError
from bursar_server.access.tls import CertificateError, speaks_old_tls
from bursar_server.config import Config, ConfigError
from bursar_server.fits import registry
from bursar_server.fits.registry import FITS
from bursar_server.jobs import hardening
from bursar_server.jobs.engine import storage_of
from bursar_server.jobs.sandbox import Children, ChildrenError, FitLimits
from bursar_server.ops.checkpoints import Checkpointer, explained_loss, open_checkpoints, places_of, witness_of
from bursar_server.ops.telemetry import ObservingError, Tracing
from bursar_server.ops.verification import Verifier
from bursar_server.state import State, StateError
from bursar_server.tables.catalogue import Datasets
from bursar_server.tables.registration import remove_unfinished
from bursar_server.wire.server import AddressError, BursarServer


class StartError(Exception):
    """Error: the server cannot start; the message has reason and remedy."""


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
    log.set_up()
    events = log.Events()
    try:
        registry.check(FITS)
        state = State.open(directory)
        config = Config.load(state.config, **overrides)
        log.set_up(config.log_format)
        if config.lock_memory:
            hardening.lock_memory()
        hardening.raise_descriptor_limit()
        # The fork comes before the first thread, and before anything is in memory that a fit must not see.
        with (
            log.without_libraries(events),
            # The lock comes after the fork: a killed server must not leave it to a child that has not died yet.
            Children(FITS, _limits(config)) as children,
            state.serving(),
            _verified(state, witness := witness_of(state, config)) as ledger,
        ):
            if ledger.is_copy:
                events.tell(log.LedgerCopied())
            key, places = open_checkpoints(state, ledger, config, witness), places_of(state, config)
            # Rows of a killed import are nobody's, and another import may be long in coming. Only now: an older ledger
            # that was put back does not name rows that were registered since.
            remove_unfinished(state, ledger)
            with Checkpointer(ledger, key, places, config.checkpoints.every, events=events) as checkpointer:
                verifier = Verifier(state, ledger, places, key.verifier, events=events)
                return _serve(state, config, ledger, checkpointer, verifier, children, ready, events)
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
        registry.RegistryError,
    ) as error:
        raise StartError(str(error)) from error


def _limits(config: Config) -> FitLimits:
    return FitLimits(config.fit_memory_mib, config.fit_wall_seconds, config.lock_memory)


def _verified(state: State, witness: Witness | None) -> Ledger:
    """Open the ledger after every debit was priced again; of a long one, every debit that no checkpoint covers.

    Raises:
        StartError: it lacks entries that were confirmed.
        LedgerError: it does not verify; names the entries that are wrong.
    """
    try:
        ledger = Ledger.open(state.ledger, reprice=True, processes=os.cpu_count() or 1, witness=witness)
    except LedgerLostError as error:
        raise StartError(f"nothing is served: {explained_loss(error, state)}") from error
    except LedgerCorruptError as error:
        lines = "\n".join(error.problems)
        raise LedgerError(f"the ledger does not verify, nothing is served from it:\n{lines}") from error
    if ledger.whole:
        state.suspect.unlink(missing_ok=True)
    return ledger


def _serve(
    state: State,
    config: Config,
    ledger: Ledger,
    checkpointer: Checkpointer,
    verifier: Verifier,
    children: Children,
    ready: Callable[[str], object],
    events: log.Events,
) -> bool:
    datasets = Datasets(
        ledger,
        state.datasets,
        partitioned=storage_of(config) is not None,
        quantum=config.response_quantum_seconds,
    )
    server = BursarServer(
        state=state,
        config=config,
        ledger=ledger,
        datasets=datasets,
        fits=FITS,
        runner=children,
        note=checkpointer.newest_note,
        needed={"fits": lambda: "their parent was killed" if children.lost else None},
        wanted={
            "checkpoints": lambda: checkpointer.problem,
            "verification": lambda: verifier.problem,
            "rows": datasets.problem,
        },
        tracing=Tracing.to(config.tracing.endpoint) if config.tracing.endpoint else None,
        events=events,
    )

    def lost() -> None:
        # No other parent can be forked: by now this process has threads and keys. A new server has a new one.
        server.watch.look()
        os.kill(os.getpid(), signal.SIGTERM)

    with told_to_stop(server.certificate.reload) as told, verifier.telling(server.watch.look):
        # Kernels are compiled by then, so that the time of the first request says nothing.
        numbers = itertools.count(1)
        children.ready(lost, lambda name: events.tell(log.Compiling(name, next(numbers), len(FITS))))
        server.start()
        try:
            if speaks_old_tls(server.address):
                raise StartError("the server answered TLS 1.2; import bursar_server before grpc, which reads that once")
            events.tell(log.Serving(server.address, config.fit_workers, config.queue_length))
            if server.metrics_address:
                events.tell(log.MetricsServed(server.metrics_address))
            ready(server.address)
            told()
            events.tell(log.Stopping())
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
