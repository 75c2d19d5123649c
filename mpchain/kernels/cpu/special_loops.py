"""Special functions of one number, as polynomials that compiled loops can vectorize.

SciPy takes about 15 ns for each element, these functions less than 3 ns. Each function has one text
for both dtypes (those in :data:`SINGLE`, for single precision only), with separate coefficients,
mostly of Chebyshev interpolants that mpmath computed with 60 digits. Compared with mpmath, values
differ by at most 5 units in the last place, and by half a unit on average; zeros, infinities and
NaN agree with SciPy. The exponential takes half as long as NumPy's, and its values stay in
registers.

The complementary error function is exp(-z^2) p(z), where p(z) (z + 3) is a polynomial of
(z - 3) / (z + 3), as in M. Shepherd and J. Laframboise, Chebyshev approximation of
(1 + 2 x) exp(x^2) erfc x, Mathematics of Computation 36, 1981.
"""

import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.formulas.text import compile_text

SLOW = {"erf", "erfc", "ndtr", "slope_of_gelu"}
"""The names of functions that NumPy lacks and that SciPy computes one element at a time."""

QUICK = {"logistic"}
"""The names of functions for which NumPy needs several passes."""

SINGLE = {"erfinv", "gammaln", "trigamma", "normal_hazard"}
"""The names of functions that exist only for single precision. No formula contains these
functions."""

