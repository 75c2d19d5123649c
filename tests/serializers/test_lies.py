"""Tests files with wrong or unsuitable content, mostly that they are refused."""

import errno
import functools
import io
import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

import mpchain
import mpchain.links as L
from mpchain.serializers import (
    DamagedFileError,
    DictionarySerializer,
    MissingKeyError,
    SerializationError,
    load_hdf5,
    load_npz,
    load_safetensors,
    open_atomic,
    save_hdf5,
    save_npz,
    save_safetensors,
)

pytestmark = pytest.mark.slow

FORMATS = {
    "npz": (save_npz, load_npz),
    "hdf5": (save_hdf5, load_hdf5),
    "safetensors": (save_safetensors, load_safetensors),
}


class Record:
    def __init__(self, **values):
        self.values = values

    def serialize(self, serializer):
        for key, value in self.values.items():
            self.values[key] = serializer(key, value)


def bytes_of(obj):
    serializer = DictionarySerializer()
    serializer.save(obj)
    return {key: array.tobytes() for key, array in serializer.target.items()}


@pytest.fixture(params=FORMATS)
def format(request):
    if request.param == "hdf5":
        pytest.importorskip("h5py")
    return FORMATS[request.param]


def call(x, link):
    return link(x)


def make(*sizes, seed):
    np.random.seed(seed)
    model = mpchain.ChainList(*map(L.Linear, sizes, sizes[1:]))
    optimizer = mpchain.optimizers.Adam().setup(model)
    optimizer.use_fp32_update()
    optimizer.loss_scaling(scale=1.0)
    x = np.ones((1, sizes[0]), model[0].W.dtype)
    for _ in range(seed):
        optimizer.update(lambda: mpchain.functions.sum(functools.reduce(call, model, x)))
    return model, optimizer


class Trained:
    """A number, a model and its optimizer."""

    def __init__(self, *sizes, seed):
        self.model, self.optimizer = make(*sizes, seed=seed)
        self.epoch = seed

    def serialize(self, serializer):
        self.epoch = serializer("epoch", self.epoch)
        self.model.serialize(serializer["model"])
        self.optimizer.serialize(serializer["optimizer"])


def test_all_that_does_not_fit_is_named_and_nothing_is_overwritten(tmp_path, format):
    save, load = format
    save(tmp_path / "file", Trained(3, 4, 5, 2, seed=1))
    target = Trained(3, 4, 6, 2, seed=2)
    before = bytes_of(target)
    with pytest.raises(SerializationError) as caught:
        load(tmp_path / "file", target)
    assert bytes_of(target) == before
    text = str(caught.value)
    assert f"{tmp_path}/file: 'model/1/W' has shape (5, 4) in the file but (6, 4) in the" in text
    assert "'model/1/b' has shape (5,)" in text
    assert "'model/2/W' has shape (2, 5)" in text
    assert "'optimizer/1/W/m' has shape (5, 4)" in text
    assert "'model/0/W'" not in text


@pytest.mark.parametrize("n_steps", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nothing_is_overwritten_where_arrays_are_missing(tmp_path, format, dtype, n_steps):
    save, load = format
    with mpchain.using_config("dtype", np.dtype(dtype)):
        save(tmp_path / "file", Trained(3, 4, 5, seed=n_steps))
        target = Trained(3, 4, 5, 2, seed=2)
    before = bytes_of(target)
    assert ("optimizer/0/W/fp32_param" in before) == (dtype == np.float16)
    with pytest.raises(MissingKeyError, match="missing: model/2/W, model/2/b"):
        load(tmp_path / "file", target)
    assert bytes_of(target) == before
    assert [p.update_rule.t for p in target.model.params()] == [2] * 6


@pytest.mark.parametrize(("old", "new"), [(0, 2), (2, 0), (1, 2)])
def test_an_optimizer_may_have_states_that_the_file_lacks_and_conversely(
    tmp_path, format, old, new
):
    save, load = format
    saved, target = Trained(3, 4, seed=old), Trained(3, 4, seed=new)
    save(tmp_path / "file", saved)
    load(tmp_path / "file", target)
    assert bytes_of(target) == bytes_of(saved)
    assert target.optimizer.t == old


def test_damage_is_told_from_what_does_not_fit(tmp_path, format):
    save, load = format
    save(tmp_path / "file", Record(x=np.arange(100.0)))
    content = (tmp_path / "file").read_bytes()
    with pytest.raises(SerializationError, match="has shape") as caught:
        load(tmp_path / "file", Record(x=np.zeros(3)))
    assert not isinstance(caught.value, DamagedFileError)
    (tmp_path / "file").write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedFileError, match="file"):
        load(tmp_path / "file", Record(x=np.zeros(3)))


def test_a_damaged_shape_is_damage(tmp_path):
    save_npz(tmp_path / "file", Record(x=np.arange(100.0)))
    content = (tmp_path / "file").read_bytes()
    (tmp_path / "file").write_bytes(content.replace(b"(100,)", b"(50,2)"))
    with pytest.raises(DamagedFileError, match="array 'x' cannot be read: Bad CRC-32"):
        load_npz(tmp_path / "file", Record(x=np.zeros(100)))


class Trouble(io.BytesIO):
    """A file that the system cannot read before some position."""

    def __init__(self, content, number, limit):
        super().__init__(content)
        self._number, self._limit = number, limit

    def read(self, size=-1):
        if self.tell() < self._limit:
            raise OSError(self._number, os.strerror(self._number))
        return super().read(size)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOMEM])
