"""Initializers for the weights of convolutions that resize images."""

import functools

import numpy as np

from mpchain import backend
from mpchain.initializers.initializer import Initializer
from mpchain.typing import Array, DTypeLike


class UpsamplingDeconvFilter(Initializer):
    """Fills the weights of a deconvolution that enlarges each channel by linear interpolation.

    The stride of the deconvolution should be (ksize + 1) // 2.

        >>> a = np.empty((1, 1, 4))
        >>> UpsamplingDeconvFilter()(a)
        >>> a.ravel()
        array([0.25, 0.75, 0.75, 0.25])

    Args:
        interpolation: must be ``'linear'``.
        dtype: see :class:`Initializer`.

    Raises:
        ValueError: ``interpolation`` is not ``'linear'``; when called, the window of the weights is
            missing or not a square or cube, or the numbers of channels differ and neither is 1.

    See J. Long et al., Fully convolutional networks for semantic segmentation, CVPR 2015.
    """

    def __init__(self, interpolation: str = "linear", dtype: DTypeLike = None) -> None:
        if interpolation != "linear":
            raise ValueError(
                f"{type(self).__name__}: interpolation must be 'linear', not {interpolation!r}"
            )
        super().__init__(dtype)
        self.interpolation = interpolation

    def __call__(self, array: Array) -> None:
        n_out, n_in, *window = array.shape if array.ndim > 1 else (0, 0)
        if not window or len(set(window)) > 1:
            raise ValueError(
                f"{type(self).__name__}: weights must have shape (channels, channels, k, ...) with "
                f"the same k for all axes, not {array.shape}"
            )
        if n_out != n_in and min(n_out, n_in) != 1:
            raise ValueError(
                f"{type(self).__name__}: the numbers of channels must be equal, or one of them "
                f"must be 1, but they are {n_out} and {n_in}"
            )
        filters = np.zeros(array.shape)
        filters[np.arange(n_out), np.arange(n_in)] = self.filter(*window)
        backend.copyto(array, filters)

    def filter(self, *window: int) -> Array:
        """Returns the weights for one channel, which are a product of triangles."""
        size = window[0]
        factor = (size + 1) // 2
        triangle = 1 - np.abs(np.arange(size) - (size - 1) / 2) / factor
        return functools.reduce(np.multiply.outer, [triangle] * len(window))


class DownsamplingConvFilter(UpsamplingDeconvFilter):
    """Fills the weights of a convolution that shrinks each channel by linear interpolation.

    The stride of the convolution should be (ksize + 1) // 2.

        >>> a = np.empty((1, 1, 3))
        >>> DownsamplingConvFilter()(a)
        >>> a.ravel()
        array([0.25, 0.5 , 0.25])

    Args:
        interpolation, dtype: see :class:`UpsamplingDeconvFilter`.
    """

    def filter(self, *window: int) -> Array:
        """Returns the weights for one channel, which are a product of triangles and sum to one."""
        filter = super().filter(*window)
        return filter / filter.sum()
