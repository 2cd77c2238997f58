"""Fits in processes of their own: what becomes of them, of their debits, and of everybody else."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import psutil
import pytest

from bursar_ledger import Ledger, Role, verify
from bursar_proto.v1 import fit_pb2, fit_pb2_grpc, types_pb2
from bursar_server import log
from bursar_server.access.tls import Certificates
from bursar_server.config import Config, ConfigError
from bursar_server.jobs import hardening
from bursar_server.jobs.job import NO_RESULT, CutOffError, NoRoomError, NothingReadError
from bursar_server.jobs.runner import Fits, InProcess, NoRows
from bursar_server.jobs.sandbox import Children, ChildrenError, FitLimits
from bursar_server.tables.catalogue import Datasets
from bursar_server.vault import Rows
from bursar_server.wire.server import BursarServer
from tests.asking import debit_of
from tests.server.serving.conftest import refusal_of, request
from tests.server.serving.naughty import (
    BAD,
    MEMORY_MIB,
    PATIENCE,
    SECRET,
    Behaviour,
    Few,
    Naughty,
    allocate,
    draw,
    eventually,
    garbage,
    half,
    hangs_up,
    huge,
    job,
    killed,
    leaves,
    leaves_badly,
    locked,
    model,
    no_model,
    nothing,
    overflowing,
    overspends,
    pretends,
    raise_,
    run_in,
    segfault,
    silent,
    sleeper,
    steps,
    tell,
    to_server,
    too_long,
    too_much,
    wait,
)

if TYPE_CHECKING:
    from bursar_server.state import State

pytestmark = pytest.mark.forks

# --- without a server -------------------------------------------------------------------------------------


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


def ends(children: Children, chosen: Behaviour, **fields: Any) -> log.ElsewhereError:
    """Return how a fit ends that is not to come to an answer, after it drew."""
    with pytest.raises(log.ElsewhereError) as caught:
        run_in(children, job(chosen, **fields), silent)
    return caught.value


def test_a_fit_in_a_process_answers_as_it_does_elsewhere(children: Children, tmp_path: Path) -> None:
    """Model and progress are the same, for what is paid for and for what is not."""
    for where in (children, InProcess({"FitDPEM": Naughty(tmp_path)})):
        heard: list[tuple[int, int]] = []
        made = model(run_in(where, job(steps), lambda step, steps, heard=heard: heard.append((step, steps))))  # type: ignore[misc]
        assert heard == [(1, 3), (2, 3), (3, 3)]
        assert (made.iterations, abs(made.n_rows - 40) < 1e5) == (2, True)
        assert model(run_in(where, job(nothing, rows=NoRows(Fraction(9))), silent)).n_rows == 0


def test_what_a_fits_process_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One socket and nothing else of the server's; a group of its own, no dumps, first to go, deaf to supervisors."""
    monkeypatch.setenv("BURSAR_TOKEN", SECRET)
    with (tmp_path / "secret").open("w"), socket.socket(), children_of(tmp_path) as children:
        told = list(model(run_in(children, job(tell), silent)).columns)
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


def test_warnings_end_no_fit(children: Children, tmp_path: Path) -> None:
    """They may depend on noise, and PYTHONWARNINGS can make exceptions of them, as pytest does of those elsewhere."""
    with pytest.raises(RuntimeWarning, match="overflow"):
        run_in(InProcess({"FitDPEM": Naughty(tmp_path)}), job(overflowing), silent)
    assert model(run_in(children, job(overflowing), silent)).iterations == 2


