"""Links that multiply their input by weights."""

import functools
import inspect
import math

from mpchain import functions as F
from mpchain.initializers import get_initializer
from mpchain.link import Link
from mpchain.utils.conv import as_tuple
from mpchain.variable import Parameter, as_array


def _bias(nobias, initial_bias, size):
    """The bias, zeros by default; None if there shall be none."""
    if nobias:
        return None
    return Parameter(get_initializer(0 if initial_bias is None else initial_bias), size)


class Linear(Link):
    """Affine map of :func:`mpchain.functions.linear`, y = x W^T + b, with its parameters.

        >>> L.Linear(3, 2)(np.ones((5, 3), np.float32)).shape
        (5, 2)

    Args:
        in_size (int): number of input features; None leaves it to the first input. If it is the
            only size given, it is the output's.
        out_size (int): number of output features.
        nobias (bool): whether to leave the bias out.
        initialW: initializer, number or array (out_size, in_size); None is LeCunNormal.
        initial_bias: initializer, number or array (out_size,); None is zeros.

    Attributes:
        W (Parameter): weights (out_size, in_size).
        b (Parameter): bias (out_size,), or None.
    """

    def __init__(self, in_size, out_size=None, nobias=False, initialW=None, initial_bias=None):
        super().__init__()
        if out_size is None:
            in_size, out_size = None, in_size
        self.in_size = in_size
        self.out_size = out_size
        self.nobias = nobias
        with self.init_scope():
            self.W = Parameter(get_initializer(initialW))
            self.b = _bias(nobias, initial_bias, out_size)
        if in_size is not None:
            self.W.initialize((out_size, in_size))

    @classmethod
    def from_params(cls, W, b=None, nobias=False):
        """Makes the link from arrays or Variables W (O, I) and b (O,); without b there is none."""
        W, b = as_array(W), None if b is None else as_array(b)
        return cls(W.shape[1], W.shape[0], nobias or b is None, W, b)

    @property
    def printable_specs(self):
        in_size = self.W.shape[1] if self.W.is_initialized else self.in_size
        return zip(("in_size", "out_size", "nobias"), (in_size, self.out_size, self.nobias))

    def forward(self, x, n_batch_axes=1):
        """Applies the map.

        Args:
            x: Variable or array (N, ...): the axes after the first ``n_batch_axes`` are flattened.
            n_batch_axes (int): the number of leading axes that stay.

        Returns:
            Variable (N, out_size).
        """
        if not self.W.is_initialized and x.ndim > n_batch_axes:
            self.W.initialize((self.out_size, math.prod(x.shape[n_batch_axes:])))
        return F.linear(x, self.W, self.b, n_batch_axes)


class _WindowLink(Link):
    """What convolutions and transposed convolutions share: the arguments, W and b."""

    def __init__(
        self,
        ndim,
        in_channels,
        out_channels,
        ksize,
        stride,
        pad,
        nobias,
        initialW,
        initial_bias,
        dilate,
        groups,
    ):
        super().__init__()
        if ksize is None:
            in_channels, out_channels, ksize = None, in_channels, out_channels
        self.ndim = ndim
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.ksize = as_tuple(ksize, ndim)
        self.stride = as_tuple(stride, ndim)
        self.pad = as_tuple(pad, ndim)
        self.nobias = nobias
        self.dilate = as_tuple(dilate, ndim)
        self.groups = groups
        self._check_groups("out_channels", out_channels)
        with self.init_scope():
            self.W = Parameter(get_initializer(initialW))
            self.b = _bias(nobias, initial_bias, out_channels)
        if in_channels is not None:
            self._initialize(in_channels)

    def _check_groups(self, what, channels):
        if channels % self.groups:
            raise ValueError(
                f"{type(self).__name__}: groups={self.groups} must divide {what}={channels}"
            )

    def _initialize(self, in_channels):
        self._check_groups("in_channels", in_channels)
        self.W.initialize((*self._channels_of_weights(in_channels), *self.ksize))

    def _initialize_for(self, x):
        if x.ndim != self.ndim + 2:
            raise ValueError(
                f"{type(self).__name__}: x must have {self.ndim + 2} axes (N, C, ...), "
                f"but has shape {x.shape}"
            )
        self._initialize(x.shape[1])

    @classmethod
    def from_params(cls, W, b=None, stride=1, pad=0, nobias=False, **options):
        """Makes the link from arrays or Variables W and b; without b there is none.

        Args:
            W: the weights.
            b: the bias, or None.
            stride, pad, nobias, options: further arguments of the link.
        """
        W, b = as_array(W), None if b is None else as_array(b)
        ndim = (W.ndim - 2,) if "ndim" in inspect.signature(cls).parameters else ()
        channels = cls._channels_from_weights(W, options.get("groups", 1))
        options |= {"nobias": nobias or b is None, "initialW": W, "initial_bias": b}
        return cls(*ndim, *channels, W.shape[2:], stride, pad, **options)

    @property
    def printable_specs(self):
        names = ("in_channels", "out_channels", "ksize", "stride", "pad", "nobias")
        for name in (*names, self._own_option, "dilate", "groups"):
            yield name, getattr(self, name)


