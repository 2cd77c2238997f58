"""The chaos run: `python bench/chaos.py [--kills 300] [--seed 1]`; a table, and bench/chaos.json.

A real server on one state directory is killed with SIGKILL and started again, that many times at random instants, while
clients with the SDK ask it for fits over TLS. A client that is cut off asks again with the same request_id until it has
its model; now and then it asks again for a model that it has. Every message that reaches a client is kept as bytes.

Kills at random instants:

instant         a third of them counted from the start of the server, two thirds from when it serves
cold start      the same for `bursar-server run` as a fresh process (the others are forked from one that has imported)

and between them, in addition:

named point     by itself, at a passage of one of the points of `_chaos_server.py`
disk full       after a while in which the kernel refuses what would make its files larger (RLIMIT_FSIZE), sometimes
                lifted before the kill
busy            after a while in which another process held the ledger's write lock for longer than a decision waits
second server   after another server was started on its state directory, which must refuse
lost lock       the same after every file was removed whose name says that it is a lock
descriptors     after a while with hardly any descriptors left (RLIMIT_NOFILE), of the server or of the parent of fits
stopped         after SIGSTOP of the server, sometimes continued before the kill
fits stopped    after SIGSTOP of every fit under way, sometimes continued before the kill
fits killed     after SIGKILL of the processes of fits for a while; what they ran has failed, and stays so
parent of fits  not by a signal: the process that fits are forked from was killed, and the server ends by itself
file replaced   after the ledger's `-wal` was deleted under it, or its database replaced by a copy: from then on it
                takes no debit, draws no noise and says NOT_SERVING. What was taken away is put back before the next
                start; until then a start refuses
read-only       after a read-only file system was mounted over its state directory; a start on it refuses in a sentence

Two come between a kill and the next start:

log lost        the ledger's `-wal` is taken away, or its mark: a start refuses and changes nothing, until it is back
rows changed    a byte of the table's rows is another: a server refuses fits of it before the debit

What the kernel holds survives a SIGKILL; that a commit also survives a power cut is SQLite's promise
(`synchronous=FULL`), and is not shown here.

At the end everything that was ever asked is asked once more, and the ledgers are read. The run fails if a request that
was debited cannot be answered, if two answers to one request differ in a byte, among themselves or from what is stored,
if a request was debited twice, if a release has no debit, or if a ledger does not verify. Servers verify theirs at
every start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import resource
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

import bursar
from bursar._process import command
from bursar_ledger import Ledger, verify
from bursar_proto.v1 import fit_pb2
from bursar_server.admin.cli import main as admin

PATIENCE = 600.0
"""Seconds after which a server or a client hangs, which is a failure of the run."""
RHO = 1e-6
BUSY_SECONDS = 0.2
QUANTUM_SECONDS = 0.02
CLIENTS = 4
_LACKS = "put back"
"""Part of what a start says whose ledger lacks confirmed entries."""
FAILURES = 3
"""Number of failures that a server reports until a client takes one for the answer."""
REPLAYS = 0.25
"""Share of a client's questions that it has the answer to."""

POINTS = (
    "before the debit",
    "inside the debit's transaction",
    "after the debit",
    "before noise is drawn",
    "after noise is drawn",
    "before the release is stored",
    "inside the release's transaction",
    "after the release is stored",
)
"""Points where a server may kill itself, set by `_chaos_server.py`, in the order of a request's way."""

MANIFEST = """
name = "people"
adjacency = "replace_one"
[[columns]]
name = "x"
kind = "numeric"
lower = -1.0
upper = 1.0
[[columns]]
name = "y"
kind = "numeric"
lower = 0.0
upper = 10.0
"""


class ChaosError(Exception):
    """Something happened that must not, whatever is killed."""


_TOLD = ("the ledger cannot be used", "the release could not be stored")
"""Messages of servers that live and cannot write; other failures are of the connection."""


# --- what clients saw ---------------------------------------------------------------------------------------


