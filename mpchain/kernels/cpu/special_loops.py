"""Special functions of one number, as polynomials that compiled loops compute many at a time.

SciPy takes some 15 ns an element, these less than 3. Each has one text for both dtypes, with
coefficients of its own for each: Chebyshev interpolants that mpmath made with 60 digits. Against
mpmath, the values are exact to 5 units in the last place, half a unit in the mean; zeros,
infinities and NaN are those of SciPy. Exponentials take half as long as NumPy's, and stay in
registers.

The complementary error function is exp(-z^2) p(z), where p(z) (z + 3) is a polynomial of
(z - 3) / (z + 3), as in M. Shepherd and J. Laframboise, Chebyshev approximation of
(1 + 2 x) exp(x^2) erfc x, Mathematics of Computation 36, 1981.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.formulas.text import compile_text

SLOW = {"erf", "erfc", "ndtr", "slope_of_gelu"}
"""Functions that NumPy does not have, and SciPy computes one element at a time."""

QUICK = {"logistic"}
"""Functions that take NumPy several passes."""

_EXP = """
def exp(x):
    return exp_of_sum(x, FLOAT(0))
"""
# The largest exponent here overflows to infinity, the smallest underflows to zero.
_EXP_OF_SUM = """
def exp_of_sum(x, y):
    x = FLOAT(LARGEST) if x > FLOAT(LARGEST) else x
    x = FLOAT(SMALLEST) if x < FLOAT(SMALLEST) else x
    shifted = (x + y) * FLOAT(1.4426950408889634) + FLOAT(MAGIC)
    n = INT(FLOAT(shifted).view(INT) - FLOAT(MAGIC).view(INT))
    k = shifted - FLOAT(MAGIC)
    r = ((x - k * FLOAT(LN2)) - k * FLOAT(LN2_REST)) + y
    half = INT(n >> INT(1))
    first = INT(INT(half + INT(BIAS)) << INT(DIGITS)).view(FLOAT)
    second = INT(INT(INT(n - half) + INT(BIAS)) << INT(DIGITS)).view(FLOAT)
    return POLYNOMIAL(exp, r) * first * second
"""
# The sum of q 2^n and 2^n - 1, in two factors, neither of which overflows.
_EXPM1 = """
def expm1(x):
    x = FLOAT(LARGEST) if x > FLOAT(LARGEST) else x
    x = FLOAT(SMALLEST) if x < FLOAT(SMALLEST) else x
    shifted = x * FLOAT(1.4426950408889634) + FLOAT(MAGIC)
    n = INT(FLOAT(shifted).view(INT) - FLOAT(MAGIC).view(INT))
    k = shifted - FLOAT(MAGIC)
    r = (x - k * FLOAT(LN2)) - k * FLOAT(LN2_REST)
    half = INT(n >> INT(1))
    first = INT(INT(half + INT(BIAS)) << INT(DIGITS)).view(FLOAT)
    second = INT(INT(INT(n - half) + INT(BIAS)) << INT(DIGITS)).view(FLOAT)
    inverse = INT(INT(INT(half - n) + INT(BIAS)) << INT(DIGITS)).view(FLOAT)
    return (POLYNOMIAL(expm1, r) * r * first + (first - inverse)) * second
"""
_LOGISTIC = """
def logistic(x):
    e = exp(-np.absolute(x))
    return (e if x < FLOAT(0) else FLOAT(1)) / (e + FLOAT(1))
"""
# exp(-half x^2) for 0 <= x <= FAR; the square of x without its last digits is exact.
_EXP_OF_SQUARE = """
def exp_of_square(x, half):
    high = INT(FLOAT(x).view(INT) & INT(MASK)).view(FLOAT)
    low = (x - high) * (x + high) * half
    return exp_of_sum(-(high * high * half), -low)
"""
# exp(z^2) erfc(z) for z >= 0.
_TAIL = """
def tail(z):
    scale = FLOAT(1) / (z + FLOAT(3))
    t = (z - FLOAT(3)) * scale
    return POLYNOMIAL(tail, t) * scale
"""
_ERF = """
def erf(x):
    size = np.absolute(x)
    square = size * size
    near = POLYNOMIAL(erf, square) * x
    size = FLOAT(FAR) if size > FLOAT(FAR) else size
    far = FLOAT(1) - exp_of_square(size, FLOAT(1)) * tail(size)
    return near if size < FLOAT(1) else (-far if x < FLOAT(0) else far)
"""
_ERFC = """
def erfc(x):
    size = np.absolute(x)
    size = FLOAT(FAR) if size > FLOAT(FAR) else size
    rest = exp_of_square(size, FLOAT(1)) * tail(size)
    return FLOAT(2) - rest if x < FLOAT(0) else rest
"""
_NDTR = """
def ndtr(x):
    size = np.absolute(x)
    size = FLOAT(FAR) if size > FLOAT(FAR) else size
    rest = exp_of_square(size, FLOAT(0.5)) * (tail(size * FLOAT(0.7071067811865476)) * FLOAT(0.5))
    return rest if x < FLOAT(0) else FLOAT(1) - rest
"""
# ndtr(x) + x exp(-x^2 / 2) / sqrt(2 pi), which share the exponential.
_SLOPE_OF_GELU = """
def slope_of_gelu(x):
    size = np.absolute(x)
    size = FLOAT(FAR) if size > FLOAT(FAR) else size
    bell = exp_of_square(size, FLOAT(0.5))
    rest = bell * (tail(size * FLOAT(0.7071067811865476)) * FLOAT(0.5))
    bell = bell * size * FLOAT(0.3989422804014327)
    return rest - bell if x < FLOAT(0) else (FLOAT(1) - rest) + bell
