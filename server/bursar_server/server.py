"""Wires the parts into one server, and ends it without losing what was paid for."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from bursar_ledger import Ledger
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
    fit_pb2_grpc,
)
from bursar_server import auth, logs, observing, refusing
from bursar_server.computing import FreeRuns
from bursar_server.config import Config
from bursar_server.datasets import Datasets
from bursar_server.dummy import Dummies
from bursar_server.engines import engine_of
from bursar_server.fitting import Runner
from bursar_server.follow import Follower
from bursar_server.health import Check, Condition, Watch
from bursar_server.interceptor import Gate, Turnstile
from bursar_server.limiting import check_fit
from bursar_server.oidc import OidcTokens
from bursar_server.orders import AnyFit
from bursar_server.runs import Runs
from bursar_server.services.admin import AdminService
from bursar_server.services.audit import AuditService
from bursar_server.services.catalog import CatalogService
from bursar_server.services.dummy import DummyService
from bursar_server.services.fit import FitService
from bursar_server.state import State
from bursar_server.throttle import Throttle
from bursar_server.tls import Certificates, Reloading
from bursar_server.worker import WorkerPool

_SERVICES = tuple(
    service.full_name
    for module in (fit_pb2, dummy_pb2, catalog_pb2, admin_pb2, audit_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
)


_LAST_SECONDS = 10.0
"""For calls to notice that they were cut off after `shutdown_seconds`."""

_SPARE_THREADS = 8
"""Beside those that serve: they tell whoever finds no room when to come back, and answer probes."""

_MOST_WAITING = 4096
"""Calls that wait to be heard, beside those that are served; beyond, gRPC refuses, and cannot say when to come back."""

_WARN_DAYS = 14
"""Days before the end of the certificate in force from which on the server is degraded."""

_LEAST_DISK = 2**28
"""Bytes that must be free where the ledger is; with less the server is degraded."""


CONDITION = "bursar-condition"
"""Name of the trailing metadata of a health check."""


class AddressError(Exception):
    """The server cannot listen where it was told to."""


class BursarServer:
    """A server on one state directory. The caller holds the directory's lock.

    Args:
        state: initialised.
        config: limits.
        ledger: open; closed by the caller.
        datasets: public facts and rows.
        fits: by name of their RPC.
        runner: runs them; in this process and without limits, if nothing else is said.
        note: gives a signed checkpoint of now, as text; "" for none.
        needed: further checks of health, by name, without which nothing is served.
        wanted: likewise, whose failure degrades.
        tracing: of calls, if there is any.

    Raises:
        AddressError: the port cannot be had.
        CertificateError: the certificate cannot be used.
        OidcError, ObservingError: a setting needs what is not installed.
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
        tracing: observing.Tracing | None = None,
    ) -> None:
        self._config = config
        self.certificate = Reloading(Certificates(state.tls), client_authority(state, config))
        self.watch = Watch(
            needed={"ledger": lambda: None if ledger.newest()[0] else "empty", **(needed or {})},
            wanted={
                "certificate": lambda: _certificate_problem(self.certificate),
                "disk": lambda: "nearly full" if shutil.disk_usage(state.path).free < _LEAST_DISK else None,
                **(wanted or {}),
            },
        )
        self._ledger_file = state.ledger
        self._observed = contextlib.ExitStack()
        self._tracing = tracing
        self._endpoint = None
        if config.metrics.address:
            metrics = observing.Metrics(ledger, self.watch, lambda: self.certificate.expires.timestamp())
            self._observed.enter_context(logs.heard_by(metrics.hear))
            self._endpoint = observing.Endpoint(config.metrics.address, self.watch, metrics.text)
        if tracing is not None:
            self._observed.enter_context(logs.heard_by(tracing.hear))
        self._pool = WorkerPool(workers=config.fit_workers, queue_length=config.queue_length)
        # One each (`FREE_WORKERS`): nobody who has paid has less of the machine for it than for what is free.
        self._free_pool = WorkerPool(workers=1, queue_length=config.queue_length)
        self._dummy_pool = WorkerPool(workers=1, queue_length=config.queue_length)
        self._turnstile = Turnstile(config.rpc_threads, config.calls_per_principal)
        gate = Gate(
            own=auth.LedgerTokens(ledger),
            provider=OidcTokens(config.oidc) if config.oidc.issuer else None,
            throttle=Throttle(config.rates.calls_per_minute, config.rates.failures, config.rates.lockout_seconds),
            turnstile=self._turnstile,
            span=observing.no_span if tracing is None else tracing.span,
        )
        self._server = _grpc_server(config, gate)
        runs = Runs(
            ledger=ledger,
            pool=self._pool,
            free_pool=self._free_pool,
            quantum=config.response_quantum_seconds,
            fits_per_principal=config.fits_per_principal,
            rerun=config.recovery == "rerun",
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
        )
        fit_pb2_grpc.add_FitServiceServicer_to_server(fit_service, self._server)
        check = functools.partial(check_fit, config.limits)
        dummies = Dummies(fits=fits, facts=datasets.facts, runner=runner, check=check)
        dummy_service = DummyService(dummies, FreeRuns(self._dummy_pool), follower)
        dummy_pb2_grpc.add_DummyServiceServicer_to_server(dummy_service, self._server)
        catalog_service = CatalogService(ledger, datasets, runs, note, config.limits)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(catalog_service, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(ledger, config.tokens.days), self._server)
        audit_service = AuditService(ledger, state.ledger, config.limits)
        audit_pb2_grpc.add_AuditServiceServicer_to_server(audit_service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(HealthService(self.watch), self._server)
        if config.reflection:
            reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME), self._server)
        self.address = _listen(self._server, config.address, self.certificate)
        self.metrics_address = "" if self._endpoint is None else self._endpoint.address

    def start(self) -> None:
        """Serve, and say so to whoever asks for health."""
        self._observed.enter_context(refusing.counted(self._ledger_file))
        self._server.start()
        if self._endpoint is not None:
            self._observed.enter_context(self._endpoint)
        self._observed.enter_context(self.watch)

    def stop(self) -> bool:
        """Take no more calls, finish every fit that was paid for, store its release, and end.

        Returns:
            Whether everything was finished. If not, as the settings may have it, threads still run fits whose debits
            stand; the process is to end, and whoever asks again gets them run again.
        """
        self.watch.stop()
        self._turnstile.close()  # whoever comes now is told when to come back, as long as somebody listens
        last = self._config.shutdown_seconds
        cut = threading.Timer(last, self._server.stop, (0,))
        cut.start()
        seconds = last if self._config.unfinished_fits == "abandon" else None
        finished = self._pool.close(seconds)
        for pool in (self._free_pool, self._dummy_pool):  # nobody paid for what they do
            finished &= pool.close(seconds if finished else 0.0)
        empty = self._turnstile.empty(last + _LAST_SECONDS)
        cut.cancel()
        if not (self._server.stop(_LAST_SECONDS).wait(2 * _LAST_SECONDS) and empty):
            logs.event("calls_left")  # they hold nothing that was paid for, and nobody waits for them
        if not finished:
            logs.event("fits_left")
        logs.event("stopped")
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
    """The standard service for probes. Every service's health is the server's.

    Args:
        watch: over everything.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def Check(  # noqa: N802  the contract's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """SERVING while calls are served; trailing metadata says whether somebody should look."""
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
            # Two servers on one port would split the calls between them.
            ("grpc.so_reuseport", 0),
        ),
    )


def client_authority(state: State, config: Config) -> Path | None:
    """The file of the authority that signs clients' certificates, None if none are asked for."""
    return state.path / config.tls.client_ca if config.tls.client_ca else None


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
