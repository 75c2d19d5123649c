"""The extension that shows the progress of training."""

import collections
import datetime
import time
from typing import Any, TextIO

from mpchain.training.extension import Extension
from mpchain.training.extensions.log_followers import PrintReport
from mpchain.training.progress import ProgressLines, open_display
from mpchain.training.trainer import Trainer
from mpchain.training.triggers import interval


class ProgressBar(Extension):
    """Shows progress, throughput and the remaining time.

    On a terminal, also under mpchain-launch, the extension shows a tqdm bar (``pip install tqdm``).
    Without tqdm, or if the stream is not a terminal, it prints a line for each twentieth of the
    training, and after a minute without one; but if there is a :class:`PrintReport`, a line every
    ten minutes, because lines break the table.

    Args:
        training_length: ``(length, unit)``; None means the length of the trainer's stop trigger.
        update_interval: number of iterations between two updates of the bar; None means an interval
            of 0.2 seconds.
        bar_length: length of the bar in characters.
        out: the stream to print to; None means standard output.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater((10, "iteration"))
        >>> trainer.extend(ProgressBar(update_interval=5))
        >>> trainer.run()
         10% epoch 0.10, 1 it
         60% epoch 0.60, 6 it...
        100% epoch 1.00, 10 it...
    """

    is_report = True

    def __init__(
        self,
        training_length: tuple[float, str] | None = None,
        update_interval: int | None = 100,
        bar_length: int = 50,
        out: TextIO | None = None,
    ) -> None:
        self._training_length = training_length
        self._update_interval = update_interval
        self._bar_length = bar_length
        self._out = out
        self._display: Any = None
        # Throughput is measured over the latest updates, because the first updates are often slow.
        self._times = collections.deque(maxlen=100)  # tuples (time, iteration, progress)

    def __call__(self, trainer: Trainer) -> None:
        """Shows the progress, if the update interval has passed."""
        if self._display is None:
            self._updater = trainer.updater
            length = self._training_length or interval.training_length(trainer.stop_trigger)
            self._total, self._unit = length or (None, "iteration")
            self._display = open_display(self._total, self._out, self._bar_length)
            if isinstance(self._display, ProgressLines) and _has_table(trainer):
                self._display = ProgressLines(self._total, self._out, n_lines=0, seconds=600)
            self._show()
        if self._is_due():
            self._show()

    def _is_due(self):
        if self._update_interval is None:
            return time.monotonic() - self._times[-1][0] >= 0.2
        return self._updater.iteration - self._times[-1][1] >= self._update_interval

    def _show(self):
        updater = self._updater
        done = interval.progress(updater, self._unit)
        self._times.append((time.monotonic(), updater.iteration, done))
        texts = [f"epoch {updater.epoch_detail:.2f}, {updater.iteration} it"]
        self._display.show(done, ", ".join(texts + self._describe_speed()))

    def _describe_speed(self):
        first, last = self._times[0], self._times[-1]
        seconds, n_iterations, done = (b - a for a, b in zip(first, last, strict=True))
        if seconds <= 0 or done <= 0:
            return []
        rate = n_iterations / seconds
        texts = [f"{rate:.{0 if rate >= 100 else 2}f} it/s"]
        if self._total:
            left = max(self._total - last[2], 0) * seconds / done
            texts.append(f"{datetime.timedelta(seconds=round(left))} left")
        return texts

    def finalize(self) -> None:
        """Shows the last progress and ends the bar."""
        if self._display is not None:
            if self._updater.iteration != self._times[-1][1]:
                self._show()
            self._display.close()


def _has_table(trainer):
    return any(isinstance(extension, PrintReport) for extension in trainer.extensions.values())
