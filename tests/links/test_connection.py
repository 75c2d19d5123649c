"""Linear and the convolution family: shapes, values against PyTorch, lazy sizes, training."""

import inspect

import numpy as np
import pytest

from mpchain import links as L
from mpchain.optimizers import SGD
from mpchain.serializers import load_npz, save_npz
from mpchain.variable import Variable

torch = pytest.importorskip("torch", reason="PyTorch is the reference")

# Each case: the link, a lazy one of the same sizes, PyTorch's layer, and the input's shape.
CASES = {
    "Linear": (L.Linear(6, 4), L.Linear(4), torch.nn.Linear(6, 4), (5, 6)),
    "Linear without bias": (
        L.Linear(6, 4, nobias=True),
        L.Linear(None, 4, nobias=True),
        torch.nn.Linear(6, 4, bias=False),
        (5, 6),
    ),
    "Convolution1D": (
        L.Convolution1D(4, 6, 3, stride=2, pad=1, groups=2),
        L.Convolution1D(None, 6, 3, stride=2, pad=1, groups=2),
        torch.nn.Conv1d(4, 6, 3, 2, 1, groups=2),
        (2, 4, 9),
    ),
    "Convolution2D": (
        L.Convolution2D(4, 6, (3, 2), stride=(1, 2), pad=(1, 0), dilate=2, groups=2),
        L.Convolution2D(None, 6, (3, 2), stride=(1, 2), pad=(1, 0), dilate=2, groups=2),
        torch.nn.Conv2d(4, 6, (3, 2), (1, 2), (1, 0), 2, 2),
        (2, 4, 9, 8),
    ),
    "Convolution2D of output and window": (
        L.Convolution2D(3, 6, 3),
        L.Convolution2D(6, 3),
        torch.nn.Conv2d(3, 6, 3),
        (2, 3, 5, 5),
    ),
    "Convolution3D": (
        L.Convolution3D(2, 3, 2, nobias=True),
        L.Convolution3D(None, 3, 2, nobias=True),
        torch.nn.Conv3d(2, 3, 2, bias=False),
        (2, 2, 3, 4, 3),
    ),
    "ConvolutionND": (
        L.ConvolutionND(2, 3, 4, 3),
        L.ConvolutionND(2, None, 4, 3),
        torch.nn.Conv2d(3, 4, 3),
        (2, 3, 5, 5),
    ),
    "Deconvolution1D": (
        L.Deconvolution1D(4, 6, 3, stride=2, groups=2),
        L.Deconvolution1D(None, 6, 3, stride=2, groups=2),
        torch.nn.ConvTranspose1d(4, 6, 3, 2, groups=2),
        (2, 4, 5),
    ),
    "Deconvolution2D": (
        L.Deconvolution2D(4, 6, 3, stride=2, pad=1, outsize=(10, 9)),
        L.Deconvolution2D(None, 6, 3, stride=2, pad=1, outsize=(10, 9)),
        torch.nn.ConvTranspose2d(4, 6, 3, 2, 1, (1, 0)),
        (2, 4, 5, 5),
    ),
    "Deconvolution3D": (
        L.Deconvolution3D(2, 3, 2, nobias=True),
        L.Deconvolution3D(None, 3, 2, nobias=True),
        torch.nn.ConvTranspose3d(2, 3, 2, bias=False),
        (2, 2, 3, 2, 3),
    ),
    "DeconvolutionND": (
        L.DeconvolutionND(2, 3, 4, 3, dilate=2),
        L.DeconvolutionND(2, None, 4, 3, dilate=2),
        torch.nn.ConvTranspose2d(3, 4, 3, dilation=2),
        (2, 3, 5, 5),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    link, lazy, layer, shape = CASES[request.param]
    return link.copy("init"), lazy.copy("copy"), layer, np.random.randn(*shape).astype(np.float32)


def test_parameters_have_the_shapes_of_pytorch(case):
    link, _, layer, _ = case
    expected = {"/W": tuple(layer.weight.shape)}
    if layer.bias is not None:
        expected["/b"] = tuple(layer.bias.shape)
    assert {name: param.shape for name, param in link.namedparams()} == expected
    assert all(param.dtype == np.float32 for param in link.params())
    assert layer.bias is None or not link.b.array.any()


def test_values_and_gradients(case):
    link, _, layer, x = case
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(link.W.array))
        if layer.bias is not None:
            link.b.array[...] = np.random.randn(*link.b.shape)
            layer.bias.copy_(torch.tensor(link.b.array))
    x, torch_x = Variable(x), torch.tensor(x, requires_grad=True)
    y, torch_y = link(x), layer(torch_x)
    tolerance = {"rtol": 1e-4, "atol": 1e-5}  # float32 sums in another order
    np.testing.assert_allclose(y.array, torch_y.detach().numpy(), **tolerance)
    gy = np.random.randn(*y.shape).astype(np.float32)
    y.grad = gy
    y.backward()
    layer.zero_grad()
    torch_y.backward(torch.tensor(gy))
    np.testing.assert_allclose(x.grad, torch_x.grad.numpy(), **tolerance)
    np.testing.assert_allclose(link.W.grad, layer.weight.grad.numpy(), **tolerance)
    if layer.bias is not None:
        np.testing.assert_allclose(link.b.grad, layer.bias.grad.numpy(), **tolerance)


def test_the_first_input_tells_what_was_left_open(case):
    link, lazy, _, x = case
    assert not lazy.W.is_initialized
    assert lazy(x).shape == link(x).shape
    assert lazy.W.shape == link.W.shape


def test_same_values_by_the_same_seed_lazy_or_not(case):
    link, lazy, _, x = case
    np.random.seed(3)
    lazy(x)
    np.random.seed(3)
    link.W.initialize(link.W.shape)
    np.testing.assert_array_equal(lazy.W.array, link.W.array)


def test_a_saved_link_loads_into_a_lazy_one(case, tmp_path):
    link, lazy, _, x = case
    save_npz(tmp_path / "link.npz", link)
    load_npz(tmp_path / "link.npz", lazy)
    np.testing.assert_array_equal(lazy(x).array, link(x).array)


def test_one_step_lowers_the_loss(case):
    link, _, _, x = case
    optimizer = SGD(1e-4).setup(link)

    def loss():
        return ((link(x) - 1) ** 2 + 0).mean()

    before = loss().item()
    optimizer.update(loss)
    assert loss().item() < before


def test_from_params(case):
    link, _, _, x = case
    if type(link).__name__.startswith(("Linear", "Conv", "Deconv")):
        options = {}
        for name, value in link.printable_specs:
            if name in ("stride", "pad", "dilate", "groups", "cover_all", "outsize"):
                options[name] = value
        if "cover_all" not in inspect.signature(type(link)).parameters:
            options.pop("cover_all", None)
        made = type(link).from_params(link.W, link.b, **options)
        np.testing.assert_array_equal(made(x).array, link(x).array)
        assert made.W.array is not link.W.array
        assert repr(made) == repr(link)


def test_repr():
    assert repr(L.Linear(3, 2)) == "Linear(in_size=3, out_size=2, nobias=False)"
    assert repr(L.Linear(2)) == "Linear(in_size=None, out_size=2, nobias=False)"
    assert repr(L.Convolution2D(3, 4, 5, pad=2)) == (
        "Convolution2D(in_channels=3, out_channels=4, ksize=(5, 5), stride=(1, 1), pad=(2, 2), "
        "nobias=False, cover_all=False, dilate=(1, 1), groups=1)"
    )


def test_initial_values():
    W, b = np.arange(6.0).reshape(2, 3), np.arange(2.0)
    link = L.Linear(3, 2, initialW=W, initial_bias=b)
    np.testing.assert_array_equal(link.W.array, W)
    np.testing.assert_array_equal(link.b.array, b)
    assert link.W.dtype == link.b.dtype == np.float32
    assert (L.Convolution2D(3, 2, 3, initialW=0.5, initial_bias=2).W.array == 0.5).all()


def test_linear_keeps_batch_axes():
    x = np.random.randn(2, 3, 4, 5).astype(np.float32)
    link = L.Linear(6)
    y = link(x, n_batch_axes=2)
    assert y.shape == (2, 3, 6) and link.W.shape == (6, 20)
    expected = x.reshape(2, 3, 20) @ link.W.array.T
    np.testing.assert_allclose(y.array, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (
            ValueError,
            "groups=2 must divide out_channels=3",
            lambda: L.Convolution2D(4, 3, 3, groups=2),
        ),
        (
            ValueError,
            "groups=2 must divide in_channels=3",
            lambda: L.Convolution2D(3, 4, 3, groups=2),
        ),
        (
            ValueError,
            r"Convolution2D: x must have 4 axes \(N, C, ...\), but has shape \(2, 3\)",
            lambda: L.Convolution2D(None, 4, 3)(np.ones((2, 3), np.float32)),
        ),
        (
            ValueError,
            r"Deconvolution1D: groups=2 must divide in_channels=3",
            lambda: L.Deconvolution1D(None, 4, 3, groups=2)(np.ones((2, 3, 5), np.float32)),
        ),
        (
            ValueError,
            r"Constant: fill_value of shape \(2, 2\) does not fit .*\(3, 2\)",
            lambda: L.Linear(2, 3, initialW=np.ones((2, 2))),
        ),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "message, call",
    [
        ("linear: W must have as many columns", lambda: L.Linear(3, 2)(np.ones((2, 4), "f"))),
        ("linear: x must have more axes", lambda: L.Linear(2)(np.ones(4, "f"))),
        (
            "convolution_2d: x has 2 channels but W expects 3",
            lambda: L.Convolution2D(3, 2, 1)(np.ones((1, 2, 3, 3), "f")),
        ),
    ],
)
def test_inputs_that_do_not_fit(message, call):
    with pytest.raises(Exception, match=message):
        call()
