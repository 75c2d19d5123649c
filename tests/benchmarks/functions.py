"""Compares functions with PyTorch's, forward and backward, at three sizes, sorted by quotient.

    python -m tests.benchmarks.functions             # all
    python -m tests.benchmarks.functions gelu conv   # those whose names contain one of these words
    python -m tests.benchmarks.functions --threads 2 --out FILE

Both libraries run in this process, by turns, and the least time of each counts: CPU time on one
thread, wall time on more, for which the machine must be quiet. Values are compared first.
A row is a function at one size; ``forward`` takes arrays that need no gradient, ``backward`` is
forward and backward. The worst come first; the last lines count rows above 1.1 for each size.
"""

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

SIZES = {"small": 0, "middle": 1, "large": 2}
MATRIX = (32, 32), (256, 256), (1024, 1024)
IMAGES = (1, 8, 8, 8), (4, 32, 16, 16), (16, 64, 32, 32)
SIGNAL = (1, 8, 32), (4, 32, 256), (16, 64, 1024)
TURNS, TURN = 12, 0.004  # the number of turns, and the seconds of a turn


class Row(NamedTuple):
    """A function of mpchain and of PyTorch, which takes arrays of ``shapes(size)`` with values
    between ``low`` and ``high``."""

    name: str
    ours: Callable
    theirs: Callable
    shapes: Callable[[int], list]
    low: float = -2.0
    high: float = 2.0
    tolerance: float = 1e-3


def _of(*tables):
    """Returns a function of the size that returns shapes, from tables of three shapes."""
    return lambda size: [table[size] for table in tables]


def _weights(channels, *rest):
    return tuple((n, n, *rest) for n in channels)


_ROWS, _COLUMNS = tuple((m[0],) for m in MATRIX), tuple((m[1],) for m in MATRIX)
_CHANNELS = 8, 32, 64


def _elementwise(F, torch):
    T, S = torch.nn.functional, torch.special
    both = "exp log sqrt sin cos tan tanh sigmoid erf erfc expm1 log1p square rsqrt".split()
    both += "arctan arcsin arccos sinh cosh lgamma digamma ndtr log_ndtr erfinv".split()
    names = {"ndtr": S.ndtr, "log_ndtr": S.log_ndtr, "absolute": torch.abs}
    domains = {name: (0.1, 3.0) for name in "log sqrt log1p rsqrt lgamma digamma".split()}
    domains |= {name: (-0.9, 0.9) for name in "arcsin arccos erfinv tan".split()}
    for name in [*both, "absolute"]:
        theirs = names.get(name) or getattr(torch, name)
        yield Row(name, getattr(F, name), theirs, _of(MATRIX), *domains.get(name, (-2, 2)))
    same = "relu relu6 leaky_relu elu selu softplus silu mish gelu".split()
    for name in same:
        theirs = functools.partial(T.leaky_relu, negative_slope=0.2)
        theirs = theirs if name == "leaky_relu" else getattr(T, name)
        yield Row(name, getattr(F, name), theirs, _of(MATRIX))
    yield Row(
        "gelu tanh",
        lambda x: F.gelu(x, "tanh"),
        lambda x: T.gelu(x, approximate="tanh"),
        _of(MATRIX),
    )
    yield Row("clip", lambda x: F.clip(x, -1.0, 1.0), lambda x: x.clip(-1, 1), _of(MATRIX))
    yield Row("x * 2 + 1", lambda x: x * 2 + 1, lambda x: x * 2 + 1, _of(MATRIX))
    yield Row("x ** 3", lambda x: x**3, lambda x: x**3, _of(MATRIX))
    for name, f in (
        ("x + y", lambda x, y: x + y),
        ("x * y", lambda x, y: x * y),
        ("x / y", lambda x, y: x / y),
    ):
        yield Row(name, f, f, _of(MATRIX, MATRIX), 0.5, 2)
        yield Row(f"{name}, a row", f, f, _of(MATRIX, _COLUMNS), 0.5, 2)
    yield Row("maximum", F.maximum, torch.maximum, _of(MATRIX, MATRIX))
    yield Row(
        "where",
        lambda x, y: F.where(x.array > 0, x, y),
        lambda x, y: torch.where(x > 0, x, y),
        _of(MATRIX, MATRIX),
    )


