"""Tests activation functions."""

import functools

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable, using_config
from mpchain.functions import activation
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.functions.test_table import TABLE as FIRST
from tests.reference import torch

_T = torch.nn.functional
_R = np.random.RandomState(4).uniform(0.1, 0.5, (3, 4))

TABLE = [
    row(
        "clipped_relu",
        functools.partial(F.clipped_relu, z=1.1),
        lambda x: x.clip(0, 1.1),
        (3, 4),
        smooth=False,
    ),
    row("relu6", lambda x: F.relu6(x * 5), lambda x: _T.relu6(x * 5), (3, 4), smooth=False),
    row("crelu", F.crelu, lambda x: torch.cat([x.relu(), (-x).relu()], 1), (2, 3, 2), smooth=False),
    row(
        "crelu axis",
        lambda x: F.crelu(x, -1),
        lambda x: torch.cat([x.relu(), (-x).relu()], -1),
        (2, 3, 2),
        smooth=False,
    ),
    row("elu", functools.partial(F.elu, alpha=1.5), lambda x: _T.elu(x, 1.5), (3, 4), smooth=False),
    row("selu", F.selu, _T.selu, (3, 4), smooth=False),
    row(
        "prelu",
        F.prelu,
        lambda x, W: torch.where(x >= 0, x, x * W[:, None]),
        (2, 3, 4),
        (3,),
        smooth=False,
    ),
    row(
        "prelu of every element",
        F.prelu,
        lambda x, W: torch.where(x >= 0, x, x * W),
        (2, 3, 4),
        (3, 4),
        smooth=False,
    ),
    row(
        "prelu of one slope",
        F.prelu,
        lambda x, W: torch.where(x >= 0, x, x * W),
        (2, 3),
        (),
        smooth=False,
    ),
    row(
        "rrelu",
        lambda x: F.rrelu(x, r=x.xp.asarray(_R, x.dtype)),
        lambda x: torch.where(x >= 0, x, x * torch.as_tensor(_R)),
        (3, 4),
        smooth=False,
    ),
    row(
        "hard_sigmoid",
        lambda x: F.hard_sigmoid(x * 3),
        lambda x: (x * 0.6 + 0.5).clip(0, 1),
        (3, 4),
        smooth=False,
    ),
    row("swish", F.swish, lambda x, b: x * torch.sigmoid(x * b[:, None]), (2, 3, 4), (3,)),
    row("silu", F.silu, _T.silu, (3, 4)),
    row("mish", F.mish, _T.mish, (3, 4)),
    row("gelu", F.gelu, _T.gelu, (3, 4)),
    row(
        "gelu slope",
        activation._gelu_slope,
        lambda x: torch.special.ndtr(x) + x * torch.exp(-x * x / 2) / (2 * torch.pi) ** 0.5,
        (3, 4),
    ),
    row(
        "gelu tanh",
        functools.partial(F.gelu, approximate="tanh"),
        lambda x: _T.gelu(x, approximate="tanh"),
        (3, 4),
    ),
    row(
        "maxout",
        lambda x: F.maxout(x, 2),
        lambda x: x.unflatten(1, (2, 2)).amax(2),
        (3, 4, 2),
        smooth=False,
    ),
    row(
        "maxout axis",
        lambda x: F.maxout(x, 3, -1),
        lambda x: x.unflatten(1, (2, 3)).amax(2),
        (3, 6),
        smooth=False,
    ),
]

test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_a_table():
    assert uncovered([*TABLE, *FIRST], "activation") == set()


def _gradient(function, *values):
    x = Variable(np.array([values], np.float64))
    y = function(x)
    y.grad = np.ones_like(y.array)
    y.backward()
    return x.grad[0].tolist()


def test_derivatives_at_kinks():
    assert _gradient(lambda x: F.clipped_relu(x, 2), 0, 1, 2) == [0, 1, 0]
    assert _gradient(lambda x: F.elu(x, 1.5), 0) == [1.5]
    assert _gradient(F.hard_sigmoid, -2.5, 0, 2.5) == [0, 0.2, 0]
    assert _gradient(lambda x: F.prelu(x, np.array([0.5])), 0) == [1]
    assert _gradient(F.crelu, 0) == [0]
    assert _gradient(lambda x: F.maxout(x, 2), 2, 2, 1, 3) == [1, 1, 0, 1]


