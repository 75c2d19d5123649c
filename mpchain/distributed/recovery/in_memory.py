"""Restores a copy of the training state when ranks are lost."""

import contextlib
import gc
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from mpchain.distributed.communicators import Communicator, create_communicator
from mpchain.distributed.communicators.environment import n_spares
from mpchain.distributed.recovery.copies import Copy
from mpchain.distributed.recovery.spares import NO_LOSS, Spares
from mpchain.distributed.watch import NeedsRestartError, RanksLost, note
from mpchain.distributed.watch.losses import raise_loss_behind
from mpchain.serializer import AbstractSerializer, SerializationError
from mpchain.serializers import NpzDeserializer
from mpchain.training.random_states import restore_random_states, serialize_random_states

T = TypeVar("T")

SHARE = 0.005
"""The share of the training time that copies may take."""


class InMemoryCheckpoint:
    """Keeps copies of a training state on all ranks; after a loss of ranks, the other ranks restore
    one.

    The results do not depend on the number of ranks, so the repeated steps since the copy lead to
    the results that training would have had if no rank had been lost. A
    :class:`~mpchain.training.Trainer` uses this class by itself if the communicator is elastic. A
    program with its own loop writes::

        state = InMemoryCheckpoint(comm, {"model": model, "optimizer": optimizer, "data": batches})
        while state.is_before(1000):
            with state.step():
                optimizer.update(model, next(batches))

    On a communicator that is not elastic, nothing is copied.

    Args:
        comm: the communicator of the ranks.
        objects: the objects to copy and restore, by name; each has ``serialize``. Pass all objects
            whose state changes, except the random generators of NumPy and Python. Models must come
            before their optimizers.
        share: the share of the training time that copies may take.

    Attributes:
        iteration: the number of completed steps.

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
        spares = comm.spares
        self._copies = [] if spares is None else spares.copies_of_next()
        self._resumes = spares is not None and spares.resumes
        self._next = 0  # the iteration of the next copy
        self._interval = 0
        self._kept_at = None  # the iteration and time of the latest copy

    @property
    def latest(self) -> int | None:
        """The iteration of the latest copy, to which training may go back after a loss of ranks;
        None without a copy."""
        return self._copies[-1].iteration if self._copies else None

    @property
    def interval(self) -> int:
        """The number of steps from the latest copy to the next copy."""
        return self._interval

    # These methods serve a program's own loop.

    def is_before(self, n: int) -> bool:
        """Returns whether fewer than ``n`` steps are done; collective.

        When the result is False, the results of training are final: all surviving ranks have done
        all steps.
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
        """Context manager for a step; if ranks are lost in it, restores an earlier copy of the
        state."""
        while True:
            try:
                self.resume()
                self.keep(self.iteration)
                break
            except RanksLost as error:
                self.go_back(error)
        try:
            yield
            self.iteration += 1
        except RanksLost as error:
            self.go_back(error)

    # A trainer calls these methods, which are the parts of `step` and `is_before`.

    def resume(self) -> bool:
        """Continues from the state of other ranks after this or another rank has replaced a lost
        rank.

        Must be called before :meth:`keep`.

        Returns:
            Whether an earlier copy of the state was restored.

        Raises:
            RanksLost: ranks are lost again.
        """
        if not self._resumes:
            return False
        has_state, (copies, reached, begun) = self._restore(None), self._comm.spares.loss
        told = (reached, time.perf_counter() - begun) if copies is self._copies else (None, 0.0)
        told = [x for x in self._comm.allgather_obj(told) if x[0] is not None]
        self._resumes, self._comm.spares.loss = False, NO_LOSS
        if self._comm.rank == 0 and told:
            reached, seconds = map(max, zip(*told, strict=True))
            _print(self._tell(self._comm.spares.lost, reached, seconds))
        return has_state

    def keep(self, iteration: int) -> None:
        """Copies the state, if a copy is due; all ranks must call it at the beginning of each step.

        Args:
            iteration: the number of completed steps.

        Raises:
            RanksLost: ranks are lost.
        """
        self.iteration = iteration
        if not self._comm.is_elastic or iteration < self._next:
            if len(self._copies) > 1 and iteration > self._copies[-1].iteration:
                del self._copies[:-1]  # all ranks have the latest copy
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
        if self._comm.spares is not None:
            self._comm.spares.note_refusals(self._comm)
        self._comm.agree()

    def go_back(self, error: Exception, prepare: Callable[[], None] | None = None) -> int:
        """Continues with the surviving ranks, from the latest copy that all of them have.

        Args:
            error: the error that was raised on this rank.
            prepare: function that is called before the state is restored.

        Returns:
            The iteration of the copy.

        Raises:
            Exception: ``error``, if no loss of ranks caused it, if spare ranks will take the places
                of the lost ranks, or if the surviving ranks have no copy.
            RuntimeError: training cannot continue without the lost ranks; the message says why.
        """
        raise_loss_behind(error, in_collective=False)
        if not isinstance(error, RanksLost):
            raise error
        begun, reached, known = time.perf_counter(), self.iteration, dict(self._comm.lost_ranks)
        if self._comm.spares is not None and self._comm.spares.n:
            if not self._resumes:
                self._comm.spares.loss = self._copies, reached, begun
            error.is_handled = True
            raise error
        while True:
            try:
                all_go_back = self._comm.shrink(goes_back=bool(self._copies))
                if all_go_back:
                    self._restore(prepare)
                    break
            except RanksLost:  # other ranks were lost meanwhile
                continue
            error.add_note("lost before each rank had a copy of the state: see run_elastic")
            error.has_shrunk = True
            raise error
        if self._comm.rank == 0:
            lost = {r: cause for r, cause in self._comm.lost_ranks.items() if r not in known}
            _print_loss(lost, self._comm, self._tell(lost, reached, time.perf_counter() - begun))
        return self.iteration

    def _restore(self, prepare):
        """Restores the latest copy that all ranks with copies have; returns whether there is such a
        copy."""
        comm, held = self._comm, [copy.place for copy in self._copies]
        all_held = comm.allgather_obj(held)
        common = [set(places) for places in all_held if places]
        if not common:
            return False
        latest = max(set.intersection(*common))
        if not all(all_held):
            root = next(rank for rank, places in enumerate(all_held) if latest in places)
            mine = self._copies[held.index(latest)] if comm.rank == root else None
            received = comm.bcast_obj(mine and mine.without_arrays(), root=root)
            if not held:
                held, self._copies[:] = [latest], [received]
        del self._copies[held.index(latest) + 1 :]
        copy = self._copies[-1]
        if prepare is not None:
            prepare()
        copy.restore_settings(comm)
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
        return True

    def _tell(self, lost, reached, seconds):
        """Reports the cost of a loss to the launcher; returns the report as text."""
        n = reached - self.iteration
        note("recovered", ranks=list(lost), iterations=n, seconds=seconds)
        return f"went back {n} iterations to {self.iteration} in {seconds:.2f} s"


