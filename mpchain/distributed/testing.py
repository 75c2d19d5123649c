"""Help for tests of programs for several ranks."""

from mpchain import backend
from mpchain.backend import Device


def get_device(device_id: int | None = None, use_chainerx: bool = False) -> Device:
    """Returns the device that a rank's tests use.

    Args:
        device_id: number of the GPU, usually ``intra_rank``; None for the CPU.
        use_chainerx: whether to use ChainerX, which mpchain does not have, so True is an error.

    Raises:
        RuntimeError: ``use_chainerx`` is True, or there is no GPU.

    Example:
        >>> mpchain.distributed.testing.get_device().name
        '@numpy'
    """
    if use_chainerx:
        return backend.get_device("native" if device_id is None else f"cuda:{device_id}")
    return backend.get_device("@numpy" if device_id is None else f"@cupy:{device_id}")
