"""The message of scalars that ranks sum in every step, besides gradients."""

import functools
import hashlib
import operator
import signal
import struct
import sys
import warnings
import zlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from mpchain.backends import cuda
from mpchain.distributed.communicators import Communicator
from mpchain.reporter import OfWeighted
from mpchain.training.progress import print_line
from mpchain.typing import Array
from mpchain.utils.work_clock import clocks
from mpchain.variable import Parameter

COPY_STATE = "copy the state"
"""Flag: a rank asks all ranks to copy their state after this iteration."""

WARN = "warn"
"""Flag: a rank asks rank 0 to issue the warning passed to :meth:`Control.tell`."""

COPY_PERSISTENTS = "copy persistent values"
"""Flag: a rank with too few samples asks for the current persistent values of the other ranks."""

FLAGS = (signal.SIGTERM, signal.SIGINT, COPY_STATE, WARN, COPY_PERSISTENTS)
"""Requests that a rank can make (:meth:`Control.ask`), in an order that all ranks share."""

TURNS = 50
"""Each rank sends its times once in at most this many messages."""

MOST_NAMES = 1000
"""Number of names above which names are forgotten whose values are no longer reported."""

SLOWER = 1.2
"""A rank is a straggler if its work takes this many times the average of the other ranks."""

COST = 10.0
"""A straggler is reported once the other ranks have waited this many seconds for it, in one
stretch."""

_STEPS = 50  # a period has at least this many steps; a stretch has at least two consecutive periods

_N_PIECES = 4  # each has 16 bits: their squares, summed over 2^20 ranks, are exact in float64
_N_OF_UPDATES = 4  # two pieces and their squares

_update_rule = operator.attrgetter("update_rule")


