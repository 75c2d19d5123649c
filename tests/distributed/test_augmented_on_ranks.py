"""Tests that random changes of examples are the same on any number of ranks."""

from mpchain import iterators
from mpchain.datasets import AugmentedDataset
from mpchain.distributed import create_sharded_iterator, scatter_dataset


def draw(example, random):
    return example, random.integers(2**62)


def test_numbers_do_not_depend_on_the_ranks(comm):
    data = AugmentedDataset(range(9), draw)
    expected = [data[i + epoch * 9] for epoch in range(2) for i in range(9)]
    batches = create_sharded_iterator(iterators.SerialIterator(data, 6, shuffle=False), comm)
    parts = [comm.allgather_obj(next(batches)) for _ in range(3)]
    assert [pair for ranks in parts for part in ranks for pair in part] == expected
    mine = scatter_dataset(data, comm, force_equal_length=False)
    batches = iterators.SerialIterator(mine, len(mine), shuffle=False)
    for epoch in range(2):
        shares = comm.allgather_obj(next(batches))
        assert [pair for part in shares for pair in part] == expected[9 * epoch : 9 * epoch + 9]
