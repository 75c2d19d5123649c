"""Finds arrays at addresses that other libraries get."""

import numpy as np

from cupy import _machine
from cupy._records import bytes_of


def block_at(pointer, size, what, alignment=1):
    """Returns the block of the current device that holds ``size`` bytes at an address."""
    block = _machine.pool.block_of(pointer)
    if block is None or pointer + size > block.ptr + block.size:
        raise RuntimeError(f"{what}: {size} bytes at {pointer:#x} are not in an array's memory")
    if block.device_id != _machine.here.device:
        raise RuntimeError(f"{what} is on device {block.device_id}")
    if pointer % alignment:
        raise RuntimeError(f"{what} is at {pointer:#x}, which is not a multiple of {alignment}")
    return block


def view_at(pointer, shape, strides, dtype, what, alignment=1):
    """Returns the array of the given shape and strides (in elements), and its block of memory."""
    dtype = np.dtype(dtype)
    strides = [n * dtype.itemsize for n in strides]
    size = sum((n - 1) * s for n, s in zip(shape, strides)) + dtype.itemsize
    block = block_at(pointer, size, what, alignment)
    whole = bytes_of(block.host)
    return np.ndarray(shape, dtype, whole, pointer - block.ptr, strides), block
