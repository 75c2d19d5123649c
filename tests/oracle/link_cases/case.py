"""The definition of a case of a link."""

from typing import NamedTuple

import numpy as np

CASES = []
"""The list of all cases."""


class Case(NamedTuple):
    """The texts that make and call a link, and its inputs.

    Attributes:
        make: in it, ``L``, ``F`` and ``np`` mean what they usually do.
        call: in it, ``link`` is the link, and the inputs have their names.
        inputs: by name: a shape (normal numbers), a list (constant integers), or an array.
        config: entries of the configuration for the call.
        note: what Chainer does that mpchain does not imitate.
        wrong: names of its results that are not compared, which ``note`` explains: ``y0``, ``gx``,
            ``gW``, ``initial W``, ``after avg_var``, ``saved W``; or ``all``.
        loose: factor of the tolerances.
    """

    make: str
    call: str
    inputs: dict
    config: dict = {}
    note: str = ""
    wrong: tuple = ()
    loose: float = 1.0

    @property
    def name(self):
        return f"{self.make.removeprefix('L.')}: {self.call}" + "".join(
            f" [{name}={value}]" for name, value in self.config.items()
        )

    def draw(self):
        """Returns the inputs by name, as arrays."""
        random = np.random.RandomState(0)
        return {name: _array(random, given) for name, given in self.inputs.items()}


def _array(random, given):
    if isinstance(given, tuple):
        return random.randn(*given).astype(np.float32)
    return np.asarray(given, np.int32) if isinstance(given, list) else given


def case(make, call=None, *, config=None, note="", wrong=(), loose=1.0, **inputs):
    """Adds a case; without ``call``, the link is called with its inputs in turn."""
    call = f"link({', '.join(inputs)})" if call is None else call
    CASES.append(Case(make, call, inputs, config or {}, note, wrong, loose))
