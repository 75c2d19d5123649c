"""Extensions that only one rank runs."""

from typing import Any

from mpchain.distributed.communicators import Communicator
from mpchain.training import Extension, Trainer


def only_on_rank_0(extension: object, comm: Communicator) -> Any:
    """Returns the extension on rank 0, and on other ranks an extension that does nothing.

    Use it for extensions that print, plot or save. The extension must not communicate, since the
    other ranks do not take part.

    Args:
        extension: an :class:`mpchain.training.Extension` or a function of the trainer.
        comm: the communicator of the ranks.

    Example:
        >>> from mpchain.distributed.extensions import only_on_rank_0
        >>> type(only_on_rank_0(extensions.LogReport(), comm)).__name__
        'LogReport'
    """
    return extension if comm.rank == 0 else Absent(extension)


class Absent(Extension):
    """Stands for an extension that runs on another rank: it has the same name, and does nothing.

    Args:
        extension: the extension.

    Example:
        >>> Absent(extensions.LogReport()).default_name
        'LogReport'
    """

    trigger = default_name = None

    def __init__(self, extension: object):
        names = (getattr(extension, key, None) for key in ("name", "default_name", "__name__"))
        self.default_name = next(filter(None, names), None)
        self.trigger = getattr(extension, "trigger", Extension.trigger)

    def __call__(self, trainer: Trainer) -> None:
        """Does nothing."""
