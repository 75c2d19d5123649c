"""Sums of rows with equal numbers on GPUs, such as gradients of embeddings, in a fixed order.

Where ``config.cudnn_deterministic`` asks for it: CuPy's ``add.at`` takes atomic operations, which
add in another order each time, but needs no sorting.
"""

import math

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import config
from mpchain.kernels import reference
from mpchain.typing import Array

# The thread of the first of the rows with equal numbers adds all of them.
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


def _refuse(rows: Array, ids: Array, n: int) -> str | None:
    if not (cuda.is_gpu_array(rows) and cuda.is_gpu_array(ids)):
        return "not CuPy arrays"
    if not config.cudnn_deterministic:
        return "config.cudnn_deterministic is not set: sums in any order take fewer kernels"
    if not is_floating(rows.dtype):
        return "not floating point"
    return None if rows.size and n else "no rows"


@reference.sum_rows.kernel("cuda_rows", _refuse)
def sum_rows(rows: Array, ids: Array, n: int) -> Array:
    """See :func:`mpchain.kernels.reference.sum_rows`."""
    xp, shape = cuda.get_array_module(rows), rows.shape[ids.ndim :]
    width = math.prod(shape)
    places = ids.reshape(-1).astype(np.int64) % n  # -1 is the last one
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
