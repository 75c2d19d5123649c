"""What communicators do with models: methods of theirs, which know of ranks and arrays alone."""

import weakref

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.gradients import buckets, replication
from mpchain.distributed.gradients.persistents import named_persistents
from mpchain.link import Link


def bcast_data(self: Communicator, model: Link) -> None:
    """Copies parameters and persistent values of ``model`` from rank 0 to all ranks.

    A parameter that is not initialized on a rank is initialized there. A value that rank 0 lacks
    comes from the lowest rank that has it.

    Example:
        >>> comm.bcast_data(L.Linear(3, 2))  # now the same on all ranks
    """
    with model.device.create_context():
        replication.replicate(self, dict(model.namedparams()), named_persistents(model))


def multi_node_mean_grad(self: Communicator, model: Link, zero_fill: bool = False) -> None:
    """Replaces the gradients of ``model`` by their means over the ranks.

    Memory for the gradients is kept for the next call as long as the model exists.

    Args:
        model: its parameters must be the same on all ranks.
        zero_fill: whether a gradient that is None on some ranks counts as zeros there. One that is
            None on all ranks stays None.

    Raises:
        ValueError: a gradient is None on some ranks only, and ``zero_fill`` is False.

    Example:
        >>> model = L.Linear(1, 1)
        >>> model.W.grad = np.full((1, 1), comm.rank, np.float32)
        >>> comm.multi_node_mean_grad(model)
        >>> model.W.grad
        array([[0.]], dtype=float32)
    """
    params = dict(model.namedparams(include_uninit=False))
    kind = (
        zero_fill,
        self.get_config("allreduce_grad_dtype"),
        self.size,  # others may be lost
        [(name, id(p), p.shape, p.dtype, p.device) for name, p in params.items()],
    )
    kept = vars(self).setdefault("_reducers", weakref.WeakKeyDictionary())
    kind_before, reducer = kept.pop(model, (None, None))
    if kind_before != kind:
        reducer = buckets.GradientReducer(self, zero_fill=zero_fill)
        reducer.watch(params)
    with model.device.create_context():
        reducer.begin()
        reducer.finish()
    kept[model] = kind, reducer  # not if an exception has ended the step


Communicator.bcast_data = Communicator.broadcast_data = bcast_data
Communicator.multi_node_mean_grad = Communicator.allreduce_grad = multi_node_mean_grad
