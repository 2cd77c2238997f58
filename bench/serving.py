"""The server's own time: `python bench/serving.py [catalogue] [share] [whole]`; tables, and bench/results/serving.json.

catalogue: unary calls against a bare grpcio echo, in turns: the same TLS, certificate, pool of threads, request, answer
and metadata, one call after the other over one connection. bursar looks the token up, checks role, rates and limits of
calls, reads the ledger and writes its log at every call; the echo does nothing of that, it sends bytes. Nothing is kept
between calls that a new entry of the ledger could change.
share: of a fit's time what is neither statistics nor noise, in this process and without a server, by wrapping the two:
the engine that reads rows, and the sources of noise. What is left is the plan, opening rows, M-steps, serialisation.
Requests are those that the SDK sends: it decodes sketches and learns Markov random fields itself. Rows of their own
tell of requests that leave that to the server: an optimisation over released numbers, which takes the same time
whatever the table is. It is shown by itself there. At a million rows the share as the SDK asks is to be below 5%.
whole: fits through a real server with TLS and a ledger, each in turn with the same fit in this process: what the server
adds to the engine's time (plan, rows opened, run, model serialised). Once with the smallest quantum, since answers
leave at multiples of it, once with the default. On a machine with other work it is the processor time that tells.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as every fit of a server has (jobs/hardening.py)

import grpc
import numpy as np
import psutil
from _common import Json, options_of, output_of, part_of, saved, show, spread_of
from _serving import COLUMNS, TABLE, Home, Served
from numpy.typing import NDArray

from bursar_ledger import Ledger, price
from bursar_models import Sketch
from bursar_models.mrf import Learning
from bursar_proto.v1 import catalog_pb2, fit_pb2, types_pb2
from bursar_server.config import Config
from bursar_server.fits.contract import METHODS
from bursar_server.fits.registry import FITS
from bursar_server.tables import Snapshot
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import (
    Engine,
    ExactNoise,
    ExactSearch,
    LocalEngine,
    Meter,
    Noise,
    Rows,
    Scores,
    SelectionNoise,
    Session,
    SyntheticBudget,
    Task,
)

CATALOG = "/bursar.v1.CatalogService/"
WARM_UP = 200
SMALLEST, DEFAULT = 0.01, Config().response_quantum_seconds
MOST_ADDED = 0.1
"""Seconds that the server may add to the engine's own."""
SETTINGS = """
response_quantum_seconds = {quantum}
threads_per_fit = 1
[rates]
calls_per_minute = 1000000
"""

Bytes = Callable[[bytes], bytes]


# --- catalogue ----------------------------------------------------------------------------------------------------


def echo(folder: str, ready: Connection) -> None:
    """A bare server: answers the request's first four bytes, a number, with as many bytes. Ends when told to."""
    files = (Path(folder) / "server-key.pem", Path(folder) / "server.pem")
    key, chain = (path.read_bytes() for path in files)
    answers: dict[bytes, bytes] = {}

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        size = request[:4]
        if size not in answers:
            answers[size] = bytes(int.from_bytes(size, "big"))
        return answers[size]

    server = grpc.server(ThreadPoolExecutor(Config().rpc_threads))
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler})])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, chain)]))
    server.start()
    ready.send(port)
    ready.recv()
    server.stop(None).wait()


@contextlib.contextmanager
def echoing(home: Home) -> Iterator[str]:
    """The address of an echo in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=echo, args=(str(home.state / "tls"), theirs), daemon=True)
    process.start()
    try:
        yield f"127.0.0.1:{ours.recv()}"
    finally:
        ours.send("stop")
        process.join()


def caller(channel: grpc.Channel, path: str, token: str) -> Bytes:
    """A unary method on bytes, with a token."""
    method: Any = channel.unary_unary(path)
    metadata = (("authorization", f"Bearer {token}"),)
    return lambda body: bytes(method(body, metadata=metadata))


def median_ms(call: Bytes, body: bytes, calls: int) -> float:
    """Milliseconds of a call, median."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call(body)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def preview_request() -> bytes:
    """Return the preview of a typical fit."""
    fit = fits()["FitDPEM"]
    return fit_pb2.PreviewRequest(dpem=fit).SerializeToString()


