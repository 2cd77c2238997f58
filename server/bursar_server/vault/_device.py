"""Where kernels may run besides this processor: libraries of arrays, and their devices, that give the same integers.

A kernel that can is written in terms of the array API (data-apis.org/array-api) and says so by `DeviceKernel`; any
other is run by the processor as ever. Sums are exact integers wherever they are made, so a device changes time alone.
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
"""By the name that a device begins with: the module in which the library keeps to the standard."""


@runtime_checkable
class DeviceKernel(Protocol):
    """A kernel of a statistic that runs elsewhere, too."""

    def on(self, xp: Any, device: Any) -> Callable[..., None]:
        """The same kernel on a device of a namespace of the array API: the same integers."""


def on_device(kernel: DeviceKernel, device: str) -> Callable[..., None]:
    """The kernel, run on a device that `namespace_of` knows. Says nothing of what rows hold, as numpy would."""
    there = kernel.on(*namespace_of(device))

    def quiet(block: NDArray[np.float64], present: NDArray[np.bool_], out: NDArray[np.int64]) -> None:
        with np.errstate(all="ignore"):  # else overflows would be warned of
            there(block, present, out)

    return quiet


def namespace_of(device: str) -> tuple[Any, Any]:
    """The namespace of the array API, and its device, that a name such as "torch:cuda" or "cupy" stands for.

    Raises ValueError if there is no such library, or no such device.
    """
    library, _, where = device.partition(":")
    if library in LIBRARIES:
        try:
            xp = importlib.import_module(LIBRARIES[library])
            xp.zeros(1, dtype=xp.float64, device=where or None)
        except Exception as error:  # what libraries raise where there is no device has no common class
            raise ValueError(f"device: expected one that is there, got {device!r} ({error})") from error
        return xp, where or None
    raise ValueError(f"device: expected a name that begins with one of {', '.join(LIBRARIES)}, got {device!r}")
