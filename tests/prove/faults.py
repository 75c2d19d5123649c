"""Faults that make ranks compute other results than one process: for each name, the planted lines
and the expected finding.

The finding must name a line with the comment ``# here``, if there is one, and contain the texts of
``says``.
"""

from typing import Any, NamedTuple

from tests.prove.programs import BACKWARD, GAN, OWN_LOOP, SCATTERED, UPDATER


class Fault(NamedTuple):
    """A fault: lines for slots of the program, and texts that the finding must contain besides the
    line."""

    slots: dict[str, Any]
    says: tuple[str, ...] = ()


NO_DROPOUT = {"output": "return self.l2(h)"}

REPORTED = OWN_LOOP.replace(
    "        optimizer.update", "        with mpchain.Reporter():\n            optimizer.update"
)

IN_PARTS = """
for step in range(10):
    indices = rng.permutation(64)[:12]
    with comm.batch(12) as mine:
        net.cleargrads()
        for part in np.split(indices[mine], 2):
            (loss(X[part], T[part], M[part]) / 2).backward()
        optimizer.update()
"""

IN_TWO_STEPS = BACKWARD.replace(
    "optimizer.update()", "optimizer.update(), second.update()"
).replace("net.cleargrads()", "net.cleargrads(), coder.cleargrads()")

EVALUATOR = """
held = iterators.SerialIterator(data[comm.rank :: comm.size], 8, repeat=False, shuffle=False)
def validate(x, t, m):
    mpchain.report({report})
evaluator = extensions.Evaluator(held, net, eval_func=validate)
evaluator = distributed.create_multi_node_evaluator(evaluator, comm)
trainer.extend(evaluator, trigger=({trigger}, 'iteration'))
"""

