"""The progress bar of all ranks."""

import io
import time
from typing import TextIO

import numpy as np

from mpchain.distributed.communicators import Communicator
from mpchain.training import Trainer
from mpchain.training.extensions import ProgressBar


class MultiNodeProgressBar(ProgressBar):
    """Shows progress on rank 0, with the number of samples per second on all ranks together.

    Add the extension on all ranks.

    Args:
        comm: the communicator of the ranks.
        training_length, update_interval, bar_length, out: see
            :class:`mpchain.training.extensions.ProgressBar`.

    Example:
        >>> from mpchain.distributed.extensions import MultiNodeProgressBar
        >>> MultiNodeProgressBar(comm, update_interval=10).default_name
        'ProgressBar'
    """

    default_name = "ProgressBar"
    is_report = False  # all ranks must take part to count their samples

    def __init__(
        self,
        comm: Communicator,
        training_length: tuple[float, str] | None = None,
        update_interval: int = 100,
        bar_length: int = 50,
        out: TextIO | None = None,
    ):
        out = out if comm.rank == 0 else io.StringIO()
        super().__init__(training_length, update_interval, bar_length, out)
        self._comm = comm
        self._n_samples = 0
        self._since = None
        self._is_over = False

    def __call__(self, trainer: Trainer) -> None:
        """Counts this rank's samples and shows the progress, if the update interval has passed."""
        optimizer = trainer.updater.get_all_optimizers().get("main")
        if optimizer is not None:
            self._n_samples += optimizer.n_samples or 0
        super().__call__(trainer)

    def _describe_speed(self):
        texts = super()._describe_speed()
        if self._is_over:  # after an exception, other ranks may not take part in a collective
            return texts
        now, before = time.monotonic(), self._since
        n_samples = self._comm.allreduce(np.array(self._n_samples))
        self._since, self._n_samples = now, 0
        if before is None or n_samples == 0 or now <= before:
            return texts
        return [f"{n_samples / (now - before):.0f} samples/s on {self._comm.size} ranks", *texts]

    def finalize(self) -> None:
        """Shows the last progress and ends the bar."""
        self._is_over = True
        super().finalize()
