"""Assembly of one server from its parts, and its end without losing charged work."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from bursar_ledger import Ledger, LedgerUnavailableError
from bursar_proto.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    catalog_pb2,
    catalog_pb2_grpc,
    dummy_pb2,
    dummy_pb2_grpc,
    fit_pb2,
)
from bursar_server import log
from bursar_server.access import auth
from bursar_server.access.oidc import OidcTokens
from bursar_server.access.throttle import Throttle
from bursar_server.access.tls import Certificates, Reloading, client_authority
from bursar_server.config import Config
from bursar_server.fits import AnyFit
from bursar_server.jobs import hardening
from bursar_server.jobs.engine import engine_of
from bursar_server.jobs.job import FREE_WORKERS, Follower, FreeRuns, WorkerPool
from bursar_server.jobs.limits import check_fit
from bursar_server.jobs.paid import Runs
from bursar_server.jobs.runner import Runner
from bursar_server.jobs.trial import Dummies
from bursar_server.ops import telemetry
from bursar_server.ops.health import Check, Condition, Watch
from bursar_server.state import State
from bursar_server.tables.catalogue import Datasets
from bursar_server.wire.admin_service import AdminService
from bursar_server.wire.audit_service import AuditService
from bursar_server.wire.catalog_service import CatalogService
from bursar_server.wire.fit_service import FitService, refusals_counted
from bursar_server.wire.gate import Gate, Turnstile, no_span
from bursar_server.wire.trial_service import DummyService

_SERVICES = tuple(
    service.full_name
    for module in (fit_pb2, dummy_pb2, catalog_pb2, admin_pb2, audit_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
)


_LAST_SECONDS = 10.0
"""Seconds for calls to notice that they were cut off after `shutdown_seconds`. Chosen, not tuned."""

_SPARE_THREADS = 8
"""Threads beside those that serve: they refuse further calls with a retry time, and answer probes.

Chosen, not tuned.
"""

_OWN_DESCRIPTORS = 64
"""Descriptors of the ledger, checkpoints, certificates, pipes and short-lived files; at most some 30 are open."""

_PER_FIT = 4
"""Descriptors of a running or waiting fit (`bursar_server.jobs.sandbox`)."""

_HANDSHAKE_MS, _IDLE_MS = 10_000, 120_000
"""Timeouts of a TLS handshake, which takes milliseconds, and of a connection without calls. Clients connect again."""

_PROBE_MS, _PROBE_ANSWER_MS = 60_000, 20_000
"""Times after which the client of a silent call is probed (HTTP/2 ping), and then considered gone.

Chosen, not tuned.
"""

_MOST_WAITING = 4096
"""Maximum number of waiting calls beside those that are served; beyond it gRPC refuses without a retry time."""

_MOST_WAITING_OF_ONE = 256
"""Maximum number of waiting calls of one connection, so that no single stranger takes all places. Chosen, not tuned."""

_WARN_DAYS = 14
"""Days before the end of the certificate from which the server is degraded: two weeks to renew it."""

_LEAST_DISK = 2**28
"""Free bytes on the ledger's disk below which the server is degraded: 256 MB, room for 250,000 entries of 1 kB."""


CONDITION = "bursar-condition"
"""Name of the trailing metadata of a health check."""


class AddressError(Exception):
    """Error: the server cannot listen on its address."""


