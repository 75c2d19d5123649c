"""Batch normalization by the samples of all ranks."""

from mpchain.distributed.communicators import Communicator, NcclCommunicator
from mpchain.distributed.functions import batch_normalization
from mpchain.links import BatchNormalization

BACKENDS = ("auto", "mpi", "nccl")


class MultiNodeBatchNormalization(BatchNormalization):
    """Batch normalization by the statistics of the samples of all ranks.

    It computes, to every order of derivative, what :class:`mpchain.links.BatchNormalization` does
    of all samples in one process; see :func:`mpchain.distributed.functions.batch_normalization`.
    All ranks must call it together; the numbers of their samples may differ.

    Args:
        size (int or tuple of int): shape of the parameters; None leaves it to the first input.
        comm (Communicator): the ranks.
        decay, eps, dtype, use_gamma, use_beta, initial_gamma, initial_beta: see
            :class:`mpchain.links.BatchNormalization`.
        communication_backend (str): ``'auto'``, or ``'mpi'`` or ``'nccl'``, which the communicator
            must be of: it is the communicator that decides how arrays travel.

    Attributes:
        gamma, beta, avg_mean, avg_var, N: see :class:`mpchain.links.BatchNormalization`. The
            averages stay the same on all ranks.
        comm (Communicator): as given.

    Raises:
        TypeError: ``comm`` is no communicator.
        ValueError: ``communication_backend`` is unknown, or not the communicator's.
    """

    needs_all_ranks = True

    def __init__(
        self,
        size,
        comm,
        decay=0.9,
        eps=2e-5,
        dtype=None,
        use_gamma=True,
        use_beta=True,
        initial_gamma=None,
        initial_beta=None,
        communication_backend="auto",
    ):
        super().__init__(size, decay, eps, dtype, use_gamma, use_beta, initial_gamma, initial_beta)
        _check("MultiNodeBatchNormalization", comm, communication_backend)
        self.comm = comm

    def _normalize(self, x, gamma, beta, **options):
        return batch_normalization(self.comm, x, gamma, beta, **options)


def create_mnbn_model(link, comm, communication_backend="auto"):
    """Copies a model and makes each BatchNormalization in it normalize by the samples of all ranks.

    Parameters, averages and settings are copied, the shared ones once. Other normalizations, such
    as BatchRenormalization, and subclasses of BatchNormalization stay as they are.

    Args:
        link (Link): the model; it may itself be a BatchNormalization.
        comm (Communicator): the ranks.
        communication_backend (str): see :class:`MultiNodeBatchNormalization`.

    Returns:
        Link: the copy, in which there is a MultiNodeBatchNormalization for each BatchNormalization,
        wherever it is referred to.

    Raises:
        TypeError, ValueError: see :class:`MultiNodeBatchNormalization`.
    """
    _check("create_mnbn_model", comm, communication_backend)
    copied = link.copy("copy")
    for part in copied.links():
        if type(part) is BatchNormalization:
            # The class is all in which they differ. So every reference to the link is right.
            part.__class__ = MultiNodeBatchNormalization
            part.comm = comm
    return copied


def _check(name, comm, backend):
    if not isinstance(comm, Communicator):
        raise TypeError(f"{name}: comm must be a Communicator, not {type(comm).__name__}")
    if backend not in BACKENDS:
        raise ValueError(
            f"{name}: communication_backend must be one of {', '.join(BACKENDS)}, not {backend!r}"
        )
    kind = "nccl" if isinstance(comm, NcclCommunicator) else "mpi"
    if comm.size > 1 and backend not in ("auto", kind):
        raise ValueError(
            f"{name}: communication_backend is {backend!r}, but the communicator is of {kind!r}: "
            "it decides how arrays travel (create_communicator)"
        )
