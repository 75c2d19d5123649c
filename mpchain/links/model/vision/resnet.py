"""The residual networks."""

import functools
from collections.abc import Callable
from typing import Any

from mpchain import functions as F
from mpchain.initializers import HeNormal
from mpchain.link import Chain
from mpchain.links.connection import Linear
from mpchain.links.convolution import Convolution2D
from mpchain.links.model.vision.pretrained import (
    PublishedModel,
    convert_caffemodel,
    copy_layer,
    copy_normalization,
)
from mpchain.links.model.vision.vision_model import VisionModel, prepare_image
from mpchain.links.normalization import BatchNormalization
from mpchain.typing import Array, InitialValue, Input
from mpchain.variable import Variable

_MEAN = (103.063, 115.903, 123.152)
_BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def prepare(image: object, size: tuple[int, int] | None = (224, 224)) -> Array:
    """Converts an image to the input of the residual networks.

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


class BottleneckA(Chain):
    """A residual unit that changes the size or the number of channels, with a projection as its
    shortcut.

        >>> BottleneckA(4, 2, 8)(np.ones((1, 4, 6, 6), np.float32)).shape
        (1, 8, 3, 3)

    Args:
        in_channels, mid_channels, out_channels: numbers of channels before, inside and after the
            unit.
        stride: stride of the unit and of the projection.
        initialW: initializer of the weights.
        downsample_fb: whether the 3x3 convolution has the stride, as in Facebook's networks; if
            False, the first 1x1 convolution has the stride.
    """

    def __init__(
        self,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        stride: int = 2,
        initialW: InitialValue = None,
        downsample_fb: bool = False,
    ) -> None:
        super().__init__()
        first, second = (1, stride) if downsample_fb else (stride, 1)
        options = {"nobias": True, "initialW": initialW}
        with self.init_scope():
            self.conv1 = Convolution2D(in_channels, mid_channels, 1, first, 0, **options)
            self.bn1 = BatchNormalization(mid_channels)
            self.conv2 = Convolution2D(mid_channels, mid_channels, 3, second, 1, **options)
            self.bn2 = BatchNormalization(mid_channels)
            self.conv3 = Convolution2D(mid_channels, out_channels, 1, 1, 0, **options)
            self.bn3 = BatchNormalization(out_channels)
            self.conv4 = Convolution2D(in_channels, out_channels, 1, stride, 0, **options)
            self.bn4 = BatchNormalization(out_channels)

    def forward(self, x: Input) -> Variable:
        """Applies the unit to x (N, in_channels, H, W); returns a Variable (N, out_channels, H',
        W')."""
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.bn3(self.conv3(h)) + self.bn4(self.conv4(x)))


class BottleneckB(Chain):
    """A residual unit that keeps the size and the number of channels.

        >>> BottleneckB(8, 2)(np.ones((1, 8, 6, 6), np.float32)).shape
        (1, 8, 6, 6)

    Args:
        in_channels, mid_channels: numbers of channels outside and inside of the unit.
        initialW: initializer of the weights.
    """

    def __init__(self, in_channels: int, mid_channels: int, initialW: InitialValue = None) -> None:
        super().__init__()
        options = {"nobias": True, "initialW": initialW}
        with self.init_scope():
            self.conv1 = Convolution2D(in_channels, mid_channels, 1, 1, 0, **options)
            self.bn1 = BatchNormalization(mid_channels)
            self.conv2 = Convolution2D(mid_channels, mid_channels, 3, 1, 1, **options)
            self.bn2 = BatchNormalization(mid_channels)
            self.conv3 = Convolution2D(mid_channels, in_channels, 1, 1, 0, **options)
            self.bn3 = BatchNormalization(in_channels)

    def forward(self, x: Input) -> Variable:
        """Applies the unit to x (N, in_channels, H, W); returns a Variable of the same shape."""
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.bn3(self.conv3(h)) + x)


class BuildingBlock(Chain):
    """A chain of residual units: a :class:`BottleneckA`, ``a``, and then :class:`BottleneckB`,
    ``b1``, ``b2``, ...

        >>> BuildingBlock(3, 4, 2, 8, stride=2)(np.ones((1, 4, 6, 6), np.float32)).shape
        (1, 8, 3, 3)

    Args:
        n_layers: the number of units.
        in_channels, mid_channels, out_channels, stride, initialW, downsample_fb: see
            :class:`BottleneckA`, the first unit.
    """

    def __init__(
        self,
        n_layers: int,
        in_channels: int,
        mid_channels: int,
        out_channels: int,
        stride: int,
        initialW: InitialValue = None,
        downsample_fb: bool = False,
    ) -> None:
        super().__init__()
        self.n_layers = n_layers
        with self.init_scope():
            self.a = BottleneckA(
                in_channels, mid_channels, out_channels, stride, initialW, downsample_fb
            )
            for i in range(1, n_layers):
                setattr(self, f"b{i}", BottleneckB(out_channels, mid_channels, initialW))

    @property
    def units(self) -> list[Chain]:
        """The units in order."""
        return [self.a, *(self[f"b{i}"] for i in range(1, self.n_layers))]

    def forward(self, x: Input) -> Variable:
        """Applies the units to a Variable or array x (N, in_channels, H, W)."""
        first, *others = self.units
        h = first(x)
        for unit in others:
            h = unit(h)
        return h


