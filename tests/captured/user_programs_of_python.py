"""More steps as users write them, which compute, count and store with features of Python and NumPy.

See :mod:`tests.captured.user_programs`.
"""

import collections
import functools
import itertools
import random
import types

import numpy as np
import scipy.signal

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import FunctionNode, Variable, optimizers
from tests.captured.user_programs import TABLE, Holder, adding_to, model_of, nothing, trained

PROGRAMS: dict = {}
program = adding_to(PROGRAMS)

COUNT = 0
RATES = {"decay": 0.9}


# Other ways to look into an array.


@program
def flat_iterator():
    return lambda x, t: F.sum(x) * sum(x.flat), nothing


@program
def flat_items():
    return lambda x, t: (x.flat[3:5] * 2, F.sum(x) * x.flat[2]), nothing


@program
def enumeration():
    return lambda x, t: F.sum(x) * sum(v for (i, j), v in np.ndenumerate(x) if i == j), nothing


@program
def nditer():
    return lambda x, t: F.sum(x) * sum(float(v) for v in np.nditer(x)), nothing


@program
def plain_view():
    return lambda x, t: F.sum(x.view(np.ndarray) * 2), nothing


@program
def plain_view_trained():
    link = model_of()
    return trained(link, lambda x, t: F.sum(link(x.view(np.ndarray) * 2)))


@program
def view_of_bits():
    return lambda x, t: (x.view(np.int64) >> 52, x.copy().view(np.int64).sum()), nothing


@program
def from_buffer():
    return lambda x, t: np.frombuffer(x.data, x.dtype).sum() + F.sum(x), nothing


@program
def memory_view():
    # The sum of labels is larger only in later calls, so the comparison finds no difference.
    return lambda x, t: F.sum(x) * (2 if sum(memoryview(t)) > 10 else 1), nothing


@program
def vectorized():
    def double(value):
        return 2 * value

    return lambda x, t: np.vectorize(double)(x), nothing


@program
def from_python_function():
    add = np.frompyfunc(lambda a, b: a + b, 2, 1)
    return lambda x, t: add(x, 1.0).astype(float), nothing


@program
def along_an_axis():
    return lambda x, t: np.apply_along_axis(lambda row: row[::-1] * row[0], 1, x), nothing


@program
def masked_array():
    return lambda x, t: np.ma.masked_less(x, 0).mean(axis=1).filled(0), nothing


@program
def matrix_class():
    return lambda x, t: np.asarray(np.asmatrix(x).T * np.asmatrix(x)), nothing


@program
def piecewise_and_select():
    def step(x, t):
        y = np.piecewise(x, [x < 0, x >= 0], [lambda v: -v, lambda v: v**2])
        return y, np.select([x > 1, x < -1], [x, x * 2], 0)

    return step, nothing


@program
def histogram():
    return lambda x, t: (np.histogram(x, 4, (-3, 3))[0], np.digitize(x, [-1, 0, 1])), nothing


@program
def sorted_by_python():
    return lambda x, t: np.array(sorted(x[0])), nothing


@program
def stacked_rows():
    return lambda x, t: np.stack([row * 2 for row in x]), nothing


@program
def zip_of_rows():
    link = model_of()

    def loss(x, t):
        losses = [F.sum(link(row[None]) ** 2) * (1 + label) for row, label in zip(x[:2], t[:2])]
        return F.add(*losses)

    return trained(link, loss)


@program
def dictionary_by_label():
    weights = {0: 1.0, 1: 2.0, 2: 3.0}
    return lambda x, t: F.sum(x) * weights[t[0]], nothing


@program
def formatted_text():
    return lambda x, t: f"{x[0, 0]:.3f}", nothing


@program
def comparison_of_arrays():
    def step(x, t):
        return F.sum(x) * (2 if np.array_equal(t, np.sort(t)) else 1) * (3 if np.any(x > 2) else 1)

    return step, nothing


@program
def isfinite_assertion():
    link = model_of()

    def loss(x, t):
        loss = F.sum(link(x) ** 2)
        assert np.isfinite(loss.array).all()
        return loss

    return trained(link, loss)


# Writes.


@program
def writes_by_copyto():
    buffer = np.zeros((6, 5))

    def step(x, t):
        np.copyto(buffer, x)
        return F.sum(buffer * x)

    return step, lambda: buffer


