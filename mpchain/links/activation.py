"""Activation functions with parameters."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.backends.cuda import is_gpu_array
from mpchain.initializers import get_initializer
from mpchain.link import Chain, Link
from mpchain.links.connection import Linear
from mpchain.links.parameters import check_sizes
from mpchain.typing import InitialValue, Input
from mpchain.variable import Parameter, Variable


def _flattened(initial, n_axes):
    """Returns an initial value. If the value is an array, its first ``n_axes`` axes are merged."""
    if not isinstance(initial, (np.ndarray, list, tuple)) and not is_gpu_array(initial):
        return initial
    array = initial if is_gpu_array(initial) else np.asarray(initial)
    return array.reshape(-1, *array.shape[n_axes:])


class Maxout(Chain):
    """Affine layer with maxout: each output is the maximum of ``pool_size`` affine maps.

        >>> L.Maxout(3, 2, pool_size=4)(np.ones((5, 3), np.float32)).shape
        (5, 2)

    Args:
        in_size: number of input features; None infers it from the first input.
        out_size: number of output features.
        pool_size: number of maps per output.
        initialW: initializer, number or array (out_size, pool_size, in_size) of the weights; None
            means LeCunNormal.
        initial_bias: initializer, number or array (out_size, pool_size); None means no bias.

    Attributes:
        linear (Linear): the maps, with out_size * pool_size outputs.

    See I. Goodfellow et al., Maxout networks, ICML 2013.
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        pool_size: int,
        initialW: InitialValue = None,
        initial_bias: InitialValue = 0,
    ) -> None:
        super().__init__()
        check_sizes(self, out_size=out_size, pool_size=pool_size)
        self.out_size = out_size
        self.pool_size = pool_size
        initial = _flattened(initialW, 2), _flattened(initial_bias, 2)
        with self.init_scope():
            self.linear = Linear(in_size, out_size * pool_size, initial_bias is None, *initial)

    def forward(self, x: Input) -> Variable:
        """Applies the layer to a Variable or array x (N, ...); returns a Variable (N, out_size)."""
        return F.maxout(self.linear(x), self.pool_size)


class PReLU(Link):
    """Parametric rectified linear unit: :func:`mpchain.functions.prelu` with its slopes.

        >>> L.PReLU()(np.array([[-4.0, 2.0]], np.float32)).array
        array([[-1.,  2.]], dtype=float32)

    Args:
        shape: shape of the slopes: () for a single slope, (C,) for a slope per channel.
        init: initializer, number or array of the slopes.

    Attributes:
        W (Parameter): the slopes, of shape ``shape``.
    """

    def __init__(self, shape: tuple[int, ...] = (), init: InitialValue = 0.25) -> None:
        super().__init__()
        with self.init_scope():
            self.W = Parameter(get_initializer(init), shape)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        yield "shape", self.W.shape

    def forward(self, x: Input) -> Variable:
        """Applies the activation to a Variable or array x (N, ...); returns a Variable of the same
        shape."""
        return F.prelu(x, self.W)


class Swish(Link):
    """Swish: :func:`mpchain.functions.swish` with its parameter beta.

        >>> L.Swish(())(np.array([[-999.0, 100.0]], np.float32)).array
        array([[ -0., 100.]], dtype=float32)

    Args:
        beta_shape: shape of beta: () for a single value, (C,) for a value per channel; None means
            the shape of the first input without its first axis.
        beta_init: initializer, number or array of beta.

    Attributes:
        beta (Parameter): beta, of shape ``beta_shape``.
    """

    def __init__(self, beta_shape: tuple[int, ...] | None, beta_init: InitialValue = 1.0) -> None:
        super().__init__()
        with self.init_scope():
            self.beta = Parameter(get_initializer(beta_init), beta_shape)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        yield "beta_shape", self.beta.shape if self.beta.is_initialized else None

    def forward(self, x: Input) -> Variable:
        """Applies the activation to a Variable or array x (N, ...); returns a Variable of the same
        shape."""
        if not self.beta.is_initialized:
            self.beta.initialize(x.shape[1:])
        return F.swish(x, self.beta)
