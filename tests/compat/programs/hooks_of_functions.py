"""Prints what hooks see of each function, forward and backward: its class, label and arrays."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

rng = np.random.RandomState(0)


def draw(*shape):
    return chainer.Variable(rng.uniform(0.2, 0.8, shape).astype("f"))


class Seen(chainer.FunctionHook):
    name = "Seen"

    def __init__(self):
        self.words = []
        self.is_back = False

    def note(self, step, function, in_data):
        arrays = ["-" if x is None else x.dtype.char + "x".join(map(str, x.shape)) for x in in_data]
        label = function.label.replace(" ", "")
        self.words.append(":".join([step, type(function).__name__, label, *arrays]))

    def forward_preprocess(self, function, in_data):
        if not self.is_back:  # Chainer's derivatives are functions, too
            self.note("F", function, in_data)

    def backward_preprocess(self, function, in_data, out_grad):
        self.is_back = True
        self.note("B", function, in_data)


labels = np.array([0, 1], "i")
linear, norm, layer_norm = L.Linear(12, 4), L.BatchNormalization(3), L.LayerNormalization(4)
conv, conv1 = L.Convolution2D(2, 3, 3, pad=1), L.Convolution1D(2, 3, 3)
CASES = [
    lambda: linear(draw(2, 3, 2, 2)),
    lambda: L.Linear(3, 2)(draw(4, 3)),
    lambda: L.Linear(3, 2)(draw(4, 5, 3), n_batch_axes=2),
    lambda: conv(draw(2, 2, 4, 4)),
    lambda: conv1(draw(1, 2, 5)),
    lambda: L.Deconvolution2D(2, 3, 3)(draw(1, 2, 3, 3)),
    lambda: norm(draw(2, 3, 2, 2)),
    lambda: layer_norm(draw(3, 4)),
    lambda: L.GroupNormalization(2, 4)(draw(2, 4, 2, 2)),
    lambda: L.EmbedID(5, 3)(np.array([[1, 2]], "i")),
    lambda: L.Bilinear(2, 3, 2)(draw(2, 2), draw(2, 3)),
    lambda: L.PReLU()(draw(2, 3)),
    lambda: L.Maxout(4, 3, 2)(draw(2, 4)),
    lambda: F.lstm(draw(2, 3), draw(2, 12))[1],
    lambda: draw(2) + draw(2),
    lambda: draw(2) + 1,
    lambda: draw(2) + (-1),
    lambda: 1 - draw(2),
    lambda: draw(2) * draw(2),
    lambda: draw(2) / 2,
    lambda: draw(2) / draw(2),
    lambda: 2 / draw(2),
    lambda: draw(2) ** 2,
    lambda: 2 ** draw(2),
    lambda: abs(-draw(2)),
    lambda: draw(2, 3) @ draw(3, 2),
    lambda: draw(2, 3)[:, 1],
    lambda: draw(2, 3).T,
    lambda: draw(2, 3).reshape(3, 2),
    lambda: F.relu(draw(2)),
    lambda: F.softplus(draw(2)),
    lambda: F.swish(draw(2, 3), draw(3)),
    lambda: F.crelu(draw(2, 2)),
    lambda: F.clipped_relu(draw(2)),
    lambda: F.softmax_cross_entropy(draw(2, 3), labels),
    lambda: F.mean_squared_error(draw(2), draw(2)),
    lambda: F.mean_absolute_error(draw(2), draw(2)),
    lambda: F.huber_loss(draw(2, 3), draw(2, 3), 1.0),
    lambda: F.contrastive(draw(2, 3), draw(2, 3), labels),
    lambda: F.dropout(draw(4), 0.5),
    lambda: F.max_pooling_2d(draw(1, 1, 4, 4), 2),
    lambda: F.local_response_normalization(draw(1, 6, 2, 2)),
    lambda: F.where(np.array([True, False]), draw(2), draw(2)),
    lambda: F.select_item(draw(2, 3), labels),
    lambda: F.permutate(draw(2, 3), np.array([1, 0], "i")),
    lambda: F.scatter_add(draw(3), np.array([0, 1]), draw(2)),
    lambda: F.zoneout(draw(2), draw(2)),
    lambda: F.vstack([draw(2), draw(2)]),
    lambda: F.tile(draw(2), 2),
    lambda: F.repeat(draw(2), 2),
    lambda: F.max(draw(2, 3), axis=1),
    lambda: F.sin(draw(2)),
    lambda: F.logsumexp(draw(2, 3)),
    lambda: F.maximum(draw(2), draw(2)),
    lambda: F.einsum("ij,jk->ik", draw(2, 3), draw(3, 2)),
    lambda: F.normalize(draw(2, 3)),
    lambda: F.batch_l2_norm_squared(draw(2, 3)),
    lambda: F.linear_interpolate(draw(2), draw(2), draw(2)),
    lambda: F.gumbel_softmax(draw(2, 3)),
    lambda: F.gaussian(draw(2), draw(2)),
]
words = []
for case in CASES:
    seen = Seen()
    with seen:
        y = case()
        y.grad = np.ones_like(y.array)
        y.backward()
    words += seen.words


class Parameters(Seen):
    """A hook that finds the parameter whose array a function has received."""

    def forward_preprocess(self, function, in_data):
        pass

    def backward_preprocess(self, function, in_data, out_grad):
        self.words += [str(in_data[1] is p.array) for p in (norm.gamma, conv.W)]


parameters = Parameters()
with parameters:
    y = norm(conv(draw(1, 2, 3, 3)))
    y.grad = np.ones_like(y.array)
    y.backward()

x = draw(2)
y = F.relu(x)
alone = Seen()
y.creator_node.add_hook(alone)
y.grad = np.ones_like(y.array)
y.backward()
print(len(words), *words, *parameters.words, *alone.words)