def _reductions(F, torch):
    T = torch.nn.functional
    for axis in (None, 0, 1):
        kwargs = {} if axis is None else {"dim": axis}
        for name in ("sum", "mean", "max", "logsumexp", "prod", "std"):
            ours = getattr(F, name, None)
            if ours is None or (axis is None and name in ("logsumexp", "prod")):
                continue
            theirs = {"max": torch.amax}.get(name) or getattr(torch, name)
            yield Row(
                f"{name}, axis {axis}",
                functools.partial(ours, axis=axis),
                functools.partial(theirs, **kwargs),
                _of(MATRIX),
            )
    yield Row("softmax", F.softmax, lambda x: T.softmax(x, 1), _of(MATRIX))
    yield Row("log_softmax", F.log_softmax, lambda x: T.log_softmax(x, 1), _of(MATRIX))
    yield Row("cumsum", lambda x: F.cumsum(x, 1), lambda x: x.cumsum(1), _of(MATRIX))
    yield Row("sort", lambda x: F.sort(x)[0], lambda x: x.sort()[0], _of(MATRIX))
    yield Row(
        "normalize",
        lambda x: F.normalize(x, eps=1e-12),
        lambda x: T.normalize(x, eps=1e-12),
        _of(MATRIX),
    )


def _losses(F, torch):
    T = torch.nn.functional

    def classes(x):
        return np.arange(x.shape[0]) % x.shape[1]

    def theirs(x):
        return T.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1])

    yield Row(
        "cross entropy", lambda x: F.softmax_cross_entropy(x, classes(x)), theirs, _of(MATRIX)
    )
    yield Row("mean squared error", F.mean_squared_error, T.mse_loss, _of(MATRIX, MATRIX))
    yield Row("mean absolute error", F.mean_absolute_error, T.l1_loss, _of(MATRIX, MATRIX))
    yield Row(
        "sigmoid cross entropy",
        lambda x: F.sigmoid_cross_entropy(x, np.ones(x.shape, np.int32)),
        lambda x: T.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        _of(MATRIX),
    )
    yield Row(
        "Gaussian KL divergence",
        F.gaussian_kl_divergence,
        lambda m, v: 0.5 * (m * m + v.exp() - v - 1).sum(),
        _of(MATRIX, MATRIX),
        -1,
        1,
        1e-2,
    )


