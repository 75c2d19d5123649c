"""Fully connected links."""

import math
from collections.abc import Iterable
from typing import Any, Self

from mpchain import functions as F
from mpchain.initializers import get_initializer
from mpchain.link import Link
from mpchain.links.parameters import bias_parameter, check_sizes, layer_sizes
from mpchain.typing import InitialValue, Input
from mpchain.variable import Parameter, Variable, as_array


class Linear(Link):
    """Affine map y = x W^T + b: :func:`mpchain.functions.linear` with its parameters.

        >>> L.Linear(3, 2)(np.ones((5, 3), np.float32)).shape
        (5, 2)

    Args:
        in_size: number of input features; None infers it from the first input. If only one size is
            given, it is ``out_size``.
        out_size: number of output features.
        nobias: whether to omit the bias.
        initialW: initializer, number or array (out_size, in_size); None means LeCunNormal.
        initial_bias: initializer, number or array (out_size,); None means zeros.
        n_batch_axes: the number of leading batch axes of inputs, unless a call gives another. In a
            :class:`mpchain.Sequential`, which passes only an input to its links, 2 makes the link
            map each step of sequences (N, T, in_size).

    Attributes:
        W (Parameter): weights (out_size, in_size).
        b (Parameter): bias (out_size,), or None.
        n_batch_axes: the default number of leading batch axes of inputs.
    """

    n_batch_axes = 1

    def __init__(
        self,
        in_size: int | None,
        out_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        *,
        n_batch_axes: int = 1,
    ) -> None:
        super().__init__()
        self.n_batch_axes = n_batch_axes
        in_size, out_size = layer_sizes(self, in_size, out_size)
        self.in_size, self.out_size = in_size, out_size
        self.nobias = nobias
        with self.init_scope():
            self.W = Parameter(get_initializer(initialW))
            self.b = bias_parameter(nobias, initial_bias, out_size)
        if in_size is not None:
            self._initialize(in_size)

    def _initialize(self, in_size):
        self.W.initialize((self.out_size, in_size))

    @classmethod
    def from_params(cls, W: Input, b: Input | None = None, nobias: bool = False) -> Self:
        """Makes the link from arrays or Variables W (O, I) and b (O,), or without bias."""
        W, b = as_array(W), None if b is None else as_array(b)
        options = {"nobias": nobias or b is None, "initialW": W, "initial_bias": b}
        return cls(W.shape[1], W.shape[0], **options)

    def _shape_fits(self, name, shape):
        return name != "W" or (len(shape) == 2 and shape[0] == self.out_size)

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        in_size = self.W.shape[1] if self.W.is_initialized else self.in_size
        specs = {"in_size": in_size, "out_size": self.out_size, "nobias": self.nobias}
        if self.n_batch_axes != 1:
            specs["n_batch_axes"] = self.n_batch_axes
        return specs.items()

    def initialize_for(self, x: Input, n_batch_axes: int | None = None) -> None:
        """Initializes the weights, if necessary, for an input x (N, ...)."""
        n_batch_axes = self.n_batch_axes if n_batch_axes is None else n_batch_axes
        if self.W.is_initialized or getattr(n_batch_axes, "ndim", 0) > 0:
            return  # F.linear raises an error if n_batch_axes is an array
        if x.ndim > n_batch_axes:
            self._initialize(math.prod(x.shape[n_batch_axes:]))

    def forward(self, x: Input, n_batch_axes: int | None = None) -> Variable:
        """Applies the map.

        Args:
            x: Variable or array (N, ...); the axes after the first ``n_batch_axes`` are flattened.
            n_batch_axes: the number of leading batch axes; None means the link's number.

        Returns:
            Variable (N, out_size), or (*batch, out_size) with several batch axes.
        """
        n_batch_axes = self.n_batch_axes if n_batch_axes is None else n_batch_axes
        self.initialize_for(x, n_batch_axes)
        return F.linear(x, self.W, self.b, n_batch_axes)


class Bilinear(Link):
    """Bilinear map: :func:`mpchain.functions.bilinear` with its parameters.

        >>> L.Bilinear(3, 4, 2)(np.ones((5, 3), np.float32), np.ones((5, 4), np.float32)).shape
        (5, 2)

    Args:
        left_size, right_size: numbers of features of the two inputs, J and K.
        out_size: number of output features, L.
        nobias: whether to omit the linear and constant terms.
        initialW: initializer, number or array (J, K, L); None means LeCunNormal.
        initial_bias: tuple of initializers, numbers or arrays of V1 (J, L), V2 (K, L) and b (L,);
            None means LeCunNormal for V1 and V2, zeros for b.

    Attributes:
        W (Parameter): weights (J, K, L).
        V1, V2, b (Parameter): weights (J, L) and (K, L) of the linear terms and bias (L,); absent
            with ``nobias``.

    Raises:
        ValueError: ``initial_bias`` is not a tuple of three.
    """

    def __init__(
        self,
        left_size: int,
        right_size: int,
        out_size: int,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        check_sizes(self, left_size=left_size, right_size=right_size, out_size=out_size)
        self.in_sizes = left_size, right_size
        self.out_size = out_size
        self.nobias = nobias
        with self.init_scope():
            self.W = Parameter(get_initializer(initialW), (*self.in_sizes, out_size))
            if not nobias:
                V1, V2, b = self._initial_bias(initial_bias)
                self.V1 = Parameter(get_initializer(V1), (left_size, out_size))
                self.V2 = Parameter(get_initializer(V2), (right_size, out_size))
                self.b = bias_parameter(False, b, out_size)

    @staticmethod
    def _initial_bias(initial):
        if initial is None:
            return None, None, None
        if not isinstance(initial, (tuple, list)) or len(initial) != 3:
            raise ValueError(
                "Bilinear: initial_bias must be a tuple of initial values of V1, V2 and b, "
                f"but is {initial!r}"
            )
        return initial

    @property
    def printable_specs(self) -> Iterable[tuple[str, Any]]:
        yield from zip(("left_size", "right_size"), self.in_sizes)
        yield from (("out_size", self.out_size), ("nobias", self.nobias))

    def forward(self, e1: Input, e2: Input) -> Variable:
        """Applies the map to Variables or arrays (N, ...) of J and K features: (N, out_size)."""
        bias = () if self.nobias else (self.V1, self.V2, self.b)
        return F.bilinear(e1, e2, self.W, *bias)
