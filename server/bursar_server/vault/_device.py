"""Devices other than this CPU: array libraries on which kernels run and give the same integers.

A kernel that supports devices is written in terms of the array API (data-apis.org/array-api) and implements
`DeviceKernel`. Other kernels always run on the CPU. Sums are exact integers on every device, so a device changes only
the time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

LIBRARIES = {
    "numpy": "numpy",
    "array_api_strict": "array_api_strict",
    "torch": "array_api_compat.torch",
    "cupy": "array_api_compat.cupy",
}
"""First part of a device's name -> module that implements the array API standard for this library."""


@runtime_checkable
class DeviceKernel(Protocol):
    """Kernel of a statistic that can also run on a device."""

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """Return this kernel for a device of an array API namespace; it computes the same integers."""


def on_device(kernel: DeviceKernel, device: str) -> Callable[..., None]:
    """Return the kernel for a device named as in `namespace_of`, with numpy's floating-point warnings turned off."""
    there = kernel.on(*namespace_of(device))

    def quiet(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        # A warning would depend on rows and would reach the log.
        with np.errstate(all="ignore"):
            there(block, present, out)

    return quiet


def namespace_of(device: str) -> tuple[Any, Any]:
    """Return the array API namespace and the device of a name such as "torch:cuda" or "cupy".

    Raises:
        ValueError: the library or the device is not available.
    """
    library, _, where = device.partition(":")
    if library in LIBRARIES:
        try:
            xp = importlib.import_module(LIBRARIES[library])
            xp.zeros(1, dtype=xp.float64, device=where or None)
        except Exception as error:  # libraries raise exceptions without a common class if a device is missing
            raise ValueError(f"device: expected one that is there, got {device!r} ({error})") from error
        return xp, where or None
    raise ValueError(f"device: expected a name that begins with one of {', '.join(LIBRARIES)}, got {device!r}")
