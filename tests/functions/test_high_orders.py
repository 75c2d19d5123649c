"""Tests third and fourth derivatives of declared functions.

Elementwise functions are composed with a polynomial and compared with mpmath, which differentiates
in 40 digits. Every smooth row of the tables with three orders or more, except those in LEFT_OUT, is
compared with the derivatives of a Chebyshev interpolant of its own values along a direction; other
tests compare the values with PyTorch.
"""

import importlib
import pathlib

import mpmath
import numpy as np
import pytest
from numpy.polynomial import Chebyshev

import mpchain
import mpchain.distributions  # the import declares functions
import mpchain.functions as F
from mpchain import Variable
from mpchain.functions.declaring.declaration import registry
from tests.functions.harness import weighted_sum
from tests.functions.table import inputs_of

pytestmark = pytest.mark.slow


def _sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


# For each declaration: the function in mpmath, the constants after the array, and the point.
SCALAR = {
    "absolute": (abs, (), -1.3),
    "add_constant": (lambda x, c: x + c, (0.7,), 0.4),
    "subtract_from_constant": (lambda x, c: c - x, (0.7,), 0.4),
    "multiply_by_constant": (lambda x, c: x * c, (0.7,), 0.4),
    "divide_by_constant": (lambda x, c: x / c, (0.7,), 0.4),
    "divide_constant": (lambda x, c: c / x, (0.7,), 1.4),
    "power_of_constant_exponent": (lambda x, c: x**c, (5,), 0.9),
    "power_of_constant_base": (lambda x, c: c**x, (1.7,), 0.4),
    "negative": (lambda x: -x, (), 0.4),
    "exp": (mpmath.exp, (), 0.4),
    "log": (mpmath.log, (), 1.4),
    "sqrt": (mpmath.sqrt, (), 1.4),
    "square": (lambda x: x * x, (), 0.4),
    "cube": (lambda x: x**3, (), 0.4),
    "relu": (lambda x: max(x, 0), (), 0.7),
    "leaky_relu": (lambda x, s: x if x >= 0 else s * x, (0.3,), -0.7),
    "sigmoid": (_sigmoid, (), 0.4),
    "softplus": (lambda x, b: mpmath.log(1 + mpmath.exp(b * x)) / b, (1.5,), 0.4),
    "tanh": (mpmath.tanh, (), 0.4),
    "identity": (lambda x: x, (), 0.4),
    "expm1": (mpmath.expm1, (), 0.4),
    "log1p": (mpmath.log1p, (), 0.4),
    "log2": (lambda x: mpmath.log(x, 2), (), 1.4),
    "log10": (mpmath.log10, (), 1.4),
    "rsqrt": (lambda x: 1 / mpmath.sqrt(x), (), 1.4),
    "sin": (mpmath.sin, (), 0.4),
    "cos": (mpmath.cos, (), 0.4),
    "tan": (mpmath.tan, (), 0.4),
    "arcsin": (mpmath.asin, (), 0.4),
    "arccos": (mpmath.acos, (), 0.4),
    "arctan": (mpmath.atan, (), 0.4),
    "arctanh": (mpmath.atanh, (), 0.4),
    "sinh": (mpmath.sinh, (), 0.4),
    "cosh": (mpmath.cosh, (), 0.4),
    "erf": (mpmath.erf, (), 0.4),
    "erfc": (mpmath.erfc, (), 0.4),
    "erfcx": (lambda x: mpmath.exp(x * x) * mpmath.erfc(x), (), 0.4),
    "erfinv": (mpmath.erfinv, (), 0.4),
    "erfcinv": (lambda x: mpmath.erfinv(1 - x), (), 0.7),
    "ndtr": (mpmath.ncdf, (), 0.4),
    "ndtri": (lambda x: mpmath.sqrt(2) * mpmath.erfinv(2 * x - 1), (), 0.4),
    "log_ndtr": (lambda x: mpmath.log(mpmath.ncdf(x)), (), 0.4),
    "bell": (lambda x, c: mpmath.exp(c * x * x), (-0.5,), 0.4),
    "lorentzian": (lambda x: 1 / (1 + x * x), (), 0.4),
    "log_of_rest_of_exp": (lambda x: mpmath.log(-mpmath.expm1(-x)), (), 0.4),
    "normal_hazard": (lambda x: mpmath.npdf(x) / mpmath.ncdf(x), (), 0.4),
    "lgamma": (mpmath.loggamma, (), 1.4),
    "digamma": (mpmath.digamma, (), 1.4),
    "polygamma": (lambda x, n: mpmath.polygamma(n, x), (2,), 1.4),
    "zeta": (lambda q, x: mpmath.zeta(x, q), (2.5,), 1.4),
    "clip": (lambda x, low, high: min(max(x, low), high), (-1.0, 1.0), 0.4),
    "clipped_relu": (lambda x, z: min(max(x, 0), z), (2.0,), 0.4),
    "elu": (lambda x, a: x if x >= 0 else a * mpmath.expm1(x), (1.3,), -0.7),
    "hard_sigmoid": (lambda x: min(max(x / 5 + 0.5, 0), 1), (), 0.4),
    "silu": (lambda x: x * _sigmoid(x), (), 0.4),
    "mish": (lambda x: x * mpmath.tanh(mpmath.log(1 + mpmath.exp(x))), (), 0.4),
    "gelu": (lambda x: x * mpmath.ncdf(x), (), 0.4),
    "gelu_slope": (lambda x: mpmath.ncdf(x) + x * mpmath.npdf(x), (), 0.4),
    "gelu_tanh": (
        lambda x: x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + 0.044715 * x**3))),
        (),
        0.4,
    ),
    "huber": (lambda x, d: x * x / 2 if abs(x) <= d else d * (abs(x) - d / 2), (1.0,), 0.4),
}
# Functions of two arrays, both of which are polynomials of the one variable.
PAIRS = {
    "add": (lambda a, b: a + b, 0.4, 0.9),
    "subtract": (lambda a, b: a - b, 0.4, 0.9),
    "multiply": (lambda a, b: a * b, 0.4, 0.9),
    "divide": (lambda a, b: a / b, 0.4, 0.9),
    "power": (lambda a, b: a**b, 1.4, 0.9),
    "maximum": (max, 1.4, 0.9),
    "minimum": (min, 1.4, 0.9),
    "squared_difference": (lambda a, b: (a - b) ** 2, 0.4, 0.9),
    "fmod": (lambda a, b: a - b * int(a / b), 1.4, 0.9),
    "prelu": (lambda x, slope: x if x > 0 else slope * x, -0.7, 0.3),
    "arctan2": (mpmath.atan2, 0.4, 0.9),
    "inverse_part": (lambda a, b: a / (a * a + b * b), 0.4, 0.9),
}
# Functions of three arrays, which the rows of the tables test.
IN_TABLES = {"where", "linear_interpolate", "log_add"}
ORDERS = (3, 4)


