"""Tests functions whose inputs and parameters have different dtypes: the rules of
mpchain.mixed16."""

import numpy as np
import pytest

import mpchain
from mpchain import Variable
from mpchain import functions as F
from mpchain.utils.type_check import InvalidType

BFLOAT16 = mpchain.mixed_bf16.dtype
X, IMAGES, VECTOR = (4, 3), (2, 3, 5, 5), (3,)
FUNCTIONS = {
    "linear": (F.linear, [X], [(2, 3), (2,)]),
    "linear without bias": (F.linear, [X], [(2, 3)]),
    "convolution_2d": (F.convolution_2d, [IMAGES], [(2, 3, 3, 3), (2,)]),
    "convolution_nd": (F.convolution_nd, [IMAGES], [(2, 3, 3, 3)]),
    "deconvolution_2d": (F.deconvolution_2d, [IMAGES], [(3, 2, 3, 3), (2,)]),
    "depthwise_convolution_2d": (F.depthwise_convolution_2d, [IMAGES], [(2, 3, 3, 3), (6,)]),
    "local_convolution_2d": (F.local_convolution_2d, [IMAGES], [(2, 3, 3, 3, 3, 3), (2, 3, 3)]),
    "deformable_convolution_2d_sampler": (
        F.deformable_convolution_2d_sampler,
        [IMAGES, (2, 8, 4, 4)],
        [(2, 3, 2, 2), (2,)],
    ),
    "bilinear": (F.bilinear, [X, (4, 2)], [(3, 2, 5), (3, 5), (2, 5), (5,)]),
    "simplified_dropconnect": (
        lambda *a: F.simplified_dropconnect(*a, mask=np.ones((4, 2, 3), bool)),
        [X],
        [(2, 3), (2,)],
    ),
    "prelu": (F.prelu, [X], [VECTOR]),
    "swish": (F.swish, [X], [VECTOR]),
    "scale": (F.scale, [X], [VECTOR]),
    "bias": (F.bias, [X], [VECTOR]),
    "batch_normalization": (F.batch_normalization, [X], [VECTOR] * 2),
    "fixed_batch_normalization": (
        lambda x, gamma, beta: F.fixed_batch_normalization(x, gamma, beta, beta, beta * beta),
        [X],
        [VECTOR] * 2,
    ),
    "layer_normalization": (F.layer_normalization, [X], [VECTOR] * 2),
    "rms_normalization": (F.rms_normalization, [X], [VECTOR]),
    "group_normalization": (lambda *a: F.group_normalization(a[0], 3, *a[1:]), [X], [VECTOR] * 2),
    "instance_normalization": (F.instance_normalization, [IMAGES], [VECTOR] * 2),
}


def _drawn(shapes, dtype, seed):
    random = np.random.RandomState(seed)
    # Half precision can represent these numbers exactly, so casts do not change them.
    return [Variable(random.uniform(0.5, 1.5, s).astype(BFLOAT16).astype(dtype)) for s in shapes]


def _computed(name, input_dtype, dtype):
    """Returns the output, the arguments, and by them the gradients of a loss and of its squared
    gradients."""
    function, inputs, parameters = FUNCTIONS[name]
    xs = _drawn(inputs, input_dtype, 0) + _drawn(parameters, dtype, 1)
    y = function(*xs)
    weight = np.random.RandomState(2).uniform(0.5, 1.5, y.shape) / y.size
    gs = mpchain.grad([F.sum(F.cast(y, "f8") ** 2 * weight)], xs, enable_double_backprop=True)
    squares = F.add(*[F.sum(F.cast(g, "f8") ** 2) for g in gs])
    ggs = mpchain.grad([squares], xs)
    return y, xs, gs, ggs


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "dtypes", ["f2 f4", "f4 f8", "f2 f8", "f2 f2", "bfloat16 f4", "bfloat16 bfloat16"]
)
def test_results_are_as_inputs_and_gradients_as_their_variables(name, dtypes):
    narrow, wide = map(mpchain.get_dtype, dtypes.split())
    y, xs, *gradients = _computed(name, narrow, wide)
    expected_y, _, *expected = _computed(name, "f8", "f8")
    assert y.dtype == narrow
    tolerance = {"float32": 1e-5, "float16": 3e-2, "bfloat16": 2e-1}[narrow.name]
    np.testing.assert_allclose(y.array, expected_y.array, tolerance, tolerance)
    for gs, others in zip(gradients, expected, strict=True):
        for x, g, other in zip(xs, gs, others, strict=True):
            assert g.dtype == x.dtype
            scale = tolerance * abs(other.array).max()
            np.testing.assert_allclose(g.array, other.array, tolerance, scale)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtypes", ["f4 f2", "f8 f4", "f4 bfloat16", "f2 bfloat16"])
