"""State directory, certificates, settings, log and pool, each on its own."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import platform
import subprocess
import sys
import threading
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.x509.oid import ExtensionOID
from hypothesis import given
from hypothesis import strategies as st

from bursar_server import log, process
from bursar_server.__main__ import main
from bursar_server.access.tls import Certificates
from bursar_server.config import Config, ConfigError, template
from bursar_server.jobs import hardening
from bursar_server.jobs.job import QueueFullError, StoppingError, WorkerPool
from bursar_server.state import State, StateError, write_private


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_directory_without_a_ledger_is_not_a_state_directory(tmp_path: Path) -> None:
    """The message says how to make one."""
    with pytest.raises(StateError, match="bursar-admin init"):
        State.open(tmp_path)


def test_a_state_directory_is_never_initialised_again(tmp_path: Path) -> None:
    """Neither over a ledger, nor over tables whose ledger is missing."""
    state = State.prepare(tmp_path / "state")
    State.prepare(state.path)
    (state.datasets / "table").mkdir()
    with pytest.raises(StateError, match="restore the ledger"):
        State.prepare(state.path)
    state.ledger.touch()
    with pytest.raises(StateError, match="never reset"):
        State.prepare(state.path)


def test_a_state_directory_is_its_owners_alone(tmp_path: Path) -> None:
    """0700 for folders, 0600 for what is private, the certificates readable."""
    state = State.prepare(tmp_path / "state")
    Certificates(state.tls).create()
    assert {_mode(path) for path in (state.path, state.keys, state.tls, state.datasets)} == {0o700}
    assert _mode(Certificates(state.tls).key) == 0o600
    assert _mode(Certificates(state.tls).ca) == 0o644


def test_a_private_file_is_replaced_whole(tmp_path: Path) -> None:
    """The new content is there, for the owner only, and nothing is left beside it."""
    path = tmp_path / "secret"
    for content in (b"one", b"two"):
        write_private(path, content)
    assert (path.read_bytes(), _mode(path), list(tmp_path.iterdir())) == (b"two", 0o600, [path])


def test_a_private_file_outlasts_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its content is on the disk before its name, and its name when the function returns."""
    flushed: list[tuple[Path, bool]] = []
    path = tmp_path / "secret"
    monkeypatch.setattr(
        os, "fsync", lambda opened: flushed.append((Path(f"/proc/self/fd/{opened}").readlink(), path.exists()))
    )
    write_private(path, b"one")
    assert flushed == [(tmp_path / "secret.new", False), (tmp_path, True)]


@pytest.mark.parametrize("which", ["serving", "importing"])
def test_a_lock_is_held_once(tmp_path: Path, which: str) -> None:
    """The second holder is refused; after the first has let go, the next one is not."""
    state = State.prepare(tmp_path / "state")
    lock = getattr(state, which)
    with lock(), pytest.raises(StateError, match="another"), lock():
        pass
    with lock():
        pass


def test_the_certificate_names_loopback_and_what_was_asked(tmp_path: Path) -> None:
    """DNS names and addresses are told apart, and the authority signed it."""
    certificates = Certificates(tmp_path)
    certificates.create(("db.example", "10.1.2.3"))
    ca, server = (x509.load_pem_x509_certificate(p.read_bytes()) for p in (certificates.ca, certificates.chain))
    names = server.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    assert isinstance(names, x509.SubjectAlternativeName)
    assert {"localhost", "db.example"} <= set(names.get_values_for_type(x509.DNSName))
    addresses = {ip_address("127.0.0.1"), ip_address("::1"), ip_address("10.1.2.3")}
    assert addresses <= set(names.get_values_for_type(x509.IPAddress))
    server.verify_directly_issued_by(ca)