@program
def adds_in_place():
    total = np.zeros(5)

    def step(x, t):
        nonlocal total
        total += x.sum(axis=0)
        return F.sum(total * x)

    return step, lambda: total


@program
def counts_labels():
    counts = np.zeros(3, int)

    def step(x, t):
        np.add.at(counts, t, 1)
        return F.sum(x * counts[t][:, None])

    return step, lambda: counts


@program
def counts_labels_by_index():
    counts = np.zeros(3, int)

    def step(x, t):
        counts[t] += 1
        return F.sum(x)

    return step, lambda: counts


@program
def puts():
    buffer = np.zeros(6)

    def step(x, t):
        np.put(buffer, t, x[:, 0])
        np.putmask(buffer, x[:, 1] > 0, x[:, 2])
        return F.sum(x)

    return step, lambda: buffer


@program
def fills():
    buffer = np.zeros(6)

    def step(x, t):
        buffer.fill(x[0, 0])
        return F.sum(x)

    return step, lambda: buffer


@program
def writes_a_nested_array():
    holder = Holder(state={"parts": [np.zeros(5), {"n": np.zeros(())}]})

    def step(x, t):
        holder.state["parts"][0][:] += x.mean(axis=0)
        holder.state["parts"][1]["n"] += 1
        return F.sum(x)

    return step, lambda: holder.state["parts"]


@program
def replaces_a_nested_array():
    holder = Holder(state={"parts": [np.zeros(5), 0]})

    def step(x, t):
        holder.state["parts"][0] = 0.5 * holder.state["parts"][0] + x.mean(axis=0)
        holder.state["parts"][1] += len(x)
        return F.sum(x * holder.state["parts"][0])

    return step, lambda: holder.state["parts"]


@program
def metrics_in_a_dict():
    link, metrics = model_of(), {"n": 0, "loss": 0.0}

    def loss(x, t):
        loss = F.softmax_cross_entropy(link(x), t)
        metrics["n"] += len(x)
        metrics["loss"] = loss.array
        metrics.setdefault("all", []).append(len(x))
        return loss

    step, state = trained(link, loss)
    return step, lambda: [metrics, state()]


@program
def counter_of_a_module():
    def step(x, t):
        global COUNT  # noqa: PLW0603
        COUNT += 1
        return F.sum(x)

    def state():
        return COUNT - begin

    begin = COUNT
    return step, state


class Counted:
    """A callable object that stores the number of its calls and an array of the latest call in
    slots."""

    n_calls = 0
    __slots__ = ("latest", "n")

    def __init__(self):
        self.n, self.latest = 0, None

    def __call__(self, x, t):
        self.n += 1
        self.latest = x * 2
        return F.sum(x)


@program
def attributes_in_slots():
    counted = Counted()
    return counted, lambda: [counted.n, counted.latest]


@program
def counter_of_a_class():
    class Of:
        n = 0

        def step(self, x, t):
            type(self).n += 1
            return F.sum(x)

    return Of().step, lambda: Of.n


@program
def iterator_of_numbers():
    numbers = itertools.count(1)
    return lambda x, t: F.sum(x) * next(numbers), nothing


@program
def iterator_that_only_counts():
    numbers = itertools.count(1)

    def step(x, t):
        next(numbers)
        return F.sum(x)

    return step, lambda: repr(numbers)


@program
def iterator_of_batches():
    batches = itertools.cycle([TABLE, TABLE + 1, TABLE * 2])
    return lambda x, t: F.sum(F.matmul(x, next(batches).T)), nothing


@program
def draws_of_python():
    generator = random.Random(0)
    return lambda x, t: F.sum(x) * generator.random(), nothing


@program
def draws_of_python_that_decide():
    generator = random.Random(0)
    return lambda x, t: F.sum(x) if generator.random() < 0.5 else F.sum(x * x), nothing


@program
def draws_of_a_generator():
    generator = np.random.default_rng(0)
    return lambda x, t: F.sum(x * generator.standard_normal(5)), nothing


@program
def shuffles_by_a_generator():
    generator = np.random.default_rng(0)
    return lambda x, t: x[generator.permutation(6)], nothing


