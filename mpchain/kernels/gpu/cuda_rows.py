"""Rows of arrays on GPUs: joined by one kernel, and summed in a fixed order."""

import functools
import math

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import config
from mpchain.kernels import reference
from mpchain.typing import Array

_MOST = 32  # number of arrays that one kernel joins

# The first thread of rows with equal indices adds all of them.
_TEXT = """
const ptrdiff_t place = i / width, column = i % width;
const ptrdiff_t id = ids[order[place]];
if (place == 0 || ids[order[place - 1]] != id) {
  W sum = 0;
  for (ptrdiff_t k = place; k < n && ids[order[k]] == id; k++)
    sum += rows[order[k] * width + column];
  y[id * width + column] = sum;
}
"""


def _refuse_joining(axis: int, *arrays: Array) -> str | None:
    return None if 2 <= len(arrays) <= _MOST else f"not 2 to {_MOST} arrays"


@functools.cache
def _joining(n):
    """Returns the kernel for n arrays: element j of a row comes from the first array that reaches
    it."""
    ins = ", ".join(f"raw T x{k}, int64 n{k}" for k in range(n))
    text = "const ptrdiff_t row = i / width; ptrdiff_t j = i % width;\n"
    for k in range(n):
        reached = f"(j -= n{k - 1})" if k else "j"
        text += f"{'else ' if k else ''}if ({reached} < n{k}) y = x{k}[row * n{k} + j];\n"
    return cuda.elementwise(f"{ins}, int64 width", "T y", text, f"mpchain_join_{n}")


@reference.concatenate.kernel("cuda_joining", _refuse_joining, ())
def concatenate(axis: int, *arrays: Array) -> Array:
    """See :func:`mpchain.kernels.reference.concatenate`."""
    first = arrays[0]
    axis %= first.ndim
    lead, rest = first.shape[:axis], first.shape[axis + 1 :]
    shape = (*lead, sum(x.shape[axis] for x in arrays), *rest)
    y = cuda.get_array_module(first).empty(shape, first.dtype)
    sized = [part for x in arrays for part in (x, math.prod(x.shape[axis:]))]
    return _joining(len(arrays))(*sized, math.prod(shape[axis:]), y)


def _refuse(rows: Array, ids: Array, n: int) -> str | None:
    if not config.cudnn_deterministic:
        return "config.cudnn_deterministic is not set: sums in any order take fewer kernels"
    if not is_floating(rows.dtype):
        return "not floating point"
    return None if rows.size and n else "no rows"


@reference.sum_rows.kernel("cuda_rows", _refuse, ())
def sum_rows(rows: Array, ids: Array, n: int) -> Array:
    """See :func:`mpchain.kernels.reference.sum_rows`.

    CuPy's ``add.at`` needs no sorting, but uses atomic operations, which add in a different order
    each time.
    """
    xp, shape = cuda.get_array_module(rows), rows.shape[ids.ndim :]
    width = math.prod(shape)
    places = ids.reshape(-1).astype(np.int64) % n  # -1 means the last row
    y = xp.zeros((n, *shape), rows.dtype)
    kernel = cuda.elementwise(
        "raw int64 ids, raw int64 order, raw T rows, int64 width, int64 n, W zero",
        "raw T y",
        _TEXT,
        "mpchain_sum_rows",
    )
    zero = np.zeros((), np.float64 if rows.dtype == np.float64 else np.float32)[()]
    kernel(places, places.argsort(), rows, width, ids.size, zero, y, size=ids.size * width)
    return y