def _print_loss(lost, comm, what_follows):
    names = ", ".join(f"rank {rank} ({cause})" for rank, cause in sorted(lost.items()))
    _print(f"lost {names}; {comm.size} left; {what_follows}")


def _print(text):
    print(f"mpchain: {text}", file=sys.stderr, flush=True)


def run_elastic(main: Callable[[Communicator], T], **options: Any) -> T:
    """Calls a function with an elastic communicator, and again if ranks are lost too early.

    A :class:`~mpchain.training.Trainer` or an :class:`InMemoryCheckpoint` restores a copy of the
    training state. If ranks are lost before these have the first copy, or after training, the
    surviving ranks call ``main`` again.

    If the job has spare ranks (``mpchain-launch --spares``), they wait in this function. When they
    replace lost ranks, all ranks call ``main`` again, which then continues from copies of its
    state.

    Args:
        main: function of the communicator that makes model, data, optimizer and trainer, and
            trains.
        options: arguments of :func:`~mpchain.create_communicator`.

    Returns:
        The result of ``main``. Spare ranks that are not needed exit here with SystemExit.

    Example:
        >>> from mpchain import distributed
        >>> distributed.run_elastic(lambda comm: comm.size, elastic=False)
        1
    """
    options = {"elastic": True} | options
    if n := n_spares():
        return _run_with_spares(main, Spares(n, options))
    comm = create_communicator(**options)
    while True:
        try:
            return main(comm)
        except RanksLost as error:
            has_shrunk = error.has_shrunk
        gc.collect()  # the objects of `main` are freed
        if not has_shrunk:
            comm.shrink(goes_back=False)
        if comm.rank == 0:
            _print_loss(comm.lost_ranks, comm, "started anew")
        comm = comm.renewed()


def _run_with_spares(main, spares) -> Any:
    comm = spares.begin()
    while True:
        if comm.rank == 0 and spares.resumes:
            pairs = spares.replaced.items()
            taken = [f"rank {rank} takes the place of rank {lost}" for lost, rank in pairs]
            _print_loss(spares.lost, comm, "; ".join([*taken, "starting again"]))
        has_finished, result = False, None
        try:
            result = main(comm)
            spares.wait_for_all(comm)
            has_finished = True
        except RanksLost:
            spares.note_refusals(comm)
        except BaseException:
            spares.dismiss()
            raise
        gc.collect()  # the objects of `main` are freed
        comm = spares.begin_again(comm, has_finished=has_finished)
        if comm is None:
            return result


class _Objects:
    """Saves and restores several objects by name, and the states of random generators."""

    def __init__(self, objects):
        self._objects = dict(objects)

    def serialize(self, serializer: AbstractSerializer) -> None:
        for name, obj in self._objects.items():
            obj.serialize(serializer[name])
        restore_random_states(serialize_random_states(serializer["_random"], [], 0), [])