ANY_SHAPE = [F.clipped_relu, F.relu6, F.elu, F.selu, F.hard_sigmoid, F.silu, F.mish, F.gelu]
ANY_SHAPE += [functools.partial(F.gelu, approximate="tanh"), F.rrelu]
IDS = [getattr(f, "func", f).__name__ for f in ANY_SHAPE]


@pytest.mark.parametrize("function", ANY_SHAPE, ids=IDS)
def test_any_shape_and_only_floating_point(function):
    for shape in [(), (0, 3), (2, 1, 3)]:
        x = Variable(np.full(shape, -0.5, np.float32))
        y = function(x)
        F.sum(y).backward()
        assert y.shape == x.grad.shape == shape and y.dtype == x.grad.dtype == np.float32
    with pytest.raises(InvalidType, match=r"floating point.*int64"):
        function(np.array([1, 2]))


@pytest.mark.parametrize("function", ANY_SHAPE, ids=IDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_inputs(function, dtype):
    x = Variable(np.array([1e4, -1e4], dtype))
    y = function(x)
    y.grad = np.ones_like(y.array)
    y.backward(enable_double_backprop=True)
    first = x.grad_var
    assert np.isfinite(y.array).all() and np.isfinite(first.array).all()
    x.cleargrad()
    F.sum(first * first).backward()
    assert x.grad is None or np.isfinite(x.grad).all()


def test_rrelu_in_training_and_without():
    x = np.array([[-1.0, 2.0, -3.0]], np.float32)
    y, r = F.rrelu(x, 0.25, 0.5, return_r=True)
    assert r.dtype == np.float32 and (r >= 0.25).all() and (r < 0.5).all()
    np.testing.assert_array_equal(y.array, np.where(x >= 0, x, r * x))
    assert not np.array_equal(F.rrelu(x).array, F.rrelu(x).array)
    with using_config("train", False):
        y, r = F.rrelu(x, 0.25, 0.5, r=np.zeros_like(x), return_r=True)
        np.testing.assert_array_equal(r, np.full((1, 3), 0.375))
        np.testing.assert_array_equal(y.array, [[-0.375, 2, -1.125]])


def test_options_that_make_no_sense():
    x = np.ones((2, 4), np.float32)
    with pytest.raises(ValueError, match=r"rrelu: l must be below u, but they are 0.5 and 0.25"):
        F.rrelu(x, 0.5, 0.25)
    with pytest.raises(ValueError, match=r"gelu: approximate must be .*, but is 'no'"):
        F.gelu(x, "no")
    with pytest.raises(ValueError, match=r"maxout: pool_size must be positive, but is 0"):
        F.maxout(x, 0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: F.rrelu(x, r=x[0]), r"rrelu: r must have the shape of x.*\(4,\)"),
        (lambda x: F.prelu(x, x[:, 0]), r"prelu: .* must have the shape of x from axis 1.*\(2,\)"),
        (lambda x: F.swish(x, x[:, :1]), r"swish: .* must have the shape of x from .*\(2, 1\)"),
        (lambda x: F.maxout(x, 3), r"maxout: pool_size must divide the size.*pool_size: 3"),
        (lambda x: F.maxout(x, 2, 2), r"maxout: axis must be an axis of x.*axis: 2"),
        (lambda x: F.crelu(x, 2), r"crelu: axis must be an axis of x.*axis: 2"),
    ],
)
def test_shapes_that_do_not_fit(call, message):
    with pytest.raises(InvalidType, match=message):
        call(np.ones((2, 4), np.float32))


def test_the_parameters_of_prelu_and_swish_get_gradients_of_their_own_dtype():
    for function in (F.prelu, F.swish):
        x = Variable(np.full((2, 3), -1, np.float16))
        W = Variable(np.full(3, 0.5, np.float32))
        F.sum(function(x, W)).backward()
        assert x.grad.dtype == np.float16 and W.grad.dtype == np.float32 and W.grad.shape == (3,)
