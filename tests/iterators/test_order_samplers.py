import numpy as np
import pytest

from mpchain.iterators import SerialIterator, SimilarLengthOrderSampler
from mpchain.serializers import DictionarySerializer, NpzDeserializer

LENGTHS = np.random.RandomState(0).randint(1, 100, 1000)


def batches_of(sampler, batch_size=10, n=None):
    examples = list(enumerate(LENGTHS[:n]))
    iterator = SerialIterator(examples, batch_size, repeat=False, order_sampler=sampler)
    return list(iterator)


def padding(batches):
    lengths = [[length for _, length in batch] for batch in batches]
    return sum(max(batch) * len(batch) - sum(batch) for batch in lengths) / LENGTHS.sum()


def sampler(**options):
    options = {"batch_size": 10, "random_state": np.random.RandomState(1)} | options
    return SimilarLengthOrderSampler(LENGTHS, **options)


def test_batches_need_little_padding():
    found = batches_of(sampler())
    assert sorted(i for batch in found for i, _ in batch) == list(range(1000))
    assert padding(found) < 0.02
    assert padding(batches_of(sampler(n_batches=10))) < 0.25
    assert padding(batches_of(sampler(n_batches=1))) > 0.5


def test_batches_and_their_order_are_random():
    make = sampler(n_batches=10)
    first, second = batches_of(make), batches_of(make)
    assert first != second
    longest = [max(length for _, length in batch) for batch in first]
    assert longest != sorted(longest)
    same = batches_of(sampler(n_batches=10))
    assert same == first


def test_incomplete_batch_is_the_last(monkeypatch):
    lengths = LENGTHS[:25]
    order = SimilarLengthOrderSampler(lengths, 10, random_state=np.random.RandomState(0))
    found = batches_of(order, n=25)
    assert list(map(len, found)) == [10, 10, 5]
    assert min(length for _, length in found[2]) >= max(length for _, length in found[0])
    tiny = SimilarLengthOrderSampler([3, 1], 10)
    assert sorted(tiny(np.arange(2), 0)) == [0, 1]


def test_resumed_iterator_continues_with_the_same_orders():
    iterators = [SerialIterator(LENGTHS, 10, order_sampler=sampler()) for _ in range(2)]
    for _ in range(30):
        next(iterators[0])
    saver = DictionarySerializer()
    iterators[0].serialize(saver)
    iterators[1].serialize(NpzDeserializer(saver.target))
    for _ in range(150):  # the loop continues into the next epochs
        assert next(iterators[0]) == next(iterators[1])


def test_wrong_arguments():
    for name in ("batch_size", "n_batches"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            sampler(**{name: 0})
    with pytest.raises(TypeError, match="SimilarLengthOrderSampler: random_state must be"):
        sampler(random_state=3)
    with pytest.raises(ValueError, match="there are 1000 for 5 examples"):
        sampler()(np.arange(5), 0)
