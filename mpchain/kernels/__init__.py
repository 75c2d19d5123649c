"""Kernels: functions that compute arrays from arrays, without a graph.

An operation has one reference kernel, which runs anywhere, and may have other kernels: from a
vendor's library, or our own kernels for particular sizes. The first kernel that accepts the
arguments runs, in this order: libraries named in ``config.kernels``, kernels that use vendors'
libraries, our own kernels (compiled kernels first), the reference. With ``config.autotune``, the
kernels that accept NumPy arrays are timed once for each kind of arguments, and the fastest kernel
runs; results can then differ in rounding from run to run.

Example:
    >>> x, W = np.ones((2, 3)), np.ones((4, 3))
    >>> mpchain.kernels.linear(x, W, None).shape
    (2, 4)
    >>> print(mpchain.kernels.explain("linear", x, W, None))
    linear: onednn: no: not NumPy arrays of float32 or bfloat16
    linear: cudnn: no: not CuPy arrays of float16 or bfloat16 or float32 or float64
    linear: numpy_cpu: no: not few rows and many weights
    linear: reference: runs
"""

from typing import Any

from mpchain import annexes
from mpchain.kernels.attend import Dropout, attention, attention_gradient, attention_kept
from mpchain.kernels.cpu import (
    blas,
    numba_cpu,
    numba_reductions,
    numba_rows,
    numpy_cpu,
    onednn,
    pointwise,
    small_normalization,
    small_softmax,
    winograd,
)
from mpchain.kernels.operation import Operation
from mpchain.kernels.philox import Counters, draw_kept, drop, random_words
from mpchain.kernels.reference import (
    batch_normalization,
    batch_normalization_gradient,
    concatenate,
    convolution_filter,
    convolution_input,
    convolution_output,
    convolution_with_bias,
    exponentials,
    extremum,
    fold_windows,
    linear,
    log_softmax,
    log_softmax_gradient,
    max_windows,
    place_in_windows,
    product,
    products,
    products_of_others,
    rms_normalization,
    rms_normalization_gradient,
    row_sums,
    running_sums,
    sample_normalization,
    sample_normalization_gradient,
    shift_and_scale,
    softmax,
    softmax_gradient,
    spread_windows,
    sum_distinct_rows,
    sum_rows,
    sum_windows,
    take_from_windows,
    unfold_windows,
)

annexes.find("gpu_kernels", "kernels.gpu.every")

operations = {value.name: value for value in list(vars().values()) if isinstance(value, Operation)}
"""All operations, by name."""


def explain(operation: str, *args: Any) -> str:
    """Returns one line per kernel: which kernel runs for these arguments, and why each kernel
    before it does not run.

    Example:
        >>> print(explain("linear", np.zeros((2, 3)), np.zeros((4, 3)), None))
        linear: onednn: no: not NumPy arrays of float32 or bfloat16
        linear: cudnn: no: not CuPy arrays of float16 or bfloat16 or float32 or float64
        linear: numpy_cpu: no: not few rows and many weights
        linear: reference: runs
    """
    if operation not in operations:
        raise LookupError(f"kernels.explain: there is no operation {operation!r}")
    return operations[operation].explain(*args)