def test_the_template_of_the_settings_is_the_defaults(tmp_path: Path) -> None:
    """Every setting of the template, with its # removed, loads and changes nothing."""
    path = tmp_path / "config.toml"
    path.write_text(template())
    assert Config.load(path) == Config()
    lines = template().splitlines()
    path.write_text("\n".join([lines[0], *(line.removeprefix("# ") for line in lines[1:])]))
    assert Config.load(path) == Config()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("fit_workers = 0", "fit_workers"),
        ("fit_workers = 1.5", "fit_workers"),
        ("queue_length = -1", "queue_length"),
        ("max_request_bytes = 1e300", "max_request_bytes"),
        ("call_seconds = nan", "call_seconds"),
        ("response_quantum_seconds = 0", "response_quantum_seconds"),
        ("response_quantum_seconds = 1e-9", "response_quantum_seconds"),
        ("shutdown_seconds = inf", "shutdown_seconds"),
        ('address = "localhost"', "address"),
        ("budget = 100", "budget"),
        ("[checkpoints]\nevery = 0", "checkpoints.every"),
        ('[checkpoints]\nplaces = ["stdout", "s3:bucket"]', r"checkpoints.places.1.*file:PATH"),
        ("[checkpoints]\nnever = 1", "checkpoints.never"),
        ("fit_workers = ", "TOML"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, text: str, named: str) -> None:
    """Unknown and out of range settings are refused by name."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        Config.load(path)


def test_core_dumps_are_off() -> None:
    """A crash leaves no rows on the disk, and no other process of the user may look into this one's memory."""
    program = (
        "import ctypes, resource; from bursar_server.jobs import hardening; hardening.no_core_dumps();"
        "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "(0, 0) 0\n"


_HEAPS = """
import ctypes, os, sys, tempfile, threading
from bursar_server.jobs import hardening
if sys.argv[1:]:
    hardening.few_arenas()
libc = ctypes.CDLL(None)
together = threading.Barrier(12)
def take():
    together.wait()
    kept = [bytes(1000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=take) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with tempfile.NamedTemporaryFile() as file:
    libc.fopen.restype = ctypes.c_void_p
    told = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, told)
    libc.fclose(told)
    print(open(file.name).read().count("<heap nr="))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps of threads are glibc's")
def test_threads_share_two_heaps() -> None:
    """Twelve threads take memory at a time; more heaps if nobody says so, and as many as the environment says."""

    def heaps(*arguments: str, **more: str) -> int:
        environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"} | more
        command = [sys.executable, "-c", _HEAPS, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return int(done.stdout)

    assert heaps("few") <= 2 < heaps()
    assert heaps("few", MALLOC_ARENA_MAX="3") == 3


def test_heaps_are_counted_before_anything_else_is_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Threads of a later moment keep the heap that they have."""
    done: list[str] = []

    def told(name: str) -> bool:
        done.append(name)
        return True

    first = ["few_arenas", "one_thread_for_matrices", "no_core_dumps"]
    for name in first:
        monkeypatch.setattr(hardening, name, partial(told, name))
    monkeypatch.setattr(process, "serve", lambda *_, **__: told("serve"))
    assert CliRunner().invoke(main, ["run", "--state", str(tmp_path)]).exit_code == 0
    assert done == [*first, "serve"]


_MATRICES = """
from bursar_server.jobs import hardening
hardening.one_thread_for_matrices()
import numpy, threadpoolctl
print({found["num_threads"] for found in threadpoolctl.threadpool_info() if found["user_api"] == "blas"})
"""


def test_matrices_are_multiplied_on_one_thread() -> None:
    """Or on as many as the environment says."""
    for said, threads in ((None, 1), ("2", min(2, os.cpu_count() or 1))):
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        if said:
            environment["OPENBLAS_NUM_THREADS"] = said
        command = [sys.executable, "-c", _MATRICES]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stdout == f"{ {threads} }\n"


def test_memory_that_cannot_be_locked_keeps_the_server_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the setting and the limit; where it can be, nothing is said."""

    class Refusing:
        result = -1

        def mlockall(self, flags: int) -> int:
            """Stand for the library's function: now (1) and later (2)."""
            assert flags == 3
            return self.result

    monkeypatch.setattr(hardening, "_libc", Refusing)
    with pytest.raises(hardening.HardeningError, match=r"lock_memory: .*LimitMEMLOCK"):
        hardening.lock_memory()
    monkeypatch.setattr(Refusing, "result", 0)
    hardening.lock_memory()


@given(st.text())
def test_a_log_line_is_one_line(value: str) -> None:
    """No field's content starts a line of its own."""
    written = io.StringIO()
    logger = logging.getLogger("bursar.server")
    handler, level = logging.StreamHandler(written), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        log.Events().tell(log.OidcRefused(error=value))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert len(written.getvalue().splitlines()) == 1


def test_the_log_of_a_failure_has_type_and_place_but_no_text(caplog: pytest.LogCaptureFixture) -> None:
    """An exception's text may have been computed from rows."""
    try:
        raise ZeroDivisionError("SECRET")
    except ZeroDivisionError as error:
        incident = log.failure(error, entry=7)
    assert incident in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "entry=7" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_pool_has_as_many_places_as_workers_and_queue() -> None:
    """One more is refused; a place that is given back, or whose task ended, is free again."""
    pool, release, done = WorkerPool(workers=1, queue_length=1), threading.Event(), threading.Event()

    def wait() -> None:
        release.wait()

    pool.reserve().run(wait)
    second = pool.reserve()
    with pytest.raises(QueueFullError):
        pool.reserve()
    second.give_back()
    pool.reserve().run(done.set)
    release.set()
    _until_reserved(pool)
    _until_reserved(pool)
    assert done.is_set()


def _until_reserved(pool: WorkerPool) -> None:
    # A place is free just after its task has ended.
    while True:
        with contextlib.suppress(QueueFullError):
            pool.reserve()
            return


def test_principals_take_turns_at_a_pool() -> None:
    """One with many tasks keeps another waiting for one of them at most; those of one stay in their order."""
    pool, release, done = WorkerPool(workers=1, queue_length=8), threading.Event(), []
    for name in ("ann-0", "ann-1", "ann-2", "bob-1", "ann-3", "cid-1", "bob-2"):

        def task(name: str = name) -> None:
            release.wait()
            done.append(name)

        pool.reserve(name[:3]).run(task)
    release.set()
    pool.close()
    assert done[0] in ("ann-0", "ann-1")  # taken before the others came, or not
    assert [name for name in done if name.startswith("ann")] == ["ann-0", "ann-1", "ann-2", "ann-3"]
    assert done.index("bob-1") <= 2
    assert done.index("cid-1") <= 3
    assert done.index("bob-2") <= 5


def test_a_task_that_waits_can_be_taken_back() -> None:
    """Its place is free at once; one that was begun is finished."""
    pool, begun, release = WorkerPool(workers=1, queue_length=1), threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        begun.set()
        release.wait()
        done.append("first")

    running, waiting = pool.reserve("ann"), pool.reserve("ann")
    running.run(first)
    begun.wait()
    waiting.run(lambda: done.append("second"))
    assert not running.withdraw()
    assert waiting.withdraw()
    assert not waiting.withdraw()
    pool.reserve("bob").run(lambda: done.append("third"))
    release.set()
    pool.close()
    assert done == ["first", "third"]


def test_a_closed_pool_takes_nothing_that_would_be_paid_for() -> None:
    """Tasks that were taken are finished; a place that nobody would run is refused before a debit."""
    pool, done = WorkerPool(workers=1, queue_length=1), threading.Event()
    pool.reserve().run(done.set)
    pool.close()
    assert done.is_set()
    with pytest.raises(StoppingError):
        pool.reserve()


def test_a_pool_that_closes_waits_for_places_that_are_held() -> None:
    """A holder may be debiting at this moment; a task that comes with it is run, not lost."""
    pool, done = WorkerPool(workers=1, queue_length=1), threading.Event()
    place = pool.reserve()
    closer = threading.Thread(target=pool.close)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    place.run(done.set)
    closer.join()
    assert done.is_set()


def test_a_task_that_raises_takes_no_worker_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """A bug is logged, its place is free again, and the next task is run."""
    pool, done = WorkerPool(workers=1, queue_length=1), threading.Event()

    def fail() -> None:
        raise SystemExit("SECRET")

    pool.reserve().run(fail)
    pool.reserve().run(done.set)
    pool.close()
    assert done.is_set()
    assert "SystemExit" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_pool_needs_no_new_thread_when_somebody_has_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are there from the start, so that a machine without any left refuses to start instead."""
    pool, done = WorkerPool(workers=2, queue_length=1), threading.Event()

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        for _ in range(3):
            pool.reserve().run(done.set)
        pool.close()
    assert done.is_set()
