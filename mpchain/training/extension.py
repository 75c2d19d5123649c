"""Extensions, which a trainer calls between updates."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mpchain.serializer import AbstractSerializer
from mpchain.training.triggers.interval import TriggerLike

if TYPE_CHECKING:
    from mpchain.training.trainer import Trainer

PRIORITY_WRITER = 300
"""The priority of extensions that write values to the observation."""

PRIORITY_EDITOR = 200
"""The priority of extensions that edit values of the observation."""

PRIORITY_READER = 100
"""The priority of extensions that only read the observation, or do not use it."""


class Extension:
    """Base of extensions that keep a state or act at the start and the end of training.

    A plain function of the trainer is an extension, too; see :func:`make_extension`.

    Attributes:
        trigger: determines when the extension is called: ``(period, unit)``, or a function of the
            trainer that returns a bool.
        priority: a number; extensions of one iteration are called by descending priority.
        name: the name of the extension in the trainer, which :meth:`Trainer.extend` sets.
        is_report: whether the extension only shows or writes data that all ranks have. A trainer
            whose optimizer averages over several ranks then calls it on rank 0 only; its trigger is
            called on all ranks. The extension must not communicate.

    Example:
        >>> class Shout(training.Extension):
        ...     trigger = (2, "iteration")
        ...     def __call__(self, trainer):
        ...         print(f"iteration {trainer.updater.iteration}!")
        >>> trainer = testing.get_trainer_with_mock_updater((2, "iteration"))
        >>> trainer.extend(Shout())
    """

    trigger: Any = (1, "iteration")
    priority: float = PRIORITY_READER
    name: str | None = None
    is_report: bool = False

    default_name: Any = property(lambda self: type(self).__name__)
    """The default name of the extension in the trainer, which is the name of the class."""

    def __call__(self, trainer: "Trainer") -> Any:
        """Runs the extension; called after each iteration at which the trigger fires."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def initialize(self, trainer: "Trainer") -> None:
        """Prepares the extension; called once, before the training loop starts."""

    def on_ranks_lost(self, trainer: "Trainer") -> None:
        """Prepares for the restoring of an earlier iteration; called when ranks were lost.

        The extension must abandon operations that wait for other ranks; the state is restored after
        that. On a rank that has become rank 0, reports (:attr:`is_report`) are initialized instead.
        """

    def finalize(self) -> None:
        """Ends the extension; called once, after the training loop has ended, even by an
        exception."""

    def on_error(self, trainer: "Trainer", exc: BaseException, tb: TracebackType | None) -> None:
        """Handles an exception that has ended the training loop; called before :meth:`finalize`.

        Args:
            trainer: the trainer.
            exc: the exception, such as ``KeyboardInterrupt`` or ``SystemExit``.
            tb: the traceback of the exception.
        """

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the state of the extension."""


def make_extension(
    trigger: TriggerLike = None,
    default_name: str | None = None,
    priority: float | None = None,
    finalizer: Callable[[], Any] | None = None,
    initializer: Callable[["Trainer"], Any] | None = None,
    on_error: Callable[["Trainer", BaseException, Any], Any] | None = None,
) -> Callable[[Any], Any]:
    """Returns a decorator that gives a function of the trainer the attributes of an extension.

    Args:
        trigger: default trigger; None means every iteration.
        default_name: default name in the trainer; None means the function's name.
        priority: default priority; None means ``PRIORITY_READER``.
        finalizer: function of no argument that is called when training has ended.
        initializer: function of the trainer that is called before training starts.
        on_error: function of ``(trainer, exc, tb)`` that is called when an exception ends training.

    Example:
        >>> @make_extension(trigger=(10, "epoch"))
        ... def drop_lr(trainer):
        ...     trainer.updater.get_optimizer("main").lr *= 0.1
    """

    def decorate(function):
        function.trigger = Extension.trigger if trigger is None else trigger
        function.priority = Extension.priority if priority is None else priority
        function.default_name = default_name or function.__name__
        function.finalize, function.initialize = finalizer, initializer
        function.on_error = on_error
        return function

    return decorate