def _inner(t, at, slope):
    return at + slope * t + 0.3 * t * t - 0.2 * t * t * t


def _derivatives(function, orders):
    """Returns the derivatives of a scalar function of one number at zero, through repeated grad."""
    t = Variable(np.zeros((), np.float64))
    y, values = function(t), []
    for _ in range(orders):
        (y,) = mpchain.grad([y], [t], enable_double_backprop=True)
        values.append(0.0 if y is None else y.item())
        if y is None:
            break
    return values + [0.0] * (orders - len(values))


def _check_against_mpmath(function, reference):
    exact = _derivatives(function, max(ORDERS))
    with mpmath.workdps(40):
        for order in ORDERS:
            expected = float(mpmath.diff(reference, 0, order))
            assert abs(exact[order - 1] - expected) < 1e-6 * max(1e-3, abs(expected)), order


@pytest.mark.parametrize("name", SCALAR)
def test_of_one_array(name):
    reference, constants, at = SCALAR[name]
    declared = registry[name]
    _check_against_mpmath(
        lambda t: declared.apply((_inner(t, at, 0.5),), constants),
        lambda t: reference(_inner(t, at, 0.5), *constants),
    )


@pytest.mark.parametrize("name", PAIRS)
def test_of_two_arrays(name):
    reference, a, b = PAIRS[name]
    declared = registry[name]
    _check_against_mpmath(
        lambda t: declared.apply((_inner(t, a, 0.5), _inner(t, b, -0.4))),
        lambda t: reference(_inner(t, a, 0.5), _inner(t, b, -0.4)),
    )


# These rows have a kink or a pole nearby, so a narrower, less exact interpolant is used.
NARROW = """
    elementary-arcsin elementary-arccos recurrent-n_step_rnn_2_2_tanh_4
    elementary-fmod elementary-fmod_negative elementary-arctanh embedding_loss-clustering_norm_1
    loss-hinge_L1_mean loss-hinge_L1_no loss-hinge_L2_mean loss-hinge_L2_no
    loss-smooth_l1_loss_mean loss-smooth_l1_loss_sum loss-smooth_l1_loss_no
    recurrent-n_step_rnn_relu special-ndtri
""".split()
# These functions have kinks everywhere; batch renormalization treats its corrections as constants.
LEFT_OUT = """
    embedding_loss-triplet image-spatial_transformer_sampler normalization-batch_renormalization
""".split()


def _smooth_rows():
    """Yields the smooth rows of this folder's tables with three orders or more, except those in
    LEFT_OUT, and whether each is in NARROW."""
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py")):
        if path.stem != pathlib.Path(__file__).stem and "\nTABLE = " in path.read_text():
            table = importlib.import_module(f"tests.functions.{path.stem}").TABLE
            for case in table:
                if case.smooth and case.orders >= 3:
                    name = f"{path.stem.removeprefix('test_')}-{case.name}".replace(" ", "_")
                    if name not in LEFT_OUT:
                        yield pytest.param(case, name in NARROW, id=name)


@pytest.mark.parametrize("case, is_narrow", list(_smooth_rows()))
def test_along_a_direction(case, is_narrow):
    arrays = inputs_of(case)
    random = np.random.RandomState(7)
    directions = [random.uniform(-1, 1, x.shape) for x in arrays]
    scalar = weighted_sum(case.function, arrays)

    def along(t):
        return scalar(*(x + F.broadcast_to(t, x.shape) * v for x, v in zip(arrays, directions)))

    radius, degree, tolerance = (0.02, 7, 1e-3) if is_narrow else (0.25, 18, 1e-6)
    values = np.vectorize(lambda t: along(Variable(np.array(t))).item())
    interpolant = Chebyshev.interpolate(values, degree, domain=[-radius, radius])
    exact = _derivatives(along, max(ORDERS))
    for order in ORDERS:
        expected = interpolant.deriv(order)(0.0)
        scale = max(1.0, abs(expected))
        assert abs(exact[order - 1] - expected) < tolerance * scale, (order, exact, expected)


def test_every_elementwise_declaration_is_here():
    declared = {name for name, d in registry.items() if d.is_elementwise and d.is_own}
    missing = declared - set(SCALAR) - set(PAIRS) - IN_TABLES
    assert not missing, f"add a row to SCALAR, or PAIRS if of two arrays, for {sorted(missing)}"
    assert set(SCALAR) | set(PAIRS) | IN_TABLES <= declared, "rows of functions that are gone"
