"""Forward mode, which propagates tangents along a function's graph from arguments to results."""

import collections
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mpchain import backprop
from mpchain.backends import cuda
from mpchain.configuration import using_config
from mpchain.function_node import FunctionNode
from mpchain.functions.declaring.declaration import Application, Declaration, InSingle, registry
from mpchain.transforms.rules import RULES, spread
from mpchain.variable import Variable, VariableNode, as_array, as_variable


def place(node: VariableNode) -> Any:
    """Returns the key of a variable in a graph: the output of a function, or the leaf itself.

    Example:
        >>> x = Variable(np.ones(2))
        >>> place(x.node) is x.node, place((x * 2).node)[1]
        (True, 0)
    """
    return node if node.creator_node is None else (node.creator_node, node.output_index)


def functions_between(
    ys: Sequence[Variable], places: object
) -> list[tuple[FunctionNode, tuple[int, ...]]]:
    """Returns the functions between variables and results, in an order in which each function
    follows all functions on which it depends.

    Args:
        ys: the results.
        places: set of the keys (see :func:`place`) of the variables.

    Returns:
        list of pairs of a function and the indices of its inputs that depend on the variables.

    Example:
        >>> x = Variable(np.ones(2))
        >>> found = functions_between([F.exp(x) * 2], {place(x.node)})
        >>> [(function.label, targets) for function, targets in found]
        [('exp', (0,)), ('multiply_by_constant', (0,))]
    """
    targets, entered = {}, set()
    stack = [y.node.creator_node for y in ys if place(y.node) not in places]
    while stack:
        function = stack[-1]
        if function is None or function in targets:
            stack.pop()
            continue
        inputs = [(i, function.inputs[i]) for i in function.differentiable_inputs]
        if function not in entered:
            entered.add(function)
            stack += [node.creator_node for _, node in inputs if place(node) not in places]
            continue
        stack.pop()
        targets[function] = tuple(
            i for i, node in inputs if place(node) in places or targets.get(node.creator_node)
        )
    return [(function, chosen) for function, chosen in targets.items() if chosen]


def push(
    ys: Sequence[Variable], xs: Sequence[Variable], tangents: Sequence[Variable], keeps: bool
) -> list[Variable | None]:
    """Returns the tangents of results, given the tangents of arguments, by one walk over the graph.

    Args:
        ys: the results.
        xs: the arguments.
        tangents: a tangent for each argument.
        keeps: whether tangents get a graph, so that they can be differentiated.

    Returns:
        a list with a tangent, or None for zero, for each result.

    Example:
        >>> x = Variable(np.array([1.0, 3.0]))
        >>> push([x**2], [x], [Variable(np.ones(2))], False)
        [variable([2., 6.])]
    """
    given = {place(x.node): t if keeps else t.array for x, t in zip(xs, tangents)}
    functions = functions_between(ys, given.keys())
    known, may_be_on_gpus = dict(given), "cupy" in sys.modules
    uses = collections.Counter(
        place(function.inputs[i]) for function, targets in functions for i in targets
    )
    uses.update(place(y.node) for y in ys)
    with using_config("enable_backprop", keeps), cuda.restored_device():
        for function, targets in functions:
            places = [place(function.inputs[i]) for i in targets]
            ts = [known.get(key) for key in places]
            for key in places:
                uses[key] -= 1
                if not uses[key]:
                    known.pop(key, None)
            if any(t is not None for t in ts):
                if may_be_on_gpus:
                    cuda.make_current(*ts)
                for k, ty in enumerate(_pushed(function, targets, ts, keeps)):
                    if ty is not None:
                        known[function, k] = ty
    results = [known.get(place(y.node)) for y in ys]
    if keeps:
        return results
    # Views and the caller's arrays are copied, because results must not share memory with the
    # caller's arrays.
    results = [None if t is None else as_array(t) for t in results]
    arrays = list(given.values())
    return [None if t is None else as_variable(_own(t, arrays)) for t in results]


def _own(t, arrays):
    return t.copy() if t.base is not None or any(t is other for other in arrays) else t


def _pushed(function, targets, ts, keeps):
    """Returns the tangents of a function's outputs."""
    try:
        return _tangents(function, dict(zip(targets, ts)), keeps)
    except Exception as error:
        error.add_note(f"(in the tangent of {function.description()})")
        raise


