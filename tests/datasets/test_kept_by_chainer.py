"""Tests that data sets in Chainer's cache format, which the tests write, are not downloaded
again."""

import hashlib

import numpy as np
import pytest

import mpchain
from mpchain import dataset, datasets
from mpchain.links.model.vision import pretrained

RANDOM = np.random.RandomState(0)
WORDS = ["the", "cat", "<eos>"]


def pixels(*shape):
    return RANDOM.randint(0, 256, shape).astype(np.uint8)


@pytest.fixture(params=["CHAINER_DATASET_ROOT", "HOME"])
def folder(request, tmp_path, monkeypatch, forbid_downloads):
    """Returns Chainer's folder of data sets, below a given root or below the home folder."""
    for variable in ("MPCHAIN_DATASET_ROOT", "CHAINER_DATASET_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    root = tmp_path / ".chainer" / "dataset"
    if request.param == "CHAINER_DATASET_ROOT":
        root = tmp_path / "root"
        monkeypatch.setenv(request.param, str(root))
    forbid_downloads()
    (root / "pfnet" / "chainer").mkdir(parents=True)
    return root / "pfnet" / "chainer"


def keep(path, **arrays):
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mnist", datasets.get_mnist),
        ("fashion-mnist", datasets.get_fashion_mnist),
        ("kuzushiji_mnist", datasets.get_kuzushiji_mnist),
    ],
)
def test_digits(folder, name, function):
    kept = {"train": (pixels(4, 784), pixels(4) % 10), "test": (pixels(2, 784), pixels(2) % 10)}
    for part, (x, y) in kept.items():
        keep(folder / name / f"{part}.npz", x=x, y=y)
    for (x, y), found in zip(kept.values(), function(ndim=3, scale=255.0), strict=True):
        images, labels = found[:][0][0], [label for _, label in found]
        assert images.shape == (1, 28, 28) and labels == y.tolist()
        np.testing.assert_array_equal([image.ravel() for image, _ in found], x)


@pytest.mark.parametrize(
    ("name", "function"), [("cifar-10", datasets.get_cifar10), ("cifar-100", datasets.get_cifar100)]
)
def test_cifar(folder, name, function):
    arrays = {"train_x": pixels(4, 3072), "train_y": pixels(4) % 10}
    arrays |= {"test_x": pixels(2, 3072), "test_y": pixels(2) % 10}
    keep(folder / "cifar" / f"{name}.npz", **arrays)
    for part, found in zip(("train", "test"), function(scale=255.0), strict=True):
        x = np.array([image for image, _ in found])
        np.testing.assert_array_equal(x, arrays[f"{part}_x"].reshape(-1, 3, 32, 32))
        assert [label for _, label in found] == arrays[f"{part}_y"].tolist()


def test_svhn(folder):
    kept = {part: pixels(n, 3, 32, 32) for part, n in (("train", 4), ("test", 3), ("extra", 2))}
    for part, x in kept.items():
        keep(folder / "svhn" / f"{part}.npz", x=x.transpose(2, 3, 1, 0), y=np.arange(len(x)))
    parts = datasets.get_svhn(scale=255.0, add_extra=True)
    for x, found in zip(kept.values(), parts, strict=True):
        np.testing.assert_array_equal([image for image, _ in found], x)
        assert [label for _, label in found] == list(range(len(x)))


def test_words(folder):
    kept = {part: RANDOM.randint(0, 3, 5).astype("i4") for part in ("train", "valid", "test")}
    for part, numbers in kept.items():
        keep(folder / "ptb" / f"{part}.npz", x=numbers)
    (folder / "ptb" / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    for expected, found in zip(kept.values(), datasets.get_ptb_words(), strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == np.int32
    assert datasets.get_ptb_words_vocabulary() == {word: i for i, word in enumerate(WORDS)}


def test_an_incomplete_data_set_is_made_anew(folder):
    keep(folder / "mnist" / "train.npz", x=pixels(4, 784), y=pixels(4) % 10)
    # The download is replaced by None.
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        datasets.get_mnist()


def test_a_downloaded_file(folder):
    url = "https://example.invalid/data.gz"
    cache = folder.parent.parent / "_dl_cache"
    cache.mkdir()
    kept = cache / hashlib.md5(url.encode()).hexdigest()
    kept.write_bytes(b"content")
    assert dataset.cached_download(url) == str(kept)
    assert dataset.cached_download(url, hashlib.sha256(b"content").hexdigest()) == str(kept)
    with pytest.raises(OSError, match="could not be fetched"):
        dataset.cached_download(url, hashlib.sha256(b"other").hexdigest())


def test_a_root_that_is_set_hides_that_of_the_home_folder(folder, monkeypatch, tmp_path):
    keep(folder / "mnist" / "train.npz", x=pixels(1, 784))
    names = "pfnet", "chainer", "mnist", "train.npz"
    assert dataset.cache.find_kept(*names) == str(folder / "mnist" / "train.npz")
    monkeypatch.setenv("MPCHAIN_DATASET_ROOT", str(tmp_path / "other"))
    is_in_home = ".chainer" in folder.parts
    assert (dataset.cache.find_kept(*names) is None) is is_in_home


def test_a_converted_model(folder):
    class Net(mpchain.Chain):
        published = pretrained.PublishedModel("net.caffemodel", None, "a page")

    def make():
        return Net(l=mpchain.links.Linear(3, 2))

    trained, model = make(), make()
    (folder / "models").mkdir()
    mpchain.serializers.save_npz(folder / "models" / "net.npz", trained)
    pretrained.load_parameters(model, "auto")
    np.testing.assert_array_equal(model.l.W.array, trained.l.W.array)
