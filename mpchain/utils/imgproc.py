"""Crops of images."""

from collections.abc import Sequence

import numpy as np

from mpchain.typing import Array


def oversample(images: Array | Sequence[Array], crop_dims: tuple[int, int]) -> Array:
    """Returns ten crops of each image: the corners, the center, and their mirror images.

    Args:
        images: array (N, C, H, W), or a list of arrays (C, H, W).
        crop_dims: height and width of a crop.

    Returns:
        numpy.ndarray: (10 N, C, *crop_dims); the ten crops of an image are adjacent.

    Raises:
        ValueError: a crop is larger than the images.

    Example:
        >>> oversample(np.zeros((2, 3, 32, 32)), (24, 24)).shape
        (20, 3, 24, 24)
    """
    images = np.asarray(images)
    height, width = crop_dims
    room = images.shape[2] - height, images.shape[3] - width
    if min(room) < 0:
        raise ValueError(
            f"oversample: crop_dims {tuple(crop_dims)} must not exceed the size {images.shape[2:]} "
            "of the images"
        )
    corners = [(i, j) for i in (0, room[0]) for j in (0, room[1])]
    places = [*corners, (room[0] // 2, room[1] // 2)]
    crops = [images[:, :, i : i + height, j : j + width] for i, j in places]
    crops += [crop[:, :, :, ::-1] for crop in crops]
    return np.stack(crops, axis=1).reshape(-1, images.shape[1], height, width)
