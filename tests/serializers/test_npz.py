"""Tests save_npz, load_npz, DictionarySerializer and NpzDeserializer."""

import contextlib
import io
import math
import pickle
import zipfile
import zlib

import numpy as np
import pytest

import mpchain
from mpchain.serializer import AbstractSerializer, Deserializer, MissingKeyError, Serializer
from mpchain.serializers import (
    DictionarySerializer,
    NpzDeserializer,
    SerializationError,
    load_npz,
    save_npz,
)

pytestmark = pytest.mark.slow


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


def reload(tmp_path, source, target, **options):
    save_npz(tmp_path / "file", source)
    load_npz(tmp_path / "file", target, **options)
    return target.values


VALUES = [
    3,
    -2.5,
    math.inf,
    True,
    "",
    "snow ☃ man",
    b"bytes",
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
def test_values_come_back_with_their_type(tmp_path, value):
    present = None if value is None else type(value)()
    result = reload(tmp_path, Record(x=value), Record(x=present))["x"]
    assert type(result) is type(value)
    assert result == value


def test_none_comes_back_whatever_the_value_was(tmp_path):
    assert reload(tmp_path, Record(x=None), Record(x=1))["x"] is None
    assert reload(tmp_path, Record(x=None), Record(x=np.zeros(3)))["x"] is None


@pytest.mark.parametrize(
    "dtype",
    ["?", "i1", "u8", ">i4", "f2", "f4", "f8", ">f8", "c8", "c16", "U3", "S3", "M8[s]", "m8[D]"],
)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 4), (2, 0, 3)])
@pytest.mark.parametrize("compression", [False, True])
def test_arrays_come_back_bit_for_bit(tmp_path, dtype, shape, compression):
    array = np.random.RandomState(0).randint(0, 2, (*shape, 1)).astype(dtype)[..., 0]
    save_npz(tmp_path / "file", Record(x=array), compression=compression)
    new, same = Record(x=None), Record(x=np.zeros_like(array))
    before = same.values["x"]
    load_npz(tmp_path / "file", new)
    load_npz(tmp_path / "file", same)
    assert same.values["x"] is before
    for result in (new.values["x"], before):
        assert result.dtype == array.dtype
        assert result.shape == array.shape
        assert result.flags.writeable
        np.testing.assert_array_equal(result, array)
    with np.load(tmp_path / "file") as npz:
        np.testing.assert_array_equal(npz["x"], array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::-2],
        np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        np.broadcast_to(np.float32(3), (2, 3)),
    ],
)
def test_arrays_of_any_layout(tmp_path, array):
    result = reload(tmp_path, Record(x=array), Record(x=np.zeros_like(array)))["x"]
    np.testing.assert_array_equal(result, array)


def test_fortran_ordered_files_of_numpy(tmp_path):
    array = np.asfortranarray(np.arange(24.0).reshape(2, 3, 4))
    np.savez(tmp_path / "file.npz", x=array)
    target = Record(x=np.zeros((2, 3, 4)))
    load_npz(tmp_path / "file.npz", target)
    np.testing.assert_array_equal(target.values["x"], array)


def test_large_arrays_pass_in_several_pieces(tmp_path):
    array = np.random.RandomState(0).bytes(3 * 2**20 + 17)
    array = np.frombuffer(array, np.uint8)
    np.testing.assert_array_equal(reload(tmp_path, Record(x=array), Record(x=None))["x"], array)


def test_a_float32_array_takes_float64_values(tmp_path):
    target = np.zeros(3, np.float32)
    reload(tmp_path, Record(x=np.arange(3.0)), Record(x=target))
    np.testing.assert_array_equal(target, [0, 1, 2])


def test_a_number_that_was_an_integer_keeps_its_fraction(tmp_path):
    assert reload(tmp_path, Record(x=0.5), Record(x=0))["x"] == 0.5


