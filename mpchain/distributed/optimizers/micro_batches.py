"""Cutting the arguments of a loss function into micro-shards."""

import functools
from collections.abc import Callable
from typing import Any

from mpchain.distributed.communicators.arrays import partition
from mpchain.parameter_tree import is_array
from mpchain.variable import Parameter, Variable


def cut(
    lossfun: Callable[..., Variable],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    n_samples: int | None,
    n_parts: int,
) -> list[tuple[int, Callable[[], Variable] | None]]:
    """Cuts the batch among the arguments of a loss function into parts.

    Every array, Variable and list among the arguments, also within tuples and dicts, is a batch and
    is cut along its first axis. All others are passed on as they are.

    Args:
        lossfun: the loss function.
        args, kwargs: its arguments.
        n_samples: the number of samples; None means the length of the batches.
        n_parts: the number of parts; the first ones may have one sample more.

    Returns:
        Pairs of a number of samples, which may be 0, and a function without arguments.

    Raises:
        ValueError: there is no batch, lengths differ, or a Variable was computed outside.

    Example:
        >>> [(n, part()) for n, part in cut(sum, ([1, 2, 3],), {}, None, 2)]
        [(2, 3), (1, 3)]
    """
    if n_samples == 0:
        return [(0, None)] * n_parts
    named = {f"argument {i}": value for i, value in enumerate(args)} | kwargs
    lengths = {
        f"{name}{place}": len(batch)
        for name, value in named.items()
        for place, batch in _batches(value)
    }
    held = ", ".join(f"{name}: {length}" for name, length in lengths.items())
    if len({n_samples, *lengths.values()} - {None}) != 1 or not lengths:
        known = "" if n_samples is None else f", for {n_samples} samples"
        raise ValueError(
            "MultiNodeOptimizer.update: a reproducible communicator cuts the arrays, Variables and "
            "lists among the loss function's arguments into micro-shards, so there must be some, "
            f"each as long as the batch; lengths are: {held or 'none'}{known}. Pass the batch as "
            "arguments, and bind what must stay whole by functools.partial"
        )
    n_samples = next(iter(lengths.values()))
    bounds = [slice(*partition(n_samples, i, n_parts)) for i in range(n_parts)]
    return [
        (p.stop - p.start, functools.partial(lossfun, *_part_of(args, p), **_part_of(kwargs, p)))
        for p in bounds
    ]


def _is_batch(value):
    if isinstance(value, Parameter):
        return False
    return isinstance(value, list) or (
        (is_array(value) or isinstance(value, Variable)) and value.ndim > 0
    )


def _batches(value):
    """Yields the place of each batch within an argument, and the batch."""
    if isinstance(value, (tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            for place, batch in _batches(item):
                yield f"[{key!r}]{place}", batch
    elif _is_batch(value):
        if isinstance(value, Variable) and value.creator_node is not None:
            raise ValueError(
                "MultiNodeOptimizer.update: with a reproducible communicator the loss function "
                "cannot take a Variable that was computed before it, from all of this rank's "
                "samples together: compute it within the loss function"
            )
        yield "", value


def _part_of(value, part):
    if isinstance(value, tuple):
        items = [_part_of(item, part) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: _part_of(item, part) for key, item in value.items()}
    return value[part] if _is_batch(value) else value
