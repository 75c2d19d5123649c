"""Tests the features that MultithreadIterator and MultiprocessIterator share."""

import copy

import numpy as np
import pytest

from mpchain.iterators import (
    MultiprocessIterator,
    MultithreadIterator,
    OrderSampler,
    SerialIterator,
    ShuffleOrderSampler,
)
from mpchain.iterators.prefetching import divide
from mpchain.iterators.reader import from_columns, to_columns
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from tests.iterators.example_datasets import Numbers, Raises, array_of_length, many_kinds
from tests.iterators.test_serial_iterator import state

pytestmark = [pytest.mark.usefixtures("quick_processes"), pytest.mark.slow]

KINDS = {
    "threads": (MultithreadIterator, {"n_threads": 3}),
    "processes": (MultiprocessIterator, {"n_processes": 2}),
    "prefetching": (MultiprocessIterator, {"n_processes": 2, "n_prefetch": 5}),
    "not prefetching": (MultiprocessIterator, {"n_processes": 1, "n_prefetch": 0}),
}


@pytest.fixture(params=KINDS)
def make(request):
    """Returns a function that makes an iterator; the iterator is finalized after the test."""
    made = []
    kind, options = KINDS[request.param]

    def make(*args, **kwargs):
        made.append(kind(*args, **options, **kwargs))
        return made[-1]

    yield make
    for iterator in made:
        iterator.finalize()


def seeded():
    return ShuffleOrderSampler(np.random.RandomState(3))


@pytest.mark.parametrize("batch_size", [1, 3, 7, 30])
@pytest.mark.parametrize("shuffled", [False, True])
def test_batches_are_those_of_a_serial_iterator(make, shuffled, batch_size):
    options = [{"order_sampler": seeded()} if shuffled else {"shuffle": False} for _ in "ab"]
    serial = SerialIterator(Numbers(23), batch_size, **options[0])
    iterator = make(Numbers(23), batch_size, **options[1])
    assert state(iterator) == state(serial)
    for _ in range(40):
        assert iterator.next() == serial.next()
        assert state(iterator) == state(serial)
    iterator.reset()
    serial.reset()
    for _ in range(10):
        batch, expected = next(iterator), next(serial)
        assert shuffled or batch == expected
        assert state(iterator) == state(serial)


def test_orders_that_were_drawn_ahead_are_saved_and_not_drawn_again(make):
    saved = make(Numbers(5), 2)
    np.random.seed(0)
    for _ in range(4):
        next(saved)  # the iterator has requested up to five more batches
    written = DictionarySerializer()
    written.save(saved)
    state_then = np.random.get_state()
    expected = [next(saved) for _ in range(20)]
    for resumed in (make(Numbers(5), 2), SerialIterator(Numbers(5), 2)):
        np.random.set_state(state_then)
        NpzDeserializer(written.target).load(resumed)
        assert [next(resumed) for _ in range(20)] == expected


def test_an_empty_dataset_has_no_batches(make):
    iterator = make(Numbers(0), 3, repeat=False)
    assert list(iterator) == []


def test_without_repeat(make):
    iterator = make(Numbers(5), 3, repeat=False, shuffle=False)
    for _ in range(2):
        assert list(iterator) == [[0, 1, 2], [3, 4]]
        assert state(iterator) == (1, True, 0, 1.0, 0.6)
        assert list(iterator) == []
        iterator.reset()
        assert state(iterator) == (0, False, 0, 0.0, None)


@pytest.mark.parametrize("steps", [0, 1, 7, 20])
def test_resume_goes_on_exactly(make, steps):
    def iterators():
        for kind in (SerialIterator, make):
            yield kind(Numbers(23), 3, order_sampler=seeded())

    serial = next(iterators())
    saved = make(Numbers(23), 3, order_sampler=copy.deepcopy(serial.order_sampler))
    start = DictionarySerializer()
    start.save(serial)
    NpzDeserializer(start.target).load(saved)
    for _ in range(steps):
        assert next(saved) == next(serial)
    expected, written = DictionarySerializer(), DictionarySerializer()
    expected.save(serial)
    written.save(saved)
    for name, value in expected.target.items():
        if not name.startswith("order_sampler/"):  # the order sampler may be ahead
            np.testing.assert_array_equal(written.target[name], value)
    resumed = list(iterators())
    next(resumed[1])
    for iterator in resumed:
        NpzDeserializer(written.target).load(iterator)
    for _ in range(30):  # saving has not changed later batches, either
        batch = next(serial)
        for iterator in (saved, *resumed):
            assert next(iterator) == batch
            assert state(iterator) == state(serial)


