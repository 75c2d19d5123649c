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

# Seconds after which finalizers are taken to hang, so that the traceback is printed.
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
    3. until the stop trigger fires: the updater updates once; then extensions whose trigger
       fires are called, by descending priority, in the order of :meth:`extend` where it is equal;
    4. if an exception leaves the loop, every extension's ``on_error`` is called;
    5. every extension and the updater are finalized; the exception, if any, is raised again.

    Ctrl-C and SIGTERM end training after the running iteration: then the exception of step 4 is a
    KeyboardInterrupt or a SystemExit. A second signal raises KeyboardInterrupt or SystemExit at
    once. Uncaught, only that second Ctrl-C prints a traceback.

    A trainer that was loaded from a snapshot continues where the snapshot was taken. This includes
    progress, triggers, extensions, :attr:`elapsed_time` and, when :meth:`run` begins its loop, the
    random generators of NumPy, Python and ``config.rng`` (see
    ``mpchain.training.random_states`` for CuPy's). Extensions that were to be called after the
    one that took the snapshot are called first. If the trainer has reached the length that the stop
    trigger's ``get_training_length`` returns, it stops at once and prints a line.

    On several ranks, make the same trainer on each, with the same extensions. Extensions that only
    show or write results (:attr:`Extension.is_report`) are then called only on rank 0, and only
    rank 0 writes the file of a :class:`~mpchain.training.extensions.LogReport`.

    With ``test=True``, :meth:`run` finds out in seconds whether a program works: it does two
    iterations, whatever the stop trigger says. After the second one, every extension is called,
    and every interval ends (``(n, unit)``). Evaluators use two batches. The folder ``out`` of this
    run is an empty temporary one, and nothing in it is saved. But the model is trained, and files
    that the program itself writes elsewhere stay.

    Args:
        updater: an :class:`Updater`.
        stop_trigger: ``(period, unit)``, or a function of the trainer that returns whether to
            stop; None means never.
        out: folder for the files that extensions write.
        extensions: extensions to add; see :meth:`extend`.
        test: whether :meth:`run` only tries out the program.

    Attributes:
        updater: the updater.
        stop_trigger: the trigger that ends training.
        observation: dict of the values reported in the current iteration.
        reporter: the :class:`Reporter` that collects them.
        out: the folder for files.
        is_test: whether :meth:`run` only tries out the program.
        calls_all: whether this is the last iteration of a test, in which intervals end.
        is_interrupted: whether Ctrl-C or SIGTERM has ended training after a complete iteration.
        is_resumed: whether the trainer was loaded from a snapshot.
        writes_reports: whether this process shows and writes results. It is False if a multi-node
            optimizer's communicator has a rank other than 0 here. Set it to True before
            :meth:`run` to let each rank write into its own folder.

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
        self._outstanding = []  # names of the extensions still to be called in this iteration
        self._random_states = {}
        updater.connect_trainer(self)
        for extension in extensions or ():
            self.extend(extension)

    @property
    def elapsed_time(self) -> float:
        """Seconds spent in training, including runs before a resumed snapshot."""
        if self._final_elapsed_time is not None:
            return self._final_elapsed_time
        if self._started_at is None:
            return self._earlier_elapsed_time
        return self._earlier_elapsed_time + time.perf_counter() - self._started_at

    @property
    def is_before_training(self) -> bool:
        """Whether no update has been done yet, including runs before a resumed snapshot."""
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
                the function's name. A name that is taken gets a suffix: ``_1``, ``_2``, ...
            trigger: when to call it; None means the extension's ``trigger``, or each iteration.
            priority: see :class:`Extension`; None means the extension's, or ``PRIORITY_READER``.
            call_before_training: whether to call it also once before the loop starts.

        Raises:
            TypeError: the extension cannot be called.
            ValueError: it has no name, or its trigger is invalid.
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
        """The extensions by name."""
        return {name: entry.extension for name, entry in self._entries.items()}

    def get_extension(self, name: str) -> Any:
        """Returns the extension of that name.

        Raises:
            ValueError: there is none.
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
                also its traceback if extensions and updater take more than a second to finalize.
                Python prints the traceback of an uncaught exception after that.

        Raises:
            RuntimeError: the trainer was run before.
        """
        if self._started_at is not None:
            raise RuntimeError("Trainer.run: a trainer runs once; make another to train again")
        keep_freed_memory()
        add_launched_page(self)
        if not self.is_test:
            self._run(show_loop_exception_msg)
            return
        out = self.out
        with folder_to_discard(out) as self.out:
            self._run(show_loop_exception_msg)
            self.updater.agree_on_signal(None)  # waits until all ranks have finished writing
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
        """Returns the copies of the state that ranks continue from when others are lost."""
        for comm in self._communicators():
            if comm.is_elastic:
                return comm.in_memory_checkpoint({"": self})
        return _NoCopies()

    def _communicators(self):
        optimizers = self.updater.get_all_optimizers().values()
        communicators = [optimizer.communicator for optimizer in optimizers]
        return [comm for comm in communicators if comm is not None]

    def _go_back(self, copies, error, entries):
        """Continues from a copy with the surviving ranks; raises ``error`` if none is lost."""
        elapsed_time = self.elapsed_time
        copies.go_back(error, functools.partial(self._fit_to_ranks, entries))
        self._earlier_elapsed_time, self._started_at = elapsed_time, time.perf_counter()
        restore_random_states(self._random_states, self._device_ids())

    def _fit_to_ranks(self, entries):
        """Tells extensions that ranks are lost; a new rank 0 begins to write reports."""
        before = list(filter(self._calls, entries.values()))
        if self._writes_by_rank:
            self.writes_reports = self._is_rank_0()
        for entry in filter(self._calls, entries.values()):
            hook = "on_ranks_lost" if entry in before else "initialize"
            (getattr(entry.extension, hook, None) or _ignore)(self)

    def _is_rank_0(self):
        return not any(comm.rank for comm in self._communicators())

    def _call_extensions(self, entries, names):
        """Calls the extensions whose triggers fire."""
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
        """Returns the (length, unit) that the stop trigger knows, if training has reached it."""
        length = interval.training_length(self.stop_trigger)
        return length if length and interval.has_reached(self.updater, *length) else None

    def _what_is_done(self):
        length = self._length_done()
        if length is None:
            return f"the stop trigger fires, {self.updater.iteration} iterations are done"
        n, unit = length
        return f"{min(interval.progress(self.updater, unit), n):g} of {n:g} {unit}s are done"

    def serialize(self, serializer: AbstractSerializer) -> None:
        """Saves or restores the updater, the triggers, the extensions and the elapsed time."""
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
            # An extension may load a snapshot (autoload) when the clock is already running.
            if self._started_at is not None:
                self._started_at = time.perf_counter()
            # The stop trigger has not seen the iteration that the snapshot ended with.
            self.observation = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in observation.items()
            }
            self._outstanding = outstanding

    def _device_ids(self):
        """Returns the ids of the GPUs that the models are on."""
        optimizers = self.updater.get_all_optimizers().values()
        devices = {optimizer.target.device for optimizer in optimizers}
        return sorted(d.device.id for d in devices if isinstance(d, backend.GpuDevice))


class _NoCopies:
    """Stands for the copies of ranks that cannot be lost."""

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
    """The entries of an observation that summaries accept: numbers, or pairs of them, for JSON."""
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
    """Stands for a hook that a plain function lacks."""


def _call_all(hooks, error):
    """Calls every hook, even after one has raised.

    Their exceptions are noted on ``error``, the exception that ends training; if that is None, the
    first of them is raised.
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
    # A finalizer that never returns must not hide where the exception was raised.
    alarm = threading.Timer(TIME_TO_FINALIZE, traceback.print_exception, [error])
    alarm.daemon = True
    alarm.start()
    return alarm
