"""The extension that reports metrics."""

from collections.abc import Callable, Mapping
from typing import Any

from mpchain.configuration import no_backprop_mode
from mpchain.dataset import concat_examples
from mpchain.distributed.communicators import Communicator
from mpchain.metrics.meter import Meter, Metric
from mpchain.training.extensions import Evaluator
from mpchain.training.named_parts import as_arguments
from mpchain.typing import DeviceLike


class MetricsEvaluator(Evaluator):
    """Reports metrics of a model over the samples of all ranks, as ``'metrics/<name>'``.

    The last element of an example is the target, the others are the model's arguments.

    Args:
        iterator: iterator over this rank's validation data that ends (``repeat=False``).
        target: the model, whose outputs are compared with the targets; of a
            :class:`~mpchain.links.Classifier`, its ``predictor``.
        metrics: :class:`Metric` s by name.
        comm: the ranks, all of which evaluate; None: this process alone.
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
        iterator: Any,
        target: Any,
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
            progress_bar = False  # one bar is enough
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
