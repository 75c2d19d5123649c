"""Tests that tangents are the transposes of gradients, with and without a graph."""

import numpy as np
import pytest

import mpchain
from mpchain import backprop, kernels
from mpchain import functions as F
from mpchain.functions.declaring.declaration import registry
from mpchain.functions.fused_attention import fused_attention
from mpchain.kernels.window import Window
from mpchain.transforms import forward
from mpchain.transforms.rules import RULES

IDS = np.array([[2, 0], [1, 2]])
BOXES = np.array([[0.0, 0, 4, 4], [1, 1, 5, 5]])
RANDOM = np.random.RandomState(0)
WINDOW = Window((2,), (1,), (0,), (1,), 1, (3,), (2,))
DROP = kernels.Counters(0, 1, 2, 3, 4, 5), 0.3
WHERE = np.array([True, False, True])


def _call(name, *constants):
    return lambda *xs: registry[name].on(*xs, *constants)


# Each function has the shapes of its arguments. Its gradient is tested, too.
CASES = {
    "arithmetic": (lambda x, y: x * y + x / y - y**2, (2, 3), (3,)),
    "mixed constants": (lambda x: F.where(WHERE, x, 2 * x) ** 3 + F.maximum(x, x * x), (2, 3)),
    "cast": (lambda x: F.cast(F.cast(x, np.float32), np.float64) ** 2, (3,)),
    "dtypes": (lambda x, y: F.exp(x) + y, (2, 3), (3,)),
    "reshape": (lambda x: F.broadcast_to(F.reshape(x, (3, 2)).T, (4, 2, 3)), (2, 3)),
    "copy": (lambda x: F.copy(x, "@numpy"), (3,)),
    "sums": (lambda x: F.sum(x, axis=1) + F.mean(x, axis=1), (2, 3)),
    "cumsum": (lambda x: F.cumsum(x, axis=1), (2, 3)),
    "cumprod": (lambda x: F.cumprod(x, axis=1), (2, 3)),
    "prod": (lambda x: F.prod(x, axis=1), (2, 3)),
    "extrema": (lambda x: F.max(x, axis=1) * F.min(x, axis=(1, 2), keepdims=True)[0], (2, 3, 4)),
    "logsumexp": (lambda x: F.logsumexp(x, axis=(0, 2)), (2, 3, 4)),
    "softmax": (lambda x: F.softmax(x, axis=1) * F.log_softmax(x, axis=0), (2, 3)),
    "scaled_softmax": (_call("scaled_softmax", 1, 0.5), (2, 3)),
    "index": (lambda x: x[1:, ::2] ** 2, (3, 4)),
    "take": (lambda x: F.permutate(x, np.array([2, 0, 1]), axis=1), (2, 3)),
    "take_along": (lambda x: F.sort(x)[0], (2, 3)),
    "scatter_add": (lambda a, b: F.scatter_add(a, (np.array([0, 0]),), b), (3, 2), (2, 2)),
    "flip": (lambda x: F.flip(x, 1), (2, 3)),
    "join": (lambda a, b: F.concat([F.stack([a, a]), F.stack([b, a * b])]), (2, 3), (2, 3)),
    "split": (lambda x: F.split_axis(x, [1], 1)[1] * F.separate(x, 1)[0][:, None], (2, 3)),
    "sequences": (
        lambda a, b: (
            F.concat(F.transpose_sequence([a, b]), axis=0) * F.sum(F.pad_sequence([a, b], 4, 3.0))
        ),
        (3, 2),
        (2, 2),
    ),
    "cut_sequences": (lambda x: F.concat(_call("cut_sequences", (1, 3))(x), axis=0), (2, 3, 2)),
    "pad": (lambda x: F.pad(x, 1, "constant", constant_values=5), (2, 3)),
    "matmul": (lambda a, b: F.matmul(a, b), (2, 3, 4), (4, 2)),
    "einsum": (lambda a, b: F.einsum("ij,kj->ki", a, b), (2, 3), (4, 3)),
    "linear": (lambda x, W, b: F.linear(x, W, b) * F.linear(x, W), (2, 3), (4, 3), (4,)),
    "convolution": (
        lambda x, W, b: F.convolution_2d(x, W, b, 1, 1) * F.convolution_2d(x, W, pad=1),
        (2, 3, 4, 4),
        (2, 3, 3, 3),
        (2,),
    ),
    "deconvolution": (lambda x, W: F.deconvolution_2d(x, W, stride=2), (2, 3, 4, 4), (3, 2, 2, 2)),
    "pooling": (
        lambda x: F.max_pooling_2d(x, 2) + F.average_pooling_2d(x, 2) + F.resize_images(x, (2, 2)),
        (2, 3, 4, 4),
    ),
    "take_from_windows": (_call("take_from_windows", np.array([[[1, 1]]]), WINDOW), (1, 1, 3)),
    "unpooling": (lambda x: F.unpooling_2d(x, 2), (2, 3, 2, 2)),
    "im2col": (lambda x: F.im2col(x, 3, pad=1), (1, 2, 4, 4)),
    "shift": (lambda x: F.shift(x), (1, 9, 4, 4)),
    "boxes": (
        lambda x: F.roi_average_align_2d(x, BOXES, np.zeros(2, np.int32), 2, 1.0, 2),
        (1, 2, 6, 6),
    ),
    "dropout": (
        lambda h, x: registry["drop"].on(x, *DROP) * registry["add_dropped"].on(h, x, *DROP),
        (4, 5),
        (4, 5),
    ),
    "embed_id": (lambda W: F.embed_id(IDS, W), (3, 2)),
    "rotary": (lambda x: F.rotary_embedding(x), (1, 3, 4)),
    "fft": (lambda x, y: sum(F.fft((x, y))), (2, 4), (2, 4)),
    "sparse": (
        lambda d, x: registry["sums_of_rows"].on(d, x, np.array([0, 1]), np.array([1, 0]), 2),
        (2,),
        (2, 3),
    ),
    "lstm": (lambda c, x: sum(F.lstm(c, x)), (2, 3), (2, 12)),
    "gates": (
        lambda x: _call("join_gates", True)(_call("split_gates", 2, True)(x)[::-1]),
        (2, 4),
    ),
    "batch_normalization": (F.batch_normalization, (4, 3, 2), (3,), (3,)),
    "fixed_batch_normalization": (
        lambda x, g, b, m, v: F.fixed_batch_normalization(x, g, b, m, v**2),
        (4, 3),
        (3,),
        (3,),
        (3,),
        (3,),
    ),
    "layer_normalization": (F.layer_normalization, (2, 5), (5,), (5,)),
    "rms_normalization": (F.rms_normalization, (2, 5), (5,)),
    "neighbors": (lambda x: F.local_response_normalization(x, 3, 2.0, 0.5, 0.7), (1, 4, 2)),
    "neighbor sums": (_call("neighbors", 1), (1, 4, 2)),
    "attention": (lambda q, k, v: fused_attention(q, k, v, 0.5, True), *[(1, 2, 3, 4)] * 3),
    "add_and_order": (lambda y, b: registry["add_and_order"].on(y, b), (2, 3, 2, 2, 2), (8,)),
    "with_contiguous_gradient": (_call("with_contiguous_gradient"), (2, 3)),
    "inverse": (lambda x: F.inv(x + 3 * np.eye(3)), (3, 3)),
    "det": (lambda x: F.det(x + 3 * np.eye(3)), (3, 3)),
    "loss": (lambda x: F.softmax_cross_entropy(x, np.array([1, 0])), (2, 3)),
    "forget": (lambda x: F.forget(lambda x: F.exp(x) * x, x), (2, 3)),
}
SEEN = set()
DONE = set()


