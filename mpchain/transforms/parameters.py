"""Functions that treat links as functions of their parameters."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mpchain import functions as F
from mpchain.configuration import config
from mpchain.functions import counting
from mpchain.link import Link
from mpchain.transforms import trees
from mpchain.variable import Variable, as_variable, is_array


def parameters(link: Link) -> dict[str, Variable]:
    """Returns the parameters of a link, by the names that :meth:`Link.namedparams` yields.

    Args:
        link: the link; all its parameters have arrays.

    Returns:
        dict of Parameters. All transformations also accept such a dict with arrays as values.

    Raises:
        ValueError: a parameter is not initialized.

    Example:
        >>> from mpchain import transforms
        >>> sorted(transforms.parameters(L.Linear(3, 2)))
        ['/W', '/b']
    """
    found = {}
    for name, param in link.namedparams():
        if not param.is_initialized:
            raise ValueError(
                f"parameters: {name} is not initialized: call the link once, or give it its size"
            )
        found[name] = param
    return found


def functional_call(
    function: Link | Callable[..., Any], params: Mapping[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls a link with other parameters, and leaves the link unchanged.

    Running statistics and states that the call changes are also restored.

    Args:
        function: a link, or a method of a link, such as ``model.loss``.
        params: Variables or arrays, by the names that :func:`parameters` uses, with the shapes and
            dtypes of the parameters. Parameters that are left out keep their values.
        args, kwargs: the arguments of the call.

    Returns:
        The link's result, with a graph that reaches back to ``params``.

    Raises:
        KeyError: the link has no parameter of a name in ``params``.
        ValueError, TypeError: a shape or dtype differs.
        RuntimeError: the call changes parameters, as an optimizer does.

    Example:
        >>> from mpchain import transforms
        >>> model, x = L.Linear(2, 1), np.ones((3, 2), np.float32)
        >>> loss = lambda params: F.sum(mpchain.functional_call(model, params, x) ** 2)
        >>> value, gradient = mpchain.value_and_grad(loss)(transforms.parameters(model))
        >>> gradient["/W"].shape
        (1, 2)
    """
    link = getattr(function, "__self__", function)
    if not isinstance(link, Link):
        raise TypeError(
            "functional_call: the function must be a Link or a method of a Link, not "
            f"{type(function).__name__}"
        )
    named = dict(link.namedparams())
    for name, value in params.items():
        if name not in named:
            raise KeyError(
                f"functional_call: {type(link).__name__} has no parameter {name!r}; it has "
                f"{', '.join(sorted(named))}"
            )
        if named[name].is_initialized:
            trees.matching("functional_call", "params", {name: value}, "link", {name: named[name]})
    pairs = {name: (named[name], as_variable(value)) for name, value in params.items()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_restored(link))
        for param, value in pairs.values():
            stack.enter_context(param.standing_for(value))
        arrays = {n: p.array for n, p in named.items() if p.is_initialized}
        call = functools.partial(function, *args, **kwargs)
        if all(isinstance(array, np.ndarray) for array in arrays.values()):
            result = _call_read_only(link, call, named, arrays)
        else:
            result = _call_compared(link, call, named, arrays)
    return result


def _call_read_only(link, call, named, arrays):
    """Calls a function with read-only arrays. If the function tries to write into an array, the
    error names the parameter."""
    try:
        with _read_only(arrays.values()):
            result = call()
    except Exception as error:
        if "read-only" not in str(error):
            raise
        # the second call raises an error that names the parameter
        _call_compared(link, call, named, arrays)
        raise
    for name, array in arrays.items():
        if named[name].array is not array:
            raise _changed(link, name)
    return result


def _call_compared(link, call, named, arrays):
    """Calls a function; if it changed arrays, restores them and raises RuntimeError."""
    copies = {name: array.copy() for name, array in arrays.items()}
    result, changed = call(), []
    for name, array in arrays.items():
        if named[name].array is not array or not _are_equal(array, copies[name]):
            array[...] = copies[name]
            changed.append(name)
    if changed:
        raise _changed(link, changed[0])
    return result


def _changed(link, name):
    return RuntimeError(
        f"functional_call: {type(link).__name__} changes its parameter {name} when it is called; a "
        "function of parameters must not update them"
    )


def _are_equal(x, y):
    return bool(((x == y) | (x != x)).all())


@contextlib.contextmanager
def _read_only(arrays):
    changed = [array for array in arrays if array.flags.writeable]
    try:
        for array in changed:
            array.flags.writeable = False
        yield
    finally:
        # Bases are made writable first, because a view can be made writable only if its base is
        # writable.
        for array in sorted(changed, key=lambda array: array.base is not None):
            array.flags.writeable = True


@contextlib.contextmanager
def _restored(link: Link) -> Iterator[None]:
    """Context manager: restores the attributes of a link and its descendants at the end; in
    training, also their arrays."""
    before = [(vars(each), dict(vars(each))) for each in link.links()]
    try:
        for attributes, _ in before if config.train else ():
            for name, value in attributes.items():
                if is_array(value):
                    attributes[name] = value.copy()
        yield
    finally:
        for attributes, old in before:
            attributes.clear()
            attributes.update(old)


def ravel(tree: object) -> tuple[Variable, Callable[[Any], Any]]:
    """Returns the elements of a tree as one vector, and a function that converts vectors to trees.

    Args:
        tree: tree of Variables or arrays of the same dtype; or a link, which stands for its
            parameters by name.

    Returns:
        Variable of shape ``(n,)``, and ``unravel``, a function from such a vector to a tree.

    Raises:
        TypeError: the dtypes differ, or a dtype is not floating point.

    Example:
        >>> from mpchain import transforms
        >>> vector, unravel = transforms.ravel({"a": np.zeros(2), "b": np.ones((2, 1))})
        >>> vector, unravel(vector + 1)
        (variable([0., 0., 1., 1.]), {'a': variable([1., 1.]), 'b': variable([[2.],
                  [2.]])})
    """
    tree = parameters(tree) if isinstance(tree, Link) else tree
    leaves = trees.checked("ravel", "tree", tree)
    dtypes = sorted({str(x.dtype) for x in leaves})
    if len(dtypes) != 1:
        raise TypeError(f"ravel: the leaves must have one dtype, not {', '.join(dtypes) or 'none'}")
    shapes, sizes = [x.shape for x in leaves], [x.size for x in leaves]
    total, structure = sum(sizes), trees.mapped(lambda x: None, tree)

    def unravel(vector):
        vector = as_variable(vector)
        if vector.shape != (total,):
            raise ValueError(f"unravel: the vector must be of shape ({total},), not {vector.shape}")
        if counting.current.counts is not None and vector.requires_grad:
            raise RuntimeError(
                "unravel: within the update of a multi-node optimizer, transform functions of "
                "parameters by name, because only their gradients are summed over the ranks"
            )
        parts, end = [], 0
        for shape, size in zip(shapes, sizes):
            begin, end = end, end + size
            parts.append(F.reshape(vector[begin:end], shape))
        return trees.rebuilt(structure, parts)

    return F.concat([F.flatten(as_variable(x)) for x in leaves], axis=0), unravel