def test_no_two_children_draw_the_same_noise(children: Children) -> None:
    """OpenDP's randomness is not shared by those who were forked from one parent; a generator of the parent's is."""
    first, second = (model(run_in(children, job(draw), silent)).columns for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == second[1], "this test would not notice what is shared"


def test_what_a_fit_started_ends_with_it(children: Children, tmp_path: Path) -> None:
    """Processes of its group are killed, and their numbers are nobody's."""
    run_in(children, job(sleeper), silent)
    started = int((tmp_path / "started").read_text())
    assert eventually(lambda: not psutil.pid_exists(started) or psutil.Process(started).status() == "zombie")


def test_how_the_operator_is_told_of_an_end(children: Children) -> None:
    """Type and place of what was raised elsewhere, or how the process ended; never a text."""
    raised = ends(children, raise_)
    assert raised.kind == "ValueError"
    assert raised.place.startswith("raise_:")
    assert SECRET not in f"{raised.place} {raised}"
    assert [
        (end.kind, end.place) for end in (ends(children, chosen) for chosen in (killed, segfault, leaves, leaves_badly))
    ] == [
        ("FitEnded", "signal 9"),
        ("FitEnded", "signal 11"),
        ("FitEnded", "exit status 0"),
        ("FitEnded", "exit status 3"),
    ]
    assert ends(children, too_much).kind in ("MemoryError", "_ArrayMemoryError")
    assert [ends(children, chosen).kind for chosen in (garbage, half, huge)] == ["FitKilled", "FitEnded", "FitKilled"]


def test_memory_may_be_had_up_to_the_limit(children: Children) -> None:
    """Each time: what one fit had is free again. A little more is refused."""
    for _ in range(3):
        run_in(children, job(allocate), silent)
    assert ends(children, too_much).kind in ("MemoryError", "_ArrayMemoryError")


def test_tables_do_not_count_as_memory(tmp_path: Path) -> None:
    """A file that is mapped for reading may be larger than the limit; what is copied from it counts."""
    limited = "import mmap, sys; from bursar_server.jobs import hardening\n"
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
    with children_of(tmp_path, seconds=2.0) as children:  # long enough for a busy machine to open the rows
        end = ends(children, too_long)
        assert (end.kind, end.place) == ("FitKilled", "out of time")
        end = ends(children, hangs_up)
        assert (end.kind, end.place) == ("FitKilled", "out of time")
        assert not psutil.Process(children._parent).children(), "a fit lives on"
    with children_of(tmp_path) as children:
        assert model(run_in(children, job(nothing), silent)).iterations == 2


def test_if_no_row_was_opened_nothing_was_drawn(children: Children, tmp_path: Path) -> None:
    """It says so, before anything else; whoever says so after a draw is not believed."""
    with pytest.raises(NothingReadError) as caught:
        run_in(children, job(nothing, rows=Few(there=False)), silent)
    assert isinstance(caught.value.__cause__, log.ElsewhereError)
    assert caught.value.__cause__.kind == "FileNotFoundError"
    assert not (tmp_path / "runs").exists()
    assert ends(children, pretends).kind in ("FitKilled", "FitEnded")


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
        run_in(children, job(nothing, rows=Deadly()), silent)


@dataclass(frozen=True)
class Babbling:
    """Rows whose opening makes the process say something, and end.

    Attributes:
        content: what it says.
    """

    content: bytes

    def open(self) -> Rows:
        """Say it, and end the process."""
        to_server(self.content)
        os._exit(0)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 1000,
        b"O",
        struct.pack("!cQ", b"M", 0),
        struct.pack("!cQ", b"O", 1) + b"x",
        struct.pack("!cQ", b"N", 2**13),
    ],
    ids=["no message", "half a head", "a model at once", "a word too long", "an error too long"],
)
def test_a_child_whose_first_message_is_damaged_may_have_drawn(children: Children, content: bytes) -> None:
    """Nothing that such a process says is believed, so its debit is not run again."""
    assert ends(children, nothing, rows=Babbling(content)).kind in ("FitKilled", "FitEnded")


def test_no_process_is_to_be_had(tmp_path: Path) -> None:
    """Nothing was drawn on a machine without room for one more, and the next request tries again."""

    def full() -> int:
        raise BlockingIOError

    fit = Naughty(tmp_path)
    fit.warm_up = lambda: setattr(os, "fork", full)  # type: ignore[attr-defined]  # in the parent of fits alone
    with Children({"FitDPEM": fit}, FitLimits(MEMORY_MIB, PATIENCE)) as children:
        children.ready()
        for _ in range(2):
            with pytest.raises(NothingReadError) as caught:
                run_in(children, job(nothing), silent)
            assert isinstance(caught.value.__cause__, log.ElsewhereError)
            assert caught.value.__cause__.place == "never begun"
    assert not (tmp_path / "runs").exists()