def test_variables(tmp_path):
    source = mpchain.Variable(np.arange(3.0, dtype=np.float32))
    target = mpchain.Variable(np.zeros(3, np.float32))
    result = reload(tmp_path, Record(x=source), Record(x=target))["x"]
    assert result is target
    np.testing.assert_array_equal(target.array, [0, 1, 2])


def test_children_have_paths(tmp_path):
    source = Record(a=1, l1=Record(W=np.zeros(2), inner=Record(b=3)))
    serializer = DictionarySerializer()
    serializer.save(source)
    assert list(serializer.target) == ["a", "l1/W", "l1/inner/b"]
    save_npz(tmp_path / "file", source)
    with np.load(tmp_path / "file") as npz:
        assert npz.files == ["a", "l1/W", "l1/inner/b"]


@pytest.mark.parametrize("path", ["l1", "l1/", "/l1/"])
def test_loading_a_part(tmp_path, path):
    save_npz(tmp_path / "file", Record(a=1, l1=Record(W=2, inner=Record(b=3))))
    target = Record(W=0, inner=Record(b=0))
    load_npz(tmp_path / "file", target, path=path)
    assert target.values["W"] == 2
    assert target.values["inner"].values == {"b": 3}


def test_slashes_around_keys_do_not_matter():
    class Object:
        def serialize(self, serializer):
            self.x = serializer["/child/"]("/x", 5)

    serializer = DictionarySerializer(path="root/")
    serializer.save(Object())
    assert list(serializer.target) == ["root/child/x"]
    target = Object()
    NpzDeserializer(serializer.target, path="root").load(target)
    assert target.x == 5


def test_file_objects(tmp_path):
    buffer = io.BytesIO()
    save_npz(buffer, Record(x=1))
    buffer.seek(0)
    target = Record(x=0)
    load_npz(buffer, target)
    assert target.values == {"x": 1}
    with open(tmp_path / "file", "wb") as file:
        save_npz(file, Record(x=2))
    with open(tmp_path / "file", "rb") as file:
        load_npz(file, target)
    assert target.values == {"x": 2}


def test_deserializer_of_a_file_of_numpy(tmp_path):
    np.savez(tmp_path / "file.npz", **{"child/x": 3, "y": "text"})
    target = Record(child=Record(x=0), y="")
    with np.load(tmp_path / "file.npz") as npz:
        NpzDeserializer(npz).load(target)
    assert target.values["child"].values == {"x": 3}
    assert target.values["y"] == "text"


def test_the_same_state_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        save_npz(tmp_path / name, Record(x=np.arange(5), y=None))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_missing_array_is_an_error_that_lists_all(tmp_path):
    save_npz(tmp_path / "file", Record(a=1, l1=Record(W=1), l2=Record(W=1)))
    target = Record(a=0, l1=Record(W=0, b=0), l3=Record(W=0))
    with pytest.raises(MissingKeyError) as caught:
        load_npz(tmp_path / "file", target)
    assert str(caught.value) == (
        f"load_npz: {tmp_path}/file: arrays that are missing: l1/b, l3/W; "
        "arrays that are not requested: l2/W"
    )
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, SerializationError)


def test_a_long_list_of_missing_arrays_is_cut(tmp_path):
    save_npz(tmp_path / "file", Record())
    with pytest.raises(MissingKeyError, match=r": x0, .*, x8, \.\.\.; .* not requested: nothing"):
        load_npz(tmp_path / "file", Record(**{f"x{i}": 0 for i in range(30)}))


def test_programs_may_catch_a_missing_key():
    class Object:
        def serialize(self, serializer):
            try:
                self.x = serializer("new_name", 0)
            except KeyError:
                self.x = serializer("old_name", 0)

    target = Object()
    NpzDeserializer({"old_name": np.array(7)}).load(target)
    assert target.x == 7


