"""Tests every elementwise function at up to 121 points, from the smallest to the largest numbers of
a dtype.

Values and derivatives of orders 1 to 3 in four dtypes are compared with mpmath, which uses enough
digits for finite differences. Each elementwise declaration in the registry needs cases or a reason.
"""

import functools
import math

import mpmath
import numpy as np
import pytest
from scipy import special

import mpchain
import mpchain.distributions  # the import declares functions
from mpchain import Variable
from mpchain.functions.declaring.declaration import registry
from tests.functions.test_high_orders import PAIRS, SCALAR

ORDERS = 3
_MAGNITUDES = [
    *(5e-324, 1e-310, 2.5e-308, 1e-300, 1e-200, 1e-160, 1e-100, 1e-50, 1e-44, 1e-40, 1e-37, 1e-30),
    *(1e-20, 1e-16, 1e-12, 6e-8, 1e-7, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.2, 0.3, 0.5, 0.6, 0.75, 0.9),
    *(0.99, 1, 1.01, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 11, 15, 18, 25, 40, 80, 100, 300, 800, 4e3),
    *(6.5e4, 1e6, 1e10, 1e20, 1e38, 1e50, 1e100, 1e155, 1e250, 1.7e308),
]


def _rounded(x):
    """Returns the number of 8 significant bits that is closest to x; every dtype whose range
    includes x has this number."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(mantissa * 256), exponent - 8)


POSITIVE = sorted(map(_rounded, _MAGNITUDES))
POINTS = [*(-x for x in reversed(POSITIVE)), 0.0, *POSITIVE]
DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(mpchain.mixed_bf16.dtype),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}

# Functions have kinks or poles at these points, which are omitted; finite differences avoid them.
SPECIAL = {
    **{name: [0] for name in "absolute divide_constant log log2 log10 sqrt rsqrt".split()},
    **{name: [0] for name in "relu leaky_relu elu power_of_constant_exponent".split()},
    **{name: [0] for name in "lgamma digamma polygamma zeta log_of_rest_of_exp".split()},
    **{name: [-1, 1] for name in "arcsin arccos arctanh erfinv clip huber".split()},
    **{"clipped_relu": [0, 2], "hard_sigmoid": [-2.5, 2.5], "log1p": [-1]},
    **{"erfcinv": [0, 2], "ndtri": [0, 1]},
}
DOMAINS = {
    **{name: (0, math.inf) for name in "log log2 log10 sqrt rsqrt log_of_rest_of_exp".split()},
    **{name: (0, math.inf) for name in "lgamma digamma polygamma zeta".split()},
    **{name: (-1, 1) for name in "arcsin arccos arctanh erfinv".split()},
    **{"log1p": (-1, math.inf), "tan": (-1.5, 1.5), "erfcinv": (0, 2), "ndtri": (0, 1)},
}
# These functions behave like a power or a logarithm of the distance from their pole, also far from
# it.
SCALE_FREE = """
    log log2 log10 sqrt rsqrt lgamma digamma polygamma zeta divide_constant log1p
""".split()
RATIONAL = ["arctan", "lorentzian", "arctan2", "inverse_part", "divide", "power"]


def _erfc(x):
    """mpmath's erfc fails far from zero, where the result is 2, or too small for every dtype."""
    return mpmath.erfc(x) if abs(x) < 1e4 else mpmath.mpf(0 if x > 0 else 2)


def _erfcx(x):
    if x < 1e4:
        return mpmath.exp(x * x) * _erfc(x)
    total = term = mpmath.mpf(1)
    for n in range(1, 80):  # each term is 1e-6 of the previous term, or less
        term *= -(2 * n - 1) / (2 * x * x)
        total += term
    return total / (x * mpmath.sqrt(mpmath.pi))


def _log_ndtr(x):
    z = -x / mpmath.sqrt(2)
    return mpmath.log(_erfc(z) / 2) if x > -10 else mpmath.log(_erfcx(z) / 2) - z * z


