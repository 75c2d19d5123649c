"""Pieces of pictures."""

import numpy as np


def oversample(images, crop_dims):
    """Cuts ten pieces out of each image: the corners and the center, then these mirrored.

    Args:
        images: array (N, C, H, W), or a list of arrays (C, H, W).
        crop_dims (pair of int): height and width of the pieces.

    Returns:
        numpy.ndarray: (10 N, C, *crop_dims), the ten of an image one after the other.

    Raises:
        ValueError: the pieces are larger than the images.
    """
    images = np.asarray(images)
    height, width = crop_dims
    room = images.shape[2] - height, images.shape[3] - width
    if min(room) < 0:
        raise ValueError(
            f"oversample: crop_dims {tuple(crop_dims)} must fit the images of {images.shape[2:]}"
        )
    corners = [(i, j) for i in (0, room[0]) for j in (0, room[1])]
    places = [*corners, (room[0] // 2, room[1] // 2)]
    crops = [images[:, :, i : i + height, j : j + width] for i, j in places]
    crops += [crop[:, :, :, ::-1] for crop in crops]
    return np.stack(crops, axis=1).reshape(-1, images.shape[1], height, width)
