"""Steps as users write them, with what a recording can and cannot see.

Each function in PROGRAMS makes a step of two arrays, x (6, 5) and labels t (6,), and a function
that returns what the step leaves behind.
"""

import collections
import copy
import dataclasses
import functools

import numpy as np
import scipy.special

import mpchain
import mpchain.functions as F
import mpchain.links as L
from mpchain import Variable, optimizer_hooks, optimizers

PROGRAMS: dict = {}

TABLE = np.random.RandomState(9).randn(3, 5)
SETTINGS = {"factor": 1.0}


def adding_to(programs):
    """Returns a decorator that registers a function that makes a step and a function of the
    state."""
    return lambda make: programs.setdefault(make.__name__, make)


program = adding_to(PROGRAMS)


def nothing():
    return None


def model_of(n_out=3, seed=0):
    random = np.random.RandomState(seed)
    with mpchain.using_config("dtype", np.float64):
        return L.Linear(5, n_out, initialW=random.randn(n_out, 5))


def trained(link, loss_of, optimizer=None):
    """Returns a step that trains a link with the loss that ``loss_of`` returns, and a function that
    returns the link's parameters and gradients."""
    optimizer = (optimizers.SGD(0.1) if optimizer is None else optimizer).setup(link)

    def step(x, t):
        loss = loss_of(x, t)
        link.cleargrads()
        loss.backward()
        optimizer.update()
        return loss

    return step, lambda: [(p.array, p.grad) for _, p in sorted(link.namedparams())]


# The programs below call NumPy functions that bypass recorded arrays.


@program
def take_from_a_table():
    return lambda x, t: F.sum(x * np.take(TABLE, t, axis=0)), nothing


@program
def index_a_table():
    return lambda x, t: F.sum(x * TABLE[t]), nothing


@program
def weight_by_a_table():
    link, weights = model_of(), np.array([0.5, 1.0, 4.0])
    losses = functools.partial(F.softmax_cross_entropy, reduce="no")
    return trained(link, lambda x, t: F.sum(losses(link(x), t) * weights[t]))


@program
def scipy_of_asarray():
    return lambda x, t: scipy.special.logsumexp(np.asarray(x)), nothing


@program
def scipy_ufunc():
    return lambda x, t: F.sum(Variable(scipy.special.expit(x))), nothing


@program
def scipy_trained():
    link = model_of()
    return trained(link, lambda x, t: F.sum(link(x)) * float(scipy.special.logsumexp(x)))


@program
def copy_by_array():
    return lambda x, t: F.sum(np.array(x) * 2), nothing


@program
def copy_by_array_trained():
    link = model_of()
    return trained(link, lambda x, t: F.sum(link(np.array(x))))


@program
def ascontiguousarray():
    link = model_of()
    return trained(link, lambda x, t: F.sum(link(np.ascontiguousarray(x.T).T)))


@program
def copy_by_copy():
    return lambda x, t: F.sum(copy.copy(x) + copy.deepcopy(x)), nothing


@program
def array_of_rows():
    return lambda x, t: np.array([x[0], x[2]]).sum(), nothing


@program
def as_strided():
    def step(x, t):
        windows = np.lib.stride_tricks.as_strided(x, (6, 4, 2), (*x.strides, x.strides[1]))
        return windows.sum(axis=2), F.sum(windows)

    return step, nothing


@program
def sliding_windows():
    return lambda x, t: np.lib.stride_tricks.sliding_window_view(x, 2, axis=1).max(axis=2), nothing


@program
def roll_repeat_delete():
    def step(x, t):
        return np.roll(x, 1, axis=0), np.repeat(x, 2, axis=1), np.delete(x, 0, axis=0)

    return step, nothing


@program
def repeat_of_a_table():
    return lambda x, t: np.repeat(TABLE, np.maximum(t[:3], 1), axis=0).sum(axis=0), nothing


@program
def write_into_zeros():
    link = model_of()

    def loss(x, t):
        padded = np.zeros((6, 5))
        padded[:, 1:] = x[:, :-1]
        return F.sum(link(padded) ** 2)

    return trained(link, loss)


@program
def write_onehot():
    link = model_of()

    def loss(x, t):
        onehot = np.zeros((6, 3))
        onehot[np.arange(6), t] = 1
        return F.sum((link(x) - onehot) ** 2)

    return trained(link, loss)


@program
def write_zeros_like():
    link = model_of()

    def loss(x, t):
        padded = np.zeros_like(x)
        padded[:, 1:] = x[:, :-1]
        return F.sum(link(padded) ** 2)

    return trained(link, loss)


