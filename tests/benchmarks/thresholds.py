"""Measures the main numbers of ``mpchain/kernels/thresholds.py`` again, on this machine.

    python -m tests.benchmarks.thresholds            # all numbers of SIDES
    python -m tests.benchmarks.thresholds loop product --times 9

For each number and several sizes it prints the time of the variant that is faster from the number
on (for ``few_rows``, within the range), and that of the other one. The number should be the size at
which the quotient falls below 1.
Both variants run alternately, and the least time of each counts.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator

import numpy as np

from mpchain import kernels
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import loops, onednn
from mpchain.kernels.window import Window

_Sides = Iterator[tuple[str, Callable[[], object], Callable[[], object]]]


def _by(operation, new, old, *arguments):
    """Returns the kernels of two libraries for an operation, with their arguments."""
    computing = {k.library: k.compute for k in kernels.operations[operation].kernels}
    return [functools.partial(computing[library], *arguments) for library in (new, old)]


def _draw(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _loop() -> _Sides:
    def formula(x):
        return np.maximum(x * x + 1, 2)

    loop = loops.loop_of(formula, ["x"], 1)
    for n in (1 << k for k in range(10, 23, 2)):
        x = _draw(n)
        yield f"{n} elements", functools.partial(loop.compute, x), functools.partial(formula, x)


def _compiled() -> _Sides:
    one = np.ones((1, 16, 1, 1), np.float32)
    for n in (2, 8, 32, 128):
        arguments = _draw(n, 16, 16, 16), one, one, (0, 2, 3), 1e-5
        sides = _by("batch_normalization", "numba_cpu", "reference", *arguments)
        yield f"{n * 4096} elements", *sides


def _product(turned: bool = False) -> _Sides:
    for n in (32, 64, 96, 128, 192, 256):
        a, b = _draw(n, n), _draw(n, n)
        sides = _by("product", "onednn", "reference", a, b.T if turned else b)
        yield f"{n**3} multiplications", *sides


def _few_rows() -> _Sides:
    W = _draw(600, 500)
    for n in (1, 2, 4, 8, 16, 32, 48, 64, 96):
        yield f"{n} rows", *_by("linear", "numpy_cpu", "reference", _draw(n, 500), W, None)


def _tiles() -> _Sides:
    for n, size in ((1, 8), (1, 16), (4, 16), (8, 28)):
        window = Window((3, 3), (1, 1), (1, 1), (1, 1), 1, (size, size), (size, size))
        arguments = _draw(n, 64, size, size), _draw(64, 64, 3, 3), window
        sides = _by("convolution_output", "winograd", "onednn", *arguments)
        yield f"{n * size**2 * 64 * 64 * 9} multiplications", *sides


SIDES = {
    "loop": _loop,
    "compiled": _compiled,
    "product": _product,
    "product_by_rows": functools.partial(_product, turned=True),
    "few_rows": _few_rows,
    "tiles": _tiles,
}
"""Functions that yield, for several sizes, the variant that is faster from the number on, and the
other."""

OF_ONEDNN = {"product", "product_by_rows", "tiles"}


def _least(functions, times):
    least = [float("inf")] * len(functions)
    for _ in range(times + 1):  # the first call compiles
        for i, function in enumerate(functions):
            begin = time.perf_counter()
            function()
            least[i] = min(least[i], time.perf_counter() - begin)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *SIDES], default=[])
    parser.add_argument("--times", type=int, default=15)
    arguments = parser.parse_args()
    for name in arguments.names or SIDES:
        print(f"{name} = {getattr(thresholds, name)}")
        if name in OF_ONEDNN and (reason := onednn.why_absent()):
            print(f"  not measured: {reason}")
            continue
        for size, *functions in SIDES[name]():
            new, old = _least(functions, arguments.times)
            print(
                f"  {size:>24}: {new * 1e6:10.1f} us instead of {old * 1e6:10.1f}: {new / old:.2f}"
            )


if __name__ == "__main__":
    main()
