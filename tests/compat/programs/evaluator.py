"""Defines its own evaluator."""

import copy

import chainer
import chainer.functions as F
import numpy as np
from chainer import reporter as reporter_module
from chainer.training.extensions import Evaluator


class WorstLoss(Evaluator):
    default_name = "worst"

    def evaluate(self):
        iterator, model = copy.copy(self.get_iterator("main")), self.get_target("main")
        worst = 0.0
        for batch in iterator:
            x, t = self.converter(batch, self.device)
            with chainer.no_backprop_mode():
                worst = max(worst, float(F.mean_squared_error(model(x), t).data))
        observation = {}
        with reporter_module.report_scope(observation):
            reporter_module.report({"loss": worst}, model)
        return observation


x = np.arange(12, dtype="f").reshape(6, 2)
dataset = chainer.datasets.TupleDataset(x, x[:, :1])
model = chainer.links.Linear(2, 1, initialW=0.5)
iterator = chainer.iterators.SerialIterator(dataset, 2, repeat=False, shuffle=False)
result = WorstLoss(iterator, model, device=-1)()
print(*sorted(result), *result.values())
