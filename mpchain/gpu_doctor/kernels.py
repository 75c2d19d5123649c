"""Compares mpchain's kernels on a GPU with the CPU, for each case of each operation, and measures
their bandwidth."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpchain import kernels
from mpchain.backend import get_device
from mpchain.backends import cuda
from mpchain.gpu_doctor.check import difference, is_double
from mpchain.gpu_doctor.machine import Item, bandwidth
from mpchain.testing.kernel_cases import CASES, DTYPES, LAYOUTS, arguments

TOLERANCES = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-12}
"""The largest relative difference that passes, by dtype; :data:`ROUNDED` is an exception."""

ROUNDED = 1e-3
"""The largest relative difference that passes for convolutions in float32, which may round factors
to ten bits (TF32)."""


def cases(operation: str) -> Iterator[Item]:
    """Yields the cases of an operation in each dtype and, on a GPU, each layout.

    Every kernel that accepts the arguments and, in the first layout, the reference on the GPU are
    compared with the reference on the CPU.

    Args:
        operation: the name of the operation.

    Example:
        >>> [name for name, _ in cases("softmax")][0]
        'softmax, matrix, float16'
    """
    layouts = list(LAYOUTS)[: 1 if is_double() else None]
    for case in CASES[operation]:
        for dtype in DTYPES:
            name = f"{operation}, {case}, {np.dtype(dtype).name}"
            yield name, lambda c=case, d=dtype: _compare(operation, c, d, layouts)


def _compare(operation, case, dtype, layouts):
    device, worst, taken = get_device("@cupy:0"), 0.0, set()
    limit = TOLERANCES[np.dtype(dtype).name]
    for layout in layouts:
        np.random.seed(0)
        on_host = arguments(operation, case, dtype, layout)
        *_, reference = kernels.operations[operation].kernels
        wanted = _as_tuple(reference.compute(*on_host))
        with device.create_context():
            given = [device.send(x) if isinstance(x, np.ndarray) else x for x in on_host]
            for kernel in kernels.operations[operation].kernels:
                if layout != layouts[0] and kernel is reference:
                    continue
                if kernel.refuse is not None and kernel.refuse(*given) is not None:
                    continue
                got = _as_tuple(kernel.compute(*given))
                errors = [_error(*pair) for pair in zip(got, wanted, strict=True)]
                taken.add(kernel.library)
                rounds = kernel.library == "cudnn" and operation.startswith("convolution")
                if max(errors) > (ROUNDED if rounds and dtype == np.float32 else limit):
                    where = f"{kernel.library}, {layout}"
                    return {"ok": False, "error": float(max(errors)), "kernel": where}
                worst = max(worst, *errors)
    return {"ok": True, "error": float(worst), "kernels": sorted(taken)}


def _as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def _error(got, wanted):
    got = cuda.to_cpu(got)
    if not wanted.size:
        return 0.0 if got.shape == wanted.shape and got.dtype == wanted.dtype else np.inf
    if not np.isfinite(wanted).all():
        return 0.0 if np.array_equal(got, wanted, equal_nan=True) else np.inf
    if not wanted.any():
        return float(np.abs(got).max())
    return difference(got, wanted)


def speeds() -> Iterator[Item]:
    """Yields items that measure the bandwidth of kernels, for array sizes of ResNet-50 and GPT-2.

    Each array counts as read or written once, except that batch normalization and its gradient must
    read their inputs twice. A kernel that reads an array more often cannot reach the card's full
    bandwidth.

    Example:
        >>> [name for name, _ in speeds()][0]
        'batch normalization, 64 x 64 x 112 x 112, float32'
    """
    for dtype in ("float32", "float16"):
        for c, size in ((64, 112), (256, 56), (512, 28), (2048, 7)):
            shape = (64, c, size, size)
            name = f"{' x '.join(map(str, shape))}, {dtype}"
            yield f"batch normalization, {name}", lambda s=shape, d=dtype: _batch(s, d, False)
            yield f"its gradient, {name}", lambda s=shape, d=dtype: _batch(s, d, True)
        for width in (768, 50257):
            for what in _OF_ROWS:
                name = f"{what}, 8192 x {width}, {dtype}"
                yield name, lambda w=what, n=width, d=dtype: _row(w, n, d)


def _draw(shape, dtype):
    if is_double():
        shape = [min(n, 4) for n in shape]
    x = cuda.cupy.arange(int(np.prod(shape)), dtype=np.float32) % 31 - 15
    return (x / 8).reshape(shape).astype(dtype)


def _batch(shape, dtype, is_gradient):
    x, kept = _draw(shape, dtype), (1, min(shape[1], 4) if is_double() else shape[1], 1, 1)
    gamma, beta = cuda.cupy.ones(kept, dtype), cuda.cupy.zeros(kept, dtype)
    run = lambda: kernels.batch_normalization(x, gamma, beta, (0, 2, 3), 1e-5)
    _, mean, inverse_std, _ = run()
    if is_gradient:
        run = lambda: kernels.batch_normalization_gradient(
            x, x, gamma, mean, inverse_std, (0, 2, 3)
        )
    return bandwidth(run, (5 if is_gradient else 3) * x.nbytes)


_OF_ROWS: dict[str, tuple[Any, int]] = {
    "softmax": (lambda x: kernels.softmax(x, 1), 2),
    "layer normalization": (
        lambda x: kernels.sample_normalization(x, x[0], x[0], (-1,), 1e-5),
        2,
    ),
    "gradient of a bias": (lambda x: x.sum(axis=0), 1),
    "elementwise": (lambda x: cuda.cupy.maximum(x, 0), 2),
    "copy": (lambda x: x.copy(), 2),
}
"""Maps names to pairs: a function of a matrix, and how many times it reads or writes the matrix."""


def _row(what, width, dtype):
    call, n_moved = _OF_ROWS[what]
    x = _draw((8192, width), dtype)
    return bandwidth(lambda: call(x), n_moved * x.nbytes)
