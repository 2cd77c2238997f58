"""Growth with the number of rows: memory and time of an import and of fits, threads and processes, Dask's overhead.

    python bench/scale.py                       100,000,000 rows of ten columns: 8 GB in a temporary folder, twice
    python bench/scale.py growth                a step on 1e4, 1e5, ... 1e8 rows in one run; 8 GB once
    python bench/scale.py --rows 10000000 fit   one part, on fewer rows
    python bench/scale.py sources               memory of imports from Parquet and PostgreSQL; 9 GB on the disk
    python bench/scale.py --quick               8,000,000 rows: a few minutes, no JSON

Rows are made on the spot, batch by batch, from a public seed, and removed in the end. Every part is a process of its
own, and its peak of memory is what the kernel counts (VmHWM): heap, and pages of files while they are mapped into the
process. Comparisons are made in turns, and their medians and ratios told. The bar of Dask's overhead is one of
`DASK_ROWS` rows: on fewer, what a sum costs whatever the table is shows, and no bar is told.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads are the engine's

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from _common import Json, Kept, options_of, output_of, saved, spread_of
from numpy.typing import NDArray

from bursar_ledger import Adjacency, cost_units
from bursar_proto.v1 import fit_pb2, types_pb2
from bursar_server.fits import dpem, sketch
from bursar_server.fits.mixtures.statistics import BallFrame, EStep, Moments, Weights, moment_statistic
from bursar_server.tables import (
    CapKeys,
    Keys,
    Manifest,
    ParquetSource,
    Partitions,
    PostgresSource,
    Snapshot,
    Source,
    rows_tag,
    store_table,
)
from bursar_server.vault import (
    CHUNK,
    DaskEngine,
    Engine,
    ExactNoise,
    LocalEngine,
    Meter,
    Rows,
    Session,
    Statistic,
    SyntheticBudget,
    exact_sum,
)

COLUMNS = tuple(f"x{j}" for j in range(10))
FEW = 3
"""Columns of the imports from Parquet and PostgreSQL: memory is that of buffers, and 10^8 rows take 3 GB."""
BOUND, CLUSTERS, BATCH = 10.0, 5, 2**16
ORDER = Fraction(9)
MOST_MIB = 2048
"""Limit of any part's memory, in MiB."""

LEAST_GAIN, MOST_DASK, DASK_ROWS = 1.7, 1.15, 10**8
"""Bars of two processes over one, and of Dask's time over the threads', on so many rows."""

MOST_BEND = 0.15
"""Bar of the slope of log time against log rows, from 1, over the last two decades."""

METHODS: dict[str, Any] = {"dpem": dpem, "sketch": sketch}
MANIFEST: Json = {
    "name": "scale",
    "adjacency": "add_remove_one",
    "columns": [{"name": name, "kind": "numeric", "lower": -BOUND, "upper": BOUND} for name in COLUMNS],
}


