"""Tests that the ranks' shares of a dataset form the whole dataset, on any number of ranks."""

import itertools

import numpy as np
import pytest

from mpchain.datasets import TupleDataset
from mpchain.distributed import (
    DataSizeError,
    create_empty_dataset,
    scatter_dataset,
    scatter_index,
)
from mpchain.distributed.datasets import scatter


@pytest.mark.parametrize("n", [3, 4, 7, 12])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("everywhere", [False, True], ids=["at the root", "everywhere"])
def test_disjoint_shares(comm, n, shuffle, everywhere):
    root = comm.size - 1
    data = [f"sample {i}" for i in range(n)]
    given = data if everywhere or comm.rank == root else None
    share = scatter_dataset(given, comm, root, shuffle, seed=1, force_equal_length=False)
    shares = comm.allgather_obj(list(share))
    together = [sample for share in shares for sample in share]
    assert sorted(together) == sorted(data)
    lengths = [len(share) for share in shares]
    assert lengths[0] - lengths[-1] <= 1 and lengths == sorted(lengths, reverse=True)
    expected = np.random.RandomState(1).permutation(n) if shuffle else range(n)
    assert together == [data[i] for i in expected]


@pytest.mark.parametrize("n", [3, 4, 7, 12])
def test_shares_of_equal_length(comm, n):
    share = scatter_dataset(TupleDataset(np.arange(n), np.arange(n) + 1), comm, shuffle=True)
    shares = comm.allgather_obj(list(share))
    assert {len(share) for share in shares} == {-(-n // comm.size)}
    assert {int(x) for share in shares for x, _ in share} == set(range(n))


def test_unseeded_order_is_the_roots(comm):
    np.random.seed(comm.rank)
    share = scatter_dataset(list(range(10)), comm, shuffle=True, force_equal_length=False)
    expected = np.random.RandomState(0).permutation(10).tolist()
    assert comm.allreduce_obj(list(share)) == expected


def test_whole_dataset_travels_in_pieces(comm):
    data = list(range(100)) if comm.rank == 0 else None
    share = scatter_dataset(data, comm, max_buf_len=7, force_equal_length=False)
    assert comm.allreduce_obj(list(share)) == list(range(100))


@pytest.mark.parametrize("equal", [False, True])
def test_scatter_index(comm, equal):
    n = 11
    begin, end = scatter_index(n if comm.rank == 0 else None, comm, force_equal_length=equal)
    ranges = comm.allgather_obj((begin, end))
    assert ranges[0][0] == 0 and ranges[-1][1] == n
    for (_, end), (begin, _) in itertools.pairwise(ranges):
        assert begin <= end if equal else begin == end


def test_too_few_samples(comm):
    n = comm.size - 1
    message = f"0 samples cannot be divided among {comm.size} ranks|{n} samples cannot be divided"
    with pytest.raises(DataSizeError, match=f"^scatter_dataset: ({message})"):
        scatter_dataset([0] * n, comm)
    with pytest.raises(DataSizeError, match=f"^scatter_index: ({message})"):
        scatter_index(n, comm)


def test_no_dataset_at_the_root(comm):
    with pytest.raises(
        ValueError, match="scatter_dataset: the dataset of the root, rank 0, must not be"
    ):
        scatter_dataset(None, comm)


def test_datasets_of_different_lengths(comm):
    if comm.rank == 0:
        scatter_dataset([0] * comm.size, comm)
    else:
        with pytest.raises(
            ValueError, match=r"has 3 samples on rank 0 but 4 on rank|has 2 samples on"
        ):
            scatter_dataset([0] * 4, comm)


def test_create_empty_dataset():
    assert create_empty_dataset([1, 2, 3]) == [(), (), ()]


@pytest.mark.parametrize(("n", "batch_size", "expected"), [(10, 3, 4), (9, 3, 3), (1, 4, 1)])
def test_iterations_of_an_epoch(comm, n, batch_size, expected):
    # Each rank but the last has one sample.
    dataset = range(n if comm.rank == comm.size - 1 else 1)
    count = scatter.get_n_iterations_for_one_epoch(dataset, batch_size, comm)
    assert count == expected
    assert scatter.get_epoch_trigger(2, dataset, batch_size, comm) == (2 * expected, "iteration")


class Unreadable:
    """A dataset that raises if it is sent."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return i

    def __reduce__(self):
        raise AssertionError("the data travel")


def test_only_indices_travel_where_all_can_read(comm):
    share = scatter_dataset(Unreadable(), comm, shuffle=True, seed=1, force_equal_length=False)
    assert sorted(comm.allreduce_obj(list(share))) == list(range(12))
