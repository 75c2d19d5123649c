"""The extension that plots reported values."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from mpchain.serializer import AbstractSerializer
from mpchain.training.extensions.figures import FigureWriter
from mpchain.training.extensions.log_report import AwaitedKeys
from mpchain.training.states import serialize_part_if_stored
from mpchain.training.trainer import Trainer
from mpchain.training.triggers.interval import IntervalMeans, TriggerLike


class PlotReport(FigureWriter):
    """Plots means of reported values against the progress of training to an image file.

    The image is drawn with matplotlib (``pip install 'mpchain[plot]'``), with any backend; without
    matplotlib the extension only warns. The file is replaced as a whole after an interval and at
    the end of training, but drawing takes at most a hundredth of the training time. A resumed run
    keeps the earlier points. At the end of training a warning lists the names that were never
    reported. The y axis is named after the last parts of the names, such as ``loss``. The file of
    an earlier run is kept, and other jobs are refused, as by :class:`LogReport`.

    Args:
        y_keys: name of the value to plot, or a list of names, each of which gets a curve.
        x_key: ``'iteration'``, ``'epoch'``, or the name of a value.
        trigger: the interval over which values are averaged; see :func:`get_trigger`.
        postprocess: function of ``(figure, axes, summary)`` that is called before the image is
            written; ``summary`` is the dict of the latest means.
        filename: name of the file in the trainer's folder; its ending is the format (PNG, SVG,
            PDF). ``file_name`` is another name of this argument.
        marker: matplotlib's marker of the points; None draws only lines.
        grid: whether to draw a grid.

    Example:
        >>> trainer = testing.get_trainer_with_mock_updater()
        >>> keys = ["main/loss", "validation/main/loss"]
        >>> trainer.extend(extensions.PlotReport(keys, "epoch", filename="loss.png"))
    """

    def __init__(
        self,
        y_keys: str | Sequence[str],
        x_key: str = "iteration",
        trigger: TriggerLike = (1, "epoch"),
        postprocess: Callable[[Any, Any, dict[str, float]], Any] | None = None,
        filename: str = "plot.png",
        marker: str | None = "x",
        grid: bool = True,
        *,
        file_name: str | None = None,
    ) -> None:
        super().__init__(filename if file_name is None else file_name)
        self._y_keys = [y_keys] if isinstance(y_keys, str) else list(y_keys)
        self._x_key = x_key
        self._postprocess, self._marker, self._grid = postprocess, marker, grid
        self._points = {key: [] for key in self._y_keys}
        keys = [*self._y_keys, x_key]
        self._means = IntervalMeans(trigger, keys)
        self._awaited = AwaitedKeys(type(self).__name__, keys)

    def __call__(self, trainer: Trainer) -> None:
        """Adds the values of this iteration; plots if the interval ends here."""
        self._awaited.see(trainer.observation, is_complete=False)
        means = self._means(trainer)
        if means is None:
            return
        summary = {key: float(mean) for key, mean in means.items()}
        summary |= {"epoch": trainer.updater.epoch, "iteration": trainer.updater.iteration}
        self._awaited.see(summary)
        for key in self._y_keys:
            if key in summary and self._x_key in summary:
                self._points[key].append([summary[self._x_key], summary[key]])
        if self.available() and any(self._points.values()):
            self.draw(lambda: self.write(self._draw(summary), trainer.out))

    def finalize(self) -> None:
        """Draws the values that were skipped to save time, allows other jobs to write the file, and
        warns about names that were never reported."""
        super().finalize()
        self._awaited.warn()

    def _draw(self, summary):
        figure = self.new_figure()
        # The legend distinguishes names such as "main/loss" and "validation/main/loss".
        names = dict.fromkeys(key.rpartition("/")[2] for key in self._y_keys)
        y_name = ", ".join(names)
        title = f"{y_name} by {self._x_key}"
        axes = figure.add_subplot(xlabel=self._x_key, ylabel=y_name, title=title)
        axes.grid(self._grid)
        for key, points in self._points.items():
            if points:
                axes.plot(*zip(*points, strict=True), marker=self._marker, label=key)
        if self._postprocess is not None:
            self._postprocess(figure, axes, summary)
        axes.legend(bbox_to_anchor=(1.02, 1), loc="upper left", borderaxespad=0)
        return figure

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the points and the interval."""
        self._means.serialize(serializer, serialize_part_if_stored)
        points = json.loads(serializer(f"_plot_{self.filename}", json.dumps(self._points)))
        self._points = {key: points.get(key, []) for key in self._y_keys}
