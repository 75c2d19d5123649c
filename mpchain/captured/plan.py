"""Plans a recorded step: which calls are made, and in which memory their results are stored.

A replay needs only the list of calls, so another device could run the list in another way, such as
by graphs that are launched between updates.
"""

import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mpchain.captured.comparison import are_all_close, name_of
from mpchain.captured.proof import Proof
from mpchain.captured.recorded import Call, arrays_in, owner_of, plain
from mpchain.captured.recorder import Flattened, Recorder, way_of_product
from mpchain.captured.results import arrays_of, why_not_returned, without_graph
from mpchain.captured.state import are_alike
from mpchain.variable import Variable, set_grads

_ALIGNED = 64  # the alignment in bytes
OTHER_VALUE = "a value that decides which calls are made has changed"
"""The reason of a call that runs normally because the value of a guard differs."""

_REDUCTIONS = {
    np.ndarray.sum: np.add.reduce,
    np.ndarray.prod: np.multiply.reduce,
    np.ndarray.max: np.maximum.reduce,
    np.ndarray.min: np.minimum.reduce,
    np.ndarray.any: np.logical_or.reduce,
    np.ndarray.all: np.logical_and.reduce,
}
_COPIES = {np.ndarray.copy, np.ndarray.astype, np.ndarray.flatten, np.ndarray.ravel}
_COPIES |= {np.ndarray.reshape, np.copy}
_TAKING_OUT = {np.ndarray.mean, np.ndarray.argmax, np.ndarray.take, np.ndarray.clip, np.take}
_TAKING_OUT |= {np.mean, np.concatenate, np.stack, np.clip, np.einsum, np.cumsum}


class _Differs(Exception):
    """Raised when a value that decides which calls a step makes has changed since the recording."""


