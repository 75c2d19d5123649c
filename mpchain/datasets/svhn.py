"""SVHN, the digits of house numbers, downloaded once."""

import functools

import numpy as np

from mpchain import annexes
from mpchain.datasets.combined import TupleDataset
from mpchain.datasets.downloads import load, make_datasets
from mpchain.serializers.npz import read_npz
from mpchain.typing import Array, DTypeLike

_URL = "http://ufldl.stanford.edu/housenumbers/"
_SHA256 = {
    "train": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
    "test": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
    "extra": "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3",
}


def get_svhn(
    withlabel: bool = True,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    label_dtype: DTypeLike = np.int32,
    add_extra: bool = False,
) -> list[TupleDataset] | list[Array]:
    """Returns SVHN: 73,257 and 26,032 color images of 32x32 pixels, digits of house numbers.

    The data is downloaded (246 MB; 1.6 GB with ``add_extra``) by the first call and cached in
    :func:`mpchain.dataset.get_dataset_root`.

    Args:
        withlabel: whether examples are pairs of image and label, or images only.
        scale: the greatest value of a pixel; the least is 0.
        dtype: the dtype of the images, which have shape (3, 32, 32); None means ``config.dtype``.
        label_dtype: the dtype of the labels (0 to 9).
        add_extra: whether to return the 531,131 extra training images, too.

    Returns:
        Training and test set, and with ``add_extra`` the extra set: :class:`TupleDataset`, or
            arrays of images without labels.

    Raises:
        OSError: the download failed.
        RuntimeError: the data is not cached, and SciPy is not installed (``pip install
            'mpchain[data]'``).

    Paper: Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning",
    2011, http://ufldl.stanford.edu/housenumbers/

    Example:
        >>> train, test = mpchain.datasets.get_svhn()  # doctest: +SKIP
    """
    arrays = {}
    for name in ("train", "test", "extra") if add_extra else ("train", "test"):
        make = functools.partial(_make, name)
        part = load("get_svhn", f"svhn/{name}", make, kept={f"svhn/{name}.npz": _read})
        arrays |= {f"{name}_{key}": array for key, array in part.items()}
    return make_datasets("get_svhn", arrays, 255, withlabel, 3, scale, dtype, label_dtype)


def _make(name, fetch):
    message = "get_svhn: SciPy is not installed: pip install 'mpchain[data]'"
    scipy_io, file = annexes.library("scipy.io", message), f"{_URL}{name}_32x32.mat"
    content = scipy_io.loadmat(fetch(file, _SHA256[name]), variable_names=["X", "y"])
    return _arrays(content["X"], content["y"])


def _read(path):
    arrays = read_npz(path)
    return _arrays(arrays["x"], arrays["y"])


def _arrays(x, y):
    labels = y.ravel() % 10  # in the file, the label of the digit 0 is 10
    return {"x": np.ascontiguousarray(x.transpose(3, 2, 0, 1)), "y": labels}