@dataclass
class Witness:
    """Every message of a fit that reached a client, as bytes.

    Attributes:
        receipts: by request_id, how often each came.
        answers: likewise, the messages with a model.
        failed: by request_id, the texts of the server that a fit failed.
        cut_off: calls that failed, by what the server was going through and by error.
        failures: what no client may ever see.
    """

    receipts: dict[str, Counter[bytes]] = field(default_factory=lambda: defaultdict(Counter))
    answers: dict[str, Counter[bytes]] = field(default_factory=lambda: defaultdict(Counter))
    failed: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    cut_off: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, request_id: str, message: bytes) -> None:
        """A message of a fit."""
        kind = fit_pb2.FitDPEMResponse.FromString(message).WhichOneof("event")
        with self._lock:
            if kind == "receipt":
                self.receipts[request_id][message] += 1
            elif kind == "model":
                self.answers[request_id][message] += 1

    def was_cut_off(self, phase: str, error: Exception) -> None:
        """A call failed, after the SDK's own repetitions, in a way that a client may ask again after."""
        told = next((text for text in _TOLD if text in str(error)), type(error).__name__)
        with self._lock:
            self.cut_off[phase, told] += 1

    def heard_of_failure(self, request_id: str, text: str) -> int:
        """Note the server's word that a fit failed. Return how often it has said so."""
        with self._lock:
            self.failed[request_id][text] += 1
            return self.failed[request_id].total()


