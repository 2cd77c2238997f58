"""Metrics, traces and the state of the server for whoever operates it; all off unless the settings ask for them.

All of it is made from the log's events, from the ledger and from the health checks. None of these knows a row, or a
number computed from one before it was released; a test holds two servers side by side whose tables differ.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.metadata
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from bursar_ledger import Ledger, LedgerError
from bursar_server import logs
from bursar_server.health import Condition, Watch

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
"""Lasts as long as the call of a method."""


class ObservingError(Exception):
    """What the settings ask for cannot be observed; says what to install or to change."""


class Metrics:
    """Counts of events and sums of the ledger, in Prometheus's text format.

    Args:
        ledger: open.
        watch: over the server's health.
        expires: seconds since 1970 at which the certificate in force ends.

    Raises:
        ObservingError: prometheus_client is not installed.
    """

    def __init__(self, ledger: Ledger, watch: Watch, expires: Callable[[], float]) -> None:
        if prometheus_client is None:
            raise ObservingError(
                "metrics need prometheus_client; install it with: pip install 'bursar[server,metrics]'"
            )
        self._registry = prometheus_client.CollectorRegistry()

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Any:
            return prometheus_client.Counter(name, text, labels, registry=self._registry)

        self._calls = counter("bursar_calls", "Calls, by method and status.", ("method", "status"))
        self._debits = counter("bursar_debits", "Fits set to work under a debit.", ("method", "status"))
        self._releases = counter("bursar_releases", "Fits that ended.")
        self._lockouts = counter("bursar_lockouts", "Addresses and principals that were shut out for a while.")
        self._registry.register(_Now(ledger, watch, expires))

    def hear(self, what: str, fields: Mapping[str, str | int | None]) -> None:
        """An event of the log."""
        if what == "call":
            self._calls.labels(fields["method"], fields["status"]).inc()
        elif what == "debit":
            self._debits.labels(fields["method"], fields["status"]).inc()
        elif what == "released":
            self._releases.inc()
        elif what == "locked_out":
            self._lockouts.inc()

    def text(self) -> bytes:
        """All of them now."""
        latest: bytes = prometheus_client.generate_latest(self._registry)
        # When a counter was made is a time of this process, and of no use to anybody.
        return b"".join(line for line in latest.splitlines(keepends=True) if b"_created" not in line)


class _Now:
    """What is read when somebody asks. See prometheus_client's custom collectors."""

    def __init__(self, ledger: Ledger, watch: Watch, expires: Callable[[], float]) -> None:
        self._ledger = ledger
        self._watch = watch
        self._expires = expires

    def collect(self) -> Iterable[Any]:
        """Gauges."""
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
    """HTTP on loopback, without a token: /live, /ready, /health, and /metrics if there are any.

    Args:
        address: host:port on loopback.
        watch: over the server's health.
        metrics: gives their text.

    Raises:
        ObservingError: the address cannot be had.
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
                """Monitoring asks all the time, and is not logged."""

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
        # A web page that has its own name point to loopback would read this in a browser.
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


_TOLD = frozenset({"entry", "dataset", "principal", "method", "cost_units", "status"})


class Tracing:
    """A span for each call, with its method, status and caller, and an event in it for its debit.

    Args:
        exporter: where spans go.

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
        """Spans for a collector that takes OTLP over gRPC. Raises ObservingError."""
        _need_tracing()
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return cls(OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://")))

    @contextlib.contextmanager
    def span(self, method: str) -> Iterator[None]:
        """One call. Whatever raises in it is told by its status alone."""
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

    def hear(self, what: str, fields: Mapping[str, str | int | None]) -> None:
        """An event of the log, in the thread of the call that it is about."""
        span = self._current.get()
        if span is None:
            return
        told = {f"bursar.{key}": value for key, value in fields.items() if key in _TOLD and value is not None}
        if what == "call":
            span.set_attributes(told)
        elif what in ("debit", "too_often"):
            span.add_event(what, told)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _need_tracing() -> None:
    if TracerProvider is None:
        raise ObservingError("tracing needs OpenTelemetry; install it with: pip install 'bursar[server,tracing]'")


def no_span(_: str) -> contextlib.AbstractContextManager[None]:
    """The span of a server that traces nothing."""
    return contextlib.nullcontext()


@contextlib.contextmanager
def listening(*listeners: logs.Listener) -> Iterator[None]:
    """Let all of them hear every event."""
    with contextlib.ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(logs.heard_by(listener))
        yield
