"""The load test: `python bench/load.py [--clients 64] [--minutes 10]`; tables, and bench/results/load.json.

A real server on loopback with its own limits, and many clients with the SDK, each with a token and a connection of its
own. They ask for fits of all five kinds under new request ids, again for fits that they have, for prices, for what the
catalogue has, and for what has to be refused: more than there is, fields that make no sense, an id for another request.
The budget runs out after three quarters of the time. A fit that the server has no room for is asked for again when it
said, not earlier, with its request id. The count of clients and the time are bounded.

Everything that reached a client is compared with the ledger afterwards, in whole units:

debits   each request id at most once; those of the receipts, and no other; nothing that was only refused
sums     of receipts, of debits, and what the account has spent: one number; with what is left, the total
edge     every refusal asked for more than there was left; at the end somebody took what was left, and then the
         smallest thing was refused
bytes    every answer to one request id is the release that the ledger stores
ledger   verifies, and every debit is priced again by `bursar-audit verify`, with a second opinion where there is one
advice   whoever was turned away for lack of room was told when to come back, and has paid nothing for it
memory   resident, of the server, of the parent of fits, and of fits, after the first fifth: a slope, with an error
         that is larger than that of independent samples. In the second half of a run of eight minutes or more the upper
         end of the slope's interval has to be below a bar, for the server and for the parent of fits: that it is flat
         is to be shown. The first half is for what every connection and thread comes to have, and for bounded caches.
         Besides, what the server grows by for each entry of the ledger
files    descriptors that are open, likewise

The run fails if one of them does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import psutil
from _common import Json, options_of, output_of, saved
from _serving import COLUMNS, TABLE, Home, Served

import bursar
from bursar._process import PATIENCE
from bursar_ledger import Ledger
from bursar_server.config import Config
from bursar_server.fits.contract import METHODS

FEATURES = list(COLUMNS[:5])
ROWS = 20_000
EPSILON = 50.0
"""So that every fit's share of a thousandth or two is still one that a fit can be made of."""
THINK_SECONDS = 1.0
"""Mean pause of a client between two calls."""
SAMPLE_SECONDS = 2.0
WARM_UP = 0.2
"""Share of the run after which memory and files are expected to be flat."""
MOST_MIB = 0.03
MOST_FILES = 4
"""Limits of growth at the end: a share of the memory, beyond its error; descriptors, when nobody is connected."""
PAID = 0.75
"""Share of the run in which there is something left to be spent: the second half has fits, and refusals of fits."""
FLAT = 0.5
"""MiB a minute: what counts as flat, for the upper end of the slope's interval in the second half.

Most of it is for what is bounded and may not be full by then: 2 MiB of the ledger's pages, at 6 KiB a debit, and
connections with few calls.
"""
FLAT_MINUTES = 8.0
"""Minutes of runs that are long enough to tell: the warm-up is over by half of them."""
SETTINGS = "threads_per_fit = 1\n"


@dataclass(frozen=True)
class Sample:
    """The server at one moment.

    Attributes:
        seconds: since the first client.
        server: MiB that are resident, of the server's process.
        parent: likewise, of the process that fits are forked from.
        fits: likewise, of all fits, memory that they share with others counted in parts.
        files: descriptors that are open in the server; None where nobody may see them.
        processes: of it and its children.
        entries: of the ledger; each debit is one, and each release.
    """

    seconds: float
    server: float
    parent: float
    fits: float
    files: int | None
    processes: int
    entries: int


@dataclass
class Witness:
    """Observations of the clients.

    Attributes:
        receipts: by request id, the different ones that came, as (entry, units).
        answers: by request id, SHA-256 of the different messages with a model.
        refused: by request id, the errors that fits ended with.
        beyond: of every refusal by the budget, units asked for and left.
        seconds: of calls, by kind and how they ended.
        failures: what nobody may ever see.
    """

    receipts: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    answers: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    refused: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    beyond: list[tuple[int, int]] = field(default_factory=list)
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, method: str, request_id: str, message: bytes) -> None:
        """A message of a fit, before anything decodes it."""
        response = METHODS[method].response.FromString(message)
        kind = response.WhichOneof("event")
        with self.lock:
            if kind == "receipt" and not response.receipt.free:
                self.receipts[request_id].add((response.receipt.entry, response.receipt.price.cost_units))
            elif kind == "model":
                self.answers[request_id].add(hashlib.sha256(message).digest())


