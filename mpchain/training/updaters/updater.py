"""The interface between a trainer and the iterations that it repeats."""

from typing import Any

import numpy as np

from mpchain.serializer import AbstractSerializer


class Updater:
    """Base of updaters.

    Attributes:
        iteration: number of completed updates.
        epoch: number of completed sweeps over the training data.
        epoch_detail: number of completed sweeps, with the fraction of the current sweep.

    Example:
        >>> class Countdown(training.Updater):
        ...     iteration = 0
        ...     def update(self) -> None:
        ...         self.iteration += 1
        ...         print(3 - self.iteration)
        >>> Countdown().update()
        2
    """

    iteration: int
    epoch: int
    epoch_detail: float

    def connect_trainer(self, trainer: Any) -> None:
        """Connects the updater to a trainer; called once by the trainer that will run the
        updater."""

    def update(self) -> None:
        """Runs one iteration."""
        raise NotImplementedError(f"{type(self).__name__} does not implement update")

    def finalize(self) -> None:
        """Releases resources; called once, when training has ended."""

    def get_optimizer(self, name: str) -> Any:
        """Returns the optimizer with a name."""
        raise NotImplementedError(f"{type(self).__name__} does not implement get_optimizer")

    def get_all_optimizers(self) -> dict[str, Any]:
        """Returns a dict from name to each optimizer."""
        raise NotImplementedError(f"{type(self).__name__} does not implement get_all_optimizers")

    def agree_on_signal(self, number: int | None) -> int | None:
        """Returns the signal that ends training; called before each iteration, and after the last.

        An updater of several processes overrides this method so that all processes end after the
        same iteration, although they receive a signal at different times. It may return the signal
        in the iteration after the one in which it got the signal.

        Args:
            number: the signal (SIGINT or SIGTERM) that this process has received, or None.

        Returns:
            The signal that ends training now, the same in all processes; None to continue.
        """
        return number

    def rank_times(self) -> np.ndarray | None:
        """Returns the seconds that each rank has worked, and has waited for other ranks, so far.

        Returns:
            Seconds, a float64 array of shape (2, number of ranks), the same on all ranks; None in
            one process.
        """
        return None

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the state of the updater and of the objects that it holds."""
        raise NotImplementedError(f"{type(self).__name__} does not implement serialize")
