"""The definition of a case, and the functions that draw its arrays."""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A call of a function.

    Attributes:
        name: unique, for people.
        function: the function's name.
        arguments: what stands between its parentheses; ``F``, ``np`` and ``utils`` mean the
            framework's functions, NumPy and the framework's utils.
        arrays: by name, how each array is drawn.
        config: entries of the configuration during the call.
        mixed: names of arrays that are float16 while the others are float32, in one more run.
        loose: factor on the tolerance, for what magnifies rounding.
        forward_only: whether the gradient means nothing.
        dtypes: of the arrays, one run for each.
        note: what Chainer does wrong; then only what is right there is compared.
        wrong: what of Chainer's results is wrong: ``"forward"``, ``"gradient"``, each also for one
            dtype (``"gradient float16"``), or ``"infinite"`` where only its infinities are, or
            ``"refuses"`` where it raises an error.
    """

    name: str
    function: str
    arguments: str
    arrays: dict[str, Any]
    config: dict[str, Any]
    mixed: str
    loose: float
    forward_only: bool
    dtypes: tuple
    note: str
    wrong: tuple

    def draw(self, dtype):
        """Returns name → (array, whether it is a Variable).

        Real numbers are rounded to float16 first, so that every dtype computes the same thing.
        """
        random = np.random.RandomState(zlib.crc32(self.name.encode()))
        drawn = {}
        for name, spec in self.arrays.items():
            array, variable = as_draw(spec).take(random)
            if array.dtype.kind == "f":
                array = array.astype(np.float16).astype(self.dtype_of(name, dtype))
            drawn[name] = (array, variable)
        return drawn

    def dtype_of(self, name, dtype):
        if dtype != "mixed":
            return dtype
        return "float16" if name in self.mixed.split() else "float32"


class Draw(NamedTuple):
    """How an array is drawn, and whether it is a Variable."""

    make: Callable
    variable: bool = True

    def take(self, random):
        return np.asarray(self.make(random)), self.variable


def as_draw(spec):
    """Converts a shape to a draw of normal numbers, and a list to a draw of a constant."""
    if isinstance(spec, Draw):
        return spec
    if isinstance(spec, tuple):
        return Draw(lambda random: random.randn(*spec))
    return Draw(lambda random: as_int32(np.array(spec)), variable=False)


def as_int32(array):
    return array.astype(np.int32) if array.dtype.kind == "i" else array


def fixed(spec):
    """Returns a draw of an array without gradient."""
    return as_draw(spec)._replace(variable=False)


def uniform(low, high, *shape):
    """Returns a draw of uniform numbers."""
    return Draw(lambda random: random.uniform(low, high, shape))


def values(*numbers):
    """Returns a draw with the given real numbers."""
    return Draw(lambda random: np.array(numbers, np.float64))


def integers(high, *shape, low=0):
    """Returns a draw of a constant array of integers below ``high``."""
    return Draw(lambda random: random.randint(low, high, shape).astype(np.int32), variable=False)


def mask(ratio, *shape):
    """Returns a draw of zeros with a given probability; the other elements are scaled so that the
    mean is 1."""
    return Draw(lambda random: (random.rand(*shape) >= ratio) / (1 - ratio), variable=False)


def regular(n, *batch):
    """Returns a draw of matrices that are mostly far from singular."""
    return Draw(lambda random: random.randn(*batch, n, n) + 3 * np.eye(n))


def positive_definite(n):
    """Returns a draw of a symmetric matrix with positive eigenvalues."""

    def make(random):
        factor = random.randn(n, n)
        return np.round(factor @ factor.T + n * np.eye(n), 1)

    return Draw(make)


CASES = []
BEYOND_THE_FIRST_ORDER = {
    "batch_normalization": "the third order is wrong",
    "group_normalization": "a gradient penalty raises an error",
    "local_convolution_2d": "the second derivative is lost",
    "lstm": "the third order raises an error",
    "slstm": "the second order raises an error",
}
ALL = ("float16", "float32", "float64")


def case(
    function,
    arguments="x",
    *,
    config=None,
    mixed="",
    loose=1,
    forward_only=False,
    dtypes=ALL,
    note="",
    wrong=(),
    **arrays,
):
    """Adds a case; further keywords are the arrays."""
    wrong = tuple(filter(None, [wrong])) if isinstance(wrong, str) else wrong
    text = f"{function}({arguments})" + "".join(f" [{k}={v}]" for k, v in (config or {}).items())
    number = sum(earlier.name.split(" #")[0] == text for earlier in CASES) + 1
    name = text if number == 1 else f"{text} #{number}"
    note = note or BEYOND_THE_FIRST_ORDER.get(function, "")
    CASES.append(
        Case(
            name,
            function,
            arguments,
            arrays,
            config or {},
            mixed,
            loose,
            forward_only,
            tuple(dtypes) + (("mixed",) if mixed else ()),
            note,
            wrong,
        )
    )


TEST = {"train": False}
