"""Tests that values are restored from HDF5 and safetensors files."""

import contextlib
import gc
import math
import resource
import signal

import numpy as np
import pytest

import mpchain
import mpchain.links as L
from mpchain.serializers import (
    MissingKeyError,
    SerializationError,
    load_hdf5,
    load_safetensors,
    save_hdf5,
    save_safetensors,
)

pytestmark = pytest.mark.slow

pytest.importorskip("h5py")

FORMATS = {"hdf5": (save_hdf5, load_hdf5), "safetensors": (save_safetensors, load_safetensors)}


class Record:
    """Serializes its values by name; a value that is a record becomes a child."""

    def __init__(self, **values):
        self.values = values

    def serialize(self, serializer):
        for key, value in self.values.items():
            if isinstance(value, Record):
                value.serialize(serializer[key])
            else:
                self.values[key] = serializer(key, value)


@pytest.fixture(params=FORMATS)
def format(request):
    return request.param


@pytest.fixture
def save(format):
    return FORMATS[format][0]


@pytest.fixture
def load(format):
    return FORMATS[format][1]


VALUES = [
    3,
    -2.5,
    math.inf,
    True,
    "",
    "snow ☃ man",
    b"bytes",
    b"",
    1j,
    None,
    [1, 2],
    (1.5, 2.5),
    ["a", "bc"],
    np.float16(0.5),
    np.int64(2**62),
    np.bool_(True),
    np.str_("text"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_with_their_type(tmp_path, save, load, value):
    save(tmp_path / "file", Record(x=value))
    target = Record(x=None if value is None else type(value)())
    load(tmp_path / "file", target)
    assert type(target.values["x"]) is type(value)
    assert target.values["x"] == value


def test_none_comes_back_whatever_the_value_was(tmp_path, save, load):
    save(tmp_path / "file", Record(x=None, y=None))
    target = Record(x=1, y=np.zeros(3))
    load(tmp_path / "file", target)
    assert target.values == {"x": None, "y": None}


DTYPES = "? i1 u1 i2 u2 i4 u4 i8 u8 >i4 f2 f4 f8 >f8 c8 c16 >c8 g U3 >U3 S3 M8[s] m8[D]".split()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 4), (2, 0, 3)])
def test_arrays_come_back_bit_for_bit(tmp_path, save, load, dtype, shape):
    array = np.random.RandomState(0).randint(0, 2, (*shape, 1)).astype(dtype)[..., 0]
    save(tmp_path / "file", Record(x=array))
    new, same = Record(x=None), Record(x=np.zeros_like(array))
    before = same.values["x"]
    load(tmp_path / "file", new)
    load(tmp_path / "file", same)
    assert same.values["x"] is before
    for result in (new.values["x"], before):
        assert (result.dtype, result.shape) == (array.dtype, array.shape)
        assert result.flags.writeable
        np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-2],
        np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        np.broadcast_to(np.float32(3), (2, 3)),
        np.array(["ab", "c"] * 6).reshape(3, 4).T,
    ],
)
def test_arrays_of_any_layout(tmp_path, save, load, array):
    save(tmp_path / "file", Record(x=array))
    target = Record(x=None)
    load(tmp_path / "file", target)
    np.testing.assert_array_equal(target.values["x"], array)


def test_nan_payloads_and_denormals_survive(tmp_path, save, load):
    array = np.array([0x7FF8000000000123, 1, 1 << 63], np.uint64).view(np.float64)
    save(tmp_path / "file", Record(x=array))
    target = Record(x=None)
    load(tmp_path / "file", target)
    assert target.values["x"].tobytes() == array.tobytes()