def _random(shape):
    return mpchain.Variable(RANDOM.normal(size=shape))


def _dot(a, b):
    return sum(F.sum(x * y) for x, y in zip(a, b) if x is not None)


def _check(ys, xs):
    """Checks that <g, J t> equals <J^T g, t>, and that the gradients of both by the arguments are
    equal."""
    SEEN.update(f.label for f, _ in forward.functions_between(ys, set(map(_place, xs))))
    gs, ts = ([_random(v.shape) for v in vs] for vs in (ys, xs))
    gxs = backprop.grad(ys, xs, gs, enable_double_backprop=True)
    expected = _dot(gxs, ts)
    arrays = forward.push(ys, xs, ts, False)
    assert all(t.creator is None for t in arrays)
    tys = forward.push(ys, xs, ts, True)
    for a, b, y in zip(arrays, tys, ys):
        assert a.shape == y.shape and a.dtype == y.dtype == b.dtype
        np.testing.assert_allclose(a.array, b.array, rtol=1e-11, atol=1e-11)
    found = _dot(tys, gs)
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-6, atol=1e-9)
    if not expected.requires_grad or expected.creator is None:
        return
    second, reverse = (
        backprop.grad([v], xs, enable_double_backprop=False) for v in (found, expected)
    )
    for a, b in zip(second, reverse):
        a, b = (0 if v is None else v.array for v in (a, b))
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def _place(x):
    return forward.place(x.node)


