"""Base of networks for image classification."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.configuration import get_dtype, no_backprop_mode, using_config
from mpchain.dataset import concat_examples
from mpchain.link import Chain
from mpchain.links.model.vision.pretrained import convert_caffemodel, load_parameters
from mpchain.typing import Array, Input
from mpchain.utils.imgproc import oversample as crop_ten
from mpchain.variable import Variable

_RESIZED = (256, 256)
_CROP = 224


def prepare_image(image: object, size: tuple[int, int] | None, mean: Sequence[float]) -> Array:
    """Converts an image to the input of a network: BGR, minus the mean color of its training set.

        >>> prepare_image(np.zeros((10, 20, 3), np.uint8), None, (104, 117, 123)).shape
        (3, 10, 20)

    Args:
        image: a PIL image, or an array of pixels from 0 to 255: (H, W), (H, W, C) with 1, 3 (RGB)
            or 4 channels (RGBA; the last channel is ignored), or (C, H, W) with 1 or 3 channels.
        size: width and height to resize to (needs pillow); None keeps the size.
        mean: the mean color, BGR.

    Returns:
        numpy.ndarray: (3, H, W) of ``config.dtype``.

    Raises:
        ImportError: resizing needs pillow, which is not installed.
        TypeError: ``image`` is neither a PIL image nor an array of such a shape.
    """
    pixels = _pixels(image)
    if size is not None and pixels.shape[1::-1] != tuple(size):
        pixels = _resized(pixels, size)
    dtype = get_dtype()
    bgr = pixels[:, :, ::-1].astype(np.float32) - np.array(mean, np.float32)
    return np.ascontiguousarray(bgr.transpose(2, 0, 1), dtype)


def _pixels(image):
    """Returns an image as an array (H, W, 3) of uint8."""
    if hasattr(image, "convert"):  # an object with the method convert is a PIL image
        return np.asarray(image.convert("RGB"))
    array = np.asarray(image)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"prepare: image must be a PIL image or an array, not {image!r}")
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise TypeError(
            "prepare: image must have shape (H, W), (H, W, C) with 1, 3 or 4 channels, or "
            f"(C, H, W) with 1 or 3 channels, but has shape {np.shape(image)}"
        )
    return np.broadcast_to(array[:, :, :3], (*array.shape[:2], 3)).astype(np.uint8)


def _resized(pixels, size):
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "prepare: resizing an image needs pillow: pip install pillow "
            "(or resize it yourself, and pass size=None)"
        ) from error
    return np.asarray(Image.fromarray(pixels).resize(tuple(size)))


class VisionModel(Chain):
    """Base of networks with named layers, whose outputs can be extracted.

        >>> model = L.ResNet50Layers(None)
        >>> model.available_layers[:4]
        ['conv1', 'pool1', 'res2', 'res3']

    Args:
        pretrained_model: the source of the parameters: the path of a file (.npz of Chainer's or
            mpchain's ``save_npz``, .caffemodel, or .safetensors), or ``'auto'`` for the published
            parameters, which are read from the data-set cache or downloaded. None initializes new
            parameters.
    """

    branches = {}
    """For each layer whose input is not the output of the previous layer, the name of its input."""

    default_extracted = "pool5"
    """The layer that :meth:`extract` returns by default."""

    published = None
    """The :class:`PublishedModel` that ``'auto'`` loads."""

    mean = None
    """The mean color of the training set, BGR."""

    def _load(self, pretrained_model):
        if pretrained_model is not None:
            load_parameters(self, pretrained_model)

    @property
    def functions(self) -> dict[str, list[Callable[..., Any]]]:
        """The network, as a dict from the name of each layer to the list of its functions."""
        raise NotImplementedError(f"{type(self).__name__} does not implement functions")

    @property
    def available_layers(self) -> list[str]:
        """The names of the layers."""
        return list(self.functions)

    def forward(self, x: Input, layers: Sequence[str] | None = None) -> dict[str, Variable]:
        """Computes the outputs of layers. Other layers are computed only if they are needed.

        Args:
            x: Variable or array (N, 3, H, W) of prepared images.
            layers: names of the layers to return; None means ``['prob']``.

        Returns:
            dict: outputs by name, in the order of computation.

        Raises:
            ValueError: the network has no such layer.
        """
        functions = self.functions
        wanted = {"prob"} if layers is None else set(layers)
        unknown = sorted(wanted - functions.keys())
        if unknown:
            raise ValueError(
                f"{type(self).__name__}: there is no layer {', '.join(map(repr, unknown))}; "
                f"the layers are {', '.join(functions)}"
            )
        inputs = dict(zip(functions, (None, *functions))) | self.branches
        needed = _all_before(wanted, inputs)
        readers = collections.Counter(inputs[name] for name in needed)
        outputs: dict[str | None, Any] = {None: x}
        for name in [name for name in functions if name in needed]:
            h = outputs[inputs[name]]
            for function in functions[name]:
                h = function(h)
            outputs[name] = h
            readers[inputs[name]] -= 1
            if not readers[inputs[name]] and inputs[name] not in wanted:
                del outputs[inputs[name]]  # outputs that are no longer needed are freed
        return {name: outputs[name] for name in functions if name in wanted}

    def extract(
        self,
        images: Sequence[Any],
        layers: Sequence[str] | None = None,
        size: tuple[int, int] | None = (224, 224),
    ) -> dict[str, Variable]:
        """Prepares images and computes the outputs of layers.

        Set ``config.train`` to False for inference.

        Args:
            images: images, see ``prepare``.
            layers: names of the layers to return; None means :attr:`default_extracted`.
            size: width and height to resize to; None keeps the sizes.

        Returns:
            dict: outputs by name.
        """
        layers = [self.default_extracted] if layers is None else layers
        return self(self._batch(images, size), layers=layers)

    def predict(self, images: Sequence[Any], oversample: bool = True) -> Variable:
        """Classifies images, in inference mode.

        Args:
            images: images, see ``prepare``; they are resized to 256x256.
            oversample: whether to average over ten crops: corners and center, each also mirrored;
                if False, only the center is used.

        Returns:
            Variable: probabilities of the classes (N, 1000).
        """
        x = self._batch(images, _RESIZED)
        if oversample:
            x = self.xp.asarray(crop_ten(x, (_CROP, _CROP)))
        else:
            edge = (_RESIZED[0] - _CROP) // 2
            x = x[:, :, edge : edge + _CROP, edge : edge + _CROP]
        with no_backprop_mode(), using_config("train", False):
            y = self(x, layers=["prob"])["prob"]
            if oversample:
                y = F.mean(F.reshape(y, (-1, 10, *y.shape[1:])), axis=1)
        return Variable(y.array)

    def _batch(self, images, size):
        return concat_examples([prepare_image(im, size, self.mean) for im in images], self.device)

    def transfer_from_caffe(self, caffe: Chain) -> None:
        """Copies the parameters of a :class:`CaffeFunction` of the same network."""
        raise NotImplementedError(f"{type(self).__name__} does not implement transfer_from_caffe")

    @classmethod
    def convert_caffemodel_to_npz(cls, path_caffemodel: str, path_npz: str) -> None:
        """Converts a published .caffemodel file to an .npz file for ``pretrained_model``.

        Args:
            path_caffemodel: the .caffemodel file of this network.
            path_npz: the file to write.

        Raises:
            ValueError: the file belongs to another network.
        """
        # The type is Any because subclasses accept more arguments than the base class.
        make: Any = cls
        convert_caffemodel(make(None), path_caffemodel, path_npz)


def _all_before(wanted, inputs):
    """Returns the wanted layers and all layers on which they depend."""
    needed = set()
    for name in wanted:
        while name is not None and name not in needed:
            needed.add(name)
            name = inputs[name]
    return needed