def _tangents(function, ts, keeps):
    known = [i for i, t in ts.items() if t is not None]
    if isinstance(function, Application) and not isinstance(function, InSingle):
        declaration = function.declaration
        rule = RULES.get(declaration.name) if declaration.is_own else None
        if declaration.is_elementwise:
            tys = [_of_elementwise(function, {i: ts[i] for i in known}, keeps)]
        elif rule is not None:
            tys = rule(function, [ts.get(i) for i in range(len(function.inputs))], keeps)
            tys = tys if declaration.has_many_outputs else [tys]
        elif _is_scalar(function):
            tys = [_of_scalar(function, {i: ts[i] for i in known}, keeps)]
        else:
            return _by_double_reverse(function, known, [ts[i] for i in known], keeps)
        outputs = [reference() for reference in function.outputs]
        return [None if y is None else spread(ty, y) for ty, y in zip(tys, outputs)]
    return _by_double_reverse(function, known, [ts[i] for i in known], keeps)


def _of_elementwise(function, ts, keeps):
    """Returns the tangents of an elementwise function: the tangent of each element is multiplied by
    the element's derivative."""
    y = function.outputs[0]()
    alike = [i for i in ts if (function.inputs[i].shape, function.inputs[i].dtype) == _kind(y)]
    results = [pulled(function, (i,), [ts[i]], keeps)[0] for i in alike]
    declaration, found = function.declaration, function.kept(keeps)
    for i in ts:
        if i not in alike and declaration.derivatives[i] is not None:
            arguments = declaration.row_arguments[i](
                ts[i], found, function.constants, function.inputs
            )
            results.append(_derivative(declaration, i, keeps)(*arguments))
    results = [spread(t, y) for t in results if t is not None]
    return functools.reduce(lambda a, b: a + b, results) if results else None


def _kind(node):
    return node.shape, node.dtype


@functools.cache
def _derivative(declaration: Declaration, i: int, keeps: bool) -> Callable:
    return declaration.recorded_derivative(i) if keeps else declaration.derivatives[i]


def pulled(function: FunctionNode, targets: Sequence[int], gys: Sequence, keeps: bool) -> Sequence:
    """Returns the gradients of inputs, as Variables with a graph if ``keeps`` is True; else as
    arrays if ``gys`` are arrays.

    Example:
        >>> y = F.exp(Variable(np.zeros(2)))
        >>> pulled(y.creator_node, (0,), [np.ones(2)], False)
        (array([1., 1.]),)
    """
    return (function.pull_variables if keeps else function.pull_arrays)(targets, gys)


def _is_scalar(function):
    """Returns whether the function returns a single number, computed by this process only."""
    y = function.outputs[0]()
    is_lone = function.declaration.is_own and not function.declaration.has_many_outputs
    return is_lone and y.shape == () and "comm" not in function.declaration.constant_names


def _of_scalar(function, ts, keeps):
    y = function.outputs[0]()
    xp = cuda.get_array_module(*[getattr(t, "array", t) for t in ts.values()])
    one = xp.ones(y.shape, y.dtype)
    gxs = pulled(function, tuple(ts), [as_variable(one) if keeps else one], keeps)
    total = registry["sum"].on
    results = [total(g * t, None, False) for g, t in zip(gxs, ts.values()) if g is not None]
    return functools.reduce(lambda a, b: a + b, results) if results else None


def _by_double_reverse(function, targets, ts, keeps):
    """Returns tangents by differentiating a function twice in reverse.

    The gradients of inputs are linear functions of the gradients of outputs, so backpropagation
    through the gradients of inputs multiplies by the transposed matrix.
    """
    ts = [as_variable(t) for t in ts]
    outputs = [reference() for reference in function.outputs]
    xp = ts[0].xp
    with using_config("enable_backprop", True):
        us = [None if y is None else Variable(xp.ones(y.shape, y.dtype)) for y in outputs]
        gxs = function.pull_variables(tuple(targets), us)
        pairs = [(gx, t) for gx, t in zip(gxs, ts) if gx is not None]
        if not pairs:
            return [None] * len(us)
        live = [u for u in us if u is not None]
        gxs, ts = zip(*pairs)
        found = backprop.grad(gxs, live, ts, enable_double_backprop=keeps)
    if all(t is None for t in found) and any(bool((gx.array != 0).any()) for gx in gxs):
        raise RuntimeError(
            f"{function.label}.backward cuts the graph of the gradient (by .array, unchain or "
            "no_backprop_mode), so the gradient has no derivative, which a tangent needs: compute "
            "the gradient by functions of Variables"
        )
    results = iter(found if keeps else [None if t is None else t.array for t in found])
    return [None if u is None else next(results) for u in us]
