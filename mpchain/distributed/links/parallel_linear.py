"""Affine maps whose weights are divided among the ranks."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.functions import distribute, join, split, sum_up
from mpchain.distributed.functions.communication import parts_of
from mpchain.initializers import generate_array, get_initializer
from mpchain.link import Link
from mpchain.links.parameters import check_sizes
from mpchain.typing import Array, InitialValue
from mpchain.variable import Parameter, Variable


class _ParallelLinear(Link):
    """Affine map that is divided among the ranks.

    Attributes:
        axis: the axis along which the weights are divided: 0 for outputs, 1 for inputs.
    """

    def __init__(self, comm, in_size, out_size, nobias, initialW, initial_bias):
        super().__init__()
        if out_size is None:
            in_size, out_size = None, in_size
        check_sizes(self, **{} if in_size is None else {"in_size": in_size}, out_size=out_size)
        self.comm = self.divided_among = comm
        comm.refuse_to_lose_ranks(self, "ranks have different parts of a parallel linear link")
        self.in_size, self.out_size, self.nobias = in_size, out_size, nobias
        self._initialW = get_initializer(initialW)
        self._check_divisible("out_size" if self.axis == 0 else "in_size", (out_size, in_size))
        with self.init_scope():
            self.W = Parameter()
            self.b = None if nobias else Parameter()
        self.W.divided_among = comm
        if self.b is not None:
            self.b.divided_among = comm if self.axis == 0 else None
            initial = get_initializer(0 if initial_bias is None else initial_bias)
            self._take(self.b, generate_array(initial, (out_size,), np), self.axis == 0)
        if in_size is not None:
            self._initialize(in_size)

    def _check_divisible(self, name, shape):
        size = shape[self.axis]
        if size is not None and size < self.comm.size:
            raise ValueError(
                f"{type(self).__name__}: {name} must be at least the number of ranks, "
                f"{self.comm.size}, but is {size}"
            )

    def _initialize(self, in_size):
        self._check_divisible("out_size" if self.axis == 0 else "in_size", (self.out_size, in_size))
        whole = generate_array(self._initialW, (self.out_size, in_size), np)
        self._take(self.W, whole, True)

    def _take(self, param, whole, is_divided):
        """Initializes a parameter with rank 0's values, or this rank's part of them."""
        comm, axis = self.comm, self.axis if whole.ndim == 2 else 0
        if is_divided:
            values = comm.scatter(parts_of(comm, whole, axis) if comm.rank == 0 else None)
        else:
            values = comm.bcast(whole if comm.rank == 0 else None)
        param.initializer = get_initializer(values)
        param.to_device(self.device)
        param.initialize(values.shape)

    @property
    def printable_specs(self) -> Iterator[tuple[str, Any]]:
        yield from (("in_size", self.in_size), ("out_size", self.out_size))
        yield from (("nobias", self.nobias), ("n_parts", self.comm.size))


class ColumnParallelLinear(_ParallelLinear):
    """Affine map whose outputs are divided among the ranks.

    The link and all orders of its derivative are equal to :class:`mpchain.links.Linear` in one
    process; rank 0 draws the initial values. :func:`mpchain.distributed.functions.distribute`
    explains input, output and gradients: the gradients of the parameters are already correct, and
    must not be averaged over these ranks. All ranks must create and call the link together.

    Args:
        comm: the communicator of the ranks.
        in_size: number of input features; None takes it from the first input. If only one size is
            passed, it is ``out_size``.
        out_size: number of output features of all ranks together.
        nobias: whether to omit the bias.
        initialW: initializer, number or array (out_size, in_size) of the whole weights.
        initial_bias: initializer, number or array (out_size,) of the whole bias; None is zero.
        gather_output: whether every rank gets the whole output, or only its part of it, as input of
            a :class:`RowParallelLinear` with ``split_input=False``.

    Attributes:
        W (Parameter): this rank's rows of the weights.
        b (Parameter): this rank's part of the bias; None with ``nobias``.

    Raises:
        ValueError: there are more ranks than output features.

    Example:
        >>> link = mpchain.distributed.links.ColumnParallelLinear(comm, 3, 4)
        >>> link(np.ones((2, 3), "f")).shape  # W has 4 / comm.size rows on each rank
        (2, 4)

    See M. Shoeybi et al., Megatron-LM: training multi-billion parameter language models using model
    parallelism, 2019.
    """

    axis = 0

    def __init__(
        self,
        comm: Communicator,
        in_size: int | None,
        out_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        *,
        gather_output: bool = True,
    ):
        super().__init__(comm, in_size, out_size, nobias, initialW, initial_bias)
        self.gather_output = gather_output

    def forward(self, x: Variable | Array, n_batch_axes: int = 1) -> Variable:
        """Applies the affine map.

        Args:
            x: Variable or array of shape (N, ...), the same on all ranks.
            n_batch_axes: the number of leading axes that the result keeps; all others are
                flattened.

        Returns:
            Variable of shape (N, out_size), where N stands for the kept axes; the same on all
            ranks, or this rank's columns of it.
        """
        if not self.W.is_initialized:
            self._initialize(math.prod(x.shape[n_batch_axes:]))
        y = F.linear(distribute(self.comm, x), self.W, self.b, n_batch_axes)
        return join(self.comm, y, -1) if self.gather_output else y


class RowParallelLinear(_ParallelLinear):
    """Affine map whose inputs are divided among the ranks.

    In all other respects it is like :class:`ColumnParallelLinear`.

    Args:
        comm: the communicator of the ranks.
        in_size: number of input features of all ranks together; None takes it from the first input,
            which must then be whole. If only one size is passed, it is ``out_size``.
        out_size: number of output features.
        nobias, initialW, initial_bias: see :class:`ColumnParallelLinear`.
        split_input: whether the input is whole on every rank; if not, it is this rank's part.

    Attributes:
        W (Parameter): this rank's columns of the weights.
        b (Parameter): the bias, the same on all ranks; None with ``nobias``.

    Raises:
        ValueError: there are more ranks than input features, or ``in_size`` is missing with
            ``split_input=False``.

    Example:
        >>> link = mpchain.distributed.links.RowParallelLinear(comm, 4, 3)
        >>> link(np.ones((2, 4), "f")).shape  # W has 4 / comm.size columns on each rank
        (2, 3)
    """

    axis = 1

    def __init__(
        self,
        comm: Communicator,
        in_size: int | None,
        out_size: int | None = None,
        nobias: bool = False,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
        *,
        split_input: bool = True,
    ):
        super().__init__(comm, in_size, out_size, nobias, initialW, initial_bias)
        if self.in_size is None and not split_input:
            raise ValueError(
                "RowParallelLinear: in_size must be given with split_input=False, since the input "
                "is not whole"
            )
        self.split_input = split_input

    def forward(self, x: Variable | Array, n_batch_axes: int = 1) -> Variable:
        """Applies the affine map.

        Args:
            x: Variable or array of shape (N, ...), the same on all ranks; with
                ``split_input=False`` this rank's columns of it.
            n_batch_axes: the number of leading axes that the result keeps; all others are
                flattened.

        Returns:
            Variable of shape (N, out_size), the same on all ranks.
        """
        if self.split_input:
            n_features = math.prod(x.shape[n_batch_axes:])
            if not self.W.is_initialized:
                self._initialize(n_features)
            x = split(self.comm, F.reshape(x, (*x.shape[:n_batch_axes], n_features)), -1)
        y = sum_up(self.comm, F.linear(x, self.W, None, n_batch_axes))
        return y if self.b is None else y + self.b
