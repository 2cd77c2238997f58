"""Metrics, traces and HTTP health endpoint for the operator; all off unless the settings enable them.

Everything is made from the log's events, from the ledger and from the health checks. None of these contains a row, or a
number computed from rows before its release; a test compares two servers whose tables differ.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.metadata
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from bursar_ledger import Ledger, LedgerError
from bursar_server import log
from bursar_server.ops.health import Condition, Watch

try:
    import prometheus_client
    from prometheus_client.core import GaugeMetricFamily
except ImportError:  # the extra is not installed; `Metrics` says so
    prometheus_client = None  # type: ignore[assignment]  # stands for the module that is not there

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.trace import SpanKind
except ImportError:  # the extra is not installed; `Tracing` says so
    TracerProvider = None  # type: ignore[assignment,misc]  # stands for the class that is not there

Span = Callable[[str], contextlib.AbstractContextManager[None]]
"""Function that opens a span, which lasts as long as the call of a method."""


class ObservingError(Exception):
    """Error: the configured metrics or traces cannot be provided; the message names the package or setting."""


class Metrics:
    """Counts of events and sums of the ledger, in Prometheus's text format.

    Raises:
        ObservingError: prometheus_client is not installed.
    """

    def __init__(self, ledger: Ledger, watch: Watch, expires: Callable[[], float]) -> None:
        if prometheus_client is None:
            raise ObservingError(
                "metrics need prometheus_client; install it with: pip install './bursar[server,metrics]'"
            )
        self._registry = prometheus_client.CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Any:
            return prometheus_client.Counter(name, text, labels, registry=self._registry)

        self._calls = counter("bursar_calls", "Calls, by method and status.", ("method", "status"))
        self._debits = counter("bursar_debits", "Fits set to work under a debit.", ("method", "status"))
        self._releases = counter("bursar_releases", "Fits that ended.")
        self._lockouts = counter("bursar_lockouts", "Addresses and principals that were locked out for a while.")
        self._registry.register(_Now(ledger, watch, expires))

    def hear(self, event: log.Event) -> None:
        """Count an event."""
        match event:
            case log.Call():
                self._calls.labels(event.method, event.status).inc()
            case log.Debited():
                self._debits.labels(event.method, event.status).inc()
            case log.Released():
                self._releases.inc()
            case log.LockedOut():
                self._lockouts.inc()

    def text(self) -> bytes:
        """Return all metrics as of now."""
        latest: bytes = prometheus_client.generate_latest(self._registry)
        # The creation time of a counter is only the start of this process.
        return b"".join(line for line in latest.splitlines(keepends=True) if b"_created" not in line)


class _Now:
    """Collector of numbers that are read at the time of a scrape (prometheus_client's custom collectors)."""

    def __init__(self, ledger: Ledger, watch: Watch, expires: Callable[[], float]) -> None:
        self._ledger = ledger
        self._watch = watch
        self._expires = expires

    def collect(self) -> Iterable[Any]:
        """Return the gauges."""
        yield _gauge("bursar_build_info", "Version.", [({"version": importlib.metadata.version("bursar")}, 1.0)])
        condition = self._watch.condition
        conditions = [({"condition": one.value}, float(one is condition)) for one in Condition]
        yield _gauge("bursar_condition", "1 for the condition that the server is in.", conditions)
        yield _gauge("bursar_certificate_expires_timestamp_seconds", "End of the certificate.", [({}, self._expires())])
        with contextlib.suppress(LedgerError):  # the condition says so
            yield _gauge("bursar_ledger_entries", "Entries.", [({}, float(self._ledger.newest()[0]))])
            accounts = {state.account: state for state in self._ledger.datasets()}
            spent = [({"account": name}, one.spent_cost_units / one.cap_cost_units) for name, one in accounts.items()]
            yield _gauge("bursar_account_spent_ratio", "Part of an account's total that was debited.", spent)


def _gauge(name: str, text: str, samples: Iterable[tuple[dict[str, str], float]]) -> Any:
    found = list(samples)
    labels = list(found[0][0]) if found else []
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in found:
        family.add_metric(list(values.values()), number)
    return family


class Endpoint:
    """HTTP server on loopback, without a token: /live, /ready, /health, and /metrics if enabled.

    Raises:
        ObservingError: the address cannot be bound.
    """

    def __init__(self, address: str, watch: Watch, metrics: Callable[[], bytes]) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")

        class Handler(BaseHTTPRequestHandler):
            server_version, sys_version, timeout = "bursar", "", 10.0

            def do_GET(self) -> None:
                """Answer."""
                _answer(self, watch, metrics)

            def log_message(self, *_: Any) -> None:
                """Log nothing: monitoring asks all the time."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

        try:
            self._server = Server((host, int(port)), Handler)
        except (OSError, OverflowError) as error:
            raise ObservingError(f"metrics.address: cannot listen on {address}: {error}") from None
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _answer(request: BaseHTTPRequestHandler, watch: Watch, metrics: Callable[[], bytes]) -> None:
    name = request.headers.get("Host", "").rpartition(":")[0] or request.headers.get("Host", "")
    if name not in ("localhost", "127.0.0.1", "[::1]"):
        # DNS rebinding: a web page whose name resolves to loopback could otherwise read this in a browser.
        return _send(request, 403, b"ask by localhost, 127.0.0.1 or [::1]\n")
    condition = watch.condition
    serves = condition in (Condition.READY, Condition.DEGRADED)
    if request.path == "/live":
        return _send(request, 200, b"alive\n")
    if request.path == "/ready":
        return _send(request, 200 if serves else 503, f"{condition.value}\n".encode())
    if request.path == "/health":
        told = json.dumps({"condition": condition.value, "problems": watch.problems}).encode() + b"\n"
        return _send(request, 200 if serves else 503, told, "application/json")
    if request.path == "/metrics":
        return _send(request, 200, metrics(), "text/plain; version=0.0.4; charset=utf-8")
    return _send(request, 404, b"there are /live, /ready, /health and /metrics\n")


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
    request.send_response(status)
    for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")):
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


class Tracing:
    """Spans of calls, with method, status and caller, and an event for the debit.

    Raises:
        ObservingError: the OpenTelemetry SDK is not installed.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        _need_tracing()
        resource = Resource({"service.name": "bursar-server", "service.version": importlib.metadata.version("bursar")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("bursar_server")
        self._current: contextvars.ContextVar[Any] = contextvars.ContextVar("bursar_span", default=None)

    @classmethod
    def to(cls, endpoint: str) -> Tracing:
        """Return spans for a collector that accepts OTLP over gRPC. Raises ObservingError."""
        _need_tracing()
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return cls(OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://")))

    @contextlib.contextmanager
    def span(self, method: str) -> Iterator[None]:
        """Open a span for one call. Exceptions in it are recorded by the call's status only."""
        service, _, name = method.strip("/").partition("/")
        span = self._tracer.start_span(
            method, kind=SpanKind.SERVER, attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        )
        self._current.set(span)
        try:
            yield
        finally:
            self._current.set(None)
            span.end()

    def hear(self, event: log.Event) -> None:
        """Add an event to the span of the call that it is about, whose thread this is."""
        span = self._current.get()
        if span is None or not isinstance(event, log.Call | log.Debited):
            return
        attributes = {f"bursar.{name}": value for name, value in event.fields.items() if value is not None}
        if isinstance(event, log.Call):
            span.set_attributes(attributes)
        else:
            span.add_event(event.word, attributes)

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()


def _need_tracing() -> None:
    if TracerProvider is None:
        raise ObservingError("tracing needs OpenTelemetry; install it with: pip install './bursar[server,tracing]'")