def catalogue(rounds: int, calls: int) -> Json:
    """Unary calls and the echo in turns."""
    asked = {
        "ListDatasets": (CATALOG + "ListDatasets", b""),
        "GetDataset": (CATALOG + "GetDataset", catalog_pb2.GetDatasetRequest(dataset=TABLE).SerializeToString()),
        "GetHistory": (CATALOG + "GetHistory", catalog_pb2.GetHistoryRequest(size=1).SerializeToString()),
        "ListReleases": (CATALOG + "ListReleases", b""),
        "Preview": ("/bursar.v1.FitService/Preview", preview_request()),
    }
    found: Json = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = Home.make(folder, rows=1000, analysts=1, epsilon=3.0, settings=SETTINGS.format(quantum=SMALLEST))
        served, bare = stack.enter_context(home.served()), stack.enter_context(echoing(home))
        credentials = grpc.ssl_channel_credentials(home.authority)
        ours, theirs = (
            stack.enter_context(grpc.secure_channel(address, credentials)) for address in (served.address, bare)
        )
        echoed = caller(theirs, "/bench.Echo/Echo", home.tokens[0])
        for name, (path, body) in asked.items():
            call = caller(ours, path, home.tokens[0])
            size = len(call(body))
            same = size.to_bytes(4, "big") + bytes(max(0, len(body) - 4))
            for _ in range(WARM_UP):
                call(body), echoed(same)
            times = [(median_ms(call, body, calls), median_ms(echoed, same, calls)) for _ in range(rounds)]
            ratios = sorted(one / other for one, other in times)
            mine, other = (statistics.median(column) for column in zip(*times, strict=True))
            ratio = statistics.median(ratios)
            found[name] = {"bytes": size, "milliseconds": mine, "echo_milliseconds": other, "ratios": ratios}
            found[name] |= {"ratio_median": ratio, "ratio_spread": spread_of(ratios)}
    told = [
        {"call": name} | {one: value for one, value in row.items() if one != "ratio_spread"}
        for name, row in found.items()
    ]
    show(f"Median of a unary call over TLS, {rounds} rounds of {calls} calls in turns", told)
    return found | {"rounds": rounds, "calls": calls}


# --- fits -----------------------------------------------------------------------------------------------------------


BAR = 0.05
"""Bar of a fit's time outside statistics and noise, at a million rows, as the SDK asks."""


def fits() -> dict[str, Any]:
    """A typical request of every fit, as the SDK sends it, for the price of about (0.5, 1e-6)."""
    columns, spend = COLUMNS[:5], types_pb2.Spend(rho=0.005)
    common: Json = {"dataset": TABLE, "spend": spend}
    return {
        "FitDPEM": fit_pb2.FitDPEMRequest(**common, columns=columns, n_components=3),
        "FitSeparatedGMM": fit_pb2.FitSeparatedGMMRequest(
            **common, columns=columns, n_components=3, sigma_min=0.3, sigma_max=1.0
        ),
        "FitGradientEM": fit_pb2.FitGradientEMRequest(
            **common, columns=columns, model=fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE, n_components=3
        ),
        "FitSketchKMeans": fit_pb2.FitSketchKMeansRequest(
            **common, columns=columns, n_clusters=3, new_sketch=fit_pb2.NewSketch(), decode_on_client=True
        ),
        "FitMRF": fit_pb2.FitMRFRequest(
            **common,
            columns=["sex", "town", "smoker", "a", "b"],
            tree=fit_pb2.SelectTree(),
            estimate_on_client=True,
        ),
    }


def cases() -> dict[str, tuple[str, Any]]:
    """Names of what is measured, each with its method and its request: those, and what leaves more to the server."""
    asked = {method: (method, request) for method, request in fits().items()}
    for method, flag, name in (
        ("FitSketchKMeans", "decode_on_client", "FitSketchKMeans, decoded by the server"),
        ("FitMRF", "estimate_on_client", "FitMRF, learnt by the server"),
    ):
        request = fits()[method]
        request.ClearField(flag)
        asked[name] = (method, request)
    return asked


@dataclass
class Stopwatch:
    """Adds up the time of what it is told to.

    Attributes:
        seconds: so far.
    """

    seconds: float = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run a server until the block ends."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start


