"""Kernels for rows of arrays on GPUs: one joins the rows of several arrays, and two sum rows in a
fixed order."""

import functools
import math

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.configuration import config
from mpchain.kernels import reference
from mpchain.typing import Array

_MOST = 32  # the maximum number of arrays that one kernel joins

# A thread adds a chunk of the sorted rows, for one column. The sum of rows with equal indices that
# several chunks contain has a part where these rows begin, and parts that continue an earlier one.
_CHUNKS = """
const ptrdiff_t chunk = i / width, column = i % width, begin = chunk * length;
const ptrdiff_t end = begin + length < n ? begin + length : n;
for (ptrdiff_t k = begin; k < end;) {
  const ptrdiff_t first = k, id = ids[order[k]];
  W sum = 0;
  for (; k < end && ids[order[k]] == id; k++) sum += rows[order[k] * width + column];
  const bool continues = first == begin && begin && ids[order[begin - 1]] == id;
  const bool goes_on = k == end && end < n && ids[order[end]] == id;
  if (continues || goes_on) parts[(2 * chunk + continues) * width + column] = sum;
  else y[id * width + column] = sum;
}
"""
# The chunk in which rows with equal indices begin joins their parts.
_JOINED = """
const ptrdiff_t chunk = i / width, column = i % width, begin = chunk * length;
const ptrdiff_t end = begin + length;
if (end < n && ids[order[end]] == ids[order[end - 1]]) {
  const ptrdiff_t id = ids[order[end]];
  if (!begin || ids[order[begin - 1]] != id) {
    W sum = parts[2 * chunk * width + column];
    for (ptrdiff_t c = chunk + 1; c * length < n && ids[order[c * length]] == id; c++)
      sum += parts[(2 * c + 1) * width + column];
    y[id * width + column] = sum;
  }
}
"""


def _refuse_joining(axis: int, *arrays: Array) -> str | None:
    return None if 2 <= len(arrays) <= _MOST else f"not 2 to {_MOST} arrays"


@functools.cache
def _joining(n):
    """Returns the kernel for n arrays: element j of a row comes from the first array such that this
    array and the arrays before it have more than j columns."""
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

    CuPy's ``add.at`` needs no sorting, but uses atomic operations, which may add in another order
    in each call.
    """
    xp, shape = cuda.get_array_module(rows), rows.shape[ids.ndim :]
    width = math.prod(shape)
    places = ids.reshape(-1).astype(np.int64) % n  # the index -1 means the last row
    y, order = xp.zeros((n, *shape), rows.dtype), places.argsort()
    length = rows_per_chunk(ids.size)
    n_chunks = -(-ids.size // length)
    parts = xp.empty((2 * n_chunks, width), np.promote_types(rows.dtype, np.float32))
    add, join = _kernels()
    given = places, order, width, ids.size, length
    add(rows, *given, parts, y, size=n_chunks * width)
    if n_chunks > 1:
        join(parts, *given, y, size=(n_chunks - 1) * width)
    return y


def rows_per_chunk(n: int) -> int:
    """Returns how many of n sorted rows a thread adds, before sums of chunks are joined.

    Example:
        >>> rows_per_chunk(10), rows_per_chunk(10_000)
        (32, 100)
    """
    return max(32, math.isqrt(n))


def _kernels():
    """Returns the kernel that adds the rows of chunks, and the one that joins their sums."""
    indices = "raw int64 ids, raw int64 order, int64 width, int64 n, int64 length"
    add = f"raw T rows, {indices}", "raw W parts, raw T y", _CHUNKS, "mpchain_sum_rows"
    join = f"raw W parts, {indices}", "raw T y", _JOINED, "mpchain_join_sums_of_rows"
    return cuda.elementwise(*add), cuda.elementwise(*join)
