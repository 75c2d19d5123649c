"""Special functions of one number, as polynomials that compiled loops can vectorize.

SciPy takes about 15 ns for each element, as NumPy does for some functions on processors without
AVX-512 (see :func:`slow_in_numpy`); these functions take less than 3 ns. Each function has one text
for both dtypes (those in :data:`SINGLE`, for single precision only), with separate coefficients,
mostly of Chebyshev interpolants that mpmath computed with 60 digits. Compared with mpmath, values
differ by at most 5 units in the last place, and by half a unit on average; zeros, infinities and
NaN agree with SciPy. Values stay in registers.

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
from numpy.lib import introspect

from mpchain.formulas.text import compile_text

SLOW = {"erf", "erfc", "ndtr", "slope_of_gelu"}
"""The names of functions that NumPy lacks and that SciPy computes one element at a time."""

_OF_NUMPY: set[str] = set(
    "arccos arcsin arctan arctanh cos cosh exp expm1 log log1p sin sinh tan tanh".split()
)

ANGLES = {"cos", "sin", "tan"}
"""The names of functions that return NaN for angles that are too large to be reduced here."""

QUICK = {"logistic"}
"""The names of functions for which NumPy needs several passes."""

SINGLE = {"erfinv", "gammaln", "trigamma", "normal_hazard"}
"""The names of functions that exist only for single precision. No formula contains these
functions."""


@functools.cache
def slow_in_numpy() -> set[str]:
    """Returns the names of functions for which NumPy takes three to twenty times as long as these
    loops: none on processors for which it has vectorized all of them, such as those with AVX-512.

    Example:
        >>> "sqrt" in slow_in_numpy()
        False
    """
    code = introspect.opt_func_info(func_name="^sinh$", signature="float32")
    used = code.get("sinh", {}).get("ff", {}).get("current", "baseline")
    return _OF_NUMPY if used.startswith("baseline") else set()


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
    y = (POLYNOMIAL(expm1, r) * r * first + (first - inverse)) * second
    return x if x == FLOAT(0) else y
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
_LOG_OF_WIDE = """
def log_of_wide(x):
    bits = np.float64(x).view(np.int64)
    k = np.int64(bits - np.int64(4604544271217802189)) >> np.int64(52)
    m = np.int64(bits - np.int64(k << np.int64(52))).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    return np.float64(k) * 0.6931471805599453 + s * WIDE(log_of_wide, square)