@dataclass
class TimedEngine:
    """Statistics: what reads rows."""

    engine: Engine
    watch: Stopwatch

    @property
    def threads(self) -> int:
        """The engine's own."""
        return self.engine.threads

    def run(self, task: Task[Any], rows: Rows, columns: int) -> Any:
        """See `Engine`."""
        with self.watch.running():
            return self.engine.run(task, rows, columns)


@dataclass
class TimedNoise:
    """Noise: what draws it."""

    watch: Stopwatch
    source: ExactNoise = field(default_factory=ExactNoise)
    search: ExactSearch = field(default_factory=ExactSearch)

    def add(self, sums: NDArray[np.int64], noise: Noise) -> NDArray[np.int64]:
        """See `NoiseSource`."""
        with self.watch.running():
            return self.source.add(sums, noise)

    def argmax(self, scores: NDArray[np.int64], noise: SelectionNoise) -> int:
        """See `NoiseSource`."""
        with self.watch.running():
            return self.source.argmax(scores, noise)

    def draw(self, scores: Scores, noise: SelectionNoise) -> tuple[int, int]:
        """See `SearchSource`; the sums that it asks for in between are counted as statistics, and not twice."""
        start, before = time.perf_counter(), self.watch.seconds
        drawn = self.search.draw(scores, noise)
        self.watch.seconds = before + time.perf_counter() - start
        return drawn


@dataclass(frozen=True)
class Here:
    """This process's own look at a state directory.

    Attributes:
        datasets: public facts.
        snapshot: folder of the one table.
    """

    datasets: Datasets
    snapshot: Path


@dataclass(frozen=True)
class Engined:
    """One fit in this process: what a server does for it between debit and release, and nothing else.

    Attributes:
        seconds: of plan, rows opened, run and model serialised.
        inside: of these, in statistics and noise.
        optimising: of these, in a decoder or an estimate from released numbers.
    """

    seconds: float
    inside: float
    optimising: float


def engined(here: Here, method: str, request: Any) -> Engined:
    """Run a fit under nobody's debit, on rows that this process made up."""
    watch, optimiser = Stopwatch(), Stopwatch()
    noise = TimedNoise(watch)
    start = time.perf_counter()
    state = here.datasets.state(TABLE)
    table = here.datasets.table(state)
    fit = FITS[method]
    plan = fit.plan(request, table, lambda entry: None)
    paid = price(plan.events, state.order)
    session = Session(
        rows=Snapshot.open(here.snapshot).rows(plan.columns),
        columns=len(plan.columns),
        adjacency=table.adjacency,
        unit_cap=table.unit_cap,
        meter=Meter(SyntheticBudget(paid.order, paid.cost_units)),
        source=noise,
        search_source=noise,
        engine=TimedEngine(LocalEngine(1), watch),
    )
    with optimisers_timed(optimiser):
        model = fit.run(plan, session)
    METHODS[method].response(model=model).SerializeToString(deterministic=True)
    return Engined(time.perf_counter() - start, watch.seconds, optimiser.seconds)


@contextlib.contextmanager
def optimisers_timed(watch: Stopwatch) -> Iterator[None]:
    """Wrap the two optimisations over released numbers."""

    def timed(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            with watch.running():
                return act(*given, **named)

        return wrapped

    with contextlib.ExitStack() as stack:
        for owner, name in ((Sketch, "decode"), (Learning, "learn")):
            stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name))))
        yield


@contextlib.contextmanager
def opened(rows: int, quantum: float) -> Iterator[tuple[Home, Here]]:
    """A state directory, and this process's own look at it."""
    with tempfile.TemporaryDirectory() as name:
        home = Home.make(Path(name), rows=rows, analysts=1, epsilon=50.0, settings=SETTINGS.format(quantum=quantum))
        with Ledger.open(home.ledger) as ledger:
            folder = home.state / "datasets"
            yield home, Here(Datasets(ledger, folder), next(folder.iterdir()))


