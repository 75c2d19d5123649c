"""Tests the loader of SVHN, on small MATLAB files that the tests write."""

import hashlib

import numpy as np
import pytest

from mpchain import datasets
from mpchain.datasets import svhn

scipy_io = pytest.importorskip("scipy.io")
SIZES = {"train": 7, "test": 4, "extra": 12}


@pytest.fixture(autouse=True)
def parts(tmp_path, publish):
    """Replaces the address of the set by a folder of small files; returns their arrays."""
    random = np.random.RandomState(0)
    parts, digests = {}, {}
    for name, n in SIZES.items():
        images = random.randint(0, 256, (32, 32, 3, n)).astype(np.uint8)
        labels = (np.arange(n) % 10 + 1).astype(np.uint8)
        path = tmp_path / f"{name}_32x32.mat"
        scipy_io.savemat(path, {"X": images, "y": labels[:, None]}, do_compression=True)
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        parts[name] = images, labels
    publish(svhn, "", digests)
    return parts


@pytest.mark.parametrize("add_extra", [False, True])
def test_parts(parts, add_extra):
    loaded = datasets.get_svhn(add_extra=add_extra, label_dtype=np.int64)
    assert len(loaded) == 2 + add_extra
    for part, (images, labels) in zip(loaded, parts.values()):
        x, t = map(np.array, zip(*part[:]))
        assert (x.dtype, t.dtype) == (np.float32, np.int64)
        assert x.shape == (len(labels), 3, 32, 32)
        np.testing.assert_allclose(x[3, 2, 10, 20], images[10, 20, 2, 3] / 255, rtol=1e-6)
        np.testing.assert_allclose(x, images.transpose(3, 2, 0, 1) / 255, rtol=1e-6)
        np.testing.assert_array_equal(t, np.where(labels == 10, 0, labels))


def test_images_alone(parts):
    train, _ = datasets.get_svhn(withlabel=False, scale=255, dtype=np.float16)
    assert train.dtype == np.float16
    np.testing.assert_array_equal(train, parts["train"][0].transpose(3, 2, 0, 1))


def test_the_second_call_needs_no_network(forbid_downloads):
    datasets.get_svhn()
    forbid_downloads()
    assert len(datasets.get_svhn()[0]) == 7


def test_a_file_that_is_not_the_official_one_is_refused(tmp_path):
    (tmp_path / "test_32x32.mat").write_bytes(b"something else")
    with pytest.raises(OSError, match=r"get_svhn: .*test_32x32.mat must have the SHA-256 checksum"):
        datasets.get_svhn()


def test_without_scipy(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(RuntimeError, match=r"get_svhn: SciPy is not installed: .*mpchain\[data\]"):
        datasets.get_svhn()
