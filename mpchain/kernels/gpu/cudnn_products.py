"""Products of matrices by cuDNN, with the bias added in the same kernel.

Where ``config.kernels`` names it: cuDNN compiles the kernel for each shape, for seconds. It takes
tensor cores alone, so single precision has a plan only with
``config.use_cudnn_tensor_core = "always"``.
"""

import functools

from mpchain.backends import cuda
from mpchain.kernels import reference
from mpchain.kernels.gpu.cudnn import Request, Tensor, fit, packed, plan_of, refusal, unasked
from mpchain.typing import Array


def _add_linear(library, graph, x, W, b=None):
    y = graph.matmul(A=x, B=W)
    return [y if b is None else graph.bias(input=y, bias=b)]


@functools.lru_cache(maxsize=1024)
def linear_request(n: int, n_in: int, n_out: int, dtype: str, has_bias: bool) -> Request:
    """Returns the request for y = x W^T + b: all are matrices (1, rows, columns).

    Example:
        >>> linear_request(8, 3, 5, "float16", True).reads[1]
        Tensor(shape=(1, 3, 5), strides=(15, 1, 3), dtype='float16')
    """
    x, y, b = (Tensor(s, packed(s), dtype) for s in ((1, n, n_in), (1, n, n_out), (1, 1, n_out)))
    W = Tensor((1, n_in, n_out), (n_in * n_out, 1, n_in), dtype)  # the transpose of W
    return Request(_add_linear, (x, W, b) if has_bias else (x, W), (y,))


def _plan(x, W, b):
    request = linear_request(*x.shape, W.shape[0], x.dtype.name, b is not None)
    return plan_of(request, x.device)


def _refuse(x, W, b):
    arrays = (x, W) if b is None else (x, W, b)
    if (reason := unasked(*arrays) or refusal(*arrays)) is not None:
        return reason
    if x.ndim != 2:
        return "not a matrix"
    plan = _plan(x, W, b)
    return plan if isinstance(plan, str) else None


@reference.linear.kernel("cudnn", _refuse)
def linear(x: Array, W: Array, b: Array | None) -> Array:
    """See :func:`mpchain.kernels.reference.linear`."""
    y = cuda.get_array_module(x).empty((x.shape[0], W.shape[0]), x.dtype)
    _plan(x, W, b)(fit(x), fit(W), *([] if b is None else [fit(b)]), y)
    return y