class Control:
    """Requests between the ranks of a communicator, and their working times.

    The requests travel with the :class:`ControlMessage` of each step of any of the communicator's
    optimizers. All ranks therefore have the same information after the same step.

    Args:
        comm: the communicator of the ranks.

    Attributes:
        times: float64 array of shape (2, size): seconds that each rank has worked, and seconds that
            it has waited for others. Each rank sends the means of its last steps once in
            ``n_turns`` steps; then the times of all ranks are added to this array.
        n_turns: the number of steps in which each rank sends its times once, at most :data:`TURNS`.
        n_messages: the number of messages that were received.
        n_numbers: the number of elements that ``Control`` uses at the beginning of a message.

    Example:
        >>> control = Control.of(comm)
        >>> control.ask(COPY_STATE)  # on any rank
        >>> message = ControlMessage(comm)  # the optimizer has one
        >>> _ = message.begin()  # a step does this
        >>> _ = message.wait()
        >>> control.take(COPY_STATE), control.take(COPY_STATE)  # on all ranks
        (True, False)
    """

    def __init__(self, comm: Communicator):
        self._comm, self._mpi_comm = comm, comm.mpi_comm
        self._asked, self._received = set(), set()
        # This dict maps a line of source to the reasons of its warning; the set holds lines already
        # warned about.
        self._reasons, self._warned = {}, set()
        self._sums: Any = None
        self._n_agreed = self.n_messages = self._n_sent = 0
        n_per_turn = -(-comm.size // TURNS)
        self.n_turns = -(-comm.size // n_per_turn)
        self.n_numbers = len(FLAGS) + 2 * n_per_turn
        self.times, self._of_period = np.zeros((2, 2, comm.size))
        self._told = np.zeros((self.n_turns, 2 * n_per_turn))  # received seconds per step
        self._n_in_period, self._slow, self._cost, self._named = 0, None, 0.0, set()
        self._own_turn, place = divmod(comm.rank, n_per_turn)
        self._own_places = len(FLAGS) + place, len(FLAGS) + n_per_turn + place
        self._clock = None  # this rank's clocks when it last sent its times

    @classmethod
    def of(cls, comm: Communicator) -> Self:
        """Returns the ``Control`` of a communicator; a new one if the ranks have changed."""
        control = vars(comm).get("_control")
        if control is None or control._mpi_comm is not comm.mpi_comm:
            control = vars(comm)["_control"] = cls(comm)
        return control

    def ask(self, flag: Hashable) -> None:
        """Sends a request to all ranks with the next message.

        Args:
            flag: one of :data:`FLAGS`.
        """
        self._asked.add(FLAGS[FLAGS.index(flag)])

    def take(self, flag: Hashable) -> bool:
        """Returns whether any rank has made the request. Also clears the request, even if this rank
        has made it again since.

        All ranks must call this method at the same point of the program to get the same answer.
        """
        if flag not in self._received:
            return False
        self._received.remove(flag)
        self._asked.discard(flag)
        return True

    def tell(self, place: str, text: str) -> None:
        """Asks rank 0 to issue a warning in the next :meth:`warn`, which lists all reasons passed
        until then; later reasons for the same place are ignored.

        Args:
            place: the line of source that the warning is about.
            text: the reason.
        """
        if place not in self._warned:
            self._reasons.setdefault(place, {})[text] = None
            self.ask(WARN)

    def warn(self) -> None:
        """Lets rank 0 issue the warnings that ranks have requested with :meth:`tell`.

        All ranks must call this method at the same point of the program. It communicates only if
        there is a warning.
        """
        if not self.take(WARN):
            return
        found = {}
        for of_rank in self._comm.allgather_obj(self._reasons):
            for place, texts in of_rank.items():
                found.setdefault(place, {}).update(texts)
        for place, texts in found.items():
            if place not in self._warned and self._comm.rank == 0:
                warnings.warn(f"{place}: {'; '.join(texts)}", RuntimeWarning, stacklevel=2)
        self._warned.update(found)
        self._reasons = {}

    def agree(self) -> bool:
        """Ensures that the ranks have shared their flags since the last call: waits for the other
        ranks if there was no step in the meantime. Flags that this rank has not sent yet wait for
        the next step.

        Returns:
            Whether there are requests for :meth:`take`.
        """
        if self.n_messages == self._n_agreed:
            sums = self._room(len(FLAGS))
            sums[:] = self._asked_flags()
            self._receive_flags(self._sum(sums).tolist())
        self._n_agreed = self.n_messages
        return bool(self._received)

    def compare(self, n: int) -> tuple[bool, int]:
        """Returns whether ``n`` is the same on all ranks, and the number of ranks where it is 0;
        waits for all ranks.

        >>> Control.of(comm).compare(3)
        (True, 0)
        """
        sums = self._room(3)
        sums[:] = n, n * n, n == 0
        total, squares, n_zeros = map(int, self._sum(sums))
        return _are_equal(self._comm.size, total, squares), n_zeros

    def _room(self, n):
        if self._sums is None:
            (self._sums,) = self._comm.make_buffers([(max(len(FLAGS), 3), np.float64)])
        self._sums[:] = 0
        return self._sums[:n]

    def _sum(self, part):
        self._comm.iallreduce(self._sums).Wait()
        return part

    # These methods write and read the elements of a message that belong to ``Control``.

    def write(self, message: Array) -> int:
        """Writes this rank's flags and times into a message of zeros; returns the index of the
        turn."""
        if self._asked:
            message[: len(FLAGS)] = self._asked_flags()
        turn = self._n_sent % self.n_turns
        self._n_sent += 1
        if turn == self._own_turn or self._clock is None:
            clock, before = (*clocks(), self._n_sent), self._clock
            self._clock = clock
            if before is not None:
                passed, waited, n_steps = (x - y for x, y in zip(clock, before, strict=True))
                working, waiting = self._own_places
                message[working] = (passed - waited) / n_steps
                message[waiting] = waited / n_steps
        return turn

    def read(self, message: Array, turn: int, asked: Sequence[float]) -> None:
        """Reads the sums of all ranks' messages; ``asked`` holds the sums of the flags."""
        self.n_messages += 1
        if any(asked):
            self._receive_flags(asked)
        self._told[turn] = message[len(FLAGS) : self.n_numbers]
        if turn == self.n_turns - 1:
            by_rank = self._told.reshape(self.n_turns, 2, -1).swapaxes(0, 1).reshape(2, -1)
            self._add_times(self.n_turns * by_rank[:, : self._comm.size])

    def _add_times(self, seconds):
        if not seconds[0].all():
            return
        self.times += seconds
        self._of_period += seconds
        self._n_in_period += self.n_turns
        if self._n_in_period >= _STEPS and self._comm.size > 1:
            self._name_slow_rank(self._of_period[0] / self._n_in_period)
            self._of_period[:], self._n_in_period = 0, 0

    def _name_slow_rank(self, work):
        before, slowest = self._slow, int(work.argmax())
        others = (work.sum() - work[slowest]) / (work.size - 1)
        self._slow = slowest if work[slowest] > SLOWER * others else None
        cost = self._n_in_period * (work[slowest] - others)
        self._cost = cost + (self._cost if self._slow == before else 0)
        if self._slow is None or self._slow != before or slowest in self._named:
            return
        if self._cost < COST:
            return
        self._named.add(slowest)
        if self._comm.rank == 0:
            print_line(
                f"warning: rank {slowest} is a straggler: {1e3 * work[slowest]:.3g} ms of work per "
                f"step against {1e3 * others:.3g} ms on the other ranks, which have waited "
                f"{self._cost:.0f} s for this rank",
                sys.stderr,
            )

    def _asked_flags(self):
        asked, self._asked = self._asked, set()
        return [flag in asked for flag in FLAGS]

    def _receive_flags(self, asked):
        self._received.update(flag for flag, n in zip(FLAGS, asked, strict=True) if n > 0)


class ControlMessage:
    """The scalars that ranks sum once per step: the data of :class:`Control`, hashes of the set of
    updated parameters and of NumPy's random state, the sums and weights of reported values, and the
    counts of the reducer.

    Each reported value has a position in the message. When a rank reports a new value, the ranks
    send their values once as objects and agree on the positions.

    Args:
        comm: the communicator of the ranks.

    Attributes:
        params: dict from name to each parameter that must be updated on all ranks or on none.

    Example:
        >>> message = ControlMessage(comm)
        >>> message.put([{"loss": (24.0, 8.0)}])  # 8 samples
        >>> _ = message.begin([True, False])
        >>> message.means(), message.wait()
        ({'loss': 3.0}, [1.0, 0.0])
    """

    def __init__(self, comm: Communicator):
        self._comm = comm
        self._sums: Any = None
        self._request: Any = None
        self._counts = []
        self._values = _Values(comm)
        self._pieces = None
        self.params: Mapping[str, Parameter] = {}
        self._means = {}
        self._are_random_states_equal = False

    def put(
        self, sums: Sequence[Mapping[str, tuple[Any, float]]] = (), *, draws: bool = False
    ) -> None:
        """Sets the values that the next message carries.

        Args:
            sums: dicts that map a name to the sum of values times weights and the sum of weights,
                which is not 0. With a reproducible communicator there is one dict for each of this
                rank's micro-shards, otherwise one for all samples of this rank, or none.
            draws: whether the message compares the random states of the ranks, which takes 0.1 ms.
        """
        self.wait()
        self._values.own = sums
        self._pieces = _pieces_of_random_state() if draws else None

    def begin(self, counts: Iterable[float] = ()) -> Any:
        """Begins to sum the message's scalars and ``counts``, which has the same length on all
        ranks; first waits for the sums of the previous message.

        Returns:
            The request for the sums.
        """
        self.wait()
        control = Control.of(self._comm)
        # The message consists of the control's elements, the hashes, the values, and the counts.
        head = control.n_numbers + _N_OF_UPDATES + 2 * _N_PIECES
        values = self._values.numbers()
        tail = [*values, *counts]
        if self._sums is None or self._sums.size != head + len(tail):
            (self._sums,) = self._comm.make_buffers([(head + len(tail), np.float64)])
            # A struct reads and writes floats faster than an array does. The header starts as
            # zeros.
            n_others = head - len(FLAGS)
            self._written = struct.Struct(f"{8 * head}x{len(tail)}d")
            self._read_parts = struct.Struct(f"{len(FLAGS)}d{8 * n_others}x{len(tail)}d")
        sums = self._sums
        self._written.pack_into(sums, 0, *tail)
        turn = control.write(sums)
        if self._comm.size > 1:
            checksum = zlib.crc32(_are_updated(self.params)).to_bytes(4, "little")
            sums[control.n_numbers : control.n_numbers + _N_OF_UPDATES] = _pieces(checksum)
        if self._pieces is not None:
            sums[control.n_numbers + _N_OF_UPDATES : head] = self._pieces
        self._begun = control, turn, head, len(values)
        self._request = self._comm.iallreduce(sums)
        return self._request

    def wait(self) -> list[float]:
        """Waits for the sums, and returns the sums of the counts.

        Raises:
            ValueError: a parameter is updated on some ranks only.
        """
        if self._request is not None:
            self._request.Wait()
            self._request = None
            self._read(*self._begun)
        return self._counts

    def _read(self, control, turn, head, n_values):
        sums = self._sums
        numbers = self._read_parts.unpack_from(sums)
        control.read(sums, turn, numbers[: len(FLAGS)])
        self._are_random_states_equal = False
        end = control.n_numbers + _N_OF_UPDATES
        if self._comm.size > 1 and not self._are_equal(sums[control.n_numbers : end].tolist()):
            self._check_updates()
        if self._pieces is not None:
            self._are_random_states_equal = self._are_equal(sums[end:head].tolist())
        n_values += len(FLAGS)
        self._counts = [*numbers[n_values:]]
        n_unknown, *values = numbers[len(FLAGS) : n_values]
        self._means = self._values.agree() if n_unknown else self._values.read(values)
        self._values.own = []

    def _are_equal(self, pieces):
        return all(map(functools.partial(_are_equal, self._comm.size), pieces[::2], pieces[1::2]))

    def _check_updates(self):
        """Raises an error on all ranks that names a parameter which some ranks do not update."""
        held = self._comm.allgather_obj(dict(zip(self.params, _are_updated(self.params))))
        for name in self.params:
            flags = [of_rank.get(name) for of_rank in held]
            if len(set(flags)) > 1:
                ranks = [str(rank) for rank, is_updated in enumerate(flags) if not is_updated]
                raise ValueError(
                    f"MultiNodeOptimizer.update: parameter {name} is not updated on rank "
                    f"{', '.join(ranks)} of {len(flags)}, but is updated on the other "
                    "ranks: call disable_update() or enable_update() on all ranks"
                )

    def means(self) -> dict[str, Any]:
        """Returns the weighted means of the values over all ranks, the same on all ranks.

        Means of values on GPUs that NCCL connects stay on the GPU; the host does not wait for them.
        """
        self.wait()
        return {str(name): mean for name, (mean, _) in self._means.items()}

    def weights(self) -> dict[str, float]:
        """Returns the sums of the weights of those values that were reported with weights."""
        self.wait()
        return {str(n): w for n, (_, w) in self._means.items() if isinstance(n, OfWeighted)}

    def have_equal_random_states(self) -> bool:
        """Returns whether the ranks' random states were equal, if :meth:`put` was called with
        ``draws``."""
        self.wait()
        return self._are_random_states_equal


class _Values:
    """Sums of values, by name and micro-shard; without micro-shards, only by name.

    The sums are added in the order of the micro-shards, so the result does not depend on which rank
    has which micro-shard.
    """

    def __init__(self, comm):
        self._comm = comm
        self._places = {}  # maps each name to its column, the same on all ranks
        self._on_gpu = []  # names of values whose sums are on GPUs
        # For each of this rank's micro-shards, a dict maps names to pairs of sum and weight.
        self.own: Sequence[Mapping[str, tuple[Any, float]]] = []

    def numbers(self):
        """Returns this rank's scalars: the number of values without a position, or newly on a GPU;
        then the weights of all names for each micro-shard, then the sums in the same order."""
        n_slots, places, on_gpu = self._comm.micro_shards or 1, self._places, {}
        n_names = len(places)
        n = n_slots * n_names
        numbers = [0.0] * (1 + 2 * n)
        first = self._comm.own_shards[0] if n_slots > 1 else 0
        for slot, own in enumerate(self.own, first):
            for name, (x, weight) in own.items():
                place = places.get(name)
                stays = type(x) is not float and self._stays_on_gpu(x)
                if place is None or (stays and name not in self._on_gpu):
                    numbers[0] += 1
                    continue
                place += 1 + slot * n_names
                numbers[place] = weight
                if name in self._on_gpu:
                    on_gpu[slot, name] = x
                else:
                    numbers[place + n] = x
        if self._on_gpu:
            self._begin_on_gpu(on_gpu)
        return numbers

    def _stays_on_gpu(self, x):
        # If MPI computes the sum, the host must wait for the value anyway.
        sums_there = self._comm.size == 1 or self._comm.uses_nccl
        return sums_there and cuda.is_gpu_array(x)

    def _begin_on_gpu(self, values):
        xp, n_slots = cuda.cupy, self._comm.micro_shards or 1
        keys = [(slot, name) for slot in range(n_slots) for name in self._on_gpu]
        columns = [xp.asarray(values.get(key, 0.0), np.float64) for key in keys]
        self._request = self._comm.iallreduce(xp.stack(columns).reshape(n_slots, -1))

    def read(self, numbers):
        """Returns the means and weights by name from the summed scalars."""
        n = len(self._places)
        if len(numbers) == 2 * n and not self._on_gpu:
            numbers = zip(self._places, numbers[:n], numbers[n:])
            return {name: (total / weight, weight) for name, weight, total in numbers if weight > 0}
        by_slot = np.reshape(numbers, (2, self._comm.micro_shards or 1, -1))
        weights, sums = (part.T.tolist() for part in by_slot)
        if self._on_gpu:
            for name, of_slots in zip(self._on_gpu, self._request.Wait().T, strict=True):
                sums[self._places[name]] = of_slots
        return _means(dict(zip(self._places, zip(sums, weights, strict=True), strict=True)))

    def agree(self):
        """Assigns positions to all ranks' values, which are sent as objects; returns their means
        and weights."""
        if self._on_gpu:
            self._request.Wait()
        own = [
            {name: (float(x), weight, self._stays_on_gpu(x)) for name, (x, weight) in sums.items()}
            for sums in self.own
        ]
        known = {} if len(self._places) > MOST_NAMES else dict.fromkeys(self._places, ([], []))
        on_gpu = set(self._on_gpu)
        found = {}
        for sums in (sums for of_rank in self._comm.allgather_obj(own) for sums in of_rank):
            for name, (x, weight, is_on_gpu) in sums.items():
                of_name = found.setdefault(name, ([], []))
                of_name[0].append(x)
                of_name[1].append(weight)
                on_gpu |= {name} if is_on_gpu else set()
        self._places = {name: place for place, name in enumerate(known | found)}
        self._on_gpu = [name for name in self._places if name in on_gpu]
        return _means(found)


def _are_updated(params):
    """Returns one byte per parameter, which is 1 if optimizers update the parameter."""
    rules = map(_update_rule, params.values())
    return bytes([1 if rule is not None and rule.enabled else 0 for rule in rules])


def _means(by_name):
    """Returns a dict from name to (mean, weight), given lists of sums and weights by name."""
    totals = {name: (sum(sums), sum(weights)) for name, (sums, weights) in by_name.items()}
    return {name: (total / w, w) for name, (total, w) in totals.items() if w > 0}


def _are_equal(n, total, squares):
    """Returns whether n integers are equal, given their sum and the sum of their squares."""
    return n * int(squares) == int(total) ** 2


def _pieces_of_random_state():
    """Returns 16-bit numbers that depend on the state of NumPy's global generator; the square of
    each number follows it."""
    kind, key, *position = np.random.get_state()
    digest = hashlib.blake2b(key, digest_size=2 * _N_PIECES)
    digest.update(repr((kind, position)).encode())
    return _pieces(digest.digest())


def _pieces(digest):
    """Returns the 16-bit numbers of a digest; the square of each number follows it."""
    pieces = struct.unpack(f"{len(digest) // 2}H", digest)
    return [number for piece in pieces for number in (piece, piece * piece)]
