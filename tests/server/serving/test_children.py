"""Fits in processes of their own: what becomes of them, of their debits, and of everybody else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import psutil
import pytest

from bursar_ledger import Adjacency, Ledger, Role, verify
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server import hardening, logs
from bursar_server.children import Children, ChildrenError, FitLimits
from bursar_server.computing import NO_RESULT, CutOffError, NothingReadError
from bursar_server.config import Config, ConfigError
from bursar_server.datasets import Datasets
from bursar_server.fits import Plan
from bursar_server.fitting import Fits, InProcess, Job, NoRows
from bursar_server.server import BursarServer
from bursar_server.tls import Certificates
from bursar_server.vault import LocalEngine, Rows, Session, gaussian_for
from tests.server.serving.conftest import COUNT, SENSITIVITY, FakeFit, refusal_of, request

if TYPE_CHECKING:
    from bursar_server.state import State

PATIENCE = 60.0
"""Seconds after which something hangs."""
SECRET = "row 17 holds 1.83"
MEMORY_MIB = 256
FOREVER = 1e6


def eventually(wanted: Callable[[], bool]) -> bool:
    """Whether something comes to be, within the patience of this file."""
    until = time.monotonic() + PATIENCE
    while not wanted():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def to_server(content: bytes) -> None:
    """Write to the one socket that a fit's process has."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, content)


class Naughty(FakeFit):
    """Does what a request's number of components stands for, after its one release.

    Args:
        folder: of the files by which it is seen and told what to do.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.shared = random.Random(1)

    def run(self, plan: Plan, session: Session) -> fit_pb2.GaussianMixtureModel:
        """Note that it ran, draw, and do it."""
        with (self.folder / "runs").open("a") as file:
            file.write("x")
        noisy = session.noisy_sum(COUNT, gaussian_for(SENSITIVITY, Fraction(1, 10**6))) if plan.events else [0.0]
        done = DOINGS[plan.parameters["n_components"]](self, plan, session)  # type: ignore[index]  # a number
        return fit_pb2.GaussianMixtureModel(columns=done or [], n_rows=float(noisy[0]), iterations=2)


Doing = Callable[[Naughty, Plan, Session], list[str] | None]
DOINGS: dict[int, Doing] = {}


def doing(number: int) -> Callable[[Doing], Doing]:
    """Register what a number of components stands for."""

    def registered(function: Doing) -> Doing:
        DOINGS[number] = function
        return function

    return registered


@doing(1)
def nothing(fit: Naughty, plan: Plan, session: Session) -> None:
    """Go on."""


@doing(2)
def steps(fit: Naughty, plan: Plan, session: Session) -> None:
    """Tell of three steps."""
    for step in range(1, 4):
        session.progress(step, 3)


@doing(3)
def wait(fit: Naughty, plan: Plan, session: Session) -> None:
    """Until a file is there."""
    (fit.folder / "pid").write_text(str(os.getpid()))
    (fit.folder / "waits").touch()
    while not (fit.folder / "go").exists():
        time.sleep(0.005)


@doing(4)
def tell(fit: Naughty, plan: Plan, session: Session) -> list[str]:
    """What this process has and may."""
    adjusted = Path("/proc/self/oom_score_adj").read_text().strip()
    found = [name for name in os.environ if name.startswith("BURSAR_")]
    files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]  # noqa: PTH115
    kinds = sorted(name.partition(":")[0] for name in files if not name.startswith("/proc"))
    signals = [signal.getsignal(number) is signal.SIG_IGN for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    return [
        f"oom {adjusted}",
        f"environment {found}",
        f"files {kinds}",
        f"core {resource.getrlimit(resource.RLIMIT_CORE)}",
        f"dumpable {ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)}",
        f"leader {os.getpgid(0) == os.getpid()} {os.getsid(0) == os.getppid()}",
        f"ignores {signals}",
        f"threads {threading.active_count()}",
    ]


@doing(5)
def draw(fit: Naughty, plan: Plan, session: Session) -> list[str]:
    """Sixteen draws of noise, and what a generator of the parent would give."""
    noise = [session.noisy_sum(COUNT, gaussian_for(SENSITIVITY, Fraction(1, 10**6)))[0] for _ in range(16)]
    return [str(noise), str(fit.shared.random())]


@doing(6)
def sleeper(fit: Naughty, plan: Plan, session: Session) -> None:
    """Start another process, and end before it does."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
    (fit.folder / "started").write_text(str(started.pid))


