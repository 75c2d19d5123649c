"""Errors in reading and writing, raised on all ranks where one rank has them."""

from mpchain.serializer import SerializationError


def on_all_ranks(comm, function, action, *args, advice=""):
    """Calls ``action(*args)`` on every rank; collective.

    Args:
        comm (Communicator): the ranks.
        function (str): the public function, for messages.
        action: function that returns a small object.
        advice (str): what to do about an error of the file system, for its message.

    Returns:
        list: what ``action`` returned on each rank.

    Raises:
        OSError: on all ranks, of the same kind, where some rank had one; the message names that
            rank and the file.
        SerializationError: on all ranks, where some rank had one.
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