class Plan:
    """A recorded step, ready to be replayed.

    Args:
        recorder: the recording.
        inputs: the arrays from which the step reads its arguments.
        result: the step's result.

    Attributes:
        reason: the reason why the step cannot be replayed, or None.
        reads: the ids of places whose values the previous step left and this step reads.
        n_bytes: the size of the memory of all results, in bytes.
        outside: the arrays of the state that the step reads or changes, except ``inputs``; absent
            if there is a ``reason``.
        result: the step's result, in the memory of the plan; None if there is a ``reason``.
        final_grads: pairs of a parameter and the gradient that it has after a replay.
    """

    def __init__(self, recorder: Recorder, inputs: list[np.ndarray], result: object):
        self.inputs = inputs
        self.params = recorder.state.params
        self._owners = recorder.owners
        self._outside = {id(owner_of(x)) for x in (*inputs, *recorder.state.arrays())}
        state = {id(owner_of(x)) for x in recorder.state.arrays()}
        grads = recorder.grads()
        left = [(place, x.array if isinstance(x, Variable) else x) for place, x in recorder.left]
        kept = [*arrays_in([g for _, g in grads]), *arrays_of(result)]
        kept += [plain(array) for _, array in left]
        calls = self._needed(_with_guards_first(recorder.calls, self._owners, state), kept)
        used = [*kept, *(x for call in calls for x in (*_read_by(call), *call.results))]
        self._kept = recorder.state.kept_in(map(owner_of, used))
        changed = {id(owner_of(x)) for call in calls for x in call.results}
        self.reason = self._why_not(calls) or why_not_returned(result, self._is_known)
        for place, array in left:
            if self.reason is None and not self._is_known(plain(array)):
                self.reason = f"{place.label} gets an array made by means that are not recorded"
        self._changed_inputs = [i for i, x in enumerate(inputs) if id(x) in changed]
        self.reads = {place.id for place, _ in self._kept}
        self.result, self.final_grads, self.n_bytes = None, [], 0
        self._calls: list[tuple[str, Callable, tuple]] = []
        if self.reason is None:
            self._lay_out(calls, kept)
            self.outside = self._used_outside(used)
            self._calls = [self._player(call) for call in calls]
            self._spans = _spans(self._calls)
            self.final_grads = self._at_grads(_not_given(grads, calls))
            self.result = without_graph(result, self._at)
            memory = [self._memory, *inputs, *(place for _, place in self._kept)]
            self._own = {
                id(x)
                for x in arrays_of(self.result)
                if any(np.may_share_memory(x, own) for own in memory)
            }
            self._left = [
                (place, self._at(plain(array)), isinstance(value, Variable))
                for (place, array), (_, value) in zip(left, recorder.left)
            ]
            self._changed = [(place, x) for place, x in self._kept if id(x) in changed]
        self._owners = {}

    def _key(self, array):
        key = id(owner_of(array))
        return key if key in self._owners else None

    def _needed(self, calls, wanted):
        """Returns those calls whose results are used, and those that do more than compute results,
        such as updates and guards."""
        live = {self._key(array) for array in wanted}
        needed = []
        for call in reversed(calls):
            written = {self._key(array) for array in call.results}
            if call.kind == "call" and None not in written and not written & live:
                continue
            needed.append(call)
            read = {self._key(array) for array in _read_by(call)}
            for array in call.results:
                key = self._key(array)
                if key not in read and key is not None and array.size == self._owners[key].size:
                    live.discard(key)
            live |= read
        return needed[::-1]

    def _why_not(self, calls):
        """Returns the reason not to replay the calls, such as unknown memory or a guard after a
        call that has an effect; else None."""
        acted = None
        for call in calls:
            name = getattr(call.function, "__name__", call.function)
            if call.kind == "guard" and acted:
                return f"a value decides which calls are made after {acted}"
            if call.kind == "shape" and acted:
                return f"the shape of what {name} returns depends on data after {acted}"
            if call.kind in ("update", "send", "exchange"):
                acted = "an optimizer's update" if call.kind == "update" else "a message"
            for array in call.results:
                if self._key(array) is None:
                    if id(owner_of(array)) not in self._outside:
                        return f"{name} writes into memory that is not recorded, {array.shape}"
                    acted = "a persistent array was changed"
        return None

    def _is_known(self, array):
        return self._key(array) is not None or id(owner_of(array)) in self._outside

    def _used_outside(self, used):
        """Returns those arrays of the state that the step reads or changes."""
        found = {id(owner_of(x)): owner_of(x) for x in used}
        given = {id(x) for x in self.inputs}
        return [x for key, x in found.items() if key in self._outside and key not in given]

    def _lay_out(self, calls, kept):
        """Assigns memory to results; memory of results that are no longer read is reused."""
        first, last = {}, {}
        for i, call in enumerate(calls):
            for array in (*_read_by(call), *call.results):
                key = self._key(array)
                if key is not None:
                    first.setdefault(key, i)
                    last[key] = i
        for array in kept:
            last[self._key(array)] = len(calls)
            first.setdefault(self._key(array), 0)
        last.pop(None, None)
        first.pop(None, None)
        begins, ends = _by_time(first), _by_time(last)
        self._places, free, top = {}, [], 0
        for i in range(len(calls) + 1):
            for key in begins.get(i, ()):
                place, top = _take(free, self._size(key), top)
                self._places[key] = place
            for key in ends.get(i, ()):
                free = _merged([*free, (self._places[key], self._size(key))])
        self.n_bytes = top
        memory = np.zeros(top + _ALIGNED, np.uint8)
        begin = -memory.ctypes.data % _ALIGNED
        self._memory = memory[begin : begin + top]

    def _size(self, key):
        return -(-max(self._owners[key].nbytes, 1) // _ALIGNED) * _ALIGNED

    def _at(self, value) -> Any:
        """Returns a value with the arrays of the recording replaced by those of a replay."""
        if isinstance(value, np.ndarray):
            key = self._key(value)
            if key is None:
                return value
            begin = self._owners[key].__array_interface__["data"][0]
            place = self._places[key] + value.__array_interface__["data"][0] - begin
            return np.ndarray(value.shape, value.dtype, self._memory, place, value.strides)
        if isinstance(value, dict):
            return {k: self._at(v) for k, v in value.items()}
        if value.__class__ in (tuple, list):
            return value.__class__([self._at(v) for v in value])
        return value

    def _at_grads(self, grads):
        return [(param, self._at(grad)) for param, grad in grads]

    def _player(self, call):
        """Returns the entry of a replay for a call: a tuple of a kind, a function and its
        arguments."""
        if call.kind == "guard":
            return "call", _check_guard, (self._at(call.args[0]), call.args[1])
        if call.kind == "number":
            return call.kind, call.function, (self._at(call.results[0]),)
        if call.kind == "exchange":
            return call.kind, call.function, (*self._at(call.args), self._at(call.results[0]))
        if call.kind in ("again", "update", "send"):
            args = without_graph(call.args, self._at)
            holds_arrays = bool(arrays_of(args))
            return call.kind, call.function, (args, self._at_grads(call.grads), holds_arrays)
        args, kwargs, results = self._at(call.args), self._at(call.kwargs), self._at(call.results)
        if call.kind == "draw":
            return "draw", _fill, (call.function, args, kwargs, results)
        if call.kind == "shape":
            return "call", _fill, (call.function, args, kwargs, results)
        if "out" in kwargs:
            return "call", partial(call.function, *args, **kwargs), ()
        is_ufunc = isinstance(call.function, np.ufunc)
        if not is_ufunc and any(x is y for x in call.args for y in call.results):
            return "call", partial(call.function, *args, **kwargs), ()
        return "call", *_writing(call.function, args, kwargs, results)

    def load(self, arrays: Iterable[np.ndarray]) -> bool:
        """Copies arguments, and the arrays that links keep between steps, to the memory from which
        the step reads them.

        Returns:
            whether links keep values of the same shapes as when the step was recorded.
        """
        for place, array in zip(self.inputs, arrays):
            np.copyto(place, array)
        for place, buffer in self._kept:
            value = place.get()
            array = value.array if isinstance(value, Variable) else value
            if not are_alike(array, buffer):
                return False
            np.copyto(buffer, array)
        return True

    def replay(self, arrays: Sequence[np.ndarray]) -> tuple[str | None, Any]:
        """Runs the step on arguments.

        Returns:
            None and the step's result; or the reason why nothing was replayed, and None.
        """
        if not self.load(arrays):
            return "a link keeps no value from the step before, or a value of another shape", None
        for kind, function, args in self._spans:
            if kind == "call":
                try:
                    for f, a in args:
                        f(*a)
                except _Differs:
                    return OTHER_VALUE, None
            elif kind == "number":
                args[0][...] = function()
            elif kind == "exchange":
                _exchange(function, *args)
            else:
                arguments, grads, holds_arrays = args
                set_grads(grads)
                function(*(without_graph(arguments, _copied) if holds_arrays else arguments))
        set_grads(self.final_grads)
        for place, array in self._changed:
            value = place.get()
            np.copyto(value.array if isinstance(value, Variable) else value, array)
        for place, array, is_variable in self._left:
            left = array.copy()
            place.set(Variable(left, requires_grad=False) if is_variable else left)
        for i in self._changed_inputs:
            np.copyto(arrays[i], self.inputs[i])
        return None, without_graph(self.result, self._copied_result)

    def _copied_result(self, array):
        return array.copy() if id(array) in self._own else array

    def differs(
        self, proof: Proof, arrays: Iterable[np.ndarray], recorder: Recorder, result: object
    ):
        """Compares a replay, which neither draws nor sends nor updates, with the effects of the
        step.

        Args:
            proof: the record of the step.
            arrays: the arguments.
            recorder: the recorder of the step.
            result: the step's result.

        Returns:
            a description of what the replay does differently, or None.
        """
        grads = {id(param): grad for param, grad in recorder.grads()}
        left = {place.id: x.array if isinstance(x, Variable) else x for place, x in recorder.left}
        with proof:
            for place, array in zip(self.inputs, arrays):
                np.copyto(place, array)
            try:
                reason = self._differ(proof)
            except _Differs:
                return OTHER_VALUE
            if reason is not None:
                return reason
            if proof.differs():
                return "a replay computed other persistent values"
        if any(id(param) not in grads for param, _ in self.final_grads) or not are_all_close(
            [grad for _, grad in self.final_grads], [grads[id(p)] for p, _ in self.final_grads]
        ):
            return "a replay computed other gradients"
        if {place.id for place, *_ in self._left} != {*left} or not are_all_close(
            [array for _, array, _ in self._left], [plain(left[p.id]) for p, *_ in self._left]
        ):
            return "a replay computed another state for the next step"
        if not are_all_close(arrays_of(self.result), arrays_of(result)):
            return "a replay computed other results"
        return None

    def _differ(self, proof):
        """Replays the step without its effects, and compares the values that it would send, report,
        and give to optimizers."""
        # Each gradient may be sent alone, and some are zero in exact arithmetic.
        scale = proof.size_of_grads()
        for kind, function, args in self._calls:
            if kind == "call":
                function(*args)
                continue
            noted = proof.next()
            if kind == "draw":
                args[3][0][...] = noted[0]
            elif kind == "number":
                args[0][...] = noted[0]
            elif kind == "exchange":
                if not are_all_close([args[0]], [noted[0]]):
                    return "a replay would exchange other values"
                args[1][...] = noted[1]
            elif noted:
                arguments, grads, _ = args
                if not are_all_close([grad for _, grad in grads], noted[1], scale=scale):
                    return "a replay computed other gradients"
                if not are_all_close(arrays_of(arguments), noted[0]):
                    return f"a replay would give {name_of(function)} other values"
                if kind == "update":
                    proof.next_state()
        return None


def _exchange(function, array, result):
    value = np.asarray(function(array.copy()))
    if (value.shape, value.dtype) != (result.shape, result.dtype):
        raise ValueError(
            f"exchanged: {name_of(function)} returned {value.dtype} {value.shape}, but "
            f"{result.dtype} {result.shape} when the step was recorded: its dtype and shape may "
            "depend only on the dtype and shape of its argument"
        )
    result[...] = value


def _not_given(grads, calls):
    """Returns the gradients, except gradients that an optimizer received, because the optimizer may
    have replaced them."""
    given = {}
    for call in calls:
        given.update((id(param), grad) for param, grad in call.grads)
    return [(p, g) for p, g in grads if id(p) not in given or not _is_same(given[id(p)], g)]


def _is_same(a, b):
    if a is None or b is None:
        return a is b
    places = [x.__array_interface__["data"] for x in (a, b)]
    return places[0] == places[1] and a.shape == b.shape


def _copied(array):
    return array.copy()


def _check_guard(array, expected):
    if bool(array) is not expected:
        raise _Differs


def _read_by(call: Call):
    """Yields the arrays that a call reads, including arrays that the call changes only in part."""
    yield from arrays_in(call.args, call.kwargs)
    if "where" in call.kwargs:
        yield from call.results
    for value in _variables_in(call.args):
        yield plain(value.array)
    yield from (g for _, g in call.grads if g is not None)


def _variables_in(value):
    if isinstance(value, Variable):
        yield value
    elif isinstance(value, dict):
        yield from _variables_in(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _variables_in(v)


def _by_time(times):
    keys = {}
    for key, i in times.items():
        keys.setdefault(i, []).append(key)
    return keys


def _take(free, size, top):
    """Allocates memory in the smallest free piece that is large enough, or above all allocated
    memory."""
    pieces = [piece for piece in free if piece[1] >= size]
    if not pieces:
        return top, top + size
    piece = min(pieces, key=lambda piece: piece[1])
    free.remove(piece)
    if piece[1] > size:
        free.append((piece[0] + size, piece[1] - size))
    return piece[0], top


def _merged(free):
    merged = []
    for place, size in sorted(free):
        if merged and sum(merged[-1]) == place:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((place, size))
    return merged


def _spans(calls):
    """Joins the calls between updates and other calls with effects into lists of pairs (function,
    arguments)."""
    spans = []
    for kind, function, args in calls:
        if kind not in ("call", "draw"):
            spans.append((kind, function, args))
        elif spans and spans[-1][0] == "call":
            spans[-1][2].append((function, args))
        else:
            spans.append(("call", None, [(function, args)]))
    return spans


def _writing(function, args, kwargs, results) -> tuple[Callable, tuple]:
    """Returns a function and its arguments that write the results of a call to the planned
    memory."""
    result = results[0]
    if way := way_of_product(function, args, kwargs, result):
        return way
    if isinstance(function, np.ufunc):
        if kwargs or function in (np.maximum, np.minimum):
            return partial(function, *args, out=results, **kwargs), ()
        return function, (*args, *results)
    if function in _REDUCTIONS:
        function, kwargs = _REDUCTIONS[function], {"axis": None, **kwargs}
        if len(args) > 1:
            kwargs["axis"] = args[1]
            args = (args[0], *args[2:])
    if getattr(function, "__name__", "") == "reduce" and set(kwargs) <= {"axis", "keepdims"}:
        axis = args[1] if len(args) > 1 else kwargs.get("axis", 0)
        if len(args) <= 2:
            return function, (args[0], axis, None, result, kwargs.get("keepdims", False))
    if function in _COPIES:
        source = args[0] if args[0].shape == result.shape else args[0].reshape(result.shape)
        if np.may_share_memory(source, args[0]):
            return partial(np.copyto, result, source, casting="unsafe"), ()
    if function in _TAKING_OUT and "out" not in kwargs:
        return partial(function, *args, **kwargs, out=result), ()
    if function in (np.zeros_like, np.ones_like, np.full_like):
        value = {np.zeros_like: 0, np.ones_like: 1}.get(function, args[-1])
        if not isinstance(value, np.ndarray) and len(args) <= 2:
            return np.copyto, (result, np.asarray(value, result.dtype))
    if _takes_out(function) and not any(
        np.may_share_memory(results[0], x) for x in arrays_in(args, kwargs)
    ):
        kwargs = {**kwargs, "out": results[0]}
    return _fill, (function, args, kwargs, results)


def _takes_out(function):
    """Returns whether a kernel has a parameter ``out`` for the memory of its first result, which
    saves a copy."""
    kernel = function.function if isinstance(function, Flattened) else function
    is_in_python = isinstance(kernel, (types.FunctionType, types.MethodType))
    return is_in_python and "out" in inspect.signature(kernel).parameters


def _fill(function, args, kwargs, results):
    made = function(*args, **kwargs)
    for result, value in zip(results, made if isinstance(made, (tuple, list)) else (made,)):
        if value is not result:
            if (np.shape(value), value.dtype) != (result.shape, result.dtype):
                raise _Differs
            result[...] = value


def _with_guards_first(calls, owners, state):
    """Moves guards, and the calls that compute the values that they read, to the front if none of
    the other calls before a guard changes these values or what they are computed from.

    A replay that stops at a guard has then changed nothing.
    """

    def keys(arrays):
        return {id(owner_of(x)) for x in arrays if id(owner_of(x)) in owners}

    moved = set()
    for i, guard in enumerate(calls):
        if guard.kind not in ("guard", "shape"):
            continue
        read, chain = keys(_read_by(guard)), {i}
        for j in range(i - 1, -1, -1):
            if keys(calls[j].results) & read:
                chain.add(j)
                read |= keys(_read_by(calls[j]))
        others = {j: calls[j] for j in range(i) if j not in chain}
        written = [x for j in chain for x in calls[j].results]
        last = {key: j for j in sorted(chain) for key in keys(calls[j].results)}
        read_later = {j: keys(_read_by(call)) & last.keys() for j, call in others.items()}
        changed = {id(owner_of(x)) for call in others.values() for x in call.results}
        if any(call.kind == "update" for call in others.values()):
            changed |= state
        if (
            all(calls[j].kind in ("call", "guard", "shape") for j in chain)
            and all(id(owner_of(x)) in owners for x in written)
            and not changed & last.keys()
            and all(last[key] < j for j, read in read_later.items() for key in read)
            and not any(id(owner_of(x)) in changed for j in chain for x in _read_by(calls[j]))
        ):
            moved |= chain
    return [calls[i] for i in sorted(moved)] + [c for i, c in enumerate(calls) if i not in moved]
