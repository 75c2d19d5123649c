"""Variables that links keep from step to step on GPUs, such as the state of a recurrent layer."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from mpchain.backends import cuda
from mpchain.link import Link
from mpchain.typing import Array
from mpchain.variable import Parameter, Variable


class Kept(NamedTuple):
    """An attribute of a link whose value, a Variable, a step leaves for the next one.

    Example:
        >>> from mpchain.captured.carried import Kept
        >>> Kept(L.LSTM(1, 1), "h").value is None
        True
    """

    link: Link
    name: str

    @property
    def value(self) -> Any:
        """The attribute."""
        return getattr(self.link, self.name)

    def set(self, value: Any) -> None:
        """Sets the attribute."""
        setattr(self.link, self.name, value)


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
            kept: Variable(value.array.copy(), requires_grad=False)
            for kept, value in self._before.items()
        }
        self._left: list[tuple[Kept, Any]] = []

    def _kept(self):
        return {
            Kept(link, name): value
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
        for kept, copy in self._read.items():
            kept.set(copy)

    def end(self) -> None:
        """Undoes :meth:`begin`, and takes note of what the step left."""
        for kept in {**self._before, **self._kept()}:
            value = vars(kept.link).get(kept.name)
            if kept in self._read and value is self._read[kept]:
                kept.set(self._before[kept])
            else:
                self._left.append((kept, value.array if isinstance(value, Variable) else value))

    def load(self) -> None:
        """Copies what links keep to where the graph reads it."""
        for kept, copy in self._read.items():
            cuda.cupy.copyto(copy.array, kept.value.array)

    def leave(self, convert: Callable[[Array], Array]) -> None:
        """Gives links what a launch of the graph has computed."""
        for kept, value in self._left:
            is_array = cuda.is_gpu_array(value)
            kept.set(Variable(convert(value), requires_grad=False) if is_array else value)

    def computed(self) -> list:
        """What the graph computes for links."""
        return [value for _, value in self._left]

    def found(self) -> list:
        """What links keep in its place."""
        values = [vars(kept.link).get(kept.name) for kept, _ in self._left]
        return [x.array if isinstance(x, Variable) else x for x in values]


def _shapes_of(kept):
    return {k: (x.shape, x.dtype, x.array.device.id) for k, x in kept.items()}
