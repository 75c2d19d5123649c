"""The CPU: NumPy arrays."""

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.device import Device


class CpuDevice(Device):
    """The host's memory and processors, through NumPy; its specifier is ``'@numpy'``."""

    xp = np
    name = "@numpy"
    supported_array_types = (np.ndarray,)

    def __enter__(self):
        return self

    def send_array(self, array):
        return cuda.to_cpu(array)


class Intel64Device(CpuDevice):
    """``'@intel64'``, kept for programs that name it: the CPU."""

    name = "@intel64"
