"""The updater that uses several devices, and starts a process for each."""

import contextlib
import dataclasses
import functools
import pickle
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import util
from typing import Any

import numpy as np

from mpchain import backend
from mpchain.backends import cuda
from mpchain.backends.nccl_bindings import find_binding
from mpchain.configuration import Mixed16, global_config
from mpchain.dataset import Iterator, concat_examples
from mpchain.distributed.communicators import Communicator, processes
from mpchain.iterators.worker import Worker, get_context, peek_at_random_state
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.reporter import report
from mpchain.serializer import AbstractSerializer, Deserializer
from mpchain.serializers import DictionarySerializer, NpzDeserializer
from mpchain.training.named_parts import reporter_of
from mpchain.training.updaters import replica
from mpchain.training.updaters.standard import StandardUpdater
from mpchain.typing import DeviceLike
from mpchain.utils.flat_layout import layouts


class MultiprocessParallelUpdater(StandardUpdater):
    """Updates the optimizer's target with gradients that several processes compute.

    One command starts all processes: this process uses the first device and starts a process for
    each other device. Each process has a copy of the model and its own iterator. Gradients, and
    the values that the model reports, are means over the samples of all processes, as if the
    batches were one. They are summed in shared memory or, if each process has its own GPU, by
    NCCL. Only this process has the optimizer; the other processes receive its parameters.

    An exception in a process is raised here, with its traceback, and ends the other processes; they
    also end with this process. Scripts must do their work below ``if __name__ == "__main__":``, and
    the model's classes, the datasets and the converter must be importable. Programs for several
    machines use :func:`mpchain.create_communicator`.

    Args:
        iterators: iterators over the parts of the training data
            (:func:`mpchain.datasets.split_dataset_n_random`), one for each process. This process
            uses the first iterator, which counts the epochs.
        optimizer: optimizer that was set up with its model.
        converter: see :class:`StandardUpdater`.
        devices: the devices in the order of the iterators: a list, or a dict whose ``'main'`` comes
            first. None means GPUs 0, 1, ..., if there are enough, and otherwise the CPU for each
            process.
        auto_new_epoch: see :class:`StandardUpdater`.

    Raises:
        ValueError: the numbers of iterators and devices differ or are 0, a dict of devices lacks
            ``'main'``, or GPUs and CPUs are mixed.
        TypeError: raised by the first update if an object cannot be sent to another process.

    Example:
        >>> from mpchain import iterators
        >>> model = L.Classifier(L.Linear(3, 2))
        >>> data = [(np.ones(3, np.float32), np.int32(1))] * 8
        >>> batches = [iterators.SerialIterator(data, batch_size=4)]  # one process
        >>> optimizer = optimizers.SGD().setup(model)
        >>> updater = training.updaters.MultiprocessParallelUpdater(batches, optimizer)
        >>> updater.update(); updater.finalize(); updater.epoch_detail
        0.5
    """

    def __init__(
        self,
        iterators: Iterable[Iterator],
        optimizer: Optimizer,
        converter: Callable[..., Any] = concat_examples,
        devices: Sequence[DeviceLike] | Mapping[str, DeviceLike] | None = None,
        auto_new_epoch: bool = True,
    ):
        iterators = list(iterators)
        self._devices = _as_devices(devices, len(iterators))
        super().__init__(
            iterators[0], optimizer, converter, self._devices[0], auto_new_epoch=auto_new_epoch
        )
        self._others = {str(i): iterator for i, iterator in enumerate(iterators[1:], 1)}
        self._workers, self._exchange, self._stop = None, None, None

    @staticmethod
    def available() -> bool:
        """Returns True, because the updater can always be used. (Several GPUs need NCCL.)"""
        return True

    def setup_workers(self) -> None:
        """Starts the other processes, unless they run already. The first update also does this.

        Raises:
            RuntimeError: parameters are not initialized (the first update initializes them), or
                several GPUs are used without NCCL.
            TypeError: an object cannot be sent to another process.
        """
        if self._workers is not None:
            return
        target = self.get_optimizer("main").target
        missing = [name for name, param in target.namedparams() if not param.is_initialized]
        if missing:
            raise RuntimeError(
                "MultiprocessParallelUpdater.setup_workers: parameters are not initialized; call "
                "update first, or pass the sizes of inputs to the links: "
                f"{', '.join(missing)}"
            )
        workers, place = [], _choose_communicator(self._devices)
        comm = place(0, len(self._devices), workers)
        # The finalizer also runs when the updater is collected, and before the process ends.
        self._stop = util.Finalize(self, _stop, (workers, comm), exitpriority=10)
        self._start(workers, place, target)
        self._workers = workers
        with self._ending_workers_on_error():
            self._exchange = _Exchange(comm, target)

    def _start(self, workers, place, target):
        context = get_context(None, "MultiprocessParallelUpdater")
        model = target.copy("copy").to_device("@numpy")
        settings = _plain_settings()
        seed = peek_at_random_state()
        for i, device in enumerate(self._devices[1:]):
            part = _Part(
                model,
                self._others[str(i + 1)],
                self.converter,
                device.name,
                functools.partial(place, i + 1, len(self._devices)),
                settings,
                (seed, i),
            )
            name = f"MultiprocessParallelUpdater: process {i + 1} ({device})"
            try:
                workers.append(Worker(context, name, _work, part, daemon=False))
            except BaseException as error:
                self._end_workers()
                if not isinstance(error, (pickle.PicklingError, TypeError, AttributeError)):
                    raise
                raise TypeError(
                    "MultiprocessParallelUpdater: model, iterators and converter must be "
                    f"picklable, because they are sent to other processes, but: {error} (classes "
                    "and functions must be importable, so neither lambdas nor local ones)"
                ) from error

    def _end_workers(self):
        if self._stop is not None:
            self._stop()
        self._workers, self._exchange, self._stop = None, None, None

    @contextlib.contextmanager
    def _ending_workers_on_error(self):
        try:
            yield
        except BaseException:
            self._end_workers()
            raise

    def step(self, batch: list[Any]) -> None:
        """Updates the main optimizer's target with one batch of each process."""
        with self._ending_workers_on_error():
            observed = None
            target = self.get_optimizer("main").target
            if any(not param.is_initialized for param in target.params()):
                observed = self._compute(batch)  # the first forward pass initializes parameters
            self.setup_workers()
            self._ask(_compute, self.get_optimizer("main").loss_scale)
            assert self._exchange is not None  # setup_workers has created the exchange
            self._exchange.send_parameters()
            if observed is None:
                observed = self._compute(batch)
            n_samples, others = self._exchange.average(len(batch), {})
        optimizer = self.get_optimizer("main")
        optimizer.n_samples = n_samples
        optimizer.update()
        report(replica.mean_observation([(len(batch), observed), *others]))

    def _compute(self, batch):
        optimizer = self.get_optimizer("main")
        model, scale = optimizer.target, optimizer.loss_scale
        scope = replica.collecting
        return replica.compute_gradients(model, model, lambda: self.convert(batch), scale, scope)

    def _ask(self, function, *args):
        """Makes each other process call a function with its ``_Part``, its ``_Exchange`` and these
        arguments."""
        assert self._exchange is not None  # setup_workers has created the exchange
        self._exchange.comm.bcast_obj((function, args))

    def finalize(self) -> None:
        """Ends the other processes and finalizes the iterators."""
        self._end_workers()
        super().finalize()
        for iterator in self._others.values():
            iterator.finalize()

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the state of :class:`StandardUpdater`, and the iterators of all
        processes."""
        if isinstance(serializer, Deserializer):
            self._end_workers()
        elif self._workers is not None:
            self._fetch_positions()
        super().serialize(serializer)
        for name, iterator in self._others.items():
            iterator.serialize(serializer[f"iterator:{name}"])

    def _fetch_positions(self):
        """Copies the positions of the other processes' iterators to this process's copies."""
        with self._ending_workers_on_error():
            self._ask(_save_iterator)
            assert self._exchange is not None  # setup_workers has created the exchange
            _, *states = self._exchange.comm.allgather_obj(None)
            for iterator, state in zip(self._others.values(), states):
                iterator.serialize(NpzDeserializer(state))


def _as_devices(devices, n):
    if devices is None:
        specs = range(n) if cuda.device_count() >= n else ["@numpy"] * n
    elif isinstance(devices, dict):
        if "main" not in devices:
            raise ValueError(
                f"MultiprocessParallelUpdater: devices must have a 'main', not only {list(devices)}"
            )
        specs = [devices["main"], *(x for name, x in devices.items() if name != "main")]
    else:
        specs = list(devices)
    if n == 0 or len(specs) != n:
        raise ValueError(
            "MultiprocessParallelUpdater: pass as many devices as iterators, and at least one, "
            f"not {len(specs)} devices and {n} iterators"
        )
    found = [backend.get_device(spec) for spec in specs]
    if len({type(device) for device in found}) > 1:
        raise ValueError(
            "MultiprocessParallelUpdater: devices must be all CPUs or all GPUs, not "
            f"{', '.join(map(str, found))}"
        )
    return found


def _choose_communicator(devices):
    """Returns the class or function that each process calls to make its communicator."""
    have_own = 1 < len(devices) == len({device.name for device in devices})
    if not have_own or not isinstance(devices[0], backend.GpuDevice):
        return processes.ProcessCommunicator
    try:
        return functools.partial(processes.GpuProcessCommunicator, binding=find_binding())
    except RuntimeError as error:
        raise RuntimeError(
            f"MultiprocessParallelUpdater: several GPUs need NCCL: {error}"
        ) from error


def _plain_settings():
    """Returns the entries of the configuration that can be sent to another process."""
    kinds = (bool, int, float, str, np.dtype, Mixed16, type(None))
    entries = vars(global_config).items()
    return {name: value for name, value in entries if isinstance(value, kinds)}


def _stop(workers, comm):
    for worker in workers:
        worker.hang_up()
    for worker in workers:
        worker.close()
    comm.end_work(for_good=True)  # NCCL might wait for a process that has ended


class _Exchange:
    """Sends parameters to the other processes, and gradients to this process, in one flat array for
    each dtype.

    Args:
        comm: the communicator of the processes; rank 0 has the optimizer.
        model: this process's model.
    """

    def __init__(self, comm: Communicator, model: Link):
        self.comm, self._device = comm, model.device
        self._uses_gpus = isinstance(comm, processes.GpuProcessCommunicator)
        self._params = dict(sorted(model.namedparams()))
        self._layouts = layouts(self._params.items())
        kinds = [(layout.size, comm.gradient_dtype(layout.dtype)) for layout in self._layouts]
        comm.barrier()  # NCCL would wait forever for a process that did not start
        with self._device.create_context():
            self._flat = comm.make_buffers(kinds)

    def send_parameters(self) -> None:
        """Copies the parameters of rank 0 to the other ranks."""
        with self._device.create_context():
            for layout, flat in zip(self._layouts, self._flat):
                if self.comm.rank == 0:
                    layout.fill(flat, self._arrays("array"))
                self.comm.ibcast(flat).Wait()
                if self.comm.rank > 0:
                    for name, view in layout.views(flat).items():
                        backend.copyto(self._params[name].array, view)

    def _arrays(self, attribute):
        """Returns a dict from name to the attribute's array, in host memory unless NCCL moves
        arrays."""
        arrays = {name: getattr(param, attribute) for name, param in self._params.items()}
        if self._uses_gpus:
            return arrays
        return {name: None if x is None else cuda.to_cpu(x) for name, x in arrays.items()}

    def average(self, n: int, observation: dict) -> tuple[int, list[tuple[int, dict]]]:
        """Replaces the gradients of rank 0 with the means over the samples of all ranks.

        Args:
            n: this rank's number of samples.
            observation: the values that the rank reports, on the host.

        Returns:
            The number of all samples, and a pair (number of samples, report) of each other rank.
        """
        grads = self._arrays("grad")
        own = [name for name, grad in grads.items() if grad is not None]
        numbers, names, observations = zip(*self.comm.allgather_obj((n, own, observation)))
        present, total = set().union(*names), sum(numbers)
        with self._device.create_context():
            for layout, flat in zip(self._layouts, self._flat):
                layout.fill(flat, grads, n / total)
                self.comm.iallreduce(flat).Wait()
                for name, view in layout.views(flat).items() if self.comm.rank == 0 else ():
                    if name in present:
                        param = self._params[name]
                        param.grad = param.device.send(view.astype(param.dtype))
        return total, list(zip(numbers, observations))[1:]


# The worker processes run this code.


@dataclasses.dataclass
class _Part:
    """The objects that a worker process needs to compute gradients."""

    model: Link
    iterator: Iterator
    converter: Callable
    device: str
    communicator: Callable[[Any], Communicator]
    settings: dict
    seed: tuple


def _work(pipe, part):
    np.random.seed(part.seed)
    random.seed(np.random.bytes(8))
    for name, value in part.settings.items():
        setattr(global_config, name, value)
    device = backend.get_device(part.device)
    device.use()
    part.model.to_device(device)
    exchange = _Exchange(part.communicator(pipe), part.model)
    with part.iterator:
        while True:
            function, args = exchange.comm.bcast_obj(None)
            function(part, exchange, *args)


def _compute(part, exchange, loss_scale):
    exchange.send_parameters()
    part.model.cleargrads()
    observation = {}
    try:
        batch = part.iterator.next()
    except StopIteration:  # this process has no samples left, but must take part
        batch = []
    if batch:
        model, device = part.model, backend.get_device(part.device)
        make_batch = functools.partial(part.converter, batch, device)
        scope = reporter_of({"main": model}).scope
        observation = replica.compute_gradients(model, model, make_batch, loss_scale, scope)
    exchange.average(len(batch), replica.as_host_values(observation))


def _save_iterator(part, exchange):
    saved = DictionarySerializer()
    part.iterator.serialize(saved)
    exchange.comm.allgather_obj(saved.target)
