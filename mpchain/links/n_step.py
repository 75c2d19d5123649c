"""Stacked recurrent layers over sequences of different lengths."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain import random
from mpchain.initializers import get_initializer
from mpchain.link import ChainList, Link
from mpchain.typing import InitialValue, Input
from mpchain.utils.type_check import check
from mpchain.variable import Parameter, Variable, as_variable


class _NStepRNN(ChainList):
    """Base of stacked recurrent layers; subclasses set the type of cell.

    Attributes:
        n_weights (int): the number of weights, and of biases, of a layer.
        n_cells (int): the number of states of a layer: 2 with memory cells, else 1.
        use_bi_direction (bool): whether each layer runs in both directions.
    """

    n_cells = 1
    use_bi_direction = False

    def __init__(
        self,
        n_layers: int,
        in_size: int | None,
        out_size: int,
        dropout: float,
        *,
        initialW: InitialValue = None,
        initial_bias: InitialValue = None,
    ) -> None:
        super().__init__()
        self.n_layers = n_layers
        self.out_size = out_size
        self.dropout = dropout
        initial_bias = 0 if initial_bias is None else initial_bias
        for k in range(n_layers * self.direction):
            columns = in_size if k < self.direction else out_size * self.direction
            self.append(self._layer(columns, get_initializer(initialW), initial_bias))

    def _layer(self, in_size, initialW, initial_bias):
        layer, size = Link(), self.out_size
        with layer.init_scope():
            for j in range(self.n_weights):
                columns = in_size if j < self.n_weights // 2 else size
                shape = None if columns is None else (size, columns)
                setattr(layer, f"w{j}", Parameter(initialW, shape))
                setattr(layer, f"b{j}", Parameter(get_initializer(initial_bias), size))
        return layer

    @property
    def direction(self) -> int:
        """The number of directions, 1 or 2."""
        return 2 if self.use_bi_direction else 1

    @property
    def ws(self) -> list[list[Parameter]]:
        """The weights, as a list for each layer and direction."""
        return self._lists("w")

    @property
    def bs(self) -> list[list[Parameter]]:
        """The biases, as a list for each layer and direction."""
        return self._lists("b")

    def _lists(self, kind):
        return [[getattr(layer, f"{kind}{j}") for j in range(self.n_weights)] for layer in self]

    def rnn(self, *args: Any) -> Any:
        """Calls the function of these layers, such as :func:`mpchain.functions.n_step_lstm`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement rnn")

    def init_hx(self, xs: Sequence[Input]) -> Variable:
        """Returns zeros: the initial states for a list of sequences."""
        shape = self.n_layers * self.direction, len(xs), self.out_size
        return as_variable(self.xp.zeros(shape, xs[0].dtype))

    def _run(self, states, xs):
        """Runs the layers over sequences, which may be in any order; returns the final states and
        the outputs."""
        self._check_sequences(xs)
        self._initialize(xs[0].shape[1])
        states = [self.init_hx(xs) if s is None else s for s in states]
        for s in states:
            rule = f"initial states must be (layers, {len(xs)}, out_size) for {len(xs)} sequences"
            check(s.ndim == 3 and s.shape[1] == len(xs), type(self).__name__, rule, state=s)
        lengths = np.array([x.shape[0] for x in xs])
        order = np.argsort(-lengths, kind="stable")
        is_sorted = bool((lengths[1:] <= lengths[:-1]).all())
        if not is_sorted:
            xs = [xs[i] for i in order]
            states = [F.permutate(s, order, axis=1) for s in states]
        steps = F.transpose_sequence(xs) or (xs[0],)
        with random.sorted_samples(order):
            *states, ys = self.rnn(self.n_layers, self.dropout, *states, self.ws, self.bs, steps)
        steps, ys = ys, list(F.transpose_sequence(ys))
        if len(ys) < len(xs):
            ys += [steps[0][:0]] * (len(xs) - len(ys))
        if not is_sorted:
            states = [F.permutate(s, order, axis=1, inv=True) for s in states]
            ys = [ys[i] for i in np.argsort(order)]
        return states, ys

    def _check_sequences(self, xs):
        name = type(self).__name__
        if not isinstance(xs, (list, tuple)) or not xs:
            kind = "empty" if isinstance(xs, (list, tuple)) else f"a {type(xs).__name__}"
            raise TypeError(f"{name}: xs must be a non-empty list of sequences, but is {kind}")
        if xs[0].ndim == 2 and len({(x.shape[1:], x.ndim, x.dtype) for x in xs}) == 1:
            return
        for x in xs:
            fits = x.ndim == 2 and x.shape[1] == xs[0].shape[1] and x.dtype == xs[0].dtype
            check(fits, name, "every sequence must be (length, in_size)", x=x, first=xs[0])

    def _initialize(self, in_size):
        for layer in self[: self.direction]:
            for j in range(self.n_weights // 2):
                W = getattr(layer, f"w{j}")
                if not W.is_initialized:
                    W.initialize((self.out_size, in_size))


class _NStepWithState(_NStepRNN):
    """Base of layers whose only state is their output."""

    def forward(self, hx: Input | None, xs: Sequence[Input]) -> tuple[Variable, list[Variable]]:
        """Runs the layers over a batch of sequences.

        Args:
            hx: Variable or array (n_layers, B, out_size), or (2 n_layers, ...) if bidirectional:
                the initial states; None means zeros.
            xs: B Variables or arrays (length, in_size), in any order.

        Returns:
            tuple: the final states, a Variable of the shape of ``hx``, and the outputs of the last
            layer, a list of Variables (length, out_size), or (length, 2 out_size) if bidirectional.

        Raises:
            TypeError: ``xs`` is not a list or tuple, or is empty.
            InvalidType: the shape or dtype of an argument does not match.
        """
        (hy,), ys = self._run([hx], xs)
        return hy, ys


class _NStepWithMemory(_NStepRNN):
    """Base of layers that have memory cells in addition to their output."""

    n_cells = 2

    def forward(
        self, hx: Input | None, cx: Input | None, xs: Sequence[Input]
    ) -> tuple[Variable, Variable, list[Variable]]:
        """Runs the layers over a batch of sequences.

        Args:
            hx, cx: Variables or arrays (n_layers, B, out_size), or (2 n_layers, ...) if
                bidirectional: the initial outputs and memories; None means zeros.
            xs: B Variables or arrays (length, in_size), in any order.

        Returns:
            tuple: the final outputs and memories, Variables of the shape of ``hx``, and the outputs
            of the last layer, a list of Variables (length, out_size), or (length, 2 out_size) if
            bidirectional.

        Raises:
            TypeError: ``xs`` is not a list or tuple, or is empty.
            InvalidType: the shape or dtype of an argument does not match.
        """
        (hy, cy), ys = self._run([hx, cx], xs)
        return hy, cy, ys


class NStepLSTM(_NStepWithMemory):
    """Stacked LSTM over sequences: :func:`mpchain.functions.n_step_lstm` with its parameters.

        >>> lstm = L.NStepLSTM(2, 3, 5, dropout=0.1)
        >>> hy, cy, ys = lstm(None, None, [np.ones((n, 3), np.float32) for n in (4, 6)])
        >>> ys[1].shape
        (6, 5)

    Args:
        n_layers: number of layers.
        in_size: number of input features; None infers it from the first input.
        out_size: number of units.
        dropout: dropout ratio of the input of every layer but the first, in training.
        initialW: initializer, number or array for each weight; None means LeCunNormal.
        initial_bias: initializer, number or array for each bias; None means zeros.

    The children ``0``, ``1``, ... are the layers (if bidirectional, two children for each layer,
    the forward direction first). Each child has the parameters of the function: ``w0``, ``w1``, ...
    (out_size, size of the layer's input or state) and ``b0``, ``b1``, ... (out_size,).
    """

    n_weights = 8
    rnn: Callable[..., Any] = staticmethod(F.n_step_lstm)


class NStepBiLSTM(_NStepWithMemory):
    """Bidirectional :class:`NStepLSTM`.

    >>> hy, cy, ys = L.NStepBiLSTM(1, 3, 5, 0.0)(None, None, [np.ones((4, 3), np.float32)])
    >>> ys[0].shape
    (4, 10)
    """

    n_weights = 8
    use_bi_direction = True
    rnn: Callable[..., Any] = staticmethod(F.n_step_bilstm)


class NStepGRU(_NStepWithState):
    """Stacked gated recurrent units over sequences: :func:`mpchain.functions.n_step_gru`.

        >>> hy, ys = L.NStepGRU(2, 3, 5, dropout=0.1)(None, [np.ones((4, 3), np.float32)])
        >>> hy.shape, ys[0].shape
        ((2, 1, 5), (4, 5))

    Args:
        n_layers, in_size, out_size, dropout, initialW, initial_bias: see :class:`NStepLSTM`.
    """

    n_weights = 6
    rnn: Callable[..., Any] = staticmethod(F.n_step_gru)


class NStepBiGRU(_NStepWithState):
    """Bidirectional :class:`NStepGRU`.

    >>> hy, ys = L.NStepBiGRU(2, 3, 5, dropout=0.1)(None, [np.ones((4, 3), np.float32)])
    >>> hy.shape, ys[0].shape
    ((4, 1, 5), (4, 10))
    """

    n_weights = 6
    use_bi_direction = True
    rnn: Callable[..., Any] = staticmethod(F.n_step_bigru)


class NStepRNNTanh(_NStepWithState):
    """Stacked simple recurrent units with tanh: :func:`mpchain.functions.n_step_rnn`.

        >>> hy, ys = L.NStepRNNTanh(2, 3, 5, dropout=0.1)(None, [np.ones((4, 3), np.float32)])
        >>> hy.shape, ys[0].shape
        ((2, 1, 5), (4, 5))

    Args:
        n_layers, in_size, out_size, dropout, initialW, initial_bias: see :class:`NStepLSTM`.
    """

    n_weights = 2
    rnn: Callable[..., Any] = staticmethod(functools.partial(F.n_step_rnn, activation="tanh"))


class NStepRNNReLU(_NStepWithState):
    """:class:`NStepRNNTanh` with ReLU instead of tanh.

    >>> hy, ys = L.NStepRNNReLU(2, 3, 5, dropout=0.1)(None, [np.ones((4, 3), np.float32)])
    >>> ys[0].shape
    (4, 5)
    """

    n_weights = 2
    rnn: Callable[..., Any] = staticmethod(functools.partial(F.n_step_rnn, activation="relu"))


class NStepBiRNNTanh(_NStepWithState):
    """Bidirectional :class:`NStepRNNTanh`.

    >>> hy, ys = L.NStepBiRNNTanh(2, 3, 5, dropout=0.1)(None, [np.ones((4, 3), np.float32)])
    >>> ys[0].shape
    (4, 10)
    """

    n_weights = 2
    use_bi_direction = True
    rnn: Callable[..., Any] = staticmethod(functools.partial(F.n_step_birnn, activation="tanh"))


class NStepBiRNNReLU(_NStepWithState):
    """Bidirectional :class:`NStepRNNReLU`.

    >>> hy, ys = L.NStepBiRNNReLU(2, 3, 5, dropout=0.1)(None, [np.ones((4, 3), np.float32)])
    >>> ys[0].shape
    (4, 10)
    """

    n_weights = 2
    use_bi_direction = True
    rnn: Callable[..., Any] = staticmethod(functools.partial(F.n_step_birnn, activation="relu"))
