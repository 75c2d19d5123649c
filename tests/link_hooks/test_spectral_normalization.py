"""Tests SpectralNormalization."""

import numpy as np
import pytest

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Parameter, Variable
from mpchain.functions.recompute import forget
from mpchain.link_hooks import SpectralNormalization
from tests.functions.harness import check_orders


@pytest.fixture(autouse=True)
def _double_precision():
    with mpchain.using_config("dtype", np.dtype(np.float64)):
        yield


def _weight(*shape):
    return np.random.RandomState(0).randn(*shape)


def _linear(**options):
    return L.Linear(3, 4, initialW=_weight(4, 3), nobias=True).add_hook(
        SpectralNormalization(**options)
    )


@pytest.fixture
def x():
    return np.random.RandomState(1).randn(5, 3)


def _iterated(W, u, eps=1e-6):
    """Makes one power iteration; returns (u, v)."""
    v = W.T @ u
    v = v / (np.linalg.norm(v) + eps)
    u = W @ v
    return u / (np.linalg.norm(u) + eps), v


@pytest.mark.parametrize("factor", [None, 2.0])
def test_one_iteration(x, factor):
    layer = _linear(factor=factor)
    u0 = layer.W_u
    y = layer(x)
    u, v = _iterated(layer.W.array, u0)
    sigma = u @ layer.W.array @ v / (factor or 1)
    np.testing.assert_allclose(y.array, x @ (layer.W.array / sigma).T)
    np.testing.assert_allclose(layer.W_u, u)


def test_gradient_treats_the_vectors_as_constants(x):
    layer = _linear()
    u0, W = layer.W_u, layer.W.array
    F.sum(layer(x) ** 2).backward()
    u, v = _iterated(W, u0)
    sigma = u @ W @ v
    gW = (2 * x @ (W / sigma).T).T @ x  # the gradient is of W / sigma
    expected = gW / sigma - (gW * W).sum() / sigma**2 * np.outer(u, v)
    np.testing.assert_allclose(layer.W.grad, expected)


def _links():
    options = {"nobias": True}
    return {
        "linear": (L.Linear(3, 4, initialW=_weight(4, 3), **options), (2, 3), 0),
        "convolution": (
            L.Convolution2D(2, 3, 3, initialW=_weight(3, 2, 3, 3), **options),
            (2, 2, 5, 5),
            0,
        ),
        "deconvolution": (
            L.Deconvolution2D(2, 3, 3, initialW=_weight(2, 3, 3, 3), **options),
            (2, 2, 4, 4),
            1,
        ),
        "deconvolution_3d": (
            L.Deconvolution3D(2, 3, 2, initialW=_weight(2, 3, 2, 2, 2), **options),
            (2, 2, 3, 3, 3),
            1,
        ),
    }


def _largest_singular_value(W, axis):
    matrix = np.moveaxis(W, axis, 0)
    return np.linalg.svd(matrix.reshape(len(matrix), -1), compute_uv=False)[0]


