"""Recurrent cells: stateless cells take and return their state, stateful cells keep it."""

import math

import numpy as np

from mpchain import functions as F
from mpchain.device_resident import DeviceResidentsVisitor
from mpchain.initializers import get_initializer
from mpchain.initializers.initializer import Initializer
from mpchain.link import Chain
from mpchain.links.connection import Linear
from mpchain.links.parameters import layer_sizes
from mpchain.typing import Array, InitialValue, Input
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_variable


class _Interleaved(Initializer):
    """An initializer that fills the interleaved rows of gates, using a separate initializer for
    each gate."""

    def __init__(self, *initials) -> None:
        self.initializers = [get_initializer(initial) for initial in initials]
        super().__init__(getattr(self.initializers[0], "dtype", None))

    def __call__(self, array: Array) -> None:
        for k, initializer in enumerate(self.initializers):
            initializer(array[k :: len(self.initializers)])


class _Quarters(Initializer):
    """An initializer that fills each quarter of the rows with the same initializer."""

    def __init__(self, initial) -> None:
        self.initializer = get_initializer(initial)
        super().__init__(getattr(self.initializer, "dtype", None))

    def __call__(self, array: Array) -> None:
        for quarter in np.split(array, 4):
            self.initializer(quarter)


class _Stateful(Chain):
    """Base of cells that keep their state in Variables, which move with the link but are not
    saved."""

    _state_names = ("h",)
    h: Variable | None = None

    def reset_state(self) -> None:
        """Clears the state, so that the next call starts a new sequence."""
        for name in self._state_names:
            setattr(self, name, None)

    def set_state(self, h: Input) -> None:
        """Sets the state, a Variable or array (N, out_size)."""
        self._set(h=h)

    def _set(self, **states):
        for name, state in states.items():
            state = as_variable(state)
            array = self.device.send(state.array)
            setattr(self, name, state if array is state.array else Variable(array))

    def device_resident_accept(self, visitor: DeviceResidentsVisitor) -> None:
        """Calls the methods of ``visitor`` with the link and its state. A state that moves to
        another device loses its graph."""
        super().device_resident_accept(visitor)
        for name in self._state_names:
            state = getattr(self, name)
            array = None if state is None else visitor.visit_array(state.array)
            if state is not None and array is not state.array:
                setattr(self, name, Variable(array))

    def _check_batch(self, x, may_shrink=False):
        """Raises InvalidType unless ``x`` has as many rows as the state, or at most as many if
        ``may_shrink`` is True."""
        if self.h is not None:
            n, rows = x.shape[0], self.h.shape[0]
            rule = f"x must have {'at most ' if may_shrink else ''}{rows} rows, as the state has"
            fits = n <= rows if may_shrink else n == rows
            check(fits, type(self).__name__, f"{rule} (reset_state starts a new sequence)", x=x)

    def forward(self, x: Input) -> Variable:
        """Computes a time step.

        Args:
            x: Variable or array (N, in_size); N must not change until :meth:`reset_state`.

        Returns:
            Variable (N, out_size).
        """
        self._check_batch(x)
        self.h = h = self._step(self.h, x)
        return h


class _StatefulMemory(_Stateful):
    """Base of cells that keep a memory in addition to their output."""

    _state_names = ("c", "h")
    c: Variable | None = None

    def set_state(self, c: Input, h: Input) -> None:
        """Sets the memory and the output, Variables or arrays (N, out_size)."""
        self._set(c=c, h=h)


def _zeros(n, size, like):
    return like.xp.zeros((n, size), like.dtype)


# The classes below are cells of long short-term memory.


class _LSTMCell(Chain):
    """Base of LSTM cells, with their parameters."""

    def __init__(self, upward: Linear, lateral: Linear) -> None:
        super().__init__()
        self.state_size = upward.out_size // 4
        with self.init_scope():
            self.upward = upward
            self.lateral = lateral

    def _gates(self, h, x):
        gates = self.upward(x)
        return gates if h is None else gates + self.lateral(h)


