"""Rows stay in this process's memory: no core dumps, no debuggers, no swap if the owner wants that."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

_PR_SET_DUMPABLE = 4
_MCL_CURRENT, _MCL_FUTURE = 1, 2


class HardeningError(Exception):
    """The operating system does not allow what the settings ask for."""


def no_core_dumps() -> None:
    """A dump would hold rows: none is written, and no other process of the same user may read this one's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


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


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
