"""Tests SerialIterator and the order samplers."""

import copy

import numpy as np
import pytest

from mpchain.iterators import OrderSampler, SerialIterator, ShuffleOrderSampler
from mpchain.serializers import (
    DictionarySerializer,
    NpzDeserializer,
    SerializationError,
    load_npz,
    save_npz,
)


def state(iterator):
    return (
        iterator.epoch,
        iterator.is_new_epoch,
        iterator.current_position,
        iterator.epoch_detail,
        iterator.previous_epoch_detail,
    )


def test_attributes_over_two_epochs():
    # Chainer 7.8.1 counts in the same way.
    iterator = SerialIterator(range(5), 2, shuffle=False)
    assert state(iterator) == (0, False, 0, 0.0, None)
    expected = [
        ([0, 1], (0, False, 2, 0.4, 0.0)),
        ([2, 3], (0, False, 4, 0.8, 0.4)),
        ([4, 0], (1, True, 1, 1.2, 0.8)),
        ([1, 2], (1, False, 3, 1.6, 1.2)),
        ([3, 4], (2, True, 0, 2.0, 1.6)),
        ([0, 1], (2, False, 2, 2.4, 2.0)),
    ]
    for batch, attributes in expected:
        assert iterator.next() == batch
        assert state(iterator) == attributes
    assert (iterator.batch_size, iterator.repeat) == (2, True)


def test_without_repeat_the_last_batch_is_smaller():
    iterator = SerialIterator(range(5), 3, repeat=False, shuffle=False)
    assert next(iterator) == [0, 1, 2]
    assert next(iterator) == [3, 4]
    assert state(iterator) == (1, True, 0, 1.0, 0.6)
    with pytest.raises(StopIteration):
        next(iterator)
    assert list(iterator) == []
    iterator.reset()
    assert state(iterator) == (0, False, 0, 0.0, None)
    assert list(iterator) == [[0, 1, 2], [3, 4]]


def test_a_batch_larger_than_the_dataset():
    iterator = SerialIterator(range(3), 10, shuffle=False)
    assert next(iterator) == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert state(iterator) == (3, True, 1, 3 + 1 / 3, 0.0)
    assert list(SerialIterator(range(3), 10, repeat=False, shuffle=False)) == [[0, 1, 2]]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}])
def test_shuffled_epochs_are_permutations(options):
    iterator = SerialIterator(list(range(100)), 10, **options)
    epochs = [[i for _ in range(10) for i in next(iterator)] for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(100))
    assert epochs[0] != epochs[1]
    assert epochs[0] != list(range(100))


def test_orders_are_drawn_from_numpys_global_state_when_chainer_draws_them():
    # Chainer 7.8.1 printed these orders.
    np.random.seed(0)
    iterator = SerialIterator(range(7), 3)
    expected = [[6, 2, 1], [3, 0, 5], [4, 1, 0], [6, 3, 4], [2, 5, 6], [3, 5, 1], [2, 4, 0]]
    assert [next(iterator) for _ in range(7)] == expected
    assert np.random.rand() == 0.3373961604172684

    np.random.seed(0)
    iterator = SerialIterator(range(7), 3, repeat=False)
    assert list(iterator) == [[6, 2, 1], [3, 0, 5], [4]]
    assert np.random.rand() == 0.9636627605010293
    iterator.reset()
    assert list(iterator) == [[4, 6, 3], [5, 0, 1], [2]]
    assert np.random.rand() == 0.9571551589530464


def test_a_copy_draws_orders_of_its_own():
    iterator = SerialIterator(range(7), 7)
    other = copy.deepcopy(iterator)
    np.random.seed(0)
    orders = [next(iterator), next(iterator)]
    np.random.seed(0)
    assert [next(other), next(other)] == orders


def test_an_order_sampler():
    calls = []

    def evens_then_all(order, position):
        calls.append((order.tolist(), position))
        return np.arange(0, 6, 2) if len(calls) == 1 else np.arange(6)

    iterator = SerialIterator(range(6), 2, order_sampler=evens_then_all)
    assert [next(iterator) for _ in range(3)] == [[0, 2], [4, 0], [1, 2]]
    assert calls == [([0, 1, 2, 3, 4, 5], 0), ([0, 2, 4], 3)]
    assert iterator.epoch_detail == 1.5


def test_shuffle_order_sampler_draws_from_the_given_state():
    sampler = ShuffleOrderSampler(np.random.RandomState(3))
    expected = np.random.RandomState(3)
    for _ in range(2):
        np.testing.assert_array_equal(sampler(np.arange(8), 0), expected.permutation(8))


def test_examples_of_an_array_and_of_pairs():
    x = np.random.rand(4, 3)
    batch = next(SerialIterator(x, 2, shuffle=False))
    assert isinstance(batch, list)
    np.testing.assert_array_equal(batch, x[:2])
    assert next(SerialIterator([(1, "a"), (2, "b")], 2, shuffle=False)) == [(1, "a"), (2, "b")]


