"""Evaluates an iterator that repeats, and ends after a number of batches."""

import chainer
import numpy as np
from chainer import training


class Counting(training.extensions.Evaluator):
    def evaluate(self):
        iterator, summary = self.get_iterator("main"), chainer.reporter.DictSummary()
        for _ in range(3):
            summary.add({"loss": float(np.mean(iterator.next()))})
        return summary.compute_mean()


data = np.arange(10, dtype=np.float32)
iterator = chainer.iterators.SerialIterator(data, 4, repeat=True, shuffle=False)
print("%.4f" % Counting(iterator, chainer.links.Linear(1, 1)).evaluate()["loss"])
