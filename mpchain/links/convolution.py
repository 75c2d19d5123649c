"""Links of convolutions."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Self

from mpchain import functions as F
from mpchain.initializers import get_initializer
from mpchain.link import Chain, Link
from mpchain.links.parameters import bias_parameter, check_sizes
from mpchain.typing import InitialValue, Input, Sizes
from mpchain.utils.conv import get_conv_outsize, spatial
from mpchain.variable import Parameter, Variable, as_array


class _Windowed(Link):
    """Base of convolutions: weights W and bias b whose shapes depend on channels and windows.

    Args:
        ndim: number of spatial axes.
        channels: the numbers of input and output channels.
        ksize: size of the windows; if it is None, ``channels`` are out_channels and ksize.
        initialW: initializer, number or array of the weights.
        bias: ``nobias`` and ``initial_bias``.
        groups: number of groups of channels.
        window: further sizes per spatial axis: stride, pad, dilate, outsize.
    """

    groups = 1
    _ndim: int | None = None  # the number of axes, if the class fixes it
    _printable = ("in_channels", "out_channels", "ksize", "stride", "pad", "nobias")

    def __init__(self, ndim, channels, ksize, initialW, bias, groups=1, **window):
        super().__init__()
        in_channels, out_channels = channels
        if ksize is None:
            in_channels, out_channels, ksize = None, in_channels, out_channels
        check_sizes(self, ndim=ndim, out_channels=out_channels, groups=groups)
        self.ndim = ndim
        self.in_channels = in_channels
        self.out_channels = out_channels
        window = {"ksize": ksize, **window}
        for name, sizes in zip(window, spatial(type(self).__name__, ndim, **window)):
            setattr(self, name, sizes)
        self.groups = groups
        self.nobias, initial_bias = bias
        self._check_groups("out_channels", out_channels)
        with self.init_scope():
            self.W = Parameter(get_initializer(initialW))
            size = None if in_channels is not None else self._size_of_bias(None)
            self.b = bias_parameter(self.nobias, initial_bias, size)
        if in_channels is not None:
            self._initialize(in_channels)

    def _check_groups(self, what, channels):
        if channels % self.groups:
            raise ValueError(
                f"{type(self).__name__}: groups={self.groups} must divide {what}={channels}"
            )

    def _initialize(self, in_channels):
        check_sizes(self, in_channels=in_channels)
        self._check_groups("in_channels", in_channels)
        self.W.initialize((*self._channels_of_weights(in_channels), *self.ksize))
        if self.b is not None and not self.b.is_initialized:
            self.b.initialize(self._size_of_bias(in_channels))

    def _size_of_bias(self, in_channels):
        """Returns the size of the bias; None if it depends on unknown input channels."""
        return self.out_channels

    def _shape_fits(self, name, shape):
        if name == "b":
            return len(shape) == 1
        if name != "W":
            return True  # for another owner, such as a hook, any shape is allowed
        if len(shape) != self.ndim + 2:
            return False
        in_channels, _ = self._channels_from_weights(shape, self.groups)
        return shape == (*self._channels_of_weights(in_channels), *self.ksize)

    def _initialize_for(self, x):
        """Initializes the parameters, if necessary, for an input x."""
        if self.W.is_initialized:
            return
        if x.ndim != self.ndim + 2:
            raise ValueError(
                f"{type(self).__name__}: x must have {self.ndim + 2} axes (N, C, ...), "
                f"but has shape {x.shape}"
            )
        self._initialize(x.shape[1])

    @staticmethod
    def _channels_from_weights(shape, groups) -> tuple[int, int]:
        """Returns the numbers of input and output channels."""
        raise NotImplementedError

    @classmethod
    def from_params(
        cls,
        W: Input,
        b: Input | None = None,
        stride: Sizes = 1,
        pad: Sizes = 0,
        nobias: bool = False,
        **options: Any,
    ) -> Self:
        """Makes the link from arrays or Variables W and b, or without bias.

        Args:
            W: the weights, of the shape that the class documents.
            b: the bias, or None.
            stride, pad, nobias, options: further arguments of the link.
        """
        W, b = as_array(W), None if b is None else as_array(b)
        ndim = (W.ndim - 2,) if "ndim" in inspect.signature(cls).parameters else ()
        channels = cls._channels_from_weights(W.shape, options.get("groups", 1))
        options |= {"nobias": nobias or b is None, "initialW": W, "initial_bias": b}
        make: Any = cls  # classes for any number of axes take ndim as the first argument
        return make(*ndim, *channels, W.shape[2:], stride, pad, **options)


class ConvolutionND(_Windowed):
    """Convolution along ``ndim`` axes: :func:`mpchain.functions.convolution_nd` with parameters.

        >>> conv = L.ConvolutionND(3, 2, 8, ksize=3)
        >>> conv(np.ones((1, 2, 5, 5, 5), np.float32)).shape
        (1, 8, 3, 3, 3)

    Args:
        ndim: number of spatial axes.
        in_channels: number of input channels; None infers it from the first input.
        out_channels: number of output channels.
        ksize: size of the windows. If it is omitted, the two arguments before it are out_channels
            and ksize.
        stride, pad, cover_all, dilate, groups: see the function.
        nobias: whether to omit the bias.
        initialW: initializer, number or array of the shape of ``W``; None means LeCunNormal.
        initial_bias: initializer, number or array (out_channels,); None means zeros.

    Attributes:
        W (Parameter): weights (out_channels, in_channels / groups, *ksize).
        b (Parameter): bias (out_channels,), or None.

    Raises:
        ValueError: a size is not positive, or ``groups`` does not divide the numbers of channels.
    """

    _printable = (*_Windowed._printable, "cover_all", "dilate", "groups")

    def __init__(
        self,
        ndim: int,
        in_channels: int | None,
        out_channels: Sizes,
        ksize: Sizes | None = None,
        stride: Sizes = 1,
        pad: Sizes = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        cover_all: bool = False,
        dilate: Sizes = 1,
        groups: int = 1,
    ) -> None:
        window = {"stride": stride, "pad": pad, "dilate": dilate}
        channels, bias = (in_channels, out_channels), (nobias, initial_bias)
        super().__init__(ndim, channels, ksize, initialW, bias, groups, **window)
        self.cover_all = cover_all

    def _channels_of_weights(self, in_channels):
        return self.out_channels, in_channels // self.groups

    @staticmethod
    def _channels_from_weights(shape, groups):
        return shape[1] * groups, shape[0]

    def forward(self, x: Input) -> Variable:
        """Convolves a Variable or array x (N, in_channels, ...); returns a Variable (N,
        out_channels, ...)."""
        self._initialize_for(x)
        by_ndim: dict[int | None, Callable[..., Variable]]
        by_ndim = {1: F.convolution_1d, 2: F.convolution_2d, 3: F.convolution_3d}
        convolution = by_ndim.get(self._ndim, F.convolution_nd)
        options = {"dilate": self.dilate, "groups": self.groups}
        return convolution(x, self.W, self.b, self.stride, self.pad, self.cover_all, **options)


class _FixedConvolution(ConvolutionND):
    """Base of convolutions along ``_ndim`` axes."""

    def __init__(
        self,
        in_channels: int | None,
        out_channels: Sizes,
        ksize: Sizes | None = None,
        stride: Sizes = 1,
        pad: Sizes = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        cover_all: bool = False,
        dilate: Sizes = 1,
        groups: int = 1,
    ) -> None:
        window, options = (ksize, stride, pad), (nobias, initialW, initial_bias, cover_all)
        super().__init__(self._ndim, in_channels, out_channels, *window, *options, dilate, groups)


class Convolution1D(_FixedConvolution):
    """:class:`ConvolutionND` along one axis.

    >>> L.Convolution1D(3, 8, ksize=3, pad=1)(np.ones((2, 3, 10), np.float32)).shape
    (2, 8, 10)
    """

    _ndim = 1


class Convolution2D(_FixedConvolution):
    """:class:`ConvolutionND` of images.

    >>> L.Convolution2D(3, 8, ksize=3, pad=1)(np.ones((5, 3, 28, 28), np.float32)).shape
    (5, 8, 28, 28)
    """

    _ndim = 2


class Convolution3D(_FixedConvolution):
    """:class:`ConvolutionND` of volumes.

    >>> L.Convolution3D(3, 8, ksize=2)(np.ones((2, 3, 4, 5, 6), np.float32)).shape
    (2, 8, 3, 4, 5)
    """

    _ndim = 3


class DilatedConvolution2D(Convolution2D):
    """:class:`Convolution2D` with ``dilate`` as sixth argument, without ``cover_all`` and
    ``groups``.

        >>> L.DilatedConvolution2D(3, 8, ksize=3, dilate=2)(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 8, 4, 4)

    See F. Yu and V. Koltun, Multi-scale context aggregation by dilated convolutions, ICLR 2016.
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: Sizes,
        ksize: Sizes | None = None,
        stride: Sizes = 1,
        pad: Sizes = 0,
        dilate: Sizes = 1,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        initial = {"initialW": initialW, "initial_bias": initial_bias}
        window = ksize, stride, pad, nobias
        super().__init__(in_channels, out_channels, *window, dilate=dilate, **initial)


