"""Tests save_safetensors and load_safetensors, together with the library safetensors."""

import io
import json
import zlib

import numpy as np
import pytest

from mpchain.serializers import SerializationError, load_safetensors, save_safetensors
from mpchain.serializers.safetensors import read_safetensors, write_safetensors

DTYPES = "? i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8".split()


class Record:
    def __init__(self, **values):
        self.values = values

    def serialize(self, serializer):
        for key, value in self.values.items():
            self.values[key] = serializer(key, value)


def arrays():
    random = np.random.RandomState(0)
    made = {f"l/{dtype}": random.randint(0, 100, (3, 5)).astype(dtype) for dtype in DTYPES}
    return made | {"ünïcode": np.float32(3), "empty": np.zeros((0, 4), np.float16)}


def equal(actual, expected):
    assert actual.keys() == expected.keys()
    for key, array in expected.items():
        assert (actual[key].dtype, actual[key].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(actual[key], array)


def test_the_library_reads_our_files(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    write_safetensors(tmp_path / "file", arrays())
    equal(library.load_file(tmp_path / "file"), arrays())


def test_the_library_reads_files_with_dtypes_of_numpy(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    save_safetensors(tmp_path / "file", Record(text="snow ☃", nothing=None, z=1j, x=np.ones(3)))
    loaded = library.load_file(tmp_path / "file")
    np.testing.assert_array_equal(loaded["x"], np.ones(3))
    assert loaded["text"].tobytes().decode("utf-32-le") == "snow ☃"
    assert loaded["nothing"].shape == (0,)


def test_we_read_the_librarys_files(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    tensors = {key: np.asarray(array) for key, array in arrays().items()}
    library.save_file(tensors, tmp_path / "file", metadata={"format": "np"})
    equal(read_safetensors(tmp_path / "file"), arrays())
    library.save_file({}, tmp_path / "file")
    assert read_safetensors(tmp_path / "file") == {}


def test_bfloat16_of_pytorch_becomes_float32(tmp_path):
    torch = pytest.importorskip("torch")
    library = pytest.importorskip("safetensors.torch")
    tensor = torch.linspace(-300, 7, 50).to(torch.bfloat16)
    library.save_file({"x": tensor, "z": torch.tensor([1 + 2j])}, tmp_path / "file")
    loaded = read_safetensors(tmp_path / "file")
    assert loaded["x"].dtype == np.float32
    np.testing.assert_array_equal(loaded["x"], tensor.to(torch.float32).numpy())
    np.testing.assert_array_equal(loaded["z"], np.array([1 + 2j], np.complex64))


def test_arrays_are_aligned():
    file = io.BytesIO()
    write_safetensors(file, {"a": np.zeros(3, np.int8), "b": np.zeros(3), "c": np.zeros(1, "f4")})
    length = int.from_bytes(file.getvalue()[:8], "little")
    header = json.loads(file.getvalue()[8 : 8 + length])
    assert length % 8 == 0
    assert header["b"]["data_offsets"] == [0, 24]
    assert header["c"]["data_offsets"] == [24, 28]
    assert header["a"]["data_offsets"] == [28, 31]


def test_file_objects_paths_and_ignored_names(tmp_path):
    file = io.BytesIO()
    save_safetensors(file, Record(**{"model/a": 1, "model/b": 2}))
    file.seek(0)
    target = Record(a=0, b=0, c=0)
    load_safetensors(file, target, path="model", strict=False, ignore_names="model/b")
    assert target.values == {"a": 1, "b": 0, "c": 0}


def foreign(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def entry(dtype="U8", shape=(4,), start=0, end=4):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{ ", "Expecting property name"),
        (b"[]", "is not a safetensors file"),
        (b'{"x": 1}', "not subscriptable"),
        (b'{"x": {}, "x": {}}', "the header has a name twice"),
        ({"x": entry(end=5)}, "the 1 arrays do not fill the 4 bytes of data"),
        ({"x": entry(start=1)}, "do not fill"),
        ({"x": entry(end=2), "y": entry(start=1)}, "the 2 arrays do not fill"),
        ({"x": entry("F8_E4M3")}, "array 'x' cannot be read: dtype F8_E4M3 is not supported"),
        ({"x": entry("F64")}, "array 'x' cannot be read: buffer size must be"),
        ({"x": entry(shape=(2,))}, "array 'x' cannot be read: cannot reshape"),
        ({"x": entry(shape=("a",))}, "array 'x' cannot be read"),
        (b"[" * 100_000, "maximum recursion depth"),
    ],
)
def test_files_that_break_the_format(tmp_path, header, message):
    foreign(tmp_path / "file", header, b"1234")
    with pytest.raises(SerializationError, match=f"{tmp_path}/file.*{message}"):
        load_safetensors(tmp_path / "file", Record(x=None))


def test_a_header_that_is_longer_than_the_file(tmp_path):
    (tmp_path / "file").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(SerializationError, match=f"the header cannot have {2**62} bytes"):
        load_safetensors(tmp_path / "file", Record())


def test_a_record_of_a_dangerous_dtype(tmp_path):
    """An attacker can make a file with right checksums."""
    file = io.BytesIO()
    write_safetensors(file, {"x": np.frombuffer(b"1234" * 2, np.uint8)})
    content = file.getvalue().replace(b"null", b'\\"|O\\"')
    text = content[8 : content.index(b"12341234")]
    at = text.index(b"crc32=") + len("crc32=")
    blank = text[:at] + b"00000000" + text[at + 8 :]
    text = text[:at] + b"%08x" % zlib.crc32(blank) + text[at + 8 :]
    foreign(tmp_path / "file", text, b"12341234")
    with pytest.raises(SerializationError, match=r"array 'x' cannot be read: .* uint8 .* not hold"):
        load_safetensors(tmp_path / "file", Record(x=None))