@doing(7)
def allocate(fit: Naughty, plan: Plan, session: Session) -> None:
    """A little less than there may be."""
    np.ones((MEMORY_MIB - 64) * 2**20, dtype=np.uint8)


@doing(8)
def locked(fit: Naughty, plan: Plan, session: Session) -> list[str]:
    """Whether its memory is locked."""
    status = Path("/proc/self/status").read_text()
    return [str("VmLck:\t       0 kB" not in status)]


FIRST_BAD = 20


@doing(20)
def raise_(fit: Naughty, plan: Plan, session: Session) -> None:
    """An exception that quotes a row."""
    raise ValueError(SECRET)


@doing(21)
def killed(fit: Naughty, plan: Plan, session: Session) -> None:
    """As by the kernel that is out of memory, or by a person."""
    os.kill(os.getpid(), signal.SIGKILL)


@doing(22)
def segfault(fit: Naughty, plan: Plan, session: Session) -> None:
    """Read where nothing is."""
    ctypes.string_at(0)


@doing(23)
def too_much(fit: Naughty, plan: Plan, session: Session) -> None:
    """More than there may be, by as much as this process may have given back of its own."""
    np.ones((MEMORY_MIB + 64) * 2**20, dtype=np.uint8)


@doing(24)
def too_long(fit: Naughty, plan: Plan, session: Session) -> None:
    """For ever, deaf to all signals that one can be deaf to."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    while True:
        pass


@doing(25)
def leaves(fit: Naughty, plan: Plan, session: Session) -> None:
    """Without a word."""
    os._exit(0)


@doing(26)
def leaves_badly(fit: Naughty, plan: Plan, session: Session) -> None:
    """With a status."""
    os._exit(3)


@doing(27)
def garbage(fit: Naughty, plan: Plan, session: Session) -> None:
    """Write what is no message."""
    to_server(b"\xff" * 1000)
    time.sleep(FOREVER)


@doing(28)
def half(fit: Naughty, plan: Plan, session: Session) -> None:
    """The beginning of a model, and then nothing."""
    to_server(struct.pack("!cQ", b"M", 1000) + b"x" * 500)
    os._exit(0)


@doing(29)
def huge(fit: Naughty, plan: Plan, session: Session) -> None:
    """Announce more than there can be."""
    to_server(struct.pack("!cQ", b"M", 2**62))
    time.sleep(FOREVER)


@doing(30)
def two_answers(fit: Naughty, plan: Plan, session: Session) -> None:
    """A model before the model."""
    to_server(struct.pack("!cQ", b"M", 0))


@doing(31)
def no_model(fit: Naughty, plan: Plan, session: Session) -> None:
    """A whole message that is no model."""
    to_server(struct.pack("!cQ", b"M", 3) + b"\xff\xff\xff")
    os._exit(0)


@doing(32)
def pretends(fit: Naughty, plan: Plan, session: Session) -> None:
    """Say after a draw that no row was read."""
    to_server(struct.pack("!cQ", b"N", 1) + b"x")
    os._exit(0)


@doing(33)
def hangs_up(fit: Naughty, plan: Plan, session: Session) -> None:
    """Close the socket and go on for ever."""
    os.closerange(3, 64)
    time.sleep(FOREVER)


@doing(34)
def dies_after_the_answer(fit: Naughty, plan: Plan, session: Session) -> None:
    """A whole model, and then a signal."""
    to_server(struct.pack("!cQ", b"M", 0))
    os.kill(os.getpid(), signal.SIGKILL)


BAD = sorted(number for number in DOINGS if number >= FIRST_BAD)
"""Ends of a fit that may depend on rows, as far as the server can tell."""


# --- without a server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Few:
    """Rows of nobody, or none to be had."""

    there: bool = True

    def open(self) -> Rows:
        """Forty rows."""
        if not self.there:
            raise FileNotFoundError(SECRET)
        from bursar_server.vault import ArrayRows

        return ArrayRows(np.zeros((1, 40)))


def job(number: int, **fields: Any) -> Job:
    """A paid fit that does what the number stands for."""
    events = () if isinstance(fields.get("rows"), NoRows) else (object(),)
    plan = Plan(columns=("height",), events=(), iterations=2, noise=(), parameters={"n_components": number})
    object.__setattr__(plan, "events", tuple("paid" for _ in events))
    defaults: dict[str, Any] = {
        "method": "FitDPEM",
        "plan": plan,
        "rows": Few(),
        "adjacency": Adjacency.REPLACE_ONE,
        "unit_cap": 1,
        "order": Fraction(9),
        "debited_units": 10**18,
        "engine": LocalEngine(1),
    }
    return Job(**(defaults | fields))


def model(made: bytes) -> fit_pb2.GaussianMixtureModel:
    """What a runner gave."""
    return fit_pb2.GaussianMixtureModel.FromString(made)


def silent(step: int, steps: int) -> None:
    """Hears no progress."""


@contextlib.contextmanager
def children_of(folder: Path, seconds: float = PATIENCE, memory_mib: int = MEMORY_MIB) -> Iterator[Children]:
    """The naughty fit in processes."""
    fits: Fits = {"FitDPEM": Naughty(folder)}
    with Children(fits, FitLimits(memory_mib, seconds)) as made:
        made.ready()
        yield made


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    """The naughty fit in processes, for as long as it likes."""
    with children_of(tmp_path) as made:
        yield made


def ends(children: Children, number: int, **fields: Any) -> logs.ElsewhereError:
    """How a fit ends that is not to come to an answer, after it drew."""
    with pytest.raises(logs.ElsewhereError) as caught:
        children.run(job(number, **fields), silent)
    return caught.value


def test_a_fit_in_a_process_answers_as_it_does_elsewhere(children: Children, tmp_path: Path) -> None:
    """Model and progress are the same, for what is paid for and for what is not."""
    for where in (children, InProcess({"FitDPEM": Naughty(tmp_path)})):
        heard: list[tuple[int, int]] = []
        made = model(where.run(job(2), lambda step, steps, heard=heard: heard.append((step, steps))))  # type: ignore[misc]
        assert heard == [(1, 3), (2, 3), (3, 3)]
        assert (made.iterations, abs(made.n_rows - 40) < 1e5) == (2, True)
        assert model(where.run(job(1, rows=NoRows()), silent)).n_rows == 0


def test_what_a_fits_process_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One socket and nothing else of the server's; a group of its own, no dumps, first to go, deaf to supervisors."""
    monkeypatch.setenv("BURSAR_TOKEN", SECRET)
    with (tmp_path / "secret").open("w"), socket.socket(), children_of(tmp_path) as children:
        told = list(model(children.run(job(4), silent)).columns)
    assert told == [
        "oom 1000",
        "environment []",
        "files ['/dev/null', '/dev/null', '/dev/null', 'socket']",
        "core (0, 0)",
        "dumpable 0",
        "leader True True",
        "ignores [True, True, True]",
        "threads 1",
    ]


