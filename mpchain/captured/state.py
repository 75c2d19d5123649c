"""The state that a step may change besides the arrays that it creates: parameters, arrays that
links and the function hold, and values kept between steps, such as the state of a recurrent
layer."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from mpchain.backends import cuda
from mpchain.captured.surroundings import Place
from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.typing import Array
from mpchain.variable import Parameter, Variable


class State:
    """The parameters of links, and the arrays and Variables in the given places.

    Args:
        links: the links.
        params: further parameters, and Variables that are treated like parameters.
        held: the places of arrays, such as persistent values, that keep their memory.
        kept: the places of arrays and Variables that each step replaces.

    Attributes:
        params: all parameters that have arrays.
        scales: pairs of an optimizer and the constant factor on its loss.
        with_graph: Variables that :meth:`begin` did not replace because backward would continue
            into earlier steps, with their names, by id.

    Example:
        >>> from mpchain.captured.state import State
        >>> [p.name for p in State([L.Linear(1, 1)]).params]
        ['W', 'b']
    """

    def __init__(
        self,
        links: Iterable[Link],
        params: Iterable[Variable] = (),
        held: Iterable[Place] = (),
        kept: Iterable[Place] = (),
    ):
        self.links = list(links)
        self.kept = list(kept)
        of_links = (p for link in self.links for p in link.params(include_uninit=False))
        own = {id(place.get()) for place in self.kept}
        params = (p for p in params if id(p) not in own and p.array is not None)
        self.params = list({id(p): p for p in (*of_links, *params)}.values())
        self._arrays = [p.array for p in self.params]
        apart = {place.id for place in self.kept}
        self._held = [(place, place.get()) for place in held if place.id not in apart]
        self.scales: list[tuple[Optimizer, float]] = []
        self.with_graph: dict[int, tuple[str, Variable]] = {}
        self._buffers: dict[tuple, tuple[Place, np.ndarray]] = {}

    @property
    def is_on_host(self) -> bool:
        """Whether all parameters are NumPy arrays."""
        return all(isinstance(array, np.ndarray) for array in self._arrays)

    def has(self, link: Link) -> bool:
        """Returns whether ``links`` contains the link."""
        return any(link is known for known in self.links)

    def param_in(self, arrays: Iterable[np.ndarray]) -> Variable | None:
        """Returns a parameter that shares memory with one of the arrays; None if there is none."""
        for array in arrays:
            for param, own in zip(self.params, self._arrays):
                if np.may_share_memory(array, own):
                    return param
        return None

    def fits(self) -> bool:
        """Returns whether all parameters still have the same arrays, and loss scales are the same
        as before."""
        for param, array in zip(self.params, self._arrays):
            if param.array is not array:
                return False
        return all(optimizer.loss_scale == scale for optimizer, scale in self.scales)

    def arrays(self) -> Iterator[np.ndarray]:
        """Yields the arrays of parameters, the arrays in held places, and the buffers of kept
        values."""
        yield from self._arrays
        yield from (value for _, value in self._held)
        yield from (buffer for _, buffer in self._buffers.values())

    # The methods below handle values that each step leaves for the next step.

    def begin(self, kind: type[np.ndarray]) -> None:
        """Replaces kept arrays by views, of a given array class, of copies, and kept Variables by
        Variables with such views, except those in ``with_graph``."""
        self._before, self._begun, self.with_graph = {}, {}, {}
        self._shapes = _shapes_of(self._found())
        nodes = {id(param.node) for param in self.params}
        for key, (place, value) in self._found().items():
            if isinstance(value, Variable) and _reaches(value.node, nodes):
                self.with_graph[id(value)] = place.label, value
                continue
            array = _array_of(value)
            if key not in self._buffers or not are_alike(self._buffers[key][1], array):
                self._buffers[key] = place, np.empty(array.shape, array.dtype)
            buffer = self._buffers[key][1]
            np.copyto(buffer, array)
            given = buffer.view(kind)
            if isinstance(value, Variable):
                given = Variable(given, requires_grad=False)
            self._before[key], self._begun[key] = value, given
            place.set(given)

    def end(self) -> dict[tuple, tuple[Place, Any]]:
        """Undoes :meth:`begin`. Returns the values that the step has newly stored in kept
        places."""
        made = self._found()
        for key, value in self._before.items():
            place, buffer = self._buffers[key]
            now = place.get()
            if now is self._begun[key] or (isinstance(now, np.ndarray) and _is_view(now, buffer)):
                made.pop(key, None)
                place.set(value)
                # A place keeps its array object if the array is changed in place.
                np.copyto(_array_of(value), buffer)
        return {key: pair for key, pair in made.items() if id(pair[1]) not in self.with_graph}

    def keeps_the_same(self) -> bool:
        """Returns whether kept values have the same shapes as at the latest :meth:`begin`."""
        return _shapes_of(self._found()) == self._shapes

    def kept_arrays(self) -> list:
        """Returns the array that each kept place holds now; None for a place without an array."""
        arrays = (_array_of(place.get()) for place in self.kept)
        return [x if isinstance(x, np.ndarray) else None for x in arrays]

    def kept_in(self, arrays: Iterable[np.ndarray]) -> list[tuple[Place, np.ndarray]]:
        """Returns pairs of a kept place and that array of ``arrays`` which a recording found
        there."""
        ids = set(map(id, arrays))
        return [(place, buffer) for place, buffer in self._buffers.values() if id(buffer) in ids]

    def _found(self):
        """Returns the kept values by place."""
        found = {}
        for place in self.kept:
            value = place.get()
            if isinstance(value, Variable) and isinstance(value, Parameter):
                continue
            if isinstance(_array_of(value), np.ndarray):
                found[place.id] = place, value
        return found

    # The methods below handle arrays that keep their memory.

    def wrap(self, kind: type[np.ndarray]) -> None:
        """Replaces each array by a view of the given array class."""
        self._kind = kind
        views: dict[int, np.ndarray] = {}
        for param in self.params:
            if isinstance(array := param.array, np.ndarray):
                param.array = views.setdefault(id(array), array.view(kind))
        for place in self._places():
            if isinstance(array := place.get(), np.ndarray):
                place.set(views.setdefault(id(array), array.view(kind)))

    def unwrap(self) -> str | None:
        """Undoes :meth:`wrap`. Returns a text that names a parameter whose array was replaced after
        :meth:`wrap`; None if there is none."""
        odd = None
        for param, array in zip(self.params, self._arrays):
            if param.array is not None and _is_view(param.array, array):
                param.array = array
            else:
                odd = f"the array of parameter {param.name}"
        for place, value in self._held:
            if type(now := place.get()) is self._kind:
                place.set(value if _is_view(now, value) else now.view(np.ndarray))
        for place in self.kept:
            if type(now := place.get()) is self._kind:
                place.set(now.view(np.ndarray))
        return odd

    def _places(self):
        return [*(place for place, _ in self._held), *self.kept]


class Carried:
    """The state of links when a step is captured, and the state that the step leaves.

    The graph reads copies of the state, whose addresses do not change. No gradient flows back to
    earlier steps.

    Args:
        links: the links, with the links that they hold.

    Example:
        >>> from mpchain.captured.state import Carried
        >>> Carried([L.LSTM(1, 1)]).fits()
        True
    """

    def __init__(self, links: Iterable[Link]):
        self._links = list(links)
        self._before = self._kept()
        self._read = {
            key: (place, Variable(other_values(value.array), requires_grad=False))
            for key, (place, value) in self._before.items()
        }
        self._left: list[tuple[Place, Any]] = []

    def _kept(self):
        """Returns a dict from pairs of a link and an attribute to the place and its value."""
        return {
            (id(vars(link)), name): (Place(vars(link), name, name), value)
            for link in self._links
            for name, value in vars(link).items()
            if isinstance(value, Variable)
            and not isinstance(value, Parameter)
            and cuda.is_gpu_array(value.array)
        }

    def fits(self) -> bool:
        """Returns whether links keep Variables of the same shapes as when the step was captured."""
        return _shapes_of(self._kept()) == _shapes_of(self._read)

    def begin(self) -> None:
        """Replaces the Variables that links keep by the copies."""
        for place, copy in self._read.values():
            place.set(copy)

    def end(self) -> None:
        """Undoes :meth:`begin`, and records the state that the step left."""
        for key, (place, _) in {**self._before, **self._kept()}.items():
            value = place.get()
            if key in self._read and value is self._read[key][1]:
                place.set(self._before[key][1])
            else:
                self._left.append((place, _array_of(value)))

    def load(self) -> None:
        """Copies the values that links keep to the memory that the graph reads."""
        for place, copy in self._read.values():
            cuda.cupy.copyto(copy.array, place.get().array)

    def leave(self, convert: Callable[[Array], Array]) -> None:
        """Stores converted results of a launch of the graph in links."""
        for place, value in self._left:
            is_array = cuda.is_gpu_array(value)
            place.set(Variable(convert(value), requires_grad=False) if is_array else value)

    def convert(self, convert: Callable[[Array], Array]) -> None:
        """Replaces the arrays that links keep by converted arrays."""
        for place, _ in self._left:
            value = _array_of(place.get())
            if cuda.is_gpu_array(value):
                place.set(Variable(convert(value), requires_grad=False))

    def computed(self) -> list:
        """Returns the arrays that the graph computes for links."""
        return [value for _, value in self._left]

    def found(self) -> list:
        """Returns the values that links keep, by place."""
        return [_array_of(place.get()) for place, _ in self._left]


def other_values(array: Array) -> Array:
    """Returns a new GPU array of the same shape and dtype: NaN, integers in the same range, or
    inverted bools.

    Example:
        >>> other_values(cupy.array([3, 1, 1]))  # doctest: +SKIP
        array([1, 3, 3])
    """
    if array.dtype.kind == "b":
        return ~array
    if array.dtype.kind in "iu":
        return array.max() + array.min() - array if array.size else array.copy()
    return cuda.cupy.full(array.shape, np.nan, array.dtype)


def _array_of(value):
    return value.array if isinstance(value, Variable) else value


def _reaches(node, wanted):
    """Returns whether backward from a node would reach one of the wanted nodes."""
    seen, stack = set(), [node]
    while stack:
        node = stack.pop()
        if id(node) in wanted:
            return True
        if node.creator_node is not None and id(node) not in seen:
            stack += node.creator_node.inputs
        seen.add(id(node))
    return False


def _shapes_of(kept):
    arrays = {key: _array_of(value) for key, (_, value) in kept.items()}
    return {key: (x.shape, x.dtype, x.device) for key, x in arrays.items()}


def are_alike(array: object, other: np.ndarray) -> bool:
    """Returns whether ``array`` is a NumPy array of the shape and dtype of ``other``.

    Example:
        >>> from mpchain.captured.state import are_alike
        >>> are_alike(np.zeros(2), np.zeros(3))
        False
    """
    is_array = isinstance(array, np.ndarray)
    return is_array and array.shape == other.shape and array.dtype == other.dtype


def _is_view(view, array):
    if view is array or view.base is array:
        return True
    places = [x.__array_interface__["data"] for x in (view, array)]
    return places[0] == places[1] and are_alike(view, array) and view.strides == array.strides