def test_what_an_object_can_do_without_is_not_listed_as_missing(tmp_path):
    class Object:
        def serialize(self, serializer):
            serializer("a", 0)
            for name in ("b", "c"):
                with contextlib.suppress(KeyError):
                    serializer(name, 0)
            serializer("d", 0)

    save_npz(tmp_path / "file", Record(a=1, b=1))
    with pytest.raises(MissingKeyError, match=r"that are missing: d; .* not requested: nothing$"):
        load_npz(tmp_path / "file", Object())


def test_missing_arrays_that_are_below_another_path(tmp_path):
    save_npz(tmp_path / "file", Record(updater=Record(model=Record(W=1, b=2), t=3)))
    message = "missing: W, b; .*; all missing arrays are in the file below path='updater/model/'$"
    with pytest.raises(MissingKeyError, match=message):
        load_npz(tmp_path / "file", Record(W=0, b=0))
    with pytest.raises(MissingKeyError, match=r"missing: W, c; .*updater/t$"):
        load_npz(tmp_path / "file", Record(W=0, c=0))


def test_not_strict_keeps_what_is_missing(tmp_path):
    assert reload(tmp_path, Record(a=1), Record(a=0, b=5), strict=False) == {"a": 1, "b": 5}


@pytest.mark.parametrize(
    "names", ["b", lambda name: name == "b", ["b"], [lambda name: name == "b", "c"]]
)
def test_ignored_names(tmp_path, names):
    values = reload(tmp_path, Record(a=1, b=1), Record(a=0, b=5), ignore_names=names)
    assert values == {"a": 1, "b": 5}
    save_npz(tmp_path / "file", Record(a=1))
    with pytest.raises(MissingKeyError, match="arrays that are missing: z;"):
        load_npz(tmp_path / "file", Record(a=0, b=5, z=1), ignore_names=names)


def test_ignored_names_of_a_wrong_type():
    with pytest.raises(ValueError, match=r"ignore_names must be a name, a function .*, not 3"):
        NpzDeserializer({}, ignore_names=3)


@pytest.mark.parametrize(
    ("stored", "present", "message"),
    [
        (np.zeros((3, 4)), np.zeros((4, 3)), r"shape \(3, 4\) in the file but \(4, 3\) in the obj"),
        (np.zeros(1), np.zeros(3), r"shape \(1,\) in the file but \(3,\)"),
        (np.zeros(3), np.zeros(3, int), "dtype float64 in the file but int64 in the object"),
        (np.array(["x"]), np.zeros(1), "dtype <U1 in the file but float64"),
        (np.zeros(3), 1.0, r"shape \(3,\) in the file but is a float here"),
        ("text", 1.0, r"is .*'text'.* in the file but a float here"),
    ],
)
def test_values_that_do_not_fit(tmp_path, stored, present, message):
    message = rf"load_npz: {tmp_path}/file: 'l1/W' .*{message}"
    save_npz(tmp_path / "file", Record(l1=Record(W=stored)))
    with pytest.raises(SerializationError, match=message):
        load_npz(tmp_path / "file", Record(l1=Record(W=present)))


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, [None], 2**100, np.zeros(2, "V4")],
    ids=["object", "dict", "list of None", "2**100", "void"],
)
def test_values_that_cannot_be_saved(tmp_path, value):
    with pytest.raises(TypeError, match="'l1/x' cannot be saved: a value of type"):
        save_npz(tmp_path / "file", Record(l1=Record(x=value)))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file(tmp_path):
    save_npz(tmp_path / "file", Record(x=1))
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(TypeError):
        save_npz(tmp_path / "file", Record(x=1, y=object()))
    assert (tmp_path / "file").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def npz_with(path, key, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(key + ".npy", content)


def pickled(array, protocol):
    """Returns an .npy file with a pickled array, as NumPy 1 wrote it."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "|O", "fortran_order": False, "shape": array.shape}
    )
    data = pickle.dumps(array, protocol=protocol)
    return file.getvalue() + data.replace(b"cnumpy._core.", b"cnumpy.core.")


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_none_in_files_of_chainer(tmp_path, protocol):
    npz_with(tmp_path / "file", "x", pickled(np.array(None), protocol))
    for strict in (True, False):
        target = Record(x=np.zeros(3))
        load_npz(tmp_path / "file", target, strict=strict)
        assert target.values["x"] is None
    with np.load(tmp_path / "file") as npz:
        target = Record(x=1)
        NpzDeserializer(npz).load(target)
        assert target.values["x"] is None


class Bomb:
    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_no_other_pickle_is_loaded(tmp_path, protocol):
    for array in (np.array([None]), np.array(Bomb(), dtype=object), np.array("x", dtype=object)):
        npz_with(tmp_path / "file", "l1/W", pickled(array, protocol))
        with pytest.raises(
            SerializationError, match=r"file: array 'l1/W' .*pickled Python objects"
        ):
            load_npz(tmp_path / "file", Record(l1=Record(W=0)))
    assert not Bomb.exploded


def npy(header):
    """Returns an .npy file with the given header and 4 bytes of data."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"1234"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no npy file at all",
        b"\x93NUMPY\x09\x00v\x00{}",
        b"\x93NUMPY\x01\x00\x0a\x00((((((((((",
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10,)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': ()}"),
        npy("{'descr': 'abacus', 'fortran_order': False, 'shape': ()}"),
    ],
)
def test_members_that_are_no_arrays(tmp_path, content):
    npz_with(tmp_path / "file", "l1/W", content)
    with pytest.raises(SerializationError, match=f"{tmp_path}/file: array 'l1/W' cannot be read"):
        load_npz(tmp_path / "file", Record())


