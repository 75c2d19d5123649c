"""The CPU: NumPy arrays."""

from typing import Self

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.device import Device
from mpchain.typing import Array


class CpuDevice(Device):
    """The host's memory and processors, through NumPy; its specifier is ``'@numpy'``.

    Example:
        >>> device = mpchain.backend.CpuDevice()
        >>> device.name, device.send([1.5, np.zeros(2)])
        ('@numpy', [array(1.5), array([0., 0.])])
    """

    xp = np
    name = "@numpy"
    supported_array_types = (np.ndarray,)

    def __enter__(self) -> Self:
        return self

    @staticmethod
    def from_array(array: object) -> "CpuDevice | None":
        """Returns the CPU for a NumPy array, or None for any other object."""
        return CpuDevice() if isinstance(array, np.ndarray) else None

    def send_array(self, array: object) -> Array:
        return cuda.to_cpu(array)


class Intel64Device(CpuDevice):
    """The CPU under the specifier ``'@intel64'``, which older programs use.

    Example:
        >>> mpchain.get_device("@intel64") == mpchain.backend.Intel64Device()
        True
    """

    name = "@intel64"

    @staticmethod
    def from_array(array: object) -> None:
        """Returns None: NumPy arrays are on :class:`CpuDevice`."""
        return None
