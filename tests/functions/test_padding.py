"""Tests padding against NumPy's values and PyTorch's gradients; NumPy's other modes by
linearity."""

import functools

import numpy as np
import pytest

import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.harness import check_orders, weighted_sum
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

_WIDTHS = ((1, 2), (0, 3))


def _linear(x, **options):
    """Applies numpy.pad as a matrix and a constant, from its results for unit vectors."""
    size = x.numel()
    pad = functools.partial(np.pad, **options)
    constant = pad(np.zeros(x.shape))
    units = np.eye(size).reshape(size, *x.shape)
    columns = np.stack([pad(unit) - constant for unit in units], -1)
    return torch.as_tensor(columns) @ x.reshape(size) + torch.as_tensor(constant)


def _pad(x, options):
    return F.pad(x, **options)


def _case(name, shape, **options):
    return row(
        name,
        functools.partial(_pad, options=options),
        functools.partial(_linear, **options),
        shape,
    )


TABLE = [
    row(
        "pad constant torch",
        lambda x: F.pad(x, _WIDTHS, "constant", constant_values=1.5),
        lambda x: torch.nn.functional.pad(x, (0, 3, 1, 2), value=1.5),
        (2, 3),
    ),
    *[
        row(
            f"pad {mode} torch",
            lambda x, mode=mode: F.pad(x, ((0, 0), (0, 0), (2, 1), (1, 2)), mode),
            lambda x, to=to: torch.nn.functional.pad(x, (1, 2, 2, 1), to),
            (2, 1, 3, 4),
        )
        for mode, to in [("edge", "replicate"), ("reflect", "reflect"), ("wrap", "circular")]
    ],
    _case("pad constant", (2, 3), pad_width=1, mode="constant"),
    _case(
        "pad constants",
        (2, 3),
        pad_width=_WIDTHS,
        mode="constant",
        constant_values=((1, 2), (3, 4)),
    ),
    _case("pad edge", (2, 3), pad_width=_WIDTHS, mode="edge"),
    _case("pad reflect repeatedly", (2, 3), pad_width=((1, 4), (5, 9)), mode="reflect"),
    _case("pad reflect one", (1, 3), pad_width=2, mode="reflect"),
    _case("pad reflect odd", (3, 4), pad_width=(2, 5), mode="reflect", reflect_type="odd"),
    _case("pad symmetric", (2, 3), pad_width=((1, 2), (3, 0)), mode="symmetric"),
    _case("pad symmetric repeatedly", (2,), pad_width=7, mode="symmetric"),
    _case("pad symmetric odd", (2, 3), pad_width=(4, 1), mode="symmetric", reflect_type="odd"),
    _case("pad wrap", (2, 3), pad_width=((1, 1), (2, 7)), mode="wrap"),
    _case("pad mean", (3, 4), pad_width=_WIDTHS, mode="mean"),
    _case("pad mean of some", (3, 4), pad_width=2, mode="mean", stat_length=((1, 2), (3, 9))),
    _case("pad linear_ramp", (3, 4), pad_width=_WIDTHS, mode="linear_ramp"),
    _case("pad linear_ramp to", (3, 2), pad_width=2, mode="linear_ramp", end_values=(1, -2)),
    _case("pad one axis of three", (2, 3, 2), pad_width=((0, 0), (2, 1), (0, 0)), mode="reflect"),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "padding") == set()


@pytest.mark.parametrize("mode", "constant edge reflect symmetric wrap mean linear_ramp".split())
@pytest.mark.parametrize("pad_width", [0, 3, (1, 2), ((2, 1),), ((0, 1), (4, 0), (1, 9))])
def test_values_are_numpys(mode, pad_width):
    x = np.random.randn(3, 1, 4)
    np.testing.assert_allclose(F.pad(x, pad_width, mode).array, np.pad(x, pad_width, mode), 1e-12)


@pytest.mark.parametrize("mode", "constant edge reflect symmetric wrap".split())
def test_integers_and_huge_values_are_moved_as_they_are(mode):
    for x in (np.arange(5), np.array([1e30, -1e30, 1e-30, np.inf], np.float32)):
        y = F.pad(x, 2, mode)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y.array, np.pad(x, 2, mode))


def test_nothing_to_pad():
    assert F.pad(np.zeros((0, 2)), ((0, 0), (1, 1)), "edge").shape == (0, 4)
    assert F.pad(np.zeros((0, 2)), 1, "constant").shape == (2, 4)
    x = Variable(np.zeros(2))
    assert F.pad(x, 0, "wrap").shape == (2,)


WRONG = [
    ((np.zeros(2), -1, "edge"), "pad_width must hold integers", "pad_width: -1"),
    ((np.zeros(2), 0.5, "constant"), "pad_width must hold integers", "pad_width: 0.5"),
    ((np.zeros(2), ((1, 1), (1, 1)), "edge"), "pad_width must be a number, a pair, or 1 pairs"),
    ((np.zeros(2), 1, "constant", {"constant_values": (1, 2, 3)}), "constant_values must be"),
    ((np.zeros(2), 1, "median"), "mode must be one of constant, edge", "not 'median'"),
    ((np.zeros(2), 1, "edge", {"end_values": 1}), "mode 'edge' takes no keyword 'end_values'"),
    ((np.zeros(2), 1, "reflect", {"reflect_type": "strange"}), "'even' or 'odd', not 'strange'"),
    ((np.zeros((2, 0)), 1, "edge"), "axis 1 is empty", "mode 'edge'"),
    ((np.arange(3), 1, "mean"), "for mode 'mean', x must be floating point", "int64"),
]


@pytest.mark.parametrize("arguments, shown", [(a, s) for a, *s in WRONG])
def test_wrong_input(arguments, shown):
    options = arguments[3] if len(arguments) > 3 else {}
    with pytest.raises((InvalidType, ValueError)) as caught:
        F.pad(*arguments[:3], **options)
    message = str(caught.value)
    assert message.startswith("pad: ")
    for text in shown:
        assert text in message, message


@pytest.mark.parametrize("mode", ["maximum", "minimum"])
@pytest.mark.parametrize("stat_length", [None, 2, ((1, 2), (2, 1))])
def test_extremes_against_numpy_and_differences(mode, stat_length):
    x = np.random.permutation(12).reshape(3, 4) * 0.3
    widths = ((2, 0), (1, 3))
    expected = np.pad(x, widths, mode, stat_length=stat_length)
    y = F.pad(Variable(x), widths, mode, stat_length=stat_length)
    np.testing.assert_array_equal(y.array, expected)
    function = weighted_sum(lambda x: F.pad(x, widths, mode, stat_length=stat_length), [x])
    check_orders(function, [x], orders=1)


@pytest.mark.parametrize("dtype", ["e", "f", "d", "i", "?"])
@pytest.mark.parametrize("value", [0, 1.5, -2, ((3, 3), (3, 3)), ((1, 2), (3, 4))])
@pytest.mark.parametrize("width", [0, 2, ((0, 3), (2, 0))])
def test_constants_are_padded_as_by_numpy(dtype, value, width):
    x = (np.arange(12).reshape(3, 4) - 5).astype(dtype)
    y = F.pad(x.T, width, "constant", constant_values=value).array
    expected = np.pad(x.T, width, "constant", constant_values=value)
    assert y.dtype == expected.dtype
    np.testing.assert_array_equal(y, expected)
