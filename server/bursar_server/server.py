"""Wires the parts into one server, and ends it without losing what was paid for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from bursar_server import logs
from bursar_server.computing import FreeRuns
from bursar_server.config import Config
from bursar_server.datasets import Datasets
from bursar_server.dummy import Dummies
from bursar_server.follow import Follower
from bursar_server.interceptor import Gate
from bursar_server.orders import AnyFit
from bursar_server.runs import Runs
from bursar_server.services.admin import AdminService
from bursar_server.services.audit import AuditService
from bursar_server.services.catalog import CatalogService
from bursar_server.services.dummy import DummyService
from bursar_server.services.fit import FitService
from bursar_server.state import State
from bursar_server.tls import Certificates
from bursar_server.worker import WorkerPool

_SERVICES = tuple(
    service.full_name
    for module in (fit_pb2, dummy_pb2, catalog_pb2, admin_pb2, audit_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
)


_LAST_SECONDS = 10.0
"""For calls to notice that they were cut off after `shutdown_seconds`."""


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
        note: gives a signed checkpoint of now, as text; "" for none.
    """

    def __init__(
        self,
        *,
        state: State,
        config: Config,
        ledger: Ledger,
        datasets: Datasets,
        fits: Mapping[str, AnyFit],
        note: Callable[[], str] = str,
    ) -> None:
        self._config = config
        self._health = health.HealthServicer()
        self._stopped = threading.Event()
        self._pool = WorkerPool(workers=config.fit_workers, queue_length=config.queue_length)
        self._free_pool = WorkerPool(workers=1, queue_length=config.queue_length)
        self._dummy_pool = WorkerPool(workers=1, queue_length=config.queue_length)
        self._server = _grpc_server(config, Gate(ledger, config.calls_per_principal))
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
            threads=config.threads_per_fit,
        )
        fit_pb2_grpc.add_FitServiceServicer_to_server(fit_service, self._server)
        # One thread: nobody who has paid has less of the machine for it than for one more free request.
        dummies = Dummies(fits=fits, facts=datasets.facts)
        dummy_service = DummyService(dummies, FreeRuns(self._dummy_pool), follower)
        dummy_pb2_grpc.add_DummyServiceServicer_to_server(dummy_service, self._server)
        catalog_service = CatalogService(ledger, datasets, runs, note)
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(catalog_service, self._server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminService(ledger), self._server)
        audit_pb2_grpc.add_AuditServiceServicer_to_server(AuditService(ledger, state.ledger), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if config.reflection:
            reflection.enable_server_reflection((*_SERVICES, health.SERVICE_NAME), self._server)
        self.address = _listen(self._server, config.address, Certificates(state.tls))

    def start(self) -> None:
        """Serve, and say so to whoever asks for health."""
        self._server.start()
        self._say(health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Take no more calls, finish every fit that was paid for, store its release, and end."""
        self._say(health_pb2.HealthCheckResponse.NOT_SERVING)
        ended = self._server.stop(self._config.shutdown_seconds)
        self._pool.close()
        self._free_pool.close()
        self._dummy_pool.close()
        if not ended.wait(self._config.shutdown_seconds + _LAST_SECONDS):
            logs.event("calls_left")  # they hold nothing that was paid for, and nobody waits for them
        logs.event("stopped")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _say(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", *_SERVICES):
            self._health.set(service, status)


def _grpc_server(config: Config, gate: Gate) -> grpc.Server:
    return grpc.server(
        ThreadPoolExecutor(config.rpc_threads, thread_name_prefix="rpc"),
        interceptors=[gate],
        maximum_concurrent_rpcs=config.rpc_threads,
        options=(
            ("grpc.max_receive_message_length", config.max_request_bytes),
            ("grpc.max_send_message_length", config.max_response_bytes),
            # Two servers on one port would split the calls between them.
            ("grpc.so_reuseport", 0),
        ),
    )


def _listen(server: grpc.Server, address: str, certificates: Certificates) -> str:
    pair = (certificates.key.read_bytes(), certificates.chain.read_bytes())
    try:
        port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    except RuntimeError:
        raise AddressError(f"cannot listen on {address}; is the port taken, or the host not this machine?") from None
    return f"{address.rpartition(':')[0]}:{port}"