def test_a_sampler_with_orders_of_varying_length(make):
    class Growing(OrderSampler):
        def __init__(self):
            self.n = 1

        def __call__(self, current_order, current_position):
            self.n += 1
            return np.arange(self.n)

    serial = SerialIterator(Numbers(50), 2, order_sampler=Growing())
    iterator = make(Numbers(50), 2, order_sampler=Growing())
    for _ in range(20):
        assert next(iterator) == next(serial)
        assert state(iterator) == state(serial)


@pytest.mark.parametrize("kind", [ValueError, EOFError, OSError, KeyError])
def test_what_the_dataset_raises_is_raised_and_reading_goes_on(make, kind):
    iterator = make(Numbers(9, Raises(kind)), 3, shuffle=False)
    assert next(iterator) == [0, 1, 2]
    with pytest.raises(kind, match="five"):
        next(iterator)
    assert next(iterator) == [6, 7, 8]
    assert next(iterator) == [0, 1, 2]


def test_stop_iteration_in_a_dataset_is_no_end(make):
    iterator = make(Numbers(9, Raises(StopIteration)), 9)
    with pytest.raises(RuntimeError, match="the dataset raised StopIteration"):
        next(iterator)


def test_finalize_and_go_on(make):
    iterator = make(Numbers(9), 2, order_sampler=seeded())
    serial = SerialIterator(Numbers(9), 2, order_sampler=seeded())
    for _ in range(10):
        assert next(iterator) == next(serial)
        iterator.finalize()
        iterator.finalize()


def test_a_copy_is_independent(make):
    iterator = make(Numbers(9), 2, shuffle=False)
    next(iterator)
    other = copy.copy(iterator)
    assert next(other) == next(iterator) == [2, 3]
    assert next(other) == [4, 5]
    assert next(iterator) == [4, 5]
    other.finalize()


def test_examples_of_all_kinds_arrive_as_they_are(make):
    for function in (many_kinds, array_of_length):
        for batch_size in (7, 28):
            iterator = make(Numbers(28, function), batch_size, shuffle=False)
            for _ in range(8):
                start = iterator.current_position
                batch = next(iterator)
                assert isinstance(batch, list)
                assert len(batch) == batch_size
                for i, example in enumerate(batch):
                    check_equal(example, function((start + i) % 28))
            iterator.finalize()


def check_equal(actual, expected):
    assert type(actual) is type(expected)
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        actual, expected = tuple(actual.values()), tuple(expected.values())
    if isinstance(expected, tuple):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected):
            check_equal(*pair)
    elif isinstance(expected, np.ndarray):
        assert actual.dtype == expected.dtype
        assert actual.flags.writeable
        np.testing.assert_array_equal(actual, expected)
    else:
        assert actual == expected


def test_arrays_become_columns():
    examples = [(np.full((2, 3), i, np.float32), np.int64(i), i) for i in range(4)]
    columns = to_columns(examples)
    x, t, k = columns.columns
    np.testing.assert_array_equal(x, np.stack([example[0] for example in examples]))
    np.testing.assert_array_equal(t, np.arange(4))
    assert k == [0, 1, 2, 3]
    check_equal(tuple(from_columns(columns)), tuple(examples))


@pytest.mark.parametrize(
    ("n", "n_parts", "lengths"),
    [(10, 3, [4, 3, 3]), (2, 3, [1, 1]), (3, 3, [1, 1, 1]), (0, 2, []), (5, 1, [5])],
)
def test_divide(n, n_parts, lengths):
    parts = divide(list(range(n)), n_parts)
    assert [x for part in parts for x in part] == list(range(n))
    assert sorted(map(len, parts), reverse=True) == lengths


def test_number_of_threads():
    with pytest.raises(ValueError, match="n_threads must be at least 1, not 0"):
        MultithreadIterator(Numbers(2), 1, n_threads=0)
