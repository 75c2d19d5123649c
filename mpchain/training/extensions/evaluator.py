"""The extension that evaluates a model on a validation set."""

import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

from mpchain import backend
from mpchain.configuration import no_backprop_mode, using_config
from mpchain.dataset import concat_examples
from mpchain.functions.counting import Derived, Notes
from mpchain.observers import span
from mpchain.reporter import DictSummary, report, report_scope
from mpchain.training.extension import PRIORITY_WRITER, Extension
from mpchain.training.named_parts import as_arguments, find_part, name_parts, reporter_of
from mpchain.training.progress import open_display
from mpchain.training.trainer import Trainer
from mpchain.typing import DeviceLike


class Evaluator(Extension):
    """Calls a model on every batch of an iterator, and reports the means of the model's reports.

    The means are means over *samples*: the weight of a reported value is the number of samples in
    the batch. (Chainer averages over batches: the samples of a smaller last batch count more.)
    If a loss or accuracy of :mod:`mpchain.functions`, or :func:`mpchain.batch_mean`, returns a
    mean over a count, such as the number of labels that are not ignored, and this mean is reported
    unchanged, it is weighted by the count. A value that is reported as ``(value, weight)`` keeps
    its own weight. A nonlinear function of a mean, such as the perplexity exp(loss), is best
    computed from the final mean (``postprocess`` of :class:`LogReport`).

    The model runs with ``config.train`` False and records no graph. In a trainer the values get the
    extension's name as a prefix (``'validation/main/loss'``), even if the evaluator is called
    directly later; without a trainer they get no prefix (``'main/loss'``).

    Subclasses may override :meth:`evaluate` as a whole, or :meth:`summarize`, which returns the
    sums and weights from which the means are computed.

    Args:
        iterator: iterator over the validation data that ends (``repeat=False``), or a dict of
            iterators.
        target: link whose values are reported, or a dict of links.
        converter: see :class:`StandardUpdater`.
        device: device to which batches are sent; None leaves them where they are.
        eval_hook: function of the evaluator that is called before each evaluation.
        eval_func: function of the converted batch that reports values; None means the main target.
        progress_bar: whether to show the progress of each evaluation.

    Attributes:
        converter: the argument of the same name.
        device: the device, or None.
        eval_hook: the argument of the same name.
        eval_func: the argument of the same name.
        doubt: the warning about a value whose weight may be wrong, which the first evaluation has
            found and :meth:`evaluate` issues; None if there is none.

    Raises:
        ValueError: an iterator repeats its data without end.

    Example:
        >>> model = L.Classifier(lambda x: x)
        >>> data = [(np.array([0.0, 9.0]), 1), (np.array([0.0, 9.0]), 0)]
        >>> iterator = mpchain.iterators.SerialIterator(data, 1, repeat=False, shuffle=False)
        >>> means = Evaluator(iterator, model)()
        >>> means["main/accuracy"]
        0.5
    """

    trigger = (1, "epoch")
    default_name = "validation"
    priority = PRIORITY_WRITER
    doubt: str | None = None

    def __init__(
        self,
        iterator: object,
        target: object,
        converter: Callable[..., Any] = concat_examples,
        device: DeviceLike | None = None,
        eval_hook: Callable[["Evaluator"], Any] | None = None,
        eval_func: Callable[..., Any] | None = None,
        *,
        progress_bar: bool = False,
    ) -> None:
        self._iterators = name_parts(iterator)
        self._targets = name_parts(target)
        self.converter = converter
        self.device = None if device is None else backend.get_device(device)
        self.eval_hook = eval_hook
        self.eval_func = eval_func
        self.progress_bar = progress_bar
        self._most_batches = None
        self._is_first = True  # whether reported values are still checked
        self._sizes = {}  # maps a mean's name to its size and batch size in the first batch
        self._check_ends()

    def _check_ends(self):
        for name, iterator in self._iterators.items():
            if getattr(iterator, "repeat", False):
                raise ValueError(
                    f"{type(self).__name__}: iterator {name!r} never ends; make it "
                    "with repeat=False"
                )

    def get_iterator(self, name: str) -> Any:
        """Returns the iterator with a name; raises KeyError if there is none."""
        return find_part(self._iterators, name, f"{type(self).__name__}.get_iterator", "iterator")

    def get_all_iterators(self) -> dict[str, Any]:
        """Returns a dict from name to iterator."""
        return dict(self._iterators)

    def get_target(self, name: str) -> Any:
        """Returns the target link with a name; raises KeyError if there is none."""
        return find_part(self._targets, name, f"{type(self).__name__}.get_target", "target")

    def get_all_targets(self) -> dict[str, Any]:
        """Returns a dict from name to target link."""
        return dict(self._targets)

    def __call__(self, trainer: Trainer | None = None) -> dict[str, Any]:
        """Evaluates the model, reports the means and returns a dict of them by name."""
        self._most_batches = 2 if getattr(trainer, "is_test", False) else None
        reporter = reporter_of(self._targets, "" if self.name is None else f"{self.name}/")
        seen = span("evaluation", "evaluation", self)
        with seen, reporter, using_config("train", False):
            seen.result = result = self.evaluate()
        report(result)
        return result

    def evaluate(self) -> dict[str, Any]:
        """Returns a dict from name to the mean over the samples of the main iterator."""
        means = self.summarize().compute_mean()
        self.warn(self.doubt)
        return means

    def warn(self, doubt: str | None) -> None:
        """Issues the warning ``doubt``, if it is not None, and clears :attr:`doubt`."""
        self.doubt = None
        if doubt is not None:
            warnings.warn(doubt, stacklevel=4)  # this level is the evaluator's caller

    def summarize(self) -> DictSummary:
        """Returns the weighted sums of the values that the model reports for the main iterator."""
        if self.eval_hook is not None:
            self.eval_hook(self)
        summary, done, display = DictSummary(), 0, None
        if self.progress_bar:
            total = len(getattr(self.get_iterator("main"), "dataset", ())) or None
            display = open_display(total, n_lines=4, keep=False)
        try:
            for batch in self._restarted_iterator():
                if len(batch) > 0:  # a rank's share of a small batch may be empty
                    summary.add(self._observe(batch))
                    done += len(batch)
                    if display is not None:
                        display.show(done, f"{self.name or self.default_name}: {done} samples")
        finally:
            if display is not None:
                display.close()
        self._is_first = False
        return summary

    def _restarted_iterator(self):
        iterator = self.get_iterator("main")
        if hasattr(iterator, "reset"):
            iterator.reset()
        else:
            iterator = copy.copy(iterator)
        return itertools.islice(iterator, self._most_batches)

    def _observe(self, batch):
        """Returns the values that the model reports for a batch, each with its weight: the number
        of samples, or the count over which the value is a mean."""
        function = self.eval_func or self.get_target("main")
        args, kwargs = as_arguments(self.converter(batch, self.device))
        observation, notes = {}, Notes()
        derived = Derived(notes) if self._is_first else contextlib.nullcontext()
        with report_scope(observation), no_backprop_mode(), notes, derived:
            function(*args, **kwargs)
        if self._is_first:
            self._look_into(observation, notes, derived, len(batch))
        return {
            key: value if isinstance(value, tuple) else (value, self._weight(value, notes, batch))
            for key, value in observation.items()
        }

    def _look_into(self, observation, notes, derived, n):
        """Records a :attr:`doubt` about a value that is weighted by samples, but is no mean over
        them."""
        for name, value in observation.items():
            size = None if notes.weight(value, None) else notes.plain_size(value)
            first, n_first = self._sizes.setdefault(name, (size, n))
            # A mean over the same number of elements in each batch is not a mean over the samples.
            if size and first and size != first and size * n_first != first * n:
                self._is_first = False
                self.doubt = (
                    f"{type(self).__name__}: {name!r} is weighted by the number of samples, but is "
                    f"F.mean over {first} elements in a batch of {n_first}, and over {size} in one "
                    f"of {n}: report mpchain.batch_mean, which is weighted by its elements"
                )
                return
            counts = derived.counts(value)
            others = [int(count) for count in counts if count % n != 0]
            # If there are as many means as samples, each may belong to one sample.
            if others and len(counts) < n and notes.weight(value, None) is None:
                self._is_first = False
                self.doubt = (
                    f"{type(self).__name__}: {name!r} is weighted by the number of samples ({n} in "
                    f"this batch), but was computed from a mean over {others[0]} elements: batches "
                    "or ranks of other sizes would give a different mean. Report the means from "
                    "which it is computed, and compute it from their final values by "
                    "LogReport(postprocess=...)"
                )
                return

    def _weight(self, value, notes, batch):
        return notes.weight(value, len(batch))

    def finalize(self) -> None:
        """Finalizes the iterators."""
        for iterator in self._iterators.values():
            iterator.finalize()