class BursarServer:
    """Server on one state directory. The caller holds the directory's lock.

    The caller closes the ledger, too. Fits run in this process and without limits unless there is a runner. `note`
    returns a signed checkpoint as text, "" for none. Without the `needed` health checks nothing is served; failures of
    the `wanted` ones degrade the server.

    Raises:
        AddressError: the port is not available.
        CertificateError: the certificate cannot be used.
        OidcError, ObservingError: a setting requires a package that is not installed.
    """

    def __init__(
        self,
        *,
        state: State,
        config: Config,
        ledger: Ledger,
        datasets: Datasets,
        fits: Mapping[str, AnyFit],
        runner: Runner | None = None,
        note: Callable[[], str] = str,
        needed: Mapping[str, Check] | None = None,
        wanted: Mapping[str, Check] | None = None,
        tracing: telemetry.Tracing | None = None,
        events: log.Events | None = None,
    ) -> None:
        self._events = events = events or log.Events()
        self._config = config
        self.certificate = Reloading(Certificates(state.tls), client_authority(state, config), events=events)
        self.watch = Watch(
            needed={"ledger": lambda: _ledger_problem(ledger), **(needed or {})},
            wanted={
                "certificate": lambda: _certificate_problem(self.certificate),
                "disk": lambda: "nearly full" if shutil.disk_usage(state.path).free < _LEAST_DISK else None,
                "descriptors": lambda: "nearly used up" if hardening.free_descriptors() < _OWN_DESCRIPTORS else None,
                **(wanted or {}),
            },
            events=events,
        )
        self._ledger_file = state.ledger
        self._observed = contextlib.ExitStack()
        self._tracing = tracing
        self._endpoint = None
        if config.metrics.address:
            metrics = telemetry.Metrics(ledger, self.watch, lambda: self.certificate.expires.timestamp())
            self._observed.enter_context(events.heard_by(metrics.hear))
            self._endpoint = telemetry.Endpoint(config.metrics.address, self.watch, metrics.text)
        if tracing is not None:
            self._observed.enter_context(events.heard_by(tracing.hear))
        self._pool = WorkerPool(workers=config.fit_workers, queue_length=config.queue_length)
        # One each (`FREE_WORKERS`), so that free work never takes more of the machine than charged work.
        self._free_pool = WorkerPool(workers=1, queue_length=config.queue_length)
        self._dummy_pool = WorkerPool(workers=1, queue_length=config.queue_length)
        self._turnstile = Turnstile(config.rpc_threads, config.calls_per_principal)
        gate = Gate(
            own=auth.LedgerTokens(ledger),
            provider=OidcTokens(config.oidc, events=events) if config.oidc.issuer else None,
            throttle=Throttle(config.rates.calls_per_minute, config.rates.failures, config.rates.lockout_seconds),
            turnstile=self._turnstile,
            span=no_span if tracing is None else tracing.span,
            events=events,
        )
        self._server = _grpc_server(config, gate)
        runs = Runs(
            ledger=ledger,
            pool=self._pool,
            free_pool=self._free_pool,
            quantum=config.response_quantum_seconds,
            fits_per_principal=config.fits_per_principal,
            rerun=config.recovery == "rerun",
            events=events,
        )
        follower = Follower(config.response_quantum_seconds, config.call_seconds)
        fit_service = FitService(
            fits=fits,
            datasets=datasets,
            ledger=ledger,
            runs=runs,
            follower=follower,
            engine=engine_of(config, state),
            runner=runner,
            most=config.limits,
            events=events,
        )
        self._server.add_generic_rpc_handlers((fit_service.handler(),))
        check = functools.partial(check_fit, config.limits)
        dummies = Dummies(fits=fits, facts=datasets.facts, runner=runner, check=check)
        dummy_service = DummyService(dummies, FreeRuns(self._dummy_pool), follower)
        dummy_pb2_grpc.add_DummyServiceServicer_to_server(dummy_service, self._server)
        catalog_service = CatalogService(ledger, datasets, runs, note, config.limits)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(catalog_service, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminService(ledger, config.tokens.days, events=events), self._server
        )
        audit_service = AuditService(ledger, state.ledger, config.limits)
        audit_pb2_grpc.add_AuditServiceServicer_to_server(audit_service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(HealthService(self.watch), self._server)
        if config.reflection:
            reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME), self._server)
        self.address = _listen(self._server, config.address, self.certificate)
        self.metrics_address = "" if self._endpoint is None else self._endpoint.address

    def start(self) -> None:
        """Serve, and report health."""
        self._observed.enter_context(refusals_counted(self._ledger_file, self._events))
        self._server.start()
        if self._endpoint is not None:
            self._observed.enter_context(self._endpoint)
        self._observed.enter_context(self.watch)

    def stop(self) -> bool:
        """Accept no more calls, finish every charged fit, store its release, and end.

        Returns:
            Whether everything was finished. If not, as the settings may allow, threads still run charged fits; the
            process must end, and a retry runs them again.
        """
        self.watch.stop()
        self._turnstile.close()  # further calls are refused with a retry time while the server still listens
        last = self._config.shutdown_seconds
        # Calls are cut off then, and not their charged fits, which the pool finishes.
        cut = threading.Timer(last, self._server.stop, (0,))
        cut.start()
        seconds = last if self._config.unfinished_fits == "abandon" else None
        finished = self._pool.close(seconds)
        for pool in (self._free_pool, self._dummy_pool):  # their work is free, so it need not be finished
            finished &= pool.close(seconds if finished else 0.0)
        empty = self._turnstile.empty(last + _LAST_SECONDS)
        cut.cancel()
        if not (self._server.stop(_LAST_SECONDS).wait(2 * _LAST_SECONDS) and empty):
            self._events.tell(log.CallsLeft())  # they hold no charged work
        if not finished:
            self._events.tell(log.FitsLeft())
        self._events.tell(log.Stopped())
        self._observed.close()
        if self._tracing is not None:
            self._tracing.close()
        return finished

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # published without types
    """Standard health service for probes. Every service's health is the server's."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def Check(  # noqa: N802  the contract's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Return SERVING while calls are served; trailing metadata has the condition."""
        condition = self._watch.condition
        context.set_trailing_metadata(((CONDITION, condition.value),))
        serves = condition in (Condition.READY, Condition.DEGRADED)
        statuses = health_pb2.HealthCheckResponse
        return health_pb2.HealthCheckResponse(status=statuses.SERVING if serves else statuses.NOT_SERVING)


