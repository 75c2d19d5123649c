"""Tests bfloat16 arrays in files of every format."""

import importlib

import numpy as np
import pytest

import mpchain
import mpchain.links as L
from mpchain import serializers
from mpchain.distributed import create_communicator, load_checkpoint, save_checkpoint
from mpchain.serializers.npz import write_npz
from mpchain.serializers.safetensors import write_safetensors

BFLOAT16 = mpchain.mixed_bf16.dtype
FORMATS = {
    "npz": (serializers.save_npz, serializers.load_npz),
    "hdf5": (serializers.save_hdf5, serializers.load_hdf5),
    "safetensors": (serializers.save_safetensors, serializers.load_safetensors),
    "checkpoint": (
        lambda path, obj: save_checkpoint(path, obj, create_communicator(), 1),
        lambda path, obj: load_checkpoint(path, obj, create_communicator()),
    ),
}


@pytest.fixture(params=FORMATS)
def functions(request):
    if request.param == "hdf5":
        pytest.importorskip("h5py")
    return FORMATS[request.param]


def _model(dtype, seed):
    """Returns a model with parameters of several shapes and memory orders, and persistent
    values."""
    random = np.random.RandomState(seed)
    model = mpchain.ChainList(L.Linear(3, 2), L.BatchNormalization(3))
    with model.init_scope():
        model.scale = mpchain.Parameter(np.asarray(random.randn(), dtype))
        model.turned = mpchain.Parameter(random.randn(4, 3).astype(dtype).T)
    for param in model[0].params():
        param.array = random.randn(*param.shape).astype(dtype)
    model[0].add_persistent("seen", random.randn(2).astype(dtype))
    return model


def _values(model):
    return [p.array for _, p in sorted(model.namedparams())] + [model[0].seen]


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype("f4"), np.dtype("f2")], ids=str)
@pytest.mark.parametrize("other", [BFLOAT16, np.dtype("f4"), np.dtype("f2")], ids=str)
def test_loading_converts(functions, dtype, other, tmp_path):
    save, load = functions
    saved, loaded = _model(dtype, 0), _model(other, 1)
    save(str(tmp_path / "file"), saved)
    load(str(tmp_path / "file"), loaded)
    for x, y in zip(_values(saved), _values(loaded), strict=True):
        assert y.dtype in (other, np.float32)
        np.testing.assert_array_equal(y, x.astype(y.dtype))


@pytest.mark.parametrize("format", ["npz", "safetensors"])
def test_arrays_are_read_as_they_were_written(format, tmp_path):
    arrays = {"x": np.arange(6).reshape(2, 3).astype(BFLOAT16), "empty": np.zeros((0, 2), BFLOAT16)}
    arrays["nan"] = np.asarray(np.nan, BFLOAT16)
    module = importlib.import_module(f"mpchain.serializers.{format}")
    getattr(module, f"write_{format}")(tmp_path / "file", arrays)
    read = getattr(module, f"read_{format}")(tmp_path / "file")
    for key, array in arrays.items():
        assert read[key].dtype == BFLOAT16 and read[key].shape == array.shape
        assert read[key].tobytes() == array.tobytes()


def test_numpy_sees_the_name_of_the_dtype(tmp_path):
    write_npz(tmp_path / "file", {"x": np.array([1.0], BFLOAT16)})
    with np.load(tmp_path / "file") as file:
        assert file["x"]["bfloat16"].tolist() == [0x3F80]


def test_pytorch_reads_our_safetensors(tmp_path):
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    array = np.linspace(-300, 7, 50).astype(BFLOAT16)
    write_safetensors(tmp_path / "file", {"x": array})
    tensor = library.load_file(tmp_path / "file")["x"]
    assert tensor.dtype == torch.bfloat16
    np.testing.assert_array_equal(tensor.float().numpy(), array.astype(np.float32))
    # Files that PyTorch wrote restore bfloat16 arrays.
    library.save_file({"W": tensor.reshape(5, 10)}, tmp_path / "theirs")
    link = L.Linear(10, 5, nobias=True)
    link.W.array = np.zeros((5, 10), BFLOAT16)
    serializers.load_safetensors(tmp_path / "theirs", link)
    np.testing.assert_array_equal(link.W.array, array.reshape(5, 10))