@pytest.mark.parametrize("part", [0.5, 2])
@pytest.mark.parametrize("name", ["npz", "safetensors"])
def test_an_error_of_the_system_is_not_taken_for_damage(tmp_path, name, number, part):
    save, load = FORMATS[name]
    save(tmp_path / "file", Record(x=np.arange(100.0)))
    content = (tmp_path / "file").read_bytes()
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        load(Trouble(content, number, len(content) * part), Record(x=np.zeros(100)))
    assert caught.value.errno == number


# Sizes


def peak_of(load, path, obj, match):
    """Loads a file that must be refused; returns the largest number of allocated bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(SerializationError, match=match):
            load(path, obj)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


MEBIBYTE = 1 << 20
# The array is large enough to be noticed, and small enough to be made quickly.
LARGE = 64 * MEBIBYTE


def write_member(path, name, header, n_bytes):
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open(name + ".npy", "w") as member,
    ):
        text = repr(header).encode() + b"\n"
        member.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        for _ in range(n_bytes // MEBIBYTE):
            member.write(bytes(MEBIBYTE))


@pytest.mark.parametrize(
    ("shape", "value", "match"),
    [
        ((LARGE,), np.zeros(8, "u1"), rf"'x' has shape \({LARGE},\) in the file but \(8,\)"),
        (
            (8,),
            np.zeros(8, "u1"),
            "array 'x' cannot be read: the member has .* bytes, but must have",
        ),
        ((LARGE,), 5, rf"'x' has shape \({LARGE},\) in the file but is a int here"),
    ],
)
def test_a_compressed_npz_is_not_inflated_beyond_what_the_object_has(tmp_path, shape, value, match):
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    write_member(tmp_path / "file", "x", header, LARGE)
    assert (tmp_path / "file").stat().st_size < MEBIBYTE
    assert peak_of(load_npz, tmp_path / "file", Record(x=value), match) < 8 * MEBIBYTE


def test_what_nothing_asks_for_is_not_held_in_memory(tmp_path):
    header = {"descr": "|u1", "fortran_order": False, "shape": (LARGE,)}
    np.savez(tmp_path / "file.npz", x=np.arange(8))
    write_member(tmp_path / "file.npz", "other", header, LARGE)
    target = Record(x=np.zeros(8, int), y=0)
    match = "missing: y; arrays that are not requested: other"
    assert peak_of(load_npz, tmp_path / "file.npz", target, match) < 8 * MEBIBYTE
    target = Record(x=np.zeros(8, int))
    tracemalloc.start()
    load_npz(tmp_path / "file.npz", target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MEBIBYTE
    np.testing.assert_array_equal(target.values["x"], np.arange(8))


@pytest.mark.parametrize("options", [{}, {"chunks": (MEBIBYTE,), "compression": 9}])
@pytest.mark.parametrize("asked", ["as array", "as number", "not", "as anything"])
def test_a_small_hdf5_file_does_not_become_large(tmp_path, options, asked):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "file", "w") as file:
        # A data set without values needs no space.
        file.create_dataset("x", (LARGE,), "u1", **options)
        file["y"] = 1
    values = {"as array": np.zeros(8, "u1"), "as number": 5, "as anything": None}
    target = Record(**({"x": values[asked]} if asked in values else {}), z=0)
    peak = peak_of(load_hdf5, tmp_path / "file", target, "file: ")
    assert peak < 8 * MEBIBYTE


# Content


def npz_of(path, *members):
    """Writes an archive of members, each a pair of name and value."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            with archive.open(name + ".npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(content))


def test_a_name_twice_is_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        npz_of(tmp_path / "file", ("x", 1), ("x", 2))
    with pytest.raises(DamagedFileError, match="file has two arrays named 'x'"):
        load_npz(tmp_path / "file", Record(x=0))


@pytest.mark.parametrize("shape", [(-1, 3), (2, -3), (True, 6)])
def test_a_shape_that_is_none_is_refused(tmp_path, shape):
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    text = repr(header).encode() + b"\n"
    with zipfile.ZipFile(tmp_path / "npz", "w") as archive:
        start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        archive.writestr("x.npy", start + bytes(24))
    text = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, 24]}}).encode()
    (tmp_path / "safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
    for name in ("npz", "safetensors"):
        for value in (None, np.zeros((2, 3), "f")):
            with pytest.raises(DamagedFileError, match=r"'x' cannot be read: .* is not a shape"):
                FORMATS[name][1](tmp_path / name, Record(x=value))


class Picky:
    """An object that assumes that its arguments are right."""

    def __init__(self):
        self.weight = np.zeros(3)

    def serialize(self, serializer):
        self.limit = 5 // serializer("divisor", 1)
        self.setting = json.loads(serializer("setting", '{"a": 1}'))["a"]
        self.weight = serializer("weight", self.weight)


@pytest.mark.parametrize(
    ("entry", "error"),
    [({"divisor": 0}, "ZeroDivisionError"), ({"setting": "{"}, "JSONDecodeError"),
     ({"setting": "[1]"}, "TypeError"), ({"setting": "{}"}, "KeyError: 'a'")],
)  # fmt: skip
def test_what_an_object_cannot_take_is_one_message_with_file_and_entry(
    tmp_path, format, entry, error
):
    save, load = format
    values = {"divisor": 1, "setting": '{"a": 2}', "weight": np.ones(3)} | entry
    save(tmp_path / "file", Record(**values))
    (name,) = entry
    with pytest.raises(
        SerializationError, match=rf"{tmp_path}/file: '{name}' cannot be restored: {error}"
    ):
        load(tmp_path / "file", Picky())


def test_a_failure_to_write_names_the_file(tmp_path):
    def fail(file, filename=None):
        raise OSError(errno.ENOSPC, "No space left on device", filename)

    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/file'") as caught:
        with open_atomic(tmp_path / "file") as file:
            fail(file)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space left on device: 'another'"):
        with open_atomic(tmp_path / "file") as file:
            fail(file, "another")
