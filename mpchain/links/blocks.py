"""Layers that combine several convolutions or affine maps."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from mpchain import functions as F
from mpchain.initializers import get_initializer
from mpchain.link import Chain, ChainList
from mpchain.links.connection import Linear
from mpchain.links.convolution import Convolution2D
from mpchain.links.normalization import BatchNormalization
from mpchain.links.parameters import check_sizes
from mpchain.typing import DTypeLike, InitialValue, Input, Sizes
from mpchain.variable import Variable


class Highway(Chain):
    """Highway layer: t * activate(x Wh^T + bh) + (1 - t) * x with t = sigmoid(x Wt^T + bt).

        >>> L.Highway(3)(np.ones((5, 3), np.float32)).shape
        (5, 3)

    Args:
        in_out_size: number of features of input and output.
        nobias: whether to omit the biases.
        activate: activation function of the plain map.
        init_Wh, init_Wt: initializers, numbers or arrays (in_out_size, in_out_size); None means
            LeCunNormal.
        init_bh, init_bt: initializers, numbers or arrays (in_out_size,); None means zeros.

    Attributes:
        plain, transform (Linear): the two maps, with weights (in_out_size, in_out_size).

    See R. K. Srivastava et al., Highway networks, 2015.
    """

    def __init__(
        self,
        in_out_size: int,
        nobias: bool = False,
        activate: Callable[[Any], Any] = F.relu,
        init_Wh: InitialValue = None,
        init_Wt: InitialValue = None,
        init_bh: InitialValue = None,
        init_bt: InitialValue = -1,
    ) -> None:
        super().__init__()
        self.activate = activate
        sizes = in_out_size, in_out_size, nobias
        with self.init_scope():
            self.plain = Linear(*sizes, init_Wh, init_bh)
            self.transform = Linear(*sizes, init_Wt, init_bt)

    def forward(self, x: Input) -> Variable:
        """Applies the layer to a Variable or array x (N, in_out_size); returns a Variable (N,
        in_out_size)."""
        plain = self.activate(self.plain(x))
        t = F.sigmoid(self.transform(x))
        return plain * t + x * (1 - t)


class MLPConvolution2D(ChainList):
    """Convolution followed by 1 x 1 convolutions: network in network.

        >>> L.MLPConvolution2D(3, (16, 8), ksize=3, pad=1)(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 8, 8, 8)

    Args:
        in_channels: number of input channels; None infers it from the first input.
        out_channels: numbers of output channels, of the first convolution and of the 1 x 1
            convolutions.
        ksize: window size of the first convolution. If it is omitted, the first two arguments are
            out_channels and ksize.
        stride, pad: the stride and padding of the first convolution.
        activation: the function between the convolutions.
        conv_init, bias_init: initializers, numbers or arrays of weights and biases.

    Raises:
        ValueError: ``out_channels`` is not a tuple or list, or is empty.

    See M. Lin et al., Network in network, ICLR 2014.
    """

    def __init__(
        self,
        in_channels: int | Sequence[int] | None,
        out_channels: Sequence[int] | Sizes,
        ksize: Sizes | None = None,
        stride: Sizes = 1,
        pad: Sizes = 0,
        activation: Callable[[Any], Any] = F.relu,
        *,
        conv_init: InitialValue = None,
        bias_init: InitialValue = None,
    ) -> None:
        n: Any = in_channels
        channels, window = out_channels, ksize
        if ksize is None:
            n, channels, window = None, in_channels, out_channels
        if not isinstance(channels, (tuple, list)) or not channels or window is None:
            raise ValueError(
                "MLPConvolution2D: out_channels must be a tuple of one or more sizes, "
                f"but is {channels!r}"
            )
        make = functools.partial(Convolution2D, initialW=conv_init, initial_bias=bias_init)
        first, *others = channels
        super().__init__(make(n, first, window, stride, pad))
        for size, next_size in zip(channels, others):
            self.append(make(size, next_size, 1))
        self.activation = activation

    def forward(self, x: Input) -> Variable:
        """Applies the layer to a Variable or array x (N, in_channels, H, W)."""
        *inner, last = self
        for convolution in inner:
            x = self.activation(convolution(x))
        return last(x)


class Inception(Chain):
    """Inception module of GoogLeNet: concatenates the rectified outputs of four branches.

        >>> L.Inception(3, 4, 2, 4, 2, 4, 4)(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 16, 8, 8)

    Args:
        in_channels: number of input channels; None infers it from the first input.
        out1: output channels of the 1 x 1 branch.
        proj3, out3: reduced and output channels of the 3 x 3 branch.
        proj5, out5: reduced and output channels of the 5 x 5 branch.
        proj_pool: output channels of the max-pooling branch.
        conv_init, bias_init: initializers, numbers or arrays of weights and biases.

    Attributes:
        conv1, proj3, conv3, proj5, conv5, projp (Convolution2D): the convolutions, with weights
            (output channels, input channels, k, k).

    See C. Szegedy et al., Going deeper with convolutions, CVPR 2015.
    """

    def __init__(
        self,
        in_channels: int | None,
        out1: int,
        proj3: int,
        out3: int,
        proj5: int,
        out5: int,
        proj_pool: int,
        conv_init: InitialValue = None,
        bias_init: InitialValue = None,
    ) -> None:
        super().__init__()
        make = functools.partial(Convolution2D, initialW=conv_init, initial_bias=bias_init)
        with self.init_scope():
            self.conv1 = make(in_channels, out1, 1)
            self.proj3 = make(in_channels, proj3, 1)
            self.conv3 = make(proj3, out3, 3, pad=1)
            self.proj5 = make(in_channels, proj5, 1)
            self.conv5 = make(proj5, out5, 5, pad=2)
            self.projp = make(in_channels, proj_pool, 1)

    def forward(self, x: Input) -> Variable:
        """Applies the module.

        Args:
            x: Variable or array (N, in_channels, H, W).

        Returns:
            Variable (N, out1 + out3 + out5 + proj_pool, H, W).
        """
        branches = (
            self.conv1(x),
            self.conv3(F.relu(self.proj3(x))),
            self.conv5(F.relu(self.proj5(x))),
            self.projp(F.max_pooling_2d(x, 3, stride=1, pad=1)),
        )
        return F.relu(F.concat(branches))


class InceptionBN(Chain):
    """Inception module with batch normalization after each convolution.

        >>> L.InceptionBN(3, 4, 2, 4, 2, 4, "avg", 4)(np.ones((2, 3, 8, 8), np.float32)).shape
        (2, 16, 8, 8)

    Args:
        in_channels: number of input channels; None infers it from the first input.
        out1: output channels of the 1 x 1 branch; 0 omits it.
        proj3, out3: reduced and output channels of the 3 x 3 branch.
        proj33, out33: reduced and output channels of the branch of two 3 x 3 convolutions.
        pooltype: ``'max'`` or ``'avg'``.
        proj_pool: output channels of the pooling branch; None omits its projection.
        stride: stride of the last convolution of both 3 x 3 branches and of the pooling.
        conv_init: initializer, number or array of the weights.
        dtype: the dtype of the parameters; None means ``config.dtype``.

    Attributes:
        conv1, proj3, conv3, proj33, conv33a, conv33b, poolp (Convolution2D): the convolutions, with
            weights (output channels, input channels, k, k).
        conv1n, proj3n, conv3n, proj33n, conv33an, conv33bn, poolpn (BatchNormalization): the
            normalization after each convolution.

    Raises:
        ValueError: ``pooltype`` is invalid, or ``stride`` is not 1 although ``out1`` is not 0.

    See S. Ioffe and C. Szegedy, Batch normalization, ICML 2015.
    """

    def __init__(
        self,
        in_channels: int | None,
        out1: int,
        proj3: int,
        out3: int,
        proj33: int,
        out33: int,
        pooltype: str,
        proj_pool: int | None = None,
        stride: Sizes = 1,
        conv_init: InitialValue = None,
        dtype: DTypeLike = None,
    ) -> None:
        super().__init__()
        if pooltype not in ("max", "avg"):
            raise ValueError(f"InceptionBN: pooltype must be 'max' or 'avg', not {pooltype!r}")
        if out1 and stride != 1:
            raise ValueError(f"InceptionBN: with stride={stride}, out1 must be 0, but is {out1}")
        check_sizes(self, stride=stride)
        self.out1 = out1
        self.proj_pool = proj_pool
        self.stride = stride
        self.pooltype = pooltype
        self._initial = conv_init, dtype
        with self.init_scope():
            if out1:
                self._add("conv1", in_channels, out1, 1)
            self._add("proj3", in_channels, proj3, 1)
            self._add("conv3", proj3, out3, 3, stride)
            self._add("proj33", in_channels, proj33, 1)
            self._add("conv33a", proj33, out33, 3)
            self._add("conv33b", out33, out33, 3, stride)
            if proj_pool is not None:
                self._add("poolp", in_channels, proj_pool, 1)

    def _add(self, name, in_channels, out_channels, ksize, stride=1):
        """Adds a convolution, with padding that keeps the image size if ``stride`` is 1, and the
        batch normalization after it."""
        initialW, dtype = self._initial
        window = ksize, stride, ksize // 2
        initialW = get_initializer(initialW, dtype)
        convolution = Convolution2D(in_channels, out_channels, *window, True, initialW)
        setattr(self, name, convolution)
        setattr(self, f"{name}n", BatchNormalization(out_channels, dtype=dtype))

    def _apply(self, name, x):
        return F.relu(self[f"{name}n"](self[name](x)))

    def _pooled(self, x):
        if self.pooltype == "avg":
            return F.average_pooling_2d(x, 3, self.stride, 1)
        return F.max_pooling_2d(x, 3, self.stride, 1, cover_all=False)

    def forward(self, x: Input) -> Variable:
        """Applies the module.

        Args:
            x: Variable or array (N, in_channels, H, W).

        Returns:
            Variable (N, C, H', W'), where C is the sum of the channels of the branches.
        """
        branches = []
        if self.out1:
            branches.append(self._apply("conv1", x))
        branches.append(self._apply("conv3", self._apply("proj3", x)))
        inner = self._apply("conv33a", self._apply("proj33", x))
        branches.append(self._apply("conv33b", inner))
        pooled = self._pooled(x)
        branches.append(pooled if self.proj_pool is None else self._apply("poolp", pooled))
        return F.concat(branches)
