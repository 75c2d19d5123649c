"""Uses private state and names that old subclasses and monkey patches use."""

import io

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import iterators, optimizers, training
from chainer.functions.math import matmul
from chainer.links.caffe import caffe_function
from chainer.links.model.vision import resnet
from chainer.training import extensions
from chainer.training.updaters import multiprocess_parallel_updater


class Model(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l = L.Linear(2, 1, initialW=1)

    def forward(self, x):
        loss = F.sum(self.l(x)) * 0 + 3
        chainer.report({"loss": loss}, self)
        return loss


class Lines(extensions.PrintReport):
    """Prints entries with its own method, under its own header."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.head = self._header
        self._header = "mine:\n"

    def _print(self, observation):
        self._out.write("|".join(str(observation[e]) for e in self._entries) + "\n")


class Both(extensions.ExponentialShift):
    """Sets two attributes."""

    def _update_value(self, optimizer, value):
        super()._update_value(optimizer, value)
        optimizer.seen = getattr(optimizer, "seen", ()) + (self._last_value,)


class ByHand(extensions.LinearShift):
    def __call__(self, trainer):
        self._t += 1
        self._update_value(self._get_optimizer(trainer), self._value_range[1])


model = Model()
optimizer = optimizers.SGD(1.0).setup(model)
iterator = iterators.SerialIterator(np.ones((4, 2), "f"), 2, shuffle=False)
state = iterator._state
iterator.next()
words = [iterator._state.current_position, iterator._state.order]
iterator._state = state
words += [iterator.current_position, state._fields[2]]
updater = training.StandardUpdater(iterator, optimizer)
trainer = training.Trainer(updater, (2, "epoch"))
words += [trainer._done, trainer._snapshot_elapsed_time]
out = io.StringIO()
report = Lines(["epoch", "main/loss"], "LogReport", out)
words += [report._log_report, report._log_len, report._templates[1][1], *report.head.split()]
snapshot = extensions.snapshot_object(model, "model_{.updater.iteration}")
words += [snapshot._target is model]
shift, linear = Both("lr", 0.5), ByHand("momentum", (1, 2), (1, 3), optimizer=optimizer)
optimizer.momentum = 0
words += [shift._last_value]
trainer.extend(extensions.LogReport())
trainer.extend(report)
trainer.extend(shift, trigger=(1, "iteration"))
trainer.extend(linear, trigger=(1, "iteration"))
trainer.extend(snapshot)
trainer.run()
words += [trainer._done, report._log_len, report._header, shift._last_value, shift._t]
words += [optimizer.seen[-1], optimizer.momentum, linear._last_value]
words += out.getvalue().replace("\033[J", "").split()

node = F.relu(chainer.Variable(np.ones(2, "f"))).node
words += [node._rank, node._old_style_grad_generator]
a = np.arange(6.0).reshape(2, 3)
words += [*matmul._matmul(a, a, transb=True).ravel(), *matmul._matmul(a, a[:1].T).ravel()]
words += [matmul._get_check_index(t, r, -2, -1) for t in (False, True) for r in (False, True)]
words += [multiprocess_parallel_updater._get_nccl_data_type.__name__]

rng = np.random.RandomState(0)
source = chainer.Chain()
for branch, n_out, n_in, ksize in [("2a", 2, 8, 1), ("2b", 2, 2, 3), ("2c", 8, 2, 1)]:
    source.add_link(f"res2b_branch{branch}", L.Convolution2D(n_in, n_out, ksize, nobias=True))
    norm = L.BatchNormalization(n_out, use_gamma=False, use_beta=False)
    norm.avg_mean[...] = rng.standard_normal(n_out)
    source.add_link(f"bn2b_branch{branch}", norm)
    scale = L.Scale(1, (n_out,), True, (n_out,))
    scale.W.array[...] = rng.standard_normal(n_out)
    source.add_link(f"scale2b_branch{branch}", scale)
unit = resnet.BottleneckB(8, 2)
resnet._transfer_bottleneckB(source, unit, "2b")
words += [(unit.bn3.gamma.array == source.scale2b_branch2c.W.array).all()]
words += [(unit.bn2.avg_mean == source.bn2b_branch2b.avg_mean).all()]
words += [(unit.conv1.W.array == source.res2b_branch2a.W.array).all()]


class Param:
    kernel_h, kernel_w, kernel_size = 0, 0, [3]
    stride_h, stride_w, stride = 0, 0, []
    pad_h, pad_w, pad = 1, 2, []


class Blob:
    num = 0

    class shape:
        dim = [2, 3, 4, 5]


param, x = Param(), chainer.Variable(np.array([1.0, -2.0], "f"))
words += [caffe_function._get_ksize(param), caffe_function._get_stride(param)]
words += [*caffe_function._get_pad(param), caffe_function._get_num(Blob)]
words += [*caffe_function._EltwiseFunction(1, [1.0, -1.0])(x, 3 * x)[0].array]
words += [*caffe_function._SingleArgumentFunction(F.leaky_relu, slope=0.5)(x).array]
words += [caffe_function._CallChildLink(model, "l")(np.ones((1, 2), "f")).array.item()]


@caffe_function._layer("Mine", None)
def _setup_mine(self, layer):
    pass


words += [caffe_function._type_to_method["Mine"] is _setup_mine]
print(*words)