class DeconvolutionND(_Windowed):
    """Transposed convolution: :func:`mpchain.functions.deconvolution_nd` with parameters.

        >>> L.DeconvolutionND(1, 8, 3, ksize=4, stride=2)(np.ones((2, 8, 5), np.float32)).shape
        (2, 3, 12)

    Args:
        outsize: see the function. The other arguments are those of :class:`ConvolutionND`, without
            ``cover_all``.

    Attributes:
        W (Parameter): weights (in_channels, out_channels / groups, *ksize).
        b (Parameter): bias (out_channels,), or None.

    Raises:
        ValueError: a size is not positive, or ``groups`` does not divide the numbers of channels.
    """

    _printable = (*_Windowed._printable, "outsize", "dilate", "groups")
    outsize = None

    def __init__(
        self,
        ndim: int,
        in_channels: int | None,
        out_channels: Sizes,
        ksize: Sizes | None = None,
        stride: Sizes = 1,
        pad: Sizes = 0,
        nobias: bool = False,
        outsize: Sizes | None = None,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        dilate: Sizes = 1,
        groups: int = 1,
    ) -> None:
        window = {"stride": stride, "pad": pad, "dilate": dilate}
        if outsize is not None:
            window["outsize"] = outsize
        channels, bias = (in_channels, out_channels), (nobias, initial_bias)
        super().__init__(ndim, channels, ksize, initialW, bias, groups, **window)

    def _channels_of_weights(self, in_channels):
        return in_channels, self.out_channels // self.groups

    @staticmethod
    def _channels_from_weights(shape, groups):
        return shape[0], shape[1] * groups

    def forward(self, x: Input) -> Variable:
        """Convolves a Variable or array x (N, in_channels, ...); returns a Variable (N,
        out_channels, ...)."""
        self._initialize_for(x)
        by_ndim: dict[int | None, Callable[..., Variable]]
        by_ndim = {1: F.deconvolution_1d, 2: F.deconvolution_2d, 3: F.deconvolution_3d}
        deconvolution = by_ndim.get(self._ndim, F.deconvolution_nd)
        options = {"dilate": self.dilate, "groups": self.groups}
        return deconvolution(x, self.W, self.b, self.stride, self.pad, self.outsize, **options)


