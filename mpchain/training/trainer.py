"""The training loop."""

import dataclasses
import functools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable

from mpchain import backend
from mpchain.reporter import Reporter, is_scalar
from mpchain.training.extension import PRIORITY_READER, Extension
from mpchain.training.interruption import Interruption
from mpchain.training.progress import print_line
from mpchain.training.random_states import restore_random_states, serialize_random_states
from mpchain.training.states import is_loading, serialize_optional
from mpchain.training.triggers.interval import (
    get_trigger,
    has_reached,
    progress,
    training_length,
)


@dataclasses.dataclass(frozen=True)
class _Entry:
    extension: Callable
    trigger: Callable
    priority: float
    call_before_training: bool


class Trainer:
    """Runs an updater until a trigger says stop, and calls extensions in between.

    :meth:`run` does this:

    1. the folder ``out`` is created; every extension is initialized, by descending priority;
    2. extensions added with ``call_before_training`` are called;
    3. until the stop trigger fires: the updater updates once; then extensions whose trigger
       fires are called, by descending priority, in the order of :meth:`extend` where it is equal;
    4. if an exception leaves the loop, every extension's ``on_error`` is called;
    5. every extension and the updater are finalized; the exception, if any, is raised again.

    Ctrl-C and SIGTERM end training after the running iteration: then step 4 has an exception that
    is a KeyboardInterrupt or a SystemExit. A second one raises KeyboardInterrupt or SystemExit at
    once, wherever the program is. Uncaught, none but that second Ctrl-C prints a traceback.

    A trainer that was loaded from a snapshot goes on where the snapshot was taken: progress,
    triggers, extensions, :attr:`elapsed_time` and, when :meth:`run` begins its loop, the random
    generators of NumPy, Python and ``config.rng`` (see :mod:`mpchain.training.random_states` for
    CuPy's) included. Extensions whose turn came after the one that took the snapshot have it
    first. If the trainer was trained as long as the stop trigger's ``get_training_length`` says,
    it stops at once and says so.

    Args:
        updater: an :class:`Updater`.
        stop_trigger: ``(period, unit)``, or a function of the trainer that returns whether to
            stop; None means never.
        out: folder for the files that extensions write.
        extensions: extensions to add; see :meth:`extend`.

    Attributes:
        updater: the updater.
        stop_trigger: the trigger that ends training.
        observation: dict of the values reported in the current iteration.
        reporter: the :class:`Reporter` that collects them.
        out: the folder for files.
    """

    def __init__(self, updater, stop_trigger=None, out="result", extensions=None):
        self.updater = updater
        self.stop_trigger = get_trigger(stop_trigger)
        self.observation = {}
        self.out = out
        self.reporter = Reporter()
        for name, optimizer in updater.get_all_optimizers().items():
            self.reporter.add_observer(name, optimizer.target)
            self.reporter.add_observers(name, optimizer.target.namedlinks(skipself=True))
        self._entries = {}
        self._started_at = None
        self._earlier_elapsed_time = 0.0
        self._final_elapsed_time = None
        self._is_interrupted = self._is_resumed = False
        self._outstanding = []  # names of the extensions whose turn in this iteration is to come
        self._random_states = {}
        updater.connect_trainer(self)
        for extension in extensions or ():
            self.extend(extension)

    @property
    def elapsed_time(self) -> float:
        """Seconds spent in training, runs before a resumed snapshot included."""
        if self._final_elapsed_time is not None:
            return self._final_elapsed_time
        if self._started_at is None:
            return self._earlier_elapsed_time
        return self._earlier_elapsed_time + time.perf_counter() - self._started_at

    @property
    def is_before_training(self) -> bool:
        """Whether nothing was updated yet, before a resumed snapshot included."""
        return self.updater.iteration == 0

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C or SIGTERM has ended training after a complete iteration."""
        return self._is_interrupted

    @property
    def is_resumed(self) -> bool:
        """Whether the trainer was loaded from a snapshot."""
        return self._is_resumed

    def extend(
        self, extension, name=None, trigger=None, priority=None, *, call_before_training=False
    ):
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
            ValueError: it has no name, or the trigger is none.
        """
        _check_extension(extension)
        name = self._free_name(name or _default_name(extension))
        trigger = _first_given(trigger, getattr(extension, "trigger", None), Extension.trigger)
        priority = _first_given(priority, getattr(extension, "priority", None), PRIORITY_READER)
        entry = _Entry(extension, get_trigger(trigger), priority, call_before_training)
        if isinstance(extension, Extension):
            extension.name = name
        self._entries[name] = entry

    def _free_name(self, name):
        if name == "training":
            raise ValueError("Trainer.extend: an extension must not be named 'training'")
        free, number = name, 0
        while free in self._entries:
            number += 1
            free = f"{name}_{number}"
        return free

    def get_extension(self, name):
        """Returns the extension of that name.

        Raises:
            ValueError: there is none.
        """
        if name not in self._entries:
            known = ", ".join(map(repr, self._entries)) or "none"
            raise ValueError(
                f"Trainer.get_extension: there is no extension named {name!r}; known: {known}"
            )
        return self._entries[name].extension

    def run(self, show_loop_exception_msg=True):
        """Runs the training loop; see the class for what it does in which order.

        Args:
            show_loop_exception_msg: whether to print an exception's traceback at once, so that it
                is seen even if a finalizer does not return.

        Raises:
            RuntimeError: the trainer was run before.
        """
        if self._started_at is not None:
            raise RuntimeError("Trainer.run: a trainer runs once; make another to train again")
        os.makedirs(self.out, exist_ok=True)
        self._started_at = time.perf_counter()
        entries = dict(
            sorted(self._entries.items(), key=lambda item: item[1].priority, reverse=True)
        )
        error = None
        with Interruption() as interruption:
            try:
                self._train(entries, interruption)
            except BaseException as raised:
                error = raised
                if show_loop_exception_msg and isinstance(error, Exception):
                    _print_exception(error)
                _call_all(_hooks(entries, "on_error", self, error, error.__traceback__), error)
                raise
            finally:
                self._final_elapsed_time = self.elapsed_time
                finalizers = _hooks(entries, "finalize")
                finalizers.append(("finalize of the updater", self.updater.finalize))
                _call_all(finalizers, error)

    def _train(self, entries, interruption):
        for entry in entries.values():
            getattr(entry.extension, "initialize", _ignore)(self)
        for entry in entries.values():
            if entry.call_before_training:
                entry.extension(self)
        restore_random_states(self._random_states, self._device_ids())
        with self.reporter.scope(self.observation):
            self._call_extensions(entries, [name for name in entries if name in self._outstanding])
        n_before = self.updater.iteration
        while not (self._ends_by_signal(interruption) or self._is_over()):
            self.observation = {}
            with self.reporter.scope(self.observation):
                self.updater.update()
                self._call_extensions(entries, list(entries))
        if self._is_interrupted:
            interruption.raise_for(interruption.number)
        if self.updater.iteration == n_before > 0 and self._is_on_first_rank():
            print_line(f"{self._what_is_done()}: there is nothing left to train")

    def _call_extensions(self, entries, names):
        """Calls those of these extensions whose trigger fires."""
        for i, name in enumerate(names):
            self._outstanding = names[i + 1 :]
            if entries[name].trigger(self):
                entries[name].extension(self)

    def _ends_by_signal(self, interruption):
        number = self.updater.agree_on_signal(interruption.number)
        if number is not None:
            interruption.number = number
            self._is_interrupted = True
        return self._is_interrupted

    def _is_over(self):
        fires = self.stop_trigger(self)
        length = training_length(self.stop_trigger)
        return fires or (length is not None and has_reached(self.updater, *length))

    def _what_is_done(self):
        length = training_length(self.stop_trigger)
        if length is None or not has_reached(self.updater, *length):
            return f"the stop trigger fires, {self.updater.iteration} iterations are done"
        n, unit = length
        return f"{min(progress(self.updater, unit), n):g} of {n:g} {unit}s are done"

    def _is_on_first_rank(self):
        optimizers = self.updater.get_all_optimizers().values()
        communicators = [getattr(optimizer, "communicator", None) for optimizer in optimizers]
        return not any(getattr(communicator, "rank", 0) for communicator in communicators)

    def serialize(self, serializer):
        """Saves or restores the updater, the triggers, the extensions and the elapsed time."""
        self.updater.serialize(serializer["updater"])
        _serialize_part(self.stop_trigger, serializer["stop_trigger"])
        extensions = serializer["extensions"]
        triggers = serializer["extension_triggers"]
        for name, entry in self._entries.items():
            _serialize_part(entry.extension, extensions[name])
            _serialize_part(entry.trigger, triggers[name])
        elapsed_time = serializer("_snapshot_elapsed_time", self.elapsed_time)
        observation = _serialize_json(serializer, "_observation", _scalars(self.observation))
        outstanding = _serialize_json(serializer, "_outstanding", self._outstanding)
        self._random_states = serialize_random_states(
            serializer["_random"], self._device_ids(), self.updater.iteration
        )
        if is_loading(serializer):
            self._is_resumed = self._is_resumed or getattr(serializer, "restores", True)
            self._resume_clock(elapsed_time)
            # The stop trigger has not seen the iteration that the snapshot ended with.
            self.observation = {name: _from_numbers(value) for name, value in observation.items()}
            self._outstanding = outstanding

    def _device_ids(self):
        """The numbers of the GPUs that the models are on."""
        optimizers = self.updater.get_all_optimizers().values()
        devices = {optimizer.target.device for optimizer in optimizers}
        return sorted(d.device.id for d in devices if isinstance(d, backend.GpuDevice))

    def _resume_clock(self, elapsed_time):
        self._earlier_elapsed_time = float(elapsed_time)
        # A snapshot that an extension loads (autoload) arrives when the clock runs already.
        if self._started_at is not None:
            self._started_at = time.perf_counter()


