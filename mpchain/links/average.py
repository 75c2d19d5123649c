"""Averages of a link's parameters over the course of training."""

from collections.abc import Callable
from typing import Any

from mpchain.link import Chain, Link
from mpchain.parameter_tree import copy_persistents
from mpchain.serializer import AbstractSerializer


class _Following:
    """A trainer extension that updates an average, and saves the average with the trainer."""

    trigger = (1, "iteration")
    # With this priority, the extension runs before evaluators and writers.
    priority = 400
    default_name = "ExponentialMovingAverage"

    def __init__(self, average: "ExponentialMovingAverage") -> None:
        self.average = average

    def __call__(self, trainer: Any) -> None:
        self.average.update()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the average."""
        self.average.serialize(serializer)


class ExponentialMovingAverage(Chain):
    """A copy of a link, for evaluation, whose parameters are moving averages of the link's
    parameters.

    After each update of the optimizer, :meth:`update` moves each parameter of the copy by
    (1 - decay) of its distance to the original, and by more at first with ``warm_up``. Persistent
    values, such as the statistics of batch normalization, are copied. The optimizer's target is the
    original link, which does not contain the average; :meth:`extension` makes a trainer update the
    average and save it in snapshots.

        >>> model = L.Linear(3, 2)
        >>> average = L.ExponentialMovingAverage(model, decay=0.99)
        >>> extension = average.extension()  # for trainer.extend
        >>> average(np.ones((5, 3), np.float32)).shape
        (5, 2)

    Args:
        link: the link to average. The average of an uninitialized parameter starts when the
            parameter is initialized.
        decay: weight of the average's old value at each update.
        warm_up: whether to correct the bias towards the initial values. The average is then the
            mean of the values at all updates so far, weighted with powers of ``decay`` scaled to
            sum to one. If False, the average starts from the initial values.

    Attributes:
        average (Link): the copy; calls are forwarded to it.
        n_updates (int): the number of updates so far, persistent.

    Raises:
        ValueError: ``decay`` is below 0, or not below 1.

    See B. T. Polyak and A. B. Juditsky, Acceleration of stochastic approximation by averaging,
    1992; for the correction, D. P. Kingma and J. Ba, Adam, ICLR 2015, section 3.
    """

    _printable = ("decay", "warm_up")

    def __init__(self, link: Link, decay: float = 0.999, warm_up: bool = True) -> None:
        super().__init__()
        if not 0 <= decay < 1:
            raise ValueError(
                f"ExponentialMovingAverage: decay must be at least 0 and below 1, but is {decay}"
            )
        self.decay = decay
        self.warm_up = warm_up
        self.add_persistent("n_updates", 0)
        with self.init_scope():
            self.average = link.copy("copy")
        self.average.cleargrads()
        # The link is assigned outside of init_scope, so that it is not a child.
        self._followed = link

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the copy of the link."""
        return self.average(*args, **kwargs)

    def update(self) -> None:
        """Updates the averages; call it after each update of the link's parameters."""
        self.n_updates += 1
        rate = 1 - self.decay
        if self.warm_up:
            rate /= 1 - self.decay**self.n_updates
        for mine, other in self.average.paired_with(self._followed, "update"):
            for name in mine._params:
                _move(getattr(mine, name), getattr(other, name), rate)
            copy_persistents(mine, other)

    def extension(self) -> Callable[[Any], None]:
        """Returns an extension that calls :meth:`update` after each iteration of a trainer.

        The trainer also saves and restores the average with its snapshots.
        """
        return _Following(self)


def _move(average, param, rate):
    """Moves an average towards a parameter by the fraction ``rate`` of their distance."""
    if not param.is_initialized:
        return
    if not average.is_initialized or rate == 1:
        average.array = average.device.send(param.array).astype(average.dtype, copy=True)
        return
    with average.device.create_context():
        distance = average.device.send(param.array) - average.array
        average.array += distance * average.dtype.type(rate)
