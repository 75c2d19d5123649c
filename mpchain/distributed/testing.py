"""Help for tests of programs for several ranks."""

from mpchain import backend
from mpchain.backend import Device


def get_device(local_rank: int | None = None, use_chx: bool = False) -> Device:
    """Returns the device that a rank's tests use.

    Args:
        local_rank: number of the GPU, usually ``intra_rank``; None for the CPU.
        use_chx: whether to use ChainerX, which mpchain does not have: True is an error.

    Raises:
        RuntimeError: ``use_chx`` is True; there is no GPU.

    Example:
        >>> mpchain.distributed.testing.get_device().name
        '@numpy'
    """
    if use_chx:
        return backend.get_device("native" if local_rank is None else f"cuda:{local_rank}")
    return backend.get_device("@numpy" if local_rank is None else f"@cupy:{local_rank}")