class _PlainLSTMCell(_LSTMCell):
    """An LSTM cell whose initial weights are drawn in Chainer's order: for each quarter of the
    rows, lateral weights, then upward weights."""

    def __init__(
        self,
        in_size: int | None,
        out_size: int | None = None,
        lateral_init: InitialValue = None,
        upward_init: InitialValue = None,
        bias_init: InitialValue = None,
        forget_bias_init: InitialValue = None,
    ) -> None:
        in_size, out_size = layer_sizes(self, in_size, out_size)
        inits = lateral_init, upward_init, bias_init, forget_bias_init
        bias = 0 if bias_init is None else bias_init
        forget_bias = 1 if forget_bias_init is None else forget_bias_init
        biases = _Interleaved(bias, bias, forget_bias, bias)
        super().__init__(
            Linear(None, 4 * out_size, initialW=_Quarters(upward_init), initial_bias=biases),
            Linear(None, 4 * out_size, nobias=True, initialW=_Quarters(lateral_init)),
        )
        self.lateral_init, self.upward_init, self.bias_init, self.forget_bias_init = inits
        self.upward.in_size, self.lateral.in_size = in_size, out_size
        if in_size is not None:
            self._draw_weights(in_size)

    def _draw_weights(self, in_size):
        params = self.lateral.W, self.upward.W
        shapes = [(4 * self.state_size, n) for n in (self.state_size, in_size)]
        arrays = [np.empty(shape, param.dtype) for shape, param in zip(shapes, params)]
        for quarters in zip(*[np.split(array, 4) for array in arrays]):
            for param, quarter in zip(params, quarters):
                param.initializer.initializer(quarter)
        for param, array in zip(params, arrays):
            if not param.is_initialized:
                param.array = param.device.send(array)

    def _step(self, c, h, x):
        if not self.upward.W.is_initialized and x.ndim > 1:
            self._draw_weights(math.prod(x.shape[1:]))
        gates = self._gates(h, x)
        return F.lstm(_zeros(x.shape[0], self.state_size, gates) if c is None else c, gates)


class StatelessLSTM(_PlainLSTMCell):
    """Stateless long short-term memory: :func:`mpchain.functions.lstm` with its parameters.

        >>> c, h = L.StatelessLSTM(3, 5)(None, None, np.ones((2, 3), np.float32))
        >>> c.shape, h.shape
        ((2, 5), (2, 5))

    Args:
        in_size: number of input features; None infers it from the first input. If it is the
            only size given, it is ``out_size``.
        out_size: number of units.
        lateral_init, upward_init: initializers, numbers or arrays of each quarter of the rows of
            the weights, (out_size, out_size) and (out_size, in_size); None means LeCunNormal.
        bias_init: initializer, number or array (out_size,) of the biases of the input, the input
            gate and the output gate; None means zeros.
        forget_bias_init: initializer, number or array (out_size,) of the bias of the forget gate;
            None means ones.

    Attributes:
        upward (Linear): the map from the input to the gates, with W (4 out_size, in_size) and b (4
            out_size,).
        lateral (Linear): the map from the output to the gates, with W (4 out_size, out_size).
    """

    def forward(self, c: Input | None, h: Input | None, x: Input) -> tuple[Variable, Variable]:
        """Computes a time step.

        Args:
            c: Variable or array (N, out_size): the memory; None means zeros.
            h: Variable or array (N, out_size): the previous output; None means zeros.
            x: Variable or array (N, in_size).

        Returns:
            tuple: the memory and the output, Variables (N, out_size).
        """
        return self._step(c, h, x)


class LSTM(_StatefulMemory, _PlainLSTMCell):
    """Stateful long short-term memory: :func:`mpchain.functions.lstm` with its parameters.

    If a batch has fewer rows than the state, the sequences of the last rows have ended; their state
    is kept.

        >>> lstm = L.LSTM(3, 5)
        >>> ys = [lstm(np.ones((2, 3), np.float32)) for _ in range(4)]
        >>> lstm.reset_state()

    Args:
        in_size, out_size, lateral_init, upward_init, bias_init, forget_bias_init: see
            :class:`StatelessLSTM`.

    Attributes:
        upward, lateral (Linear): see :class:`StatelessLSTM`.
        c, h (Variable): memory and output (N, out_size), initially None.
    """

    def forward(self, x: Input) -> Variable:
        """Computes a time step.

        Args:
            x: Variable or array (N, in_size); N must not exceed the number of rows of the state.

        Returns:
            Variable (N, out_size).
        """
        self._check_batch(x, may_shrink=True)
        n, h, ended = x.shape[0], self.h, None
        if h is not None and h.shape[0] > n:
            h, ended = F.split_axis(h, [n], 0)
        self.c, y = self._step(self.c, h, x)
        self.h = y if ended is None else F.concat([y, ended], 0)
        return y