_EXP = """
def exp(x):
    return exp_of_sum(x, FLOAT(0))
"""
# With the limits below, the largest exponent overflows to infinity, and the smallest underflows to
# zero.
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
# The result is the sum of q 2^n and 2^n - 1, computed from two factors that do not overflow.
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
# This function returns exp(-half x^2) for 0 <= x <= FAR. It truncates x, so that the square of the
# truncated number is exact.
_EXP_OF_SQUARE = """
def exp_of_square(x, half):
    high = INT(FLOAT(x).view(INT) & INT(MASK)).view(FLOAT)
    low = (x - high) * (x + high) * half
    return exp_of_sum(-(high * high * half), -low)
"""
# This function returns exp(z^2) erfc(z) for z >= 0.
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
# This function returns ndtr(x) + x exp(-x^2 / 2) / sqrt(2 pi); both terms share the exponential.
_SLOPE_OF_GELU = """
def slope_of_gelu(x):
    size = np.absolute(x)
    size = FLOAT(FAR) if size > FLOAT(FAR) else size
    bell = exp_of_square(size, FLOAT(0.5))
    rest = bell * (tail(size * FLOAT(0.7071067811865476)) * FLOAT(0.5))
    bell = bell * size * FLOAT(0.3989422804014327)
    return rest - bell if x < FLOAT(0) else (FLOAT(1) - rest) + bell
"""
_LOG = """
def log(x):
    bits = np.float64(x).view(np.int64)
    k = np.int64(bits - np.int64(4604544271217802189)) >> np.int64(52)
    m = np.int64(bits - np.int64(k << np.int64(52))).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    return np.float64(k) * 0.6931471805599453 + s * WIDE(log, square)
"""
# The inverse error function is x times a polynomial of -log(1 - x^2), or of the square root of this
# logarithm.
_ERFINV = """
def erfinv(x):
    wide, size = np.float64(x), np.absolute(x)
    w = -log((1.0 - wide) * (1.0 + wide))
    u = w - 3.0
    s = np.sqrt(w) - 3.3
    y = (WIDE(near, u) if w < 6.0 else WIDE(far, s)) * wide
    y = wide * np.inf if size == np.float32(1) else y
    return np.float32(np.nan if size > np.float32(1) else y)
"""
# Stirling's series holds for arguments of at least 8; a product of 8 factors shifts smaller
# arguments. Negative x are reflected, which takes the sine of pi x.
_GAMMALN = """
def gammaln(x):
    wide, size = np.float64(x), np.absolute(np.float64(x))
    product = size
    for i in range(1, 8):
        product = product * (size + i)
    z = size + 8.0 if size < 8.0 else size
    product = product if size < 8.0 else 1.0
    inverse = 1.0 / z
    square = inverse * inverse
    rest = size - np.floor(size + 0.5)
    v = rest * rest
    sine = np.absolute(rest * WIDE(sine, v)) * size
    logarithm = log(product if wide > 0.0 else 3.141592653589793 * product / sine)
    series = (z - 0.5) * log(z) - z + 0.9189385332046727 + WIDE(stirling, square) * inverse
    y = series - logarithm if wide > 0.0 else logarithm - series
    y = 0.0 if (wide == 1.0) | (wide == 2.0) else y
    y = np.inf if (wide <= 0.0) & (sine == 0.0) else y
    return np.float32(wide if size == np.inf else y)
"""
_TRIGAMMA = """
def trigamma(x):
    wide = np.float64(x)
    size = 1.0 - wide if wide <= 0.0 else wide
    total = 0.0
    for i in range(0, 8, 2):
        a, b = (size + i) * (size + i), (size + i + 1) * (size + i + 1)
        total = total + (a + b) / (a * b)
    z = size + 8.0 if size < 8.0 else size
    inverse = 1.0 / z
    square = inverse * inverse
    y = inverse + square * (0.5 + inverse * WIDE(trigamma, square))
    y = y + total if size < 8.0 else y
    rest = wide - np.floor(wide + 0.5)
    v = rest * rest
    sine = rest * WIDE(sine, v)
    y = 9.869604401089358 / (sine * sine) - y if wide <= 0.0 else y
    return np.float32(np.inf if wide == -np.inf else y)
"""
# This function returns the density of the normal distribution divided by its distribution function;
# far below zero, it uses a series.
_NORMAL_HAZARD = """
def normal_hazard(x):
    size = np.absolute(x)
    near = FLOAT(FAR) if size > FLOAT(FAR) else size
    bell, rest = exp_of_square(near, FLOAT(0.5)), tail(near * FLOAT(0.7071067811865476))
    above = bell * FLOAT(0.3989422804014327) / (FLOAT(1) - bell * rest * FLOAT(0.5))
    square = FLOAT(1) / (size * size)
    y = size / WIDE(hazard, square) if size > FLOAT(FAR) else FLOAT(0.7978845608028654) / rest
    return FLOAT(y if x < FLOAT(0) else above)
"""
# The rounded number u = 1 + x is 2^k m for m from sqrt(1/2) to sqrt(2); f is m - 1, and log(1 + f)
# is a series of f / (f + 2). The rounding error of u is added.
_LOG1P = """
def log1p(x):
    u = FLOAT(1) + x
    lacking = (x - (u - FLOAT(1))) / u
    bits = FLOAT(u).view(INT)
    n = INT(INT(bits - INT(HALF_ROOT)) >> INT(DIGITS))
    f = INT(bits - INT(n << INT(DIGITS))).view(FLOAT) - FLOAT(1)
    k, half, s = FLOAT(n), f * f * FLOAT(0.5), f / (f + FLOAT(2))
    z = s * s
    rest = s * (half + z * POLYNOMIAL(log1p, z)) + (k * FLOAT(LN2_REST) + lacking)
    y = k * FLOAT(LN2) + (f - (half - rest))
    y = x if (x == FLOAT(0)) | (x == FLOAT(np.inf)) else y
    y = FLOAT(-np.inf) if x == FLOAT(-1) else y
    return FLOAT(np.nan) if x < FLOAT(-1) else y
"""
_TEXTS = _EXP_OF_SUM, _EXP, _EXPM1, _LOGISTIC, _EXP_OF_SQUARE, _TAIL, _ERF, _ERFC, _NDTR
_TEXTS += _SLOPE_OF_GELU, _LOG1P
_TEXTS_OF_SINGLE = *_TEXTS, _LOG, _ERFINV, _GAMMALN, _TRIGAMMA, _NORMAL_HAZARD

