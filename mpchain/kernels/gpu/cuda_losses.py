"""The cross entropy on GPUs, with sums as in :mod:`mpchain.kernels.gpu.cuda_reductions`."""

import math
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.kernels.gpu import cuda_wide
from mpchain.kernels.gpu.cuda_reductions import (
    ALL_C_TYPES,
    EXPONENTIALS,
    SumKernel,
    refusal,
    row_sums,
    wide_dtype,
)
from mpchain.kernels.gpu.cuda_wide import BLOCKS, HEADER, THREADS, TYPES, WIDTH
from mpchain.typing import Array

_GRADIENT = "(exp((W)x - top) / total - (W)is_label) * (weight * scale * (W)g)"
# A thread takes the elements of 128 bits; a new row may begin at any of them. It divides once.
_WIDE_GRADIENT = """{header}
typedef {wide} W;
extern "C" __global__ void mpchain_cross_entropy_gradient_wide(
    const Word* words_x, const {g}* gs, const {t}* labels, const W* weights, const W* tops,
    const W* totals, const W{star} factor, Word* words_gx, long long n_words, long long n,
    long long step_of_g) {{
  const W scale = {star}factor;
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  for (long long i = first; i < n_words; i += gridDim.x * (long long)blockDim.x) {{
    alignas(16) T own[{many}];
    *(Word*)own = words_x[i];
    long long row = i * {many} / n, place = i * {many} - row * n;
    W weight, top, total, g;
    long long label;
    #pragma unroll
    for (int u = 0; u < {many}; u++) {{
      if (place == n) {{ row++; place = 0; }}
      if (u == 0 || place == 0) {{
        weight = weights[row]; top = tops[row]; total = totals[row];
        g = (W)gs[row * step_of_g]; label = labels[row];
      }}
      const T x = own[u];
      const bool is_label = place == label;
      own[u] = {gradient};
      place++;
    }}
    words_gx[i] = *(Word*)own;
  }}
}}
"""

_CROSS_ENTROPY = SumKernel(
    "cross_entropy",
    ("x t class_weight", "loss weight top total", "low long:ignored long:is_weighted"),
    **EXPONENTIALS,
    finish="""if (lane == 0) {
        const long long label = t[r];
        const bool counts = label != ignored, exists = label >= 0 && label < shape.n;
        const W v = exists ? (W)x[start + label * shape.near] : low - low;  // NaN
        const W w = !counts ? 0 : is_weighted && exists ? (W)class_weight[label] : (W)1;
        loss[r] = counts ? (log(a.total) - (v - a.top)) * w : (W)0;
        weight[r] = w; top[r] = a.top; total[r] = a.total;
      }""",
)
_MEAN_LOSS = SumKernel(
    "mean_loss",
    ("loss t", "mean scale", "long:ignored long:size"),
    "total, count",
    "0, 0",
    "a.total += loss[at]; a.count += t[at] != ignored;",
    "a.total += b.total; a.count += b.count;",
    """if (lane == 0) {
        const W count = size ? (W)size : a.count > 1 ? a.count : (W)1;
        *mean = a.total / count; *scale = (W)1 / count;
      }""",
    has_parts=True,
)


class CrossEntropy(NamedTuple):
    """The values that the gradient of the cross entropy needs, as arrays (N, 1, ...) with an
    element for each sample.

    Attributes:
        t: the labels.
        weight: the weight of each sample in the loss, without ``scale``.
        top, total: the maximum of x, and the sum of exp(x - top).
        scale: a factor on all weights, a float or an array ().

    Example:
        >>> y, kept = cross_entropy(x, t, 0, None, -1, "mean")  # doctest: +SKIP
        >>> kept.weight  # doctest: +SKIP
        array([[1.], [1.]])
    """

    t: Array
    weight: Array
    top: Array
    total: Array
    scale: Any


def is_fused_cross_entropy(x: Array, t: Array, class_weight: Array | None) -> bool:
    """Returns whether :func:`cross_entropy` accepts these arrays.

    Example:
        >>> is_fused_cross_entropy(np.ones((1, 2)), np.zeros(1, int), None)
        False
    """
    arrays = [x] if class_weight is None else [x, class_weight]
    is_integer = cuda.is_gpu_array(t) and t.dtype.char in ALL_C_TYPES
    return is_integer and refusal(*arrays) is None


