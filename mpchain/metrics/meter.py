"""Meters, which keep data of each batch and compute scores over all batches, and an extension."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpchain.configuration import no_backprop_mode
from mpchain.dataset import concat_examples
from mpchain.distributed.communicators import Communicator
from mpchain.training.extensions import Evaluator
from mpchain.training.named_parts import as_arguments
from mpchain.typing import DeviceLike


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric that is computed from all samples together, in two steps.

    Args:
        keep: function of a batch of outputs and of targets that returns the data to keep: a tuple
            of host arrays or lists, usually with one entry for each sample or label.
        compute: function of the kept data, joined over all batches, that returns the value, or a
            dict of values by name.

    Example:
        >>> largest_error = Metric(lambda y, t: (abs(y - t),), lambda errors: errors.max())
        >>> meter = Meter({"error": largest_error})
        >>> meter.add(np.array([1.0, 2.0]), np.array([1.5, 4.0]))
        >>> meter.compute()
        {'error': np.float64(2.0)}
    """

    keep: Callable[[Any, Any], tuple[Any, ...]]
    compute: Callable[..., Any]


class Meter:
    """Keeps the data of each batch that metrics need; computes the metrics over all ranks' samples.

    The values are the same as for one process with all samples; ranks may have different numbers
    of samples, even none. A sample that two ranks have counts twice; to avoid this, use
    :func:`~mpchain.distributed.create_sharded_iterator`, or
    :func:`~mpchain.distributed.scatter_dataset` with ``force_equal_length=False``.

    Args:
        metrics: :class:`Metric` s by name.

    Example:
        >>> from mpchain import metrics
        >>> meter = Meter({"accuracy": metrics.accuracy(), "top 2": metrics.top_k(2)})
        >>> meter.add(np.array([[1.0, 2.0, 0.0], [3.0, 1.0, 2.0]]), np.array([0, 0]))
        >>> meter.compute()
        {'accuracy': 0.5, 'top 2': 1.0}
    """

    def __init__(self, metrics: Mapping[str, Metric]):
        self.metrics = dict(metrics)
        self.reset()

    def reset(self) -> None:
        """Discards the data of all batches."""
        self._kept = {name: [] for name in self.metrics}

    def add(self, y: object, t: object) -> None:
        """Adds a batch.

        Args:
            y: the model's outputs: an array or Variable, or another object that the metrics accept.
            t: the targets.
        """
        for name, metric in self.metrics.items():
            self._kept[name].append(metric.keep(y, t))

    def compute(self, comm: Communicator | None = None) -> dict[str, Any]:
        """Returns the values by name, the same on all ranks.

        If a metric has several values, their names are ``'<name of metric>/<name of value>'``.

        Args:
            comm: the ranks, all of which must call this method; None means only this process.

        Raises:
            ValueError: no rank has samples.
        """
        held = (comm or Communicator()).allgather_obj(self._kept)
        values = {}
        for name, metric in self.metrics.items():
            batches = [batch for kept in held for batch in kept[name]]
            if not batches:
                raise ValueError(f"Meter.compute: no rank has samples for {name!r}; call add first")
            value = metric.compute(*map(_joined, zip(*batches, strict=True)))
            if isinstance(value, dict):
                values |= {f"{name}/{part}": number for part, number in value.items()}
            else:
                values[name] = value
        return values


def _joined(batches):
    if isinstance(batches[0], np.ndarray):
        return np.concatenate(batches)
    return [sample for batch in batches for sample in batch]


class MetricsEvaluator(Evaluator):
    """Reports metrics of a model over the samples of all ranks, in a trainer as
    ``'metrics/<name>'``.

    The last element of an example is the target; the others are the model's arguments.

    Args:
        iterator: iterator over this rank's validation data that ends (``repeat=False``).
        target: the model, whose outputs are compared with the targets. If you train a
            :class:`~mpchain.links.Classifier`, pass its ``predictor``.
        metrics: :class:`Metric` s by name.
        comm: the ranks, all of which must evaluate; None means only this process.
        converter, device, eval_hook, progress_bar: see
            :class:`~mpchain.training.extensions.Evaluator`.
        eval_func: function that computes outputs; None means the model.

    Raises:
        ValueError: the iterator repeats its data without end.

    Example:
        >>> from mpchain import metrics
        >>> data = [(np.array([0.0, 9.0]), 1), (np.array([8.0, 9.0]), 0)]
        >>> iterator = mpchain.iterators.SerialIterator(data, 1, repeat=False, shuffle=False)
        >>> scores = {"accuracy": metrics.accuracy(), "auc": metrics.auc()}
        >>> MetricsEvaluator(iterator, mpchain.Sequential(F.identity), scores)()
        {'accuracy': 0.5, 'auc': 1.0}
    """

    default_name = "metrics"

    def __init__(
        self,
        iterator: object,
        target: object,
        metrics: Mapping[str, Metric],
        comm: Communicator | None = None,
        converter: Callable[..., Any] = concat_examples,
        device: DeviceLike | None = None,
        eval_hook: Callable[[Evaluator], Any] | None = None,
        eval_func: Callable[..., Any] | None = None,
        *,
        progress_bar: bool = False,
    ):
        if comm is not None and comm.rank > 0:
            progress_bar = False  # only rank 0 shows a progress bar
        super().__init__(
            iterator, target, converter, device, eval_hook, eval_func, progress_bar=progress_bar
        )
        self.meter, self.comm = Meter(metrics), comm

    def evaluate(self) -> dict[str, Any]:
        """Returns the values of the metrics by name."""
        self.meter.reset()
        self.summarize()
        values = self.meter.compute(self.comm)
        prefix = "" if self.name is None else f"{self.name}/"
        return {prefix + name: value for name, value in values.items()}

    def _observe(self, batch):
        function = self.eval_func or self.get_target("main")
        args, kwargs = as_arguments(self.converter(batch, self.device))
        *inputs, t = args
        with no_backprop_mode():
            self.meter.add(function(*inputs, **kwargs), t)
        return {}