OVERFLOWING = {
    "erf": lambda x: 1 - _erfc(x) if abs(x) > 1 else mpmath.erf(x),
    "erfc": _erfc,
    "erfcx": _erfcx,
    "ndtr": lambda x: _erfc(-x / mpmath.sqrt(2)) / 2,
    "gelu": lambda x: x * _erfc(-x / mpmath.sqrt(2)) / 2,
    "gelu_slope": lambda x: _erfc(-x / mpmath.sqrt(2)) / 2 + x * mpmath.npdf(x),
    "log_ndtr": _log_ndtr,
    "normal_hazard": lambda x: mpmath.sqrt(2 / mpmath.pi) / _erfcx(-x / mpmath.sqrt(2)),
}


class Case:
    """A function of one number: an elementwise declaration whose other arguments are fixed."""

    def __init__(self, name, index=0, others=(), special=None, domain=None):
        self.name, self.index, self.others = name, index, others
        self.declaration = registry[name]
        self.special = SPECIAL.get(name, []) if special is None else special
        self.domain = domain or DOMAINS.get(name, (-math.inf, math.inf))
        if name in SCALAR:
            self.reference, self.constants, _ = SCALAR[name]
        else:
            self.reference, self.constants = (PAIRS | TRIPLES)[name][0], ()
        self.reference = OVERFLOWING.get(name, self.reference)
        self.id = name if not others else f"{name}-{index}-{others[0]}"

    def apply(self, x):
        arrays = [np.full(x.shape, v, x.dtype) for v in self.others]
        arrays.insert(self.index, x)
        return self.declaration.apply(arrays, self.constants)

    def exact(self, x):
        arguments = list(self.others)
        arguments.insert(self.index, x)
        return self.reference(*arguments, *self.constants)

    def points(self):
        low, high = self.domain
        return [x for x in POINTS if low < x < high and x not in self.special]


TRIPLES = {
    "linear_interpolate": (lambda p, x, y: p * x + (1 - p) * y,),
    "log_add": (lambda a, b, c: mpmath.log(mpmath.exp(a) + mpmath.exp(b) + mpmath.exp(c)),),
}


def _cases():
    yield from (Case(name) for name in SCALAR)
    for name in PAIRS:
        for index in 0, 1:
            for other in 0.75, -2.5:
                special, domain = _pair(name, index, other)
                if domain is not None:
                    yield Case(name, index, (other,), special, domain)
    for index in 0, 1, 2:
        yield Case("linear_interpolate", index, (0.75, -2.5))
    yield Case("log_add", 0, (0.75, -2.5))


def _pair(name, index, other):
    """Returns kinks and domain of a function of two numbers with one fixed argument; without a
    domain, the case is omitted."""
    everywhere = (-math.inf, math.inf)
    if name in ("maximum", "minimum"):
        return [other], everywhere
    if name == "fmod":  # fmod jumps at infinitely many points
        return [], None
    if name == "power":
        domain = (0, math.inf) if index == 0 else everywhere if other > 0 else None
        return [0] if index == 0 else [], domain
    if name == "divide" and index == 1:
        return [0], everywhere
    if name == "arctan2" and index == 0 and other < 0:
        return [0], everywhere
    if name == "prelu":
        return [0] if index == 0 else [], everywhere
    return [], everywhere


CASES = list(_cases())


def _inverse(c, polynomials):
    """Returns the derivatives of y with y' = c(y), the inverse of a distribution function, computed
    by hand from y."""

    def derivatives(y):
        slope = c(y)
        return [y, slope, *(p(y) * slope**k for k, p in enumerate(polynomials, 2))]

    return derivatives


_OF_ERF = [lambda y: 2 * y, lambda y: 2 + 8 * y**2, lambda y: 28 * y + 48 * y**3]
_OF_NORMAL = [lambda y: y, lambda y: 1 + 2 * y**2, lambda y: 7 * y + 6 * y**3]
_HALF_ROOT = lambda y: mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(y * y)
# For each name: SciPy's function, whose result starts the search for the root; the equation for the
# inverse; and the derivatives of the inverse.
INVERSES = {
    "erfinv": (special.erfinv, lambda y, x: mpmath.erf(y) - x, _inverse(_HALF_ROOT, _OF_ERF)),
    "erfcinv": (
        special.erfcinv,
        lambda y, x: mpmath.log(mpmath.erfc(y) / x),
        _inverse(lambda y: -_HALF_ROOT(y), _OF_ERF),
    ),
    "ndtri": (
        special.ndtri,
        lambda y, x: mpmath.log(mpmath.ncdf(y) / x),
        _inverse(lambda y: mpmath.sqrt(2 * mpmath.pi) * mpmath.exp(y * y / 2), _OF_NORMAL),
    ),
}


