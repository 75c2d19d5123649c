"""Tests that the parts of all ranks in sharded iterators form the batches of one process."""

import numpy as np
import pytest

from mpchain.distributed import (
    create_joined_iterator,
    create_multi_node_iterator,
    create_sharded_iterator,
    create_synchronized_iterator,
)
from mpchain.distributed.communicators.arrays import partition
from mpchain.iterators import MultithreadIterator, SerialIterator, ShuffleOrderSampler
from mpchain.serializers import DictionarySerializer, NpzDeserializer

N = 10


def make(batch_size, seed=3, **options):
    """Returns an iterator whose order depends on the seed."""
    if options.get("shuffle") is None:
        options["order_sampler"] = ShuffleOrderSampler(np.random.RandomState(seed))
    return SerialIterator(list(range(N)), batch_size, **options)


def position(iterator):
    return (
        iterator.epoch,
        iterator.current_position,
        iterator.epoch_detail,
        iterator.previous_epoch_detail,
        iterator.is_new_epoch,
    )


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"repeat": False}], ids=str)
def test_batches_are_those_of_one_process(comm, batch_size, options):
    alone = make(batch_size, **options)
    # Each rank has another random state, but only rank 0's decides.
    sharded = create_sharded_iterator(make(batch_size, seed=3 + comm.rank, **options), comm)
    for _ in range(25):
        expected = next(alone, None)
        part = next(sharded, None)
        parts = comm.allgather_obj(part)
        if expected is None:
            assert parts == [None] * comm.size
            break
        assert [x for part in parts for x in part] == expected
        lengths = [len(part) for part in parts]
        assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1
        assert position(sharded) == position(alone)


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_iterators_that_look_ahead(comm, batch_size):
    """Iterators that look ahead read only this rank's samples, and can be resumed in mid-epoch."""
    read = []

    class Dataset(list):
        def __getitem__(self, i):
            read.append(i)
            return super().__getitem__(i)

    sampler = ShuffleOrderSampler(np.random.RandomState(3 + comm.rank))
    actual = MultithreadIterator(Dataset(range(N)), batch_size, order_sampler=sampler)
    alone = make(batch_size)
    with create_sharded_iterator(actual, comm) as sharded:
        for i in range(9):
            part = next(sharded)
            parts = comm.allgather_obj(part)
            assert [x for part in parts for x in part] == next(alone)
            assert position(sharded) == position(alone)
            if i == 0 and batch_size == 7:
                assert len(part) <= len(read) <= 2 * -(-7 // comm.size)
        state = DictionarySerializer()
        sharded.serialize(state)
    restored = create_sharded_iterator(make(batch_size, seed=99), comm)
    restored.serialize(NpzDeserializer(state.target))
    for _ in range(5):
        assert comm.allreduce_obj(next(restored)) == next(alone)


def test_any_sampler_gives_one_order(comm):
    random = np.random.RandomState(comm.rank)

    def sampler(order, position):
        return random.permutation(len(order))

    iterator = SerialIterator(list(range(N)), 5, order_sampler=sampler)
    sharded = create_sharded_iterator(iterator, comm)
    for _ in range(3):
        epoch = comm.allreduce_obj(next(sharded)) + comm.allreduce_obj(next(sharded))
        # If each rank had its own order, some samples would occur twice.
        assert sorted(epoch) == list(range(N))


def test_orders_are_those_of_one_process(comm):
    """Rank 0 draws the orders for all ranks, so draws on other ranks do not matter."""
    np.random.seed(4)
    alone = SerialIterator(list(range(N)), N)
    expected = [next(alone) for _ in range(3)]
    np.random.seed(4 if comm.rank == 0 else 5)
    sharded = create_sharded_iterator(SerialIterator(list(range(N)), N), comm)
    for batch in expected:
        assert comm.allreduce_obj(next(sharded)) == batch
        np.random.rand(comm.rank)


@pytest.mark.parametrize("saver", [0, -1])
def test_what_any_rank_saves_goes_on_in_mid_epoch(comm, saver):
    alone = make(3)
    sharded = create_sharded_iterator(make(3), comm)
    for _ in range(5):
        next(alone), next(sharded)
    state = DictionarySerializer()
    sharded.serialize(state)
    saved = comm.bcast_obj(state.target, root=saver % comm.size)
    restored = create_sharded_iterator(make(3, seed=99), comm)
    restored.serialize(NpzDeserializer(saved))
    one_process = make(3, seed=98)
    one_process.serialize(NpzDeserializer(saved))
    for _ in range(10):
        expected = next(alone)
        assert next(one_process) == expected
        assert comm.allreduce_obj(next(restored)) == expected
        assert position(restored) == position(alone)


def test_synchronized(comm):
    alone = make(4)
    iterator = create_synchronized_iterator(make(4, seed=3 + comm.rank), comm)
    for _ in range(8):
        assert next(iterator) == next(alone)
        assert position(iterator) == position(alone)


def test_reset(comm):
    sharded = create_sharded_iterator(make(4, repeat=False, shuffle=False), comm)
    for _ in range(2):
        sharded.reset()
        assert [x for part in sharded for x in comm.allreduce_obj(part)] == list(range(N))


def test_it_is_an_iterator_over_the_same_dataset(comm):
    iterator = make(4)
    with create_sharded_iterator(iterator, comm) as sharded:
        assert sharded.dataset is iterator.dataset
        assert sharded.batch_size == 4 and sharded.repeat
        assert iter(sharded) is sharded
        assert (
            len(sharded.next())
            == partition(4, comm.rank, comm.size)[1] - partition(4, comm.rank, comm.size)[0]
        )


def test_differing_iterators(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks that differ")
    batch_size = 1 + comm.rank
    with pytest.raises(
        ValueError, match=r"create_sharded_iterator: .*rank 0: 10 and 1, rank 1: 10 and 2"
    ):
        create_sharded_iterator(make(batch_size), comm)


def test_an_iterator_without_known_order(comm):
    with pytest.raises(
        TypeError,
        match="actual_iterator must be a SerialIterator or an instance of a subclass, not list",
    ):
        create_sharded_iterator([1, 2], comm)


@pytest.mark.parametrize(("n", "n_parts"), [(0, 3), (1, 3), (7, 3), (6, 2), (5, 1)])
def test_part_of(n, n_parts):
    parts = [partition(n, i, n_parts) for i in range(n_parts)]
    assert [i for begin, end in parts for i in range(begin, end)] == list(range(n))


def test_sampler_state_advances_on_all_ranks(comm):
    sampler = ShuffleOrderSampler(np.random.RandomState(5))
    sharded = create_sharded_iterator(
        SerialIterator(list(range(N)), N, order_sampler=sampler), comm
    )
    next(sharded)
    state = DictionarySerializer()
    sampler.serialize(state)
    assert len(set(comm.allgather_obj(str(state.target)))) == 1


def assert_same_batches(comm, iterator, alone, n_batches):
    for _ in range(n_batches):
        expected = next(alone, None)
        assert comm.allgather_obj(next(iterator, None)) == [expected] * comm.size
        assert (
            comm.allgather_obj((iterator.epoch, iterator.epoch_detail, iterator.is_new_epoch))
            == [(alone.epoch, alone.epoch_detail, alone.is_new_epoch)] * comm.size
        )


@pytest.mark.parametrize("options", [{}, {"repeat": False}], ids=str)
@pytest.mark.parametrize("master", [0, -1])
def test_multi_node_iterator(comm, master, options):
    master %= comm.size
    alone = make(4, **options)
    actual = make(4, **options) if comm.rank == master else None
    with create_multi_node_iterator(actual, comm, master) as iterator:
        assert iterator.batch_size == 4
        assert_same_batches(comm, iterator, alone, 6)
    if options:
        alone.reset(), iterator.reset()
        assert_same_batches(comm, iterator, alone, 4)


def test_arrays_and_structures_travel(comm):
    data = [(np.full(2, i, np.float64), {"label": np.int32(i)}, "text") for i in range(4)]
    iterator = SerialIterator(data, 4, shuffle=False) if comm.rank == 0 else None
    batch = next(create_multi_node_iterator(iterator, comm))
    for i, (x, labels, text) in enumerate(batch):
        np.testing.assert_array_equal(x, np.full(2, i))
        assert x.dtype == np.float64 and labels == {"label": i} and text == "text"


def test_multi_node_iterator_is_restored_by_all(comm):
    alone = make(3)
    iterator = create_multi_node_iterator(make(3), comm)
    assert_same_batches(comm, iterator, alone, 4)
    state = DictionarySerializer()
    if comm.rank == 0:
        iterator.serialize(state)
    else:
        with pytest.raises(RuntimeError, match=r"rank \d has no state to save: save it on rank 0"):
            iterator.serialize(state)
    saved = comm.bcast_obj(state.target)
    restored = create_multi_node_iterator(make(3, seed=9), comm)
    restored.serialize(NpzDeserializer(saved))
    assert restored.epoch_detail == iterator.epoch_detail
    assert_same_batches(comm, restored, alone, 6)


def test_a_master_that_is_no_rank(comm):
    with pytest.raises(ValueError, match="create_multi_node_iterator: rank_master must be a rank"):
        create_multi_node_iterator(make(3), comm, comm.size)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_joined_epochs(comm, batch_size):
    mine = [(comm.rank, i) for i in range(2 + 3 * comm.rank)]
    actual = SerialIterator(mine, batch_size, repeat=False)
    joined = create_joined_iterator(actual, comm)
    n_batches = -(-(2 + 3 * (comm.size - 1)) // batch_size)
    assert joined.n_batches == n_batches and joined.batch_size == batch_size
    assert joined.previous_epoch_detail is None and not joined.is_new_epoch
    for epoch in range(3):
        seen = []
        for i in range(n_batches):
            batch = next(joined)
            assert len(batch) == min(batch_size, max(len(mine) - i * batch_size, 0))
            seen += batch
            assert joined.epoch_detail == pytest.approx(epoch + (i + 1) / n_batches)
            assert joined.previous_epoch_detail == pytest.approx(epoch + i / n_batches)
            assert joined.is_new_epoch == (i == n_batches - 1)
        assert sorted(seen) == mine and joined.epoch == epoch + 1
    assert len(joined.dataset) == len(mine)


def test_joined_once_and_again(comm):
    mine = list(range(1 + comm.rank))
    actual = SerialIterator(mine, 1, repeat=False, shuffle=False)
    joined = create_joined_iterator(actual, comm, repeat=False)
    for _ in range(2):
        batches = list(joined)
        assert len(batches) == comm.size and [x for batch in batches for x in batch] == mine
        joined.reset()
    joined.finalize()


def test_joined_is_restored_in_mid_epoch(comm):
    def joined(seed):
        sampler = ShuffleOrderSampler(np.random.RandomState(seed))
        data = list(range(3 + 2 * comm.rank))
        actual = SerialIterator(data, 2, repeat=False, order_sampler=sampler)
        return create_joined_iterator(actual, comm)

    first, second = joined(1), joined(2)
    for _ in range(3):
        next(first)
    state = DictionarySerializer()
    first.serialize(state)
    second.serialize(NpzDeserializer(state.target))
    for _ in range(7):
        assert next(second) == next(first)
        assert second.epoch_detail == first.epoch_detail


def test_joining_what_never_ends(comm):
    with pytest.raises(ValueError, match="actual_iterator must be made with repeat=False"):
        create_joined_iterator(make(2), comm)


def test_joining_no_samples(comm):
    actual = SerialIterator([], 2, repeat=False)
    joined = create_joined_iterator(actual, comm, repeat=False)
    assert list(joined) == [] and joined.n_batches == 0
    assert joined.epoch == joined.epoch_detail == 0 and not joined.is_new_epoch
    with pytest.raises(ValueError, match="no rank has samples, but repeat=True needs"):
        create_joined_iterator(actual, comm)