def test_a_job_that_cannot_be_sent_was_never_begun(children: Children) -> None:
    """A descriptor is missing, or it cannot be pickled."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds(), hard))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:  # places below the limit that others have left
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(NoRoomError) as caught:
            run_in(children, job(nothing), silent)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(NothingReadError):
        run_in(children, job(nothing, engine=lambda: None), silent)
    assert model(run_in(children, job(nothing), silent)).iterations == 2


@pytest.mark.slow
def test_memory_of_fits_is_locked_if_the_servers_is(tmp_path: Path) -> None:
    """Locks are not inherited, so each process locks its own."""
    fits: Fits = {"FitDPEM": Naughty(tmp_path)}
    for lock in (False, True):
        with Children(fits, FitLimits(MEMORY_MIB, PATIENCE, lock)) as children:
            children.ready()
            assert model(run_in(children, job(locked), silent)).columns == [str(lock)]


def test_a_fit_beside_it_goes_on(children: Children, tmp_path: Path) -> None:
    """Others die in every way there is."""
    made: list[bytes] = []
    beside = threading.Thread(target=lambda: made.append(run_in(children, job(wait), silent)))
    beside.start()
    assert eventually((tmp_path / "waits").exists)
    for chosen in set(BAD) - {too_long, hangs_up, no_model, overspends}:
        ends(children, chosen)
    (tmp_path / "go").touch()
    beside.join(PATIENCE)
    assert model(made[0]).iterations == 2


def test_the_end_of_the_server_cuts_fits_off(tmp_path: Path) -> None:
    """They are dead when `close` returns, and told apart from those that died by themselves."""
    ended: list[BaseException] = []

    def run(children: Children) -> None:
        try:
            run_in(children, job(wait), silent)
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
        run_in(children, job(nothing), silent)


def test_the_parent_of_all_fits_is_killed(tmp_path: Path) -> None:
    """A fit that had drawn counts as failed, a later one as never begun, and the callback is called."""
    told = threading.Event()
    with Children({"FitDPEM": Naughty(tmp_path)}, FitLimits(MEMORY_MIB, PATIENCE)) as children:
        children.ready(told.set)
        ended: list[log.ElsewhereError] = []
        beside = threading.Thread(target=lambda: ended.append(ends(children, wait)))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
        os.kill(children._parent, signal.SIGKILL)
        beside.join(PATIENCE)
        assert told.wait(PATIENCE)
        assert children.lost
        assert (ended[0].kind, ended[0].place) == ("FitEnded", "with the parent of all fits")
        with pytest.raises(NothingReadError):
            run_in(children, job(nothing), silent)
    assert eventually(lambda: not psutil.pid_exists(int((tmp_path / "pid").read_text())))


def test_a_start_tells_whose_kernels_are_compiled(tmp_path: Path) -> None:
    """Each fit by name, in order, before its kernels are compiled."""
    first, second = Naughty(tmp_path), Naughty(tmp_path)
    second.warm_up = lambda: raise_(second, None, None)  # type: ignore[attr-defined, arg-type]  # neither is looked at
    told: list[str] = []
    with (
        Children({"FitDPEM": first, "FitMRF": second}, FitLimits(MEMORY_MIB, PATIENCE)) as children,
        pytest.raises(ChildrenError),
    ):
        children.ready(compiles=told.append)
    assert told == ["FitDPEM", "FitMRF"]


def test_kernels_that_cannot_be_compiled_are_found_at_the_start(tmp_path: Path) -> None:
    """The message has type and place, as for everything that goes wrong elsewhere."""
    fit = Naughty(tmp_path)
    fit.warm_up = lambda: raise_(fit, None, None)  # type: ignore[attr-defined, arg-type]  # neither is looked at
    with Children({"FitDPEM": fit}, FitLimits(MEMORY_MIB, PATIENCE)) as children:
        with pytest.raises(ChildrenError, match="ValueError at raise_") as caught:
            children.ready()
        assert SECRET not in str(caught.value)


SERVER = """
import os, sys, threading
from pathlib import Path
from bursar_server.jobs.sandbox import Children, FitLimits
from tests.server.serving.naughty import MEMORY_MIB, Naughty, job, run_in, silent, wait

