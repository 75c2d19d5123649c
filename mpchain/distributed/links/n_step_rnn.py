"""Recurrent layers whose states come from one rank and go to another."""

from mpchain.distributed.functions import recv, send
from mpchain.distributed.functions.communication import token_of
from mpchain.link import Chain


def create_multi_node_n_step_rnn(actual_link, communicator, rank_in=None, rank_out=None):
    """Makes recurrent layers begin with the last states of those on another rank.

    Args:
        actual_link (Link): one of the NStep links, such as :class:`mpchain.links.NStepLSTM`.
        communicator (Communicator): the ranks.
        rank_in (int): the rank whose last states are the first ones here; None: they are zeros, or
            given.
        rank_out (int): the rank that gets the last states; None: no other.

    Returns:
        MultiNodeNStepRNN

    Raises:
        TypeError: ``actual_link`` is no NStep link.
    """
    return MultiNodeNStepRNN(actual_link, communicator, rank_in, rank_out)


class MultiNodeNStepRNN(Chain):
    """What :func:`create_multi_node_n_step_rnn` returns.

    Attributes:
        actual_link: the wrapped link, a child.
        communicator, rank_in, rank_out: as given.
    """

    def __init__(self, actual_link, communicator, rank_in, rank_out):
        super().__init__()
        if not hasattr(actual_link, "n_cells"):
            raise TypeError(
                "create_multi_node_n_step_rnn: actual_link must be an NStep link, such as "
                f"NStepLSTM, not {type(actual_link).__name__}"
            )
        with self.init_scope():
            self.actual_link = actual_link
        self.communicator = communicator
        self.rank_in = rank_in
        self.rank_out = rank_out

    def forward(self, *inputs, delegate_variable=None):
        """Runs the layers over a batch of sequences.

        Args:
            inputs: the arguments of the wrapped link; ``xs`` alone will do. With ``rank_in`` the
                first states must be left out, or None.
            delegate_variable (Variable): what the communication is made to depend on.

        Returns:
            tuple: what the wrapped link returns (the last states and a list), and a delegate
            variable, by whose ``backward`` that of this link is run on ranks without a loss.

        Raises:
            TypeError: there are too few or too many arguments, or first states besides received
                ones.
        """
        n_cells = self.actual_link.n_cells
        *states, xs = inputs if len(inputs) > 1 else (*[None] * n_cells, *inputs)
        if len(states) != n_cells:
            raise TypeError(
                f"MultiNodeNStepRNN: {type(self.actual_link).__name__} has {n_cells} states: the "
                f"arguments must be these and xs, or xs, but are {len(inputs)}"
            )
        if self.rank_in is not None:
            if any(state is not None for state in states):
                raise TypeError(
                    f"MultiNodeNStepRNN: the first states come from rank {self.rank_in}: those "
                    "given must be None"
                )
            ranks = self.communicator, self.rank_in
            states = recv(*ranks, delegate_variable, force_tuple=True)
        outputs = self.actual_link(*states, xs)
        if self.rank_out is None:
            return *outputs, token_of(outputs[0])
        return *outputs, send(outputs[:-1], self.communicator, self.rank_out)
