"""Averages a parameter under two names once over the ranks, and updates it twice.

mpchain's first update of a multi-node optimizer is a real update; ChainerMN's only sends
parameters. So ``tied_2.txt`` contains ChainerMN's numbers after one update more than the argument
says.
"""

import sys

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import numpy as np


class Tied(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.a = L.Linear(2, 2, initialW=0.5, initial_bias=0.1)
            self.b = L.Linear(2, 2, initialW=0.5, nobias=True)
            self.b.W = self.a.W

    def loss(self):
        x = np.full((1, 2), 1 + comm.rank, np.float32)
        return F.sum(F.sigmoid(self.b(self.a(x))))


comm = chainermn.create_communicator("naive")
for rule in (chainer.optimizers.SGD(0.1), chainer.optimizers.Adam(0.1)):
    model = Tied()
    optimizer = chainermn.create_multi_node_optimizer(rule, comm).setup(model)
    for _ in range(int(sys.argv[1])):
        optimizer.update(model.loss)
    if comm.rank == 0:
        W, b = model.a.W, model.a.b.array
        print(W.update_rule.t, f"{W.array[0, 0]:.5f} {b[0]:.5f}")
