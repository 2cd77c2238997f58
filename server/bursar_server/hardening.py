"""Rows stay in this process's memory: no core dumps, no debuggers, no swap if the owner wants that.

And what a process that runs a fit may take of the machine, and when it is to die; and what a server keeps of the memory
that its calls gave back.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
_M_ARENA_MAX = -8
_ARENAS = 2
_MCL_CURRENT, _MCL_FUTURE = 1, 2


class HardeningError(Exception):
    """The operating system does not allow what the settings ask for."""


def no_core_dumps() -> None:
    """A dump would hold rows: none is written, and no other process of the same user may read this one's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def few_arenas() -> None:
    """Let the threads of this process and of its children share two of glibc's heaps, instead of eight a processor.

    What a call gave back stays with the heap that it was taken from. With a heap for every few of its threads, a server
    slowly comes to keep a multiple of what its calls need at a time. Does nothing where MALLOC_ARENA_MAX says how many,
    or where there is another allocator. To be called before any thread is started.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with contextlib.suppress(AttributeError):  # musl has one heap, and no such function
        _libc().mallopt(_M_ARENA_MAX, _ARENAS)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process (SIGKILL) when the thread that forked it has ended.

    Args:
        parent: number of the process that did; if it is gone already, this one ends here.
    """
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def named(name: str) -> None:
    """Have this process listed under a name, 15 letters at most."""
    _libc().prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def first_to_go(proc: Path = Path("/proc")) -> None:
    """If the machine runs out of memory, let the kernel end this process rather than any other, where that can be."""
    libc = _libc()
    # The file of a process that may not be dumped belongs to root. Nothing is in memory yet that would be worth a look.
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    with contextlib.suppress(OSError):
        (proc / "self" / "oom_score_adj").write_text("1000")
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit_memory(more: int) -> None:
    """Let this process allocate so many bytes more than it has, and no more; whoever asks for them is refused.

    What counts is private and writable: heap, arrays, stacks. Files that are mapped for reading do not.
    """
    limit = _allocated() + more
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _allocated(proc: Path = Path("/proc")) -> int:
    """Bytes of this process that count for RLIMIT_DATA."""
    found = _number(proc / "self" / "status", r"^VmData:\s*(\d+) kB$")
    if not found:
        raise HardeningError("the kernel does not tell how much memory a process has")
    return found * 1024


def lock_memory() -> None:
    """Keep this process's memory out of the swap, now and later. Raises HardeningError if that is not allowed."""
    if _libc().mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise HardeningError(
            f"lock_memory: {reason}. Raise the limit (systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1), or "
            "switch swap off for the server (systemd: MemorySwapMax=0) and this setting, too"
        )


def swap_in_use(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether pages of this process may be written to a swap on a disk, as far as the kernel tells."""
    try:
        swaps = (proc / "swaps").read_text().splitlines()[1:]
        group = (proc / "self" / "cgroup").read_text().rpartition("::")[2].strip()
    except OSError:
        return False
    if not any(not line.startswith("/dev/zram") for line in swaps):
        return False
    try:
        return (cgroups / group.lstrip("/") / "memory.swap.max").read_text().strip() != "0"
    except OSError:
        return True


def memory_of_machine(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process and all others beside it may have; 0 if the kernel does not tell."""
    found = [_number(proc / "meminfo", r"^MemTotal:\s*(\d+) kB$") * 1024]
    with contextlib.suppress(OSError):
        group = (proc / "self" / "cgroup").read_text().rpartition("::")[2].strip()
        found.append(_number(cgroups / group.lstrip("/") / "memory.max", r"^(\d+)$"))
    return min(filter(None, found), default=0)


def _number(path: Path, pattern: str) -> int:
    """What a file of the kernel says; 0 if it does not."""
    try:
        found = re.search(pattern, path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
