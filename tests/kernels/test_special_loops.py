"""Tests special functions as compiled polynomials, which are exact to 5 units in the last place."""

import mpmath
import numpy as np
import pytest
from scipy import special

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.functions.declaring.declaration import registry
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import loops, special_loops
from tests.kernels.needs import needs_numba

pytestmark = [
    pytest.mark.slow,
    needs_numba,
]
DTYPES = [np.float32, np.float64]
FUNCTIONS = {
    "erf": (mpmath.erf, special.erf, 28),
    "erfc": (mpmath.erfc, special.erfc, 27),
    "ndtr": (mpmath.ncdf, special.ndtr, 37),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)), special.expit, 250),
    "silu": (lambda x: x / (1 + mpmath.exp(-x)), lambda x: x * special.expit(x), 240),
    "softplus": (
        lambda x: mpmath.log1p(mpmath.exp(x)),
        lambda x: np.logaddexp(x, 0).astype(x.dtype),
        250,
    ),
    "elu": (
        lambda x: x if x > 0 else mpmath.expm1(x),
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        100,
    ),
}
CONSTANTS = {"elu": (1.0,), "softplus": (1.0,)}
EXTREMES = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, -1e-40, 5e-45, 15.5, -15.5]


def loop_of(name):
    return registry[name].loop(None)


def computed(name, x):
    """Returns the values of the loop, in memory that was full of NaN."""
    with thresholds.using(special_loop=0, exponential_loop=0, loop=0):
        constants = CONSTANTS.get(name, ())
        assert loop_of(name)(x, *constants) is not None
        return loop_of(name).compute(x, *constants, out=np.full_like(x, np.nan))


def points(dtype, far):
    far = far if dtype == np.float64 else far / 2.9  # larger arguments would give subnormal results
    near = np.logspace(-8, 0, 60)
    return np.concatenate([np.linspace(-far, far, 801), -near, near]).astype(dtype)