@program
def one_hot_of_eye():
    link = model_of()
    return trained(link, lambda x, t: F.sum((link(x) - np.eye(3)[t]) ** 2))


@program
def iterate_over_labels():
    return lambda x, t: F.sum(x) * sum(int(label) for label in t), nothing


@program
def iterate_over_numbers():
    return lambda x, t: F.sum(x) * sum(x[0]), nothing


@program
def largest_label():
    return lambda x, t: F.sum(x) * max(t), nothing


@program
def contains():
    return lambda x, t: F.sum(x) * (2.0 if 2 in t[:2] else 1.0), nothing


@program
def argpartition():
    return lambda x, t: x.argpartition(2, axis=1)[:, :2], nothing


@program
def conjugate_and_real():
    return lambda x, t: (x.conj() * 2, x.real + 1), nothing


@program
def number_of_numpy():
    return lambda x, t: np.float64(x.sum()), nothing


@program
def norm_of_numpy():
    return lambda x, t: (np.linalg.norm(x), np.median(x), np.percentile(x, 30)), nothing


@program
def dot_and_matmul():
    return lambda x, t: (x.dot(TABLE.T), TABLE @ x.T, np.einsum("ij,kj", TABLE, x)), nothing


@program
def numpy_draws():
    link = model_of()
    return trained(link, lambda x, t: F.sum(link(x + np.random.randn(6, 5)) ** 2))


# Shapes that depend on data.


@program
def boolean_index():
    return lambda x, t: F.sum(Variable(x)[x > 0]), nothing


@program
def boolean_index_trained():
    link = model_of()
    return trained(link, lambda x, t: F.mean(link(x)[t == 1] ** 2) if (t == 1).any() else F.sum(x))


@program
def nonzero():
    return lambda x, t: (F.sum(x[np.nonzero(t)[0]]), np.flatnonzero(t)), nothing


@program
def length_of_nonzero():
    return lambda x, t: F.sum(x) / (1 + len(np.flatnonzero(t))), nothing


@program
def length_of_unique():
    return lambda x, t: F.sum(x) * len(np.unique(t)), nothing


@program
def bincount():
    link = model_of()
    return trained(link, lambda x, t: F.sum(link(x) * np.bincount(t, minlength=3)))


@program
def compress():
    def step(x, t):
        return np.compress(t > 0, x, axis=0).sum(axis=0), x.compress(t > 0, axis=0)

    return step, nothing


@program
def where_of_one():
    return lambda x, t: x[np.where(t == 2)].sum(axis=0), nothing


@program
def slice_by_a_label():
    return lambda x, t: x[: t[0] + 1].sum(axis=0), nothing


# The programs below return results of various types.

Pair = collections.namedtuple("Pair", "loss y")


@dataclasses.dataclass
class Record:
    loss: Variable
    y: np.ndarray