def _grpc_server(config: Config, gate: Gate) -> grpc.Server:
    return grpc.server(
        ThreadPoolExecutor(config.rpc_threads + _SPARE_THREADS, thread_name_prefix="rpc"),
        interceptors=[gate],
        maximum_concurrent_rpcs=config.rpc_threads + _MOST_WAITING,
        options=(
            ("grpc.max_receive_message_length", config.max_request_bytes),
            ("grpc.max_send_message_length", config.max_response_bytes),
            # With SO_REUSEPORT two servers on one port would share the calls, each with its own queue.
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", config.rpc_threads + _MOST_WAITING_OF_ONE),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", _IDLE_MS),
            ("grpc.keepalive_time_ms", _PROBE_MS),
            ("grpc.keepalive_timeout_ms", _PROBE_ANSWER_MS),
            ("grpc.max_allowed_incoming_connections", most_connections(config, hardening.descriptor_limit())),
        ),
    )


def most_connections(config: Config, descriptors: int) -> int:
    """Return the maximum number of connections that leaves enough descriptors for fits and files.

    At least half of all.
    """
    fits = config.fit_workers + config.queue_length + FREE_WORKERS
    return max(descriptors // 2, descriptors - _OWN_DESCRIPTORS - _PER_FIT * fits)


def _ledger_problem(ledger: Ledger) -> str | None:
    try:
        ledger.check_files()
    except LedgerUnavailableError as error:
        return str(error)
    return None if ledger.newest()[0] else "empty"


def _certificate_problem(certificate: Reloading) -> str | None:
    left = certificate.expires.timestamp() - time.time()
    if left < _WARN_DAYS * 86_400:
        return "ended" if left < 0 else f"ends in {left / 86_400:.0f} days"
    return "the new files cannot be used" if certificate.problem else None


def _listen(server: grpc.Server, address: str, certificate: Reloading) -> str:
    try:
        port = server.add_secure_port(address, certificate.credentials())
    except RuntimeError:
        raise AddressError(f"cannot listen on {address}; is the port taken, or the host not this machine?") from None
    return f"{address.rpartition(':')[0]}:{port}"