"""
_TEXTS = _EXP_OF_SUM, _EXP, _EXPM1, _LOGISTIC, _EXP_OF_SQUARE, _TAIL, _ERF, _ERFC, _NDTR
_TEXTS += (_SLOPE_OF_GELU,)

_SINGLE = {
    "FLOAT": "np.float32", "INT": "np.int32", "MAGIC": 1.5 * 2**23, "MASK": -(1 << 12),
    "BIAS": 127, "DIGITS": 23, "LARGEST": 90.0, "SMALLEST": -115.0, "FAR": 15.0,
    "LN2_REST": -2.1219444005469058e-4, "LN2": 0.693359375,
}  # fmt: skip
_DOUBLE = {
    "FLOAT": "np.float64", "INT": "np.int64", "MAGIC": 1.5 * 2**52, "MASK": -(1 << 27),
    "BIAS": 1023, "DIGITS": 52, "LARGEST": 711.0, "SMALLEST": -760.0, "FAR": 40.0,
    "LN2_REST": 1.9082149292705877e-10, "LN2": 0.6931471803691238,
}  # fmt: skip
_SINGLE_COEFFICIENTS = {
    "exp": """
    0.00139412372 0.00837522952 0.0416663513 0.166664143 0.500000005 1.00000004 1.0""",
    "tail": """
    -0.000333150355 -0.000497142238 0.00307963215 -0.00121720932 -0.0268374257 0.119527078
    -0.310466518 0.590228447 -0.883394464 1.07400691""",
    "erf": """
    -9.66704457e-06 0.00011265959 -0.000848408041 0.00522103181 -0.0268654307 0.112837825
    -0.376126385 1.12837917""",
}
_DOUBLE_COEFFICIENTS = {
    "exp": """
    2.0921690440221708e-09 2.5115024238318458e-08 2.7557251572032057e-07 2.7557224493260325e-06
    2.4801587350470284e-05 0.00019841269909720528 0.001388888888887172 0.008333333333309292
    0.04166666666666669 0.16666666666666702 0.5 1.0 1.0""",
    "tail": """
    -1.6131849000325598e-09 -6.384304468234438e-09 2.4829562265305744e-09 4.8813017932609656e-08
    4.009259410305053e-08 -2.3318719338409497e-07 -4.0247942021736004e-07 9.995012088631186e-07
    2.76233565354979e-06 -4.74978324582527e-06 -1.7469493531903413e-05 3.0398391001005668e-05
    0.00010756124911146757 -0.0002767778983471239 -0.000548309659577885 0.003034062007973329
    -0.0012124166297047625 -0.026827234624950198 0.11952776128738794 -0.3104672619005527
    0.5902283571041004 -0.8833944531698837 1.0740069070883398""",
    "erf": """
    2.8067128195611264e-13 -6.1967364287877e-12 9.323723518153027e-11 -1.2277734486795524e-09
    1.4806027146128752e-08 -1.636576864883207e-07 1.6462110782018636e-06 -1.4925650236967501e-05
    0.00012055332978879483 -0.0008548327023403001 0.005223977625441674 -0.026866170645131218
    0.11283791670955126 -0.37612638903183754 1.1283791670955126""",
}


def texts(dtype: np.dtype) -> list[str]:
    """Returns the texts of the functions for numbers of a dtype, those that others call first.

    Example:
        >>> print(texts(np.dtype(np.float32))[1])
        def exp(x):
            return exp_of_sum(x, np.float32(0))
    """
    is_single = dtype == np.float32
    names = _SINGLE if is_single else _DOUBLE
    coefficients = _SINGLE_COEFFICIENTS if is_single else _DOUBLE_COEFFICIENTS
    coefficients = coefficients | {"expm1": coefficients["exp"].rpartition(" ")[0]}
    return [_filled(text.strip(), names, coefficients) for text in _TEXTS]


def _filled(text, names, coefficients):
    for name, numbers in coefficients.items():
        for variable in ("r", "t", "square"):
            horner = _horner(numbers.split(), variable)
            text = text.replace(f"POLYNOMIAL({name}, {variable})", horner)
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, str(names[name]))
    return text


def _horner(numbers, variable):
    """Returns a polynomial by products and sums, the highest coefficient first."""
    text = f"FLOAT({numbers[0]})"
    for number in numbers[1:]:
        text = f"({text} * {variable} + FLOAT({number}))"
    return text


def fingerprint(dtype: np.dtype) -> str:
    """Returns a hash of the texts, by which caches of loops that call them are told apart.

    Example:
        >>> len(fingerprint(np.dtype(np.float32)))
        16
    """
    return hashlib.sha256("\n".join(texts(dtype)).encode()).hexdigest()[:16]


@functools.cache
def functions(dtype: np.dtype, njit: Callable) -> dict[str, Any]:
    """Returns the functions by name, made by ``numba.njit`` for numbers of a dtype.

    Example:
        >>> sorted(SLOW - set(functions(np.dtype(np.float32), lambda **_: lambda f: f)))
        []
    """
    known: dict[str, Any] = {"np": np}
    for text in texts(dtype):
        name = text.partition("(")[0].removeprefix("def ")
        options = {"forceinline": True, "nogil": True, "error_model": "numpy"}
        known[name] = njit(fastmath={"contract"}, **options)(compile_text(name, text, known))
    return known
