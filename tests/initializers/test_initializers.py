"""Tests initializers: their values, their random numbers, and the arguments that they refuse."""

import numpy as np
import pytest
import scipy.stats

from mpchain import backend, initializers
from mpchain.configuration import using_config
from mpchain.initializers import generate_array, get_fans, get_initializer

RANDOM = {
    "Normal": 0.05,
    "LeCunNormal": np.sqrt(1 / 1800),
    "GlorotNormal": np.sqrt(2 / (1800 + 900)),
    "HeNormal": np.sqrt(2 / 1800),
    "Uniform": 0.05 / np.sqrt(3),
    "LeCunUniform": np.sqrt(1 / 1800),
    "GlorotUniform": np.sqrt(2 / (1800 + 900)),
    "HeUniform": np.sqrt(2 / 1800),
}
SHAPE = (100, 200, 3, 3)


def fill(initializer, shape, dtype=np.float64):
    array = np.full(shape, 7, dtype)
    initializer(array)
    return array


@pytest.mark.parametrize("name", RANDOM)
def test_distribution(name):
    values = fill(getattr(initializers, name)(rng=np.random.default_rng(1)), SHAPE).ravel()
    deviation = RANDOM[name]
    if "Uniform" in name:
        bound = deviation * np.sqrt(3)
        expected = scipy.stats.uniform(-bound, 2 * bound)
    else:
        expected = scipy.stats.norm(0, deviation)
    assert scipy.stats.kstest(values, expected.cdf).pvalue > 0.01


@pytest.mark.parametrize("name", RANDOM)
def test_scale_is_a_factor(name):
    def draw(scale):
        initializer = getattr(initializers, name)(scale, rng=np.random.default_rng(1))
        return fill(initializer, (4, 3))

    np.testing.assert_allclose(draw(3.0), 3 * draw(1.0), rtol=1e-12)


def test_he_normal_by_fan_out():
    values = fill(initializers.HeNormal(fan_option="fan_out", rng=np.random.default_rng(1)), SHAPE)
    assert values.std() == pytest.approx(np.sqrt(2 / 900), rel=0.01)