def share(rows: int, rounds: int) -> Json:
    """Return what of a fit's time is neither statistics nor noise."""
    found: Json = {}
    with opened(rows, SMALLEST) as (_, here):
        for name, (method, request) in cases().items():
            engined(here, method, request)  # compiles
            runs = [engined(here, method, request) for _ in range(rounds)]
            outside = [run.seconds - run.inside for run in runs]
            without = [run.seconds - run.inside - run.optimising for run in runs]
            found[name] = {
                "seconds": statistics.median(run.seconds for run in runs),
                "outside_seconds": statistics.median(outside),
                "share": statistics.median(one / run.seconds for one, run in zip(outside, runs, strict=True)),
                "share_spread": spread_of([one / run.seconds for one, run in zip(outside, runs, strict=True)]),
                "without_seconds": statistics.median(without),
                "share_without": statistics.median(one / run.seconds for one, run in zip(without, runs, strict=True)),
            }
    told = [
        {"fit": name} | {one: value for one, value in row.items() if one != "share_spread"}
        for name, row in found.items()
    ]
    title = f"A fit of {rows:,} rows in this process, seconds, outside statistics and noise; and without optimisations"
    show(f"{title} over released numbers; wanted at a million rows: a share below {BAR:g}", told)
    return found | {"rows": rows, "rounds": rounds}


def through(served: Served, channel: grpc.Channel, method: str, request: Any, number: int) -> float:
    """Seconds of a fit as a client sees it, from the request to the model's last byte."""
    message = type(request).FromString(request.SerializeToString())
    message.request_id = f"{method}-{number}"
    call: Any = channel.unary_stream(f"/bursar.v1.FitService/{method}")
    metadata = (("authorization", f"Bearer {served.home.tokens[0]}"),)
    start = time.perf_counter()
    answers = list(call(message.SerializeToString(), metadata=metadata))
    seconds = time.perf_counter() - start
    if not METHODS[method].response.FromString(answers[-1]).HasField("model"):
        raise SystemExit(f"{method}: the server sent no model")
    return seconds


def processor_seconds(pid: int) -> float:
    """Seconds of processor time of a process, its children, and those that have ended."""
    process, seconds = psutil.Process(pid), 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def whole(rows: int, rounds: int, quantum: float) -> Json:
    """Fits through the server, and the same in this process, in turns."""
    found: Json = {}
    with contextlib.ExitStack() as stack:
        home, here = stack.enter_context(opened(rows, quantum))
        served = stack.enter_context(home.served())
        credentials = grpc.ssl_channel_credentials(home.authority)
        channel = stack.enter_context(grpc.secure_channel(served.address, credentials))
        for method, request in fits().items():
            through(served, channel, method, request, 0)
            engined(here, method, request)  # compiles
            pairs, ours, before = [], 0.0, processor_seconds(served.pid)
            for number in range(1, rounds + 1):
                seconds = through(served, channel, method, request, number)
                start = time.process_time()
                pairs.append((seconds, engined(here, method, request).seconds))
                ours += time.process_time() - start
            time.sleep(0.5)  # for the last child to end
            cpu = (processor_seconds(served.pid) - before - ours) / rounds
            added = sorted(one - other for one, other in pairs)
            one, other = (statistics.median(column) for column in zip(*pairs, strict=True))
            median = statistics.median(added)
            found[method] = {"server": one, "engine": other, "added_median": median, "added": added, "cpu_added": cpu}
            if quantum == SMALLEST:  # with another, answers wait for its multiples
                found[method]["bar"] = MOST_ADDED
        names = ("server", "engine", "added_median", "cpu_added")
        title = f"Through the server, {rows:,} rows, a quantum of {quantum} s, {rounds} pairs, seconds"
        show(title, [{"fit": method} | part_of(row, *names) for method, row in found.items()])
        found["load_average"] = os.getloadavg()[0]
    return found | {"rows": rows, "rounds": rounds, "quantum": quantum}


def main() -> None:
    """Runs what was asked for, all by default."""
    parser = options_of(__doc__, ("catalogue", "share", "whole"))
    parser.add_argument("--rounds", type=int, help="9 if nothing is said, 5 with --quick")
    options = parser.parse_args()
    parts = options.parts or ["catalogue", "share", "whole"]
    output = output_of(options, __file__)
    rounds, rows = (5, 10**5) if options.quick else (9, 10**6)
    rounds = options.rounds or rounds
    if "catalogue" in parts:
        saved(output, "catalogue", "unary", catalogue(rounds, 100 if options.quick else 400))
    if "share" in parts:
        saved(output, "share", f"{rows}", share(rows, rounds))
    if "whole" in parts:
        for n, quantum in ((1000, SMALLEST), (1000, DEFAULT), (10**6, SMALLEST)):
            saved(output, "whole", f"{n}, {quantum}", whole(n, rounds, quantum))


if __name__ == "__main__":
    main()
