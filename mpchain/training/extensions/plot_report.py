"""The extension that plots reported values."""

import json
import os

from mpchain.reporter import DictSummary
from mpchain.training.extension import Extension
from mpchain.training.extensions import figures
from mpchain.training.extensions.awaited_keys import AwaitedKeys
from mpchain.training.output_files import OutputFiles
from mpchain.training.states import serialize_part_if_stored
from mpchain.training.triggers import get_trigger


class PlotReport(Extension):
    """Plots means of reported values against the progress of training to an image file.

    The image is drawn with matplotlib (``pip install 'mpchain[plot]'``), whatever its backend;
    without it the extension only warns. The file is replaced as a whole after each interval, and
    goes on with the earlier points after a resume. Of a name that was never reported, a warning
    tells when training is over. The file of an earlier run is kept, and other jobs are refused, as
    :class:`LogReport` does it.

    Args:
        y_keys: name of the value to plot, or a list of names, one curve each.
        x_key: ``'iteration'``, ``'epoch'``, or the name of a value.
        trigger: the interval over which values are averaged; see :func:`get_trigger`.
        postprocess: function of ``(figure, axes, summary)``, called before the image is written;
            ``summary`` is the dict of the latest means.
        filename: name of the file in the trainer's folder; its ending says the format (PNG, SVG,
            PDF). ``file_name`` is another name of this argument.
        marker: matplotlib's marker of the points; None draws lines alone.
        grid: whether to draw a grid.
    """

    def __init__(
        self,
        y_keys,
        x_key="iteration",
        trigger=(1, "epoch"),
        postprocess=None,
        filename="plot.png",
        marker="x",
        grid=True,
        *,
        file_name=None,
    ):
        self._y_keys = [y_keys] if isinstance(y_keys, str) else list(y_keys)
        self._x_key = x_key
        self._trigger = get_trigger(trigger)
        self._postprocess = postprocess
        self._filename = filename if file_name is None else file_name
        self._marker = marker
        self._grid = grid
        self._points = {key: [] for key in self._y_keys}
        self._summary = DictSummary()
        self._awaited = AwaitedKeys(type(self).__name__, [*self._y_keys, x_key])
        self._files = OutputFiles(type(self).__name__, self._filename)
        if not self.available():
            figures.warn_unavailable(type(self).__name__)

    @staticmethod
    def available() -> bool:
        """Returns whether matplotlib is installed."""
        return figures.is_available()

    def initialize(self, trainer):
        """Makes sure that no other job writes the file."""
        if self.available():
            self._files.claim(trainer)

    def __call__(self, trainer):
        """Adds the values of this iteration; plots if the interval ends here."""
        keys = [*self._y_keys, self._x_key]
        observation = trainer.observation
        self._summary.add({key: observation[key] for key in keys if key in observation})
        self._awaited.see(observation, is_complete=False)
        if self._trigger(trainer):
            summary = self._take_means(trainer.updater)
            self._awaited.see(summary)
            for key in self._y_keys:
                if key in summary and self._x_key in summary:
                    self._points[key].append([summary[self._x_key], summary[key]])
            if self.available() and any(self._points.values()):
                self._draw(os.path.join(trainer.out, self._filename), summary)

    def finalize(self):
        """Warns of names that were never reported."""
        self._files.release()
        self._awaited.warn()

    def _take_means(self, updater):
        means = {key: float(mean) for key, mean in self._summary.compute_mean().items()}
        self._summary = DictSummary()
        return {**means, "epoch": updater.epoch, "iteration": updater.iteration}

    def _draw(self, path, summary):
        figure = figures.new_figure()
        axes = figure.add_subplot(xlabel=self._x_key)
        axes.grid(self._grid)
        for key, points in self._points.items():
            if points:
                axes.plot(*zip(*points, strict=True), marker=self._marker, label=key)
        if self._postprocess is not None:
            self._postprocess(figure, axes, summary)
        axes.legend(bbox_to_anchor=(1.02, 1), loc="upper left", borderaxespad=0)
        self._files.keep_earlier(path)
        figures.write_figure(figure, path)

    def serialize(self, serializer):
        """Saves or restores the points and the interval."""
        serialize_part_if_stored(self._trigger, serializer["_trigger"])
        serialize_part_if_stored(self._summary, serializer["_summary"])
        points = json.loads(serializer(f"_plot_{self._filename}", json.dumps(self._points)))
        self._points = {key: points.get(key, []) for key in self._y_keys}