def test_a_model_and_its_optimizer(tmp_path, save, load):
    def make():
        model = mpchain.Sequential(L.Linear(3, 4), L.BatchNormalization(4), L.Linear(4, 2))
        return model, mpchain.optimizers.Adam().setup(model)

    np.random.seed(0)
    model, optimizer = make()
    for seed in range(3):
        x = np.random.RandomState(seed).rand(5, 3).astype(np.float32)
        optimizer.update(lambda x: mpchain.functions.sum(model(x) ** 2), x)
    save(tmp_path / "model", model)
    save(tmp_path / "optimizer", optimizer)
    new_model, new_optimizer = make()
    load(tmp_path / "model", new_model)
    load(tmp_path / "optimizer", new_optimizer)
    assert new_optimizer.t == 3
    for old, new in zip(model.params(), new_model.params(), strict=True):
        np.testing.assert_array_equal(new.array, old.array)
        for key in ("m", "v"):
            np.testing.assert_array_equal(new.update_rule.state[key], old.update_rule.state[key])
    assert new_model[1].N == model[1].N
    np.testing.assert_array_equal(new_model[1].avg_var, model[1].avg_var)


def test_missing_values_are_listed(tmp_path, save, load, format):
    save(tmp_path / "file", Record(l1=Record(W=1), l2=Record(W=2)))
    message = (
        f"load_{format}: {tmp_path}/file: arrays that are missing: l1/b, l3/W; "
        "arrays that are not requested: l2/W"
    )
    with pytest.raises(MissingKeyError) as caught:
        load(tmp_path / "file", Record(l1=Record(W=0, b=0), l3=Record(W=0)))
    assert str(caught.value) == message


def test_values_that_do_not_fit(tmp_path, save, load, format):
    save(tmp_path / "file", Record(l1=Record(W=np.zeros((3, 4)))))
    message = rf"load_{format}: {tmp_path}/file: 'l1/W' has shape \(3, 4\) in the file but \(4,\)"
    with pytest.raises(SerializationError, match=message):
        load(tmp_path / "file", Record(l1=Record(W=np.zeros(4))))


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, [None], 2**100, np.zeros(2, "V4")],
    ids=["object", "dict", "list of None", "2**100", "void"],
)
def test_values_that_cannot_be_saved(tmp_path, save, value):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(TypeError, match="'l1/x' cannot be saved: a value of type"):
        save(tmp_path / "file", Record(l1=Record(x=value)))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.fixture
def full_disk():
    """Returns a context manager in which no file can grow beyond 64 KiB."""

    @contextlib.contextmanager
    def context():
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)

    return context


def test_a_full_disk_leaves_the_old_file_and_later_ones_can_be_written(
    tmp_path, save, load, full_disk
):
    large = Record(**{f"x{i}": np.random.RandomState(i).rand(10_000) for i in range(10)})
    save(tmp_path / "file", Record(x=1))
    with full_disk(), pytest.raises(OSError, match="File too large"):
        save(tmp_path / "file", large)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    target = Record(x=0)
    load(tmp_path / "file", target)
    assert target.values == {"x": 1}
    for i in range(3):  # the HDF5 library would crash here if it had noticed the failure
        save(tmp_path / f"file{i}", large)
    gc.collect()
    load(tmp_path / "file2", large)


@pytest.mark.parametrize("content", [b"", b"PK", b"text" * 1000])
def test_files_of_another_kind(tmp_path, load, format, content):
    (tmp_path / "file").write_bytes(content)
    kind = {"hdf5": "an HDF5", "safetensors": "a safetensors"}[format]
    with pytest.raises(SerializationError, match=f"{tmp_path}/file is not {kind} file, or "):
        load(tmp_path / "file", Record(x=0))
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing", Record(x=0))


def test_an_object_without_values(tmp_path, save, load):
    save(tmp_path / "file", Record())
    load(tmp_path / "file", Record())
    with pytest.raises(MissingKeyError, match="missing: x; arrays that are not requested: nothing"):
        load(tmp_path / "file", Record(x=0))


@pytest.mark.gpu
def test_gpu_arrays(tmp_path, save, load):
    cupy = mpchain.cuda.cupy
    source = Record(x=cupy.arange(6, dtype=np.float32).reshape(2, 3), y=cupy.array(2.0))
    target = Record(x=cupy.zeros((3, 2), np.float32).T, y=cupy.array(0.0))
    before = target.values["x"]
    save(tmp_path / "file", source)
    load(tmp_path / "file", target)
    assert target.values["x"] is before
    np.testing.assert_array_equal(before.get(), [[0, 1, 2], [3, 4, 5]])
    assert float(target.values["y"]) == 2.0
