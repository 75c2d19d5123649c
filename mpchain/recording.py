"""Where a recording of a step listens: the slots of the thread's recorder and graph.

What computes by other means than NumPy's functions, or acts on more than arrays, asks here whether
a recorder is at work (see :mod:`mpchain.captured`): kernels, draws, reports, optimizers' updates.
"""

import threading
from collections.abc import Callable
from typing import Any


class _Current(threading.local):
    recorder: Any = None
    graph: Any = None  # the graph of a GPU that is being captured


current = _Current()


def outside(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function that acts on more than arrays; replays of a recording call it again.

    Args:
        function: a method, called with ``arguments``, whose result nobody reads.

    Example:
        >>> outside(print, "updated")
        updated
    """
    recorder = current.recorder
    return function(*arguments) if recorder is None else recorder.call_again(function, arguments)