folder = Path(sys.argv[1])
with Children({"FitDPEM": Naughty(folder)}, FitLimits(MEMORY_MIB, 1e6)) as children:
    children.ready()
    (folder / "parent").write_text(str(children._parent))
    run_in(children, job(wait), silent)
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
    """Many fits, good ones and bad ones, leave none."""
    process = psutil.Process()
    run_in(children, job(nothing), silent)
    parent = psutil.Process(children._parent)
    before = process.num_fds(), parent.num_fds()
    for chosen in (nothing, raise_, killed, half) * 5:
        with contextlib.suppress(log.ElsewhereError):
            run_in(children, job(chosen), silent)
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
    naughty: Naughty

    def fit(self, chosen: Behaviour, request_id: str) -> list[fit_pb2.FitDPEMResponse]:
        """Everything that a fit answers."""
        self.naughty.asked[request_id] = chosen
        message = request(request_id=request_id, spend=types_pb2.Spend(rho=1e-5))
        stub = fit_pb2_grpc.FitServiceStub(self.channel)
        return list(stub.FitDPEM(message, metadata=self.bearer, timeout=PATIENCE))

    @property
    def runs(self) -> int:
        """Return how often a fit has run."""
        return len((self.folder / "runs").read_text())


@contextlib.contextmanager
def served_by(state: State, tokens: dict[Role, str], folder: Path, **config: Any) -> Iterator[Served]:
    """A server on a state directory, with the naughty fit in processes."""
    defaults = {"address": "127.0.0.1:0", "response_quantum_seconds": 0.01, "fit_memory_mib": MEMORY_MIB}
    settings = Config.model_validate(defaults | config)
    naughty = Naughty(folder)
    fits: Any = {"FitDPEM": naughty}
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
                    yield Served(ledger, folder, channel, bearer, server, children, naughty)
                finally:
                    if settings.unfinished_fits == "finish":
                        (folder / "go").touch()  # else a test that fails would wait for its own fit


Template = tuple[Path, dict[Role, str]]