def cross_entropy(
    x: Array,
    t: Array,
    divisor: int,
    class_weight: Array | None,
    ignore_label: int,
    reduce: str,
) -> tuple[Array, CrossEntropy]:
    """Computes the cross entropy of labels and the softmax along axis 1, for CuPy arrays.

    If a label is out of range, the loss is NaN.

    Args:
        x, t: see ``F.softmax_cross_entropy``.
        divisor: the divisor of the sum with reduce='mean'; 0 means the number of labels that are
            not ignored.
        class_weight, ignore_label, reduce: see ``F.softmax_cross_entropy``.

    Returns:
        The loss, and the values that :func:`cross_entropy_gradient` needs.

    Example:
        >>> y, kept = cross_entropy(x, t, 0, None, -1, "mean")  # doctest: +SKIP
    """
    wide, by_sample = wide_dtype(x), (x.shape[0], 1, *x.shape[2:])
    is_mean, is_weighted = reduce == "mean", class_weight is not None
    weights = x if class_weight is None else class_weight.astype(x.dtype, copy=False)
    shape = row_sums(x.shape[0], x.shape[1], math.prod(x.shape[2:]))
    outs = [(t.shape, wide if is_mean else x.dtype), *[(by_sample, wide)] * 3]
    numbers = [-math.inf, int(ignore_label), int(is_weighted)]
    loss, first, second, third = _CROSS_ENTROPY.run(shape, [x, t, weights], outs, numbers)
    scale = wide.type(1)
    if is_mean:
        numbers = [int(ignore_label), divisor]
        outs = [((), x.dtype), ((), wide)]
        loss, scale = _MEAN_LOSS.run(row_sums(1, t.size), [loss, t], outs, numbers)
    return loss, CrossEntropy(t.reshape(by_sample), first, second, third, scale)


def cross_entropy_gradient(g: Array, x: Array, kept: CrossEntropy) -> Array:
    """Returns the gradient of ``x``, given the gradient ``g`` of the loss; see
    :func:`cross_entropy`.

    Example:
        >>> gx = cross_entropy_gradient(g, x, kept)  # doctest: +SKIP
    """
    g, inner = g.reshape(kept.t.shape) if g.ndim else g, math.prod(x.shape[2:])
    own = g, *kept[:4]
    is_plain = inner == 1 and all(v.flags.c_contiguous for v in (x, *own))
    if is_plain and x.size and cuda_wide.is_aligned(x) and x.nbytes % WIDTH == 0:
        return _wide_gradient(x, own, kept.scale)
    gradient = cuda.elementwise(
        "G g, T x, L t, W weight, W top, W total, W scale, int64 n, int64 inner",
        "T gx",
        f"const bool is_label = i / inner % n == t; gx = {_GRADIENT};",
        "mpchain_cross_entropy_gradient",
    )
    return gradient(g, x, *kept, x.shape[1], inner)


def _wide_gradient(x, own, scale):
    g, t, *_ = own
    many, has_pointer = WIDTH // x.itemsize, cuda.is_gpu_array(scale)
    text = _WIDE_GRADIENT.format(
        header=HEADER.format(kind=TYPES[x.dtype.char]),
        wide=TYPES[wide_dtype(x).char],
        **{"g": ALL_C_TYPES[g.dtype.char], "t": ALL_C_TYPES[t.dtype.char]},
        star="*" * has_pointer,
        many=many,
        gradient=_GRADIENT,
    )
    gx, n_words = cuda.get_array_module(x).empty(x.shape, x.dtype), x.size // many
    sizes = np.int64(n_words), np.int64(x.shape[1]), np.int64(g.ndim > 0)
    kernel = cuda.raw(text, "mpchain_cross_entropy_gradient_wide")
    n_blocks = min(-(-n_words // THREADS), BLOCKS)
    kernel((n_blocks,), (THREADS,), (x, *own, scale, gx, *sizes))
    return gx
