"""The training loop."""

import dataclasses
import functools
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Self

from mpchain import backend
from mpchain.backends.host_memory import keep_freed_memory
from mpchain.from_pytorch import OF_TRAINERS, check_arguments
from mpchain.observers import folder, span
from mpchain.reporter import is_scalar
from mpchain.serializer import AbstractSerializer
from mpchain.training.extension import PRIORITY_READER, Extension
from mpchain.training.interruption import Interruption
from mpchain.training.job import folder_to_discard
from mpchain.training.named_parts import listing, reporter_of
from mpchain.training.page_report import add_launched_page
from mpchain.training.progress import print_line
from mpchain.training.random_states import restore_random_states, serialize_random_states
from mpchain.training.states import (
    is_loading,
    parse_json,
    serialize_optional,
    serialize_part,
)
from mpchain.training.triggers import interval
from mpchain.training.triggers.interval import TriggerLike
from mpchain.training.updaters.updater import Updater
from mpchain.utils.work_clock import aside

# If finalizers take longer than this many seconds, they are assumed to hang, and the traceback is
# printed.
TIME_TO_FINALIZE = 1.0


@dataclasses.dataclass(frozen=True)
class _Entry:
    extension: Any
    trigger: Any
    priority: Any
    call_before_training: bool


class Trainer:
    """Runs an updater until the stop trigger fires, and calls extensions in between.

    :meth:`run` does this:

    1. the folder ``out`` is created; every extension is initialized, by descending priority;
    2. extensions added with ``call_before_training`` are called;
    3. until the stop trigger fires: the updater updates once; then extensions whose trigger fires
       are called, by descending priority, and in the order of :meth:`extend` if priorities are
       equal;
    4. if an exception leaves the loop, every extension's ``on_error`` is called, but not for a
       loss of ranks that :func:`~mpchain.distributed.run_elastic` handles;
    5. every extension and the updater are finalized; the exception, if any, is raised again.

    Ctrl-C and SIGTERM end training after the present iteration: then the exception of step 4 is a
    KeyboardInterrupt or a SystemExit. A second signal raises KeyboardInterrupt or SystemExit at
    once. Only that second Ctrl-C prints a traceback if it is not caught.

    A trainer that was loaded from a snapshot continues where the snapshot was taken. This includes
    progress, triggers, extensions, :attr:`elapsed_time` and, when :meth:`run` begins its loop, the
    random generators of NumPy, Python and ``config.rng`` (for CuPy's generator see
    ``mpchain.training.random_states``). If the snapshot was taken before other extensions were
    called, these are called first. If the trainer has reached the length that the stop trigger's
    ``get_training_length`` returns, it stops at once and prints a line.

    On several ranks, make the same trainer with the same extensions on each rank. Extensions that
    only show or write results (:attr:`Extension.is_report`) are then called only on rank 0, and
    only rank 0 writes the file of a :class:`~mpchain.training.extensions.LogReport`.

    With ``test=True``, :meth:`run` tests in seconds whether a program works: it runs two
    iterations, regardless of the stop trigger. After the second iteration, every extension is
    called, and every interval ends (``(n, unit)``). Evaluators use two batches. The folder ``out``
    of this run is an empty temporary folder, whose files are deleted at the end. But the model is
    trained, and files that the program itself writes elsewhere stay.

    Args:
        updater: an :class:`Updater`.
        stop_trigger: ``(period, unit)``, or a function of the trainer that returns whether to
            stop; None means never.
        out: path of the folder for the files that extensions write.
        extensions: extensions to add; see :meth:`extend`.
        test: whether :meth:`run` only tests the program.

    Attributes:
        updater: the updater.
        stop_trigger: the trigger that ends training.
        observation: dict of the values reported in the current iteration.
        reporter: the :class:`Reporter` that collects the reported values.
        out: the path of the folder for files.
        is_test: whether :meth:`run` only tests the program.
        calls_all: whether this is the last iteration of a test, in which all intervals end.
        is_interrupted: whether Ctrl-C or SIGTERM has ended training after a complete iteration.
        is_resumed: whether the trainer was loaded from a snapshot.
        writes_reports: whether this process shows and writes results. It is False on a rank other
            than 0 of a multi-node optimizer's communicator. Set it to True before :meth:`run` to
            let each rank write into its own folder.

    Example:
        >>> model = L.Classifier(L.Linear(3, 2))
        >>> data = [(np.ones(3, "f"), 0), (np.zeros(3, "f"), 1)]
        >>> iterator = mpchain.iterators.SerialIterator(data, batch_size=2)
        >>> updater = training.StandardUpdater(iterator, optimizers.SGD().setup(model))
        >>> trainer = Trainer(updater, (3, "epoch"))
        >>> trainer.extend(extensions.LogReport())
        >>> trainer.extend(extensions.PrintReport(["epoch", "iteration"]))
        >>> trainer.run()
        epoch       iteration
        1           1
        2           2
        3           3
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        check_arguments(cls, kwargs, OF_TRAINERS)
        return super().__new__(cls)

    def __init__(
        self,
        updater: Updater,
        stop_trigger: TriggerLike = None,
        out: str | os.PathLike[str] = "result",
        extensions: Iterable[Any] | None = None,
        *,
        test: bool = False,
    ) -> None:
        self.is_test, self.calls_all = test, False
        self.updater: Any = updater
        self.stop_trigger = interval.get_trigger(stop_trigger)
        self.observation: dict[str, Any] = {}
        self.out: Any = out
        optimizers = updater.get_all_optimizers()
        self.reporter = reporter_of({name: each.target for name, each in optimizers.items()})
        self._entries: dict[str, _Entry] = {}
        self._started_at = self._final_elapsed_time = None
        self._earlier_elapsed_time = 0.0
        self.is_interrupted = self.is_resumed = False
        self.writes_reports = self._is_rank_0()
        self._outstanding = []  # the extensions that are still to be called in this iteration
        self._random_states = {}
        updater.connect_trainer(self)
        for extension in extensions or ():
            self.extend(extension)

    @property
    def elapsed_time(self) -> float:
        """Seconds of training so far, including the runs before a resumed snapshot."""
        if self._final_elapsed_time is not None:
            return self._final_elapsed_time
        if self._started_at is None:
            return self._earlier_elapsed_time
        return self._earlier_elapsed_time + time.perf_counter() - self._started_at

    @property
    def is_before_training(self) -> bool:
        """Whether there was no update yet, neither in this run nor before a resumed snapshot."""
        return self.updater.iteration == 0

    def extend(
        self,
        extension: Callable[["Trainer"], Any],
        name: str | None = None,
        trigger: TriggerLike = None,
        priority: float | None = None,
        *,
        call_before_training: bool = False,
    ) -> None:
        """Adds an extension.

        Args:
            extension: an :class:`Extension`, or any function of the trainer.
            name: name in the trainer; None means the extension's ``name`` or ``default_name``, or
                the function's name. If the name exists already, it gets a suffix: ``_1``, ...
            trigger: determines when the extension is called; None means the extension's
                ``trigger``, or each iteration.
            priority: see :class:`Extension`; None means the extension's own priority, or
                ``PRIORITY_READER``.
            call_before_training: whether the extension is also called once before the loop starts.

        Raises:
            TypeError: the extension cannot be called, or its trigger has a wrong type.
            ValueError: the extension has no name or is named ``training``, or the period or the
                unit of its trigger is wrong.
        """
        if isinstance(extension, type):
            raise TypeError(
                f"Trainer.extend: extension must be an object, not the class {extension.__name__}; "
                f"write {extension.__name__}(...)"
            )
        if not callable(extension):
            raise TypeError(f"Trainer.extend: extension must be callable, not {extension!r}")
        name = self._free_name(name or _default_name(extension))
        trigger = _first_given(trigger, getattr(extension, "trigger", None), Extension.trigger)
        priority = _first_given(priority, getattr(extension, "priority", None), PRIORITY_READER)
        entry = _Entry(extension, interval.get_trigger(trigger), priority, call_before_training)
        if isinstance(extension, Extension):
            extension.name = name
        self._entries[name] = entry

    def _free_name(self, name):
        if name == "training":
            raise ValueError("Trainer.extend: an extension must not be named 'training'")
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        return next(free for free in names if free not in self._entries)

    @property
    def extensions(self) -> dict[str, Any]:
        """A dict from name to extension."""
        return {name: entry.extension for name, entry in self._entries.items()}

    def get_extension(self, name: str) -> Any:
        """Returns the extension with a name.

        Raises:
            ValueError: there is no such extension.
        """
        if name not in self._entries:
            raise ValueError(
                f"Trainer.get_extension: there is no extension named {name!r}; known: "
                f"{listing(self._entries)}"
            )
        return self._entries[name].extension

    def run(self, show_loop_exception_msg: bool = True) -> None:
        """Runs the training loop; see the class for its steps.

        Args:
            show_loop_exception_msg: whether to print at once that an exception ends the loop, and
                also its traceback if finalizing extensions and updater takes more than a second. In
                any case, Python prints the traceback of an uncaught exception after that.

        Raises:
            RuntimeError: the trainer was run before.
        """
        if self._started_at is not None:
            raise RuntimeError(
                "Trainer.run: a trainer runs only once; make another one to train again"
            )
        keep_freed_memory()
        add_launched_page(self)
        if not self.is_test:
            self._run(show_loop_exception_msg)
            return
        out = self.out
        with folder_to_discard(out) as self.out:
            self._run(show_loop_exception_msg)
            self.updater.agree_on_signal(None)  # this waits until all ranks have finished writing
        self.out = out

    def _run(self, show_loop_exception_msg):
        self._writes_by_rank = self.writes_reports == self._is_rank_0()
        self.out = folder(self.out)
        os.makedirs(self.out, exist_ok=True)
        self._started_at = time.perf_counter()
        entries = dict(sorted(self._entries.items(), key=lambda item: -item[1].priority))
        error = alarm = None
        with Interruption() as interruption:
            try:
                self._train(entries, interruption)
            except BaseException as raised:
                error = raised
                if getattr(error, "is_handled", False):
                    raise
                if show_loop_exception_msg and isinstance(error, Exception):
                    alarm = _announce(error)
                _call_all(self._hooks(entries, "on_error", self, error, error.__traceback__), error)
                raise
            finally:
                self._final_elapsed_time = self.elapsed_time
                finalizers = self._hooks(entries, "finalize")
                finalizers.append(("finalize of the updater", self.updater.finalize))
                try:
                    _call_all(finalizers, error)
                finally:
                    if alarm is not None:
                        alarm.cancel()

    def _train(self, entries, interruption):
        for entry in filter(self._calls, entries.values()):
            (getattr(entry.extension, "initialize", None) or _ignore)(self)
        for name, entry in entries.items():
            if self._calls(entry) and entry.call_before_training:
                self._call(name, entry)
        restore_random_states(self._random_states, self._device_ids())
        with self.reporter.scope(self.observation):
            self._call_extensions(entries, [name for name in entries if name in self._outstanding])
        n_before = self.updater.iteration
        copies = self._copies_of_ranks()
        while True:
            try:
                if copies.resume():
                    restore_random_states(self._random_states, self._device_ids())
                copies.keep(self.updater.iteration)
                if self._ends_by_signal(interruption) or self._is_over():
                    copies.finish()
                    break
                self._iterate(entries, n_before)
            except Exception as error:
                if isinstance(copies, _NoCopies):
                    raise
                self._go_back(copies, error, entries)
        if self.is_interrupted:
            interruption.raise_for(interruption.number)
        if self.updater.iteration == n_before > 0 and self.writes_reports:
            print_line(f"{self._what_is_done()}: there is nothing left to train")

    def _iterate(self, entries, n_before):
        self.observation = {}
        self.calls_all = self.is_test and self.updater.iteration > n_before
        with self.reporter.scope(self.observation):
            self.updater.update()
            self._call_extensions(entries, list(entries))

    def _copies_of_ranks(self):
        """Returns the copies of the state from which ranks continue when other ranks are lost."""
        for comm in self._communicators():
            if comm.is_elastic:
                return comm.in_memory_checkpoint({"": self})
        return _NoCopies()

    def _communicators(self):
        optimizers = self.updater.get_all_optimizers().values()
        communicators = [optimizer.communicator for optimizer in optimizers]
        return [comm for comm in communicators if comm is not None]

    def _go_back(self, copies, error, entries):
        """Continues from a copy with the surviving ranks; raises ``error`` if no rank is lost."""
        elapsed_time = self.elapsed_time
        copies.go_back(error, functools.partial(self._fit_to_ranks, entries))
        self._earlier_elapsed_time, self._started_at = elapsed_time, time.perf_counter()
        restore_random_states(self._random_states, self._device_ids())

    def _fit_to_ranks(self, entries):
        """Notifies extensions that ranks are lost; a new rank 0 begins to write reports."""
        before = list(filter(self._calls, entries.values()))
        if self._writes_by_rank:
            self.writes_reports = self._is_rank_0()
        for entry in filter(self._calls, entries.values()):
            hook = "on_ranks_lost" if entry in before else "initialize"
            (getattr(entry.extension, hook, None) or _ignore)(self)

    def _is_rank_0(self):
        return not any(comm.rank for comm in self._communicators())

    def _call_extensions(self, entries, names):
        """Calls those of the named extensions whose triggers fire."""
        with aside(), span("extensions", "extensions", self):
            for i, name in enumerate(names):
                self._outstanding = names[i + 1 :]
                fires = entries[name].trigger(self) or self.calls_all
                if fires and self._calls(entries[name]):
                    self._call(name, entries[name])

    def _call(self, name, entry):
        with span("extension", name, entry.extension):
            entry.extension(self)

    def _calls(self, entry):
        return self.writes_reports or not getattr(entry.extension, "is_report", False)

    def _hooks(self, entries, hook, *args):
        """Returns pairs (description, function without arguments) for a hook of every extension."""
        return [
            (
                f"{hook} of extension {name!r}",
                functools.partial(getattr(entry.extension, hook, None) or _ignore, *args),
            )
            for name, entry in entries.items()
            if self._calls(entry)
        ]

    def _ends_by_signal(self, interruption):
        number = self.updater.agree_on_signal(interruption.number)
        if number is not None:
            interruption.number = number
            self.is_interrupted = True
        return self.is_interrupted

    def _is_over(self):
        fires = self.stop_trigger(self)
        if self.is_test:
            return self.calls_all
        return fires or self._length_done() is not None

    def _length_done(self):
        """Returns (length, unit) of the stop trigger if training has reached it; otherwise None."""
        length = interval.training_length(self.stop_trigger)
        return length if length and interval.has_reached(self.updater, *length) else None

    def _what_is_done(self):
        length = self._length_done()
        if length is None:
            return f"the stop trigger fires after {self.updater.iteration} iterations"
        n, unit = length
        return f"{min(interval.progress(self.updater, unit), n):g} of {n:g} {unit}s are done"

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the updater, the triggers, the extensions, the elapsed time, the
        observation, the names of extensions that are still to be called, and the states of random
        generators."""
        self.updater.serialize(serializer["updater"])
        serialize_part(self.stop_trigger, serializer["stop_trigger"])
        extensions = serializer["extensions"]
        triggers = serializer["extension_triggers"]
        for name, entry in self._entries.items():
            if self._calls(entry):
                serialize_part(entry.extension, extensions[name])
            serialize_part(entry.trigger, triggers[name])
        elapsed_time = serializer("_snapshot_elapsed_time", self.elapsed_time)
        observation = _serialize_json(serializer, "_observation", _scalars(self.observation))
        outstanding = _serialize_json(serializer, "_outstanding", self._outstanding)
        self._random_states = serialize_random_states(
            serializer["_random"], self._device_ids(), self.updater.iteration
        )
        if is_loading(serializer):
            self.is_resumed = self.is_resumed or getattr(serializer, "restores", True)
            self._earlier_elapsed_time = float(elapsed_time)
            # An extension with autoload may load a snapshot when the clock is already running.
            if self._started_at is not None:
                self._started_at = time.perf_counter()
            # The stop trigger has not seen the observation of the last iteration before the
            # snapshot.
            self.observation = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in observation.items()
            }
            self._outstanding = outstanding

    def _device_ids(self):
        """Returns the ids of the GPUs on which the models are."""
        optimizers = self.updater.get_all_optimizers().values()
        devices = {optimizer.target.device for optimizer in optimizers}
        return sorted(d.device.id for d in devices if isinstance(d, backend.GpuDevice))