class _FixedDeconvolution(DeconvolutionND):
    """Base of transposed convolutions along ``_ndim`` axes."""

    def __init__(
        self,
        in_channels: int | None,
        out_channels: Sizes,
        ksize: Sizes | None = None,
        stride: Sizes = 1,
        pad: Sizes = 0,
        nobias: bool = False,
        outsize: Sizes | None = None,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        dilate: Sizes = 1,
        groups: int = 1,
    ) -> None:
        window, options = (ksize, stride, pad), (nobias, outsize, initialW, initial_bias)
        super().__init__(self._ndim, in_channels, out_channels, *window, *options, dilate, groups)


class Deconvolution1D(_FixedDeconvolution):
    """:class:`DeconvolutionND` along one axis.

    >>> L.Deconvolution1D(8, 3, ksize=4, stride=2)(np.ones((2, 8, 5), np.float32)).shape
    (2, 3, 12)
    """

    _ndim = 1


class Deconvolution2D(_FixedDeconvolution):
    """:class:`DeconvolutionND` of images.

    >>> L.Deconvolution2D(8, 3, ksize=4, stride=2, pad=1)(np.ones((2, 8, 7, 7), np.float32)).shape
    (2, 3, 14, 14)
    """

    _ndim = 2


class Deconvolution3D(_FixedDeconvolution):
    """:class:`DeconvolutionND` of volumes.

    >>> L.Deconvolution3D(8, 3, ksize=2, stride=2)(np.ones((2, 8, 3, 3, 3), np.float32)).shape
    (2, 3, 6, 6, 6)
    """

    _ndim = 3