"""
# The inverse error function is x times a polynomial of -log(1 - x^2), or of the square root of this
# logarithm.
_ERFINV = """
def erfinv(x):
    wide, size = np.float64(x), np.absolute(x)
    w = -log_of_wide((1.0 - wide) * (1.0 + wide))
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
    logarithm = log_of_wide(product if wide > 0.0 else 3.141592653589793 * product / sine)
    series = (z - 0.5) * log_of_wide(z) - z + 0.9189385332046727 + WIDE(stirling, square) * inverse
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
# With e = exp(-2 |x|) - 1, the hyperbolic tangent is accurate near zero too.
_TANH = """
def tanh(x):
    e = expm1(np.absolute(x) * FLOAT(-2))
    return np.copysign(e / (e + FLOAT(2)), x)
"""
_ARCTANH = """
def arctanh(x):
    size = np.absolute(x)
    return np.copysign(log1p((size + size) / (FLOAT(1) - size)) * FLOAT(0.5), x)
"""
# Half of the exponential overflows where the hyperbolic functions do.
_SINH = """
def sinh(x):
    size, square = np.absolute(x), x * x
    half = exp_of_sum(size, FLOAT(-0.6931471805599453))
    far = np.copysign(half - FLOAT(0.25) / half, x)
    return x + x * square * POLYNOMIAL(sinh, square) if size < FLOAT(1) else far
"""
_COSH = """
def cosh(x):
    half = exp_of_sum(np.absolute(x), FLOAT(-0.6931471805599453))
    return half + FLOAT(0.25) / half
"""
_ARCTAN = """
def arctan(x):
    size = np.absolute(x)
    near = FLOAT(1) / size if size > FLOAT(1) else size
    square = near * near
    near = near + near * square * POLYNOMIAL(arctan, square)
    far = FLOAT(QUARTER) - near + FLOAT(QUARTER_REST)
    return np.copysign(far if size > FLOAT(1) else near, x)
"""
# The angle of a far x is twice the angle whose sine is sqrt((1 - x) / 2), subtracted from pi / 2.
_ARC = """
def arc(size):
    is_far = size > FLOAT(0.5)
    square = (FLOAT(1) - size) * FLOAT(0.5) if is_far else size * size
    sine = np.sqrt(square) if is_far else size
    return sine + sine * square * POLYNOMIAL(arcsin, square)
"""
_ARCSIN = """
def arcsin(x):
    size = np.absolute(x)
    near = arc(size)
    far = FLOAT(QUARTER) - (near + near) + FLOAT(QUARTER_REST)
    return np.copysign(far if size > FLOAT(0.5) else near, x)
"""
_ARCCOS = """
def arccos(x):
    size = np.absolute(x)
    angle = arc(size)
    middle = FLOAT(QUARTER) - (np.copysign(angle, x) - FLOAT(QUARTER_REST))
    twice = angle + angle
    below = FLOAT(2) * FLOAT(QUARTER) - (twice - FLOAT(2) * FLOAT(QUARTER_REST))
    return (below if x < FLOAT(0) else twice) if size > FLOAT(0.5) else middle
"""
# Subnormal numbers are multiplied by 2^60.
_LOG = """
def log(x):
    is_small = x < FLOAT(NORMAL)
    u = x * FLOAT(1152921504606846976.0) if is_small else x
    bits = FLOAT(u).view(INT)
    n = INT(INT(bits - INT(HALF_ROOT)) >> INT(DIGITS))
    f = INT(bits - INT(n << INT(DIGITS))).view(FLOAT) - FLOAT(1)
    k = FLOAT(n) - FLOAT(60 if is_small else 0)
    half, s = f * f * FLOAT(0.5), f / (f + FLOAT(2))
    z = s * s
    rest = s * (half + z * POLYNOMIAL(log1p, z)) + k * FLOAT(LN2_REST)
    y = k * FLOAT(LN2) + (f - (half - rest))
    y = x if x == FLOAT(np.inf) else y
    y = FLOAT(-np.inf) if x == FLOAT(0) else y
    return y if x >= FLOAT(0) else FLOAT(np.nan)
"""
# The angle is reduced by multiples k of pi / 2, whose three parts are subtracted in double
# precision. The result is NaN where k times the first part would be rounded.
_ANGLE = """
    wide = np.float64(x)
    shifted = wide * 0.6366197723675814 + 6755399441055744.0
    k = shifted - 6755399441055744.0
    rest = (wide - k * 1.5707963267341256) - k * 6.077100506303966e-11
    angle = FLOAT(rest - k * 2.0222662487959506e-21)
    square = angle * angle
    sine = angle + angle * square * POLYNOMIAL(sine_of_angle, square)
    cosine = FLOAT(1) - (FLOAT(0.5) * square - square * square * POLYNOMIAL(cosine, square))
    turn = np.float64(shifted).view(np.int64)
    is_odd = turn & np.int64(1)"""
_SIN = f"""
def sin(x):{_ANGLE}
    y = cosine if is_odd else sine
    y = -y if turn & np.int64(2) else y
    y = x if x == FLOAT(0) else y
    return FLOAT(np.nan) if np.absolute(k) > 1048576.0 else y
"""
_COS = f"""
def cos(x):{_ANGLE}
    y = sine if is_odd else cosine
    y = -y if np.int64(turn + np.int64(1)) & np.int64(2) else y
    return FLOAT(np.nan) if np.absolute(k) > 1048576.0 else y
"""
_TAN = f"""
def tan(x):{_ANGLE}
    y = -cosine / sine if is_odd else sine / cosine
    y = x if x == FLOAT(0) else y
    return FLOAT(np.nan) if np.absolute(k) > 1048576.0 else y
"""
_TEXTS = _EXP_OF_SUM, _EXP, _EXPM1, _LOGISTIC, _EXP_OF_SQUARE, _TAIL, _ERF, _ERFC, _NDTR
_TEXTS += _SLOPE_OF_GELU, _LOG1P, _TANH, _ARCTANH, _SINH, _COSH, _ARCTAN, _ARC, _ARCSIN, _ARCCOS
_TEXTS += _LOG, _SIN, _COS, _TAN
_TEXTS_OF_SINGLE = *_TEXTS, _LOG_OF_WIDE, _ERFINV, _GAMMALN, _TRIGAMMA, _NORMAL_HAZARD