def _layers(F, torch):
    T = torch.nn.functional
    yield Row("linear", F.linear, T.linear, _of(MATRIX, MATRIX, _ROWS))
    yield Row("matmul", F.matmul, torch.matmul, _of(MATRIX, MATRIX))
    stack = (4, 16, 16), (16, 64, 64), (32, 128, 128)
    yield Row("stacked matmul", F.matmul, torch.matmul, _of(stack, stack))
    channels = tuple((n,) for n in _CHANNELS)
    for name, k, groups in (("", 3, 1), (" of 1 pixel", 1, 1), (", depthwise", 3, None)):
        filters = _weights(_CHANNELS, k, k)
        if groups is None:
            filters = tuple((n, 1, k, k) for n in _CHANNELS)

        def ours(x, W, b, pad=k // 2, groups=groups):
            return F.convolution_2d(x, W, b, pad=pad, groups=groups or x.shape[1])

        def theirs(x, W, b, pad=k // 2, groups=groups):
            return T.conv2d(x, W, b, padding=pad, groups=groups or x.shape[1])

        yield Row(f"convolution{name}", ours, theirs, _of(IMAGES, filters, channels), -0.5, 0.5)
    yield Row(
        "convolution, dilated",
        lambda x, W: F.convolution_2d(x, W, pad=2, dilate=2),
        lambda x, W: T.conv2d(x, W, padding=2, dilation=2),
        _of(IMAGES, _weights(_CHANNELS, 3, 3)),
        -0.5,
        0.5,
    )
    yield Row(
        "deconvolution",
        lambda x, W: F.deconvolution_2d(x, W, stride=2, pad=1),
        lambda x, W: T.conv_transpose2d(x, W, stride=2, padding=1),
        _of(IMAGES, _weights(_CHANNELS, 4, 4)),
        -0.5,
        0.5,
    )
    yield Row(
        "convolution 1-D",
        lambda x, W: F.convolution_1d(x, W, pad=4),
        lambda x, W: T.conv1d(x, W, padding=4),
        _of(SIGNAL, _weights(_CHANNELS, 9)),
        -0.5,
        0.5,
    )
    yield Row(
        "max pooling", lambda x: F.max_pooling_2d(x, 2), lambda x: T.max_pool2d(x, 2), _of(IMAGES)
    )
    yield Row(
        "average pooling",
        lambda x: F.average_pooling_2d(x, 2),
        lambda x: T.avg_pool2d(x, 2),
        _of(IMAGES),
    )
    yield Row(
        "resizing",
        lambda x: F.resize_images(x, (2 * x.shape[2], 2 * x.shape[3])),
        lambda x: T.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        _of(IMAGES),
    )


def _normalizations(F, torch):
    T = torch.nn.functional
    channels = tuple((n,) for n in _CHANNELS)
    yield Row(
        "batch normalization",
        F.batch_normalization,
        lambda x, g, b: T.batch_norm(x, None, None, g, b, True, eps=2e-5),
        _of(IMAGES, channels, channels),
    )
    yield Row(
        "group normalization",
        lambda x, g, b: F.group_normalization(x, 4, g, b),
        lambda x, g, b: T.group_norm(x, 4, g, b),
        _of(IMAGES, channels, channels),
    )
    yield Row(
        "layer normalization",
        F.layer_normalization,
        lambda x, g, b: T.layer_norm(x, x.shape[1:], g, b),
        _of(MATRIX, _COLUMNS, _COLUMNS),
    )


def _rearrangements(F, torch):
    T = torch.nn.functional

    def rows(x):
        return np.arange(x.shape[0])[::-3] % 7

    def their_rows(x):
        return torch.from_numpy(rows(x).copy())

    yield Row("transpose", lambda x: F.transpose(x) * 1, lambda x: x.t() * 1, _of(MATRIX))
    yield Row(
        "concat",
        lambda x, y: F.concat([x, y]),
        lambda x, y: torch.cat([x, y], 1),
        _of(*[MATRIX] * 2),
    )
    yield Row(
        "stack", lambda x, y: F.stack([x, y]), lambda x, y: torch.stack([x, y]), _of(*[MATRIX] * 2)
    )
    yield Row(
        "split",
        lambda x: F.concat(F.split_axis(x, 4, 1)[::-1]),
        lambda x: torch.cat(x.chunk(4, 1)[::-1], 1),
        _of(MATRIX),
    )
    yield Row("slice", lambda x: x[2:, 3:], lambda x: x[2:, 3:], _of(MATRIX))
    yield Row("rows", lambda x: x[rows(x)], lambda x: x[their_rows(x)], _of(MATRIX))
    yield Row("columns", lambda x: x[:, rows(x)], lambda x: x[:, their_rows(x)], _of(MATRIX))
    yield Row(
        "embedding",
        lambda W: F.embed_id(rows(W), W),
        lambda W: T.embedding(their_rows(W), W),
        _of(MATRIX),
    )
    yield Row(
        "padding", lambda x: F.pad(x, 2, "constant"), lambda x: T.pad(x, (2,) * 4), _of(MATRIX)
    )
    yield Row(
        "scatter_add",
        lambda x, y: F.scatter_add(x, np.arange(y.shape[0]) % 7, y),
        lambda x, y: x.index_add(0, torch.arange(y.shape[0]) % 7, y),
        _of(MATRIX, MATRIX),
    )
    yield Row(
        "broadcast",
        lambda x, y: F.broadcast_to(x, y.shape) + y,
        lambda x, y: x.expand_as(y) + y,
        _of(_COLUMNS, MATRIX),
    )
    yield Row(
        "attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        lambda q, k, v: T.scaled_dot_product_attention(q, k, v),
        _of(*[((1, 2, 16, 8), (4, 4, 64, 32), (8, 8, 128, 64))] * 3),
    )


FAMILIES = _elementwise, _reductions, _losses, _layers, _normalizations, _rearrangements


def _least(functions, clock, turns):
    """Returns the smallest time of each function, in turns."""
    counts, least = [], [float("inf")] * len(functions)
    for function in functions:
        function()
        begin = clock()
        function()
        counts.append(max(1, int(TURN / max(clock() - begin, 1e-6))))
    for _ in range(turns):
        for i, (function, n) in enumerate(zip(functions, counts, strict=True)):
            begin = clock()
            for _ in range(n):
                function()
            least[i] = min(least[i], (clock() - begin) / n)
    return least


def _backward_ours(lib, function, arrays):
    xs = [lib.Variable(x) for x in arrays]
    g = np.ones_like(function(*xs).array)

    def run():
        for x in xs:
            x.cleargrad()
        y = function(*xs)
        y.grad = g
        y.backward()

    run()
    return run, [x.grad for x in xs]


def _backward_theirs(torch, function, arrays):
    xs = [torch.from_numpy(x.copy()).requires_grad_() for x in arrays]
    g = torch.ones_like(function(*xs).detach())

    def run():
        for x in xs:
            x.grad = None
        function(*xs).backward(g)

    run()
    return run, [x.grad.numpy() for x in xs]


def measure(row: Row, size: int, lib: Any, torch: Any, clock: Callable, turns: int) -> list[tuple]:
    """Returns (pass, mpchain's seconds, PyTorch's seconds) for both passes of a function at a size,
    after comparing values and gradients."""
    random = np.random.default_rng(0)
    arrays = [random.uniform(row.low, row.high, s).astype("f") for s in row.shapes(size)]
    tensors = [torch.from_numpy(x) for x in arrays]
    constants = [lib.Variable(x, requires_grad=False) for x in arrays]
    ours, theirs = functools.partial(row.ours, *constants), functools.partial(row.theirs, *tensors)
    np.testing.assert_allclose(
        ours().array, theirs().numpy(), row.tolerance, row.tolerance, err_msg=row.name
    )
    found = [("forward", *_least([ours, theirs], clock, turns))]
    ours, our_grads = _backward_ours(lib, row.ours, arrays)
    theirs, their_grads = _backward_theirs(torch, row.theirs, arrays)
    for a, b in zip(our_grads, their_grads, strict=True):
        scale = max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(a / scale, b / scale, 5e-3, 5e-3, err_msg=row.name)
    return [*found, ("backward", *_least([ours, theirs], clock, turns))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--out", help="write the table there, too")
    options = parser.parse_args()
    # NumPy reads this variable when it is imported.
    if os.environ.get("OMP_NUM_THREADS") != str(options.threads):
        os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
        os.execv(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]])
    import torch

    import mpchain
    import mpchain.functions as F
    from mpchain.kernels import thresholds

    torch.set_num_threads(options.threads)
    thresholds.compiled_loop = 0  # in a program that runs longer than this one, loops are compiled
    mpchain.backends.host_memory.keep_freed_memory()  # a Trainer makes this call, too
    clock = time.process_time if options.threads == 1 else time.perf_counter
    found = []
    for row in (row for family in FAMILIES for row in family(F, torch)):
        if options.words and not any(word in row.name for word in options.words):
            continue
        for size in options.sizes:
            for way, ours, theirs in measure(
                row, SIZES[size], mpchain, torch, clock, options.turns
            ):
                found.append((ours / theirs, row.name, size, way, ours, theirs))
    lines = [f"{'function':28} {'size':7} {'pass':9} {'mpchain':>10} {'PyTorch':>10}  quotient"]
    for quotient, name, size, way, ours, theirs in sorted(found, reverse=True):
        lines.append(
            f"{name:28} {size:7} {way:9} {ours * 1e6:8.1f}us {theirs * 1e6:8.1f}us {quotient:8.2f}"
        )
    for size in options.sizes:
        of_size = [q for q, _, s, *_ in found if s == size]
        above = sum(q > 1.1 for q in of_size)
        mean = np.exp(np.mean(np.log(of_size))) if of_size else float("nan")
        lines.append(f"{size}: {above} of {len(of_size)} above 1.1, geometric mean {mean:.2f}")
    print("\n".join(lines))
    if options.out:
        with open(options.out, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
