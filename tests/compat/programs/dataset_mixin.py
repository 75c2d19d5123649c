"""Defines its own dataset."""

import numpy as np
from chainer.dataset import DatasetMixin, concat_examples
from chainer.datasets import split_dataset_random


class Windows(DatasetMixin):
    def __init__(self, values, width):
        self.values, self.width = values, width

    def __len__(self):
        return len(self.values) - self.width

    def get_example(self, i):
        return self.values[i : i + self.width], self.values[i + self.width]


data = Windows(np.arange(20, dtype=np.float32), 4)
x, t = concat_examples(data[2:5])
train, test = split_dataset_random(data, 10, seed=0)
padded = concat_examples([np.ones(2, "f"), np.ones(3, "f")], padding=-1)
print(x.sum(), t.sum(), len(test), sum(float(target) for _, target in train), padded.sum())