def test_no_two_children_draw_the_same_noise(children: Children) -> None:
    """OpenDP's randomness is not shared by those who were forked from one parent; a generator of the parent's is."""
    first, second = (model(children.run(job(5), silent)).columns for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == second[1], "this test would not notice what is shared"


def test_what_a_fit_started_ends_with_it(children: Children, tmp_path: Path) -> None:
    """Processes of its group are killed, and their numbers are nobody's."""
    children.run(job(6), silent)
    started = int((tmp_path / "started").read_text())
    assert eventually(lambda: not psutil.pid_exists(started) or psutil.Process(started).status() == "zombie")


def test_how_the_operator_is_told_of_an_end(children: Children) -> None:
    """Type and place of what was raised elsewhere, or how the process ended; never a text."""
    raised = ends(children, 20)
    assert raised.kind == "ValueError"
    assert raised.place.startswith("raise_:")
    assert SECRET not in f"{raised.place} {raised}"
    assert [(end.kind, end.place) for end in (ends(children, number) for number in (21, 22, 25, 26))] == [
        ("FitEnded", "signal 9"),
        ("FitEnded", "signal 11"),
        ("FitEnded", "exit status 0"),
        ("FitEnded", "exit status 3"),
    ]
    assert ends(children, 23).kind in ("MemoryError", "_ArrayMemoryError")
    assert [ends(children, number).kind for number in (27, 28, 29)] == ["FitKilled", "FitEnded", "FitKilled"]


def test_memory_may_be_had_up_to_the_limit(children: Children) -> None:
    """Each time: what one fit had is free again. A little more is refused."""
    for _ in range(3):
        children.run(job(7), silent)
    assert ends(children, 23).kind in ("MemoryError", "_ArrayMemoryError")


def test_tables_do_not_count_as_memory(tmp_path: Path) -> None:
    """A file that is mapped for reading may be larger than the limit; what is copied from it counts."""
    limited = "import mmap, sys; from bursar_server import hardening\n"
    limited += "file = open(sys.argv[1], 'rb')\nhardening.limit_memory(64 * 2**20)\n"
    limited += "there = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\nassert there[2**28 - 1] == 0\n"
    path = tmp_path / "table"
    with path.open("wb") as file:
        file.truncate(2**28)
    subprocess.run([sys.executable, "-c", limited, path], check=True)
    done = subprocess.run(
        [sys.executable, "-c", limited + "there[:]", path], capture_output=True, text=True, check=False
    )
    assert "MemoryError" in done.stderr


def test_a_fit_that_outstays_its_time_is_killed(tmp_path: Path) -> None:
    """However deaf it is; one that is quicker is not."""
    with children_of(tmp_path, seconds=0.5) as children:
        end = ends(children, 24)
        assert (end.kind, end.place) == ("FitKilled", "out of time")
        end = ends(children, 33)
        assert (end.kind, end.place) == ("FitKilled", "out of time")
        assert model(children.run(job(1), silent)).iterations == 2
        assert not psutil.Process(children._parent).children(), "a fit lives on"


def test_if_no_row_was_opened_nothing_was_drawn(children: Children, tmp_path: Path) -> None:
    """It says so, before anything else; whoever says so after a draw is not believed."""
    with pytest.raises(NothingReadError) as caught:
        children.run(job(1, rows=Few(there=False)), silent)
    assert isinstance(caught.value.__cause__, logs.ElsewhereError)
    assert caught.value.__cause__.kind == "FileNotFoundError"
    assert not (tmp_path / "runs").exists()
    assert ends(children, 32).kind in ("FitKilled", "FitEnded")


@dataclass(frozen=True)
class Deadly:
    """Rows whose opening ends the process."""

    def open(self) -> Rows:
        """End it."""
        os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError


def test_a_process_that_ends_before_it_opened_rows_has_drawn_nothing(children: Children) -> None:
    """The debit is run again when it is asked for again."""
    with pytest.raises(NothingReadError):
        children.run(job(1, rows=Deadly()), silent)


def test_no_process_is_to_be_had(tmp_path: Path) -> None:
    """On a machine that has no room for one more: nothing was drawn, and it is tried again when it is asked for."""

    def full() -> int:
        raise BlockingIOError

    fit = Naughty(tmp_path)
    fit.warm_up = lambda: setattr(os, "fork", full)  # type: ignore[attr-defined]  # in the parent of fits alone
    with Children({"FitDPEM": fit}, FitLimits(MEMORY_MIB, PATIENCE)) as children:
        children.ready()
        for _ in range(2):
            with pytest.raises(NothingReadError) as caught:
                children.run(job(1), silent)
            assert isinstance(caught.value.__cause__, logs.ElsewhereError)
            assert caught.value.__cause__.place == "never begun"
    assert not (tmp_path / "runs").exists()


def test_a_job_that_cannot_be_sent_was_never_begun(children: Children) -> None:
    """For want of a descriptor, or because it cannot be pickled."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds(), hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:  # places below the limit that others have left
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(NothingReadError) as caught:
            children.run(job(1), silent)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(NothingReadError):
        children.run(job(1, engine=lambda: None), silent)
    assert model(children.run(job(1), silent)).iterations == 2


@pytest.mark.slow
def test_memory_of_fits_is_locked_if_the_servers_is(tmp_path: Path) -> None:
    """Locks are not inherited, so each process locks its own."""
    fits: Fits = {"FitDPEM": Naughty(tmp_path)}
    for lock in (False, True):
        with Children(fits, FitLimits(MEMORY_MIB, PATIENCE, lock)) as children:
            children.ready()
            assert model(children.run(job(8), silent)).columns == [str(lock)]


def test_a_fit_beside_it_goes_on(children: Children, tmp_path: Path) -> None:
    """While others die in every way there is."""
    made: list[bytes] = []
    beside = threading.Thread(target=lambda: made.append(children.run(job(3), silent)))
    beside.start()
    assert eventually((tmp_path / "waits").exists)
    for number in set(BAD) - {24, 33, 31}:
        ends(children, number)
    (tmp_path / "go").touch()
    beside.join(PATIENCE)
    assert model(made[0]).iterations == 2


def test_the_end_of_the_server_cuts_fits_off(tmp_path: Path) -> None:
    """They are dead when `close` returns, and told apart from those that died by themselves."""
    ended: list[BaseException] = []

    def run(children: Children) -> None:
        try:
            children.run(job(3), silent)
        except BaseException as error:
            ended.append(error)

    with children_of(tmp_path) as children:
        beside = threading.Thread(target=run, args=(children,))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
    beside.join(PATIENCE)
    assert isinstance(ended[0], CutOffError)
    assert eventually(lambda: not psutil.pid_exists(int((tmp_path / "pid").read_text())))
    with pytest.raises(CutOffError):
        children.run(job(1), silent)


def test_the_parent_of_all_fits_is_killed(tmp_path: Path) -> None:
    """What had drawn counts as failed, what comes after was never begun, and whoever is to know is told."""
    told = threading.Event()
    with Children({"FitDPEM": Naughty(tmp_path)}, FitLimits(MEMORY_MIB, PATIENCE)) as children:
        children.ready(told.set)
        ended: list[logs.ElsewhereError] = []
        beside = threading.Thread(target=lambda: ended.append(ends(children, 3)))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
        os.kill(children._parent, signal.SIGKILL)
        beside.join(PATIENCE)
        assert told.wait(PATIENCE)
        assert children.lost
        assert (ended[0].kind, ended[0].place) == ("FitEnded", "with the parent of all fits")
        with pytest.raises(NothingReadError):
            children.run(job(1), silent)
    assert eventually(lambda: not psutil.pid_exists(int((tmp_path / "pid").read_text())))


def test_kernels_that_cannot_be_compiled_are_found_at_the_start(tmp_path: Path) -> None:
    """By type and place, as everything that goes wrong elsewhere."""
    fit = Naughty(tmp_path)
    fit.warm_up = lambda: raise_(fit, None, None)  # type: ignore[attr-defined, arg-type]  # neither is looked at
    with Children({"FitDPEM": fit}, FitLimits(MEMORY_MIB, PATIENCE)) as children:
        with pytest.raises(ChildrenError, match="ValueError at raise_") as caught:
            children.ready()
        assert SECRET not in str(caught.value)


SERVER = """
import os, sys, threading
from pathlib import Path
from bursar_server.children import Children, FitLimits
from tests.server.serving.test_children import MEMORY_MIB, PATIENCE, Naughty, job, silent

folder = Path(sys.argv[1])
with Children({"FitDPEM": Naughty(folder)}, FitLimits(MEMORY_MIB, 1e6)) as children:
    children.ready()
    (folder / "parent").write_text(str(children._parent))
    children.run(job(3), silent)
"""


@pytest.mark.slow
def test_fits_die_with_a_server_that_is_killed(tmp_path: Path) -> None:
    """Half-way, by the signal that leaves no time for anything: nobody goes on at the rows."""
    server = subprocess.Popen([sys.executable, "-c", SERVER, tmp_path], cwd=Path(__file__).parents[3])
    try:
        assert eventually((tmp_path / "waits").exists)
        pids = [int((tmp_path / name).read_text()) for name in ("parent", "pid")]
        assert all(map(psutil.pid_exists, pids))
        server.kill()
        server.wait(PATIENCE)
        assert eventually(lambda: not any(map(psutil.pid_exists, pids)))
    finally:
        server.kill()


def test_no_descriptor_and_no_process_is_left(children: Children) -> None:
    """After many fits, good ones and bad ones."""
    process = psutil.Process()
    children.run(job(1), silent)
    parent = psutil.Process(children._parent)
    before = process.num_fds(), parent.num_fds()
    for number in (1, 20, 21, 28) * 5:
        with contextlib.suppress(logs.ElsewhereError):
            children.run(job(number), silent)
    assert process.num_fds() <= before[0]
    # What it keeps for a fit is closed after the fit's end was told.
    assert eventually(lambda: parent.children() == [] and parent.num_fds() <= before[1])


# --- with a server and a ledger ---------------------------------------------------------------------------


@dataclass
class Served:
    """A server whose fits are in processes."""

    ledger: Ledger
    folder: Path
    channel: grpc.Channel
    bearer: tuple[tuple[str, str], ...]
    server: BursarServer
    children: Children

    def fit(self, number: int, request_id: str) -> list[fit_pb2.FitDPEMResponse]:
        """Everything that a fit answers."""
        message = request(n_components=number, request_id=request_id, spend=types_pb2.Spend(rho=1e-5))
        stub = fit_pb2_grpc.FitServiceStub(self.channel)
        return list(stub.FitDPEM(message, metadata=self.bearer, timeout=PATIENCE))

    @property
    def runs(self) -> int:
        """How often a fit has run."""
        return len((self.folder / "runs").read_text())


@contextlib.contextmanager
def served_by(state: State, tokens: dict[Role, str], folder: Path, **config: Any) -> Iterator[Served]:
    """A server on a state directory, with the naughty fit in processes."""
    defaults = {"address": "127.0.0.1:0", "response_quantum_seconds": 0.01, "fit_memory_mib": MEMORY_MIB}
    settings = Config.model_validate(defaults | config)
    fits: Any = {"FitDPEM": Naughty(folder)}
    limits = FitLimits(settings.fit_memory_mib, settings.fit_wall_seconds)
    with Children(fits, limits) as children, Ledger.open(state.ledger) as ledger:
        children.ready()
        datasets = Datasets(ledger, state.datasets)
        server = BursarServer(
            state=state, config=settings, ledger=ledger, datasets=datasets, fits=fits, runner=children
        )
        with server:
            credentials = grpc.ssl_channel_credentials(Certificates(state.tls).ca.read_bytes())
            with grpc.secure_channel(server.address, credentials) as channel:
                bearer = (("authorization", f"Bearer {tokens[Role.ANALYST]}"),)
                try:
                    yield Served(ledger, folder, channel, bearer, server, children)
                finally:
                    if settings.unfinished_fits == "finish":
                        (folder / "go").touch()  # else a test that fails would wait for its own fit


Template = tuple[Path, dict[Role, str]]


def test_whatever_becomes_of_a_fit_its_debit_has_one_end(
    state: State, template: Template, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays, has the empty release, is never drawn for again, and the caller hears the same in every case.

    Another fit, which began before them all, ends after them all as if nothing had been.
    """
    config = {"fit_wall_seconds": 1.0, "limits": {"fit_seconds": 1.0}, "fits_per_principal": 16, "fit_workers": 2}
    with served_by(state, template[1], tmp_path, **config) as served:
        for i, number in enumerate(BAD):
            first, again = (refusal_of(lambda: served.fit(number, f"bad-{number}")) for _ in range(2))  # noqa: B023
            assert (first.code, first.text) == (again.code, again.text)
            assert first.metadata == again.metadata == {"incident": first.metadata["incident"]}
            record = served.ledger.find("the-analyst", f"bad-{number}")
            assert record is not None
            assert first.metadata["incident"] == f"entry-{record.entry}"
            assert served.ledger.release(record.entry) == NO_RESULT
            assert served.runs == i + 1, "drawn for again"
            assert first.code is grpc.StatusCode.INTERNAL
        texts = {refusal_of(lambda: served.fit(number, f"bad-{number}")).text for number in BAD}  # noqa: B023
        assert len(texts) == 1
        (tmp_path / "go").touch()
        assert served.fit(3, "good")[-1].HasField("model")
    assert verify(state.ledger).problems == ()
    assert SECRET not in caplog.text
    assert [line.message.split()[0] for line in caplog.records if line.levelname == "ERROR"] == ["failure"] * len(BAD)


def test_a_fit_beside_it_is_not_disturbed(state: State, template: Template, tmp_path: Path) -> None:
    """One that began before another was killed, and ends after it."""
    with served_by(state, template[1], tmp_path) as served:
        answers: list[fit_pb2.FitDPEMResponse] = []
        beside = threading.Thread(target=lambda: answers.extend(served.fit(3, "beside")))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
        for number in (21, 22, 23):
            assert refusal_of(lambda: served.fit(number, f"bad-{number}")).code is grpc.StatusCode.INTERNAL  # noqa: B023
        (tmp_path / "go").touch()
        beside.join(PATIENCE)
        assert answers[-1].HasField("model")
        assert served.fit(3, "beside") == [answers[0], answers[-1]]
    assert verify(state.ledger).problems == ()


@pytest.mark.parametrize("unfinished", ["finish", "abandon"])
def test_a_server_that_stops(state: State, template: Template, tmp_path: Path, unfinished: str) -> None:
    """It finishes what was paid for, or cuts it off: then the next one runs it again, under its debit."""
    config: dict[str, Any] = {"unfinished_fits": unfinished, "shutdown_seconds": 0.1}
    answers: list[object] = []
    with served_by(state, template[1], tmp_path, **config) as served:
        beside = threading.Thread(target=lambda: answers.append(_tried(lambda: served.fit(3, "half-way"))))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
    beside.join(PATIENCE)
    (tmp_path / "go").touch()
    with served_by(state, template[1], tmp_path) as served:
        record = served.ledger.find("the-analyst", "half-way")
        assert record is not None
        stored = served.ledger.release(record.entry)
        assert (stored is None) == (unfinished == "abandon")
        assert stored != NO_RESULT
        assert served.fit(3, "half-way")[-1].HasField("model")
        assert served.runs == (1 if unfinished == "finish" else 2)
        assert sum(entry.kind == "debit" for entry in served.ledger.entries()) == 1
    assert verify(state.ledger).problems == ()


@pytest.mark.parametrize(("recovery", "code"), [("rerun", "UNAVAILABLE"), ("lost", "DATA_LOSS")])
def test_what_callers_hear_of_a_fit_that_is_cut_off(
    state: State, template: Template, tmp_path: Path, recovery: str, code: str
) -> None:
    """That asking again runs it again, or that it is lost, as the owner decided; there is no release."""
    with served_by(state, template[1], tmp_path, recovery=recovery) as served:
        heard: list[object] = []
        beside = threading.Thread(target=lambda: heard.append(_tried(lambda: served.fit(3, "cut"))))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
        served.children._ending = True
        os.kill(served.children._parent, signal.SIGKILL)
        beside.join(PATIENCE)
        (error,) = heard
        assert isinstance(error, grpc.RpcError)
        assert error.code().name == code
        record = served.ledger.find("the-analyst", "cut")
        assert record is not None
        assert served.ledger.release(record.entry) is None


def _tried(call: Callable[[], object]) -> object:
    try:
        return call()
    except grpc.RpcError as error:
        return error


# --- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"fit_memory_mib": 255}, "fit_memory_mib"),
        ({"fit_memory_mib": 2**24 + 1}, "fit_memory_mib"),
        ({"fit_wall_seconds": 0}, "fit_wall_seconds"),
        ({"fit_wall_seconds": float("nan")}, "fit_wall_seconds"),
        ({"fit_wall_seconds": 59.9, "limits": {"fit_seconds": 60}}, "fit_wall_seconds is below limits.fit_seconds"),
    ],
)
def test_limits_that_make_no_sense_are_refused(tmp_path: Path, fields: dict[str, Any], setting: str) -> None:
    """Out of range, or so that fits would be paid for that cannot come to their end; the edges are allowed."""
    with pytest.raises(ConfigError, match=setting):
        Config.load(tmp_path / "none", **fields)
    Config.load(tmp_path / "none", fit_memory_mib=256, fit_wall_seconds=60.0, limits={"fit_seconds": 60})


def test_a_kernel_that_does_not_tell_is_no_kernel_for_limits(tmp_path: Path) -> None:
    """Rather no fit than one without its limit."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name: x\n")
    with pytest.raises(hardening.HardeningError, match="memory"):
        hardening._allocated(tmp_path)