class _NoCopies:
    """Replaces the copies of the state if ranks cannot be lost."""

    def resume(self):
        return False

    def keep(self, iteration):
        pass

    def finish(self):
        pass


def _default_name(extension):
    names = (getattr(extension, key, None) for key in ("name", "default_name", "__name__"))
    if not (name := next(filter(None, names), None)):
        raise ValueError(f"Trainer.extend: {extension!r} has no name; pass name=...")
    return name


def _first_given(*values):
    return next(value for value in values if value is not None)


def _scalars(observation):
    """Returns the entries of an observation that summaries accept, in JSON types: numbers, or pairs
    of numbers."""
    found = {}
    for name, value in observation.items():
        is_pair = isinstance(value, tuple) and len(value) == 2
        parts = value if is_pair else (value,)
        if all(map(is_scalar, parts)):
            numbers = [float(getattr(part, "array", part)) for part in parts]
            found[name] = numbers if is_pair else numbers[0]
    return found


def _serialize_json(serializer, key, value):
    return parse_json(serialize_optional(serializer, key, json.dumps(value)), type(value))


def _ignore(*args):
    """Replaces a hook that a plain function does not have."""


def _call_all(hooks, error):
    """Calls every hook, even if an earlier hook has raised an exception.

    The exceptions of hooks are noted on ``error``, the exception that ends training; if it is None,
    the first exception of a hook is raised.
    """
    first = error
    for description, hook in hooks:
        try:
            hook()
        except BaseException as raised:
            if first is None:
                first = raised
            else:
                first.add_note(f"{description} failed as well: {raised!r}")
    if error is None and first is not None:
        raise first


def _announce(error):
    """Prints that an exception ends training; returns the timer that prints its traceback."""
    print(
        f"Exception in the training loop: {type(error).__name__}: {error}\n"
        "Finalizing extensions and updater before re-raising.",
        file=sys.stderr,
        flush=True,
    )
    # If a finalizer never returns, the traceback must be printed nevertheless.
    alarm = threading.Timer(TIME_TO_FINALIZE, traceback.print_exception, [error])
    alarm.daemon = True
    alarm.start()
    return alarm