class Holder:
    """An object with attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def _returning(make_result):
    link = model_of()
    optimizer = optimizers.SGD(0.1).setup(link)

    def step(x, t):
        y = link(x)
        loss = F.softmax_cross_entropy(y, t)
        link.cleargrads()
        loss.backward()
        optimizer.update()
        return make_result(x, loss, y)

    return step, lambda: [link.W.array]


@program
def returns_namedtuple():
    return _returning(lambda x, loss, y: Pair(loss, y.array))


@program
def returns_ordered_dict():
    return _returning(lambda x, loss, y: collections.OrderedDict(loss=loss, y=y))


@program
def returns_defaultdict():
    return _returning(lambda x, loss, y: collections.defaultdict(list, loss=loss, y=[y, y.array]))


@program
def returns_dataclass():
    return _returning(lambda x, loss, y: Record(loss, y.array))


@program
def returns_nested():
    return _returning(lambda x, loss, y: {"a": [(loss, {"b": y.array})], "c": 3, "d": "text"})


@program
def returns_deque():
    return _returning(lambda x, loss, y: collections.deque([loss, y]))


@program
def returns_an_object():
    return _returning(lambda x, loss, y: Holder(loss=loss.array, y=y.array))


@program
def returns_argument():
    return _returning(lambda x, loss, y: (x, loss))


@program
def returns_view_of_argument():
    return _returning(lambda x, loss, y: (x[1:3], Variable(x).T, loss))


@program
def returns_what_tests_return():
    def step(x, t):
        with mpchain.using_config("train", False):
            return F.dropout(x, 0.5)

    return step, nothing


@program
def returns_parameter():
    link = model_of()
    return lambda x, t: (F.sum(link(x)), link.W.array * 2), nothing


@program
def returns_number_of_loss():
    return lambda x, t: float(F.sum(x).array), nothing


@program
def returns_scalar_of_array():
    return lambda x, t: x.sum().item(), nothing


# State that a step leaves behind.


@program
def counts_calls():
    link, count = model_of(), 0

    def step(x, t):
        nonlocal count
        count += 1
        return F.sum(link(x))

    return step, lambda: count


@program
def scales_by_a_counter():
    link, count = model_of(), 0

    def loss(x, t):
        nonlocal count
        count += 1
        return F.sum(link(x) ** 2) / count

    return trained(link, loss)


@program
def decays_a_float():
    link, ratio = model_of(), 1.0

    def loss(x, t):
        nonlocal ratio
        ratio *= 0.9
        return F.sum(link(x) ** 2) * ratio

    return trained(link, loss)


@program
def buffer_by_a_counter():
    link, losses = model_of(), np.zeros(20)
    count = [0]

    def loss(x, t):
        loss = F.sum(link(x) ** 2)
        losses[count[0]] = loss.array
        count[0] += 1
        return loss

    step, state = trained(link, loss)
    return step, lambda: [losses, count, state()]


@program
def buffer_overwritten():
    link, latest = model_of(), np.zeros((6, 3))

    def loss(x, t):
        y = link(x)
        latest[...] = y.array
        return F.sum(y**2)

    step, state = trained(link, loss)
    return step, lambda: [latest, state()]


@program
def buffer_by_out():
    buffer = np.zeros((6, 5))

    def step(x, t):
        np.add(x, 1, out=buffer)
        return F.sum(buffer)

    return step, lambda: buffer


@program
def buffer_that_adds_up():
    total = np.zeros(5)

    def step(x, t):
        np.add(total, x.sum(axis=0), out=total)
        return F.sum(total * x)

    return step, lambda: total


@program
def memory_bank():
    link, bank = model_of(), np.ones((3, 3))

    def loss(x, t):
        y = link(x)
        loss = F.sum((y - bank[t]) ** 2)
        bank[t] = 0.5 * bank[t] + 0.5 * y.array
        return loss

    step, state = trained(link, loss)
    return step, lambda: [bank, state()]


class Queue:
    """Stores a queue of features in an attribute, as in momentum contrast."""

    def __init__(self):
        self.link, self.features = model_of(), np.ones((12, 3))
        self.step_of_link, self.state_of_link = trained(self.link, self.loss)

    def loss(self, x, t):
        y = self.link(x)
        scores = F.matmul(y, self.features.T)
        self.features = np.concatenate([y.array, self.features[:-6]])
        return F.softmax_cross_entropy(scores, t)

    def step(self, x, t):
        return self.step_of_link(x, t)

    def state(self):
        return [self.features, self.state_of_link()]


@program
def queue_of_features():
    queue = Queue()
    return queue.step, queue.state


@program
def list_that_grows():
    link, history = model_of(), []

    def loss(x, t):
        loss = F.sum(link(x) ** 2)
        history.append(loss.array)
        return loss

    step, state = trained(link, loss)
    return step, lambda: [list(history), state()]


@program
def deque_of_latest():
    latest = collections.deque(maxlen=3)

    def step(x, t):
        latest.append(x.sum(axis=0))
        return F.sum(sum(latest))

    return step, lambda: list(latest)


@program
def cache_in_a_default():
    def step(x, t, cache={}):  # noqa: B006
        if "first" not in cache:
            cache["first"] = x.sum()
        return F.sum(x) * cache["first"]

    return step, nothing


@program
def doubles_its_argument():
    def step(x, t):
        x *= 2
        return F.sum(x)

    return step, nothing


@program
def writes_into_its_argument():
    def step(x, t):
        x[:, 0] = 0
        t[0] = 1
        return F.sum(x), t + 1

    return step, nothing


@program
def moving_average_of_an_object():
    link, holder = model_of(), Holder(ema=np.zeros(3))

    def loss(x, t):
        y = link(x)
        holder.ema = 0.9 * holder.ema + 0.1 * y.array.mean(axis=0)
        return F.sum((y - holder.ema) ** 2)

    step, state = trained(link, loss)
    return step, lambda: [holder.ema, state()]


class Averaging(mpchain.Chain):
    """A chain that stores a moving average of its inner link's outputs, and subtracts it."""

    def __init__(self, is_persistent):
        super().__init__()
        with self.init_scope():
            self.inner = model_of()
        self.ema = np.zeros(3)
        if is_persistent:
            self.register_persistent("ema")

    def forward(self, x):
        y = self.inner(x)
        self.ema = 0.9 * self.ema + 0.1 * y.array.mean(axis=0)
        return y - self.ema


