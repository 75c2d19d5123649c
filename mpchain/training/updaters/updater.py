"""The interface between a trainer and what it repeats."""


class Updater:
    """Base of updaters.

    Attributes:
        iteration: number of updates done.
        epoch: number of sweeps over the training data done.
        epoch_detail: the same with the fraction of the current sweep.
    """

    def connect_trainer(self, trainer):
        """Called once by the trainer that will run the updater."""

    def update(self):
        """Does one iteration."""
        raise NotImplementedError(f"{type(self).__name__} does not implement update")

    def finalize(self):
        """Called once when training has ended, to release what the updater holds."""

    def get_optimizer(self, name):
        """Returns the optimizer of that name."""
        raise NotImplementedError(f"{type(self).__name__} does not implement get_optimizer")

    def get_all_optimizers(self):
        """Returns a dict of all optimizers by name."""
        raise NotImplementedError(f"{type(self).__name__} does not implement get_all_optimizers")

    def agree_on_signal(self, number):
        """Called before each iteration, and after the last: returns the signal that ends training.

        An updater of several processes overrides it so that all of them end after the same
        iteration, although they note a signal at different times.

        Args:
            number: the signal (SIGINT or SIGTERM) that this process has noted; None for none.

        Returns:
            The signal by which training ends now, the same in all processes; None to go on.
        """
        return number

    def serialize(self, serializer):
        """Saves or restores the state of the updater and of all that it holds."""
        raise NotImplementedError(f"{type(self).__name__} does not implement serialize")
