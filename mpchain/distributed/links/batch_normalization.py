"""Batch normalization over the samples of all ranks."""

from mpchain.distributed.communicators import Communicator
from mpchain.distributed.functions import batch_normalization
from mpchain.link import Link
from mpchain.links import BatchNormalization
from mpchain.typing import DTypeLike, InitialValue

BACKENDS = ("auto", "mpi", "nccl")


class MultiNodeBatchNormalization(BatchNormalization):
    """Batch normalization with the statistics of the samples of all ranks.

    The link and all orders of its derivative are equal to :class:`mpchain.links.BatchNormalization`
    for all samples in one process; see :func:`mpchain.distributed.functions.batch_normalization`.
    All ranks must call the link together; their numbers of samples may differ.

    Args:
        size: shape of the parameters; None takes it from the first input.
        comm: the communicator of the ranks.
        decay, eps, dtype, use_gamma, use_beta, initial_gamma, initial_beta: see
            :class:`mpchain.links.BatchNormalization`.
        communication_backend: ``'auto'``, or the backend of ``comm``, which is ``'mpi'`` or
            ``'nccl'``; the communicator decides how arrays are sent.

    Attributes:
        gamma, beta, avg_mean, avg_var, N: see :class:`mpchain.links.BatchNormalization`. The
            averages stay the same on all ranks.
        comm: the argument of the same name.

    Raises:
        TypeError: ``comm`` is not a communicator.
        ValueError: ``communication_backend`` is unknown, or not the communicator's backend.

    Example:
        >>> link = mpchain.distributed.links.MultiNodeBatchNormalization(1, comm)
        >>> link(np.array([[1], [3]], "f"))
        variable([[-0.99999], [ 0.99999]])
    """

    needs_all_ranks = True

    def __init__(
        self,
        size: int | tuple[int, ...] | None,
        comm: Communicator,
        decay: float = 0.9,
        eps: float = 2e-5,
        dtype: DTypeLike = None,
        use_gamma: bool = True,
        use_beta: bool = True,
        initial_gamma: InitialValue = None,
        initial_beta: InitialValue = None,
        communication_backend: str = "auto",
    ):
        super().__init__(size, decay, eps, dtype, use_gamma, use_beta, initial_gamma, initial_beta)
        _check("MultiNodeBatchNormalization", comm, communication_backend)
        self.comm = comm

    def _normalize(self, x, gamma, beta, **options):
        return batch_normalization(self.comm, x, gamma, beta, **options)


def create_mnbn_model(link: Link, comm: Communicator, communication_backend: str = "auto") -> Link:
    """Copies a model and makes each BatchNormalization in it use the samples of all ranks.

    Parameters, averages and settings are copied; a link or parameter that is used several times is
    copied once. Other normalizations, such as BatchRenormalization, and subclasses of
    BatchNormalization stay unchanged.

    Args:
        link: the model; it may itself be a BatchNormalization.
        comm: the communicator of the ranks.
        communication_backend: see :class:`MultiNodeBatchNormalization`.

    Returns:
        The copy, in which a MultiNodeBatchNormalization replaces each BatchNormalization.

    Raises:
        TypeError, ValueError: see :class:`MultiNodeBatchNormalization`.

    Example:
        >>> model = mpchain.Sequential(L.Linear(3, 2), L.BatchNormalization(2))
        >>> type(mpchain.distributed.links.create_mnbn_model(model, comm)[1]).__name__
        'MultiNodeBatchNormalization'
    """
    _check("create_mnbn_model", comm, communication_backend)
    copied = link.copy("copy")
    for part in copied.links():
        if type(part) is BatchNormalization:
            # The two links differ only in their class, so all references to the link stay valid.
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
    kind = "nccl" if comm.uses_nccl else "mpi"
    if comm.size > 1 and backend not in ("auto", kind):
        raise ValueError(
            f"{name}: communication_backend is {backend!r}, but the communicator uses {kind!r}; "
            "use 'auto', or choose another communicator with create_communicator"
        )
