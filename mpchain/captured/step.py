"""Calls of a captured function on NumPy arrays of certain shapes."""

import enum
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpchain.captured.comparison import Description, difference
from mpchain.captured.graph_step import GraphStep
from mpchain.captured.plan import OTHER_VALUE, Plan
from mpchain.captured.proof import Proof
from mpchain.captured.recorded import RecordedArray, owner_of
from mpchain.captured.recorder import Recorder
from mpchain.captured.results import is_array, overlapping, without_graph
from mpchain.captured.state import State
from mpchain.captured.surroundings import Surroundings
from mpchain.captured.unseen import Unseen
from mpchain.link import Link
from mpchain.observers import before_graph
from mpchain.variable import Variable

VARIES = "an argument has another value for the first time"
"""The reason of a call that runs normally, to be compared with its replay."""

_MOST_ATTEMPTS = 3
_MOST_BYTES = 1 << 24  # changes of larger arrays are not looked for
_MOST_CHANGES = 8
# Changes that are this many calls apart, such as one per epoch, are not counted together.
_RARELY = 32
_MOST_OTHERS = 32  # capture gives up after this many consecutive calls without a replay


class Stage(enum.Enum):
    """The action of the next call."""

    FIRST = enum.auto()  # the call runs normally and initializes parameters
    RECORD = enum.auto()  # the call is recorded and becomes a plan
    COMPARE = enum.auto()  # the call is recorded and compared with the plan
    REPLAY = enum.auto()  # the plan is replayed, and compared once more when an argument varies
    REFUSED = enum.auto()  # calls run normally from now on
    GRAPH = enum.auto()  # calls are left to a CUDA graph


