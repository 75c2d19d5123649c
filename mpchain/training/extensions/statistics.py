"""Extensions that observe or plot statistics of parameters and of their gradients."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from mpchain import backend
from mpchain.link import Link
from mpchain.serializer import AbstractSerializer
from mpchain.training.extension import PRIORITY_WRITER, Extension
from mpchain.training.extensions.figures import FigureWriter
from mpchain.training.states import serialize_optional, serialize_part_if_stored
from mpchain.training.trainer import Trainer
from mpchain.training.triggers.interval import IntervalMeans, TriggerLike, get_trigger
from mpchain.typing import Array
from mpchain.variable import Variable

SIGMA_PERCENTILES = (0.13, 2.28, 15.87, 50, 84.13, 97.72, 99.87)
"""Percentiles that a normal distribution has at -3, -2, ..., 3 standard deviations."""


class ParameterStatistics(Extension):
    """Observes statistics of the parameters of links, as means over an interval of iterations.

    The values are named ``'link/path/of/W/data/mean'`` and ``'link/path/of/W/grad/mean'``, where
    ``link`` is the link's ``name`` (as in Chainer ``'None'`` for a link without a name, such as the
    model itself). If a statistic is an array, its elements are numbered: ``'.../percentile/3'``.

    Args:
        links: link whose parameters are observed, or an iterable of links.
        statistics: dict from name to a function of an array that returns a scalar or an array; or
            ``'default'`` for :attr:`default_statistics`. :meth:`register_statistics` changes
            neither the dict nor the defaults, only this extension.
        report_params: whether to observe the parameters.
        report_grads: whether to observe the gradients of the parameters, if they exist.
        prefix: text that is put before each name, with a slash; None means no prefix.
        trigger: the interval; see :func:`get_trigger`.
        skip_nan_params: whether the statistics of an array that contains NaN are NaN, one value
            each, without calling their functions.

    Attributes:
        default_statistics (dict): ``mean``, ``std``, ``min``, ``max``, ``zeros`` (the number of
            zeros) and ``percentile`` (0.13, 2.28, 15.87, 50, 84.13, 97.72 and 99.87).
        report_key_template (str): template of the names of values.

    Example:
        >>> trainer, model = testing.get_trainer_with_mock_updater(), L.Linear(3, 2)
        >>> observe = ParameterStatistics(model, {"max": np.max}, report_grads=False, trigger=None)
        >>> trainer.extend(observe)
    """

    priority = PRIORITY_WRITER
    default_name = "parameter_statistics"
    report_key_template = "{prefix}{link_name}{param_name}/{attr_name}/{function_name}"
    default_statistics: dict[str, Callable[[Array], Any]] = {
        "mean": lambda x: x.mean(),
        "std": lambda x: x.std(),
        "min": lambda x: x.min(),
        "max": lambda x: x.max(),
        "zeros": lambda x: (x == 0).sum(),
        "percentile": lambda x: percentiles(x, SIGMA_PERCENTILES),
    }

    def __init__(
        self,
        links: Link | Iterable[Link],
        statistics: dict[str, Callable[[Array], Any]] | Literal["default"] = "default",
        report_params: bool = True,
        report_grads: bool = True,
        prefix: str | None = None,
        trigger: TriggerLike = (1, "epoch"),
        skip_nan_params: bool = False,
    ) -> None:
        self._links = [links] if isinstance(links, Link) else list(links)
        self._statistics = dict(self.default_statistics if statistics == "default" else statistics)
        self._kinds = ["data"] * bool(report_params) + ["grad"] * bool(report_grads)
        self._prefix = "" if prefix is None else f"{prefix}/"
        self._skip_nan_params = skip_nan_params
        self._means = IntervalMeans(trigger, [])

    def register_statistics(self, name: str, function: Callable[[Array], Any]) -> None:
        """Adds a statistic, or replaces the statistic of that name.

        Args:
            name: the name of the statistic.
            function: function of an array (on the device of the parameter) that returns a scalar
                or an array.
        """
        self._statistics[name] = function

    def __call__(self, trainer: Trainer) -> None:
        """Adds the statistics of this iteration; observes the means if the interval ends here."""
        for link in self._links:
            for path, param in link.namedparams(include_uninit=False):
                for kind in self._kinds:
                    array = getattr(param, kind)
                    if array is not None:
                        place = {"link_name": link.name, "param_name": path, "attr_name": kind}
                        self._add(array, place)
        trainer.observation.update(self._means(trainer) or {})

    def _add(self, array, place):
        xp = backend.get_array_module(array)
        is_skipped = self._skip_nan_params and bool(xp.isnan(array).any())
        for statistic, function in self._statistics.items():
            key = self.report_key_template.format(
                prefix=self._prefix, function_name=statistic, **place
            )
            value: Any = float("nan") if is_skipped else function(array)
            if getattr(value, "shape", ()) == ():
                self._means.add({key: value})
            else:
                self._means.add({f"{key}/{i}": part for i, part in enumerate(value.ravel())})

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the interval and the sums so far."""
        self._means.serialize(serializer, serialize_part_if_stored)