class ConvolutionND(_WindowLink):
    """Convolution of :func:`mpchain.functions.convolution_nd` with its parameters.

    Args:
        ndim (int): number of spatial axes.
        in_channels (int): number of input channels; None leaves it to the first input.
        out_channels (int): number of output channels.
        ksize (int or tuple of int): size of the windows. If it is not given, the two arguments
            before it are out_channels and ksize.
        stride, pad, cover_all, dilate, groups: see the function.
        nobias (bool): whether to leave the bias out.
        initialW: initializer, number or array of the shape of ``W``; None is LeCunNormal.
        initial_bias: initializer, number or array (out_channels,); None is zeros.

    Attributes:
        W (Parameter): weights (out_channels, in_channels / groups, *ksize).
        b (Parameter): bias (out_channels,), or None.

    Raises:
        ValueError: ``groups`` does not divide the numbers of channels.
    """

    _functions = {1: F.convolution_1d, 2: F.convolution_2d, 3: F.convolution_3d}
    _own_option = "cover_all"

    def __init__(
        self,
        ndim,
        in_channels,
        out_channels,
        ksize=None,
        stride=1,
        pad=0,
        nobias=False,
        initialW=None,
        initial_bias=None,
        cover_all=False,
        dilate=1,
        groups=1,
    ):
        arguments = (ksize, stride, pad, nobias, initialW, initial_bias, dilate, groups)
        super().__init__(ndim, in_channels, out_channels, *arguments)
        self.cover_all = cover_all

    def _channels_of_weights(self, in_channels):
        return self.out_channels, in_channels // self.groups

    @staticmethod
    def _channels_from_weights(W, groups):
        return W.shape[1] * groups, W.shape[0]

    def forward(self, x):
        """Applies the convolution to a Variable or array x (N, in_channels, ...)."""
        if not self.W.is_initialized:
            self._initialize_for(x)
        convolution = self._functions.get(self.ndim, F.convolution_nd)
        options = {"dilate": self.dilate, "groups": self.groups}
        return convolution(x, self.W, self.b, self.stride, self.pad, self.cover_all, **options)


class Convolution1D(ConvolutionND):
    """:class:`ConvolutionND` along one axis."""

    __init__ = functools.partialmethod(ConvolutionND.__init__, 1)


class Convolution2D(ConvolutionND):
    """:class:`ConvolutionND` of images.

    >>> L.Convolution2D(3, 8, ksize=3, pad=1)(np.ones((5, 3, 28, 28), np.float32)).shape
    (5, 8, 28, 28)
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        ksize=None,
        stride=1,
        pad=0,
        nobias=False,
        initialW=None,
        initial_bias=None,
        *,
        dilate=1,
        groups=1,
    ):
        arguments = (ksize, stride, pad, nobias, initialW, initial_bias, False, dilate, groups)
        super().__init__(2, in_channels, out_channels, *arguments)


class Convolution3D(ConvolutionND):
    """:class:`ConvolutionND` of volumes."""

    __init__ = functools.partialmethod(ConvolutionND.__init__, 3)


class DeconvolutionND(_WindowLink):
    """Transposed convolution of :func:`mpchain.functions.deconvolution_nd` with its parameters.

    Args:
        outsize (tuple of int): see the function.
        ndim, in_channels, out_channels, ksize, stride, pad, nobias, initialW, initial_bias, dilate,
            groups: see :class:`ConvolutionND`.

    Attributes:
        W (Parameter): weights (in_channels, out_channels / groups, *ksize).
        b (Parameter): bias (out_channels,), or None.

    Raises:
        ValueError: ``groups`` does not divide the numbers of channels.
    """

    _functions = {1: F.deconvolution_1d, 2: F.deconvolution_2d, 3: F.deconvolution_3d}
    _own_option = "outsize"

    def __init__(
        self,
        ndim,
        in_channels,
        out_channels,
        ksize=None,
        stride=1,
        pad=0,
        nobias=False,
        outsize=None,
        initialW=None,
        initial_bias=None,
        dilate=1,
        groups=1,
    ):
        arguments = (ksize, stride, pad, nobias, initialW, initial_bias, dilate, groups)
        super().__init__(ndim, in_channels, out_channels, *arguments)
        self.outsize = None if outsize is None else as_tuple(outsize, ndim)

    def _channels_of_weights(self, in_channels):
        return in_channels, self.out_channels // self.groups

    @staticmethod
    def _channels_from_weights(W, groups):
        return W.shape[0], W.shape[1] * groups

    def forward(self, x):
        """Applies the transposed convolution to a Variable or array x (N, in_channels, ...)."""
        if not self.W.is_initialized:
            self._initialize_for(x)
        deconvolution = self._functions.get(self.ndim, F.deconvolution_nd)
        options = {"dilate": self.dilate, "groups": self.groups}
        return deconvolution(x, self.W, self.b, self.stride, self.pad, self.outsize, **options)


class Deconvolution1D(DeconvolutionND):
    """:class:`DeconvolutionND` along one axis."""

    __init__ = functools.partialmethod(DeconvolutionND.__init__, 1)


class Deconvolution2D(DeconvolutionND):
    """:class:`DeconvolutionND` of images."""

    def __init__(
        self,
        in_channels,
        out_channels,
        ksize=None,
        stride=1,
        pad=0,
        nobias=False,
        outsize=None,
        initialW=None,
        initial_bias=None,
        *,
        dilate=1,
        groups=1,
    ):
        arguments = (ksize, stride, pad, nobias, outsize, initialW, initial_bias, dilate, groups)
        super().__init__(2, in_channels, out_channels, *arguments)


class Deconvolution3D(DeconvolutionND):
    """:class:`DeconvolutionND` of volumes."""

    __init__ = functools.partialmethod(DeconvolutionND.__init__, 3)