@pytest.mark.slow
def test_whatever_becomes_of_a_fit_its_debit_has_one_end(
    state: State, template: Template, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays, has the empty release, is never drawn for again, and the caller hears the same in every case.

    Another fit, which began before them all, ends after them all as if nothing had been.
    """
    config = {"fit_wall_seconds": 1.0, "limits": {"fit_seconds": 1.0}, "fits_per_principal": 16, "fit_workers": 2}
    with served_by(state, template[1], tmp_path, **config) as served:
        for i, chosen in enumerate(BAD):
            first, again = (refusal_of(lambda: served.fit(chosen, f"bad-{chosen.__name__}")) for _ in range(2))  # noqa: B023
            assert (first.code, first.text) == (again.code, again.text)
            assert first.metadata == again.metadata == {"incident": first.metadata["incident"]}
            record = debit_of(served.ledger, "the-analyst", f"bad-{chosen.__name__}")
            assert record is not None
            assert first.metadata["incident"] == f"entry-{record.entry}"
            assert served.ledger.release(record.entry) == NO_RESULT
            assert served.runs == i + 1, "drawn for again"
            assert first.code is grpc.StatusCode.INTERNAL
        texts = {refusal_of(lambda: served.fit(chosen, f"bad-{chosen.__name__}")).text for chosen in BAD}  # noqa: B023
        assert len(texts) == 1
        (tmp_path / "go").touch()
        assert served.fit(wait, "good")[-1].HasField("model")
    assert verify(state.ledger).problems == ()
    assert SECRET not in caplog.text
    assert [line.message.split()[0] for line in caplog.records if line.levelname == "ERROR"] == ["failure"] * len(BAD)


def test_a_fit_beside_it_is_not_disturbed(state: State, template: Template, tmp_path: Path) -> None:
    """One that began before another was killed, and ends after it."""
    with served_by(state, template[1], tmp_path) as served:
        answers: list[fit_pb2.FitDPEMResponse] = []
        beside = threading.Thread(target=lambda: answers.extend(served.fit(wait, "beside")))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
        for chosen in (killed, segfault, too_much):
            assert refusal_of(lambda: served.fit(chosen, f"bad-{chosen.__name__}")).code is grpc.StatusCode.INTERNAL  # noqa: B023
        (tmp_path / "go").touch()
        beside.join(PATIENCE)
        assert answers[-1].HasField("model")
        assert served.fit(wait, "beside") == [answers[0], answers[-1]]
    assert verify(state.ledger).problems == ()


def test_free_work_ends_when_its_caller_leaves(
    state: State, template: Template, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process is killed, and the next free request is served; one abandoned decode once held up all others."""
    with served_by(state, template[1], tmp_path) as served:
        entry = served.fit(nothing, "paid")[0].receipt.entry
        served.naughty.asked |= {"free": wait, "left": wait}
        free = request(request_id="free")
        free.ClearField("spend")
        free.released.entry = entry
        stub = fit_pb2_grpc.FitServiceStub(served.channel)
        left = stub.FitDPEM(free, metadata=served.bearer)
        assert eventually((tmp_path / "waits").exists)
        left.cancel()
        served.naughty.asked["free"] = nothing
        assert list(stub.FitDPEM(free, metadata=served.bearer, timeout=PATIENCE))[-1].HasField("model")
        assert eventually(lambda: not psutil.pid_exists(int((tmp_path / "pid").read_text())))
        # A fit that was paid for goes on without its caller.
        (tmp_path / "waits").unlink()
        paid = stub.FitDPEM(request(request_id="left"), metadata=served.bearer)
        assert eventually((tmp_path / "waits").exists)
        paid.cancel()
        (tmp_path / "go").touch()
        assert served.fit(nothing, "next")[-1].HasField("model")
        record = debit_of(served.ledger, "the-analyst", "left")
        assert record is not None
        assert eventually(lambda: bool(served.ledger.release(record.entry)))
    assert [line for line in caplog.records if line.levelname == "ERROR"] == []


@pytest.mark.parametrize("unfinished", ["finish", "abandon"])
def test_a_server_that_stops(state: State, template: Template, tmp_path: Path, unfinished: str) -> None:
    """It finishes what was paid for, or cuts it off: then the next one runs it again, under its debit."""
    config: dict[str, Any] = {"unfinished_fits": unfinished, "shutdown_seconds": 0.1}
    answers: list[object] = []
    with served_by(state, template[1], tmp_path, **config) as served:
        beside = threading.Thread(target=lambda: answers.append(_tried(lambda: served.fit(wait, "half-way"))))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
    beside.join(PATIENCE)
    (tmp_path / "go").touch()
    with served_by(state, template[1], tmp_path) as served:
        record = debit_of(served.ledger, "the-analyst", "half-way")
        assert record is not None
        stored = served.ledger.release(record.entry)
        assert (stored is None) == (unfinished == "abandon")
        assert stored != NO_RESULT
        assert served.fit(wait, "half-way")[-1].HasField("model")
        assert served.runs == (1 if unfinished == "finish" else 2)
        assert sum(entry.kind == "debit" for entry in served.ledger.entries()) == 1
    assert verify(state.ledger).problems == ()


@pytest.mark.parametrize(("recovery", "code"), [("rerun", "UNAVAILABLE"), ("lost", "DATA_LOSS")])
def test_what_callers_hear_of_a_fit_that_is_cut_off(
    state: State, template: Template, tmp_path: Path, recovery: str, code: str
) -> None:
    """They hear that a retry runs it again, or that it is lost, as the owner decided; there is no release."""
    with served_by(state, template[1], tmp_path, recovery=recovery) as served:
        heard: list[object] = []
        beside = threading.Thread(target=lambda: heard.append(_tried(lambda: served.fit(wait, "cut"))))
        beside.start()
        assert eventually((tmp_path / "waits").exists)
        served.children.ending = True
        os.kill(served.children._parent, signal.SIGKILL)
        beside.join(PATIENCE)
        (error,) = heard
        assert isinstance(error, grpc.RpcError)
        assert error.code().name == code
        record = debit_of(served.ledger, "the-analyst", "cut")
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
