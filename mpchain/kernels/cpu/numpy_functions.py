"""The exponential and the logarithm of single precision, as NumPy computes them.

On x86 processors with AVX2 or AVX-512, NumPy vectorizes both by Cody and Waite's reduction of the
argument and a quotient of polynomials, with fused products and sums. Compiled loops that do the
same operations in the same order get the same bits, for each of the 2**32 numbers; so they can
replace NumPy at any time. Where NumPy computes otherwise, :func:`why_not` tells so.

Source: W. Cody and W. Waite, Software manual for the elementary functions, 1980; NumPy's
implementation gives the order of the operations and the coefficients.
"""

import functools
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.kernels.cpu.compiler import (
    compile_called,
    compile_written_loop,
    why_not_compiled,
)

# numba compiles the texts below.

_EXP = """
def exp(x):
    shifted = x * FLOAT(1.4426950408889634) + FLOAT(12582912)
    k = shifted - FLOAT(12582912)
    r = fma(k, FLOAT(-1.42860677e-6), fma(k, FLOAT(-6.93145752e-1), x))
    y = RATIO(exp, r)
    # numbers beyond these have the exponential infinity or zero
    k = k if k < FLOAT(129) else FLOAT(129)
    k = k if k > FLOAT(-151) else FLOAT(-151)
    n = INT(k)
    half = INT(n >> INT(1))
    first = INT(INT(half + INT(127)) << INT(23)).view(FLOAT)
    second = INT(INT(INT(n - half) + INT(127)) << INT(23)).view(FLOAT)
    y = y * first * second
    y = FLOAT(np.inf) if x > FLOAT(88.72283935546875) else y
    y = FLOAT(0) if x < FLOAT(-103.97208404541016) else y
    return x if x != x else y
"""
_LOG = """
def log(x):
    is_small = x < FLOAT(1.1754943508222875e-38)
    bits = FLOAT(x * FLOAT(8388608) if is_small else x).view(INT)
    n = INT(INT(bits >> INT(23)) - (INT(150) if is_small else INT(127)))
    part = INT((bits & INT(0x7FFFFF)) | INT(0x3F800000)).view(FLOAT)
    is_large = part > FLOAT(1.4142135623730951)
    k = FLOAT(n) + FLOAT(1) if is_large else FLOAT(n)
    r = (part * FLOAT(0.5) if is_large else part) - FLOAT(1)
    y = fma(k, FLOAT(0.6931471805599453), RATIO(log, r))
    y = y if x < FLOAT(np.inf) else x
    y = y if x != FLOAT(0) else FLOAT(-np.inf)
    return FLOAT(np.nan) if x < FLOAT(0) else y
"""
# These are the numerators and denominators of the quotients, from the highest power to the lowest.
_RATIOS = {
    "exp": (
        "5.082762527590693718096e-04 6.757896990527504603057e-03 5.114512081637298353406e-02 "
        "2.473615434895520810817e-01 7.257664613233124478488e-01 9.999999999980870924916e-01",
        "2.159509375685829852307e-02 -2.742335390411667452936e-01 1",
    ),
    "log": (
        "2.589979117907922693523e-02 3.808837741388407920751e-01 1.480000633576506585156e+00 "
        "2.112677543073053063722e+00 9.999999999999998702752e-01 0",
        "5.875095403124574342950e-03 1.546476374983906719538e-01 9.864942958519418960339e-01 "
        "2.453006071784736363091e+00 2.612677543073109236779e+00 1",
    ),
}
_COMPARED = """
def compute(x, of_exp, of_log):
    for i in range(x.size):
        of_exp[i], of_log[i] = exp(x[i]), log(x[i])
"""


def _filled(name, text):
    above, below = [_horner(numbers.split(), "r") for numbers in _RATIOS[name]]
    text = text.replace(f"RATIO({name}, r)", f"{above} / {below}")
    return text.replace("FLOAT", "np.float32").replace("INT", "np.int32").strip()


def _horner(numbers, variable):
    y = f"FLOAT({numbers[0]})"
    for number in numbers[1:]:
        y = f"fma({y}, {variable}, FLOAT({number}))"
    return y


_TEXTS = {name: _filled(name, text) for name, text in (("exp", _EXP), ("log", _LOG))}
DIGEST = zlib.crc32("\n".join(_TEXTS.values()).encode())
"""A hash of the functions' texts, for the texts of loops that call the functions."""


@functools.cache
def functions() -> dict[str, Any]:
    """Returns the functions ``exp`` and ``log`` of a number of single precision, for compiled
    loops.

    Example:
        >>> from mpchain.kernels.cpu.compiler import load_numba
        >>> sorted(functions()) if load_numba() else ["exp", "log"]
        ['exp', 'log']
    """
    known = {"np": np, "fma": _fused()}
    options = {"forceinline": True, "nogil": True, "error_model": "numpy"}
    return {
        name: compile_called(name, text, known, DIGEST, **options) for name, text in _TEXTS.items()
    }


def _fused():
    """Returns the function fma(a, b, c) = a b + c, rounded once."""
    from numba.extending import intrinsic

    @intrinsic
    def fma(context, a, b, c):
        return a(a, b, c), lambda context, builder, signature, numbers: builder.fma(*numbers)

    return fma


@functools.cache
def compared_loop() -> Callable:
    """Returns a loop that writes the exponentials and the logarithms of an array into two others.

    Example:
        >>> from mpchain.kernels.cpu.compiler import load_numba
        >>> y = np.ones(1, np.float32)
        >>> compared_loop()(np.zeros(1, np.float32), y, y.copy()) if load_numba() else None
        >>> y
        array([1.], dtype=float32)
    """
    text = f"{_COMPARED.strip()}\n    # {DIGEST}"
    return compile_written_loop("functions of NumPy", text, functions())


@functools.cache
def why_not() -> str | None:
    """Returns the reason why loops do not get NumPy's bits on this machine; None if they get them.

    Example:
        >>> why_not() is None or "NumPy" in why_not() or "numba" in why_not()
        True
    """
    if reason := why_not_compiled():
        return reason
    # These numbers have all exponents and both signs.
    x = np.arange(0, 1 << 32, 65521, dtype=np.uint32).view(np.float32)
    found = np.empty_like(x), np.empty_like(x)
    compared_loop()(x, *found)
    with np.errstate(all="ignore"):
        expected = np.exp(x), np.log(x)
    is_same = all(np.array_equal(y, z, equal_nan=True) for y, z in zip(found, expected))
    return None if is_same else "NumPy computes exponentials or logarithms in another way"
