"""Sharded iterators: the parts of all ranks together are the batches of one process."""

import numpy as np
import pytest

from mpchain.distributed import create_sharded_iterator, create_synchronized_iterator
from mpchain.distributed.iterators import part_of
from mpchain.iterators import SerialIterator, ShuffleOrderSampler
from mpchain.serializers import DictionarySerializer, NpzDeserializer

N = 10


def make(batch_size, seed=3, **options):
    """An iterator whose order depends on NumPy's random state."""
    np.random.seed(seed)
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
    # Each rank has another random state: rank 0's counts.
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


def test_any_sampler_gives_one_order(comm):
    random = np.random.RandomState(comm.rank)

    def sampler(order, position):
        return random.permutation(len(order))

    iterator = SerialIterator(list(range(N)), 5, order_sampler=sampler)
    sharded = create_sharded_iterator(iterator, comm)
    for _ in range(3):
        epoch = comm.allreduce_obj(next(sharded)) + comm.allreduce_obj(next(sharded))
        # Ranks that each had an order of their own would see some samples twice.
        assert sorted(epoch) == list(range(N))


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
            == part_of(4, comm.rank, comm.size)[1] - part_of(4, comm.rank, comm.size)[0]
        )


def test_differing_iterators(comm):
    if comm.size == 1:
        pytest.skip("one rank does not differ")
    batch_size = 1 + comm.rank
    with pytest.raises(
        ValueError, match=r"create_sharded_iterator: .*rank 0: 10 and 1, rank 1: 10 and 2"
    ):
        create_sharded_iterator(make(batch_size), comm)


def test_an_iterator_without_known_order(comm):
    with pytest.raises(
        TypeError, match="actual_iterator must be a SerialIterator or derive from it, not list"
    ):
        create_sharded_iterator([1, 2], comm)


@pytest.mark.parametrize(("n", "n_parts"), [(0, 3), (1, 3), (7, 3), (6, 2), (5, 1)])
def test_part_of(n, n_parts):
    parts = [part_of(n, i, n_parts) for i in range(n_parts)]
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
