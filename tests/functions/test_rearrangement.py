"""Tests views, reordering and copies of elements, and functions that join or split arrays."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
from mpchain import Variable
from mpchain.utils.type_check import InvalidType
from tests.functions.table import checks_of, row, uncovered
from tests.reference import torch

pytestmark = pytest.mark.slow


def _torch_rollaxis(x, axis, start):
    places = np.rollaxis(np.arange(x.numel()).reshape(x.shape), axis, start)
    return x.reshape(-1)[torch.as_tensor(places.copy())]


def _torch_depth2space(x, r):
    n, c, h, w = x.shape
    y = torch.zeros(n, c // r**2, h * r, w * r, dtype=x.dtype)
    for i in range(r):
        for j in range(r):
            first = (i * r + j) * (c // r**2)
            y[:, :, i::r, j::r] = x[:, first : first + c // r**2]
    return y


def _torch_space2depth(x, r):
    return torch.cat([x[:, :, i::r, j::r] for i in range(r) for j in range(r)], 1)


def _torch_transpose_sequence(*xs):
    return tuple(torch.stack([x[t] for x in xs if len(x) > t]) for t in range(len(xs[0])))


TABLE = [
    row("concat", lambda *xs: F.concat(xs, 1), lambda *xs: torch.cat(xs, 1), (2, 1), (2, 3)),
    row(
        "split_axis",
        lambda x: F.split_axis(x, [1, 1, 3], 1),
        lambda x: tuple(torch.tensor_split(x, [1, 1, 3], 1)),
        (2, 5),
    ),
    row("expand_dims", lambda x: F.expand_dims(x, -2), lambda x: x.unsqueeze(-2), (3, 4)),
    row("expand_dims first", lambda x: F.expand_dims(x, 0), lambda x: x.unsqueeze(0), (3,)),
    row("squeeze", F.squeeze, torch.squeeze, (1, 3, 1, 2)),
    row("squeeze axis", lambda x: F.squeeze(x, -2), lambda x: x.squeeze(2), (1, 3, 1, 2)),
    row("squeeze axes", lambda x: F.squeeze(x, (0, 2)), torch.squeeze, (1, 3, 1, 2)),
    row("squeeze no axes", lambda x: F.squeeze(x, ()), lambda x: x.clone(), (1, 3)),
    row("flatten", F.flatten, torch.flatten, (2, 3, 4)),
    row("flatten scalar", F.flatten, lambda x: x.reshape(1), ()),
    row("moveaxis", lambda x: F.moveaxis(x, 0, -1), lambda x: x.movedim(0, -1), (2, 3, 4)),
    row(
        "moveaxis several",
        lambda x: F.moveaxis(x, (3, -4), (0, 2)),
        lambda x: x.movedim((3, 0), (0, 2)),
        (2, 3, 4, 2),
    ),
    *[
        row(
            f"rollaxis {axis} {start}",
            lambda x, axis=axis, start=start: F.rollaxis(x, axis, start),
            lambda x, axis=axis, start=start: _torch_rollaxis(x, axis, start),
            (2, 3, 4),
            orders=1,
        )
        for axis, start in [(2, 0), (0, 3), (-1, -2), (1, 1), (0, 2)]
    ],
    row("flip", lambda x: F.flip(x, -1), lambda x: x.flip(-1), (2, 3, 4)),
    row("fliplr", F.fliplr, torch.fliplr, (2, 3, 4)),
    row("flipud", F.flipud, torch.flipud, (3, 2)),
    row("repeat", lambda x: F.repeat(x, 2), lambda x: x.repeat_interleave(2), (3, 2)),
    row("repeat axis", lambda x: F.repeat(x, 3, 1), lambda x: x.repeat_interleave(3, 1), (2, 3, 2)),
    row(
        "repeat each",
        lambda x: F.repeat(x, (2, 0, 1), -2),
        lambda x: x.repeat_interleave(torch.tensor([2, 0, 1]), -2),
        (2, 3, 2),
    ),
    row(
        "repeat tuple of one",
        lambda x: F.repeat(x, (2,), 0),
        lambda x: x.repeat_interleave(2, 0),
        (3, 2),
    ),
    row("repeat none", lambda x: F.repeat(x, 0, 0), lambda x: x[:0], (3, 2), orders=1),
    row("tile", lambda x: F.tile(x, (2, 3)), lambda x: x.repeat(2, 3), (2, 3)),
    row("tile more axes", lambda x: F.tile(x, (2, 1, 2)), lambda x: x.repeat(2, 1, 2), (3,)),
    row("tile fewer axes", lambda x: F.tile(x, 2), lambda x: x.repeat(1, 2), (2, 3)),
    row("copy", lambda x: F.copy(x, x.device), lambda x: x.clone(), (2, 3)),
    row(
        "depth2space",
        lambda x: F.depth2space(x, 2),
        lambda x: _torch_depth2space(x, 2),
        (2, 8, 2, 3),
    ),
    row(
        "space2depth",
        lambda x: F.space2depth(x, 2),
        lambda x: _torch_space2depth(x, 2),
        (2, 3, 4, 2),
    ),
    row(
        "pixel_shuffle",
        lambda x: F.pixel_shuffle(x, 3),
        lambda x: torch.pixel_shuffle(x, 3),
        (1, 18, 2, 1),
    ),
    row(
        "pixel_unshuffle",
        lambda x: F.pixel_unshuffle(x, 2),
        lambda x: torch.pixel_unshuffle(x, 2),
        (2, 3, 4, 2),
    ),
    row(
        "broadcast",
        F.broadcast,
        lambda *xs: tuple(torch.broadcast_tensors(*xs)),
        (3, 1),
        (2,),
        (3, 2),
    ),
    row("broadcast one", F.broadcast, lambda x: (x.clone(),), (3,), orders=1),
    row("stack", lambda *xs: F.stack(xs), lambda *xs: torch.stack(xs), (2, 3), (2, 3), (2, 3)),
    row("stack axis", lambda *xs: F.stack(xs, -1), lambda *xs: torch.stack(xs, -1), (2, 3), (2, 3)),
    row("stack scalars", lambda *xs: F.stack(xs), lambda *xs: torch.stack(xs), (), ()),
    row("separate", F.separate, torch.unbind, (3, 2)),
    row("separate axis", lambda x: F.separate(x, -1), lambda x: torch.unbind(x, -1), (2, 3)),
    row("hstack", lambda *xs: F.hstack(xs), lambda *xs: torch.hstack(xs), (2, 1, 2), (2, 3, 2)),
    row("hstack vectors", lambda *xs: F.hstack(xs), lambda *xs: torch.hstack(xs), (2,), (3,)),
    row("hstack scalars", lambda *xs: F.hstack(xs), lambda *xs: torch.hstack(xs), (), ()),
    row("vstack", lambda *xs: F.vstack(xs), lambda *xs: torch.vstack(xs), (2, 3), (1, 3)),
    row("vstack vectors", lambda *xs: F.vstack(xs), lambda *xs: torch.vstack(xs), (3,), (3,)),
    row("vstack scalars", lambda *xs: F.vstack(xs), lambda *xs: torch.vstack(xs), (), ()),
    row("dstack", lambda *xs: F.dstack(xs), lambda *xs: torch.dstack(xs), (2, 3, 1), (2, 3, 2)),
    row("dstack matrices", lambda *xs: F.dstack(xs), lambda *xs: torch.dstack(xs), (2, 3), (2, 3)),
    row("dstack vectors", lambda *xs: F.dstack(xs), lambda *xs: torch.dstack(xs), (2,), (2,)),
    row(
        "pad_sequence",
        lambda *xs: F.pad_sequence(xs),
        lambda *xs: torch.nn.utils.rnn.pad_sequence(xs, batch_first=True),
        (2, 3),
        (4, 3),
        (1, 3),
    ),
    row(
        "pad_sequence length",
        lambda *xs: F.pad_sequence(xs, 5, -1.5),
        lambda *xs: torch.stack(
            [torch.nn.functional.pad(x, (0, 5 - len(x)), value=-1.5) for x in xs]
        ),
        (2,),
        (0,),
        (5,),
    ),
    row(
        "transpose_sequence",
        lambda *xs: F.transpose_sequence(xs),
        _torch_transpose_sequence,
        *[(n, 2) for n in (3, 2, 2, 1)],
    ),
    row(
        "transpose_sequence empty ones",
        lambda *xs: F.transpose_sequence(xs),
        lambda x, *xs: _torch_transpose_sequence(x + sum(map(torch.sum, xs[1:])), xs[0]),
        (3,),
        (1,),
        (0,),
        (0,),
    ),
]
test_value_and_gradient, test_derivatives, test_non_contiguous = checks_of(TABLE)


def test_every_declaration_is_in_the_table():
    assert uncovered(TABLE, "rearrangement", "joining") <= {"cut_sequences"}


# Outputs that nothing depends on, views, devices.


@pytest.mark.parametrize("function", [F.separate, lambda x: F.transpose_sequence([x, x[:2]])])
def test_outputs_without_a_gradient_count_as_zero(function):
    x = Variable(np.arange(1.0, 7.0).reshape(3, 2))
    ys = function(x)
    (gx,) = mpchain.grad([F.sum(ys[1] ** 2)], [x], enable_double_backprop=True)
    expected = np.zeros((3, 2))
    expected[1] = 2 * x.array[1] * (1 if ys[1].ndim == 1 else 2)
    np.testing.assert_array_equal(gx.array, expected)
    (ggx,) = mpchain.grad([F.sum(gx)], [x])
    np.testing.assert_array_equal(ggx.array, expected / x.array)


def test_views_are_views():
    x = Variable(np.zeros((2, 1, 3)))
    for y in [F.expand_dims(x, 0), F.squeeze(x), F.flatten(x), F.moveaxis(x, 0, 2), F.flip(x, 0)]:
        assert np.shares_memory(y.array, x.array)


def test_a_copy_is_a_copy(device):
    x = Variable(np.arange(3.0, dtype=np.float32))
    for source, destination in [("@numpy", device), (device, "@numpy"), (device, device)]:
        x.to_device(source)
        y = F.copy(x, destination)
        assert y.device == mpchain.get_device(destination) and y.array is not x.array
        y.grad = mpchain.get_device(destination).send(np.array([1, 2, 3], np.float32))
        x.cleargrad()
        y.backward()
        assert mpchain.backend.get_device_from_array(x.grad) == x.device
        np.testing.assert_array_equal(mpchain.cuda.to_cpu(x.grad), [1, 2, 3])


def test_inverse_pairs():
    x = np.random.randn(2, 8, 4, 6)
    np.testing.assert_array_equal(F.space2depth(F.depth2space(x, 2), 2).array, x)
    np.testing.assert_array_equal(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2).array, x)
    np.testing.assert_array_equal(F.stack(F.separate(x, 2), 2).array, x)
    xs = [np.random.randn(n, 2) for n in (4, 4, 2, 1)]
    for back, one in zip(F.transpose_sequence(F.transpose_sequence(xs)), xs, strict=True):
        np.testing.assert_array_equal(back.array, one)


def test_integers_are_rearranged_too():
    x = np.arange(6).reshape(2, 3)
    for y, expected in [
        (F.flip(x, 1), x[:, ::-1]),
        (F.repeat(x, 2, 0), x.repeat(2, 0)),
        (F.tile(x, 2), np.tile(x, 2)),
        (F.stack([x, x]), np.stack([x, x])),
        (F.pad_sequence([x, x[:1]], padding=7), [x, [x[0], [7, 7, 7]]]),
    ]:
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y.array, expected)


def test_nothing_to_rearrange():
    assert F.transpose_sequence([]) == ()
    assert F.transpose_sequence([np.zeros((0, 2)), np.zeros((0, 2))]) == ()
    assert F.separate(np.zeros((0, 2))) == ()
    empty = np.zeros((0, 3))
    assert F.flip(empty, 0).shape == F.repeat(empty, 2, 0).shape == (0, 3)
    assert F.tile(empty, (2, 2)).shape == (0, 6) and F.stack([empty, empty]).shape == (2, 0, 3)
    assert F.depth2space(np.zeros((0, 4, 2, 2)), 2).shape == (0, 1, 4, 4)
    assert F.pad_sequence([np.zeros(0), np.zeros(0)]).shape == (2, 0)


def test_numpy_finds_them():
    x = Variable(np.arange(6.0).reshape(1, 2, 3))
    for y, expected in [
        (np.expand_dims(x, 1), np.expand_dims(x.array, 1)),
        (np.squeeze(x), x.array[0]),
        (np.moveaxis(x, 0, 2), np.moveaxis(x.array, 0, 2)),
        (np.flip(x, 2), np.flip(x.array, 2)),
        (np.repeat(x, 2, 1), np.repeat(x.array, 2, 1)),
        (np.stack([x, x], 1), np.stack([x.array, x.array], 1)),
    ]:
        assert isinstance(y, Variable)
        np.testing.assert_array_equal(y.array, expected)


# Each wrong input has the function, its arguments, and a part of the message.


def f(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


WRONG = [
    ("expand_dims", (f(2, 3), 3), "axis must be an axis of x", "(2, 3)", "axis: 3"),
    ("expand_dims", (f(2, 3), -4), "axis: -4"),
    ("expand_dims", (f(2), 0.5), "axis: 0.5"),
    ("squeeze", (f(2, 1), 0), "every axis to drop must have size one", "(2, 1)", "axis: 0"),
    ("squeeze", (f(2, 1), (1, 2)), "axis: 2"),
    ("moveaxis", (f(2, 3), 2, 0), "source must be an axis of x", "source: 2"),
    ("moveaxis", (f(2, 3), 0, -3), "destination must be an axis of x", "destination: -3"),
    ("moveaxis", (f(2, 3), (0, 1), 0), "equally many axes", "source: (0, 1)"),
    ("moveaxis", (f(2, 3), (0, -2), (0, 1)), "no axis twice", "source: (0, -2)"),
    ("rollaxis", (f(2, 3), 2), "axis must be an axis of x", "axis: 2"),
    ("rollaxis", (f(2, 3), 0, 3), "start must be an axis of x", "start: 3"),
    ("flip", (f(2, 3), 2), "axis must be an axis of x", "(2, 3)", "axis: 2"),
    ("flip", (f(2, 3), None), "axis: None"),
    ("fliplr", (f(3),), "a must have 2 axes or more", "(3,)"),
    ("flipud", (f(),), "a must have 1 axis or more", "()"),
    ("repeat", (f(2, 3), (1, 2), 1), "one per element of the axis", "(2, 3)", "repeats: (1, 2)"),
    ("repeat", (f(2, 3), -1), "and not negative", "repeats: -1"),
    ("repeat", (f(2, 3), 1, 2), "axis must be an axis of x", "axis: 2"),
    ("tile", (f(2, 3), (1, -1)), "are not negative", "reps: (1, -1)"),
    ("depth2space", (f(2, 3), 2), "with 4 axes", "(2, 3)"),
    ("depth2space", (f(1, 4, 1, 1, dtype=np.int32), 2), "floating point", "int32"),
    ("depth2space", (f(1, 6, 1, 1), 2), "r * r must divide", "(1, 6, 1, 1)", "r: 2"),
    ("depth2space", (f(1, 6, 1, 1), 0), "r must be positive", "r: 0"),
    ("space2depth", (f(1, 1, 4, 3), 2), "r must divide height and width", "(1, 1, 4, 3)"),
    ("pixel_shuffle", (f(1, 6, 1, 1), 2), "r * r must divide", "(1, 6, 1, 1)", "r: 2"),
    ("pixel_unshuffle", (f(1, 6, 3, 2), 2), "r must divide height and width", "(1, 6, 3, 2)"),
    ("pixel_unshuffle", (f(6, 3, 2), 2), "with 4 axes", "(6, 3, 2)"),
    ("broadcast", (f(2), f(3)), "do not broadcast", "(2,)", "(3,)"),
    ("broadcast", (), "args must hold at least one array", "()"),
    ("stack", ([],), "xs must hold at least one array", "[]"),
    ("stack", ([f(2), f(3)],), "all shapes must be equal", "(2,)", "(3,)"),
    ("stack", ([f(2), f(2)], 2), "axis must be an axis of the result", "axis: 2"),
    ("separate", (f(),), "axis must be an axis of x", "()"),
    ("separate", (f(2, 3), 2), "axis must be an axis of x", "axis: 2"),
    ("hstack", ([f(2, 3), f(3, 3)],), "shapes must be equal except along the axis", "(3, 3)"),
    ("hstack", ([],), "xs must hold at least one array", "[]"),
    ("vstack", ([f(3), f(2)],), "shapes must be equal except along the axis", "(1, 2)"),
    ("dstack", ([f(2, 3), f(3, 3)],), "shapes must be equal except along the axis", "(3, 3, 1)"),
    ("pad_sequence", ([f(2), f(3)], 2), "longer than length", "length: 2"),
    ("pad_sequence", ([],), "xs must hold at least one array", "[]"),
    ("pad_sequence", ([f()],), "must have an axis", "()"),
    ("pad_sequence", ([f(2, 1), f(2, 2)],), "except for their lengths", "(2, 2)"),
    ("pad_sequence", ([f(2), f(2, dtype=np.float64)],), "except for their", "float64"),
    ("transpose_sequence", ([f(2), f(3)],), "but xs[1] is longer than xs[0]", "(3,)"),
    ("transpose_sequence", ([f(2, 1), f(2, 2)],), "except for their lengths", "(2, 2)"),
]


@pytest.mark.parametrize(
    "name, arguments, shown",
    [(n, a, s) for n, a, *s in WRONG],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_wrong_input(name, arguments, shown):
    with pytest.raises(InvalidType) as caught:
        getattr(F, name)(*arguments)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    for text in shown:
        assert text in message, message


def test_a_copy_to_nowhere():
    with pytest.raises(ValueError, match="get_device"):
        F.copy(f(2), "@abacus")