def test_inputs_wider_than_parameters_are_refused(name, dtypes):
    function, inputs, parameters = FUNCTIONS[name]
    wide, narrow = map(mpchain.get_dtype, dtypes.split())
    xs = _drawn(inputs, wide, 0) + _drawn(parameters, narrow, 1)
    rule = (
        rf"^{name.split()[0]}: \w+ must not have a wider dtype than \w+ "
        rf"\(cast it by functions.cast\(\w+, '{narrow}'\)\): "
        rf"\w+: {wide} \(.*, \w+: {narrow} \("
    )
    with pytest.raises(InvalidType, match=rule):
        function(*xs)


def test_arrays_are_told_to_be_cast_by_numpy():
    rule = r"x must not have a wider dtype than W \(cast it by x.astype\('float32'\)\): x: "
    with pytest.raises(InvalidType, match=rule):
        F.linear(np.ones((2, 3)), np.ones((2, 3), np.float32))


def test_parameters_must_be_floating_point():
    rule = r"^linear: b must be floating point: b: int64 \(2,\)$"
    with pytest.raises(InvalidType, match=rule):
        F.linear(np.ones((2, 3)), np.ones((2, 3)), np.ones(2, int))


def test_gradients_of_wide_parameters_do_not_pass_through_half_precision():
    x = np.full((4096, 1), 2.0, np.float16)
    W, b = Variable(np.ones((1, 1), np.float32)), Variable(np.ones(1, np.float32))
    y = F.linear(x, W, b)
    y.grad = np.full((4096, 1), 16.0, np.float16)
    y.backward()
    # The gradients are above 65504, the largest number of half precision.
    assert W.grad.item() == 4096 * 32 and b.grad.item() == 4096 * 16


def test_statistics_of_half_precision_are_single():
    """Deviations of 300 have squares above 65504, and the sum of squares is still larger."""
    x = Variable((np.arange(6).reshape(6, 1) * np.float16(300)).astype(np.float16))
    gamma, beta = np.ones(1, np.float32), np.zeros(1, np.float32)
    mean, var = np.zeros(1, np.float32), np.ones(1, np.float32)
    expected = (np.arange(6) - 2.5) / np.sqrt(35 / 12)
    for y in (
        F.batch_normalization(x, gamma, beta),
        F.batch_renormalization(x, gamma, beta, 1, 0, running_mean=mean, running_var=var),
    ):
        np.testing.assert_allclose(y.array[:, 0], expected, rtol=2e-3)
    y = F.batch_normalization(x, gamma, beta)
    (gx,) = mpchain.grad([F.sum(y * y * y)], [x], enable_double_backprop=True)
    (ggx,) = mpchain.grad([F.sum(gx * 1000)], [x])
    assert np.isfinite(gx.array).all() and np.isfinite(ggx.array).all()


def test_sums_of_half_precision_are_single():
    """In float16, 2048 + 1 equals 2048."""
    n = 6000
    x, b = np.ones((n, 3), np.float16), Variable(np.zeros(3, np.float16))
    assert F.sum(x, 0).array.tolist() == [n] * 3 and F.sum(x).dtype == np.float16
    W = np.ones((3, 3), np.float16)
    images = np.ones((n, 3, 2, 1), np.float16)
    for y in (
        F.linear(x, W, b),
        F.bias(x, b),
        Variable(x) + b,
        F.convolution_2d(images, W[:, :, None, None], b)[:, :, :1],
    ):
        b.cleargrad()
        y.grad = np.ones_like(y.array)
        y.backward()
        assert b.grad.dtype == np.float16 and b.grad.tolist() == [n] * 3
    for average in (F.average_pooling_2d(np.ones((1, 1, 80, 80), np.float16), 80), F.mean(x, 0)):
        assert (average.array == 1).all() and average.dtype == np.float16
    logits = Variable(np.zeros((n, 1), np.float16))
    np.testing.assert_allclose(F.softmax(logits, 0).array, 1 / n, rtol=1e-2)
    np.testing.assert_allclose(F.log_softmax(logits, 0).array, -np.log(n), rtol=1e-3)
    y = F.log_softmax(logits, 0)
    y.grad = np.ones_like(y.array)
    y.backward()
    np.testing.assert_allclose(logits.grad, 0, atol=5e-3)


def test_casting_to_the_same_dtype():
    x = np.ones(2, "f")
    y = F.cast(x, "f4")
    assert isinstance(y, mpchain.Variable) and y.array is x
    assert F.cast(y, "f4") is y
