"""The VGG networks."""

import functools
from collections.abc import Callable
from typing import Any

from mpchain import functions as F
from mpchain.initializers import Normal
from mpchain.link import Chain
from mpchain.links.connection import Linear
from mpchain.links.convolution import Convolution2D
from mpchain.links.model.vision.pretrained import PublishedModel, copy_layer
from mpchain.links.model.vision.vision_model import VisionModel, prepare_image
from mpchain.typing import Array

_MEAN = (103.939, 116.779, 123.68)
_CHANNELS = (64, 128, 256, 512, 512)
_CONVOLUTIONS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_ADDRESS = "https://www.robots.ox.ac.uk/%7Evgg/software/very_deep/caffe/"


def prepare(image: object, size: tuple[int, int] | None = (224, 224)) -> Array:
    """Converts an image to the input of the VGG networks.

        >>> prepare(np.zeros((10, 20, 3), np.uint8), size=None).shape  # colors, height, width
        (3, 10, 20)

    Args:
        image: a PIL image, or an array of pixels from 0 to 255: (H, W), (H, W, C) or (C, H, W),
            RGB.
        size: width and height to resize to (needs pillow); None keeps the size.

    Returns:
        numpy.ndarray: (3, H, W), BGR, minus the mean color, of ``config.dtype``.
    """
    return prepare_image(image, size, _MEAN)


class VGGLayers(VisionModel):
    """The VGG networks, with 16 or 19 layers.

    The layers are conv1_1 to conv5_3 or conv5_4, fc6 and fc7 (whose outputs are taken after ReLU,
    and for fc6 and fc7 after dropout), pool1 to pool5, fc8, prob.

        >>> issubclass(L.VGG16Layers, VGGLayers)
        True

    Args:
        pretrained_model: path of a file of parameters, ``'auto'`` or None; see
            :class:`mpchain.links.model.vision.vision_model.VisionModel`.
        n_layers: 16 or 19.

    Raises:
        ValueError: the number of layers is unknown.

    See K. Simonyan and A. Zisserman, Very deep convolutional networks for large-scale image
    recognition, ICLR 2015.
    """

    default_extracted = "fc7"
    mean = _MEAN

    def __init__(self, pretrained_model: str | None = "auto", n_layers: int = 16) -> None:
        super().__init__()
        if n_layers not in _CONVOLUTIONS:
            raise ValueError(f"VGGLayers: n_layers must be 16 or 19, not {n_layers}")
        self.n_layers = n_layers
        self.published = PublishedModel(
            f"VGG_ILSVRC_{n_layers}_layers.caffemodel",
            f"{_ADDRESS}VGG_ILSVRC_{n_layers}_layers.caffemodel",
            "https://www.robots.ox.ac.uk/~vgg/research/very_deep/",
        )
        initialW = Normal(0.01) if pretrained_model is None else 0
        with self.init_scope():
            in_channels = 3
            for block, (channels, n) in enumerate(zip(_CHANNELS, _CONVOLUTIONS[n_layers]), 1):
                for i in range(1, n + 1):
                    link = Convolution2D(in_channels, channels, 3, 1, 1, initialW=initialW)
                    setattr(self, f"conv{block}_{i}", link)
                    in_channels = channels
            self.fc6 = Linear(512 * 7 * 7, 4096, initialW=initialW)
            self.fc7 = Linear(4096, 4096, initialW=initialW)
            self.fc8 = Linear(4096, 1000, initialW=initialW)
        self._load(pretrained_model)

    @property
    def functions(self) -> dict[str, list[Callable[..., Any]]]:
        """The list of functions of each layer, by name."""
        functions = {}
        pool = functools.partial(F.max_pooling_2d, ksize=2, stride=2)
        for block, n in enumerate(_CONVOLUTIONS[self.n_layers], 1):
            for i in range(1, n + 1):
                functions[f"conv{block}_{i}"] = [self[f"conv{block}_{i}"], F.relu]
            functions[f"pool{block}"] = [pool]
        functions["fc6"] = [self.fc6, F.relu, F.dropout]
        functions["fc7"] = [self.fc7, F.relu, F.dropout]
        return functions | {"fc8": [self.fc8], "prob": [F.softmax]}

    def transfer_from_caffe(self, caffe: Chain) -> None:
        """Copies the parameters of a :class:`CaffeFunction` of the same network."""
        for link in self.children():
            copy_layer(link, caffe, link.name)


class VGG16Layers(VGGLayers):
    """VGG with 16 layers: :class:`VGGLayers`.

        >>> L.VGG16Layers.mean
        (103.939, 116.779, 123.68)

    Args:
        pretrained_model: path of a file of parameters, ``'auto'`` or None.
    """

    def __init__(self, pretrained_model: str | None = "auto") -> None:
        super().__init__(pretrained_model, 16)


class VGG19Layers(VGGLayers):
    """VGG with 19 layers: :class:`VGGLayers`.

        >>> L.VGG19Layers.mean
        (103.939, 116.779, 123.68)

    Args:
        pretrained_model: path of a file of parameters, ``'auto'`` or None.
    """

    def __init__(self, pretrained_model: str | None = "auto") -> None:
        super().__init__(pretrained_model, 19)
