"""The timing bench: `python bench/timing.py [cases] [--quick]`; a table, and bench/results/timing.json.

A real server, with TLS and a process for every fit, has two tables that are neighbours. One analyst asks the same fit
of both in turns (D, D', D', D, ...) and notes when everything arrives that a client can see: the receipt, each progress
message, the model, and the list of releases that shows the release. Another analyst asks for a fit of a third table
until it is admitted, which says when the one place of the server became free. The settings are the defaults, the
quantum included, with one worker and no queue: so one fit takes the only place.

Four tests look for a difference between what is seen of D and of D':

times       a Kolmogorov-Smirnov test of when each kind of answer arrived, and of how fast the server answers meanwhile
quanta      how many quanta after the receipt each kind arrived: a permutation test of the counts
remainders  where in the quantum it arrived, to the microsecond: a Kolmogorov-Smirnov test of each kind
guesses     a random forest that has all of these numbers, trained on every other block of requests, guesses the table
            of the rest: its share of right guesses, with a 99 % interval, beside 1/2

The pairs are those whose fits differ most in the time that they take. The control is the same server without ticks; the
same tests must find the difference there. The run fails if they do not, or if they find one in the server as it is,
but for the case whose fits take longer than a quantum: its tables have numbers of slots that differ by half.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
from _common import Json, options_of, output_of, saved
from _serving import Home, Served, owner
from _timing_server import MARK
from numpy.typing import NDArray
from pyarrow import parquet
from scipy import stats
from sklearn.ensemble import RandomForestClassifier

from bursar._process import PATIENCE
from bursar_proto.v1 import catalog_pb2, catalog_pb2_grpc, fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server.config import Config

CAP = 100_000
"""Most rows of one person, and how many the person has in whom the tables differ."""
OTHERS = 100_000
"""People with one row each."""
COLUMNS = "abcd"
ITERATIONS = 8
EPSILON, RHO = 2000.0, 1.0
"""Budgets of the tables and of one request: many requests about a person with many rows need a large budget."""
QUANTUM = float(Config.model_fields["response_quantum_seconds"].default)
LONG_QUANTUM = 2.0
"""Longer than the fits take here on a busy machine, as the pages recommend."""
SETTINGS = "fit_workers = 1\nqueue_length = 0\n"
WARM_UP = 8
"""Requests before the first that counts."""
TURN = 10
"""Requests of a block: the forest is trained on one block and judged by the next."""
POLL_SECONDS = 0.004
ASKERS = 8
"""Analysts who take turns, so that none meets the limit on calls a minute."""
LEVEL = 1e-3
"""Chance that a test of one case finds a difference where there is none, shared by its tests."""
PERMUTATIONS = 50_000
DELAY_SECONDS = 0.3
"""Planted in the control."""
TABLES = ("here", "gone")
SMALL = "small"
KINDS = ("first progress", "answer", "list of releases", "place")
"""Events after a receipt, each with a time."""

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Two neighbouring tables, and the server that has them.

    Attributes:
        differ: what differs, in words.
        adjacency: of both tables.
        cap: most rows of a person; 1: a row is a person.
        tables: rows of the person in whom they differ, first in the table, of D and of D'.
        others: people with one row each.
        quantum: seconds.
        tells: their numbers of quanta are known to differ: fits take longer than a quantum, and one table is longer.
    """

    differ: str
    adjacency: str
    cap: int
    tables: tuple[Rows, Rows]
    others: int = OTHERS
    quantum: float = QUANTUM
    tells: bool = False


def _person(value: float, rows: int) -> Rows:
    return np.full((rows, len(COLUMNS)), value)


def cases(scale: int = 1) -> dict[str, Case]:
    """Return the cases by name, with tables divided by `scale`."""
    cap, others = CAP // scale, OTHERS // scale
    ordinary, tiny, row = _person(MARK, cap), _person(1e-160, cap), _person(MARK, 1)
    absent = f"one person's {cap:,} rows of {others + cap:,} are there, or not"
    return {
        "subnormal": Case(
            f"one person's {cap:,} rows of {others + cap:,} are ordinary numbers, or have subnormal squares",
            "replace_one",
            cap,
            (ordinary, tiny),
            others,
        ),
        "first row": Case(
            "the first row is there, or not: all others change their slots", "add_remove_one", 1, (row, row[:0]), others
        ),
        "absent": Case(absent, "add_remove_one", cap, (ordinary, ordinary[:0]), others, tells=True),
        "absent, long quantum": Case(
            absent, "add_remove_one", cap, (ordinary, ordinary[:0]), others, quantum=LONG_QUANTUM
        ),
    }


