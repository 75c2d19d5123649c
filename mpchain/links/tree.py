"""Recurrent cells over trees."""

from mpchain import functions as F
from mpchain.link import Chain
from mpchain.links.connection import Linear
from mpchain.typing import Input
from mpchain.utils.type_check import check
from mpchain.variable import Variable, as_variable


class _TreeLSTM(Chain):
    """Base of tree cells, with the preparation of their inputs."""

    def _states(self, cshsx):
        """Returns the memories, the outputs, and W_x(x); zeros replace inputs that are None."""
        name = type(self).__name__
        fits = len(cshsx) % 2 == 1
        check(
            fits,
            name,
            "inputs must be memories, the same number of outputs, and x",
            n_inputs=len(cshsx),
        )
        known = next((v for v in cshsx if v is not None), None)
        if known is None:
            raise ValueError(
                f"{name}: at least one input must not be None, because the batch size is unknown "
                "otherwise"
            )
        n = len(cshsx) // 2
        shape = known.shape[0], self.state_size
        zeros = as_variable(self.xp.zeros(shape, known.dtype))
        states = [zeros if v is None else as_variable(v) for v in cshsx[:-1]]
        x, b = cshsx[-1], self.W_x.b
        if x is None:
            of_x = F.cast(F.broadcast_to(b, (shape[0], b.size)), known.dtype)
        else:
            of_x = self.W_x(x)
        return states[:n], states[n:], of_x


class ChildSumTreeLSTM(_TreeLSTM):
    """Child-sum tree LSTM, for any number of children: :func:`mpchain.functions.tree_lstm`.

    Besides x, the values a, i and o of the function depend on the sum of the children's outputs,
    and f of each child depends on the output of this child.

        >>> cell, x = L.ChildSumTreeLSTM(3, 5), np.ones((2, 3), np.float32)
        >>> c, h = cell(x)  # a leaf
        >>> c, h = cell(c, c, c, h, h, h, x)  # a node with three children
        >>> h.shape
        (2, 5)

    Args:
        in_size: number of input features; None infers it from the first input.
        out_size: number of units.

    Attributes:
        W_x (Linear): the map from the input to a, i, o and f, with W (4 out_size, in_size) and a
            bias.
        W_h_aio (Linear): the map from the sum of outputs to a, i and o, with W (3 out_size,
            out_size).
        W_h_f (Linear): the map from each child's output to the child's f, with W (out_size,
            out_size).

    See K. Tai et al., Improved semantic representations from tree-structured long short-term memory
    networks, ACL 2015, and :func:`mpchain.functions.tree_lstm`.
    """

    def __init__(self, in_size: int | None, out_size: int) -> None:
        super().__init__()
        self.in_size = in_size
        self.state_size = out_size
        with self.init_scope():
            self.W_x = Linear(in_size, 4 * out_size)
            self.W_h_aio = Linear(out_size, 3 * out_size, nobias=True)
            self.W_h_f = Linear(out_size, out_size, nobias=True)

    def forward(self, *cshsx: Input | None) -> tuple[Variable, Variable]:
        """Computes a node from its children.

        Args:
            cshsx: Variables or arrays c_1, ..., c_n, h_1, ..., h_n (N, out_size), memories and
                outputs of the children, and x (N, in_size). Some may be None, but not all.

        Returns:
            tuple: memory and output, Variables (N, out_size).

        Raises:
            InvalidType: the number of inputs is even.
            ValueError: all inputs are None.
        """
        cs, hs, of_x = self._states(cshsx)
        aio, f = F.split_axis(of_x, [3 * self.state_size], 1)
        if not hs:
            a, i, o = F.split_axis(aio, 3, 1)
            c = F.tanh(a) * F.sigmoid(i)
            return c, F.tanh(c) * F.sigmoid(o)
        aio = aio + self.W_h_aio(sum(hs[1:], hs[0]))
        return F.tree_lstm(*cs, F.concat([aio, *(f + self.W_h_f(h) for h in hs)], 1))


class NaryTreeLSTM(_TreeLSTM):
    """N-ary tree LSTM, for ``n_ary`` ordered children: :func:`mpchain.functions.tree_lstm`.

    All gates depend on the outputs of all children, each through a separate matrix.

        >>> cell, x = L.NaryTreeLSTM(3, 5, n_ary=2), np.ones((2, 3), np.float32)
        >>> c, h = cell(None, None, None, None, x)  # a leaf
        >>> c, h = cell(c, c, h, h, x)
        >>> h.shape
        (2, 5)

    Args:
        in_size: number of input features; None infers it from the first input.
        out_size: number of units.
        n_ary: number of children.

    Attributes:
        W_x (Linear): the map from the input to a, i, o, f_1, ..., f_n, with W ((3 + n_ary)
            out_size, in_size) and a bias.
        W_h1, W_h2, ... (Linear): the map from the output of each child, with W ((3 + n_ary)
            out_size, out_size).

    See K. Tai et al., Improved semantic representations from tree-structured long short-term memory
    networks, ACL 2015, and :func:`mpchain.functions.tree_lstm`.
    """

    def __init__(self, in_size: int | None, out_size: int, n_ary: int = 2) -> None:
        super().__init__()
        if n_ary < 1:
            raise ValueError(f"NaryTreeLSTM: n_ary must be positive, but is {n_ary}")
        self.in_size = in_size
        self.state_size = out_size
        self.n_ary = n_ary
        rows = (3 + n_ary) * out_size
        with self.init_scope():
            self.W_x = Linear(in_size, rows)
            for k in range(1, n_ary + 1):
                setattr(self, f"W_h{k}", Linear(out_size, rows, nobias=True))

    def forward(self, *cshsx: Input | None) -> tuple[Variable, Variable]:
        """Computes a node from its children.

        Args:
            cshsx: Variables or arrays c_1, ..., c_n, h_1, ..., h_n (N, out_size), memories and
                outputs of the children, and x (N, in_size). Some may be None, but not all.

        Returns:
            tuple: memory and output, Variables (N, out_size).

        Raises:
            InvalidType: the number of inputs is not 2 ``n_ary`` + 1.
            ValueError: all inputs are None.
        """
        cs, hs, gates = self._states(cshsx)
        rule = f"there must be {self.n_ary} children"
        check(len(hs) == self.n_ary, "NaryTreeLSTM", rule, n_children=len(hs))
        gates = sum((self[f"W_h{k}"](h) for k, h in enumerate(hs, 1)), gates)
        return F.tree_lstm(*cs, gates)
