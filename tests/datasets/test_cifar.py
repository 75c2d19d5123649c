"""Tests the loader of CIFAR-10 and CIFAR-100, on small archives in the official format that the
tests write."""

import hashlib
import io
import tarfile

import numpy as np
import pytest

from mpchain import datasets
from mpchain.datasets import cifar


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCHAIN_DATASET_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture(params=["cifar10", "cifar100"])
def name(request):
    return request.param


@pytest.fixture
def parts(name, tmp_path, monkeypatch):
    """Replaces the address of the set by an archive with 4 images in each training file and 3 test
    images."""
    official = cifar.SOURCES[name]
    random = np.random.RandomState(0)
    contents, parts = {"readme.html": b"hello"}, []
    for files, n in ((official.train, 4), (official.test, 3)):
        images = random.randint(0, 256, (n * len(files), 3, 32, 32)).astype(np.uint8)
        images[0, 0, 0, :2] = 0, 255
        labels = random.randint(0, 100, (n * len(files), official.n_labels)).astype(np.uint8)
        records = np.concatenate([labels, images.reshape(len(images), -1)], 1)
        for i, file in enumerate(files):
            contents[file] = records[i * n : (i + 1) * n].tobytes()
        parts.append((images, labels[:, -1]))
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
        for file in sorted(contents, reverse=True):  # the order of the files must not matter
            info = tarfile.TarInfo(file)
            info.size = len(contents[file])
            archive.addfile(info, io.BytesIO(contents[file]))
    content = (tmp_path / "archive.tar.gz").read_bytes()
    local = official._replace(
        url=(tmp_path / "archive.tar.gz").as_uri(),
        sha256=hashlib.sha256(content).hexdigest(),
        train=dict.fromkeys(official.train, 4),
        test=dict.fromkeys(official.test, 3),
    )
    monkeypatch.setitem(cifar.SOURCES, name, local)
    return parts


def load(name, **options):
    return getattr(datasets, f"get_{name}")(**options)


def test_training_and_test_set(name, parts):
    for part, (images, labels) in zip(load(name), parts, strict=True):
        x, t = map(np.array, zip(*part[:]))
        assert (x.dtype, t.dtype) == (np.float32, np.int32)
        assert x.shape[1:] == (3, 32, 32)
        np.testing.assert_allclose(x, images / 255, rtol=1e-6)
        assert (x.min(), x.max()) == (0, 1)
        np.testing.assert_array_equal(t, labels)


def test_forms(name, parts):
    train, test = load(name, withlabel=False, ndim=1, scale=255, dtype=np.float16)
    assert (train.dtype, test.shape) == (np.float16, (3, 3072))
    np.testing.assert_array_equal(train, parts[0][0].reshape(-1, 3072))
    with pytest.raises(ValueError, match=f"get_{name}: ndim must be 1 or 3, not 2"):
        load(name, ndim=2)


def test_the_second_call_needs_no_network(name, parts, forbid_downloads):
    first = load(name, withlabel=False)
    forbid_downloads()
    np.testing.assert_array_equal(load(name, withlabel=False)[0], first[0])


def test_an_archive_that_is_not_the_official_one_is_refused(name, parts, tmp_path, root):
    with open(tmp_path / "archive.tar.gz", "ab") as file:
        file.write(b"more")
    with pytest.raises(OSError, match=f"get_{name}: .* must have the SHA-256 checksum"):
        load(name)
    assert not (root / name / "pixels_and_labels.npz").exists()


def test_the_official_sources():
    for name, size in (("cifar10", 3073), ("cifar100", 3074)):
        source = cifar.SOURCES[name]
        assert source.url.startswith("https://www.cs.toronto.edu/~kriz/cifar-10")
        assert len(bytes.fromhex(source.sha256)) == 32
        assert sum(source.train.values()) == 50_000
        assert sum(source.test.values()) == 10_000
        assert source.n_labels + 3072 == size