def _request(dataset: str, request_id: str) -> fit_pb2.FitGradientEMRequest:
    """Make the request whose passes over rows differ most in time between ordinary and subnormal rows."""
    return fit_pb2.FitGradientEMRequest(
        dataset=dataset,
        request_id=request_id,
        spend=types_pb2.Spend(rho=RHO),
        columns=list(COLUMNS),
        model=fit_pb2.LATENT_MODEL_GAUSSIAN_MIXTURE,
        n_components=2,
        variant=fit_pb2.GRADIENT_VARIANT_TRUNCATED,
        iterations=ITERATIONS,
    )


# --- tables and servers -------------------------------------------------------------------------------------------


def _manifest(name: str, case: Case, rows: int) -> str:
    """A manifest in which the person's rows and all others have room."""
    public = f"public_rows = {rows}\n" if case.adjacency == "replace_one" else ""
    unit = f'[unit]\ncolumn = "person"\nmax_rows = {case.cap}\n' if case.cap > 1 else ""
    column = '[[columns]]\nname = "{}"\nkind = "numeric"\nlower = -1.0\nupper = 1.0\n'
    return f'name = "{name}"\nadjacency = "{case.adjacency}"\n{public}{unit}' + "".join(map(column.format, COLUMNS))


def _import(folder: Path, name: str, case: Case, person: Rows, others: int) -> None:
    centres = np.random.default_rng(7).choice([-0.5, 0.5], size=(others, 1))
    rows = np.concatenate([person, centres + 0.1 * np.random.default_rng(8).normal(size=(others, len(COLUMNS)))])
    people = np.concatenate([np.zeros(len(person), dtype=np.int64), np.arange(1, others + 1)])
    table = pa.table({**dict(zip(COLUMNS, rows.T, strict=True)), "person": people})
    parquet.write_table(table, folder / f"{name}.parquet")
    (folder / f"{name}.toml").write_text(_manifest(name, case, others + case.cap))
    files = ("--manifest", str(folder / f"{name}.toml"), "--parquet", str(folder / f"{name}.parquet"))
    owner("import", "--state", str(folder / "state"), *files, "--epsilon", repr(EPSILON), "--delta", "1e-6", "--i-know")


def home_of(case: Case, folder: Path) -> Home:
    """A state directory with both tables, and a small third one that shows when a place is free."""
    state = ("--state", str(folder / "state"))
    owner("init", *state)
    for name, person in zip(TABLES, case.tables, strict=True):
        _import(folder, name, case, person, case.others)
    _import(folder, SMALL, case, case.tables[0][:0], 100)
    tokens = []
    for i in range(2 * ASKERS):
        path = folder / f"analyst-{i}"
        owner("token", "issue", *state, "--name", path.name, "--role", "analyst", "--out", str(path))
        tokens.append(path.read_text().strip())
    (folder / "state" / "config.toml").write_text(f"{SETTINGS}response_quantum_seconds = {case.quantum}\n")
    return Home(folder, tuple(tokens))


# --- what clients see ---------------------------------------------------------------------------------------------


class _Caller:
    """One analyst's calls.

    Attributes:
        fits: the service that fits.
        catalog: the service that lists releases.
        metadata: with the token.
    """

    def __init__(self, served: Served, analyst: int, stack: contextlib.ExitStack) -> None:
        credentials = grpc.ssl_channel_credentials(served.home.authority)
        # Channels of equal arguments share one connection otherwise.
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = stack.enter_context(grpc.secure_channel(served.address, credentials, options))
        self.fits = fit_pb2_grpc.FitServiceStub(channel)
        self.catalog = catalog_pb2_grpc.CatalogServiceStub(channel)
        self.metadata = (("authorization", f"Bearer {served.home.tokens[analyst]}"),)

    def fit(self, request: fit_pb2.FitGradientEMRequest) -> Iterator[tuple[float, fit_pb2.FitGradientEMResponse]]:
        """Ask for a fit until there is a place: when each message came, seconds of `time.monotonic`."""
        while True:
            try:
                for message in self.fits.FitGradientEM(request, metadata=self.metadata, timeout=PATIENCE):
                    yield time.monotonic(), message
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return

    def listed(self, dataset: str, entry: int) -> tuple[float, int]:
        """Ask for the list until it shows the release of an entry: when that was, and how often it was asked for."""
        asked = catalog_pb2.ListReleasesRequest(dataset=dataset, page_size=1, page_token=entry - 1)
        lists = 0
        while True:
            found = self.catalog.ListReleases(asked, metadata=self.metadata, timeout=PATIENCE).releases
            lists += 1
            if found[0].released:
                return time.monotonic(), lists
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class Seen:
    """Times of one request's answers, in seconds after its receipt.

    Attributes:
        receipt: after the call's start.
        times: by kind.
        steps: that the first progress message told.
        lists: that were answered until one showed the release: fewer while the server's machine is busy.
    """

    receipt: float
    times: Mapping[str, float]
    steps: int
    lists: int

    def numbers(self, quantum: float) -> list[float]:
        """Return all that a client has to guess from: times, where in the quantum they lie, and steps."""
        times = [self.times[kind] for kind in KINDS]
        return [self.receipt, *times, *(time % quantum for time in times), self.steps, self.lists]