_SINGLE = {
    "FLOAT": "np.float32", "INT": "np.int32", "MAGIC": 1.5 * 2**23, "MASK": -(1 << 12),
    "BIAS": 127, "DIGITS": 23, "LARGEST": 90.0, "SMALLEST": -115.0, "FAR": 15.0,
    "HALF_ROOT": 0x3F3504F3, "NORMAL": 1.1754943508222875e-38,
    "LN2_REST": -2.1219444005469058e-4, "LN2": 0.693359375,
    "QUARTER": 1.5707963705062866, "QUARTER_REST": -4.371139000186241e-08,
}  # fmt: skip
_DOUBLE = {
    "FLOAT": "np.float64", "INT": "np.int64", "MAGIC": 1.5 * 2**52, "MASK": -(1 << 27),
    "BIAS": 1023, "DIGITS": 52, "LARGEST": 711.0, "SMALLEST": -760.0, "FAR": 40.0,
    "HALF_ROOT": 0x3FE6A09E667F3BCD, "NORMAL": 2.2250738585072014e-308,
    "LN2_REST": 1.9082149292705877e-10, "LN2": 0.6931471803691238,
    "QUARTER": 1.5707963267948966, "QUARTER_REST": 6.123233995736766e-17,
}  # fmt: skip
_SINGLE_COEFFICIENTS = {
    "log1p": "0.233304672 0.285508208 0.400001218 0.666666666",
    "arcsin": "0.0380850236 0.0265545422 0.0450013801 0.0749885507 0.166666724",
    "arctan": """
    -0.00238699732 0.0135077714 -0.035871539 0.0625016944 -0.0865688043 0.110337641 -0.142785687
    0.199997393 -0.333333317""",
    "sine_of_angle": "-0.000195878909 0.00833274827 -0.166666647",
    "cosine": "2.45479421e-5 -0.0013888303 0.0416666647",
    "sinh": "2.80628026e-6 0.00019838102 0.00833333968 0.166666666",
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
    "log_of_wide": " ".join(str(2 / n) for n in range(23, 0, -2)),
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
    "arcsin": """
    0.028757851367421565 -0.014851887071247203 0.017400879442694022 0.0054575067186403583
    0.010322814350185779 0.011479177415184906 0.013971212973552933 0.017352392720869973
    0.022372172942149888 0.030381944138531247 0.04464285714635543 0.074999999999984329
    0.16666666666666668""",
    "arctan": """
    -1.1832505417555693e-5 0.0001368724853148122 -0.00075184725269738215 0.002622977891906089
    -0.0065756833441516986 0.012756172907694297 -0.020238706986393516 0.027567942297344677
    -0.033750132001619734 0.038726402140426325 -0.043081196553304713 0.047520867735766561
    -0.052612657357094544 0.058820749563712946 -0.066666364357776927 0.076923053546786548
    -0.090909089695574031 0.11111111107234799 -0.14285714285648404 0.19999999999999553
    -0.33333333333333333""",
    "sine_of_angle": """
    1.5918129294866609e-10 -2.5051131845003624e-8 2.755731610255244e-6 -0.00019841269836758574
    0.0083333333333309485 -0.16666666666666665""",
    "cosine": """
    -1.1382632425521718e-11 2.0876146268403198e-9 -2.7557317271729793e-7 2.4801587298765688e-5
    -0.0013888888888887397 0.041666666666666665""",
    "sinh": """
    2.8445264169895286e-15 7.6466253616566577e-13 1.6059048396350562e-10 2.5052108364058041e-8
    2.7557319224040339e-6 0.00019841269841269773 0.0083333333333333334 0.16666666666666667""",
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
