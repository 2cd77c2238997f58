"""Hardening of processes with rows: no core dumps, no debuggers, optionally no swap; and their resource limits.

Also the death of child processes with their parent, the memory that a server keeps after calls, and its threads.
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
"""Options of `prctl`, from `linux/prctl.h`."""

_M_ARENA_MAX = -8
"""Parameter of glibc's `mallopt`, from `malloc.h`."""

_ARENAS = 2
"""Number of glibc heaps of a process. After minutes of load 2 hold 3 MiB of freed memory; glibc's own 16, 17 MiB."""

_MCL_CURRENT, _MCL_FUTURE = 1, 2
"""Flags of `mlockall`, from `sys/mman.h`."""

_DESCRIPTORS = 65_536
"""Limit that the units in `deploy/` set. Not more: a forked process closes every descriptor up to the limit."""


class HardeningError(Exception):
    """Error: the operating system does not allow what the settings require."""


def no_core_dumps() -> None:
    """Disable core dumps, which would contain rows, and access of the user's other processes to this one's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def few_arenas() -> None:
    """Let the threads of this process and of its children share two of glibc's heaps, instead of eight a CPU.

    Freed memory stays with its heap. With a heap for every few threads, a server slowly keeps a multiple of the memory
    that its calls need at a time. Does nothing if MALLOC_ARENA_MAX is set, or with another allocator. Call it before
    any thread is started.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with contextlib.suppress(AttributeError):  # musl has one heap, and no such function
        _libc().mallopt(_M_ARENA_MAX, _ARENAS)


def one_thread_for_matrices() -> None:
    """Let OpenBLAS multiply matrices on one thread, in this process and in its children.

    Those of a fit are small: several threads wait for each other, and take two to three times the processor time of one
    (measured for the choice of components, on two busy CPUs). Nor does a model depend on the number of CPUs. Does
    nothing if OPENBLAS_NUM_THREADS is set. Call it before numpy is imported, which reads it then.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process (SIGKILL) when the thread that forked it has ended.

    Args:
        parent: process id of the parent; if it is gone already, this process ends here.
    """
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def named(name: str) -> None:
    """Set the name under which this process is listed, at most 15 letters."""
    _libc().prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def first_to_go() -> None:
    """Let the kernel end this process first if the machine runs out of memory, where that can be set."""
    libc = _libc()
    # The file of a process that may not be dumped belongs to root. Nothing is in memory yet that would be worth a look.
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def limit_memory(more: int) -> None:
    """Limit the memory that this process may allocate to `more` bytes above its present memory.

    Private and writable memory counts: heap, arrays, stacks. Files that are mapped for reading do not.
    """
    limit = _allocated() + more
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _allocated(proc: Path = Path("/proc")) -> int:
    """Return the bytes of this process that count for RLIMIT_DATA."""
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


def raise_descriptor_limit() -> None:
    """Raise this process's limit on file descriptors to the allowed maximum, at most `_DESCRIPTORS`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    """Return the maximum number of file descriptors of this process; `_DESCRIPTORS` if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def free_descriptors() -> int:
    """Return the number of free file descriptors of this process. Raises OSError if none is left to count them."""
    return descriptor_limit() - len(os.listdir("/proc/self/fd"))  # noqa: PTH208  there may be 65,536


def swap_in_use(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Return whether pages of this process may be written to a swap on a disk, as far as the kernel reports."""
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


def memory_of_machine() -> int:
    """Return the bytes of memory that all processes together may have; 0 if the kernel does not report them."""
    found = [_number(Path("/proc/meminfo"), r"^MemTotal:\s*(\d+) kB$") * 1024]
    with contextlib.suppress(OSError):
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        found.append(_number(Path("/sys/fs/cgroup") / group.lstrip("/") / "memory.max", r"^(\d+)$"))
    return min(filter(None, found), default=0)


def _number(path: Path, pattern: str) -> int:
    """Return a number from a file of the kernel; 0 if it has none."""
    try:
        found = re.search(pattern, path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