@dataclass(frozen=True)
class Mixture:
    """A source of n rows about five centres; with units, three rows each, if somebody asks whose they are.

    Attributes:
        n: how many.
        public_seed: of the rows.
    """

    n: int
    public_seed: int = 0

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """See `bursar_server.tables.Source`."""
        centres = np.random.default_rng(self.public_seed).uniform(-6, 6, (CLUSTERS, len(COLUMNS)))
        for number in range(-(-self.n // BATCH)):
            size = min(BATCH, self.n - number * BATCH)
            generator = np.random.default_rng([self.public_seed, number])
            values = generator.standard_normal((len(COLUMNS), size))
            values += centres[generator.integers(0, CLUSTERS, size)].T
            made = dict(zip(COLUMNS, map(pa.array, values), strict=True))
            if "who" in columns:
                made["who"] = pa.array(generator.integers(0, max(1, self.n // 3), size))
            yield pa.RecordBatch.from_arrays([made[name] for name in columns], names=list(columns))


@dataclass(frozen=True)
class First:
    """The first rows of a table.

    Attributes:
        rows: all of them.
        slots: how many.
    """

    rows: Rows
    slots: int

    def read(self, first: int, block: NDArray[np.float64], present: NDArray[np.bool_]) -> None:
        """See `bursar_server.vault.Rows`."""
        self.rows.read(first, block, present)
        present[max(0, self.slots - first) :] = False


def step() -> Statistic:
    """One iteration of FitDPEM with full covariances."""
    d = len(COLUMNS)
    centres = np.linspace(-0.3, 0.3, CLUSTERS)[:, None] * np.ones(d)
    factors, whiteners = (np.broadcast_to(scale * np.eye(d), (CLUSTERS, d, d)).copy() for scale in (4, 2))
    e_step = EStep(False, np.zeros(CLUSTERS), centres, factors, False, centres, whiteners)
    return moment_statistic(BallFrame(np.zeros(d), np.full(d, 30.0)), e_step, Moments.FULL, Weights(0.5, 0.7, 1.0))


def measured(work: Callable[[], Json]) -> Json:
    """Return what work finds, its seconds, and the most memory that its process ever had, in MiB."""
    start = time.perf_counter()
    found = work()
    seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return found | {"seconds": round(seconds, 3), "peak_mib": round(peak / 1024, 1)}


def imported(folder: Path, n: int, *, capped: bool) -> Json:
    """Import n rows, with a cap of two rows of a unit or without."""
    unit = {"column": "who", "max_rows": 2} if capped else {}
    report = store_table(Manifest.from_public(MANIFEST | {"unit": unit}), Mixture(n), folder, CapKeys.draw())
    return {"directory": str(report.directory), "n": n}


def from_source(folder: Path, source: Source) -> Json:
    """Import the first columns from where they are; the snapshot is removed."""
    few = MANIFEST | {"columns": MANIFEST["columns"][:FEW]}
    report = store_table(Manifest.from_public(few), source, folder, CapKeys.draw())
    shutil.rmtree(report.directory)
    return {"n": report.rows_read}


def sources_of(folder: Path, n: int) -> Iterator[tuple[str, Callable[[], Json]]]:
    """Yield imports of n rows from a Parquet file and a table of a PostgreSQL server that is started for it."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # first, since installed packages have folders of tests, too
    from tests.postgres import serving

    path = folder / "rows.parquet"
    batches = Mixture(n).batches(COLUMNS[:FEW])
    with pa.parquet.ParquetWriter(path, pa.schema([(name, pa.float64()) for name in COLUMNS[:FEW]])) as writer:
        # Row groups of a million rows, as most writers make them.
        while group := list(islice(batches, 16)):
            writer.write_table(pa.Table.from_batches(group), row_group_size=2**20)
    yield f"import from Parquet, {n:.0e} rows", partial(from_source, folder, ParquetSource(path))
    path.unlink()
    with serving() as server:
        os.environ["PGPASSFILE"] = str(server.passwords)
        values = ", ".join(f"{BOUND} * sin({j + 1} * i) AS {name}" for j, name in enumerate(COLUMNS[:FEW]))
        numbers = f"(SELECT generate_series(1, {n}) AS i) AS numbers"  # in FROM it would be written to the disk first
        server.run(f"CREATE UNLOGGED TABLE rows AS SELECT {values} FROM {numbers}")  # noqa: S608  our own text
        yield (
            f"import from PostgreSQL, {n:.0e} rows",
            partial(from_source, folder, PostgresSource.of_table(server.address, "rows")),
        )


def tagged(directory: Path) -> Json:
    """Compute the keyed hash of the stored rows, by which a change is found."""
    rows_tag(Keys.draw(), Snapshot.open(directory))
    return {}


def partitioned(directory: Path, storage: Path) -> Json:
    """The rows once more, as a cluster's workers read them."""
    storage.mkdir()
    return {"files": len(Partitions.write(Snapshot.open(directory), storage).files)}


def fitted(directory: Path, method: str, request: Any, threads: int) -> Json:
    """A fit as the server runs it."""
    snapshot = Snapshot.open(directory)
    fit = METHODS[method]
    plan = fit.plan(request, snapshot.manifest.table(snapshot.slots), lambda entry: None)
    session = Session(
        rows=snapshot.rows(plan.columns),
        columns=len(plan.columns),
        adjacency=Adjacency.ADD_REMOVE_ONE,
        unit_cap=1,
        meter=Meter(SyntheticBudget(ORDER, cost_units(plan.events, ORDER))),
        source=ExactNoise(),
        engine=LocalEngine(threads),
    )
    fit.run(plan, session)
    return {"threads": threads}


def grown(directory: Path, sizes: Sequence[int], rounds: int) -> Json:
    """Seconds of a step over the first n rows, one thread, medians of rounds; and the slopes of their logarithms.

    By the clock, and of the processor: their difference is what waiting for the disk takes, where rows are not in
    the system's cache any more.
    """
    rows, statistic = Snapshot.open(directory).rows(COLUMNS), step()
    exact_sum(statistic, First(rows, CHUNK), len(COLUMNS))  # compiles
    clock: dict[int, list[float]] = {n: [] for n in sizes}
    processor: dict[int, list[float]] = {n: [] for n in sizes}
    for _ in range(rounds):
        for n in sizes:
            begun = time.process_time()
            clock[n].append(timed(LocalEngine(), statistic, First(rows, n)))
            processor[n].append(time.process_time() - begun)
    return {"rounds": rounds} | slopes_of(clock, "") | slopes_of(processor, "processor_")


def slopes_of(times: dict[int, list[float]], prefix: str) -> Json:
    """Medians by n, and how straight they are on logarithmic axes."""
    found = {n: statistics.median(some) for n, some in times.items()}
    logs = np.log(list(found)), np.log(list(found.values()))
    steps = {str(b): float(np.log(found[b] / found[a]) / np.log(b / a)) for a, b in pairwise(found)}
    return {
        f"{prefix}seconds_by_n": found,
        f"{prefix}slope": float(np.polyfit(*logs, 1)[0]) if len(found) > 1 else None,
        f"{prefix}slopes": steps,
        f"{prefix}bend": max((abs(one - 1.0) for one in list(steps.values())[-2:]), default=0.0),
        f"{prefix}bend_bar": MOST_BEND,
    }


def timed(engine: Engine, statistic: Statistic, rows: Rows) -> float:
    """Seconds of one sum."""
    start = time.perf_counter()
    exact_sum(statistic, rows, len(COLUMNS), engine=engine)
    return time.perf_counter() - start


def compared(directory: Path, rounds: int, folder: Path) -> Json:
    """Seconds of a step: threads of this process, and processes of a Dask cluster, in turns."""
    from distributed import LocalCluster
    from distributed.security import Security

    snapshot, statistic = Snapshot.open(directory), step()
    partitions = Partitions.of(directory)
    if partitions is None:
        raise SystemExit("the part needs partitions")
    here, spread = snapshot.rows(COLUMNS), partitions.rows(snapshot, COLUMNS)
    security = Security.temporary()
    pems = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
    for path, name in zip(pems, ("tls_ca_file", "tls_client_cert", "tls_client_key"), strict=True):
        path.write_text(getattr(security, name))
    ways: dict[str, tuple[Engine, Rows]] = {"1 thread": (LocalEngine(1), here), "2 threads": (LocalEngine(2), here)}
    with ExitStack() as stack:
        for workers in (1, 2):
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    protocol="tls://",
                    security=security,
                    dashboard_address="127.0.0.1:0",
                    memory_limit=0,
                )
            )
            ca, cert, key = map(str, pems)
            settings = DaskEngine(cluster.scheduler_address, ca, cert, key)
            name = f"{workers} process{'es' if workers > 1 else ''}"
            ways[name] = stack.enter_context(settings.open()), spread
        sums = {name: exact_sum(statistic, rows, len(COLUMNS), engine=e) for name, (e, rows) in ways.items()}
        first = sums["1 thread"]
        if not all(np.array_equal(first, other) for other in sums.values()):
            raise SystemExit("the engines do not agree")
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, (engine, rows) in ways.items():
                times[name].append(timed(engine, statistic, rows))

    def compare(case: str, one: str, other: str, bar: float | None) -> Json:
        ratios = [a / b for a, b in zip(times[one], times[other], strict=True)]
        found: Json = {"case": case, "ratio": statistics.median(ratios), "ratio_range": [min(ratios), max(ratios)]}
        found["ratio_spread"] = spread_of(ratios)
        return found | ({} if bar is None else {"bar": bar})

    return {
        "rounds": rounds,
        "seconds_by_way": {name: statistics.median(found) for name, found in times.items()},
        "compared": [
            compare("two processes over one", "2 processes", "1 process", 1 / LEAST_GAIN),
            compare("two threads over one", "2 threads", "1 thread", None),
            compare("Dask over threads, two", "2 processes", "2 threads", dask_bar(snapshot.slots)),
            compare("Dask over threads, one", "1 process", "1 thread", dask_bar(snapshot.slots)),
        ],
        "load": os.getloadavg()[0],
    }


def dask_bar(n: int) -> float | None:
    """Return the bar of a table of n rows, if there is one."""
    return MOST_DASK if n >= DASK_ROWS else None


def in_process(work: Callable[[], Json]) -> Json:
    """Measured in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measured, work).result()


def request_of(kind: Any, **fields: Any) -> Any:
    """A request for the columns of the bench."""
    spend = types_pb2.Spend(rho=1.0)
    return kind(request_id="r", dataset="scale", columns=COLUMNS, spend=spend, **fields)


PARTS = ("import", "tag", "fit", "growth", "capped", "compare", "sources")


def main() -> None:
    """Run the parts named on the command line, or all of them."""
    parser = options_of(__doc__, PARTS)
    parser.add_argument("--rows", type=int, help="instead of 100,000,000; --quick: 8,000,000")
    parser.add_argument("--folder", type=Path, help="for the rows, which are removed in the end")
    parser.add_argument("--rounds", type=int, default=5, help="of comparisons")
    options = parser.parse_args()
    n = options.rows or (8_000_000 if options.quick else 100_000_000)
    output, parts = output_of(options, __file__), options.parts or PARTS
    folder = Path(tempfile.mkdtemp(prefix="bursar-scale-", dir=options.folder))
    kept = Kept(None)

    def tell(part: str, name: str, work: Callable[[], Json]) -> Json:
        found = kept.result(f"{part}, {name}", partial(in_process, work))
        told = {key: value for key, value in found.items() if key != "directory"}
        print(f"{name:<28} {told.pop('seconds'):>10.1f} s {told.pop('peak_mib'):>9.0f} MiB  {told or ''}", flush=True)
        saved(output, str(n), name, found | {"directory": None, "bar_mib": MOST_MIB}, columns=len(COLUMNS))
        return found

    print(f"{n:,} rows of {len(COLUMNS)} columns, {n * 80 / 2**30:.2f} GiB")
    try:
        if "sources" in parts:
            for size in (n // 100, n // 10, n):
                for name, work in sources_of(folder, size):
                    tell("sources", name, work)
        if set(parts) == {"sources"}:
            return
        directory = Path(tell("import", "import", partial(imported, folder, n, capped=False))["directory"])
        if "fit" in parts:
            diagonal = fit_pb2.COVARIANCE_TYPE_DIAG
            mixture = request_of(fit_pb2.FitDPEMRequest, n_components=CLUSTERS, iterations=1, covariance_type=diagonal)
            tell("fit", "FitDPEM, 1 iteration", partial(fitted, directory, "dpem", mixture, 2))
            new = fit_pb2.NewSketch(n_frequencies=32, sigma=0.1)
            sketched = request_of(fit_pb2.FitSketchKMeansRequest, n_clusters=CLUSTERS, n_init=1, new_sketch=new)
            tell("fit", "FitSketchKMeans, m = 32", partial(fitted, directory, "sketch", sketched, 2))
        if "growth" in parts:
            sizes = sorted({*(10**i for i in range(4, 9) if 10**i <= n), n})
            tell("growth", "growth of a step", partial(grown, directory, sizes, options.rounds))
        if "compare" in parts:
            tell("compare", "partitions", partial(partitioned, directory, folder / "storage"))
            tell("compare", "threads and processes", partial(compared, directory, options.rounds, folder))
        if "tag" in parts:
            tell("tag", "tag of the content", partial(tagged, directory))
        if "capped" in parts:
            shutil.rmtree(folder / "storage", ignore_errors=True)
            shutil.rmtree(directory)
            tell("capped", "import under a cap", partial(imported, folder, n, capped=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
