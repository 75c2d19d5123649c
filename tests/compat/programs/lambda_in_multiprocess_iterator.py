"""Reads a dataset that has a lambda in several processes."""

import chainer
import numpy as np
from chainer.datasets import TransformDataset
from chainer.iterators import MultiprocessIterator

if __name__ == "__main__":
    dataset = TransformDataset(list(range(10)), lambda i: np.array([i, i * i], "f"))
    iterator = MultiprocessIterator(dataset, 5, repeat=False, shuffle=False, n_processes=2)
    batches = [chainer.dataset.concat_examples(batch) for batch in iterator]
    iterator.finalize()
    print(*[batch.sum() for batch in batches])
