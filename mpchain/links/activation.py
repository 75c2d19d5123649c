"""Activations with parameters."""

import numpy as np

from mpchain import functions as F
from mpchain.backends.cuda import is_gpu_array
from mpchain.initializers import get_initializer
from mpchain.link import Chain, Link
from mpchain.links.connection import Linear
from mpchain.links.parameters import check_sizes
from mpchain.variable import Parameter


def _flattened(initial, n_axes):
    """An initial value whose first axes, if it is an array, have become one."""
    if not isinstance(initial, (np.ndarray, list, tuple)) and not is_gpu_array(initial):
        return initial
    initial = initial if is_gpu_array(initial) else np.asarray(initial)
    return initial.reshape(-1, *initial.shape[n_axes:])


class Maxout(Chain):
    """Maximum of several affine maps, each output of its own: a layer with its activation.

    Args:
        in_size (int): number of input features; None leaves it to the first input.
        out_size (int): number of output features.
        pool_size (int): number of maps per output.
        initialW: initializer, number or array (out_size, pool_size, in_size) of the weights; None
            is LeCunNormal.
        initial_bias: initializer, number or array (out_size, pool_size); None means no bias.

    Attributes:
        linear (Linear): the maps, of out_size * pool_size features.

    See I. Goodfellow et al., Maxout networks, ICML 2013.
    """

    def __init__(self, in_size, out_size, pool_size, initialW=None, initial_bias=0):
        super().__init__()
        check_sizes(self, out_size=out_size, pool_size=pool_size)
        self.out_size = out_size
        self.pool_size = pool_size
        initial = _flattened(initialW, 2), _flattened(initial_bias, 2)
        with self.init_scope():
            self.linear = Linear(in_size, out_size * pool_size, initial_bias is None, *initial)

    def forward(self, x):
        """Applies the layer to a Variable or array x (N, ...): (N, out_size)."""
        return F.maxout(self.linear(x), self.pool_size)


class PReLU(Link):
    """Parametric rectified linear unit of :func:`mpchain.functions.prelu` with its slopes.

    Args:
        shape (tuple of int): shape of the slopes: () for one, (C,) for one per channel.
        init: initializer, number or array of the slopes.

    Attributes:
        W (Parameter): the slopes.
    """

    def __init__(self, shape=(), init=0.25):
        super().__init__()
        with self.init_scope():
            self.W = Parameter(get_initializer(init), shape)

    @property
    def printable_specs(self):
        yield "shape", self.W.shape

    def forward(self, x):
        """Applies the activation to a Variable or array x (N, ...)."""
        return F.prelu(x, self.W)


class Swish(Link):
    """Swish of :func:`mpchain.functions.swish` with its parameter beta.

    Args:
        beta_shape (tuple of int): shape of beta: () for one, (C,) for one per channel; None is that
            of the axes of the first input that follow the first.
        beta_init: initializer, number or array of beta.

    Attributes:
        beta (Parameter): beta.
    """

    def __init__(self, beta_shape, beta_init=1.0):
        super().__init__()
        with self.init_scope():
            self.beta = Parameter(get_initializer(beta_init), beta_shape)

    @property
    def printable_specs(self):
        yield "beta_shape", self.beta.shape if self.beta.is_initialized else None

    def forward(self, x):
        """Applies the activation to a Variable or array x (N, ...)."""
        if not self.beta.is_initialized:
            self.beta.initialize(x.shape[1:])
        return F.swish(x, self.beta)