@pytest.mark.parametrize("name", [*RANDOM, "Orthogonal"])
def test_the_same_seed_gives_the_same_values_from_every_source(name):
    cls = getattr(initializers, name)
    values = fill(cls(rng=np.random.default_rng(5)), (6, 4))
    with using_config("rng", np.random.default_rng(5)):
        np.testing.assert_array_equal(fill(cls(), (6, 4)), values)
    np.random.seed(5)
    np.testing.assert_array_equal(
        fill(cls(), (6, 4)), fill(cls(rng=np.random.RandomState(5)), (6, 4))
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", [*RANDOM, "Orthogonal"])
def test_values_do_not_depend_on_dtype_but_for_rounding(name, dtype):
    cls = getattr(initializers, name)
    expected = fill(cls(rng=np.random.default_rng(5)), (6, 4)).astype(dtype)
    np.testing.assert_array_equal(fill(cls(rng=np.random.default_rng(5)), (6, 4), dtype), expected)


def test_values_do_not_depend_on_the_device(device):
    array = generate_array(
        initializers.LeCunNormal(rng=np.random.default_rng(5)), (6, 4), None, device=device
    )
    assert backend.get_device_from_array(array) == backend.get_device(device)
    expected = fill(initializers.LeCunNormal(rng=np.random.default_rng(5)), (6, 4), np.float32)
    np.testing.assert_array_equal(backend.cuda.to_cpu(array), expected)


@pytest.mark.parametrize(
    "initializer, expected",
    [
        (initializers.Constant(3), [[3, 3], [3, 3]]),
        (initializers.Constant(np.array([1, 2])), [[1, 2], [1, 2]]),
        (initializers.Constant(np.array([[1, 2], [3, 4]])), [[1, 2], [3, 4]]),
        (initializers.Constant(np.float32(1.5)), [[1.5, 1.5], [1.5, 1.5]]),
        (initializers.Zero(), [[0, 0], [0, 0]]),
        (initializers.One(), [[1, 1], [1, 1]]),
        (initializers.NaN(), [[np.nan, np.nan], [np.nan, np.nan]]),
        (initializers.Identity(), [[1, 0], [0, 1]]),
        (initializers.Identity(2.5), [[2.5, 0], [0, 2.5]]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_constant_values(initializer, expected, dtype):
    np.testing.assert_array_equal(fill(initializer, (2, 2), dtype), np.array(expected, dtype))


@pytest.mark.parametrize("mode", ["auto", "projection", "basis", "embedding"])
@pytest.mark.parametrize("shape", [(2, 4), (4, 4), (4, 2), (2, 2, 3), (7, 2, 3), (3,), ()])
def test_orthogonal(mode, shape):
    n_out = shape[0] if shape else 1
    n_in = int(np.prod(shape[1:]))
    initializer = initializers.Orthogonal(2.0, mode=mode, rng=np.random.default_rng(1))
    fits = {"auto": True, "projection": n_out <= n_in, "basis": n_out == n_in}
    if not fits.get(mode, n_out >= n_in):
        with pytest.raises(ValueError, match=f"Orthogonal: shape .* outputs, which mode='{mode}'"):
            fill(initializer, shape)
        return
    matrix = fill(initializer, shape).reshape(n_out, n_in)
    product = matrix @ matrix.T if n_out <= n_in else matrix.T @ matrix
    np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-14)


def test_orthogonal_is_uniformly_distributed():
    rng = np.random.default_rng(1)
    initializer = initializers.Orthogonal(1.0, rng=rng)
    first = [fill(initializer, (2, 2))[0, 0] for _ in range(2000)]
    # The first element is the cosine of a uniformly distributed angle.
    angles = np.arccos(first) / np.pi
    assert scipy.stats.kstest(angles, "uniform").pvalue > 0.01


def test_sampling_filters():
    up = initializers.UpsamplingDeconvFilter()
    np.testing.assert_allclose(fill(up, (1, 1, 4))[0, 0], [0.25, 0.75, 0.75, 0.25])
    row = np.array([1, 2, 3, 2, 1]) / 3
    values = fill(up, (2, 2, 5, 5))
    np.testing.assert_allclose(values[0, 0], row[:, None] * row)
    np.testing.assert_array_equal(values[0, 0], values[1, 1])
    assert not values[0, 1].any() and not values[1, 0].any()
    assert fill(up, (2, 1, 3)).any(axis=(1, 2)).all()
    down = fill(initializers.DownsamplingConvFilter(), (1, 1, 4, 4))
    assert down.sum() == pytest.approx(1)
    np.testing.assert_allclose(down[0, 0] / down.max(), fill(up, (1, 1, 4, 4))[0, 0] / 0.75**2)


def test_empty_arrays():
    for name in RANDOM:
        assert fill(getattr(initializers, name)(), (0, 3)).shape == (0, 3)
        assert fill(getattr(initializers, name)(), (3, 0)).shape == (3, 0)


def test_get_fans():
    assert get_fans((2, 3)) == (3, 2)
    assert get_fans((2, 3, 4, 5)) == (60, 40)
    with pytest.raises(ValueError, match=r"get_fans: shape must have two axes or more.*\(3,\)"):
        get_fans((3,))


def test_get_initializer():
    assert isinstance(get_initializer(None), initializers.LeCunNormal)
    np.testing.assert_array_equal(fill(get_initializer(2), 3), [2, 2, 2])
    np.testing.assert_array_equal(fill(get_initializer(np.arange(3)), 3), [0, 1, 2])
    one = initializers.One()
    assert get_initializer(one) is one
    assert get_initializer(one, np.float16).dtype == np.float16 and one.dtype is None

    def count_up(array):
        array[...] = np.arange(array.size)

    wrapped = get_initializer(count_up, np.float64)
    assert generate_array(wrapped, 3, np).tolist() == [0, 1, 2] and wrapped.dtype == np.float64
    assert not hasattr(count_up, "dtype")


def test_generate_array():
    assert generate_array(initializers.One(), (2, 3), np).dtype == np.float32
    assert generate_array(initializers.One(np.float16), 4, np).dtype == np.float16
    assert generate_array(initializers.One(), 4, np, np.float64).dtype == np.float64
    assert generate_array(initializers.One(), (), np).shape == ()
    with using_config("dtype", np.dtype(np.float64)):
        assert generate_array(initializers.One(), 4, np).dtype == np.float64
    with pytest.raises(ValueError, match=r"generate_array: dtype float64 differs from .*, float32"):
        generate_array(initializers.One(np.float32), 4, np, np.float64)


@pytest.mark.parametrize(
    "error, message, make",
    [
        (TypeError, "Constant: fill_value must be .* not str 'x'", lambda: get_initializer("x")),
        (
            ValueError,
            r"Constant: fill_value of shape \(2, 2\) does not broadcast .*\(3, 2\)",
            lambda: fill(initializers.Constant(np.ones((2, 2))), (3, 2)),
        ),
        (
            ValueError,
            r"Identity: the array must be a square matrix, not \(2, 3\)",
            lambda: fill(initializers.Identity(), (2, 3)),
        ),
        (
            ValueError,
            "HeNormal: fan_option must be .* not 'x'",
            lambda: initializers.HeNormal(fan_option="x"),
        ),
        (
            ValueError,
            "Orthogonal: mode must be one of .* not 'x'",
            lambda: initializers.Orthogonal(mode="x"),
        ),
        (
            ValueError,
            "Orthogonal: the array must not be empty",
            lambda: fill(initializers.Orthogonal(), (0, 2)),
        ),
        (TypeError, "Normal: rng must be .* not 3", lambda: initializers.Normal(rng=3)),
        (
            ValueError,
            "UpsamplingDeconvFilter: interpolation must be 'linear', not 'nearest'",
            lambda: initializers.UpsamplingDeconvFilter("nearest"),
        ),
        (
            ValueError,
            "DownsamplingConvFilter: weights must have shape .* with the same k",
            lambda: fill(initializers.DownsamplingConvFilter(), (1, 1, 2, 3)),
        ),
        (
            ValueError,
            "UpsamplingDeconvFilter: weights must have shape",
            lambda: fill(initializers.UpsamplingDeconvFilter(), (3,)),
        ),
        (
            ValueError,
            "the numbers of channels must be equal, or one of them must be 1, but they are 2 and 3",
            lambda: fill(initializers.UpsamplingDeconvFilter(), (2, 3, 4)),
        ),
        (
            NotImplementedError,
            "Initializer does not implement __call__",
            lambda: fill(initializers.Initializer(), 2),
        ),
    ],
)
def test_errors(error, message, make):
    with pytest.raises(error, match=message):
        make()
