"""The CUDA runtime."""

from cupy import _machine
from cupy._machine import CUDARuntimeError as CUDARuntimeError
from cupy._machine import Device

errorMemoryAllocation = 2
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14


def getDeviceCount():
    """Returns the number of devices."""
    return _machine.N_DEVICES


def getDevice():
    """Returns the number of the current device."""
    return Device().id


def setDevice(device):
    """Makes a device the current device."""
    Device(device).use()


def deviceSynchronize():
    """Waits for the current device."""
    Device().synchronize()


def getDeviceProperties(device):
    """Returns the known properties of a device."""
    sizes = {"totalGlobalMem": 80 << 30, "major": 9, "minor": 0}
    # Ranks are processes of one machine: device 0 of all of them is the same device.
    return {"name": b"double", "uuid": bytes([*range(15), int(device)]), **sizes}


def runtimeGetVersion():
    """Returns a version of CUDA."""
    return 13000


def driverGetVersion():
    """Returns a version of the driver."""
    return 13000