@program
def set_that_grows():
    seen = set()

    def step(x, t):
        seen.add(len(seen))
        return F.sum(x)

    return step, lambda: sorted(seen)


@program
def counter_class():
    counts = collections.Counter()

    def step(x, t):
        counts["calls"] += 1
        return F.sum(x)

    return step, lambda: dict(counts)


@program
def attribute_by_setattr():
    holder = Holder(latest=None)

    def step(x, t):
        setattr(holder, "lat" + "est", x.sum(axis=0))
        return F.sum(x)

    return step, lambda: holder.latest


@program
def namespace_of_numbers():
    space = types.SimpleNamespace(n=0, total=0.0)

    def step(x, t):
        space.n += 1
        space.total = space.total + x.sum()
        return F.sum(x) / space.n

    return step, lambda: [space.n, space.total]


# Gradients and optimizers.


@program
def own_descent():
    link = model_of()

    def step(x, t):
        loss = F.softmax_cross_entropy(link(x), t)
        link.cleargrads()
        loss.backward()
        for p in link.params():
            p.array -= 0.1 * p.grad
        return loss

    return step, lambda: [p.array for p in link.params()]


@program
def scaled_gradients():
    link = model_of()
    optimizer = optimizers.MomentumSGD(0.1).setup(link)

    def step(x, t):
        loss = F.softmax_cross_entropy(link(x), t)
        link.cleargrads()
        loss.backward()
        for p in link.params():
            p.grad *= 0.5
            p.grad = p.grad + 0.01 * p.array
        optimizer.update()
        return loss

    return step, lambda: [x for p in link.params() for x in (p.array, p.grad)]


@program
def gradients_set_to_zero():
    link = model_of()
    link.zerograds() if hasattr(link, "zerograds") else None

    def step(x, t):
        for p in link.params():
            p.grad = np.zeros_like(p.array)
        F.softmax_cross_entropy(link(x), t).backward()
        return [p.grad for p in link.params()]

    return step, lambda: [p.grad for p in link.params()]


@program
def adversarial_example():
    link = model_of()

    def loss(x, t):
        x = Variable(x)
        F.softmax_cross_entropy(link(x), t).backward()
        near = x.array + 0.1 * np.sign(x.grad)
        return F.softmax_cross_entropy(link(near), t)

    return trained(link, loss)


@program
def update_of_a_loss_function():
    link = model_of()
    optimizer = optimizers.Adam().setup(link)

    def step(x, t):
        optimizer.update(lambda x, t: F.softmax_cross_entropy(link(x), t), x, t)

    return step, lambda: [p.array for p in link.params()]


@program
def rates_of_a_list():
    links_ = [model_of(), model_of(seed=1)]
    both = [optimizers.SGD(0.1).setup(link) for link in links_]

    def step(x, t):
        loss = F.softmax_cross_entropy(links_[0](x) + links_[1](x), t)
        for link in links_:
            link.cleargrads()
        loss.backward()
        for each in both:
            each.hyperparam.lr *= RATES["decay"]
            each.update()
        return loss

    return step, lambda: [p.array for link in links_ for p in link.params()]


@program
def rate_set_by_setattr():
    link, optimizer = model_of(), optimizers.SGD(0.1)
    step, state = trained(link, lambda x, t: F.sum(link(x) ** 2), optimizer)

    def decaying(x, t):
        loss = step(x, t)
        for name in ("lr",):
            setattr(optimizer, name, getattr(optimizer, name) * 0.8)
        return loss

    return decaying, state


@program
def two_rates_by_turns():
    generator, critic = model_of(5), model_of(1, seed=1)
    of_generator = optimizers.Adam(0.01).setup(generator)
    of_critic = optimizers.Adam(0.01).setup(critic)

    def step(x, t):
        fake = F.tanh(generator(x))
        loss = F.sum(F.softplus(critic(fake))) + F.sum(F.softplus(-critic(x)))
        critic.cleargrads()
        loss.backward()
        of_critic.update()
        loss_of_generator = F.sum(F.softplus(-critic(F.tanh(generator(x)))))
        generator.cleargrads()
        loss_of_generator.backward()
        of_generator.update()
        return loss, loss_of_generator

    return step, lambda: [p.array for link in (generator, critic) for p in link.params()]


