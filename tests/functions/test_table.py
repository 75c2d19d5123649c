"""Tests values, gradients and derivatives to third order of basic functions."""

import functools

import numpy as np

import mpchain.functions as F
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch


def _conv(f, **options):
    return lambda x, W, b: f(x, W, b, **options)


TABLE = [
    row("add", lambda a, b: a + b, lambda a, b: a + b, (3, 4), (3, 4)),
    row("add broadcast", F.add, lambda a, b: a + b, (3, 4), (4,)),
    row("add three", F.add, lambda a, b, c: a + b + c, (3,), (2, 1), (2, 3)),
    row("subtract", lambda a, b: a - b, lambda a, b: a - b, (2, 1, 4), (3, 1)),
    row("multiply", lambda a, b: a * b, lambda a, b: a * b, (3, 1), (1, 4)),
    row("divide", lambda a, b: a / b, lambda a, b: a / b, (3, 4), (4,), low=0.5),
    row("power", lambda a, b: a**b, lambda a, b: a**b, (3, 4), (3, 4), low=0.5),
    row("negative", lambda a: -a, lambda a: -a, (3,)),
    row("add_constant", lambda a: 2 + a + 3.5, lambda a: a + 5.5, (3,)),
    row("subtract_from_constant", lambda a: 2 - (a - 1), lambda a: 3 - a, (3,)),
    row("multiply_by_constant", lambda a: 2 * a * 1.5, lambda a: a * 3, (3,)),
    row("divide_by_constant", lambda a: a / 3, lambda a: a / 3, (3,)),
    row("divide_constant", lambda a: 3 / a, lambda a: 3 / a, (3,), low=0.5),
    row("power_of_constant_exponent", lambda a: a**4, lambda a: a**4, (3, 2)),
    row("cube", lambda a: a**3, lambda a: a**3, (3, 2)),
    row("fractional exponent", lambda a: a**1.5, lambda a: a**1.5, (3, 2), low=0.5),
    row("power_of_constant_base", lambda a: 1.5**a, lambda a: 1.5**a, (3, 2)),
    row("absolute", abs, torch.abs, (3, 4), smooth=False),
    row("relu", F.relu, torch.relu, (3, 4), smooth=False),
    row(
        "leaky_relu",
        functools.partial(F.leaky_relu, slope=0.3),
        lambda x: torch.nn.functional.leaky_relu(x, 0.3),
        (3, 4),
        smooth=False,
    ),
    row("sigmoid", F.sigmoid, torch.sigmoid, (3, 4)),
    row("tanh", F.tanh, torch.tanh, (3, 4)),
    row(
        "softplus",
        functools.partial(F.softplus, beta=1.5),
        lambda x: torch.nn.functional.softplus(x, 1.5),
        (3, 4),
    ),
    row("softmax", F.softmax, lambda x: torch.softmax(x, 1), (3, 4)),
    row("softmax axis", lambda x: F.softmax(x, 0), lambda x: torch.softmax(x, 0), (3, 4, 2)),
    row("log_softmax", F.log_softmax, lambda x: torch.log_softmax(x, 1), (3, 4)),
    row("exp", F.exp, torch.exp, (3, 4)),
    row("log", F.log, torch.log, (3, 4), low=0.5),
    row("sqrt", F.sqrt, torch.sqrt, (3, 4), low=0.5),
    row("square", F.square, torch.square, (3, 4)),
    row("maximum", F.maximum, torch.maximum, (3, 4), (4,), smooth=False),
    row("minimum", F.minimum, torch.minimum, (3, 4), (4,), smooth=False),
    row(
        "where",
        lambda a, b: F.where(a.xp.arange(4) % 2 == 0, a, b),
        lambda a, b: torch.where(torch.arange(4) % 2 == 0, a, b),
        (3, 4),
        (4,),
    ),
    row(
        "cast",
        lambda x: F.cast(x, "f4"),
        lambda x: x.float(),
        (3,),
        orders=0,
        tolerance={np.float64: 1e-6},
    ),
    row("reshape", lambda x: x.reshape(2, -1), lambda x: x.reshape(2, -1), (3, 4)),
    row("transpose", F.transpose, lambda x: x.permute(2, 1, 0), (2, 3, 4)),
    row("transpose axes", lambda x: x.transpose(1, 2, 0), lambda x: x.permute(1, 2, 0), (2, 3, 4)),
    row("swapaxes", lambda x: F.swapaxes(x, 0, -1), lambda x: x.transpose(0, -1), (2, 3, 4)),
    row(
        "broadcast_to",
        lambda x: F.broadcast_to(x, (2, 3, 4)),
        lambda x: x.expand(2, 3, 4),
        (3, 1),
    ),
    row("sum_to", lambda x: F.sum_to(x, (3, 1)), lambda x: x.sum((0, 2)).reshape(3, 1), (2, 3, 4)),
    row("matmul", lambda a, b: a @ b, lambda a, b: a @ b, (3, 4), (4, 2)),
    row("matmul vectors", F.matmul, torch.matmul, (4,), (4,)),
    row("matmul vector", F.matmul, torch.matmul, (2, 3, 4), (4,)),
    row("matmul stack", F.matmul, torch.matmul, (2, 1, 3, 4), (5, 4, 2)),
    row(
        "matmul transposed",
        lambda a, b: F.matmul(a, b, transa=True, transb=True),
        lambda a, b: a.T @ b.T,
        (4, 3),
        (2, 4),
    ),
    row("linear", F.linear, torch.nn.functional.linear, (3, 4), (2, 4), (2,)),
    row("linear without bias", F.linear, torch.nn.functional.linear, (3, 4), (2, 4)),
    row(
        "linear batch axes",
        lambda x, W, b: F.linear(x, W, b, n_batch_axes=2),
        torch.nn.functional.linear,
        (2, 3, 4),
        (2, 4),
        (2,),
    ),
    row(
        "linear flattened",
        F.linear,
        lambda x, W: torch.nn.functional.linear(x.flatten(1), W),
        (2, 2, 3),
        (4, 6),
    ),
    row(
        "convolution_1d",
        _conv(F.convolution_1d, stride=2, pad=1),
        _conv(torch.nn.functional.conv1d, stride=2, padding=1),
        (2, 3, 7),
        (4, 3, 3),
        (4,),
    ),
    row(
        "convolution_2d",
        _conv(F.convolution_2d, stride=(1, 2), pad=(2, 1), dilate=(2, 1), groups=2),
        _conv(torch.nn.functional.conv2d, stride=(1, 2), padding=(2, 1), dilation=(2, 1), groups=2),
        (2, 4, 6, 7),
        (6, 2, 3, 2),
        (6,),
    ),
    row(
        "convolution_2d pointwise",
        F.convolution_2d,
        torch.nn.functional.conv2d,
        (2, 3, 4, 5),
        (4, 3, 1, 1),
        (4,),
    ),
    row(
        "convolution_2d cover_all",
        lambda x, W: F.convolution_2d(x, W, stride=3, cover_all=True),
        lambda x, W: torch.nn.functional.conv2d(
            torch.nn.functional.pad(x, (0, 2, 0, 1)), W, stride=3
        ),
        (1, 2, 7, 6),
        (2, 2, 2, 2),
    ),
    row(
        "convolution_2d remainder",
        lambda x, W: F.convolution_2d(x, W, stride=3),
        lambda x, W: torch.nn.functional.conv2d(x, W, stride=3),
        (1, 2, 7, 6),
        (2, 2, 2, 2),
    ),
    row(
        "convolution_3d",
        F.convolution_3d,
        torch.nn.functional.conv3d,
        (1, 2, 3, 4, 3),
        (3, 2, 2, 2, 2),
        (3,),
        orders=2,
    ),
    row(
        "deconvolution_1d",
        _conv(F.deconvolution_1d, stride=2, pad=1),
        _conv(torch.nn.functional.conv_transpose1d, stride=2, padding=1),
        (2, 3, 4),
        (3, 2, 3),
        (2,),
    ),
    row(
        "deconvolution_2d",
        _conv(F.deconvolution_2d, stride=2, pad=1, dilate=2, groups=2),
        _conv(torch.nn.functional.conv_transpose2d, stride=2, padding=1, dilation=2, groups=2),
        (2, 4, 3, 3),
        (4, 1, 2, 3),
        (2,),
    ),
    row(
        "deconvolution_2d outsize",
        _conv(F.deconvolution_2d, stride=2, outsize=(6, 7)),
        _conv(torch.nn.functional.conv_transpose2d, stride=2, output_padding=(0, 1)),
        (1, 2, 3, 3),
        (2, 3, 2, 2),
        (3,),
    ),
    row(
        "deconvolution_3d",
        F.deconvolution_3d,
        torch.nn.functional.conv_transpose3d,
        (1, 2, 2, 2, 2),
        (2, 3, 2, 2, 2),
        (3,),
        orders=2,
    ),
    row(
        "max_pooling_2d",
        lambda x: F.max_pooling_2d(x, 3, 2, 1, cover_all=False),
        lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1),
        (2, 2, 6, 5),
        smooth=False,
    ),
    row(
        "max_pooling_2d cover_all",
        lambda x: F.max_pooling_2d(x, 2),
        lambda x: torch.nn.functional.max_pool2d(x, 2, ceil_mode=True),
        (2, 2, 5, 4),
        smooth=False,
    ),
    row(
        "max_pooling_nd",
        lambda x: F.max_pooling_nd(x, 2),
        lambda x: torch.nn.functional.max_pool3d(x, 2, ceil_mode=True),
        (1, 2, 3, 4, 2),
        smooth=False,
    ),
    row(
        "average_pooling_2d",
        lambda x: F.average_pooling_2d(x, 3, 2, 1),
        lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1),
        (2, 2, 6, 5),
    ),
    row(
        "average_pooling_nd",
        lambda x: F.average_pooling_nd(x, 3, 2, 1, pad_value=None),
        lambda x: torch.nn.functional.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
        (2, 2, 6),
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "array") == set()
