"""A fit that behaves as a test asks: it answers, waits, breaks its limits, or ends in any way that a process can."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from bursar_ledger import Adjacency
from bursar_proto.v1 import fit_pb2
from bursar_server.fits import Plan, PublicTable
from bursar_server.fits._seam import Released
from bursar_server.jobs.runner import Job, NoRows, Progress, Runner
from bursar_server.vault import LocalEngine, Rows, Session, SyntheticBudget, gaussian_for
from tests.server.serving.conftest import COUNT, SENSITIVITY, FakeFit

PATIENCE = 600.0
"""Seconds after which something hangs."""
SECRET = "row 17 holds 1.83"
MEMORY_MIB = 256
FOREVER = 1e6


def eventually(wanted: Callable[[], bool]) -> bool:
    """Return whether something comes to be, within the patience of this file."""
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
    """Behaves as a test has asked for its request, after its one release.

    Args:
        folder: of the files by which it is seen and told what to do.

    Attributes:
        asked: behaviours by the id of the request; a request that is not in it does nothing special.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.shared = random.Random(1)
        self.asked: dict[str, Behaviour] = {}

    def plan(self, request: fit_pb2.FitDPEMRequest, table: PublicTable, released: Released) -> Plan:
        """Plan as `FakeFit` does, and note the behaviour by its name: a plan is sent to another process."""
        plan = super().plan(request, table, released)
        chosen = self.asked.get(request.request_id, nothing).__name__
        return replace(plan, parameters={**plan.parameters, "behaviour": chosen})

    def run(self, plan: Plan, session: Session) -> fit_pb2.GaussianMixtureModel:
        """Note that it ran, draw, and behave."""
        with (self.folder / "runs").open("a") as file:
            file.write("x")
        noisy = session.noisy_sum(COUNT, gaussian_for(SENSITIVITY, Fraction(1, 10**6))) if plan.events else [0.0]
        done = BEHAVIOURS[str(plan.parameters["behaviour"])](self, plan, session)
        return fit_pb2.GaussianMixtureModel(columns=done or [], n_rows=float(noisy[0]), iterations=2)


Behaviour = Callable[[Naughty, Plan, Session], list[str] | None]
BEHAVIOURS: dict[str, Behaviour] = {}
BAD: list[Behaviour] = []
"""Ends of a fit that may depend on rows, as far as the server can tell."""


def behaviour(function: Behaviour) -> Behaviour:
    """Register a behaviour under its name."""
    BEHAVIOURS[function.__name__] = function
    return function


def ending(function: Behaviour) -> Behaviour:
    """Register a behaviour that ends a fit without an answer."""
    BAD.append(function)
    return behaviour(function)


@behaviour
def overflowing(fit: Naughty, plan: Plan, session: Session) -> None:
    """Divide a released number by one that noise has left no width, of which numpy warns."""
    assert np.isinf(np.array([1e300]) / 1e-300)


@behaviour
def nothing(fit: Naughty, plan: Plan, session: Session) -> None:
    """Go on."""


@behaviour
def steps(fit: Naughty, plan: Plan, session: Session) -> None:
    """Tell of three steps."""
    for step in range(1, 4):
        session.progress(step, 3)


@behaviour
def wait(fit: Naughty, plan: Plan, session: Session) -> None:
    """Wait until a file is there."""
    (fit.folder / "pid").write_text(str(os.getpid()))
    (fit.folder / "waits").touch()
    while not (fit.folder / "go").exists():
        time.sleep(0.005)


@behaviour
def tell(fit: Naughty, plan: Plan, session: Session) -> list[str]:
    """Return what this process has and may."""
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


@behaviour
def draw(fit: Naughty, plan: Plan, session: Session) -> list[str]:
    """Sixteen draws of noise, and what a generator of the parent would give."""
    noise = [session.noisy_sum(COUNT, gaussian_for(SENSITIVITY, Fraction(1, 10**6)))[0] for _ in range(16)]
    return [str(noise), str(fit.shared.random())]


