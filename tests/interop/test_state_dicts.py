"""Tests sources of weights, names, and mismatches."""

import numpy as np
import pytest

import mpchain
import mpchain.links as L
from mpchain.interop import Tensor, load_state_dict, rule, state_dict
from mpchain.serializer import SerializationError
from mpchain.serializers.safetensors import write_safetensors
from tests.reference import torch


def _model():
    return mpchain.Chain(encoder=mpchain.Chain(l1=L.Linear(3, 2)), out=L.Linear(2, 4))


def _weights(model):
    random = np.random.RandomState(1)
    return {k: random.randn(*v.shape).astype(v.dtype) for k, v in state_dict(model).items()}


def _assert_loaded(model, weights):
    found = state_dict(model)
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value)


def test_safetensors_are_loaded_and_saved(tmp_path):
    model = _model()
    weights = _weights(model)
    write_safetensors(tmp_path / "a.safetensors", weights)
    load_state_dict(model, tmp_path / "a.safetensors")
    _assert_loaded(model, weights)

    loaded = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "a.safetensors")
    assert loaded.keys() == weights.keys()


def test_files_of_torch_are_loaded(tmp_path):
    model = _model()
    weights = _weights(model)
    torch.save({k: torch.from_numpy(v) for k, v in weights.items()}, tmp_path / "a.pt")
    load_state_dict(model, tmp_path / "a.pt")
    _assert_loaded(model, weights)


def test_files_of_torch_with_code_are_refused(tmp_path):
    torch.save(torch.nn.Linear(3, 2), tmp_path / "a.pt")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        load_state_dict(L.Linear(3, 2), tmp_path / "a.pt")
    torch.save([torch.zeros(2)], tmp_path / "b.pt")
    with pytest.raises(SerializationError, match=r"b\.pt must hold a dict of tensors, not list"):
        load_state_dict(L.Linear(3, 2), tmp_path / "b.pt")


def test_files_of_torch_need_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match=r"reading .*a\.pt needs PyTorch, which is not installed"):
        load_state_dict(L.Linear(3, 2), tmp_path / "a.pt")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_values_get_the_dtype_of_the_model(dtype):
    linear = L.Linear(3, 2)
    dtype = getattr(torch, dtype)
    values = {"weight": torch.full((2, 3), 0.5, dtype=dtype), "bias": torch.ones(2, dtype=dtype)}
    load_state_dict(linear, values)
    assert linear.W.dtype == np.float32 and (linear.W.array == 0.5).all()


@pytest.mark.parametrize(
    "names",
    [
        {"encoder": "net", "encoder.l1": "net.0", "out": "net.head.fc"},
        lambda name: name.replace("encoder.l1", "net.0").replace("out", "net.head.fc"),
    ],
)
def test_names_and_prefix_are_mapped(names):
    model = _model()
    options = {"names": names, "prefix": "module."}
    weights = _weights(model)
    renamed = {
        "module.net.0.weight": weights["encoder.l1.weight"],
        "module.net.0.bias": weights["encoder.l1.bias"],
        "module.net.head.fc.weight": weights["out.weight"],
        "module.net.head.fc.bias": weights["out.bias"],
    }
    load_state_dict(model, {**renamed, "head": np.zeros(1)}, **options)
    _assert_loaded(model, weights)
    assert state_dict(model, **options).keys() == renamed.keys()


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_weights_of_each_precision_fit_bfloat16_parameters(name):
    """All precisions can represent 1/4 exactly."""
    with mpchain.using_config("dtype", mpchain.mixed_bf16):
        model = _model()
    dtype = mpchain.get_dtype(name)
    load_state_dict(model, {k: np.full(v.shape, 0.25, dtype) for k, v in state_dict(model).items()})
    assert model.out.W.dtype == mpchain.mixed_bf16.dtype and (model.out.W.array == 0.25).all()


def test_one_error_lists_all_that_does_not_fit_and_nothing_is_loaded():
    model = _model()
    before, weights = state_dict(model), _weights(model)
    weights["out.weight"] = weights["out.weight"].T
    weights["out.bias"] = weights["out.bias"].astype(int)
    weights["more"] = weights.pop("encoder.l1.bias")
    with pytest.raises(SerializationError) as caught:
        load_state_dict(model, weights)
    assert str(caught.value) == (
        "load_state_dict: the tensors do not fit Chain: missing: encoder.l1.bias; unexpected: "
        "more; out.weight has shape (2, 4), not (4, 2); out.bias has the wrong dtype, int64"
    )
    _assert_loaded(model, before)
    weights = before | {"out.bias": "text", "more": np.zeros(1)}
    with pytest.raises(SerializationError, match=r"Chain: out\.bias must be a tensor, not str$"):
        load_state_dict(model, weights, ignore=lambda name: name == "more")


def test_uninitialized_parameters_take_shapes_that_they_can_have():
    weights = {"weight": np.ones((2, 3), np.float32), "bias": np.ones(2, np.float32)}
    with pytest.raises(SerializationError, match=r"has shape \(2, 3\), which Linear cannot have"):
        load_state_dict(L.Linear(None, 5), weights)


class Pair(mpchain.Link):
    """A link with two parameters without arrays, which PyTorch stores as one tensor."""

    def __init__(self):
        super().__init__(a=None, b=None)


@rule(Pair)
def _pair(link):
    return {"weight": Tensor([link.a, link.b])}


def test_several_uninitialized_parameters_are_not_guessed():
    with pytest.raises(SerializationError, match="without arrays: call the model once"):
        load_state_dict(Pair(), {"weight": np.ones((2, 3), np.float32)})


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(ValueError, match="state_dict: two tensors have the name 'x'"):
        state_dict(L.Linear(3, 2), names=lambda name: "x")