_SINGLE = {
    "FLOAT": "np.float32", "INT": "np.int32", "MAGIC": 1.5 * 2**23, "MASK": -(1 << 12),
    "BIAS": 127, "DIGITS": 23, "LARGEST": 90.0, "SMALLEST": -115.0, "FAR": 15.0,
    "HALF_ROOT": 0x3F3504F3,
    "LN2_REST": -2.1219444005469058e-4, "LN2": 0.693359375,
}  # fmt: skip
_DOUBLE = {
    "FLOAT": "np.float64", "INT": "np.int64", "MAGIC": 1.5 * 2**52, "MASK": -(1 << 27),
    "BIAS": 1023, "DIGITS": 52, "LARGEST": 711.0, "SMALLEST": -760.0, "FAR": 40.0,
    "HALF_ROOT": 0x3FE6A09E667F3BCD,
    "LN2_REST": 1.9082149292705877e-10, "LN2": 0.6931471803691238,
}  # fmt: skip
_SINGLE_COEFFICIENTS = {
    "log1p": "0.233304672 0.285508208 0.400001218 0.666666666",
    "exp": """
    0.00139412372 0.00837522952 0.0416663513 0.166664143 0.500000005 1.00000004 1.0""",
    "tail": """
    -0.000333150355 -0.000497142238 0.00307963215 -0.00121720932 -0.0268374257 0.119527078
    -0.310466518 0.590228447 -0.883394464 1.07400691""",
    "near": """
    -1.455547284292609e-11 2.2382668694404773e-11 1.0681899115116902e-09 -5.984596633402292e-09
    -2.340581335206934e-08 4.525529291180938e-07 -1.7489291059806747e-06 -1.2722817238905983e-05
    0.00019506274754255482 -0.0008361748354219466 -0.005738136033685672 0.2416304019918124
    1.6235420065402548""",
    "far": """
    6.671675520021167e-05 -2.598874786318721e-05 -0.0003537641547092842 0.000883301809657741
    -0.0014162876352869192 0.0020888362988112706 -0.0032934200397896247 0.004845056328919712
    1.0057691429718019 3.1341615086364425""",
    "sine": """
    6.982372922187464e-07 -2.1815110897764886e-05 0.00046625676118744404 -0.007370419773921383
    0.08214588510110911 -0.5992645292085965 2.550164039873091 -5.167712780049897
    3.141592653589794""",
    "log": " ".join(str(2 / n) for n in range(23, 0, -2)),
    "stirling": " ".join(
        str(n / d)
        for n, d in (
            (1, 156),
            (-691, 360360),
            (1, 1188),
            (-1, 1680),
            (1, 1260),
            (-1, 360),
            (1, 12),
        )
    ),
    "hazard": "105.0 -15.0 3.0 -1.0 1.0",
    "trigamma": " ".join(str(n / d) for n, d in ((5, 66), (-1, 30), (1, 42), (-1, 30), (1, 6))),
    "erf": """
    -9.66704457e-06 0.00011265959 -0.000848408041 0.00522103181 -0.0268654307 0.112837825
    -0.376126385 1.12837917""",
}
_DOUBLE_COEFFICIENTS = {
    "log1p": """
    0.14616449685043406 0.15331721600556041 0.18182889125261722 0.2222221113479508
    0.28571428625975485 0.39999999999899504 0.66666666666666697""",
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
    """Returns the texts of the functions for a dtype. A function that other functions call comes
    before them.

    Example:
        >>> print(texts(np.dtype(np.float32))[1])
        def exp(x):
            return exp_of_sum(x, np.float32(0))
    """
    is_single = dtype == np.float32
    names = _SINGLE if is_single else _DOUBLE
    coefficients = _SINGLE_COEFFICIENTS if is_single else _DOUBLE_COEFFICIENTS
    coefficients = coefficients | {"expm1": coefficients["exp"].rpartition(" ")[0]}
    used = _TEXTS_OF_SINGLE if is_single else _TEXTS
    return [_filled(text.strip(), names, coefficients) for text in used]


def _filled(text, names, coefficients):
    def polynomial(found):
        kind, name, variable = found.groups()
        number = "FLOAT" if kind == "POLYNOMIAL" else "np.float64"
        return _horner(coefficients[name].split(), variable, number)

    text = re.sub(r"(POLYNOMIAL|WIDE)\((\w+), (\w+)\)", polynomial, text)
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, str(names[name]))
    return text


def _horner(numbers, variable, kind):
    """Returns the text of a polynomial in Horner's form, starting from the highest coefficient."""
    text = f"{kind}({numbers[0]})"
    for number in numbers[1:]:
        text = f"({text} * {variable} + {kind}({number}))"
    return text


def fingerprint(dtype: np.dtype) -> str:
    """Returns a hash of the texts. Loops that call the functions include the hash in their text, so
    that caches are keyed by it.

    Example:
        >>> len(fingerprint(np.dtype(np.float32)))
        16
    """
    return hashlib.sha256("\n".join(texts(dtype)).encode()).hexdigest()[:16]


@functools.cache
def functions(dtype: np.dtype, njit: Callable) -> dict[str, Any]:
    """Returns the functions for numbers of a dtype, compiled by ``njit``, as a dict by name.

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
