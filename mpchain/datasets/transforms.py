"""Changes of images, for :class:`~mpchain.datasets.AugmentedDataset`.

Each transform is a function of an array (channels, height, width) and a
:class:`numpy.random.Generator`. Transforms that are not random need no generator.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.backends.dtypes import is_floating
from mpchain.datasets.images import load_pillow

Random = np.random.Generator | None


class Compose:
    """Applies several transforms, one after another.

    Args:
        transforms: the transforms.

    Example:
        >>> transform = Compose(RandomCrop(4, pad=1), RandomFlip(), Normalize(127.5, 127.5))
        >>> transform(np.zeros((3, 4, 4), np.float32), np.random.default_rng(0)).shape
        (3, 4, 4)
    """

    def __init__(self, *transforms: Callable[..., Any]):
        self.transforms = transforms

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        for transform in self.transforms:
            image = transform(image, random)
        return image


@dataclasses.dataclass(frozen=True)
class Resize:
    """Resizes images by linear interpolation, which averages pixels when images shrink.

    Args:
        size: (height, width), or the length of the shorter side, in pixels; a single length keeps
            the proportions.

    Example:
        >>> Resize(8)(np.zeros((3, 16, 32), np.float32)).shape
        (3, 8, 16)
    """

    size: int | tuple[int, int]

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        height, width = _size("Resize", image)
        if isinstance(self.size, int):
            scale = self.size / min(height, width)
            return resized(image, (round(height * scale), round(width * scale)))
        return resized(image, self.size)


@dataclasses.dataclass(frozen=True)
class CenterCrop:
    """Cuts out the middle of an image.

    Args:
        size: (height, width) in pixels, or one number for both.

    Example:
        >>> CenterCrop(2)(np.arange(16.0).reshape(1, 4, 4))
        array([[[ 5.,  6.],
                [ 9., 10.]]])
    """

    size: int | tuple[int, int]

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        rows, columns = _room("CenterCrop", image, self.size)
        return _cut(image, rows // 2, columns // 2, self.size)


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    """Cuts out a part of an image at a random position.

    Args:
        size: (height, width) in pixels, or one number for both.
        pad: number of zeros that are first added on each side.

    Example:
        >>> RandomCrop(2)(np.zeros((1, 4, 4)), np.random.default_rng(0)).shape
        (1, 2, 2)
    """

    size: int | tuple[int, int]
    pad: int = 0

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        random = _given("RandomCrop", random)
        _size("RandomCrop", image)
        if self.pad:
            image = np.pad(image, ((0, 0), (self.pad, self.pad), (self.pad, self.pad)))
        rows, columns = _room("RandomCrop", image, self.size)
        top, left = random.integers(rows + 1), random.integers(columns + 1)
        return _cut(image, top, left, self.size)


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop:
    """Cuts out a part of random area, proportions and position, and resizes it.

    If ten drawn parts do not fit, the greatest central part with allowed proportions is used.

    Args:
        size: (height, width) of the result in pixels, or one number for both.
        scale: least and greatest share of the image's area.
        ratio: least and greatest ratio of width to height; its logarithm is drawn uniformly.

    Example:
        >>> RandomResizedCrop(4)(np.zeros((3, 9, 9), np.float32), np.random.default_rng(0)).shape
        (3, 4, 4)

    See C. Szegedy et al., Going deeper with convolutions, CVPR 2015.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        random = _given("RandomResizedCrop", random)
        height, width = _size("RandomResizedCrop", image)
        for _ in range(10):
            area = height * width * random.uniform(*self.scale)
            least, most = self.ratio
            ratio = math.exp(random.uniform(math.log(least), math.log(most)))
            part = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < part[0] <= height and 0 < part[1] <= width:
                top = random.integers(height - part[0] + 1)
                left = random.integers(width - part[1] + 1)
                return resized(_cut(image, top, left, part), _pair(self.size))
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        part = min(height, round(width / ratio)), min(width, round(height * ratio))
        return resized(CenterCrop(part)(image), _pair(self.size))


@dataclasses.dataclass(frozen=True)
class RandomFlip:
    """Mirrors an image with a probability.

    Args:
        p: the probability that an image is mirrored.
        vertical: whether top and bottom are swapped; if not, left and right are.

    Example:
        >>> RandomFlip(p=1.0)(np.array([[[1, 2]]]), np.random.default_rng(0))
        array([[[2, 1]]])
    """

    p: float = 0.5
    vertical: bool = False

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        random = _given("RandomFlip", random)
        _size("RandomFlip", image)
        if random.random() >= self.p:
            return image
        return np.ascontiguousarray(np.flip(image, 1 if self.vertical else 2))


