"""Tests features of HDF5: save_hdf5, load_hdf5, HDF5Serializer and HDF5Deserializer."""

import subprocess
import sys

import numpy as np
import pytest

from mpchain.serializers import (
    HDF5Deserializer,
    HDF5Serializer,
    MissingKeyError,
    SerializationError,
    load_hdf5,
    save_hdf5,
)

pytestmark = pytest.mark.slow

h5py = pytest.importorskip("h5py")


class Record:
    def __init__(self, **values):
        self.values = values

    def serialize(self, serializer):
        for key, value in self.values.items():
            self.values[key] = serializer(key, value)


def test_the_layout_is_chainers(tmp_path):
    path = tmp_path / "file"
    save_hdf5(path, Record(**{"l1/W": np.ones((2, 3)), "n": 3, "nothing": None, "empty": []}))
    with h5py.File(path) as file:
        assert sorted(file) == ["empty", "l1", "n", "nothing"]
        assert (file["l1/W"].compression, file["l1/W"].compression_opts) == ("gzip", 4)
        np.testing.assert_array_equal(file["l1/W"], np.ones((2, 3)))
        assert file["n"][()] == 3
        assert file["n"].compression is None
        assert file["nothing"].shape is None
        assert file["empty"].shape == (0,)


@pytest.mark.parametrize("compression", [None, 0, 9])
def test_compression(tmp_path, compression):
    array = np.zeros((100, 100))
    save_hdf5(tmp_path / "file", Record(x=array), compression)
    with h5py.File(tmp_path / "file") as file:
        assert file["x"].compression_opts == compression
    target = Record(x=array + 1)
    load_hdf5(tmp_path / "file", target)
    np.testing.assert_array_equal(target.values["x"], array)


def test_large_arrays_in_many_chunks(tmp_path):
    array = np.random.RandomState(0).rand(300, 1000)
    save_hdf5(tmp_path / "file", Record(x=array), compression=1)
    with h5py.File(tmp_path / "file") as file:
        assert file["x"].id.get_num_chunks() > 4
    target = Record(x=None)
    load_hdf5(tmp_path / "file", target)
    np.testing.assert_array_equal(target.values["x"], array)


def test_groups_of_a_users_file(tmp_path):
    """One file contains several objects; children are reached by [] and by keys with slashes."""
    with h5py.File(tmp_path / "file", "w") as file:
        for name in "ab":
            child = HDF5Serializer(file.create_group(name))["child"]
            assert child.compression == 4
            assert child("x/y", name) == name
            child("/z/", 5)
    with h5py.File(tmp_path / "file") as file:
        deserializer = HDF5Deserializer(file["b"])
        assert deserializer["/child/"]("x/y", "") == "b"
        assert deserializer("child/z", 0) == 5


def test_strictness(tmp_path):
    with h5py.File(tmp_path / "file", "w") as file:
        group = file.create_group("g")
        strict, lenient = HDF5Deserializer(group), HDF5Deserializer(group, strict=False)
        for at in (lenient, lenient["none"]["none"]):
            assert at("x", 5) == 5
        with pytest.raises(MissingKeyError, match="there is no dataset 'x' in /g"):
            strict("x", 5)
        with pytest.raises(MissingKeyError, match="no dataset 'x' in a group that does not exist"):
            strict["none"]["none"]("x", 5)


def test_files_of_other_programs(tmp_path):
    """The file has neither seal nor checksums; values without a counterpart are refused by name."""
    path = tmp_path / "file"
    with h5py.File(path, "w") as file:
        file["a/x"] = np.arange(3.0)
        file.create_dataset("chunked", data=np.arange(9), chunks=(2,))
        file["link"] = h5py.SoftLink("/a/x")
        file["other"] = h5py.ExternalLink("elsewhere", "/x")
    target = Record(**{"a/x": np.zeros(3), "chunked": None})
    load_hdf5(path, target)
    np.testing.assert_array_equal(target.values["a/x"], [0, 1, 2])
    np.testing.assert_array_equal(target.values["chunked"], np.arange(9))
    with h5py.File(path, "a") as file:
        file["text"] = "Python string"
    with pytest.raises(SerializationError, match=f"{path}: array 'text' cannot be read: dtype obj"):
        load_hdf5(path, target)


def test_content_of_other_files_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(b"12345678")
    with h5py.File(tmp_path / "file", "w") as file:
        outside = [(str(tmp_path / "secret"), 0, 8)]
        file.create_dataset("x", (8,), np.uint8, external=outside)
    with pytest.raises(SerializationError, match=r"array 'x' .* in other files, which are never"):
        load_hdf5(tmp_path / "file", Record(x=None))
    with (
        h5py.File(tmp_path / "file") as file,
        pytest.raises(SerializationError, match="other files"),
    ):
        HDF5Deserializer(file)("x", None)


def test_a_group_where_an_array_should_be(tmp_path):
    save_hdf5(tmp_path / "file", Record(**{"l1/W": 1}))
    with (
        h5py.File(tmp_path / "file") as file,
        pytest.raises(SerializationError, match="array 'l1' cannot be read: the entry is a group"),
    ):
        HDF5Deserializer(file)("l1", 0)


def test_without_h5py(tmp_path):
    program = (
        "import sys; sys.modules['h5py'] = None; from mpchain.serializers import *\n"
        "for call in (lambda: save_hdf5('x', None), lambda: load_hdf5('x', None),\n"
        "             lambda: HDF5Serializer(None)):\n"
        "    try: call()\n"
        "    except RuntimeError as error: print(error)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    missing = "h5py is not installed: pip install 'mpchain[io]'"
    names = ("save_hdf5", "load_hdf5", "HDF5Serializer")
    assert done.stdout.splitlines() == [f"{name}: {missing}" for name in names]
