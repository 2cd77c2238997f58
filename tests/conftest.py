"""Fixtures of all tests: hypothesis has no deadlines, no test writes below the user's home, one browser for all."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import bursar_server  # noqa: F401  before any test imports grpc, so that servers in this process speak TLS 1.3 only
from bursar_server.jobs import hardening
from tests.browser.driver import Browser, started

# Before anything imports numpy: tests share CPUs, as fits of a server do.
hardening.one_thread_for_matrices()

# Thousands of tests wait until files are on the disk. In memory, where there is room and programs may be run from it,
# they take a third of the time; a process that is killed has lost nothing there, either.
with contextlib.suppress(OSError):
    memory = os.statvfs("/dev/shm")  # noqa: S108  pytest makes a folder of its own there
    if memory.f_bavail * memory.f_frsize >= 2**32 and not memory.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")  # noqa: S108

HERE = Path(__file__).parent

# The same examples every time, so that a commit passes or fails whenever it is asked; `make properties` draws others.
settings.register_profile("same", settings.get_profile("default"), deadline=None, derandomize=True)
settings.register_profile("fresh", settings.get_profile("default"), deadline=None, derandomize=False)
settings.load_profile(os.environ.get("EXAMPLES", "same"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage, of which there is little among millions of objects that stay.

    Nor are these looked through again while tests run, which takes half a second each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries count what is left at the end
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files that fork first, then those that take long: of pages and commands, and with long tests.

    A server forks before it has threads; other tests leave threads of many libraries. One process runs all tests of a
    file, so that what takes long to make is made once, and what is long and comes last is waited for by it alone.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}

    def later(item: pytest.Item) -> tuple[bool, bool]:
        long = item.path.parent == HERE or item.path in slow
        return item.get_closest_marker("forks") is None, not long

    items.sort(key=later)


@pytest.fixture(scope="session", autouse=True)
def _no_history_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients, those of child processes included, keep what they saw of ledgers in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BURSAR_HISTORY", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state-home")))
        yield


@pytest.fixture(scope="module", autouse=True)
def _own_notes(_no_history_at_home: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each file of tests has its own folder of these notes, which are read and written as a whole at each fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("notes")))
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium; tests that use it are slow, and skipped without Node.js unless in CI."""
    with started() as made:
        yield made