class StatefulZoneoutLSTM(_StatefulMemory, _LSTMCell):
    """LSTM with zoneout: in training, random elements of the state keep their old values.

        >>> L.StatefulZoneoutLSTM(3, 5, c_ratio=0.1)(np.ones((2, 3), np.float32)).shape
        (2, 5)

    Args:
        in_size: number of input features; None infers it from the first input.
        out_size: number of units.
        c_ratio, h_ratio: the zoneout ratios of memory and output.

    Attributes:
        upward, lateral (Linear): see :class:`StatelessLSTM`.
        c, h (Variable): memory and output (N, out_size), initially None.

    See D. Krueger et al., Zoneout: regularizing RNNs by randomly preserving hidden activations,
    ICLR 2017.
    """

    def __init__(
        self, in_size: int | None, out_size: int, c_ratio: float = 0.5, h_ratio: float = 0.5
    ) -> None:
        super().__init__(Linear(in_size, 4 * out_size), Linear(out_size, 4 * out_size, nobias=True))
        self.c_ratio = c_ratio
        self.h_ratio = h_ratio

    def _step(self, h, x):
        gates = self._gates(h, x)
        zeros = _zeros(x.shape[0], self.state_size, gates)
        c, h = (zeros if state is None else state for state in (self.c, h))
        c_next, h_next = F.lstm(c, gates)
        self.c = F.zoneout(c, c_next, self.c_ratio)
        return F.zoneout(h, h_next, self.h_ratio)


class StatefulPeepholeLSTM(_StatefulMemory, _LSTMCell):
    """LSTM with peepholes, by which the gates depend on the memory.

    Let s be the sigmoid. The gates i and f depend on the memory before the step, and o depends on
    the memory after it: c = tanh(a) s(i + P_i c_prev) + c_prev s(f + P_f c_prev), h = tanh(c) s(o +
    P_o c).

        >>> L.StatefulPeepholeLSTM(3, 5)(np.ones((2, 3), np.float32)).shape
        (2, 5)

    Args:
        in_size: number of input features; None infers it from the first input.
        out_size: number of units.

    Attributes:
        upward, lateral (Linear): see :class:`StatelessLSTM`.
        peep_i, peep_f, peep_o (Linear): the maps from the memory to the gates, with weights
            (out_size, out_size).
        c, h (Variable): memory and output (N, out_size), initially None.

    See F. Gers and J. Schmidhuber, Recurrent nets that time and count, IJCNN 2000.
    """

    def __init__(self, in_size: int | None, out_size: int) -> None:
        super().__init__(Linear(in_size, 4 * out_size), Linear(out_size, 4 * out_size, nobias=True))
        with self.init_scope():
            self.peep_i = Linear(out_size, out_size, nobias=True)
            self.peep_f = Linear(out_size, out_size, nobias=True)
            self.peep_o = Linear(out_size, out_size, nobias=True)

    def _step(self, h, x):
        gates = self._gates(h, x)
        gates = F.reshape(gates, (x.shape[0], self.state_size, 4))
        a, i, f, o = F.separate(gates, axis=2)
        c = _zeros(x.shape[0], self.state_size, gates) if self.c is None else self.c
        kept = c * F.sigmoid(f + self.peep_f(c))
        self.c = F.tanh(a) * F.sigmoid(i + self.peep_i(c)) + kept
        return F.tanh(self.c) * F.sigmoid(o + self.peep_o(self.c))


# The classes below are gated recurrent units.


class _GRUCell(Chain):
    """Base of gated recurrent units, with their parameters."""

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        init: InitialValue = None,
        inner_init: InitialValue = None,
        bias_init: InitialValue = None,
    ) -> None:
        super().__init__()
        with self.init_scope():
            for gate in ("_r", "_z", ""):
                upward = Linear(in_size, out_size, initialW=init, initial_bias=bias_init)
                lateral = Linear(out_size, out_size, initialW=inner_init, initial_bias=bias_init)
                setattr(self, f"W{gate}", upward)
                setattr(self, f"U{gate}", lateral)

    def _step(self, h, x):
        if h is None:
            if not self.W_r.W.is_initialized:
                # the first call initializes all parameters, including those that it does not use
                self.W_r(x)
            return F.sigmoid(self.W_z(x)) * F.tanh(self.W(x))
        r = F.sigmoid(self.W_r(x) + self.U_r(h))
        z = F.sigmoid(self.W_z(x) + self.U_z(h))
        return F.linear_interpolate(z, F.tanh(self.W(x) + self.U(r * h)), h)