FAULTS = {
    # Means over counts
    "mean over counts": Fault(
        {"losses": "return F.sum(l * m) / max(m.sum(), 1)  # here"}, ("mean over counts",)
    ),
    "mean over labels that are not ignored": Fault(
        {
            "losses": "valid = (t != 0).astype(np.float32)\n"
            "return F.sum(l * valid) / F.sum(valid)  # here"
        },
        ("mean over counts",),
    ),
    "weights of classes from the batch": Fault(
        {
            "losses": "share = (np.bincount(t, minlength=3) / len(t)).astype(np.float32)\n"
            "l = l / (share[t] + 1)  # here"
        },
    ),
    "variance explained": Fault(
        {"losses": "return F.sum(l) / float(((t - t.mean()) ** 2).sum() + 1)  # here"}
    ),
    # Draws
    "numpy.random in the network": Fault(
        {"hidden": "h = h + np.random.normal(size=h.shape).astype(np.float32)  # here"},
        ("draws outside of mpchain.random", "numpy.random"),
    ),
    "a generator of each rank": Fault(
        {
            "data": "own = np.random.RandomState(comm.rank)",
            "hidden": "h = h * own.uniform(0.9, 1.1, h.shape).astype(np.float32)  # here",
        },
    ),
    "random in the loss": Fault(
        {"setup": "random.seed(comm.rank)", "losses": "l = l * random.uniform(0.5, 1)  # here"},
        ("draws outside of mpchain.random",),
    ),
    "a mask of words drawn by rank": Fault(
        {
            "data": "own = np.random.default_rng(comm.rank + 1)",
            "losses": "l = l * (own.random(len(t)) < 0.5).astype(np.float32)  # here",
        },
    ),
    "seeds: a projection of each rank": Fault(
        {
            "data": "np.random.seed(comm.rank)\n"
            "P = np.random.randn(8, 8).astype(np.float32)\nnp.random.seed(0)",
            "hidden": "h = F.matmul(h, P)  # here",
        },
    ),
    # Statistics of the batch
    "batch normalization": Fault(
        {"links": "self.bn = L.BatchNormalization(8)", "hidden": "h = self.bn(h)  # here"},
        ("statistics of a batch",),
    ),
    "centered by the batch": Fault(
        {"hidden": "h = h - F.broadcast_to(F.mean(h, axis=0), h.shape)  # here"}
    ),
    "scaled by the batch": Fault(
        {"hidden": "h = h / float(np.abs(h.array).max())  # here"},
    ),
    "in-batch negatives": Fault(
        {
            "losses": "z = F.matmul(y, y, transb=True)  # here\n"
            "l = l + F.logsumexp(z, axis=1) - F.diagonal(z)"
        },
    ),
    "softmax over samples": Fault({"hidden": "h = F.softmax(h, axis=0)  # here"}),
    "advantages of each rank": Fault(
        {"losses": "l = l * ((m - m.mean()) / (m.std() + 0.1))  # here"}
    ),
    "loads of experts on each rank": Fault(
        {
            "links": "self.gate = L.Linear(8, 4)",
            "hidden": "g = F.softmax(self.gate(h))\n"
            "share = np.eye(4, dtype=np.float32)[g.array.argmax(1)].mean(0)\n"
            "self.balance = 4 * F.sum(F.mean(g, axis=0) * share)  # here",
            "losses": "return F.mean(l) + 0.1 * net.balance",
        },
    ),
    "half of the samples, the hardest ones of each rank": Fault(
        {"losses": "return F.mean(l[np.argsort(-l.array)[: (len(l) + 1) // 2]])  # here"}
    ),
    "the hardest sample": Fault({"losses": "return F.max(l)  # here"}),
    "samples mixed with their neighbors": Fault(
        {"hidden": "h = 0.8 * h + 0.2 * h[::-1]  # here"},
    ),
    # Rank-dependent code
    "rank-dependent code": Fault(
        {"hidden": "if comm.rank == 0 < comm.size - 1:\n    h = F.relu(h)  # here"},
        ("rank-dependent code",),
    ),
    "a scale of each rank": Fault({"losses": "l = l * (1 + 0.1 * comm.rank)  # here"}),
    "a layer less on many ranks": Fault(
        {"hidden": "if comm.size == 1:\n    h = F.sin(h)  # here"},
        ("rank-dependent code",),
    ),
    "an update on one rank more": Fault(
        {
            "loop": OWN_LOOP.replace(
                "        optimizer.update", "        {between}\n        optimizer.update"
            ),
            "between": "if comm.size == 1:\n    optimizer.update(loss, X[:4], T[:4], M[:4])",
        },
        ("rank-dependent code",),
    ),
    "half precision on one rank": Fault(
        {"hidden": "if comm.rank == 1:\n    h = F.cast(F.cast(h, np.float16), np.float32)  # here"},
        ("rank-dependent code",),
    ),
    "dropout on one rank": Fault(
        {
            "hidden": "with mpchain.using_config('train', comm.rank == 0):\n"
            "    h = F.dropout(h)  # here"
        },
        ("rank-dependent code",),
    ),
    "momentum that one rank forgets": Fault(
        {
            "optimizer": "optimizers.MomentumSGD(0.1)",
            "after": "if comm.rank == 1:\n    for p in net.params():\n"
            "        p.update_rule.state['v'][...] = 0",
        },
        ("parameter /l", "after the update of MomentumSGD"),
    ),
    "a learning rate from the loss of a rank": Fault(
        {
            "data": "history = []",
            "losses": "history.append(float(F.mean(l).array))",
            "after": "optimizer.alpha = 0.001 * history[-1]",
        },
        ("hyperparameter alpha",),
    ),
    "a learning rate of one layer on one rank": Fault(
        {"setup": "if comm.rank == 1:\n    net.l2.b.update_rule.hyperparam.alpha = 0.001"},
        ("parameter /l2/b after the update of Adam",),
    ),
    # Scales and averages
    "a sum over samples": Fault({"losses": "return F.sum(l)  # here"}, ("sum",)),
    "divided by the ranks again": Fault({"losses": "return F.mean(l) / comm.size  # here"}),
    "multiplied by the ranks": Fault({"losses": "l = l * comm.size  # here"}),
    "gradients summed over ranks": Fault(
        {
            "loop": BACKWARD,
            **NO_DROPOUT,
            "before": "for p in net.params():\n"
            "    p.grad[...] = comm.allreduce(p.grad) if comm.size > 1 else p.grad",
        },
        ("averaged gradient of parameter", "2 times"),
    ),
    "an optimizer that is not wrapped": Fault(
        {"loop": GAN, "second": "optimizers.SGD(0.1)", **NO_DROPOUT},
        ("parameter /l", "after the update of SGD"),
    ),
    "clipping before averaging": Fault(
        {
            "loop": BACKWARD,
            **NO_DROPOUT,
            "before": "norm = np.sqrt(sum((p.grad ** 2).sum() for p in net.params()))\n"
            "for p in net.params():\n    p.grad *= min(1, 0.1 / norm)",
        },
        ("averaged gradient of parameter /l", "clipping"),
    ),
    "noise in gradients of each rank": Fault(
        {
            "data": "own = np.random.RandomState(comm.rank)",
            "loop": BACKWARD,
            **NO_DROPOUT,
            "before": "for p in net.params():\n"
            "    p.grad += 0.1 * own.randn(*p.shape).astype(np.float32)",
        },
        ("averaged gradient of parameter /l",),
    ),
    "a learning rate for the number of ranks": Fault(
        {"optimizer": "optimizers.SGD(0.01 * comm.size)"}, ("hyperparameter lr",)
    ),
    # Hooks, and code around updates
    "weight decay on one rank": Fault(
        {
            "setup": "if comm.rank == 1:\n"
            "    optimizer.add_hook(mpchain.optimizer_hooks.WeightDecay(0.01))"
        },
        ("parameter /l1/W after the update of Adam", "a hook"),
    ),
    "a hook that draws": Fault(
        {
            "data": "own = np.random.RandomState(7 + comm.rank)",
            "setup": "def noise(rule, param):\n"
            "    param.grad += 0.1 * own.randn(*param.shape).astype(np.float32)\n"
            "noise.call_for_each_param = True\noptimizer.add_hook(noise)",
        },
        ("parameter /l1/W after the update of Adam", "a hook that draws"),
    ),
    "weights clipped on one rank": Fault(
        {"after": "if comm.rank == 0:\n    net.l1.W.array[...] = net.l1.W.array.clip(-0.1, 0.1)"},
        ("parameter /l1/W before the update", "between the updates"),
    ),
    "decay that counts batches of a rank": Fault(
        {"after": "if (step + 1) % (2 // comm.size) == 0:\n    optimizer.alpha *= 0.5"},
        ("hyperparameter alpha",),
    ),
    "a start that depends on the ranks": Fault(
        {"setup": "net.l1.W.array[...] *= comm.size"},
        ("parameter /l1/W before the update",),
    ),
    # State
    "negatives of earlier batches of a rank": Fault(
        {
            "data": "queue = [np.zeros((4, 3), np.float32)]",
            "losses": "z = F.matmul(y, queue[-1], transb=True)  # here\n"
            "queue.append(y.array[:4].copy())\nl = l + F.logsumexp(z, axis=1)",
            **NO_DROPOUT,
        },
    ),
    "a temperature that no optimizer knows": Fault(
        {
            "data": "tau = mpchain.Parameter(np.ones((), np.float32))",
            "loop": BACKWARD,
            "output": "return self.l2(h) * F.broadcast_to(tau, (len(x), 3))  # here",
            "after": "tau.array = tau.array - 0.5 * tau.grad\ntau.cleargrad()",
        },
    ),
    "a running mean of one rank": Fault(
        {
            "links": "self.center = np.zeros(8, np.float32)",
            "hidden": "h = h - self.center  # here\n"
            "self.center = 0.9 * self.center + 0.1 * h.array.mean(0)",
        },
    ),
    "stale statistics": Fault(
        {
            "links": "self.add_persistent('center', np.zeros(8, np.float32))",
            "hidden": "self.center = 0.9 * self.center + 0.1 * h.array.mean(0)",
        },
        ("persistent value /center", "statistics"),
    ),
    "a target network of rank 0": Fault(
        {
            "data": "targets = []",
            "losses": "if not targets or comm.rank == 0:\n    targets[:] = [net.copy('copy')]\n"
            "z = targets[0].l2(F.tanh(net.l1(x))).array  # here\n"
            "l = l + 0.1 * F.sum((y - z) ** 2, axis=1)",
            **NO_DROPOUT,
        },
    ),
    # Samples
    "all ranks compute the same batch": Fault(
        {"before": "mine = indices"}, ("the batch", "sample 13", "repeat")
    ),
    "a sampler that repeats samples": Fault(
        {"indices": "indices = np.random.RandomState(step + 3 * comm.rank).permutation(64)[:13]"},
        ("the batch", "repeat"),
    ),
    "padding by repeated samples": Fault(
        {
            "before": "mine = np.resize(indices, -(-13 // comm.size) * comm.size)\n"
            "mine = np.split(mine, comm.size)[comm.rank]"
        },
        ("the batch", "repeat"),
    ),
    "dropped samples": Fault(
        {"before": "mine = np.split(indices[: 13 // comm.size * comm.size], comm.size)[comm.rank]"},
        ("the batch", "miss"),
    ),
    "data that differ": Fault(
        {"setup": "X = X + 0.01 * comm.rank"},
        ("the batch", "data that differ"),
    ),
    "data normalized by each rank": Fault(
        {"loop": OWN_LOOP.replace("X[mine], T", "X[mine] / X[mine].std(), T")},
        ("the batch", "data that differ"),
    ),
    "iterators over the whole data": Fault(
        {"loop": SCATTERED.replace("distributed.scatter_dataset(", "(lambda x, *_, **__: x)(")},
        ("repeat",),
    ),
    "parts of the data that overlap": Fault(
        {
            "data": "np.random.seed(comm.rank)",
            "loop": SCATTERED.replace("shuffle=True, seed=2)", "shuffle=False)").replace(
                "data = distributed.scatter_dataset(list(zip(X, T, M))",
                "order = np.random.permutation(64)\n"
                "data = distributed.scatter_dataset(list(zip(X[order], T[order], M[order]))",
            ),
        },
        ("the data of SerialIterator", "misses samples"),
    ),
    "another order of the data on each rank": Fault(
        {
            "loop": UPDATER.replace(
                "data = list(zip(X, T, M))",
                "order = np.random.RandomState(comm.rank).permutation(64)\n"
                "data = list(zip(X[order], T[order], M[order]))",
            )
        },
        ("the data of ShardedIterator", "same order"),
    ),
    "a vocabulary of each rank": Fault(
        {"setup": "T = (T + comm.rank) % 3"}, ("the batch", "data that differ", "[1]")
    ),
    "a function that draws": Fault(
        {
            "data": "@mpchain.differentiable(lambda g: g)\n"
            "def noisy(x):\n    return x + np.random.normal(size=x.shape).astype(x.dtype)",
            "hidden": "h = noisy(h)  # here",
        },
        ("draws outside of mpchain.random", "numpy.random"),
    ),
    "a mean over padded words": Fault(
        {
            "data": "LENGTHS = rng.randint(1, 60, 64)",
            "hidden": "n = LENGTHS[(abs(x[:, 0]) * 20).astype(int) % 64]\n"
            "mask = (np.arange(n.max()) < n[:, None]).astype(np.float32)\n"
            "words = F.broadcast_to(h[:, None], (*mask.shape, 8)) * mask[..., None]\n"
            "h = h + F.mean(words, axis=1)  # here",
        },
    ),
    "data that draw": Fault(
        {
            "data": "random.seed(comm.rank)\n"
            "def change(sample):\n    return sample[0] * random.uniform(0.5, 1.5), *sample[1:]",
            "loop": SCATTERED.replace(
                "list(zip(X, T, M))",
                "mpchain.datasets.TransformDataset(list(zip(X, T, M)), change)",
            ),
        },
        ("the data of SerialIterator", "draws other numbers", "AugmentedDataset"),
    ),
    "data centered by each part": Fault(
        {
            "loop": SCATTERED.replace(
                "batches =",
                "mean = np.mean([x for x, _, _ in data], axis=0)\n"
                "data = [(x - mean, t, m) for x, t, m in data]\nbatches =",
            )
        },
        ("the data of SerialIterator", "data that differ"),
    ),
    "a loop over parts that one rank leaves": Fault(
        {
            "loop": IN_PARTS.replace(
                ".backward()", ".backward()\n            if comm.rank == 1:\n                break"
            ),
            **NO_DROPOUT,
        },
        ("function linear", "rows that one process computes are on no rank"),
    ),
    "parts of accumulation weighted alike": Fault(
        {
            "loop": """
for step in range(10):
    indices = rng.permutation(64)[:15]
    mine = np.split(indices, [10, 12][: comm.size - 1])[comm.rank]
    with optimizer.no_sync():
        optimizer.update(loss, X[mine[:1]], T[mine[:1]], M[mine[:1]])
    optimizer.update(loss, X[mine[1:]], T[mine[1:]], M[mine[1:]])
""",
            **NO_DROPOUT,
        },
        ("unequal numbers of samples",),
    ),
    "a part of the data left out": Fault(
        {"loop": SCATTERED.replace("batches =", "data = data[: len(data) // 7 * 7]\nbatches =")},
        ("miss",),
    ),
    # Reports and evaluators
    "perplexity of each rank": Fault(
        {"loop": UPDATER, "losses": "mpchain.report({'perplexity': F.exp(F.mean(l))})"},
        ("perplexity",),
    ),
    "an evaluator of each rank": Fault(
        {
            "loop": UPDATER,
            "after": "held = iterators.SerialIterator(data[comm.rank :: comm.size], 8, "
            "repeat=False, shuffle=False)\n"
            "def validate(*arguments):\n    mpchain.report({'validation': loss(*arguments)})\n"
            "evaluator = extensions.Evaluator(held, net, eval_func=validate)\n"
            "trainer.extend(evaluator, trigger=(1, 'iteration'))",
        },
        ("validation",),
    ),
    "perplexity by an evaluator after the last update": Fault(
        {
            "loop": UPDATER,
            "after": EVALUATOR.format(
                report="{'perplexity': F.exp(F.softmax_cross_entropy(net(x), t))}", trigger=3
            ),
        },
        ("perplexity", "at the end"),
    ),
    "F1 of each rank": Fault(
        {
            "loop": REPORTED,
            "losses": "hits = (y.array.argmax(1) == 1)\n"
            "f1 = 2 * (hits & (t == 1)).sum() / max(hits.sum() + (t == 1).sum(), 1)\n"
            "mpchain.report({'f1': f1})",
        },
        ("reported value 'f1'",),
    ),
    "the worst sample of each rank": Fault(
        {"loop": REPORTED, "losses": "mpchain.report({'worst': F.max(l)})"},
        ("reported value 'worst'", "a maximum"),
    ),
    "hits of each rank": Fault(
        {"loop": REPORTED, "losses": "mpchain.report({'hits': (y.array.argmax(1) == t).sum()})"},
        ("reported value 'hits'", "a sum over samples"),
    ),
    "accuracies averaged over ranks": Fault(
        {
            "loop": REPORTED,
            "losses": "accuracy = float((y.array.argmax(1) == t).mean())\n"
            "mpchain.report({'accuracy': comm.allreduce_obj(accuracy) / comm.size})",
        },
        ("reported value 'accuracy'",),
    ),
    "counts weighted by ranks": Fault(
        {
            "loop": OWN_LOOP.replace(
                "    with comm.batch(len(indices)) as mine:\n        mine = indices[mine]\n",
                "    if True:\n",
            ),
            "before": "mine = indices[:10] if comm.rank == 0 else indices[10:]\n"
            "mine = indices if comm.size == 1 else mine\noptimizer.n_samples = 1",
            **NO_DROPOUT,
        },
        ("unequal numbers of samples",),
    ),
}