def _see(dataset: str, request_id: str, one: _Caller, other: _Caller, pool: ThreadPoolExecutor) -> Seen:
    """Ask once, and look at everything that tells how far the fit is."""
    start = time.monotonic()
    messages = one.fit(_request(dataset, request_id))
    came, first = next(messages)
    small = other.fit(_request(SMALL, request_id))
    place = pool.submit(lambda: next(small)[0])
    listed = pool.submit(one.listed, dataset, first.receipt.entry)
    progress, steps, answer = 0.0, 0, 0.0
    for at, message in messages:
        if message.HasField("model"):
            answer = at
        elif not progress:
            progress, steps = at, message.progress.step
    shown, lists = listed.result()
    times = dict(zip(KINDS, (progress, answer, shown, place.result()), strict=True))
    for _ in small:
        pass  # the next request finds the place free
    return Seen(came - start, {kind: at - came for kind, at in times.items()}, steps, lists)


def watch(home: Home, times: int, *variant: str) -> list[tuple[int, Seen]]:
    """Ask for both tables in turns, so that other work of the machine meets both alike: (0 or 1, what was seen)."""
    found = []
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(home.served(*variant))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        ones, others = (
            [_Caller(served, i, stack) for i in some] for some in (range(ASKERS), range(ASKERS, 2 * ASKERS))
        )
        for i in range(-WARM_UP, 2 * times):
            which = (i + 1) // 2 % 2
            one, other = ones[i // 2 % ASKERS], others[i // 2 % ASKERS]
            seen = _see(TABLES[which], f"{len(variant)}-{i + WARM_UP}", one, other, pool)
            if i >= 0:
                found.append((which, seen))
    return found


# --- tests --------------------------------------------------------------------------------------------------------


def told_apart(found: Sequence[tuple[int, Seen]], quantum: float, level: float = LEVEL, seed: int = 1) -> Json:
    """Test whether what is seen of both tables differs; `told_apart` names the tests that say so."""
    labels = np.array([which for which, _ in found])
    both = [labels == which for which in (0, 1)]
    rng = np.random.default_rng(seed)
    result: Json = {"requests": [int(part.sum()) for part in both]}
    steps = np.array([seen.steps for _, seen in found])
    rates = np.array([seen.lists / seen.times["list of releases"] for _, seen in found])
    chances = {"steps: permuted": _permuted(steps, labels, rng), "lists a second": _smirnov(rates, both)}
    result["mean_steps"] = [round(float(steps[part].mean()), 2) for part in both]
    for kind in KINDS:
        times = np.array([seen.times[kind] for _, seen in found])
        quanta = np.rint(times / quantum).astype(np.int64)
        rest = times - quanta * quantum
        chances[f"{kind}: times"] = _smirnov(times, both)
        chances[f"{kind}: quanta"] = _permuted(quanta, labels, rng)
        chances[f"{kind}: remainders"] = _smirnov(rest, both)
        result[kind] = {
            "median_ms": [round(1e3 * float(np.median(times[part])), 2) for part in both],
            "median_remainder_ms": [round(1e3 * float(np.median(rest[part])), 3) for part in both],
            "mean_quanta": [round(float(quanta[part].mean()), 3) for part in both],
        }
    right, guessed = _guessed(np.array([seen.numbers(quantum) for _, seen in found]), labels, seed)
    verdict = stats.binomtest(right, guessed, 0.5, alternative="greater")
    chances["guesses"] = float(verdict.pvalue)
    interval = stats.binomtest(right, guessed).proportion_ci(0.99)
    result["guesses"] = {
        "right": round(right / guessed, 3),
        "interval_99": [round(interval.low, 3), round(interval.high, 3)],
        "of": guessed,
    }
    result["p"] = {name: float(f"{chance:.2g}") for name, chance in chances.items()}
    result["told_apart"] = [name for name, chance in chances.items() if not chance >= level / len(chances)]
    return result


def _smirnov(numbers: NDArray[np.float64], both: Sequence[NDArray[np.bool_]]) -> float:
    """Chance that two halves of equal numbers differ at least as far."""
    return float(stats.ks_2samp(*(numbers[part] for part in both)).pvalue)


def _permuted(counts: NDArray[np.int64], labels: NDArray[np.int64], rng: np.random.Generator) -> float:
    """Chance that labels at random part the counts at least as far, by the total variation between them."""
    values, places = np.unique(counts, return_inverse=True)
    all_of = np.bincount(places, minlength=len(values))
    first = np.bincount(places[labels == 0], minlength=len(values))
    drawn = rng.multivariate_hypergeometric(all_of, first.sum(), size=PERMUTATIONS)
    rest = len(labels) - first.sum()

    def distance(some: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(np.abs(some / first.sum() - (all_of - some) / rest).sum(axis=-1))

    beyond = int((distance(drawn) >= distance(first) - 1e-12).sum())
    return (beyond + 1) / (PERMUTATIONS + 1)


def _guessed(numbers: NDArray[np.float64], labels: NDArray[np.int64], seed: int) -> tuple[int, int]:
    """Return how many tables a forest guesses rightly that has learnt from every other block, and of how many."""
    learnt = np.arange(len(labels)) // TURN % 2 == 0
    forest = RandomForestClassifier(300, min_samples_leaf=3, random_state=seed)
    forest.fit(numbers[learnt], labels[learnt])
    right = forest.predict(numbers[~learnt]) == labels[~learnt]
    return int(right.sum()), len(right)


# --- the command --------------------------------------------------------------------------------------------------


def control(home: Home, seconds: float = DELAY_SECONDS) -> tuple[str, ...]:
    """Return the command of the server without ticks, in which fits of D take some seconds longer."""
    script = Path(__file__).with_name("_timing_server.py")
    return (sys.executable, str(script), str(home.state), repr(seconds))


def measured(case: Case, times: int, control_times: int) -> Json:
    """Compare the tables on both servers.

    Args:
        case: the tables.
        times: how often each table is asked of the server as it is.
        control_times: how often of the one without ticks.
    """
    with tempfile.TemporaryDirectory(prefix="timing-") as folder:
        home = home_of(case, Path(folder))
        found = told_apart(watch(home, times), case.quantum)
        without = told_apart(watch(home, control_times, *control(home)), case.quantum)
    return {"differ": case.differ, "quantum_seconds": case.quantum, "server": found, "control": without}


def main() -> int:
    """Run the cases; 1 if the control finds nothing, or the server tells tables apart where fits end in a quantum."""
    options = options_of(__doc__, cases()).parse_args()
    times, control_times = (20, 20) if options.quick else (200, 40)
    problems = []
    for name, case in cases().items():
        if options.parts and name not in options.parts:
            continue
        found = measured(case, times, control_times)
        saved(output_of(options, __file__), "cases", name, found)
        _show(name, found)
        if not case.tells:
            problems += [f"{name}: told apart by {test}" for test in found["server"]["told_apart"]]
        if not found["control"]["told_apart"]:
            problems.append(f"{name}: the control is not found")
    print("\n".join(problems))
    return 1 if problems else 0


def _show(name: str, found: Json) -> None:
    print(f"\n{name}: {found['differ']}; quantum {found['quantum_seconds']} s")
    for server in ("server", "control"):
        one = found[server]
        print(f"  {server}: {one['requests']} requests, steps {one['mean_steps']}")
        for kind in KINDS:
            p = {test: one["p"][f"{kind}: {test}"] for test in ("times", "quanta", "remainders")}
            print(f"    {kind:18} {one[kind]['median_ms']} ms, quanta {one[kind]['mean_quanta']}, p {p}")
        print(f"    guesses: {one['guesses']}, told apart by {one['told_apart']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
