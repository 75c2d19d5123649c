"""The updater that divides each batch between several devices of one process."""

import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from mpchain import backend
from mpchain.configuration import config, using_config
from mpchain.dataset import Iterator, concat_examples
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.reporter import report
from mpchain.serializer import AbstractSerializer
from mpchain.training.named_parts import reporter_of
from mpchain.training.updaters.replica import collecting, compute_gradients, mean_observation
from mpchain.training.updaters.standard import StandardUpdater
from mpchain.typing import DeviceLike
from mpchain.variable import Variable


class ParallelUpdater(StandardUpdater):
    """Updates the optimizer's target with gradients that several devices compute.

    Each device has a copy of the model and every n-th sample of a batch. Gradients, and the values
    that the model reports, are means over the samples of all devices, as if one device had computed
    the whole batch. (Chainer added up the devices' mean gradients, so that the learning rate
    depended on the number of devices, and reported each device's values.) The optimizer updates the
    parameters on the main device; they and the persistent values are then copied to the other
    devices. The main device computes in the calling thread, each other device in a separate thread.

    Args:
        iterator, optimizer, converter, loss_scale, auto_new_epoch: see :class:`StandardUpdater`.
        models: dict from name to the model of each device; ``'main'`` is the optimizer's target.
            None copies the target to each of ``devices``.
        devices: dict from the same names, with a ``'main'``, to devices. None means the models'
            devices.
        loss_func: the model, one of its links, or a method of the model or of a link; each device
            calls the counterpart in its own copy. None means the model.

    Raises:
        ValueError: both models and devices are None, their names differ or lack ``'main'``, the
            main model is not the target of the optimizer, or ``loss_func`` belongs to no link of
            the target.

    Example:
        >>> from mpchain import iterators
        >>> model = L.Classifier(L.Linear(3, 2))
        >>> data = [(np.ones(3, np.float32), np.int32(1))] * 8
        >>> batches = iterators.SerialIterator(data, batch_size=4)
        >>> updater = training.updaters.ParallelUpdater(
        ...     batches,
        ...     optimizers.SGD().setup(model),
        ...     devices={"main": "@numpy", "second": "@numpy"},
        ... )
        >>> updater.update(); updater.finalize(); updater.epoch_detail
        0.5
    """

    _threads = None

    def __init__(
        self,
        iterator: Iterator | Mapping[str, Iterator],
        optimizer: Optimizer | Mapping[str, Optimizer],
        converter: Callable[..., Any] = concat_examples,
        models: Mapping[str, Link] | None = None,
        devices: Mapping[str, DeviceLike] | None = None,
        loss_func: Callable[..., Variable] | None = None,
        loss_scale: float | None = None,
        auto_new_epoch: bool = True,
    ):
        placed: Any = _check_names(models, devices)
        super().__init__(
            iterator, optimizer, converter, placed["main"], loss_func, loss_scale, auto_new_epoch
        )
        target = self.get_optimizer("main").target
        if models is not None and models["main"] is not target:
            raise ValueError(
                "ParallelUpdater: models['main'] must be the target of the main optimizer"
            )
        self._models = {"main": target}
        self._devices: dict[str, Any] = {"main": self.device}
        for name in (name for name in placed if name != "main"):
            model = target.copy("copy") if models is None else models[name]
            if placed[name] is not None:
                model.to_device(placed[name])
            self._models[name] = model
            self._devices[name] = model.device
        self._loss_funcs = {name: self._loss_func_of(model) for name, model in self._models.items()}
        self._take_over_parameters()

    def _loss_func_of(self, model):
        """Returns the counterpart of ``loss_func`` in a copy of the model."""
        target = self._models["main"]
        if self.loss_func is None or model is target:
            return self.loss_func or model
        owner = getattr(self.loss_func, "__self__", self.loss_func)
        for path, link in target.namedlinks():
            if link is owner:
                counterpart = dict(model.namedlinks())[path]
                is_method = owner is not self.loss_func
                return getattr(counterpart, self.loss_func.__name__) if is_method else counterpart
        raise ValueError(
            "ParallelUpdater: loss_func must be the model, one of its links, or a method of "
            "either, so that each device can use its own copy"
        )

    def _take_over_parameters(self):
        for name, model in self._models.items():
            if name != "main":
                with self._devices[name].create_context():
                    model.copyparams(self._models["main"])

    def step(self, batch: list[Any]) -> None:
        """Updates the main optimizer's target with one batch (a list of samples)."""
        optimizer = self.get_optimizer("main")
        optimizer.n_samples = len(batch)
        n = len(self._models)
        parts = {name: batch[i::n] for i, name in enumerate(self._models)}
        parts = {name: part for name, part in parts.items() if part}
        scales = {name: _scaled(optimizer, len(p) / len(batch)) for name, p in parts.items()}
        if any(not param.is_initialized for param in self._models["main"].params()):
            # The forward pass on the main device initializes parameters, which the other devices
            # need.
            observed = self._compute_on_main(parts["main"], scales["main"])
            self._take_over_parameters()
            futures = self._start_others(parts, scales)
        else:
            futures = self._start_others(parts, scales)
            try:
                observed = self._compute_on_main(parts["main"], scales["main"])
            finally:
                concurrent.futures.wait(futures.values())
        observations = [(len(parts["main"]), observed)]
        for name, future in futures.items():
            observations.append((len(parts[name]), future.result()))
            self._models["main"].addgrads(self._models[name])
        optimizer.update()
        self._take_over_parameters()
        report(mean_observation(observations))

    def _compute_on_main(self, part, scale):
        model, loss_func = self._models["main"], self._loss_funcs["main"]
        return compute_gradients(model, loss_func, lambda: self.convert(part), scale, collecting)

    def _start_others(self, parts, scales):
        if self._threads is None:
            self._threads = concurrent.futures.ThreadPoolExecutor(len(self._models), "update")
        settings = dict(vars(config))  # the dict copies this thread's settings
        return {
            name: self._threads.submit(self._compute_on, name, part, scales[name], settings)
            for name, part in parts.items()
            if name != "main"
        }

    def _compute_on(self, name, part, scale, settings):
        model, device = self._models[name], self._devices[name]
        with contextlib.ExitStack() as stack:
            for entry, value in settings.items():
                stack.enter_context(using_config(entry, value))
            stack.enter_context(device.create_context())
            make_batch = functools.partial(self.converter, part, device)
            scope = reporter_of({"main": model}).scope
            return compute_gradients(model, self._loss_funcs[name], make_batch, scale, scope)

    def finalize(self) -> None:
        """Finalizes the iterators and ends the threads."""
        super().finalize()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def serialize(self, serializer: AbstractSerializer) -> None:
        super().serialize(serializer)
        self._take_over_parameters()


def _check_names(models, devices) -> Any:
    """Checks names; returns the dict of devices, in which None means the model's device."""
    if models is None and devices is None:
        raise ValueError("ParallelUpdater: pass models or devices, or both")
    for kind, parts in (("models", models), ("devices", devices)):
        if parts is not None and "main" not in parts:
            raise ValueError(f"ParallelUpdater: {kind} must have a 'main', not only {list(parts)}")
    if devices is None:
        return dict.fromkeys(models)
    if models is not None and models.keys() != devices.keys():
        raise ValueError(
            "ParallelUpdater: models and devices must have the same names, not "
            f"{sorted(models)} and {sorted(devices)}"
        )
    return {name: backend.get_device(device) for name, device in devices.items()}


def _scaled(optimizer, share):
    """Returns a device's share of the samples, times the loss scale."""
    scale = optimizer.loss_scale
    return share if scale is None else share * scale