class Step:
    """A function, for arguments of certain shapes. It is recorded, compared, and then replayed.

    Args:
        function: the function.
        known: objects that the function is known to use; this class adds to them.
        as_always: a function that calls ``function`` without recording.
        ranks: a function that returns the ranks that run the step together.
    """

    def __init__(
        self, function: Callable, known: "Known", as_always: Callable, ranks: Callable[[], Any]
    ):
        self._function, self._known, self._as_always = function, known, as_always
        self._ranks = ranks
        self.stage = Stage.FIRST
        self._reason: str | None = None
        self._n_attempts = self._n_others = 0
        self._has_mismatched = False
        self._n_calls = 0
        # This maps a label to a number of changes and the number of the call with the last change.
        self._changes: dict[str, tuple[int, int]] = {}
        self._forget()

    def _forget(self):
        """Discards all recordings and plans, so that the next call is recorded anew."""
        self.plan: Plan | None = None
        self._state: State | None = None
        self._around: Surroundings | None = None
        self._description: Description | None = None
        self._decisions: list = []
        self._args: list[np.ndarray] = []
        self._unproved: list[int] = []

    def _begin_anew(self):
        self._forget()
        self._n_attempts += 1
        self.stage = Stage.RECORD

    def __call__(self, arrays: Sequence[Any], args: tuple, kwargs: dict) -> tuple[str | None, Any]:
        """Calls the function. Returns the reason why the call was not replayed (None if it was
        replayed), and the function's result."""
        self._n_calls += 1
        if self._around is not None and (changed := self._around.changed()):
            self._begin_elsewhere(self._around, changed)
        if self.stage is Stage.GRAPH:
            return self._graph(arrays, args, kwargs)
        if self.stage is Stage.REPLAY and not (self._state and self._state.fits()):
            self._begin_anew()
        if self.stage is Stage.REPLAY and self.plan is not None and not self._varies(arrays):
            reason, result = self.plan.replay(arrays)
            if reason is None:
                self._n_others = 0
                return None, result
            return self._other(reason), self._as_always(args, kwargs)
        if self.stage is Stage.REFUSED:
            return self._reason, self._as_always(args, kwargs)
        if self.stage is Stage.FIRST:
            self.stage = Stage.RECORD
            with before_graph():
                return "it is called for the first time", self._as_always(args, kwargs)
        return self._run(arrays, args, kwargs)

    def _begin_elsewhere(self, around, changed):
        """Discards the recordings, because values have changed since the step was recorded."""
        arrays = {place.id for place in (*around.arrays, *around.others)}
        for place in changed:
            if place.id in arrays and isinstance(place.get(), (np.ndarray, Variable)):
                self._known.kept.add(place.id)
                continue
            n, last = self._changes.get(place.label, (0, 0))
            n = 1 if self._n_calls > last + _RARELY else n + 1
            self._changes[place.label] = n, self._n_calls
            if n >= _MOST_CHANGES:
                return self._refuse(f"{place.label} has changed in {n} calls")
        self._forget()
        self.stage = Stage.RECORD
        return None

    def _varies(self, arrays):
        """Returns whether an argument differs, for the first time, from its value in all calls
        before."""
        if not self._unproved or self._state is None:
            return False
        values = [*arrays, *self._state.kept_arrays()]
        return any(not _are_equal(values[i], self._args[i]) for i in self._unproved)

    def _other(self, reason):
        self._n_others += 1
        if self._n_others >= _MOST_OTHERS:
            self._refuse(f"{reason}, in {_MOST_OTHERS} calls in a row")
        return reason

    def _run(self, arrays, args, kwargs):
        """Runs the function and records it; compares it with a replay if there is a plan."""
        varies = self.stage is Stage.REPLAY
        state = self._state
        if state and self.plan is not None and not (state.fits() and state.keeps_the_same()):
            if self.stage is Stage.REPLAY:
                return "links have state of other shapes", self._as_always(args, kwargs)
            self._begin_anew()
        if self._state is None or self._around is None:
            state, around = self._look(args, kwargs)
            if not state.is_on_host or any(not isinstance(x, np.ndarray) for x in arrays):
                self._graph = GraphStep(self._function, state.links, state.params, self._ranks())
                self.stage = Stage.GRAPH
                return self._graph(arrays, args, kwargs)
        else:
            state, around = self._state, self._around
        if (param := state.param_in(arrays)) is not None:
            self._refuse(f"an argument shares memory with parameter {param.name}: pass a copy")
            return self._reason, self._as_always(args, kwargs)
        plan = self.plan
        proof = None if plan is None else Proof(state.arrays(), plan.outside)
        copies = {id(x): x.copy("K") for x in arrays}
        inputs = [copies[id(x)] for x in arrays]
        given = [x if x is None else x.copy() for x in (*arrays, *state.kept_arrays())]
        unseen = Unseen(self._loose, [*around.values.values()])
        recorder = Recorder(state, inputs, proof, unseen)
        try:
            result = self._recorded(recorder, arrays, inputs, args, kwargs)
        except Exception as error:
            if recorder.has_acted() or recorder.left or unseen.reason() or around.changed():
                raise
            # The step is run normally, and may raise the same error.
            result = self._as_always(args, kwargs)
            self._refuse(f"it cannot be recorded, {type(error).__name__}: {error}")
            return self._reason, result
        recorder.refuse_if(unseen.reason())
        if changed := around.changed():
            self._begin_elsewhere(around, changed)
            reason = recorder.reason
        else:
            try:
                reason = self._learn(recorder, state, inputs, proof, given, result)
            except Exception as error:
                # An error of the plan or of the comparison does not stop the program, because the
                # step has already run.
                reason = f"{type(error).__name__}: {error}"
        if self._n_attempts > _MOST_ATTEMPTS:
            reason = reason or "parameters or persistent values are replaced in each step"
        if self.stage is Stage.REFUSED:
            reason = None
        if reason is not None:
            self._refuse(reason)
        reason = reason or self._reason or (VARIES if varies else "it is being recorded")
        return reason, without_graph(result, lambda array: array.copy())

    def _look(self, args, kwargs):
        """Finds the objects that the function refers to."""
        known = self._known
        self._around = around = Surroundings(
            self._function,
            (x for x in (*args, *kwargs.values(), *known.links, *known.params) if not is_array(x)),
        )
        places = (*around.arrays, *around.others)
        kept = [*around.variables, *(place for place in places if place.id in known.kept)]
        around.release(kept)
        self._state = state = State(around.found(Link), around.params, around.arrays, kept)
        known = [x for x in state.arrays() if isinstance(x, np.ndarray)]
        self._loose = [
            x
            for x in around.loose
            if x.nbytes <= _MOST_BYTES and not any(np.may_share_memory(x, y) for y in known)
        ]
        return state, around

    def _learn(self, recorder, state, inputs, proof, given, result):
        """Makes a plan of the recorded step, or compares the plan with the step.

        Returns:
            the reason why the step cannot be replayed, or None.
        """
        if recorder.unknown_links or recorder.unknown_params:
            self._known.add(recorder.unknown_links, recorder.unknown_params)
            self._begin_anew()
            return recorder.reason
        if self.plan is None:
            recorder.grads()
            recorder.refuse_first_grads()
            self.plan = Plan(recorder, inputs, result)
            if reason := recorder.reason or self.plan.reason:
                return reason
            self._description = recorder.describe(result)
            self._decisions = recorder.decisions()
            self._args, read = given, self.plan.reads
            n = len(inputs)
            self._unproved = [i for i in range(len(given)) if i < n or state.kept[i - n].id in read]
            self.stage = Stage.COMPARE
            return None
        if self.stage is Stage.REPLAY and recorder.decisions() != self._decisions:
            self._other(OTHER_VALUE)
            return None
        assert self._description is not None  # if there is a plan, there is a description
        reason = difference(self._description, recorder.describe(result)) or recorder.reason
        if reason is not None:
            return reason
        mismatch = self.plan.differs(proof, given, recorder, result)
        if recorder.reason is not None:
            return recorder.reason
        if mismatch is not None:
            if self._has_mismatched:
                return mismatch
            # Rounding may have moved a rectifier's input across zero, which hardly ever happens
            # twice, so the plan gets a second comparison.
            self._begin_anew()
            self._has_mismatched = True
            return None
        self._n_attempts, self.stage = 0, Stage.REPLAY
        self._unproved = [i for i in self._unproved if _are_equal(given[i], self._args[i])]
        if not self._unproved:
            self._description, self._args = None, []
        return None

    def _refuse(self, reason):
        self._forget()
        self.stage, self._reason = Stage.REFUSED, reason
        name = getattr(self._function, "__name__", type(self._function).__name__)
        warnings.warn(f"capture: {name} is not replayed: {reason}", stacklevel=6)

    def _recorded(self, recorder, arrays, inputs, args, kwargs):
        """Runs the function on recorded arrays."""
        recorded = [x.view(RecordedArray) for x in inputs]
        shared = {i for pair in overlapping(arrays) for i in pair}
        for i, (x, view) in enumerate(zip(arrays, recorded)):
            # Arguments are copied. Copies do not share memory, so a step whose arguments share
            # memory runs normally if it writes into them.
            view.flags.writeable = x.flags.writeable and i not in shared
        of_each = {id(x): view for x, view in zip(arrays, recorded)}
        args = [of_each.get(id(x), x) for x in args]
        kwargs = {k: of_each.get(id(x), x) for k, x in kwargs.items()}
        try:
            with recorder.at_work():
                return self._function(*args, **kwargs)
        finally:
            written = {id(owner_of(x)) for call in recorder.calls for x in call.results}
            changed = [(x, y) for x, y in zip(arrays, inputs) if id(y) in written]
            for array, value in changed:
                np.copyto(array, value)


class Known:
    """The objects that a function uses, as its recordings for all argument shapes have found."""

    def __init__(self):
        self.links: list = []
        self.params: list = []
        self.kept: set = set()  # these are the ids of places where a step leaves a different array

    def add(self, links: list, params: list) -> None:
        """Adds links and parameters."""
        self.links += [link for link in links if not any(link is x for x in self.links)]
        self.params += params


def _are_equal(a, b):
    if a is None or b is None:
        return a is b
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    # Elements of these dtypes contain padding bytes, which are not compared.
    if a.dtype.char in "gG":
        return bool(np.array_equal(a, b, equal_nan=True))
    return a.tobytes() == b.tobytes()