# Functions and links of users.


class Convolved(FunctionNode):
    """Convolves rows with SciPy."""

    def forward(self, inputs):
        return (scipy.signal.convolve2d(inputs[0], np.ones((1, 3)), mode="same"),)

    def backward(self, indexes, grad_outputs):
        return Convolved().apply(grad_outputs)


@program
def own_function_of_scipy():
    link = model_of()
    return trained(link, lambda x, t: F.sum(Convolved().apply((link(x),))[0] ** 2))


class Looped(FunctionNode):
    """Doubles positive elements in a Python loop."""

    def forward(self, inputs):
        (x,) = inputs
        self.factors = np.ones_like(x)
        for i in range(len(x)):
            for j in range(x.shape[1]):
                if x[i, j] > 0:
                    self.factors[i, j] = 2
        return (x * self.factors,)

    def backward(self, indexes, grad_outputs):
        return (grad_outputs[0] * self.factors,)


@program
def own_function_of_loops():
    link = model_of()
    return trained(link, lambda x, t: F.sum(Looped().apply((link(x),))[0] ** 2))


@mpchain.differentiable(lambda g, x_shape: _spread(g, x_shape))
def _column(x):
    column = np.empty(len(x))
    column[...] = x[:, 0]
    return column


@mpchain.differentiable(lambda g: _column.on(g))
def _spread_array(y, shape):
    x = np.zeros(shape)
    x[:, 0] = y
    return x


def _spread(g, shape):
    return _spread_array.on(g, shape)


@program
def own_declaration_that_writes():
    link = model_of()
    return trained(link, lambda x, t: F.sum(_column(link(x)) ** 2))


class Standardized(mpchain.Chain):
    """Stores the largest magnitude of each feature, an array, and the number of samples so far."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.inner = model_of()
        self.largest = np.zeros(5)
        self.n_seen = 0
        self.register_persistent("n_seen")

    def forward(self, x):
        self.largest = np.maximum(self.largest, np.abs(x).max(axis=0))
        self.n_seen += len(x)
        return self.inner(x / (1 + self.largest))


@program
def link_with_statistics():
    chain = Standardized()
    step, state = trained(chain, lambda x, t: F.softmax_cross_entropy(chain(x), t))
    return step, lambda: [chain.largest, chain.n_seen, state()]


@program
def batch_normalization_and_dropout():
    with mpchain.using_config("dtype", np.float64):
        chain = mpchain.Sequential(model_of(4), L.BatchNormalization(4), F.relu)
    step, state = trained(chain, lambda x, t: F.sum(F.dropout(chain(x), 0.3) ** 2))
    return step, lambda: [chain[1].avg_mean, chain[1].avg_var, chain[1].N, state()]


@program
def step_of_a_partial():
    link = model_of()

    def loss(scale, x, t):
        return F.sum(link(x) ** 2) * scale

    return trained(link, functools.partial(loss, 0.5))


@program
def evaluation_of_a_batch():
    link = model_of()

    def step(x, t):
        y = link(x)
        return F.accuracy(y, t), F.argmax(y, axis=1), F.r2_score(y[:, 0], x[:, 0]), F.one_hot(t, 3)

    return step, nothing


@program
def scores_of_labels():
    link = model_of()
    return lambda x, t: F.classification_summary(link(x), t, label_num=3), nothing


@program
def scores_of_most_labels():
    link = model_of()
    return lambda x, t: F.f1_score(link(x), t, label_num=3, ignore_label=0), nothing


@program
def noise_of_functions():
    link = model_of()

    def loss(x, t):
        y = link(x)
        return F.sum(F.gaussian(y, y * 0) ** 2) + F.sum(F.gumbel_softmax(y) * F.rrelu(y))

    return trained(link, loss)


@program
def variational_bound():
    link = model_of(4)

    def loss(x, t):
        y = link(x)
        posterior = mpchain.distributions.Normal(y[:, :2], log_scale=y[:, 2:])
        prior = mpchain.distributions.Normal(np.zeros((6, 2)), np.ones((6, 2)))
        z = posterior.sample()
        return F.sum(mpchain.kl_divergence(posterior, prior)) - F.sum(prior.log_prob(z))

    return trained(link, loss)
