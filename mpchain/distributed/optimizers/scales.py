"""The factors of a loss's sums over samples, which must not differ between ranks."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpchain.backends import cuda
from mpchain.backends.dtypes import is_floating
from mpchain.distributed.optimizers.sample_graph import SampleGraph, State, array_of
from mpchain.parameter_tree import is_array
from mpchain.variable import Parameter, Variable

_MOST_STEPS = 10000
"""The most steps in the search for the sums of a loss."""

_LINEAR = frozenset(
    "negative add subtract add_constant subtract_from_constant reshape transpose cast get_item "
    "concat stack where expand_dims squeeze identity".split()
)
"""Labels of functions whose results are sums of their arguments, or of parts of them."""


_PRODUCTS = ("matrix_product", "contract")
"""Labels of functions that sum products of elements if the result is a single number."""

_LAYERS = ("linear", "linear_with_bias", "convolution_output", "convolution_with_bias")
"""Labels of functions that are linear in their first argument; the others are parameters."""


class Weights(NamedTuple):
    """The weights by which a loss multiplies the values of samples, in one sum.

    Attributes:
        total: the sum of the weights.
        squares: the sum of the squares of the rows' sums. It tells rows of probabilities, whose
            sums are all equal, from weights of samples.

    Example:
        >>> Weights.of(np.array([0.5, 1.5]), 0.5)
        Weights(total=1.0, squares=0.625)
    """

    total: float
    squares: float

    @classmethod
    def of(cls, numbers: Any, factor: float) -> "Weights":
        rows = factor * abs(numbers).reshape(len(numbers), -1).sum(axis=1)
        return cls(float(rows.sum()), float((rows**2).sum()))


class Scales(NamedTuple):
    """The factors by which a loss multiplies its sums over samples.

    Attributes:
        factors: the magnitude of the factor of each sum; a mean divides by its number of elements.
        weights: the :class:`Weights` of each sum that is multiplied by an array.
        is_plain_sum: whether a sum over the samples is not divided by anything.
        standardized: for each array with mean 0 and standard deviation 1 over the samples, the sum
            of its magnitudes.
        class_weights: for each function with class weights, the sum of these weights.

    Example:
        >>> Scales([0.5]).weights
        ()
    """

    factors: Sequence[float] = ()
    weights: Sequence[Weights] = ()
    is_plain_sum: bool = False
    standardized: Sequence[float] = ()
    class_weights: Sequence[float] = ()


class _Path(NamedTuple):
    node: Any
    factor: float = 1.0
    weights: Any = None  # the array of weights that multiplies the sum
    is_sum: bool = False  # whether the path contains a sum over samples
    is_scaled: bool = False  # whether the path multiplies by a number, which may be 1

    def times(self, number):
        return self._replace(factor=self.factor * number, is_scaled=True)


def scales_of(loss: Variable, graph: SampleGraph) -> Scales:
    """Returns the factors of each sum or mean over samples in a loss, without their signs.

    If the program has computed a factor from its samples, such as a count from a mask, it differs
    between ranks; so do means that are computed with such factors.

    Args:
        loss, graph: the loss of some samples, and its graph. If there are at least as many sums as
            samples, each sum may belong to one sample; then only a factor that all sums share is
            returned.

    Example:
        >>> x, W = np.ones((5, 2)), mpchain.Parameter(np.ones((3, 2)))
        >>> loss = F.sum(F.linear(x, W)) / 4 - 3 * F.mean(F.linear(x, W)) + F.sum(W)
        >>> scales_of(loss, SampleGraph(loss, 5)).factors
        [0.2, 0.25]
    """
    ends = _ends(loss.node, graph)
    if not all(math.isfinite(path.factor) for path in ends):
        return Scales()
    if len(ends) >= graph.n:
        factors = {path.factor for path in ends}
        return Scales([*factors] if len(factors) == 1 else [])
    return Scales(
        [path.factor for path in ends],
        [Weights.of(path.weights, path.factor) for path in ends if path.weights is not None],
        any(path.is_sum and not path.is_scaled and path.weights is None for path in ends),
        _standardized(graph),
        _class_weights(graph),
    )


def _ends(root, graph):
    """Returns the paths from a loss through linear functions to nodes that end them."""
    ends, stack, n_steps = [], [_Path(root)], 0
    while stack:
        path = stack.pop()
        function, n_steps = path.node.creator_node, n_steps + 1
        if n_steps > _MOST_STEPS:
            return []
        if function is None or not graph.depends(path.node):
            continue
        behind = _behind(path, function, graph)
        if behind is None:
            ends.append(path)
            continue
        stack += [behind._replace(node=x) for x in function.inputs if graph.depends(x)]
    return ends


def _behind(path, function, graph):
    """Returns a path extended by a function; None if the function is not linear."""
    label, constants = function.label, function.constants if _is_declared(function) else ()
    if label in ("multiply_by_constant", "divide_by_constant") and np.ndim(constants[0]) == 0:
        number = abs(float(constants[0]))
        return path.times(_used(label, number))
    if label in ("sum", "mean"):
        x, y = function.inputs[0], path.node
        n = math.prod(x.shape) / max(math.prod(y.shape), 1)
        if label == "sum":
            is_of_samples = n > 1 and graph.reduces(function) and not _is_of_sums(x, graph)
            return path._replace(is_sum=path.is_sum or is_of_samples)
        return path.times(1 / n if n else math.nan)
    if label in ("multiply", "divide") or (label in _PRODUCTS and math.prod(path.node.shape) == 1):
        return _times(path, function, graph)
    if label in _LAYERS and path.weights is None and _is_of_sums(function.inputs[0], graph):
        return None if any(graph.depends(x) for x in function.inputs[1:]) else path
    return path if label in _LINEAR else None


def _is_of_sums(node, graph):
    return graph.state(node) is State.SUMS


def _is_declared(function):
    return hasattr(function, "constants")


def _used(label, number):
    if label.startswith("divide"):
        return 1 / number if number else math.nan
    return number


def _times(path, function, graph):
    """Returns a path extended by a product with, or a quotient by, a factor that does not depend on
    samples."""
    are_given = [not graph.depends(x) or x.creator_node is None for x in function.inputs]
    if are_given not in ([False, True], [True, False]) or (
        function.label == "divide" and are_given[0]
    ):
        return None
    given, other = are_given.index(True), function.inputs[are_given.index(False)]
    node = function.inputs[given]
    if node.creator_node is not None or isinstance(node.get_variable_or_none(), Parameter):
        return path.times(1)  # parameters or all ranks determine the value
    numbers = array_of(function, given)
    if numbers is None:
        return path.times(math.nan)
    numbers = abs(cuda.to_cpu(numbers).astype(np.float64))
    if numbers.size == 1 or graph.state(other) is State.SUMS:
        return path.times(_used(function.label, float(numbers.mean())))
    with np.errstate(divide="ignore"):
        numbers = 1 / numbers if function.label == "divide" else numbers
    if path.weights is not None or not np.isfinite(numbers).all():
        return None
    is_scalar = math.prod(path.node.shape) == 1
    return path._replace(
        weights=numbers if is_scalar else np.broadcast_to(numbers, path.node.shape)
    )


def _standardized(graph):
    """Returns the sums of magnitudes of the arrays that were standardized over the samples."""
    found = []
    for array in graph.arrays() if graph.n > 2 else ():
        if not is_floating(array.dtype):
            continue
        rows = cuda.to_cpu(array).astype(np.float64).reshape(graph.n, -1)
        for values in (rows, rows.reshape(-1, 1), rows.reshape(-1, array.shape[-1])):
            if (
                (abs(values.mean(axis=0)) < 1e-4).all()
                and (abs(values.std(axis=0) - 1) < 1e-3).all()
                # An array of labels -1 and 1 may have this mean and deviation by chance.
                and len(np.unique(values[:, 0])) > 2
            ):
                found.append(float(abs(rows).sum()))
                break
    return found


def _class_weights(graph):
    """Returns the field ``class_weights`` of :class:`Scales`."""
    functions = [node.creator_node for node in graph.nodes()]
    options = [f.constants[2:3] for f in functions if f.label == "softmax_cross_entropy"]
    return [float(weights.sum()) for weights in itertools.chain(*options) if is_array(weights)]


def difference(parts: Sequence[tuple[float, Scales]], tolerance: float) -> str | None:
    """Returns the reason, from the scales of a batch's parts, why a loss is not a mean over the
    batch's samples; None if the scales show no reason.

    Args:
        parts: pairs of the weight of a part and its scales.
        tolerance: the relative difference that rounding may cause.

    Example:
        >>> difference([(2, Scales([0.5, 0.1])), (3, Scales([0.5, 0.2]))], 1e-6)
        'multiplies a sum or mean over the samples by a different number (0.1, 0.2) on each rank'
        >>> difference([(2, Scales([1 / 2])), (4, Scales([1 / 4]))], 1e-6) is None  # 1 / n
        True
    """
    parts = [(weight, scales) for weight, scales in parts if weight]
    own = _differing([(w, s.factors) for w, s in parts if s.factors], tolerance)
    if own:
        numbers = ", ".join(f"{factor:.4g}" for factor in own[:4])
        return (
            f"multiplies a sum or mean over the samples by a different number ({numbers}) on each "
            "rank"
        )
    if any(scales.is_plain_sum for _, scales in parts):
        return "is a sum, not a mean, over the samples of one rank"
    weights = [(w, s.weights) for w, s in parts if s.weights]
    for totals, squares in _columns(weights):
        if max(totals) - min(totals) <= tolerance * max(totals) and _differing(squares, tolerance):
            return "weights the samples by numbers whose sum is the same on each rank"
    digests = [scales.standardized for _, scales in parts]
    if digests and all(digests) and len({*map(tuple, digests)}) > 1:
        return "uses an array that has mean 0 and standard deviation 1 over the samples of one rank"
    for weights in zip(*[scales.class_weights for _, scales in parts]):
        if max(weights) - min(weights) > tolerance * abs(max(weights)):
            return "weights the classes by different numbers on each rank"
    return None


def _columns(parts):
    """Yields for each sum the total weight in each part, and pairs of a part's weight and its
    squares."""
    if len({len(held) for _, held in parts}) == 1 and len(parts) > 1:
        for column in zip(*[held for _, held in parts]):
            shares = [(w, [weights.squares]) for (w, _), weights in zip(parts, column)]
            yield [weights.total for weights in column], shares


def _differing(parts, tolerance):
    """Returns factors that differ between parts other than as 1 / n; None if none do."""
    if len({len(held) for _, held in parts}) != 1:
        return None
    for own in zip(*[held for _, held in parts]):
        shares = [weight * factor for (weight, _), factor in zip(parts, own)]
        if all(max(v) - min(v) > tolerance * max(v) for v in (own, shares)):
            return [*own]
    return None
