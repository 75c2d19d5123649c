"""The proof of a plan: the effects of a step, and whether a replay has the same effects."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mpchain.captured.comparison import are_all_close, size_of

_MOST_BYTES = 1 << 24  # larger arrays are checked for changes only if the step uses them


class Proof:
    """The effects of a step that ran on a plan's state: draws, messages and updates, in order.

    The replay that is compared neither draws nor sends nor updates. It gets the values that the
    step drew and received, and the values that the step's updates computed.

    Args:
        state: arrays that the step may change.
        used: the arrays of the state that a replay reads or changes.
    """

    def __init__(self, state: Iterable[np.ndarray], used: Sequence[np.ndarray]):
        known = {id(x): x for x in used}
        known.update((id(x), x) for x in state if x.nbytes <= _MOST_BYTES)
        self._arrays = list(known.values())
        self._before: list[np.ndarray] = []
        self._after: list[np.ndarray] = []
        self._notes: list[tuple] = []
        self._states: list[list[np.ndarray]] = []

    def begin(self) -> None:
        """Records the state before the step."""
        self._before = [x.copy() for x in self._arrays]

    def note(self, *values: Any) -> None:
        """Records values that the step drew, received, sent or passed to an optimizer."""
        self._notes.append(values)

    def note_state(self) -> None:
        """Records the state after an update."""
        self._states.append([x.copy() for x in self._arrays])

    def __enter__(self) -> "Proof":
        """Restores the state before the step, for a replay."""
        self._after = [x.copy() for x in self._arrays]
        self._next, self._next_state = iter(self._notes), iter(self._states)
        self._set(self._before)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._set(self._after)

    def _set(self, values):
        for array, value in zip(self._arrays, values):
            array[...] = value

    def next(self) -> tuple:
        """Returns the arguments of the next call of :meth:`note`."""
        return next(self._next)

    def size_of_grads(self) -> float:
        """Returns the largest magnitude of all gradients that were recorded."""
        lists = [note[1] for note in self._notes if len(note) == 2 and isinstance(note[1], list)]
        return size_of(itertools.chain(*lists))

    def next_state(self) -> None:
        """Sets the state to the state after the next recorded update."""
        self._set(next(self._next_state))

    def differs(self) -> bool:
        """Returns whether the state after the replay differs from the state after the step."""
        return not are_all_close(self._arrays, self._after)