@program
def moving_average_of_a_link():
    chain = Averaging(is_persistent=False)
    step, state = trained(chain, lambda x, t: F.sum(chain(x) ** 2))
    return step, lambda: [chain.ema, state()]


@program
def moving_average_that_persists():
    chain = Averaging(is_persistent=True)
    step, state = trained(chain, lambda x, t: F.sum(chain(x) ** 2))
    return step, lambda: [chain.ema, state()]


@program
def moving_average_without_optimizer():
    chain = Averaging(is_persistent=True)
    return lambda x, t: F.sum(chain(x) ** 2), lambda: chain.ema


@program
def output_in_an_attribute():
    chain = Averaging(is_persistent=True)

    def loss(x, t):
        chain.y = chain(x)
        chain.loss = F.softmax_cross_entropy(chain.y, t)
        return chain.loss

    step, state = trained(chain, loss)
    return step, lambda: [chain.y.array, chain.loss.array, state()]


@program
def output_in_an_object():
    link, holder = model_of(), Holder(y=None)

    def loss(x, t):
        holder.y = link(x)
        return F.softmax_cross_entropy(holder.y, t)

    step, state = trained(link, loss)
    return step, lambda: [holder.y.array, state()]


@program
def spectral_normalization():
    link = model_of(4)
    np.random.seed(3)
    link.add_hook(mpchain.link_hooks.SpectralNormalization())
    return trained(link, lambda x, t: F.sum(F.tanh(link(x)) ** 2))


@program
def long_short_term_memory():
    with mpchain.using_config("dtype", np.float64):
        np.random.seed(2)
        link = L.LSTM(5, 4)

    optimizer = optimizers.SGD(0.1).setup(link)

    def step(x, t):
        loss = F.sum(link(x) ** 2)
        link.cleargrads()
        loss.backward()
        loss.unchain_backward()
        optimizer.update()
        return loss

    return step, lambda: [link.h.array, link.c.array, link.upward.W.array]


@program
def teacher_of_averages():
    student, teacher = model_of(), model_of(seed=1)

    def loss(x, t):
        with mpchain.no_backprop_mode():
            target = teacher(x).array
        for p, q in zip(teacher.params(), student.params()):
            p.array[...] = 0.9 * p.array + 0.1 * q.array
        return F.sum((student(x) - target) ** 2)

    step, state = trained(student, loss)
    return step, lambda: [teacher.W.array, state()]


@program
def teacher_in_place():
    student, teacher = model_of(), model_of(seed=1)

    def loss(x, t):
        loss = F.sum((student(x) - teacher(x).array) ** 2)
        for p, q in zip(teacher.params(), student.params()):
            p.array += 0.1 * (q.array - p.array)
        return loss

    step, state = trained(student, loss)
    return step, lambda: [teacher.W.array, state()]


@program
def clipped_weights():
    link = model_of()
    step, state = trained(link, lambda x, t: F.sum(link(x)))

    def clipped(x, t):
        loss = step(x, t)
        for p in link.params():
            np.clip(p.array, -0.3, 0.3, out=p.array)
        return loss

    return clipped, state


@program
def clipped_weights_by_assignment():
    link = model_of()
    step, state = trained(link, lambda x, t: F.sum(link(x)))

    def clipped(x, t):
        loss = step(x, t)
        for p in link.params():
            p.array[...] = p.array.clip(-0.3, 0.3)
        return loss

    return clipped, state


@program
def gradients_clipped_now_and_then():
    link, optimizer = model_of(), optimizers.SGD(0.1)
    step, state = trained(link, lambda x, t: F.sum(F.tanh(link(x)) * x[:, :3]), optimizer)
    optimizer.add_hook(optimizer_hooks.GradientClipping(4.0))
    return step, state


@program
def gradients_of_two_calls():
    link = model_of()
    optimizer, count = optimizers.SGD(0.1).setup(link), 0

    def step(x, t):
        nonlocal count
        if count % 2 == 0:
            link.cleargrads()
        loss = F.softmax_cross_entropy(link(x), t)
        loss.backward()
        count += 1
        if count % 2 == 0:
            optimizer.update()
        return loss

    return step, lambda: [count, link.W.array]