SOUND = {
    "own loop": {},
    "updater": {"loop": UPDATER},
    "scattered data": {"loop": SCATTERED},
    "backward": {"loop": BACKWARD, **NO_DROPOUT},
    "GAN": {"loop": GAN},
    "closure": {
        "loop": OWN_LOOP.replace(
            "optimizer.update(loss, X[mine], T[mine], M[mine])",
            "optimizer.update(lambda: loss(X[mine], T[mine], M[mine]))",
        )
    },
    "backward of scattered data": {
        "loop": SCATTERED.replace(
            "    updater.update()",
            "    x, t, m = mpchain.dataset.concat_examples(next(batches))\n"
            "    net.cleargrads()\n    loss(x, t, m).backward()\n    optimizer.update()",
        ),
        **NO_DROPOUT,
    },
    "padded words": {
        "data": "LENGTHS = rng.randint(1, 60, 64)",
        "hidden": "n = LENGTHS[(abs(x[:, 0]) * 20).astype(int) % 64]\n"
        "mask = (np.arange(n.max()) < n[:, None]).astype(np.float32)\n"
        "words = F.broadcast_to(h[:, None], (*mask.shape, 8)) * mask[..., None]\n"
        "h = h + F.sum(words, axis=1) / n[:, None].astype(np.float32)",
    },
    "whole batches of all ranks": {
        "loop": OWN_LOOP.replace("rng.permutation(64)[:13]", "np.array(next(numbers))").replace(
            "for step",
            "numbers = iterators.SerialIterator([*range(64)], 13)\n"
            "numbers = distributed.create_synchronized_iterator(numbers, comm)\nfor step",
        )
    },
    "documented mean over counts": {
        "losses": "return mpchain.batch_sum(F.sum(l * m)) / mpchain.batch_count(m.sum())"
    },
    "draws by sample": {
        "hidden": "h = h + mpchain.random.source(np).standard_normal(h.shape).astype(np.float32)"
    },
    "sharded optimizer": {
        "loop": UPDATER,
        "setup": "optimizer = distributed.create_sharded_optimizer(actual, comm).setup(net)",
    },
    "parts": {"loop": UPDATER.replace("loss_func=loss", "loss_func=loss, accumulation=2")},
    "captured": {"loop": UPDATER.replace("loss_func=loss", "loss_func=loss, graph=True")},
    "reproducible": {
        "data": "comm = mpchain.create_communicator(reproducible=True)",
        "loop": UPDATER,
    },
    "batch normalization of all ranks": {
        "links": "self.bn = distributed.links.MultiNodeBatchNormalization(8, comm)",
        "hidden": "h = self.bn(h)",
    },
    "hooks": {
        "setup": "optimizer.add_hook(mpchain.optimizer_hooks.GradientClipping(0.1))\n"
        "optimizer.add_hook(mpchain.optimizer_hooks.WeightDecay(0.01))\n"
        "optimizer.add_hook(mpchain.optimizer_hooks.GradientNoise(0.1))",
    },
    "an evaluator of all ranks": {
        "loop": UPDATER,
        "after": EVALUATOR.format(report="{'validation': loss(x, t, m)}", trigger=1),
    },
    "parts of a batch": {"loop": IN_PARTS, **NO_DROPOUT},
    "accumulation without exchange": {
        "loop": OWN_LOOP,
        "before": "with optimizer.no_sync():\n"
        "    optimizer.update(loss, X[mine], T[mine], M[mine])",
    },
    "accumulation of other parts": {
        "loop": OWN_LOOP.replace("13", "12"),
        "before": "begin, mine = np.split(mine, 2)\nwith optimizer.no_sync():\n"
        "    optimizer.update(loss, X[begin], T[begin], M[begin])",
        **NO_DROPOUT,
    },
    "L-BFGS": {"optimizer": "optimizers.LBFGS()", **NO_DROPOUT},
    "a step for each of two models": {
        "loop": IN_TWO_STEPS,
        "setup": "coder = L.Linear(8, 8)\nrule = optimizers.RMSprop(0.01)\n"
        "second = mpchain.create_multi_node_optimizer(rule, comm).setup(coder)",
        "hidden": "h = h + F.tanh(coder(h))",
        **NO_DROPOUT,
    },
    "a mean of weights, and a schedule": {
        "data": "held = []",
        "after": "optimizer.alpha *= 0.9\n"
        "held[:] = [0.9 * a + 0.1 * p.array for a, p in zip(held, net.params())] or "
        "[p.array.copy() for p in net.params()]",
    },
    "half precision": {
        "data": "mpchain.global_config.dtype = np.float16\nX = X.astype(np.float16)",
        "loop": UPDATER,
        "losses": "mpchain.report({'loss': F.mean(l)})",
        "setup": "optimizer.use_fp32_update()\noptimizer.loss_scaling(scale=64.0)",
    },
    "accuracies of samples": {"losses": "mpchain.report({'accuracy': F.accuracy(y, t)})"},
}

REFUSED = {
    "no multi-node optimizer": (
        {
            "loop": GAN.replace("optimizer.update(gen", "actual.setup(net).update(gen"),
            "second": "optimizers.SGD(0.1)",
            **NO_DROPOUT,
        },
        "no multi-node optimizer",
    ),
    "few updates": ({"loop": OWN_LOOP.replace("range(10)", "range(2)")}, "fewer than 3 updates"),
    "no two runs are the same": (
        {
            "data": "own = np.random.default_rng()",
            "hidden": "h = h + own.normal(size=h.shape).astype(np.float32)  # here",
        },
        "two runs of the program in one process differ",
    ),
}
