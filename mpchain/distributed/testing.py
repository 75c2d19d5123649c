"""What tests of programs for several ranks need."""

from mpchain import backend


def get_device(local_rank=None, use_chx=False):
    """Returns the device that a rank's tests use.

    Args:
        local_rank (int): number of the GPU, usually ``intra_rank``; None for the CPU.
        use_chx (bool): for ChainerX, which there is none of: True is an error.

    Raises:
        RuntimeError: ``use_chx`` is True; there is no GPU.
    """
    if use_chx:
        return backend.get_device("native" if local_rank is None else f"cuda:{local_rank}")
    return backend.get_device("@numpy" if local_rank is None else f"@cupy:{local_rank}")
