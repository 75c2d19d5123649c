"""Affine maps whose weights are divided among the ranks."""

import math

import numpy as np

from mpchain import functions as F
from mpchain.distributed.communicators.arrays import partition
from mpchain.distributed.functions import distribute, join, split, sum_up
from mpchain.initializers import generate_array, get_initializer
from mpchain.link import Link
from mpchain.links.parameters import check_sizes
from mpchain.variable import Parameter


class _ParallelLinear(Link):
    """Affine map of which each rank has a part; subclasses say which.

    Attributes:
        axis (int): the axis of the whole weights along which they are divided.
    """

    def __init__(self, comm, in_size, out_size, nobias, initialW, initial_bias):
        super().__init__()
        if out_size is None:
            in_size, out_size = None, in_size
        check_sizes(self, **{} if in_size is None else {"in_size": in_size}, out_size=out_size)
        self.comm = self.divided_among = comm
        self.in_size = in_size
        self.out_size = out_size
        self.nobias = nobias
        self._initialW = get_initializer(initialW)
        self._check_divisible("out_size" if self.axis == 0 else "in_size", (out_size, in_size))
        with self.init_scope():
            self.W = Parameter()
            self.b = None if nobias else Parameter()
        self.W.divided_among = comm
        if not nobias:
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
        """Initializes a parameter by this rank's part of rank 0's values."""
        comm, axis = self.comm, self.axis if whole.ndim == 2 else 0
        if is_divided:
            bounds = [partition(whole.shape[axis], rank, comm.size) for rank in range(comm.size)]
            before = (slice(None),) * axis
            parts = [whole[(*before, slice(*pair))] for pair in bounds]
            values = comm.scatter(parts if comm.rank == 0 else None)
        else:
            values = comm.bcast(whole if comm.rank == 0 else None)
        param.initializer = get_initializer(values)
        param.to_device(self.device)
        param.initialize(values.shape)

    @property
    def printable_specs(self):
        yield from (("in_size", self.in_size), ("out_size", self.out_size))
        yield from (("nobias", self.nobias), ("n_parts", self.comm.size))


class ColumnParallelLinear(_ParallelLinear):
    """Affine map of which each rank computes a part of the outputs.

    What it computes is what :class:`mpchain.links.Linear` does in one process, to every order of
    derivative; initial values are rank 0's, drawn as there. See
    :func:`mpchain.distributed.functions.distribute` for what input, output and gradients are: the
    parameters' are right as they are, and not to be averaged over these ranks. All ranks must make
    and call it together.

    Args:
        comm (Communicator): the ranks.
        in_size (int): number of input features; None leaves it to the first input. If it is the
            only size, it is that of the output.
        out_size (int): number of output features of all ranks together.
        nobias (bool): whether to leave the bias out.
        initialW: initializer, number or array (out_size, in_size) of the whole weights.
        initial_bias: initializer, number or array (out_size,) of the whole bias; None is zero.
        gather_output (bool): whether every rank gets the whole output, or only its part, for a
            :class:`RowParallelLinear` with ``split_input=False``.

    Attributes:
        W (Parameter): this rank's rows of the weights.
        b (Parameter): this rank's part of the bias; None if there is none.

    Raises:
        ValueError: there are more ranks than output features.

    See M. Shoeybi et al., Megatron-LM: training multi-billion parameter language models using model
    parallelism, 2019.
    """

    axis = 0

    def __init__(
        self,
        comm,
        in_size,
        out_size=None,
        nobias=False,
        initialW=None,
        initial_bias=None,
        *,
        gather_output=True,
    ):
        super().__init__(comm, in_size, out_size, nobias, initialW, initial_bias)
        self.gather_output = gather_output

    def forward(self, x, n_batch_axes=1):
        """Applies the map.

        Args:
            x: Variable or array (N, ...), the same on all ranks.
            n_batch_axes (int): the number of leading axes that stay.

        Returns:
            Variable (N, out_size), the same on all ranks, or this rank's columns of it.
        """
        if not self.W.is_initialized:
            self._initialize(math.prod(x.shape[n_batch_axes:]))
        y = F.linear(distribute(self.comm, x), self.W, self.b, n_batch_axes)
        return join(self.comm, y, -1) if self.gather_output else y


class RowParallelLinear(_ParallelLinear):
    """Affine map of which each rank computes the share of a part of the inputs.

    Otherwise as :class:`ColumnParallelLinear`.

    Args:
        comm (Communicator): the ranks.
        in_size (int): number of input features of all ranks together; None leaves it to the first
            input, which must then be whole. If it is the only size, it is that of the output.
        out_size (int): number of output features.
        nobias, initialW, initial_bias: see :class:`ColumnParallelLinear`.
        split_input (bool): whether the input is whole on every rank, or already this rank's part.

    Attributes:
        W (Parameter): this rank's columns of the weights.
        b (Parameter): the bias, the same on all ranks; None if there is none.

    Raises:
        ValueError: there are more ranks than input features, or ``in_size`` is missing though the
            input is not whole.
    """

    axis = 1

    def __init__(
        self,
        comm,
        in_size,
        out_size=None,
        nobias=False,
        initialW=None,
        initial_bias=None,
        *,
        split_input=True,
    ):
        super().__init__(comm, in_size, out_size, nobias, initialW, initial_bias)
        if self.in_size is None and not split_input:
            raise ValueError(
                "RowParallelLinear: in_size must be given with split_input=False, since the input "
                "is not whole"
            )
        self.split_input = split_input

    def forward(self, x, n_batch_axes=1):
        """Applies the map.

        Args:
            x: Variable or array (N, ...), the same on all ranks; with ``split_input=False`` this
                rank's columns of it.
            n_batch_axes (int): the number of leading axes that stay.

        Returns:
            Variable (N, out_size), the same on all ranks.
        """
        if self.split_input:
            n_features = math.prod(x.shape[n_batch_axes:])
            if not self.W.is_initialized:
                self._initialize(n_features)
            x = split(self.comm, F.reshape(x, (*x.shape[:n_batch_axes], n_features)), -1)
        y = sum_up(self.comm, F.linear(x, self.W, None, n_batch_axes))
        return y if self.b is None else y + self.b
