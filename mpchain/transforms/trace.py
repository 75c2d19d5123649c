"""A call of a function, whose graph leads from copies of the arguments to the results."""

from collections.abc import Callable, Sequence
from typing import Any

from mpchain import backprop
from mpchain import functions as F
from mpchain.configuration import config, force_backprop_mode, using_config
from mpchain.function_node import FunctionNode
from mpchain.functions import counting
from mpchain.transforms import forward, trees
from mpchain.variable import Variable, as_variable


class _Tie(FunctionNode):
    """A function node that returns its first input. In the graph, the output depends on the other
    inputs, too, but its derivatives by them are zero."""

    def forward(self, inputs):
        return inputs[:1]

    def backward(self, target_input_indexes, grad_outputs):
        return (grad_outputs[0], *[None] * (len(self.inputs) - 1))


def _depends(y, wanted):
    """Returns whether a Variable was computed from one of the wanted nodes."""
    stack, seen = [y.node], set()
    while stack:
        node = stack.pop()
        if node in wanted:
            return True
        creator = node.creator_node
        if creator is not None and creator not in seen:
            seen.add(creator)
            stack += [creator.inputs[i] for i in creator.differentiable_inputs]
    return False


def _zeros(x):
    with x.device.create_context():
        return as_variable(x.xp.zeros_like(x.array))


class Trace:
    """The results of a function, and the arguments by which they are differentiated.

    The results that transformations return have a graph, except in ``no_backprop_mode``.

    Args:
        name: the name of the transformation, for messages.
        function: the function.
        primals: tuple of the function's arguments, each a Variable, array, or tree of them.

    Attributes:
        y: the function's result.
        xs: the leaves of the copied arguments that the function received.
        ys: the leaves of the function's result.
        keeps: whether results keep their graph.

    Example:
        >>> trace = Trace("vjp", lambda x: x**2, (np.array([3.0]),))
        >>> trace.pull([np.ones(1)])
        [variable([6.])]
    """

    def __init__(self, name: str, function: Callable[..., Any], primals: tuple):
        self.name, self.primals, self.keeps = name, primals, config.enable_backprop
        given = trees.checked(name, "primals", primals)
        if not given:
            raise ValueError(
                f"{name}: primals must not be empty, because there is nothing to differentiate by"
            )
        with force_backprop_mode():
            self.xs = [
                F.identity(x)
                if isinstance(x, Variable) and x.requires_grad and self.keeps
                else Variable(getattr(x, "array", x))
                for x in given
            ]
            self.y = function(*trees.rebuilt(primals, self.xs))
        self.ys = self._outputs()

    def _outputs(self):
        ys, wanted = [], {x.node for x in self.xs}
        for place, y in trees.leaves(self.y):
            if not isinstance(y, Variable):
                raise TypeError(
                    f"{self.name}: the function must return Variables, or trees of them, but "
                    f"result{place} is a {type(y).__name__}"
                )
            if not _depends(y, wanted):
                raise ValueError(
                    f"{self.name}: result{place} of the function does not depend on the arguments "
                    "by any graph: the graph was cut (by .array, unchain or no_backprop_mode), or "
                    "the result is a constant, whose derivative needs no transformation"
                )
            ys.append(y)
        return ys

    def result(self, y: object, values: Sequence[Variable]) -> Any:
        """Returns values in the structure of ``y``; they have a graph only if :attr:`keeps` is
        True."""
        return trees.rebuilt(y, values if self.keeps else [without_graph(v) for v in values])

    def scalar(self) -> Variable:
        """Returns the result, which must be a single number."""
        if not isinstance(self.y, Variable) or self.y.shape != ():
            shape = getattr(self.y, "shape", type(self.y).__name__)
            raise ValueError(
                f"{self.name}: the function must return a Variable of shape (), not {shape}"
            )
        return self.y

    def weighted(self) -> Variable:
        """Returns the scalar result; with several ranks, returns this rank's share of the
        result."""
        return self.share(self.scalar())

    def share(self, y: Variable) -> Variable:
        """Returns this rank's share of a value; in one process, returns the whole value."""
        if not self._is_of_ranks():
            return y
        with using_config("enable_backprop", True):
            return y * y.dtype.type(counting.current.counts.share())

    def total(self, y: Variable) -> Variable:
        """Returns the sum of the shares of all ranks; in one process, returns ``y``."""
        if self._is_of_ranks():
            with using_config("enable_backprop", self.keeps):
                y = counting.current.counts.sum(y)
        return y if self.keeps else without_graph(y)

    def _is_of_ranks(self):
        return counting.current.counts is not None and any(map(_is_named, self.primals))

    def pull(self, gys: Sequence, of: Any = None, keeps: bool | None = None) -> list[Variable]:
        """Returns the gradients of the arguments, given the gradients of the results."""
        ys = self.ys if of is None else of
        keeps = self.keeps if keeps is None else keeps
        with using_config("enable_backprop", True):
            gys = [as_variable(g) for g in gys]
            gxs = backprop.grad(ys, self.xs, gys, enable_double_backprop=keeps)
        return [self._tied(_zeros(x) if g is None else g, keeps) for g, x in zip(gxs, self.xs)]

    def _tied(self, g, keeps):
        if not keeps or _depends(g, {x.node for x in self.xs}):
            return g
        with using_config("enable_backprop", True):
            return _Tie().apply((g, *self.xs))[0]

    def summed(self, gxs: list[Variable]) -> list[Variable]:
        """Sums the gradients of parameters that are passed by name over all ranks of an optimizer's
        update.

        In one process, or outside of an update, this method changes nothing.
        """
        if not self._is_of_ranks():
            return gxs
        named = [_is_named(p) for p in self.primals for _ in trees.leaves(p)]
        chosen = [i for i, is_named in enumerate(named) if is_named]
        result = list(gxs)
        for dtype in dict.fromkeys(gxs[i].dtype for i in chosen):
            of_dtype = [i for i in chosen if gxs[i].dtype == dtype]
            with using_config("enable_backprop", self.keeps):
                flat = F.concat([F.flatten(gxs[i]) for i in of_dtype], axis=0)
                total, end = counting.current.counts.sum(flat), 0
                for i in of_dtype:
                    begin, end = end, end + gxs[i].size
                    result[i] = F.reshape(total[begin:end], gxs[i].shape)
        return result

    def push(self, tangents: Sequence) -> list[Variable]:
        """Returns the tangents of the results, given the tangents of the arguments."""
        tys = forward.push(self.ys, self.xs, list(map(as_variable, tangents)), self.keeps)
        tys = [_zeros(y) if t is None else t for t, y in zip(tys, self.ys)]
        return [self._tied(t, self.keeps) for t in tys]

    def slope(self, y: Variable, tangents: Sequence) -> Variable:
        """Returns the tangent of a number that was computed from the arguments, with its graph."""
        (slope,) = forward.push([y], self.xs, list(map(as_variable, tangents)), True)
        return _zeros(y) if slope is None else slope


def _is_named(primal):
    """Returns whether an argument is a dict of parameters by name, which are the same on all
    ranks."""
    return isinstance(primal, dict) and any(str(key).startswith("/") for key in primal)


def without_graph(x: Variable) -> Variable:
    """Returns a Variable with the same array that requires no gradient.

    Example:
        >>> without_graph(Variable(np.ones(1))).requires_grad
        False
    """
    return Variable(x.array, requires_grad=False)
