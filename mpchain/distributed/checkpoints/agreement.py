"""Raises an error of one rank on all ranks."""

from collections.abc import Callable
from typing import Any

from mpchain.distributed.communicators import Communicator
from mpchain.serializer import SerializationError


def on_all_ranks(
    comm: Communicator, function: str, action: Callable, *args: Any, advice: str = ""
) -> list:
    """Calls ``action(*args)`` on every rank and gathers the results; collective.

    Args:
        comm: the communicator of the ranks.
        function: the public function, for messages.
        action: function that returns a small object.
        advice: advice about an error of the file system, for its message.

    Returns:
        A list of the results of ``action``, by rank.

    Raises:
        OSError: raised on all ranks, with the same kind, if a rank had one; the message names that
            rank and the file.
        SerializationError: raised on all ranks, if a rank had one.

    Example:
        >>> on_all_ranks(comm, "load_checkpoint", max, 2, 3)
        [3]
    """
    result = own = trouble = None
    try:
        result = action(*args)
    except OSError as error:
        own = error
        trouble = error.errno, error.strerror or str(error), error.filename
    except SerializationError as error:
        own, trouble = error, str(error)
    outcomes = comm.allgather_obj((result, trouble))
    failed = [(rank, trouble) for rank, (_, trouble) in enumerate(outcomes) if trouble is not None]
    if not failed:
        return [result for result, _ in outcomes]
    system = [(rank, trouble) for rank, trouble in failed if not isinstance(trouble, str)]
    if system:
        number, _, file = system[0][1]
        texts = "; ".join(f"{text} on rank {rank}" for rank, (_, text, _) in system)
        message = f"{function}: {texts}{'; ' * bool(advice)}{advice}"
        raise (OSError(message) if number is None else OSError(number, message, file)) from own
    if own is not None:
        raise own
    raise SerializationError(f"{failed[0][1]} (on rank {failed[0][0]})")
