"""Extensions: what a trainer calls beside the updates."""

PRIORITY_WRITER = 300
"""Priority of extensions that write values to the observation."""

PRIORITY_EDITOR = 200
"""Priority of extensions that edit values of the observation."""

PRIORITY_READER = 100
"""Priority of extensions that only read the observation, or do not use it."""


class Extension:
    """Base of extensions that keep a state or take part in the start and the end of training.

    A plain function of the trainer is an extension, too; see :func:`make_extension`.

    Attributes:
        trigger: when to call the extension: ``(period, unit)``, or a function of the trainer.
        priority: extensions of one iteration are called by descending priority.
        name: name in the trainer; set by :meth:`Trainer.extend`.
    """

    trigger = (1, "iteration")
    priority = PRIORITY_READER
    name = None

    @property
    def default_name(self) -> str:
        """Name in the trainer unless another is given: the name of the class."""
        return type(self).__name__

    def __call__(self, trainer):
        """Called after each iteration at which the trigger fires."""
        raise NotImplementedError(f"{type(self).__name__} does not implement __call__")

    def initialize(self, trainer):
        """Called once, before the training loop starts."""

    def finalize(self):
        """Called once, after the training loop has ended, for whatever reason."""

    def on_error(self, trainer, exc, tb):
        """Called when the training loop was left by an exception, before :meth:`finalize`.

        Args:
            trainer: the trainer.
            exc: the exception, ``KeyboardInterrupt`` and ``SystemExit`` included.
            tb: its traceback.
        """

    def serialize(self, serializer):
        """Saves or restores the state of the extension."""


def make_extension(
    trigger=None, default_name=None, priority=None, finalizer=None, initializer=None, on_error=None
):
    """Decorator that gives a function of the trainer the attributes of an extension.

    Args:
        trigger: default trigger; None means every iteration.
        default_name: default name in the trainer; None means the function's name.
        priority: default priority; None means ``PRIORITY_READER``.
        finalizer: function of no argument, called when training has ended.
        initializer: function of the trainer, called before training starts.
        on_error: function of ``(trainer, exc, tb)``, called when training fails.

    Example:
        >>> @make_extension(trigger=(10, "epoch"))
        ... def drop_lr(trainer):
        ...     trainer.updater.get_optimizer("main").lr *= 0.1
    """

    def decorate(function):
        function.trigger = Extension.trigger if trigger is None else trigger
        function.priority = Extension.priority if priority is None else priority
        function.default_name = default_name or function.__name__
        for name, hook in [
            ("finalize", finalizer),
            ("initialize", initializer),
            ("on_error", on_error),
        ]:
            if hook is not None:
                setattr(function, name, hook)
        return function

    return decorate
