"""The extension that plots statistics of variables and of their gradients."""

import json
import os

import numpy as np

from mpchain import backend
from mpchain.training.extension import Extension
from mpchain.training.extensions import figures
from mpchain.training.extensions.parameter_statistics import percentiles
from mpchain.training.output_files import OutputFiles
from mpchain.training.states import serialize_optional, serialize_part_if_stored
from mpchain.training.triggers import get_trigger
from mpchain.variable import Variable


class VariableStatisticsPlot(Extension):
    """Plots mean, standard deviation and percentiles of variables against the iteration.

    The statistics are taken of each variable, each time that the extension is called, and averaged
    over the variables. The image is drawn with matplotlib (``pip install 'mpchain[plot]'``);
    without it the extension only warns. It goes on with the earlier points after a resume. The file
    of an earlier run is kept, and other jobs are refused, as :class:`LogReport` does it.

    Args:
        targets: Variable (such as a parameter), or an iterable of Variables.
        max_sample_size (int): most points in time to keep. Where there would be more, every other
            one is dropped, and from then on only every other call adds one. (Chainer drops them
            at random.)
        report_data (bool): whether to plot the variables' values.
        report_grad (bool): whether to plot their gradients, where there are any.
        plot_mean (bool): whether to plot the mean.
        plot_std (bool): whether to plot the standard deviation.
        percentile_sigmas: the percentile, or percentiles, to plot, from 0 to 100.
        trigger: when to write the image; see :func:`get_trigger`.
        filename: name of the file in the trainer's folder; its ending says the format (PNG, SVG,
            PDF). ``file_name`` is another name of this argument.
        figsize: (width, height) of the image in inches.
        marker: matplotlib's marker of the points; None draws lines alone.
        grid (bool): whether to draw a grid.

    Raises:
        TypeError: a target is no Variable.
        ValueError: nothing is to be plotted, or ``max_sample_size`` is below 2.
    """

    def __init__(
        self,
        targets,
        max_sample_size=1000,
        report_data=True,
        report_grad=True,
        plot_mean=True,
        plot_std=True,
        percentile_sigmas=(0, 0.13, 2.28, 15.87, 50, 84.13, 97.72, 99.87, 100),
        trigger=(1, "epoch"),
        filename="statistics.png",
        figsize=None,
        marker=None,
        grid=True,
        *,
        file_name=None,
    ):
        self._targets = [targets] if isinstance(targets, Variable) else list(targets)
        for target in self._targets:
            if not isinstance(target, Variable):
                raise TypeError(
                    "VariableStatisticsPlot: targets must be Variables, but one is a "
                    f"{type(target).__name__}"
                )
        if max_sample_size < 2:
            raise ValueError(
                f"VariableStatisticsPlot: max_sample_size must be at least 2, not {max_sample_size}"
            )
        self._max_sample_size = max_sample_size
        self._kinds = ["data"] * bool(report_data) + ["grad"] * bool(report_grad)
        self._percentiles = np.atleast_1d(percentile_sigmas).tolist()
        self._rows = ["mean"] * bool(plot_mean) + ["std"] * bool(plot_std)
        self._rows += ["percentile"] * bool(self._percentiles)
        if not self._kinds or not self._rows:
            raise ValueError("VariableStatisticsPlot: the arguments leave nothing to be plotted")
        self._trigger = get_trigger(trigger)
        self._filename = filename if file_name is None else file_name
        self._figsize, self._marker, self._grid = figsize, marker, grid
        self._files = OutputFiles(type(self).__name__, self._filename)
        self._n_calls, self._stride = 0, 1
        self._samples = []  # [iteration, {kind: [mean, std, percentiles ...]}]
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

    def finalize(self):
        """Lets other jobs write the file."""
        self._files.release()

    def __call__(self, trainer):
        """Takes the statistics; plots if the trigger fires."""
        if self.available():
            if self._n_calls % self._stride == 0:
                self._take_sample(trainer.updater.iteration)
            self._n_calls += 1
        if self._trigger(trainer) and self._samples:
            self._draw(os.path.join(trainer.out, self._filename))

    def _take_sample(self, iteration):
        self._samples.append([iteration, {kind: self._statistics(kind) for kind in self._kinds}])
        if len(self._samples) > self._max_sample_size:
            self._samples = self._samples[::2]
            self._stride *= 2

    def _statistics(self, kind):
        """Mean, standard deviation and percentiles, averaged over the variables; or None."""
        arrays = [getattr(target, kind) for target in self._targets]
        rows = [self._row(array) for array in arrays if array is not None and array.size]
        return np.mean(rows, axis=0).tolist() if rows else None

    def _row(self, array):
        xp = backend.get_array_module(array)
        array = array.astype(xp.result_type(array.dtype, "f"), copy=False)
        parts = [xp.stack([array.mean(), array.std()])]
        if self._percentiles:
            parts.append(percentiles(array, self._percentiles))
        return backend.CpuDevice().send(xp.concatenate(parts))

    def _draw(self, path):
        n_rows, n_columns = len(self._rows), len(self._kinds)
        figure = figures.new_figure(self._figsize or (6 * n_columns, 3 * n_rows))
        grid = figure.subplots(n_rows, n_columns, sharex=True, squeeze=False)
        for row, statistic in zip(grid, self._rows, strict=True):
            for axes, kind in zip(row, self._kinds, strict=True):
                self._draw_curves(axes, kind, statistic)
                axes.set_ylabel(f"{statistic} of {kind}")
                axes.grid(self._grid)
        for axes in grid[-1]:
            axes.set_xlabel("iteration")
        figure.tight_layout()
        self._files.keep_earlier(path)
        figures.write_figure(figure, path)

    def _draw_curves(self, axes, kind, statistic):
        samples = [(iteration, rows[kind]) for iteration, rows in self._samples if rows[kind]]
        if not samples:
            return
        iterations, rows = zip(*samples, strict=True)
        columns = list(zip(*rows, strict=True))
        if statistic != "percentile":
            axes.plot(iterations, columns[statistic == "std"], marker=self._marker)
            return
        for rank, column in zip(self._percentiles, columns[2:], strict=True):
            axes.plot(iterations, column, marker=self._marker, label=f"{rank:g} %")
        axes.legend(bbox_to_anchor=(1.02, 1), loc="upper left", fontsize="small", borderaxespad=0)

    def serialize(self, serializer):
        """Saves or restores the points and the trigger."""
        serialize_part_if_stored(self._trigger, serializer["_trigger"])
        state = json.dumps([self._n_calls, self._stride, self._samples])
        state = serialize_optional(serializer, "_samples", state)
        self._n_calls, self._stride, self._samples = json.loads(state)
