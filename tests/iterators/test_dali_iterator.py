"""Tests DaliIterator with a stand-in for DALI's pipelines, which need an NVIDIA GPU."""

import sys
import types

import numpy as np
import pytest

from mpchain.dataset import concat_examples
from mpchain.iterators import DaliIterator
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from tests.iterators.test_serial_iterator import state


class Pipeline:
    """Returns batches of the numbers 0, 1, ..., always in the same memory."""

    def __init__(self, n, batch_size):
        self.n, self.max_batch_size = n, batch_size
        self.is_built = False
        self.memory = np.zeros((batch_size, 2))
        self.position = 0

    def build(self):
        self.is_built = True

    def reset(self):
        self.position = 0

    def epoch_size(self):
        return {"reader": self.n} if self.n else {}

    def run(self):
        assert self.is_built
        numbers = np.arange(self.position, self.position + self.max_batch_size) % self.n
        self.position += self.max_batch_size
        self.memory[:] = numbers[:, None]
        return self.memory, -numbers


@pytest.fixture(autouse=True)
def dali(monkeypatch):
    for name in ("nvidia", "nvidia.dali"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    module = types.ModuleType("nvidia.dali.pipeline")
    module.Pipeline = Pipeline
    monkeypatch.setitem(sys.modules, "nvidia.dali.pipeline", module)


def numbers(batch):
    x, t = concat_examples(batch)
    np.testing.assert_array_equal(x, np.stack([-t, -t], 1))
    return x[:, 0].tolist()


def test_epochs():
    iterator = DaliIterator(Pipeline(5, 2))
    assert state(iterator) == (0, False, 0, 0.0, None)
    batches = [next(iterator) for _ in range(2)]
    assert [numbers(batch) for batch in batches] == [[0, 1], [2, 3]]
    assert numbers(next(iterator)) == [4, 0]
    assert state(iterator) == (1, True, 1, 1.2, 0.8)
    assert (iterator.batch_size, iterator.repeat) == (2, True)


def test_without_repeat():
    iterator = DaliIterator(Pipeline(5, 2), repeat=False)
    for _ in range(2):
        assert [numbers(batch) for batch in iterator] == [[0, 1], [2, 3], [4]]
        assert state(iterator) == (1, True, 0, 1.0, 0.8)
        iterator.reset()


def test_resume_where_in_the_epoch():
    iterator, resumed = (DaliIterator(Pipeline(5, 2)) for _ in range(2))
    next(iterator)
    saved = DictionarySerializer()
    saved.save(iterator)
    NpzDeserializer(saved.target).load(resumed)
    assert state(resumed) == state(iterator) == (0, False, 2, 0.4, 0.0)


def test_wrong_pipelines():
    with pytest.raises(TypeError, match=r"must be an nvidia\.dali\.pipeline\.Pipeline, not int"):
        DaliIterator(3)
    with pytest.raises(ValueError, match="DaliIterator: pipeline must have a reader"):
        DaliIterator(Pipeline(0, 2))


def test_without_dali(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali.pipeline", None)
    with pytest.raises(RuntimeError, match=r"NVIDIA DALI is needed .*pip install nvidia-dali"):
        DaliIterator(Pipeline(5, 2))
