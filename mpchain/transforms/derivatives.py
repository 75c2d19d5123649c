"""Products with the derivatives of functions, and whole Jacobians and Hessians."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.transforms import trees
from mpchain.transforms.trace import Trace
from mpchain.variable import Variable

_Function = Callable[..., Any]


def _arguments(name, argument, values):
    """Returns the arguments as a tuple. Raises TypeError for a list or an array, because passing
    them is a likely mistake."""
    if not isinstance(values, tuple):
        raise TypeError(
            f"{name}: {argument} must be a tuple with an element for each argument of the "
            f"function, not {type(values).__name__}"
        )
    return values


def _bare(values):
    return values[0] if len(values) == 1 else values


def vjp(f: _Function, *primals: Any) -> tuple[Any, Callable[[Any], tuple]]:
    """Evaluates a function, and returns its vector-Jacobian product.

    Args:
        f: function of Variables, or trees of them, that returns Variables, or a tree of them.
        primals: the arguments of ``f``: floating-point Variables or arrays, or trees of them.

    Returns:
        The result of ``f``, and a function that maps a tree with the structure, shapes and dtypes
        of the result to the tuple of gradients of the primals. The function may be called several
        times.

    Raises:
        TypeError: an argument is not floating point, or a result is not a Variable.
        ValueError: a result does not depend on the arguments, or a shape is wrong.

    Example:
        >>> y, pull = mpchain.vjp(lambda x: x**2, np.array([1.0, 3.0]))
        >>> pull(np.array([1.0, 10.0]))
        (variable([ 2., 60.]),)
    """
    trace = Trace("vjp", f, primals)

    def pull(cotangents):
        gys = trees.matching("vjp", "cotangents", cotangents, "the result", trace.y)
        return trace.result(primals, trace.summed(trace.pull(gys)))

    return trace.result(trace.y, trace.ys), pull


def linearize(f: _Function, *primals: Any) -> tuple[Any, _Function]:
    """Evaluates a function, and returns its linearization at ``primals``, which can be applied to
    many tangents.

    Args:
        f, primals: see :func:`vjp`.

    Returns:
        The result of ``f``, and a function that maps tangents of the primals to tangents of the
        result.

    Raises:
        TypeError, ValueError: see :func:`vjp`.

    Example:
        >>> y, push = mpchain.linearize(lambda x: x**2, np.array([1.0, 3.0]))
        >>> push(np.array([1.0, 10.0]))
        variable([ 2., 60.])
    """
    trace = Trace("linearize", f, primals)

    def linear(*tangents):
        vs = trees.matching("linearize", "tangents", tangents, "primals", primals)
        return trace.result(trace.y, trace.push(vs))

    return trace.result(trace.y, trace.ys), linear


def jvp(f: _Function, primals: tuple, tangents: tuple) -> tuple[Any, Any]:
    """Evaluates a function and its derivative in a direction (Jacobian-vector product).

    Args:
        f: see :func:`vjp`.
        primals: tuple of the arguments of ``f``.
        tangents: tuple of the same structure, shapes and dtypes: the direction.

    Returns:
        The result of ``f``, and the tangent of the result, which has the same structure.

    Raises:
        TypeError, ValueError: see :func:`vjp`.

    Example:
        >>> mpchain.jvp(lambda x: x**2, (np.array([1.0, 3.0]),), (np.array([1.0, 10.0]),))
        (variable([1., 9.]), variable([ 2., 60.]))
    """
    _arguments("jvp", "primals", primals)
    vs = trees.matching("jvp", "tangents", tangents, "primals", primals)
    trace = Trace("jvp", f, primals)
    tangent = trace.result(trace.y, trace.push(vs))
    return trace.result(trace.y, trace.ys), tangent


def _numbers(name, argnums, args):
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    for i in numbers:
        if not isinstance(i, int) or not 0 <= i < len(args):
            raise ValueError(
                f"{name}: argnums must be positions of the {len(args)} arguments, but contain {i!r}"
            )
    return numbers


def _partial(f, numbers, args, kwargs):
    """Returns ``f`` as a function of only some of its arguments."""

    def function(*chosen):
        values = list(args)
        for i, value in zip(numbers, chosen):
            values[i] = value
        return f(*values, **kwargs)

    return function


def value_and_grad(f: _Function, argnums: int | tuple[int, ...] = 0) -> _Function:
    """Returns a function that computes the value of ``f`` and its gradient.

    Within the update of a multi-node optimizer, the value, and the gradients of parameters that are
    passed by name, are those of the whole batch and the same on all ranks.

    Args:
        f: function that returns a scalar Variable.
        argnums: positions of the arguments to differentiate by.

    Returns:
        Function of the same arguments that returns the value and the gradient. The gradient has the
        structure of the argument; if ``argnums`` is a tuple, it is a tuple of such gradients.

    Raises:
        TypeError, ValueError: see :func:`vjp`; also, the result is not a scalar.

    Example:
        >>> mpchain.value_and_grad(lambda x: F.sum(x**2))(np.array([1.0, 3.0]))
        (variable(10.), variable([2., 6.]))
    """
    return _value_and_grad("value_and_grad", f, argnums)


def _value_and_grad(name, f, argnums):
    @functools.wraps(f, updated=())
    def function(*args, **kwargs):
        numbers = _numbers(name, argnums, args)
        primals = tuple(args[i] for i in numbers)
        trace = Trace(name, _partial(f, numbers, args, kwargs), primals)
        loss = trace.weighted()
        gradients = trace.summed(trace.pull([np.ones_like(loss.array)], [loss]))
        gradient = trace.result(primals, gradients)
        value = trace.total(loss)
        return value, gradient if isinstance(argnums, tuple) else gradient[0]

    return function


def grad(f: _Function, argnums: int | tuple[int, ...] = 0) -> _Function:
    """Returns a function that computes the gradient of ``f``.

    Do not confuse this function with :func:`mpchain.grad`, whose arguments are Variables.

    Args:
        f, argnums: see :func:`value_and_grad`.

    Example:
        >>> from mpchain import transforms
        >>> transforms.grad(transforms.grad(lambda x: x**3))(np.array(2.0))
        variable(12.)
    """
    both = _value_and_grad("grad", f, argnums)
    return functools.wraps(f, updated=())(lambda *args, **kwargs: both(*args, **kwargs)[1])


def hvp(f: _Function, primals: tuple, tangents: tuple) -> Any:
    """Returns the product of the Hessian of a scalar function with a vector.

    The product takes about twice as long as the gradient; the Hessian itself is never computed.
    With several ranks, the rules of :func:`value_and_grad` apply.

    Args:
        f: function that returns a scalar Variable.
        primals: tuple of the arguments of ``f``.
        tangents: tuple of the same structure, shapes and dtypes: the vector.

    Returns:
        The product, with the structure of the argument; a tuple of products for several arguments.

    Raises:
        TypeError, ValueError: see :func:`value_and_grad`.

    Example:
        >>> mpchain.hvp(lambda x: F.sum(x**3), (np.array([1.0, 2.0]),), (np.array([1.0, 10.0]),))
        variable([  6., 120.])
    """
    _arguments("hvp", "primals", primals)
    vs = trees.matching("hvp", "tangents", tangents, "primals", primals)
    trace = Trace("hvp", f, primals)
    slope = trace.slope(trace.weighted(), vs)
    products = trace.summed(trace.pull([np.ones_like(slope.array)], [slope]))
    return _bare(trace.result(primals, products))


def ggn(f: _Function, loss: _Function, primals: tuple, tangents: tuple) -> Any:
    """Returns the product of a Gauss-Newton matrix with a vector.

    The matrix is J^T H J, where J is the Jacobian of ``f`` and H the Hessian of ``loss`` at its
    result. It is positive semidefinite if the loss is convex. With several ranks, the rules of
    :func:`value_and_grad` apply.

    Args:
        f: function from the primals to Variables, such as a model.
        loss: function from the result of ``f`` to a scalar Variable.
        primals, tangents: see :func:`hvp`.

    Returns:
        The product, in the structure of :func:`hvp`.

    Raises:
        TypeError, ValueError: see :func:`vjp`; the loss is not a scalar.

    Example:
        >>> loss = lambda y: F.sum(y**2)
        >>> mpchain.ggn(lambda x: x**2, loss, (np.array([1.0, 3.0]),), (np.array([1.0, 1.0]),))
        variable([ 8., 72.])
    """
    _arguments("ggn", "primals", primals)
    vs = trees.matching("ggn", "tangents", tangents, "primals", primals)
    trace = Trace("ggn", f, primals)
    tangent = trees.rebuilt(trace.y, trace.push(vs))
    product = hvp(loss, (trace.y,), (tangent,))
    gys = [trace.share(g) for _, g in trees.leaves(product)]
    return _bare(trace.result(primals, trace.summed(trace.pull(gys))))


def _size(tree):
    return sum(math.prod(leaf.shape) for _, leaf in trees.leaves(tree))


def _basis(values):
    """Yields lists of arrays of the shapes and dtypes of the values; one element is 1, and all
    other elements are 0."""
    for i, value in enumerate(values):
        for k in range(value.size):
            arrays = [x.xp.zeros(x.shape, x.dtype) for x in values]
            arrays[i].reshape(-1)[k] = 1
            yield arrays


def _rows(results, of, to, first_axes_are_of):
    """Stacks the results for all basis vectors of ``of``. Returns, for each leaf of ``of``, a list
    with an array for each leaf of ``to``."""
    blocks, begin = [], 0
    for x in of:
        part, begin = results[begin : begin + x.size], begin + x.size
        blocks.append([])
        for j, y in enumerate(to):
            if not part:
                shape = (x.shape + y.shape) if first_axes_are_of else (y.shape + x.shape)
                blocks[-1].append(Variable(x.xp.zeros(shape, x.dtype)))
                continue
            axis = 0 if first_axes_are_of else y.ndim
            stacked = F.stack([result[j] for result in part], axis=axis)
            shape = x.shape + y.shape if first_axes_are_of else y.shape + x.shape
            blocks[-1].append(F.reshape(stacked, shape))
    return blocks


def jacobian(
    f: _Function, argnums: int | tuple[int, ...] = 0, mode: str | None = None
) -> _Function:
    """Returns a function that computes the Jacobian of ``f``.

    Args:
        f: function of Variables, or trees of them, that returns Variables, or a tree of them.
        argnums: positions of the arguments to differentiate by.
        mode: ``'reverse'``, which takes one backpropagation per element of the result;
            ``'forward'``, which takes one forward pass of tangents per element of the arguments;
            None chooses the faster mode.

    Returns:
        Function of the same arguments. It returns a tree with the structure of the result, in which
        each Variable is replaced by a tree with the structure of the argument; the shape of each
        leaf is the shape of the result followed by the shape of the argument.

    Raises:
        TypeError, ValueError: see :func:`vjp`; the mode is unknown.

    Example:
        >>> mpchain.jacobian(lambda x: x**2)(np.array([1.0, 3.0]))
        variable([[2., 0.],
                  [0., 6.]])
    """
    return _jacobian("jacobian", f, argnums, mode)


def _jacobian(name, f, argnums, mode):
    if mode not in (None, "reverse", "forward"):
        raise ValueError(f"{name}: mode must be 'reverse', 'forward' or None, not {mode!r}")

    @functools.wraps(f, updated=())
    def function(*args, **kwargs):
        numbers = _numbers(name, argnums, args)
        primals = tuple(args[i] for i in numbers)
        trace = Trace(name, _partial(f, numbers, args, kwargs), primals)
        is_forward = mode == "forward" or (mode is None and _size(primals) < _size(trace.y))
        xs = trace.xs
        if is_forward:
            blocks = _rows([trace.push(v) for v in _basis(xs)], xs, trace.ys, False)
            blocks = list(zip(*blocks))
        else:
            rows = [trace.summed(trace.pull(g)) for g in _basis(trace.ys)]
            blocks = _rows(rows, trace.ys, xs, True)
        of_outputs = [trace.result(primals, row) for row in blocks]
        if not isinstance(argnums, tuple):
            of_outputs = [row[0] for row in of_outputs]
        return trees.rebuilt(trace.y, of_outputs)

    return function


def hessian(f: _Function, argnums: int | tuple[int, ...] = 0) -> _Function:
    """Returns a function that computes the Hessian of a scalar function.

    Args:
        f, argnums: see :func:`value_and_grad`.

    Returns:
        Function of the same arguments. It returns a tree with the structure of the argument, in
        which each leaf is replaced by another tree with this structure; see :func:`jacobian`.

    Raises:
        TypeError, ValueError: see :func:`value_and_grad`.

    Example:
        >>> mpchain.hessian(lambda x: F.sum(x**3))(np.array([1.0, 2.0]))
        variable([[ 6.,  0.],
                  [ 0., 12.]])
    """
    gradient = _value_and_grad("hessian", f, argnums)
    of_gradient = functools.wraps(f, updated=())(lambda *a, **k: gradient(*a, **k)[1])
    return _jacobian("hessian", of_gradient, argnums, "reverse")
