"""ONNX's operator Resize, as a matrix along each axis."""

import functools
import math
from typing import Any

import numpy as np

from mpchain.functions.resampling import map_axis
from mpchain.typing import Array
from mpchain.variable import as_array, as_variable


def resize(
    x: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    axes: Any = None,
    antialias: int = 0,
    keep_aspect_ratio_policy: str = "stretch",
) -> Any:
    """Resizes axes of an array; the arguments have the meaning of ONNX's inputs and attributes of
    these names.

    Raises:
        NotImplementedError: the arguments ask for regions (``tf_crop_and_resize``), antialiasing,
            or a kept aspect ratio.

    >>> resize(np.array([[1.0, 3.0]]), sizes=np.array([1, 4])).array
    array([[1., 1., 3., 3.]])
    """
    where = coordinate_transformation_mode
    if where not in _COORDINATES or antialias or keep_aspect_ratio_policy != "stretch":
        raise NotImplementedError(
            f"ONNXModel: Resize with {where}, antialias={antialias} and "
            f"{keep_aspect_ratio_policy} is not supported"
        )
    axes = range(x.ndim) if axes is None else [axis % x.ndim for axis in axes]
    given = None if scales is None or not as_array(scales).size else as_array(scales).tolist()
    wanted: Any = None if given else as_array(sizes).tolist()
    y = as_variable(x)
    for i, axis in enumerate(axes):
        old = x.shape[axis]
        new = math.floor(old * given[i]) if given else int(wanted[i])
        scale = given[i] if given else new / old
        if new == old and scale == 1:
            continue
        options = where, nearest_mode, cubic_coeff_a, bool(exclude_outside)
        y = map_axis(y, _matrix(old, new, scale, mode, *options), axis)
    return y


_COORDINATES = {
    "half_pixel": lambda i, old, new, scale: (i + 0.5) / scale - 0.5,
    "half_pixel_symmetric": lambda i, old, new, scale: (
        old / 2 * (1 - new / (scale * old)) + (i + 0.5) / scale - 0.5
    ),
    "pytorch_half_pixel": lambda i, old, new, scale: ((i + 0.5) / scale - 0.5) * (new > 1),
    "align_corners": lambda i, old, new, scale: i * (old - 1) / max(new - 1, 1),
    "asymmetric": lambda i, old, new, scale: i / scale,
}
"""Maps a transformation mode to a function that returns the position on the old axis of the i-th
element of the new axis."""

_NEAREST = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@functools.lru_cache(maxsize=256)
def _matrix(old, new, scale, mode, where, nearest, a, excludes_outside) -> Array:
    """Returns the matrix (new, old) of the weights of the old elements in each new one."""
    x = _COORDINATES[where](np.arange(new), old, new, scale)
    if mode == "nearest":
        taps = _NEAREST[nearest](x)[:, None]
        weights = np.ones(taps.shape)
    else:
        n = 2 if mode == "linear" else 4
        taps = np.floor(x)[:, None] + np.arange(1 - n // 2, 1 + n // 2)
        d = abs(x[:, None] - taps)
        weights = 1 - d
        if mode == "cubic":
            near = ((a + 2) * d - (a + 3)) * d * d + 1
            weights = np.where(d <= 1, near, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)
    if excludes_outside:
        weights = weights * ((taps >= 0) & (taps < old))
        weights /= weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((new, old))
    places = np.arange(new)[:, None], taps.clip(0, old - 1).astype(np.intp)
    np.add.at(matrix, places, weights)
    return matrix