class DepthwiseConvolution2D(_Windowed):
    """Depthwise convolution: :func:`mpchain.functions.depthwise_convolution_2d` with parameters.

        >>> L.DepthwiseConvolution2D(3, 2, ksize=3)(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 6, 6, 6)

    Args:
        in_channels: number of input channels, C; None infers it from the first input.
        channel_multiplier: number of output channels per input channel, D.
        ksize: size of the windows.
        stride, pad: see the function.
        nobias: whether to omit the bias.
        initialW: initializer, number or array (D, C, *ksize); None means LeCunNormal.
        initial_bias: initializer, number or array (C * D,); None means zeros.

    Attributes:
        W (Parameter): weights (D, C, *ksize).
        b (Parameter): bias (C * D,), or None.
    """

    def __init__(
        self,
        in_channels: int | None,
        channel_multiplier: int,
        ksize: Sizes,
        stride: Sizes = 1,
        pad: Sizes = 0,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        channels, bias = (in_channels, channel_multiplier), (nobias, initial_bias)
        super().__init__(2, channels, ksize, initialW, bias, stride=stride, pad=pad)

    def _channels_of_weights(self, in_channels):
        return self.out_channels, in_channels

    @staticmethod
    def _channels_from_weights(shape, groups):
        return shape[1], shape[0]

    def _size_of_bias(self, in_channels):
        return None if in_channels is None else in_channels * self.out_channels

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        for name, value in super().printable_specs:
            yield "channel_multiplier" if name == "out_channels" else name, value

    def forward(self, x: Input) -> Variable:
        """Convolves a Variable or array x (N, C, H, W); returns a Variable (N, C * D, out_h,
        out_w)."""
        self._initialize_for(x)
        return F.depthwise_convolution_2d(x, self.W, self.b, self.stride, self.pad)


class _Sampler(Convolution2D):
    """A convolution whose window elements have offsets."""

    def forward(self, x: Input, offset) -> Variable:
        self._initialize_for(x)
        window = self.stride, self.pad
        return F.deformable_convolution_2d_sampler(x, offset, self.W, self.b, *window)


class DeformableConvolution2D(Chain):
    """Deformable convolution: :func:`mpchain.functions.deformable_convolution_2d_sampler`.

    An ordinary convolution of the input computes the offsets of the elements of the windows.

        >>> L.DeformableConvolution2D(3, 4, ksize=3, pad=1)(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 4, 8, 8)

    Args:
        in_channels: number of input channels; None infers it from the first input.
        out_channels: number of output channels.
        ksize: size of the windows.
        stride, pad: see the function.
        offset_nobias, offset_initialW, offset_initial_bias: see :class:`Convolution2D`; for the
            convolution that computes the offsets.
        deform_nobias, deform_initialW, deform_initial_bias: the arguments of :class:`Convolution2D`
            for the deformable convolution, except that ``deform_initialW=None`` means zeros.

    Attributes:
        offset_conv (Convolution2D): the convolution that computes the offsets, with weights (2 * kh
            * kw, in_channels, kh, kw).
        deform_conv (Convolution2D): the deformable convolution, with weights
            (out_channels, in_channels, kh, kw).

    See J. Dai et al., Deformable convolutional networks, ICCV 2017.
    """

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int,
        ksize: Sizes,
        stride: Sizes = 1,
        pad: Sizes = 0,
        offset_nobias: bool = False,
        offset_initialW: InitialValue = None,
        offset_initial_bias: InitialValue = None,
        deform_nobias: bool = False,
        deform_initialW: InitialValue = None,
        deform_initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        ((kh, kw),) = spatial("DeformableConvolution2D", 2, ksize=ksize)
        if deform_initialW is None:
            deform_initialW = 0
        initial_offset = offset_nobias, offset_initialW, offset_initial_bias
        initial_deform = deform_nobias, deform_initialW, deform_initial_bias
        window = (kh, kw), stride, pad
        with self.init_scope():
            self.offset_conv = Convolution2D(in_channels, 2 * kh * kw, *window, *initial_offset)
            self.deform_conv = _Sampler(in_channels, out_channels, *window, *initial_deform)

    def forward(self, x: Input) -> Variable:
        """Convolves a Variable or array x (N, in_channels, H, W); returns a Variable (N,
        out_channels, ...)."""
        return self.deform_conv(x, self.offset_conv(x))


class LocalConvolution2D(Link):
    """Convolution with weights per position: :func:`mpchain.functions.local_convolution_2d`.

        >>> L.LocalConvolution2D(3, 4, in_size=8, ksize=3)(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 4, 6, 6)

    Args:
        in_channels: number of input channels, C; None infers it from the first input.
        out_channels: number of output channels, O.
        in_size: height and width of the input; None infers them from the first input.
        ksize: size of the windows.
        stride: see the function.
        nobias: whether to omit the bias.
        initialW: initializer, number or array of the shape of ``W``; None means LeCunNormal.
        initial_bias: initializer, number or array of the shape of ``b``; None means zeros.

    Attributes:
        W (Parameter): weights (O, out_h, out_w, C, *ksize).
        b (Parameter): bias (O, out_h, out_w), or None.

    Raises:
        TypeError: ``ksize`` is missing.
        ValueError: a size is not positive, or the windows do not fit in the input.
    """

    _printable = ("in_channels", "out_channels", "in_size", "ksize", "stride", "nobias")

    def __init__(
        self,
        in_channels: int | None,
        out_channels: int,
        in_size: Sizes | None = None,
        ksize: Sizes | None = None,
        stride: Sizes = 1,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        if ksize is None:
            raise TypeError("LocalConvolution2D: ksize must be given")
        check_sizes(self, out_channels=out_channels)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.in_size = None
        window = {"ksize": ksize, "stride": stride}
        if in_size is not None:
            window["in_size"] = in_size
        for name, sizes in zip(window, spatial("LocalConvolution2D", 2, **window)):
            setattr(self, name, sizes)
        self.nobias = nobias
        with self.init_scope():
            self.W = Parameter(get_initializer(initialW))
            self.b = bias_parameter(nobias, initial_bias)
        if in_channels is not None and in_size is not None:
            self._initialize(in_channels, self.in_size)

    def _initialize(self, in_channels, in_size):
        check_sizes(self, in_channels=in_channels)
        axes = zip(in_size, self.ksize, self.stride)
        sizes = tuple(get_conv_outsize(n, k, s, 0) for n, k, s in axes)
        if min(sizes) <= 0:
            raise ValueError(
                "LocalConvolution2D: in_size must not be smaller than ksize, but windows of size "
                f"{self.ksize} do not fit in {tuple(in_size)}"
            )
        self.W.initialize((self.out_channels, *sizes, in_channels, *self.ksize))
        if self.b is not None:
            self.b.initialize((self.out_channels, *sizes))

    def _shape_fits(self, name, shape):
        if name == "b":
            return len(shape) == 3 and shape[0] == self.out_channels
        if name != "W":
            return True  # for another owner, such as a hook, any shape is allowed
        return len(shape) == 6 and (shape[0], *shape[4:]) == (self.out_channels, *self.ksize)

    def forward(self, x: Input) -> Variable:
        """Convolves a Variable or array x (N, C, H, W); returns a Variable (N, O, out_h, out_w)."""
        if not self.W.is_initialized:
            if x.ndim != 4:
                raise ValueError(
                    f"LocalConvolution2D: x must have 4 axes (N, C, H, W), but has shape {x.shape}"
                )
            self._initialize(x.shape[1], x.shape[2:])
        return F.local_convolution_2d(x, self.W, self.b, self.stride)