@pytest.mark.parametrize("name", CASES)
def test_tangents_are_the_transposes_of_gradients(name):
    f, *shapes = CASES[name]
    xs = [_random(shape) for shape in shapes]
    y = f(*xs)
    _check([y], xs)
    g = _random(y.shape)
    gxs = backprop.grad([y], xs, [g], enable_double_backprop=True)
    _check([gx for gx in gxs if gx is not None], [*xs, g])
    DONE.add(name)


@pytest.mark.parametrize("name", [n for n, (_, *shapes) in CASES.items() if len(shapes) > 1])
def test_a_tangent_of_one_argument_alone(name):
    f, *shapes = CASES[name]
    xs = [_random(shape) for shape in shapes]
    y = f(*xs)
    for x in xs:
        _check([y], [x])


def test_every_rule_was_tested():
    for name in CASES.keys() - DONE:  # other processes of tests may have run these functions
        test_tangents_are_the_transposes_of_gradients(name)
    assert set(RULES) - SEEN == {"multi_node_batch_normalization"}


class _Cut(mpchain.FunctionNode):
    """A function whose gradient is computed on arrays."""

    def forward(self, inputs):
        self.retain_inputs((0,))
        return (inputs[0] ** 2,)

    def backward(self, target_input_indexes, grad_outputs):
        (x,) = self.get_retained_inputs()
        return (mpchain.Variable(2 * x.array * grad_outputs[0].array),)


def test_a_gradient_that_is_cut_has_no_tangent():
    x = np.ones(2)
    with pytest.raises(RuntimeError, match=r"_Cut\.backward cuts the graph of the gradient"):
        mpchain.jvp(lambda x: _Cut().apply((x,))[0], (x,), (x,))


def test_a_tangent_is_no_array_of_the_caller():
    v = np.ones((2, 3))
    with mpchain.no_backprop_mode():
        for f in (F.identity, lambda x: x.T, lambda x: F.flatten(x), lambda x: F.cast(x, "d")):
            _, tangent = mpchain.jvp(f, (v,), (v,))
            assert not np.shares_memory(tangent.array, v)


def test_half_precision_and_bfloat16():
    x = np.linspace(-1, 1, 6).reshape(2, 3)
    for dtype in (np.float16, mpchain.mixed_bf16):
        narrow = mpchain.functions.cast(x, dtype).array
        y, tangent = mpchain.jvp(lambda x: F.tanh(x) * x, (narrow,), (narrow,))
        assert tangent.dtype == y.dtype == narrow.dtype
        wide = mpchain.jvp(lambda x: F.tanh(x) * x, (x,), (x,))[1].array
        np.testing.assert_allclose(tangent.array.astype("f"), wide, atol=0.02)
