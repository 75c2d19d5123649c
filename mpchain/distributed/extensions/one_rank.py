"""Extensions that one rank alone runs."""

from mpchain.training import Extension


def only_on_rank_0(extension, comm):
    """Returns the extension on rank 0, and on other ranks one that does nothing.

    It is for what prints, plots or saves: ``trainer.extend(only_on_rank_0(LogReport(), comm))``.
    Nothing that communicates may be among them, since the other ranks do not take part.

    Args:
        extension: an :class:`mpchain.training.Extension` or a function of the trainer.
        comm (Communicator): the ranks.
    """
    return extension if comm.rank == 0 else Absent(extension)


class Absent(Extension):
    """Stands for an extension that another rank runs: it has its name, and does nothing.

    Args:
        extension: the extension.
    """

    trigger = None
    default_name = None

    def __init__(self, extension):
        names = (getattr(extension, key, None) for key in ("name", "default_name", "__name__"))
        self.default_name = next(filter(None, names), None)
        self.trigger = getattr(extension, "trigger", Extension.trigger)

    def __call__(self, trainer):
        """Does nothing."""