def percentiles(array: Array, ranks: Sequence[float]) -> Array:
    """Returns percentiles of all elements of an array, interpolated linearly.

    Args:
        array: array of any shape, not empty.
        ranks: numbers from 0 to 100.

    Returns:
        Float64 array of shape ``(len(ranks),)``.

    Example:
        >>> percentiles(np.arange(5.0), [25, 50])
        array([1., 2.])
    """
    xp = backend.get_array_module(array)
    return xp.percentile(array, xp.asarray(ranks, dtype="d"))


class VariableStatisticsPlot(FigureWriter):
    """Plots mean, standard deviation and percentiles of variables against the iteration.

    The statistics are averaged over the variables. The image is drawn with matplotlib (``pip
    install 'mpchain[plot]'``); without matplotlib the extension only warns. A resumed run keeps the
    earlier points. The file of an earlier run is kept, and other jobs are refused, as by
    :class:`LogReport`.

    Args:
        targets: Variable (such as a parameter), or an iterable of Variables.
        max_sample_size: maximum number of points in time. When it is exceeded, every other point is
            dropped, and from then on only every other call adds a point. (Chainer drops random
            points.)
        report_data: whether to plot the variables' values.
        report_grad: whether to plot the gradients of the variables, if they exist.
        plot_mean: whether to plot the mean.
        plot_std: whether to plot the standard deviation.
        percentile_sigmas: the percentile, or percentiles, to plot, from 0 to 100.
        trigger: determines when the image is written; see :func:`get_trigger`.
        filename: name of the file in the trainer's folder; its ending is the format (PNG, SVG,
            PDF). ``file_name`` is another name of this argument.
        figsize: (width, height) of the image in inches; None means (6, 3) for each plot in it.
        marker: matplotlib's marker of the points; None draws only lines.
        grid: whether to draw a grid.

    Raises:
        TypeError: a target is not a Variable.
        ValueError: all kinds of plots are switched off, or ``max_sample_size`` is below 2.

    Example:
        >>> trainer, model = testing.get_trainer_with_mock_updater(), L.Linear(3, 2)
        >>> trainer.extend(VariableStatisticsPlot(model.W, percentile_sigmas=(0, 50, 100)))
    """

    def __init__(
        self,
        targets: Variable | Iterable[Variable],
        max_sample_size: int = 1000,
        report_data: bool = True,
        report_grad: bool = True,
        plot_mean: bool = True,
        plot_std: bool = True,
        percentile_sigmas: float | Sequence[float] = (0, *SIGMA_PERCENTILES, 100),
        trigger: TriggerLike = (1, "epoch"),
        filename: str = "statistics.png",
        figsize: tuple[float, float] | None = None,
        marker: str | None = None,
        grid: bool = True,
        *,
        file_name: str | None = None,
    ) -> None:
        super().__init__(filename if file_name is None else file_name)
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
            raise ValueError(
                "VariableStatisticsPlot: at least one of report_data and report_grad, and one of "
                "plot_mean, plot_std and percentile_sigmas, must be set"
            )
        self._trigger = get_trigger(trigger)
        self._figsize, self._marker, self._grid = figsize, marker, grid
        self._n_calls, self._stride = 0, 1
        self._samples = []  # lists [iteration, {kind: [mean, std, percentiles ...]}]

    def __call__(self, trainer: Trainer) -> None:
        """Records the statistics; plots if the trigger fires."""
        if self.available():
            if self._n_calls % self._stride == 0:
                self._take_sample(trainer.updater.iteration)
            self._n_calls += 1
        if self._trigger(trainer) and self._samples:
            self.draw(lambda: self.write(self._draw(), trainer.out))

    def _take_sample(self, iteration):
        self._samples.append([iteration, {kind: self._statistics(kind) for kind in self._kinds}])
        if len(self._samples) > self._max_sample_size:
            self._samples = self._samples[::2]
            self._stride *= 2

    def _statistics(self, kind):
        """Returns means, deviations and percentiles, averaged over variables; None without
        arrays."""
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

    def _draw(self):
        n_rows, n_columns = len(self._rows), len(self._kinds)
        figure = self.new_figure(self._figsize or (6 * n_columns, 3 * n_rows))
        grid = figure.subplots(n_rows, n_columns, sharex=True, squeeze=False)
        for row, statistic in zip(grid, self._rows, strict=True):
            for axes, kind in zip(row, self._kinds, strict=True):
                self._draw_curves(axes, kind, statistic)
                axes.set_ylabel(f"{statistic} of {kind}")
                axes.grid(self._grid)
        for axes in grid[-1]:
            axes.set_xlabel("iteration")
        figure.tight_layout()
        return figure

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

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the points and the trigger."""
        serialize_part_if_stored(self._trigger, serializer["_trigger"])
        state = json.dumps([self._n_calls, self._stride, self._samples])
        state = serialize_optional(serializer, "_samples", state)
        self._n_calls, self._stride, self._samples = json.loads(state)
