"""Random numbers that are the same on all ranks."""

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mpchain import optimizer_hooks
from mpchain.distributed.communicators import Communicator
from mpchain.optimizer import Optimizer
from mpchain.variable import Parameter

# These hooks draw no random numbers, but their subclasses may.
_DRAW_NOTHING = {
    optimizer_hooks.WeightDecay,
    optimizer_hooks.Lasso,
    optimizer_hooks.GradientHardClipping,
    optimizer_hooks.GradientClipping,
    optimizer_hooks.GradientLARS,
}

_update_rule, _hooks = map(operator.attrgetter, ("update_rule", "_hooks"))


def may_draw(
    optimizer: Optimizer, params: Iterable[Parameter], own_hook: Callable[..., Any] | None = None
) -> bool:
    """Returns whether hooks may draw random numbers, which must be the same on all ranks.

    Args:
        optimizer: the optimizer.
        params: the parameters; their update rules may have hooks, too.
        own_hook: a hook that is known to draw no random numbers.

    Example:
        >>> optimizer = optimizers.SGD().setup(L.Linear(3, 2))
        >>> optimizer.add_hook(mpchain.optimizer_hooks.WeightDecay(0.1))
        >>> may_draw(optimizer, optimizer.target.params())
        False
    """
    for hook in all_hooks(optimizer, params):
        if type(hook) not in _DRAW_NOTHING and hook != own_hook:
            return True
    return False


def all_hooks(optimizer: Optimizer, params: Iterable[Parameter]) -> list[Callable[..., Any]]:
    """Returns the hooks of an optimizer and of the update rules of parameters.

    Example:
        >>> optimizer = optimizers.SGD().setup(L.Linear(3, 2))
        >>> optimizer.add_hook(print)
        >>> all_hooks(optimizer, optimizer.target.params())
        [<built-in function print>]
    """
    rules = filter(None, map(_update_rule, params))
    registers = filter(None, map(_hooks, [optimizer, *rules]))
    return [hook for register in registers for _, hook in register.values()]


@contextlib.contextmanager
def random_numbers_of_rank_0(comm: Communicator, are_equal: bool = False) -> Iterator[None]:
    """Context manager: within it, NumPy's global generator yields rank 0's numbers on all ranks.

    Afterwards the generator continues from there on rank 0, and on ranks whose generator had the
    same state as rank 0's before. On the other ranks the previous state is restored, so that their
    other draws (dropout) stay different.

    Args:
        comm: the communicator of the ranks; all ranks must enter the block.
        are_equal: whether all ranks know that their states are equal.

    Example:
        >>> with random_numbers_of_rank_0(comm):
        ...     len(set(comm.allgather_obj(np.random.rand())))
        1
    """
    if are_equal:
        yield
        return
    state = np.random.get_state()
    of_rank_0 = comm.bcast_obj(state)
    np.random.set_state(of_rank_0)
    try:
        yield
    finally:
        if not all(map(np.array_equal, state, of_rank_0)):
            np.random.set_state(state)
