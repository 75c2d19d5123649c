import functools

import numpy as np
import pytest

from mpchain import datasets, iterators
from mpchain.datasets import AugmentedDataset


def draw(example, random):
    """Draws a number; worker processes find this function, because it is not a nested one."""
    return example, random.integers(2**62)


def epochs(iterator, n_batches=5):
    """Returns the examples and numbers of some batches; five batches of four are two epochs of
    ten."""
    with iterator:
        return [pair for _ in range(n_batches) for pair in next(iterator)]


ITERATORS = {
    "threads": functools.partial(iterators.MultithreadIterator, n_threads=3),
    "processes": functools.partial(iterators.MultiprocessIterator, n_processes=2, n_prefetch=2),
}


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_numbers_do_not_depend_on_who_reads(kind):
    data = AugmentedDataset(range(10), draw, seed=3)
    expected = epochs(iterators.SerialIterator(data, 4, shuffle=False))
    assert epochs(ITERATORS[kind](data, 4, shuffle=False)) == expected
    assert [example for example, _ in expected] == [*range(10)] * 2
    assert len({number for _, number in expected}) == 20  # the second epoch has other numbers


def test_numbers_belong_to_examples_in_any_order():
    data = AugmentedDataset(range(10), draw)
    assert sorted(epochs(iterators.SerialIterator(data, 4))) == sorted(
        epochs(iterators.SerialIterator(data, 4, shuffle=False))
    )
    assert AugmentedDataset(range(10), draw, seed=1)[3] != data[3]
    assert data[3] == data[-7] == data[[3]][0] == data[3:4][0]
    with pytest.raises(IndexError):
        data[-11]


def test_the_epoch_reaches_the_dataset_through_others():
    data = AugmentedDataset(range(10), draw)
    expected = epochs(iterators.SerialIterator(data, 4, shuffle=False))
    halves = [datasets.SubDataset(data, 0, 5), datasets.SubDataset(data, 5, 10)]
    whole = datasets.TransformDataset(datasets.ConcatenatedDataset(*halves), lambda pair: pair)
    assert epochs(iterators.SerialIterator(whole, 4, shuffle=False)) == expected
    mixed = datasets.ConcatenatedDataset(range(10), data)
    numbers = epochs(iterators.SerialIterator(mixed, 20, shuffle=False), 2)
    assert numbers[:10] == numbers[20:30] == [*range(10)]
    assert numbers[10:20] + numbers[30:] == expected


def test_what_cannot_pass_on_the_epoch_refuses():
    with pytest.raises(ValueError, match="dataset 1 differ from epoch to epoch"):
        datasets.TupleDataset(range(10), AugmentedDataset(range(10), draw))


def test_the_first_element_or_the_whole():
    pairs = [(1.0, "a")]
    add = AugmentedDataset(pairs, lambda x, random: x + 1)
    assert add[0] == (2.0, "a")
    swap = AugmentedDataset(pairs, lambda pair, random: pair[::-1], whole=True)
    assert swap[0] == ("a", 1.0)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_wrong_seed(seed):
    with pytest.raises(ValueError, match=r"seed must be from 0 to 2\*\*64 - 1"):
        AugmentedDataset([1], draw, seed)


def test_a_resumed_iterator_continues_with_the_same_numbers():
    from mpchain.serializers import DictionarySerializer, NpzDeserializer

    data = AugmentedDataset(range(10), draw)
    batches = iterators.SerialIterator(data, 4)
    [next(batches) for _ in range(3)]
    saved = DictionarySerializer()
    batches.serialize(saved)
    resumed = iterators.SerialIterator(data, 4)
    resumed.serialize(NpzDeserializer(saved.target))
    assert resumed.next() == batches.next()
    assert resumed.epoch == 1


def test_draws_are_uniform():
    data = AugmentedDataset(np.zeros(2000), lambda x, random: random.random())
    numbers = np.array(data[:])
    # The mean of n numbers has a standard deviation of 1 / sqrt(12 n), and the correlation of
    # neighbors has one of 1 / sqrt(n).
    assert abs(numbers.mean() - 0.5) < 4 / np.sqrt(12 * 2000)
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 4 / np.sqrt(2000)