@dataclass(frozen=True)
class Debit:
    """Ledger's record of one fit.

    Attributes:
        entry: its number.
        request_id: of the request that paid.
        units: that were debited.
        release: SHA-256 of what is stored.
    """

    entry: int
    request_id: str
    units: int
    release: bytes | None


@dataclass(frozen=True)
class Story:
    """All that is judged.

    Attributes:
        witness: of the clients.
        debits: of the ledger.
        cap: units of the total.
        spent: units that the account has spent.
        left: units that are left of it.
        last_refused: whether the smallest thing was refused after somebody took what was left.
        verified: what `bursar-audit verify` said, "" if it found something.
        samples: of the server.
        idle: descriptors of the server with nobody connected, before and after.
    """

    witness: Witness
    debits: tuple[Debit, ...]
    cap: int
    spent: int
    left: int
    last_refused: bool
    verified: str
    samples: tuple[Sample, ...]
    idle: tuple[int | None, int | None]


# --- judging ------------------------------------------------------------------------------------------------------


def judged(story: Story) -> list[str]:
    """Return what does not hold; empty if all is well."""
    return [*_money(story), *_answers(story), *_machine(story), *story.witness.failures]


def _money(story: Story) -> Iterator[str]:
    seen = story.witness
    counted = Counter(debit.request_id for debit in story.debits)
    if twice := [request_id for request_id, times in counted.items() if times > 1]:
        yield f"debited more than once: {twice[:5]}"
    if unknown := counted.keys() - seen.receipts.keys():
        yield f"debits without a receipt, {len(unknown)}: {sorted(unknown)[:5]}"
    if missing := seen.receipts.keys() - counted.keys():
        yield f"receipts without a debit, {len(missing)}: {sorted(missing)[:5]}"
    if paid := {one for one in seen.refused if not seen.receipts.get(one)} & counted.keys():
        yield f"refused and debited, {len(paid)}: {sorted(paid)[:5]}"
    ledger = {debit.request_id: (debit.entry, debit.units) for debit in story.debits}
    if wrong := [one for one, told in seen.receipts.items() if told != {ledger.get(one)}]:
        yield f"receipts that are not the ledger's, {len(wrong)}: {wrong[:5]}"
    sums = {
        "receipts": sum(units for told in seen.receipts.values() for _, units in told),
        "debits": sum(debit.units for debit in story.debits),
        "account": story.spent,
    }
    if len(set(sums.values())) != 1:
        yield f"sums that differ: {sums}"
    if story.spent + story.left != story.cap:
        yield f"{story.spent} spent and {story.left} left are not the total of {story.cap}"
    if roomy := [pair for pair in seen.beyond if not pair[0] > pair[1]]:
        yield f"refusals though there was room, {len(roomy)}: (asked, left) = {roomy[:5]}"
    smallest = min((debit.units for debit in story.debits), default=0)
    if not (story.last_refused and story.left < smallest):
        yield f"the budget was not used up: {story.left} units are left, the smallest debit had {smallest}"
    if not story.verified:
        yield "the ledger does not verify"


def _answers(story: Story) -> Iterator[str]:
    stored = {debit.request_id: debit.release for debit in story.debits}
    if wrong := [one for one, told in story.witness.answers.items() if one in stored and told != {stored[one]}]:
        yield f"answers that are not what is stored, {len(wrong)}: {wrong[:5]}"


def _machine(story: Story) -> Iterator[str]:
    before, after = story.idle
    if before is not None and after is not None and after > before + MOST_FILES:
        yield f"descriptors stayed open: {before} before, {after} after"
    for name, slope in slopes(story.samples).items():
        if slope.low * slope.span > MOST_MIB * slope.level:
            yield f"memory grows: {name}, {slope} MiB a minute"
    if not _long_enough(story.samples):
        return
    for name, slope in _second_half(story.samples).items():
        if not slope.high <= FLAT:
            yield f"memory is not shown to be flat: {name}, up to {slope.high:.2f} MiB a minute, {FLAT} are the most"


