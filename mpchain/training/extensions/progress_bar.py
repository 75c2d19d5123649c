"""The extension that shows how far training is."""

import collections
import datetime
import time

from mpchain.training.extension import Extension
from mpchain.training.progress import open_display
from mpchain.training.triggers.interval import progress, training_length


class ProgressBar(Extension):
    """Shows progress, throughput and the time that remains.

    On a terminal it is a tqdm bar (``pip install tqdm``); without tqdm, or where the stream is no
    terminal, it is a line for each twentieth of the training.

    Args:
        training_length: ``(length, unit)``; None means what the trainer's stop trigger says.
        update_interval: number of iterations between two updates of the bar.
        bar_length: length of the bar in characters.
        out: stream; None means standard output.
    """

    def __init__(self, training_length=None, update_interval=100, bar_length=50, out=None):
        self._training_length = training_length
        self._update_interval = update_interval
        self._bar_length = bar_length
        self._out = out
        self._display = None
        self._shown_iteration = None
        # Throughput is that of the latest updates: the first ones are slow in many programs.
        self._times = collections.deque(maxlen=100)
        self._updater = None

    def __call__(self, trainer):
        """Shows the progress, if the update interval has passed."""
        if self._display is None:
            self._start(trainer)
        iteration = self._updater.iteration
        if iteration - self._shown_iteration >= self._update_interval:
            self._show()

    def _start(self, trainer):
        self._updater = trainer.updater
        length = self._training_length or training_length(trainer.stop_trigger)
        self._total, self._unit = length or (None, "iteration")
        self._display = open_display(self._total, self._out, self._bar_length)
        self._show()

    def _show(self):
        updater = self._updater
        done = progress(updater, self._unit)
        self._shown_iteration = updater.iteration
        self._times.append((time.monotonic(), updater.iteration, done))
        texts = [f"epoch {updater.epoch_detail:.2f}, {updater.iteration} it"]
        self._display.show(done, ", ".join(texts + self._describe_speed()))

    def _describe_speed(self):
        (time_0, iteration_0, done_0), (time_1, iteration_1, done_1) = (
            self._times[0],
            self._times[-1],
        )
        seconds = time_1 - time_0
        if seconds <= 0 or done_1 <= done_0:
            return []
        rate = (iteration_1 - iteration_0) / seconds
        texts = [f"{rate:.{0 if rate >= 100 else 2}f} it/s"]
        if self._total:
            left = max(self._total - done_1, 0) * seconds / (done_1 - done_0)
            texts.append(f"{datetime.timedelta(seconds=round(left))} left")
        return texts

    def finalize(self):
        """Shows the last progress and ends the bar."""
        if self._display is not None:
            if self._updater.iteration != self._shown_iteration:
                self._show()
            self._display.close()