def units(found, exact, dtype):
    """Returns errors in units in the last place of the exact values."""
    with mpmath.workdps(40):
        return [
            float(abs(mpmath.mpf(float(y)) - e)) / float(np.spacing(dtype(abs(e))))
            for y, e in zip(found, exact, strict=True)
        ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_exact_to_five_units(name, dtype):
    function, _, far = FUNCTIONS[name]
    x = points(dtype, far)
    with mpmath.workdps(40):
        exact = [function(mpmath.mpf(float(v))) for v in x]
    errors = units(computed(name, x), exact, dtype)
    assert max(errors) <= 5, x[np.argmax(errors)]
    assert np.mean(errors) < 0.8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_extremes_are_those_of_scipy(name, dtype):
    x = np.array(EXTREMES, dtype)
    with np.errstate(invalid="ignore"):
        found, expected = computed(name, x), FUNCTIONS[name][1](x)
    np.testing.assert_allclose(found, expected, 8 * np.finfo(dtype).eps, 1e-44)
    np.testing.assert_array_equal(np.signbit(found[:-4]), np.signbit(expected[:-4]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tails_end_in_subnormal_numbers(dtype):
    x = np.linspace(-9 if dtype == np.float32 else -36, -42, 150).astype(dtype)
    for name, at in (("ndtr", x), ("erfc", -x)):
        with mpmath.workdps(40):
            expected = [float(FUNCTIONS[name][0](mpmath.mpf(float(v)))) for v in at]
        info = np.finfo(dtype)
        np.testing.assert_allclose(
            computed(name, at), expected, 5 * info.eps, 3 * info.smallest_subnormal
        )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exponential_of_loops(dtype):
    limit = 80 if dtype == np.float32 else 700
    x = np.linspace(-limit, limit, 501).astype(dtype)
    loop = loops.loop_of(lambda x: np.exp(x) + F.erf.declaration.body(x) * 0, ["x"], 1)
    with mpmath.workdps(40):
        exact = [mpmath.exp(mpmath.mpf(float(v))) for v in x]
    assert max(units(loop.compute(x), exact, dtype)) <= 3
    far = np.array([200, 800, np.inf, -200, -800, -np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        expected = np.exp(far)
    np.testing.assert_allclose(loop.compute(far), expected, 1e-5 if dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*FUNCTIONS, "gelu", "selu", "softplus"])
def test_three_orders_of_derivatives_are_those_without_loops(name, dtype):
    random = np.random.RandomState(0)
    x = np.concatenate([random.randn(thresholds.loop), EXTREMES[:2], [7, -7, 40, -40]])

    def results():
        v = Variable(x.astype(dtype))
        found = [getattr(F, name)(v)]
        for _ in range(3):
            found += mpchain.grad([found[-1]], [v], enable_double_backprop=True)
        return [y.array for y in found]

    by_loops = results()
    with mpchain.using_config("kernels", ("reference",)):
        others = results()
    eps = np.finfo(dtype).eps
    for y, expected in zip(by_loops, others, strict=True):
        assert y.dtype == dtype
        np.testing.assert_allclose(y, expected, 60 * eps, 16 * eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_logarithm_of_loops(dtype):
    near = np.logspace(-38 if dtype == np.float32 else -300, 0, 400)
    x = np.concatenate([near, -near[near < 1], np.logspace(0, 37, 300)]).astype(dtype)
    loop = loops.loop_of(lambda x: np.log1p(x) * np.sign(x) * 1 + 0, ["x"], 1)
    with mpmath.workdps(60):
        exact = [mpmath.log1p(mpmath.mpf(float(v))) * np.sign(v) for v in x]
    assert max(units(loop.compute(x), exact, dtype)) <= 2
    extremes = np.array([0, -0.0, np.inf, -np.inf, np.nan, -1, -2, 1e-45, -1e-45, 3e38], dtype)
    loop = loops.loop_of(lambda x: np.log1p(x) * np.sign(2 + np.square(x)), ["x"], 1)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(loop.compute(extremes), np.log1p(extremes), 1e-6, 1e-46)


@pytest.mark.parametrize("beta", [0, 0.0])
def test_numpy_divides_by_zero(beta):
    x = np.ones(thresholds.loop, np.float32)
    assert loop_of("softplus")(x, 2.0) is not None
    assert loop_of("softplus")(x, beta) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponentials_minus_one_overflow_as_numpys(dtype):
    x = np.array([88, 89, 130, 709, 710, 800, np.inf, -90, -120, -710, -np.inf, np.nan], dtype)
    loop = loops.loop_of(lambda x: np.expm1(x) * np.sign(x) * 1 + 0, ["x"], 1)
    with np.errstate(all="ignore"):
        expected = np.expm1(x) * np.sign(x)
    np.testing.assert_allclose(loop.compute(x), expected, 4e-6 if dtype == np.float32 else 1e-14)


def _real_lgamma(x):
    return mpmath.re(mpmath.loggamma(x))


_RANDOM = np.random.RandomState(0)
# Functions for single precision only: the function, SciPy's function, points, and the error in
# units in the last place.
SINGLE = {
    "erfinv": (
        mpmath.erfinv,
        special.erfinv,
        [_RANDOM.uniform(-1, 1, 500), np.logspace(-40, -1, 90), 1 - np.logspace(-7.2, -1, 90)],
        1,
    ),
    "gammaln": (
        _real_lgamma,
        special.gammaln,
        [
            _RANDOM.uniform(-12, 20, 500),
            np.logspace(-40, 36, 90),
            1 + np.logspace(-6.9, -1, 60),  # these points are near zeros
            2 - np.logspace(-6.9, -1, 60),
            -np.logspace(-40, 6, 90),
        ],
        1,
    ),
    "trigamma": (
        lambda x: mpmath.polygamma(1, x),
        lambda x: special.polygamma(1, x),
        [_RANDOM.uniform(-12, 20, 500), np.logspace(-18, 18, 90), -np.logspace(-18, 5, 90)],
        1,
    ),
    "normal_hazard": (
        lambda x: mpmath.npdf(x) / mpmath.ncdf(x),
        lambda x: np.sqrt(2 / np.pi) / special.erfcx(-x / np.sqrt(2)),
        [_RANDOM.uniform(-20, 13, 500), -np.logspace(-40, 4, 200), [-15, -15.0001, -14.999]],
        5,
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_functions_of_single_precision(name):
    function, of_scipy, points, most = SINGLE[name]
    loop = loops.loop_of_special(name)
    x = np.concatenate(points).astype(np.float32)
    found = loop.compute(x, out=np.full_like(x, np.nan))
    poles = ~np.isfinite(found)  # the poles are at integers
    assert not poles.any() or (name != "erfinv" and np.all(x[poles] == np.round(x[poles])))
    with mpmath.workdps(40):
        exact = [function(mpmath.mpf(float(v))) for v in x[~poles]]
    errors = units(found[~poles], exact, np.float32)
    assert max(errors) <= most, x[~poles][np.argmax(errors)]
    extremes = np.array([*EXTREMES, 1, -1, 2, -2, 8, -8, 0.5, 1e30, -1e30], np.float32)
    with np.errstate(all="ignore"):
        expected = np.asarray(of_scipy(extremes.astype(np.float64))).astype(np.float32)
    if name == "trigamma":  # SciPy treats the smallest negative numbers as zero
        expected[np.isinf(loop.compute(extremes))] = np.inf
    np.testing.assert_allclose(loop.compute(extremes), expected, 1e-6, 1e-44)


@pytest.mark.parametrize("name", ["lgamma", "digamma", "erfinv", "log_ndtr"])
def test_three_orders_of_derivatives_in_single_precision(name):
    n = thresholds.special_loop
    x = np.random.RandomState(0).uniform(0.2, 0.8, n).astype(np.float32)

    def results():
        v = Variable(x)
        found = [getattr(F, name)(v)]
        for _ in range(3):
            found += mpchain.grad([found[-1]], [v], enable_double_backprop=True)
        return [y.array for y in found]

    by_loops = results()
    with mpchain.using_config("kernels", ("reference",)):
        others = results()
    for y, expected in zip(by_loops, others, strict=True):
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, expected, 2e-5, 2e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:9],
        lambda x: x[:0],
        lambda x: x[::2],
        lambda x: x.astype(np.float64),
        lambda x: x.astype(np.float16),
    ],
    ids=["small", "empty", "gaps", "double", "half"],
)
def test_other_arrays_go_to_scipy(change, computed):
    x = np.full(3 * thresholds.special_loop, 0.5, np.float32)
    for function in (F.lgamma, F.erfinv, lambda x: F.polygamma(1, x)):
        computed.clear()
        y = function(change(x)).array
        assert not computed and y.dtype == change(x).dtype
        function(x)
        assert computed
    computed.clear()
    F.polygamma(2, x)
    assert not computed


def test_gelu_and_its_gradient_take_one_pass_each(computed):
    x = Variable(np.ones(thresholds.special_loop, np.float32))
    y = F.gelu(x)
    assert len(computed) == 1
    y.grad = np.ones_like(x.array)
    y.backward()
    assert len(computed) == 2
    F.gelu(x.array[1:])  # SciPy computes small arrays
    assert len(computed) == 2


def test_the_cache_depends_on_the_polynomials(monkeypatch):
    before = special_loops.fingerprint(np.dtype(np.float32))
    changed = special_loops._SINGLE_COEFFICIENTS | {"exp": "0.5 1.0 1.0"}
    monkeypatch.setattr(special_loops, "_SINGLE_COEFFICIENTS", changed)
    assert special_loops.fingerprint(np.dtype(np.float32)) != before


def _everywhere(far, near=1.0):
    small = np.logspace(-8, 0, 80) * near
    return [_RANDOM.uniform(-far, far, 300), _RANDOM.uniform(-near, near, 300), small, -small]


_TO_ONE = [0.999 * _RANDOM.uniform(-1, 1, 400), np.logspace(-8, -0.01, 60), 1 - np.logspace(-6, -1)]
_POSITIVE = [np.logspace(-37, 37, 200), _RANDOM.uniform(0.5, 2, 400)]
# NumPy's functions that its code for some processors does not vectorize, with mpmath's functions
# and arguments in single precision.
OF_NUMPY = {
    "arccos": (mpmath.acos, _TO_ONE),
    "arcsin": (mpmath.asin, _TO_ONE),
    "arctan": (mpmath.atan, _everywhere(100)),
    "arctanh": (mpmath.atanh, _TO_ONE),
    "cos": (mpmath.cos, _everywhere(1e6, 7)),
    "cosh": (mpmath.cosh, _everywhere(89)),
    "exp": (mpmath.exp, _everywhere(87)),
    "expm1": (mpmath.expm1, _everywhere(88)),
    "log": (mpmath.log, _POSITIVE),
    "log1p": (mpmath.log1p, [*_POSITIVE, *_TO_ONE]),
    "sin": (mpmath.sin, _everywhere(1e6, 7)),
    "sinh": (mpmath.sinh, _everywhere(89)),
    "tan": (mpmath.tan, _everywhere(1e6, 7)),
    "tanh": (mpmath.tanh, _everywhere(10)),
}


@pytest.fixture
def loop_of_numpy(monkeypatch):
    """Returns a function that returns the loop of a NumPy function, as on a processor for which
    NumPy has no vectorized code."""
    monkeypatch.setattr(special_loops, "slow_in_numpy", lambda: set(OF_NUMPY))
    return lambda name: loops.loop_of(lambda x: getattr(np, name)(x), ["x"], 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OF_NUMPY)
def test_functions_of_numpy_are_exact_to_three_units(name, dtype, loop_of_numpy):
    function, points = OF_NUMPY[name]
    loop, x = loop_of_numpy(name), np.concatenate(points).astype(dtype)
    with mpmath.workdps(40):
        exact = [function(mpmath.mpf(float(v))) for v in x]
    errors = units(loop.compute(x, out=np.full_like(x, np.nan)), exact, dtype)
    assert max(errors) <= 3, x[np.argmax(errors)]
    assert np.mean(errors) < 0.8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OF_NUMPY)
def test_extremes_are_those_of_numpy(name, dtype, loop_of_numpy):
    edges = [1.0, -1.0, 2.0, -2.0, 88.9, -88.9, 89.5, 710.3, 711.0, -745.0, 1e6, 2e6, 1e30]
    x = np.array([*EXTREMES, *edges], dtype)
    loop = loop_of_numpy(name)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
        for i in range(len(x)):  # a value that is not finite lets NumPy compute the whole array
            found = loop.compute(x[i : i + 1])
            np.testing.assert_allclose(found, expected[i : i + 1], 1e-6, 1e-44, err_msg=str(x[i]))
            if not np.isnan(expected[i]):
                assert np.signbit(found[0]) == np.signbit(expected[i]), x[i]


@pytest.mark.parametrize("name, value", [("log", -1), ("exp", 100), ("arcsin", 2), ("tan", np.inf)])
def test_values_that_are_not_finite_are_numpys_with_its_warnings(name, value, loop_of_numpy):
    x = np.ones(thresholds.loop, np.float32)
    x[5] = value
    loop = loop_of_numpy(name)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
    for _ in range(2):  # the second call takes the way that is remembered
        with pytest.warns(RuntimeWarning, match="invalid value|overflow"):
            y = loop(x)
        np.testing.assert_array_equal(y, expected)


def test_numpy_reduces_angles_that_are_too_large(loop_of_numpy):
    x = np.full(thresholds.loop, 1e30, np.float32)
    np.testing.assert_array_equal(loop_of_numpy("sin")(x), np.sin(x))


def test_large_angles_among_exponentials_and_comparisons():
    x = np.full(9, 2e6)
    formula = lambda x: np.exp(-x * 1e-7) * np.sin(x) + 1
    np.testing.assert_array_equal(loops.loop_of(formula, ["x"], 1).compute(x), formula(x))
    hidden = lambda x: np.where(np.sin(x) > 0, np.exp(-x), x) * 2
    assert loops.loop_of(hidden, ["x"], 1) is None


def test_numpy_computes_small_arrays(loop_of_numpy):
    assert loop_of_numpy("sinh")(np.ones(thresholds.exponential_loop - 1)) is None


@pytest.mark.parametrize(
    "formula",
    [lambda x: np.sinh(x), lambda x: np.exp(x) + 1, lambda x: np.expm1(x * 2) + 1],
)
def test_a_loop_replaces_only_functions_that_are_slow(formula):
    loop = loops.loop_of(formula, ["x"], 1)
    assert (loop is not None) == ("exp" in special_loops.slow_in_numpy())
