"""Gives each rank its share of a dataset."""

from collections.abc import Sized

import numpy as np

from mpchain.datasets import SubDataset
from mpchain.distributed.communicators import Communicator
from mpchain.distributed.communicators.arrays import partition
from mpchain.typing import Dataset


class DataSizeError(ValueError):
    """There are fewer samples than ranks.

    >>> from mpchain.distributed import DataSizeError
    >>> issubclass(DataSizeError, ValueError)
    True
    """


def scatter_dataset(
    dataset: Dataset | None,
    comm: Communicator,
    root: int = 0,
    shuffle: bool = False,
    seed: int | None = None,
    max_buf_len: int = 256 * 1024 * 1024,
    *,
    force_equal_length: bool = True,
) -> SubDataset:
    """Returns this rank's share of a dataset.

    The dataset is sent only if some rank passes None; otherwise only its length and a random order
    are sent.

    Args:
        dataset: the dataset, on the root. Other ranks may pass None to get the root's dataset,
            which must then be picklable.
        comm: the communicator of the ranks.
        root: the rank whose dataset and order are used.
        shuffle: whether to distribute the samples in random order.
        seed: seed of the random order; None draws from NumPy's global state.
        max_buf_len: the greatest number of bytes in one message.
        force_equal_length: whether all shares have the same length, so that two ranks may get the
            same sample; if not, the shares are disjoint, and the first ranks may have one sample
            more.

    Raises:
        DataSizeError: there are fewer samples than ranks.
        ValueError: the root's dataset is None, or another rank's dataset has another length.

    Example:
        >>> mine = mpchain.distributed.scatter_dataset(range(10), comm, shuffle=True, seed=0)
        >>> len(mine), mine[0]
        (10, 2)
    """
    if any(comm.allgather_obj(dataset is None)):
        dataset = comm.bcast_obj(dataset, max_buf_len, root)
    n = comm.bcast_obj(None if dataset is None else len(dataset), root=root)
    if n is None or dataset is None:
        raise ValueError(f"scatter_dataset: the dataset of the root, rank {root}, must not be None")
    if n != len(dataset):
        raise ValueError(
            f"scatter_dataset: the dataset has {n} samples on rank {root} but {len(dataset)} on "
            f"rank {comm.rank}; pass None on rank {comm.rank} to get the root's dataset"
        )
    begin, end = _share("scatter_dataset", n, comm, force_equal_length)
    order = None
    if shuffle:
        random = np.random if seed is None else np.random.RandomState(seed)
        order = comm.bcast(random.permutation(n) if comm.rank == root else None, root)
    mine = SubDataset(dataset, begin, end, order)
    comm.refuse_to_lose_ranks(mine, "scatter_dataset has divided a data set")
    return mine


def scatter_index(
    n_total_samples: int, comm: Communicator, root: int = 0, *, force_equal_length: bool = True
) -> tuple[int, int]:
    """Returns the range (begin, end) of the indices of this rank's samples.

    Args:
        n_total_samples: the number of samples, on the root.
        comm, root, force_equal_length: see :func:`scatter_dataset`.

    Raises:
        DataSizeError: there are fewer samples than ranks.

    Example:
        >>> mpchain.distributed.scatter_index(10, comm)
        (0, 10)
    """
    n = comm.bcast_obj(n_total_samples, root=root)
    return _share("scatter_index", n, comm, force_equal_length)


def _share(function, n, comm, force_equal_length):
    if n < comm.size:
        raise DataSizeError(
            f"{function}: {n} samples cannot be divided among {comm.size} ranks, "
            "since each rank must have at least one: use fewer ranks or more samples"
        )
    if force_equal_length:
        begin = n * comm.rank // comm.size
        return begin, begin - (-n // comm.size)
    return partition(n, comm.rank, comm.size)


def create_empty_dataset(dataset: Sized) -> list[tuple[()]]:
    """Returns a dataset of the same length whose samples are empty tuples.

    Use it on ranks that have no data but take part in each step of a model.

    Example:
        >>> mpchain.distributed.create_empty_dataset(range(3))
        [(), (), ()]
    """
    return [()] * len(dataset)


def get_n_iterations_for_one_epoch(
    dataset: Sized, local_batch_size: int, comm: Communicator
) -> int:
    """Returns the number of batches of an epoch, on the rank with the most samples.

    Args:
        dataset: this rank's share, such as the result of :func:`scatter_dataset`.
        local_batch_size: number of samples in a batch of one rank.
        comm: the communicator of the ranks.

    Example:
        >>> get_n_iterations_for_one_epoch(range(10), 4, comm)
        3
    """
    return max(comm.allgather_obj(-(-len(dataset) // local_batch_size)))


def get_epoch_trigger(
    n_epochs: int, dataset: Sized, local_batch_size: int, comm: Communicator
) -> tuple[int, str]:
    """Returns the trigger (number, "iteration") that fires after ``n_epochs`` epochs on all ranks.

    Args:
        n_epochs: number of epochs.
        dataset, local_batch_size, comm: see :func:`get_n_iterations_for_one_epoch`.

    Example:
        >>> get_epoch_trigger(2, range(10), 4, comm)
        (6, 'iteration')
    """
    return n_epochs * get_n_iterations_for_one_epoch(dataset, local_batch_size, comm), "iteration"