def test_a_subclass_may_take_its_part_of_each_batch():
    class Shard(SerialIterator):
        def __init__(self, rank, size, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.rank, self.size = rank, size

        def fetch(self, indices):
            return super().fetch(indices[self.rank :: self.size])

    whole = SerialIterator(
        range(10), 4, order_sampler=ShuffleOrderSampler(np.random.RandomState(0))
    )
    shards = [
        Shard(rank, 3, range(10), 4, order_sampler=ShuffleOrderSampler(np.random.RandomState(0)))
        for rank in range(3)
    ]
    for _ in range(7):
        batch = next(whole)
        parts = [next(shard) for shard in shards]
        assert parts == [batch[rank::3] for rank in range(3)]
        assert all(state(shard) == state(whole) for shard in shards)


@pytest.mark.parametrize("steps", [0, 1, 4, 7, 8, 20])
@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_goes_on_exactly(tmp_path, shuffle, steps):
    np.random.seed(1)
    saved = SerialIterator(range(23), 3, shuffle=shuffle)
    for _ in range(steps):
        next(saved)
    save_npz(tmp_path / "state", saved)
    np.random.seed(2)
    resumed = SerialIterator(range(23), 3, shuffle=shuffle)
    next(resumed)
    load_npz(tmp_path / "state", resumed)
    assert state(resumed) == state(saved)
    for _ in range(40):  # in five epochs, later orders are the same, too
        batches = []
        for iterator in (resumed, saved):
            np.random.seed(3)
            batches.append(next(iterator))
        assert batches[0] == batches[1]
        assert state(resumed) == state(saved)


def test_resume_with_a_random_state_of_its_own():
    saved, resumed = (
        SerialIterator(range(9), 2, order_sampler=ShuffleOrderSampler(np.random.RandomState(i)))
        for i in range(2)
    )
    for _ in range(6):
        next(saved)
    serializer = DictionarySerializer()
    serializer.save(saved)
    NpzDeserializer(serializer.target).load(resumed)
    assert [next(resumed) for _ in range(20)] == [next(saved) for _ in range(20)]
    resumed.reset()
    saved.reset()
    assert next(resumed) == next(saved)


@pytest.mark.parametrize("options", [{}, {"shuffle": False}])
def test_an_empty_dataset_has_no_batches(options):
    iterator = SerialIterator([], 2, repeat=False, **options)
    for _ in range(2):
        assert list(iterator) == []
        assert state(iterator) == (0, False, 0, 0.0, None)
        iterator.reset()
    serializer = DictionarySerializer()
    serializer.save(iterator)
    NpzDeserializer(serializer.target).load(iterator)


def test_resume_with_orders_of_varying_length():
    class Growing(OrderSampler):
        def __init__(self):
            self.epoch = 0

        def __call__(self, current_order, current_position):
            self.epoch += 1
            return np.arange(self.epoch + 1)

        def serialize(self, serializer):
            self.epoch = serializer("epoch", self.epoch)

    saved = SerialIterator(range(50), 2, order_sampler=Growing())
    for _ in range(5):
        next(saved)
    serializer = DictionarySerializer()
    serializer.save(saved)
    resumed = SerialIterator(range(50), 2, order_sampler=Growing())
    NpzDeserializer(serializer.target).load(resumed)
    for _ in range(20):
        assert next(resumed) == next(saved)


def test_keys_as_chainer_has_them():
    serializer = DictionarySerializer()
    serializer.save(SerialIterator(range(4), 2))
    keys = {"current_position", "epoch", "is_new_epoch", "order", "previous_epoch_detail"}
    assert keys < set(serializer.target)
    assert serializer.target["previous_epoch_detail"] == -1


def test_a_resumed_iterator_does_not_share_its_order_with_the_dictionary():
    serializer = DictionarySerializer()
    serializer.save(SerialIterator(range(4), 2))
    resumed = SerialIterator(range(4), 2)
    NpzDeserializer(serializer.target).load(resumed)
    order = serializer.target["order"].tolist()
    serializer.target["order"][...] = 0
    assert [next(resumed), next(resumed)] == [order[:2], order[2:]]


def test_resume_on_another_dataset():
    serializer = DictionarySerializer()
    serializer.save(SerialIterator(range(4), 2))
    message = "the dataset of the saved iterator had 4 examples, but this dataset has 5"
    with pytest.raises(SerializationError, match=f"SerialIterator: {message}"):
        NpzDeserializer(serializer.target).load(SerialIterator(range(5), 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 2), "dataset must not be empty with repeat=True"),
        (([1], 0), "batch_size must be at least 1, not 0"),
        (([1], -3), "batch_size must be at least 1, not -3"),
        (([1], 1, True, False, lambda order, position: order), "shuffle must be None"),
        (([1], 1, True, None, lambda order, position: []), "must return at least one index"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=f"SerialIterator: .*{message}"):
        SerialIterator(*arguments)


def test_wrong_types():
    with pytest.raises(TypeError, match=r"SerialIterator: batch_size must be an integer, not 1\.5"):
        SerialIterator([1], 1.5)
    with pytest.raises(TypeError, match=r"must be a numpy\.random.RandomState, not Generator"):
        ShuffleOrderSampler(np.random.default_rng(0))


def test_context_manager():
    with SerialIterator([1], 1, repeat=False) as iterator:
        assert list(iterator) == [[1]]
