"""Published parameters of networks, which are loaded from files or downloaded."""

import dataclasses
import hashlib
import os
from typing import Any

from mpchain import annexes
from mpchain.dataset import cached_download, get_dataset_directory
from mpchain.dataset.cache import cache_or_load_file, find_kept
from mpchain.link import Chain
from mpchain.serializers import load_npz, save_npz
from mpchain.serializers.safetensors import load_safetensors

_FOLDER = "pfnet/chainer/models"  # Chainer uses the same folder


@dataclasses.dataclass(frozen=True)
class PublishedModel:
    """The source of the published parameters of a network.

        >>> PublishedModel("net.caffemodel", None, "https://example.org").file
        'net.caffemodel'

    Attributes:
        file (str): name of the .caffemodel file; the converted .npz file has the same name with
            another extension.
        url (str): the file's address; None if it cannot be downloaded.
        page (str): the web page with the file.
        sha1 (str): the file's published checksum; if None (unknown), only names and shapes of
            layers are verified.
    """

    file: str
    url: str | None
    page: str
    sha1: str | None = None


def load_parameters(model: Chain, source: str) -> None:
    """Loads the parameters of a network from a file, or with ``'auto'`` from the cache or the web.

        >>> import tempfile
        >>> model, trained = mpchain.Chain(l=L.Linear(3, 2)), mpchain.Chain(l=L.Linear(3, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     mpchain.serializers.save_npz(f"{folder}/model.npz", trained)
        ...     load_parameters(model, f"{folder}/model.npz")
        >>> bool((model.l.W.array == trained.l.W.array).all())
        True

    Args:
        model: the network.
        source: the path of a file, or ``'auto'``.

    Raises:
        OSError: the published parameters are not in the cache and cannot be downloaded.
        ValueError: the file does not match the network (SerializationError unless the file is a
            .caffemodel file).
    """
    if source == "auto":
        _load_published(model)
    elif os.fspath(source).endswith(".caffemodel"):
        model.transfer_from_caffe(read_caffemodel(source))
    elif os.fspath(source).endswith(".safetensors"):
        load_safetensors(source, model)
    else:
        load_npz(source, model)


def read_caffemodel(path: str) -> Chain:
    """Reads a .caffemodel file with :class:`mpchain.links.caffe.CaffeFunction`.

    >>> read_caffemodel("net.caffemodel")  # doctest: +SKIP

    Raises:
        MissingAnnexError: the reader of Caffe's files was deleted; see :mod:`mpchain.annexes`.
    """
    caffe = annexes.load("interop", "links.caffe", "pretrained_model: a .caffemodel file")
    return caffe.CaffeFunction(path)


def convert_caffemodel(model: Chain, path_caffemodel: str, path_npz: str) -> None:
    """Loads a .caffemodel file into a network, and saves the network as an .npz file.

    >>> convert_caffemodel(L.GoogLeNet(None), "net.caffemodel", "net.npz")  # doctest: +SKIP
    """
    model.transfer_from_caffe(read_caffemodel(path_caffemodel))
    save_npz(path_npz, model)


def _load_published(model):
    published = model.published
    folder = get_dataset_directory(_FOLDER)
    names = os.path.splitext(published.file)[0] + ".npz", published.file
    path_npz, path_caffemodel = [
        find_kept(*_FOLDER.split("/"), name) or os.path.join(folder, name) for name in names
    ]

    def create(path):
        source = path_caffemodel
        if not os.path.exists(source):
            source = _downloaded(published, path_caffemodel)
        convert_caffemodel(model, source, path)

    cache_or_load_file(path_npz, create, lambda path: load_npz(path, model))


def _downloaded(published, path_caffemodel):
    place = (
        f"place {published.file} (see {published.page}) as {path_caffemodel}, or give the path of "
        "a file as pretrained_model, or None for initial values"
    )
    if published.url is None:
        raise OSError(f"pretrained_model='auto': these parameters cannot be downloaded: {place}")
    try:
        path = cached_download(published.url)
    except OSError as error:
        raise OSError(f"pretrained_model='auto': {error}. If you are offline, {place}") from error
    if published.sha1 is not None:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha1").hexdigest()
        if found != published.sha1:
            os.unlink(path)
            raise OSError(
                f"pretrained_model='auto': {published.url} must have the SHA-1 checksum "
                f"{published.sha1}, but the download has {found}; {place}"
            )
    return path


def copy_layer(target: Any, caffe: Chain, name: str) -> None:
    """Copies weights and bias of the Caffe layer ``name`` into a link.

    If the layer has no bias, the bias becomes zeros.

    Raises:
        ValueError: the Caffe network has no such layer, or its layer has another shape.
    """
    source = layer_of(caffe, name)
    _copy_array(name, "W", target.W, source.W)
    if target.b is not None:
        if source.b is None:
            target.b.array[...] = 0
        else:
            _copy_array(name, "b", target.b, source.b)


def copy_normalization(target: Any, caffe: Chain, name: str, scale_name: str) -> None:
    """Copies the statistics of the BatchNorm layer ``name``, and the parameters of the scale layer
    ``scale_name``, into a link."""
    statistics, scale = layer_of(caffe, name), layer_of(caffe, scale_name)
    for attribute in ("avg_mean", "avg_var"):
        value = getattr(statistics, attribute)
        _check_shape(name, attribute, getattr(target, attribute).shape, value.shape)
        getattr(target, attribute)[...] = value
    _copy_array(scale_name, "scale", target.gamma, scale.W)
    _copy_array(scale_name, "bias", target.beta, scale.bias.b)


def layer_of(caffe: Chain, name: str) -> Any:
    """Returns the link of a layer of a Caffe network. Raises ValueError if there is no
    such layer, or it has no parameters."""
    layers = dict(caffe.named_layers())
    if name not in layers:
        raise ValueError(
            f"the Caffe model is another network: it has no layer {name!r} with parameters; it has "
            f"{', '.join(sorted(layers))}"
        )
    return layers[name]


def _copy_array(name, attribute, target, source):
    _check_shape(name, attribute, target.shape, source.shape)
    target.array[...] = source.array


def _check_shape(name, attribute, wanted, found):
    if wanted != found:
        raise ValueError(
            f"the Caffe model is another network: {attribute} of its layer {name!r} has shape "
            f"{found}, but must have {wanted}"
        )