def flatness(samples: Sequence[Sample]) -> str:
    """Return whether memory is flat, in a sentence."""
    if not _long_enough(samples):
        return f"too short a run to say whether memory is flat; {FLAT_MINUTES:g} minutes are the least"
    found = _second_half(samples)
    told = " and ".join(f"{slope.high:.2f} ({name})" for name, slope in found.items())
    flat = all(slope.high <= FLAT for slope in found.values())
    verdict = "memory is flat" if flat else "MEMORY IS NOT SHOWN TO BE FLAT"
    return f"{verdict}: at most {told} MiB a minute in the second half, in 999 of 1,000 runs; the bar is {FLAT}"


def _long_enough(samples: Sequence[Sample]) -> bool:
    return bool(samples) and samples[-1].seconds >= 60 * FLAT_MINUTES and bool(_second_half(samples))


def _second_half(samples: Sequence[Sample]) -> dict[str, Slope]:
    found = slopes(samples)
    return {name: found[name + _LATER] for name in ("server", "parent") if name + _LATER in found}


@dataclass(frozen=True)
class Slope:
    """A line through samples.

    Attributes:
        level: its middle.
        rate: its slope.
        error: standard error of that, from medians of parts of the run, as neighbours are not independent.
        span: that it is a line through, in what the slope is for one of.
    """

    level: float
    rate: float
    error: float
    span: float

    @property
    def low(self) -> float:
        """A slope that is below the true one in all but one of a thousand runs."""
        return self.rate - _ONE_IN_1000 * self.error

    @property
    def high(self) -> float:
        """Return one that is above it in the same way."""
        return self.rate + _ONE_IN_1000 * self.error

    def __str__(self) -> str:
        return f"{self.level:.1f} MiB, {self.rate:+.3f} +- {self.error:.3f}"


_LATER = " in the second half"


def slopes(samples: Sequence[Sample]) -> dict[str, Slope]:
    """MiB a minute of every kind of process after the warm-up, and in the second half; without those of few samples."""
    found, last = {}, samples[-1].seconds if samples else 0.0
    for name, since in (("", WARM_UP * last), (_LATER, last / 2)):
        kept = [sample for sample in samples if sample.seconds >= since]
        if len(kept) >= 2 * _BLOCKS:
            minutes = np.array([sample.seconds / 60 for sample in kept])
            for whose in ("server", "parent", "fits"):
                found[whose + name] = _slope(minutes, np.array([getattr(sample, whose) for sample in kept]))
    return found


def slope_by_entry(samples: Sequence[Sample]) -> Slope | None:
    """MiB of the server for each entry that came after the warm-up; None if too few did.

    More than entries take: whatever else grew while they came is in it, too.
    """
    last = samples[-1] if samples else None
    kept = [one for one in samples if last and one.seconds >= WARM_UP * last.seconds and one.entries < last.entries]
    entries = np.array([one.entries for one in kept], dtype=np.float64)
    if len(kept) < 2 * _BLOCKS or entries[-1] - entries[0] < _BLOCKS:
        return None
    return _slope(entries, np.array([one.server for one in kept]))


_BLOCKS = 10
_ONE_IN_1000 = 4.501
"""Quantile of Student's t with `_BLOCKS` - 2 degrees of freedom."""


def _slope(x: Any, values: Any) -> Slope:
    # Medians of blocks: a child that is there for a moment is no trend, and blocks are nearly independent.
    parts = np.array_split(np.arange(len(x)), _BLOCKS)
    middles = np.array([x[part].mean() for part in parts])
    y = np.array([np.median(values[part]) for part in parts])
    centred = middles - middles.mean()
    slope = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - slope * centred
    error = math.sqrt(float(rest @ rest) / (_BLOCKS - 2) / float(centred @ centred))
    return Slope(float(y.mean()), slope, error, float(x[-1] - x[0]))


# --- clients ------------------------------------------------------------------------------------------------------


