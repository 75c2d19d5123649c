"""The extension that observes statistics of parameters and of their gradients."""

from mpchain import backend
from mpchain.link import Link
from mpchain.reporter import DictSummary
from mpchain.training.extension import PRIORITY_WRITER, Extension
from mpchain.training.states import serialize_part_if_stored
from mpchain.training.triggers import get_trigger

SIGMA_PERCENTILES = (0.13, 2.28, 15.87, 50, 84.13, 97.72, 99.87)
"""Percentiles that a normal distribution has at -3, -2, ..., 3 standard deviations."""


class ParameterStatistics(Extension):
    """Observes statistics of the parameters of links, as means over an interval of iterations.

    The values are named ``'link/path/of/W/data/mean'`` and ``'link/path/of/W/grad/mean'``, where
    ``link`` is the link's ``name`` (as in Chainer ``'None'`` for a link that has none, such as the
    model itself). Those of a statistic that is an array are numbered: ``'.../percentile/3'``.

    Args:
        links: link whose parameters are observed, or an iterable of links.
        statistics (dict): functions of an array that return a scalar or an array, by name; or
            ``'default'`` for :attr:`default_statistics`. Neither is affected by
            :meth:`register_statistics`, which adds to this extension's own.
        report_params (bool): whether to observe the parameters.
        report_grads (bool): whether to observe their gradients, where there are any.
        prefix (str): put before each name, with a slash.
        trigger: the interval; see :func:`get_trigger`.
        skip_nan_params (bool): whether each statistic of an array that contains NaN is NaN, a
            single one, without a call of its function.

    Attributes:
        default_statistics (dict): ``mean``, ``std``, ``min``, ``max``, ``zeros`` (how many there
            are) and ``percentile`` (0.13, 2.28, 15.87, 50, 84.13, 97.72 and 99.87).
    """

    priority = PRIORITY_WRITER
    default_name = "parameter_statistics"
    default_statistics = {
        "mean": lambda x: x.mean(),
        "std": lambda x: x.std(),
        "min": lambda x: x.min(),
        "max": lambda x: x.max(),
        "zeros": lambda x: (x == 0).sum(),
        "percentile": lambda x: percentiles(x, SIGMA_PERCENTILES),
    }

    def __init__(
        self,
        links,
        statistics="default",
        report_params=True,
        report_grads=True,
        prefix=None,
        trigger=(1, "epoch"),
        skip_nan_params=False,
    ):
        self._links = [links] if isinstance(links, Link) else list(links)
        self._statistics = dict(self.default_statistics if statistics == "default" else statistics)
        self._kinds = ["data"] * bool(report_params) + ["grad"] * bool(report_grads)
        self._prefix = "" if prefix is None else f"{prefix}/"
        self._trigger = get_trigger(trigger)
        self._skip_nan_params = skip_nan_params
        self._summary = DictSummary()

    def register_statistics(self, name, function):
        """Adds a statistic, or replaces one.

        Args:
            name (str): its name.
            function: function of an array (on the device of the parameter) that returns a scalar
                or an array.
        """
        self._statistics[name] = function

    def __call__(self, trainer):
        """Adds the statistics of this iteration; observes the means if the interval ends here."""
        for link in self._links:
            for path, param in link.namedparams(include_uninit=False):
                for kind in self._kinds:
                    array = getattr(param, kind)
                    if array is not None:
                        self._add(f"{self._prefix}{link.name}{path}/{kind}", array)
        if self._trigger(trainer):
            trainer.observation.update(self._summary.compute_mean())
            self._summary = DictSummary()

    def _add(self, name, array):
        xp = backend.get_array_module(array)
        is_skipped = self._skip_nan_params and bool(xp.isnan(array).any())
        for statistic, function in self._statistics.items():
            key = f"{name}/{statistic}"
            value = float("nan") if is_skipped else function(array)
            if getattr(value, "shape", ()) == ():
                self._summary.add({key: value})
            else:
                self._summary.add({f"{key}/{i}": part for i, part in enumerate(value.ravel())})

    def serialize(self, serializer):
        """Saves or restores the interval and the sums so far."""
        serialize_part_if_stored(self._trigger, serializer["_trigger"])
        serialize_part_if_stored(self._summary, serializer["_summary"])


def percentiles(array, ranks):
    """Returns percentiles of all elements of an array, interpolated linearly.

    Args:
        array: array of any shape, not empty.
        ranks: numbers from 0 to 100.

    Returns:
        Array of as many elements.
    """
    xp = backend.get_array_module(array)
    return xp.percentile(array, xp.asarray(ranks, dtype="d"))