@dataclasses.dataclass(frozen=True)
class RandomErasing:
    """Fills a rectangle of random area and position, with a probability.

    Args:
        p: the probability that an image is changed.
        scale: least and greatest share of the image's area.
        value: the value of the filled pixels.

    Example:
        >>> image = np.ones((1, 8, 8), np.float32)
        >>> bool(RandomErasing(p=1.0)(image, np.random.default_rng(0)).all()), bool(image.all())
        (False, True)

    See Z. Zhong et al., Random erasing data augmentation, AAAI 2020.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    value: float = 0.0

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        random = _given("RandomErasing", random)
        height, width = _size("RandomErasing", image)
        if random.random() >= self.p:
            return image
        share = random.uniform(*self.scale)
        rows = max(1, round(height * math.sqrt(share)))
        columns = max(1, round(width * math.sqrt(share)))
        top, left = random.integers(height - rows + 1), random.integers(width - columns + 1)
        image = image.copy()
        image[:, top : top + rows, left : left + columns] = self.value
        return image


@dataclasses.dataclass(frozen=True)
class ColorJitter:
    """Changes brightness, contrast and saturation, in this order, by random factors.

    Args:
        brightness, contrast, saturation: greatest difference of each factor from 1.
        white: the greatest value of an image; results are clipped to the range from 0 to ``white``.

    Example:
        >>> ColorJitter(0.4, 0.4, 0.4)(np.ones((3, 2, 2)), np.random.default_rng(0)).shape
        (3, 2, 2)
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    white: float = 255.0

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        random = _given("ColorJitter", random)
        _size("ColorJitter", image)
        around = (
            (self.brightness, lambda x: 0.0),
            (self.contrast, lambda x: _gray(x).mean()),
            (self.saturation, _gray),
        )
        for strength, center in around:
            factor = random.uniform(1 - strength, 1 + strength)
            if strength:
                middle = center(image)
                image = np.clip(middle + (image - middle) * factor, 0, self.white)
        return image.astype(np.float32) if not is_floating(image.dtype) else image


class Normalize:
    """Subtracts means and divides by standard deviations.

    Args:
        mean, std: numbers, or sequences of one number for each channel.

    Example:
        >>> Normalize(1.0, 2.0)(np.full((1, 1, 1), 5.0, np.float32))
        array([[[2.]]], dtype=float32)
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]):
        self.mean = np.asarray(mean, np.float32).reshape(-1, 1, 1)
        self.std = np.asarray(std, np.float32).reshape(-1, 1, 1)

    def __call__(self, image: np.ndarray, random: Random = None) -> np.ndarray:
        n_channels = len(image)
        if {self.mean.size, self.std.size} - {1, n_channels}:
            raise ValueError(
                f"Normalize: mean and std must have 1 or {n_channels} numbers, as many as the "
                f"image has channels, not {self.mean.size} and {self.std.size}"
            )
        dtype = image.dtype if is_floating(image.dtype) else np.dtype(np.float32)
        return ((image - self.mean) / self.std).astype(dtype, copy=False)


def resized(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Returns an image in another size, as a floating-point array.

    >>> resized(np.ones((1, 4, 4), np.float32), (2, 3)).shape
    (1, 2, 3)
    """
    pillow = load_pillow("resized")
    height, width = size
    dtype = image.dtype if is_floating(image.dtype) else np.dtype(np.float32)
    if image.shape[1:] == (height, width):
        return image.astype(dtype, copy=False)
    bilinear = pillow.Resampling.BILINEAR
    channels = (pillow.fromarray(channel) for channel in image.astype(np.float32))
    return np.stack(
        [np.asarray(c.resize((width, height), bilinear)) for c in channels], dtype=dtype
    )


def _gray(image):
    if len(image) != 3:
        return image
    return np.tensordot(np.array([0.299, 0.587, 0.114], np.float32), image, 1)


def _pair(size):
    return (size, size) if isinstance(size, int) else size


def _size(name, image):
    if np.ndim(image) != 3:
        raise ValueError(
            f"{name}: image must be an array (channels, height, width), but has shape "
            f"{np.shape(image)}"
        )
    return image.shape[1:]


def _room(name, image, size):
    """Returns the numbers of rows and columns by which an image exceeds ``size``."""
    (height, width), (rows, columns) = _size(name, image), _pair(size)
    if rows > height or columns > width:
        raise ValueError(
            f"{name}: size {rows} x {columns} must not exceed the image, {height} x {width}"
        )
    return height - rows, width - columns


def _cut(image, top, left, size):
    rows, columns = _pair(size)
    return np.ascontiguousarray(image[:, top : top + rows, left : left + columns])


def _given(name, random):
    if random is None:
        raise TypeError(
            f"{name}: random must be a numpy.random.Generator, which AugmentedDataset passes"
        )
    return random