class _Tap:
    """A channel that shows the witness what comes in of fits; one call at a time.

    Attributes:
        request_id: of the fit under way.
    """

    def __init__(self, channel: grpc.Channel, witness: Witness) -> None:
        self._channel = channel
        self._witness = witness
        self.request_id = ""

    def unary_stream(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, **more: Any
    ) -> Any:
        """The channel's own, with a decoder that shows the bytes first."""
        method = path.rpartition("/")[2]

        def shown(message: bytes) -> Any:
            if method in METHODS:
                self._witness.saw(method, self.request_id, message)
            return response_deserializer(message)

        return self._channel.unary_stream(path, request_serializer, shown, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


FITS: Mapping[str, bursar.Request] = {
    "fit dpem": bursar.DPEM(n_components=3, columns=FEATURES, iterations=8),
    "fit separated": bursar.SeparatedGMM(n_components=3, columns=FEATURES, sigma_min=0.3, sigma_max=1.0),
    "fit gradient": bursar.GradientEM(model="gaussian_mixture", n_components=3, columns=FEATURES),
    "fit sketch": bursar.SketchKMeans(n_clusters=3, columns=FEATURES[:2]),
    "fit mrf": bursar.MRF(cliques="tree", columns=["sex", "town", "smoker", "a"]),
}

WEIGHTS: Mapping[str, int] = {
    **dict.fromkeys(FITS, 4),
    "fit again": 10,
    "decode again": 2,
    "preview": 15,
    "datasets": 10,
    "limits": 15,
    "releases": 5,
    "model": 5,
    "too much": 6,
    "no sense": 6,
    "id of another": 2,
}
"""Frequencies of a client's requests, in turns."""


class Pace:
    """Cost of a new fit, so that the total is used up after `PAID` of the time.

    Args:
        total: rho.
        seconds: of the run.
    """

    def __init__(self, total: float, seconds: float) -> None:
        self._total = total
        self._end = PAID * seconds
        self._paid = 0
        self._left = total
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def paid(self, left: float) -> None:
        """A fit was admitted, and so much rho was left then."""
        with self._lock:
            self._paid += 1
            self._left = min(self._left, left)

    def rho(self) -> float:
        """Return the rho of a fit that is requested now."""
        with self._lock:
            passed = time.monotonic() - self._start
            if passed >= self._end or self._paid < 10:
                return self._total / 1000
            to_come = max(1.0, (self._end - passed) * self._paid / passed)
            return max(self._left / to_come, self._total / 1e5)


class Caller:
    """One client: asks, thinks, asks."""

    def __init__(self, served: Served, number: int, witness: Witness, pace: Pace, seed: int) -> None:
        self._chance = random.Random(f"{seed} {number}")
        self._number = number
        self._witness = witness
        self._pace = pace
        self._serial = 0
        self._waiting: list[tuple[float, str, str, float]] = []
        self._paid: list[tuple[str, str, float]] = []
        options = [("grpc.use_local_subchannel_pool", 1)]  # else all clients of this process share one connection
        credentials = grpc.ssl_channel_credentials(served.home.authority)
        self._channel = grpc.secure_channel(served.address, credentials, options)
        self._tap = _Tap(self._channel, witness)
        channel = cast(grpc.Channel, self._tap)
        self._client = bursar.Client(channel, token=served.home.tokens[number], timeout=PATIENCE, patience=0.0)
        self._data = self._client.dataset(TABLE)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def ask_until(self, end: float) -> None:
        """Ask in turns until a moment of `time.monotonic`."""
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        while time.monotonic() < end:
            (kind,) = self._chance.choices(kinds, weights)
            try:
                self._ask(kind)
            except Exception as error:
                self._fail(f"{kind}: {type(error).__name__}: {error}")
            pause = self._chance.expovariate(1 / THINK_SECONDS)
            time.sleep(max(0.0, min(pause, end - time.monotonic())))

    def take_the_rest(self) -> bool:
        """Spend what is left; whether the smallest thing is refused then."""
        with contextlib.suppress(bursar.BudgetExhaustedError):
            self._fit("fit dpem", self._key(), bursar.what_is_left())
        for _ in range(3):
            try:
                self._fit("fit dpem", self._key(), bursar.rho(1e-9))
            except bursar.BudgetExhaustedError:
                return True
        return False

    def _ask(self, kind: str) -> None:
        due = [one for one in self._waiting if one[0] <= time.monotonic()]
        if kind in FITS:
            if due:  # the request that was turned away, before a new one
                self._waiting.remove(due[0])
                _, kind, key, rho = due[0]
            else:
                key, rho = self._key(), self._pace.rho() * self._chance.uniform(0.5, 1.5)
            self._new_fit(kind, key, rho)
        elif kind in ("fit again", "id of another", "model"):
            if self._paid:
                self._with_one_paid(kind, *self._chance.choice(self._paid))
        elif kind == "too much":
            self._refused(kind, bursar.BudgetExhaustedError, "fit dpem", bursar.rho(1e6))
        elif kind == "no sense":
            self._refused(kind, bursar.InvalidRequestError, "fit nonsense", bursar.rho(0.001))
        elif kind == "decode again":
            sketches = [one for one in self._paid if one[0] == "fit sketch"]
            if sketches:
                self._decode(sketches[-1][1])
        else:
            self._timed(kind, self._questions[kind])

    @property
    def _questions(self) -> dict[str, Callable[[], object]]:
        spend = bursar.rho(0.001)
        return {
            "preview": lambda: self._data.preview(FITS["fit dpem"], spend=spend),
            "datasets": self._client.datasets,
            "limits": self._data.limits,
            "releases": self._client.releases,
        }

    def _new_fit(self, kind: str, key: str, rho: float) -> None:
        try:
            model = self._timed(kind, lambda: self._fit(kind, key, bursar.rho(rho)))
        except bursar.OverloadedError as error:
            self._come_back(kind, key, rho, error)
        except bursar.BudgetExhaustedError:
            return  # told by the timing
        else:
            self._paid.append((kind, key, rho))
            self._pace.paid(model.receipt.remaining.rho)

    def _come_back(self, kind: str, key: str, rho: float, error: bursar.OverloadedError) -> None:
        if error.retry_after is None:
            self._fail(f"{kind}: turned away without advice: {error}")
            return
        wait = error.retry_after * self._chance.uniform(1.0, 1.5)
        self._waiting.append((time.monotonic() + wait, kind, key, rho))

    def _with_one_paid(self, kind: str, paid: str, key: str, rho: float) -> None:
        if kind == "fit again":
            with contextlib.suppress(bursar.OverloadedError):
                self._timed(kind, lambda: self._fit(paid, key, bursar.rho(rho)))
        elif kind == "model":
            (entry, _), *_ = self._witness.receipts[key]
            with contextlib.suppress(bursar.OverloadedError):
                self._timed(kind, lambda: self._client.model(entry))
        else:
            self._refused(kind, bursar.RequestIdReusedError, paid, bursar.rho(2 * rho), key)

    def _decode(self, key: str) -> None:
        (entry, _), *_ = self._witness.receipts[key]
        with contextlib.suppress(bursar.OverloadedError):
            self._tap.request_id = self._key()
            self._timed(
                "decode again", lambda: self._data.fit(bursar.SketchKMeans(n_clusters=3, sketch=entry), progress=False)
            )

    def _refused(
        self, kind: str, expected: type[bursar.Error], fit: str, spend: bursar.Spend, key: str | None = None
    ) -> None:
        """Ask for what has to be refused."""
        try:
            self._timed(kind, lambda: self._fit(fit, key or self._key(), spend), expected)
        except expected:
            return
        except bursar.OverloadedError:
            return
        self._fail(f"{kind}: was not refused")

    def _fit(self, kind: str, key: str, spend: bursar.Spend) -> Any:
        self._tap.request_id = key
        try:
            if kind == "fit nonsense":
                return self._data.fit(bursar.DPEM(n_components=10**6), spend=spend, request_id=key, progress=False)
            return self._data.fit(FITS[kind], spend=spend, request_id=key, progress=False, anyway=True)
        except bursar.Error as error:
            with self._witness.lock:
                self._witness.refused[key][type(error).__name__] += 1
                if isinstance(error, bursar.BudgetExhaustedError) and error.requested and error.remaining:
                    self._witness.beyond.append((error.requested.cost_units, error.remaining.cost_units))
            raise

    def _timed(self, kind: str, act: Callable[[], Any], expected: type[bursar.Error] | None = None) -> Any:
        start, ended = time.perf_counter(), "answered"
        try:
            return act()
        except bursar.OverloadedError:
            ended = "turned away"
            raise
        except bursar.BudgetExhaustedError:
            ended = "refused"
            raise
        except bursar.Error as error:
            ended = "refused" if expected and isinstance(error, expected) else "failed"
            raise
        finally:
            with self._witness.lock:
                self._witness.seconds[kind, ended].append(time.perf_counter() - start)

    def _key(self) -> str:
        self._serial += 1
        return f"{self._number}-{self._serial}"

    def _fail(self, text: str) -> None:
        with self._witness.lock:
            self._witness.failures.append(text)


# --- the run ------------------------------------------------------------------------------------------------------


def files_of(process: psutil.Process) -> int | None:
    """Descriptors that a process has open; None if its owner alone may see them."""
    try:
        return int(process.num_fds())
    except psutil.AccessDenied:
        return None


def sample(process: psutil.Process, start: float, entries: int) -> Sample:
    """The server now."""
    parents, fits = process.children(), 0.0
    children = [child for parent in parents for child in parent.children(recursive=True)]
    for child in children:
        with contextlib.suppress(psutil.Error):  # a fit that has just ended
            memory = child.memory_full_info()
            fits += getattr(memory, "pss", memory.rss)
    return Sample(
        time.monotonic() - start,
        process.memory_info().rss / 2**20,
        sum(parent.memory_info().rss for parent in parents) / 2**20,
        fits / 2**20,
        files_of(process),
        1 + len(parents) + len(children),
        entries,
    )


def loaded(folder: Path, *, clients: int, seconds: float, rows: int = ROWS, seed: int = 1) -> Story:
    """Run the load, and read what came of it.

    Args:
        folder: empty.
        clients: how many, each a thread, a token and a connection.
        seconds: that they ask for.
        rows: of the table.
        seed: of their choices.
    """
    home = Home.make(folder, rows=rows, analysts=clients, epsilon=EPSILON, settings=SETTINGS)
    witness, samples = Witness(), []
    with home.served() as served, Ledger.open(home.ledger) as ledger:
        process = psutil.Process(served.pid)
        with served.client() as first:
            total = first.dataset(TABLE).remaining().rho
        time.sleep(1.0)  # until that connection is gone
        idle = files_of(process)
        pace = Pace(total, seconds)
        callers = [Caller(served, number, witness, pace, seed) for number in range(clients)]
        start = time.monotonic()
        threads = [threading.Thread(target=caller.ask_until, args=(start + seconds,)) for caller in callers]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            samples.append(sample(process, start, ledger.newest()[0]))
            time.sleep(SAMPLE_SECONDS)
        last_refused = callers[0].take_the_rest()
        for caller in callers:
            caller.close()
        time.sleep(2.0)
        after = files_of(process)
    return _told(home, witness, tuple(samples), last_refused, (idle, after))


def _told(
    home: Home,
    witness: Witness,
    samples: tuple[Sample, ...],
    last_refused: bool,
    idle: tuple[int | None, int | None],
) -> Story:
    with Ledger.open(home.ledger) as ledger:
        state = ledger.dataset(TABLE)
        debits = []
        for record in ledger.releases():
            stored = ledger.release(record.entry)
            digest = None if stored is None else hashlib.sha256(stored).digest()
            debits.append(Debit(record.entry, record.request_id, record.price.cost_units, digest))
    return Story(
        witness=witness,
        debits=tuple(debits),
        cap=state.cap_cost_units,
        spent=state.spent_cost_units,
        left=state.remaining.cost_units,
        last_refused=last_refused,
        verified=_verified(home),
        samples=samples,
        idle=idle,
    )


def _verified(home: Home) -> str:
    """Return what an auditor's program says of the ledger's file and its checkpoints; "" if something is not right."""
    command = [sys.executable, "-m", "bursar_ledger.audit", "verify", str(home.ledger)]
    command += ["--checkpoints", str(home.state / "checkpoints")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode else done.stdout.strip()


def report(story: Story) -> Json:
    """Tables on the terminal, and the same as JSON."""
    found: Json = {"kinds": {}}
    print(f"\n{'call':>14} {'ended':>12} {'number':>7} {'p50 ms':>8} {'p99 ms':>8}")
    for (kind, ended), seconds in sorted(story.witness.seconds.items()):
        times = sorted(1e3 * one for one in seconds)
        p50, p99 = statistics.median(times), times[min(len(times) - 1, math.ceil(0.99 * len(times)) - 1)]
        print(f"{kind:>14} {ended:>12} {len(times):>7} {p50:>8.1f} {p99:>8.1f}")
        found["kinds"].setdefault(kind, {})[ended] = {"number": len(times), "p50_ms": p50, "p99_ms": p99}
    told = {
        "debits": len(story.debits),
        "units_spent": story.spent,
        "units_left": story.left,
        "units_total": story.cap,
        "refused_by_budget": len(story.witness.beyond),
        "turned_away": sum(
            len(seconds) for (_, ended), seconds in story.witness.seconds.items() if ended == "turned away"
        ),
        "asked_again_after_that": sum(
            1
            for one, ends in story.witness.refused.items()
            if ends["OverloadedError"] and story.witness.receipts.get(one)
        ),
        "files_before": story.idle[0],
        "files_most": max((one.files or 0 for one in story.samples), default=0),
        "files_after": story.idle[1],
        "processes_most": max((one.processes for one in story.samples), default=0),
    }
    found |= told
    print("\n" + "\n".join(f"{name.replace('_', ' '):>24}  {value}" for name, value in told.items()))
    for name, slope in slopes(story.samples).items():
        print(f"{'memory of ' + name:>34}  {slope} MiB a minute")
        found[f"memory of {name}"] = {
            "mib": slope.level,
            "mib_a_minute": slope.rate,
            "standard_error": slope.error,
            "minutes": slope.span,
        }
    if by_entry := slope_by_entry(story.samples):
        print(f"{'memory by entry':>34}  {1024 * by_entry.rate:+.2f} +- {1024 * by_entry.error:.2f} KiB an entry")
        found["memory by entry"] = {
            "kib_an_entry": 1024 * by_entry.rate,
            "standard_error": 1024 * by_entry.error,
            "entries": by_entry.span,
        }
    found["flatness"] = flatness(story.samples)
    print("\n" + found["flatness"])
    print("\n" + (story.verified or "THE LEDGER DOES NOT VERIFY"))
    found["samples"] = [
        [round(number or 0, 1) for number in astuple(one)] for one in story.samples[:: max(1, len(story.samples) // 60)]
    ]
    found["samples_are"] = [one.name for one in fields(Sample)]
    found["second_opinion"] = next((line for line in story.verified.splitlines() if line.startswith("second")), "")
    found["problems"] = judged(story)
    print("\n" + ("\n".join(found["problems"]) or "everything holds"))
    return found


def main() -> None:
    """Runs the load and fails if something does not hold."""
    parser = options_of(__doc__, ("load",))
    parser.add_argument("--clients", type=int, help="64 if nothing is said, 16 with --quick; at most 256")
    options: argparse.Namespace = parser.parse_args()
    clients = options.clients or (16 if options.quick else 64)
    minutes = options.minutes or (0.5 if options.quick else 10.0)
    if not (1 <= clients <= 256 and 0 < minutes <= 60):
        raise SystemExit("expected 1 to 256 clients, and at most 60 minutes")
    config = Config()
    with tempfile.TemporaryDirectory() as folder:
        found = report(loaded(Path(folder), clients=clients, seconds=60 * minutes))
    settings = {
        "clients": clients,
        "minutes": minutes,
        "rows": ROWS,
        "think_seconds": THINK_SECONDS,
        "fit_workers": config.fit_workers,
        "queue_length": config.queue_length,
        "rpc_threads": config.rpc_threads,
        "response_quantum_seconds": config.response_quantum_seconds,
    }
    saved(output_of(options, __file__), "load", f"{clients} clients, {minutes:g} minutes", settings | found)
    if found["problems"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
