"""BatchNormalization: values against PyTorch, averages, fine-tuning, lazy sizes."""

import numpy as np
import pytest

from mpchain import links as L
from mpchain.configuration import mixed16, using_config
from mpchain.serializers import load_npz, save_npz
from mpchain.utils.type_check import InvalidType
from mpchain.variable import Variable


def batch(*shape):
    return np.random.randn(*shape).astype(np.float32)


def test_values_gradients_and_averages_against_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch is the reference")
    link, layer = L.BatchNormalization(3), torch.nn.BatchNorm2d(3, eps=2e-5)
    assert {name: param.shape for name, param in link.namedparams()} == {
        "/beta": (3,),
        "/gamma": (3,),
    }
    link.gamma.array[...] = batch(3)
    link.beta.array[...] = batch(3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(link.gamma.array))
        layer.bias.copy_(torch.tensor(link.beta.array))
    for _ in range(3):
        x = batch(4, 3, 5, 2) * 2 + 1
        gy = batch(4, 3, 5, 2)
        mine, other = Variable(x), torch.tensor(x, requires_grad=True)
        y, torch_y = link(mine), layer(other)
        np.testing.assert_allclose(y.array, torch_y.detach().numpy(), rtol=1e-4, atol=1e-5)
        link.cleargrads()
        layer.zero_grad()
        y.grad = gy
        y.backward()
        torch_y.backward(torch.tensor(gy))
        np.testing.assert_allclose(mine.grad, other.grad.numpy(), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(link.gamma.grad, layer.weight.grad.numpy(), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(link.beta.grad, layer.bias.grad.numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(link.avg_mean, layer.running_mean.numpy(), rtol=1e-4)
    np.testing.assert_allclose(link.avg_var, layer.running_var.numpy(), rtol=1e-4)
    layer.eval()
    with using_config("train", False):
        y = link(x)
    np.testing.assert_allclose(
        y.array, layer(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "size, axis, expected",
    [
        (None, None, (3,)),
        (3, None, (3,)),
        ((3, 2), None, (3, 2)),
        (None, (0, 1), (2,)),
        (None, 0, (3, 2)),
        (None, (0, -1), (3,)),
    ],
)
def test_shape_of_parameters(size, axis, expected):
    link = L.BatchNormalization(size, axis=axis)
    assert link.gamma.is_initialized == (size is not None)
    assert link(batch(4, 3, 2)).shape == (4, 3, 2)
    assert link.gamma.shape == link.beta.shape == expected
    assert link.avg_mean.shape == link.avg_var.shape == expected


def test_fine_tuning_averages_all_batches_alike():
    link = L.BatchNormalization(3)
    link(batch(4, 3))
    link.start_finetuning()
    xs = [batch(4, 3) for _ in range(3)]
    for x in xs:
        link(x, finetune=True)
    assert link.N == 3
    np.testing.assert_allclose(link.avg_mean, np.mean([x.mean(0) for x in xs], 0), rtol=1e-4)
    expected = np.mean([x.var(0, ddof=1) for x in xs], 0)
    np.testing.assert_allclose(link.avg_var, expected, rtol=1e-4)


def test_averages_stay_in_inference_and_in_recomputation():
    link = L.BatchNormalization(3)
    for name, value in (("train", False), ("in_recomputing", True)):
        with using_config(name, value):
            link(batch(4, 3), finetune=True)
    assert link.N == 0 and not link.avg_mean.any() and (link.avg_var == 1).all()


def test_without_gamma_or_beta():
    link = L.BatchNormalization(3, use_gamma=False, use_beta=False)
    assert not list(link.params())
    x = batch(50, 3) * 3 + 2
    y = link(x).array
    np.testing.assert_allclose(y.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(0), 1, rtol=1e-4)
    with using_config("train", False):
        expected = (x - link.avg_mean) / np.sqrt(link.avg_var + 2e-5)
        np.testing.assert_allclose(link(x).array, expected, rtol=1e-4, atol=1e-5)


def test_initial_values_and_dtype():
    link = L.BatchNormalization(
        2,
        dtype=np.float64,
        initial_gamma=np.array([1, 2]),
        initial_beta=3,
        initial_avg_mean=4,
        initial_avg_var=np.array([5, 6]),
    )
    assert link.gamma.array.tolist() == [1, 2] and link.beta.array.tolist() == [3, 3]
    assert link.avg_mean.tolist() == [4, 4] and link.avg_var.tolist() == [5, 6]
    assert link.gamma.dtype == link.beta.dtype == link.avg_mean.dtype == np.float64
    with using_config("dtype", mixed16):
        link = L.BatchNormalization(2)
    assert link.gamma.dtype == link.avg_var.dtype == np.float32


@pytest.mark.parametrize("size", [None, 3])
def test_saving_and_loading(size, tmp_path):
    link = L.BatchNormalization(3)
    x = batch(4, 3)
    link(x, finetune=True)
    save_npz(tmp_path / "link.npz", link)
    loaded = L.BatchNormalization(size)
    load_npz(tmp_path / "link.npz", loaded)
    assert loaded.N == 1
    with using_config("train", False):
        np.testing.assert_array_equal(loaded(x).array, link(x).array)


def test_an_unused_lazy_link_is_saved_and_loaded(tmp_path):
    save_npz(tmp_path / "link.npz", L.BatchNormalization())
    loaded = L.BatchNormalization()
    load_npz(tmp_path / "link.npz", loaded)
    assert loaded.avg_mean is None and not loaded.gamma.is_initialized
    loaded(batch(4, 3))


def test_repr():
    assert repr(L.BatchNormalization(3, use_beta=False)) == (
        "BatchNormalization(size=3, decay=0.9, eps=2e-05, dtype='float32', use_gamma=True, "
        "use_beta=False)"
    )


def test_an_input_of_another_size():
    with pytest.raises(InvalidType, match="batch_normalization: gamma must have shape"):
        L.BatchNormalization(3)(batch(2, 4))
