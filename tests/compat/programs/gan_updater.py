"""Defines an updater with two optimizers."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import Variable
from chainer.training.updaters.standard_updater import StandardUpdater


class GANUpdater(StandardUpdater):
    def __init__(self, *args, **kwargs):
        self.gen, self.dis = kwargs.pop("models")
        super().__init__(*args, **kwargs)

    def update_core(self):
        gen_optimizer = self.get_optimizer("gen")
        dis_optimizer = self.get_optimizer("dis")
        batch = self.get_iterator("main").next()
        x_real = Variable(self.converter(batch, self.device))
        xp = chainer.backends.cuda.get_array_module(x_real.data)
        z = Variable(xp.asarray(np.random.uniform(-1, 1, (len(batch), 3)).astype("f")))
        x_fake = self.gen(z)
        y_fake, y_real = self.dis(x_fake), self.dis(x_real)
        loss_dis = F.sum(F.softplus(-y_real)) / len(batch) + F.sum(F.softplus(y_fake)) / len(batch)
        loss_gen = F.sum(F.softplus(-y_fake)) / len(batch)
        self.gen.cleargrads()
        loss_gen.backward()
        gen_optimizer.update()
        x_fake.unchain_backward()
        self.dis.cleargrads()
        loss_dis.backward()
        dis_optimizer.update()
        chainer.reporter.report({"loss": loss_gen}, self.gen)
        chainer.reporter.report({"loss": loss_dis}, self.dis)


def make_optimizer(model, alpha=0.0002, beta1=0.5):
    optimizer = chainer.optimizers.Adam(alpha=alpha, beta1=beta1)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer.WeightDecay(0.0001), "hook_dec")
    return optimizer


np.random.seed(0)
gen, dis = L.Linear(3, 4), L.Linear(4, 1)
data = np.random.standard_normal((20, 4)).astype("f")
updater = GANUpdater(
    models=(gen, dis),
    iterator=chainer.iterators.SerialIterator(data, 5, shuffle=False),
    optimizer={"gen": make_optimizer(gen), "dis": make_optimizer(dis)},
    device=-1,
)
trainer = chainer.training.Trainer(updater, (2, "epoch"))
trainer.extend(chainer.training.extensions.LogReport())
trainer.run()
print(*[float(np.sum(abs(p.data))) for m in (gen, dis) for _, p in sorted(m.namedparams())])