def test_members_that_are_no_npy_files_are_left_out(tmp_path):
    np.savez(tmp_path / "file.npz", x=1)
    with zipfile.ZipFile(tmp_path / "file.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    target = Record(x=0)
    load_npz(tmp_path / "file.npz", target)
    assert target.values == {"x": 1}


def test_files_that_are_no_archives(tmp_path):
    for content in (b"", b"PK", b"text" * 100):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(
            SerializationError, match=f"{tmp_path}/file is not an .npz file, or was trun"
        ):
            load_npz(tmp_path / "file", Record(x=0))
    with pytest.raises(FileNotFoundError):
        load_npz(tmp_path / "missing", Record(x=0))


def test_the_protocol_is_abstract():
    for kind in (AbstractSerializer, Serializer, Deserializer):
        with pytest.raises(NotImplementedError, match=r"does not implement __call__"):
            kind()("key", 1)
        with pytest.raises(NotImplementedError, match=r"does not implement __getitem__"):
            kind()["key"]


@pytest.mark.gpu
def test_gpu_arrays(tmp_path):
    cupy = mpchain.cuda.cupy
    source = Record(x=cupy.arange(6, dtype=np.float32).reshape(2, 3), y=cupy.array(2.0))
    target = Record(x=cupy.zeros((3, 2), np.float32).T, y=cupy.array(0.0))
    before = target.values["x"]
    assert reload(tmp_path, source, target)["x"] is before
    np.testing.assert_array_equal(before.get(), [[0, 1, 2], [3, 4, 5]])
    assert float(target.values["y"]) == 2.0


@pytest.mark.parametrize("compression", [False, True])
def test_checksums_are_those_of_zip_archives(tmp_path, compression):
    x = np.random.RandomState(0).rand(3, 70000).astype("f")
    x[1:] = 0
    save_npz(tmp_path / "file.npz", Record(x=x), compression=compression)
    with zipfile.ZipFile(tmp_path / "file.npz") as archive:
        assert archive.testzip() is None  # zlib's function computes the checksum
        info = archive.getinfo("x.npy")
        assert zlib.crc32(archive.read(info)) == info.CRC
