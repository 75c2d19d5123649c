"""The smallest possible number of bytes of a training step, operation by operation, in half
precision.

An operation reads each of its inputs once, and writes each of its results once. A product includes
its bias and the next function, and adds to an existing array; a batch normalization includes the
next sum and ReLU. A batch normalization reads its input twice, because no kernel can keep an array
of this size until its statistics are known; so does its gradient. Attention keeps no weights.
"""

from collections import Counter

from mpchain.gpu_doctor.speed import SIZES
from tests.benchmarks.paper import ours

_HALF = 2
SGD, ADAM = 20, 28
"""Bytes of the optimizer for a parameter: it reads the gradient, reads and writes the float32 copy
and the states, and writes the parameter."""


class _Least(Counter):
    def add(self, operation, *sizes, times=1):
        self[operation] += times * _HALF * sum(sizes)

    def product(self, operation, x, W, y):
        """Adds a product or a convolution, and its two gradients."""
        self.add(operation, x, W, y)
        self.add(f"{operation}: gradient of the input", y, W, x)
        self.add(f"{operation}: gradient of the weights", x, y, W)


def of_resnet() -> Counter:
    """Returns the least bytes of each operation of ResNet-50."""
    sizes, least = SIZES["ResNet-50"], _Least()
    n, _, side, _ = sizes.batch
    n_weights = 0

    def unit(n_in, n_out, k, side, stride, has_sum=False, is_first=False):
        nonlocal n_weights
        x, side = n * n_in * side**2, -(-side // stride)
        y, W = n * n_out * side**2, n_in * n_out * k**2
        n_weights += W + 2 * n_out
        least.add("convolution", x, W, y)
        if not is_first:
            least.add("convolution: gradient of the input", y, W, x)
        least.add("convolution: gradient of the weights", x, y, W)
        least.add("normalization, sum, ReLU", y, y, y, *[y] * has_sum)
        # The kernel reads the gradient and its input twice. After a sum, it also reads the output,
        # because the ReLU's gradient needs the sign.
        least.add("normalization, sum, ReLU: gradient", *[y] * (5 + 3 * has_sum))
        return side

    width = sizes.width
    side = unit(3, width, 7, side, 2, is_first=True)
    x, side = n * width * side**2, side // 2
    y = n * width * side**2
    least.add("pooling", x, y)
    least.add("pooling: gradient", x, y, y)
    n_in = width
    for stage, depth in enumerate(sizes.depths):
        for i in range(depth):
            n_mid, stride = width << stage, 2 if stage and not i else 1
            unit(n_in, n_mid, 1, side, 1)
            if i == 0:
                unit(n_in, 4 * n_mid, 1, side, stride)
            out = unit(n_mid, n_mid, 3, side, stride)
            unit(n_mid, 4 * n_mid, 1, out, 1, has_sum=True)
            # The product of one branch adds the gradients of both, and so reads the other gradient.
            least.add("sum of gradients", n * n_in * side**2)
            n_in, side = 4 * n_mid, out
    x = n * n_in
    least.add("mean", x * side**2, x)
    least.add("mean: gradient", x * side**2, x)
    least.product("product", x, n_in * sizes.n_classes, n * sizes.n_classes)
    least.add("loss and its gradient", 3 * n * sizes.n_classes)
    n_weights += n_in * sizes.n_classes
    least["optimizer"] += SGD * n_weights
    return least


def of_gpt2() -> Counter:
    """Returns the least bytes of each operation of GPT-2 small; dropout counts as needing none."""
    d, rows, least = ours.WIDTH, ours.BATCH * ours.LENGTH, _Least()
    x = rows * d
    for _ in range(ours.DEPTH):
        for n_in, n_out in ((1, 3), (1, 1), (1, 4), (4, 1)):
            least.product("product, bias, GELU", n_in * x, n_in * n_out * d * d, n_out * x)
        # Products include the GELU and its gradient: one writes the GELU's input, one reads it.
        least.add("GELU: gradient", *[4 * x] * 2)
        least.add("attention", *[x] * 4)
        least.add("attention: gradient", *[x] * 8)
        # A product includes the residual sum, whose other term it reads.
        least.add("residual sum", x, times=2)
        least.add("residual sum: gradient", x, times=2)
        least.add("normalization", x, x, times=2)
        least.add("normalization: gradient", x, x, x, times=2)
        least.add("gradients of biases", 9 * x)
    least.add("normalization", x, x)
    least.add("normalization: gradient", x, x, x)
    words = ours.WORDS * d
    least.add("embedding and its gradient", x, x, x, words)
    least.product("product with words", x, words, rows * ours.WORDS)
    least.add("loss and its gradient", 3 * rows * ours.WORDS)
    n_weights = words + ours.LENGTH * d + ours.DEPTH * (12 * d * d + 13 * d) + 2 * d
    least["optimizer"] += ADAM * n_weights
    return least


def of(name: str) -> Counter | None:
    """Returns the smallest numbers of bytes of a model's operations; None if nobody has counted
    them.

    Example:
        >>> of("ResNet-50").total() > 1e10
        True
    """
    if name == "ResNet-50":
        return of_resnet()
    return of_gpt2() if name.startswith("GPT-2") else None