class _Tap:
    """A channel that shows the witness what comes in, before anything decodes it.

    Attributes:
        request_id: of the call under way; a channel has one at a time.
    """

    def __init__(self, channel: grpc.Channel, witness: Witness) -> None:
        self._channel = channel
        self._witness = witness
        self.request_id = ""

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **more: Any
    ) -> Any:
        """The channel's own, with a decoder that shows the bytes first."""

        def shown(message: bytes) -> Any:
            if method.endswith("/FitDPEM"):
                self._witness.saw(self.request_id, message)
            return response_deserializer(message)

        return self._channel.unary_stream(method, request_serializer, shown, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


# --- one server after the other, on one state directory -----------------------------------------------------


@dataclass(frozen=True)
class Blow:
    """End of a server.

    Attributes:
        kind: as in the table above.
        seconds: to the kill, for the kinds that are killed from outside.
        served: for "instant": whether they count from when it serves, not from its start.
        point: for "named point".
        passage: at which passage of the point.
        lifted: whether the trouble ends before the kill. "file replaced": whether it is the database.
        room: "disk full": bytes that the ledger's log may still grow by. "descriptors": 4,096 for each that is left.
    """

    kind: str
    seconds: float
    served: bool = False
    point: str | None = None
    passage: int = 1
    lifted: bool = False
    room: int = 0


def blows(kills: int, chance: random.Random, *, mounts: bool = True) -> list[Blow]:
    """Return that many ends at random instants and some of every other kind between them, in random order.

    Args:
        kills: at random instants.
        chance: decides instants and order.
        mounts: whether file systems can be mounted here.
    """
    cold = max(1, kills // 30)
    times = {
        "cold start": cold,
        "instant": kills - cold,
        "named point": max(4, kills * 3 // 10),
        "disk full": max(2, kills // 10),
        "busy": max(2, kills // 20),
        "second server": max(1, kills // 100),
        "lost lock": max(1, kills // 100),
        "descriptors": max(4, kills // 20),
        "stopped": max(2, kills // 20),
        "fits stopped": max(2, kills // 20),
        "fits killed": max(2, kills // 20),
        "parent of fits": max(1, kills // 50),
        "file replaced": max(2, kills // 50),
        "log lost": max(1, kills // 50),
        "rows changed": max(1, kills // 50),
        **({"read-only": max(2, kills // 50)} if mounts else {}),
    }
    found = [_blow(kind, i, chance) for kind, some in times.items() for i in range(some)]
    chance.shuffle(found)
    return found


def _blow(kind: str, i: int, chance: random.Random) -> Blow:
    point = POINTS[i % len(POINTS)] if kind == "named point" else None
    seconds = chance.uniform(0.0, 6.0 if kind == "cold start" else 1.0)
    room = 4096 * chance.randrange(16)
    return Blow(kind, seconds, bool(i % 3), point, chance.randint(1, 6), bool(i % 2), room)


class Home:
    """A state directory with one table, an analyst's token, and a port that stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.ledger = self.state / "ledger.sqlite"
        self.log = folder / "server.log"
        self.ready = folder / "ready"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        folder.mkdir()
        rows = [f"{0.5 - i % 2 + 1e-3 * (i % 97)},{2.5 + 5 * (i % 2)}" for i in range(400)]
        (folder / "rows.csv").write_text("\n".join(["x,y", *rows]))
        (folder / "people.toml").write_text(MANIFEST)
        state = ("--state", str(self.state))
        _admin("init", *state)
        files = ("--manifest", str(folder / "people.toml"), "--csv", str(folder / "rows.csv"))
        _admin("import", *state, *files, "--epsilon", "3", "--delta", "1e-6")
        _admin("token", "issue", *state, "--name", "ann", "--role", "analyst", "--out", str(folder / "token"))
        self.token = (folder / "token").read_text()
        (self.state / "config.toml").write_text(f"response_quantum_seconds = {QUANTUM_SECONDS}\n")

    def channel(self) -> grpc.Channel:
        """A connection that comes back soon after the server does."""
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.min_reconnect_backoff_ms", 50)]
        options.append(("grpc.max_reconnect_backoff_ms", 200))
        ca = (self.state / "tls" / "ca.pem").read_bytes()
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(ca), options)

    @property
    def wal(self) -> Path:
        """SQLite's log of what is not in the database yet."""
        return self.ledger.with_name(f"{self.ledger.name}-wal")

    @property
    def runs(self) -> int:
        """Count the runs of fits so far, of forked servers."""
        return (self.folder / "runs").stat().st_size if (self.folder / "runs").exists() else 0

    def files(self) -> dict[Path, bytes]:
        """Read the files of the ledger that are there."""
        return {file: file.read_bytes() for file in (self.ledger, self.wal) if file.exists()}

    def debits(self) -> int:
        """Count the debits of a server that is dead."""
        return self._count("mode=ro", "WHERE kind = 'debit'")

    def needs_log(self) -> bool:
        """Return whether the database of a dead server lacks entries that only its log has."""
        return self._count("immutable=1") < self._count("mode=ro")

    def _count(self, how: str, which: str = "") -> int:
        with closing(sqlite3.connect(f"{self.ledger.as_uri()}?{how}", uri=True)) as file:
            return int(file.execute(f"SELECT count(*) FROM entries {which}").fetchone()[0])  # noqa: S608  from here

    def done_for(self, request_ids: Sequence[str]) -> Counter[str]:
        """Return how far requests came, read from the file of a server that is dead."""
        with closing(sqlite3.connect(f"{self.ledger.as_uri()}?mode=ro", uri=True)) as file:
            return Counter(_done_for(file, request_id) for request_id in request_ids)


def _done_for(file: sqlite3.Connection, request_id: str) -> str:
    found = file.execute(
        "SELECT r.debit FROM entries e LEFT JOIN releases r ON r.debit = e.number"
        " WHERE e.kind = 'debit' AND e.request_id = ?",
        [request_id],
    ).fetchone()
    if found is None:
        return "before the debit was durable"
    return "between debit and release" if found[0] is None else "between release and answer"


def _admin(*arguments: str) -> None:
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        try:
            admin(arguments, standalone_mode=False)
        except click.ClickException as error:
            raise ChaosError(f"bursar-admin {arguments[0]}: {error.format_message()}") from None


class Lane:
    """A home, the servers that live and die on it one after the other, and its clients.

    Attributes:
        home: the state directory.
        witness: of its clients.
        kills: by kind of blow, the points each a kind.
        unfinished: requests under way at a kill, by how far they had come.
        refusals: starts that were refused, by reason.
        fits_killed: processes of fits that were killed.
    """

    def __init__(self, home: Home, name: str, seed: int) -> None:
        self.home = home
        self.witness = Witness()
        self.kills: Counter[str] = Counter()
        self.unfinished: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.fits_killed = 0
        self._name = name
        self._phase = "instant"
        self._asking: dict[int, str] = {}
        self._answered: list[str] = []
        self._finish = threading.Event()
        self._give_up = threading.Event()
        self._chance = random.Random(seed)
        self._server: int | None = None
        self._forker = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("_chaos_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._told()

    def run(self, ends: Sequence[Blow], tell: Callable[[], object]) -> None:
        """Start and kill a server for every blow under the load of the clients, then ask for everything once more."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(self._client, i, self._chance.randrange(2**32)) for i in range(CLIENTS)]
            try:
                for blow in ends:
                    self._strike(blow)
                    tell()
                self._phase = "at the end"
                last = self._start(None, 1)
                self._wait_ready(last)
                self._finish.set()
                for client in clients:
                    client.result(PATIENCE)
                for again in [pool.submit(self._replay_all, i) for i in range(CLIENTS)]:
                    again.result(PATIENCE)
            finally:
                self._finish.set()
                self._give_up.set()
        os.kill(last, signal.SIGTERM)
        if (status := self._ended(last)) != 0:
            raise ChaosError(f"the last server ended with {status}: {self._log()}")

    def close(self) -> None:
        """End the server, if a failure of the run has left it, and the process that forks servers."""
        if self._server is not None:
            os.kill(self._server, signal.SIGKILL)
        if self._forker.stdin:
            self._forker.stdin.close()
        self._forker.wait(PATIENCE)
        if self._forker.stdout:
            self._forker.stdout.close()

    # -- servers

    def _told(self, order: Mapping[str, object] | None = None) -> str:
        if self._forker.stdin is None or self._forker.stdout is None:
            raise ChaosError("the process that forks servers has no pipes")
        if order is not None:
            self._forker.stdin.write(json.dumps(order) + "\n")
            self._forker.stdin.flush()
        if not (answer := self._forker.stdout.readline().strip()):
            raise ChaosError("the process that forks servers has ended")
        return answer

    def _start(self, point: str | None, passage: int) -> int:
        self.home.ready.unlink(missing_ok=True)
        order = {"folder": str(self.home.folder), "address": self.home.address, "busy_seconds": BUSY_SECONDS}
        self._server = int(self._told({"start": {**order, "point": point, "passage": passage}}))
        return self._server

    def _ended(self, server: int, seconds: float = PATIENCE) -> int | None:
        """Exit status of a server that ends within that time, else None."""
        if not _ends(server, seconds):
            return None
        self._server = None
        return int(self._told({"wait": server}))

    def _wait_ready(self, server: int, *, may_end: bool = False) -> None:
        until = time.monotonic() + PATIENCE
        while not (self.home.ready.exists() and self.home.ready.read_text()):
            ended = _ends(server, 0.005)
            if ended and may_end:
                return
            if ended or not time.monotonic() < until:
                raise ChaosError(f"a server did not start: {self._log()}")

    def _log(self) -> str:
        return self.home.log.read_text()[-2000:] if self.home.log.exists() else ""

    def _strike(self, blow: Blow) -> None:
        self._phase = blow.kind
        if blow.kind == "cold start":
            self._strike_cold(blow)
            return
        server = self._start(blow.point, blow.passage)
        kind = blow.kind
        if kind != "instant" or blow.served:
            # A client that waits may pass the point before the server says that it serves.
            self._wait_ready(server, may_end=blow.point is not None)
        if kind == "instant":
            time.sleep(blow.seconds)
        if blow.point is not None:
            # It needs clients that ask for something new; if none comes by, it is killed from outside.
            kind = f"at a named point: {blow.point}" if _ends(server, 5.0) else "instant"
        elif kind == "parent of fits":
            self._kill_parent(server, blow)
            return
        elif kind in _FAULTS:
            _FAULTS[kind](self, server, blow)
        elif kind in _BETWEEN:
            time.sleep(blow.seconds / 2)
        if kind == "instant" and not (self.home.ready.exists() and self.home.ready.read_text()):
            kind = "while starting"
        os.kill(server, signal.SIGKILL)
        self._count(kind, self._ended(server))
        if kind in _BETWEEN:
            _BETWEEN[kind](self)

    def _strike_cold(self, blow: Blow) -> None:
        cold = command(self.home.state, self.home.address)
        with (
            self.home.log.open("w") as log,
            subprocess.Popen(cold, stdout=subprocess.PIPE, stderr=log, text=True) as server,
        ):
            time.sleep(blow.seconds)
            server.kill()
            said = server.stdout.read() if server.stdout else ""
            self._count("cold start, serving" if said else "cold start, before it served", server.wait(PATIENCE))

    def _fill_disk(self, server: int, blow: Blow) -> None:
        wal = self.home.wal
        time.sleep(blow.seconds / 4)
        _, hard = resource.prlimit(server, resource.RLIMIT_FSIZE)
        # Never below the 32 kB of SQLite's shared index, whose lack would be another trouble.
        limit = max(2**15, wal.stat().st_size if wal.exists() else 0) + blow.room
        resource.prlimit(server, resource.RLIMIT_FSIZE, (limit if blow.room % 8192 else 2**15 + blow.room, hard))
        time.sleep(0.2 + blow.seconds / 2)
        if blow.lifted:
            resource.prlimit(server, resource.RLIMIT_FSIZE, (hard, hard))
            time.sleep(blow.seconds / 4)

    def _hold_lock(self, server: int, blow: Blow) -> None:
        with closing(sqlite3.connect(self.home.ledger, isolation_level=None, timeout=PATIENCE)) as other:
            other.execute("BEGIN IMMEDIATE")
            time.sleep(2 * BUSY_SECONDS + blow.seconds / 2)
            if not blow.lifted:
                os.kill(server, signal.SIGKILL)
                _ends(server, PATIENCE)
            other.execute("ROLLBACK")
        time.sleep(blow.seconds / 4)

    def _start_second(self, server: int, blow: Blow) -> None:
        self._refused_start("another bursar-server", beside=True)

    def _lose_lock(self, server: int, blow: Blow) -> None:
        for lock in self.home.state.rglob("*.lock"):
            lock.unlink()
        self._start_second(server, blow)

    def _starve(self, server: int, blow: Blow) -> None:
        process = server if blow.room % 8192 else _parent_of_fits(server)
        soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
        left = sum(1 for _ in Path(f"/proc/{process}/fd").iterdir()) + blow.room // 4096
        resource.prlimit(process, resource.RLIMIT_NOFILE, (left, hard))
        time.sleep(0.2 + blow.seconds)
        if blow.lifted:
            resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
            time.sleep(blow.seconds / 2)

    def _stop(self, server: int, blow: Blow) -> None:
        time.sleep(blow.seconds / 4)
        self._hold([server], blow)

    def _stop_fits(self, server: int, blow: Blow) -> None:
        self._hold(self._some_fits(server), blow)

    def _hold(self, processes: Sequence[int], blow: Blow) -> None:
        for process in processes:
            _signal(process, signal.SIGSTOP)
        time.sleep(blow.seconds)
        if blow.lifted:
            for process in processes:
                _signal(process, signal.SIGCONT)
            time.sleep(blow.seconds / 4)

    def _kill_fits(self, server: int, blow: Blow) -> None:
        until = time.monotonic() + 0.2 + blow.seconds
        while time.monotonic() < until:
            fits = self._some_fits(server)
            time.sleep(self._chance.uniform(0.0, 0.05))  # some have opened the rows by then
            self.fits_killed += sum(_signal(fit, signal.SIGKILL) for fit in fits)

    def _kill_parent(self, server: int, blow: Blow) -> None:
        time.sleep(blow.seconds / 2)
        parent = _parent_of_fits(server)
        _signal(parent, signal.SIGSTOP)
        self.fits_killed += len(_children(parent))
        _signal(parent, signal.SIGKILL)
        self._count("parent of fits", self._ended(server), expected=1)

    def _some_fits(self, server: int) -> list[int]:
        """Wait for fits under way, a while."""
        parent, until = _parent_of_fits(server), time.monotonic() + 1.0
        while not (found := _children(parent)) and time.monotonic() < until:
            time.sleep(0.001)
        return found

    def _replace_file(self, server: int, blow: Blow) -> None:
        time.sleep(blow.seconds / 2)
        file = self.home.ledger if blow.lifted else self.home.wal
        was = _open_file(server, file)
        if blow.lifted:
            shutil.copy(file, copy := file.with_name("copy"))
            copy.replace(file)
        else:
            file.unlink()
        self._wait_for_condition(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._wait_for_no_runs()
        kept = was.read_bytes()
        os.kill(server, signal.SIGKILL)
        _ends(server, PATIENCE)
        if not blow.lifted:
            file.write_bytes(kept)
            needed = self.home.needs_log()
            file.unlink()
            if needed:
                self._refused_start(_LACKS)
        file.write_bytes(kept)

    def _wait_for_condition(self, wanted: object) -> None:
        until = time.monotonic() + PATIENCE
        with self.home.channel() as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            # A connection that fails while the processors are busy is tried again.
            while stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE, wait_for_ready=True).status != wanted:
                if not time.monotonic() < until:
                    raise ChaosError("health says that a server serves whose ledger was taken away")
                time.sleep(0.02)

    def _wait_for_no_runs(self) -> None:
        """Wait until what was debited before is done, and see that nothing comes after it."""
        until, size = time.monotonic() + PATIENCE, -1
        while size != (size := self.home.runs):
            if not time.monotonic() < until:
                raise ChaosError("fits go on though the ledger was taken away")
            time.sleep(1.0)

    def _cover(self, server: int, blow: Blow) -> None:
        time.sleep(blow.seconds / 4)
        with _read_only(self.home.state):
            time.sleep(0.2 + blow.seconds / 2)
            if not blow.lifted:
                os.kill(server, signal.SIGKILL)
                _ends(server, PATIENCE)
                self._refused_start("read-only")

    def _lose_log(self) -> None:
        mark = self.home.ledger.with_name(f"{self.home.ledger.name}-mark")
        for file in [mark, *([self.home.wal] if self.home.needs_log() else [])]:
            away = file.rename(self.home.folder / "away")
            self._refused_start(_LACKS)
            away.rename(file)

    def _change_rows(self) -> None:
        (file,) = self.home.state.glob("datasets/**/rows.arrow")
        content = bytearray(kept := file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        before = self.home.debits()
        server = self._start(None, 1)
        self._wait_ready(server)
        time.sleep(1.0)
        os.kill(server, signal.SIGKILL)
        self._count("rows changed, served", self._ended(server))
        if self.home.debits() != before:
            raise ChaosError("a fit of changed rows was debited")
        file.write_bytes(kept)

    def _refused_start(self, reason: str, *, beside: bool = False) -> None:
        """Start a server that must refuse in a sentence, and change nothing.

        Args:
            reason: words of the refusal.
            beside: another server runs, and goes on to write.
        """
        before = self.home.files()
        start = command(self.home.state)
        tried = subprocess.run(start, capture_output=True, text=True, check=False, timeout=PATIENCE)
        if tried.returncode != 1 or reason not in tried.stderr.lower() or "Traceback" in tried.stderr:
            raise ChaosError(f"a start was not refused for {reason}: {tried.returncode} {tried.stdout}{tried.stderr}")
        if not beside and self.home.files() != before:
            raise ChaosError(f"a start that was refused for {reason} changed the ledger")
        self.refusals[reason] += 1

    def _count(self, kind: str, status: int | None, expected: int = -signal.SIGKILL) -> None:
        if status != expected:
            raise ChaosError(f"a server ended with {status}, expected {expected}: {self._log()}")
        self.kills[kind] += 1
        self.unfinished.update(self.home.done_for(list(self._asking.values())))

    # -- clients

    @contextlib.contextmanager
    def _sdk(self) -> Iterator[tuple[_Tap, bursar.Client]]:
        with self.home.channel() as channel:
            tap = _Tap(channel, self.witness)
            delays = [0.05] * 10
            yield (
                tap,
                bursar.Client(
                    cast(grpc.Channel, tap),
                    token=self.home.token,
                    timeout=PATIENCE / 4,
                    retry_delays=delays,
                    patience=0.0,  # asks again at once, whatever a server advises
                ),
            )

    def _client(self, number: int, seed: int) -> None:
        chance = random.Random(seed)
        with self._sdk() as (tap, client):
            people = self._persist(client.datasets)[0]
            serial = 0
            while not self._finish.is_set():
                if again := self._answered and chance.random() < REPLAYS:
                    request_id = chance.choice(self._answered)
                else:
                    serial += 1
                    request_id = self._asking[number] = f"{self._name}-{number}-{serial}"
                tap.request_id = request_id
                self._ask(people, request_id)
                if not again:
                    del self._asking[number]
                    self._answered.append(request_id)
                time.sleep(chance.uniform(0.0, 0.05))

    def _ask(self, people: bursar.Dataset, request_id: str) -> None:
        def ask() -> None:
            try:
                people.fit(
                    bursar.DPEM(n_components=2, columns=["x", "y"], iterations=2),
                    spend=bursar.rho(RHO),
                    request_id=request_id,
                    progress=False,
                    anyway=True,
                )
            except bursar.ServerError as error:
                # Fits that were debited before the rows changed cannot open them, and are run again when they are back.
                later = error.incident is None or self._phase == "rows changed"
                if later or self.witness.heard_of_failure(request_id, str(error)) < FAILURES:
                    raise

        self._persist(ask)

    def _replay_all(self, part: int) -> None:
        with self._sdk() as (tap, client):
            people = self._persist(client.datasets)[0]
            for request_id in self._answered[part::CLIENTS]:
                tap.request_id = request_id
                self._ask(people, request_id)

    def _persist(self, ask: Callable[[], Any]) -> Any:
        """The answer, however often the server dies meanwhile."""
        while True:
            try:
                return ask()
            except (bursar.TransportError, bursar.ServerError, bursar.OverloadedError) as error:
                self.witness.was_cut_off(self._phase, error)
                if self._give_up.is_set():
                    raise
            except bursar.Error as error:
                self.witness.failures.append(f"{type(error).__name__}: {error}")
                raise
            time.sleep(0.02)


_FAULTS: Mapping[str, Callable[[Lane, int, Blow], None]] = {
    "disk full": Lane._fill_disk,
    "busy": Lane._hold_lock,
    "second server": Lane._start_second,
    "lost lock": Lane._lose_lock,
    "descriptors": Lane._starve,
    "stopped": Lane._stop,
    "fits stopped": Lane._stop_fits,
    "fits killed": Lane._kill_fits,
    "file replaced": Lane._replace_file,
    "read-only": Lane._cover,
}
"""Faults of a running server, before its kill."""

_BETWEEN: Mapping[str, Callable[[Lane], None]] = {"log lost": Lane._lose_log, "rows changed": Lane._change_rows}
"""Faults between a kill and the next start."""


def _children(process: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def _parent_of_fits(server: int) -> int:
    (found,) = [one for one in _children(server) if Path(f"/proc/{one}/comm").read_text() == "bursar-fits\n"]
    return found


def _signal(process: int, number: int) -> bool:
    """Send a signal. Return whether the process was still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
        return True
    return False


def _open_file(process: int, file: Path) -> Path:
    """Name a file by the descriptor that a process has of it: it can be read when its name is gone."""
    return next(one for one in Path(f"/proc/{process}/fd").iterdir() if str(one.readlink()) == str(file))


@contextlib.contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """Mount a folder over itself, read-only: files that are open stay as they are, others cannot be written."""
    _mount("mount", "--bind", str(folder), str(folder))
    try:
        _mount("mount", "-o", "remount,bind,ro", str(folder))
        yield
    finally:
        _mount("umount", "--lazy", str(folder))


def _mount(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChaosError(f"{' '.join(command)}: {done.stderr.strip()}")


def cannot_mount() -> str | None:
    """Return why no file system can be mounted here; None if one can."""
    try:
        with tempfile.TemporaryDirectory() as folder, _read_only(Path(folder)):
            return None
    except (ChaosError, OSError) as error:
        return str(error)


def _ends(process: int, seconds: float) -> bool:
    """Return whether a process ends within that time; it is not reaped."""
    descriptor = os.pidfd_open(process)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


# --- what is true at the end --------------------------------------------------------------------------------


@dataclass
class Findings:
    """Counts over all lanes; the last group must be zero.

    Attributes:
        kills: by kind.
        unfinished: requests under way at a kill, by how far they had come.
        cut_off: calls that failed, by what the server was going through and by error.
        requests: different ones that were answered.
        debits: entries.
        releases: stored.
        runs: of the fit, as far as forked servers counted them.
        replays: answers beyond the first to a request.
        refusals: starts that were refused, by reason.
        fits_killed: processes of fits that were killed.
        failed: requests whose fit failed because its process was killed; they are paid for, and stay without a model.
        losses: debited or receipted requests without an answer, or with an answer that is not the stored bytes.
        double_spends: debits beyond one a request, or a sum that is not that of the debits.
        two_answers: requests of which clients saw two different answers or receipts.
        problems: what else must not be: ledgers that do not verify, releases without a debit, broken promises.
    """

    kills: Counter[str] = field(default_factory=Counter)
    unfinished: Counter[str] = field(default_factory=Counter)
    cut_off: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    debits: int = 0
    releases: int = 0
    runs: int = 0
    replays: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    fits_killed: int = 0
    failed: int = 0
    losses: int = 0
    double_spends: int = 0
    two_answers: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return whether every promise was kept."""
        return not (self.losses or self.double_spends or self.two_answers or self.problems)

    def add(self, lane: Lane) -> None:
        """Compare what a lane's clients saw with its ledger, whose server has ended."""
        witness = lane.witness
        self.kills += lane.kills
        self.unfinished += lane.unfinished
        self.refusals += lane.refusals
        self.fits_killed += lane.fits_killed
        for (phase, error), times in witness.cut_off.items():
            self.cut_off[f"{phase}: {error}"] += times
        # A process that is killed while it opens rows has read none: its fit is told to have failed, and is run again.
        failed = {one for one in witness.failed if one not in witness.answers}
        self.requests += len(witness.answers) + len(failed)
        self.failed += len(failed)
        self.problems += [
            f"{one} failed in two ways: {sorted(texts)}" for one, texts in witness.failed.items() if len(texts) != 1
        ]
        if len(witness.failed) > lane.fits_killed:
            self.problems.append(f"{len(witness.failed)} fits failed, and {lane.fits_killed} were killed")
        self.replays += sum(answers.total() - 1 for answers in witness.answers.values())
        for seen in (witness.receipts, witness.answers):
            self.two_answers += sum(len(messages) != 1 for messages in seen.values())
        self.problems += witness.failures
        self.runs += (lane.home.folder / "runs").stat().st_size
        found = verify(lane.home.ledger)
        if not found.ok:
            self.problems += found.problems
            return
        with Ledger.open(lane.home.ledger) as ledger:
            debits = ledger.releases()
            stored = {debit.request_id: ledger.release(debit.entry) for debit in debits}
            self.releases += sum(entry.kind == "release" for entry in ledger.entries())
            state = ledger.dataset("people")
        self.debits += len(debits)
        self.double_spends += len(debits) - len(stored)
        self.double_spends += state.spent_cost_units != sum(debit.price.cost_units for debit in debits)
        paid = {*stored, *witness.receipts}
        self.losses += sum(_lost(stored.get(one), witness.answers.get(one), one in failed) for one in paid)

    def public(self) -> dict[str, object]:
        """Return values as JSON holds them."""
        return {
            "kills": {"all": self.kills.total(), **dict(sorted(self.kills.items()))},
            "requests_under_way_at_a_kill": dict(sorted(self.unfinished.items())),
            "calls_cut_off": dict(sorted(self.cut_off.items())),
            "starts_refused": dict(sorted(self.refusals.items())),
            "fits_killed": self.fits_killed,
            "requests": self.requests,
            "requests_whose_fit_was_killed": self.failed,
            "debits": self.debits,
            "releases": self.releases,
            "runs_of_the_fit_in_forked_servers": self.runs,
            "replays": self.replays,
            "losses": self.losses,
            "double_spends": self.double_spends,
            "requests_with_two_answers": self.two_answers,
            "problems": self.problems,
        }


def _lost(stored: bytes | None, answers: Counter[bytes] | None, failed: bool) -> bool:
    if failed:
        return stored != b""
    return not stored or answers is None or set(answers) != {stored}


def chaos(kills: int, seed: int, lanes: int, tell: Callable[[], object] = lambda: None) -> Findings:
    """Run it in a temporary folder.

    Args:
        kills: SIGKILLs at random instants, over all lanes.
        seed: of the instants; the order of events is the machine's.
        lanes: servers side by side.
        tell: called after every kill.

    Raises:
        ChaosError: a server ended by itself or did not start, or a second one did.
    """
    chance = random.Random(seed)
    ends = blows(kills, chance, mounts=cannot_mount() is None)
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, contextlib.ExitStack() as stack:
        made = [Lane(Home(Path(folder) / f"lane-{i}"), f"lane{i}", chance.randrange(2**32)) for i in range(lanes)]
        for lane in made:
            stack.callback(lane.close)
        with ThreadPoolExecutor(lanes) as pool:
            for done in [pool.submit(lane.run, ends[i::lanes], tell) for i, lane in enumerate(made)]:
                done.result()
        for lane in made:
            findings.add(lane)
    return findings


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="kill servers under load and look for what was lost or paid twice")
    parser.add_argument("--kills", type=int, default=300, help="at random instants; there are others in addition")
    parser.add_argument("--seed", type=int, default=1, help="of the instants")
    parser.add_argument("--lanes", type=int, default=1, help="servers side by side, which share the kills")
    parser.add_argument("--json", type=Path, default=Path(__file__).with_name("chaos.json"))
    arguments = parser.parse_args()
    if reason := cannot_mount():
        print(f'without the kind "read-only": {reason}', file=sys.stderr)
    began, strikes = time.monotonic(), Counter[str]()

    def tell() -> None:
        strikes["all"] += 1
        print(f"\r{strikes['all']} kills", end="", file=sys.stderr, flush=True)

    findings = chaos(arguments.kills, arguments.seed, arguments.lanes, tell)
    public = findings.public()
    print(file=sys.stderr)
    _show(public)
    machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "system": platform.platform()}
    setting = {"seed": arguments.seed, "lanes": arguments.lanes, "clients": CLIENTS * arguments.lanes, **machine}
    seconds = round(time.monotonic() - began)
    arguments.json.write_text(json.dumps({"setting": setting, "seconds": seconds, **public}, indent=2) + "\n")
    sys.exit(0 if findings.ok else 1)


def _show(public: Mapping[str, object]) -> None:
    for name, value in public.items():
        if isinstance(value, dict):
            print(name.replace("_", " "))
            for inner, times in value.items():
                print(f"  {inner:60} {times:8}")
        else:
            print(f"{name.replace('_', ' '):62} {value!s:>8}")


if __name__ == "__main__":
    main()
