"""Effects of a step that recorders do not see: draws from generators of the program, and writes
into arrays that are not recorded."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mpchain.optimizer import GradientMethod, Optimizer

# NumPy's global generator, whose recorded draws change its state. Programs reach it too: every
# distribution of SciPy refers to it.
_GLOBAL = np.random.mtrand._rand


class Unseen:
    """Detects draws from generators of the program, and writes into arrays that are not recorded.

    Args:
        arrays: the arrays.
        generators: objects, which include the program's own generators and optimizers.

    Example:
        >>> from mpchain.captured.unseen import Unseen
        >>> unseen = Unseen([], [])
        >>> _ = np.random.rand()
        >>> unseen.reason()
        'it draws random numbers by means that are not recorded'
    """

    def __init__(self, arrays: Iterable[np.ndarray], generators: Sequence[Any]):
        self._arrays = [(x, x.copy()) for x in arrays]
        self._generators = [
            x
            for x in generators
            if isinstance(x, (random.Random, np.random.Generator, np.random.RandomState))
            and x is not _GLOBAL
        ]
        self._hyperparams = [
            (type(x).__name__, vars(x.hyperparam))
            for x in (x.actual_optimizer for x in generators if isinstance(x, Optimizer))
            if isinstance(x, GradientMethod)
        ]
        self._reason: str | None = None
        self.note_all()

    def _states(self):
        return [random.getstate(), *map(_state_of, self._generators)]

    def note(self) -> None:
        """Keeps the state of NumPy's global generator, which a recorded draw may have changed."""
        self._of_numpy = _state_of(_GLOBAL)

    def check_draws(self) -> None:
        """Checks, before a recorded draw, that no draw was made by means that are not recorded."""
        if _state_of(_GLOBAL) != self._of_numpy:
            self._reason = "it draws random numbers by means that are not recorded"

    def note_all(self) -> None:
        """Records the generators' and the optimizers' state after a call that replays repeat:
        updates and their hooks may draw, and change the state."""
        self.note()
        self._of_program = self._states()
        self._numbers = [dict(numbers) for _, numbers in self._hyperparams]

    def check(self) -> None:
        """Checks, before a call that replays repeat, that no unrecorded effect has occurred."""
        self.check_draws()
        if self._states() != self._of_program:
            self._reason = "it draws random numbers by means that are not recorded"
        for (kind, numbers), before in zip(self._hyperparams, self._numbers):
            for name, value in numbers.items():
                if self._reason is None and before.get(name) is not value:
                    self._reason = f"it sets {name} of a {kind}"

    def reason(self) -> str | None:
        """Returns a text that describes the unrecorded effect; None if no effect was detected."""
        self.check()
        for array, value in self._arrays:
            if array.tobytes() != value.tobytes():
                return f"it changes an array {array.shape} by means that are not recorded"
        return self._reason


def _state_of(generator):
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    name, key, *rest = generator.get_state()
    return name, key.tobytes(), *rest
