"""Going back to a copy of the training state when ranks are lost."""

import contextlib
import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from mpchain.distributed.communicators import Communicator, create_communicator
from mpchain.distributed.recovery.copies import Copy
from mpchain.distributed.watch import NeedsRestartError, RanksLost, note
from mpchain.distributed.watch.losses import raise_loss_behind
from mpchain.serializer import AbstractSerializer, SerializationError
from mpchain.serializers import NpzDeserializer
from mpchain.training.random_states import restore_random_states, serialize_random_states

T = TypeVar("T")

SHARE = 0.005
"""The share of the time that copies may take."""


class InMemoryCheckpoint:
    """Keeps copies of a training state on all ranks; if ranks are lost, the others go back to one.

    As any number of ranks computes what one rank computes, repeating the steps since then leads to
    the results that training would have had. A :class:`~mpchain.training.Trainer` does all this by
    itself if the communicator is elastic. A program with its own loop writes::

        state = InMemoryCheckpoint(comm, {"model": model, "optimizer": optimizer, "data": batches})
        while state.is_before(1000):
            with state.step():
                optimizer.update(model, next(batches))

    On a communicator that is not elastic, nothing is copied.

    Args:
        comm: the ranks.
        objects: by name what to copy and restore, with ``serialize``: all whose state changes,
            except the generators of NumPy and Python. Models come before their optimizers.
        share: the share of the time that copies may take.

    Attributes:
        iteration: number of steps that are done.

    Example:
        >>> model = L.Linear(3, 2)
        >>> state = mpchain.distributed.InMemoryCheckpoint(comm, {"model": model})
        >>> while state.is_before(3):
        ...     with state.step():
        ...         _ = model(np.ones((1, 3), np.float32))
        >>> state.iteration
        3
    """

    def __init__(self, comm: Communicator, objects: Mapping[str, Any], share: float = SHARE):
        self.iteration = 0
        self._comm, self._share = comm, share
        self._target = objects[""] if "" in objects else _Objects(objects)
        self._copies = []
        self._next = 0  # iteration of the next copy
        self._interval = 0
        self._kept_at = None  # iteration and time of the last copy

    # Loops

    def is_before(self, n: int) -> bool:
        """Returns whether fewer than ``n`` steps are done; collective.

        Once it is False, the results are final: all ranks that are left have done all steps.
        """
        if self.iteration < n:
            return True
        try:
            self.finish()
        except RanksLost as error:
            self.go_back(error)
        return self.iteration < n

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Context manager: a step, after which the state is the earlier one if ranks are lost."""
        while True:
            try:
                self.keep(self.iteration)
                break
            except RanksLost as error:
                self.go_back(error)
        try:
            yield
            self.iteration += 1
        except RanksLost as error:
            self.go_back(error)

    # Its parts

    def keep(self, iteration: int) -> None:
        """Copies the state, if it is time to; all ranks call it at the beginning of each step.

        Args:
            iteration: the number of steps that are done.

        Raises:
            RanksLost: ranks are lost.
        """
        self.iteration = iteration
        if not self._comm.is_elastic or iteration < self._next:
            if len(self._copies) > 1 and iteration > self._copies[-1].iteration:
                del self._copies[:-1]  # all ranks have the last one
            return
        begun = time.perf_counter()
        self._copies.append(Copy.take(self._target, self._comm, iteration))
        self._agree_on_next(begun)
        del self._copies[:-2]

    def _agree_on_next(self, begun):
        now = time.perf_counter()
        per_step = 0.0
        if self._kept_at is not None and self.iteration > self._kept_at[0]:
            per_step = (begun - self._kept_at[1]) / (self.iteration - self._kept_at[0])
        measured = self._comm.allgather_obj((now - begun, per_step))
        seconds, per_step = (max(column) for column in zip(*measured, strict=True))
        longest = max(2 * self._interval, 1)
        wanted = math.ceil(seconds / (self._share * per_step)) if per_step else 1
        self._interval = min(wanted, longest)
        self._next = self.iteration + self._interval
        self._kept_at = self.iteration, time.perf_counter()

    def finish(self) -> None:
        """Agrees that all ranks have done all steps; collective.

        Raises:
            RanksLost: ranks were lost before.
        """
        self._comm.agree()

    def go_back(self, error: Exception, prepare: Callable[[], None] | None = None) -> int:
        """Continues with the ranks that are left, from the latest copy that all of them have.

        Args:
            error: what was raised on this rank.
            prepare: function that is called before the state is restored.

        Returns:
            The iteration of the copy.

        Raises:
            Exception: ``error``, unless it is a loss of ranks or follows from one.
            RuntimeError: training cannot continue without the lost ranks; the message says why.
        """
        raise_loss_behind(error)
        if not isinstance(error, RanksLost):
            raise error
        begun, reached, known = time.perf_counter(), self.iteration, dict(self._comm.lost_ranks)
        while True:
            try:
                all_go_back = self._comm.shrink(goes_back=bool(self._copies))
                if all_go_back:
                    self._restore(prepare)
                    break
            except RanksLost:  # others, meanwhile
                continue
            error.add_note("lost before each rank had a copy of the state: see run_elastic")
            error.has_shrunk = True
            raise error
        if self._comm.rank == 0:
            self._tell(known, reached, time.perf_counter() - begun)
        return self.iteration

    def _restore(self, prepare):
        held = [copy.place for copy in self._copies]
        common = set(held).intersection(*self._comm.allgather_obj(held))
        latest = held.index(max(common))
        del self._copies[latest + 1 :]
        copy = self._copies[latest]
        if prepare is not None:
            prepare()
        copy.restore_settings()
        for dependent in list(self._comm.dependents):
            dependent.fit_to_ranks()
        try:
            NpzDeserializer(copy.values_for(self._comm)).load(self._target)
        except SerializationError as error:
            note("restart", cause=str(error))
            raise NeedsRestartError(
                f"InMemoryCheckpoint: training cannot continue without the lost ranks: {error}; "
                "start it again from its last checkpoint"
            ) from error
        self.iteration = self._next = copy.iteration
        self._interval, self._kept_at = 0, None

    def _tell(self, known, reached, seconds):
        n = reached - self.iteration
        lost = {r: cause for r, cause in self._comm.lost_ranks.items() if r not in known}
        note("recovered", ranks=list(lost), iterations=n, seconds=seconds)
        where = f"went back {n} iterations to {self.iteration}"
        _print_loss(self._comm, lost, f"{where} in {seconds:.2f} s")


def _print_loss(comm, lost, what_follows):
    names = ", ".join(f"rank {rank} ({cause})" for rank, cause in sorted(lost.items()))
    text = f"mpchain: lost {names}; {comm.size} left; {what_follows}"
    print(text, file=sys.stderr, flush=True)


def run_elastic(main: Callable[[Communicator], T], **options: Any) -> T:
    """Calls a function with an elastic communicator; from the start if ranks are lost too early.

    Training itself goes back to a copy of its state by a :class:`~mpchain.training.Trainer` or an
    :class:`InMemoryCheckpoint`. Until these have the first copy, and after training, the ranks that
    are left call ``main`` again.

    Args:
        main: the program: it makes model, data, optimizer and trainer of the communicator.
        options: arguments of :func:`~mpchain.create_communicator`.

    Returns:
        What ``main`` returns.

    Example:
        >>> from mpchain import distributed
        >>> distributed.run_elastic(lambda comm: comm.size, elastic=False)
        1
    """
    comm = create_communicator(**{"elastic": True} | options)
    while True:
        try:
            return main(comm)
        except RanksLost as error:
            has_shrunk = error.has_shrunk
        gc.collect()  # what main has made
        if not has_shrunk:
            comm.shrink(goes_back=False)
        if comm.rank == 0:
            _print_loss(comm, comm.lost_ranks, "started anew")
        comm = comm.renewed()


class _Objects:
    """Saves and restores several objects by name, and the states of random generators."""

    def __init__(self, objects):
        self._objects = dict(objects)

    def serialize(self, serializer: AbstractSerializer) -> None:
        for name, obj in self._objects.items():
            obj.serialize(serializer[name])
        restore_random_states(serialize_random_states(serializer["_random"], [], 0), [])


def in_memory_checkpoint(self: Communicator, objects: Mapping[str, Any]) -> InMemoryCheckpoint:
    """Returns what keeps copies of the objects' state while these ranks train.

    >>> comm.in_memory_checkpoint({"model": L.Linear(3, 2)}).iteration
    0
    """
    return InMemoryCheckpoint(self, objects)


Communicator.in_memory_checkpoint = in_memory_checkpoint