class ResNetLayers(VisionModel):
    """The residual networks, with 50, 101 or 152 layers.

    Layers: conv1 (after normalization and rectifier), pool1, res2 to res5, pool5, fc6, prob.

    The published parameters must be downloaded manually.

        >>> issubclass(L.ResNet152Layers, ResNetLayers)
        True

    Args:
        pretrained_model: path of a file of parameters, ``'auto'`` or None; see
            :class:`mpchain.links.model.vision.vision_model.VisionModel`.
        n_layers: 50, 101 or 152.
        downsample_fb: see :class:`BottleneckA`.

    Raises:
        ValueError: the number of layers is unknown.

    See K. He et al., Deep residual learning for image recognition, CVPR 2016.
    """

    mean = _MEAN
    n_layers = 50

    def __init__(
        self, pretrained_model: str | None, n_layers: int, downsample_fb: bool = False
    ) -> None:
        super().__init__()
        if n_layers not in _BLOCKS:
            raise ValueError(f"ResNetLayers: n_layers must be 50, 101 or 152, not {n_layers}")
        self.n_layers = n_layers
        self.published = PublishedModel(
            f"ResNet-{n_layers}-model.caffemodel",
            None,
            "https://github.com/KaimingHe/deep-residual-networks",
        )
        # If a file is loaded, its weights replace these initial values.
        he, initialW = (HeNormal(), None) if pretrained_model is None else (0, 0)
        with self.init_scope():
            self.conv1 = Convolution2D(3, 64, 7, 2, 3, initialW=he)
            self.bn1 = BatchNormalization(64)
            in_channels = 64
            for i, n in enumerate(_BLOCKS[n_layers]):
                mid_channels, stride = 64 << i, 2 if i else 1
                sizes = n, in_channels, mid_channels, 4 * mid_channels, stride
                setattr(self, f"res{i + 2}", BuildingBlock(*sizes, he, downsample_fb))
                in_channels = 4 * mid_channels
            self.fc6 = Linear(in_channels, 1000, initialW=initialW)
        self._load(pretrained_model)

    @property
    def functions(self) -> dict[str, list[Callable[..., Any]]]:
        """The list of functions of each layer, by name."""
        return {
            "conv1": [self.conv1, self.bn1, F.relu],
            "pool1": [functools.partial(F.max_pooling_2d, ksize=3, stride=2)],
            "res2": [self.res2],
            "res3": [self.res3],
            "res4": [self.res4],
            "res5": [self.res5],
            "pool5": [functools.partial(F.mean, axis=(2, 3))],
            "fc6": [self.fc6],
            "prob": [F.softmax],
        }

    def transfer_from_caffe(self, caffe: Chain) -> None:
        """Copies the parameters of a :class:`CaffeFunction` of the same network."""
        copy_layer(self.conv1, caffe, "conv1")
        copy_normalization(self.bn1, caffe, "bn_conv1", "scale_conv1")
        for number in range(2, 6):
            units = self[f"res{number}"].units
            is_long = self.n_layers > 50 and number in (3, 4)
            names = ["a", *(f"b{i}" for i in range(1, len(units)))] if is_long else "abcdef"
            for unit, name in zip(units, names):
                _transfer_unit(unit, caffe, f"{number}{name}")
        copy_layer(self.fc6, caffe, "fc1000")

    @classmethod
    def convert_caffemodel_to_npz(
        cls, path_caffemodel: str, path_npz: str, n_layers: int | None = None
    ) -> None:
        """Converts a published .caffemodel file to an .npz file for ``pretrained_model``.

        Args:
            path_caffemodel: the .caffemodel file of this network.
            path_npz: the file to write.
            n_layers: 50, 101 or 152; None means the class's number of layers.

        Raises:
            ValueError: the file belongs to another network.
        """
        model = ResNetLayers(None, n_layers or cls.n_layers)
        convert_caffemodel(model, path_caffemodel, path_npz)


def _transfer_unit(unit, caffe, name):
    branches = [("1", "branch2a"), ("2", "branch2b"), ("3", "branch2c")]
    if isinstance(unit, BottleneckA):
        branches.append(("4", "branch1"))
    for number, branch in branches:
        copy_layer(unit[f"conv{number}"], caffe, f"res{name}_{branch}")
        names = f"bn{name}_{branch}", f"scale{name}_{branch}"
        copy_normalization(unit[f"bn{number}"], caffe, *names)


class ResNet50Layers(ResNetLayers):
    """The residual network with 50 layers: :class:`ResNetLayers`.

        >>> L.ResNet50Layers(None).count_params()
        25557096

    Args:
        pretrained_model: path of a file of parameters, ``'auto'`` or None.
        downsample_fb: see :class:`BottleneckA`.
    """

    def __init__(self, pretrained_model: str | None = "auto", downsample_fb: bool = False) -> None:
        super().__init__(pretrained_model, 50, downsample_fb)


class ResNet101Layers(ResNetLayers):
    """The residual network with 101 layers: :class:`ResNetLayers`.

        >>> L.ResNet101Layers.n_layers
        101

    Args:
        pretrained_model: path of a file of parameters, ``'auto'`` or None.
        downsample_fb: see :class:`BottleneckA`.
    """

    n_layers = 101

    def __init__(self, pretrained_model: str | None = "auto", downsample_fb: bool = False) -> None:
        super().__init__(pretrained_model, 101, downsample_fb)


class ResNet152Layers(ResNetLayers):
    """The residual network with 152 layers: :class:`ResNetLayers`.

        >>> L.ResNet152Layers.n_layers
        152

    Args:
        pretrained_model: path of a file of parameters, ``'auto'`` or None.
        downsample_fb: see :class:`BottleneckA`.
    """

    n_layers = 152

    def __init__(self, pretrained_model: str | None = "auto", downsample_fb: bool = False) -> None:
        super().__init__(pretrained_model, 152, downsample_fb)
