"""Variables that links keep from step to step on GPUs, such as the state of a recurrent layer."""

from collections.abc import Callable, Iterable
from typing import Any

from mpchain.backends import cuda
from mpchain.captured.surroundings import Place
from mpchain.link import Link
from mpchain.typing import Array
from mpchain.variable import Parameter, Variable


class Carried:
    """What links keep when a step is captured, and what the step leaves in its place.

    The graph reads copies, at addresses that stay the same. No gradient goes back to earlier steps.

    Args:
        links: the links, with the links that they hold.

    Example:
        >>> from mpchain.captured.carried import Carried
        >>> Carried([L.LSTM(1, 1)]).fits()
        True
    """

    def __init__(self, links: Iterable[Link]):
        self._links = list(links)
        self._before = self._kept()
        self._read = {
            key: (place, Variable(value.array.copy(), requires_grad=False))
            for key, (place, value) in self._before.items()
        }
        self._left: list[tuple[Place, Any]] = []

    def _kept(self):
        """Places in links and their values, by what tells them apart."""
        return {
            (id(vars(link)), name): (Place(vars(link), name, name), value)
            for link in self._links
            for name, value in vars(link).items()
            if isinstance(value, Variable)
            and not isinstance(value, Parameter)
            and cuda.is_gpu_array(value.array)
        }

    def fits(self) -> bool:
        """Whether links keep Variables of the same shapes as when the step was captured."""
        return _shapes_of(self._kept()) == _shapes_of(self._read)

    def begin(self) -> None:
        """Puts the copies in the place of what links keep."""
        for place, copy in self._read.values():
            place.set(copy)

    def end(self) -> None:
        """Undoes :meth:`begin`, and takes note of what the step left."""
        for key, (place, _) in {**self._before, **self._kept()}.items():
            value = place.get()
            if key in self._read and value is self._read[key][1]:
                place.set(self._before[key][1])
            else:
                self._left.append((place, _array_of(value)))

    def load(self) -> None:
        """Copies what links keep to where the graph reads it."""
        for place, copy in self._read.values():
            cuda.cupy.copyto(copy.array, place.get().array)

    def leave(self, convert: Callable[[Array], Array]) -> None:
        """Gives links what a launch of the graph has computed."""
        for place, value in self._left:
            is_array = cuda.is_gpu_array(value)
            place.set(Variable(convert(value), requires_grad=False) if is_array else value)

    def computed(self) -> list:
        """What the graph computes for links."""
        return [value for _, value in self._left]

    def found(self) -> list:
        """What links keep in its place."""
        return [_array_of(place.get()) for place, _ in self._left]


def _array_of(value):
    return value.array if isinstance(value, Variable) else value


def _shapes_of(kept):
    return {k: (x.shape, x.dtype, x.array.device.id) for k, (_, x) in kept.items()}
