"""Recurrent layers whose states come from one rank and are sent to another rank."""

from typing import Any

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.functions import recv, send
from mpchain.distributed.functions.communication import token_of
from mpchain.link import Chain, Link
from mpchain.variable import Variable


class MultiNodeNStepRNN(Chain):
    """Recurrent layers that begin with the last states of layers on another rank.

    ``create_multi_node_n_step_rnn`` is another name of this class.

    Args:
        actual_link: an NStep link, such as :class:`mpchain.links.NStepLSTM`.
        communicator: the communicator of the ranks.
        rank_in: the rank whose last states are the first states on this rank; with None, the first
            states are arguments, or zeros.
        rank_out: the rank that gets the last states; None sends them to no rank.

    Attributes:
        actual_link: the wrapped link, a child.
        communicator, rank_in, rank_out: the arguments of the same names.

    Raises:
        TypeError: ``actual_link`` is not an NStep link.

    Example:
        >>> from mpchain.distributed.links import create_multi_node_n_step_rnn
        >>> rnn = create_multi_node_n_step_rnn(L.NStepLSTM(1, 3, 2, dropout=0.0), comm)
        >>> h, c, ys, delegate = rnn([np.ones((5, 3), "f")])  # one sequence of length 5
        >>> h.shape, ys[0].shape
        ((1, 1, 2), (5, 2))
    """

    def __init__(
        self,
        actual_link: Link,
        communicator: Communicator,
        rank_in: int | None = None,
        rank_out: int | None = None,
    ):
        super().__init__()
        if not hasattr(actual_link, "n_cells"):
            raise TypeError(
                "create_multi_node_n_step_rnn: actual_link must be an NStep link, such as "
                f"NStepLSTM, not {type(actual_link).__name__}"
            )
        with self.init_scope():
            self.actual_link = actual_link
        communicator.refuse_to_lose_ranks(self, "each rank has its own layers (MultiNodeNStepRNN)")
        self.communicator, self.rank_in, self.rank_out = communicator, rank_in, rank_out

    def forward(self, *inputs: Any, delegate_variable: Variable | None = None) -> tuple:
        """Runs the layers over a batch of sequences.

        Args:
            inputs: the arguments of the wrapped link; only ``xs`` is required. With ``rank_in``,
                the first states must be omitted or None.
            delegate_variable: a Variable on which the states from ``rank_in`` will depend; without
                ``rank_in`` it is not used.

        Returns:
            The results of the wrapped link (the last states and a list of Variables), and a
            delegate variable, whose ``backward`` runs this link's backward on ranks without a loss.

        Raises:
            TypeError: there are too few or too many arguments, or ``rank_in`` is set and first
                states are passed, too.
        """
        n_cells = self.actual_link.n_cells
        *states, xs = inputs if len(inputs) > 1 else (*[None] * n_cells, *inputs)
        if len(states) != n_cells:
            raise TypeError(
                f"MultiNodeNStepRNN: pass xs, or {n_cells} states and xs, to "
                f"{type(self.actual_link).__name__}, not {len(inputs)} arguments"
            )
        if self.rank_in is not None:
            if any(state is not None for state in states):
                raise TypeError(
                    f"MultiNodeNStepRNN: the first states come from rank {self.rank_in}; pass None "
                    "for them"
                )
            states = recv(self.communicator, self.rank_in, delegate_variable, force_tuple=True)
        outputs = self.actual_link(*states, xs)
        if self.rank_out is None:
            return *outputs, token_of(outputs[0])
        return *outputs, send(self.communicator, outputs[:-1], self.rank_out)


create_multi_node_n_step_rnn = MultiNodeNStepRNN
