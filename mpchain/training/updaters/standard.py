"""The updater that gets a batch, computes the loss and lets the optimizer update the model."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpchain import annexes, backend
from mpchain.backends.device import Device
from mpchain.dataset import Iterator, concat_examples
from mpchain.observers import span
from mpchain.optimizer import GradientMethod, Optimizer
from mpchain.serializer import AbstractSerializer, SerializationError
from mpchain.training.named_parts import as_arguments, find_part, name_parts
from mpchain.training.updaters.updater import Updater
from mpchain.typing import DeviceLike
from mpchain.variable import Variable


class StandardUpdater(Updater):
    """Updates the target of one optimizer with the batches of one iterator.

    One iteration is :meth:`update_core`, which subclasses override, as a whole or in its steps:
    :meth:`next_batch`, :meth:`convert` and :meth:`step`. If iterators or optimizers are passed as
    dicts, only ``'main'`` is used unless :meth:`update_core` is overridden.

    Args:
        iterator: iterator over the training data, or a dict of iterators with a ``'main'``.
        optimizer: optimizer that was set up with its model, or a dict of optimizers.
        converter: function of a batch (list of samples) and a device that returns the arguments
            of the loss function: an array, a tuple (positional) or a dict (keywords).
        device: device to which the models are moved and batches are sent; None moves neither.
        loss_func: function of the converted batch that returns the loss; None means the
            optimizer's target.
        loss_scale: factor of the loss while gradients are computed, which keeps float16 gradients
            from vanishing; it is set on every optimizer.
        auto_new_epoch: whether the main optimizer's ``new_epoch`` is called at the end of each
            sweep over the main iterator's data.
        input_device: device to which batches are sent, if not ``device``.
        graph: whether to record updates and replay them, as :func:`mpchain.capture` does. An update
            that cannot be replayed runs normally, and a warning says why.

    Attributes:
        converter: the argument of the same name.
        loss_func: the argument of the same name.
        iteration: number of completed updates.
        auto_new_epoch: the argument of the same name.
        captured: the captured step, whose ``reason`` says why the latest update was not replayed;
            None without ``graph=True``, or if the main optimizer's updates cannot be replayed.

    Raises:
        TypeError: an element of ``iterator`` is not an iterator, or one of ``optimizer`` not an
            optimizer.
        ValueError: no iterator is named ``'main'``, or an optimizer was not set up.
        MissingAnnexError: ``graph=True``, but :mod:`mpchain.annexes` does not list ``captured``.

    Example:
        >>> from mpchain import iterators
        >>> model = L.Classifier(L.Linear(3, 2))
        >>> data = [(np.ones(3, np.float32), np.int32(1))] * 8
        >>> batches = iterators.SerialIterator(data, batch_size=4)
        >>> updater = training.updaters.StandardUpdater(batches, optimizers.SGD().setup(model))
        >>> updater.update(); updater.iteration, updater.epoch_detail
        (1, 0.5)
    """

    def __init__(
        self,
        iterator: Iterator | Mapping[str, Iterator],
        optimizer: Optimizer | Mapping[str, Optimizer],
        converter: Callable[..., Any] = concat_examples,
        device: DeviceLike | None = None,
        loss_func: Callable[..., Variable] | None = None,
        loss_scale: float | None = None,
        auto_new_epoch: bool = True,
        *,
        input_device: DeviceLike | None = None,
        graph: bool = False,
    ):
        self._iterators = name_parts(iterator)
        self._optimizers = name_parts(optimizer)
        self._check_parts()
        self.converter = converter
        self.loss_func = loss_func
        self.loss_scale = loss_scale
        self.iteration = 0
        self.auto_new_epoch = auto_new_epoch
        self._device = None if device is None else backend.get_device(device)
        self.captured: Any = self._capture() if graph else None
        self._input_device = None if input_device is None else backend.get_device(input_device)
        for each in self._optimizers.values():
            if self._device is not None:
                each.target.to_device(self._device)
            if loss_scale is not None:
                each.set_loss_scale(loss_scale)
            if auto_new_epoch:
                each.use_auto_new_epoch = True

    def _capture(self):
        """Returns the object that replays updates; warns and returns None for unsupported
        optimizers."""
        main = self._optimizers["main"]
        kind, kind_of_updater = type(main).__name__, type(self).__name__
        if isinstance(main.actual_optimizer, GradientMethod):
            captured = annexes.load("captured", "captured", f"{kind_of_updater}: graph=True")
            return captured.capture(self._update_optimizer)
        warnings.warn(
            f"{kind_of_updater}: graph=True has no effect with a {kind}: only updates of "
            "optimizers that derive from GradientMethod can be replayed",
            stacklevel=3,
        )
        return None

    def _check_parts(self):
        caller = type(self).__name__
        if "main" not in self._iterators:
            raise ValueError(
                f"{caller}: the dict of iterators must have a 'main', not only "
                f"{', '.join(map(repr, self._iterators)) or 'nothing'}"
            )
        for name, iterator in self._iterators.items():
            if not hasattr(iterator, "__next__"):
                raise TypeError(
                    f"{caller}: iterator {name!r} must be an iterator such as SerialIterator, "
                    f"not {type(iterator).__name__}"
                )
        for name, optimizer in self._optimizers.items():
            if not isinstance(optimizer, Optimizer):
                raise TypeError(
                    f"{caller}: optimizer {name!r} must be an Optimizer, "
                    f"not {type(optimizer).__name__}"
                )
            if optimizer.target is None:
                raise ValueError(
                    f"{caller}: optimizer {name!r} ({type(optimizer).__name__}) has no model; "
                    f"call its setup(model) first"
                )

    def connect_trainer(self, trainer: Any) -> None:
        """Connects multi-node optimizers, which write a report to the trainer's folder if a rank
        fails."""
        for optimizer in self._optimizers.values():
            optimizer.connect_trainer(trainer)

    @property
    def device(self) -> Device | None:
        """The device to which the models were moved, or None."""
        return self._device

    @property
    def input_device(self) -> Device | None:
        """The device to which batches are sent, or None."""
        return self._device if self._input_device is None else self._input_device

    @property
    def epoch(self) -> int:
        """The number of completed sweeps over the data of the main iterator."""
        return self._iterators["main"].epoch

    @property
    def epoch_detail(self) -> float:
        """The number of completed sweeps over the data, with the fraction of the current sweep."""
        return self._iterators["main"].epoch_detail

    @property
    def previous_epoch_detail(self) -> float | None:
        """:attr:`epoch_detail` before the latest batch; None before the first batch."""
        return self._iterators["main"].previous_epoch_detail

    @property
    def is_new_epoch(self) -> bool:
        """Whether the latest batch finished a sweep over the data of the main iterator."""
        return self._iterators["main"].is_new_epoch

    def get_iterator(self, name: str) -> Iterator:
        """Returns the iterator with a name."""
        return find_part(self._iterators, name, f"{type(self).__name__}.get_iterator", "iterator")

    def agree_on_signal(self, number: int | None) -> int | None:
        """Agrees with the ranks of a multi-node optimizer, if it has one; see :class:`Updater`."""
        for optimizer in self._optimizers.values():
            if optimizer.communicator is not None:
                return optimizer.agree_on_signal(number)
        return number

    def rank_times(self) -> np.ndarray | None:
        """Returns the times of the ranks of a multi-node optimizer, if it has one; see
        :class:`Updater`."""
        for optimizer in self._optimizers.values():
            if optimizer.communicator is not None:
                return optimizer.rank_times()
        return None

    def get_optimizer(self, name: str) -> Any:
        """Returns the optimizer with a name."""
        return find_part(
            self._optimizers, name, f"{type(self).__name__}.get_optimizer", "optimizer"
        )

    def get_all_optimizers(self) -> dict[str, Any]:
        """Returns a dict from name to each optimizer."""
        return dict(self._optimizers)

    def update(self) -> None:
        """Runs one iteration and counts it."""
        self.update_core()
        self.iteration += 1

    def update_core(self) -> None:
        """Gets the next batch, updates the main optimizer's target, and ends an epoch if it is
        complete."""
        self.step(self.next_batch())
        self.finish_epoch()

    def next_batch(self) -> list[Any]:
        """Returns the next batch of the main iterator, a list of samples.

        Raises:
            StopIteration: the iterator has ended.
        """
        try:
            return self.get_iterator("main").next()
        except StopIteration as error:
            raise StopIteration(
                f"{type(self).__name__}: iterator 'main' ended after {self.iteration} iterations; "
                "to train longer, create it with repeat=True"
            ) from error

    def convert(self, batch: list[Any]) -> Any:
        """Returns the batch as arrays on the input device; see ``converter``."""
        return self.converter(batch, self.input_device)

    def step(self, batch: list[Any]) -> None:
        """Updates the main optimizer's target with one batch (a list of samples).

        The method sets the optimizer's ``n_samples``, by which optimizers of several processes
        weight their gradients.
        """
        optimizer = self.get_optimizer("main")
        optimizer.n_samples = len(batch)
        with span("input", "converter", self):
            args, kwargs = as_arguments(self.convert(batch))
        (self.captured or self._update_optimizer)(*args, **kwargs)

    def _update_optimizer(self, *args, **kwargs):
        optimizer = self.get_optimizer("main")
        optimizer.update(self.loss_func or optimizer.target, *args, **kwargs)

    def finish_epoch(self) -> None:
        """Calls the main optimizer's ``new_epoch`` if the latest batch has finished an epoch and
        ``auto_new_epoch`` is set."""
        if self.auto_new_epoch and self.is_new_epoch:
            self.get_optimizer("main").new_epoch(auto=True)

    def finalize(self) -> None:
        """Finalizes the iterators."""
        for iterator in self._iterators.values():
            iterator.finalize()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores iterators, models, optimizers and the number of iterations."""
        for name, iterator in self._iterators.items():
            iterator.serialize(serializer[f"iterator:{name}"])
        for name, optimizer in self._optimizers.items():
            # The model is serialized first, because an optimizer's state has the shapes of its
            # parameters.
            optimizer.target.serialize(serializer[f"model:{name}"])
            optimizer.serialize(serializer[f"optimizer:{name}"])
        self.iteration = serializer("iteration", self.iteration)
        if not 0 <= self.iteration < 2**53:
            raise SerializationError(
                f"{type(self).__name__}: the saved iteration must be at least 0 and below 2**53, "
                f"not {self.iteration}"
            )