@program
def rate_that_decays_in_the_step():
    link, optimizer = model_of(), optimizers.MomentumSGD(0.1)
    step, state = trained(link, lambda x, t: F.sum(link(x) ** 2), optimizer)

    def decaying(x, t):
        optimizer.lr *= 0.8
        return step(x, t)

    return decaying, state


@program
def reward_baseline():
    link, baseline = model_of(), 0.0

    def loss(x, t):
        nonlocal baseline
        reward = x[:, 0].mean()
        advantage = reward - baseline
        baseline = 0.9 * baseline + 0.1 * reward
        return F.sum(F.log_softmax(link(x))[:, 0]) * advantage

    return trained(link, loss)


# Values that decide what a step computes.


@program
def branch_on_a_loss():
    link = model_of()

    def loss(x, t):
        loss = F.sum(link(x))
        return loss if loss.array > 0 else loss * -2

    return trained(link, loss)


@program
def branch_on_a_number():
    return lambda x, t: F.sum(x) * (2.0 if float(x[0, 0]) > 0 else 3.0), nothing


@program
def hinge_inactive_at_first():
    link = model_of()

    def loss(x, t):
        return F.sum(F.relu(link(x * 1e-3) + np.where(x.mean() > 0.9, 1.0, -1.0)))

    return trained(link, loss)


@program
def class_weights():
    link, weights = model_of(), np.array([0.2, 1.0, 5.0])
    return trained(link, lambda x, t: F.softmax_cross_entropy(link(x), t, class_weight=weights))


@program
def ignored_labels():
    link = model_of()
    return trained(link, lambda x, t: F.softmax_cross_entropy(link(x), t - 1))


@program
def embedding_of_ignored_labels():
    with mpchain.using_config("dtype", np.float64):
        link = L.EmbedID(3, 5, initialW=np.random.RandomState(0).randn(3, 5), ignore_label=-1)
    return trained(link, lambda x, t: F.sum(link(t - 1) * x))


@program
def drops_out():
    link = model_of()
    return trained(link, lambda x, t: F.sum(F.dropout(link(x), 0.5) ** 2))


@program
def factor_of_a_global():
    link = model_of()
    step, state = trained(link, lambda x, t: F.sum(link(x) ** 2) * SETTINGS["factor"])

    def changing():
        SETTINGS["factor"] = 1.0 if SETTINGS["factor"] > 4 else SETTINGS["factor"] + 1
        return state()

    SETTINGS["factor"] = 1.0
    return step, changing


@program
def factor_of_an_attribute():
    link, holder = model_of(), Holder(factor=1.0)
    step, state = trained(link, lambda x, t: F.sum(link(x) ** 2) * holder.factor)

    def changing():
        holder.factor += 0.5
        return state()

    return step, changing


@program
def attribute_of_a_link():
    chain = Averaging(is_persistent=True)
    chain.factor = 1.0
    step, state = trained(chain, lambda x, t: F.sum(chain(x) ** 2) * chain.factor)
    n_calls = 0

    def changing():
        nonlocal n_calls
        n_calls += 1
        chain.factor = 1.0 if n_calls < 6 else 3.0
        return state()

    return step, changing


@program
def frozen_in_between():
    chain = mpchain.Sequential(model_of(5), model_of(3, seed=1))
    step, state = trained(chain, lambda x, t: F.softmax_cross_entropy(chain(x), t))
    n_calls = 0

    def freezing():
        nonlocal n_calls
        n_calls += 1
        if n_calls == 6:
            chain[0].disable_update()
        return state()

    return step, freezing


@program
def table_that_is_changed_outside():
    link, table, n_calls = model_of(), np.ones(3), 0
    step, state = trained(link, lambda x, t: F.sum(link(x) ** 2 * table))

    def changing():
        nonlocal n_calls
        n_calls += 1
        table[:] = 1 + n_calls // 6
        return state()

    return step, changing


@program
def link_that_is_replaced():
    chain, n_calls = mpchain.Sequential(model_of(5), model_of(3, seed=1)), 0

    def replacing():
        nonlocal n_calls
        n_calls += 1
        if n_calls == 6:
            chain[1] = model_of(3, seed=2)

    return lambda x, t: F.sum(chain(x) ** 2), replacing


@program
def bound_buffer():
    buffer = np.zeros(5)

    def step(buffer, x, t):
        buffer[...] = x.sum(axis=0)
        return F.sum(x * buffer)

    return functools.partial(step, buffer), lambda: buffer
