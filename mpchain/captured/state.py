"""What a step may change beside the arrays that it makes: parameters, persistent arrays, and
Variables that links keep from step to step, such as the state of a recurrent layer."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mpchain.link import Link
from mpchain.optimizer import Optimizer
from mpchain.variable import Parameter, Variable


class Kept(NamedTuple):
    """An attribute of a link whose value, a Variable, a step leaves for the next one.

    Example:
        >>> from mpchain.captured.state import Kept
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


class State:
    """The parameters and the persistent arrays of links.

    Args:
        links: the links.
        params: further parameters, and Variables that are treated like them.

    Attributes:
        params: all parameters that have arrays.
        scales: pairs of an optimizer and the constant factor on its loss.

    Example:
        >>> from mpchain.captured.state import State
        >>> [p.name for p in State([L.Linear(1, 1)]).params]
        ['W', 'b']
    """

    def __init__(self, links: Iterable[Link], params: Iterable[Variable] = ()):
        self.links = list(links)
        of_links = (p for link in self.links for p in link.params(include_uninit=False))
        self.params = list({id(p): p for p in (*of_links, *params)}.values())
        self._arrays = [p._array for p in self.params]
        all_links = {id(part): part for link in self.links for part in link.links()}
        self._persistents = [
            (vars(link), name, vars(link)[name])
            for link in all_links.values()
            for name in sorted(link._persistents)
        ]
        self._all_links = list(all_links.values())
        self.scales: list[tuple[Optimizer, float]] = []
        self._buffers: dict[tuple, tuple[Kept, np.ndarray]] = {}

    @property
    def is_on_host(self) -> bool:
        """Whether all parameters are NumPy arrays."""
        return all(isinstance(array, np.ndarray) for array in self._arrays)

    def has(self, link: Link) -> bool:
        """Whether the link is one of those given."""
        return any(link is known for known in self.links)

    def fits(self) -> bool:
        """Whether all parameters and persistent values are still the same objects, and losses are
        scaled as before."""
        for param, array in zip(self.params, self._arrays):
            if param._array is not array:
                return False
        if any(optimizer.loss_scale != scale for optimizer, scale in self.scales):
            return False
        return all(names.get(name) is value for names, name, value in self._persistents)

    def arrays(self) -> Iterator[np.ndarray]:
        """Yields the arrays of parameters and of persistent values, and those of :meth:`begin`."""
        yield from self._arrays
        yield from (v for _, _, v in self._persistents if isinstance(v, np.ndarray))
        yield from (buffer for _, buffer in self._buffers.values())

    def begin(self, kind: type[np.ndarray]) -> None:
        """Puts Variables with views of a class of arrays in the place of those that links keep."""
        self._before = self._kept()
        self._shapes = _shapes_of(self._before)
        for kept in self._before:
            key, array = (id(kept.link), kept.name), kept.value.array
            if key not in self._buffers or not are_alike(self._buffers[key][1], array):
                self._buffers[key] = kept, np.empty(array.shape, array.dtype)
            buffer = self._buffers[key][1]
            np.copyto(buffer, array)
            kept.set(Variable(buffer.view(kind), requires_grad=False))
        self._begun = {kept: kept.value for kept in self._before}

    def end(self) -> dict[Kept, Variable]:
        """Undoes :meth:`begin`, and returns the Variables that links keep now, but did not."""
        made = {kept: kept.value for kept in self._kept()}
        for kept, value in self._before.items():
            if made.get(kept) is self._begun[kept]:
                del made[kept]
                kept.set(value)
                # What is computed in place stays.
                np.copyto(value.array, self._buffers[id(kept.link), kept.name][1])
        return made

    def keeps_the_same(self) -> bool:
        """Whether links keep Variables of the same shapes as at the latest :meth:`begin`."""
        return _shapes_of(self._kept()) == self._shapes

    def kept_in(self, arrays: Iterable[np.ndarray]) -> list[tuple[Kept, np.ndarray]]:
        """Returns the attributes in whose place a recording had one of these arrays, and that."""
        ids = set(map(id, arrays))
        return [(kept, buffer) for kept, buffer in self._buffers.values() if id(buffer) in ids]

    def _kept(self):
        found = {}
        for link in self._all_links:
            for name, value in vars(link).items():
                if isinstance(value, Variable) and not isinstance(value, Parameter):
                    if isinstance(value.array, np.ndarray):
                        found[Kept(link, name)] = value
        return found

    def wrap(self, kind: type[np.ndarray]) -> None:
        """Puts views of a class of arrays in the place of all arrays."""
        for param, array in zip(self.params, self._arrays):
            param._array = array.view(kind)
        for names, name, value in self._persistents:
            if isinstance(value, np.ndarray):
                names[name] = value.view(kind)

    def unwrap(self) -> str | None:
        """Undoes :meth:`wrap`; returns the name of what was replaced in between, if anything."""
        replaced = None
        for param, array in zip(self.params, self._arrays):
            if param._array is not None and _is_view(param._array, array):
                param._array = array
            else:
                replaced = f"the array of parameter {param.name}"
        for names, name, value in self._persistents:
            if isinstance(value, np.ndarray) and _is_view(names.get(name), value):
                names[name] = value
            elif names.get(name) is not value:
                replaced = f"the persistent value {name}"
        return replaced


def _shapes_of(kept):
    return {key: (value.shape, value.dtype) for key, value in kept.items()}


def are_alike(array: Any, other: np.ndarray) -> bool:
    """Whether something is a NumPy array of the same shape and dtype.

    Example:
        >>> from mpchain.captured.state import are_alike
        >>> are_alike(np.zeros(2), np.zeros(3))
        False
    """
    is_array = isinstance(array, np.ndarray)
    return is_array and array.shape == other.shape and array.dtype == other.dtype


def _is_view(view, array):
    return isinstance(view, np.ndarray) and (view is array or view.base is array)


def found_in(function: Callable, kind: type) -> list:
    """Returns the objects of a class, such as links, to which a function or an optimizer refers.

    Looked at are the function itself, the object that it is a method of and its attributes, and the
    names in closures, globals and defaults that it reads; the same of functions among these.

    Example:
        >>> from mpchain.captured.state import found_in
        >>> model = L.Linear(1, 1)
        >>> found_in(lambda x: F.sum(model(x)), mpchain.Link) == [model]
        True
    """
    found, seen, values = [], set(), [function]
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if hasattr(value, "actual_optimizer"):  # of one for several ranks
            values.append(getattr(value, "_replays", None))
            value = value.actual_optimizer
        if isinstance(value, Optimizer):
            value = value.target
        if isinstance(value, kind):
            if not any(value is other for other in found):
                found.append(value)
        elif value is function or inspect.isfunction(value) or inspect.ismethod(value):
            values += _opened(_referred_to(value))
    return found


def _referred_to(function):
    values = [*vars(function).values()] if hasattr(function, "__dict__") else []
    owner = getattr(function, "__self__", None)
    values += [owner, *getattr(owner, "__dict__", {}).values()]
    code = getattr(function, "__func__", function)
    if inspect.isfunction(code) and (code.__module__ or "").partition(".")[0] != "mpchain":
        values += [*(code.__defaults__ or ()), *(code.__kwdefaults__ or {}).values()]
        try:
            names = inspect.getclosurevars(code)
        except ValueError:  # a name of the closure has no value yet
            return values
        values += [*names.nonlocals.values(), *names.globals.values()]
    return values


def _opened(values):
    for value in values:
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value