@pytest.mark.parametrize("kind", _links())
def test_after_many_iterations_the_norm_is_one(kind):
    layer, shape, axis = _links()[kind]
    expected = layer(np.ones(shape)).array / _largest_singular_value(layer.W.array, axis)
    layer.add_hook(SpectralNormalization(n_power_iteration=500))
    assert layer.W_u.shape == (layer.W.shape[axis],)
    np.testing.assert_allclose(layer(np.ones(shape)).array, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", _links())
def test_gradient_is_that_of_the_true_norm(kind):
    """After many iterations, u^T W v has the derivative of the largest singular value."""
    layer, shape, axis = _links()[kind]
    x = np.random.RandomState(2).randn(*shape)
    plain = type(layer).from_params(layer.W.array.copy())
    layer.add_hook(SpectralNormalization(n_power_iteration=500, eps=0))
    F.sum(F.tanh(layer(x))).backward()
    direction = np.random.RandomState(3).randn(*layer.W.shape)
    W = plain.W.array.copy()

    def value(step):
        moved = W + step * direction
        plain.W.array[...] = moved / _largest_singular_value(moved, axis)
        return float(F.sum(F.tanh(plain(x))).array)

    numeric = (value(1e-5) - value(-1e-5)) / 2e-5
    np.testing.assert_allclose((layer.W.grad * direction).sum(), numeric, rtol=1e-6)


def test_every_order_by_the_input(x):
    layer = _linear()

    def function(x):
        with mpchain.using_config("train", False):
            return F.sum(F.tanh(layer(x)))

    check_orders(function, [x], orders=3)


def test_a_penalty_reaches_the_weight(x):
    layer = _linear()
    with mpchain.using_config("train", False):
        u, v = _iterated(layer.W.array, layer.W_u)
        x = Variable(x)
        (gx,) = mpchain.grad([F.sum(F.tanh(layer(x)))], [x], enable_double_backprop=True)
        F.sum(gx * gx).backward()
    W = Parameter(layer.W.array)
    normalized = W / F.sum(W * np.outer(u, v))
    x = Variable(x.array)
    y = F.sum(F.tanh(F.linear(x, normalized)))
    (gx,) = mpchain.grad([y], [x], enable_double_backprop=True)
    F.sum(gx * gx).backward()
    np.testing.assert_allclose(layer.W.grad, W.grad)


def test_iterations_go_on_in_training_only(x):
    layer = _linear()
    u0 = layer.W_u.copy()
    with mpchain.using_config("train", False):
        layer(x)
        np.testing.assert_array_equal(layer.W_u, u0)
    layer(x)
    u1 = layer.W_u.copy()
    layer(x)
    assert (u0 != u1).any() and (u1 != layer.W_u).any()


def test_the_parameter_stays_what_it_is(x):
    layer = _linear()
    W, values = layer.W, layer.W.array.copy()
    seen = []
    layer.add_hook(Spy(seen))
    layer(x)
    assert layer.W is W and list(layer.params()) == [W] and seen[0] is not W
    np.testing.assert_array_equal(W.array, values)


class Spy(mpchain.LinkHook):
    name = "spy"

    def __init__(self, seen):
        self.seen = seen

    def forward_preprocess(self, args):
        self.seen.append(args.link.W)


def test_the_parameter_is_found_again_after_an_error(x):
    layer = _linear()
    W = layer.W
    with pytest.raises(Exception, match="linear"):
        layer(np.ones((5, 7)))
    layer(x)
    assert layer.W is W


def test_gamma(x):
    layer = _linear(use_gamma=True, n_power_iteration=500)
    largest = np.linalg.svd(layer.W.array, compute_uv=False)[0]
    assert dict(layer.namedparams())["/gamma"] is layer.gamma and layer.gamma.shape == ()
    assert isinstance(layer.gamma.array, np.ndarray)
    np.testing.assert_allclose(layer.gamma.array, largest)
    y = layer(x)
    np.testing.assert_allclose(y.array, x @ layer.W.array.T, rtol=1e-5)
    y.grad = np.ones_like(y.array)
    y.backward()
    np.testing.assert_allclose(layer.gamma.grad, (y.array / largest).sum(), rtol=1e-5)


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_link_whose_weight_has_no_shape_yet(kind):
    layer, shape, _ = _links()[kind]
    make = {
        "linear": lambda: L.Linear(None, 4, nobias=True),
        "convolution": lambda: L.Convolution2D(None, 3, 3, nobias=True),
    }[kind]
    late = make().add_hook(SpectralNormalization(use_gamma=True))
    assert late.W_u is None and not late.gamma.is_initialized
    x = np.ones(shape)
    y = late(x)
    early = type(late).from_params(late.W.array).add_hook(SpectralNormalization(use_gamma=True))
    np.testing.assert_allclose(late.gamma.array, early.gamma.array)
    assert y.shape == layer(x).shape and late.W_u.shape == (late.W.shape[0],)
    y.grad = np.ones_like(y.array)
    y.backward()
    assert late.W.grad is not None and late.gamma.grad is not None


def test_what_the_link_got_is_saved_and_restored(x, tmp_path):
    layer = L.Linear(3, 4).add_hook(SpectralNormalization(use_gamma=True))
    layer(x)
    path = tmp_path / "layer.npz"
    mpchain.serializers.save_npz(path, layer)
    restored = L.Linear(None, 4).add_hook(SpectralNormalization(use_gamma=True))
    mpchain.serializers.load_npz(path, restored)
    np.testing.assert_array_equal(restored.W_u, layer.W_u)
    np.testing.assert_array_equal(restored(x).array, layer(x).array)


def test_removing_it(x):
    layer = _linear(use_gamma=True)
    layer.delete_hook("SpectralNormalization")
    assert not hasattr(layer, "W_u") and not hasattr(layer, "gamma")
    assert [name for name, _ in layer.namedparams()] == ["/W"]
    np.testing.assert_allclose(layer(x).array, x @ layer.W.array.T)


def test_another_weight_and_name(x):
    class Product(mpchain.Link):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.V = Parameter(_weight(4, 3))

        def forward(self, x):
            return F.linear(x, self.V)

    hook = SpectralNormalization(n_power_iteration=500, weight_name="V", name="of V")
    layer = Product().add_hook(hook)
    assert list(layer.local_link_hooks) == ["of V"] and hook.vector_name == "V_u"
    largest = np.linalg.svd(layer.V.array, compute_uv=False)[0]
    np.testing.assert_allclose(layer(x).array, x @ layer.V.array.T / largest, rtol=1e-5)


def test_one_hook_for_several_links(x):
    hook = SpectralNormalization()
    a, b = (L.Linear(3, n, initialW=_weight(n, 3)).add_hook(hook) for n in (2, 6))
    assert a.W_u.shape == (2,) and b.W_u.shape == (6,)
    assert a(x).shape == (5, 2) and b(x).shape == (5, 6)
    assert a.W.shape == (2, 3) and b.W.shape == (6, 3)


def test_the_first_vector_comes_from_the_configured_generator():
    vectors = []
    for _ in range(2):
        with mpchain.using_config("rng", np.random.default_rng(7)):
            vectors.append(_linear().W_u)
    np.testing.assert_array_equal(*vectors)


def test_recomputation_uses_the_same_vectors(x):
    """The link is called once more before ``forget`` recomputes the first call."""
    plain, forgetting = _linear(), _linear()
    forgetting.W_u = plain.W_u.copy()
    other = np.random.RandomState(4).randn(5, 3)
    gradients = []
    for layer, call in ((plain, lambda f, x: f(x)), (forgetting, forget)):
        x1 = Variable(x)
        y = F.sum(F.tanh(call(layer, x1)) * call(lambda x, f=layer: f(x), Variable(other)))
        (gx,) = mpchain.grad([y], [x1], enable_double_backprop=True)
        F.sum(gx * gx).backward()
        gradients.append((gx.array, layer.W.grad, layer.W_u))
    for expected, actual in zip(*gradients):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes_and_devices(dtype, device):
    with mpchain.using_config("dtype", np.dtype(dtype)):
        layer = L.Linear(3, 4, nobias=True).to_device(device)
    layer.add_hook(SpectralNormalization(use_gamma=True))
    x = layer.device.send(np.ones((2, 3), dtype))
    y = layer(x)
    F.sum(y).backward()
    assert y.dtype == layer.W.grad.dtype == layer.W_u.dtype == layer.gamma.dtype == dtype
    assert y.device == layer.device


def test_wrong_use(x):
    with pytest.raises(
        ValueError,
        match="SpectralNormalization: n_power_iteration must be at least 1, but is 0",
    ):
        SpectralNormalization(n_power_iteration=0)
    with pytest.raises(
        ValueError, match="SpectralNormalization: weight 'Q' does not exist in Linear"
    ):
        _linear(weight_name="Q")
    with pytest.raises(
        NotImplementedError,
        match="SpectralNormalization cannot be used in a with statement: add it to a link",
    ):
        with SpectralNormalization():
            pass


@pytest.mark.parametrize(
    ("link", "axis", "shape"),
    [
        (L.Convolution2D(3, 2, 3), 0, (2, 27)),
        (L.Deconvolution2D(3, 2, 3), 1, (2, 27)),
        (L.DeconvolutionND(1, 3, 2, 3), 1, (2, 9)),
    ],
    ids=["convolution", "deconvolution_2d", "deconvolution_nd"],
)
def test_the_weight_as_a_matrix(link, axis, shape):
    # The singular values differ, so that the power iteration converges.
    rows = np.random.RandomState(0).randn(*shape) * [[3], [1]]
    link.W.array = rows.reshape(link.W.array.swapaxes(0, axis).shape).swapaxes(0, axis).astype("f")
    hook = SpectralNormalization(n_power_iteration=50)
    link.add_hook(hook)
    assert hook.axis == axis
    matrix = hook.reshape_W(link.W.array)
    np.testing.assert_array_equal(matrix, link.W.array.swapaxes(0, axis).reshape(shape))
    normal = hook.normalize_weight(link)
    assert normal.shape == link.W.shape
    largest = np.linalg.svd(hook.reshape_W(normal).array, compute_uv=False)[0]
    np.testing.assert_allclose(largest, 1, rtol=1e-3)