class StatelessGRU(_GRUCell):
    """Stateless gated recurrent units.

    Let s be the sigmoid, r = s(W_r x + U_r h) and z = s(W_z x + U_z h). The new state is
    (1 - z) h + z tanh(W x + U (r h)). The matrices stand for affine maps.

        >>> L.StatelessGRU(3, 5)(None, np.ones((2, 3), np.float32)).shape
        (2, 5)

    Args:
        in_size: number of input features; None infers it from the first input.
        out_size: number of units.
        init, inner_init: initializers, numbers or arrays of the matrices W (out_size, in_size) and
            U (out_size, out_size); None means LeCunNormal.
        bias_init: initializer, number or array (out_size,) of all biases; None means zeros.

    Attributes:
        W_r, W_z, W (Linear): the maps from the input, with weights (out_size, in_size).
        U_r, U_z, U (Linear): the maps from the state, with weights (out_size, out_size).

    See K. Cho et al., On the properties of neural machine translation: encoder-decoder approaches,
    SSST-8 2014.
    """

    def forward(self, h: Input | None, x: Input) -> Variable:
        """Computes a time step.

        Args:
            h: Variable or array (N, out_size): the state; None means zeros, and the biases of the
                maps U are not added.
            x: Variable or array (N, in_size).

        Returns:
            Variable (N, out_size): the new state.
        """
        return self._step(h, x)


class StatefulGRU(_Stateful, _GRUCell):
    """Stateful gated recurrent units; see :class:`StatelessGRU`.

        >>> gru = L.StatefulGRU(3, 5)
        >>> ys = [gru(np.ones((2, 3), np.float32)) for _ in range(4)]
        >>> gru.h is ys[-1]
        True

    Args:
        in_size, out_size, init, inner_init, bias_init: see :class:`StatelessGRU`.

    Attributes:
        W_r, W_z, W, U_r, U_z, U (Linear): see :class:`StatelessGRU`.
        h (Variable): the state (N, out_size), initially None.
    """

    def __init__(
        self,
        in_size: int | None,
        out_size: int,
        init: InitialValue = None,
        inner_init: InitialValue = None,
        bias_init: InitialValue = 0,
    ) -> None:
        super().__init__(in_size, out_size, init, inner_init, bias_init)
        self.state_size = out_size


class GRU(StatefulGRU):
    """Another name of :class:`StatefulGRU`.

    >>> L.GRU(3, 5)(np.ones((2, 3), np.float32)).shape
    (2, 5)
    """


# The classes below are minimal gated units.


class _MGUCell(Chain):
    """Base of minimal gated units, with their parameters."""

    def __init__(self, in_size: int | None, out_size: int) -> None:
        super().__init__()
        size = None if in_size is None else in_size + out_size
        self.state_size = out_size
        with self.init_scope():
            self.W_f = Linear(size, out_size)
            self.W_h = Linear(size, out_size)

    def _step(self, h, x):
        if h is None:
            h = _zeros(x.shape[0], self.state_size, as_variable(x))
        f = F.sigmoid(self.W_f(F.concat([h, x])))
        return F.linear_interpolate(f, F.tanh(self.W_h(F.concat([f * h, x]))), h)


class StatelessMGU(_MGUCell):
    """Stateless minimal gated units.

    Let [] be concatenation and f = sigmoid(W_f [h, x]). The new state is
    (1 - f) h + f tanh(W_h [f h, x]). The matrices stand for affine maps.

        >>> L.StatelessMGU(3, 5)(None, np.ones((2, 3), np.float32)).shape
        (2, 5)

    Args:
        n_inputs: number of input features; None infers it from the first input.
        n_units: number of units.

    Attributes:
        W_f, W_h (Linear): the maps from the concatenated state and input, with weights (n_units,
            n_units + n_inputs).

    See G. Zhou et al., Minimal gated unit for recurrent neural networks, 2016.
    """

    def __init__(self, n_inputs: int | None, n_units: int) -> None:
        super().__init__(n_inputs, n_units)

    def forward(self, h: Input | None, x: Input) -> Variable:
        """Computes a time step.

        Args:
            h: Variable or array (N, n_units): the state; None means zeros.
            x: Variable or array (N, n_inputs).

        Returns:
            Variable (N, n_units): the new state.
        """
        return self._step(h, x)


class StatefulMGU(_Stateful, _MGUCell):
    """Stateful minimal gated units; see :class:`StatelessMGU`.

        >>> L.StatefulMGU(3, 5)(np.ones((2, 3), np.float32)).shape
        (2, 5)

    Args:
        in_size: number of input features; None infers it from the first input.
        out_size: number of units.

    Attributes:
        W_f, W_h (Linear): see :class:`StatelessMGU`.
        h (Variable): the state (N, out_size), initially None.
    """
