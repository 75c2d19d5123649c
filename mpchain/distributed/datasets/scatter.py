"""Giving each rank its share of a dataset."""

import numpy as np

from mpchain.datasets import SubDataset


class DataSizeError(ValueError):
    """There are fewer samples than ranks."""


def scatter_dataset(
    dataset,
    comm,
    root=0,
    shuffle=False,
    seed=None,
    max_buf_len=256 * 1024 * 1024,
    *,
    force_equal_length=True,
):
    """Returns this rank's share of a dataset.

    The dataset itself travels only if some rank has none; else only the order does.

    Args:
        dataset: the dataset; what the root gives counts. Other ranks may give None, and then get
            the root's, which must be picklable.
        comm (Communicator): the ranks.
        root (int): the rank whose dataset and order count.
        shuffle (bool): whether the samples are dealt out in random order.
        seed (int): seed of that order; None draws from NumPy's global state.
        max_buf_len (int): bytes in one message.
        force_equal_length (bool): whether all shares have the same length, by giving some samples
            to two ranks; else the shares are disjoint, and their lengths differ by one at most.

    Returns:
        SubDataset

    Raises:
        DataSizeError: there are fewer samples than ranks.
        ValueError: the root's dataset is None.
    """
    if any(comm.allgather_obj(dataset is None)):
        dataset = comm.bcast_obj(dataset, max_buf_len, root)
    n = comm.bcast_obj(None if dataset is None else len(dataset), root=root)
    if n is None:
        raise ValueError(f"scatter_dataset: the dataset of the root, rank {root}, must not be None")
    if n != len(dataset):
        raise ValueError(
            f"scatter_dataset: the dataset has {n} samples on rank {root} but {len(dataset)} on "
            f"rank {comm.rank}; give None there to get the root's"
        )
    begin, end = _share("scatter_dataset", n, comm, force_equal_length)
    order = None
    if shuffle:
        order = comm.bcast(_permutation(n, seed) if comm.rank == root else None, root)
    return SubDataset(dataset, begin, end, order)


def scatter_index(n_total_samples, comm, root=0, *, force_equal_length=True):
    """Returns the range of indices that is this rank's share of so many samples.

    Args:
        n_total_samples (int): the root's counts.
        comm, root, force_equal_length: see :func:`scatter_dataset`.

    Returns:
        (begin, end)

    Raises:
        DataSizeError: there are fewer samples than ranks.
    """
    n = comm.bcast_obj(n_total_samples, root=root)
    return _share("scatter_index", n, comm, force_equal_length)


def _share(function, n, comm, force_equal_length):
    if n < comm.size:
        raise DataSizeError(
            f"{function}: {n} samples cannot be divided among {comm.size} ranks, "
            "since each must have one at least: use fewer ranks or more samples"
        )
    begin = n * comm.rank // comm.size
    if force_equal_length:
        return begin, begin - (-n // comm.size)
    return begin, n * (comm.rank + 1) // comm.size


def _permutation(n, seed):
    random = np.random if seed is None else np.random.RandomState(seed)
    return random.permutation(n)


def create_empty_dataset(dataset):
    """Returns a dataset of the same length whose samples are empty tuples.

    It is for models that are split over ranks, some of which take part in each step without data.
    """
    return [()] * len(dataset)


def get_n_iterations_for_one_epoch(dataset, local_batch_size, comm):
    """Returns how many batches of this size the rank with the most samples needs for all of them.

    Args:
        dataset: this rank's share, such as that of :func:`scatter_dataset`.
        local_batch_size (int): number of samples in a batch of one rank.
        comm (Communicator): the ranks.
    """
    return max(comm.allgather_obj(-(-len(dataset) // local_batch_size)))


def get_epoch_trigger(n_epochs, dataset, local_batch_size, comm):
    """Returns the trigger (number, "iteration") that fires after so many epochs on all ranks.

    Args:
        n_epochs (int): number of epochs.
        dataset, local_batch_size, comm: see :func:`get_n_iterations_for_one_epoch`.
    """
    return n_epochs * get_n_iterations_for_one_epoch(dataset, local_batch_size, comm), "iteration"
