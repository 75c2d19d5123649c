"""Functions of trees, which are nested dicts, tuples and lists of Variables or arrays."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mpchain.backends.dtypes import is_floating
from mpchain.variable import Variable, is_array


def leaves(tree: object) -> Iterator[tuple[str, Any]]:
    """Yields the path and the value of each leaf; dicts are visited in the order of their keys.

    Example:
        >>> list(leaves({"b": (1, 2), "a": 3}))
        [("['a']", 3), ("['b'][0]", 1), ("['b'][1]", 2)]
    """
    if not isinstance(tree, (dict, list, tuple)):
        yield "", tree
        return
    for key, value in sorted(tree.items()) if isinstance(tree, dict) else enumerate(tree):
        for place, leaf in leaves(value):
            yield f"[{key!r}]{place}", leaf


def rebuilt(tree: object, values: Iterable[Any]) -> Any:
    """Returns a tree of the same structure with other leaves.

    Example:
        >>> rebuilt({"b": (1, 2), "a": 3}, "xyz")
        {'a': 'x', 'b': ('y', 'z')}
    """
    values = iter(values)

    def build(tree):
        if isinstance(tree, dict):
            return {key: build(value) for key, value in sorted(tree.items())}
        if isinstance(tree, (list, tuple)):
            built = [build(value) for value in tree]
            if hasattr(tree, "_fields"):  # a named tuple
                return type(tree)(*built)
            return built if isinstance(tree, list) else tuple(built)
        return next(values)

    return build(tree)


def checked(function: str, argument: str, tree: object) -> list[Any]:
    """Returns the leaves, which must be floating-point Variables or arrays.

    Raises:
        TypeError: a leaf is not a floating-point Variable or array.

    Example:
        >>> checked("jvp", "primals", (np.ones(2),))
        [array([1., 1.])]
    """
    found = []
    for place, leaf in leaves(tree):
        if not isinstance(leaf, Variable) and not is_array(leaf):
            kind = type(leaf).__name__
            raise TypeError(
                f"{function}: {argument}{place} must be a Variable or array, not {kind}"
            )
        if not is_floating(leaf.dtype):
            raise TypeError(
                f"{function}: {argument}{place} must be floating point to have a derivative, but "
                f"its dtype is {leaf.dtype}"
            )
        found.append(leaf)
    return found


def matching(function: str, argument: str, tree: object, of: str, like: object) -> list[Any]:
    """Returns the leaves of a tree, which must have the structure, shapes and dtypes of another
    tree.

    Raises:
        ValueError: the structure or a shape differs.
        TypeError: a dtype differs.

    Example:
        >>> matching("jvp", "tangents", (np.zeros(2),), "primals", (np.ones(2),))
        [array([0., 0.])]
    """
    found = checked(function, argument, tree)
    places, expected = [[place for place, _ in leaves(t)] for t in (tree, like)]
    if places != expected:
        raise ValueError(
            f"{function}: {argument} must have the structure of {of}: leaves {expected}, not "
            f"{places}"
        )
    for place, leaf, (_, other) in zip(places, found, leaves(like)):
        if leaf.shape != other.shape:
            raise ValueError(
                f"{function}: {argument}{place} must have the shape of {of}{place}: "
                f"{other.shape}, not {leaf.shape}"
            )
        if leaf.dtype != other.dtype:
            raise TypeError(
                f"{function}: {argument}{place} must have the dtype of {of}{place}: "
                f"{other.dtype}, not {leaf.dtype}"
            )
    return found


def mapped(function: Callable[..., Any], tree: object) -> Any:
    """Returns a tree with each leaf replaced by the function's result for the leaf.

    Example:
        >>> mapped(abs, (-1, [2]))
        (1, [2])
    """
    return rebuilt(tree, [function(leaf) for _, leaf in leaves(tree)])