@functools.cache
def exact_derivatives(case, x):
    """Returns the value and the derivatives of orders 1 to 4 at a point, in many digits."""
    if case.name in INVERSES:
        start, equation, derivatives = INVERSES[case.name]
        with mpmath.workdps(60):
            exact, start = mpmath.mpf(x), start(x)
            start = (
                float(start) if np.isfinite(start) else 27.2 if case.name == "erfcinv" else -38.4
            )
            y = mpmath.mpf(0)
            if start:
                y = mpmath.findroot(lambda y: equation(y, exact), start)
            return derivatives(y)
    distance = min([abs(x - s) for s in case.special], default=math.inf)
    size = max(abs(x), 1.0)
    is_free = case.name in SCALE_FREE
    is_algebraic = is_free or case.name in RATIONAL
    step = min(distance, size if is_algebraic else 1.0)
    digits = 150 if is_free else 500 - 5 * math.log10(min(step, 1))
    digits += (4 if is_algebraic else 1) * math.log10(size)
    with mpmath.workdps(int(digits)):
        h, x = mpmath.mpf(step) / mpmath.mpf(10) ** 12, mpmath.mpf(x)
        a, b, y, c, d = (case.exact(x + k * h) for k in (-2, -1, 0, 1, 2))
        derivatives = [
            (a - 8 * b + 8 * c - d) / (12 * h),
            (-a + 16 * b - 30 * y + 16 * c - d) / (12 * h**2),
            (d - 2 * c + 2 * b - a) / (2 * h**3),
            (a - 4 * b + 6 * y - 4 * c + d) / h**4,
        ]
        return [mpmath.mpf(v) for v in (y, *derivatives)]


def measured(case, dtype, every=1):
    """Returns the points that the dtype can represent, and mpchain's values and derivatives at
    them."""
    with np.errstate(all="ignore"):
        points = [x for x in case.points() if float(np.asarray(x).astype(dtype)) == x][::every]
        x = Variable(np.array(points).astype(dtype))
        y, found = case.apply(x), []
        for order in range(ORDERS + 1):
            array = np.zeros(x.shape) if y is None else y.array
            found.append(array.astype(np.float64))
            if order < ORDERS and y is not None:
                (y,) = mpchain.grad([y], [x], enable_double_backprop=True)
    return points, found


def smallest(dtype):
    """Returns the smallest positive number of a dtype, its largest number, and its precision."""
    if dtype == DTYPES["bfloat16"]:
        return 2.0**-133, (2 - 2.0**-7) * 2.0**127, 2.0**-7
    info = np.finfo(dtype)
    return float(info.smallest_subnormal), float(info.max), float(info.eps)


# These derivatives are computed from the value, such as 1 - y. Where y is close to 1, they are
# exact only up to rounding errors of 1. PyTorch computes them in the same way. Otherwise, the
# argument would have to be kept, and its exponential computed again, in each backward pass.
ABSOLUTE = "sigmoid tanh expm1 softplus silu mish gelu_tanh log_add".split()