@behaviour
def sleeper(fit: Naughty, plan: Plan, session: Session) -> None:
    """Start another process, and end before it does."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
    (fit.folder / "started").write_text(str(started.pid))


@behaviour
def allocate(fit: Naughty, plan: Plan, session: Session) -> None:
    """A little less than there may be."""
    np.ones((MEMORY_MIB - 64) * 2**20, dtype=np.uint8)


@behaviour
def locked(fit: Naughty, plan: Plan, session: Session) -> list[str]:
    """Return whether its memory is locked."""
    status = Path("/proc/self/status").read_text()
    return [str("VmLck:\t       0 kB" not in status)]


@ending
def raise_(fit: Naughty, plan: Plan, session: Session) -> None:
    """An exception that quotes a row."""
    raise ValueError(SECRET)


@ending
def killed(fit: Naughty, plan: Plan, session: Session) -> None:
    """Die as by the kernel that is out of memory, or by a person."""
    os.kill(os.getpid(), signal.SIGKILL)


@ending
def segfault(fit: Naughty, plan: Plan, session: Session) -> None:
    """Read where nothing is."""
    ctypes.string_at(0)


@ending
def too_much(fit: Naughty, plan: Plan, session: Session) -> None:
    """More than there may be, by as much as this process may have given back of its own."""
    np.ones((MEMORY_MIB + 64) * 2**20, dtype=np.uint8)


@ending
def too_long(fit: Naughty, plan: Plan, session: Session) -> None:
    """Run endlessly, deaf to all signals that one can be deaf to."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    while True:
        pass


@ending
def leaves(fit: Naughty, plan: Plan, session: Session) -> None:
    """Leave without a word."""
    os._exit(0)


@ending
def leaves_badly(fit: Naughty, plan: Plan, session: Session) -> None:
    """Leave with a status."""
    os._exit(3)


@ending
def garbage(fit: Naughty, plan: Plan, session: Session) -> None:
    """Write what is no message."""
    to_server(b"\xff" * 1000)
    time.sleep(FOREVER)


@ending
def half(fit: Naughty, plan: Plan, session: Session) -> None:
    """The beginning of a model, and then nothing."""
    to_server(struct.pack("!cQ", b"M", 1000) + b"x" * 500)
    os._exit(0)


@ending
def huge(fit: Naughty, plan: Plan, session: Session) -> None:
    """Announce more than there can be."""
    to_server(struct.pack("!cQ", b"M", 2**62))
    time.sleep(FOREVER)


@ending
def two_answers(fit: Naughty, plan: Plan, session: Session) -> None:
    """A model before the model."""
    to_server(struct.pack("!cQ", b"M", 0))


@ending
def no_model(fit: Naughty, plan: Plan, session: Session) -> None:
    """A whole message that is no model."""
    to_server(struct.pack("!cQ", b"M", 3) + b"\xff\xff\xff")
    os._exit(0)


@ending
def pretends(fit: Naughty, plan: Plan, session: Session) -> None:
    """Say after a draw that no row was read."""
    to_server(struct.pack("!cQ", b"N", 1) + b"x")
    os._exit(0)


@ending
def hangs_up(fit: Naughty, plan: Plan, session: Session) -> None:
    """Close the socket and go on for ever."""
    os.closerange(3, 64)
    time.sleep(FOREVER)


@ending
def dies_after_the_answer(fit: Naughty, plan: Plan, session: Session) -> None:
    """A whole model, and then a signal."""
    to_server(struct.pack("!cQ", b"M", 0))
    os.kill(os.getpid(), signal.SIGKILL)


@ending
def overspends(fit: Naughty, plan: Plan, session: Session) -> None:
    """One release more than a debit of ten pays for."""
    for _ in range(10):
        session.noisy_sum(COUNT, gaussian_for(SENSITIVITY, Fraction(1, 10**6)))


BUDGET = SyntheticBudget(Fraction(9), 10**18)


@dataclass(frozen=True)
class Few:
    """Rows of nobody, or none to be had."""

    there: bool = True
    budget: SyntheticBudget = BUDGET

    def open(self) -> Rows:
        """Forty rows."""
        if not self.there:
            raise FileNotFoundError(SECRET)
        from bursar_server.vault import ArrayRows

        return ArrayRows(np.zeros((1, 40)))


def job(chosen: Behaviour, **fields: Any) -> Job:
    """Return a paid fit with a behaviour."""
    events = () if isinstance(fields.get("rows"), NoRows) else (object(),)
    plan = Plan(columns=("height",), events=(), iterations=2, noise=(), parameters={"behaviour": chosen.__name__})
    object.__setattr__(plan, "events", tuple("paid" for _ in events))
    defaults: dict[str, Any] = {
        "method": "FitDPEM",
        "plan": plan,
        "rows": Few(),
        "adjacency": Adjacency.REPLACE_ONE,
        "unit_cap": 1,
        "engine": LocalEngine(1),
    }
    return Job(**(defaults | fields))


def run_in(runner: Runner, job: Job, progress: Progress) -> bytes:
    """Reserve what a fit needs, and run it."""
    with runner.reserve() as reserved:
        return reserved.run(job, progress)


def model(made: bytes) -> fit_pb2.GaussianMixtureModel:
    """Return what a runner gave."""
    return fit_pb2.GaussianMixtureModel.FromString(made)


def silent(step: int, steps: int) -> None:
    """Hears no progress."""