def _check_extension(extension):
    if isinstance(extension, type):
        raise TypeError(
            f"Trainer.extend: extension must be an object, not the class {extension.__name__}; "
            f"write {extension.__name__}(...)"
        )
    if not callable(extension):
        raise TypeError(f"Trainer.extend: extension must be callable, not {extension!r}")


def _default_name(extension):
    for attribute in ("name", "default_name", "__name__"):
        name = getattr(extension, attribute, None)
        if name:
            return name
    raise ValueError(f"Trainer.extend: {extension!r} has no name of its own; pass name=...")


def _first_given(*values):
    return next(value for value in values if value is not None)


def _scalars(observation):
    """The entries of an observation that summaries take: numbers, or pairs of them, for JSON."""
    arrays = {name: _as_numbers(value) for name, value in observation.items()}
    return {name: value for name, value in arrays.items() if value is not None}


def _as_numbers(value):
    if isinstance(value, tuple):
        return (
            [_as_numbers(part) for part in value]
            if len(value) == 2 and all(map(is_scalar, value))
            else None
        )
    return float(getattr(value, "array", value)) if is_scalar(value) else None


def _from_numbers(value):
    return tuple(value) if isinstance(value, list) else value


def _serialize_json(serializer, key, value):
    return json.loads(serialize_optional(serializer, key, json.dumps(value)))


def _serialize_part(part, serializer):
    if hasattr(part, "serialize"):
        part.serialize(serializer)


def _ignore(*args):
    """Stands for a hook that an extension, being a plain function, does not have."""


def _hooks(entries, hook, *args):
    """Returns what to call for ``hook`` of every extension, with a description of each."""
    return [
        (
            f"{hook} of extension {name!r}",
            functools.partial(getattr(entry.extension, hook, _ignore), *args),
        )
        for name, entry in entries.items()
    ]


def _call_all(hooks, error):
    """Calls every hook, whatever the others raise.

    What they raise is noted on ``error``, the exception that ends training; if that is None, the
    first of theirs is raised.
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


def _print_exception(error):
    print(f"Exception in the training loop: {error}", file=sys.stderr)
    traceback.print_exception(error)
    print("Extensions and updater are finalized; then it is raised again.", file=sys.stderr)
    sys.stderr.flush()
