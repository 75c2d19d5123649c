"""The progress bar of all ranks."""

import io
import time

import numpy as np

from mpchain.training.extensions import ProgressBar


class MultiNodeProgressBar(ProgressBar):
    """Shows, on rank 0, progress with the number of samples that all ranks together do in a second.

    To be added on all ranks.

    Args:
        comm (Communicator): the ranks.
        training_length, update_interval, bar_length, out: see
            :class:`mpchain.training.extensions.ProgressBar`.
    """

    default_name = "ProgressBar"

    def __init__(self, comm, training_length=None, update_interval=100, bar_length=50, out=None):
        out = out if comm.rank == 0 else io.StringIO()
        super().__init__(training_length, update_interval, bar_length, out)
        self._comm = comm
        self._n_samples = 0
        self._since = None
        self._is_over = False

    def __call__(self, trainer):
        """Counts this rank's samples and shows the progress, if the update interval has passed."""
        optimizer = trainer.updater.get_all_optimizers().get("main")
        self._n_samples += getattr(optimizer, "n_samples", None) or 0
        super().__call__(trainer)

    def _describe_speed(self):
        texts = super()._describe_speed()
        if self._is_over:  # by an exception, maybe: then other ranks are not here
            return texts
        now, before = time.monotonic(), self._since
        n_samples = self._comm.allreduce(np.array(self._n_samples))
        self._since, self._n_samples = now, 0
        if before is None or n_samples == 0 or now <= before:
            return texts
        return [f"{n_samples / (now - before):.0f} samples/s on {self._comm.size} ranks", *texts]

    def finalize(self):
        """Shows the last progress and ends the bar."""
        self._is_over = True
        super().finalize()