# Each exception has a function, dtypes (None means all), the lowest order, the range of points, and
# the reason.
HALF, WIDE = ("float16",), ("float32", "float64")
EXCEPTIONS = [
    ("erfcx", None, 1, lambda x: x > 1, "2 x y - 2 / sqrt(pi) cancels, as in PyTorch"),
    ("normal_hazard", None, 1, lambda x: x < 0, "y (x + y) cancels, as in PyTorch"),
    ("normal_hazard", None, 2, lambda x: True, "the same, of which this is the derivative"),
    ("log_ndtr", None, 2, lambda x: x < 6, "the same: the first derivative is normal_hazard"),
    ("erfcinv", None, 1, lambda x: x < 1e-11, "exp(y^2) amplifies the rounding of y by y^2"),
    ("ndtri", None, 1, lambda x: x < 1e-15, "exp(y^2 / 2) amplifies the rounding of y by y^2"),
    ("erfcinv", ("float64",), 0, lambda x: x < 1e-322, "SciPy's is infinite"),
    ("lgamma", ("float64",), 0, lambda x: x < 1e-308, "SciPy's is infinite"),
    ("softplus", None, 0, lambda x: x > 4e4, "the product of x and beta, 1.5, overflows"),
    ("arctan", None, 1, lambda x: True, "see lorentzian, its derivative"),
    ("lorentzian", HALF, 0, lambda x: abs(x) > 250, "the square overflows: 0 for 1e-5 or less"),
    ("lorentzian", WIDE, 0, lambda x: 1e18 < abs(x) < 1e20 or abs(x) > 1e150, "the same: 1e-38"),
    ("gelu_tanh", HALF, 3, lambda x: abs(x) > 8, "cubes of the slope, 1600, overflow"),
    ("power", HALF, 1, lambda x: x == _rounded(1e-4) or x == -40, "a power of x overflows"),
]


def is_left_out(case, name, order, x):
    """Returns whether an entry of EXCEPTIONS covers the point."""
    return any(
        case.name == function and (dtypes is None or name in dtypes) and order >= least and where(x)
        for function, dtypes, least, where, _ in EXCEPTIONS
    )


def errors(case, name, every=1):
    """Yields (order, x, found, expected, error as a multiple of the allowed error)."""
    dtype = DTYPES[name]
    points, found = measured(case, dtype, every)
    small, large, eps = smallest(dtype)
    # The bound is some tens of rounding errors; for half precision, a smaller number is meaningful.
    eps *= 16 if eps > 1e-4 else 64
    for i, x in enumerate(points):
        exact = exact_derivatives(case, x)
        for order in range(ORDERS + 1):
            value, expected = found[order][i], exact[order]
            if is_left_out(case, name, order, x):
                continue
            if abs(expected) >= large * (1 - eps):
                yield order, x, value, expected, 0 if abs(value) >= large / 2 else math.inf
                continue
            # The bound includes the rounding of the result and of the argument, which the next
            # derivative magnifies.
            allowed = eps * (abs(expected) + abs(x * exact[order + 1])) + 128 * small * (1 + abs(x))
            if case.name in ABSOLUTE and order:
                allowed += eps * min(1 + abs(x), 10) ** 2
            difference = abs(mpmath.mpf(value) - expected) if np.isfinite(value) else mpmath.inf
            yield order, x, value, expected, float(difference / allowed)


def _wrong(case, every=1):
    return [
        f"{name}, order {order}, at {x!r}: {value}, not {mpmath.nstr(expected, 17)} ({error:.3g})"
        for name in DTYPES
        for order, x, value, expected, error in errors(case, name, every)
        if not error <= 1
    ]


BY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@pytest.mark.slow
@BY_CASE
def test_at_some_points(case):
    wrong = _wrong(case, every=16)
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@BY_CASE
def test_at_all_points(case):
    wrong = _wrong(case)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_elementwise_declaration_has_cases_or_a_reason():
    declared = {name for name, d in registry.items() if d.is_elementwise and d.is_own}
    # "where" only selects values that it returns unchanged.
    covered = {case.name for case in CASES} | {"where", "fmod"}
    missing = sorted(declared - covered)
    assert not missing, f"add a row to SCALAR or PAIRS of test_high_orders.py for {missing}"
    assert covered <= declared, "cases of functions that are gone"


@pytest.mark.slow
def test_exceptions_name_cases_and_reasons():
    known = {case.name for case in CASES}
    assert {name for name, *_ in EXCEPTIONS} | set(ABSOLUTE) <= known
    assert all(reason for *_, reason in EXCEPTIONS)


@pytest.mark.slow
def test_points_are_numbers_of_all_dtypes():
    assert len(set(POINTS)) == len(POINTS) == 121
    for x in POSITIVE:
        for name, dtype in DTYPES.items():
            least, most, _ = smallest(dtype)
            normal = least * 2.0 ** (52 if name == "float64" else 23)
            if normal <= x <= most:
                assert float(np.asarray(x).astype(dtype)) == x, (x, name)
